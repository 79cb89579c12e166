"""Writing an export: a static directory from which anyone can re-derive and check everything, offline."""

import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from ledger import layout, tiles
from ledger.errors import ExportRefused, LedgerCorrupt, StorageFailed
from ledger.leaves import Header
from ledger.merkle import leaf_hash, root_of_hashes
from ledger.note import open_note, parse_checkpoint
from ledger.storage.store import Row


def write_export(header: Header, rows: Iterable[Row], checkpoint: bytes, directory: Path) -> Path:
    """Writes an export: built beside its place, then renamed into it, so it is there whole or not at all.

    Args:
        header: leaf 0.
        rows: all leaves under the checkpoint.
        checkpoint: signed note over them.
        directory: where to put it; must not exist.

    Returns:
        The directory.

    Raises:
        ExportRefused: the run was not private, or something is in the way.
        StorageFailed: the disk refused.
    """
    if not header.private:
        raise ExportRefused("NOT_PRIVATE", "this run used a fixed test key, so its noise protects nobody")
    if os.path.lexists(directory):
        raise ExportRefused("EXISTS", f"{directory} exists; choose another place")
    temporary = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.mkdir(parents=True)
        _put(temporary, layout.CHECKPOINT, checkpoint)
        _put(temporary, layout.POLICY, tiles.policy_text(header.log_vkey))
        hashes: list[bytes] = []
        bundle: list[bytes] = []
        for row in rows:
            hashes.append(leaf_hash(row.body))
            bundle.append(row.body)
            if len(bundle) == layout.TILE_WIDTH:
                _put(temporary, layout.entries_path(len(hashes) // layout.TILE_WIDTH - 1), tiles.entry_bundle(bundle))
                bundle = []
        if bundle:
            path = layout.entries_path(len(hashes) // layout.TILE_WIDTH, len(bundle))
            _put(temporary, path, tiles.entry_bundle(bundle))
        if parse_checkpoint(open_note(checkpoint, [header.log_vkey]).text).root != root_of_hashes(hashes):
            raise LedgerCorrupt("EXPORT", "the leaves are not those under the checkpoint; open the ledger again")
        for path, data in tiles.hash_tiles(hashes):
            _put(temporary, path, data)
        temporary.rename(directory)
    except OSError as error:
        raise StorageFailed("EXPORT", f"cannot write the export {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _put(base: Path, path: str, data: bytes) -> None:
    target = base / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
