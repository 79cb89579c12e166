"""Refuses a backward pass through a prepared model that is not the run's own, and says what to use."""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from dptrain.errors import NotPrivateUse


def without_gradient(output: Any) -> Any:
    """Returns what a prepared model returns outside of a private microbatch, so that a backward pass from it raises by name.

    Without it torch says of such a loss that it needs no gradient, and a plain Trainer stops at that.
    """
    anchor = torch.zeros((), requires_grad=True)
    return tree_map_only(torch.Tensor, lambda value: _kept(value, anchor), output)


def _kept(value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    return _Refusal.apply(value, anchor) if value.is_floating_point() and not value.requires_grad else value


class _Refusal(torch.autograd.Function):
    """Gives a tensor on, and raises on the way back."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return value.view_as(value) if value.dim() else value.clone()  # a Trainer scales its loss in place

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise NotPrivateUse(
            "OUTSIDE_BACKWARD",
            "a backward pass ran through a model that is prepared for a private run, beside private.backward(); it would give "
            "raw gradients. In a loop give the losses of `for rows in step` to private.backward(losses, rows); in the place of "
            "transformers.Trainer use dptrain.integrations.transformers.PrivateTrainer(private=...), and in that of "
            "trl.SFTTrainer dptrain.integrations.trl.PrivateSFTTrainer",
        )
