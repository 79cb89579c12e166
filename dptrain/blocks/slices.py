"""Parts of tensors: how the coordinates of a parameter fall to heads or experts, and slices that are masked on their own.

A *division* says, along one dimension of a tensor, which heads (or experts) own which coordinates. A *part* is a set of
indices along that dimension: the resolver puts those together that the same classes may touch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from attest.schedule.stack import Kind

ROUTER = frozenset({-1})
"""Owners of what decides between experts: no mask of experts contains it, so only classes without one are permitted."""


@dataclass(frozen=True)
class Run:
    """Indices ``start`` to ``stop`` - 1, which a class may touch only if its mask has all ``owners``."""

    owners: frozenset[int]
    start: int
    stop: int


@dataclass(frozen=True)
class Division:
    """The owners of the coordinates of one tensor.

    Attributes:
        kind: what the owners are. count: how many of them there are in this attention, or in this block of experts.
        dim: the dimension that the runs cover without gap or overlap; None for a tensor that is owned as a whole, which then
            has one run.
    """

    kind: Kind
    count: int
    dim: int | None
    runs: tuple[Run, ...]

    @property
    def owners(self) -> frozenset[int]:
        """All owners of any coordinate."""
        return frozenset().union(*(run.owners for run in self.runs))

    def whole(self) -> "Division":
        """The same tensor, not to be split: it needs all its owners."""
        return Division(self.kind, self.count, None, (Run(self.owners, 0, 0),))


def owned(run: Run) -> tuple[int, int]:
    """Returns the owners of a run, first and behind the last: those of heads and experts are neighbours."""
    return min(run.owners), max(run.owners) + 1


def shared(kind: Kind, count: int) -> Division:
    """A tensor that all owners use together."""
    return Division(kind, count, None, (Run(frozenset(range(count)), 0, 0),))


def divided(kind: Kind, count: int, dim: int, owners: Iterable[tuple[frozenset[int], int]]) -> Division:
    """A tensor whose indices along ``dim`` belong, in order, to these owners: pairs of owners and number of indices."""
    runs: list[Run] = []
    at = 0
    for own, length in owners:
        if runs and runs[-1].owners == own:
            runs[-1] = Run(own, runs[-1].start, at + length)
        else:
            runs.append(Run(own, at, at + length))
        at += length
    return Division(kind, count, dim, tuple(runs))


@dataclass(frozen=True)
class Part:
    """A slice of a tensor: along ``dim`` the indices of ``ranges``, which ascend and do not touch."""

    dim: int
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, dim: int, runs: Sequence[Run]) -> "Part":
        merged: list[tuple[int, int]] = []
        for run in sorted(runs, key=lambda run: run.start):
            if merged and merged[-1][1] == run.start:
                merged[-1] = (merged[-1][0], run.stop)
            else:
                merged.append((run.start, run.stop))
        return cls(dim, tuple(merged))

    @property
    def length(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def shape(self, whole: torch.Size) -> torch.Size:
        """Shape of the part of a tensor of shape ``whole``."""
        return torch.Size((*whole[: self.dim], self.length, *whole[self.dim + 1 :]))

    def select(self, value: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """The part of a value; a view where the part is one range. ``dim``: where the value has this dimension."""
        at = self.dim if dim is None else dim
        pieces = self.pieces(value, at)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, at)

    def pieces(self, value: torch.Tensor, dim: int | None = None) -> list[torch.Tensor]:
        """The same as views, one per range."""
        at = self.dim if dim is None else dim
        return [value.narrow(at, start, stop - start) for start, stop in self.ranges]

    def write(self, target: torch.Tensor, part: torch.Tensor) -> None:
        """Puts a part back into a tensor of the whole shape, in place; every other coordinate stays."""
        at = 0
        for start, stop in self.ranges:
            target.narrow(self.dim, start, stop - start).copy_(part.narrow(self.dim, at, stop - start))
            at += stop - start

    def __str__(self) -> str:
        shown = ",".join(f"{start}:{stop}" for start, stop in self.ranges)
        return "[" + ":, " * self.dim + shown + "]"
