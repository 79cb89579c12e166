"""Solving for a target: every answer is safe, the next one is not, and what cannot be reached says what can."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import accountants
from ledger.accountants import ACCOUNTANTS, MAX_STEPS, Phase
from ledger.accountants.solvers import boundary, search
from ledger.errors import AccountantError


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_least_multiplier_is_safe_and_least(accountant):
    z = accountants.calibrate(3.0, 0.02, 150, 1e-6, accountant)
    assert accountants.epsilon(z, 0.02, 150, 1e-6, accountant) <= 3.0
    assert accountants.epsilon(z - 2e-6, 0.02, 150, 1e-6, accountant) > 3.0


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_the_most_steps_are_safe_and_most(accountant):
    steps = accountants.largest_steps(2.0, 1.1, 0.02, 1e-6, accountant)
    assert accountants.epsilon(1.1, 0.02, steps, 1e-6, accountant) <= 2.0
    assert accountants.epsilon(1.1, 0.02, steps + 1, 1e-6, accountant) > 2.0


@pytest.mark.parametrize("accountant", ["rdp", "moments", pytest.param("pld", marks=pytest.mark.slow)])
def test_the_largest_rate_is_safe_and_largest(accountant):
    rate = accountants.largest_rate(2.0, 1.1, 200, 1e-6, accountant)
    assert accountants.epsilon(1.1, rate, 200, 1e-6, accountant) <= 2.0
    assert accountants.epsilon(1.1, rate + 2e-9, 200, 1e-6, accountant) > 2.0


def test_a_factor_scales_every_phase():
    phases = [Phase(2.0, 0.02, 20), Phase(1.0, 0.02, 20)]
    factor = accountants.calibrate_phases(1.0, phases, 1e-6)
    scaled = [Phase(p.noise_multiplier * factor, p.sampling_rate, p.steps) for p in phases]
    assert 0.9999 < accountants.epsilon_of_phases(scaled, 1e-6) <= 1.0
    one = [Phase(1.0, 0.01, 1000)]
    assert accountants.calibrate_phases(1.83, one, 1e-5) == accountants.calibrate(1.83, 0.01, 1000, 1e-5)
    assert accountants.calibrate_phases(1.0, [], 1e-6) == 0.0
    with pytest.raises(AccountantError, match="no noise"):
        accountants.calibrate_phases(1.0, [Phase(0.0, 0.1, 1)], 1e-6)


def test_limits_that_never_bind():
    assert accountants.largest_rate(1e4, 10.0, 3, 1e-6) == 1.0
    assert accountants.largest_steps(1.0, 1e9, 1.0, 1e-6, "rdp") == MAX_STEPS
    assert accountants.largest_steps(1.0, 1.0, 0.0, 1e-6) == MAX_STEPS
    assert accountants.calibrate(1.0, 0.0, 10, 1e-6) == 0.0


def test_targets_below_what_an_accountant_can_say_tell_the_least_that_it_can(monkeypatch):
    monkeypatch.setattr(accountants.prv, "_plugged", [])
    accountants.core.cached.cache_clear()
    with pytest.raises(AccountantError, match="the nearest that can is") as caught:
        accountants.calibrate(0.015, 0.01, 10, 1e-6, "prv")
    assert caught.value.code == "EPSILON" and caught.value.nearest > 0.015
    # What is named is reachable indeed, and little above the least.
    z = accountants.calibrate(caught.value.nearest * 1.01, 0.01, 10, 1e-6, "prv")
    assert accountants.epsilon(z, 0.01, 10, 1e-6, "prv") <= caught.value.nearest * 1.01


@pytest.mark.one_in(3)
@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
@pytest.mark.parametrize("target", [0.1, 1e-3, 1e-5, 1e-9])
def test_however_small_a_target_there_is_a_noise_for_it(accountant, target):
    z = accountants.calibrate(target, 0.1, 10, 1e-6, accountant)
    assert (
        accountants.epsilon(z, 0.1, 10, 1e-6, accountant) <= target < accountants.epsilon(z * 0.999, 0.1, 10, 1e-6, accountant)
    )


def test_one_step_too_dear_and_the_least_rate_too_dear_tell_what_they_cost():
    with pytest.raises(AccountantError) as caught:
        accountants.largest_steps(1.0, 0.5, 1.0, 1e-6)
    assert caught.value.nearest == pytest.approx(accountants.epsilon(0.5, 1.0, 1, 1e-6), abs=2e-6)
    with pytest.raises(AccountantError, match="the rate 1e-9") as caught:
        accountants.largest_rate(0.1, 0.1, 10**6, 1e-6, "moments")
    assert caught.value.nearest == pytest.approx(accountants.epsilon(0.1, 1e-9, 10**6, 1e-6, "moments"), abs=2e-6)


@pytest.mark.parametrize("target", [0, -1, math.nan, math.inf, "1", None, True])
def test_targets_that_are_no_epsilon_are_refused_by_every_solver(target):
    for solve in (
        lambda: accountants.calibrate(target, 0.1, 1, 1e-5),
        lambda: accountants.largest_steps(target, 1.0, 0.1, 1e-5),
        lambda: accountants.largest_rate(target, 1.0, 10, 1e-5),
    ):
        with pytest.raises(AccountantError):
            solve()


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.floats(0.2, 3.0), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_search_finds_the_boundary_of_any_monotone_function(edge, span, power, upwards):
    """Good from ``edge`` up (or down), bad on the other side; every kind of slope."""

    def log_ratio(n: int) -> float:
        distance = (edge - n if upwards else n - edge) / edge
        return math.copysign(abs(distance) ** power, distance) if distance else 0.0

    if upwards:
        assert boundary(log_ratio, max(1, edge - span) if edge > 1 else 1, edge + span) == edge or edge == 1
    else:
        assert boundary(log_ratio, edge + span, max(1, edge - span)) == edge


@given(
    st.integers(1, 10**12),
    st.integers(1, 10**12),
    st.floats(0.3, 3.0),
    st.floats(-0.02, 0.02),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_the_search_computes_few_values_from_anywhere(edge, start, slope, bend, upwards):
    """Nearly a line in logarithms, as epsilon is: the root is found from any start, in a dozen steps and one per decade."""
    asked = []

    def log_ratio(n):
        asked.append(n)
        x = math.log(n / edge)
        value = slope * x * (1.0 + bend * x / (1.0 + abs(x)))
        return -value if upwards else value

    ends = {"safe_end": 10**12, "unsafe_end": 1} if upwards else {"safe_end": 1, "unsafe_end": 10**12}
    assert search(log_ratio, start, **ends) == edge
    assert len(set(asked)) <= 12 + abs(math.log10(start / edge)) * 2


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 1001), st.booleans())
def test_the_search_finds_a_cliff_and_says_where_there_is_none(low, span, edge, upwards):
    """Nothing spent on one side and no bound on the other, as epsilon 0 and infinity are."""
    high = low + span
    edge = min(max(edge, low - 1), high + 1)
    start = (low + high) // 2
    if upwards:
        found = search(lambda n: -1e3 if n >= edge else 1e3, start, safe_end=high, unsafe_end=low)
        assert found == (None if edge > high else max(edge, low))
    else:
        found = search(lambda n: -1e3 if n <= edge else 1e3, start, safe_end=low, unsafe_end=high)
        assert found == (None if edge < low else min(edge, high))


@pytest.mark.parametrize(
    ("target", "most"),
    [
        (1e-3, 14),
        (0.1, 9),
        (2.0, 8),
        pytest.param(50.0, 8, marks=pytest.mark.slow),
        pytest.param(1e4, 18, marks=pytest.mark.slow),
    ],
)
def test_a_multiplier_costs_few_evaluations_of_the_accountant(monkeypatch, target, most):
    """Loss distributions of little noise are the dear ones, and far from the root there is no need of any."""
    asked = []
    whole = accountants.pld.epsilon_of_phases
    monkeypatch.setattr(
        accountants.pld,
        "epsilon_of_phases",
        lambda phases, *rest, **more: asked.append(phases) or whole(phases, *rest, **more),
    )
    accountants.core.cached.cache_clear()
    z = accountants.calibrate(target, 0.05, 20, 1e-6)
    assert len(asked) <= most, [phases[0].noise_multiplier for phases in asked]
    assert accountants.epsilon(z, 0.05, 20, 1e-6) <= target < accountants.epsilon(z - 2e-6, 0.05, 20, 1e-6)
