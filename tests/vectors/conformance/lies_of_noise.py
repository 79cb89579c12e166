"""Lies about noise that is correlated between steps: what turns add up to, rows that were released again, who pays for them.

Those about figures are told by a writer that counts otherwise, so that all else in the export fits together again.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from attest import cbor
from attest.policy import MechanismRule, NoisePhase, SamplingRule
from attest.policy.mechanism import Bands, Buffers
from ledger.accountants.correlated.turns import Turns
from ledger.leaves import Draw, Spend
from ledger.leaves.numerics import _DEVICE_NOTE as DEVICE_NOTE
from ledger.replay import replay as replaying
from ledger.replay import summaries
from ledger.replay.contributions import Contribution
from ledger.replay.state import Expenditure
from tests.ledger.spends import with_rows
from tests.vectors.conformance.correlated import BANDS, BUFFERS, INVERSE, KEPT, in_windows, under
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lying import drawn, header_says, left_out, on_leaves, told
from tests.vectors.conformance.several import PEOPLE, RUNS, going_on
from tests.vectors.conformance.written import Files, Pieces
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission, attested_policy

Change = Callable[[Pieces], Pieces]
Make = Callable[[Files], Files]

TURNS: Final = 28
"""Key of leaf 0 that says what turns add up to."""


def writer(name: str, *lies: Any, **changes: Any) -> Make:
    """Returns the files of an honest run, changed or not, by a writer that tells lies; those are patches."""

    def make(_: Files) -> Files:
        with ExitStack() as stack:
            for lie in lies:
                stack.enter_context(lie)
            return replace(RUNS[name], **changes).files()

    return make


# --- Who pays for a row that is released again ------------------------------------------------------------------------------

_again = Expenditure.again
_count = Expenditure.count
_class_row = summaries._class_row
_occurrence = Turns.occurrence


def paying(chosen: Callable[[list[Contribution]], list[Contribution]]) -> Any:
    """Returns a writer's lie by which only these, in their order, pay for rows that are released again."""

    def again(self: Expenditure, register: Any, step: int) -> None:
        def spend(place: int, period: int, added: Sequence[float], over: Callable[[Any], float]) -> None:
            for one in chosen(list(register.by_number)):
                first = one.slot % period
                if one.class_index == place and one.occurrences and first < len(added) and added[first]:
                    register.by_number.losses[one.number] += added[first] / over(one.terms)
                    if not one.active:
                        register.groups.spent(one)

        _again(self, SimpleNamespace(spend=spend), step)

    return patch.object(Expenditure, "again", again)


def below_its_cap(one: Contribution) -> bool:
    """Tells whether a contribution may still take part."""
    return not 0 < one.terms.bounds.max_occurrences <= one.occurrences


def once_each() -> Any:
    """Returns a writer's lie by which a row is paid for the first time that it is released again, and not then."""
    seen: dict[int, set[int]] = {}

    def again(self: Expenditure, register: Any, step: int) -> None:
        paid = seen.setdefault(id(self), set())
        if step not in paid:
            _again(self, register, step)
        paid.add(step)

    return patch.object(Expenditure, "again", again)


def as_another_turn(self: Expenditure, contribution: Contribution, variances: Any, step: int, *, again: bool = False) -> None:
    """Counts a turn that is done again as one more turn."""
    _count(self, contribution, variances, step)


NOBODY: Final = paying(lambda people: [])
RAISED: Final = patch.object(summaries, "_class_row", lambda *given: _class_row(*given[:-1], math.inf))
"""A writer's lie by which a summary says what who left had spent when it left."""


# --- What the header and the policy say -------------------------------------------------------------------------------------


def turns_say(place: int, item: int, change: Callable[[Any], Any]) -> Make:
    """Returns what changes an item of a class of the header's turns."""

    def changed(rows: list[list[Any]]) -> list[list[Any]]:
        rows = [list(one) for one in rows]
        rows[place][item] = change(rows[place][item])
        return rows

    return on_leaves(header_says(TURNS, changed))


def no_turns(pieces: Pieces) -> Pieces:
    """The header says nothing of turns."""
    fields = cbor.decode(pieces.bodies[0], max_size=1 << 16)
    return pieces.saying(0, cbor.encode({key: value for key, value in fields.items() if key != TURNS}))


def turns_of_nothing(rows: list[Any]) -> Change:
    """Returns what lets a header of independent noise say what turns add up to."""

    def apply(pieces: Pieces) -> Pieces:
        fields = cbor.decode(pieces.bodies[0], max_size=1 << 16)
        return pieces.saying(0, cbor.encode(fields | {TURNS: rows}))

    return apply


def signed_otherwise(**changes: Any) -> Make:
    """Returns what lets the header hold another policy of the owner; all else says what ran."""
    other = attested_policy(**under(BANDS, **changes))

    def apply(pieces: Pieces) -> Pieces:
        return header_says(5, lambda _: other.payload)(header_says(6, lambda _: other.sign1)(pieces))

    return on_leaves(apply)


def less(value: float) -> float:
    """Returns the next double towards zero."""
    return math.nextafter(value, 0.0)


def more(value: float) -> float:
    """Returns the next double away from zero."""
    return math.nextafter(value, math.inf)


def loss_of(place: int, change: Callable[[float], float]) -> Make:
    """Returns what changes the loss of a row of the first SPEND leaf."""
    return on_leaves(told(Spend, lambda leaf: with_rows(leaf, lambda row: replace(row, loss=change(row.loss)), place)))


def draw_again(change: Callable[[int], Change]) -> Make:
    """Returns what does something with the first DRAW leaf of a step that a leaf before it has and in which somebody is due."""

    def apply(pieces: Pieces) -> Pieces:
        seen: set[int] = set()
        for nth, leaf in enumerate(leaf for leaf in pieces.leaves if isinstance(leaf, Draw)):
            if leaf.step in seen and leaf.drawn:
                return change(nth)(pieces)
            seen.add(leaf.step)
        raise AssertionError("no step is done again")

    return on_leaves(apply)


def unwarned(driver: AttestedDriver) -> None:
    """Admits somebody whose limit the plan passes by 6e-6."""
    limit = {**KEPT, "max_epsilon_micro": KEPT["max_epsilon_micro"] - 6}
    driver.admit(attested_admission(1, **limit), attested_admission(2), attested_admission(3, "sensitive"))


def other_coefficients() -> MechanismRule:
    """Returns bands of which one coefficient is the next one."""
    numbers = BANDS.parameters
    return replace(BANDS, parameters=replace(numbers, coefficients=(*numbers.coefficients[:-1], numbers.coefficients[-1] - 1)))


LIES: Final[dict[str, Lie]] = {
    "another period": Lie("turns come back later than the rate says", "bands", turns_say(0, 0, lambda value: 5), "TURNS"),
    "turns add up to less": Lie(
        "what turns add up to is the double below", "bands, normalized", turns_say(1, 1, less), "TURNS"
    ),
    "turns add up to more": Lie(
        "what turns add up to is the double above", "buffers", turns_say(0, 1, more), "TURNS"
    ),
    "a step once more adds less": Lie(
        "what a step done again adds is the double below", "banded inverse", turns_say(0, 2, less), "TURNS"
    ),
    "turns of one class": Lie(
        "a class is left out of what turns add up to", "bands", on_leaves(header_says(TURNS, lambda rows: rows[:1])), "TURNS"
    ),
    "no turns": Lie("nothing is said of what turns add up to", "bands", on_leaves(header_says(TURNS, lambda _: [])), "TURNS"),
    "no field of turns": Lie("the field of turns is left out", "bands", on_leaves(no_turns), "TURNS"),
    "turns of independent noise": Lie(
        "turns are said to add up where every step has noise of its own",
        "cyclic order",
        on_leaves(turns_of_nothing([[4, 3.0, 1.0], [3, 4.0, 1.0]])),
        "TURNS",
    ),
    "no turns, of independent noise": Lie(
        "an empty field of turns stands where every step has noise of its own",
        "cyclic order",
        on_leaves(turns_of_nothing([])),
        "SCHEMA",
    ),
    "a coefficient of a policy nobody signed": Lie(
        "a coefficient of the signed strategy is another",
        "bands",
        on_leaves(header_says(5, lambda data: data.replace(cbor.encode(524_288), cbor.encode(524_287)))),
        "POLICY",
    ),
    "a coefficient of another policy": Lie(
        "the owner signed another coefficient than that by which turns add up",
        "bands",
        signed_otherwise(mechanism=other_coefficients()),
        "TURNS",
    ),
    "correlated noise in another order": Lie(
        "the owner signed correlated noise with a shuffled order",
        "bands",
        signed_otherwise(sampling=SamplingRule("shuffled")),
        "POLICY_UNSUPPORTED",
    ),
    "correlated noise in phases": Lie(
        "the owner signed correlated noise of two levels",
        "bands",
        signed_otherwise(noise_phases=(NoisePhase(1, 2_000_000), NoisePhase(5, 1_000_000))),
        "POLICY_UNSUPPORTED",
    ),
    "correlated noise in parts": Lie(
        "the owner signed correlated noise in several draws",
        "bands",
        signed_otherwise(noise_injection="per_microbatch", noise_microbatches=2),
        "POLICY_UNSUPPORTED",
    ),
    "a normalized inverse": Lie(
        "the owner signed a banded inverse with columns of norm 1",
        "banded inverse",
        signed_otherwise(mechanism=replace(INVERSE, parameters=replace(INVERSE.parameters, normalized=True))),
        "POLICY_UNSUPPORTED",
    ),
    "buffers of more than one": Lie(
        "the owner signed buffers whose scales are more than 1 together",
        "buffers",
        signed_otherwise(
            mechanism=MechanismRule("buffered_toeplitz", Buffers(decays=(1 << 39, 1 << 38), scales=(1 << 40, 1)))
        ),
        "POLICY_UNSUPPORTED",
    ),
    "an inverse that float64 loses": Lie(
        "the owner signed a banded inverse whose column grows beyond what float64 tells",
        "banded inverse",
        signed_otherwise(
            mechanism=MechanismRule("banded_inverse", Bands(bands=3, coefficients=(1 << 20, -(1 << 20), -(1 << 20)))),
            steps=2_000,
        ),
        "POLICY_UNSUPPORTED",
    ),
    "more turns than anybody adds up": Lie(
        "the owner signed buffers over so many steps that their products are more than 2^29",
        "buffers",
        signed_otherwise(mechanism=BUFFERS, steps=65_536),
        "POLICY_UNSUPPORTED",
    ),
    "the note of independent noise": Lie(
        "the exactness note is that of independent noise",
        "bands",
        on_leaves(header_says(16, lambda note: note.replace(", correlated by a banded Toeplitz strategy", ""))),
        "NUMERICS",
    ),
    "noise on a device": Lie(
        "correlated noise is said to be drawn on the device of the sums",
        "bands",
        on_leaves(header_says(16, lambda note: note + DEVICE_NOTE)),
        "NUMERICS",
    ),
    "a loss of less": Lie("the loss of a row is the double below", "bands", loss_of(0, less), "SPEND_ORDER"),
    "a loss of independent noise": Lie(
        "occurrences cost what they would if every step had noise of its own",
        "buffers",
        writer("buffers", patch.object(Turns, "occurrence", lambda self, step: 1.0)),
        "SPEND_ORDER",
    ),
    "an occurrence without what rounding lost": Lie(
        "occurrences cost a share of 2^-40 less",
        "banded inverse",
        writer(
            "banded inverse",
            patch.object(Turns, "occurrence", lambda self, step: _occurrence(self, step) * (1 - 2.0**-40)),
        ),
        "SPEND_ORDER",
    ),
    "an occurrence of correlated noise left out": Lie(
        "somebody who is due is not drawn", "bands", on_leaves(drawn(4, ())), "TURN"
    ),
    "an occurrence left out of a step done again": Lie(
        "nobody is drawn in a step that is done again",
        "bands, resumed",
        draw_again(lambda nth: drawn(nth, ())),
        "TURN",
    ),
    "a step done again without its draw": Lie(
        "a step that is done again has no DRAW leaf", "bands, resumed", draw_again(lambda nth: left_out(Draw, nth)), "DRAW"
    ),
    "a step done again for nothing": Lie(
        "nobody pays for rows that are released again", "bands, resumed", writer("bands, resumed", NOBODY), "SPEND_ORDER"
    ),
    "a step done again for nothing, normalized": Lie(
        "likewise where columns have norm 1",
        "bands, normalized, resumed",
        writer("bands, normalized, resumed", NOBODY),
        "SPEND_ORDER",
    ),
    "a step done again as one more turn": Lie(
        "who is due in a step that is done again pays for one more turn, and nobody else",
        "buffers, resumed",
        writer("buffers, resumed", NOBODY, patch.object(Expenditure, "count", as_another_turn)),
        "SPEND_ORDER",
    ),
    "a step done three times as twice": Lie(
        "a row that is released a third time costs nothing",
        "bands, forked",
        writer("bands, forked", once_each()),
        "SPEND_ORDER",
    ),
    "who left pays nothing": Lie(
        "rows that are released again cost those alone who are in the pool",
        "bands, some gone",
        writer("bands, some gone", paying(lambda people: [one for one in people if one.active])),
        "SPEND_ORDER",
    ),
    "one who left pays nothing": Lie(
        "one of those who left does not pay for rows that are released again",
        "buffers, some gone",
        writer("buffers, some gone", paying(lambda people: people[1:])),
        "SPEND",
    ),
    "who left in another order": Lie(
        "of those who left and pay as much the later one joins their group first",
        "bands, some gone",
        writer("bands, some gone", paying(lambda people: people[::-1])),
        "SPEND",
    ),
    "who had all turns pays nothing": Lie(
        "who has taken part as often as it signed does not pay for rows that are released again",
        "bands, caps",
        writer("bands, caps", paying(lambda people: [one for one in people if below_its_cap(one)])),
        "SPEND_ORDER",
    ),
    "a summary of who left before it paid": Lie(
        "a SUMMARY leaf says what who left had spent when it left",
        "bands, everybody gone",
        writer("bands, everybody gone", RAISED),
        "SUMMARY",
    ),
    "a limit that steps done again pass": Lie(
        "a limit over all runs is kept without the steps that may be done again, not with them",
        "bands, limits",
        writer(
            "bands, limits",
            patch.object(replaying, "budget_problems", lambda *given: ()),
            life=in_windows(4, 4, people=unwarned),
        ),
        "BUDGET",
    ),
    "too little carried of correlated noise": Lie(
        "what a run of correlated noise took is said to be 4e-6 less",
        "correlated noise counted",
        writer("correlated noise counted", later=going_on(*PEOPLE, less=4)),
        "CARRIED",
    ),
    "too little carried of a lost run of correlated noise": Lie(
        "of a lost run of correlated noise less is counted than its whole plan",
        "lost run of correlated noise",
        writer("lost run of correlated noise", later=going_on(*PEOPLE, less=4)),
        "CARRIED",
    ),
    "a limit over correlated noise passed": Lie(
        "with a second run as it is planned somebody could pass a limit that the first keeps by itself",
        "limit over correlated noise",
        writer("limit over correlated noise", later=going_on((1, "open"), **KEPT)),
        "BUDGET",
    ),
}
"""Lies by name."""
