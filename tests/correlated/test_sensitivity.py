"""Sensitivities of correlated noise against every allowed set and every sign of small cases."""

from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from ledger.accountants.correlated import (
    ONCE,
    Banded,
    BandedInverse,
    Buffered,
    Dense,
    Participation,
    Toeplitz,
    identity,
    redone,
    sensitivity,
)
from ledger.accountants.correlated.sensitivity import _heaviest
from ledger.errors import AccountantError

N = 9
PARTICIPATIONS = [
    Participation(gap, most, fixed) for gap in (1, 2, 3, 4, 7, N) for most in (None, 1, 2, 3) for fixed in (False, True)
]
RNG = np.random.default_rng(11)
STRATEGIES = {
    "identity": identity(),
    "falling": Toeplitz((1.0, 0.7, 0.4, 0.1)),
    "not falling": Toeplitz((1.0, 0.2, 0.5)),
    "rising": Toeplitz((0.2, 1.0)),
    "below zero": Toeplitz((1.0, 0.2, -0.6)),
    "inverse": BandedInverse((1.0, -0.5, -0.125)),
    "signs": Toeplitz((1.0, -0.5, -0.125, 0.3)),
    "normalised": Toeplitz((1.0, 0.7, 0.4), N),
    "half": Toeplitz((0.5,)),
    "full": Toeplitz(tuple(1.0 / np.arange(1, N + 1))),
    "banded": Banded(tuple(tuple(row) for row in 0.1 + RNG.random((N, 3)))),
    "buffers": Buffered((0.9, 0.4), (0.3, 0.2)),
    "dense": Dense(np.tril(RNG.random((N, N))) + np.eye(N)),
    "dense with signs": Dense(np.tril(RNG.standard_normal((N, N)), -1) + np.eye(N)),
}


def allowed(steps: int, participation: Participation) -> set[tuple[int, ...]]:
    """All sets of steps in which a contribution may take part."""
    most = participation.most or steps
    if participation.fixed:
        return {tuple(range(first, steps, participation.gap))[:most] for first in range(steps)}
    return {
        chosen
        for count in range(1, min(most, steps) + 1)
        for chosen in combinations(range(steps), count)
        if all(later - one >= participation.gap for one, later in pairwise(chosen))
    }


def attained(matrix: np.ndarray, participation: Participation) -> float:
    """The most that vectors of norm 1, on a line, move C G."""
    worst = 0.0
    for chosen in allowed(len(matrix), participation):
        for signs in product((1.0, -1.0), repeat=len(chosen) - 1):
            worst = max(worst, float(np.linalg.norm(matrix[:, list(chosen)] @ np.array((1.0, *signs)))))
    return worst


def bounded(matrix: np.ndarray, participation: Participation) -> float:
    """The root of the largest sum of |X| over the pairs of an allowed set: no vectors move it further."""
    gram = np.abs(matrix.T @ matrix)
    return max(float(np.sqrt(gram[np.ix_(chosen, chosen)].sum())) for chosen in map(list, allowed(len(matrix), participation)))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=repr)
@pytest.mark.parametrize("name", STRATEGIES)
def test_bounds_hold_and_are_attained_where_they_say_so(name, participation):
    strategy = STRATEGIES[name]
    for steps in (1, 5, N):
        matrix, found = strategy.matrix(steps), sensitivity(strategy, steps, participation)
        worst = attained(matrix, participation)
        assert found.value >= worst
        if found.exact:
            assert found.value == pytest.approx(worst, rel=1e-9)
        elif participation.fixed:
            assert found.value == pytest.approx(bounded(matrix, participation), rel=1e-9)
        else:
            assert found.value >= bounded(matrix, participation) * (1 - 1e-12) or name in ("not falling", "below zero", "signs")


def test_what_is_exact():
    exact = {name for name, strategy in STRATEGIES.items() if sensitivity(strategy, N, Participation(2)).exact}
    assert exact == {"identity", "falling", "half", "full", "buffers", "inverse", "rising"}
    exact = {name for name, strategy in STRATEGIES.items() if sensitivity(strategy, N, Participation(4)).exact}
    assert exact == {
        "identity", "falling", "not falling", "signs", "normalised", "half", "full", "banded", "buffers",
        "inverse", "rising", "below zero",
    }  # fmt: skip


def test_scaling_the_strategy_scales_the_sensitivity():
    assert sensitivity(Toeplitz((0.5,)), N, Participation(3)).value == pytest.approx(0.5 * np.sqrt(3))
    assert sensitivity(Toeplitz((2.0, 1.0)), N, ONCE).value == pytest.approx(np.sqrt(5))


@pytest.mark.parametrize("gap", [1, 2, 5])
@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_heaviest_sets_by_enumeration(gap, most):
    rng = np.random.default_rng(gap)
    weights = rng.random(N)
    worst = max(weights[list(chosen)].sum() for chosen in allowed(N, Participation(gap, most)))
    assert _heaviest(weights, gap, most) == pytest.approx(worst)
    columns = rng.random((N, 4))
    assert _heaviest(columns, gap, most) == pytest.approx([_heaviest(column, gap, most) for column in columns.T])


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("participation", [ONCE, Participation(1), Participation(2, 2), Participation(3)], ids=repr)
def test_lost_tails_add_what_their_rows_can(name, participation):
    """The stacked rows of the surviving timeline and of lost tails, over sets, signs and one more set of signs for the tail."""
    strategy, tail = STRATEGIES[name], (4, 7)
    matrix, most = strategy.matrix(N), 0.0
    for chosen in allowed(N, participation):
        held = np.abs(matrix[tail[0] : tail[1], list(chosen)])
        most = max(most, float((held.sum(axis=1) ** 2).sum()))
    added = redone(strategy, N, participation, [tail])
    assert added >= most
    if name in ("identity", "falling", "full", "buffers", "half") and participation.gap == 1 and participation.most is None:
        assert added == pytest.approx(most)
    assert redone(strategy, N, participation, [tail, tail]) == pytest.approx(2 * added)
    assert redone(strategy, N, participation, []) == 0.0


def exactly(turned: list[list[float]]) -> Fraction:
    """The largest squared column norm of the C whose inverse this is, in rational arithmetic."""
    n = len(turned)
    inverse = [[Fraction(0)] * n for _ in range(n)]
    for column in range(n):
        for row in range(column, n):
            known = sum(Fraction(turned[row][k]) * inverse[k][column] for k in range(column, row))
            rest = Fraction(int(row == column)) - known
            inverse[row][column] = rest / Fraction(turned[row][row])
    return max(sum(inverse[row][column] ** 2 for row in range(n)) for column in range(n))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(4))
def test_the_matrix_of_the_noise_is_what_is_bounded_and_not_its_rounding(seed):
    """Noise is made of C^-1: what float64 takes for its inverse is off, and that is added."""
    rng = np.random.default_rng(seed)
    rows = np.tril(rng.standard_normal((8, 8)), -1) + np.eye(8)
    for strategy in (Dense(rows), Dense.of_inverse(rows), Dense(np.eye(8), np.eye(8) * (1 - 1e-10))):
        true = exactly(strategy.inverted.tolist())
        assert Fraction(sensitivity(strategy, 8, ONCE).value) ** 2 >= true
    cancelling = BandedInverse(tuple(np.poly([0.7] * 6)))
    true = exactly(Toeplitz(cancelling.coefficients).matrix(40).tolist())
    assert true <= Fraction(sensitivity(cancelling, 40, ONCE).value) ** 2 < true * Fraction(1001, 1000)
    with pytest.raises(AccountantError, match="ten digits"):
        Dense(np.eye(3), np.eye(3) * (1 + 1e-6))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("seed", range(3))
def test_products_that_cancel_are_bounded_all_the_same(seed):
    """Against sums in rational arithmetic, of columns whose products nearly cancel out."""
    n = 60
    column = np.concatenate([[1.0], np.random.default_rng(seed).choice([-0.7, 0.7], n - 1)])
    exact = [Fraction(value) for value in column.tolist()]
    whole = sum(
        abs(sum(exact[place - j] * exact[place - k] for place in range(max(j, k), n))) for j in range(n) for k in range(n)
    )
    for participation in (Participation(1), Participation(1, fixed=True)):
        found = sensitivity(Toeplitz(tuple(column)), n, participation)
        assert not found.exact and Fraction(found.value) ** 2 >= whole


def test_long_runs_take_little_time():
    import time

    n = 100_000
    falling = Toeplitz(tuple(np.linspace(1.0, 0.0, 32, endpoint=False)))
    started = time.perf_counter()
    for strategy in (falling, Toeplitz(falling.coefficients, n), Buffered((0.99, 0.9, 0.5), (0.1, 0.2, 0.3))):
        for participation in (Participation(32), Participation(1000, 50), Participation(8), Participation(8, fixed=True)):
            sensitivity(strategy, n, participation)
    assert time.perf_counter() - started < 20.0
