"""Adds noise in lattice steps to sums: one pass of a kernel (adding.cpp beside this), or five of numpy, to the same bits.

A short call of numpy lets no other thread of the interpreter run between its passes; a call of the kernel does, for all of its
time.
"""

import ctypes
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from dptrain import native

OPTIONS: Final = ("-ffp-contract=off",)
"""Has the compiler round a product and a sum one after the other, as numpy does."""

_SPECIAL: Final = np.array([0, 1, 1 << 51, 0x7FF << 52, (0x7FF << 52) + 1, 0xFFF << 51, (0xFFF << 51) + 12345], np.uint64)
"""Bits of zero, of subnormal numbers, of infinity and of what is not a number."""

_KERNELS: Final = {np.dtype(np.float64): "dptrain_add_reals", np.dtype(np.int64): "dptrain_add_integers"}


def add_(sums: np.ndarray, noise: np.ndarray, gamma: float, limit: float, scale: float) -> None:
    """Turns sums into releases, in place: rounds them to steps of ``gamma``, cuts them at ``limit``, adds noise and scales.

    Guarantee: Every bit is that of numpy's passes: a quotient, the whole number nearest to it, one between the limits, a sum
    and a product, each rounded by itself. What is not a number stays what it is.

    Args:
        sums: float64. noise: whole numbers of steps of the same coordinates. limit: in steps. scale: of a step in what is
            released.
    """
    if not _by_kernel(library(), sums, noise, gamma, limit, scale):
        _by_numpy(sums, noise, gamma, limit, scale)


def _by_numpy(sums: np.ndarray, noise: np.ndarray, gamma: float, limit: float, scale: float) -> None:
    np.divide(sums, gamma, out=sums)
    np.clip(np.rint(sums, out=sums), -limit, limit, out=sums)
    sums += noise  # both below 2^53: exact
    sums *= scale


def _by_kernel(kernels: Any, sums: np.ndarray, noise: np.ndarray, gamma: float, limit: float, scale: float) -> bool:
    """Does so by a kernel; False, and nothing is written, for what it does not take."""
    if kernels is None or sums.shape != noise.shape or sums.dtype != np.float64 or noise.dtype not in _KERNELS:
        return False
    if not (sums.flags.carray and noise.flags.c_contiguous and noise.flags.aligned and native.to_nearest()):
        return False
    add = getattr(kernels, _KERNELS[noise.dtype])
    add(sums.ctypes.data, noise.ctypes.data, sums.size, gamma, limit, scale)
    return True


@cache
def library() -> Any:
    """Returns the kernel; None where there is no compiler, or it does not compute as numpy does."""
    return native.built(Path(__file__).with_suffix(".cpp"), _declared, works, OPTIONS)


def _declared(found: Any) -> None:
    """Tells the types of what it takes."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
    for name in _KERNELS.values():
        add = getattr(found, name)
        add.argtypes, add.restype = [pointer, pointer, number, real, real, real], None


def works(kernels: Any) -> bool:
    """Tells whether a kernel gives the bits that numpy gives: of ties between steps, of what lies at the limits or beyond, of
    what is not finite, and of numbers of any size; at any place of a vector."""
    with np.errstate(all="ignore"):
        return all(_same(kernels, *given) for given in _cases())


def _same(kernels: Any, sums: np.ndarray, noise: np.ndarray, gamma: float, limit: float, scale: float) -> bool:
    """Tells whether a kernel gives numpy's bits, in short parts of an array and in all of it, and writes nothing else."""
    for part in (*(slice(first, first + 5 * first // 4) for first in range(32)), slice(None)):
        found, true = sums.copy(), sums.copy()
        taken = _by_kernel(kernels, found[part], noise[part], gamma, limit, scale)
        _by_numpy(true[part], noise[part], gamma, limit, scale)
        if not taken or not np.array_equal(found.view(np.uint64), true.view(np.uint64)):
            return False
    return True


def _cases() -> Iterator[tuple[np.ndarray, np.ndarray, float, float, float]]:
    """Yields arguments of `add_` at its edges."""
    words = np.frombuffer(hashlib.shake_256(b"sums").digest(8 * 400), "<u8").astype(np.uint64)
    whole = (words >> np.uint64(12)).astype(np.float64)
    middles = (whole * 2.0 ** -(words % np.uint64(52)).astype(np.float64) // 1.0) + 0.5
    drawn = (words[::-1] >> np.uint64(29)).astype(np.int64) - (1 << 34)
    special = _SPECIAL.view(np.float64)
    for gamma, limit in ((2.0**-32, 2.0**51), (0.37 * 2.0**-32, 2.0**51), (1.1e7, 2.0**38), (3.0 * 2.0**-932, 2.0**51)):
        ends = np.array([0.0, 1.0, limit - 1.0, limit, limit + 1.0, 2.0**52, 2.0**53, 2.0**300])
        steps = np.concatenate([ends, ends + 0.5, ends - 0.5, middles, np.sqrt(whole)])
        near = np.concatenate([steps * gamma, np.nextafter(steps * gamma, np.inf), np.nextafter(steps * gamma, -np.inf)])
        sums = np.concatenate([special, -special, near, -near, words.view(np.float64)])
        noise = np.resize(drawn, len(sums))
        noise[::5] = 0
        for scale in (gamma / 7.0, -gamma):
            yield sums, noise, gamma, limit, scale
            yield sums, np.where(noise == 0, -0.0, noise), gamma, limit, scale
