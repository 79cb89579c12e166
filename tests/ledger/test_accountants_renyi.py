"""Renyi and moments accounting: the kernel against opacus, mpmath and dp-accounting; golden values; traps of the libraries."""

import itertools
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import accountants
from ledger.accountants import Phase, renyi
from ledger.errors import AccountantError


def exact_log_moment(z: float, q: float, alpha: float) -> float:
    """log A_alpha by mpmath's quadrature, 40 digits."""
    import mpmath

    with mpmath.workdps(40):
        z, q, alpha = mpmath.mpf(z), mpmath.mpf(q), mpmath.mpf(alpha)

        def integrand(x):
            ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))
            return mpmath.npdf(x, 0, z) * ratio**alpha

        cuts = [-30 * z, -6 * z, 0, alpha / 2, alpha, alpha + 6 * z, alpha + 30 * z]
        return float(mpmath.log(mpmath.quad(integrand, cuts)))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.5, 7.3, 10.9])
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.6, 0.3), (4.0, 0.001), (0.3, 0.9), (20.0, 1e-5), (0.2, 1e-30)])
def test_fractional_orders_are_exact(z, q, alpha):
    found = renyi._fractional(z, q, [alpha])[0]
    expected = exact_log_moment(z, q, alpha)
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-15)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("alpha", [2, 3, 10, 40, 512])
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.5, 0.5), (8.0, 1e-4)])
def test_integer_orders_are_exact_and_both_kernels_meet_there(z, q, alpha):
    import mpmath

    with mpmath.workdps(60):
        terms = (
            mpmath.binomial(alpha, i)
            * mpmath.mpf(q) ** i
            * (1 - mpmath.mpf(q)) ** (alpha - i)
            * mpmath.exp(mpmath.mpf(i * i - i) / (2 * mpmath.mpf(z) ** 2))
            for i in range(alpha + 1)
        )
        expected = float(mpmath.log(mpmath.fsum(terms)))
    assert renyi.log_moment(z, q, alpha) == pytest.approx(expected, rel=1e-11)
    if alpha <= 10:
        assert renyi._fractional(z, q, [float(alpha)])[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.6, 0.1), (4.0, 0.001), (2.0, 0.5), (0.8, 0.99), (10.0, 0.2)])
def test_every_order_agrees_with_the_kernel_of_opacus(z, q):
    analysis = pytest.importorskip("opacus.accountants.analysis.rdp")
    theirs = analysis.compute_rdp(q=q, noise_multiplier=z, steps=1, orders=list(renyi.ORDERS))
    for order, ours, other in zip(renyi.ORDERS, renyi.curve((Phase(z, q, 1),)), theirs, strict=True):
        # Their sum starts at 1, so it is good to about 1e-15 before it is divided by order - 1.
        assert ours == pytest.approx(float(other), rel=1e-8, abs=2e-13 / (order - 1)), order


@pytest.mark.parametrize(
    ("z", "q", "steps", "rdp", "moments"),
    [
        (1.0, 0.01, 1000, 2.101, 2.538),
        (2.0, 0.01, 10000, 2.353, 2.735),
        (0.6, 0.1, 1000, 84.46, 152.0),
        (1.0, 1.0, 1, 4.729, 5.303),
        (4.0, 0.1, 1000, 3.736, 4.245),
        (4.0, 0.001, 10000, None, 0.3704),
    ],
)
def test_golden_values(z, q, steps, rdp, moments):
    found = accountants.epsilon(z, q, steps, 1e-5, "rdp")
    if rdp is not None:
        assert found == pytest.approx(rdp, abs=6e-4 if rdp < 10 else 6e-3)
    assert accountants.epsilon(z, q, steps, 1e-5, "moments") == pytest.approx(moments, abs=6e-4 if moments < 10 else 6e-2)


def test_orders_beyond_63_matter_where_little_is_spent():
    """Opacus stops at 63 by default, and dp-accounting at 1024: at (4, 0.001, 10000) they say 0.1233 and 0.0862."""
    found = accountants.epsilon(4.0, 0.001, 10_000, 1e-5, "rdp")
    phase = (Phase(4.0, 0.001, 10_000),)
    at_63 = renyi.of_order(renyi.curve(phase)[renyi.ORDERS.index(63.0)], 63.0, 1e-5)
    assert 0.0776 < found < 0.09 < at_63
    assert at_63 == pytest.approx(0.1233, abs=6e-4)


def optimum(spent: float, order: float, delta: float) -> float:
    """The least epsilon that (order, spent)-RDP implies at delta: of all pairs of laws on two points, the worst.

    The joint range of two f-divergences is that of two points (Harremoes and Vajda 2011), so epsilon holds if
    every p, q with p - e^epsilon q = delta has a larger Renyi divergence; at a fixed epsilon it is convex in p.
    """
    import mpmath

    with mpmath.workdps(40):
        order, delta = mpmath.mpf(order), mpmath.mpf(delta)
        allowed = mpmath.exp((order - 1) * mpmath.mpf(spent))

        def least(g):
            def moment(p):
                q = (p - delta) / g
                return p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)

            low, high = delta, mpmath.mpf(1)
            for _ in range(100):
                left, right = low + (high - low) * 0.382, low + (high - low) * 0.618
                low, high = (low, right) if moment(left) < moment(right) else (left, high)
            return moment((low + high) / 2)

        if least(mpmath.mpf(1)) >= allowed:
            return 0.0
        low, high = mpmath.mpf(0), mpmath.mpf(1)
        while least(mpmath.exp(high)) < allowed:
            low, high = high, 2 * high
        for _ in range(45):
            middle = (low + high) / 2
            low, high = (low, middle) if least(mpmath.exp(middle)) >= allowed else (middle, high)
        return float(low)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("order", [1.1, 2.0, 12.0, 63.0])
@pytest.mark.parametrize(("spent", "delta"), [(1e-9, 1e-9), (1e-3, 1e-5), (0.3, 1e-6), (1e-9, 1e-3)])
def test_the_conversion_is_safe_and_all_but_optimal(order, spent, delta):
    found, least = renyi.least_of_order(spent, order, delta), optimum(spent, order, delta)
    assert least * (1 - 1e-11) - 1e-14 <= found <= least * (1 + 1e-11) + order * delta
    assert found <= max(0.0, renyi.of_order(spent, order, delta))
    if order == 2.0:
        assert found == pytest.approx(least, rel=1e-9, abs=1e-15)


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-9, 30.0), st.sampled_from([1e-12, 1e-9, 1e-5, 1e-2, 0.3, 0.9]))
def test_no_gaussian_costs_more_than_either_accountant_says(mu, delta):
    exact = accountants.epsilon_occurrences(mu * mu, delta)
    rdp, moments = (accountants.epsilon_occurrences(mu * mu, delta, name) for name in ("rdp", "moments"))
    assert exact * (1 - 1e-9) - 1e-15 <= rdp <= moments * (1 + 1e-12) + 1e-15


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-11])
def test_little_spent_is_little_and_nothing_where_the_total_variation_is_below_delta(delta):
    """Balle's conversion says 0.013 at delta 1e-5 whatever was spent, and Abadi's log(1/delta) / 32."""
    for name in ("rdp", "moments"):
        assert accountants.epsilon_occurrences((1.99 * delta) ** 2, delta, name) == 0.0
        assert 0.0 < accountants.epsilon_occurrences((2.2 * delta) ** 2, delta, name) < delta
    values = [accountants.epsilon_occurrences((x * delta) ** 2, delta, "rdp") for x in (2.2, 4, 10, 30, 100, 1000)]
    assert values == sorted(values)
    truth = accountants.epsilon_occurrences((100 * delta) ** 2, delta)
    assert truth <= values[4] <= 15 * truth
    assert renyi.least_of_order(5e-324, 1.1, delta) < 1e-280 and renyi.least_of_order(math.inf, 2.0, delta) == math.inf


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-14, 5.0), st.sampled_from(renyi.ORDERS), st.floats(1e-12, 0.9))
def test_more_spent_never_converts_to_less(spent, order, delta):
    assert renyi.least_of_order(spent, order, delta) <= renyi.least_of_order(spent * 1.01, order, delta) + 1e-13


def test_integer_orders_agree_with_dp_accounting():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    orders = [2, 5, 16, 63, 256]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.3)), 40)
    curve = renyi.curve((Phase(1.3, 0.05, 40),))
    for order, theirs in zip(orders, accountant._rdp, strict=True):
        assert curve[renyi.ORDERS.index(float(order))] == pytest.approx(theirs, rel=1e-9)


def test_epsilon_is_never_negative():
    """The conversion alone gives -0.693 at delta = 0.5."""
    assert accountants.epsilon(1000.0, 0.001, 1, 0.5, "rdp") == 0.0
    assert renyi.of_order(0.0, 2.0, 0.5) < 0.0


def test_no_order_overflows():
    """Opacus's binomial coefficients are infinite at alpha = 2048, and its logarithm of A is NaN."""
    assert math.isfinite(renyi.log_moment(1.0, 0.01, 2048))
    analysis = pytest.importorskip("opacus.accountants.analysis.rdp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert math.isnan(analysis._compute_rdp(0.01, 1.0, 2048))


def test_tiny_rates_with_little_noise_keep_their_second_term():
    """q^2 exp(1/z^2) is large where q alone is far below rounding."""
    found = renyi._fractional(0.1, 1e-14, [2.5])[0]
    assert found == pytest.approx(exact_log_moment(0.1, 1e-14, 2.5), rel=1e-6)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("z", [0.02, 0.1, 1.0, 1e6])
@pytest.mark.parametrize("q", [5e-324, 1e-300, 1e-30, 1e-9, 1 - 1e-16])
def test_no_figure_is_nan_at_the_ends_of_the_parameters(z, q, recwarn):
    curve = renyi.curve((Phase(z, q, 1),))
    assert all(0.0 <= value < math.inf for value in curve) and not recwarn.list


def test_small_rates_lose_no_digits():
    """log A = log(1 + tiny) is about q^2: 1e-16 of it would be lost in a sum that starts at 1."""
    for order in (2, 16):
        assert renyi.log_moment(1.0, 1e-12, order) == pytest.approx(order * (order - 1) / 2 * 1e-24 * math.expm1(1.0), rel=1e-9)


def test_gaussian_without_sampling():
    curve = renyi.curve((Phase(2.0, 1.0, 8),))
    assert curve == pytest.approx([order * 8 / 8 for order in renyi.ORDERS])
    assert accountants.epsilon_occurrences(2.0, 1e-5, "rdp") == pytest.approx(accountants.epsilon(2.0, 1.0, 8, 1e-5, "rdp"))
    assert accountants.epsilon_occurrences(2.0, 1e-5, "moments") == pytest.approx(
        accountants.epsilon(2.0, 1.0, 8, 1e-5, "moments")
    )


def test_moments_says_where_its_range_decides():
    wide = accountants.caveat((Phase(20.0, 0.01, 100),), 1e-9, "moments")
    assert "lambda = 32" in wide
    assert "lambda = 1" in accountants.caveat((Phase(0.1, 0.5, 1000),), 1e-6, "moments")
    assert accountants.caveat((Phase(1.0, 0.01, 1000),), 1e-5, "moments") is None
    assert accountants.caveat((Phase(20.0, 0.01, 100),), 1e-9, "pld") is None
    assert accountants.caveat((Phase(1000.0, 0.001, 10),), 1e-6, "moments") is None, "bounded by chi^2"
    assert accountants.caveat((), 1e-6, "moments") is None


@settings(max_examples=60, deadline=None)
@given(st.floats(0.02, 50), st.floats(1e-9, 1.0), st.integers(1, 10**6), st.floats(1e-12, 0.1))
@pytest.mark.slow
def test_moments_never_claims_less_than_renyi(z, q, steps, delta):
    rdp = accountants.epsilon(z, q, steps, delta, "rdp")
    assert 0.0 <= rdp <= accountants.epsilon(z, q, steps, delta, "moments") * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.02, 50), st.floats(1e-9, 0.5), st.integers(1, 10**5))
@pytest.mark.slow
def test_the_curve_is_monotone(z, q, steps):
    base = renyi.curve((Phase(z, q, steps),))
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(base)), "in the order"
    for grown in (Phase(z, q * 1.5, steps), Phase(z, q, steps + 1)):
        assert all(a <= b * (1 + 1e-9) for a, b in zip(base, renyi.curve((grown,)), strict=True))
    if z > 0.03:
        assert all(a <= b * (1 + 1e-9) for a, b in zip(base, renyi.curve((Phase(z / 1.1, q, steps),)), strict=True))


def test_the_meaning_of_relations_differs_between_the_library_s_accountants():
    """Whoever asks dp-accounting for content replacement gets it from loss distributions only; ours comes from there."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    one = dp_accounting.NeighboringRelation.REPLACE_ONE
    event = dp_accounting.GaussianDpEvent(1.0)
    assert RdpAccountant(neighboring_relation=one).compose(event).get_epsilon(1e-5) == pytest.approx(4.7285, abs=1e-3)
    assert PLDAccountant(one).compose(event).get_epsilon(1e-5) == pytest.approx(9.9973, abs=1e-3)
    for accountant in accountants.ACCOUNTANTS:
        assert accountants.epsilon(1.0, 1.0, 1, 1e-5, accountant, replace=True) == pytest.approx(9.9973, abs=1e-3)


@pytest.mark.parametrize("name", ["PLD", "", "gdp", None, 3])
def test_unknown_accountants_are_refused_by_name(name):
    with pytest.raises(AccountantError, match="pld, rdp, moments, prv"):
        accountants.epsilon(1, 0.1, 1, 1e-5, name)
