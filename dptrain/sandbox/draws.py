"""Put the common generators of torch, Python and numpy aside, and replay the draws of an operation per sample."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


class Generators:
    """Where the common generators stood when this was made.

    Args:
        with_torch: whether torch's generator on the processor is among them.
    """

    def __init__(self, *, with_torch: bool = True) -> None:
        self._with_torch = with_torch
        self._before = self._now()
        self._seeded = self._before

    def seed(self, seed: int, *, watched: bool = True) -> None:
        """Seeds all of them.

        Args:
            seed: 0 or more, below 2^63.
            watched: whether `moved` will be asked; to look where they stand takes as long as to seed them.
        """
        random.seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        if self._with_torch:
            torch.default_generator.manual_seed(seed)
        if watched:
            self._seeded = self._now()

    def moved(self) -> bool:
        """Tells whether anybody drew since they were looked at, or seeded, last."""
        now, before = self._now(), self._seeded
        if now[0] != before[0] or now[1][2:] != before[1][2:] or not np.array_equal(now[1][1], before[1][1]):
            return True
        return self._with_torch and not torch.equal(now[2], before[2])

    def restore(self) -> None:
        """Puts them back to where they stood."""
        random.setstate(self._before[0])
        np.random.set_state(self._before[1])
        if self._with_torch:
            torch.set_rng_state(self._before[2])

    def _now(self) -> tuple[Any, Any, Any]:
        # (name, key, position, has_gauss, cached_gaussian) of numpy
        return random.getstate(), np.random.get_state(), torch.get_rng_state() if self._with_torch else None


_aten = torch.ops.aten


class UnknownDraw(RuntimeError):
    """An operation draws, and nothing here says one number per which element."""


@dataclass(frozen=True)
class Request:
    """The numbers that an operation asks for.

    Attributes:
        kind: as :meth:`dptrain.sandbox.addresses.Numbers.values` takes it. parameters: of the kind.
        shape: of the numbers. dtype: of the numbers, where they are real. device: where they are wanted.
    """

    kind: str
    parameters: tuple[float, ...]
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


Answer = Callable[[torch.Tensor], Any]
"""From the numbers, in their standard form and of the shape asked for, to the result of the operation."""


def draws(func: Any, args: tuple, kwargs: dict) -> bool:
    """Tell if an operation draws in this call. A fused attention without dropout is marked as if it did, and does not."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    if "training" in names:
        return bool(_given(func, args, kwargs, "training"))
    if "train" in names and "dropout" not in names:
        return bool(_given(func, args, kwargs, "train"))
    if "dropout_p" in names:
        return bool(_given(func, args, kwargs, "dropout_p"))
    if "dropout" in names and "train" in names:  # the recurrent kernels of a GPU
        return bool(_given(func, args, kwargs, "train")) and bool(_given(func, args, kwargs, "dropout"))
    return True


def request(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    """Return the request of an operation that draws, and the function that makes its result of the answer.

    Raises:
        UnknownDraw: nothing is known of the operation.
    """
    handler = _HANDLERS.get(func)
    if handler is None:
        raise UnknownDraw(str(func))
    return handler(func, args, kwargs)


def _given(func: Any, args: tuple, kwargs: dict, name: str) -> Any:
    """The value of an argument; the dispatcher leaves out what equals its default."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[place] if place < len(args) else kwargs.get(name, argument.default_value)
    raise UnknownDraw(f"{func} has no argument {name!r}")


def _like(kind: str, value: torch.Tensor, *parameters: float) -> Request:
    return Request(kind, parameters, value.shape, value.dtype, value.device)


def _wide(kind: str, value: torch.Tensor) -> Request:
    """Numbers at least as fine as float32, for what is computed from them."""
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    return Request(kind, (), value.shape, dtype, value.device)


def _new(kind: str, size: Any, kwargs: dict, *parameters: float) -> Request:
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return Request(kind, parameters, torch.Size(size), dtype, torch.device(kwargs.get("device") or "cpu"))


def _keep_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    target = args[0]
    return _like("keep", target, float(_given(func, args, kwargs, "p"))), target.copy_


def _keep(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    value = args[0]
    return _like("keep", value, float(_given(func, args, kwargs, "p"))), lambda mask: mask.to(value.dtype)


def _chance(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    """Coins whose probabilities are a tensor."""
    chance = args[0] if func is _aten.bernoulli.default else _given(func, args, kwargs, "p")
    target = args[0]
    asked = Request("uniform", (), target.shape, torch.float32, target.device)
    if func is _aten.bernoulli.default:
        return asked, lambda value: (value < chance).to(target.dtype)
    return asked, lambda value: target.copy_(value < chance.to(target.device))


def _dropout(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    value, rate = args[0], float(args[1])
    scale = 0.0 if rate == 1.0 else 1.0 / (1.0 - rate)
    return _like("keep", value, 1.0 - rate), lambda mask: (value * mask * scale, mask)


def _uniform_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    low, high = float(_given(func, args, kwargs, "from")), float(_given(func, args, kwargs, "to"))
    return _like("uniform", args[0]), lambda value: args[0].copy_(value.mul(high - low).add_(low))


def _normal_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    mean, std = float(_given(func, args, kwargs, "mean")), float(_given(func, args, kwargs, "std"))
    return _like("normal", args[0]), lambda value: args[0].copy_(value.mul(std).add_(mean))


def _normal(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    mean, std = args[0], _given(func, args, kwargs, "std")
    template = mean if isinstance(mean, torch.Tensor) else std
    shape = torch.broadcast_shapes(*(value.shape for value in (mean, std) if isinstance(value, torch.Tensor)))
    asked = Request("normal", (), shape, template.dtype, template.device)
    return asked, lambda value: value * std + mean


def _normal_of_numbers(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    mean, std = float(_given(func, args, kwargs, "mean")), float(_given(func, args, kwargs, "std"))
    asked = _new("normal", _given(func, args, kwargs, "size"), kwargs)
    return asked, lambda value: value.clone(memory_format=torch.contiguous_format).mul_(std).add_(mean)


def _log_normal_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    mean, std = float(_given(func, args, kwargs, "mean")), float(_given(func, args, kwargs, "std"))
    return _wide("normal", args[0]), lambda value: args[0].copy_(value.mul(std).add_(mean).exp_())


def _cauchy_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    """By inversion: the tangent of an angle that is uniform."""
    median, scale = float(_given(func, args, kwargs, "median")), float(_given(func, args, kwargs, "sigma"))
    return _wide("uniform", args[0]), lambda value: args[0].copy_(value.sub(0.5).mul_(math.pi).tan_().mul_(scale).add_(median))


def _geometric_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    """The exponential number rounded up, in units in which one step is survived with probability 1 - p."""
    chance = float(_given(func, args, kwargs, "p"))
    if not 0.0 < chance < 1.0:
        raise ValueError(f"geometric_ takes a probability between 0 and 1, got {chance}")
    rate = -math.log1p(-chance)
    return _wide("exponential", args[0]), lambda value: args[0].copy_(value.div(rate).ceil_().clamp_min_(1.0))


def _exponential_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    rate = float(_given(func, args, kwargs, "lambd"))
    return _like("exponential", args[0]), lambda value: args[0].copy_(value / rate)


def _made(kind: str) -> Callable[[Any, tuple, dict], tuple[Request, Answer]]:
    """``rand``, ``randn``: a tensor of its own, of a given size."""

    def handler(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
        return _new(kind, args[0], kwargs), lambda value: value.clone(memory_format=torch.contiguous_format)

    return handler


def _made_out(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    """``rand`` into a tensor that is there."""
    size, out = torch.Size(args[0]), kwargs["out"]
    return Request("uniform", (), size, out.dtype, out.device), lambda value: out.resize_(size).copy_(value)


def _made_like(kind: str) -> Callable[[Any, tuple, dict], tuple[Request, Answer]]:
    """``rand_like``, ``randn_like``."""

    def handler(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
        dtype, device = kwargs.get("dtype") or args[0].dtype, torch.device(kwargs.get("device") or args[0].device)
        options = {name: value for name, value in kwargs.items() if name != "generator"}
        return Request(kind, (), args[0].shape, dtype, device), lambda value: torch.empty_like(args[0], **options).copy_(value)

    return handler


def _integers(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    low = _given(func, args, kwargs, "low") if any(a.name == "low" for a in func._schema.arguments) else 0
    high, dtype = _given(func, args, kwargs, "high"), kwargs.get("dtype") or torch.int64
    asked = _new("integer", _given(func, args, kwargs, "size"), {**kwargs, "dtype": torch.int64}, low, high)
    return asked, lambda value: value.to(dtype)


def _integers_like(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    low = _given(func, args, kwargs, "low") if any(a.name == "low" for a in func._schema.arguments) else 0
    high, dtype = _given(func, args, kwargs, "high"), kwargs.get("dtype") or args[0].dtype
    asked = Request("integer", (low, high), args[0].shape, torch.int64, args[0].device)
    return asked, lambda value: value.to(dtype)


def _integers_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    low = _given(func, args, kwargs, "from") if any(a.name == "from" for a in func._schema.arguments) else 0
    high = _given(func, args, kwargs, "to")
    if high is None:
        raise UnknownDraw(f"{func} without an upper bound")
    return Request("integer", (low, high), args[0].shape, torch.int64, args[0].device), args[0].copy_


def _order(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    """``randperm``: everybody's order, by sorting a number for each place."""
    asked = _new("uniform", (args[0],), {**kwargs, "dtype": torch.float64})
    return asked, lambda value: value.argsort(stable=True).to(kwargs.get("dtype") or torch.int64)


def _choices(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    """``multinomial``: the smallest of exponential numbers over the weights (Efraimidis and Spirakis 2006), or by inversion."""
    weights, count = args[0], int(args[1])
    if not _given(func, args, kwargs, "replacement"):
        asked = Request("exponential", (), weights.shape, torch.float32, weights.device)
        return asked, lambda value: (value / weights.float()).topk(count, dim=-1, largest=False).indices
    shape = torch.Size((*weights.shape[:-1], count))
    asked = Request("uniform", (), shape, torch.float32, weights.device)

    def choose(value: torch.Tensor) -> torch.Tensor:
        edges = weights.float().cumsum(-1)
        return torch.searchsorted(edges, value * edges[..., -1:], right=True).clamp_max_(weights.shape[-1] - 1)

    return asked, choose


def _leaky(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    """The randomised leaky ReLU, which writes the slope of every element into ``noise`` for its backward pass."""
    value, noise = args[0], args[1]
    low, high = float(_given(func, args, kwargs, "lower")), float(_given(func, args, kwargs, "upper"))

    def answer(uniform: torch.Tensor) -> torch.Tensor:
        slopes = torch.where(value <= 0, uniform.to(value.dtype).mul(high - low).add_(low), 1.0)
        noise.copy_(slopes)
        return value * slopes

    return _like("uniform", value), answer


def _leaky_in_place(func: Any, args: tuple, kwargs: dict) -> tuple[Request, Answer]:
    asked, answer = _leaky(func, args, kwargs)
    return asked, lambda uniform: args[0].copy_(answer(uniform))


_HANDLERS: dict[Any, Callable[[Any, tuple, dict], tuple[Request, Answer]]] = {
    _aten.bernoulli_.float: _keep_in_place,
    _aten.bernoulli.p: _keep,
    _aten.bernoulli.default: _chance,
    _aten.bernoulli_.Tensor: _chance,
    _aten.native_dropout.default: _dropout,
    _aten.rand.default: _made("uniform"),
    _aten.randn.default: _made("normal"),
    _aten.rand.generator: _made("uniform"),
    _aten.randn.generator: _made("normal"),
    _aten.rand.out: _made_out,
    _aten.rand_like.default: _made_like("uniform"),
    _aten.randn_like.default: _made_like("normal"),
    _aten.rand_like.generator: _made_like("uniform"),
    _aten.randn_like.generator: _made_like("normal"),
    _aten.uniform_.default: _uniform_in_place,
    _aten.normal_.default: _normal_in_place,
    _aten.normal.Tensor_float: _normal,
    _aten.normal.Tensor_Tensor: _normal,
    _aten.normal.float_Tensor: _normal,
    _aten.normal.float_float: _normal_of_numbers,
    _aten.log_normal_.default: _log_normal_in_place,
    _aten.cauchy_.default: _cauchy_in_place,
    _aten.geometric_.default: _geometric_in_place,
    _aten.exponential_.default: _exponential_in_place,
    _aten.randint.default: _integers,
    _aten.randint.low: _integers,
    _aten.randint.generator: _integers,
    _aten.randint.low_generator: _integers,
    _aten.randint_like.default: _integers_like,
    _aten.randint_like.low_dtype: _integers_like,
    _aten.randint_like.generator: _integers_like,
    _aten.randint_like.low_generator_dtype: _integers_like,
    _aten.random_.to: _integers_in_place,
    getattr(_aten.random_, "from"): _integers_in_place,
    _aten.randperm.default: _order,
    _aten.randperm.generator: _order,
    _aten.multinomial.default: _choices,
    _aten.rrelu_with_noise.default: _leaky,
    _aten.rrelu_with_noise_.default: _leaky_in_place,
}
