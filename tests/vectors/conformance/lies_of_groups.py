"""Lies about secret draws from groups in turn: whose steps count, which draws show in copies, what the owner may sign."""

from collections import Counter
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from attest.policy import NoisePhase
from ledger.leaves import Draw, Epoch, Header, Resume, Settle, Spend
from ledger.replay.register import Groups
from ledger.replay.state import Copies, Expenditure, Levels
from tests.ledger.spends import with_rows
from tests.vectors.conformance.correlated import BANDS, INVERSE
from tests.vectors.conformance.groups import THREE, turns_of, under
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lies_of_noise import Make, turns_of_nothing, writer
from tests.vectors.conformance.lying import header_says, inserted, on_leaves, position_of, say, told
from tests.vectors.conformance.written import Pieces
from tests.worlds.attested_ledgers import attested_policy

_levels = Copies.levels
_charge = Copies.charge
_phases = Expenditure.charged_phases


def signed_otherwise(**changes: Any) -> Make:
    """Returns what lets the header hold another policy of the owner; all else says what ran."""
    other = attested_policy(**(under(THREE) | changes))

    def apply(pieces: Pieces) -> Pieces:
        return header_says(5, lambda _: other.payload)(header_says(6, lambda _: other.sign1)(pieces))

    return on_leaves(apply)


def of_levels(change: Any) -> Any:
    """Returns a writer's lie about how many draws have how many copies."""
    return patch.object(Copies, "levels", lambda self: change(_levels(self)))


def without_again(self: Copies) -> Levels:
    """Counts draws that have copies once, however often their step was charged again."""
    again, self._again, self._levels = self._again, Counter(), None
    found = _levels(self)
    self._again, self._levels = again, None
    return found


def silently(self: Copies, first: int, last: int) -> bool:
    """Takes the steps of a window, and says that nobody's draws have copies more by it."""
    _charge(self, first, last)
    return False


def in_another_group(self: Expenditure, counts: Any) -> tuple[int, ...]:
    """Returns the steps of the group that had fewest."""
    held = tuple(counts)
    return tuple(min(held[begin : begin + self.groups]) for begin in range(0, len(held), self.groups))


def as_seldom_as_all(self: Expenditure, class_index: int, z: Any, steps: Any, levels: Levels | None = None) -> Any:
    """Counts draws at the rate of a step over all groups."""
    found = _phases(self, class_index, z, steps, levels)
    return [replace(phase, sampling_rate=phase.sampling_rate / self.groups) for phase in found]


def a_draw(pieces: Pieces, seq: int) -> Draw:
    """Returns a leaf that tells who was drawn in the first step of the window before it."""
    settle = pieces.leaves[seq]
    assert isinstance(settle, Settle)
    return Draw(seq, settle.time, settle.window, 1, (0,), settle.variances)


def unamplified(pieces: Pieces) -> Pieces:
    """The header says that nothing is amplified."""
    assert isinstance(pieces.leaves[0], Header)
    return header_says(11, lambda _: "none")(pieces)


def a_row_less(pieces: Pieces) -> Pieces:
    """The last SPEND leaf lacks its last row."""
    seq = position_of(pieces, Epoch, -1) - 1
    leaf = pieces.leaves[seq]
    assert isinstance(leaf, Spend)
    return pieces.saying(seq, replace(leaf, rows=leaf.rows[:-1]))


AGAIN: Final = "groups and bands, resumed"

LIES: Final[dict[str, Lie]] = {
    "steps of another group": Lie(
        "everybody pays for the steps of the group that had fewest",
        "groups, stopped early",
        writer("groups, stopped early", patch.object(Expenditure, "dearest_steps", in_another_group)),
        "SPEND",
    ),
    "draws as seldom as of all groups": Lie(
        "draws cost as if each step drew from everybody",
        "groups",
        writer("groups", patch.object(Expenditure, "charged_phases", as_seldom_as_all)),
        "SPEND_EPSILON",
    ),
    "an epsilon of groups of less": Lie(
        "an epsilon is 4e-6 less",
        "groups, late",
        on_leaves(
            told(
                Spend,
                lambda leaf: with_rows(leaf, lambda row: replace(row, epsilon_micro=row.epsilon_micro - 4), len(leaf.rows) - 1),
            )
        ),
        "SPEND_EPSILON",
    ),
    "no copies": Lie(
        "no draw shows in rows that were released again", AGAIN, writer(AGAIN, of_levels(lambda levels: ())), "SPEND_EPSILON"
    ),
    "copies of fewer draws": Lie(
        "one draw less shows in rows that were released again",
        AGAIN,
        writer(AGAIN, of_levels(lambda levels: tuple((count - 1, more) for count, more in levels))),
        "SPEND_EPSILON",
    ),
    "one copy of all": Lie(
        "no draw shows in more than one copy",
        "groups and bands, forked",
        writer("groups and bands, forked", of_levels(lambda levels: levels[:1])),
        "SPEND_EPSILON",
    ),
    "draws with copies that count once": Lie(
        "draws that have copies count once, however often they were made",
        "groups and bands, begun again",
        writer("groups and bands, begun again", patch.object(Copies, "levels", without_again)),
        "SPEND_EPSILON",
    ),
    "copies without a row": Lie(
        "whose draws have copies more has no new row",
        "groups and bands, one step again",
        writer("groups and bands, one step again", patch.object(Copies, "charge", silently)),
        "EPOCH_ORDER",
    ),
    "copies without a row of who left": Lie(
        "who left before its draws had copies more has no new row",
        "groups and bands, some gone",
        writer("groups and bands, some gone", patch.object(Groups, "dearer", lambda self: None)),
        "EPOCH_ORDER",
    ),
    "the last row of groups left out": Lie(
        "of the rows at the end one is missing", "groups and bands, late", on_leaves(a_row_less), "EPOCH_ORDER"
    ),
    "a fork at another step": Lie(
        "the run is said to go on from the step before", AGAIN, on_leaves(say(Resume, from_step=3)), "TILE"
    ),
    "a draw of groups told": Lie(
        "a leaf tells who was drawn in secret", "groups", on_leaves(inserted(Settle, a_draw)), "DRAW_SECRET"
    ),
    "groups that amplify nothing": Lie(
        "the header says that draws are not amplified", "groups", on_leaves(unamplified), "SCHEMA"
    ),
    "turns of groups": Lie(
        "what turns add up to is said of secret draws",
        "groups and bands",
        on_leaves(turns_of_nothing([[2, 6.0, 1.0], [3, 4.0, 1.0]])),
        "TURNS",
    ),
    "more groups than anybody counts": Lie(
        "the owner signed more than 4096 groups",
        "groups and bands",
        signed_otherwise(sampling=turns_of(4_097)),
        "POLICY_UNSUPPORTED",
    ),
    "more bands than groups": Lie(
        "the owner signed four bands and three groups",
        "groups and bands",
        signed_otherwise(mechanism=BANDS),
        "POLICY_UNSUPPORTED",
    ),
    "groups and a banded inverse": Lie(
        "the owner signed groups with a strategy that has all bands",
        "groups and bands",
        signed_otherwise(mechanism=INVERSE),
        "POLICY_UNSUPPORTED",
    ),
    "groups whose draws are public": Lie(
        "the owner signed groups whose draws are told",
        "groups and bands",
        signed_otherwise(disclosure="occurrences_public"),
        "POLICY_UNSUPPORTED",
    ),
    "groups and bands in phases": Lie(
        "the owner signed correlated noise of two levels",
        "groups and bands",
        signed_otherwise(noise_phases=(NoisePhase(1, 2_000_000), NoisePhase(5, 1_000_000))),
        "POLICY_UNSUPPORTED",
    ),
    "more steps again than anybody counts": Lie(
        "the owner signed more than 4096 steps that may be done again",
        "groups and bands",
        signed_otherwise(redo_steps=4_097),
        "POLICY_UNSUPPORTED",
    ),
}
"""Lies by name."""
