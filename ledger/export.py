"""Writing an export: a static directory from which anyone can re-derive and check everything, offline."""

import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from attest.files import sync_directory, sync_tree
from ledger import layout, tiles
from ledger.errors import ExportRefused, LedgerCorrupt, StorageFailed
from ledger.leaves import Header
from ledger.merkle import leaf_hash
from ledger.retention.nodes import KeptNodes, nodes_file
from ledger.rules.rotation import KeyChain
from ledger.storage.store import Row
from ledger.subtrees import Subtree, Subtrees


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a pruned ledger has instead of bodies.

    Attributes:
        before: position below which bodies may be gone.
        anchors: records of pruned ADMIT leaves by descriptor hash; no other kind is pruned.
        notes: the checkpoints below which auditors vouch for summaries.
    """

    before: int
    anchors: Mapping[bytes, bytes]
    notes: Sequence[bytes]

    def stand_in(self, row: Row) -> bytes:
        """Returns what stands in for a pruned leaf."""
        return self.anchors[row.descriptor_hash or b""]


def write_export(
    header: Header,
    rows: Iterable[Row],
    checkpoint: bytes,
    directory: Path,
    *,
    keys: KeyChain | None = None,
    pruned: Pruned | None = None,
) -> Path:
    """Writes an export: built beside its place, synced, then renamed into it, so it is there whole or not at all.

    Guarantee:
        That holds after a crash or a loss of power at any instant, and when this returns the export is on disk.

    Args:
        header: leaf 0.
        rows: all leaves under the checkpoint.
        checkpoint: signed note over them.
        directory: where to put it; must not exist.
        keys: the ledger's keys, where the one in the header was ever changed.
        pruned: what stands in for bodies that are gone, where any may be.

    Returns:
        The directory.

    Raises:
        ExportRefused: the run was not private, or something is in the way.
        StorageFailed: the disk refused.
    """
    keys = KeyChain(header) if keys is None else keys
    if not header.private:
        raise ExportRefused("NOT_PRIVATE", "this run used a fixed test key, so its noise protects nobody")
    if os.path.lexists(directory):
        raise ExportRefused("EXISTS", f"{directory} exists; choose another place")
    temporary = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}.tmp")
    try:
        above = [directory, *takewhile(lambda parent: not parent.exists(), directory.parents)]
        temporary.mkdir(parents=True)
        _put(temporary, layout.CHECKPOINT, checkpoint)
        _put(temporary, layout.POLICY, keys.trust_policy().text())
        roots, kept = Subtrees(), list[Subtree]()
        n, size, stream = 0, 0, iter(rows)
        retained = 0 if pruned is None else -(-pruned.before // layout.TILE_WIDTH)
        if pruned is not None and retained:
            _put(temporary, layout.RETAINED_NOTES, tiles.entry_bundle(pruned.notes))
        while batch := list(islice(stream, layout.TILE_WIDTH)):
            bodies = [row.body if row.body or pruned is None else pruned.stand_in(row) for row in batch]
            _put(temporary, layout.bundle_path(n, len(bodies), retained), tiles.entry_bundle(bodies))
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
        sync_tree(temporary)
        temporary.rename(directory)
        for made in above:
            sync_directory(made.parent)
    except OSError as error:
        raise StorageFailed("EXPORT", f"cannot write the export {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _hash(row: Row) -> bytes:
    return leaf_hash(row.body) if row.body else row.leaf_hash


def _put(base: Path, path: str, data: bytes) -> None:
    target = base / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
