"""Forwards of known modules in fewer passes over memory: the same functions, up to rounding.

While a microbatch is under way they stand for the modules' own, where `Microbatches(products=...)` leaves kernels to choose:

* the tanh form of GELU, which transformers writes as nine operations, by the one of torch;
* LoRA on linear layers, scaled where it is as narrow as its rank, B (s A x), and not where it is as wide as the layer; what is
  added is added in place, forward and backward.

A module that overrides its class, that somebody watches by hooks, computes in another type than float32 or works in another way
(merged, mixed adapters, DoRA) runs as it is. That this holds of the installed library is shown once per process, on a small
module of the same class: values, and gradients of inputs and parameters. A class of which it does not hold keeps its forward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any, Final

import torch
from torch import nn

from ledger.leaves.numerics import TORCH

Forward = Callable[..., torch.Tensor]


def _own(module: nn.Module) -> Forward:
    """Returns the forward of its class."""
    return MethodType(type(module).forward, module)


def _gelu(module: nn.Module, input: torch.Tensor) -> torch.Tensor:  # named as transformers names it
    """Computes GELU by its tanh form (Hendrycks and Gimpel, arXiv 1606.08415, section 2)."""
    if input.dtype != torch.float32:
        return _own(module)(input)
    return nn.functional.gelu(input, approximate="tanh")


# ------------------------------------------------------------------------------------------------------------------- LoRA

def _lora(module: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Computes W x + B (s A x) for every active adapter (Hu et al., arXiv 2106.09685, section 4.1)."""
    if args or kwargs or not _plain(module, x):
        return _own(module)(x, *args, **kwargs)
    active = [adapter for adapter in module.active_adapters if adapter in module.lora_A]
    below, *copies = _shared(module.base_layer, x, 1 + len(active))
    result = module.base_layer(below)
    for adapter, copy in zip(active, copies, strict=True):
        narrow = module.lora_A[adapter](module.lora_dropout[adapter](copy))
        result = module.lora_B[adapter](narrow * module.scaling[adapter]).add_(result)  # nobody else holds what B returns
    return result


def _plain(module: Any, x: torch.Tensor) -> bool:
    """Tells whether its active adapters are linear maps of float32 to float32 without a shift, and nothing else."""
    if module.disable_adapters or module.merged or module.lora_variant or x.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled(x.device.type) or torch._C._functorch.peek_interpreter_stack() is not None:
        return False  # transforms of functions have no sums in place
    maps = (part[adapter] for part in (module.lora_A, module.lora_B) for adapter in module.active_adapters if adapter in part)
    return all(_linear(one) and one.bias is None for one in maps)


def _linear(module: nn.Module) -> bool:
    """Tells whether it is a product with a float32 weight, so that the gradient of its input is a tensor of its own."""
    kind = type(module)
    if kind is not nn.Linear and (kind.__module__, kind.__name__) != ("transformers.pytorch_utils", "Conv1D"):
        return False
    weight: Any = module.weight
    own = type(weight) in (nn.Parameter, torch.Tensor) and weight.dtype == torch.float32
    return own and "forward" not in vars(module) and not module._backward_hooks and not module._backward_pre_hooks


def _shared(base: nn.Module, x: torch.Tensor, readers: int) -> tuple[torch.Tensor, ...]:
    """Returns the input once for each of its readers, of which `base` is the first."""
    if not (x.requires_grad and torch.is_grad_enabled() and _linear(base)):
        return (x,) * readers
    copies: tuple[torch.Tensor, ...] = _Shared.apply(x, readers)
    return copies


class _Shared(torch.autograd.Function):
    """Gives an input to several linear maps, and adds up what they send back in the tensor that the first of them made.

    Autograd itself adds in a new one, as wide as the layer.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, readers: int) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for _ in range(readers))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        first, *others = (grad for grad in grads if grad is not None)
        for other in others:
            first.add_(other)
        return first, None


# ------------------------------------------------------------------------------------------------- what is known, and shown

@dataclass(frozen=True)
class Known:
    """One class: the forward that stands for its own, and a small module of it with an input."""

    forward: Forward
    sample: Callable[[type], tuple[nn.Module, torch.Tensor]]


def _activation(kind: type) -> tuple[nn.Module, torch.Tensor]:
    return kind(), torch.linspace(-12.0, 12.0, 3001)


def _adapted(kind: type) -> tuple[nn.Module, torch.Tensor]:
    from peft import LoraConfig

    layer = kind(nn.Linear(5, 7), "default", config=LoraConfig(r=2, lora_alpha=6), r=2, lora_alpha=6)
    for parameter in layer.parameters():
        parameter.data = _spread(parameter.shape)
    return layer, _spread(torch.Size((3, 4, 5)))


def _spread(shape: torch.Size) -> torch.Tensor:
    return torch.arange(shape.numel(), dtype=torch.float32).mul_(5.0).remainder_(7.0).sub_(3.0).div_(3.0).view(shape)


KNOWN: Final = {
    "transformers.activations.NewGELUActivation": Known(_gelu, _activation),
    "transformers.activations.FastGELUActivation": Known(_gelu, _activation),
    "peft.tuners.lora.layer.Linear": Known(_lora, _adapted),
}
"""By the path of a class, exactly: one that derives from it is another."""

ALIKE = 2.0**-18
"""Distance of values and gradients, relative to one more than their size."""


@cache
def _holds(kind: type, own: Forward, known: Known) -> bool:
    """Tells whether the forward that stands for that of a class computes the same."""
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            module, x = known.sample(kind)
            found = [_values(module, forward, x) for forward in (own, known.forward)]
    except Exception:
        return False  # a library of another version: whatever fails, modules compute by themselves
    return all(_alike(a, b) for a, b in zip(*found, strict=True))


def _values(module: nn.Module, forward: Forward, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns what it computes, and the gradients of input and parameters under uneven gradients of the output."""
    x = x.clone().requires_grad_()
    out = forward(module, x * 1.0)
    leaves = [x, *(parameter.requires_grad_() for parameter in module.parameters())]
    return [out.detach(), *torch.autograd.grad(out, leaves, _spread(out.shape))]


def _alike(own: torch.Tensor, other: torch.Tensor) -> bool:
    return own.shape == other.shape and bool(((own - other).abs() <= ALIKE * (1.0 + own.abs())).all())


@dataclass
class _Found:
    """A module with a forward that stands for its own, and how many hooks it and its parts had when a run began."""

    module: nn.Module
    known: Known
    own: Forward
    hooks: int | None = None

    def unchanged(self) -> bool:
        """Tells whether it computes by its class, and whether nobody watches it or its parts but who did at first."""
        hooks = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in self.module.modules())
        self.hooks = hooks if self.hooks is None else self.hooks
        return hooks == self.hooks and type(self.module).forward is self.own and "forward" not in vars(self.module)


class Fused:
    """Holds the modules of one model that have a forward of fewer passes.

    Args:
        model: of these modules; what it gets or loses later is not seen. A module with hooks, on it or on its parts, computes
            by itself.
    """

    def __init__(self, model: nn.Module) -> None:
        self._found: list[_Found] = []
        for module in model.modules():
            kind = type(module)
            known = KNOWN.get(f"{kind.__module__}.{kind.__qualname__}")
            if known is None or any(one._forward_hooks or one._forward_pre_hooks for one in module.modules()):
                continue
            if _holds(kind, kind.forward, known):
                self._found.append(_Found(module, known, kind.forward))

    @contextmanager
    def inside(self, products: str) -> Iterator[None]:
        """Has them compute so inside, unless everything is left to torch; leaves no trace on the model."""
        changed = [] if products == TORCH else [one for one in self._found if one.unchanged()]
        for one in changed:
            vars(one.module)["forward"] = MethodType(one.known.forward, one.module)
        try:
            yield
        finally:
            for one in changed:
                vars(one.module).pop("forward", None)
