"""Turns independent normals of one step into correlated ones: x_t = (C^-1 Z)_t, coordinate by coordinate, in float64.

A recurrence keeps some buffers for every coordinate. Every operation is one product or one sum of two numbers of the same
coordinate, so that the bits of a coordinate do not depend on the tensor, or the part of it, that it is computed with.
"""

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from ledger.accountants.correlated import Banded, BandedInverse, Buffered, Strategy, Toeplitz
from ledger.accountants.correlated.strategies import CODE
from ledger.errors import AccountantError

BLOCK: Final = 1 << 13
"""Coordinates that are worked on at a time: three arrays of them stay in the first caches of a core."""


class Recurrence(Protocol):
    """Makes the noise of a strategy step by step.

    Attributes:
        buffers: float64 numbers that it keeps for every coordinate.
    """

    buffers: int

    def next(self, t: int, values: np.ndarray, held: np.ndarray) -> None:
        """Turns z_t into x_t, in place.

        Args:
            t: step, from 0; every one once, in order. values: z_t, shape (count,), float64.
            held: buffers of the same coordinates, shape (buffers, count), zero before step 0; changed in place.
        """


class Autoregressive:
    """Solves C x = z by the last outputs: x_t = (z_t - sum_(r > 0) C[t, t - r] x_(t - r)) / C[t, t].

    Args:
        bands: diagonals of C. row: of a step, gives C[t, t], C[t, t - 1], .. as far as there are.
    """

    def __init__(self, bands: int, row: Callable[[int], np.ndarray]) -> None:
        self.buffers = bands - 1
        self._row = row

    def next(self, t: int, values: np.ndarray, held: np.ndarray) -> None:
        row = self._row(t)
        scratch = np.empty(min(BLOCK, len(values)))
        for begin in range(0, len(values), BLOCK):
            here = slice(begin, begin + BLOCK)
            part = values[here]
            product = scratch[: len(part)]
            for r in range(1, len(row)):
                np.multiply(held[(t - r) % self.buffers, here], row[r], out=product)
                part -= product
            if row[0] != 1.0:
                part /= row[0]
            if self.buffers:
                held[t % self.buffers, here] = part


class MovingAverage:
    """Weighs the last inputs: x_t = sum_j w_j z_(t - j)."""

    def __init__(self, coefficients: tuple[float, ...]) -> None:
        self.buffers = len(coefficients) - 1
        self._coefficients = coefficients

    def next(self, t: int, values: np.ndarray, held: np.ndarray) -> None:
        first, scratch = self._coefficients[0], np.empty(min(BLOCK, len(values)))
        drawn = np.empty_like(scratch)
        for begin in range(0, len(values), BLOCK):
            here = slice(begin, begin + BLOCK)
            part = values[here]
            product = scratch[: len(part)]
            kept = drawn[: len(part)]
            kept[:] = part
            if first != 1.0:
                part *= first
            for j in range(1, min(self.buffers, t) + 1):
                np.multiply(held[(t - j) % self.buffers, here], self._coefficients[j], out=product)
                part += product
            if self.buffers:
                held[t % self.buffers, here] = kept


class Buffers:
    """Keeps sums of the outputs that decay: x_t = z_t - sum_j omega_j S_j, then S_j <- theta_j S_j + x_t."""

    def __init__(self, strategy: Buffered) -> None:
        self.buffers = len(strategy.decays)
        self._pairs = tuple(zip(strategy.decays, strategy.scales, strict=True))

    def next(self, t: int, values: np.ndarray, held: np.ndarray) -> None:
        scratch = np.empty(min(BLOCK, len(values)))
        for begin in range(0, len(values), BLOCK):
            here = slice(begin, begin + BLOCK)
            part = values[here]
            product = scratch[: len(part)]
            for buffer, (_, scale) in zip(held, self._pairs, strict=True):
                np.multiply(buffer[here], scale, out=product)
                part -= product
            for buffer, (decay, _) in zip(held, self._pairs, strict=True):
                buffer[here] *= decay
                buffer[here] += part


def recurrence_of(strategy: Strategy, steps: int) -> Recurrence:
    """Returns the recurrence of a strategy that has one.

    Raises:
        AccountantError: code STRATEGY, a dense strategy, whose noise is drawn again from its addresses.
    """
    if isinstance(strategy, Buffered):
        return Buffers(strategy)
    if isinstance(strategy, BandedInverse):
        return MovingAverage(strategy.coefficients)
    if isinstance(strategy, Toeplitz):
        column, scales = np.array(strategy.coefficients[:steps]), strategy.scales(steps)
        return Autoregressive(len(column), lambda t: column[: t + 1] * scales[t::-1][: len(column)])
    if isinstance(strategy, Banded):
        columns = strategy.columns(strategy.longest)
        return Autoregressive(
            strategy.bands, lambda t: np.array([columns[t - r, r] for r in range(min(strategy.bands, t + 1))])
        )
    raise AccountantError(CODE, f"{type(strategy).__name__} has no recurrence of a few buffers")
