"""How often a contribution is drawn: the binomial law of its occurrences over the horizon."""

import math
from dataclasses import dataclass
from fractions import Fraction

TAIL = 0.025
"""Probability beyond either end of the range that is shown: 95 of 100 contributions lie within."""

_EXACT_BELOW = 1e7
"""Variance from which on the normal law is taken, which is then within one draw of the binomial one."""


@dataclass(frozen=True, slots=True)
class DrawRange:
    """Draws of one contribution over the horizon: at most TAIL of all contributions are drawn less often than `low`, and as
    many more often than `high`."""

    low: int
    high: int


def draw_range(steps: int, rate: Fraction) -> DrawRange:
    """Quantiles of Bin(steps, rate).

    Args:
        steps: Horizon T, at least 1.
        rate: Probability of a draw per step, above 0 and at most 1.
    """
    q = float(rate)
    if q >= 1.0:
        return DrawRange(steps, steps)
    mean, variance = steps * q, steps * q * (1.0 - q)
    if variance > _EXACT_BELOW:
        width = 1.959964 * math.sqrt(variance)
        return DrawRange(max(0, math.floor(mean - width)), min(steps, math.ceil(mean + width)))
    # From far enough below, where nothing is left to count, up: P[X <= k].
    reach = 10.0 * math.sqrt(variance) + 20.0
    start = max(0, math.floor(mean - reach))
    at = math.lgamma(steps + 1) - math.lgamma(start + 1) - math.lgamma(steps - start + 1)
    mass = math.exp(at + start * math.log(q) + (steps - start) * math.log1p(-q))
    odds, below, low = q / (1.0 - q), 0.0, None
    for k in range(start, steps + 1):
        below += mass
        if low is None and below > TAIL:
            low = k
        if below >= 1.0 - TAIL or k > mean + reach:
            return DrawRange(low or 0, k)
        mass *= (steps - k) / (k + 1) * odds
    return DrawRange(low or 0, steps)
