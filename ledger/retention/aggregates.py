"""Aggregates: what stays of ADMIT leaves whose bodies are gone, a row for all that follow one another under equal terms.

An aggregate holds what later leaves can be judged by, and the root over its members: nothing that leads to a person, and
nothing that grows with their number. From it the replay restores bounds and class at the place of every ADMIT leaf, and so
every count, charge and epsilon, exactly as from the leaves. SUMMARY leaves commit to the aggregates of their range by one root.
Whoever has a member record and its path can show that it was among the members.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from attest import cbor
from attest.errors import AttestError
from attest.schema import check_fields, declared, wire
from ledger.errors import LeafRefused
from ledger.leaves import Admit
from ledger.leaves.kinds import ABOVE_0, MICRO, PICO_BELOW_1, SHA256, UINT, Checked, check_limit
from ledger.merkle import Frontier, leaf_hash, verify_inclusion
from ledger.merkle import root as merkle_root

SharedTerms = tuple[int, int, int, int, int, int, int]
"""Class, clip norm, noise multiplier, cap, carried epsilon, and the limit over runs with its delta."""

MAX_AGGREGATE_SIZE: Final = 192
"""Longest encoded aggregate, in bytes."""


@dataclass(frozen=True, slots=True)
class Member(Checked):
    """One admission, as the root of its aggregate commits to it."""

    CDDL: ClassVar = "member-record"
    descriptor_hash: bytes = declared(1, SHA256, "SHA-256 of its descriptor.")
    seq: int = declared(2, ABOVE_0, "Position of its ADMIT leaf.")
    content_anchor: bytes = declared(3, SHA256, "Commitment to its content, as in that leaf.")

    @classmethod
    def of(cls, leaf: Admit) -> "Member":
        """Returns the record of an ADMIT leaf."""
        return cls(leaf.descriptor_hash, leaf.seq, leaf.anchor)

    def to_bytes(self) -> bytes:
        """Returns the record as it is hashed."""
        return cbor.encode(wire.encode_row(self))


@dataclass(frozen=True, slots=True)
class ShownMember:
    """A member record with what shows that it is one; nothing of it is verified.

    Attributes:
        member: the record.
        path: hashes to the root over the members of its aggregate, member side first (RFC 6962, 2.1.1).
    """

    member: Member
    path: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Aggregate(Checked):
    """ADMIT leaves that follow one another without another leaf between them, all under equal terms."""

    CDDL: ClassVar = "aggregate"
    first: int = declared(1, ABOVE_0, "Position of the first of them.")
    count: int = declared(2, ABOVE_0, "How many they are.")
    class_index: int = declared(3, UINT, "Place of their class in the policy.")
    clip_micro: int = declared(4, MICRO, "Clip norm that each signed.")
    sigma_micro: int = declared(5, MICRO, "Noise multiplier that each signed.")
    max_occurrences: int = declared(6, UINT, "Its cap, 0 for none.")
    carried_micro: int = declared(7, MICRO, "What each had spent in earlier runs.")
    max_epsilon_micro: int = declared(8, MICRO, "Most that each might spend over all runs; 0 for no limit.")
    max_delta_pico: int = declared(9, PICO_BELOW_1, "The delta of that limit; 0 for no limit.", rule="0 exactly with the limit")
    members_root: bytes = declared(10, SHA256, "RFC 6962 root over their member records, in order.")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        check_limit(self.max_epsilon_micro, self.max_delta_pico)

    @property
    def end(self) -> int:
        """Position behind the last of them."""
        return self.first + self.count

    @property
    def terms(self) -> SharedTerms:
        """What they share: class, bounds, what was spent before, and the limit."""
        bounds = (self.class_index, self.clip_micro, self.sigma_micro, self.max_occurrences)
        return *bounds, self.carried_micro, self.max_epsilon_micro, self.max_delta_pico

    def covers(self, seq: int) -> bool:
        """Tells whether the leaf at a position is one of them."""
        return self.first <= seq < self.end

    def to_bytes(self) -> bytes:
        """Returns the aggregate as it is hashed and exported."""
        return cbor.encode(wire.encode_row(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Aggregate":
        """Reads what `to_bytes` returned; raises LeafRefused for anything else."""
        if len(data) > MAX_AGGREGATE_SIZE:
            raise LeafRefused("SIZE", f"an aggregate has at most {MAX_AGGREGATE_SIZE} bytes, got {len(data)}")
        try:
            found = cbor.decode(data)
        except AttestError as error:
            raise LeafRefused(error.code, f"an aggregate: {error.sentence}") from error
        aggregate: Aggregate = wire.decode_row(cls, found, "an aggregate", LeafRefused)
        return aggregate

    def admission(self, seq: int, descriptor_hash: bytes, class_name: str, time: int) -> Admit:
        """Returns an ADMIT leaf that means to the replay what a pruned one did; what only the attestation tells is blank.

        Args:
            seq: its position.
            descriptor_hash: whom it admitted.
            class_name: name of the class.
            time: POSIX seconds.
        """
        head = (seq, time, descriptor_hash, class_name, self.class_index)
        bounds = (self.clip_micro, self.sigma_micro, self.max_occurrences)
        limit = (self.carried_micro, self.max_epsilon_micro, self.max_delta_pico)
        return Admit(*head, *bounds, bytes(32), bytes(8), bytes(32), *limit)

    def require_member(self, member: Member, path: Sequence[bytes]) -> None:
        """Checks that a record is one of the members.

        Guarantee:
            Returns only if the record, at its own position, is under the root over the members.

        Args:
            member: the record.
            path: hashes to the root, member side first (RFC 6962, 2.1.1).

        Raises:
            ProofError: it is not.
            LeafRefused: code MEMBER, its position is of no member.
        """
        if not self.covers(member.seq):
            sentence = f"the record is of leaf {member.seq}, the aggregate of leaves {self.first} to {self.end - 1}"
            raise LeafRefused("MEMBER", sentence)
        verify_inclusion(member.to_bytes(), member.seq - self.first, self.count, path, self.members_root)


def set_root(aggregates: Iterable[Aggregate]) -> bytes:
    """Returns the RFC 6962 root over encoded aggregates, in the order of their leaves."""
    return merkle_root([aggregate.to_bytes() for aggregate in aggregates])


class Aggregating:
    """Puts the ADMIT leaves of an epoch into aggregates."""

    def __init__(self) -> None:
        """Begins without a leaf."""
        self._made: list[Aggregate] = []
        self._first = self._count = 0
        self._terms: SharedTerms = (-1, 0, 0, 0, 0, 0, 0)
        self._members = Frontier()
        self._known: list[Aggregate] = []

    def take(self, leaf: Admit, place: int, known: Aggregate | None) -> None:
        """Takes the next ADMIT leaf.

        Guarantee:
            An aggregate that is known gives its root, and only where all else in it is what the leaves give: first leaf, number
            of leaves, class and every bound. Where it says anything else, or two stand for leaves that belong to one, no root
            comes out here that a SUMMARY leaf could have.

        Args:
            leaf: the leaf, or what was restored of it.
            place: place of its class in the policy.
            known: the aggregate that stands for it, where its body is gone.
        """
        bounds = (place, leaf.clip_micro, leaf.sigma_micro, leaf.max_occurrences)
        terms: SharedTerms = (*bounds, leaf.carried_micro, leaf.max_epsilon_micro, leaf.max_delta_pico)
        if leaf.seq != self._first + self._count or terms != self._terms:
            self._finish()
            self._first, self._terms = leaf.seq, terms
        self._count += 1
        self._members.append(leaf_hash(Member.of(leaf).to_bytes()))
        if known is not None and known not in self._known[-1:]:
            self._known.append(known)

    def made(self) -> list[Aggregate]:
        """Returns the aggregates, once all leaves were taken."""
        self._finish()
        return self._made

    def _finish(self) -> None:
        if self._count:
            root = self._known[0].members_root if self._known else self._members.root()
            made = Aggregate(self._first, self._count, *self._terms, root)
            self._made.append(made if self._known in ([], [made]) else replace(made, members_root=bytes(32)))
            self._first = self._count = 0
            self._members, self._known = Frontier(), []
