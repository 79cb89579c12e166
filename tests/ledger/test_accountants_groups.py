"""Several contributions of one person, and examples drawn one by one."""

import math

import pytest

from ledger import accountants
from ledger.accountants import Phase, gaussian, mixtures
from ledger.errors import AccountantError

RUN = (4.0, 0.01, 1000)


@pytest.mark.parametrize(("examples", "expected"), [(1, 0.272), (4, 1.24), (16, 5.98)])
def test_golden_values_of_examples_drawn_one_by_one(examples, expected):
    found = accountants.epsilon_group(*RUN, examples, 1e-5)
    assert found == pytest.approx(expected, abs=0.006 if expected > 1 else 6e-4)


def test_a_group_of_one_is_a_contribution():
    for run in ((1.0, 0.02, 100), (2.0, 1.0, 7)):
        assert accountants.epsilon_group(*run, 1, 1e-6) == pytest.approx(accountants.epsilon(*run, 1e-6), abs=1e-6)


def test_a_group_without_sampling_adds_up_mu():
    assert accountants.epsilon_group(2.0, 1.0, 9, 3, 1e-6) == gaussian.epsilon_of_mu(3 * 3 / 2.0, 1e-6)
    unequal = [Phase(2.0, 1.0, 4), Phase(5.0, 1.0, 9)]
    assert accountants.epsilon_of_principal(unequal, 1e-6) == pytest.approx(gaussian.epsilon_of_mu(1.0 + 0.6, 1e-6))


def exact_two(z: float, q: float, delta: float) -> float:
    """One step, two alike contributions: the hockey-stick of N(0) against the mixture, by bisection on a fine integral."""
    import numpy as np

    x = np.linspace(-12 * z, 12 * z + 2, 400_001)
    density = [np.exp(-0.5 * ((x - k) / z) ** 2) / (z * math.sqrt(2 * math.pi)) for k in (0, 1, 2)]
    null, mixed = density[0], (1 - q) ** 2 * density[0] + 2 * q * (1 - q) * density[1] + q * q * density[2]

    def loss(epsilon: float) -> float:
        ways = ((mixed, null), (null, mixed))
        return max(float(np.trapezoid(np.maximum(0.0, p - math.exp(epsilon) * r), x)) for p, r in ways)

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("z", "q"), [pytest.param(1.5, 0.1, marks=pytest.mark.slow), (3.0, 0.01)])
def test_a_pair_in_one_step_agrees_with_the_integral(z, q):
    found, expected = accountants.epsilon_group(z, q, 1, 2, 1e-4), exact_two(z, q, 1e-4)
    assert expected - 1e-5 <= found <= expected + 1e-3


def test_unequal_members_lie_between_groups_of_the_extremes():
    mild, strict = Phase(4.0, 0.01, 300), Phase(2.0, 0.02, 300)
    value = accountants.epsilon_of_principal([mild, strict], 1e-6)
    assert accountants.epsilon_group(4.0, 0.01, 300, 2, 1e-6) < value < accountants.epsilon_group(2.0, 0.02, 300, 2, 1e-6)
    assert value == accountants.epsilon_of_principal([strict, mild], 1e-6)
    shorter = accountants.epsilon_of_principal([mild, Phase(2.0, 0.02, 10)], 1e-6)
    assert accountants.epsilon(4.0, 0.01, 300, 1e-6) < shorter <= value


def test_sums_of_shifts_are_a_distribution_and_rounded_up():
    shifts = mixtures._sums([(0.25, 0.1)] * 3)
    assert [value for value, _ in shifts] == [0.0, 0.25, 0.5, 0.75]
    assert [chance for _, chance in shifts] == pytest.approx([0.729, 0.243, 0.027, 0.001])
    for draws in ([(0.25, 0.1), (1 / 3, 0.2)], [(1.0 / (1 + k / 7), 0.05) for k in range(40)]):
        shifts = mixtures._sums(draws)
        assert math.fsum(chance for _, chance in shifts) == pytest.approx(1.0)
        mean = math.fsum(value * chance for value, chance in shifts)
        exact = math.fsum(shift * q for shift, q in draws)
        assert exact <= mean * (1 + 1e-12) and mean <= exact * 1.2, "up, and not by much"
        assert shifts[-1][0] >= math.fsum(shift for shift, _ in draws) * (1 - 1e-12)


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize(
    "shifts",
    [
        ((0.0, 0.9), (0.25, 0.1)),
        ((0.0, 2.0**-30), (4.0, 0.5), (40.0, 0.5 - 2.0**-30)),
        ((0.001, 0.3), (2.0, 0.7 - 1e-6), (9.0, 1e-6)),
        mixtures._sums([(0.25, 0.01)] * 16),
        mixtures._sums([(1.0 / (1 + k / 7), 0.05) for k in range(40)]),
    ],
)
def test_losses_are_found_where_the_library_takes_them(shifts, removed):
    import numpy as np
    from dp_accounting.pld import privacy_loss_mechanism

    kinds = privacy_loss_mechanism.AdjacencyType
    mechanism = privacy_loss_mechanism.MixtureGaussianPrivacyLoss(
        1.0,
        [value for value, _ in shifts],
        [chance for _, chance in shifts],
        adjacency_type=kinds.REMOVE if removed else kinds.ADD,
    )
    bounds = mechanism.connect_dots_bounds()
    losses = np.linspace(bounds.epsilon_lower, bounds.epsilon_upper, 60)[1:-1]
    found = mixtures._taken_at(losses, shifts, removed=removed)
    assert np.all(np.diff(found) <= 0.0)
    again = [mechanism.privacy_loss(x) for x in found if math.isfinite(x)]
    assert len(again) > 40 and again == pytest.approx(list(losses[np.isfinite(found)]), rel=1e-9, abs=1e-9)


@pytest.mark.slow
def test_the_figures_are_the_library_s_own():
    import dp_accounting
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_event.MixtureOfGaussiansDpEvent(8.0, [0.0, 1.0, 2.0], [0.81, 0.18, 0.01]), 60)
    assert accountants.epsilon_group(8.0, 0.1, 60, 2, 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-6)


@pytest.mark.parametrize("size", [0, -1, 10_001, 1.0, True, None])
def test_what_is_no_group_is_refused(size):
    with pytest.raises(AccountantError, match="GROUP"):
        accountants.epsilon_group(*RUN, size, 1e-6)


def test_groups_of_nothing_and_without_noise():
    assert accountants.epsilon_of_principal([], 1e-6) == 0.0
    assert accountants.epsilon_group(1.0, 0.0, 10, 5, 1e-6) == 0.0
    assert accountants.epsilon_group(0.0, 0.1, 10, 5, 1e-6) == math.inf


def test_a_group_costs_no_more_than_group_privacy_and_no_less_than_a_member():
    one, four = accountants.epsilon(*RUN, 1e-5), accountants.epsilon_group(*RUN, 4, 1e-5)
    assert one < four < accountants.epsilon_group(*RUN, 5, 1e-5)
    assert four <= gaussian.epsilon_of_mu(4 * math.sqrt(1000) / 4.0, 1e-5)
