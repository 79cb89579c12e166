"""Keeps the inputs of a module's call as autograd keeps them, and starts graphs where nothing trainable came before."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointFunction

from dptrain.gradients.registry import Call
from dptrain.sandbox import Entry


class _Keep(torch.autograd.Function):
    """Keeps values the way autograd keeps what a backward pass needs: a checkpoint may drop them and compute them again, and
    a value that is changed in place afterwards is an error, not a wrong gradient. Nothing flows through it."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, anchor: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*values)
        return anchor.new_zeros(())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> None:
        raise AssertionError("nothing is computed from what _Keep returns")


def _kept_by_a_node(anchor: torch.Tensor, values: Sequence[torch.Tensor]) -> Callable[[], tuple[torch.Tensor, ...]]:
    node: Any = _Keep.apply(anchor, *values).grad_fn
    return lambda: node.saved_tensors


def _kept_alone(anchor: torch.Tensor, values: Sequence[torch.Tensor]) -> Callable[[], tuple[torch.Tensor, ...]]:
    saved = [torch._C._autograd._make_saved_tensor(value, False) for value in values]
    return lambda: tuple(one.unpack() for one in saved)


keep = _kept_alone if hasattr(torch._C._autograd, "_make_saved_tensor") else _kept_by_a_node
"""Keeps tensors as autograd does, and returns what gives them back: where torch offers that by itself, without a node."""


class Kept:
    """The inputs of one call, out of sight of the graph; :meth:`call` gives them back, at most once per backward pass."""

    def __init__(
        self,
        args: tuple,
        kwargs: dict,
        anchor: torch.Tensor,
        contributions: int,
        examples: int,
        draws: tuple[Entry, ...] = (),
    ) -> None:
        self._counts = contributions, examples
        self._spec: TreeSpec | None = None
        values: list[torch.Tensor] = []
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            values.append(args[0])
        else:
            leaves, self._spec = tree_flatten((args, kwargs))
            places: dict[int, int] = {}
            self._leaves: list[object] = []
            for leaf in leaves:
                if isinstance(leaf, torch.Tensor):
                    if id(leaf) not in places:
                        places[id(leaf)] = len(values)
                        values.append(leaf)
                    leaf = _Place(places[id(leaf)])
                self._leaves.append(leaf)
        self.below = any(value.requires_grad for value in values)
        """Tells whether something lies below that gradients of the inputs go to."""
        self._draws = draws
        self._values = keep(anchor, [value.detach() for value in values])
        device = values[0].device.type if values else "cpu"
        self._autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

    def call(self, output: int, wanted: frozenset[str], tied: frozenset[str]) -> Call:
        values = self._values()
        args, kwargs = values, {}
        if self._spec is not None:
            leaves = [values[leaf.index] if isinstance(leaf, _Place) else leaf for leaf in self._leaves]
            args, kwargs = tree_unflatten(leaves, self._spec)
        return Call(
            args, kwargs, *self._counts, output=output, autocast=self._autocast, draws=self._draws, wanted=wanted, tied=tied
        )


class Straight:
    """The one input of a call that a node of ours keeps; :meth:`call` is as that of :class:`Kept`."""

    below = True

    def __init__(self, value: torch.Tensor, contributions: int, examples: int) -> None:
        self._value, self._counts = value, (contributions, examples)

    def call(self, output: int, wanted: frozenset[str], tied: frozenset[str]) -> Call:
        return Call((self._value,), {}, *self._counts, output=output, wanted=wanted, tied=tied)


@dataclass(frozen=True)
class _Place:
    index: int


class Tap(torch.autograd.Function):
    """Identity that starts a graph at a value nothing trainable came before."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)  # the value itself, not a view: what follows may work in place; it must be nobody else's
        return value

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[None, None]:
        return None, None


def in_reentrant_checkpoint() -> bool:
    """Tells whether this runs inside the forward of a checkpoint with ``use_reentrant=True``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            return True
        frame = frame.f_back
    return False
