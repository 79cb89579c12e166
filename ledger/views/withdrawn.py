"""Tells those who withdrew what holds for them: the honest sentence, its epsilon, and the bound for all of them together.

Source: docs/guarantee.md, "Withdrawal".
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ledger import accountants
from ledger.errors import AccountantError, LeafRefused
from ledger.replay import Replay
from ledger.replay.contributions import Contribution
from ledger.replay.influence import ahead, planned_steps

SENTENCE: Final = (
    "The released model is ({epsilon}, {delta:g})-indistinguishable from the model that the same pipeline would have produced "
    "had this contribution been null from the start. No unlearning was performed: influence is bounded, not removed."
)
GROUP: Final = (
    "For all {count} together the bound is ({epsilon}, {delta:g}): it grows with their number. Beyond what the corpus owner "
    "finds tolerable, retrain."
)
CHOSEN: Final = (
    "If the time of the withdrawal was chosen after looking at the model, report {epsilon} for it, the epsilon of the whole "
    "planned horizon."
)
CHOSEN_PUBLIC: Final = (
    "If the time of the withdrawal was chosen after looking at the model, this epsilon does not hold for it; where occurrences "
    "are public no horizon has an epsilon of its own (docs/guarantee.md)."
)
PUBLIC: Final = "Its class is public: nothing was promised, and no bound is claimed. No unlearning was performed."
UNKNOWN: Final = "No leaf of this run names such a contribution."
UNNAMED: Final = (
    "No leaf of this run names such a contribution, and of {count} that stayed nothing says any more who they are: it may be "
    "one of them, which its member record shows."
)
NO_GROUP: Final = "There is no bound for all {count} together: {why}. If that matters, retrain."


@dataclass(frozen=True, slots=True)
class WithdrawnRow:
    """One withdrawn contribution.

    Attributes:
        descriptor_hash: which.
        seq: position of its WITHDRAW leaf.
        class_name: its class, None if it was never admitted.
        steps: charged steps in whose pool it was.
        epsilon: what was spent and stays spent; None of a public class and of what was never admitted.
        planned: epsilon of the whole planned horizon, None like that, and where occurrences are public.
        sentences: what to tell its contributor.
    """

    descriptor_hash: bytes
    seq: int
    class_name: str | None
    steps: int
    epsilon: float | None
    planned: float | None
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WithdrawalStatement:
    """The withdrawn contributions, in the order of their withdrawal, and what holds of all of them together.

    Attributes:
        rows: one per withdrawal.
        members: how many of them count for the group: those of private classes.
        epsilon: for these together, None without a bound or without any.
        sentence: the same in words, empty without any.
        hidden: how many withdrawals may be of somebody who stayed and whom nothing names any more; then there is no bound.
    """

    rows: tuple[WithdrawnRow, ...]
    members: int
    epsilon: float | None
    sentence: str
    hidden: int = 0


def withdrawal_statement(run: Replay, wanted: Collection[bytes] | None = None) -> WithdrawalStatement:
    """Returns what can be said of withdrawn contributions now.

    Guarantee:
        Every epsilon is an upper bound at the policy's delta under zero-out adjacency: of one contribution, or of all of them
        replaced by nulls at once. The latter is `ledger.accountants.epsilon_of_principal` over draws that stay secret, each
        contribution counted at its least noise multiplier; where occurrences are public the Gaussian parameters mu, whose
        squares the ledger has, add up. Both are those of loss distributions, whatever the accountant of record. There is none
        for all of them where one may be somebody who stayed and whom nothing names any more.

    Args:
        run: the replayed ledger.
        wanted: descriptor hashes; by default all that were withdrawn.

    Raises:
        LeafRefused: code UNKNOWN, one of them was not withdrawn.
    """
    asked = run.withdrawals.keys() if wanted is None else wanted
    missing = next((hash_ for hash_ in asked if hash_ not in run.withdrawals), None)
    if missing is not None:
        raise LeafRefused("UNKNOWN", f"no contribution {missing.hex()} was withdrawn")
    hashes = sorted(set(asked), key=run.withdrawals.__getitem__)
    rows = tuple(_row(run, hash_) for hash_ in hashes)
    members = [run.contributions[row.descriptor_hash] for row in rows if row.epsilon is not None]
    hidden = sum(row.class_name is None for row in rows) if any(run.register.unnamed) else 0
    if hidden:
        why = f"whether {hidden} of them are among those that stayed nothing says any more"
        return WithdrawalStatement(rows, len(members), None, NO_GROUP.format(count=len(rows), why=why), hidden)
    epsilon, sentence = _group(run, members)
    return WithdrawalStatement(rows, len(members), epsilon, sentence)


def _row(run: Replay, descriptor_hash: bytes) -> WithdrawnRow:
    place, found = (descriptor_hash, run.withdrawals[descriptor_hash]), run.contributions.get(descriptor_hash)
    if found is None:
        stayed = sum(run.register.unnamed)
        return WithdrawnRow(*place, None, 0, None, None, (UNNAMED.format(count=stayed) if stayed else UNKNOWN,))
    header, steps = run.header, run.expenditure.steps(found, run.charged_phases)
    rule = header.policy.classes[found.class_index]
    if rule.public:
        return WithdrawnRow(*place, rule.name, steps, None, None, (PUBLIC,))
    epsilon, planned = run.epsilon(found), None
    if header.occurrences_public:
        chosen = CHOSEN_PUBLIC
    else:
        own = run.expenditure.phase_steps(found, run.charged_phases)
        z = run.expenditure.of_contribution(found)
        planned = run.expenditure.of_group(found.class_index, z, ahead(found, planned_steps(header), own))
        chosen = CHOSEN.format(epsilon=_told(planned))
    said = SENTENCE.format(epsilon=_told(epsilon), delta=header.delta)
    return WithdrawnRow(*place, rule.name, steps, epsilon, planned, (said, chosen))


def _group(run: Replay, members: list[Contribution]) -> tuple[float | None, str]:
    """Returns the bound for all of them together, and the sentence that says it."""
    header = run.header
    if not members:
        return None, ""
    try:
        epsilon = _bound(run, members)
    except AccountantError as error:
        return None, NO_GROUP.format(count=len(members), why=error.sentence)
    return epsilon, GROUP.format(count=len(members), epsilon=_told(epsilon), delta=header.delta)


def _bound(run: Replay, members: list[Contribution]) -> float:
    policy, spent = run.header.policy, run.expenditure
    groups = accountants.TABLE[policy.mechanism.name].groups
    if run.header.occurrences_public and policy.disclosure in groups:
        return spent.of_loss(math.fsum(math.sqrt(member.loss) for member in members) ** 2)
    if "secret_poisson" not in groups:
        raise AccountantError("GROUP", f"this version has none for {policy.mechanism.name} noise over secret draws")
    phases = []
    for member in members:
        steps = spent.phase_steps(member, run.charged_phases)
        least = min((z for z, count in zip(spent.of_contribution(member), steps, strict=True) if count), default=math.inf)
        if sum(steps):
            rate = float(policy.classes[member.class_index].sampling_rate)
            phases.append(accountants.Phase(min(least, accountants.MAX_MULTIPLIER), rate, sum(steps)))
    return accountants.epsilon_of_principal(phases, run.header.delta)


def _told(epsilon: float) -> str:
    """Says an epsilon in words, never less than it is."""
    return f"{accountants.to_micro_up(epsilon) / accountants.MICRO:.6f}" if math.isfinite(epsilon) else "infinite"
