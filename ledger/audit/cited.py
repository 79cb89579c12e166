"""Roots over the first leaves of an export, as RESUME and RELEASE leaves cite them: perhaps one per leaf, and of any size."""

from functools import lru_cache
from itertools import pairwise
from typing import Final

from ledger import layout
from ledger.audit.files import Leaves
from ledger.merkle import Frontier

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
        """Returns the root over the first ``size`` leaves.

        Raises:
            ExportChanged, ProofError: as `Leaves.root_at`.
        """
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
        """Leaf hashes of a tile, asked for in halves: a whole one is told by its root alone."""
        first, half = n * layout.TILE_WIDTH, layout.TILE_WIDTH // 2
        edges = [min(place, self._leaves.size) for place in (first, first + half, first + 2 * half)]
        return [piece.hash for low, high in pairwise(edges) for piece in self._leaves.between(low, high)]
