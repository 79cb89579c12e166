"""Tests of numbers that should be independent standard normals on a lattice, fed in pieces, to any number of draws.

Every statistic becomes a p-value. An alarm is one below that of five standard errors, two-sided; a battery has some sixty
statistics, so a sound generator raises one with probability 3e-5.
"""

import math

import numpy as np
from scipy import special, stats

ALARM = 5.7e-7
LAGS = (1, 2, 3, 4, 8, 16)
"""Distances of serial correlation: 1 and 2 lie within pairs and between them, 8 and 16 within and between cipher blocks."""

SIGMAS = (3.0, 4.0, 4.5, 5.0, 6.0)
_PIECE = 1 << 16
_SPAN, _FINE = 8, 4096
"""Cells of width 1/4096 from -8 to 8; what lies beyond goes to the last ones."""

_CELLS = 64
_FINE_ANGLES = 4096
_LOW_BITS = 12


def two_sided(z: float) -> float:
    """p-value of a standard score."""
    return math.erfc(abs(z) / math.sqrt(2.0))


class Battery:
    """Feed it the coordinates of tensors in order; ``alarms()`` names what is not as it should be.

    Args:
        lattice_bits: the values are integers times ``2^-lattice_bits``; None for values that were not rounded.
    """

    def __init__(self, lattice_bits: int | None = 32) -> None:
        self.count = 0
        self._lattice = lattice_bits
        self._powers = np.zeros(4)
        self._fine = np.zeros(2 * _SPAN * _FINE, np.int64)
        self._serial = {lag: np.zeros(3) for lag in LAGS}  # products of values, of squares, and how many
        self._polar = np.zeros(_CELLS * _CELLS, np.int64)
        self._angles = np.zeros(_FINE_ANGLES, np.int64)
        self._low = np.zeros(1 << _LOW_BITS, np.int64)
        self._off_lattice = 0

    def feed(self, values: np.ndarray) -> None:
        """float64, shape (even,): coordinates of one tensor, from an even one on."""
        for start in range(0, len(values), _PIECE):
            self._feed(values[start : start + _PIECE])

    def _feed(self, x: np.ndarray) -> None:
        squares = x * x
        self.count += len(x)
        self._powers += x.sum(), squares.sum(), squares @ x, squares @ squares
        cell = np.clip((x + _SPAN) * _FINE, 0, 2 * _SPAN * _FINE - 1).astype(np.int64)
        self._fine += np.bincount(cell, minlength=len(self._fine))
        squares -= 1.0
        for lag, sums in self._serial.items():
            sums += x[:-lag] @ x[lag:], squares[:-lag] @ squares[lag:], len(x) - lag
        pairs = x.reshape(-1, 2)
        radius = np.exp(-0.5 * (pairs[:, 0] ** 2 + pairs[:, 1] ** 2))  # uniform, and independent of the angle
        angle = np.arctan2(pairs[:, 1], pairs[:, 0]) * (0.5 / np.pi) + 0.5
        cell = np.minimum((radius * _CELLS).astype(np.int64), _CELLS - 1) * _CELLS
        cell += np.minimum((angle * _CELLS).astype(np.int64), _CELLS - 1)
        self._polar += np.bincount(cell, minlength=len(self._polar))
        cell = np.minimum((angle * _FINE_ANGLES).astype(np.int64), _FINE_ANGLES - 1)
        self._angles += np.bincount(cell, minlength=_FINE_ANGLES)
        if self._lattice is not None:
            scaled = x * 2.0**self._lattice
            integers = np.rint(scaled).astype(np.int64)
            self._off_lattice += int((scaled != integers).sum())
            self._low += np.bincount(integers & ((1 << _LOW_BITS) - 1), minlength=len(self._low))

    def p_values(self) -> dict[str, float]:
        """By statistic; about uniform on (0, 1) for a sound generator."""
        n = self.count
        s1, s2, s3, s4 = self._powers
        found = {
            "mean": two_sided(s1 / math.sqrt(n)),
            "variance": two_sided((s2 - n) / math.sqrt(2 * n)),
            "skewness": two_sided((s3 - 3 * s1) / math.sqrt(6 * n)),  # Hermite polynomials: uncorrelated with those above
            "kurtosis": two_sided((s4 - 6 * s2 + 3 * n) / math.sqrt(24 * n)),
        }
        for lag, (products, squares, pairs) in self._serial.items():
            found[f"correlation at distance {lag}"] = two_sided(products / math.sqrt(pairs))
            found[f"correlation of squares at distance {lag}"] = two_sided(squares / math.sqrt(4 * pairs))
        edges = np.arange(-_SPAN * _FINE, _SPAN * _FINE + 1) / _FINE
        below = special.ndtr(edges)
        below[0], below[-1] = 0.0, 1.0
        reached = np.concatenate(([0], np.cumsum(self._fine)))
        found["distribution function (KS)"] = float(stats.kstwobign.sf(np.abs(reached / n - below).max() * math.sqrt(n)))
        found["equiprobable cells"] = self._equiprobable(below, reached)
        for sigma in SIGMAS:
            for name, side in (("below", special.ndtr(-sigma)), ("above", special.ndtr(-sigma))):
                place = round((_SPAN - sigma) * _FINE)
                hits = reached[place] if name == "below" else n - reached[len(self._fine) - place]
                found[f"tail {name} {sigma:g} sigma"] = _binomial(int(hits), n, float(side))
        found["radius and angle"] = _chi_square(self._polar)
        found["angle"] = _chi_square(self._angles)
        found["radius"] = _chi_square(self._polar.reshape(_CELLS, _CELLS).sum(1))
        if self._lattice is not None:
            found["integers of the lattice"] = 0.0 if self._off_lattice else 1.0
            for bits in (1, 2, 4, 8, _LOW_BITS):
                found[f"remainders modulo 2^{bits}"] = _chi_square(self._low.reshape(-1, 1 << bits).sum(0))
        return found

    def alarms(self) -> dict[str, float]:
        """The statistics that a sound generator would reach with probability below :data:`ALARM`."""
        return {name: p for name, p in self.p_values().items() if not p > ALARM}

    def _equiprobable(self, below: np.ndarray, reached: np.ndarray) -> float:
        """Chi-square over about a thousand cells of equal mass, cut where fine cells end."""
        cuts = np.unique(np.searchsorted(below, np.linspace(0.0, 1.0, 1025)))
        cuts = cuts[(cuts > 0) & (cuts < len(below) - 1)]
        cuts = np.concatenate(([0], cuts, [len(below) - 1]))
        return _chi_square(np.diff(reached[cuts]), np.diff(below[cuts]))


def correlation(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """p-values of products and of products of squares of two tensors of noise; 5 / sqrt(d) is where an alarm begins."""
    d = len(first)
    product, squares = float(first @ second), float((first**2 - 1.0) @ (second**2 - 1.0))
    return {"product": two_sided(product / math.sqrt(d)), "squares": two_sided(squares / math.sqrt(4 * d))}


def _chi_square(found: np.ndarray, masses: np.ndarray | None = None) -> float:
    """Two-sided: numbers that fit too well are no random numbers either."""
    n = found.sum()
    expected = n * (np.full(len(found), 1.0 / len(found)) if masses is None else masses)
    statistic = float(((found - expected) ** 2 / expected).sum())
    upper = float(stats.chi2.sf(statistic, len(found) - 1))
    return 2.0 * min(upper, 1.0 - upper)


def _binomial(hits: int, n: int, mass: float) -> float:
    law = stats.binom(n, mass)
    return min(1.0, 2.0 * min(float(law.cdf(hits)), float(law.sf(hits - 1))))
