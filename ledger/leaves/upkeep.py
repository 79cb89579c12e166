"""Leaves about the ledger itself: its signer's keys and clock, its registry, what of it may be pruned, and its releases."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from attest.schema import check_fields, declared
from attest.schema.quick import Array, Row
from ledger.errors import LeafRefused
from ledger.leaves.kinds import ABOVE_0, LOG_VKEY, MICRO, MOMENT, REAL, SHA256, SIGNATURE, UINT, WORDS, Checked, Entry


@dataclass(frozen=True, slots=True)
class SummaryKind(Checked):
    """How many leaves of a kind a summarised range has."""

    CDDL: ClassVar = "summary-kind"
    kind: int = declared(1, UINT, "Kind of leaves.")
    count: int = declared(2, ABOVE_0, "How many of them the range has.")


@dataclass(frozen=True, slots=True)
class SummaryClass(Checked):
    """Totals of one class over a summarised range; epsilons are null in a public class and nowhere else."""

    CDDL: ClassVar = "summary-class"
    contributions: int = declared(
        1,
        UINT,
        "Contributions that are active at its end or left in it; in a public class, with an ADMIT leaf in it.",
    )
    active: int = declared(2, UINT, "Contributions in the pool at its end.")
    sum_epsilon_micro: int | None = declared(
        3,
        MICRO,
        "Sum over the contributions of the last epsilon that was recorded for each by its end.",
        nil=True,
        needs="max_epsilon_micro",
    )
    max_epsilon_micro: int | None = declared(4, MICRO, "The largest of these.", nil=True, needs="sum_epsilon_micro")
    min_variance: float = declared(
        5,
        REAL,
        "Smallest noise variance that a SETTLE leaf of the range records for the class, or, when an epoch of it is closed, the"
        " last row of a group of these contributions; 0.0 without any.",
    )
    max_variance: float = declared(6, REAL, "The largest.", rule="at least the smallest")
    charged: int = declared(7, UINT, "Steps charged in the range.")
    occurrences: int = declared(
        8,
        UINT,
        "Most steps in which one of these contributions can have taken part by its end, as its last row says; 0 in a public"
        " class.",
    )

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.max_variance < self.min_variance:
            sentence = f"the largest variance is {self.max_variance}, expected at least the smallest, {self.min_variance}"
            raise LeafRefused("RANGE", sentence)


@dataclass(frozen=True, slots=True)
class Summary(Entry):
    """What a range of leaves said, so that bodies in it may be pruned once an auditor has vouched for it."""

    KIND: ClassVar = 6
    first: int = declared(3, ABOVE_0, "First leaf of the range.")
    end: int = declared(4, ABOVE_0, "First leaf after it.", rule="larger than 3")
    kinds: tuple[SummaryKind, ...] = declared(
        5,
        Array(Row(SummaryKind), 1),
        "Leaves per kind.",
        rule="ascending by kind; counts add up to the range",
    )
    classes: tuple[SummaryClass, ...] = declared(
        6, Array(Row(SummaryClass), 1), "Totals per class of the policy, in its order."
    )
    subtree_roots: tuple[bytes, ...] = declared(
        7, Array(SHA256, 1), "Roots of the maximal aligned subtrees that tile the range, from left to right."
    )
    set_root: bytes = declared(8, SHA256, "RFC 6962 root over the aggregates of its ADMIT leaves, in order.")
    previous: int | None = declared(9, ABOVE_0, "Position of the SUMMARY leaf before, null in the first.", nil=True)

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.end <= self.first:
            raise LeafRefused("RANGE", f"a range from leaf {self.first} ends behind it, expected an end above, got {self.end}")
        if any(a.kind >= b.kind for a, b in pairwise(self.kinds)):
            raise LeafRefused("ORDER", "the kinds of a summary are in ascending order, each once")
        if sum(row.count for row in self.kinds) != self.end - self.first:
            raise LeafRefused("RANGE", f"the kinds of a summary add up to the {self.end - self.first} leaves of its range")


@dataclass(frozen=True, slots=True)
class Key(Entry):
    """The signer of the ledger changes its key: from here on the new one signs; no larger checkpoint by the old one counts."""

    KIND: ClassVar = 7
    old_vkey: str = declared(3, LOG_VKEY, "Verifier key that signed until now.")
    new_vkey: str = declared(4, LOG_VKEY, "Verifier key that signs from now on, under the same name.")
    old_signature: bytes = declared(5, SIGNATURE, "Ed25519 signature by the old key ([The ledger's key](#the-ledgers-key)).")
    new_signature: bytes = declared(6, SIGNATURE, "Ed25519 signature by the new key, which shows that it is held.")


@dataclass(frozen=True, slots=True)
class Release(Entry):
    """Weights leave the house: which, under which manifest, and how far the ledger was then."""

    KIND: ClassVar = 10
    step: int = declared(3, UINT, "Last released step that the weights contain.")
    size: int = declared(4, ABOVE_0, "Size of the checkpoint that the manifest cites.")
    root: bytes = declared(5, SHA256, "Root of that checkpoint.")
    manifest_digest: bytes = declared(6, SHA256, "SHA-256 of the signed manifest.")
    artifacts_digest: bytes = declared(7, SHA256, "Digest over the digests of the released files ([Release](#release)).")
    withdrawals_root: bytes = declared(
        8,
        SHA256,
        "RFC 6962 root over the descriptor hashes withdrawn by that size, in the order of their leaves.",
    )


@dataclass(frozen=True, slots=True)
class Clock(Entry):
    """The writer's clock was ahead and is set back: the only leaf whose time is earlier than that of the leaf before it.

    Its own time is that of the clock that is right, from which the ledger goes on.
    """

    KIND: ClassVar = 13
    before: int = declared(3, MOMENT, "Time of the leaf before this one.", rule="later than 2")
    reason: str = declared(4, WORDS, "Why, as the ledger's operator says it.")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.time >= self.before:
            raise LeafRefused("RANGE", f"a CLOCK leaf steps back: expected a time before {self.before}, got {self.time}")


@dataclass(frozen=True, slots=True)
class Registry(Entry):
    """The run takes in a later state of the contributor registry, and goes by it from here on."""

    KIND: ClassVar = 14
    before: bytes = declared(
        3,
        SHA256,
        "Root of the state by which it went until now: that of the header, or of the REGISTRY leaf before.",
    )
    after: bytes = declared(4, SHA256, "Root of the later state.", rule="not equal to 3")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.before == self.after:
            raise LeafRefused("RANGE", "a REGISTRY leaf tells of another state: its two roots are equal")
