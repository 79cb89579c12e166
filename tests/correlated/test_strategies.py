"""Strategies of correlated noise: columns, inverses, errors and the optima of published tables (docs/mechanism)."""

import numpy as np
import pytest

from dptrain.noise.correlated import blt, dense, toeplitz
from ledger.accountants.correlated import ONCE, Banded, Buffered, Dense, Participation, Toeplitz, identity, sensitivity
from ledger.errors import AccountantError

SIZES = (16, 64, 256)
LOSSES = {
    ("mean", 1): (8.5, 32.5, 128.5),
    ("mean", 2): (5.2117, 17.6548, 66.3622),
    ("mean", 4): (3.7540, 10.5014, 35.7366),
    ("mean", 8): (3.1896, 7.0968, 20.6812),
    ("max", 1): (16.0, 64.0, 256.0),
    ("max", 2): (9.1513, 33.7218, 130.6128),
    ("max", 4): (5.9369, 18.9247, 68.4935),
    ("max", 8): (4.4657, 11.7258, 37.7836),
}
"""Least losses of banded Toeplitz strategies by objective and bands, as JAX Privacy's optimiser finds them."""

BUFFERED = {
    ("mean", 2): (3.0658, 4.7520, 6.8754),
    ("mean", 3): (3.0658, 4.7520, 6.8499),
    ("max", 2): (3.7790, 5.7185, 8.1113),
    ("max", 3): (3.7787, 5.7068, 8.0193),
}
SQUARE_ROOTS = {"mean": (3.2285, 4.9715, 7.1224), "max": (3.7787, 5.7066, 8.0148)}


@pytest.mark.parametrize(("objective", "bands"), LOSSES)
def test_banded_optima_reach_the_table(objective, bands):
    for n, told in zip(SIZES, LOSSES[objective, bands], strict=True):
        column = toeplitz.optimal_coefficients(n, bands, objective)
        assert column.shape == (bands,) and column[0] == 1.0
        assert toeplitz.loss(column, n, objective) <= told + 5e-5
        assert (np.diff(column) <= 0).all() and (column >= 0).all()


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("objective", "buffers"),
    [pytest.param(*case, marks=pytest.mark.slow) if case == ("mean", 3) else case for case in BUFFERED],
)
def test_buffered_optima_reach_the_table(objective, buffers):
    for n, told in zip(SIZES, BUFFERED[objective, buffers], strict=True):
        found = blt.optimize(n, buffers, objective)
        assert len(found.decays) <= buffers
        assert blt.loss(found, n, objective) <= told + 6e-5


@pytest.mark.parametrize("objective", SQUARE_ROOTS)
def test_the_square_root_has_its_loss(objective):
    for n, told in zip(SIZES, SQUARE_ROOTS[objective], strict=True):
        assert toeplitz.loss(toeplitz.square_root(n), n, objective) == pytest.approx(told, abs=5e-5)


def test_dense_optima_reach_the_table():
    for n, told in ((16, 2.85408), (64, 4.40940)):
        found = dense.optimize(n)
        assert sensitivity(found, n, ONCE).value == pytest.approx(1.0, abs=1e-9)
        assert dense.error(found.rows) == pytest.approx(told, abs=6e-6)
    assert dense.error(dense.optimize(16, objective="max").rows, "max") <= 2.998


def test_dense_optima_of_several_participations():
    n, period = 24, 6
    found = dense.optimize(n, period)
    held = sensitivity(found, n, Participation(period, fixed=True))
    assert held.exact and held.value == pytest.approx(1.0, abs=1e-8)
    repeated = dense.optimize(n).rows
    bound = sensitivity(Dense(repeated), n, Participation(period, fixed=True)).value ** 2
    assert dense.error(found.rows) < bound * dense.error(repeated)
    banded = dense.optimize(n, period, bands=period)
    assert banded.bands <= period and dense.error(banded.rows) >= dense.error(found.rows) - 1e-9
    assert sensitivity(banded, n, Participation(period)).value == pytest.approx(1.0, abs=1e-8)


@pytest.mark.one_in(99)
@pytest.mark.parametrize(
    "rates", [[1.0, 0.55, 0.1], pytest.param(np.ones(32), marks=pytest.mark.slow), 0.5 + 0.5 * np.cos(np.linspace(0, 3.0, 16))]
)
def test_the_largest_error_is_least_for_rates_and_momentum_too(rates):
    workload = dense.learning_rates(rates, 0.9)
    best = dense.optimize(len(workload), objective="max", workload=workload)
    means = dense.optimize(len(workload), workload=workload)
    assert dense.error(best.rows, "max", workload) <= dense.error(means.rows, "max", workload) * (1 + 1e-9)


def test_more_bands_never_lose():
    losses = [toeplitz.loss(toeplitz.optimal_coefficients(64, bands), 64) for bands in (1, 2, 3, 5, 8, 16, 32, 64)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] >= dense.error(dense.optimize(64).rows) - 1e-9


@pytest.mark.parametrize("objective", toeplitz.OBJECTIVES)
@pytest.mark.parametrize("beta", [None, 0.9])
def test_an_optimum_is_one_among_its_neighbours(objective, beta):
    n, bands = 40, 4
    workload = None if beta is None else toeplitz.momentum(n, beta)
    best = toeplitz.optimal_coefficients(n, bands, objective, workload)
    least = toeplitz.loss(best, n, objective, workload)
    for place in range(1, bands):
        for by in (-1e-3, 1e-3):
            near = best.copy()
            near[place] += by
            assert toeplitz.loss(near, n, objective, workload) > least


@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_columns_have_the_inverses_and_errors_of_their_matrices(n):
    rng = np.random.default_rng(5)
    for column in (toeplitz.square_root(n), np.array([1.0, 0.5, -0.25]), np.array([2.0]), 1 + rng.random(9)):
        held = Toeplitz(tuple(column)).matrix(n)
        turned = toeplitz.inverse(column, n)
        assert np.allclose(Toeplitz(tuple(turned)).matrix(n) @ held, np.eye(n), atol=1e-10)
        rows = np.tri(n) @ np.linalg.inv(held)
        assert np.allclose(toeplitz.errors(column, n), (rows**2).sum(axis=1))
        assert np.allclose(dense.errors(held), (rows**2).sum(axis=1))
        values = rng.standard_normal(n)
        assert np.allclose(toeplitz.divide(values, column), np.linalg.solve(held, values))
        assert np.allclose(toeplitz.multiply(column, values), held @ values)


def test_long_inverses_are_those_of_the_recurrence(monkeypatch):
    column = toeplitz.square_root(500)
    recurrence = toeplitz.inverse(column, 500)
    monkeypatch.setattr(toeplitz, "_DIRECT", 0)
    assert np.abs(toeplitz.inverse(column, 500) - recurrence).max() < 1e-13
    assert np.abs(toeplitz.inverse(column[:3], 501) - toeplitz.divide(np.eye(501)[0], column[:3])).max() < 1e-13


def test_the_root_of_a_workload_squares_to_it():
    assert np.allclose(toeplitz.root(toeplitz.prefix_sums(50)), toeplitz.square_root(50))
    workload = toeplitz.momentum(30, 0.9)
    held = toeplitz.root(workload)
    assert np.allclose(np.convolve(held, held)[:30], workload)


def test_a_banded_inverse_is_that_of_the_square_root_cut_off():
    noising = toeplitz.banded_inverse_square_root(100, 5)
    assert noising == pytest.approx([1, -1 / 2, -1 / 8, -1 / 16, -5 / 128])
    column = toeplitz.inverse(noising, 100)
    assert np.allclose(toeplitz.inverse(column, 100), np.concatenate([noising, np.zeros(95)]))


def test_a_workload_of_learning_rates_is_what_sgd_does():
    rates, beta, n = np.array([0.5, 1.0, 0.25, 2.0, 0.1]), 0.9, 5
    workload = dense.learning_rates(rates, beta)
    for moved in np.eye(n):
        velocity = place = 0.0
        for t in range(n):
            velocity = beta * velocity + moved[t]
            place += rates[t] * velocity
            assert workload[t] @ moved == pytest.approx(place)
    assert np.array_equal(dense.learning_rates(np.ones(6)), np.tri(6))
    assert np.allclose(dense.learning_rates(np.ones(6), 0.5), Toeplitz(tuple(toeplitz.momentum(6, 0.5))).matrix(6))
    best = dense.optimize(n, workload=workload).rows
    assert dense.error(best, workload=workload) <= dense.error(np.eye(n), workload=workload)


BUFFERS = Buffered((0.9, 0.5), (0.3, 0.2))


def test_buffers_have_the_column_and_the_inverse_that_they_say():
    n = 40
    column = np.array([1.0] + [0.3 * 0.9**i + 0.2 * 0.5**i for i in range(n - 1)])
    assert np.allclose(BUFFERS.column(n), column)
    decays, scales = blt.inverse(BUFFERS)
    turned = np.array([1.0] + [float((scales * decays**i).sum()) for i in range(n - 1)])
    assert np.allclose(turned, toeplitz.inverse(column, n), atol=1e-14)
    assert ((decays > 0) & (decays < 1)).all() and (scales < 0).all()
    assert np.allclose(blt.errors(BUFFERS, n), toeplitz.errors(column, n))


@pytest.mark.parametrize("objective", toeplitz.OBJECTIVES)
@pytest.mark.parametrize("participation", [ONCE, Participation(8), Participation(5, 3), Participation(1), Participation(37)])
def test_closed_forms_of_buffers_are_their_sums(objective, participation):
    free = np.log([0.01, 0.02, 0.3, 0.5])
    for n in (5, 16, 64):
        strategy = blt._strategy(free)
        told = np.exp(blt._log_loss(free, n, objective, participation))
        assert told == pytest.approx(blt.loss(strategy, n, objective, participation), rel=1e-9)


def test_buffers_are_chosen_for_several_participations():
    n, participation = 64, Participation(16, 4)
    once, often = blt.optimize(n, 2, "max"), blt.optimize(n, 2, "max", participation)
    assert blt.loss(often, n, "max", participation) < blt.loss(once, n, "max", participation)
    assert blt.optimize(1) == Buffered((), ()) and blt.optimize(100, 0) == Buffered((), ())
    assert 2 <= len(blt.optimize(200, objective="max").decays) <= 4


def test_matrices_are_what_their_parts_say():
    n = 12
    column = (1.0, 0.5, 0.25)
    plain, scaled = Toeplitz(column), Toeplitz(column, n)
    held = sum(c * np.eye(n, k=-j) for j, c in enumerate(column))
    assert np.array_equal(plain.matrix(n), held)
    assert np.allclose(scaled.matrix(n), held / np.sqrt((held**2).sum(axis=0)))
    assert np.allclose(scaled.norms_squared(n), 1.0) and scaled.longest == n
    assert np.allclose(scaled.matrix(7), scaled.matrix(n)[:7, :7])
    general = Banded(tuple((1.0 + j, 0.5, 0.1 * j) for j in range(n)))
    for strategy in (plain, scaled, general, BUFFERS, Dense(held), identity()):
        for steps in (1, 5, n):
            matrix = strategy.matrix(steps)
            gram = matrix.T @ matrix
            assert np.array_equal(matrix, np.tril(matrix)) and np.allclose(strategy.norms_squared(steps), np.diagonal(gram))
            for lag in range(steps):
                assert np.allclose(strategy.gram(steps, lag), np.diagonal(gram, lag))
    assert np.allclose(general.norms_squared(n), 1.0) and np.allclose(general.matrix(5), general.matrix(n)[:5, :5])
    assert Dense(held).bands == 3 and identity().bands == 1 and BUFFERS.bands is None


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Dense(np.ones((2, 3))), "square"),
        (lambda: Dense(np.ones(3)), "square"),
        (lambda: Dense(np.ones((2, 2))), "lower triangular, and row 0, column 1"),
        (lambda: Dense([[1.0, 0.0], [np.nan, 1.0]]), "finite"),
        (lambda: Dense([[1.0, 0.0], [1.0, 0.0]]), "diagonal of a strategy is positive, got 0 in row 1"),
        (lambda: Dense(np.diag([1.0, -1.0])), "positive"),
        (lambda: Dense("no"), "matrix"),
        (lambda: Toeplitz(()), "finite"),
        (lambda: Toeplitz((0.0, 1.0)), "positive"),
        (lambda: Toeplitz((1.0, np.inf)), "finite"),
        (lambda: Toeplitz((1.0,), 0), "1 step or more"),
        (lambda: Toeplitz((1e-170, 1e-170)), "scale it"),
        (lambda: Banded(((1.0, 1e170),)), "scale it"),
        (lambda: Dense([[1e-170]]), "scale it"),
        (lambda: Dense(np.tril(np.ones((60, 60)), -1) + 2.0**-20 * np.eye(60)), "no inverse|ten digits|finite"),
        (lambda: Dense.of_inverse([[1e-40, 0.0], [1.0, 1e-40]]), "no inverse|ten digits|scale it"),
        (lambda: Dense(np.eye(2), np.eye(3)), "2 steps has an inverse of 3"),
        (lambda: Toeplitz((1.0, 0.5), 8).matrix(9), "made for 8 steps"),
        (lambda: sensitivity(Dense(np.eye(4)), 5, ONCE), "made for 4 steps"),
        (lambda: sensitivity(identity(), 0, ONCE), "1 step or more"),
        (lambda: Banded(((1.0,), (1.0, 0.5))), "one length"),
        (lambda: Banded(()), "one length"),
        (lambda: Buffered((0.5,), ()), "expected as many"),
        (lambda: Buffered((1.0,), (0.5,)), "between 0 and 1"),
        (lambda: Buffered((0.5, 0.6), (0.5, 0.6)), "at most 1 together"),
        (lambda: Participation(0), "gap"),
        (lambda: Participation(1, 0), "gap"),
        (lambda: toeplitz.optimal_coefficients(4, 5), "1 to 4 bands"),
        (lambda: toeplitz.optimal_coefficients(4, 2, "median"), "mean or max"),
        (lambda: toeplitz.inverse([1.0], 0), "1 step or more"),
        (lambda: toeplitz.momentum(4, 1.0), "momentum"),
        (lambda: dense.learning_rates([0.0]), "positive"),
        (lambda: dense.optimize(4, 5), "1 to 4"),
        (lambda: dense.optimize(4, workload=np.eye(3)), "shape"),
        (lambda: dense.optimize(4, 2.0), "1 to 4"),
        (lambda: dense.optimize(3, workload=np.diag([1.0, 0.0, 1.0])), "singular"),
        (lambda: toeplitz.optimal_coefficients(8, 4, "mean", np.ones(2)), "8 coefficients, got 2"),
        (lambda: toeplitz.optimal_coefficients(8, 2.0), "1 to 8 bands"),
        (lambda: blt.optimize(4, 9), "0 to 8 buffers"),
    ],
)
def test_what_is_no_strategy_is_refused(made, told):
    with pytest.raises(AccountantError, match=told) as refused:
        made()
    assert refused.value.code == "STRATEGY"
