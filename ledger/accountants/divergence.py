"""Rényi divergence of releases at one order, for every family of noise: what adds up over runs chosen one after the other.

At one order divergences add up whatever was chosen by looking at what was released before (Feldman and Zrnic 2021), and over
different families too, which no loss distribution does.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from ledger.accountants import families, renyi
from ledger.accountants.phases import Phase, check_delta, check_epsilon, loss_of


def of_phases(phases: Sequence[Phase], family: str) -> tuple[float, ...]:
    """Returns the divergence of phases in normal form at every order of `renyi.ORDERS`, an upper bound in both directions.

    Source:
        Gaussian: `renyi.curve`. Laplace: `_laplace`. Discrete Gaussian and Skellam: as unsampled releases, `families`.
    """
    if not phases:
        return (0.0,) * len(renyi.ORDERS)
    if phases[0].noise_multiplier == 0.0:
        return (math.inf,) * len(renyi.ORDERS)
    if family == families.GAUSSIAN:
        return renyi.curve(phases)
    if family == "laplace":
        return tuple(math.fsum(p.steps * _laplace(order, p) for p in phases) for order in renyi.ORDERS)
    return of_loss(loss_of(phases), family)


def of_loss(loss: float, family: str) -> tuple[float, ...]:
    """Returns the same for unsampled releases whose 1/z^2 add up to ``loss``; not for Laplace noise, which has no such sum."""
    families_of_loss = {
        families.GAUSSIAN: families.discrete_gaussian_rdp,  # order / 2 times the sum, for both
        "discrete_gaussian": families.discrete_gaussian_rdp,
        "skellam": lambda order, total: families.skellam_rdp(math.ceil(order), total),  # divergences grow with the order
    }
    return tuple(families_of_loss[family](order, loss) for order in renyi.ORDERS)


@lru_cache(maxsize=1024)
def room(epsilon: float, delta: float) -> tuple[float, ...]:
    """Returns at every order the largest divergence that is within (epsilon, delta), from below.

    Guarantee:
        A mechanism with at most this divergence at an order is (epsilon, delta)-DP (`renyi.least_of_order`).
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


def _laplace(order: float, phase: Phase) -> float:
    """Divergence of one step of Laplace noise.

    Source:
        Sampled at rate q, a step of pure epsilon b is of pure epsilon log(1 + q (e^b - 1)), in both directions (Balle, Barthe
        and Gaboardi 2018, Theorem 8), and pure epsilon e has divergence at most e and order e^2 / 2 (Bun and Steinke 2016,
        Proposition 3.3). Nor is it more than the unsampled one.
    """
    bound = 1.0 / phase.noise_multiplier
    pure = math.log1p(phase.sampling_rate * math.expm1(bound)) if bound < 600.0 else bound
    return min(pure, 0.5 * order * pure * pure, families.laplace_rdp(order, [bound], [1]))
