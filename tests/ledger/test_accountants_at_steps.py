"""Epsilon of one run after several of its steps: transformed a few times, and the figures of each number by itself."""

import math
from itertools import pairwise

import pytest

from ledger import accountants
from ledger.accountants import AccountantError, Phase, core
from ledger.accountants.gaussian import epsilon_of_mu
from ledger.accountants.pld import composed, losses, tilted

COUNTS = (1, 2, 3, 7, 19, 52, 139, 373, 1000)
RUNS = {
    "one level": [Phase(1.0, 0.01, 1000)],
    "wide losses": [Phase(0.4, 0.002, 1000)],
    "two levels and a step without sampling": [Phase(1.0, 0.01, 300), Phase(8.0, 1.0, 1), Phase(2.0, 0.02, 699)],
    "drawn by halves": [Phase(4.0, 0.6, 1000)],
    "nothing sampled": [Phase(20.0, 1.0, 1000)],
}


def alone(run, count, delta=1e-6, name="pld", **how):
    return accountants.epsilon_of_phases(accountants.first_steps(run, count), delta, name, **how)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("delta", [1e-11, 1e-6, 1e-2])
@pytest.mark.parametrize("run", RUNS)
def test_every_number_of_steps_has_the_figure_that_it_has_alone(run, delta, replace):
    found = accountants.epsilon_at_steps(RUNS[run], COUNTS, delta, replace=replace)
    for count, value in zip(COUNTS, found, strict=True):
        assert value == pytest.approx(alone(RUNS[run], count, delta, replace=replace), abs=4e-7)
    assert found[-1] == alone(RUNS[run], COUNTS[-1], delta, replace=replace)
    assert all(fewer <= more for fewer, more in pairwise(found)), "no step gives privacy back"


@pytest.mark.parametrize("name", ["rdp", "moments", "prv"])
def test_accountants_that_share_nothing_give_their_own_bits(name):
    run = RUNS["one level"]
    found = accountants.epsilon_at_steps(run, COUNTS, 1e-6, name)
    assert found == pytest.approx([alone(run, count, name=name) for count in COUNTS], abs=4e-7 if name == "prv" else 0.0)
    shared = accountants.epsilon_at_steps(run, COUNTS, 1e-6, replace=True)
    assert accountants.epsilon_at_steps(run, COUNTS, 1e-6, name, replace=True) == tuple(map(max, found, shared))


def test_what_is_summed_by_the_tilt_of_another_number_is_not_below_the_exact_gaussian():
    """Releases of which nothing is sampled, put on the grid and composed all the same, from many steps to few and back."""
    part, laws = losses.one_step(2.0, 1.0, 1e-4)[0], tilted.Laws()
    for steps in (64, 36, 25, 16, 9, 4, 2, 4, 25, 64):
        for delta in (1e-10, 1e-5, 1e-2):
            found = tilted.epsilon([(part, steps)], 1e-4, delta, 1 << 22, laws=laws)
            exact = epsilon_of_mu(math.sqrt(steps) / 2.0, delta)
            assert exact <= found <= exact + 1e-6, (steps, delta)


def test_a_wrong_tilt_makes_no_figure_smaller():
    """A tilt far from its own, in the place of a neighbour's, is thrown away, or gives the same bound."""
    part = losses.one_step(1.0, 0.01, 1e-4, True)[0]
    own = tilted.epsilon([(part, 200)], 1e-4, 1e-6, 1 << 22)
    for factor in (1.0 / 1.59, 0.8, 1.2, 1.59, 4.0):
        laws = tilted.Laws()
        laws.tilts[id(part),] = factor * tilted._tilt_for([(part, 200)], 1e-4, 1e-6)
        assert tilted.epsilon([(part, 200)], 1e-4, 1e-6, 1 << 22, laws=laws) == pytest.approx(own, abs=1e-8)


def test_steps_are_transformed_for_few_of_the_points(monkeypatch):
    made = []
    transform = tilted._transformed
    monkeypatch.setattr(tilted, "_transformed", lambda *asked: made.append(asked[1]) or transform(*asked))
    run = RUNS["one level"]
    core.cached.cache_clear()
    composed.epsilon_of_runs.cache_clear()
    accountants.epsilon_at_steps(run, COUNTS, 1e-6, replace=True)
    assert 1 <= len(made) <= 6
    made.clear()
    for name in ("pld", "rdp", "moments"):
        accountants.epsilon_at_steps(run, COUNTS, 1e-6, name, replace=True)
    assert made == [], "all accountants take what was composed once"
    core.cached.cache_clear()
    for count in COUNTS:
        alone(run, count, replace=True)
    assert len(made) >= len(COUNTS) - 1  # a single step needs no transform


def test_runs_may_be_empty_or_without_noise_and_counts_ascend():
    run = RUNS["one level"]
    assert accountants.epsilon_at_steps(run, (), 1e-6) == ()
    assert accountants.epsilon_at_steps([], (1, 2), 1e-6) == (0.0, 0.0)
    assert accountants.epsilon_at_steps(run, (0, 5, 5), 1e-6)[1:] == (alone(run, 5),) * 2
    assert accountants.epsilon_at_steps([Phase(1.0, 0.1, 3), Phase(0.0, 0.1, 1)], (3, 4), 1e-6)[1] == math.inf
    with pytest.raises(AccountantError, match="ascend"):
        accountants.epsilon_at_steps(run, (5, 4), 1e-6)
    with pytest.raises(AccountantError):
        accountants.epsilon_at_steps(run, (1,), 1e-6, "none")
    with pytest.raises(AccountantError, match="delta lies in"):
        accountants.epsilon_at_steps(run, (1,), 0.0)
