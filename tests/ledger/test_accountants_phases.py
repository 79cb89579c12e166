"""Schedules in phases: order, merging, the exact Gaussian, and caps."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import accountants
from ledger.accountants import ACCOUNTANTS, Phase, gaussian
from ledger.accountants.phases import merged
from ledger.accountants.pld import composed as pld
from ledger.errors import AccountantError

DELTA = 1e-6
MIXED = (Phase(1.0, 0.01, 200), Phase(2.0, 0.05, 100), Phase(4.0, 1.0, 3), Phase(1.0, 0.01, 50))


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_order_of_phases_does_not_change_a_bit(accountant):
    values = set()
    for order in list(itertools.permutations(MIXED))[::7]:
        accountants.core.cached.cache_clear()
        values.add(accountants.epsilon_of_phases(order, DELTA, accountant))
    assert len(values) == 1


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_equal_phases_are_one_and_one_phase_is_the_plain_epsilon(accountant):
    parts = [Phase(1.0, 0.02, 30), Phase(1.0, 0.02, 70), Phase(3.0, 0.0, 500), Phase(0.5, 0.2, 0)]
    assert accountants.epsilon_of_phases(parts, DELTA, accountant) == accountants.epsilon(1.0, 0.02, 100, DELTA, accountant)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("steps", [1, 123])
def test_one_phase_has_the_figure_of_the_library_s_accountant(replace, steps):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    neighbours = dp_accounting.NeighboringRelation
    library = PLDAccountant(neighbours.REPLACE_ONE if replace else neighbours.ADD_OR_REMOVE_ONE)
    library.compose(dp_accounting.PoissonSampledDpEvent(0.03, dp_accounting.GaussianDpEvent(1.8)), steps)
    value = accountants.epsilon_of_phases([Phase(1.8, 0.03, steps)], DELTA, replace=replace)
    assert value == pld.epsilon_of_phases([Phase(1.8, 0.03, steps)], DELTA, replace=replace)
    assert value == pytest.approx(library.get_epsilon(DELTA), abs=4e-7)


@pytest.mark.parametrize(("replace", "factor"), [(False, 1.0), (True, 2.0)])
def test_phases_without_sampling_are_one_exact_gaussian(replace, factor):
    phases = [Phase(2.0, 1.0, 3), Phase(5.0, 1.0, 10)]
    mu = factor * math.sqrt(3 / 4 + 10 / 25)
    value = accountants.epsilon_of_phases(phases, DELTA, replace=replace)
    assert value == pytest.approx(gaussian.epsilon_of_mu(mu, DELTA), rel=1e-12)


def test_a_schedule_lies_between_those_of_its_least_and_largest_noise():
    phases = [Phase(1.0, 0.02, 100), Phase(1.5, 0.02, 100)]
    value = accountants.epsilon_of_phases(phases, DELTA)
    assert accountants.epsilon(1.5, 0.02, 200, DELTA) < value < accountants.epsilon(1.0, 0.02, 200, DELTA)
    assert value > accountants.epsilon(1.0, 0.02, 100, DELTA), "the second phase costs something"


def test_sampled_phases_beside_unsampled_ones_cost_more_than_either_and_less_than_both_in_full():
    sampled, full = Phase(1.0, 0.01, 500), Phase(4.0, 1.0, 4)
    value = accountants.epsilon_of_phases([sampled, full], DELTA)
    alone = [accountants.epsilon_of_phases([phase], DELTA) for phase in (sampled, full)]
    assert max(alone) < value
    # Basic composition at half the delta each.
    assert value <= sum(accountants.epsilon_of_phases([phase], DELTA / 2) for phase in (sampled, full))


@pytest.mark.slow
def test_a_split_composition_agrees_with_the_library_composing_by_itself():
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for phase in MIXED:
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(phase.sampling_rate, dp_accounting.GaussianDpEvent(phase.noise_multiplier))
            if phase.sampling_rate < 1
            else dp_accounting.GaussianDpEvent(phase.noise_multiplier),
            phase.steps,
        )
    assert accountants.epsilon_of_phases(MIXED, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), abs=1e-6)


def test_nothing_and_no_noise():
    assert accountants.epsilon_of_phases([], DELTA) == 0.0
    assert accountants.epsilon_of_phases([Phase(0.0, 0.1, 0), Phase(0.0, 0.0, 9)], DELTA) == 0.0
    assert accountants.epsilon_of_phases([Phase(9.0, 0.1, 5), Phase(0.0, 0.1, 1)], DELTA) == math.inf
    assert merged([Phase(1, 0.5, 0)]) == ()


@pytest.mark.parametrize("phases", [[(1.0, 0.1, 5)], [None], [Phase(1.0, 0.1, 1 << 39)] * 3])
def test_what_is_no_schedule_is_refused(phases):
    with pytest.raises(AccountantError):
        accountants.epsilon_of_phases(phases, DELTA)


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ((1.0, 1.5, 1), 1.0),
        ((1.0, -0.5, 1), 0.0),
        ((1.0, 0.1, (1 << 40) + 1), float(1 << 40)),
        ((1e13, 0.1, 1), 1e12),
        ((math.nan, 0.1, 1), None),
        ((10**400, 0.1, 1), 1e12),
        ((1.0, 10**400, 1), 1.0),
        ((1.0, 0.1, 1.5), None),
        (("1", 0.1, 1), None),
        ((-1.0, 0.1, 1), None),
    ],
)
def test_a_refused_phase_tells_the_nearest_that_is_none(arguments, nearest):
    with pytest.raises(AccountantError) as caught:
        Phase(*arguments)
    assert caught.value.nearest == nearest


@pytest.mark.parametrize(
    ("delta", "nearest"), [(1e-13, 1e-12), (0, 1e-12), (-1, 1e-12), (1.0, None), (math.nan, None), ("x", None), (True, None)]
)
def test_a_refused_delta_tells_the_smallest(delta, nearest):
    with pytest.raises(AccountantError) as caught:
        accountants.epsilon(1.0, 0.1, 10, delta)
    assert caught.value.code == "DELTA" and caught.value.nearest == nearest


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_cap_counts_the_dearest_steps_of_all_phases_together(accountant):
    phases = [Phase(8.0, 0.5, 400), Phase(2.0, 0.5, 4)]
    capped = accountants.epsilon_of_phases_capped(phases, 6, DELTA, accountant)
    assert capped == accountants.epsilon_occurrences(math.fsum([4 * 0.25, 2 / 64]), DELTA, accountant)
    assert capped < accountants.epsilon_of_phases(phases, DELTA, accountant)
    # A cap that cannot bind changes nothing.
    assert accountants.epsilon_of_phases_capped(phases, 10**6, DELTA, accountant) <= accountants.epsilon_of_phases(
        phases, DELTA, accountant
    )


@settings(max_examples=4, deadline=None)
@given(
    st.lists(
        st.builds(Phase, st.floats(0.6, 6.0), st.floats(0.001, 0.3) | st.just(1.0), st.integers(1, 60)), min_size=2, max_size=3
    ),
    st.randoms(),
)
@pytest.mark.slow
def test_order_and_splitting_change_nothing(phases, random):
    shuffled = [Phase(p.noise_multiplier, p.sampling_rate, n) for p in phases for n in (p.steps // 3, p.steps - p.steps // 3)]
    random.shuffle(shuffled)
    for accountant in ACCOUNTANTS:
        assert accountants.epsilon_of_phases(shuffled, DELTA, accountant) == accountants.epsilon_of_phases(
            phases, DELTA, accountant
        )
