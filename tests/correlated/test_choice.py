"""Strategies at equal epsilon: which is best, and that the better one needs no more than theory says."""

import math

import numpy as np
import pytest

from dptrain.noise.correlated import blt, choice, dense, toeplitz
from ledger import accountants
from ledger.accountants.correlated import Banded, BandedInverse, Buffered, Dense, Participation, Toeplitz, identity
from ledger.errors import AccountantError

DELTA = 1e-6


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("steps", "contributions", "batch", "epsilon", "accountant", "best"),
    [
        (64, 1024, 16, 2.0, "rdp", 8),
        (64, 1024, 16, 2.0, "pld", 8),
        (128, 1000, 50, 8.0, "rdp", 16),
        (128, 1000, 50, 8.0, "pld", 16),
    ],
)
def test_the_best_number_of_bands_is_the_published_one(steps, contributions, batch, epsilon, accountant, best):
    arms = choice.by_bands(steps, contributions, batch, epsilon, DELTA, accountant=accountant)
    assert arms[best].rmse <= 1.002 * min(arm.rmse for arm in arms.values())  # 4 and 8 differ by less than accountants do
    assert list(arms) == [1 << power for power in range(len(arms))] and max(arms) * batch <= contributions


def test_one_band_is_independent_noise_by_poisson_draws():
    arms = choice.by_bands(64, 1024, 16, 2.0, DELTA, bands=[1])
    multiplier = accountants.calibrate(2.0, 16 / 1024, 64, DELTA)
    assert arms[1].noise_multiplier == multiplier
    assert arms[1].rmse == pytest.approx(multiplier * math.sqrt(32.5))


def test_known_steps_are_charged_as_one_gaussian():
    steps, participation = 128, Participation(16)
    plain = choice.at_epsilon(identity(), steps, 4.0, DELTA, participation)
    assert plain.sensitivity == pytest.approx(math.sqrt(8))
    assert accountants.epsilon(plain.noise_multiplier, 1.0, 8, DELTA) == pytest.approx(4.0, rel=1e-4)
    banded = choice.at_epsilon(Toeplitz(tuple(toeplitz.optimal_coefficients(steps, 16))), steps, 4.0, DELTA, participation)
    assert banded.noise_multiplier <= plain.noise_multiplier * (1 + 1e-9)
    buffered = choice.at_epsilon(blt.optimize(steps, 3, "mean", participation), steps, 4.0, DELTA, participation)
    optimum = choice.at_epsilon(dense.optimize(steps, 16), steps, 4.0, DELTA, Participation(16, fixed=True))
    assert optimum.rmse < banded.rmse < buffered.rmse < 0.4 * plain.rmse


@pytest.mark.parametrize("objective", toeplitz.OBJECTIVES)
def test_errors_of_every_kind_are_those_of_the_matrix(objective):
    n = 10
    rows = tuple((1.0 + j, 0.5) for j in range(n))
    for strategy in (
        identity(), Toeplitz((1.0, 0.5)), Toeplitz((1.0, 0.5), n), Banded(rows), BandedInverse((1.0, -0.5, -0.1)),
        Buffered((0.9,), (0.3,)), Dense(np.tri(n) + np.eye(n)),
    ):  # fmt: skip
        rows_of_sums = np.tri(n) @ np.linalg.inv(strategy.matrix(n))
        squared = np.square(rows_of_sums).sum(axis=1)
        assert choice.error(strategy, n, objective) == pytest.approx(squared.mean() if objective == "mean" else squared.max())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lambda: choice.amplified(Toeplitz((1.0, 0.5, 0.2)), 10, 1.0, DELTA, 2, 0.1), "3 bands, and 2 groups"),
        (lambda: choice.amplified(Buffered((0.9,), (0.3,)), 10, 1.0, DELTA, 10, 0.1), "any number of bands"),
        (lambda: choice.amplified(identity(), 10, 1.0, DELTA, 0, 0.1), "1 group or more"),
        (lambda: choice.by_bands(10, 5, 6, 1.0, DELTA), "draw fewer"),
        (lambda: choice.by_bands(10, 5, 0, 1.0, DELTA), "draw fewer"),
        (lambda: choice.error(Toeplitz((1.0,), 5000), 5000), "4096 steps at most"),
        (lambda: choice.error(identity(), 5, "median"), "mean or max"),
    ],
)
def test_what_nothing_is_proved_for_is_refused(asked, told):
    with pytest.raises(AccountantError, match=told) as refused:
        asked()
    assert refused.value.code == "STRATEGY"


def test_the_accountant_and_the_sums_are_those_asked_for():
    steps, workload = 32, toeplitz.momentum(32, 0.8)
    plain = choice.at_epsilon(identity(), steps, 4.0, DELTA, Participation(8), workload=workload, accountant="rdp")
    assert plain.noise_multiplier == pytest.approx(accountants.calibrate(4.0, 1.0, 1, DELTA, "rdp") * 2.0)
    assert plain.noise_multiplier > 1.01 * choice.at_epsilon(identity(), steps, 4.0, DELTA, Participation(8)).noise_multiplier
    drawn = choice.amplified(identity(), steps, 4.0, DELTA, 1, 0.25, workload=workload)
    weighed = [np.square(workload[: i + 1]).sum() for i in range(steps)]
    assert drawn.rmse == pytest.approx(drawn.noise_multiplier * math.sqrt(np.mean(weighed)))


def test_the_noise_of_a_step_is_that_of_the_rows_of_the_inverse():
    n, participation = 24, Participation(6, fixed=True)
    column = tuple(toeplitz.optimal_coefficients(n, 6))
    for strategy in (identity(), Toeplitz(column), Toeplitz(column, n), Dense(Toeplitz(column).matrix(n))):
        arm = choice.at_epsilon(strategy, n, 3.0, 1e-6, participation)
        rows = np.linalg.inv(strategy.matrix(n)) * math.sqrt(strategy.norms_squared(n).max())
        expected = arm.noise_multiplier * math.sqrt((rows**2).sum() / n)
        assert arm.step == pytest.approx(expected, rel=1e-9)
    alone = choice.amplified(identity(), n, 3.0, 1e-6, 1, 0.1)
    assert alone.step == pytest.approx(alone.noise_multiplier, rel=1e-12)
