"""From a target epsilon to the variance that suffices, and how many public occurrences it pays for."""

import pytest

from dptrain.clipping.own_noise import counted, multiplier_for, occurrences_within, variance
from ledger.accountants import calibrate, epsilon, epsilon_occurrences
from ledger.errors import AccountantError


@pytest.mark.parametrize(
    ("target", "delta", "count", "clip", "sufficient"), [(3, 1e-5, 10, 1.0, 19.34), (8, 1e-6, 5, 0.5, 0.5329)]
)  # fmt: skip
def test_golden_variances_for_public_occurrences(target, delta, count, clip, sufficient):
    multiplier = multiplier_for(target, count, delta)
    assert variance(multiplier, clip) == pytest.approx(sufficient, rel=5e-4)
    assert epsilon_occurrences(count / multiplier**2, delta) <= target
    assert epsilon_occurrences(count / (multiplier - 1e-6) ** 2, delta) > target
    assert occurrences_within(target, multiplier, delta) == count, "what was expected fits, and not one more"
    assert (10**0.5 / multiplier == pytest.approx(0.719, abs=5e-4)) is (count == 10)


def test_secret_draws_need_less_and_the_promise_is_kept():
    multiplier = calibrate(1.0, 0.01, 1000, 1e-5)
    assert epsilon(multiplier, 0.01, 1000, 1e-5) <= 1.0 < epsilon(multiplier - 1e-3, 0.01, 1000, 1e-5)
    assert multiplier < multiplier_for(1.0, 10, 1e-5) / 3


def test_more_occurrences_cost_more_and_a_cap_says_when_to_stop():
    for z in (0.7, 2.0, 11.0):
        count = occurrences_within(2.0, z, 1e-6)
        assert count == 0 or epsilon_occurrences(count / z**2, 1e-6) <= 2.0
        assert epsilon_occurrences((count + 1) / z**2, 1e-6) > 2.0
    assert occurrences_within(0.001, 0.5, 1e-6) == 0


@pytest.mark.parametrize("occurrences", [0, -1, 1.5, float("nan"), float("inf")])
def test_what_is_no_count_of_occurrences_is_refused(occurrences):
    with pytest.raises(AccountantError):
        counted(occurrences)


@pytest.mark.parametrize(
    ("target", "count", "delta"),
    [(1.0, 0, 1e-5), (1.0, True, 1e-5), (0.0, 10, 1e-5), (float("inf"), 10, 1e-5), (1e-9, 1000, 1e-12), (1.0, 10, 1e-13)],
)
def test_what_cannot_be_is_refused(target, count, delta):
    with pytest.raises(AccountantError):
        multiplier_for(target, count, delta)
