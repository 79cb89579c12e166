"""Compares strategies at equal epsilon: how much noise each needs, and what is left of it in what a run sums up.

The yardstick is the root mean square of the noise in the sums of the workload, per coordinate: the clip norm times noise
multiplier times root of the loss. The public number that divides a sum is the same for all, and left out.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dptrain.noise.correlated import dense, toeplitz
from dptrain.noise.correlated.toeplitz import Objective, checked_objective
from ledger import accountants
from ledger.accountants.correlated import Participation, Strategy, Toeplitz, sensitivity
from ledger.accountants.correlated.strategies import CODE, require
from ledger.errors import AccountantError

MOST_DENSE = 4096
"""Most steps for which the errors of a strategy without one column for all steps are computed."""


@dataclass(frozen=True)
class Arm:
    """Says what one strategy comes to at a target epsilon.

    Attributes:
        strategy: C.
        noise_multiplier: deviation of the noise of one occurrence over the clip norm, with C scaled to column norms of 1 at
            most.
        sensitivity: by how many clip norms a contribution moves C G, in all its steps.
        rmse: root mean square (or the largest root mean square) of the noise in the sums, in clip norms.
        step: root mean square of the noise in one step, in clip norms: what each step of training feels, before later ones
            take it back.
    """

    strategy: Strategy
    noise_multiplier: float
    sensitivity: float
    rmse: float
    step: float


def error(strategy: Strategy, steps: int, objective: Objective = "mean", workload: np.ndarray | None = None) -> float:
    """Returns the mean or largest squared norm of the rows of A C^-1.

    Args:
        strategy: C. steps: of the run. objective: `mean` or `max` over the sums.
        workload: A, shape (steps, steps), or its first column, shape (steps,); prefix sums where left out.

    Raises:
        AccountantError: code STRATEGY, no such steps or objective, or more than 4096 steps for a strategy that has columns of
            its own for each.
    """
    require(strategy, steps)
    column = strategy.common(steps)
    if column is not None and np.ndim(workload) < 2:
        return toeplitz.error(column, steps, objective, workload)
    if steps > MOST_DENSE:
        raise AccountantError(CODE, f"errors of such a strategy are computed for {MOST_DENSE} steps at most, got {steps}")
    return dense.error(strategy.matrix(steps), objective, workload)


def at_epsilon(
    strategy: Strategy,
    steps: int,
    epsilon: float,
    delta: float,
    participation: Participation,
    objective: Objective = "mean",
    workload: np.ndarray | None = None,
    accountant: str = "pld",
) -> Arm:
    """Returns what a strategy comes to where a contribution takes part in known steps, all charged as one Gaussian.

    Args:
        strategy: C. steps: of the run. epsilon, delta: the target. participation: of one contribution.
        objective, workload: as in `error`. accountant: by which the Gaussian is charged.

    Raises:
        AccountantError: code STRATEGY, or as `ledger.accountants.calibrate`.
    """
    largest = math.sqrt(float(strategy.norms_squared(steps).max()))
    moved = sensitivity(strategy, steps, participation).value / largest
    multiplier = accountants.calibrate(epsilon, 1.0, 1, delta, accountant) * moved
    return _arm(strategy, steps, multiplier, moved, error(strategy, steps, objective, workload))


def _arm(strategy: Strategy, steps: int, multiplier: float, moved: float, squared: float) -> Arm:
    """Returns an arm, with its noise in the sums and in a step. ``squared``: error of the sums."""
    scale = multiplier * math.sqrt(float(strategy.norms_squared(steps).max()))
    alone = error(strategy, steps, "mean", np.eye(1, steps)[0])
    return Arm(strategy, multiplier, moved, scale * math.sqrt(squared), scale * math.sqrt(alone))


def amplified(
    strategy: Strategy,
    steps: int,
    epsilon: float,
    delta: float,
    groups: int,
    sampling_rate: float,
    objective: Objective = "mean",
    accountant: str = "pld",
    workload: np.ndarray | None = None,
) -> Arm:
    """Returns what a banded strategy comes to under cyclic Poisson draws.

    Contributions are put into groups at random, once; step t draws from group t mod ``groups``, each with the sampling rate, in
    secret.
    Where the groups are as many as the bands or more, the columns of one group share no row: to it the run is ceil(steps /
    groups) Poisson-sampled Gaussians.

    Raises:
        AccountantError: code STRATEGY, more bands than groups: nothing is proved then. Or as `ledger.accountants.calibrate`.

    Source: Choquette-Choo et al., "(Amplified) Banded Matrix Factorization" (2023), theorem 4.
    """
    require(strategy, steps)
    if type(groups) is not int or groups < 1:
        raise AccountantError(CODE, f"there is 1 group or more, got {groups!r}")
    if strategy.bands is None or strategy.bands > min(groups, steps):
        bands = "any number of" if strategy.bands is None else str(strategy.bands)
        told = f"the strategy has {bands} bands, and {groups} groups over {steps} steps amplify {min(groups, steps)} at most"
        raise AccountantError(CODE, f"{told}; take fewer bands")
    occurrences = -(-steps // groups)
    multiplier = accountants.calibrate(epsilon, sampling_rate, occurrences, delta, accountant)
    return _arm(strategy, steps, multiplier, math.sqrt(occurrences), error(strategy, steps, objective, workload))


def by_bands(
    steps: int,
    contributions: int,
    batch: float,
    epsilon: float,
    delta: float,
    objective: Objective = "mean",
    accountant: str = "pld",
    bands: Iterable[int] | None = None,
) -> Mapping[int, Arm]:
    """Returns, by the number of bands, what the best banded Toeplitz strategy comes to under cyclic Poisson draws.

    Each has as many groups as bands. More bands leave less noise in the sums, and fewer amplify more; the least ``rmse`` is
    best.

    Args:
        steps: of the run. contributions: public number of them. batch: mean number that a step draws.
        bands: to try; powers of two where left out. Those of which a step would draw more than a group has are passed over.

    Raises:
        AccountantError: code STRATEGY, none is left; or as `ledger.accountants.calibrate`.
    """
    checked_objective(objective)
    tried = [1 << power for power in range(steps.bit_length())] if bands is None else list(bands)
    possible = [count for count in tried if count <= steps and count * batch <= contributions]
    if not possible or not batch > 0.0:
        told = f"a step draws {batch:g} of {contributions} contributions"
        raise AccountantError(CODE, f"{told}, which no number of bands leaves room for; draw fewer")
    found = {}
    for count in possible:
        strategy = Toeplitz(tuple(toeplitz.optimal_coefficients(steps, count, objective)))
        found[count] = amplified(strategy, steps, epsilon, delta, count, count * batch / contributions, objective, accountant)
    return found
