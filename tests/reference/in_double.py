"""Models that switch to float32 inside, whatever their own type, kept in float64 while they are compared."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from dptrain.gradients import fused

TYPED = (
    (torch.Tensor, ("to", "type", "softmax", "log_softmax", "sum", "mean", "cumsum", "new_zeros", "new_ones", "new_tensor")),
    (torch.nn.functional, ("softmax", "log_softmax", "normalize")),
    (
        torch,
        ("softmax", "log_softmax", "sum", "mean", "cumsum", "arange", "linspace", "zeros", "ones", "full", "empty", "tensor"),
    ),
)
"""Functions that take a type, by where they hang."""


def _in_double(function: Callable) -> Callable:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()}
        return function(*args, **kwargs)

    return called


@contextmanager
def in_double() -> Iterator[None]:
    """Inside, float64 is the default type, and whoever asks torch for float32 gets float64.

    Norms, routers and softmaxes that compute in float32 (Gemma's, say) would round the naive loop's own gradient, and a mask
    of the least float64 is minus infinity in float32. By name and not by a function mode of torch, which is off in hooks.
    """
    kept = [(place, name, getattr(place, name)) for place, names in TYPED for name in names]
    default, single = torch.get_default_dtype(), torch.Tensor.float
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    for place, name, function in kept:
        setattr(place, name, _in_double(function))
    try:
        yield
    finally:
        for place, name, function in kept:
            setattr(place, name, function)
        torch.Tensor.float = single
        torch.set_default_dtype(default)
        fused._holds.cache_clear()  # what was found in float64 of forwards in fewer passes is not so in float32
