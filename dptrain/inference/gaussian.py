"""Calibrates Gaussian noise on one state, and says what noise of a given size is worth. Loads no torch.

The Gaussian mechanism releases ``f(x) + N(0, sigma^2 I)``. All that its guarantee depends on is ``mu = sensitivity /
sigma``, the distance of two neighbouring means in standard deviations. Releases add up by ``mu^2``,
also where each is chosen after the last (Dong, Roth and Su 2019, Corollary 3.3). So T of them under one (epsilon, delta) need
``sigma = sqrt(T) sensitivity / mu(epsilon, delta)``.

A state is clipped to the L2 norm C. Two adjacencies are named, after what takes the place of a query:

* ``replace_null``: no query, whose state is zero. The sensitivity is C.
* ``replace_one``: any other query. Two clipped states may be opposite, so the sensitivity is 2C.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

from ledger.accountants.gaussian import delta_of_mu, epsilon_of_mu
from ledger.accountants.phases import check_delta, check_epsilon, is_real
from ledger.errors import AccountantError

ADJACENCIES: Final = {"replace_null": 1, "replace_one": 2}
"""Sensitivity of a clipped state in units of the clip norm, by the name of the adjacency."""

IN_WORDS: Final = {"replace_null": "one input against none", "replace_one": "two inputs"}

MOST_MU: Final = 128.0
"""Distance of neighbours in standard deviations above which nothing is released: it hides nothing, epsilon is near 8,700."""

_DOUBT: Final = 1e-12
"""Relative error allowed to a tail of the normal law in double precision; measured: 4e-14 at most, up to `MOST_MU`."""


def sensitivity_of(clip: float, adjacency: str) -> float:
    """Returns how far apart two neighbouring states may be that are clipped to an L2 norm of ``clip``.

    Raises:
        AccountantError: code CLIP_NORM, no positive finite number; ADJACENCY, no name of one.
    """
    if adjacency not in ADJACENCIES:
        raise AccountantError("ADJACENCY", f"an adjacency is one of {', '.join(ADJACENCIES)}, got {adjacency!r}")
    if not _positive(clip):
        raise AccountantError("CLIP_NORM", f"a clip norm is a positive finite number, got {clip!r}; give one above 0")
    return ADJACENCIES[adjacency] * float(clip)


def sigma_classical(epsilon: float, delta: float, sensitivity: float) -> float:
    """Returns the standard deviation ``sensitivity sqrt(2 ln(1.25 / delta)) / epsilon`` where a theorem says that it suffices.

    Source: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy" (2014), Theorem A.1: for epsilon in (0, 1).
    From epsilon 8.42 on (delta 1e-5) the formula is false; `sigma_analytic` is smaller, and right for every epsilon.

    Raises:
        AccountantError: code CLASSICAL_EPSILON, epsilon is 1 or more; EPSILON, DELTA, SENSITIVITY, out of range.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    sensitivity = _sensitivity(sensitivity)
    if epsilon >= 1.0:
        raise AccountantError(
            "CLASSICAL_EPSILON",
            f"the classical formula holds for epsilon below 1 (Dwork and Roth 2014, Theorem A.1), got {epsilon}; "
            "sigma_analytic holds for every epsilon, and asks for less noise",
        )
    root = math.sqrt(2.0 * math.log(1.25 / delta))
    return _above(sensitivity * root / epsilon * (1.0 + 2.0**-48))  # the theorem asks for strictly more


def sigma_analytic(epsilon: float, delta: float, sensitivity: float, releases: int = 1) -> float:
    """Returns the smallest safe standard deviation for (epsilon, delta): that of each of ``releases`` releases together.

    Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (2018), Theorem 8 and Algorithm 1. The
    root is found by bisection; of the two ends of the last bracket the noisier one is taken.

    Args:
        epsilon, delta: of all releases together. sensitivity: how far apart neighbours may be, in the L2 norm.
        releases: T; a state is released T times, or T states of one answer are released once each.

    Raises:
        AccountantError: code EPSILON, DELTA, SENSITIVITY or RELEASES, out of range; NOTHING_HIDDEN, the noise would be nominal.
    """
    sensitivity = _sensitivity(sensitivity)
    mu = mu_of(epsilon, delta) / math.sqrt(_count(releases))
    if mu > MOST_MU:
        raise _nominal(mu)
    return _above(sensitivity / mu * (1.0 + 2.0**-50))


def delta_of(sigma: float, epsilon: float, sensitivity: float, releases: int = 1) -> float:
    """Returns the exact delta at ``epsilon`` of releases at ``sigma``, each: Balle and Wang 2018, Theorem 8.

    Args:
        epsilon: 0 or more, finite.

    Raises:
        AccountantError: an argument is out of range; the code is its name.
    """
    if not (is_real(epsilon) and 0.0 <= epsilon < math.inf):
        raise AccountantError("EPSILON", f"epsilon is a finite number, 0 or more, got {epsilon!r}")
    return max(0.0, delta_of_mu(distance(sigma, sensitivity, releases), float(epsilon)))


def epsilon_of(sigma: float, delta: float, sensitivity: float, releases: int = 1) -> float:
    """Returns the exact epsilon at ``delta`` of releases at ``sigma``, each; 0 where delta alone covers them.

    Raises:
        AccountantError: an argument is out of range; the code is its name.
    """
    return epsilon_of_mu(distance(sigma, sensitivity, releases), check_delta(delta))


def releases_within(sigma: float, epsilon: float, delta: float, sensitivity: float) -> int:
    """Returns how many releases at ``sigma``, fixed beforehand, stay within (epsilon, delta); 0 where one is too many.

    Raises:
        AccountantError: an argument is out of range; the code is its name.
    """
    one = distance(sigma, sensitivity)
    found = int((mu_of(epsilon, delta) / one) ** 2 * (1.0 + 1e-12))
    while found and epsilon_of(sigma, delta, sensitivity, found) > epsilon:
        found -= 1
    return found


def distance(sigma: float, sensitivity: float, releases: int = 1) -> float:
    """Returns mu of releases at ``sigma``, each: sqrt(releases) sensitivity / sigma.

    Raises:
        AccountantError: code SIGMA, SENSITIVITY or RELEASES, out of range.
    """
    if not _positive(sigma):
        raise AccountantError(
            "SIGMA", f"the standard deviation of noise is a positive number, got {sigma!r}; no state leaves without noise"
        )
    return math.sqrt(_count(releases)) * _sensitivity(sensitivity) / float(sigma)


def mu_of(epsilon: float, delta: float) -> float:
    """Returns the largest distance of neighbours, in standard deviations, that is (epsilon, delta)-DP; from below.

    Guarantee: The exact delta of the distance that is returned, at ``epsilon``, is at most ``delta``: what rounding may add
    to the tails of the normal law is counted against it.

    Source: Balle and Wang 2018, Theorem 8.

    Raises:
        AccountantError: code EPSILON or DELTA, out of range.
    """
    return _mu_of(check_epsilon(epsilon), check_delta(delta))


@lru_cache(maxsize=1024)
def _mu_of(epsilon: float, delta: float) -> float:
    def safe(mu: float) -> bool:
        tail = 0.5 * math.erfc((epsilon / mu - 0.5 * mu) / math.sqrt(2.0))
        return delta_of_mu(mu, epsilon) + _DOUBT * tail <= delta

    low, high = 1.0, 1.0
    while not safe(low):
        low *= 0.5
    while safe(high):
        high *= 2.0
    while high - low > 1e-14 * high:
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        low, high = (middle, high) if safe(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Worth:
    """Says what releases of clipped states are worth, under both adjacencies.

    Attributes:
        clip: L2 norm to which each state is clipped. sigma: standard deviation of the noise on each of its numbers.
        delta: of the (epsilon, delta) that is said. releases: number of them, together. adjacency: the one that is charged.
    """

    clip: float
    sigma: float
    delta: float
    releases: int
    adjacency: str

    def __post_init__(self) -> None:
        check_delta(self.delta)
        mu = distance(self.sigma, sensitivity_of(self.clip, self.adjacency))
        _count(self.releases)
        if mu > MOST_MU:
            raise _nominal(mu)

    def of(self, adjacency: str) -> float:
        """Returns the exact epsilon of all releases together under an adjacency, which is named."""
        return epsilon_of(self.sigma, self.delta, sensitivity_of(self.clip, adjacency), self.releases)

    @cached_property
    def epsilon(self) -> float:
        """The exact epsilon of all releases together, under the adjacency that is charged."""
        return self.of(self.adjacency)

    @cached_property
    def nano_rho(self) -> int:
        """Charge of one release: ``mu^2 / 2`` of zCDP in 1e-9, rounded up (Bun and Steinke 2016, Proposition 1.6)."""
        apart = ADJACENCIES[self.adjacency] * Fraction(self.clip) / Fraction(self.sigma)
        return math.ceil(apart * apart / 2 * 10**9)

    @property
    def mechanism(self) -> str:
        """Name of the mechanism for a log: the law and its exact parameters."""
        return f"gaussian clip={self.clip!r} sigma={self.sigma!r} {self.adjacency}"

    @cached_property
    def sentence(self) -> str:
        """Says what an answer is worth, with epsilon rounded up to four digits."""
        said = [f"{_rounded_up(self.of(name)):.4f} for {IN_WORDS[name]} ({name})" for name in ("replace_one", "replace_null")]
        times = "1 release" if self.releases == 1 else f"{self.releases} releases together"
        delta = f"{self.delta:g}".replace("e-0", "e-")
        return f"sigma {self.sigma:.6g} at clip norm {self.clip:.6g}, {times}: epsilon {', '.join(said)}, at delta {delta}"

    def __str__(self) -> str:
        return self.sentence


def _rounded_up(value: float) -> float:
    return math.ceil(value * 1e4 - 1e-9) / 1e4


def _above(value: float) -> float:
    return math.nextafter(value, math.inf)


def _positive(value: object) -> bool:
    return is_real(value) and 0.0 < value < math.inf


def _sensitivity(value: float) -> float:
    if not _positive(value):
        raise AccountantError("SENSITIVITY", f"a sensitivity is a positive finite number, got {value!r}; give one above 0")
    return float(value)


def _count(releases: int) -> int:
    if isinstance(releases, bool) or not isinstance(releases, int) or not 1 <= releases < 1 << 40:
        raise AccountantError("RELEASES", f"a number of releases is a whole number from 1 on, got {releases!r}")
    return releases


def _nominal(mu: float) -> AccountantError:
    return AccountantError(
        "NOTHING_HIDDEN",
        f"neighbours would lie {mu:.6g} standard deviations apart, which hides nothing; {MOST_MU:g} is the most that is "
        "released: ask for a smaller epsilon, or more noise",
    )
