"""Chooses dense strategies: any lower triangular C, for one participation or for several in a fixed order.

With X = C^T C, the mean error of a workload A is tr(A^T A X^-1) / n. It is convex in X, and what a contribution may move is
linear
in X where the columns that it takes part in are orthogonal: X[i, j] = 0 for i = j mod p, i != j, and the diagonal of each such
set of steps sums to 1.

Source: Choquette-Choo et al., "Multi-Epoch Matrix Factorization Mechanisms for Private Machine Learning" (2023); Denisov et al.
(2022), theorem 3.2, for the fixed point of one participation.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from scipy import linalg

from dptrain.noise.correlated.toeplitz import Objective, checked_objective, checked_steps
from ledger.accountants.correlated.strategies import CODE, Dense, moved_down
from ledger.errors import AccountantError

ROUNDS: Final = 2000
"""Most steps of an optimiser."""

FEW: Final = 40
"""Most steps of one that begins at the optimum of a workload nearby."""

CLOSE: Final = 1e-12
"""Relative gain of a step at which it ends."""


def prefix_sums(n: int) -> np.ndarray:
    """Returns the workload of SGD with a constant learning rate, shape (n, n)."""
    return np.tri(checked_steps(n))


def learning_rates(rates: np.ndarray, beta: float = 0.0) -> np.ndarray:
    """Returns the workload of SGD with a schedule of learning rates and momentum, shape (n, n).

    Row i weighs release j by how far it has moved the parameters after step i: sum over j <= t <= i of rates_t beta^(t - j).

    Raises:
        AccountantError: code STRATEGY, rates are not finite and positive, or momentum is not in [0, 1).
    """
    held = np.asarray(rates, dtype=np.float64)
    if held.ndim != 1 or not held.size or not np.isfinite(held).all() or not (held > 0.0).all():
        raise AccountantError(CODE, "learning rates are a list of positive numbers, one for each step")
    if not 0.0 <= beta < 1.0:
        raise AccountantError(CODE, f"momentum lies in [0, 1), got {beta!r}")
    n = len(held)
    age = np.subtract.outer(np.arange(n), np.arange(n))
    return np.cumsum(np.where(age >= 0, held[:, None] * beta ** np.maximum(age, 0), 0.0), axis=0)


def matrix_of(workload: np.ndarray | None, n: int) -> np.ndarray:
    """Returns a workload as a matrix: one that is given as the first column of a Toeplitz matrix too, prefix sums for None."""
    if workload is None:
        return prefix_sums(n)
    held = np.asarray(workload, dtype=np.float64)
    return moved_down(held) if held.ndim == 1 else held


def materialized(
    init_multiply: Callable[[np.ndarray], Any],
    multiply_next: Callable[[np.ndarray, Any], tuple[np.ndarray, Any]],
    steps: int,
) -> Dense:
    """Returns the strategy whose C^-1 a streaming recurrence multiplies with, once it has run over all steps.

    Args:
        init_multiply: of an array of zeros like a z, gives the state of the recurrence before the first step.
        multiply_next: of z_t and the state, gives x_t = (C^-1 z)_t and the next state; linear in the z so far.
        steps: of the run.

    Raises:
        AccountantError: code STRATEGY, what it multiplies with is no strategy.
    """
    units = np.eye(checked_steps(steps))
    try:
        rows = np.array(_run(init_multiply, multiply_next, units), dtype=np.float64)
        other = np.random.default_rng(0).standard_normal((steps, steps))
        again = np.array(_run(init_multiply, multiply_next, other), dtype=np.float64)
    except (TypeError, ValueError) as error:
        told = "multiply_next gives x, an array of the shape of z, and the next state"
        raise AccountantError(CODE, f"the recurrence does not run: {error}; {told}") from error
    if rows.shape != (steps, steps):
        raise AccountantError(CODE, f"a recurrence gives x of the shape of z, ({steps},), got {rows.shape[1:]}")
    found = Dense.of_inverse(rows)
    if np.abs(again - rows @ other).max() > 1e-9 * np.abs(rows @ other).max():
        raise AccountantError(CODE, "the recurrence is not linear in z: another input does not give what its matrix says")
    return found


def _run(init_multiply: Callable[[np.ndarray], Any], multiply_next: Callable[..., Any], inputs: np.ndarray) -> list[Any]:
    """Returns the outputs of a recurrence for rows of inputs."""
    state, rows = init_multiply(np.zeros(inputs.shape[1])), []
    for z in inputs:
        row, state = multiply_next(z.copy(), state)
        rows.append(np.array(row, dtype=np.float64))
    return rows


def errors(strategy: np.ndarray, workload: np.ndarray | None = None) -> np.ndarray:
    """Returns the squared norms of the rows of A C^-1, shape (n,).

    Args:
        strategy: C, shape (n, n), lower triangular. workload: A, shape (n, n), or its first column, shape (n,); prefix sums
            where left out.
    """
    wanted = matrix_of(workload, len(strategy))
    rows = linalg.solve_triangular(strategy, wanted.T, lower=True, trans="T").T
    return np.asarray(np.square(rows).sum(axis=1))


def error(strategy: np.ndarray, objective: Objective = "mean", workload: np.ndarray | None = None) -> float:
    """Returns the mean or the largest of `errors`."""
    found = errors(strategy, workload)
    return float(found.mean() if checked_objective(objective) == "mean" else found.max())


def optimize(
    n: int,
    period: int | None = None,
    objective: Objective = "mean",
    workload: np.ndarray | None = None,
    bands: int | None = None,
) -> Dense:
    """Returns the strategy of least error at squared sensitivity 1; of the largest error within a percent or so of it.

    Args:
        n: steps. period: every contribution takes part in each ``period``-th step from its first on; left out, in one step.
        objective: `mean` or `max` of the errors. workload: A, shape (n, n), or its first column, shape (n,); prefix sums where
            left out.
        bands: diagonals of C that may hold something; left out for all. Given, all columns have one norm, so that the strategy
            serves any steps that are ``period`` apart, and not the one order alone.

    Raises:
        AccountantError: code STRATEGY, no such numbers or objective, or a workload that is singular.
    """
    gap = checked_steps(n) if period is None else period
    if not all(value is None or (type(value) is int and 1 <= value <= n) for value in (gap, bands)):
        raise AccountantError(CODE, f"a strategy of {n} steps has a period and bands of 1 to {n}, got {period!r}, {bands!r}")
    wanted = matrix_of(workload, n)
    if wanted.shape != (n, n) or not np.isfinite(wanted).all():
        raise AccountantError(CODE, f"a workload of {n} steps has shape ({n}, {n}) and finite numbers")
    try:
        if checked_objective(objective) == "mean":
            return Dense(_factor(_least_mean(wanted, gap, bands, None)))
        return Dense(_factor(_least_max(wanted, gap, bands)))
    except (linalg.LinAlgError, ValueError) as error:
        told = "a release that no sum weighs, or sums that follow from others, have no best strategy; leave them out"
        raise AccountantError(CODE, f"the workload is singular: {told}") from error


def _least_max(wanted: np.ndarray, gap: int, bands: int | None) -> np.ndarray:
    """Returns X of the least of the largest errors: that of the least mean under the weights that make it worst.

    The weights are those of a game, moved towards rows of more error; the best X met is kept.
    """
    n = len(wanted)
    weights, kept, least, held = np.full(n, 1.0 / n), None, np.inf, None
    for turn in range(400):
        try:
            held = _least_mean(wanted * np.sqrt(n * weights)[:, None], gap, bands, held)
            found = errors(_factor(held), wanted)
        except (linalg.LinAlgError, ValueError):  # rows that hardly weigh leave the rest singular
            break
        if found.max() < least:
            kept, least = held, float(found.max())
        if found.max() - weights @ found <= 1e-6 * found.max():
            break
        weights = weights * (found / found.max()) ** (2.0 if turn < 200 else 1.0)
        weights = np.maximum(weights / weights.sum(), 1e-7 / n)
        weights /= weights.sum()
    if kept is None:
        raise linalg.LinAlgError
    return kept


def _least_mean(wanted: np.ndarray, gap: int, bands: int | None, start: np.ndarray | None) -> np.ndarray:
    """Returns X of the least tr(A^T A X^-1), by projected gradients along conjugate directions."""
    n = len(wanted)
    moment = wanted.T @ wanted
    if gap == n and bands is None:
        return _fixed_point(moment, start)
    rest = np.arange(n) % gap
    same = np.equal.outer(rest, rest)
    free = ~same
    if bands is not None:
        free &= np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < bands
    counts = np.bincount(rest, minlength=gap)[rest]

    def projected(gradient: np.ndarray) -> np.ndarray:
        """Returns the part that keeps zeros and the sums of the diagonal, or with bands every entry of the diagonal."""
        found = np.where(free, gradient, 0.0)
        if bands is None:
            diagonal = np.diagonal(gradient)
            found[np.diag_indices(n)] = diagonal - (np.bincount(rest, diagonal, minlength=gap) / np.bincount(rest))[rest]
        return found

    def measured(x: np.ndarray) -> tuple[float, np.ndarray | None]:
        try:
            factor = linalg.cho_factor(x, lower=True)
        except linalg.LinAlgError:
            return np.inf, None
        solved = linalg.cho_solve(factor, moment)
        return float(np.trace(solved)), -linalg.cho_solve(factor, solved.T)

    x = np.diag(1.0 / counts) if start is None else start
    value, slope = measured(x)
    assert slope is not None
    gradient = projected(slope)
    direction, size = -gradient, 1.0 / max(np.abs(gradient).max(), 1e-300)
    for _ in range(ROUNDS):
        along = float((gradient * direction).sum())
        if along >= 0.0:
            direction, along = -gradient, -float((gradient**2).sum())
        if along == 0.0:
            break
        new, new_slope = measured(x + size * direction)
        while not new <= value + 1e-4 * size * along:
            size /= 2.0
            if size * np.abs(direction).max() < 1e-16:
                return x
            new, new_slope = measured(x + size * direction)
        assert new_slope is not None
        after = projected(new_slope)
        step, change = size * direction, after - gradient
        x = x + step
        gained = value - new
        value = new
        curvature = float((step * change).sum())
        # Limited-memory BFGS with one pair kept.
        direction = -after
        if curvature > 0.0:
            scale = curvature / float((change**2).sum())
            share = float((step * after).sum()) / curvature
            direction = -scale * (after - share * change)
            direction -= step * (share - scale * float((change * (after - share * change)).sum()) / curvature)
        gradient, size = after, 1.0
        if gained <= CLOSE * value:
            break
    return x


def _fixed_point(moment: np.ndarray, start: np.ndarray | None) -> np.ndarray:
    """Returns X of the least tr(M X^-1) with a diagonal of ones, the optimum of one participation.

    Its dual is v <- diag((V^1/2 M V^1/2)^1/2), and X = V^-1/2 (V^1/2 M V^1/2)^1/2 V^-1/2. From a start, the
    optimum of a workload nearby, a few rounds are enough: v is the diagonal of X^-1 M X^-1 there.
    """
    if start is None:
        v, rounds = np.sqrt(np.diagonal(moment)).copy(), ROUNDS
    else:
        turned = np.linalg.inv(start)
        v, rounds = np.diagonal(turned @ moment @ turned).copy(), FEW
    for _ in range(rounds):
        if not (v > 0.0).all():
            raise linalg.LinAlgError
        half = np.sqrt(v)
        values, vectors = linalg.eigh(half[:, None] * moment * half)
        rooted = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        new = np.diagonal(rooted).copy()
        done = np.abs(new / v - 1.0).max() < 1e-9  # X is scaled at the end, so that its error counts in the second order
        v = new
        if done:
            break
    found = rooted / np.sqrt(np.outer(v, v))
    scale = np.sqrt(np.diagonal(found))
    return np.asarray(found / np.outer(scale, scale))


def _factor(x: np.ndarray) -> np.ndarray:
    """Returns the lower triangular C with C^T C = X: a Cholesky factor from the other end."""
    return np.tril(linalg.cholesky(x[::-1, ::-1], lower=True).T[::-1, ::-1])
