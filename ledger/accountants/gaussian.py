"""Costs Gaussian noise: the exact epsilon of unsampled releases, and the row of the family, which any accountant composes.

Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (2018), Theorem 8.
"""

import math
from typing import ClassVar, Final

from ledger.accountants import renyi
from ledger.accountants.phases import Counted, Participation
from ledger.accountants.table import DEVICE, GAUSSIAN, HOST, Cost

_SQRT2: Final = math.sqrt(2.0)
_SQRT_PI: Final = math.sqrt(math.pi)


class Gaussian(Cost):
    """Costs Gaussian noise by whichever accountant the policy names.

    The noise multiplier z is the standard deviation of the noise on the sum over the L2 clip norm.
    """

    name: ClassVar[str] = GAUSSIAN
    exactness: ClassVar[tuple[str, ...]] = ("fast", "certified")
    law: ClassVar[str] = GAUSSIAN
    injections: ClassVar[tuple[str, ...]] = ("scheduled", "per_microbatch", "per_sample")
    disclosures: ClassVar[tuple[str, ...]] = ("secret_poisson", "occurrences_public", "secret_draws")
    budgets: ClassVar[bool] = True
    groups: ClassVar[tuple[str, ...]] = ("secret_poisson", "occurrences_public")
    generators: ClassVar[tuple[str, ...]] = (HOST, DEVICE)
    noise: ClassVar[str] = "integer Gaussian noise on s*2^-32"

    def divergences(self, participation: Participation) -> tuple[float, ...]:
        """Returns the Rényi divergence at every order: `renyi.curve`, or order / 2 times the sum of 1/z^2 of what is public."""
        if isinstance(participation, Counted):
            return tuple(order * participation.loss / 2.0 for order in renyi.ORDERS)
        return renyi.curve(participation.phases)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Returns epsilon of the pair N(0, 1) versus N(mu, 1).

    Guarantee: The result is never below the exact epsilon by more than rounding of the last few bits: bisection returns the
    upper end of its bracket.

    Args:
        mu: separation in standard deviations; sqrt(n)/z for n releases at noise multiplier z.
        delta: the delta of (epsilon, delta).

    Returns:
        The smallest epsilon >= 0 with delta(epsilon) <= delta; inf for an infinite mu.
    """
    if mu == 0.0:
        return 0.0
    if math.isinf(mu) or mu * mu > 1e300:
        return math.inf
    low, high = 0.0, 1.0
    if delta_of_mu(mu, low) <= delta:
        return 0.0
    while delta_of_mu(mu, high) > delta:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if delta_of_mu(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Returns delta of the pair N(0, 1) versus N(mu, 1): Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

    With a = eps/mu - mu/2 and b = eps/mu + mu/2, e^eps = exp((b^2 - a^2)/2), so the second term is
    exp(-a^2/2) erfcx(b/sqrt 2)/2, which neither overflows nor underflows where it matters.
    """
    a = epsilon / mu - 0.5 * mu
    b = epsilon / mu + 0.5 * mu
    return 0.5 * math.erfc(a / _SQRT2) - 0.5 * math.exp(-0.5 * a * a) * _erfcx(b / _SQRT2)


def _erfcx(x: float) -> float:
    """Returns the scaled complementary error function exp(x^2) erfc(x) for x >= 0."""
    if x < 5.0:
        return math.exp(x * x) * math.erfc(x)
    # Continued fraction x + (1/2)/(x + (2/2)/(x + (3/2)/(x + ...))); 40 terms are exact to double precision from 5 up.
    tail = x
    for k in range(40, 0, -1):
        tail = x + 0.5 * k / tail
    return 1.0 / (_SQRT_PI * tail)
