"""Chooses and applies Toeplitz strategies: C has one column, moved down from step to step.

Columns are arrays of float64, shape (bands,) or (n,), from the diagonal down and zero behind. The error of a strategy is that
of B = A C^-1 for a workload A: e_i = ||row i of B||^2 is the variance of the i-th wanted sum under noise of deviation 1. The
loss is the squared sensitivity times the error; it does not change when C is scaled.

Source: Choquette-Choo et al., "(Amplified) Banded Matrix Factorization" (2023); Kalinin and Lampert, "Banded Square Root Matrix
Factorization for Differentially Private Model Training" (2024); Fichtenberger, Henzinger and Upadhyay, "Constant Matters"
(2023) for the square root.
"""

from collections.abc import Callable
from typing import Final, Literal

import numpy as np
from scipy import fft, optimize, signal

from ledger.accountants.correlated.strategies import CODE, checked_column
from ledger.errors import AccountantError

Objective = Literal["mean", "max"]
OBJECTIVES: Final = ("mean", "max")

_DIRECT: Final = 1 << 31
"""Products of a recurrence from which on an inverse is made by doubling its length."""


def prefix_sums(n: int) -> np.ndarray:
    """Returns the workload of SGD with a constant learning rate: the sums of the first 1, 2, .. n releases. Shape (n,)."""
    return np.ones(checked_steps(n))


def momentum(n: int, beta: float) -> np.ndarray:
    """Returns the workload of SGD with momentum: in the sum after step i a release weighs 1 + beta + .. by its age. Shape (n,).

    Raises:
        AccountantError: code STRATEGY, beta is not in [0, 1).
    """
    if not 0.0 <= beta < 1.0:
        raise AccountantError(CODE, f"momentum lies in [0, 1), got {beta!r}")
    return np.cumsum(beta ** np.arange(checked_steps(n)))


def square_root(n: int) -> np.ndarray:
    """Returns the first column of the square root of the prefix sums, shape (n,): 1, 1/2, 3/8, 5/16, ..

    Its loss at one participation is within a factor of 1 + o(1) of the least.
    """
    k = np.arange(1, checked_steps(n))
    return np.concatenate([[1.0], np.cumprod((2.0 * k - 1.0) / (2.0 * k))])


def root(workload: np.ndarray) -> np.ndarray:
    """Returns the first column r of the square root of a Toeplitz workload, whose first coefficient is positive: r * r."""
    wanted = np.array(checked_column(workload))
    found = np.zeros(len(wanted))
    found[0] = np.sqrt(wanted[0])
    for j in range(1, len(wanted)):
        found[j] = (wanted[j] - found[1:j] @ found[1:j][::-1]) / (2.0 * found[0])
    return found


def banded_inverse_square_root(n: int, bands: int, workload: np.ndarray | None = None) -> np.ndarray:
    """Returns the first ``bands`` coefficients of C^-1, of which the noise of a step is made (BISR). Shape (bands,).

    C is the square root of the workload, with an inverse cut off behind ``bands`` diagonals; `inverse` gives C's column.

    Source: Kalinin, Upadhyay and Lampert, "Back to Square Roots" (2025).
    """
    wanted = prefix_sums(n) if workload is None else workload
    return inverse(root(wanted[:bands]), min(n, bands))


def inverse(coefficients: np.ndarray, n: int) -> np.ndarray:
    """Returns the first column of C^-1 for n steps, shape (n,); of a column of the inverse it returns that of C.

    Raises:
        AccountantError: code STRATEGY, numbers are not finite or the first is not positive.
    """
    column = np.array(checked_column(coefficients))[: checked_steps(n)]
    if len(column) * n <= _DIRECT:
        return divide(_unit(n), column)
    found = np.array([1.0 / column[0]])  # Newton's iteration on power series: w <- w (2 - c w), twice as long each time
    while len(found) < n:
        size = min(2 * len(found), n)
        held = _product(column[:size], found, size)
        held[0] -= 2.0
        found = _product(-held, found, size)
    return found


def multiply(coefficients: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns C x for a sequence of values, shape (n,)."""
    return np.asarray(signal.lfilter(coefficients, [1.0], values))


def divide(values: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Returns C^-1 z for a sequence of values, shape (n,): x_t = (z_t - sum_j c_j x_(t-j)) / c_0."""
    return np.asarray(signal.lfilter([1.0], coefficients, values))


def errors(coefficients: np.ndarray, n: int, workload: np.ndarray | None = None) -> np.ndarray:
    """Returns e_0 .. e_(n-1), the squared norms of the rows of A C^-1, shape (n,).

    Args:
        coefficients: C's first column. workload: first column of A, shape (n,); prefix sums where left out.
    """
    return np.cumsum(np.square(_rows(coefficients, n, workload)))


def error(coefficients: np.ndarray, n: int, objective: Objective = "mean", workload: np.ndarray | None = None) -> float:
    """Returns the mean or the largest of `errors`."""
    found = errors(coefficients, n, workload)
    return float(found.mean() if checked_objective(objective) == "mean" else found[-1])


def loss(coefficients: np.ndarray, n: int, objective: Objective = "mean", workload: np.ndarray | None = None) -> float:
    """Returns the error at a sensitivity of 1 for one participation: error times squared norm of the first column."""
    column = np.asarray(coefficients, dtype=np.float64)[:n]
    return float(column @ column) * error(column, n, objective, workload)


def optimal_coefficients(n: int, bands: int, objective: Objective = "mean", workload: np.ndarray | None = None) -> np.ndarray:
    """Returns the first column, with ``bands`` coefficients and the first 1, of least loss over n steps. Shape (bands,).

    The same column is best for any number of participations that are ``bands`` steps apart: their squared sensitivity is a
    multiple of that of one.

    Args:
        n: steps. bands: diagonals that are not zero, 1 for independent noise. objective: `mean` or `max` of the errors.
        workload: first column of A, shape (n,); prefix sums where left out.

    Raises:
        AccountantError: code STRATEGY, no such numbers or objective.
    """
    if type(bands) is not int or not 1 <= bands <= checked_steps(n):
        raise AccountantError(CODE, f"a strategy of {n} steps has 1 to {n} bands, got {bands!r}")
    wanted = prefix_sums(n) if workload is None else np.array(checked_column(workload))
    if len(wanted) != n:
        raise AccountantError(CODE, f"a workload of {n} steps has {n} coefficients, got {len(wanted)}")
    weights = np.arange(n, 0, -1) / n if checked_objective(objective) == "mean" else np.ones(n)
    start = root(wanted[:bands])
    start = start / start[0]
    if bands == 1:
        return start

    def measured(free: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the logarithm of the loss, and its gradient by the coefficients behind the first."""
        column = np.concatenate([[1.0], free])
        turned = divide(_unit(n), column)
        rows = np.cumsum(turned) if workload is None else multiply(wanted, turned)
        turned = divide(rows, column)
        weighted = weights * rows
        squared, norm = float(weighted @ rows), float(column @ column)
        if not np.isfinite(squared):
            return np.inf, np.zeros(len(free))
        # d rows / d c_j is -(rows of A C^-2) moved down by j.
        moved = np.array([weighted[j:] @ turned[: n - j] for j in range(1, bands)])
        return np.log(squared) + np.log(norm), -2.0 * moved / squared + 2.0 * free / norm

    return np.concatenate([[1.0], minimised(measured, start[1:])])


def minimised(
    measured: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    bounds: tuple[float, float] | None = None,
) -> np.ndarray:
    """Returns where a smooth function, given with its gradient, is least near a start; by L-BFGS in float64.

    ``bounds``, the least and the most, hold for every number.
    """
    options = {"maxiter": 2000, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-12}
    held = None if bounds is None else [bounds] * len(start)
    return np.asarray(optimize.minimize(measured, start, jac=True, method="L-BFGS-B", bounds=held, options=options).x)


def _rows(coefficients: np.ndarray, n: int, workload: np.ndarray | None) -> np.ndarray:
    """Returns the first column of A C^-1."""
    if workload is None:
        return np.cumsum(inverse(coefficients, n))
    return _product(np.asarray(workload, dtype=np.float64)[:n], inverse(coefficients, n), n)


def _product(one: np.ndarray, other: np.ndarray, n: int) -> np.ndarray:
    """Returns the first n coefficients of the product of two power series."""
    size = fft.next_fast_len(len(one) + len(other), real=True)
    return np.asarray(fft.irfft(fft.rfft(one, size) * fft.rfft(other, size), size)[:n])


def _unit(n: int) -> np.ndarray:
    found = np.zeros(n)
    found[0] = 1.0
    return found


def checked_steps(n: int) -> int:
    """Returns a number of steps. Raises AccountantError: code STRATEGY, it is none."""
    if type(n) is not int or n < 1:
        raise AccountantError(CODE, f"a strategy has 1 step or more, got {n!r}")
    return n


def checked_objective(objective: str) -> str:
    """Returns an objective. Raises AccountantError: code STRATEGY, it is none of `OBJECTIVES`."""
    if objective not in OBJECTIVES:
        raise AccountantError(CODE, f"the objective is {' or '.join(OBJECTIVES)}, got {objective!r}")
    return objective
