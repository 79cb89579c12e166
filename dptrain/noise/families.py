"""Adds noise of families beside the Gaussian one, to certified sums: the laws of discrete Gaussian, discrete Laplace and
Skellam, and their draws. Noise that is correlated between steps has a room of its own, and is registered here.

Integers of a law are added to the exact integer sums of level ``certified``, on the lattice ``s_l * 2^-b`` of those sums
(docs/mechanism, Theorems 9 to 11).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from dptrain.noise.exact import CHUNK, ExactSampler, Law, exp_of_minus
from dptrain.noise.lattice import OnHost
from dptrain.noise.mechanism import Mechanism, Source, register_mechanism
from dptrain.noise.normals import Blocks
from ledger.accountants.correlated import strategy_of
from ledger.accountants.correlated.costs import COSTS
from ledger.accountants.integers import SKELLAM_BITS


@dataclass(frozen=True)
class DiscreteGaussian:
    """Gives the law of noise with the parameter sigma = 2^bits lattice steps."""

    bits: int
    name: ClassVar[str] = "discrete_gaussian"
    scales: ClassVar[int] = 13

    @property
    def cell_bits(self) -> int:
        """Returns 256 cells per sigma: three proposals of a thousand are rejected."""
        return min(self.bits, 8)

    def enclose(self, k: int, precision: int) -> tuple[int, int]:
        return exp_of_minus(k * k, 2 * self.bits + 1, precision)

    top = enclose

    def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        """Returns exp(-(k^2 - a^2) / 2^(2b+1)) with a the first of the cell: k^2 - a^2 = (k + a) (k - a), exact in 64 bits.

        The argument is at most 1/16 and rounded once, so the relative error is that of the exponential, some units of 2^-53.
        """
        whole = (magnitudes + magnitudes - inside) * inside
        return np.exp(whole * -(2.0 ** -(2 * self.bits + 1)))


@dataclass(frozen=True)
class RoundedLaplace:
    """Gives the law of rint(L) for L of the density exp(-|x| / 2^b) / 2^(b+1)."""

    bits: int
    name: ClassVar[str] = "laplace"
    scales: ClassVar[int] = 60

    @property
    def cell_bits(self) -> int:
        """Returns 64 cells per scale: eight proposals of a thousand are rejected."""
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
        """Returns exp(-(k - a) / 2^b), a the first of the cell; the argument is exact and at most 1/64 (or zero: b <= 6)."""
        ratios = np.exp(inside * -(2.0**-self.bits))
        zeros = np.flatnonzero(magnitudes == 0)
        if len(zeros):
            ratios[zeros] = 2.0 / (1.0 + np.exp(2.0 ** -(self.bits + 1)))
        return ratios


_PRECISION = 192


@dataclass(frozen=True)
class Skellam:
    """Gives the law of a draw of variance 2^(2 lattice) / parts in squared lattice steps: ``parts`` draws have 2^(2 lattice).

    The scale that cells are cut by is 2^bits with 2^bits / 2 < standard deviation <= 2^bits; ``bits`` is 3 at least.
    """

    lattice: int = SKELLAM_BITS
    parts: int = 1
    name: ClassVar[str] = "skellam"

    @property
    def bits(self) -> int:
        """Returns the least with 4^bits >= 4^lattice / parts."""
        return self.lattice - (self.parts.bit_length() - 1) // 2

    @property
    def scales(self) -> int:
        """Returns as many as 13 standard deviations have, rounded down: 11 deviations at least."""
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
        """Encloses those of the first magnitudes of cells, at the precision that tables are made with."""
        found = _tabulated(self)[0].get(k)
        return found if found is not None and precision == _PRECISION else self.enclose(k, precision)

    def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        """Looks them up in the table, whose entries are quotients of two doubles that are off by 2^-53 each."""
        table = _tabulated(self)[1]
        return table[np.minimum(magnitudes, len(table) - 1)]


@lru_cache(maxsize=4)
def _tabulated(law: Skellam) -> tuple[dict[int, tuple[int, int]], np.ndarray]:
    """Returns enclosures of w at the first magnitude of every cell, and w(k) / w(first of its cell) of every k."""
    width = 1 << (law.bits - law.cell_bits)
    count = law.scales << law.bits
    enclosed, doubles = _enclosed(law, range(0, count, width), _PRECISION, count)
    values = np.array(doubles)
    return enclosed, values / np.repeat(values[::width], width)


def _enclosed(
    law: Skellam, wanted: Iterable[int], precision: int, doubles: int = 0
) -> tuple[dict[int, tuple[int, int]], list[float]]:
    """Returns integers around 2^precision I_k(v) / I_0(v) for the wanted k; and I_k in some unit as doubles, k < ``doubles``.

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


LAWS: dict[str, type[DiscreteGaussian] | type[RoundedLaplace] | type[Skellam]] = {
    law.name: law for law in (DiscreteGaussian, RoundedLaplace, Skellam)
}
"""Families beside the Gaussian, by the name that a policy signs."""


class IntegerNoise(OnHost):
    """Adds integers of a law to a sum of integers, reading them from a key stream.

    Guarantee: the output of :meth:`release_` is ``s 2^-b / normalizer`` times the sum's integer plus the law's, to the last
    bit of a float64. The law is exact (:class:`ExactSampler`), and the noise integer of coordinate ``o`` of tensor ``lane`` at
    ``step`` is a function of (key, step, lane, o) alone and is used once, whatever the number of threads.

    The time that a draw takes depends on the noise, by rejections; see docs/threat-model.md.

    Args:
        law: of one draw. bits: b of the lattice on which the sums are integers. draws: how many draws make up the noise of a
            release, as :func:`integer_noise` fits them to the law.
    """

    def __init__(self, stream: Blocks, law: Law, bits: int, draws: int = 1) -> None:
        super().__init__(stream, bits, float(1 << 18 + bits), CHUNK)
        self.law = law
        self._draws = draws
        self._sampler = ExactSampler(law)

    def integers(self, step: int, lane: int, start: int, count: int) -> np.ndarray:
        """Returns noise integers of part of a chunk, all draws added up; see :meth:`ExactSampler.integers`.

        Draw g is read at lane ``lane * draws + g``: (tensor, draw) and lane determine each other, so no draw meets another one.
        """
        first = lane * self._draws
        total = self._sampler.integers(self._stream, step, first, start, count)
        for place in range(first + 1, first + self._draws):
            total += self._sampler.integers(self._stream, step, place, start, count)
        return total

    def noise(self, step: int, lane: int, start: int, count: int, draws: int) -> np.ndarray:
        """Returns `integers`."""
        return self.integers(step, lane, start, count)

    def release_(
        self, clipped_sum: torch.Tensor, std: float, normalizer: float, *, step: int, lane: int, draws: int = 1, **where: Any
    ) -> torch.Tensor:
        """Turns a sum of integers into its private release, in place; see `dptrain.noise.lattice.OnHost.release_`.

        Args:
            clipped_sum: sum of contributions that are integers on ``std * 2^-b``, float64 (see ``CertifiedSums.take``).
            std: the scale of Laplace noise, the parameter sigma of the discrete Gaussian, the standard deviation of Skellam
                noise.
            normalizer, step, lane: as there. draws: what this noise was made for.

        Raises:
            ValueError: as there; a tensor that is not float64, or another number of draws.
        """
        if clipped_sum.dtype is not torch.float64:
            raise ValueError(f"the clipped sum must be float64, got {clipped_sum.dtype}: its integers are exact there")
        if draws != self._draws:
            raise ValueError(
                f"noise of family {self.law.name} was made for {self._draws} draws per step, got {draws}: another number "
                "of them has another variance"
            )
        return super().release_(clipped_sum, std, normalizer, step=step, lane=lane, draws=draws, **where)


def integer_noise(family: str, stream: Blocks, bits: int, draws: int = 1) -> IntegerNoise:
    """Returns noise of a family beside the Gaussian, on the lattice ``s * 2^-bits``.

    Args:
        draws: how many draws make up the noise of a release, each with its share of the variance.

    Raises:
        ValueError: no such family, or several draws of one whose law is not that of their sum.
    """
    if family not in LAWS:
        raise ValueError(f"no noise family {family!r} on integers; there are {', '.join(LAWS)}")
    if family == Skellam.name:
        return IntegerNoise(stream, Skellam(bits, draws), bits, draws)
    if draws != 1:
        raise ValueError(f"noise of family {family} is drawn once per step, got {draws} draws, whose sum has another law")
    return IntegerNoise(stream, LAWS[family](bits), bits)


def _correlated(source: Source) -> Mechanism:
    """Returns noise that is correlated between steps; what makes it is loaded by runs that have it."""
    from dptrain.noise.correlated.gaussian import CorrelatedGaussian

    assert source.rule is not None
    return CorrelatedGaussian(source.stream(), strategy_of(source.rule, source.steps), source.steps)


for _cost in COSTS:
    register_mechanism(_cost.name)(_correlated)
for _family in LAWS:
    register_mechanism(_family)(lambda source, name=_family: integer_noise(name, source.stream(), source.bits, source.draws))
