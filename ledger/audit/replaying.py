"""Replays an export's leaves, stand-ins of pruned ones included, with the roots that they cite."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final

from ledger import layout
from ledger.audit.files import Leaves
from ledger.errors import LeafRefused
from ledger.layout import TILE_WIDTH
from ledger.leaves import Header, Leaf, decode_leaf
from ledger.merkle import Frontier
from ledger.retention import RetainedReplay, is_stand_in, named_by_withdrawals

KEPT_TILES: Final = 64
"""Bundles of which the leaf hashes are kept: some megabytes."""


class Roots:
    """Computes roots by size; each costs what lies in the last tile, whatever lies before it."""

    def __init__(self, leaves: Leaves) -> None:
        """Takes authenticated leaves."""
        self._leaves = leaves
        self._tiles = [Frontier()]  # over the first tiles: none, one, two ...
        self._hashes = lru_cache(KEPT_TILES)(self._of_tile)

    def at(self, size: int) -> bytes:
        """Returns the root over the first ``size`` leaves. Raises ExportChanged, ProofError: as `Leaves.root_at`."""
        if self._leaves.export.nodes is not None:  # some tiles are in one kept node together
            return self._leaves.root_at(size)
        whole, rest = divmod(size, layout.TILE_WIDTH)
        while len(self._tiles) <= whole:
            frontier = self._tiles[-1].copy()
            first = frontier.size
            for piece in self._leaves.between(first, first + layout.TILE_WIDTH):
                frontier.append(piece.hash, piece.level)
            self._tiles.append(frontier)
        found = self._tiles[whole].copy()
        if rest:
            found.extend(self._hashes(whole)[:rest])
        return found.root()

    def _of_tile(self, n: int) -> list[bytes]:
        """Returns leaf hashes of a tile, asked for in halves: a whole one is told by its root alone."""
        first, half = n * layout.TILE_WIDTH, layout.TILE_WIDTH // 2
        edges = [min(place, self._leaves.size) for place in (first, first + half, first + 2 * half)]
        return [piece.hash for low, high in pairwise(edges) for piece in self._leaves.between(low, high)]


def begin(leaves: Leaves, *, recompute: bool = True) -> RetainedReplay:
    """Returns a replay behind leaf 0 of these.

    Recorded epsilons are computed again unless an audit did that before.

    Raises:
        LeafRefused: code HEADER, the first leaf is none; or a WITHDRAW leaf cannot be read.
    """
    header = decode_leaf(next(iter(leaves)))
    if not isinstance(header, Header):
        raise LeafRefused("HEADER", "the first leaf is not a header", seq=0)
    names = named_by_withdrawals(leaves) if leaves.retained else {}
    run = RetainedReplay(header, Roots(leaves).at, recompute=recompute, names=names)
    run.tally.pieces = leaves.between
    return run


def lookup(leaves: Leaves) -> Callable[[int], Leaf | None]:
    """Returns a function that gives the leaf at a position, None where its body was pruned; it holds one bundle.

    Raises, when it is called:
        LeafRefused, ExportChanged: the leaf cannot be read.
    """
    held: dict[int, list[bytes]] = {}

    def at(seq: int) -> Leaf | None:
        n, within = divmod(seq, TILE_WIDTH)
        if n not in held:
            held.clear()
            held[n] = leaves.tile(n)
        data = held[n][within]
        return None if seq < leaves.retained and is_stand_in(data) else decode_leaf(data)

    return at


def follow(run: RetainedReplay, leaves: Leaves, end: int | None = None) -> Iterator[tuple[Leaf, list[LeafRefused]]]:
    """Applies the leaves behind those that the run has seen, up to `end`; yields each, or what means it where it was pruned,
    with what contradicts the leaves before it. Raises LeafRefused: a leaf cannot be read, so that nothing behind it can be
    judged; ExportChanged, ProofError: roots cannot be made."""
    for data in islice(leaves, run.size, end):
        if run.size < leaves.retained and is_stand_in(data):
            yield run.stand_in(data)
        else:
            leaf = decode_leaf(data)
            yield leaf, run.apply(leaf)
