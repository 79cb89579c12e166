"""Makes and reads the contents of an export's files: hash tiles, entry bundles, kept nodes, and the subtrees that tile a tree.

An *aligned subtree* (first, level) is the perfect subtree over the leaves [first, first + 2^level), where 2^level divides
first. Two of them never overlap unless one contains the other, so a list of them that leaves no gap determines the root of
every size at which one of them ends, every proof between such sizes, and the path of every leaf that is a piece of its own.
What lies inside a piece cannot be told from it: asking for that is an error that says so.

The layout of tlog-tiles has no tile with holes, so a tile of which a hash is gone is left out. In the place of the left out
tiles of level 0 stands ``retained/nodes``: aligned subtrees that tile their leaves from left to right, each as its first leaf
(8 bytes, big-endian), its level (1 byte) and its root (32 bytes); single leaves (level 0) too, where they share a tile with
larger ones. The SHA-256 of all that ends the file: it names the file when a byte of it was damaged, and proves nothing.
"""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ledger import layout
from ledger.errors import ProofError
from ledger.layout import NODE_SIZE, TILE_HEIGHT, TILE_WIDTH
from ledger.merkle import HASH_SIZE, Frontier, node_hash, root_of_hashes

MAX_LEVEL: Final = 62
"""Sizes stay below 2^63, so that no subtree is higher."""


class Subtree(NamedTuple):
    """Holds an aligned subtree and its root; at level 0 a leaf hash."""

    first: int
    level: int
    hash: bytes

    @property
    def end(self) -> int:
        """Returns the first leaf after it."""
        return self.first + (1 << self.level)


Pieces = Callable[[int, int], Iterable[Subtree]]
"""Gives the subtrees that tile the leaves from one position up to another, in order."""


class Subtrees:
    """A growing tree in one block of memory: 32 bytes a piece, and 17 more for each that is not a single leaf."""

    __slots__ = ("_firsts", "_hashes", "_levels", "_places", "size")

    def __init__(self) -> None:
        self.size = 0
        self._hashes = bytearray()
        # Of every piece above level 0: first leaf, number among all pieces, level. Between two of them lie single leaves.
        self._firsts = array("q")
        self._places = array("q")
        self._levels = array("b")

    def append(self, hash_: bytes, level: int = 0) -> None:
        """Adds a piece behind the last one. Raises ProofError: its hash has another length, or the tree does not end where such
        a piece can begin."""
        if len(hash_) != HASH_SIZE:
            raise ProofError("HASH", f"a hash of a tree has {HASH_SIZE} bytes, got {len(hash_)}")
        if level:
            if not 0 <= level <= MAX_LEVEL or self.size & ((1 << level) - 1):
                raise ProofError("SUBTREE", f"no subtree of level {level} begins at leaf {self.size}")
            self._firsts.append(self.size)
            self._places.append(len(self._hashes) // HASH_SIZE)
            self._levels.append(level)
        self._hashes += hash_
        self.size += 1 << level

    def extend(self, hashes: Iterable[bytes]) -> None:
        """Adds leaf hashes in order. Raises ProofError: one has another length; none is added then."""
        added = bytearray()
        for hash_ in hashes:
            if len(hash_) != HASH_SIZE:
                raise ProofError("HASH", f"a hash of a tree has {HASH_SIZE} bytes, got {len(hash_)}")
            added += hash_
        self._hashes += added
        self.size += len(added) // HASH_SIZE

    def between(self, first: int, end: int) -> Iterator[Subtree]:
        """Yields the pieces that tile [first, end). Raises ProofError: code HASHES_GONE if a piece reaches beyond one of the
        two, SIZE if there are fewer leaves."""
        if not 0 <= first <= end <= self.size:
            raise ProofError("SIZE", f"there are {self.size} leaves, not {end}")
        above, place = bisect_right(self._firsts, first) - 1, first
        if above >= 0 and self._firsts[above] == first:
            place, above = self._places[above], above - 1
        elif above >= 0:
            if self._end(above) > first:
                refuse_within(self._firsts[above], self._end(above), first)
            place = self._places[above] + 1 + first - self._end(above)
        while first < end:
            high = above + 1 < len(self._firsts) and self._firsts[above + 1] == first
            above += high
            piece = Subtree(first, self._levels[above] if high else 0, self._at(place))
            if piece.end > end:
                refuse_within(first, piece.end, end)
            yield piece
            first, place = piece.end, place + 1

    def root(self, size: int) -> bytes:
        """Returns the root over the first ``size`` leaves, in memory that does not grow with them. Raises ProofError: code
        HASHES_GONE if that size lies inside a piece, SIZE if there are fewer leaves."""
        return root_over(self.between(0, size))

    def node(self, level: int, index: int) -> bytes:
        """Returns the hash of a perfect subtree (`ledger.proofs.prover.Node`). Raises ProofError: code HASHES_GONE if it lies
        inside a piece, NODE if the tree has none there."""
        first = index << level
        if not 0 <= first <= self.size - (1 << level):
            raise ProofError("NODE", f"a tree of {self.size} leaves has no perfect subtree {index} of {1 << level} leaves")
        return root_over(self.between(first, first + (1 << level)))

    def _end(self, above: int) -> int:
        return self._firsts[above] + (1 << self._levels[above])

    def _at(self, place: int) -> bytes:
        return bytes(self._hashes[place * HASH_SIZE : (place + 1) * HASH_SIZE])


def root_over(pieces: Iterable[Subtree]) -> bytes:
    """Returns the root over leaves that these pieces tile in order: of a whole tree, or of a perfect subtree."""
    frontier = Frontier()
    for piece in pieces:
        frontier.append(piece.hash, piece.level)
    return frontier.root()


def refuse_within(first: int, end: int, position: int) -> None:
    """Raises the ProofError for a question about what lies inside a subtree of which the root alone is kept."""
    raise ProofError(
        "HASHES_GONE",
        f"the hashes of the leaves {first} to {end - 1} are gone, and the one root kept of them tells nothing about leaf "
        f"{position}; a proof file, or an export, made before they went still does",
    )


def joined(pieces: Iterable[Subtree], cuts: Container[int] = ()) -> Iterator[Subtree]:
    """Yields the maximal aligned subtrees made of these, from left to right, in memory that grows with their levels.

    Args:
        pieces: subtrees in order, with gaps or without; nothing is joined over a gap.
        cuts: positions inside which none may reach: of trees whose roots must still be made.
    """
    stack: list[Subtree] = []
    for piece in pieces:
        if stack and (stack[-1].end != piece.first or piece.first in cuts):
            yield from stack
            stack.clear()
        stack.append(piece)
        while len(stack) > 1 and _are_siblings(stack[-2], stack[-1]):
            right, left = stack.pop(), stack.pop()
            stack.append(Subtree(left.first, left.level + 1, node_hash(left.hash, right.hash)))
    yield from stack


def _are_siblings(left: Subtree, right: Subtree) -> bool:
    return left.level == right.level and not left.first & ((2 << left.level) - 1)


def upper_tiles(roots: Subtrees, size: int, has_tile: layout.HasTile | None = None) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of the hash tiles above level 0. `has_tile`: tells which tiles there are, where hashes are gone.
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


def entry_bundle(entries: Sequence[bytes]) -> bytes:
    """Returns entries, each behind its length as a big-endian uint16."""
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def split_bundle(data: bytes, width: int | None) -> list[bytes]:
    """Reads exactly ``width`` entries that fill ``data``, or as many as fill it. Raises ProofError: if they do not."""
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


class KeptNodes:
    """The subtrees of a ``retained/nodes`` file, held as its bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        """Reads a file of the tree of this size."""
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
        """Returns the position behind the last leaf whose hash is gone."""
        return max(node.end for node in self if node.level)

    def count_gone(self, first: int, end: int) -> int:
        """Says how many leaves from one position up to another lie in subtrees of two leaves or more."""
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
        """Returns the place of the last subtree that begins at a position or before."""
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
