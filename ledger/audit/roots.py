"""The tree over the roots of an export's tiles: once as its entries give it, once as its hashes do."""

from ledger import layout, tiles
from ledger.subtrees import Subtree, Subtrees


class TileRoots:
    """The tree over the roots of tiles, as entries or hashes give it.

    Attributes:
        roots: that tree.
        missing: number of the first tile that could not be read, None without such.
    """

    def __init__(self) -> None:
        self.roots = Subtrees()
        self.missing: int | None = None

    def add(self, n: int, pieces: list[Subtree] | None) -> None:
        """Adds a tile by the subtrees that begin in it."""
        if pieces is not None and (pieces or self.roots.size > n):
            tiles.add_tile(self.roots, n, pieces)
        elif self.roots.size <= n:
            self.missing = n if self.missing is None else self.missing
            self.roots.append(bytes(layout.HASH_SIZE))

    def root(self) -> bytes | None:
        """The root of all, where no tile is missing."""
        return None if self.missing is not None else self.roots.root(self.roots.size)
