"""The nodes that an export keeps where leaf hashes are gone: the file ``retained/nodes``.

The layout of tlog-tiles has no tile with holes, so a tile of which a hash is gone is left out. In the place of the left out
tiles of level 0 stands this file: aligned subtrees that tile their leaves from left to right, each as its first leaf (8 bytes,
big-endian), its level (1 byte) and its root (32 bytes); single leaves (level 0) too, where they share a tile with larger ones.
The SHA-256 of all that ends the file: it names the file when a byte of it was damaged, and proves nothing.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from ledger.errors import ProofError
from ledger.layout import NODE_SIZE, TILE_HEIGHT, TILE_WIDTH
from ledger.merkle import HASH_SIZE
from ledger.subtrees import MAX_LEVEL, Subtree, refuse_within


class KeptNodes:
    """The subtrees of a ``retained/nodes`` file, held as its bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        """Reads a file.

        Args:
            data: its content.
            size: number of leaves of the tree.

        Raises:
            ProofError: code NODES; it is damaged, or its subtrees do not tile whole tiles, each with a larger subtree in it.
        """
        body, digest = data[:-HASH_SIZE], data[-HASH_SIZE:]
        if not body or len(body) % NODE_SIZE:
            raise ProofError("NODES", f"it has {len(data)} bytes, expected {NODE_SIZE} for each of its nodes and {HASH_SIZE}")
        if hashlib.sha256(body).digest() != digest:
            raise ProofError("NODES", "its content does not have the SHA-256 at its end: it was damaged; get another copy")
        self.size = size
        self._data = body
        self._firsts = range(len(body) // NODE_SIZE)
        self._there: dict[tuple[int, int], bool] = {}
        self._check()

    def __iter__(self) -> Iterator[Subtree]:
        return map(self._at, self._firsts)

    def has_tile(self, row: int, n: int) -> bool:
        """Tells whether all hashes of the n-th tile of a row (level / 8) can be told, so that the tile is there."""
        if (row, n) not in self._there:
            bits, height = TILE_HEIGHT * (row + 1), TILE_HEIGHT * row
            self._there[row, n] = all(node.level <= height for node in self._reaching(n << bits, (n + 1) << bits))
        return self._there[row, n]

    def in_tile(self, n: int) -> list[Subtree]:
        """Returns the subtrees that begin in the n-th tile of level 0."""
        start = n * TILE_WIDTH
        return [node for node in self._reaching(start, start + TILE_WIDTH) if node.first >= start]

    def around(self, position: int) -> Subtree | None:
        """Returns the subtree in which a leaf lies."""
        place = self._place(position)
        node = self._at(place) if place >= 0 else None
        return node if node is not None and position < node.end else None

    def refuse_inside(self, position: int) -> None:
        """Raises ProofError, code HASHES_GONE, where a position lies inside a subtree and not at an end of one."""
        node = self.around(position)
        if node is not None and node.first != position:
            refuse_within(node.first, node.end, position)

    @property
    def gone_before(self) -> int:
        """Position behind the last leaf whose hash is gone."""
        return max(node.end for node in self if node.level)

    def count_gone(self, first: int, end: int) -> int:
        """How many leaves from one position up to another lie in subtrees of two leaves or more."""
        return sum(node.end - node.first for node in self if node.level and first <= node.first < end)

    def _reaching(self, first: int, end: int) -> Iterator[Subtree]:
        """Yields the subtrees of which a leaf lies in [first, end)."""
        for place in range(max(0, self._place(first)), len(self._firsts)):
            node = self._at(place)
            if node.first >= end:
                return
            if node.end > first:
                yield node

    def _place(self, position: int) -> int:
        """Place of the last subtree that begins at a position or before."""
        return bisect_right(self._firsts, position, key=lambda place: self._at(place).first) - 1

    def _at(self, place: int) -> Subtree:
        node = self._data[place * NODE_SIZE : (place + 1) * NODE_SIZE]
        return Subtree(int.from_bytes(node[:8], "big"), node[8], node[9:])

    def _check(self) -> None:
        end = 0
        for node in self:
            if node.level > MAX_LEVEL or node.first & ((1 << node.level) - 1) or node.end > self.size:
                raise ProofError("NODES", f"there is no subtree of level {node.level} at leaf {node.first} of {self.size}")
            if node.first < end:
                raise ProofError("NODES", f"the subtree at leaf {node.first} overlaps the one before, which ends at {end}")
            if node.first > end and (end % TILE_WIDTH or node.first % TILE_WIDTH):
                raise ProofError("NODES", f"there is a gap inside a tile, from leaf {end} to {node.first}")
            end = node.end
        if end % TILE_WIDTH and end != self.size:
            raise ProofError("NODES", f"there is a gap inside a tile, from leaf {end} on")
        for node in self:
            if not node.level and self.has_tile(0, node.first // TILE_WIDTH):
                raise ProofError("NODES", f"leaf {node.first} lies in a tile of which no hash is gone, and which has its hash")


def nodes_file(nodes: Iterable[Subtree]) -> bytes:
    """Returns the content of a ``retained/nodes`` file."""
    body = b"".join(node.first.to_bytes(8, "big") + bytes([node.level]) + node.hash for node in nodes)
    return body + hashlib.sha256(body).digest()
