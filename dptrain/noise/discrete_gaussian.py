"""The discrete Gaussian N_Z(0, 2^2b): weight exp(-k^2 / 2^(2b+1)) for every integer k.

Source: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Definition 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dptrain.noise.exact import exp_of_minus


@dataclass(frozen=True)
class DiscreteGaussian:
    """Law of noise with the parameter sigma = 2^bits lattice steps."""

    bits: int
    name: ClassVar[str] = "discrete_gaussian"
    scales: ClassVar[int] = 13

    @property
    def cell_bits(self) -> int:
        """256 cells per sigma: three proposals of a thousand are rejected."""
        return min(self.bits, 8)

    def enclose(self, k: int, precision: int) -> tuple[int, int]:
        return exp_of_minus(k * k, 2 * self.bits + 1, precision)

    top = enclose

    def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        """exp(-(k^2 - a^2) / 2^(2b+1)) with a the first of the cell: k^2 - a^2 = (k + a) (k - a), exact in 64 bits.

        The argument is at most 1/16 and rounded once, so the relative error is that of the exponential, some units of 2^-53.
        """
        whole = (magnitudes + magnitudes - inside) * inside
        return np.exp(whole * -(2.0 ** -(2 * self.bits + 1)))
