"""The generic fallback: per-contribution gradients of any module's own tensors, by vmap over its vector-Jacobian product.

Exact and slow: the module runs once more per microbatch. It serves convolutions, class tokens and other tensors that a
module holds directly; a notice names each module that takes it.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from dptrain.errors import UnsupportedModule
from dptrain.routing.rules import Call, promote
from dptrain.routing.uses import Dense, Piece


class VmapRule:
    """Recomputes the module per example and takes the gradient of ``<output, grad>`` for the tensors it owns directly."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module

    def pieces(
        self, call: Call, grad_output: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]
    ) -> dict[str, Piece]:
        self._refuse_dropout()
        own = {key: value.detach() for key, value in self.module.named_parameters(recurse=False) if key in wanted}
        total = call.contributions * call.examples
        batched_kwargs = {k: v for k, v in call.kwargs.items() if isinstance(v, torch.Tensor) and v.shape[:1] == (total,)}
        constant_kwargs = {k: v for k, v in call.kwargs.items() if k not in batched_kwargs}
        dims = tuple(0 if isinstance(v, torch.Tensor) and v.shape[:1] == (total,) else None for v in call.inputs)

        def product(tensors: dict, inputs: tuple, batched: dict, grad_one: torch.Tensor) -> torch.Tensor:
            args = tuple(v if d is None else v.unsqueeze(0) for v, d in zip(inputs, dims, strict=True))
            kwargs = {**constant_kwargs, **{k: v.unsqueeze(0) for k, v in batched.items()}}
            out = functional_call(self.module, tensors, args, kwargs)
            return (promote(out) * grad_one.unsqueeze(0)).sum()

        try:
            per_example = vmap(grad(product), in_dims=(None, dims, 0, 0), randomness="error")(
                own, call.inputs, batched_kwargs, promote(grad_output)
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedModule(
                "NO_RULE",
                f"module {self.name!r} ({type(self.module).__name__}) holds trainable tensors {sorted(wanted)} and its forward "
                f"cannot be vectorised over examples ({error}); freeze these tensors or move them into a supported layer",
            ) from error
        return {
            key: Dense(promote(value).reshape(call.contributions, call.examples, *own[key].shape).sum(1))
            for key, value in per_example.items()
        }

    def _refuse_dropout(self) -> None:
        for name, child in self.module.named_modules():
            if child.training and isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0:
                raise UnsupportedModule(
                    "DROPOUT_IN_FALLBACK",
                    f"module {self.name!r} has no rule of its own and holds active dropout {name!r}: recomputing it would draw "
                    "another mask and give another gradient; set its p to 0, or freeze the tensors of the module",
                )
