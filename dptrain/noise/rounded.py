"""Rounds standard normals to whole lattice steps: what `normals` gives, to the last bit, in a fraction of the time.

A release takes no more of a normal than the lattice step it is nearest to. So a cheaper transform says which that is, and the
reference is asked about the few pairs of which it could not: near the middle between two steps, and in the tails. Where a C++
compiler is at hand (:mod:`dptrain.native`), the cheap one is one pass over memory (rounded.cpp beside this).

Proof:
    Let u = 2^-53, r the radius, v the reference's normal in lattice steps of 2^-32, and w the cheap one. Pairs with x < 2^-10
    are left to the reference.

    * *Radius.* Here x is the middle of the 2^-53 in which the reference's lies, so 2^-54 off at most. Where the logarithm is of
      x, that is 2^-44 of it, and moves r by 2^-44/r, where r is 3.7 at least; where it is of 1 - x, it is u, as much again for
      its rounding, and r is above 2^-4.6. In steps that is 2^-13.8 at most. Logarithms to 1 ulp (the reference) and 4 ulp
      (this), halved in relative size by the root, and roots to 1 ulp and half of one: 8 u of r. The factor under the root is
      rounded, 1 u of r.
    * *Angle of the reference.* 2 pi 2^-53 and the product with it are rounded, 2 pi 2 u; its sine to 1 ulp and the product
      with the radius: 15 u of r.
    * *Angle here.* The middle of one cell of 4096 by a table, of which angles below pi/4 and their sines are rounded: 3 u. From
      there it is a, pi/4096 at most, and with p = (a/4)^2 - 3/8 are p^2 - 3/64 = 3/32 (1 - a^2/2 + a^4/24) and
      -a/4 p = 3/32 (a - a^3/6): 0.02 u less than cosine and sine, and rounded by 6 u. Two products with the radius, and the
      product of complex numbers: 7 u of r.

    Together 40 u of r, and r is 13.3 at most: |v - w| < 2^-11.6 steps. So where w is not within 2^-10 of the middle between two
    steps, both round to one step. A coarser lattice leaves more room.
"""

import ctypes
import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from dptrain import native
from dptrain.noise.keystream import ZEROS, KeyStream
from dptrain.noise.normals import AT_A_TIME, TAIL_LANE, Blocks, BoxMuller

UNSURE: Final = 2.0**-10
"""Lattice steps: a normal is computed again by the reference where it is so close to the middle between two of them."""

PART: Final = 1 << 13
"""Pairs that a kernel draws at a time: their words stay in the cache of a core until they are rounded."""

_TAIL: Final = 2.0**-10
_CELL_BITS: Final = 12
_CELL: Final = 2.0 * math.pi / (1 << _CELL_BITS)

_MIDDLE: Final = 0.5 - 2.0**-54
_P: Final = 3.0 / 8.0
_Q: Final = 3.0 / 64.0
_HALF = np.uint64(0x3FE << 52)  # exponents of 1/2 and 1
_UNIT = np.uint64(0x3FF << 52)
_ONE = np.uint64(1)
_TWELVE = np.uint64(12)
_CELL_PLACE = np.uint64(64 - _CELL_BITS)
_NOWHERE = np.empty(0, np.int64)
_NOTHING = np.empty((0, 2), np.uint64)
_IN_CELL = np.uint64((1 << 64 - _CELL_BITS) - (1 << 11))


def _table() -> np.ndarray:
    """Returns e^(i angle) at the middle of every cell of a turn: an eighth, mirrored and turned."""
    angles = (np.arange(1 << _CELL_BITS - 3) + 0.5) * _CELL
    eighth = np.cos(angles) + 1j * np.sin(angles)
    quarter = np.concatenate([eighth, 1j * np.conj(eighth[::-1])])
    half = np.concatenate([quarter, 1j * quarter])
    return np.concatenate([half, -half])


_TURNS: Final = _table()


def _vectorized_log() -> bool:
    """Tells whether numpy computes logarithms of this machine's doubles several at a time; torch always does."""
    try:
        found = np.lib.introspect.opt_func_info(func_name="^log$", signature="float64")
        return any("baseline" not in kind["current"] for kind in found["log"].values())
    except (AttributeError, KeyError):  # before numpy 2.0
        return False


_BY_NUMPY: Final = _vectorized_log()


class RoundedNormals:
    """Gives normals in lattice steps; one instance serves one thread, and keeps its buffers from call to call.

    Args:
        bits: of the lattice, 32 at most: its steps are 2^-bits.
    """

    def __init__(self, bits: int) -> None:
        if not 0 < bits <= 32:
            raise ValueError(f"a lattice of {bits} bits, expected 1 to 32: the proof of what is rounded has no more")
        self._steps = 2.0**bits
        self._scale = -2.0 * (32.0 / 3.0 * self._steps) ** 2
        self._reference = BoxMuller()
        self._words = np.empty((PART, 2), np.uint64)
        self._room(0)

    def _room(self, pairs: int) -> None:
        self._integers = [np.empty(pairs, np.uint64) for _ in range(2)]
        self._floats = [np.empty(pairs, np.float64) for _ in range(3)]
        self._products = np.empty(pairs, np.complex128)
        self._masks = [np.zeros(2 * pairs, np.bool_) for _ in range(2)]
        self._places = np.empty(pairs, np.int64)

    def steps(self, stream: Blocks, step: int, lane: int, offset: int, count: int) -> np.ndarray:
        """Returns normals in lattice steps, rounded: float64, shape (count,), of coordinates [offset, offset + count).

        Guarantee: Every bit is that of `BoxMuller.normals` at this address, times 2^bits and rounded.

        Args:
            step, lane, offset: the address; ``offset`` is even, and ``lane`` below `TAIL_LANE`.
        """
        pairs, first = (count + 1) // 2, offset // 2
        turns = np.empty(pairs, np.complex128)
        kernels = library() if native.to_nearest() else None
        drawn = None
        if kernels is not None and isinstance(stream, KeyStream):
            with stream.running(step, lane, first, pairs) as running:
                drawn = None if running is None else self._drawn_of(kernels, running, turns)
        if drawn is None:
            drawn = self._read(kernels, stream, step, lane, first, turns)
        unsure, doubted = drawn
        found = turns.view(np.float64)

        def more(place: int) -> bytes:
            return stream.read(step, lane | TAIL_LANE, first + int(unsure[place]), 1)

        exact = self._reference.transformed(doubted, more).numpy()
        exact *= self._steps
        found.reshape(pairs, 2)[unsure] = np.rint(exact)
        return found[:count]

    def _read(
        self, kernels: Any, stream: Blocks, step: int, lane: int, first: int, turns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads and rounds pairs some at a time; returns the places of those that are not sure, and their words."""
        places, doubted = [_NOWHERE], [_NOTHING]
        for start in range(0, len(turns), AT_A_TIME):
            part = turns[start : start + AT_A_TIME]
            if len(part) > len(self._places):
                self._room(len(part))
            words = np.frombuffer(stream.read(step, lane, first + start, len(part)), dtype="<u8").reshape(-1, 2)
            unsure = self._nearest(words, part) if kernels is None else self._nearest_of(kernels, words, part)
            places.append(unsure + start)
            doubted.append(words[unsure])
        return np.concatenate(places), np.concatenate(doubted)

    def _nearest_of(self, kernels: Any, words: np.ndarray, turns: np.ndarray) -> np.ndarray:
        """Does what `_nearest` does, by a kernel."""
        where = turns.ctypes.data, self._places.ctypes.data
        count = kernels.dptrain_nearest(words.ctypes.data, len(words), *self._limits(), *where)
        return self._places[:count]

    def _limits(self) -> tuple[Any, ...]:
        """Returns what a kernel is told of the transform."""
        return _TURNS.ctypes.data, self._scale, _TAIL, 0.5 - UNSURE

    def _drawn_of(self, kernels: Any, running: tuple[int, int], turns: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Draws and rounds pairs in one call; returns the places of those that are not sure, and their words; None where the
        cipher failed, and then nothing of it may be used."""
        places, doubted = np.empty(len(turns), np.int64), np.empty((len(turns), 2), np.uint64)  # few of them are written
        where = turns.ctypes.data, places.ctypes.data, doubted.ctypes.data
        count = kernels.dptrain_drawn(
            *running, ZEROS, self._words.ctypes.data, len(self._words), len(turns), *self._limits(), *where
        )
        return None if count < 0 else (places[:count], doubted[:count])

    def _nearest(self, words: np.ndarray, turns: np.ndarray) -> np.ndarray:
        """Rounds all pairs, into ``turns``, and returns the places of those of which that is not sure."""
        pairs = len(words)
        second, spare = (buffer[:pairs] for buffer in self._integers)
        x, radius, cosine = (buffer[:pairs] for buffer in self._floats)
        products, mask, other = self._products[:pairs], self._masks[0], self._masks[1]

        # Bits under the exponent of 2^k are a number from 2^k to twice that, without a conversion.
        np.right_shift(words[:, 0], _TWELVE, out=spare)
        np.bitwise_or(spare, _HALF, out=spare)
        np.subtract(spare.view(np.float64), _MIDDLE, out=x)
        tail = np.flatnonzero(np.less(x, _TAIL, out=mask[:pairs]))
        np.copyto(second, words[:, 1])
        np.bitwise_and(second, _ONE, out=spare)
        np.copyto(radius, spare.view(np.int64), casting="unsafe")
        np.subtract(radius, x, out=radius)
        np.abs(radius, out=radius)
        if _BY_NUMPY:
            np.log(radius, out=radius)
        else:
            torch.from_numpy(radius).log_()
        radius *= self._scale
        np.sqrt(radius, out=radius)

        np.right_shift(second, _CELL_PLACE, out=spare)
        np.take(_TURNS, spare.view(np.int64), out=turns, mode="wrap")
        np.bitwise_and(second, _IN_CELL, out=second)
        np.bitwise_or(second, _UNIT, out=second)
        sine, square = second.view(np.float64), x
        sine -= 1.5
        sine *= -0.25 * _CELL
        np.multiply(sine, sine, out=square)
        square -= _P
        sine *= square
        np.multiply(square, square, out=cosine)
        cosine -= _Q
        np.multiply(radius, cosine, out=products.real)
        np.multiply(radius, sine, out=products.imag)
        products *= turns

        normals, found = products.view(np.float64), turns.view(np.float64)
        np.rint(normals, out=found)
        normals -= found
        np.greater(normals, 0.5 - UNSURE, out=mask[: 2 * pairs])
        np.less(normals, UNSURE - 0.5, out=other[: 2 * pairs])
        np.logical_or(mask[: 2 * pairs], other[: 2 * pairs], out=mask[: 2 * pairs])
        close = np.flatnonzero(mask[: 2 * pairs])
        return np.concatenate([tail, close >> 1])


@cache
def library() -> Any:
    """Returns the kernel; None where there is no compiler, or it does not compute."""
    return native.built(Path(__file__).with_suffix(".cpp"), _declared, works)


def _declared(found: Any) -> None:
    """Tells the types of what it takes."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
    found.dptrain_nearest.argtypes = [pointer, number, pointer, real, real, real, pointer, pointer]
    words = [pointer, pointer, ctypes.c_char_p, pointer, number, number]
    found.dptrain_drawn.argtypes = [*words, pointer, real, real, real, pointer, pointer, pointer]
    found.dptrain_nearest.restype = found.dptrain_drawn.restype = number


def works(kernels: Any) -> bool:
    """Tells whether a kernel rounds some thousand pairs as the reference does, those of extreme bits among them, is sure of
    nearly all, and of none that it cannot be sure of."""
    ends = np.array([0, 1, 1 << 11, 1 << 52, (1 << 52) - 1, 1 << 63, (1 << 64) - 1], np.uint64)
    extreme = np.stack(np.meshgrid(ends, ends), -1).reshape(-1, 2)
    others = np.frombuffer(hashlib.shake_256(b"words").digest(16 * 10_000), "<u8").reshape(-1, 2).copy()
    # The first half has the longest radii and the logarithms farthest from zero: x from 2^-10 to 2^-8, and u = x.
    others[:5000, 0] = (1 << 55) + others[:5000, 0] % np.uint64(3 << 55)
    others[:5000, 1] &= ~_ONE
    words = np.concatenate([extreme, others])
    own, turns = RoundedNormals(32), np.empty(len(words), np.complex128)
    own._room(len(words))
    places = own._nearest_of(kernels, words, turns)
    exact = own._reference.transformed(words, lambda place: bytes(16)).numpy() * own._steps
    true = np.rint(exact)
    sure = np.ones(len(words), np.bool_)
    sure[places] = False
    # Whatever w is, these are in the tail, or within 2^-10 of a middle.
    unsure = (words[:, 0] < np.uint64(1 << 55)) | (np.abs(exact - true).max(axis=1) > 0.5 - UNSURE / 2)
    told = not (unsure & sure).any()
    found = turns.view(np.float64).reshape(-1, 2)
    right = told and sure[len(extreme) :].mean() > 0.95 and np.array_equal(found[sure], true[sure])
    return right and _draws(kernels, own)


def _draws(kernels: Any, own: RoundedNormals) -> bool:
    """Tells whether a kernel that draws words itself, in three parts, rounds those that the stream gives, to the bit."""
    stream, turns = KeyStream("trial", bytes(16), 0, bytes(32)), np.empty((2, 2 * PART + 77), np.complex128)
    with stream.running(7, 3, 5, turns.shape[1]) as running:
        drawn = None if running is None else own._drawn_of(kernels, running, turns[0])
    if drawn is None:
        return running is None
    true = own._read(kernels, stream, 7, 3, 5, turns[1])
    return np.array_equal(*turns.view(np.uint64)) and all(map(np.array_equal, drawn, true))
