"""Forwards of known modules in fewer passes over memory: the same functions, up to rounding.

While a microbatch is under way they stand for the modules' own, where `Microbatches(products=...)` leaves kernels to choose:

* the tanh form of GELU, which transformers writes as nine operations, by the one of torch;
* LoRA on linear layers, scaled where it is as narrow as its rank, B (s A x), and not where it is as wide as the layer; with the
  layer in one node of autograd (:mod:`dptrain.kernels.nodes`), where the router takes gradients that no hook brings.

A module that overrides its class, that somebody watches by hooks, computes in another type than float32 or works in another way
(merged, mixed adapters, DoRA) runs as it is. That this holds of the installed library is shown once per process, on a small
module of the same class: values, and gradients of inputs and parameters. A class of which it does not hold keeps its forward.

Nothing is written on a module. For the time of a microbatch its class asks here, by identity, so that copies of a module, and
others of its class, compute as ever.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, wraps
from threading import Lock
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.hooks import RemovableHandle

from dptrain.gradients import matmul
from dptrain.kernels.nodes import Map, Pair, Taken, adapted, serves
from ledger.leaves.numerics import TORCH

Forward = Callable[..., torch.Tensor]
Passing = Callable[[Sequence[nn.Module], torch.Tensor, Sequence[nn.Module]], Taken | None]
"""Returns what takes the gradients of modules that are not called, given their input, and other modules that are not called
either, of which nothing is taken; None where each must be called."""


def _gelu(own: Forward, module: nn.Module, input: torch.Tensor) -> torch.Tensor:  # named as transformers names it
    """Computes GELU by its tanh form (Hendrycks and Gimpel, arXiv 1606.08415, section 2)."""
    return own(module, input) if input.dtype != torch.float32 else nn.functional.gelu(input, approximate="tanh")


# ------------------------------------------------------------------------------------------------------------------- LoRA

def _lora(own: Forward, module: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Computes W x + B (s A x) for every active adapter (Hu et al., arXiv 2106.09685, section 4.1)."""
    if args or kwargs or not _plain(module, x):
        return own(module, x, *args, **kwargs)
    result = module.base_layer(x)
    for adapter in module.active_adapters:
        if adapter in module.lora_A:
            narrow = module.lora_A[adapter](module.lora_dropout[adapter](x))
            wide = module.lora_B[adapter](narrow * module.scaling[adapter])
            with torch._C.DisableTorchFunction():
                fits = result.shape == wide.shape and result.dtype == wide.dtype and _free(_held(wide), _fresh())
            result = wide.add_(result) if fits else result + wide
    return result


def _lora_at_once(passing: Passing, module: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:
    """Computes the same for one active adapter by one node of autograd, or nothing."""
    if args or kwargs:
        return None
    with torch._C.DisableTorchFunction():  # nobody is asked about attributes
        names = [adapter for adapter in module.active_adapters if adapter in module.lora_A]
        if len(names) != 1 or not _computes_so(module, x) or not _keeps_its_input(module.lora_dropout[names[0]]):
            return None
        parts = module.lora_A[names[0]], module.lora_B[names[0]]
        maps = _maps(x, module.base_layer, *parts, module.scaling[names[0]])
        taken = None if maps is None else passing(parts, x, (module.base_layer,))
    if maps is None or taken is None:
        return None
    return adapted(x, module.lora_dropout[names[0]](x), *maps, matmul.product, taken)


def _maps(x: torch.Tensor, base: Any, a: Any, b: Any, scale: float) -> tuple[Map, Pair] | None:
    """Returns the maps of a layer, if its own is a plain one, and it and its input are served."""
    kind = type(base)
    turned = _MULTIPLIES.get((kind, kind.forward))
    if turned is None or _overridden(base) or _overridden(a) or _overridden(b):
        return None
    weight, bias = base.weight, base.bias
    if not serves(x, weight, bias, a.weight, b.weight):
        return None
    return Map(weight.t() if turned else weight, bias), Pair(a.weight.t(), b.weight.t(), scale)


def _keeps_its_input(dropout: nn.Module) -> bool:
    """Tells whether it leaves what goes in as it is, which goes into the layer after it."""
    kind = type(dropout)
    return kind is nn.Identity or (kind is nn.Dropout and not dropout.inplace)


def _overridden(module: nn.Module) -> bool:
    """Tells whether something else than the forward of its class answers a call of it."""
    own = vars(module)
    return "forward" in own or "_compiled_call_impl" in own


_MULTIPLIES: dict[tuple[type, Forward], bool | None] = {}
"""Classes, by their forward, of which it was shown what they compute: x W^T + bias, or x W + bias where this is False."""


def _learn_base(kind: Any) -> None:
    """Shows of the class of a layer that has adapters what it computes, on a small one, if it is known by name."""
    place = kind, kind.forward
    if place in _MULTIPLIES:
        return
    _MULTIPLIES[place] = None
    turned = {"torch.nn.modules.linear.Linear": True, "transformers.pytorch_utils.Conv1D": False}.get(_path(kind))
    if turned is None:
        return
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.autocast("cpu", enabled=False):
            module = kind(5, 7) if turned else kind(7, 5)
            for parameter in module.parameters():
                parameter.data = _spread(parameter.shape)
            x, weight = _spread(torch.Size((3, 4, 5))), module.weight.t() if turned else module.weight
            holds = _alike(module(x), x @ weight + module.bias)
    except Exception:
        return  # as below
    if holds:
        _MULTIPLIES[place] = turned


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_ORDINARY = (nn.Parameter, torch.Tensor)


def _plain(module: Any, x: torch.Tensor) -> bool:
    """Tells whether its active adapters are linear maps of float32 to float32 without a shift, and nothing else."""
    with torch._C.DisableTorchFunction():  # nobody is asked about attributes
        return _computes_so(module, x)


def _computes_so(module: Any, x: torch.Tensor) -> bool:
    if module.disable_adapters or module.merged or module.lora_variant or x.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled(x.device.type) or torch._C._functorch.peek_interpreter_stack() is not None:
        return False  # transforms of functions have no sums in place
    active = [adapter for adapter in module.active_adapters if adapter in module.lora_A]
    maps = (part[adapter] for part in (module.lora_A, module.lora_B) for adapter in active)
    return all(_linear(one) for one in maps) and all(type(module.scaling[adapter]) in (int, float) for adapter in active)


def _linear(module: nn.Module) -> bool:
    """Tells whether it is a product with a float32 weight, without a shift."""
    return (
        type(module) is nn.Linear
        and module.bias is None
        and type(module.weight) in _ORDINARY
        and module.weight.dtype == torch.float32
        and "forward" not in vars(module)
    )


def _held(value: torch.Tensor) -> tuple[int, ...]:
    """Counts who holds a tensor: names of Python, the C++ side, and what shares its memory."""
    storage = value.untyped_storage()._cdata
    return sys.getrefcount(value), value._use_count(), torch._C._storage_Use_Count(storage), int(value._is_view())


@cache
def _fresh() -> tuple[int, ...]:
    """Returns the counts of a product that nobody else holds, or what no tensor has where those of one that somebody holds are
    not larger."""
    wide = torch.ones(2, 2) @ torch.ones(2, 2)
    least = _held(wide)
    also = wide
    named = _held(wide)
    del also
    kept = wide.detach()
    shared = _held(wide)
    del kept
    told = not _free(named, least) and not _free(shared, least)
    return least if told else (0,) * len(least)


def _free(counts: tuple[int, ...], least: tuple[int, ...]) -> bool:
    return all(count <= few for count, few in zip(counts, least, strict=True))


# ------------------------------------------------------------------------------------------------- what is known, and shown

@dataclass(frozen=True)
class Known:
    """One class: what computes in the place of its forward, given that, and a small module of it with an input."""

    forward: Callable[..., torch.Tensor]
    sample: Callable[[type], tuple[nn.Module, torch.Tensor]]
    at_once: Callable[..., torch.Tensor | None] | None = None
    """Computes it by one node of autograd, or nothing; its parts are not called then."""


def _activation(kind: type) -> tuple[nn.Module, torch.Tensor]:
    return kind(), torch.linspace(-12.0, 12.0, 3001, dtype=torch.float32)


def _adapted(kind: type) -> tuple[nn.Module, torch.Tensor]:
    from peft import LoraConfig

    _learn_base(nn.Linear)
    layer = kind(nn.Linear(5, 7), "default", config=LoraConfig(r=2, lora_alpha=6), r=2, lora_alpha=6)
    for parameter in layer.parameters():
        parameter.data = _spread(parameter.shape)
    return layer, _spread(torch.Size((3, 4, 5)))


def _spread(shape: torch.Size) -> torch.Tensor:
    return torch.arange(shape.numel(), dtype=torch.float32).mul_(5.0).remainder_(7.0).sub_(3.0).div_(3.0).view(shape)


KNOWN: Final = {
    "transformers.activations.NewGELUActivation": Known(_gelu, _activation),
    "transformers.activations.FastGELUActivation": Known(_gelu, _activation),
    "peft.tuners.lora.layer.Linear": Known(_lora, _adapted, _lora_at_once),
}
"""By the path of a class, exactly: one that derives from it is another."""

ALIKE = 2.0**-18
"""Distance of values and gradients, relative to one more than their size."""


@cache
def _holds(kind: type, own: Forward, known: Known) -> bool:
    """Tells whether what stands for the forward of a class computes the same."""
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            module, x = known.sample(kind)
            found: list[Any] = [_values(module, one, x) for one in (own, lambda *given: known.forward(own, *given))]
            if known.at_once is not None:
                found.append(_values_at_once(module, known.at_once, x))
    except Exception:
        return False  # a library of another version: whatever fails, modules compute by themselves
    return all(b is None or _alike(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def _values(module: nn.Module, forward: Forward, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns what it computes, and the gradients of input and parameters under uneven gradients of the output."""
    x = x.clone().requires_grad_()
    out = forward(module, x * 1.0)
    leaves = [x, *(parameter.requires_grad_() for parameter in module.parameters())]
    return [out.detach(), *torch.autograd.grad(out, leaves, _spread(out.shape))]


def _values_at_once(
    module: nn.Module, at_once: Callable[..., torch.Tensor | None], x: torch.Tensor
) -> list[torch.Tensor | None]:
    """Returns the same of a node: of parameters, by what it hands to their rules; None for those it hands nothing of."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    shown, x = _Shown(), x.clone().requires_grad_()
    out = at_once(shown.passing, module, x * 1.0)
    assert out is not None
    (back,) = torch.autograd.grad(out, x, _spread(out.shape))
    assert len(shown.found) == len(shown.parts)
    return [out.detach(), back, *(shown.found.get(id(parameter)) for parameter in module.parameters())]


class _Shown:
    """Takes what a node hands to the rules of its parts, and makes the gradients of their weights of it."""

    def __init__(self) -> None:
        self.parts: Sequence[Any] = ()
        self.found: dict[int, torch.Tensor] = {}

    def passing(self, parts: Sequence[nn.Module], x: torch.Tensor, others: Sequence[nn.Module]) -> "_Shown":
        self.parts = parts
        return self

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self) -> None:
        """Does nothing."""

    def take(self, place: int, x: torch.Tensor, grad: torch.Tensor) -> None:
        self.found[id(self.parts[place].weight)] = grad.flatten(0, -2).t() @ x.flatten(0, -2)


def _alike(own: torch.Tensor, other: torch.Tensor) -> bool:
    return own.shape == other.shape and bool(((own - other).abs() <= ALIKE * (1.0 + own.abs())).all())


# --------------------------------------------------------------------------------------------- the time of a microbatch

_UNDER_WAY: dict[int, tuple["Fused", nn.Module]] = {}
"""Modules that compute in fewer passes now, by identity."""

_ASKING: dict[type, tuple[Forward, Forward, int]] = {}
"""Classes that ask here now: their own forward, what asks, and how many ask for it."""

_LOCK = Lock()


def _asking(kind: type, known: Known, own: Forward) -> Forward:
    """Returns a forward that stands for that of a class, of its modules under way that nobody watches."""

    @wraps(own)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        of, module = _UNDER_WAY.get(id(self), (None, None))
        if of is None or module is not self or type(self) is not kind or not of.unwatched(self):
            return own(self, *args, **kwargs)
        found = None if known.at_once is None else known.at_once(of.passing, self, *args, **kwargs)
        return known.forward(own, self, *args, **kwargs) if found is None else found

    return forward


class Fused:
    """Holds the modules of one model that have a forward of fewer passes.

    Guarantee: A module computes so only between the begin and the end of a microbatch, where all hooks on it and its parts are
    those of the run; no value that a hook could see or keep is another, and none is written.

    Args:
        model: of these modules; what it gets or loses later is not seen.
        active: whether the sandbox of the run has not been left.
        passing: asked before modules are passed by that are parts of one which is computed at once.
    """

    def __init__(
        self, model: nn.Module, active: Callable[[], bool] = lambda: True, passing: Passing = lambda parts, x, others: None
    ) -> None:
        _fresh()  # while nothing is intercepted
        self._active = active
        self.passing = passing
        self._left = False
        self._ours: set[int] = set()
        self._parts: dict[int, tuple[nn.Module, ...]] = {}
        self._found: list[tuple[nn.Module, Known, Forward]] = []
        for module in model.modules():
            kind = type(module)
            if hasattr(module, "base_layer"):
                _learn_base(type(module.base_layer))
            known, own = KNOWN.get(_path(kind)), _own(kind)
            if known is not None and "forward" in vars(kind) and _holds(kind, own, known):
                self._found.append((module, known, own))
                self._parts[id(module)] = tuple(module.modules())

    def expect(self, handles: Iterable[RemovableHandle]) -> None:
        """Counts hooks among those of the run, which keep nothing that they see."""
        self._ours.update(handle.id for handle in handles)

    @property
    def by_themselves(self) -> bool:
        """Tells whether modules compute by themselves now (:meth:`left`)."""
        return self._left

    def ours_alone(self, module: nn.Module) -> bool:
        """Tells whether no code of others runs from the begin of a call of a module to the hooks of the run on what came of it:
        who computes by its tensors there, once more or with an error, is not told from the call."""
        first = next(iter(module._forward_hooks), None)
        return (
            self._ours.issuperset(module._forward_pre_hooks)
            and (first is None or first in self._ours)
            and "forward" not in vars(module)
            and not _has_any_global_hook()
        )

    def unwatched(self, module: nn.Module) -> bool:
        """Tells whether all hooks on a module of the model and on its parts are those of the run."""
        if self._left or not self._active() or _has_any_global_hook():
            return False
        return all(
            self._ours.issuperset(part._forward_hooks)
            and self._ours.issuperset(part._forward_pre_hooks)
            and not part._backward_hooks
            and not part._backward_pre_hooks
            for part in self._parts[id(module)]
        )

    @contextmanager
    def left(self) -> Iterator[None]:
        """Has them compute by themselves inside: a graph is made of that, and compared with it factor by factor."""
        before, self._left = self._left, True
        try:
            yield
        finally:
            self._left = before

    @contextmanager
    def inside(self, products: str) -> Iterator[None]:
        """Has them compute so inside, unless everything is left to torch."""
        found = [] if products == TORCH else [one for one in self._found if _own(type(one[0])) is one[2]]
        kinds: dict[Any, tuple[Known, Forward]] = {type(module): (known, own) for module, known, own in found}
        with _LOCK:
            for kind, (known, own) in kinds.items():
                _, asking, count = _ASKING.get(kind) or (own, _asking(kind, known, own), 0)
                _ASKING[kind] = own, asking, count + 1
                kind.forward = asking
            _UNDER_WAY.update((id(module), (self, module)) for module, *_ in found)
        try:
            yield
        finally:
            with _LOCK:
                for module, *_ in found:
                    _UNDER_WAY.pop(id(module), None)
                for kind in kinds:
                    own, asking, count = _ASKING.pop(kind)
                    if count > 1:
                        _ASKING[kind] = own, asking, count - 1
                    elif vars(kind).get("forward") is asking:
                        kind.forward = own


def _own(kind: Any) -> Forward:
    """Returns the forward of a class, whoever asks for it now."""
    forward: Forward = kind.forward
    asking = _ASKING.get(kind)
    return asking[0] if asking is not None and forward is asking[1] else forward
