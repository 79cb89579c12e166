"""Which step has how much noise: against a list of every step, and the doubles that all readers share."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest.descriptor import SignedBounds
from attest.errors import ValueRefused
from attest.policy import NoisePhase
from attest.schedule import Phases, effective_multiplier, phase_multipliers, phase_std
from tests.attest.test_policy_noise import Policy, text

M = 1_000_000
FIRSTS = st.sets(st.integers(1, 40), max_size=5).map(sorted)


def policy(firsts, scales=None, steps=40):
    stated = tuple(NoisePhase(first, M + place if scales is None else scales[place]) for place, first in enumerate(firsts))
    return replace(Policy.from_toml(text()), steps=steps, noise_phases=stated)


@settings(max_examples=200, deadline=None)
@given(FIRSTS, st.integers(1, 60), st.integers(0, 60))
def test_phases_are_those_of_a_list_of_all_steps(firsts, first, count):
    phases = Phases.of(policy(firsts))
    scale, listed = M, []
    for step in range(1, 130):
        scale = M + firsts.index(step) if step in firsts else scale
        listed.append(scale)
    assert [phases.scale_micro(step) for step in range(1, 130)] == listed
    window = listed[first - 1 : first - 1 + count]
    by_scale = {}
    for scale, steps in zip(phases.scales, phases.count(first, count), strict=True):
        by_scale[scale] = by_scale.get(scale, 0) + steps
    assert {scale: steps for scale, steps in by_scale.items() if steps} == {s: window.count(s) for s in set(window)}
    assert sum(phases.horizon) == 40 and phases.horizon == phases.count(1, 40)
    for step in range(1, 41):
        last = phases.last_step(step)
        assert step <= last <= 40 and phases.index(last) == phases.index(step)
        assert last == 40 or phases.index(last + 1) == phases.index(step) + 1


def test_a_policy_without_phases_has_one():
    phases = Phases.of(policy([]))
    assert (phases.firsts, phases.scales, phases.horizon) == ((1,), (M,), (40,))
    assert Phases.of(policy([1])).scales == (M,)
    assert Phases.of(policy([2], [2 * M])).scales == (M, 2 * M)
    with pytest.raises(ValueRefused):
        phases.index(0)


def test_a_longer_window_than_memory_is_counted_at_once():
    assert Phases.of(policy([3])).count(1, 2**63) == (2, 2**63 - 2)


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-9, 1e18), st.integers(M, 10**15))
def test_the_noise_of_a_phase_is_the_product_rounded_once(std, scale):
    found = phase_std(std, scale)
    exact = Fraction(std) * scale / M
    assert found == float(exact) and found >= std
    assert abs(Fraction(found) - exact) <= exact * Fraction(1, 2**53)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6), st.integers(M, 10**10))
def test_the_least_block_of_a_phase_is_the_least_of_the_schedule(stds, scale):
    """So that a class's row in the ledger follows from the smallest std alone, to the last bit."""
    assert min(phase_std(std, scale) for std in stds) == phase_std(min(stds), scale)


@pytest.mark.parametrize("scale", [M, M + 1, 2 * M])
def test_scale_one_is_the_schedule_itself(scale):
    for std in (0.1, 1 / 3, 2.1, 1e-6, 0.0):
        assert (phase_std(std, scale) == std) == (scale == M or std == 0.0)


@pytest.mark.parametrize(
    ("std", "scale"), [(1.0, M - 1), (1.0, 0), (1.0, 1.5), (1.0, True), (math.nan, M), (math.inf, M), (-1.0, M)], ids=str
)
def test_what_is_no_noise_is_refused(std, scale):
    with pytest.raises(ValueRefused):
        phase_std(std, scale)


def test_multipliers_follow_the_phase_and_never_fall_below_what_was_signed():
    stds = [phase_std(1.5, scale) for scale in (M, 2 * M, 4 * M)]
    assert phase_multipliers(SignedBounds(M, M), stds) == (1.5, 3.0, 6.0)
    assert phase_multipliers(SignedBounds(M, 5 * M), stds) == (5.0, 5.0, 6.0)
    assert phase_multipliers(SignedBounds(M, M), stds) == tuple(effective_multiplier(SignedBounds(M, M), [std]) for std in stds)
