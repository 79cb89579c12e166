"""Chooses buffered linear Toeplitz strategies (BLT): the noise of a step is made of a few buffers, in a run of any length.

A strategy of m buffers has decays theta and scales omega: C's first column is 1, then sum_j omega_j theta_j^(i - 1). Its
inverse has the same form, with decays theta' between those of C and negative scales. Written by rates lambda = -log theta,
those of C
and of the inverse take turns: lambda_1 < lambda'_1 < lambda_2 < ..; any such rates are a strategy whose column does not
increase. So the logarithms of the differences are free, and no constraint is left to keep.

Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta, "Efficient and Near-Optimal Noise Generation for Streaming
Differential Privacy" (2024); McMahan, Xu and Zhang, "A Hassle-free Algorithm for Strong Differential Privacy in Federated
Learning" (2024).
"""

from typing import Any, Final

import numpy as np

from dptrain.noise.correlated.toeplitz import Objective, checked_objective, checked_steps, minimised
from ledger.accountants.correlated import ONCE, Buffered, Participation, sensitivity
from ledger.accountants.correlated.strategies import CODE
from ledger.errors import AccountantError

MAX_BUFFERS: Final = 8
GAIN: Final = 0.01
"""A buffer more is taken while it lowers the loss by this share at least."""

_BOUNDS: Final = (-30.0, 4.0)
"""Bounds the logarithms of differences of rates: buffers nearer to each other, and to 1, are one in float64."""


def optimize(
    n: int, buffers: int | None = None, objective: Objective = "mean", participation: Participation = ONCE
) -> Buffered:
    """Returns a strategy of least loss found over n steps, among those whose inverse decays without changing its sign.

    Others may be better by some parts of a thousand over a dozen steps, and by less over more.

    Args:
        n: steps. buffers: m; left out, as many as lower the loss by 1 % each. objective: `mean` or `max` of the errors of
            prefix sums. participation: of one contribution, whose squared sensitivity counts.

    Raises:
        AccountantError: code STRATEGY, no such numbers or objective.
    """
    checked_steps(n)
    checked_objective(objective)
    if buffers is not None and not 0 <= buffers <= MAX_BUFFERS:
        raise AccountantError(CODE, f"a strategy has 0 to {MAX_BUFFERS} buffers, got {buffers!r}")
    best, least = Buffered((), ()), loss(Buffered((), ()), n, objective, participation)
    rates: np.ndarray | None = None
    for m in range(1, min(MAX_BUFFERS if buffers is None else buffers, n) + 1):
        free, value = _best(n, m, objective, participation, rates)
        gained = value < (1.0 - GAIN) * least if buffers is None else True
        if not gained:
            break
        rates = free
        found = _strategy(free)
        if loss(found, n, objective, participation) <= least:
            best, least = found, loss(found, n, objective, participation)
    return best


def inverse(strategy: Buffered) -> tuple[np.ndarray, np.ndarray]:
    """Returns decays and scales of C^-1, each of shape (m,): x_t = z_t + sum_j scales_j S_j, then S_j <- decays_j S_j + z_t.

    The decays are the eigenvalues of diag(theta) - omega 1^T, which is similar to a symmetric matrix.
    """
    theta, omega = np.array(strategy.decays), np.array(strategy.scales)
    decays, vectors = np.linalg.eigh(np.diag(theta) - np.sqrt(np.outer(omega, omega)))
    return decays, -np.square(vectors.T @ np.sqrt(omega))


def errors(strategy: Buffered, n: int) -> np.ndarray:
    """Returns the squared norms of the rows of A C^-1 for the prefix sums A, shape (n,)."""
    decays, scales = inverse(strategy)
    rows = np.zeros(checked_steps(n))
    rows[0] = 1.0
    for decay, scale in zip(decays, scales, strict=True):
        rows[1:] += scale * np.power(decay, np.arange(n - 1))
    return np.cumsum(np.square(np.cumsum(rows)))


def error(strategy: Buffered, n: int, objective: Objective = "mean") -> float:
    """Returns the mean or the largest of `errors`."""
    found = errors(strategy, n)
    return float(found.mean() if checked_objective(objective) == "mean" else found[-1])


def loss(strategy: Buffered, n: int, objective: Objective = "mean", participation: Participation = ONCE) -> float:
    """Returns the squared sensitivity times the error."""
    return sensitivity(strategy, n, participation).value ** 2 * error(strategy, n, objective)


def _best(n: int, m: int, objective: str, participation: Participation, rates: np.ndarray | None) -> tuple[np.ndarray, float]:
    """Returns the free numbers of the least loss from several starts, and that loss."""
    starts = [_spread(n, m, last) for last in (0.7, 2.0)]
    if rates is not None:
        starts.append(np.concatenate([rates, [0.0, 0.0]]))
    found = []
    for start in starts:
        free = minimised(lambda free: _measured(free, n, objective, participation), start, _BOUNDS)
        found.append((_log_loss(free, n, objective, participation), free))
    value, free = min(found, key=lambda pair: pair[0])
    return free, float(np.exp(value))


def _spread(n: int, m: int, last: float) -> np.ndarray:
    """Returns a start: rates from 1/n on, each the same multiple of the one before."""
    rates = np.geomspace(min(0.5 / n, last / 4), last, 2 * m)
    return np.log(np.diff(rates, prepend=0.0))


def _measured(free: np.ndarray, n: int, objective: str, participation: Participation) -> tuple[float, np.ndarray]:
    """Returns the logarithm of the loss with its gradient, exact to float64 by a step into the complex numbers."""
    moved = [free + 1e-30j * unit for unit in np.eye(len(free))]
    slopes = [_log_loss(each, n, objective, participation).imag * 1e30 for each in moved]
    return float(_log_loss(free, n, objective, participation)), np.array(slopes)


def _rates(free: np.ndarray) -> tuple[Any, Any]:
    """Returns the rates of C and of its inverse."""
    rates = np.cumsum(np.exp(free))
    return rates[0::2], rates[1::2]


def _strategy(free: np.ndarray) -> Buffered:
    ours, theirs = _rates(free)
    return Buffered(tuple(np.exp(-ours)), tuple(_scales(ours, theirs)))


def _scales(ours: Any, theirs: Any) -> Any:
    """Returns omega_i = prod_j (theta_i - theta'_j) / prod_(j != i) (theta_i - theta_j)."""
    above = -np.expm1(ours[:, None] - theirs[None, :])
    below = -np.expm1(ours[:, None] - ours[None, :])
    below = below + np.eye(len(ours))
    return np.exp(-ours) * above.prod(axis=1) / below.prod(axis=1)


def _log_loss(free: np.ndarray, n: int, objective: str, participation: Participation) -> Any:
    """Returns the logarithm of squared sensitivity times error, in sums of powers that are added up in closed form."""
    ours, theirs = _rates(free)
    scales, turned = _scales(ours, theirs), _scales(theirs, ours)
    heights = turned / -np.expm1(-theirs)
    limit = 1.0 + heights.sum()  # B_i = limit - sum_j heights_j theta'_j^i
    sums = _weighted if objective == "mean" else _geometric
    count = (n + 1) / 2 if objective == "mean" else float(n)
    pairs = sums(theirs[:, None] + theirs[None, :], n)
    squared = limit**2 * count - 2.0 * limit * (heights * sums(theirs, n)).sum() + heights @ pairs @ heights
    return np.log(squared) + np.log(_moved(ours, scales, n, participation))


def _moved(rates: Any, scales: Any, n: int, participation: Participation) -> Any:
    """Returns the squared norm of the sum of the columns 0, gap, 2 gap, .. that a contribution takes part in.

    In block i of ``gap`` rows, row 0 is [i < K] + sum_j omega_j p_j and row t > 0 is sum_j omega_j theta_j^(t - 1) q_j, with
    p_j what the columns before have left and q_j = theta_j p_j + [i < K].
    """
    gap, most = min(participation.gap, n), participation.times(n)
    if most == 1:
        gap = n
    blocks = np.arange(-(-n // gap))
    alive = (blocks < most)[:, None]
    held = np.minimum(blocks, most)[:, None]
    left = np.exp(-(gap - 1.0) * rates) * _geometric(gap * rates, held) * np.exp(-gap * rates * (blocks[:, None] - held))
    first = alive[:, 0] + left @ scales
    grown = (np.exp(-rates) * left + alive) * scales
    both = rates[:, None] + rates[None, :]
    inside = np.einsum("bj,jk,bk->b", grown, _geometric(both, gap - 1), grown)
    last = n - gap * (len(blocks) - 1)
    if last != gap:
        inside[-1] = grown[-1] @ _geometric(both, last - 1) @ grown[-1]
    return (first**2).sum() + inside.sum()


def _geometric(rate: Any, count: Any) -> Any:
    """Returns sum_(i < count) e^(-rate i)."""
    return np.expm1(-rate * count) / np.expm1(-rate)


def _weighted(rate: Any, n: int) -> Any:
    """Returns sum_(i < n) (1 - i/n) e^(-rate i); by its series where the rate is next to nothing."""
    small = np.real(rate) * n < 1e-4
    safe = np.where(small, 1.0, rate)
    closed = (n - np.exp(-safe) * _geometric(safe, n)) / (n * -np.expm1(-safe))
    series = (n + 1) / 2 - rate * (n * n - 1) / 6 + rate**2 * n * (n * n - 1) / 24
    return np.where(small, series, closed)
