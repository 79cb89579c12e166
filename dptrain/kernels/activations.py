"""GELU in the forward and backward pass of a private microbatch, by a kernel (activations.cpp beside this).

One pass over memory at the speed of memory; its exact form takes two thirds of torch's time, its tanh form a fifth
(docs/performance.md). Entries that do not lie in one piece, and other types, are left to torch.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from dptrain import native
from dptrain.kernels import reductions
from dptrain.kernels.way import each, way, wrong

FORWARD: Final = torch.ops.aten.gelu.default
BACKWARD: Final = torch.ops.aten.gelu_backward.default

LEAST = 1 << 12
"""Entries below which a call of its own costs more than it saves."""

_SOURCE = Path(__file__).with_suffix(".cpp")
_FORMS = ("none", "tanh")
_COST = 16
"""Multiplications that an entry costs, for the choice of threads."""


def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Returns GELU of every entry, as torch's operation does.

    Raises:
        UnsupportedModule: code KERNEL_WRONG, in a probe: the kernel gives something else than torch.
    """
    if not _serves(x, form=approximate):
        return FORWARD(x, approximate=approximate)
    out = torch.empty_like(x)
    _run(library().dptrain_gelu, [x], approximate, out)
    return _held(out, lambda: FORWARD(x, approximate=approximate), x)


def gelu_back(grad_output: torch.Tensor, x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Returns the gradient of x, as torch's operation does; raises as :func:`gelu`."""
    if not _serves(x, grad_output, form=approximate):
        return BACKWARD(grad_output, x, approximate=approximate)
    out = torch.empty_like(x)
    _run(library().dptrain_gelu_backward, [grad_output, x], approximate, out)
    return _held(out, lambda: BACKWARD(grad_output, x, approximate=approximate), grad_output)


OPERATIONS: Final[dict[Any, Callable[..., Any]]] = {FORWARD: gelu, BACKWARD: gelu_back}
"""Holds what computes in the place of torch's operations."""


def _serves(*values: torch.Tensor, form: str) -> bool:
    pieces = all(x.is_contiguous() and x.shape == values[0].shape for x in values)
    return pieces and values[0].numel() >= LEAST and form in _FORMS and reductions.plain(*values) and library() is not None


def _run(run: Callable[..., None], given: list[torch.Tensor], form: str, out: torch.Tensor) -> None:
    """Runs a kernel over all entries, a block of them after the other."""
    count, by_tanh = out.numel(), form == "tanh"

    def some(first: int, many: int) -> None:
        start, end = first * LEAST, min((first + many) * LEAST, count)
        run(*(x.data_ptr() + 4 * start for x in given), end - start, by_tanh, out.data_ptr() + 4 * start)

    each(-(-count // LEAST), count * _COST, some)


NEAR = 2.0**-18
"""Distance from torch's results, over the size of what is multiplied by a share between 0 and 1.2, or its gradient."""


def _held(found: torch.Tensor, truth: Callable[[], torch.Tensor], sizes: torch.Tensor) -> torch.Tensor:
    """Returns results as they are found; in a probe, only if they are torch's."""
    if way.holding is not None:
        true = truth()
        near = NEAR * (sizes.abs() + torch.finfo(sizes.dtype).tiny)  # below the normal numbers, steps are of one size
        alike = ((found - true).abs() <= near) | ~true.isfinite()
        if not bool(alike.all()):
            at = int(torch.nonzero(~alike.flatten())[0])
            raise wrong(f"an entry of GELU over {tuple(true.shape)}", float(found.flatten()[at]), float(true.flatten()[at]))
    return found


# ----------------------------------------------------------------------------------------------------------------- building

@cache
def library() -> Any:
    """Returns the built kernel; None where there is no compiler, or what it built does not compute."""
    return native.built(_SOURCE, _declared, works)


def _declared(found: Any) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_long
    found.dptrain_gelu.argtypes, found.dptrain_gelu.restype = [pointer, number, number, pointer], None
    found.dptrain_gelu_backward.argtypes = [pointer, pointer, number, number, pointer]
    found.dptrain_gelu_backward.restype = None


def works(found: Any) -> bool:
    """Tells whether kernels compute: values and slopes near and far, and what is not a number stays so, by itself."""
    for count in (1, 37, 4097):
        x = torch.linspace(-14.0, 14.0, count, dtype=torch.float32) if count > 1 else torch.ones(1, dtype=torch.float32)
        grad = torch.arange(count, dtype=torch.float32).remainder_(7.0).sub_(3.0)
        x[count // 2] = torch.nan
        for form in _FORMS:
            out, slopes = torch.zeros_like(x), torch.zeros_like(x)
            found.dptrain_gelu(x.data_ptr(), count, form == "tanh", out.data_ptr())
            found.dptrain_gelu_backward(grad.data_ptr(), x.data_ptr(), count, form == "tanh", slopes.data_ptr())
            exact = x.double()
            true = FORWARD(exact, approximate=form), BACKWARD(grad.double(), exact, approximate=form)
            for own, other in zip((out, slopes), true, strict=True):
                if not bool((((own - other).abs() <= 1e-5) | (own.isnan() & other.isnan())).all()):
                    return False
    return True
