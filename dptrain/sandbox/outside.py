"""Refuses a backward pass through a prepared model that is not the run's own, and says what to use."""

import weakref
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from dptrain.errors import NotPrivateUse
from dptrain.sandbox.interception import Sandbox


class Outside:
    """A forward hook of the prepared model: what it returns outside of a private microbatch has no gradient.

    Without it torch says of such a loss that it needs none, and a plain Trainer stops at that. In evaluation, and where
    gradients are off, it does nothing. A copy of the model takes it along, and there it does nothing either.
    """

    def __init__(self, model: nn.Module, sandbox: Sandbox) -> None:
        self._model: Any = weakref.ref(model)
        self._sandbox = sandbox
        self._handle: RemovableHandle = model.register_forward_hook(self)

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if self._model is None or module is not self._model() or self._sandbox.active:
            return None
        if not (torch.is_grad_enabled() and module.training):
            return None
        anchor = torch.zeros((), requires_grad=True)
        return tree_map_only(torch.Tensor, lambda value: _kept(value, anchor), output)

    def __getstate__(self) -> dict[str, Any]:
        return {"_model": None}

    def close(self) -> None:
        """Removes the hook."""
        self._handle.remove()


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
