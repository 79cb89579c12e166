"""Accountants: golden numbers, invariants, calibration, refusals."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import accountants
from ledger.accountants import gaussian
from ledger.errors import AccountantError

# (z, q, T, epsilon at delta 1e-5) computed with dp-accounting 0.6.0, agreeing with opacus 1.6.0's accountants.
PLD_GOLDENS = [
    (1.0, 0.01, 1000, 1.828),
    (2.0, 0.01, 10000, 2.163),
    (0.6, 0.1, 1000, 78.65),
    (4.0, 0.001, 10000, 0.0776),
    (4.0, 0.1, 1000, 3.444),
    (2.0, 0.01, 1000, 0.622),
    (4.0, 0.01, 1000, 0.272),
]


@pytest.mark.parametrize("z,q,steps,expected", PLD_GOLDENS)
def test_pld_goldens(z, q, steps, expected):
    digits = 10 ** -(3 if expected < 10 else 2)
    assert accountants.epsilon(z, q, steps, 1e-5) == pytest.approx(expected, abs=0.6 * digits)


def test_an_unsampled_release_is_the_exact_analytic_gaussian():
    assert accountants.epsilon(1, 1, 1, 1e-5) == pytest.approx(4.37718, abs=1e-5)
    assert accountants.epsilon(1, 1, 10, 1e-5) == pytest.approx(17.856587, abs=1e-5)
    # sqrt(n)/z: three goldens of the withdrawal table, mu = 0.3 for 1, 5 and 20 contributions.
    values = [gaussian.epsilon_of_mu(0.3 * n, 1e-5) for n in (1, 5, 20)]
    assert values == [pytest.approx(v, abs=0.06) for v in (1.13, 7.05, 42.8)]


def test_the_variance_that_suffices_matches_the_goldens():
    # (epsilon 3, delta 1e-5, n = 10, C = 1): v = (z C)^2 = 19.34; (8, 1e-6, 5, 0.5): v = 0.5329.
    assert accountants.calibrate(3, 1, 10, 1e-5) ** 2 == pytest.approx(19.34, abs=0.01)
    assert (accountants.calibrate(8, 1, 5, 1e-6) * 0.5) ** 2 == pytest.approx(0.5329, abs=1e-4)


def test_content_replacement_is_dearer_than_zero_out():
    assert accountants.epsilon(1, 0.01, 1000, 1e-5, replace=True) == pytest.approx(2.84, abs=0.01)
    assert accountants.epsilon(1, 1, 1, 1e-5, replace=True) == pytest.approx(9.997, abs=0.001)


def test_an_occurrence_cap_gives_the_smaller_of_the_two_bounds():
    assert accountants.epsilon_of_phases_capped([accountants.Phase(4, 0.1, 10_000)], 20, 1e-5) == pytest.approx(4.98, abs=0.01)
    assert accountants.epsilon(4, 0.1, 10_000, 1e-5) == pytest.approx(13.5, abs=0.05)
    run = (1, 0.01, 1000)
    assert accountants.epsilon_of_phases_capped([accountants.Phase(*run)], 1000, 1e-5) == accountants.epsilon(*run, 1e-5)


def test_nothing_spent_costs_nothing_and_no_noise_has_no_bound():
    assert accountants.epsilon(1, 0.01, 0, 1e-5) == 0.0
    assert accountants.epsilon(1, 0, 1000, 1e-5) == 0.0
    assert accountants.epsilon(0, 0.01, 1, 1e-5) == math.inf
    assert accountants.epsilon_of_phases_capped([accountants.Phase(0, 0.01, 1)], 5, 1e-5) == math.inf
    with pytest.raises(AccountantError):
        accountants.to_micro_up(math.inf)


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.3, 1.0, 7.0, 40.0, 1e3, 1e6])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
def test_the_analytic_gaussian_solves_its_equation(mu, delta):
    import mpmath

    mpmath.mp.dps = 60
    eps = gaussian.epsilon_of_mu(mu, delta)
    m, e = mpmath.mpf(mu), mpmath.mpf(eps)

    def exact(e):
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)

    assert exact(e * (1 + mpmath.mpf(10) ** -9) + mpmath.mpf(10) ** -12) <= delta
    if eps > 0:
        assert exact(e * (1 - mpmath.mpf(10) ** -9)) >= delta * (1 - 1e-6) - 1e-16


@settings(max_examples=10, deadline=None)
@given(st.floats(1, 5), st.floats(0.001, 0.2), st.integers(1, 300))
def test_epsilon_is_monotone_and_never_above_the_unsampled_bound(z, q, steps):
    base = accountants.epsilon(z, q, steps, 1e-6)
    assert base <= accountants.epsilon(z, 1, steps, 1e-6)
    assert accountants.epsilon(z * 1.2, q, steps, 1e-6) <= base + 1e-6
    assert accountants.epsilon(z, q / 2, steps, 1e-6) <= base + 1e-6
    assert accountants.epsilon(z, q, steps + 10, 1e-6) >= base - 1e-6


@pytest.mark.one_in(4)
@pytest.mark.parametrize("z", [0.29, 0.1, 0.05, 0.019, 1e-3, 1e-6])
def test_tiny_multipliers_finish_and_stay_bounds(z):
    sampled = accountants.epsilon(z, 0.01, 50, 1e-6)
    assert 0 < sampled <= accountants.epsilon(z, 1, 50, 1e-6)


@pytest.mark.parametrize("target,q,steps,delta", [(1.83, 0.01, 1000, 1e-5), (0.5, 0.004, 200, 1e-6), (0.1, 1, 3, 1e-6)])
def test_calibrate_returns_the_smallest_safe_multiplier(target, q, steps, delta):
    z = accountants.calibrate(target, q, steps, delta)
    assert accountants.epsilon(z, q, steps, delta) <= target
    assert accountants.epsilon(z - 1e-6, q, steps, delta) > target


def test_recorded_values_are_rounded_up_within_the_auditors_tolerance():
    for value in (1e-9, 0.1234565, 1.828243, 78.648523305876, 1612.7):
        recorded = accountants.to_micro_up(value) / 1e6
        assert value < recorded <= value + 2e-6
    assert accountants.to_micro_up(0.0) == 0


@pytest.mark.parametrize(
    "args",
    [
        (-1, 0.1, 1, 1e-5),
        (math.nan, 0.1, 1, 1e-5),
        (math.inf, 0.1, 1, 1e-5),
        (True, 0.1, 1, 1e-5),
        ("1", 0.1, 1, 1e-5),
        (1, 1.1, 1, 1e-5),
        (1, math.nan, 1, 1e-5),
        (1, -0.1, 1, 1e-5),
        (1, 0.1, -1, 1e-5),
        (1, 0.1, 1.0, 1e-5),
        (1, 0.1, True, 1e-5),
        (1, 0.1, 1, 1e-13),
        (1, 0.1, 1, 1.0),
        (1, 0.1, 1, math.nan),
    ],
)
def test_arguments_that_are_no_such_numbers_are_refused(args):
    with pytest.raises(AccountantError):
        accountants.epsilon(*args)


@pytest.mark.parametrize("target", [0, -1, math.nan, math.inf, "1"])
def test_targets_that_are_no_epsilon_are_refused(target):
    with pytest.raises(AccountantError):
        accountants.calibrate(target, 0.1, 1, 1e-5)
