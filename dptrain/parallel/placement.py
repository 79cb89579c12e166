"""Says where the sums of a step are added up over ranks, and which coordinates get their noise where.

Each rank sums the contributions that were dealt to it. Before the release the sums of all ranks are exchanged once, so that
every coordinate has one owner: it adds up what the ranks have of it, in their order and in float64, and adds the noise, which
is addressed by the coordinate. Then every rank gets what was released. No rank ever has more than its own contributions before
their norms are known, so a clip factor waits for no other rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
import torch.distributed as dist

from dptrain.blocks.stack import Tensor
from dptrain.parallel.ranks import Ranks

UNIT: Final = 2.0**-24
"""Relative error of a number that is rounded to float32."""


@dataclass(frozen=True, slots=True)
class Share:
    """Part of the sum of one tensor, where it gets its noise.

    Attributes:
        lane: index of the tensor in the schedule.
        values: float64, contiguous; the release is written into it.
        offset: number of its first coordinate in the tensor, flat. size: coordinates of the tensor.
    """

    lane: int
    values: torch.Tensor
    offset: int
    size: int


class Placement:
    """One process: every tensor is its own share, whole."""

    def shares(self, totals: Iterator[torch.Tensor], *, wide: bool) -> Iterator[Share]:
        """Yields the shares of this rank, from the sums of all ranks.

        Args:
            totals: sums of this rank, float64, in the order of the schedule. wide: send them as float64, not as float32.
        """
        del wide
        for lane, total in enumerate(totals):
            yield Share(lane, total, 0, total.numel())

    def released(self, share: Share) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the gradient that is there once this share was released, by its lane, if it is."""
        yield share.lane, share.values

    def rest(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the gradients that are there once all shares were released, at every rank."""
        yield from ()


class Exchanged(Placement):
    """Several processes with the same parameters: coordinates are dealt to ranks, in one run each, over all tensors.

    Guarantee: a coordinate has one owner, who alone adds its noise; every rank gets the same bits.

    Args:
        tensors: of the schedule, in its order. group: of the tensors; default: that of the program.
    """

    def __init__(self, ranks: Ranks, tensors: Sequence[Tensor]) -> None:
        self._ranks = ranks
        self._shapes = [tensor.shape for tensor in tensors]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._starts = [0, *accumulate(self._sizes)]
        self._width = -(-self._starts[-1] // ranks.size)
        kinds = {tensor.parameter.dtype for tensor in tensors}
        self._gathered = kinds.pop() if len(kinds) == 1 else torch.float64
        self._device = tensors[0].parameter.device if tensors else torch.device("cpu")
        self._own = torch.empty(0)

    def shares(self, totals: Iterator[torch.Tensor], *, wide: bool) -> Iterator[Share]:
        own = self._exchange(totals, torch.float64 if wide else torch.float32)
        if not self._own.numel():
            self._own = own  # the first call is that for private sums; public ones are added to their release
        begin = self._ranks.rank * self._width
        for lane, (start, size) in enumerate(zip(self._starts, self._sizes, strict=False)):
            first, end = max(start, begin), min(start + size, begin + self._width)
            if first < end:
                yield Share(lane, own[first - begin : end - begin], first - start, size)

    def released(self, share: Share) -> Iterator[tuple[int, torch.Tensor]]:
        yield from ()

    def rest(self) -> Iterator[tuple[int, torch.Tensor]]:
        own, self._own = self._own.to(self._gathered), torch.empty(0)
        whole = torch.empty(self._width * self._ranks.size, dtype=own.dtype, device=own.device)
        gather(whole, own, self._ranks)
        for lane, (start, shape) in enumerate(zip(self._starts, self._shapes, strict=False)):
            yield lane, whole[start : start + self._sizes[lane]].view(shape).clone()

    def _exchange(self, totals: Iterator[torch.Tensor], kind: torch.dtype) -> torch.Tensor:
        """Returns the sums over ranks of the coordinates that this rank owns, float64."""
        width, size = self._width, self._ranks.size
        mine = torch.zeros(width * size, dtype=kind, device=self._device)
        for start, total in zip(self._starts, totals, strict=False):
            mine[start : start + total.numel()].copy_(total.view(-1))
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine)
        del mine
        return summed(theirs, width, size)


def summed(pieces: torch.Tensor, width: int, size: int) -> torch.Tensor:
    """Returns the sum of ``size`` pieces of ``width`` numbers, in their order, float64."""
    own = pieces[:width].to(torch.float64)
    for rank in range(1, size):
        own += pieces[rank * width : (rank + 1) * width]
    return own


def gather(whole: torch.Tensor, own: torch.Tensor, ranks: Ranks) -> None:
    """Fills ``whole`` with what every rank has, in their order, each ``own.numel()`` numbers."""
    if dist.get_backend() == "gloo" and whole.device.type == "cpu":  # whose gathering copies more than it sends
        width = own.numel()
        whole[ranks.rank * width : (ranks.rank + 1) * width].copy_(own)
        for rank in range(ranks.size):
            dist.broadcast(whole[rank * width : (rank + 1) * width], rank)
        return
    together = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    together(whole, own)


def rounding(contributions: int, least_multiplier: float) -> float:
    """Returns how much a difference of sums may grow by their one rounding to float32, in the whitened norm.

    Two sums of one rank that differ by one contribution are each off by ``2^-24`` of their size, coordinate by coordinate, and
    their whitened norms are at most ``n / z``: that of every contribution is at most one over its multiplier. Sums of ranks are
    added in float64, which is exact to a billionth of that.

    Args:
        contributions: n, the most that a step draws. least_multiplier: z, the least that any of them is accounted at.
    """
    return 2.0 * UNIT * (contributions + 1) / least_multiplier
