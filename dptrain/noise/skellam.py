"""The symmetric Skellam law of variance v = 2^2b, the difference of two Poisson variates: P(k) = exp(-v) I_k(v).

Source: Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning" (2021), Definition 3.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

SKELLAM_BITS = 16
"""b of the lattice s * 2^-b on which Skellam noise is drawn. All of its magnitudes have a place in a table, so it is coarser
than that of the other families; truncation costs about sqrt(d / 3) of 2^16 / z steps of a clipped gradient."""

_PRECISION = 192


@dataclass(frozen=True)
class Skellam:
    """Law of noise with the variance 2^(2 bits) in squared lattice steps; ``bits`` is 3 at least."""

    bits: int = SKELLAM_BITS
    name: ClassVar[str] = "skellam"
    scales: ClassVar[int] = 13

    @property
    def cell_bits(self) -> int:
        return min(self.bits, 8)

    def __post_init__(self) -> None:
        if not 3 <= self.bits <= 20:
            raise ValueError(f"the Skellam law is tabulated for 3 to 20 bits, got {self.bits}")

    def enclose(self, k: int, precision: int) -> tuple[int, int]:
        return _enclosed(self.bits, [k], precision)[0][k]

    def top(self, k: int, precision: int) -> tuple[int, int]:
        """Of the first magnitudes of cells, at the precision that tables are made with."""
        found = _tabulated(self.bits)[0].get(k)
        return found if found is not None and precision == _PRECISION else self.enclose(k, precision)

    def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        """From the table, whose entries are quotients of two doubles that are off by 2^-53 each."""
        table = _tabulated(self.bits)[1]
        return table[np.minimum(magnitudes, len(table) - 1)]


@lru_cache(maxsize=4)
def _tabulated(bits: int) -> tuple[dict[int, tuple[int, int]], np.ndarray]:
    """Enclosures of w at the first magnitude of every cell, and w(k) / w(first of its cell) of every k."""
    law = Skellam(bits)
    width = 1 << (bits - law.cell_bits)
    count = law.scales << bits
    enclosed, doubles = _enclosed(bits, range(0, count, width), _PRECISION, count)
    values = np.array(doubles)
    return enclosed, values / np.repeat(values[::width], width)


def _enclosed(
    bits: int, wanted: Iterable[int], precision: int, doubles: int = 0
) -> tuple[dict[int, tuple[int, int]], list[float]]:
    """Integers around 2^precision I_k(v) / I_0(v) for the wanted k, v = 2^2b; and I_k in some unit as doubles, k < ``doubles``.

    The recurrence x_{k-1} = x_{k+1} + (2k / v) x_k (DLMF 10.29.1) runs down from a large n, from x_n = 1 and x_{n+1} = r. The
    quotient x_k / x_0 is a fraction linear in r, thus monotone, and r = I_{n+1} / I_n lies between 0 and 1: so what the two
    ends give enclose the truth, and they close, as they differ by a multiple of the solution that dies out (Olver 1964).

    Every step is rounded down, by less than 2^-working on numbers of 2^-2b at least; all terms are positive, so x_k is off by a
    factor of (1 - 2^(2b - working))^(n + 1) at most: with ``working`` as below, x_k / x_0 by less than 2^-32 units.
    """
    places = set(wanted)
    start = max(max(places), 13 << bits) + ((2 + precision // 64) << bits)
    working = precision + 2 * bits + start.bit_length() + 34
    found: list[dict[int, tuple[int, int]]] = []
    kept: list[float] = []
    down = 2 * bits - 1  # 2k / v = k / 2^(2b - 1)
    for before in (0, 1 << working):
        x, last = 1 << working, before
        at: dict[int, int] = {}
        kept = []
        for k in range(start, -1, -1):
            if k in places:
                at[k] = x
            if k < doubles:
                kept.append(x / (1 << working))
            x, last = last + (k * x >> down), x
        found.append({k: ((value << precision) // last - 1, -(-(value << precision) // last) + 1) for k, value in at.items()})
    ends = {k: (min(found[0][k][0], found[1][k][0]), max(found[0][k][1], found[1][k][1])) for k in places}
    return {k: (max(0, low), high) for k, (low, high) in ends.items()}, kept[::-1]
