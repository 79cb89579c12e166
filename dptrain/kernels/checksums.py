"""Checksums of memory by a kernel (checksums.cpp beside this): every word is read once, by all threads, in one call for all.

:func:`dptrain.sandbox.untouched.checksums` says what they promise, and forms the same by torch where this does not serve.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from dptrain import native
from dptrain.kernels.way import each

SIDE: Final = 1 << 9
"""Words of a row; a piece has as many rows at most."""

ODD: Final = 0x9E3779B97F4A7C15
"""An odd multiplier: 2^64 divided by the golden ratio. A total is multiplied by it before the next sum is added."""

_PIECE = SIDE * SIDE
_MASK = (1 << 64) - 1
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_shared: Final[Callable[[torch.Tensor], bool]] = getattr(torch._C, "_is_cow_tensor", lambda _: False)
"""Tells whether memory is shared until somebody writes it: asked for its place, it would be copied. Internal to torch."""


def takes(x: torch.Tensor) -> bool:
    """Tells whether :func:`checksums` serves a tensor: its bytes lie in one piece of the processor's memory."""
    if type(x) not in _PLAIN or x.device.type != "cpu" or x.layout != torch.strided or x.is_nested or not x.is_contiguous():
        return False
    if x.is_conj() or x.is_neg() or x.is_quantized or _shared(x):
        return False
    end = x.storage_offset() * x.itemsize + x.nbytes
    held = end <= x.untyped_storage().nbytes() and bool(x.data_ptr() or not x.numel())
    return held and library() is not None


def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Returns the checksums of the bytes of tensors that it :func:`takes`, each as a signed number of 64 bits."""
    pieces: list[tuple[int, int]] = []
    for x in tensors:
        place, words = x.data_ptr(), x.nbytes // 8
        square = words // SIDE * SIDE
        pieces += [(place + 8 * start, min(_PIECE, square - start)) for start in range(0, max(1, square), _PIECE)]
        pieces.append((place + 8 * square, words - square))
    found = iter(_sums(pieces))
    return [_total(x, found) for x in tensors]


def _sums(pieces: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the sum of each piece, given as its place and its words."""
    places = (ctypes.c_void_p * len(pieces))(*(place for place, _ in pieces))
    words = (ctypes.c_long * len(pieces))(*(count for _, count in pieces))
    sums = (ctypes.c_uint64 * len(pieces))()
    run = library().dptrain_checksums

    def some(first: int, many: int) -> None:
        run(*(ctypes.addressof(array) + 8 * first for array in (places, words)), many, ctypes.addressof(sums) + 8 * first)

    each(len(pieces), sum(words), some)
    return list(sums)


def _total(x: torch.Tensor, sums: Any) -> int:
    total, words = x.nbytes, x.nbytes // 8
    for _ in range(max(1, -(-(words // SIDE * SIDE) // _PIECE)) + 1):
        total = total * ODD + next(sums) & _MASK
    rest = ctypes.string_at(x.data_ptr() + 8 * words, x.nbytes - 8 * words) if x.nbytes % 8 else b""
    total = total * ODD + sum(value * (2 * place + 1) for place, value in enumerate(rest)) & _MASK
    return total - (1 << 64) if total >> 63 else total


@cache
def library() -> Any:
    """Returns the kernel; None where there is no compiler, or it does not compute."""
    return native.built(Path(__file__).with_suffix(".cpp"), _declared, works)


def _declared(found: Any) -> None:
    """Tells the types of what it takes."""
    pointer = ctypes.c_void_p
    found.dptrain_checksums.argtypes = [pointer, pointer, ctypes.c_long, pointer]
    found.dptrain_checksums.restype = None


def works(found: Any) -> bool:
    """Tells whether the sums of three rows, and of less than one, are those of Python's whole numbers."""
    values = [(ODD * (place + 1)) & _MASK for place in range(3 * SIDE + 5)]
    memory, sums = (ctypes.c_uint64 * len(values))(*values), (ctypes.c_uint64 * 2)()
    places = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(memory) + 8 * 3 * SIDE)
    found.dptrain_checksums(places, (ctypes.c_long * 2)(3 * SIDE, 5), 2, sums)
    weights = [2 * (place // SIDE) + 1 + 2 * SIDE * (2 * (place % SIDE) + 1) for place in range(3 * SIDE)]
    grid = sum(weight * value for weight, value in zip(weights, values, strict=False))
    rest = sum((2 * place + 1) * value for place, value in enumerate(values[3 * SIDE :]))
    return list(sums) == [grid & _MASK, rest & _MASK]
