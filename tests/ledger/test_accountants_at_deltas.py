"""Epsilon of one run at several deltas: composed a few times, and the figures of each delta by itself."""

import math

import pytest

from ledger import accountants
from ledger.accountants import AccountantError, Phase, core
from ledger.accountants.gaussian import epsilon_of_mu
from ledger.accountants.pld import composed, losses, tilted

DELTAS = (1e-12, 1e-11, 1e-9, 1e-7, 3e-6, 1e-5, 1e-3, 1e-2, 1e-1)
RUNS = {
    "one level": [Phase(1.0, 0.01, 2000)],
    "wide losses": [Phase(0.3, 0.001, 30)],
    "two levels and a step without sampling": [Phase(1.0, 0.01, 500), Phase(2.0, 0.02, 500), Phase(8.0, 1.0, 1)],
    "one step": [Phase(1.0, 0.1, 1)],
    "nothing sampled": [Phase(2.0, 1.0, 64)],
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("run", "replace"),
    [
        pytest.param(run, replace, marks=[pytest.mark.slow] * (run == "wide losses" and replace))
        for run in RUNS
        for replace in (False, True)
    ],
)
def test_every_delta_has_the_figure_that_it_has_alone(run, replace):
    found = accountants.epsilon_at_deltas(RUNS[run], DELTAS, replace=replace)
    for delta, value in zip(DELTAS, found, strict=True):
        assert value == pytest.approx(accountants.epsilon_of_phases(RUNS[run], delta, replace=replace), abs=4e-7)


@pytest.mark.parametrize("name", ["rdp", "moments"])
def test_accountants_that_compose_nothing_give_their_own_bits(name):
    run = RUNS["one level"]
    found = accountants.epsilon_at_deltas(run, DELTAS, name)
    assert found == tuple(accountants.epsilon_of_phases(run, delta, name) for delta in DELTAS)
    replaced = accountants.epsilon_at_deltas(run, DELTAS, name, replace=True)
    assert replaced == tuple(map(max, found, accountants.epsilon_at_deltas(run, DELTAS, replace=True)))


def test_what_is_read_at_another_delta_is_not_below_the_exact_gaussian():
    """Releases of which nothing is sampled, put on the grid and composed all the same; sums of other steps are kept apart."""
    parts, kept = losses.one_step(2.0, 1.0, 1e-4), {}
    for steps in (9, 36):
        mu = math.sqrt(steps) / 2.0
        for delta in DELTAS:
            found = tilted.epsilon([(parts[0], steps)], 1e-4, delta, 1 << 22, kept)
            exact = epsilon_of_mu(mu, delta)
            assert exact <= found <= exact + 1e-6, (steps, delta)
    assert len(kept) == 2


def test_a_sum_is_composed_for_few_of_the_deltas(monkeypatch):
    made = []
    compose = tilted._tilted
    monkeypatch.setattr(tilted, "_tilted", lambda *asked: made.append(asked[2]) or compose(*asked))
    composed.epsilon_at_deltas.cache_clear()
    accountants.epsilon_at_deltas(RUNS["one level"], DELTAS, replace=True)
    assert 1 <= len(made) <= 4
    made.clear()
    for name in ("pld", "rdp", "moments"):
        accountants.epsilon_at_deltas(RUNS["one level"], DELTAS, name, replace=True)
    assert made == [], "all accountants take what was composed once"
    core.cached.cache_clear()
    for delta in DELTAS:
        accountants.epsilon_of_phases(RUNS["one level"], delta, replace=True)
    assert len(made) >= len(DELTAS)


def test_deltas_come_in_any_order_and_runs_may_be_empty_or_without_noise():
    run = RUNS["one level"]
    there, back = (accountants.epsilon_at_deltas(run, deltas, replace=True) for deltas in (DELTAS, DELTAS[::-1]))
    assert there == back[::-1]
    assert accountants.epsilon_at_deltas([], DELTAS) == (0.0,) * len(DELTAS)
    assert accountants.epsilon_at_deltas([Phase(0.0, 0.1, 1)], (1e-5,)) == (math.inf,)
    assert accountants.epsilon_at_deltas(run, ()) == ()
    with pytest.raises(AccountantError, match="delta lies in"):
        accountants.epsilon_at_deltas(run, (1e-5, 0.0))
    with pytest.raises(AccountantError):
        accountants.epsilon_at_deltas(run, (1e-5,), "none")
