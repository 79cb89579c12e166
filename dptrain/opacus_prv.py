"""Computes the figures of opacus's PRV accountant in a fraction of its time, to the last bit of what it would give.

A step's loss lies in a small part of a grid that holds the sum of all steps, and what many steps have in common with high
frequencies is nothing. So the library's formulas are asked where they say something, and what is 0 or 1 elsewhere is written
down. Import this where opacus is installed alone.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.analysis import rdp
from opacus.accountants.analysis.prv import (
    DiscretePRV,
    Domain,
    PoissonSubsampledGaussianPRV,
    TruncatedPrivacyRandomVariable,
    discretize,
)
from opacus.accountants.analysis.prv.compose import _compose_convolution_tree
from scipy.fft import irfft, rfft

_NOTHING: Final = -760.0
"""Log of what is far below the least positive double, e^-744.4: a power that small is 0."""

_SURE: Final = 6.0
"""erfc of this is 2e-17: one less that is one."""


class Accountant(PRVAccountant):
    """Composes losses as the library does, on a grid of which the length has small prime factors alone.

    The library's grid is as long as its domain is wide over its mesh, often a large prime, on which a transform takes several
    times as long. This one has the mesh and a few points more on either side: a larger domain is as valid (Gopi, Lee and
    Wutschitz 2021, Remark 5.6), and the figure the same to 1e-5.
    """

    def _get_domain(
        self, prvs: Sequence[Any], num_self_compositions: Sequence[int], eps_error: float, delta_error: float
    ) -> Domain:
        reach = _reach(self.history, eps_error, delta_error)
        mesh = eps_error / np.sqrt(sum(num_self_compositions) * np.log(12 / delta_error) / 2)
        found = Domain.create_aligned(-reach, reach, mesh)
        more = smooth(found.size) - found.size
        return Domain(found.t_min - found.dt * (more // 2), found.t_max + found.dt * (more - more // 2), found.size + more)

    def _get_dprv(self, eps_error: float, delta_error: float) -> "_Sum":
        prvs = [PoissonSubsampledGaussianPRV(q, z) for z, q, _ in self.history]
        counts = [steps for _, _, steps in self.history]
        domain = self._get_domain(prvs, counts, eps_error, delta_error)
        steps = (discretize(_OneStep(prv, domain.t_min, domain.t_max), domain) for prv in prvs)
        whole = _compose_convolution_tree([repeated(step, count) for step, count in zip(steps, counts, strict=True)])
        return _Sum(whole.pmf, whole.domain)


class _OneStep(TruncatedPrivacyRandomVariable):  # type: ignore[misc]
    """The loss of one step; its distribution function is computed where it is neither 0 nor 1."""

    def __init__(self, prv: Any, t_min: float, t_max: float) -> None:
        super().__init__(prv, t_min, t_max)
        self._below = prv.cdf(t_min)
        q, z = prv.sample_rate, prv.noise_multiplier
        self._least = math.log1p(-q) - 1e-9 if q < 1.0 else -math.inf
        far = (2.0 * math.sqrt(2.0) * z * _SURE + 1.0) / (2.0 * z * z)
        most = math.log1p(q * math.expm1(far))
        self._most = most if most < t_max and prv.cdf(most) == 1.0 else math.inf

    def cdf(self, t: Any) -> Any:
        if np.ndim(t) == 0:  # in the integral of the mean
            if self.t_min <= t < self.t_max:
                return (self._prv.cdf(t) - self._below) / self._remaining_mass
            return float(t >= self.t_max)
        first, last = np.searchsorted(t, (self._least, self._most))
        found = np.zeros(len(t))
        found[first:last] = super().cdf(t[first:last])
        found[last:] = 1.0
        return found


class _Sum(DiscretePRV):  # type: ignore[misc]
    """The loss of all steps; epsilon is read off its upper half, unless it is not there."""

    def compute_epsilon(self, delta: float, delta_error: float, eps_error: float) -> tuple[float, float, float]:
        """Returns the library's figures.

        A tail is summed from the top, so those above the middle need nothing below it. A search by halves looks at the middle
        first; where it goes up from there, it goes as in the upper half alone.
        """
        half = len(self) // 2 + 1
        try:
            return DiscretePRV(self.pmf[half:], _Above(self.domain, half)).compute_epsilon(delta, delta_error, eps_error)
        except RuntimeError:
            return super().compute_epsilon(delta, delta_error, eps_error)


class _Above:
    """Points of a domain from one on; its size is said to be that of the whole, by which rounding is judged."""

    def __init__(self, domain: Domain, first: int) -> None:
        self.size, self.ts = domain.size, domain.ts[first:]


def repeated(step: DiscretePRV, times: int) -> DiscretePRV:
    """Returns the distribution of the sum of independent steps: a power of the transform, computed where it is not 0."""
    spectrum = rfft(step.pmf)
    held = np.flatnonzero(np.abs(spectrum) > math.exp(_NOTHING / times))
    powers = np.zeros_like(spectrum)
    powers[held] = spectrum[held] ** times
    masses = irfft(powers, len(step))
    middle = len(masses) // 2 if times % 2 == 0 else 0
    masses = np.roll(masses, times - 1 + middle)
    return DiscretePRV(masses, step.domain.shift_right(step.domain.shifts * (times - 1)))


def smooth(length: int) -> int:
    """Returns the least even number, not below ``length``, without prime factors above 5."""
    best = 1 << max(1, (length - 1).bit_length())
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            twos = 2 * threes
            while twos < length:
                twos *= 2
            best = min(best, twos)
            threes *= 3
        fives *= 5
    return best


def _reach(history: Sequence[tuple[float, float, int]], eps_error: float, delta_error: float) -> float:
    """Returns how far the domain reaches to either side, as the library's `compute_safe_domain_size`."""
    steps = sum(count for _, _, count in history)
    spent = [_spent(history, delta_error / 4)]
    spent += [_spent([(z, q, 1)], delta_error / (8 * steps)) for z, q, _ in history]
    return max(*spent, eps_error) + 3


def _spent(history: Sequence[tuple[float, float, int]], delta: float) -> float:
    """Returns epsilon by the library's Renyi accountant."""
    total = sum([_divergences(z, q) * count for z, q, count in history])
    found, _ = rdp.get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=total, delta=delta)
    return float(found)


@lru_cache(maxsize=256)
def _divergences(z: float, q: float) -> Any:
    """Returns the Renyi divergences of one step; those of many are as many times these."""
    return rdp.compute_rdp(q=q, noise_multiplier=z, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)
