"""Leaves about the ledger itself: its signer's keys and clock, its registry, what of it may be pruned, and its releases.

The order of the fields of each class is its wire format, as in `ledger.leaves.records`.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from ledger.errors import LeafRefused
from ledger.leaves import checks

HASH = 32
SIGNATURE = 64


@dataclass(frozen=True, slots=True)
class SummaryKind:
    """How many leaves of a kind a summarised range has."""

    kind: int
    count: int

    def __post_init__(self) -> None:
        checks.uint(self.kind, "kind")
        checks.uint(self.count, "count", low=1)


@dataclass(frozen=True, slots=True)
class SummaryClass:
    """Totals of one class over a summarised range; epsilons in 1e-6, null in a public class and nowhere else.

    Attributes:
        contributions: contributions that are active at its end or left in it; in a public class, with an ADMIT leaf in it.
        active: contributions in the pool at its end.
        sum_epsilon_micro: sum over them of the last epsilon that was recorded for each by its end.
        max_epsilon_micro: the largest of these.
        min_variance: smallest noise variance that a SETTLE leaf of the range records for the class, or, when an epoch of it is
            closed, the last row of a group of these contributions; 0.0 without any.
        max_variance: the largest.
        charged: steps charged in the range.
        occurrences: most steps in which one of these contributions can have taken part by its end, as its last row says; 0 in a
            public class.
    """

    contributions: int
    active: int
    sum_epsilon_micro: int | None
    max_epsilon_micro: int | None
    min_variance: float
    max_variance: float
    charged: int
    occurrences: int

    def __post_init__(self) -> None:
        checks.uint(self.contributions, "contributions")
        checks.uint(self.active, "active")
        if self.sum_epsilon_micro is not None or self.max_epsilon_micro is not None:
            checks.uint(self.sum_epsilon_micro, "sum of epsilon")
            checks.uint(self.max_epsilon_micro, "largest epsilon")
        checks.real(self.min_variance, "smallest variance")
        checks.real(self.max_variance, "largest variance", low=self.min_variance)
        checks.uint(self.charged, "charged steps")
        checks.uint(self.occurrences, "occurrences")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a range of leaves said, so that bodies in it may be pruned once an auditor has vouched for it.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        first: first leaf of the range.
        end: first leaf after it.
        kinds: leaves per kind, ascending by kind.
        classes: totals per class of the policy, in its order.
        subtree_roots: roots of the maximal aligned subtrees that tile the range, from left to right.
        set_root: RFC 6962 root over the aggregates of its ADMIT leaves, in order (`ledger.retention.aggregates`).
        previous: position of the SUMMARY leaf before, None in the first.
    """

    KIND: ClassVar = 6
    seq: int
    time: int
    first: int
    end: int
    kinds: tuple[SummaryKind, ...]
    classes: tuple[SummaryClass, ...]
    subtree_roots: tuple[bytes, ...]
    set_root: bytes
    previous: int | None

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.uint(self.first, "first leaf", low=1)
        checks.uint(self.end, "end of the range", low=self.first + 1)
        checks.rows(self.kinds, "kinds", SummaryKind, least=1)
        if any(a.kind >= b.kind for a, b in pairwise(self.kinds)):
            raise LeafRefused("ORDER", "the kinds of a summary are in ascending order, each once")
        if sum(row.count for row in self.kinds) != self.end - self.first:
            raise LeafRefused("RANGE", f"the kinds of a summary add up to the {self.end - self.first} leaves of its range")
        checks.rows(self.classes, "classes", SummaryClass, least=1)
        checks.rows(self.subtree_roots, "subtree roots", bytes, least=1)
        for root in self.subtree_roots:
            checks.octets(root, "subtree root", HASH)
        checks.octets(self.set_root, "set root", HASH)
        if self.previous is not None:
            checks.uint(self.previous, "previous summary", low=1)


@dataclass(frozen=True, slots=True)
class Key:
    """The signer of the ledger changes its key: from here on the new one signs, and no larger checkpoint by the old one counts.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        old_vkey: verifier key that signed until now.
        new_vkey: verifier key that signs from now on, under the same name.
        old_signature: Ed25519 signature by the old key over `ledger.rules.rotation.statement`.
        new_signature: the same by the new key, which shows that it is held.
    """

    KIND: ClassVar = 7
    seq: int
    time: int
    old_vkey: str
    new_vkey: str
    old_signature: bytes
    new_signature: bytes

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.text(self.old_vkey, "old log key", longest=400)
        checks.text(self.new_vkey, "new log key", longest=400)
        checks.octets(self.old_signature, "signature by the old key", SIGNATURE)
        checks.octets(self.new_signature, "signature by the new key", SIGNATURE)


@dataclass(frozen=True, slots=True)
class Release:
    """Weights leave the house: which, under which manifest, and how far the ledger was then.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        step: last released step that the weights contain.
        size: size of the checkpoint that the manifest cites.
        root: root of that checkpoint.
        manifest_digest: SHA-256 of the signed manifest.
        artifacts_digest: digest over the digests of the released files, as the manifest defines it.
        withdrawals_root: RFC 6962 root over the descriptor hashes withdrawn by that size, in the order of their leaves.
    """

    KIND: ClassVar = 10
    seq: int
    time: int
    step: int
    size: int
    root: bytes
    manifest_digest: bytes
    artifacts_digest: bytes
    withdrawals_root: bytes

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.uint(self.step, "step")
        checks.uint(self.size, "checkpoint size", low=1)
        checks.octets(self.root, "checkpoint root", HASH)
        checks.octets(self.manifest_digest, "manifest digest", HASH)
        checks.octets(self.artifacts_digest, "artifacts digest", HASH)
        checks.octets(self.withdrawals_root, "withdrawals root", HASH)


@dataclass(frozen=True, slots=True)
class Clock:
    """The writer's clock was ahead and is set back: the only leaf whose time is earlier than that of the leaf before it.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds of the clock that is right, from which the ledger goes on.
        before: time of the leaf before this one.
        reason: why, as the ledger's operator says it.
    """

    KIND: ClassVar = 13
    seq: int
    time: int
    before: int
    reason: str

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.moment(self.before, "time before")
        checks.text(self.reason, "reason", longest=checks.REASON)
        if self.time >= self.before:
            raise LeafRefused("RANGE", f"a CLOCK leaf steps back: expected a time before {self.before}, got {self.time}")


@dataclass(frozen=True, slots=True)
class Registry:
    """The run takes in a later state of the contributor registry, and goes by it from here on.

    Attributes:
        seq: position in the ledger.
        time: POSIX seconds.
        before: root of the state by which it went until now: that of the header, or of the REGISTRY leaf before.
        after: root of the later state.
    """

    KIND: ClassVar = 14
    seq: int
    time: int
    before: bytes
    after: bytes

    def __post_init__(self) -> None:
        checks.place(self.seq, self.time)
        checks.octets(self.before, "registry root before", HASH)
        checks.octets(self.after, "registry root after", HASH)
        if self.before == self.after:
            raise LeafRefused("RANGE", "a REGISTRY leaf tells of another state: its two roots are equal")
