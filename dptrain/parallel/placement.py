"""Says where the sums of a step are added up over ranks, and which coordinates get their noise where.

Each rank sums the contributions that were dealt to it. Before the release the sums of all ranks are exchanged once, so that
every coordinate has one owner: it adds up what the ranks have of it, in their order and in float64, and adds the noise, which
is addressed by the coordinate. Then every rank gets what was released. No rank ever has more than its own contributions before
their norms are known, so a clip factor waits for no other rank.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from dptrain.blocks.shards import like, local
from dptrain.blocks.stack import Tensor
from dptrain.parallel.ranks import Ranks
from dptrain.parallel.sharded import refuse_split

BUCKET: Final = 1 << 21
"""Coordinates that are exchanged at a time: 8 MiB in float32, which the allocator keeps for the next bucket and step."""

AHEAD: Final = 1
"""Buckets that are on their way while the noise of another is drawn."""

CACHED: Final = 1 << 17
"""Numbers that are turned into float64 and added while they are in the cache of a core."""


@dataclass(frozen=True, slots=True)
class Share:
    """Part of the sum of one tensor, where it gets its noise.

    Attributes:
        lane: index of the tensor in the schedule.
        values: float64, contiguous; the release is written into it.
        offset: number of its first coordinate in the tensor, flat. size: coordinates of the tensor.
        public: sums of public contributions for the same coordinates, where there are any.
    """

    lane: int
    values: torch.Tensor
    offset: int
    size: int
    public: torch.Tensor | None = None


class Placement:
    """One process: every tensor is its own share, whole."""

    def shares(
        self, totals: Iterator[torch.Tensor], *, wide: bool, public: Iterator[torch.Tensor] | None = None
    ) -> Iterator[Share]:
        """Yields the shares of this rank, from the sums of all ranks; each is released before the next one is asked for.

        Args:
            totals: sums of this rank, float64, in the order of the schedule. wide: send them as float64, not as float32.
            public: likewise, of public contributions.
        """
        del wide
        for lane, total in enumerate(totals):
            yield Share(lane, total, 0, total.numel(), None if public is None else next(public))

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

    def share(self, values: Sequence[torch.Tensor]) -> None:
        """Makes tensors at every rank what they are at the first, to the bit."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Coordinates of one tensor that have one owner: ``count`` from the ``first`` on, flat."""

    owner: int
    lane: int
    first: int
    count: int


class Bucket:
    """Coordinates whose sums go to their owners together: of all tensors in a row, a run of them for each rank.

    Attributes:
        pieces: in the order of coordinates, which is that of ranks.
        lengths: coordinates by owner. width: the most that one owns.
    """

    def __init__(self, pieces: list[Piece], ranks: int) -> None:
        self.pieces = pieces
        self.lengths = [sum(piece.count for piece in pieces if piece.owner == rank) for rank in range(ranks)]
        self.width = max(self.lengths)


def buckets(sizes: Sequence[int], ranks: int, most: int) -> list[Bucket]:
    """Deals the coordinates of tensors of these sizes to ranks, ``most`` at a time, each time as evenly as they go."""
    pieces: list[list[Piece]] = []
    begin, total = 0, sum(sizes)
    for lane, size in enumerate(sizes):
        place = begin
        while place < begin + size:
            number, within = divmod(place, most)
            width = -(-min(most, total - number * most) // ranks)
            owner = within // width
            end = min(begin + size, number * most + min(most, (owner + 1) * width))
            if number == len(pieces):
                pieces.append([])
            pieces[number].append(Piece(owner, lane, place - begin, end - place))
            place = end
        begin += size
    return [Bucket(own, ranks) for own in pieces]


class Exchanged(Placement):
    """Several processes with the same parameters: coordinates are dealt to ranks, bucket by bucket over all tensors.

    While the noise of one bucket is drawn, sums of the next one are on their way, and what was released of the last one.

    Guarantee: a coordinate has one owner, who alone adds its noise; every rank gets the same bits.

    Args:
        tensors: of the schedule, in its order. bucket: coordinates that are exchanged at a time; default: `BUCKET`.
    """

    def __init__(self, ranks: Ranks, tensors: Sequence[Tensor], bucket: int | None = None) -> None:
        self._ranks = ranks
        self._shapes = [tensor.shape for tensor in tensors]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._buckets = buckets(self._sizes, ranks.size, bucket or BUCKET)
        kinds = {tensor.parameter.dtype for tensor in tensors}
        self._gathered = kinds.pop() if len(kinds) == 1 else torch.float64
        self._device = tensors[0].parameter.device if tensors else torch.device("cpu")
        self._wholes: list[tuple[torch.Tensor, list[Any]]] = []

    def shares(
        self, totals: Iterator[torch.Tensor], *, wide: bool, public: Iterator[torch.Tensor] | None = None
    ) -> Iterator[Share]:
        kind = torch.float64 if wide else torch.float32
        sums = [Parts(totals)] if public is None else [Parts(totals), Parts(public)]
        under_way: deque[tuple[Bucket, list[Sent]]] = deque()
        self._wholes.clear()
        for bucket in self._buckets:
            under_way.append((bucket, [self._send(bucket, parts, kind) for parts in sums]))
            if len(under_way) > AHEAD:
                yield from self._own(*under_way.popleft())
        while under_way:
            yield from self._own(*under_way.popleft())
        for parts in sums:
            parts.end()

    def _send(self, bucket: Bucket, parts: "Parts", kind: torch.dtype) -> "Sent":
        """Begins to send what others own of a bucket; what this rank owns stays where it is."""
        others = [0 if rank == self._ranks.rank else length for rank, length in enumerate(bucket.lengths)]
        mine = torch.empty(sum(others), dtype=kind, device=self._device)
        own, place = [], 0
        for piece in bucket.pieces:
            part = parts.of(piece)
            if piece.owner == self._ranks.rank:
                own.append(part)
            else:
                mine[place : place + piece.count].copy_(part)
                place += piece.count
        length = bucket.lengths[self._ranks.rank]
        expected = [0 if rank == self._ranks.rank else length for rank in range(self._ranks.size)]
        theirs = torch.empty(sum(expected), dtype=kind, device=self._device)
        work = self._ranks.carry(partial(dist.all_to_all_single, theirs, mine, expected, others, async_op=True))
        return Sent(own, theirs, work)

    def _own(self, bucket: Bucket, sent: list["Sent"]) -> Iterator[Share]:
        """Yields the pieces of a bucket that this rank owns, and hands out what became of them."""
        for one in sent:
            self._ranks.carry(one.work.wait)
            one.add()
        pieces = [piece for piece in bucket.pieces if piece.owner == self._ranks.rank]
        private, public = sent[0].own, sent[1].own if len(sent) > 1 else [None] * len(pieces)
        for piece, values, unclipped in zip(pieces, private, public, strict=True):
            yield Share(piece.lane, values, piece.first, self._sizes[piece.lane], unclipped)
        own = torch.zeros(bucket.width, dtype=self._gathered, device=self._device)  # zeros behind a shorter run, not old memory
        for place, values in zip(accumulate((piece.count for piece in pieces), initial=0), private, strict=False):
            own[place : place + values.numel()].copy_(values)
        self._wholes.append(gather(own, self._ranks))

    def released(self, share: Share) -> Iterator[tuple[int, torch.Tensor]]:
        yield from ()

    def rest(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields gradients; those of tensors that lie in one bucket share its memory, as in the buckets of the wrapper."""
        found: list[list[torch.Tensor]] = [[] for _ in self._sizes]
        for bucket, (whole, works) in zip(self._buckets, self._wholes, strict=True):
            for work in works:
                self._ranks.carry(work.wait)
            place = 0  # runs of ranks are equally long, but for the last ones, so that all lie in the order of coordinates
            for lane, pieces in groupby(bucket.pieces, attrgetter("lane")):
                count = sum(piece.count for piece in pieces)
                found[lane].append(whole[place : place + count])
                place += count
        self._wholes.clear()
        for lane, (shape, parts) in enumerate(zip(self._shapes, found, strict=True)):
            flat = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else self._empty()
            yield lane, flat.view(shape)

    def share(self, values: Sequence[torch.Tensor]) -> None:
        if values:
            flat = torch.cat([value.detach().flatten() for value in values])
            self._ranks.carry(lambda: dist.broadcast(flat, 0))
            for value, part in zip(values, flat.split([value.numel() for value in values]), strict=True):
                value.detach().copy_(part.view_as(value))

    def _empty(self) -> torch.Tensor:
        return torch.empty(0, dtype=self._gathered, device=self._device)


class Parts:
    """Cuts sums as they come into what pieces are made of, and lets go of each behind its last piece.

    Args:
        totals: contiguous, in the order of the schedule.
    """

    def __init__(self, totals: Iterator[torch.Tensor]) -> None:
        self._totals = enumerate(totals)
        self._lane, self._flat = -1, torch.empty(0)

    def of(self, piece: Piece) -> torch.Tensor:
        """Returns the coordinates of a piece, flat; pieces are asked for in their order."""
        while self._lane < piece.lane:
            self._lane, total = next(self._totals)
            self._flat = total.view(-1)
        return self._flat[piece.first : piece.first + piece.count]

    def end(self) -> None:
        """Takes the sums that no piece is of, as they have no coordinates."""
        self._flat = torch.empty(0)
        deque(self._totals, maxlen=0)


@dataclass(frozen=True, slots=True)
class Sent:
    """Sums of a bucket on their way.

    Attributes:
        own: what this rank has of what it owns, float64. theirs: what other ranks have of it, one after the other.
        work: the exchange.
    """

    own: list[torch.Tensor]
    theirs: torch.Tensor
    work: Any

    def add(self) -> None:
        """Adds what the others have to what this rank has, in their order and in float64."""
        place = 0
        while place < self.theirs.numel():
            for values in self.own:
                part = self.theirs[place : place + values.numel()]
                at_a_time = CACHED if part.device.type == "cpu" else max(1, part.numel())
                for into, sent in zip(values.split(at_a_time), part.split(at_a_time), strict=True):
                    into.add_(sent.to(torch.float64))  # on a processor four times as fast as one loop over two types
                place += values.numel()


class Shards:
    """Keeps this rank's rows of the sums of a step, where every rank has a shard of each parameter (FSDP2).

    Sums of a microbatch are exchanged tensor by tensor, `BUCKET` numbers at a time, so that no rank holds those of the whole
    model. A `dptrain.clipping.fast.Sink`.

    Attributes:
        narrow: whether sums over microbatches are kept as float32, in steps whose sums are sent so.
    """

    def __init__(self, ranks: Ranks, tensors: Sequence[Tensor]) -> None:
        self._ranks, self._size = ranks, ranks.size
        self._tensors = tensors
        self._each = [-(-tensor.shape[0] // ranks.size) * tensor.shape[1:].numel() for tensor in tensors]
        self._own: list[torch.Tensor | None] = [None] * len(tensors)
        self._waiting: list[tuple[int, torch.Tensor | None]] = []
        self.narrow = False
        self._sent = self._kept = torch.float64

    def begin(self, *, wide: bool) -> None:
        self._own = [None] * len(self._tensors)
        self._waiting.clear()
        self._sent = torch.float64 if wide else torch.float32
        self._kept = torch.float32 if self.narrow and not wide else torch.float64

    def add(self, index: int, total: torch.Tensor | None) -> None:
        self._waiting.append((index, total))
        if sum(self._each[index] for index, _ in self._waiting) * self._size >= BUCKET:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        width = sum(self._each[index] for index, _ in self._waiting)
        mine = torch.zeros(self._size, width, dtype=self._sent, device=self._device(self._waiting[0][0]))
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
            self._own[index] = part.to(self._kept, copy=True) if kept is None else kept.add_(part)
            place += self._each[index]
        self._waiting.clear()

    def take(self) -> Iterator[torch.Tensor]:
        for index in range(len(self._tensors)):
            yield self.take_one(index)

    def take_one(self, index: int) -> torch.Tensor:
        own, self._own[index] = self._own[index], None
        if own is None:
            return torch.zeros(self._each[index], dtype=self._kept, device=self._device(index))
        return own

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

    def shares(
        self, totals: Iterator[torch.Tensor], *, wide: bool, public: Iterator[torch.Tensor] | None = None
    ) -> Iterator[Share]:
        del wide  # `Shards` has sent them
        for lane, (tensor, total) in enumerate(zip(self._tensors, totals, strict=True)):
            unclipped = None if public is None else next(public)
            offset = self._ranks.rank * total.numel()
            count = max(0, min(total.numel(), tensor.coordinates - offset))
            if count:
                added = None if unclipped is None else unclipped[:count]
                yield Share(lane, total[:count].to(torch.float64), offset, tensor.coordinates, added)

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


def gather(own: torch.Tensor, ranks: Ranks) -> tuple[torch.Tensor, list[Any]]:
    """Begins to gather what every rank has, each ``own.numel()`` numbers; returns them in the order of ranks, and the work."""
    width = own.numel()
    whole = torch.empty(width * ranks.size, dtype=own.dtype, device=own.device)
    if dist.get_backend() == "gloo" and whole.device.type == "cpu":  # whose gathering copies more than it sends
        parts = list(whole.split(width))
        parts[ranks.rank].copy_(own)
        return whole, [ranks.carry(partial(dist.broadcast, part, rank, async_op=True)) for rank, part in enumerate(parts)]
    together = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return whole, [ranks.carry(partial(together, whole, own, async_op=True))]
