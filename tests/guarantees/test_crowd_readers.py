"""The statistics of the crowd audit on made-up releases, where the truth is known: false alarms, power, and composition."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("scipy")

from ledger import accountants
from tests.guarantees.crowd import readers
from tests.guarantees.crowd.readers import Readings

STEPS, RATE, DELTA, ALPHA = 1000, 0.01, 1e-5, 1e-3


def made_up(separation: float, own: float, product: float, count: int, seed: int = 0) -> Readings:
    """Releases of ``count`` steps in which the others' sums lie ``separation`` apart."""
    coins = np.random.default_rng(seed)
    one = [np.full(1, value) for value in (0, 0, False, False, separation, own, product, 0.0, 0.0)]
    parts = [
        readers.simulated(Readings(*one), np.full(count, drawn), real, coins)
        for drawn in (False, True)
        for real in (False, True)
    ]
    return readers.joined(parts)


def bound(measured: Readings, runs: int = 1000, seed: int = 0) -> float:
    coins = np.random.default_rng(seed)
    real, null = (readers.simulated_runs(measured, 2 * runs, STEPS, RATE, payload, coins) for payload in (True, False))
    threshold = readers.best_threshold(real[:runs], null[:runs], runs, DELTA, ALPHA)
    return readers.refuted(real[runs:], null[runs:], threshold, DELTA, ALPHA)


def right(measured: Readings, seed: int = 0) -> int:
    return int((readers.guesses(measured, np.random.default_rng(seed)) == measured.drawn).sum())


def test_without_separation_the_reader_of_draws_flips_a_coin() -> None:
    found = made_up(0.0, 1.0, 0.0, 5000)
    assert readers.chance(right(found), len(found)) > ALPHA


def test_rounding_is_no_separation() -> None:
    found = made_up(1e-6, 1.0, 1e-7, 5000)
    assert readers.chance(right(found), len(found)) > ALPHA


def test_what_the_own_gradient_tells_is_not_counted_as_reading_draws() -> None:
    """A contribution at its bound shows by itself: that is allowed, and composed in the claim."""
    found = made_up(1e-9, 3.0, 2.9e-9, 5000)
    assert readers.chance(right(found), len(found)) > ALPHA


@pytest.mark.parametrize("separation", [0.5, 2.0, 11.0])
def test_the_reader_is_right_as_often_as_the_separation_allows(separation: float) -> None:
    from scipy import stats

    found = made_up(separation, 1.0, 0.0, 5000)
    expected = stats.norm.cdf(separation / 2)
    spread = 5 * np.sqrt(expected * (1 - expected) / len(found))
    assert abs(right(found) / len(found) - expected) <= max(spread, 1e-12)


def test_a_detectable_separation_is_detected() -> None:
    trials = 600
    separation = readers.detectable(trials, ALPHA)
    assert separation == pytest.approx(0.56, abs=0.01)
    caught = sum(
        readers.chance(right(made_up(separation, 1.0, 0.0, trials // 4, seed), seed), trials) < ALPHA for seed in range(200)
    )
    assert caught >= 190


def test_chance_is_a_probability_of_the_binomial() -> None:
    assert readers.chance(3, 3) == pytest.approx(1 / 8)
    assert readers.chance(0, 3) == 1.0


def test_intervals_cover() -> None:
    """Each end is wrong with probability alpha at most; 2000 intervals at alpha = 0.05, alarm at five deviations."""
    coins = np.random.default_rng(3)
    for p in (0.01, 0.3, 0.97):
        ends = [readers.fraction(int(coins.binomial(150, p)), 150, 0.05) for _ in range(2000)]
        limit = 100 + 5 * np.sqrt(2000 * 0.05 * 0.95)
        assert sum(low > p for low, _ in ends) <= limit
        assert sum(high < p for _, high in ends) <= limit
    assert readers.fraction(0, 100, 0.01)[0] == 0.0 and readers.fraction(100, 100, 0.01)[1] == 1.0


def test_without_separation_the_bound_stays_below_the_claim() -> None:
    """And is no empty one: this is the sampled mechanism as it is accounted."""
    claim = accountants.epsilon(1.0, RATE, STEPS, DELTA)
    found = bound(made_up(0.0, 1.0, 0.0, 1), runs=3000)
    assert 0.1 < found <= claim


def test_known_draws_refute_the_claim_and_not_what_holds_for_known_draws() -> None:
    claim = accountants.epsilon(1.0, RATE, STEPS, DELTA)
    found = bound(made_up(30.0, 1.0, 0.0, 1))
    assert claim < found <= accountants.epsilon_occurrences(25.0, DELTA)


@pytest.mark.slow
def test_the_bound_grows_with_the_separation() -> None:
    bounds = [bound(made_up(separation, 1.0, 0.0, 1), runs=500) for separation in (0.0, 2.0, 12.0)]
    assert bounds == sorted(bounds)
    assert bounds[-1] > 2 * bounds[0] + 1


def test_runs_of_releases_use_each_once_and_agree_with_simulated_ones() -> None:
    found = made_up(11.0, 1.0, 0.1, 3000)
    coins = np.random.default_rng(2)
    runs = readers.released_runs(found, STEPS, RATE, True, coins)
    assert 250 <= len(runs) <= 350, "3000 releases that were drawn with a real payload, ten a run"
    modelled = readers.simulated_runs(found, 4000, STEPS, RATE, True, coins)
    assert abs(runs.mean() - modelled.mean()) <= 5 * modelled.std() / np.sqrt(len(runs))


def test_one_reading_a_release_is_drawn_and_no_release_is_used_twice() -> None:
    found = made_up(2.0, 1.0, 0.1, 300)
    found = dataclasses.replace(found, step=np.arange(len(found)) // 10)
    picked = readers.one_a_step(found, found.drawn, np.random.default_rng(4))
    assert picked.drawn.all()
    assert sorted(picked.step) == sorted(set(found.step[found.drawn]))


def test_the_noise_of_releases_is_measured_apart_from_what_they_hold() -> None:
    found = made_up(3.0, 2.0, 1.5, 1000)
    noise = readers.noise_along(found)
    assert readers.as_loud_as_claimed(noise, ALPHA)
    assert not readers.as_loud_as_claimed(0.9 * noise, ALPHA)
    assert not readers.as_loud_as_claimed(1.1 * noise, ALPHA)


def test_answers_that_hang_together_raise_no_more_alarms_than_others() -> None:
    """All ten answers of a step are right or all are wrong, as where rounding follows from how many are drawn.

    Counted as independent they raise alarm about one time in nine. 1000 audits at alarm 0.01, limit at five deviations.
    """
    coins = np.random.default_rng(5)
    number = np.tile(np.arange(10), 50)
    naive = alarms = 0
    for _ in range(1000):
        answers = np.repeat(coins.integers(0, 2, 50) == 1, 10)
        naive += readers.chance(int(answers.sum()), len(answers)) < 0.01
        alarms += readers.chance_of_several(answers, number) < 0.01
    assert naive > 100
    assert alarms <= 10 + 5 * np.sqrt(10)


def test_answers_that_are_right_more_often_raise_alarm() -> None:
    coins = np.random.default_rng(6)
    number = np.tile(np.arange(10), 500)
    assert readers.chance_of_several(coins.random(5000) < 0.62, number) < ALPHA
    assert readers.chance_of_several(np.ones(48, dtype=bool), np.tile(np.arange(2), 24)) < ALPHA


def test_the_log_ratio_is_that_of_the_two_mixtures() -> None:
    """By densities in the plane of D and h, at one release."""
    separation, own, product = np.array([2.0, 0.0]), np.array([0.5, 0.8]), 1.0
    release = np.array([1.3, -0.4])

    def density(mean: np.ndarray) -> float:
        return float(np.exp(-((release - mean) ** 2).sum() / 2))

    real = (1 - RATE) * density(np.zeros(2)) + RATE * density(separation + own)
    null = (1 - RATE) * density(np.zeros(2)) + RATE * density(separation)
    one = [0, 0, True, True, 2.0, np.hypot(*own), product, release @ separation, release @ own]
    found = readers.log_ratios(Readings(*(np.array([value]) for value in one)), RATE)
    assert found[0] == pytest.approx(np.log(real / null))
