"""Gradients of scale and shift of layer normalisation per contribution, by a kernel (norms.cpp beside this).

Torch normalises once more, multiplies and sums twice: six passes over memory, of which the kernel makes two.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dptrain import native
from dptrain.kernels import reductions
from dptrain.kernels.way import each, way, wrong

_SOURCE = Path(__file__).with_suffix(".cpp")
_COST = 8
"""Multiplications that an entry costs, for the choice of threads."""

NEAR = 2.0**-16
"""Distance from torch's results in float64, over the sizes of what is added up; rounding leaves some 2^-20."""


def gradients(x_NTD: torch.Tensor, b_NTD: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns sum_t b_t normalise(x_t) and sum_t b_t of every contribution, (N, D) each; None where torch is to compute them.

    A contribution's numbers are the same bits whoever else is in the microbatch, and on any number of threads.

    Args:
        x_NTD: what was normalised over its last dimension. b_NTD: the gradient of the output. eps: added to the variance.

    Raises:
        UnsupportedModule: code KERNEL_WRONG, in a probe: the kernel gives something else than torch.
    """
    if x_NTD.shape != b_NTD.shape or not (x_NTD.is_contiguous() and b_NTD.is_contiguous()):
        return None
    if not x_NTD.numel() or not reductions.plain(x_NTD, b_NTD) or library() is None:
        return None
    n, t, d = x_NTD.shape
    scale, shift = x_NTD.new_empty(n, d), x_NTD.new_empty(n, d)
    run = library().dptrain_normalised

    def some(first: int, many: int) -> None:
        for one in range(first, first + many):
            apart, to = 4 * one * t * d, 4 * one * d
            run(x_NTD.data_ptr() + apart, b_NTD.data_ptr() + apart, t, d, eps, scale.data_ptr() + to, shift.data_ptr() + to)

    each(n, x_NTD.numel() * _COST, some)
    if way.holding is not None:
        _require(x_NTD, b_NTD, eps, scale, shift)
    return scale, shift


def _require(x: torch.Tensor, b: torch.Tensor, eps: float, scale: torch.Tensor, shift: torch.Tensor) -> None:
    """Raises UnsupportedModule for sums that are not torch's in float64."""
    x, b = x.double(), b.double()
    normal = torch.nn.functional.layer_norm(x, x.shape[-1:], None, None, eps)
    summed = x.abs().mean(-1, keepdim=True) * (x.var(-1, correction=0, keepdim=True) + eps).rsqrt()  # by what a mean rounds
    for found, by, slack in ((scale, normal, normal.abs() + summed), (shift, torch.ones_like(normal), 1.0)):
        true, near = (b * by).sum(1), NEAR * (b.abs() * slack).sum(1)
        alike = ((found - true).abs() <= near + torch.finfo(torch.float32).tiny) | ~true.isfinite()
        if not bool(alike.all()):
            at = tuple(torch.nonzero(~alike)[0].tolist())
            raise wrong(f"a gradient of a normalisation over {tuple(x.shape)}", float(found[at]), float(true[at]))


# ----------------------------------------------------------------------------------------------------------------- building

@cache
def library() -> Any:
    """Returns the built kernel; None where there is no compiler, or what it built does not compute."""
    return native.built(_SOURCE, _declared, works)


def _declared(found: Any) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_long
    found.dptrain_normalised.argtypes = [pointer, pointer, number, number, ctypes.c_float, pointer, pointer]
    found.dptrain_normalised.restype = None


def works(found: Any) -> bool:
    """Tells whether a kernel computes: at odd sizes, far from zero, and so that what is not a number shows."""
    for t, d in ((1, 1), (1, 37), (33, 16), (70, 50), (128, 384)):
        x, b = (
            torch.arange(t * d, dtype=torch.float32).remainder_(prime).sub_(prime / 3).div_(7.0).view(t, d)
            for prime in (61.0, 53.0)
        )
        x += torch.arange(t, dtype=torch.float32)[:, None] * 3.0
        normal = torch.nn.functional.layer_norm(x.double(), (d,), None, None, 1e-5)
        true = torch.stack([(b * normal).sum(0), b.double().sum(0)])
        reach = torch.stack([(b * normal).abs().sum(0), b.double().abs().sum(0)])
        out = torch.full((2, d), 7.0, dtype=torch.float32)
        given = x.data_ptr(), b.data_ptr(), t, d, 1e-5
        found.dptrain_normalised(*given, out[0].data_ptr(), out[1].data_ptr())
        if not bool(((out - true).abs() <= 1e-4 * reach + 1e-6).all()):
            return False
        x[t - 1, d - 1] = torch.nan
        found.dptrain_normalised(*given, out[0].data_ptr(), out[1].data_ptr())
        if not bool(out[0].isnan().all()) or not bool(out[1].isfinite().all()):
            return False
    return True
