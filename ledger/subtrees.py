"""A tree known by aligned subtrees that tile it: most are single leaves, some stand for leaves whose hashes are gone.

An *aligned subtree* (first, level) is the perfect subtree over the leaves [first, first + 2^level), where 2^level divides
first. Two of them never overlap unless one contains the other, so a list of them that leaves no gap determines the root of
every size at which one of them ends, every proof between such sizes, and the path of every leaf that is a piece of its own.
What lies inside a piece cannot be told from it: asking for that is an error that says so.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, NamedTuple

from ledger.errors import ProofError
from ledger.merkle import HASH_SIZE, Frontier, node_hash

MAX_LEVEL: Final = 62
"""Sizes stay below 2^63, so that no subtree is higher."""


class Subtree(NamedTuple):
    """An aligned subtree and its root; at level 0 a leaf hash.

    Attributes:
        first: its first leaf, a multiple of 2^level.
        level: height.
        hash: its root.
    """

    first: int
    level: int
    hash: bytes

    @property
    def end(self) -> int:
        """First leaf after it."""
        return self.first + (1 << self.level)


Pieces = Callable[[int, int], Iterable[Subtree]]
"""Gives the subtrees that tile the leaves from one position up to another, in order."""


class Subtrees:
    """A growing tree in one block of memory: 32 bytes a piece, and 17 more for each that is not a single leaf."""

    __slots__ = ("_firsts", "_hashes", "_levels", "_places", "size")

    def __init__(self) -> None:
        """Begins empty."""
        self.size = 0
        self._hashes = bytearray()
        # Of every piece above level 0: first leaf, number among all pieces, level. Between two of them lie single leaves.
        self._firsts = array("q")
        self._places = array("q")
        self._levels = array("b")

    def append(self, hash_: bytes, level: int = 0) -> None:
        """Adds a piece behind the last one.

        Raises:
            ProofError: its hash has another length, or the tree does not end where such a piece can begin.
        """
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
        """Adds leaf hashes in order.

        Raises:
            ProofError: one has another length; none is added then.
        """
        added = list(hashes)
        if wrong := [hash_ for hash_ in added if len(hash_) != HASH_SIZE]:
            raise ProofError("HASH", f"a hash of a tree has {HASH_SIZE} bytes, got {len(wrong[0])}")
        self._hashes += b"".join(added)
        self.size += len(added)

    def between(self, first: int, end: int) -> Iterator[Subtree]:
        """Yields the pieces that tile [first, end).

        Raises:
            ProofError: code HASHES_GONE if a piece reaches beyond one of the two, SIZE if there are fewer leaves.
        """
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
        """Returns the root over the first ``size`` leaves, in memory that does not grow with them.

        Raises:
            ProofError: code HASHES_GONE if that size lies inside a piece, SIZE if there are fewer leaves.
        """
        frontier = Frontier()
        for piece in self.between(0, size):
            frontier.append(piece.hash, piece.level)
        return frontier.root()

    def node(self, level: int, index: int) -> bytes:
        """Returns the hash of a perfect subtree (`ledger.proofs.prover.Node`).

        Raises:
            ProofError: code HASHES_GONE if it lies inside a piece, NODE if the tree has none there.
        """
        first = index << level
        if not 0 <= first <= self.size - (1 << level):
            raise ProofError("NODE", f"a tree of {self.size} leaves has no perfect subtree {index} of {1 << level} leaves")
        frontier = Frontier()
        for piece in self.between(first, first + (1 << level)):
            frontier.append(piece.hash, piece.level)
        return frontier.root()

    def _end(self, above: int) -> int:
        return self._firsts[above] + (1 << self._levels[above])

    def _at(self, place: int) -> bytes:
        return bytes(self._hashes[place * HASH_SIZE : (place + 1) * HASH_SIZE])


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
