"""The members file: who the members of aggregates are, kept beside a ledger of which ADMIT leaves are gone.

Nobody signs it and no export has it. Every record in it is held against the aggregate to which a SUMMARY leaf commits before
anything is done by it; who deletes the file loses what it says, and nothing else. Of who left it holds the hash of the member
record alone, without which no path to the root can be made for those who stay. Lines of ASCII::

    dptrain-members-v1
    <n> <hex> <hex>           of who stayed: position of the ADMIT leaf, descriptor hash, content anchor
    <n> <hex>                 of who left: position, leaf hash of the member record
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from attest.errors import AttestError
from attest.files import atomic_write, read_limited
from attest.schema.plain import read_decimal
from ledger.errors import LedgerCorrupt
from ledger.merkle import inclusion_proof_of_hashes, leaf_hash
from ledger.retention.aggregates import Aggregate, Member
from ledger.storage.disks import is_there

MEMBERS: Final = ".members"
"""What is added to the name of a ledger to name the file."""

HEADER: Final = "dptrain-members-v1"
"""Its first line."""

MAX_MEMBERS_SIZE: Final = 1 << 32
"""Longest members file that is looked at, in bytes; a member takes about 140."""


class Members:
    """Member records by position, and the hashes of those whose records are gone."""

    def __init__(self, members: Iterable[Member] = (), hashes: Mapping[int, bytes] | None = None) -> None:
        """Takes the records, and by position the leaf hashes of others."""
        self._records = {member.seq: member for member in members}
        self._others = dict(hashes or {})
        self._by_hash = {member.descriptor_hash: member for member in self._records.values()}

    def of(self, descriptor_hash: bytes) -> Member | None:
        """Returns the record of a contribution; None where there is none."""
        return self._by_hash.get(descriptor_hash)

    def path(self, member: Member, aggregate: Aggregate) -> Sequence[bytes] | None:
        """Returns the path from a record to the root over the members of its aggregate; None where one of them is missing."""
        hashes = [self._hash(seq) for seq in range(aggregate.first, aggregate.end)]
        known = [hash_ for hash_ in hashes if hash_ is not None]
        return inclusion_proof_of_hashes(known, member.seq - aggregate.first) if len(known) == len(hashes) else None

    def joined(self, stay: Iterable[Member], left: Iterable[Member]) -> "Members":
        """Returns these and others, and of who left the hashes alone."""
        gone = {member.seq: leaf_hash(member.to_bytes()) for member in left}
        kept = [member for seq, member in self._records.items() if seq not in gone]
        return Members([*kept, *stay], self._others | gone)

    def to_bytes(self) -> bytes:
        """Returns the file."""
        rows = {seq: hash_.hex() for seq, hash_ in self._others.items()}
        rows |= {seq: f"{item.descriptor_hash.hex()} {item.content_anchor.hex()}" for seq, item in self._records.items()}
        return "\n".join([HEADER, *(f"{seq} {rows[seq]}" for seq in sorted(rows)), ""]).encode()

    def _hash(self, seq: int) -> bytes | None:
        record = self._records.get(seq)
        return self._others.get(seq) if record is None else leaf_hash(record.to_bytes())


def read_members(path: Path) -> Members:
    """Reads a members file; no records where there is none.

    Raises:
        LedgerCorrupt: code MEMBERS, it is no such file.
        StorageFailed: the disk cannot tell what is there.
    """
    if not is_there(path):
        return Members()
    try:
        lines = read_limited(path, MAX_MEMBERS_SIZE, "members file").decode("ascii").split("\n")
        if lines[0] != HEADER or lines[-1]:
            raise ValueError("its first or last line")
        members, hashes = [], {}
        for line in lines[1:-1]:
            seq, *rest = line.split(" ")
            place, values = read_decimal(seq), [bytes.fromhex(word) for word in rest]
            if place is None or [len(value) for value in values] not in ([32], [32, 32]):
                raise ValueError(f"the line {line!r:.40}")
            if len(values) == 1:
                hashes[place] = values[0]
            else:
                members.append(Member(values[0], place, values[1]))
    except (AttestError, ValueError) as error:
        sentence = f"{path} is no members file ({error}); put back the one that pruning wrote, or remove it"
        raise LedgerCorrupt("MEMBERS", sentence) from error
    return Members(members, hashes)


def write_members(path: Path, members: Members) -> None:
    """Writes a members file, for its owner alone (mode 0600)."""
    atomic_write(path, members.to_bytes(), mode=0o600)
