"""From a target epsilon to the variance that suffices, and how many public occurrences it pays for."""

import pytest

pytest.importorskip("torch")

from dptrain.clipping.own_noise import occurrences_within, sufficient_noise
from ledger.accountants import epsilon, epsilon_occurrences
from ledger.errors import AccountantError


@pytest.mark.parametrize(
    ("target", "delta", "count", "clip", "variance"), [(3, 1e-5, 10, 1.0, 19.34), (8, 1e-6, 5, 0.5, 0.5329)]
)  # fmt: skip
def test_golden_variances_for_public_occurrences(target, delta, count, clip, variance):
    found = sufficient_noise(target, delta, count, 1000, clip, disclosure="occurrences_public")
    assert found.variance == pytest.approx(variance, rel=5e-4)
    assert found.sampling_rate == count / 1000
    assert epsilon_occurrences(count / found.multiplier**2, delta) <= target
    assert epsilon_occurrences(count / (found.multiplier - 1e-6) ** 2, delta) > target
    assert occurrences_within(target, found.multiplier, delta) == count, "what was expected fits, and not one more"
    assert (10**0.5 / found.multiplier == pytest.approx(0.719, abs=5e-4)) is (count == 10)


def test_secret_draws_need_less_and_the_promise_is_kept():
    found = sufficient_noise(1.0, 1e-5, 10, 1000, 0.5)
    assert epsilon(found.multiplier, 0.01, 1000, 1e-5) <= 1.0 < epsilon(found.multiplier - 1e-3, 0.01, 1000, 1e-5)
    assert found.variance == pytest.approx((0.5 * found.multiplier) ** 2)
    assert found.multiplier < sufficient_noise(1.0, 1e-5, 10, 1000, 0.5, disclosure="occurrences_public").multiplier / 3


def test_more_occurrences_cost_more_and_a_cap_says_when_to_stop():
    for z in (0.7, 2.0, 11.0):
        count = occurrences_within(2.0, z, 1e-6)
        assert count == 0 or epsilon_occurrences(count / z**2, 1e-6) <= 2.0
        assert epsilon_occurrences((count + 1) / z**2, 1e-6) > 2.0
    assert occurrences_within(0.001, 0.5, 1e-6) == 0


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((1.0, 1e-5, 0, 1000, 1.0), {}),
        ((1.0, 1e-5, 1001, 1000, 1.0), {}),
        ((1.0, 1e-5, True, 1000, 1.0), {}),
        ((1.0, 1e-5, float("nan"), 1000, 1.0), {}),
        ((1.0, 1e-5, 1.5, 1000, 1.0), {"disclosure": "occurrences_public"}),
        ((1.0, 1e-5, 10, 1000, 1.0), {"disclosure": "open"}),
        ((0.0, 1e-5, 10, 1000, 1.0), {"disclosure": "occurrences_public"}),
        ((float("inf"), 1e-5, 10, 1000, 1.0), {"disclosure": "occurrences_public"}),
        ((1e-9, 1e-12, 1000, 1000, 1.0), {"disclosure": "occurrences_public"}),
        ((1.0, 1e-13, 10, 1000, 1.0), {"disclosure": "occurrences_public"}),
    ],
)
def test_what_cannot_be_is_refused(arguments, options):
    with pytest.raises(AccountantError):
        sufficient_noise(*arguments, **options)
