"""Another run of a module that draws the random numbers of its first run again, for one contribution or vectorised over rows.

The numbers are not kept: every draw has an address (:mod:`dptrain.sandbox`), and they are made once more.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dptrain.sandbox import Draw, Entry, Read
from dptrain.sandbox.draws import UnknownDraw, draws, request
from dptrain.sandbox.modes import READS


class Unmatched(RuntimeError):
    """Raised where the draws of the forward do not fit those that another run asks for."""


Fit = Callable[[Draw, torch.Size], torch.Tensor]
"""A draw of the first run and the shape that another run asks for, to the numbers."""


class Replay(TorchDispatchMode):
    """Gives every draw of another run the numbers of the first, or raises :class:`Unmatched`; see :func:`rows_of`.

    Truths that the first run read off tensors are told again as well.
    """

    def __init__(self, entries: Sequence[Entry], fit: Fit) -> None:
        super().__init__()
        self._entries = deque(entries)
        self._fit = fit

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is None and any(isinstance(left, Draw) for left in self._entries):
            raise Unmatched("it drew fewer random numbers than the first time")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in READS and (func is torch.ops.aten.equal.default or args[0].dtype == torch.bool):
            if self._entries and isinstance(self._entries[0], Read):
                return self._entries.popleft().answer
            return func(*args, **kwargs)  # a truth that the sandbox tells as it is
        if not draws(func, args, kwargs):
            return func(*args, **kwargs)
        try:
            asked, answer = request(func, args, kwargs)
        except UnknownDraw as error:
            raise Unmatched(str(error)) from error
        entry = self._entries.popleft() if self._entries else None
        if not isinstance(entry, Draw) or (entry.kind, entry.parameters) != (asked.kind, asked.parameters):
            raise Unmatched(f"it asked for other random numbers than the first time ({func})")
        return answer(self._fit(entry, asked.shape))

def rows_of(start: int, examples: int, rows: int) -> Fit:
    """The numbers of ``examples`` rows from ``start`` of ``rows``; all of them of a draw that everybody shares."""

    def fit(draw: Draw, shape: torch.Size) -> torch.Tensor:
        value = draw.of_rows(start, examples)
        if value.shape != shape:
            raise Unmatched(f"random numbers of shape {tuple(value.shape)} where it asked for {tuple(shape)}")
        return value

    return fit


def every_row(rows: int) -> Fit:
    """Draws under vmap over ``rows`` examples: the shape asked for has them in front, and then what one example has."""

    def fit(draw: Draw, shape: torch.Size) -> torch.Tensor:
        value = draw.by_row()
        if value is None:
            value = draw.values().expand(rows, *draw.request.shape)
        if value.shape != shape:
            raise Unmatched(f"random numbers of shape {tuple(value.shape)} where it asked for {tuple(shape)}")
        return value

    return fit
