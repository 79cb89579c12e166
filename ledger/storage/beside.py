"""Reads, writes and checks the files beside a ledger that nobody signs: verifier keys, weights, members.

Nothing of a ledger rests on them. Auditors are handed the first, releases cite the second, so a byte that changed in either is
found here before others meet it. What its key signs beside it: `ledger.storage.highwater`, `ledger.log.pinned`.

Nobody signs the members file and no export has it. Every record in it is held against the aggregate to which a SUMMARY leaf
commits before anything is done by it; who deletes the file loses what it says, and nothing else. Of who left it holds the hash
of the member record alone, without which no path to the root can be made for those who stay. Lines of ASCII::

    dptrain-members-v1
    <n> <hex> <hex>           of who stayed: position of the ADMIT leaf, descriptor hash, content anchor
    <n> <hex>                 of who left: position, leaf hash of the member record
"""

import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attest.errors import AttestError
from attest.files import atomic_write, read_limited, sync_directory
from attest.schema.plain import read_decimal
from ledger.audit.findings import Finding
from ledger.errors import LedgerCorrupt, LedgerError, StorageFailed
from ledger.leaves import Epoch
from ledger.leaves.weights import MAX_RECORDS, WeightRecord, model_digest, read_records, write_records
from ledger.merkle import inclusion_proof_of_hashes, leaf_hash
from ledger.replay.signer import KeyChain
from ledger.replay.summaries import Aggregate, Member
from ledger.storage.disks import is_there
from ledger.storage.place import Place

WEIGHTS: Final = ".weights"
"""Directory beside the ledger with the records that the model digests of its epochs commit to, each under its digest."""

DRAW_KEYS: Final = ".sealed"
"""File beside the ledger with the keys of draws, while a run has caps."""

NOISE: Final = ".noise"
"""Directory beside the ledger with the states of the noise, while a run has noise that is correlated between steps."""

_ENDING: Final = ".cbor"
_MAX_KEYS: Final = 1 << 20
"""Bytes of a file of verifier keys; one takes about 100."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Tells what was found beside a ledger.

    Attributes:
        findings: what is wrong, each naming its file.
        keys: verifier keys in the public file, None where there is no such file.
        weights: epochs whose weights were checked, None for a ledger that keeps none.
        let_go: epochs without weights, below what the retention of the policy has let go.
        unused: files of weights that no epoch cites, as a crash before its EPOCH leaf leaves one.
    """

    findings: tuple[Finding, ...] = ()
    keys: int | None = None
    weights: int | None = None
    let_go: int = 0
    unused: int = 0


def check_beside(place: Place, chain: KeyChain, epochs: Sequence[Epoch], pruned_before: int, *, closed: bool = False) -> Beside:
    """Checks the public key file of a ledger and the weights of its epochs, one file in memory at a time.

    Guarantee: without a finding every line of the public file that is no comment is a key that signed this ledger, and none of
    these is left out; and every file of weights holds, byte for byte, the records that its name commits to. A ledger without
    a public file or without a directory of weights was made so, and is whole. Beside a closed one lies nothing that a run keeps
    secret until it is over.

    Args:
        place: where the ledger lies; on a server without a state directory there is nothing to look at.
        chain: the keys that signed it, as its leaves say.
        epochs: its EPOCH leaves.
        pruned_before: position below which retention has let bodies go; the weights of epochs below may be gone too.
        closed: whether the run is over.

    Raises:
        StorageFailed: the disk cannot tell what is there.
    """
    if place.beside is None:
        return Beside()
    wrong, keys = _public(place.public, chain)
    for path in secrets_left(place) if closed else ():
        sentence = "a run left it that was killed while it ended, and with the releases it tells what nobody should know"
        wrong.append(Finding("SECRET_LEFT", str(path), f"{sentence}; delete it: rm -r {shlex.quote(str(path))}"))
    folder = place.side(WEIGHTS)
    if not is_there(folder):
        return Beside(tuple(wrong), keys)
    return _weights(folder, epochs, pruned_before, wrong, keys)


def secrets_left(place: Place) -> list[Path]:
    """Returns what lies beside a ledger and is a secret until its run is over, when the run deletes it. Raises StorageFailed:
    the disk cannot tell what is there."""
    paths = [] if place.beside is None else [place.side(suffix) for suffix in (DRAW_KEYS, NOISE)]
    return [path for path in paths if is_there(path)]


def delete_secrets(place: Place) -> list[Path]:
    """Deletes `secrets_left`, and returns where they lay. For runs that are over: without them none goes on.

    Raises:
        StorageFailed: something could not be deleted.
    """
    found = secrets_left(place)
    for path in found:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            sentence = f"could not delete {path} ({error}), which with the releases tells what nobody should know"
            raise StorageFailed("STORAGE", f"{sentence}; delete it yourself") from error
    return found


def weights_file(place: Place, digest: bytes) -> Path:
    """Returns where the records that a model digest commits to are kept; LedgerError as `Place.side`."""
    return place.side(WEIGHTS) / f"{digest.hex()}{_ENDING}"


def read_weights(path: Path) -> tuple[WeightRecord, ...]:
    """Reads a file of weights, which commit to its name. Raises LedgerCorrupt: code WEIGHTS, it holds something else."""
    try:
        found = read_records(read_limited(path, MAX_RECORDS, "records of a model"))
    except (AttestError, LedgerError) as error:
        raise LedgerCorrupt("WEIGHTS", f"{path} cannot be read: {error.sentence}; restore it, or move it away") from error
    if model_digest(found).hex() != path.stem:
        raise LedgerCorrupt("WEIGHTS", f"{path} holds records of another model; restore it, or move it away")
    return found


def keep_weights(place: Place, records: Iterable[WeightRecord]) -> bytes:
    """Keeps the records of a model's tensors under their digest, durably, and returns the digest. Raises StorageFailed: the
    disk refused."""
    kept = tuple(records)
    digest = model_digest(kept)
    path = weights_file(place, digest)
    try:
        if not path.parent.exists():
            path.parent.mkdir(exist_ok=True)
            sync_directory(path.parent.parent)
        if not path.exists():
            atomic_write(path, write_records(kept))
    except OSError as error:
        raise StorageFailed("STORAGE", f"cannot write {path}: {error.strerror or error}; free space and resume") from error
    return digest


def weights_of(place: Place, digest: bytes) -> tuple[WeightRecord, ...] | None:
    """Returns the records that a model digest commits to; None where they are not here. Raises LedgerCorrupt: as
    `read_weights`."""
    try:
        path = weights_file(place, digest)
    except LedgerError:  # a ledger on a server, opened without its state directory
        return None
    return read_weights(path) if path.exists() else None


def read_public(path: Path) -> list[str]:
    """Reads the lines of a public file, comments too; none where there is no file.

    Raises:
        LedgerCorrupt: code PUBLIC_KEY, it is no text.
        StorageFailed: the disk cannot tell what is there.
    """
    if not is_there(path):
        return []
    try:
        # Not splitlines, which takes other characters than a newline for the end of a line.
        return read_limited(path, _MAX_KEYS, "file of verifier keys").decode("utf-8").split("\n")
    except (AttestError, UnicodeDecodeError) as error:
        sentence = error.sentence if isinstance(error, AttestError) else f"{path} is not UTF-8 text"
        raise LedgerCorrupt("PUBLIC_KEY", f"{sentence}; remove it, and write it again from the keys of the ledger") from error


def write_public(path: Path, keys: Sequence[str], others: Iterable[str] = ()) -> None:
    """Writes a public file: all keys that signed a ledger, the newest first, then what else it shall hold.

    Args:
        path: the file; one that is there is replaced.
        keys: verifier keys in the order in which they signed.
        others: further lines, as comments; left out where they are empty or among the keys.
    """
    lines = dict.fromkeys([*reversed(keys), *filter(None, others)])
    atomic_write(path, "".join(f"{line}\n" for line in lines).encode())


def _public(path: Path, chain: KeyChain) -> tuple[list[Finding], int | None]:
    """Tells what is wrong with the public file, and how many keys it holds; None where there is none."""
    if not is_there(path):
        return [], None
    try:
        lines = [line for line in read_public(path) if line and not line.startswith("#")]
    except LedgerCorrupt as error:
        return [Finding(error.code, str(path), error.sentence)], 0
    found = [
        Finding("PUBLIC_KEY", str(path), f"{line!a:.200} is no key that signed this ledger; whoever pins it can verify nothing")
        for line in lines
        if line not in chain.vkeys
    ]
    found += [
        Finding("PUBLIC_KEY", str(path), f"it lacks {vkey}, which signed this ledger; add the line, so that nobody misses it")
        for vkey in chain.vkeys
        if vkey not in lines
    ]
    return found, len(lines)


def _weights(folder: Path, epochs: Iterable[Epoch], before: int, wrong: list[Finding], keys: int | None) -> Beside:
    try:
        names = {path.name for path in folder.iterdir() if path.suffix == _ENDING}
    except OSError as error:
        raise StorageFailed("IO", f"cannot list {folder}: {error.strerror or error}; mend the disk") from error
    checked = let_go = 0
    cited = set()
    for epoch in epochs:
        path = folder / f"{epoch.model_digest.hex()}{_ENDING}"
        if path.name in names:
            checked += 1
            cited.add(path.name)
        elif epoch.seq < before:
            let_go += 1
        else:
            sentence = f"the weights of epoch {epoch.number} (leaf {epoch.seq}) are gone; a release of them would be UNRECORDED"
            wrong.append(Finding("WEIGHTS_MISSING", str(path), f"{sentence}: put the file back"))
    for name in sorted(names):
        try:
            read_weights(folder / name)
        except LedgerCorrupt as error:
            wrong.append(Finding(error.code, str(folder / name), error.sentence))
    return Beside(tuple(wrong), keys, checked, let_go, len(names - cited))


MEMBERS: Final = ".members"
"""Suffix of the file, behind the name of the ledger."""

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
