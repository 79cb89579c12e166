"""The analytic Gaussian mechanism: exact epsilon of one (or a composition of) unsampled Gaussian mechanisms.

Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (2018), Theorem 8.
"""

import math
from typing import Final

_SQRT2: Final = math.sqrt(2.0)
_SQRT_PI: Final = math.sqrt(math.pi)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Returns epsilon of the pair N(0, 1) versus N(mu, 1).

    Guarantee:
        The result is never below the exact epsilon by more than rounding of the last few bits: bisection returns the
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
    if _delta(mu, low) <= delta:
        return 0.0
    while _delta(mu, high) > delta:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if _delta(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def _delta(mu: float, epsilon: float) -> float:
    """Balle and Wang: delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

    With a = eps/mu - mu/2 and b = eps/mu + mu/2, e^eps = exp((b^2 - a^2)/2), so the second term is
    exp(-a^2/2) erfcx(b/sqrt 2)/2, which neither overflows nor underflows where it matters.
    """
    a = epsilon / mu - 0.5 * mu
    b = epsilon / mu + 0.5 * mu
    return 0.5 * math.erfc(a / _SQRT2) - 0.5 * math.exp(-0.5 * a * a) * _erfcx(b / _SQRT2)


def _erfcx(x: float) -> float:
    """Scaled complementary error function exp(x^2) erfc(x) for x >= 0."""
    if x < 5.0:
        return math.exp(x * x) * math.erfc(x)
    # Continued fraction x + (1/2)/(x + (2/2)/(x + (3/2)/(x + ...))); 40 terms are exact to double precision from 5 up.
    tail = x
    for k in range(40, 0, -1):
        tail = x + 0.5 * k / tail
    return 1.0 / (_SQRT_PI * tail)
