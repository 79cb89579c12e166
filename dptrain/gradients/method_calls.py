"""Sees the calls of one method of a module, and keeps watch over what was seen of it at the start of a run.

Of a table that is read by a method alone (:mod:`dptrain.gradients.shared_tables`), a gradient is found where that method runs,
and nowhere else. So the method must stay what the probes saw, and no other code may call the modules that hold the table.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dptrain.errors import UnsupportedModule
from dptrain.sandbox.spectrum import function_of

Reader = tuple[nn.Module, str]
"""A module and its method, empty for its forward."""


def nothing(*args: object) -> None:
    """Is done before or after a call that is watched alone."""


class MethodCalls:
    """Stands in for one method of a module; :meth:`detach` leaves no trace on it.

    Several may stand one over the other, of runs that are open at the same time. One that was copied with its module does
    nothing, and gives way.

    Args:
        taken: is told when it runs. begin, end: what is done before and after a call; ``end`` may return another output.
    """

    def __init__(
        self,
        module: nn.Module,
        method: str,
        taken: "TakenTables",
        begin: Callable[[nn.Module, tuple], None] = nothing,
        end: Callable[..., object | None] = nothing,
    ) -> None:
        self.module, self.method = module, method
        self.below: MethodCalls | None = None
        self.live = True
        self._attached = False
        self._taken = taken
        self._function = getattr(type(module), method)
        self._begin, self._end = begin, end

    def __getstate__(self) -> dict[str, object]:
        """A copy runs the method of its module, and nothing of a run goes with it."""
        return {"module": self.module, "method": self.method, "below": None, "live": False}

    def attach(self) -> None:
        below = standing_in(self.module, self.method)
        self.below = below if below is not None and below.live else None
        vars(self.module)[self.method] = self.call
        self._attached = True

    def detach(self) -> None:
        """Takes itself off the module; what a user put in its place since stays."""
        above = standing_in(self.module, self.method)
        self._attached = False
        if above is self and self.below is None:
            del vars(self.module)[self.method]
        elif above is self and self.below is not None:
            vars(self.module)[self.method] = self.below.call
        else:
            for standing in _all_below(above):
                if standing.below is self:
                    standing.below = self.below

    def require(self) -> None:
        """Raises UnsupportedModule, code METHOD_CHANGED, where a call would no longer run what it ran at the start.

        Guarantee: a microbatch in which this method is another, or is no longer seen, is refused, whoever is in it.
        """
        seen = not self._attached or self in _all_below(standing_in(self.module, self.method))
        if not seen or getattr(type(self.module), self.method) is not self._function:
            where = "its class" if seen else "the module itself"
            raise UnsupportedModule(
                "METHOD_CHANGED",
                f"{self.method} of a {type(self.module).__name__} was replaced on {where} since the start of the run, expected "
                "the method that the probes saw, by which the gradient of a table is found; put the other one there before "
                "prepare(), or take it off again",
            )

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if not self.live:
            return function_of(self.module, self.method)(self.module, *args, **kwargs)
        self._begin(self.module, args)
        run = partial(function_of(self.module, self.method), self.module) if self.below is None else self.below.call
        with self._taken.inside((self.module, self.method)):
            output = run(*args, **kwargs)
        changed = self._end(self.module, args, kwargs, output)
        return output if changed is None else changed


def standing_in(module: nn.Module, method: str) -> MethodCalls | None:
    """Returns what of this project stands in for a method of a module, the last that came."""
    found = getattr(vars(module).get(method), "__self__", None)
    return found if isinstance(found, MethodCalls) else None


def _all_below(standing: MethodCalls | None) -> Iterator[MethodCalls]:
    while standing is not None:
        yield standing
        standing = standing.below


class TakenTables:
    """Keeps watch over modules whose tensors are found where something else runs, their readers.

    Guarantee: while a microbatch is armed, a call of such a module is refused where none of its readers runs, and its gradient
    would be lost.

    Args:
        holders: the modules that hold the tensors, each with its readers.
        armed: whether a microbatch is under way whose gradients will be asked for.
    """

    def __init__(self, model: nn.Module, holders: Mapping[nn.Module, Collection[Reader]], armed: Callable[[], bool]) -> None:
        names = {id(module): name for name, module in model.named_modules()}
        self._holders = [(names.get(id(module), ""), module, frozenset(readers)) for module, readers in holders.items()]
        self._armed = armed
        self._running: dict[tuple[int, str], int] = {}
        self._live = True

    def __getstate__(self) -> dict[str, object]:
        """A copied model takes hooks along, which do nothing there."""
        return {"_live": False}

    def attach(self) -> Iterator[RemovableHandle]:
        forwards = {id(module): module for _, _, readers in self._holders for module, method in readers if not method}
        for module in forwards.values():
            yield module.register_forward_pre_hook(self._enters)
            yield module.register_forward_hook(self._leaves, always_call=True)
        for name, module, readers in self._holders:
            yield module.register_forward_pre_hook(partial(self._require, name, readers))

    @contextmanager
    def inside(self, reader: Reader) -> Iterator[None]:
        """Marks that a reader runs."""
        self._count(reader, 1)
        try:
            yield
        finally:
            self._count(reader, -1)

    def begin(self) -> None:
        """Forgets readers that were cut short, where a microbatch begins."""
        self._running.clear()

    def _count(self, reader: Reader, by: int) -> None:
        key = id(reader[0]), reader[1]
        self._running[key] = self._running.get(key, 0) + by

    def _enters(self, module: nn.Module, args: tuple) -> None:
        if self._live:
            self._count((module, ""), 1)

    def _leaves(self, module: nn.Module, args: tuple, output: object) -> None:
        if self._live:
            self._count((module, ""), -1)

    def _require(self, name: str, readers: frozenset[Reader], module: nn.Module, args: tuple) -> None:
        if not self._live or not self._armed() or not torch.is_grad_enabled():
            return
        if any(self._running.get((id(reader), method), 0) > 0 for reader, method in readers):
            return
        inside = sorted({f"{method or 'forward'} of {type(reader).__name__}" for reader, method in readers})
        raise UnsupportedModule(
            "TABLE_ELSEWHERE",
            f"module {name!r} ({type(module).__name__}) was called outside of {' and '.join(inside)}, where alone the gradient "
            "of its tensors is found; expected no other use of them: give the other use a module of its own, or freeze them",
        )
