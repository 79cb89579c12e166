"""Linear maps of a microbatch as nodes of autograd: y = x W + bias, and with a LoRA pair, y = x W + bias + s (x A) B.

Module by module, a product is some seven operations and two hooks, a pair four times as many; each passes where every operation
of a microbatch passes. Of a node neither side does, and a pair goes over x and y half as often. Nothing here draws, writes what
a model keeps, or decides by a value. What goes into a map and what comes back to its output is handed to who takes it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd import forward_ad

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Multiplies two matrices, and adds a bias if there is one."""


@dataclass(frozen=True)
class Map:
    """Holds x W + bias; neither takes part in autograd."""

    w_DP: torch.Tensor
    bias_P: torch.Tensor | None


@dataclass(frozen=True)
class Pair:
    """Holds s (x A) B, which takes no part in autograd either."""

    a_DR: torch.Tensor
    b_RP: torch.Tensor
    scale: float


class Taken(Protocol):
    """Takes what a gradient rule of each map needs, once it is known."""

    def aside(self) -> AbstractContextManager[None]:
        """Enters the room of our own operations."""

    def note(self) -> None:
        """Notes that the maps were computed."""

    def take(self, place: int, x: torch.Tensor, grad: torch.Tensor) -> None:
        """Takes input and output gradient of a map, by its place: of a pair that of A, whose output is not scaled, and of B."""


def serves(x: torch.Tensor, *frozen: torch.Tensor | None) -> bool:
    """Tells whether x is a plain tensor of float32 or float64, in a graph that gradients of it are asked of, and the others are
    plain ones of the same type, which take no part in autograd. A leaf is none: what watches operations is to see it."""
    kind = x.dtype
    if type(x) is not torch.Tensor or kind not in _TYPES or not (x.requires_grad and torch.is_grad_enabled()):
        return False
    if x.is_leaf or x.is_nested or forward_ad._current_level >= 0:  # nodes have no tangents
        return False
    for one in frozen:
        if one is not None and (type(one) not in _ORDINARY or one.dtype != kind or one.requires_grad):
            return False
    return not torch.is_autocast_enabled(x.device.type) and torch._C._functorch.peek_interpreter_stack() is None


_ORDINARY = (torch.nn.Parameter, torch.Tensor)
_TYPES = (torch.float32, torch.float64)


def multiplied(x: torch.Tensor, shape: torch.Size, linear: Map, product: Product, taken: Taken) -> torch.Tensor:
    """Returns x W + bias.

    Args:
        x: (..., D), as :func:`serves` tells. shape: in which it is taken. product: how matrices are multiplied.
        taken: gets x and the gradient of what is returned, at place 0, in the backward pass.
    """
    with taken.aside():
        found: torch.Tensor = _Multiplied.apply(x, shape, linear, product, taken)
    taken.note()
    return found


def adapted(x: torch.Tensor, dropped: torch.Tensor, linear: Map, pair: Pair, product: Product, taken: Taken) -> torch.Tensor:
    """Returns x W + bias + s (x A) B, where ``dropped`` goes into A.

    Args:
        x, dropped: (rows, ..., D), as :func:`serves` tells. product: how matrices are multiplied.
        taken: gets inputs and output gradients of A, at place 0, and B, at place 1, in the backward pass.
    """
    with taken.aside():
        found: torch.Tensor = _Adapted.apply(x, None if dropped is x else dropped, linear, pair, product, taken)
    taken.note()
    return found


class _Multiplied(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, shape: torch.Size, linear: Map, product: Product, taken: Taken
    ) -> torch.Tensor:
        y_KP = product(_matrix(x), linear.w_DP, linear.bias_P)
        ctx.save_for_backward(x, linear.w_DP)
        ctx.shape, ctx.product, ctx.taken = shape, product, taken
        return _like(y_KP, x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        with ctx.taken.aside(), _in_its_type(grad):
            x, w_DP = ctx.saved_tensors
            ctx.taken.take(0, x.detach().view(ctx.shape), _alone(grad).reshape(*ctx.shape[:-1], grad.shape[-1]))
            return ctx.product(_matrix(grad), w_DP.t(), None).view(x.shape), None, None, None, None


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dropped: torch.Tensor | None, linear: Map, pair: Pair, product: Product, taken: Taken
    ) -> torch.Tensor:
        into = x if dropped is None else dropped
        narrow_KR = product(_matrix(into), pair.a_DR, None).mul_(pair.scale)
        wide_KP = product(_matrix(x), linear.w_DP, linear.bias_P).addmm_(narrow_KR, pair.b_RP)
        narrow = _like(narrow_KR, x)
        ctx.save_for_backward(into, narrow, linear.w_DP, pair.a_DR, pair.b_RP)
        ctx.apart, ctx.scale, ctx.product, ctx.taken = dropped is not None, pair.scale, product, taken
        return _like(wide_KP, x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None, None, None]:
        with ctx.taken.aside(), _in_its_type(grad):
            into, narrow, w_DP, a_DR, b_RP = ctx.saved_tensors
            grad_KP = _matrix(grad)
            to_a_KR = ctx.product(grad_KP, b_RP.t(), None) * ctx.scale
            ctx.taken.take(1, narrow, _alone(grad))
            ctx.taken.take(0, into.detach(), _alone(to_a_KR).view(narrow.shape))
            back_KD, apart = ctx.product(grad_KP, w_DP.t(), None), None
            if ctx.apart:
                apart = ctx.product(to_a_KR, a_DR.t(), None).view(into.shape)
            elif torch.is_grad_enabled():  # a gradient of this gradient may be asked for
                back_KD = back_KD.addmm(to_a_KR, a_DR.t())
            else:
                back_KD.addmm_(to_a_KR, a_DR.t())
            return back_KD.view(into.shape), apart, None, None, None, None


def _alone(grad: torch.Tensor) -> torch.Tensor:
    """Returns a gradient without the graph that it may be in; one of a batch of them has none, and no way to be detached."""
    return grad.detach() if grad.requires_grad else grad


def _in_its_type(grad: torch.Tensor) -> AbstractContextManager[Any]:
    """Enters a room without autocast, under which a map was not computed; a loop may run its backward pass so."""
    kind = grad.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _matrix(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _like(y_KP: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns a product in the shape of what went in. It is no view, which could not be written after a node."""
    return y_KP if x.dim() == 2 else torch.ops.aten._unsafe_view(y_KP, (*x.shape[:-1], y_KP.shape[1]))
