"""Noise integers of Laplace, discrete Gaussian and Skellam noise from their definition: one coordinate at a time, 80 digits.

A word chooses a cell of the step function, the other word a magnitude in it, a sign, and the first bits of a uniform number
that is compared with S w(k) / W. Weights come from mpmath; nothing is shared with `dptrain.noise` but the words of the stream.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import mpmath

from tests.reference.streams import block

CHUNK = 1 << 15
mpmath.mp.dps = 80


@dataclass(frozen=True)
class Naive:
    """family, b; cells per scale 2^h, and how many scales have cells. Of Skellam noise in parts: the law of one of them."""

    family: str
    lattice: int
    parts: int = 1

    @property
    def bits(self) -> int:
        """Of the scale: the least power of two that is no less than the standard deviation, where there are parts."""
        return next(b for b in range(self.lattice + 1) if 4**b * self.parts >= 4**self.lattice)

    @property
    def h(self) -> int:
        return min(self.bits, 6 if self.family == "laplace" else 8)

    @property
    def scales(self) -> int:
        reach = 60 if self.family == "laplace" else 13
        return next(n for n in range(reach, 0, -1) if n**2 * 4**self.bits * self.parts <= reach**2 * 4**self.lattice)

    def decay(self, k: int) -> mpmath.mpf:
        """A bound of w that does not grow with k; w itself but for Laplace noise at zero."""
        x = mpmath.mpf(k) / 2**self.bits
        if self.family == "laplace":
            return mpmath.exp(-x)
        if self.family == "discrete_gaussian":
            return mpmath.exp(-x * x / 2)
        return bessel(self.lattice, k, self.parts)

    def weight(self, k: int) -> mpmath.mpf:
        if self.family == "laplace" and k == 0:
            return 2 / (1 + mpmath.exp(mpmath.mpf(2) ** -(self.bits + 1)))
        return self.decay(k)


@cache
def bessel(bits: int, k: int, parts: int = 1) -> mpmath.mpf:
    """I_k(v) / I_0(v), v = 4^bits / parts: by mpmath, or for large v by the uniform expansion for large k (DLMF 10.41.3)."""
    v = mpmath.mpf(4) ** bits / parts
    if k == 0 or v < 5000:
        return mpmath.besseli(k, v) / mpmath.besseli(0, v)
    z = v / k
    p = 1 / mpmath.sqrt(1 + z * z)
    eta = 1 / p + mpmath.log(z / (1 + 1 / p))
    series = mpmath.fsum(_polynomial(j, p) / mpmath.mpf(k) ** j for j in range(5))  # terms fall as 1/v
    return mpmath.exp(k * eta - v) * mpmath.sqrt(p / (2 * mpmath.pi * k)) * series / _at_zero(bits, parts)


@cache
def _at_zero(bits: int, parts: int) -> mpmath.mpf:
    v = mpmath.mpf(4) ** bits / parts
    return mpmath.besseli(0, v) * mpmath.exp(-v)


def _polynomial(j: int, p: mpmath.mpf) -> mpmath.mpf:
    return mpmath.polyval([mpmath.mpf(c.numerator) / c.denominator for c in reversed(_coefficients(j))], p)


@cache
def _coefficients(j: int) -> list[Fraction]:
    """Of U_j, from the constant on: U_{j+1} = p^2 (1 - p^2) U_j' / 2 + integral of (1 - 5 t^2) U_j / 8 (DLMF 10.41.9)."""
    if j == 0:
        return [Fraction(1)]
    last = _coefficients(j - 1)
    found = [Fraction(0)] * (len(last) + 3)
    for n, c in enumerate(last):
        found[n + 1] += Fraction(n, 2) * c + c / (8 * (n + 1))
        found[n + 3] -= Fraction(n, 2) * c + 5 * c / (8 * (n + 3))
    return found


@cache
def table(law: Naive) -> tuple[mpmath.mpf, list[int], list[tuple[int, int]]]:
    """S, the weights of cells (what lies beyond them the last), and per column its cut and the other cell."""
    cells, width = law.scales << law.h, 1 << (law.bits - law.h)
    tops = [law.decay(j * width) for j in range(cells)]
    tops.append(law.decay(cells * width) * 2 ** (law.h + 1))
    scale = int(mpmath.floor((2**64 - cells - 1) / mpmath.fsum(tops)))
    weights = [int(mpmath.floor(scale * top)) + 1 for top in tops]
    left = [*weights, 2**64 - sum(weights)]
    left += [0] * (4096 - len(left))
    small = [j for j, w in enumerate(left) if w < 2**52]
    large = [j for j, w in enumerate(left) if w > 2**52]
    columns = [(2**52, j) for j in range(4096)]
    while small:
        j = small.pop()
        columns[j] = (left[j], large[-1])
        left[large[-1]] -= 2**52 - left[j]
        if left[large[-1]] == 2**52:
            large.pop()
        elif left[large[-1]] < 2**52:
            small.append(large.pop())
    return mpmath.mpf(scale), weights, columns


def integers(law: Naive, key: bytes, step: int, lane: int, count: int) -> list[int]:
    """Noise integers of the first ``count`` coordinates of a tensor."""
    out: list[int] = []
    for start in range(0, count, CHUNK):
        out += _chunk(law, key, step, lane, start, min(CHUNK, count - start))
    return out


def _chunk(law: Naive, key: bytes, step: int, lane: int, start: int, count: int) -> list[int]:
    found: list[int | None] = [None] * count
    number = 0
    while None in found:
        still = [o for o, value in enumerate(found) if value is None]
        for place, o in enumerate(still):
            found[o] = _proposal(law, key, step, lane, start + place, number)
        number += 1
    return found


def _proposal(law: Naive, key: bytes, step: int, lane: int, place: int, number: int) -> int | None:
    scale, weights, columns = table(law)
    raw = block(key, step, lane, number * 2**40 + place)
    first, second = (int.from_bytes(raw[i : i + 8], "little") for i in (0, 8))
    column, rest = first >> 52, first & (2**52 - 1)
    cell = column if rest < columns[column][0] else columns[column][1]
    if cell >= len(weights):
        return None
    assert cell < len(weights) - 1, "beyond the cells: one in 2^60, not transcribed"
    shift = law.bits - law.h
    k = (cell << shift) + second % 2**shift
    negative = second >> shift & 1
    resolution = min(52, 63 - shift)
    prefix = second >> (64 - resolution)
    threshold = scale * law.weight(k) / weights[cell] * mpmath.mpf(2) ** resolution
    assert not prefix < threshold < prefix + 1, "the prefix does not decide: one in 2^40, not transcribed"
    if prefix >= threshold or (k == 0 and negative):
        return None
    return -k if negative else k
