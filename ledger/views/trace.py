"""Tells what became of one contribution, and those who withdrew what holds for them: the honest sentence, and its epsilon.

Source of the latter: docs/guarantee.md, "Withdrawal".
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from attest.fixed_point import from_micro
from attest.schema.plain import commit_content
from attest.withdrawal import PASSING
from ledger import accountants
from ledger.errors import AccountantError, AnchorRefused, LeafRefused, LedgerError
from ledger.leaves import Admit, Charge, Withdraw, decode_leaf
from ledger.replay import Replay
from ledger.replay.contributions import Contribution
from ledger.replay.influence import artifacts, planned
from ledger.retention import is_stand_in


@dataclass(frozen=True, slots=True)
class Wanted:
    """A contribution that is looked for, by the commitment to its content, the SHA-256 of its descriptor, or both."""

    content: bytes | None = None
    descriptor_hash: bytes | None = None

    @classmethod
    def of_content(cls, content_hash: bytes, nonce: bytes) -> "Wanted":
        """Returns the contribution with this SHA-256 of its content, and nonce of its descriptor; whoever has no nonce looks
        for nothing."""
        return cls(content=commit_content(content_hash, nonce))

    def within(self, body: bytes) -> bool:
        """Tells whether a leaf could be its admission: most are of others, and need not be decoded."""
        return any(name is not None and name in body for name in (self.content, self.descriptor_hash))

    def is_of(self, seq: int, descriptor_hash: bytes, anchor: bytes) -> bool:
        """Tells whether the admission of a descriptor, with this commitment to a content, is its own. Raises AnchorRefused:
        code DESCRIPTOR, one name is that of the leaf and the other is not."""
        pairs = ((self.content, anchor), (self.descriptor_hash, descriptor_hash))
        same = [name == found for name, found in pairs if name is not None]
        if any(same) and not all(same):
            raise AnchorRefused(
                "DESCRIPTOR",
                f"leaf {seq} admits the descriptor {descriptor_hash.hex()} with the content commitment "
                f"{anchor.hex()}; the anchor pairs one of these with another: it is not of this contribution",
            )
        return all(same)


@dataclass(frozen=True, slots=True)
class TouchedRelease:
    """A release that a contribution may have influenced.

    Attributes:
        seq, time: of its RELEASE leaf, the time in POSIX seconds.
        step: last released step that the weights contain.
        manifest_digest: SHA-256 of `release.cose`.
        parts: names of the parts that it may have influenced: ``full``, ``base``, or ``adapter:NAME``.
    """

    seq: int
    time: int
    step: int
    manifest_digest: bytes
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A contribution in a ledger.

    Attributes:
        admit: its ADMIT leaf; where that was pruned what its aggregate says of it, blank in the rest.
        pruned: whether it was: then neither attestation, key id nor time of the admission are known.
        withdraw: its first WITHDRAW leaf, with which it left its pool; None while it is there.
        signed: the WITHDRAW leaf that stands for a withdrawal that somebody signed: the same, or a later one; None without.
        windows: the CHARGE leaves in whose pool it was, abandoned attempts included: it may have been drawn in their steps.
        variances: of each of these the scheduled noise variance of its class, the square of what the CHARGE leaf says.
        steps: how many steps these are.
        occurrences: in how many it took part, where the ledger says so; else None.
        blocks: names of the blocks that it could touch.
        epsilon: what it has spent in this run; None if its class is public.
        carried: what it had spent before, in the earlier runs that the header counts.
        releases: the releases that it may have influenced.
    """

    admit: Admit
    pruned: bool
    withdraw: Withdraw | None
    signed: Withdraw | None
    windows: tuple[Charge, ...]
    variances: tuple[float, ...]
    steps: int
    occurrences: int | None
    blocks: tuple[str, ...]
    epsilon: float | None
    carried: float
    releases: tuple[TouchedRelease, ...]

    def require_signer(self, key_ids: Collection[bytes]) -> None:
        """Checks that the contribution was signed with one of these keys; of a pruned one no key is known, and nothing checked.
        Raises AnchorRefused: code KEY."""
        if not self.pruned and self.admit.key_id not in key_ids:
            known = ", ".join(sorted(key_id.hex() for key_id in key_ids))
            raise AnchorRefused(
                "KEY",
                f"leaf {self.admit.seq} names the key {self.admit.key_id.hex()} as its contributor's, the anchor is signed by "
                f"somebody with {known}; after a change of key give the registry, which knows both",
            )


def trace(run: Replay, bodies: Iterable[bytes | None], wanted: Wanted) -> Trace:
    """Finds a contribution, and says what became of it.

    Guarantee: `Trace.releases` leaves out a release, or a part of one, only if no step in whose pool the contribution was, and
    no draw of it where draws are public, can be in its weights: no path leads from its class to a block of the part
    (`ledger.replay.influence.artifacts`), or nothing was charged to it before the leaf. That the weights are of an earlier step
    than was charged is the operator's word, and leaves nothing out.

    Args:
        bodies: its leaves in order; of pruned ones what stands in for them (`ledger.export.Pruned.entries`), or nothing. These
            have no commitment to a content any more: who looks for one of them needs its descriptor hash.

    Raises:
        LedgerError: code NOT_FOUND; it was not admitted.
        AnchorRefused: as for `Wanted.is_of`.
    """
    admit, pruned, lean = None, False, False
    left: list[Withdraw] = []
    known = None if wanted.descriptor_hash is None else run.contributions.get(wanted.descriptor_hash)
    for seq, body in enumerate(bodies):
        if not body or is_stand_in(body):
            lean = True
            if known is not None and known.seq == seq:
                admit, pruned = restored(known, run.header.time), True
            continue
        if not (wanted.within(body) if admit is None else admit.descriptor_hash in body):
            continue
        leaf = decode_leaf(body)
        if admit is None and isinstance(leaf, Admit) and wanted.is_of(leaf.seq, leaf.descriptor_hash, leaf.anchor):
            admit = leaf
        elif admit is not None and isinstance(leaf, Withdraw) and leaf.descriptor_hash == admit.descriptor_hash:
            left.append(leaf)
    if admit is None:
        name = "anchor of this content and nonce" if wanted.descriptor_hash is None else "descriptor"
        gone = "; or its ADMIT leaf was pruned, with the commitment to its content: ask by the descriptor hash" if lean else ""
        if any(run.register.unnamed):
            gone += ", or, if it stayed until the run was closed, give its member record to 'dptrain ledger trace --member'"
        raise LedgerError(
            "NOT_FOUND",
            f"no admission has the {name}: never admitted here, or the content was signed again, with another nonce, and "
            f"admitted as that{gone}",
        )
    return _trace(run, admit, left, pruned)


def restored(known: Contribution, time: int) -> Admit:
    """Returns the ADMIT leaf of a contribution that was pruned, blank in what is gone; `time` stands in for its time."""
    terms = known.terms
    head = (known.seq, time, known.descriptor_hash, terms.class_name, terms.class_index)
    return Admit(*head, *terms.bounds, bytes(32), bytes(8), bytes(32), terms.carried_micro, *terms.limit)


def _trace(run: Replay, admit: Admit, left: Sequence[Withdraw], pruned: bool) -> Trace:
    found, withdraw = run.contributions[admit.descriptor_hash], left[0] if left else None
    header, end = run.header, run.size if withdraw is None else withdraw.seq
    windows = tuple(window for window in run.windows if admit.seq < window.seq < end)
    occurrences = found.occurrences if header.occurrences_public else None
    return Trace(
        admit=admit,
        pruned=pruned,
        withdraw=withdraw,
        signed=next((leaf for leaf in left if leaf.reason not in PASSING), None),
        windows=windows,
        variances=tuple(window.classes[found.class_index].min_std ** 2 for window in windows),
        steps=sum(window.n_steps for window in windows),
        occurrences=occurrences,
        blocks=tuple(header.blocks[index].name for index in header.profiles[found.class_index].blocks),
        epsilon=None if run.is_public(found) else run.epsilon(found),
        carried=from_micro(admit.carried_micro),
        releases=() if occurrences == 0 else _touched(run, windows, found.class_index),
    )


def _touched(run: Replay, windows: Collection[Charge], place: int) -> tuple[TouchedRelease, ...]:
    recorded = [item.leaf for item in run.releases.recorded]
    # Of which step the weights are, no leaf says: every class counts as one that reads every block.
    reached = [part.name for part in artifacts(run.header, final=False) if part.influenced_by[place]] if recorded else []
    parts = tuple(reached)
    return tuple(
        TouchedRelease(leaf.seq, leaf.time, leaf.step, leaf.manifest_digest, parts)
        for leaf in recorded
        if parts and any(window.seq < leaf.seq for window in windows)
    )


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

    Guarantee: Every epsilon is an upper bound at the policy's delta under zero-out adjacency: of one contribution, or of all of
    them replaced by nulls at once. The latter is `ledger.accountants.epsilon_of_principal` over draws that stay secret, each
    contribution counted at its least noise multiplier; where occurrences are public the Gaussian parameters mu, whose squares
    the ledger has, add up. Both are those of loss distributions, whatever the accountant of record. There is none for all of
    them where one may be somebody who stayed and whom nothing names any more.

    Args:
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
    header, steps = run.header, run.steps(found)
    rule = header.policy.classes[found.class_index]
    if rule.public:
        return WithdrawnRow(*place, rule.name, steps, None, None, (PUBLIC,))
    epsilon, whole = run.epsilon(found), None
    if header.occurrences_public:
        chosen = CHOSEN_PUBLIC
    else:
        whole = planned(run, found)
        chosen = CHOSEN.format(epsilon=_told(whole))
    said = SENTENCE.format(epsilon=_told(epsilon), delta=header.delta)
    return WithdrawnRow(*place, rule.name, steps, epsilon, whole, (said, chosen))


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
    if policy.disclosure not in groups:
        told = f"{policy.mechanism.name} noise under disclosure {policy.disclosure!r}"
        raise AccountantError("GROUP", f"this version has none for {told}")
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
