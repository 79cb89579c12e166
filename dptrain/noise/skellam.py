"""The symmetric Skellam law of variance v, the difference of two Poisson variates of mean v/2: P(k) = exp(-v) I_k(v).

Noise has v = 2^2b in squared lattice steps, or is the sum of M draws with v = 2^2b / M each: the characteristic function of a
draw is exp(v (cos t - 1)), so that the sum of M independent ones has the law of variance 2^2b itself, for every M.

Source: Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning" (2021), Definition 3.1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ledger.accountants.families import SKELLAM_BITS

_PRECISION = 192


@dataclass(frozen=True)
class Skellam:
    """Law of a draw of variance 2^(2 lattice) / parts in squared lattice steps, of which ``parts`` together have 2^(2 lattice).

    The scale that cells are cut by is 2^bits with 2^bits / 2 < standard deviation <= 2^bits; ``bits`` is 3 at least.
    """

    lattice: int = SKELLAM_BITS
    parts: int = 1
    name: ClassVar[str] = "skellam"

    @property
    def bits(self) -> int:
        """The least with 4^bits >= 4^lattice / parts."""
        return self.lattice - (self.parts.bit_length() - 1) // 2

    @property
    def scales(self) -> int:
        """As many as 13 standard deviations have, rounded down: 11 deviations at least."""
        return math.isqrt(169 * 4 ** (self.lattice - self.bits) // self.parts)

    @property
    def cell_bits(self) -> int:
        return min(self.bits, 8)

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise ValueError(f"noise has 1 part or more, got {self.parts}")
        if not 3 <= self.bits <= self.lattice <= 20:
            raise ValueError(
                f"the Skellam law is tabulated for 3 to 20 bits, got {self.bits}: a lattice of {self.lattice} in "
                f"{self.parts} parts"
            )

    def enclose(self, k: int, precision: int) -> tuple[int, int]:
        return _enclosed(self, [k], precision)[0][k]

    def top(self, k: int, precision: int) -> tuple[int, int]:
        """Of the first magnitudes of cells, at the precision that tables are made with."""
        found = _tabulated(self)[0].get(k)
        return found if found is not None and precision == _PRECISION else self.enclose(k, precision)

    def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        """From the table, whose entries are quotients of two doubles that are off by 2^-53 each."""
        table = _tabulated(self)[1]
        return table[np.minimum(magnitudes, len(table) - 1)]


@lru_cache(maxsize=4)
def _tabulated(law: Skellam) -> tuple[dict[int, tuple[int, int]], np.ndarray]:
    """Enclosures of w at the first magnitude of every cell, and w(k) / w(first of its cell) of every k."""
    width = 1 << (law.bits - law.cell_bits)
    count = law.scales << law.bits
    enclosed, doubles = _enclosed(law, range(0, count, width), _PRECISION, count)
    values = np.array(doubles)
    return enclosed, values / np.repeat(values[::width], width)


def _enclosed(
    law: Skellam, wanted: Iterable[int], precision: int, doubles: int = 0
) -> tuple[dict[int, tuple[int, int]], list[float]]:
    """Integers around 2^precision I_k(v) / I_0(v) for the wanted k; and I_k in some unit as doubles, k < ``doubles``.

    The recurrence x_{k-1} = x_{k+1} + (2k / v) x_k (DLMF 10.29.1) runs down from a large n, from x_n = 1 and x_{n+1} = r. The
    quotient x_k / x_0 is a fraction linear in r, thus monotone, and r = I_{n+1} / I_n lies between 0 and 1: so what the two
    ends give enclose the truth, and they close, as they differ by a multiple of the solution that dies out (Olver 1964).

    v = 2^(2 lattice) / parts, so 2k / v is k parts / 2^(2 lattice - 1), exactly. Every step is rounded down, by less than
    2^-working on numbers of 2^-2b at least, b = ``bits``; all terms are positive, so x_k is off by a factor of
    (1 - 2^(2b - working))^(n + 1) at most: with ``working`` as below, x_k / x_0 by less than 2^-32 units.
    """
    places, bits = set(wanted), law.bits
    start = max(max(places), law.scales << bits) + ((2 + precision // 64) << bits)
    working = precision + 2 * bits + start.bit_length() + 34
    found: list[dict[int, tuple[int, int]]] = []
    kept: list[float] = []
    down = 2 * law.lattice - 1
    for before in (0, 1 << working):
        x, last = 1 << working, before
        at: dict[int, int] = {}
        kept = []
        for k in range(start, -1, -1):
            if k in places:
                at[k] = x
            if k < doubles:
                kept.append(x / (1 << working))
            x, last = last + (k * law.parts * x >> down), x
        found.append({k: ((value << precision) // last - 1, -(-(value << precision) // last) + 1) for k, value in at.items()})
    ends = {k: (min(found[0][k][0], found[1][k][0]), max(found[0][k][1], found[1][k][1])) for k in places}
    return {k: (max(0, low), high) for k, (low, high) in ends.items()}, kept[::-1]
