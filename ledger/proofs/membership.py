"""Membership proofs: a contribution is a member of the group of a row of a SPEND leaf, shown by its path to the row's root.

A SPEND leaf names nobody. Its proof file shows that the row is in the ledger, and this file, beside it, whose row it is. Lines
of ASCII::

    dptrain-member-v1
    leaf <n>                  position of the SPEND leaf
    row <n>                   place of the row in it, from 0
    contribution <hex>        descriptor hash of the member
    place <n> of <m>          its place among all who joined the group, from 0, and how many these are
    <base64>                  the path to the root over these (RFC 6962, 2.1.1), member side first, a hash a line
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from attest.schema.plain import read_base64, read_decimal
from ledger.errors import LeafRefused, ProofError
from ledger.leaves import Header, Leaf, Spend, SpendRow, decode_leaf
from ledger.merkle import HASH_SIZE, MAX_SIZE, verify_inclusion
from ledger.proofs.tlog_proof import MAX_PATH
from ledger.retention.retained import RetainedReplay, is_stand_in

HEADER: Final = "dptrain-member-v1"
"""First line of a membership file."""

SUFFIX: Final = ".member"
"""Ends the name of the membership file beside a proof file."""

MAX_MEMBER_SIZE: Final = 8_192
"""Longest membership file that is looked at, in bytes."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Holds what a membership file says; nothing of it is verified. `place`: its place among all who joined the group, from 0.
    """

    leaf: int
    row: int
    descriptor_hash: bytes
    place: int
    places: int
    hashes: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the file."""
        where = [f"leaf {self.leaf}", f"row {self.row}", f"contribution {self.descriptor_hash.hex()}"]
        path = [base64.b64encode(hash_).decode() for hash_ in self.hashes]
        return "\n".join([HEADER, *where, f"place {self.place} of {self.places}", *path, ""]).encode()


def parse_membership(data: bytes) -> Membership:
    """Reads a membership file.

    Guarantee: What is accepted is exactly what `Membership.to_bytes` of the result writes.

    Raises:
        ProofError: the file is malformed.
    """
    if type(data) is not bytes or len(data) > MAX_MEMBER_SIZE:
        raise ProofError("MEMBER_FORMAT", f"a membership file has at most {MAX_MEMBER_SIZE} bytes")
    lines = data.decode("ascii", "replace").split("\n")
    if len(lines) < 6 or lines[0] != HEADER or lines[-1]:
        raise ProofError("MEMBER_FORMAT", f"expected {HEADER!r}, leaf, row, contribution, place, and a path")
    leaf, row = _number(lines[1], "leaf "), _number(lines[2], "row ")
    place, _, places = lines[4].partition(" of ")
    word, _, name = lines[3].partition(" ")
    hashes = tuple(read_base64(line) or b"" for line in lines[5:-1])
    if len(hashes) > MAX_PATH or any(len(hash_) != HASH_SIZE for hash_ in hashes):
        raise ProofError("MEMBER_FORMAT", f"a path is at most {MAX_PATH} hashes of {HASH_SIZE} bytes, in canonical base64")
    try:
        descriptor_hash = bytes.fromhex(name)
    except ValueError:
        descriptor_hash = b""
    found = Membership(leaf, row, descriptor_hash, _number(place, "place "), _number(places, ""), hashes)
    if word != "contribution" or len(descriptor_hash) != HASH_SIZE or found.to_bytes() != data:
        raise ProofError("MEMBER_FORMAT", "a line 'contribution <hash>' holds 64 lower-case hexadecimal digits")
    return found


def verify_membership(proof: Membership, leaf: Leaf) -> SpendRow:
    """Verifies that a contribution is a member of the group of a row, and returns the row.

    Guarantee: Returns only if the descriptor hash is under the root that the row of this leaf says, as a member. The leaf is
    for the caller to prove (`ledger.proofs.tlog_proof.verify_proof`).

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
        names: whom pruned ADMIT leaves admitted (`ledger.retention.retained.named_by_withdrawals`).

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


def _number(text: str, word: str) -> int:
    found = read_decimal(text.removeprefix(word)) if text.startswith(word) else None
    if found is None or found >= MAX_SIZE:
        raise ProofError("MEMBER_FORMAT", f"expected {word!r} and a decimal below 2^63 without leading zeros, got {text!r:.60}")
    return found
