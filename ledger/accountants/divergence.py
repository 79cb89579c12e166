"""Adds up over runs chosen one after the other: the Rényi divergence of releases at one order, for every family of noise.

At one order divergences add up whatever was chosen by looking at what was released before (Feldman and Zrnic 2021), and over
different families too, which no loss distribution does.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from ledger.accountants import renyi
from ledger.accountants.phases import Counted, Phase, Sampled, check_delta, check_epsilon
from ledger.accountants.table import TABLE


def of_phases(phases: Sequence[Phase], family: str) -> tuple[float, ...]:
    """Returns the divergence of phases in normal form at every order of `renyi.ORDERS`, an upper bound in both directions.

    Source: Those of `Cost.divergences`; of noise that is not amplified as unsampled releases.
    """
    if not phases:
        return (0.0,) * len(renyi.ORDERS)
    if phases[0].noise_multiplier == 0.0:
        return (math.inf,) * len(renyi.ORDERS)
    return TABLE[family].divergences(Sampled(tuple(phases)))


def of_loss(loss: float, family: str) -> tuple[float, ...]:
    """Returns the same for unsampled releases whose 1/z^2 add up to ``loss``; not for Laplace noise, which has no such sum."""
    return TABLE[family].divergences(Counted(loss))


@lru_cache(maxsize=1024)
def room(epsilon: float, delta: float) -> tuple[float, ...]:
    """Returns at every order the largest divergence that is within (epsilon, delta), from below.

    Guarantee: A mechanism with at most this divergence at an order is (epsilon, delta)-DP (`renyi.least_of_order`).
    """
    epsilon, delta = check_epsilon(epsilon, "a limit"), check_delta(delta)
    return tuple(_room(order, epsilon, delta) for order in renyi.ORDERS)


def roomiest(planned: Sequence[float], epsilon: float, delta: float) -> int:
    """Returns the place in `renyi.ORDERS` at which releases of this divergence could be repeated most often."""
    ratios = [have / need if need else math.inf for have, need in zip(room(epsilon, delta), planned, strict=True)]
    return max(range(len(ratios)), key=ratios.__getitem__)


def _room(order: float, epsilon: float, delta: float) -> float:
    low, high = 0.0, 1.0
    while renyi.least_of_order(high, order, delta) <= epsilon:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if renyi.least_of_order(middle, order, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low
