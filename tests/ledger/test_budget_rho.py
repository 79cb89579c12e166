"""Caps and costs in rho, against the published figures and the definitions; and reports, which are no filter."""

import math
from fractions import Fraction

import mpmath
import pytest

from ledger.budget import reports
from ledger.budget.reports import advanced_composition, gaussian_plan
from ledger.budget.rho import NANO, bounded_range_nano, cap_nano, epsilon_of_rho, gaussian_nano, pure_nano
from ledger.errors import AccountantError

PUBLISHED_SIGMA = 4.8448
TABLE = {
    1: (6.517, 0.822, 0.751, 1.610),
    2: (10.223, 1.199, 1.098, 2.371),
    10: (32.36, 2.915, 2.688, 5.978),
    100: (219.8, 11.15, 10.39, 25.44),
    256: (516.7, 20.15, 18.90, 49.21),
}
"""Of k releases at that sigma and delta 1e-5: the published formula, zCDP, and exactly for sensitivity 1 and 2."""


@pytest.mark.parametrize("k", TABLE)
def test_compositions_are_those_of_the_table(k: int) -> None:
    published, zcdp, one, two = TABLE[k]
    rho = k / (2 * PUBLISHED_SIGMA**2)
    assert advanced_composition(1.0, 1e-5, k).epsilon == pytest.approx(published, rel=3e-4)
    assert epsilon_of_rho(rho, 1e-5) == pytest.approx(zcdp, rel=7e-4)
    assert gaussian_plan([(1 / PUBLISHED_SIGMA, k)], 1e-5).epsilon == pytest.approx(one, rel=7e-4)
    assert gaussian_plan([(2 / PUBLISHED_SIGMA, k)], 1e-5).epsilon == pytest.approx(two, rel=7e-4)
    assert advanced_composition(1.0, 1e-5, k).delta == pytest.approx((k + 1) * 1e-5)


def test_a_report_says_that_it_is_no_filter_and_by_what_it_is() -> None:
    for report, by in ((advanced_composition(0.1, 1e-6, 3), reports.ADVANCED), (gaussian_plan([(0.1, 3)], 1e-6), reports.PLD)):
        assert report.by == by and report.releases == 3 and report.is_filter is False


def test_the_epsilon_of_rho_is_the_least_of_the_published_bound_and_never_below_it() -> None:
    """Against the definition with 50 digits; an order on a fine grid gives no smaller epsilon."""
    with mpmath.workdps(50):
        for rho, delta in ((1e-9, 1e-5), (0.001, 1e-6), (0.0213, 1e-5), (0.5, 1e-3), (3.0, 1e-9), (100.0, 1e-6), (1e6, 1e-5)):
            exact = [
                mpmath.mpf(a) * rho + mpmath.log(1 / (mpmath.mpf(a) * delta)) / (a - 1) + mpmath.log(1 - 1 / mpmath.mpf(a))
                for above in range(-180, 260)
                for a in [1 + mpmath.mpf(10) ** (mpmath.mpf(above) / 40)]
            ]
            found = epsilon_of_rho(rho, delta)
            assert max(0, min(exact)) * (1 - mpmath.mpf("1e-3")) <= found <= max(0, min(exact)) + 2e-12 * (1 + found)
    assert epsilon_of_rho(500 * 0.66**2 / (2 * 49 * 1.44), 1e-6) == pytest.approx(10.02, rel=5e-4)
    assert epsilon_of_rho(0.0, 1e-5) == 0.0


def test_the_bound_holds_for_gaussian_releases_whose_epsilon_is_known_exactly() -> None:
    """A sum that is at the cap is within epsilon and delta by the exact curve, which zCDP cannot beat."""
    for epsilon_micro, delta_pico in ((100_000, 10**7), (1_000_000, 10**7), (8_000_000, 10**6), (50_000_000, 10**9)):
        rho = cap_nano(epsilon_micro, delta_pico) / NANO
        assert gaussian_plan([(math.sqrt(2 * rho), 1)], delta_pico / 1e12).epsilon <= epsilon_micro / 1e6


def test_a_cap_is_the_most_rho_that_fits_and_not_one_more() -> None:
    for epsilon_micro, delta_pico in ((1_000_000, 10**7), (10_000_000, 10**6), (123, 10**9), (30_000_000, 1)):
        nano = cap_nano(epsilon_micro, delta_pico)
        assert epsilon_of_rho(nano / NANO, delta_pico / 1e12) <= epsilon_micro / 1e6
        assert epsilon_of_rho((nano + 1) / NANO, delta_pico / 1e12) > epsilon_micro / 1e6


def test_costs_are_rounded_up() -> None:
    exact = Fraction(10**9) / (2 * Fraction(PUBLISHED_SIGMA) ** 2)
    assert gaussian_nano(1.0, PUBLISHED_SIGMA) == math.ceil(exact) == 21_301_898
    assert gaussian_nano(2.0, PUBLISHED_SIGMA) >= 4 * (21_301_898 - 1)
    assert gaussian_nano(1.0, 1e9) == 1 and pure_nano(1e-9) == 1 and bounded_range_nano(1e-9) == 1
    assert pure_nano(1.0) == NANO // 2 and bounded_range_nano(2.0) == NANO // 2
    assert bounded_range_nano(2 * 0.66 / (7 * 1.2)) == math.ceil(Fraction(2 * 0.66 / (7 * 1.2)) ** 2 / 8 * NANO)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_nothing_is_released_for_nothing(sigma: float) -> None:
    with pytest.raises(AccountantError):
        gaussian_nano(1.0, sigma)


def test_what_is_no_cap_no_delta_and_no_plan_is_refused() -> None:
    for call in (
        lambda: cap_nano(1, 1),
        lambda: epsilon_of_rho(-1.0, 1e-5),
        lambda: epsilon_of_rho(1.0, 1.0),
        lambda: epsilon_of_rho(math.nan, 1e-5),
        lambda: advanced_composition(1.0, 1e-5, 0),
        lambda: gaussian_plan([], 1e-5),
        lambda: gaussian_plan([(0.0, 1)], 1e-5),
    ):
        with pytest.raises(AccountantError):
            call()
