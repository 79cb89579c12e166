"""Shows that a leaf which names nobody speaks for a contribution: a row of a SPEND leaf, or an aggregate of a SUMMARY leaf.

The proof file of such a leaf shows that it is in the ledger. A file of one of the two forms here, beside it, shows who is a
member. Both are lines of ASCII; paths are as in RFC 6962, 2.1.1, from below, a hash a line. Of the group of a row::

    dptrain-member-v1
    leaf <n>                  position of the SPEND leaf
    row <n>                   place of the row in it, from 0
    contribution <hex>        descriptor hash of the member
    place <n> of <m>          its place among all who joined the group, from 0, and how many these are
    <base64>                  the path to the root over these

Of an aggregate, and so that it was admitted, where, and under which terms, also once its ADMIT leaf is gone. Handed out before
ADMIT leaves go, this is what a contributor shows afterwards, and what a withdrawal brings::

    dptrain-admitted-v1
    leaf <n>                  position of the SUMMARY leaf
    aggregate <base64>        the aggregate, as the leaf commits to it
    place <n> of <m>          its place among the aggregates of the leaf, from 0, and how many these are
    contribution <hex>        descriptor hash of the member
    admitted <n>              position of its ADMIT leaf
    content <hex>             its content anchor
    path <n>                  how many of the hashes lead to the root over the members; the others to that of the leaf
    <base64>                  a hash a line, both paths
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attest.files import read_limited
from attest.schema.plain import read_base64, read_decimal
from ledger.errors import LeafRefused, ProofError
from ledger.leaves import Header, Leaf, Spend, SpendRow, Summary, decode_leaf
from ledger.merkle import HASH_SIZE, MAX_SIZE, inclusion_proof, verify_inclusion
from ledger.proofs.single_leaf import MAX_PATH
from ledger.replay import Replay
from ledger.replay.contributions import stand_in_name
from ledger.replay.summaries import Aggregate, Member, ShownMember
from ledger.retention import RetainedReplay, is_stand_in

SUFFIX: Final = ".member"
"""Ends the name of the membership file beside a proof file."""

MAX_MEMBER_SIZE: Final = 8_192
MAX_ADMITTED_SIZE: Final = 16_384
"""Longest files of the two forms that are looked at, in bytes."""


@dataclass(frozen=True, slots=True)
class _Form:
    """Describes a form of file: its first line, the code of its refusals, its size, the words of its lines, and its paths."""

    header: str
    code: str
    size: int
    words: tuple[str, ...]
    paths: int

    def write(self, values: Iterable[object], hashes: Iterable[bytes]) -> bytes:
        """Returns a file."""
        path = (base64.b64encode(hash_).decode() for hash_ in hashes)
        return "\n".join([self.header, *map("{} {}".format, self.words, values), *path, ""]).encode()

    def read(self, data: bytes) -> tuple[list[str], tuple[bytes, ...]]:
        """Returns values and hashes of a file. What the lines begin with, the caller finds by writing the file again."""
        if type(data) is not bytes or len(data) > self.size:
            raise self.refusal(f"a file of this kind has at most {self.size} bytes")
        lines, first = data.decode("ascii", "replace").split("\n"), 1 + len(self.words)
        if len(lines) <= first or lines[0] != self.header or lines[-1]:
            raise self.refusal(f"expected {self.header!r}, {', '.join(self.words)}, and hashes")
        hashes = tuple(read_base64(line) or b"" for line in lines[first:-1])
        if len(hashes) > self.paths * MAX_PATH or any(len(hash_) != HASH_SIZE for hash_ in hashes):
            most = f"{self.paths * MAX_PATH} hashes of {HASH_SIZE} bytes"
            raise self.refusal(f"what leads to the roots is at most {most}, in canonical base64")
        return [line.partition(" ")[2] for line in lines[1:first]], hashes

    def number(self, text: str) -> int:
        """Returns what a decimal says."""
        found = read_decimal(text)
        if found is None or found >= MAX_SIZE:
            raise self.refusal(f"expected a decimal below 2^63 without leading zeros, got {text!r:.60}")
        return found

    def place(self, text: str) -> tuple[int, int]:
        """Returns a place, and of how many it is."""
        first, _, places = text.partition(" of ")
        return self.number(first), self.number(places)

    def refusal(self, why: str) -> ProofError:
        """Returns the error that says what is wrong with a file."""
        return ProofError(self.code, why)


_MEMBER: Final = _Form(
    "dptrain-member-v1", "MEMBER_FORMAT", MAX_MEMBER_SIZE, ("leaf", "row", "contribution", "place"), paths=1
)
_ADMITTED: Final = _Form(
    "dptrain-admitted-v1",
    "ADMITTED_FORMAT",
    MAX_ADMITTED_SIZE,
    ("leaf", "aggregate", "place", "contribution", "admitted", "content", "path"),
    paths=2,
)
HEADER: Final = _ADMITTED.header
"""First line of a file that shows an admission."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Holds what a membership file says; nothing of it is verified. `place`: among all who joined the group, from 0."""

    leaf: int
    row: int
    descriptor_hash: bytes
    place: int
    places: int
    hashes: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the file."""
        place = f"{self.place} of {self.places}"
        return _MEMBER.write((self.leaf, self.row, self.descriptor_hash.hex(), place), self.hashes)


def parse_membership(data: bytes) -> Membership:
    """Reads a membership file.

    Guarantee: What is accepted is exactly what `Membership.to_bytes` of the result writes.

    Raises:
        ProofError: the file is malformed.
    """
    (leaf, row, name, place), hashes = _MEMBER.read(data)
    try:
        descriptor_hash = bytes.fromhex(name)
    except ValueError:
        descriptor_hash = b""
    found = Membership(_MEMBER.number(leaf), _MEMBER.number(row), descriptor_hash, *_MEMBER.place(place), hashes)
    if len(descriptor_hash) != HASH_SIZE or found.to_bytes() != data:
        raise _MEMBER.refusal("a line 'contribution <hash>' holds 64 lower-case hexadecimal digits")
    return found


def verify_membership(proof: Membership, leaf: Leaf) -> SpendRow:
    """Verifies that a contribution is a member of the group of a row, and returns the row.

    Guarantee: Returns only if the descriptor hash is under the root that the row of this leaf says, as a member. The leaf is
    for the caller to prove (`ledger.proofs.single_leaf.verify_proof`).

    Raises:
        ProofError: it is about another leaf, or no such row or member is there.
    """
    if not isinstance(leaf, Spend) or leaf.seq != proof.leaf or proof.row >= len(leaf.rows):
        sentence = f"it is about row {proof.row} of the SPEND leaf {proof.leaf}; leaf {leaf.seq} is no leaf with that row"
        raise ProofError("OTHER_LEAF", sentence)
    row = leaf.rows[proof.row]
    verify_inclusion(proof.descriptor_hash, proof.place, proof.places, proof.hashes, row.members_root)
    return row


def find_membership(
    entries: Iterable[bytes], descriptor_hash: bytes, names: Mapping[int, bytes] | None = None
) -> tuple[bytes, Membership] | None:
    """Finds the last row of the group of a contribution; returns its SPEND leaf, and the proof of membership.

    The row is the last one that was written while the contribution was a member.

    Args:
        entries: the leaves in order, or what stands in for pruned ones. They are replayed, and not judged: a proof of what a
            faulty ledger says is as good as that ledger.
        names: whom pruned ADMIT leaves admitted (`ledger.retention.named_by_withdrawals`).

    Returns:
        None if no row tells of it: it is not there, its class is public, or no epoch has closed since its admission.

    Raises:
        LeafRefused: a leaf cannot be read.
    """
    found = None
    for data, leaf, run in _replayed(entries, names):
        if not isinstance(leaf, Spend):
            continue
        contribution = run.contributions.get(descriptor_hash)
        group = None if contribution is None else contribution.group
        if contribution is None or group is None:
            continue
        for row, told in enumerate(leaf.rows):
            if told.key == group.key:
                path, place = group.members.inclusion_proof(contribution.place), contribution.place
                found = data, Membership(leaf.seq, row, descriptor_hash, place, group.members.size, tuple(path))
    return found


def _replayed(entries: Iterable[bytes], names: Mapping[int, bytes] | None) -> Iterator[tuple[bytes, Leaf, RetainedReplay]]:
    """Yields every leaf behind the header with its bytes, and the run behind it."""
    leaves = iter(entries)
    header = decode_leaf(next(leaves, b""))
    if not isinstance(header, Header):
        raise LeafRefused("HEADER", "the first leaf is not a header", seq=0)
    run = RetainedReplay(header, lambda size: bytes(HASH_SIZE), recompute=False, names=names)
    for data in leaves:
        if is_stand_in(data):
            run.stand_in(data)
        else:
            leaf = decode_leaf(data)
            run.apply(leaf)
            yield data, leaf, run


@dataclass(frozen=True, slots=True)
class Admitted:
    """Holds what a file says that shows an admission; nothing of it is verified.

    Attributes:
        place: the place of the aggregate among those of the leaf, from 0.
        path: the path from the aggregate to the root that the leaf says.
    """

    leaf: int
    aggregate: Aggregate
    place: int
    places: int
    shown: ShownMember
    path: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the file."""
        member, encoded = self.shown.member, base64.b64encode(self.aggregate.to_bytes()).decode()
        values = (
            self.leaf, encoded, f"{self.place} of {self.places}", member.descriptor_hash.hex(), member.seq,
            member.content_anchor.hex(), len(self.shown.path),
        )  # fmt: skip
        return _ADMITTED.write(values, (*self.shown.path, *self.path))


def parse_admitted(data: bytes) -> Admitted:
    """Reads a file that shows an admission.

    Guarantee: What is accepted is exactly what `Admitted.to_bytes` of the result writes.

    Raises:
        ProofError: code ADMITTED_FORMAT, the file is malformed.
    """
    (leaf, encoded, place, name, seq, anchor, count), hashes = _ADMITTED.read(data)
    try:
        aggregate = Aggregate.from_bytes(read_base64(encoded) or b"")
        member = Member(bytes.fromhex(name), _ADMITTED.number(seq), bytes.fromhex(anchor))
    except (LeafRefused, ValueError) as error:
        raise _ADMITTED.refusal(f"its aggregate or member record is none: {error}") from error
    split = _ADMITTED.number(count)
    shown = ShownMember(member, hashes[:split])
    found = Admitted(_ADMITTED.number(leaf), aggregate, *_ADMITTED.place(place), shown, hashes[split:])
    if found.to_bytes() != data:
        raise _ADMITTED.refusal("its lines are not those that are written of what they say")
    return found


def read_admitted(path: Path) -> Admitted:
    """Reads such a file from a place. Raises FileRefused: it cannot be read, or is too long to be one; ProofError: code
    ADMITTED_FORMAT, as `parse_admitted`."""
    return parse_admitted(read_limited(path, MAX_ADMITTED_SIZE, "member record"))


def prove_admitted(summary_seq: int, aggregates: Sequence[Aggregate], shown: ShownMember) -> Admitted:
    """Makes the proof of a member. `aggregates`: all to which it commits, in order. Raises ProofError: code NO_LEAF, none of
    them has the member."""
    place = next((place for place, found in enumerate(aggregates) if found.covers(shown.member.seq)), None)
    if place is None:
        raise ProofError("NO_LEAF", f"leaf {summary_seq} does not speak for the ADMIT leaf {shown.member.seq}")
    path = tuple(inclusion_proof([aggregate.to_bytes() for aggregate in aggregates], place))
    return Admitted(summary_seq, aggregates[place], place, len(aggregates), shown, path)


def verify_admitted(proof: Admitted, leaf: Leaf) -> Aggregate:
    """Verifies that a contribution was admitted, and returns the terms under which.

    Guarantee: Returns only if the member record is under the root of the aggregate, at its own place, and the aggregate under
    the root that this leaf says. The leaf is for the caller to prove (`ledger.proofs.single_leaf.verify_proof`).

    Raises:
        ProofError: it is about another leaf, or no such aggregate or member is there.
    """
    if not isinstance(leaf, Summary) or leaf.seq != proof.leaf:
        raise ProofError("OTHER_LEAF", f"it is about the SUMMARY leaf {proof.leaf}; leaf {leaf.seq} is not that one")
    verify_inclusion(proof.aggregate.to_bytes(), proof.place, proof.places, proof.path, leaf.set_root)
    try:
        proof.aggregate.require_member(proof.shown.member, proof.shown.path)
    except LeafRefused as error:
        raise ProofError(error.code, error.sentence) from error
    return proof.aggregate


def shows_member(run: Replay, proof: Admitted) -> bool:
    """Tells whether a member record is under a SUMMARY leaf of a replayed run; one of another run is under none."""
    summary = next((leaf for leaf in run.tally.summaries if leaf.seq == proof.leaf), None)
    try:
        return summary is not None and bool(verify_admitted(proof, summary))
    except ProofError:
        return False


def name_member(run: Replay, proof: Admitted) -> bool:
    """Names who stayed in a run, and whose admission is gone, as its member record shows; tells whether it does.

    Guarantee: Nobody is named whom the record does not show under a SUMMARY leaf of this run. One of another run names nobody.

    Args:
        run: the replayed run; what it says of the contribution is from then on found under its descriptor hash.
    """
    found = run.contributions.get(stand_in_name(proof.shown.member.seq))
    if found is None or not shows_member(run, proof):
        return False
    run.register.name(found, proof.shown.member.descriptor_hash)
    return True
