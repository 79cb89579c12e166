"""Writes an export: a static directory from which anyone can re-derive and check everything, offline.

Beside the leaves lies what contributors signed of them: common terms and signatures, and the registry with the keys that these
verify under. With the anchors of ADMIT leaves they make every descriptor and message again, and show no content, contributor
or principal: those stand in descriptors as salted commitments, whose openings no ledger has. Attestations are all there or left
out; the names of a registry never go into an export.
"""

import os
import secrets
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile, tee
from pathlib import Path

from attest.errors import AttestError, FileRefused
from attest.files import read_limited, sync_directory, sync_tree
from attest.registry import RegistryReader
from ledger import layout, tiles
from ledger.errors import ExportRefused, LedgerCorrupt, StorageFailed
from ledger.leaves import Admit, Header
from ledger.leaves.attestations import pack, unpack
from ledger.merkle import leaf_hash
from ledger.replay.signer import KeyChain
from ledger.replay.summaries import Aggregate
from ledger.retention import StandIns
from ledger.storage.store import Row, Snapshot
from ledger.tiles import KeptNodes, Subtree, Subtrees, nodes_file


@dataclass(frozen=True, slots=True)
class Pruned:
    """Holds what a pruned ledger has instead of bodies.

    Attributes:
        before: position below which bodies may be gone.
        aggregates: of pruned ADMIT leaves; no other kind is pruned.
        notes: the checkpoints below which auditors vouch for summaries.
    """

    before: int
    aggregates: Sequence[Aggregate]
    notes: Sequence[bytes]

    def entries(self, rows: Iterable[Row]) -> Iterator[bytes]:
        """Yields the body of each leaf, or what stands in for it; empty where nothing does. `rows`: the leaves in order, from
        the first one on."""
        stand_ins = StandIns(self.aggregates)
        for row in rows:
            yield row.body or stand_ins.at(row.seq) or b""


def read_registry(header: Header, path: Path, roots: Iterable[bytes] = ()) -> bytes:
    """Reads the contributor registry of a run, to go into its export.

    Guarantee: the owner whose key the header has signed every entry, and every state by which the run went is among them.

    Args:
        header: leaf 0 of the run.
        path: the registry file; the names beside it are not read.
        roots: of the later states that the run took in.

    Raises:
        ExportRefused: code REGISTRY.
    """
    try:
        data = read_limited(path, layout.MAX_REGISTRY_SIZE, "contributor registry")
    except FileRefused as error:
        raise ExportRefused("REGISTRY", f"{error.sentence}; name the registry under which the run admitted") from error
    try:
        found = RegistryReader(path, header.owner_key).advance(data).roots
    except AttestError as error:
        sentence = f"{path} does not verify under the owner's key in the header: {error.sentence}"
        raise ExportRefused("REGISTRY", f"{sentence}; name the registry under which the run admitted") from error
    missing = [root.hex() for root in (header.registry_root, *roots) if root not in found]
    if missing:
        sentence = f"{path} has the root {found[-1].hex()} and no state {missing[0]}, by which the run went"
        raise ExportRefused("REGISTRY", f"{sentence}: it is another registry, or was cut back; get the latest from its owner")
    return data


def write_export(
    header: Header,
    rows: Iterable[Row],
    checkpoint: bytes,
    directory: Path,
    *,
    keys: KeyChain | None = None,
    pruned: Pruned | None = None,
    snapshot: Snapshot | None = None,
    registry: bytes | None = None,
) -> Path:
    """Writes an export: built beside its place, synced, then renamed into it, so it is there whole or not at all.

    Guarantee: That holds after a crash or a loss of power at any instant, and when this returns the export is on disk. It has
    the attestation of every ADMIT leaf whose body is in it, or no file with one.

    Args:
        header: leaf 0.
        rows: all leaves under the checkpoint.
        checkpoint: signed note over them.
        directory: where to put it; must not exist.
        keys: the ledger's keys, where the one in the header was ever changed.
        pruned: what stands in for bodies that are gone, where any may be.
        snapshot: what has the attestations of the rows, None to leave them out. None go in if that of an ADMIT leaf with a body
            is missing.
        registry: bytes of the contributor registry, as `read_registry` returned them.

    Returns:
        The directory.

    Raises:
        ExportRefused: the run was not private, or something is in the way.
        LedgerCorrupt: leaves or attestations are not those that belong here.
        StorageFailed: the disk refused.
    """
    keys = KeyChain(header) if keys is None else keys
    if not header.private:
        raise ExportRefused("NOT_PRIVATE", "this run used a fixed test key, so its noise protects nobody")
    with building(directory) as temporary:
        _put(temporary, layout.CHECKPOINT, checkpoint)
        _put(temporary, layout.POLICY, keys.trust_policy().text())
        if registry is not None:
            _put(temporary, layout.REGISTRY, registry)
        attestations = None if snapshot is None else _Attestations(temporary, snapshot)
        roots, kept = Subtrees(), list[Subtree]()
        n, size = 0, 0
        stream, copied = tee(rows)
        entries = (row.body for row in copied) if pruned is None else pruned.entries(copied)
        retained = 0 if pruned is None else -(-pruned.before // layout.TILE_WIDTH)
        if pruned is not None and retained:
            _put(temporary, layout.RETAINED_NOTES, tiles.entry_bundle(pruned.notes))
        while batch := list(islice(stream, layout.TILE_WIDTH)):
            bodies = list(islice(entries, len(batch)))
            _put(temporary, layout.bundle_path(n, len(bodies), retained), tiles.entry_bundle(bodies))
            if attestations is not None and not attestations.add(n, batch):
                attestations = None
            pieces = [Subtree(row.seq, row.level, _hash(row)) for row in batch if row.body or row.leaf_hash]
            tiles.add_tile(roots, n, pieces)
            if any(row.level for row in batch):
                kept += pieces
            else:
                _put(temporary, layout.tile_path(0, n, len(bodies)), b"".join(piece.hash for piece in pieces))
            n, size = n + 1, size + len(bodies)
        if keys.open_note(checkpoint)[1].root != roots.root(n):
            raise LedgerCorrupt("EXPORT", "the leaves are not those under the checkpoint; open the ledger again")
        has_tile = None
        if kept:
            data = nodes_file(kept)
            if len(data) > layout.MAX_NODES_SIZE:
                raise ExportRefused("SIZE", f"{len(kept)} subtrees stand for hashes that are gone; no export holds so many")
            _put(temporary, layout.RETAINED_NODES, data)
            has_tile = KeptNodes(data, size).has_tile
        for path, data in tiles.upper_tiles(roots, size, has_tile):
            _put(temporary, path, data)
        if attestations is not None:
            attestations.write_terms()
    return directory


@contextmanager
def building(directory: Path) -> Iterator[Path]:
    """Gives a directory to fill, which appears under its name when it is complete and on disk, or never.

    Raises:
        ExportRefused: code EXISTS, something is in the way.
        StorageFailed: code EXPORT, the disk refused.
    """
    if os.path.lexists(directory):
        raise ExportRefused("EXISTS", f"{directory} exists; choose another place")
    temporary = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}.tmp")
    try:
        above = [directory, *takewhile(lambda parent: not parent.exists(), directory.parents)]
        temporary.mkdir(parents=True)
        yield temporary
        sync_tree(temporary)
        temporary.rename(directory)
        for made in above:
            sync_directory(made.parent)
    except OSError as error:
        raise StorageFailed("EXPORT", f"cannot write the export {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_tree(base: Path, bodies: Iterable[bytes]) -> bytes | None:
    """Writes bundles and tiles of leaves that are all there into a directory; returns their root, None for none."""
    roots, stream, n, size = Subtrees(), iter(bodies), 0, 0
    while batch := list(islice(stream, layout.TILE_WIDTH)):
        pieces = [Subtree(seq, 0, leaf_hash(body)) for seq, body in enumerate(batch, size)]
        _put(base, layout.entries_path(n, len(batch)), tiles.entry_bundle(batch))
        _put(base, layout.tile_path(0, n, len(batch)), b"".join(piece.hash for piece in pieces))
        tiles.add_tile(roots, n, pieces)
        n, size = n + 1, size + len(batch)
    for path, data in tiles.upper_tiles(roots, size):
        _put(base, path, data)
    return roots.root(n) if n else None


class _Attestations:
    """Writes the attestations of an export, a bundle in memory at a time; terms are numbered by their first use."""

    def __init__(self, base: Path, snapshot: Snapshot) -> None:
        self._base, self._snapshot = base, snapshot
        self._kept = snapshot.attestations()
        self._next = next(self._kept, None)
        self._numbers = dict[int, int]()
        self._order = array("q")

    def add(self, n: int, rows: Sequence[Row]) -> bool:
        """Writes what belongs to the n-th bundle of leaves; where one is missing, removes all again and returns False."""
        entries = []
        for row in rows:
            admitted = row.kind == Admit.KIND and bool(row.body)
            if self._next is not None and self._next[0] <= row.seq and (self._next[0], admitted) != (row.seq, True):
                sentence = f"an attestation is kept for leaf {self._next[0]}, which is no ADMIT leaf with a body"
                raise LedgerCorrupt("ATTESTATION", f"{sentence}; run 'dptrain ledger fsck'", seq=self._next[0])
            if admitted and (self._next is None or self._next[0] != row.seq):
                if (written := self._base / layout.ATTESTATIONS).exists():
                    shutil.rmtree(written)
                return False
            entries.append(self._entry() if admitted else b"")
        if any(entries):
            _put(self._base, layout.signed_path(n, len(entries)), tiles.entry_bundle(entries))
        return True

    def write_terms(self) -> None:
        """Writes the terms that were used."""
        for n, width in layout.tile_widths(len(self._order)):
            numbers = self._order[n * layout.TILE_WIDTH : n * layout.TILE_WIDTH + width]
            _put(self._base, layout.terms_path(n, width), tiles.entry_bundle(self._snapshot.terms_at(numbers)))

    def _entry(self) -> bytes:
        """Returns the next attestation that is kept, with the number that its terms have in the export."""
        assert self._next is not None
        number, signature = unpack(self._next[1])
        place = self._numbers.setdefault(number, len(self._order))
        if place == len(self._order):
            self._order.append(number)
        self._next = next(self._kept, None)
        return pack(place, signature)


def _hash(row: Row) -> bytes:
    return leaf_hash(row.body) if row.body else row.leaf_hash


def _put(base: Path, path: str, data: bytes) -> None:
    target = base / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
