"""One private microbatch: whose rows it has, what its forward has asked for so far, and which loop took it."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from dptrain.sandbox.addresses import Numbers, owner_tag, place_tag
from dptrain.sandbox.dealt import Picked
from dptrain.sandbox.draws import Request
from dptrain.sandbox.learnt import Layout, Place

_FIRST_SEED = 0x6474_0000_0000_0000
"""Seeds of torch's generator from here on say where in the program of a pass its next draw stands."""

_PASSES = 1 << 20
_ENTRIES = 1 << 24

CALL_IMPL = nn.Module._call_impl.__code__
"""The code that runs in every frame of torch that calls a module."""


@dataclass(frozen=True)
class Draw:
    """One draw of a pass: its address, what was asked for, and where rows lie in it. The numbers are made when asked for."""

    place: Place
    request: Request
    layout: Layout
    owners: tuple[bytes, ...]
    """A tag per row; for a draw that everybody shares the one of everybody."""
    numbers: Numbers
    given: torch.Tensor | None = None
    """The numbers themselves, where a graph takes them as an input."""

    @property
    def kind(self) -> str:
        return self.request.kind

    @property
    def parameters(self) -> tuple[float, ...]:
        return self.request.parameters

    def values(self) -> torch.Tensor:
        """All numbers of the draw, in the shape asked for."""
        if self.given is not None:
            return self.given
        shape = self.request.shape
        if self.layout.dim is None:
            return self._made(self.owners, shape)[0]
        return _joined(self._made(self.owners, self.layout.row_shape(shape)), self.layout.dim, shape)

    def of_rows(self, start: int, count: int) -> torch.Tensor:
        """The numbers of some rows, in the shape that the draw has for so many."""
        shape, dim = self.request.shape, self.layout.dim
        if dim is None:
            return self.values()
        fewer = torch.Size((*shape[:dim], count * self.layout.each, *shape[dim + 1 :]))
        if self.given is not None:
            return self.given.narrow(dim, start * self.layout.each, count * self.layout.each)
        return _joined(self._made(self.owners[start : start + count], self.layout.row_shape(shape)), dim, fewer)

    def by_row(self) -> torch.Tensor | None:
        """The numbers with the row in front and then the shape that the draw has for one row; None if all share them."""
        dim, shape = self.layout.dim, self.request.shape
        if dim is None:
            return None
        row = self.layout.row_shape(shape)
        if self.given is None:
            return self._made(self.owners, row)
        apart = self.given.unflatten(dim, (len(self.owners), self.layout.each))
        return apart.movedim(dim, 0)

    def _made(self, owners: Sequence[bytes], shape: torch.Size) -> torch.Tensor:
        asked = self.request
        whole = self.layout.whole(shape)
        made = self.numbers.values(
            asked.kind, asked.parameters, asked.dtype, owners, place_tag(*self.place), whole.numel(), asked.device
        ).view(len(owners), *whole)
        return made if whole == shape else made[(slice(None), *map(slice, shape))]


def _joined(rows: torch.Tensor, dim: int, shape: torch.Size) -> torch.Tensor:
    return rows.reshape(shape) if dim == 0 else rows.movedim(0, dim).reshape(shape)


@dataclass(frozen=True)
class Read:
    """One truth that the forward read off a tensor, and the answer that it got."""

    place: Place
    answer: bool


Entry = Draw | Read

Given = Callable[[Place, Request], torch.Tensor]
"""Added to the numbers that are asked for, where these are the inputs of a graph."""


@dataclass(eq=False)
class Pass:
    """One private microbatch: whose rows it has, and what its forward has asked for so far.

    Attributes:
        step: of the run. names: of every row, whose it is: descriptor and example. learning: whether layouts are being learnt.
        given: by place, numbers that a graph takes as inputs. forced: False in the probes, where truths are only noted.
    """

    number: int
    step: int
    names: tuple[bytes, ...]
    learning: bool = False
    probing: bool = False
    given: "Given | None" = None
    log: list[Entry] = field(default_factory=list)
    bad: torch.Tensor | None = None
    """Rows, bool, whose contribution counts as zero whatever comes out."""
    outside: list[torch.Tensor] = field(default_factory=list)
    """Leaves of the graph that are none of the model's."""
    counts: dict[str, int] = field(default_factory=dict)
    """The draws, marked indices and truths of each module so far."""
    tainted: WeakTensorKeyDictionary | None = None
    picked: Picked | None = None
    """What was picked by masks, in the probes."""
    _owners: tuple[bytes, ...] | None = None

    @property
    def rows(self) -> int:
        return len(self.names)

    @property
    def owners(self) -> tuple[bytes, ...]:
        """Tags of the rows."""
        if self._owners is None:
            self._owners = tuple(owner_tag(self.step, name) for name in self.names)
        return self._owners

    @property
    def seed(self) -> int:
        """Seed of torch's generator at the start of the pass."""
        return _FIRST_SEED + (self.number % _PASSES) * _ENTRIES

    def mark(self, bad: torch.Tensor, layout: Layout) -> None:
        """Marks the rows of an index that is out of range somewhere."""
        if layout.dim is None:
            return
        found = bad.movedim(layout.dim, 0).reshape(self.rows, -1).any(1)
        self.bad = found if self.bad is None else self.bad | found


@dataclass(frozen=True)
class Loop:
    """The loop that took a microbatch: its frame by identity, and its thread."""

    frame: int
    thread: int

    @classmethod
    def around(cls, code: CodeType) -> "Loop | None":
        """The loop that iterates a generator of this code: the innermost frame around it that is no generator itself."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        frame = frame.f_back if frame is not None else None
        while frame is not None and frame.f_code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR):
            frame = frame.f_back
        return None if frame is None else cls(id(frame), threading.get_ident())

    def runs(self, paths: Mapping[int, str]) -> bool:
        """Tell if the running code was called from the loop, or from a module of the model; other threads are autograd's."""
        if threading.get_ident() != self.thread:
            return True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if id(frame) == self.frame or (frame.f_code is CALL_IMPL and id(frame.f_locals["self"]) in paths):
                return True
            frame = frame.f_back
        return False
