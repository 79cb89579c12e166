"""The contents of an export's files: hash tiles and entry bundles (C2SP tlog-tiles v1.0.0)."""

from collections.abc import Iterator, Sequence

from ledger import layout
from ledger.errors import ProofError
from ledger.merkle import Frontier, root_of_hashes
from ledger.subtrees import Subtree, Subtrees


def hash_tiles(hashes: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of all hash tiles of the tree over ``hashes``."""
    yield from _tiles(0, list(hashes))


def upper_tiles(roots: Subtrees, size: int, has_tile: layout.HasTile | None = None) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of the hash tiles above level 0.

    Args:
        roots: the tree over the roots of the tiles of level 0.
        size: number of leaves.
        has_tile: tells which tiles there are, where hashes are gone.
    """
    for row in range(1, layout.level_count(size)):
        height = layout.TILE_HEIGHT * (row - 1)
        for n, width in layout.tile_widths(size, row):
            if has_tile is None or has_tile(row, n):
                first = n * layout.TILE_WIDTH
                hashes = (roots.node(height, index) for index in range(first, first + width))
                yield layout.tile_path(row, n, width), b"".join(hashes)


def add_tile(roots: Subtrees, n: int, pieces: Sequence[Subtree]) -> None:
    """Adds a tile of level 0 to the tree over their roots.

    Args:
        roots: that tree, in which a tile counts as one leaf.
        n: number of the tile, which a subtree of several tiles may contain already.
        pieces: the subtrees that begin in it: they tile it, or the only one reaches over it and those behind it.
    """
    if roots.size > n:
        return
    if pieces[0].level > layout.TILE_HEIGHT:
        roots.append(pieces[0].hash, pieces[0].level - layout.TILE_HEIGHT)
        return
    if not any(piece.level for piece in pieces):
        roots.append(root_of_hashes([piece.hash for piece in pieces]))
        return
    tile = Frontier()
    for piece in pieces:
        tile.append(piece.hash, piece.level)
    roots.append(tile.root())


def _tiles(level: int, row: list[bytes]) -> Iterator[tuple[str, bytes]]:
    while row:
        above: list[bytes] = []
        for n, width in layout.tile_widths(len(row)):
            tile = row[n * layout.TILE_WIDTH : n * layout.TILE_WIDTH + width]
            yield layout.tile_path(level, n, width), b"".join(tile)
            if width == layout.TILE_WIDTH:
                above.append(root_of_hashes(tile))
        level, row = level + 1, above


def entry_bundle(entries: Sequence[bytes]) -> bytes:
    """Returns entries, each behind its length as a big-endian uint16."""
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def split_bundle(data: bytes, width: int | None) -> list[bytes]:
    """Reads exactly ``width`` entries that fill ``data``, or as many as fill it.

    Raises:
        ProofError: if they do not.
    """
    entries: list[bytes] = []
    offset = 0
    while offset < len(data) if width is None else len(entries) < width:
        if len(data) - offset < 2:
            raise ProofError("BUNDLE", f"a bundle of {width} entries ends after {len(entries)}")
        size = int.from_bytes(data[offset : offset + 2], "big")
        entry = data[offset + 2 : offset + 2 + size]
        if len(entry) != size:
            raise ProofError("BUNDLE", f"entry {len(entries)} of a bundle is cut short")
        entries.append(entry)
        offset += 2 + size
    if offset != len(data):
        raise ProofError("BUNDLE", f"{len(data) - offset} bytes follow the last entry of a bundle")
    return entries
