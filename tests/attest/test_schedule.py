"""The noise schedule: golden numbers, the max rule's two halves, and refusals."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest.descriptor import SignedBounds
from attest.errors import ValueRefused
from attest.schedule import block_std, effective_multiplier, sufficient_variance, waste

M = 1_000_000
BOUNDS = st.integers(1, 10**9)


def test_block_std_is_the_exact_product_divided_once():
    assert block_std([SignedBounds(M, 1_100_000)]) == 1.1
    assert block_std([SignedBounds(M, 1_100_000), SignedBounds(700_000, 3 * M)]) == 2.1
    assert block_std([SignedBounds(3, 333_333)]) == float(Fraction(999_999, 10**12))
    assert block_std([SignedBounds(10**15, 10**15)]) == 1e18


@pytest.mark.parametrize(("sigma", "clip", "expected"), [(1, 1.0, 1.0), (2, 1.0, 2.0), (4, 0.5, 4.0), (1, 0.25, 4.0)])
def test_golden_effective_multipliers_under_unit_noise(sigma, clip, expected):
    assert effective_multiplier(SignedBounds(int(clip * M), sigma * M), [1.0]) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.builds(SignedBounds, BOUNDS, BOUNDS), min_size=1, max_size=8))
def test_max_rule_gives_every_class_its_multiplier_and_is_minimal(presets):
    std = Fraction(block_std(presets))
    slack = Fraction(1, 2**52)
    needed = [Fraction(sigma * clip, 10**12) for clip, sigma, _ in presets]
    assert all(std >= value * (1 - slack) for value in needed)
    assert any(std <= value * (1 + slack) for value in needed)


@settings(max_examples=200, deadline=None)
@given(BOUNDS, BOUNDS, st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6))
def test_effective_multiplier_is_at_least_the_signed_one_and_follows_the_least_noise(sigma, clip, stds):
    found = effective_multiplier(SignedBounds(clip, sigma), iter(stds))
    assert found >= sigma / M
    assert found == max(sigma / M, float(Fraction(min(stds)) * M / clip))


def gaussian_delta(epsilon, mu):
    """Balle and Wang (2018), equation 6, for the Gaussian mechanism with sensitivity/noise = mu."""

    def phi(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("epsilon", "delta", "n", "clip", "mu", "variance"),
    [(3, 1e-5, 10, 1.0, 0.719, 19.34), (8, 1e-6, 5, 0.5, None, 0.5329)],
)
def test_golden_sufficient_variances_for_public_occurrences(epsilon, delta, n, clip, mu, variance):
    low, high = 1e-3, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(epsilon, middle) <= delta else (low, middle)
    if mu is not None:
        assert low == pytest.approx(mu, abs=5e-4)
    assert sufficient_variance(math.sqrt(n) / low, clip) == pytest.approx(variance, rel=5e-4)


def test_waste():
    assert waste(2.2, 1.1) == 2.0
    assert waste(1.1, 1.1) == 1.0


@pytest.mark.parametrize("stds", [[], [0.0], [1.0, 0.0], [math.nan], [1.0, math.nan], [math.inf], [-1.0]], ids=str)
def test_blocks_without_positive_finite_noise_are_refused(stds):
    with pytest.raises(ValueRefused):
        effective_multiplier(SignedBounds(M, M), stds)


@pytest.mark.parametrize("presets", [[], [(0, M)], [(M, 0)], [(-1, M)], [(1.0, M)], [(True, M)], [(M, None)]], ids=str)
def test_presets_that_are_no_bounds_are_refused(presets):
    with pytest.raises(ValueRefused):
        block_std([SignedBounds(*preset) for preset in presets])


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_variance_and_waste_refuse_what_is_not_positive(value):
    for call in (sufficient_variance, waste):
        with pytest.raises(ValueRefused):
            call(value, 1.0)
        with pytest.raises(ValueRefused):
            call(1.0, value)
