"""Holds what occurrences in a fixed order add up to against whole sets and stacked rows."""

from itertools import product

import numpy as np
import pytest

from ledger.accountants.correlated import Participation, Turns, sensitivity
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
        added = turns.lost(first, *tail)
        assert added >= worst * (1 - 1e-15)
        if (matrix >= 0).all():
            assert added == pytest.approx(worst, abs=1e-9)
    assert turns.lost(0, 4, 4) == turns.lost(0, 5, 4) == 0.0 and turns.lost(0, 0, N + 5) == turns.lost(0, 0, N)


def test_independent_noise_adds_one_for_each_occurrence_and_each_lost_one():
    turns = Turns(STRATEGIES["identity"], N, 3)
    assert [turns.occurrence(step) for step in range(N)] == pytest.approx([1.0] * N)
    assert turns.most() == pytest.approx(3.0) and turns.lost(1, 3, 8) == pytest.approx(2.0)
    assert Turns(STRATEGIES["half"], N, 3).occurrence(5) == pytest.approx(1.0)


def test_bad_numbers_are_refused():
    for steps, period in ((N, 0), (0, 1), (N, 2.0)):
        with pytest.raises(AccountantError):
            Turns(STRATEGIES["identity"], steps, period)
    turns = Turns(STRATEGIES["falling"], N, 3)
    for turn, begin in ((3, 0), (-1, 0), (0, -3)):
        with pytest.raises(AccountantError, match="a turn is below the period"):
            turns.lost(turn, begin, 2)
    with pytest.raises(AccountantError, match="made for"):
        Turns(STRATEGIES["normalised"], N + 1, 2)
