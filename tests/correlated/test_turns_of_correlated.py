"""Holds what occurrences in a fixed order add up to against whole sets and stacked rows."""

import math
import warnings
from itertools import product

import numpy as np
import pytest

from ledger.accountants.correlated import BandedInverse, Buffered, Participation, Toeplitz, Turns, sensitivity
from ledger.errors import AccountantError
from tests.correlated.test_sensitivity import STRATEGIES, N

PERIODS = (1, 2, 3, 4, N, N + 3)


def scaled(name: str) -> np.ndarray:
    matrix = STRATEGIES[name].matrix(N)
    return matrix / np.linalg.norm(matrix, axis=0).max()


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_occurrences_add_up_to_the_bound_of_their_set_at_every_moment(name, period):
    turns, matrix = Turns(STRATEGIES[name], N, period), scaled(name)
    gram = np.abs(matrix.T @ matrix)
    for first in range(min(period, N)):
        total = 0.0
        for step in range(first, N, period):
            total += turns.occurrence(step)
            steps = np.arange(first, step + 1, period)
            whole = gram[np.ix_(steps, steps)].sum()
            assert whole <= total <= whole * (1 + 1e-9)
    largest = sensitivity(STRATEGIES[name], N, Participation(period, fixed=True)).value / turns.norm
    assert turns.most() == pytest.approx(largest**2, rel=1e-9)
    assert turns.most(1) == turns.occurrence(0) and turns.most(0) == 0.0


@pytest.mark.parametrize("period", (1, 3, N))
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_was_lost_moves_no_further_than_is_added(name, period):
    """The surviving timeline over the rows of the lost one, which had other gradients: all signs in both."""
    turns, matrix, tail = Turns(STRATEGIES[name], N, period), scaled(name), (4, 7)
    for first in range(min(period, N)):
        steps = list(range(first, N, period))
        lost = [step for step in steps if step < tail[1]]
        worst = 0.0
        for signs in product((1.0, -1.0), repeat=len(lost)):
            worst = max(worst, float(np.square(matrix[tail[0] : tail[1], lost] @ np.array(signs)).sum()))
        added = sum((*turns.again(step), *[0.0] * N)[first] for step in range(*tail))
        assert added >= worst * (1 - 1e-15)
        if (matrix >= 0).all():
            assert added == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_done_again_adds_what_its_row_moves_by(name, period):
    turns, matrix = Turns(STRATEGIES[name], N, period), np.abs(scaled(name))
    dearest = 0.0
    for step in range(N):
        told = turns.again(step)
        assert len(told) == min(period, step + 1)
        for first, found in enumerate(told):
            dearest = max(dearest, found)
            assert found == pytest.approx(matrix[step, first : step + 1 : period].sum() ** 2, rel=1e-9, abs=1e-15)
    assert turns.dearest_again() == pytest.approx(dearest, rel=1e-9)


def test_independent_noise_adds_one_for_each_occurrence_and_each_done_again():
    turns = Turns(STRATEGIES["identity"], N, 3)
    assert [turns.occurrence(step) for step in range(N)] == pytest.approx([1.0] * N)
    assert turns.most() == pytest.approx(3.0) and turns.most(cap=2) == pytest.approx(2.0)
    assert turns.again(4) == pytest.approx((0.0, 1.0, 0.0)) and turns.dearest_again() == pytest.approx(1.0)
    assert Turns(STRATEGIES["half"], N, 3).occurrence(5) == pytest.approx(1.0)


def test_a_cap_leaves_the_first_turns_of_whoever_they_are_dearest_for():
    turns = Turns(STRATEGIES["falling"], N, 2)
    for cap in (1, 2, 3):
        assert turns.most(cap=cap) == max(sum(turns.occurrence(step) for step in (*range(o, N, 2),)[:cap]) for o in (0, 1))


def test_every_machine_finds_the_same_bits():
    """Sums stand in the order of steps: the same, number by number, in Python's own arithmetic."""
    strategy, n, period = BandedInverse((1.0, -0.5, -0.125, 0.0625)), 40, 7
    column = [0.0] * (n + 3)
    column[0] = 1.0
    for t in range(n):
        for lag, coefficient in ((1, -0.5), (2, -0.125), (3, 0.0625)):
            column[t + lag] -= coefficient * column[t]
    assert strategy.column(n).tolist() == column[:n]
    turns = Turns(strategy, n, period)
    share, eps = strategy.slack(n), 2.0**-53
    assert share == 2.0 * ((4 + 2) * 2.0**-52 * math.fsum((1.0, 0.5, 0.125, 0.0625)) * sum_of(column[:n])) * sum_of(
        column[:n]
    ) * math.sqrt(n) / 1.0

    def product_of(lag: int, place: int) -> float:
        total = 0.0
        for age in range(n - place - lag):
            total += column[age + lag] * column[age]
        return total

    largest = max(product_of(0, place) for place in range(n))
    up = (1.0 + (4 * n + 64) * eps) * ((1.0 + share) * (1.0 + share))
    for t in range(n):
        found = product_of(0, t)
        for lag in range(period, t + 1, period):
            found += 2.0 * (abs(product_of(lag, t - lag)) + n * 2.0**-52 * largest)
        assert turns.occurrence(t) == found * (1.0 + (4 * n + 64) * eps) * ((1.0 + share) * (1.0 + share)) / largest
    moved = [0.0] * period
    for j in range(n):
        moved[j % period] += abs(column[n - 1 - j])
    told = [value + share * math.sqrt(largest) for value in moved]
    assert turns.again(n - 1) == tuple(value * value * (1.0 + (4 * n + 64) * eps) * ((1.0 + share) * (1.0 + share)) / largest
                                       for value in told)  # fmt: skip
    assert up > 1.0


def sum_of(values: list[float]) -> float:
    return math.fsum(map(abs, values))


def test_more_work_than_a_reader_should_have_is_refused():
    with pytest.raises(AccountantError, match="too many to add up"):
        Turns(Buffered((0.9,), (0.1,)), 1 << 16, 2)
    Turns(Toeplitz((1.0, 0.5)), 1 << 16, 2)


@pytest.mark.parametrize("steps", [40, 200, 1_200, 2_000])
def test_an_inverse_that_float64_loses_is_refused_by_name(steps):
    """Its column grows by a factor of 1.6 a step: no bound is left, or no number."""
    strategy = BandedInverse((1.0, -1.0, -1.0))
    assert Turns(strategy, 12, 3).most() < math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AccountantError, match="loses what the noise is made of") as refused:
            Turns(strategy, steps, 3)
    assert refused.value.code == "STRATEGY"


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [
        (Toeplitz((1.0, 0.5)), (1 << 22) + 1),
        (Toeplitz((1.0,) + (0.5,) * 2047, 1 << 19), 1 << 19),
        (BandedInverse((1.0,) + (-1.0 / 4096,) * 2047), 1 << 19),
    ],
    ids=["steps", "normalised", "inverse"],
)
def test_long_columns_are_refused_before_they_are_computed(strategy, steps):
    """Refuses what has turns that share no noise, as its columns themselves would take a reader minutes, and gigabytes."""
    with pytest.raises(AccountantError, match="too many to add up"):
        Turns(strategy, steps, steps)


def test_bad_numbers_are_refused():
    for steps, period in ((N, 0), (0, 1), (N, 2.0)):
        with pytest.raises(AccountantError):
            Turns(STRATEGIES["identity"], steps, period)
    with pytest.raises(AccountantError, match="made for"):
        Turns(STRATEGIES["normalised"], N + 1, 2)
