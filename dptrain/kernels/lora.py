"""A linear layer and its LoRA pair as one node of autograd: y = x W + bias + s (x A) B, and what flows back to x.

Module by module, the same is some thirty operations and two hooks, each of which passes where every operation of a microbatch
passes, and x and y are gone over twice as often. Nothing here draws, writes what a model keeps, or decides by a value.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Multiplies two matrices, and adds a bias if there is one."""


@dataclass(frozen=True)
class Maps:
    """The maps of one layer: ``w_DP`` and ``bias_P`` of its own, ``a_DR`` and ``b_RP`` of its pair, times ``scale``.

    None of them takes part in autograd.
    """

    w_DP: torch.Tensor
    bias_P: torch.Tensor | None
    a_DR: torch.Tensor
    b_RP: torch.Tensor
    scale: float


class Taken(Protocol):
    """Takes what a gradient rule of each map of the pair needs, once it is known."""

    def aside(self) -> AbstractContextManager[None]:
        """Enters the room of our own operations."""

    def take(self, place: int, x: torch.Tensor, grad: torch.Tensor) -> None:
        """Takes input and output gradient of a map: 0 for A, whose output is not scaled, and 1 for B."""


class Pair(torch.autograd.Function):
    """Computes the layer; ``apply(x, dropped, maps, product, taken)``.

    Args:
        x: (rows, ..., D), float32. dropped: what goes into A instead, or None. maps: all that it is multiplied by.
        product: how matrices are multiplied. taken: gets inputs and gradients of A and B in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dropped: torch.Tensor | None, maps: Maps, product: Product, taken: Taken
    ) -> torch.Tensor:
        into = x if dropped is None else dropped
        x_KD = x.reshape(-1, x.shape[-1])
        into_KD = x_KD if dropped is None else dropped.reshape(x_KD.shape)
        wide_KP = product(x_KD, maps.w_DP, maps.bias_P)
        narrow_KR = product(into_KD, maps.a_DR, None).mul_(maps.scale)
        wide_KP.addmm_(narrow_KR, maps.b_RP)
        narrow = torch.ops.aten._unsafe_view(narrow_KR, (*x.shape[:-1], narrow_KR.shape[1]))
        ctx.save_for_backward(into, narrow, maps.w_DP, maps.a_DR, maps.b_RP)
        ctx.apart, ctx.scale, ctx.product, ctx.taken = dropped is not None, maps.scale, product, taken
        return torch.ops.aten._unsafe_view(wide_KP, (*x.shape[:-1], wide_KP.shape[1]))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None, None]:
        with ctx.taken.aside():
            into, narrow, w_DP, a_DR, b_RP = ctx.saved_tensors
            grad_KP = grad.reshape(-1, grad.shape[-1])
            to_a_KR = ctx.product(grad_KP, b_RP.t(), None) * ctx.scale
            ctx.taken.take(1, narrow, grad)
            ctx.taken.take(0, into.detach(), to_a_KR.detach().view(narrow.shape))
            back_KD = ctx.product(grad_KP, w_DP.t(), None)
            apart = None
            if ctx.apart:
                apart = ctx.product(to_a_KR, a_DR.t(), None).view(into.shape)
            elif torch.is_grad_enabled():  # a gradient of this gradient may be asked for
                back_KD = back_KD.addmm(to_a_KR, a_DR.t())
            else:
                back_KD.addmm_(to_a_KR, a_DR.t())
            return back_KD.view(into.shape), apart, None, None, None
