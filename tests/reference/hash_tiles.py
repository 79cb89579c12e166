"""Cuts a whole tree into its tiles, level by level, as C2SP tlog-tiles lays them out."""

from collections.abc import Iterator, Sequence

from ledger import layout
from ledger.merkle import root_of_hashes


def hash_tiles(hashes: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of all hash tiles of the tree over ``hashes``."""
    level, row = 0, list(hashes)
    while row:
        above: list[bytes] = []
        for n, width in layout.tile_widths(len(row)):
            tile = row[n * layout.TILE_WIDTH : n * layout.TILE_WIDTH + width]
            yield layout.tile_path(level, n, width), b"".join(tile)
            if width == layout.TILE_WIDTH:
                above.append(root_of_hashes(tile))
        level, row = level + 1, above
