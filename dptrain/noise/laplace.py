"""Laplace noise of scale 2^b, rounded to the nearest integer: what rint makes of a real Laplace variate, drawn exactly.

With y = 2^-(b+1), the rounded variate has P(k) = exp(-|k| / 2^b) sinh(y) for k != 0 and P(0) = 1 - exp(-y) = 2 sinh(y) / (1 +
e^y). So it has the weights of the discrete Laplace law but at zero, where the weight is 2 / (1 + e^y) in place of 1. Being a
function of a real Laplace variate, it is post-processing of the Laplace mechanism (docs/mechanism, Theorem 9). The discrete
Laplace law is not: its total variation at an odd shift is a little larger than the Laplace law's.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dptrain.noise.exact import exp_of_minus


@dataclass(frozen=True)
class RoundedLaplace:
    """Law of rint(L) for L of the density exp(-|x| / 2^b) / 2^(b+1)."""

    bits: int
    name: ClassVar[str] = "laplace"
    scales: ClassVar[int] = 60

    @property
    def cell_bits(self) -> int:
        """64 cells per scale: eight proposals of a thousand are rejected."""
        return min(self.bits, 6)

    def enclose(self, k: int, precision: int) -> tuple[int, int]:
        if k:
            return exp_of_minus(k, self.bits, precision)
        low, high = exp_of_minus(1, self.bits + 1, precision)  # e^-y; the weight is 2 e^-y / (1 + e^-y), which grows with it
        one = 1 << precision
        return (2 * low << precision) // (one + low), -(-(2 * high << precision) // (one + high))

    def top(self, k: int, precision: int) -> tuple[int, int]:
        return exp_of_minus(k, self.bits, precision)

    def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        """exp(-(k - a) / 2^b) with a the first of the cell; the argument is exact and at most 1/64 (or zero: b <= 6)."""
        ratios = np.exp(inside * -(2.0**-self.bits))
        zeros = np.flatnonzero(magnitudes == 0)
        if len(zeros):
            ratios[zeros] = 2.0 / (1.0 + np.exp(2.0 ** -(self.bits + 1)))
        return ratios
