"""Turns caps and mechanisms into rho, the parameter of zero-concentrated differential privacy, in whole numbers of 1e-9.

A sum of rho that is held below a cap is a privacy filter: mechanisms, their parameters and the moment to stop may all be chosen
from earlier answers, and the whole is still rho-zCDP at the cap. For each Renyi order that is Feldman and Zrnic, "Individual
Privacy Accounting via a Renyi Filter", 2021, Theorem 4.3; zCDP asks for every order at once, and the sums of all orders are one
number. Whitehouse, Ramdas, Rogers and Wu, "Fully-Adaptive Composition in Differential Privacy", 2023, have the same for zCDP.
Epsilons that are composed by privacy loss distributions are no such filter (`ledger.budget.reports`).

What costs is rounded up and what caps is rounded down.
"""

import math
from fractions import Fraction
from typing import Final

from attest.fixed_point import MICRO, PICO
from ledger.errors import AccountantError

NANO: Final = 10**9
"""Parts of one rho."""

_ABOVE: Final = 1e-12
"""Part by which an epsilon is given too large, far above what double precision rounds."""

_MOST_NANO: Final = 10**15
"""No cap is worth more: a rho of a million."""


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Returns an epsilon at which everything that is rho-zCDP is (epsilon, delta)-DP.

    The least value over a > 1 of a rho + log(1/(a delta))/(a - 1) + log(1 - 1/a): Canonne, Kamath and Steinke, "The Discrete
    Gaussian for Differential Privacy", 2020, Corollary 13, which is tighter than rho + 2 sqrt(rho log(1/delta)) of Bun and
    Steinke, 2016, Proposition 1.3. Every a gives a bound, so an a that is not quite the best costs tightness alone.

    Args:
        rho: of at least 0. delta: above 0 and below 1.

    Raises:
        AccountantError: code RHO or DELTA.
    """
    if not (math.isfinite(rho) and rho >= 0):
        raise AccountantError("RHO", f"rho is {rho}; expected a finite number of at least 0")
    if not 0 < delta < 1:
        raise AccountantError("DELTA", f"delta is {delta}; expected a number between 0 and 1")
    if rho == 0:
        return 0.0
    log = -math.log(delta)
    low, high = -40.0, math.log(math.expm1(log))  # of log(a - 1); the slope in a is rho - (log - log a)/(a - 1)^2
    for _ in range(100):
        middle = (low + high) / 2
        above = math.exp(middle)
        if rho * above * above < log - math.log1p(above):
            low = middle
        else:
            high = middle
    above = math.exp(high)
    order = 1 + above
    found = order * rho + (log - math.log1p(above)) / above + math.log(above / order)
    return max(0.0, found) * (1 + _ABOVE) + _ABOVE


def cap_nano(epsilon_micro: int, delta_pico: int) -> int:
    """Returns the most rho, in 1e-9, whose epsilon at delta is at most a cap's.

    Guarantee: everything that stays within it is (epsilon, delta)-DP.

    Args:
        epsilon_micro: above 0, in 1e-6. delta_pico: above 0 and below 10^12, in 1e-12.

    Raises:
        AccountantError: code CAP, no rho of 1e-9 fits; DELTA.
    """
    epsilon, delta = epsilon_micro / MICRO, delta_pico / PICO
    low, high = 0, _MOST_NANO
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon_of_rho(middle / NANO, delta) <= epsilon:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        raise AccountantError("CAP", f"epsilon {epsilon:g} at delta {delta:g} is worth no rho of 1e-9; give a larger cap")
    return low


def gaussian_nano(sensitivity: float, sigma: float) -> int:
    """Returns the rho of a Gaussian release, sensitivity^2 / (2 sigma^2), in 1e-9 rounded up.

    Source: Bun and Steinke, 2016, Proposition 1.6.

    Args:
        sensitivity: most distance between the exact answers of neighbours, in the norm of the noise: above 0. For two clipped
            inputs of which one replaces the other it is twice the clip norm.
        sigma: standard deviation of each coordinate, above 0.

    Raises:
        AccountantError: code NOISE.
    """
    _require_positive("NOISE", sensitivity=sensitivity, sigma=sigma)
    return _up(Fraction(sensitivity) ** 2 / (2 * Fraction(sigma) ** 2))


def bounded_range_nano(eta: float) -> int:
    """Returns the rho of a choice whose log-ratio between neighbours has a range of at most eta: eta^2 / 8, in 1e-9 rounded up.

    Such is the exponential mechanism, and a token drawn from clipped logits, with eta = 2 C / (B tau) (Cesar and Rogers,
    "Bounding, Concentrating, and Truncating", 2021, Lemma 3.2). Raises AccountantError: code NOISE.
    """
    _require_positive("NOISE", eta=eta)
    return _up(Fraction(eta) ** 2 / 8)


def pure_nano(epsilon: float) -> int:
    """Returns the rho of an epsilon-DP release, epsilon^2 / 2, in 1e-9 rounded up (Bun and Steinke, 2016, Proposition 1.4).
    Raises AccountantError: code NOISE."""
    _require_positive("NOISE", epsilon=epsilon)
    return _up(Fraction(epsilon) ** 2 / 2)


def _up(rho: Fraction) -> int:
    return math.ceil(rho * NANO)


def _require_positive(code: str, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise AccountantError(code, f"{name} is {value}; expected a finite number above 0: nothing is released for nothing")
