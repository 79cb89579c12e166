"""Says where the sums of a step are added up over ranks, and which coordinates get their noise where.

Each rank sums the contributions that were dealt to it. Before the release the sums of all ranks are exchanged once, so that
every coordinate has one owner: it adds up what the ranks have of it, in their order and in float64, and adds the noise, which
is addressed by the coordinate. Then every rank gets what was released. No rank ever has more than its own contributions before
their norms are known, so a clip factor waits for no other rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from dptrain.blocks.shards import like, local
from dptrain.blocks.stack import Tensor
from dptrain.parallel.ranks import Ranks
from dptrain.parallel.sharded import refuse_split

BUCKET: Final = 1 << 21
"""Numbers that are exchanged at a time, where sums of microbatches go to the ranks that keep them."""

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

    def gradient(self, parameter: nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        """Returns what was released for a parameter as its gradient lies: in its type, where its numbers are."""
        return value.to(parameter.dtype)

    def over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        """Returns sums over what this rank has of gradients as sums over all of them."""
        return sums


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
        own = self._exchange(totals, torch.float64 if wide else torch.float32)  # at once, also where no share is of this rank
        if not self._own.numel():
            self._own = own  # the first call is that for private sums; public ones are added to their release
        return self._pieces(own)

    def _pieces(self, own: torch.Tensor) -> Iterator[Share]:
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
        self._ranks.carry(partial(dist.all_to_all_single, theirs, mine))
        del mine
        return summed(theirs, width, size)


class Shards:
    """Keeps this rank's rows of the sums of a step, where every rank has a shard of each parameter (FSDP2).

    Sums of a microbatch are exchanged tensor by tensor, `BUCKET` numbers at a time, so that no rank holds those of the whole
    model. A `dptrain.clipping.fast.Sink`.
    """

    def __init__(self, ranks: Ranks, tensors: Sequence[Tensor]) -> None:
        self._ranks, self._size = ranks, ranks.size
        self._tensors = tensors
        self._each = [-(-tensor.shape[0] // ranks.size) * tensor.shape[1:].numel() for tensor in tensors]
        self._own: list[torch.Tensor | None] = [None] * len(tensors)
        self._waiting: list[tuple[int, torch.Tensor | None]] = []
        self._kind = torch.float64

    def begin(self, *, wide: bool) -> None:
        self._own = [None] * len(self._tensors)
        self._waiting.clear()
        self._kind = torch.float64 if wide else torch.float32

    def add(self, index: int, total: torch.Tensor | None) -> None:
        self._waiting.append((index, total))
        if sum(self._each[index] for index, _ in self._waiting) * self._size >= BUCKET:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        width = sum(self._each[index] for index, _ in self._waiting)
        mine = torch.zeros(self._size, width, dtype=self._kind, device=self._device(self._waiting[0][0]))
        place = 0
        for index, total in self._waiting:
            each = self._each[index]
            if total is not None:
                for rank, part in enumerate(total.view(-1).split(each) if each else ()):
                    mine[rank, place : place + part.numel()].copy_(part)
            place += each
        theirs = torch.empty_like(mine)
        self._ranks.carry(partial(dist.all_to_all_single, theirs, mine))
        del mine
        found, place = summed(theirs.view(-1), width, self._size), 0
        for index, _ in self._waiting:
            part = found[place : place + self._each[index]]
            kept = self._own[index]
            self._own[index] = part.clone() if kept is None else kept.add_(part)
            place += self._each[index]
        self._waiting.clear()

    def take(self) -> Iterator[torch.Tensor]:
        for index, each in enumerate(self._each):
            own, self._own[index] = self._own[index], None
            yield torch.zeros(each, dtype=torch.float64, device=self._device(index)) if own is None else own

    def _device(self, index: int) -> torch.device:
        return local(self._tensors[index].parameter).device


class Sharded(Placement):
    """Several processes with a shard of every parameter each (FSDP2): who has a row adds its noise, and keeps its gradient.

    Guarantee: as `Exchanged`; no rank gets the gradient of another one's rows.
    """

    def __init__(self, ranks: Ranks, tensors: Sequence[Tensor]) -> None:
        self._ranks = ranks
        self._tensors = tensors
        for tensor in tensors:
            if tensor.part is not None:
                raise refuse_split(tensor.name)

    def shares(self, totals: Iterator[torch.Tensor], *, wide: bool) -> Iterator[Share]:
        del wide  # `Shards` has sent them
        for lane, (tensor, total) in enumerate(zip(self._tensors, totals, strict=True)):
            offset = self._ranks.rank * total.numel()
            count = max(0, min(total.numel(), tensor.coordinates - offset))
            if count:
                yield Share(lane, total[:count], offset, tensor.coordinates)

    def released(self, share: Share) -> Iterator[tuple[int, torch.Tensor]]:
        yield share.lane, share.values.view(-1, *self._tensors[share.lane].shape[1:])

    def rest(self) -> Iterator[tuple[int, torch.Tensor]]:
        for lane, tensor in enumerate(self._tensors):
            if not local(tensor.parameter).numel():
                yield lane, local(tensor.parameter).detach().clone()

    def gradient(self, parameter: nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        return like(parameter, value.to(parameter.dtype).clone())

    def over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        self._ranks.carry(lambda: dist.all_reduce(sums))
        return sums


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
        for rank, part in enumerate(whole.split(width)):
            ranks.carry(partial(dist.broadcast, part, rank))
        return
    together = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    ranks.carry(lambda: together(whole, own))


def rounding(contributions: int, least_multiplier: float) -> float:
    """Returns how much a difference of sums may grow by rounding to float32, in the whitened norm.

    Each sum that is sent, of a rank or of one of its microbatches, is off by ``2^-24`` of its size, coordinate by coordinate.
    The sizes of all of them add up to ``n / z`` in the whitened norm at most, as that of every contribution is at most one over
    its multiplier; so it is in both worlds, however contributions are dealt there. What is sent is added in float64, which is
    exact to a billionth of that.

    Args:
        contributions: n, the most that a step draws. least_multiplier: z, the least that any of them is accounted at.
    """
    return 2.0 * UNIT * (contributions + 1) / least_multiplier
