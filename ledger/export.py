"""Writing an export: a static directory from which anyone can re-derive and check everything, offline."""

import os
import secrets
import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from ledger import layout, tiles
from ledger.errors import ExportRefused, LedgerCorrupt, StorageFailed
from ledger.leaves import Header
from ledger.merkle import leaf_hash, root_of_hashes
from ledger.rotation import KeyChain
from ledger.storage.store import Row


def write_export(
    header: Header, rows: Iterable[Row], checkpoint: bytes, directory: Path, *, keys: KeyChain | None = None
) -> Path:
    """Writes an export: built beside its place, then renamed into it, so it is there whole or not at all.

    Args:
        header: leaf 0.
        rows: all leaves under the checkpoint.
        checkpoint: signed note over them.
        directory: where to put it; must not exist.
        keys: the ledger's keys, where the one in the header was ever changed.

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
        temporary.mkdir(parents=True)
        _put(temporary, layout.CHECKPOINT, checkpoint)
        _put(temporary, layout.POLICY, keys.trust_policy().text())
        roots: list[bytes] = []
        size, stream = 0, iter(rows)
        while bodies := [row.body for row in islice(stream, layout.TILE_WIDTH)]:
            hashes = [leaf_hash(body) for body in bodies]
            _put(temporary, layout.entries_path(len(roots), len(bodies)), tiles.entry_bundle(bodies))
            _put(temporary, layout.tile_path(0, len(roots), len(bodies)), b"".join(hashes))
            roots.append(root_of_hashes(hashes))
            size += len(bodies)
        if keys.open_note(checkpoint)[1].root != root_of_hashes(roots):
            raise LedgerCorrupt("EXPORT", "the leaves are not those under the checkpoint; open the ledger again")
        for path, data in tiles.upper_tiles(roots[: size // layout.TILE_WIDTH]):
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
