"""Accounting of Laplace, discrete Gaussian and Skellam noise: closed forms, other implementations, and the laws themselves."""

import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from attest.policy import MechanismRule
from ledger import accountants
from ledger.accountants import Phase, Sampled, integers, laplace
from ledger.errors import AccountantError, LeafRefused
from ledger.leaves import Header
from ledger.leaves.header import AccountantInfo
from ledger.leaves.numerics import lattice_bits
from tests.worlds.ledgers import SIGNER, START, header_spec, signed_policy

BESIDE = {"discrete_gaussian": "rdp", "laplace": "pld", "skellam": "rdp"}
DELTA = 1e-5


def spent(family: str, *phases: tuple[float, float, int], delta: float = DELTA, **options: bool) -> float:
    return accountants.epsilon_of_phases([Phase(*p) for p in phases], delta, BESIDE[family], family=family, **options)


# Laplace: Theorem 9.


def profile(b: float, e: float) -> float:
    """Hockey-stick divergence at e^e of Laplace(b, 1) from Laplace(0, 1)."""
    if e >= b:
        return 0.0
    return 1.0 - math.exp((e - b) / 2) if e >= -b else 1.0 - math.exp(e)


def split(a: float, b: float, e: float) -> float:
    """The same of two coordinates, shifted by a <= b, in closed form."""
    a, b = min(a, b), max(a, b)
    c = a + b
    if e < 0:
        return 1.0 - math.exp(e) + math.exp(e) * split(a, b, -e)
    if e >= c:
        return 0.0
    return 1.0 - ((1 + a / 2) if e <= b - a else (1 + (c - e) / 4)) * math.exp((e - c) / 2)


SHIFTS = [(0.1, 0.1), (0.3, 1.1), (1.0, 1.0), (0.01, 3.0), (2.0, 2.5)]
LEVELS = [-4.0, -1.3, -0.2, 0.0, 0.1, 0.5, 0.9, 1.6, 2.4, 4.0]


@pytest.mark.parametrize("shifts", SHIFTS)
def test_the_closed_form_of_two_coordinates_is_the_integral(shifts: tuple[float, float]) -> None:
    """Over the plane, of max(q - e^e p, 0): a grid of the losses of both coordinates under q, from the densities themselves."""
    integrate = pytest.importorskip("scipy.integrate")
    a, b = shifts
    for e in LEVELS:

        def rest(x: float, e: float = e) -> float:
            own = abs(x) - abs(x - a)  # log q/p of the first coordinate at x
            return 0.5 * math.exp(-abs(x - a)) * profile(b, e - own)

        kinks = sorted({0.0, a, *[x for x in ((e + a - b) / 2, (e + a + b) / 2) if 0 < x < a]})
        ends = [-60.0, *kinks, 60.0]
        value = sum(integrate.quad(rest, low, high, epsabs=1e-13)[0] for low, high in itertools.pairwise(ends))
        assert value == pytest.approx(split(a, b, e), abs=1e-10)


@pytest.mark.parametrize("shifts", SHIFTS)
def test_a_shift_of_one_coordinate_dominates_a_split_one(shifts: tuple[float, float]) -> None:
    a, b = shifts
    for e in [*LEVELS, *np.linspace(-1.1 * (a + b), 1.1 * (a + b), 201)]:
        assert split(a, b, float(e)) <= profile(a + b, float(e)) + 1e-15
        moved = split(max(0.0, min(a, b) - 0.05), max(a, b) + min(0.05, a, b), float(e))
        assert moved >= split(a, b, float(e)) - 1e-15, "moving shift to the larger one grows the divergence"


def test_three_coordinates_and_sampling_are_dominated_too() -> None:
    """One more coordinate by quadrature; with (1 - q) P + q Q both ways, by the hockey-stick divergence of the mixture."""
    integrate = pytest.importorskip("scipy.integrate")
    a, b, c = 0.4, 0.7, 1.3

    def three(e: float) -> float:
        def between(x: float) -> float:
            return 0.25 * math.exp((x - a) / 2) * split(b, c, e - x)

        inner = integrate.quad(between, -a, a, epsabs=1e-12, limit=200)[0]
        return 0.5 * split(b, c, e - a) + 0.5 * math.exp(-a) * split(b, c, e + a) + inner

    for e in LEVELS:
        whole = profile(a + b + c, e)
        assert three(e) <= whole + 1e-10
        for q in (0.01, 0.3):
            gamma = math.exp(e)
            if gamma > 1 - q:  # max(q Q + (1 - q) P - gamma P, 0) = q max(Q - (gamma - 1 + q) / q P, 0)
                inside = math.log((gamma - 1 + q) / q)
                assert q * three(inside) <= q * profile(a + b + c, inside) + 1e-10
            if gamma < 1 / (1 - q):  # max(P - gamma (q Q + (1 - q) P), 0) = (1 - gamma (1 - q)) max(P - g Q, 0), P and Q alike
                inside = math.log(gamma * q / (1 - gamma * (1 - q)))
                assert three(inside) <= profile(a + b + c, inside) + 1e-10


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0])
def test_one_laplace_release_is_the_closed_form(z: float) -> None:
    exact = max(0.0, 1 / z + 2 * math.log(1 - DELTA))
    assert spent("laplace", (z, 1.0, 1)) == pytest.approx(exact, abs=2e-4) and spent("laplace", (z, 1.0, 1)) >= exact - 1e-9
    double = max(0.0, 2 / z + 2 * math.log(1 - DELTA))
    assert spent("laplace", (z, 1.0, 1), replace=True) == pytest.approx(double, abs=2e-4)
    assert spent("laplace", (z, 0.01, 1), replace=True) == spent("laplace", (z, 1.0, 1), replace=True)


@pytest.mark.parametrize("q", [0.01, 0.5])
@pytest.mark.parametrize("z", [0.5, 2.0])
def test_one_sampled_laplace_release_is_the_closed_form(z: float, q: float) -> None:
    """Both directions: delta of the mixture at the epsilon found is at most delta, and a little less epsilon is too little."""

    def delta_of(e: float) -> float:
        gamma = math.exp(e)
        add = q * profile(1 / z, math.log((gamma - 1 + q) / q))
        left = 1 - gamma * (1 - q)
        remove = left * profile(1 / z, math.log(gamma * q / left)) if left > 0 else 0.0
        return max(add, remove)

    found = spent("laplace", (z, q, 1))
    assert delta_of(found) <= DELTA * (1 + 1e-9)
    assert delta_of(found - 3e-4) > DELTA


def test_laplace_composes_below_pure_composition_and_sampling_amplifies_it() -> None:
    full, sampled = spent("laplace", (2.0, 1.0, 100)), spent("laplace", (2.0, 0.05, 100))
    assert sampled < full < 50.0
    assert spent("laplace", (2.0, 1.0, 3)) <= 1.5
    tiny = spent("laplace", (0.01, 1.0, 1))
    assert 99.0 < tiny <= 100.0


# Discrete Gaussian: Theorem 10.


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.5, 5.0])
def test_the_discrete_gaussian_is_the_zcdp_of_the_library(rho: float) -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    z, steps = 3.0, max(1, round(rho * 18))
    true = steps / (2 * z * z)
    orders = [order for order in integers.REAL_ORDERS if order > 1.01]
    same, default = RdpAccountant(orders), RdpAccountant()
    for accountant in (same, default):
        accountant.compose(dp_accounting.ZCDpEvent(rho=true))
    found = spent("discrete_gaussian", (z, 0.01, steps))
    assert found == pytest.approx(same.get_epsilon(DELTA), rel=1e-12)
    assert found <= default.get_epsilon(DELTA) * (1 + 1e-3) and found >= 0.97 * default.get_epsilon(DELTA)


def test_golden_values_of_the_discrete_gaussian() -> None:
    """rho = 1/2: the minimum over all orders of a/2 + log(1 - 1/a) - log(delta a)/(a - 1), by a fine search here."""
    best = min(a / 2 + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1) for a in np.linspace(1.01, 60, 400_000))
    found = spent("discrete_gaussian", (1.0, 1.0, 1))
    assert best - 1e-9 <= found <= best + 2e-3
    assert found == pytest.approx(4.7285, abs=2e-3)  # what the Renyi accountant gives for the Gaussian at z = 1


@pytest.mark.parametrize(("sigma", "shift"), [(0.5, 1), (1.0, 1), (2.0, 3), (4.0, 2)])
def test_the_discrete_gaussian_itself_is_within_its_zcdp(sigma: float, shift: int) -> None:
    """Equality at whole multiples of the shift, less in between: and the hockey-stick divergence is within what follows."""
    k = np.arange(-int(60 * sigma) - 60, int(60 * sigma) + 61)
    whole = math.log(float(np.exp(-k * k / (2 * sigma**2)).sum()))
    log_p, log_q = -k * k / (2 * sigma**2) - whole, -((k - shift) ** 2) / (2 * sigma**2) - whole
    loss = (shift / sigma) ** 2
    for order in (1.1, 2.0, 3.0, 8.0):
        terms = order * log_p + (1 - order) * log_q
        true = (terms.max() + math.log(float(np.exp(terms - terms.max()).sum()))) / (order - 1)
        bound = integers.discrete_gaussian_rdp(order, loss)
        assert 0.9 * bound <= true <= bound + 1e-9
    epsilon = accountants.epsilon_occurrences(loss, DELTA, "rdp", family="discrete_gaussian")
    assert float(np.maximum(np.exp(log_p) - np.exp(epsilon + log_q), 0).sum()) <= DELTA


# Skellam: Theorem 11.


def agarwal(order: int, v: float, d1: float, d2: float) -> float:
    return order * d2**2 / (2 * v) + min(((2 * order - 1) * d2**2 + 6 * d1) / (4 * v**2), 3 * d1 / (2 * v))


@pytest.mark.parametrize(("v", "shift"), [(1.0, 1), (4.0, 1), (4.0, 2), (16.0, 5), (64.0, 8)])
def test_the_skellam_law_itself_is_within_its_renyi_bound(v: float, shift: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    k = np.arange(-60 - int(14 * v), 61 + int(14 * v))
    log_p, log_q = stats.skellam.logpmf(k, v / 2, v / 2), stats.skellam.logpmf(k - shift, v / 2, v / 2)
    kept = np.isfinite(log_p) & np.isfinite(log_q)
    for order in (2, 3, 5, 8):
        terms = order * log_p[kept] + (1 - order) * log_q[kept]
        top = terms.max()
        true = (top + math.log(float(np.exp(terms - top).sum()))) / (order - 1)
        assert true <= agarwal(order, v, shift, shift) + 1e-9
        assert true >= 0.3 * order * shift**2 / (2 * v), "the numeric divergence must be one"


@pytest.mark.parametrize("z", [0.02, 1.0, 300.0])
def test_the_bound_in_one_over_z_squared_is_above_the_paper_s(z: float) -> None:
    """D2 = 2^16 / z, and D1 anything that integers of that norm can have."""
    v = float(integers.SKELLAM_VARIANCE)
    d2 = math.sqrt(v) / z
    for order in (2, 17, 300):
        for coordinates in (1, 10**3, 10**9):
            d1 = min(math.sqrt(coordinates) * d2, d2**2)
            assert agarwal(order, v, d1, d2) <= integers.skellam_rdp(order, 1 / z**2) * (1 + 1e-12)
        assert integers.skellam_rdp(order, 1 / z**2) == pytest.approx(order / (2 * z**2), rel=1e-8)


def test_skellam_costs_a_little_more_than_the_discrete_gaussian() -> None:
    for phases in ([(1.0, 1.0, 1)], [(4.0, 0.1, 100), (2.0, 0.1, 3)], [(50.0, 1.0, 10)]):
        gaussian, skellam = spent("discrete_gaussian", *phases), spent("skellam", *phases)
        assert gaussian * (1 - 1e-3) <= skellam <= 1.06 * gaussian


def test_the_lattice_that_is_accounted_for_is_the_one_that_is_drawn_on() -> None:
    pytest.importorskip("torch")
    from dptrain.noise import MECHANISMS
    from dptrain.noise.families import Skellam

    assert 1 << 2 * Skellam().lattice == integers.SKELLAM_VARIANCE
    drawn = {lattice_bits("certified", "skellam", d, z) for d in (10, 10**8, 10**9) for z in (1e-3, 1.0, 1e3)}
    assert drawn == {Skellam().lattice}
    assert set(MECHANISMS) == set(accountants.TABLE)


# All of them.


@pytest.mark.parametrize("family", BESIDE)
def test_schedules_behave(family: str) -> None:
    a, b = (2.0, 0.1, 30), (1.5, 0.2, 7)
    both = spent(family, a, b)
    assert both == pytest.approx(spent(family, b, a), rel=1e-12)
    assert both > max(spent(family, a), spent(family, b))
    assert spent(family, a, (2.0, 0.1, 5)) == pytest.approx(spent(family, (2.0, 0.1, 35)), rel=1e-12)
    assert spent(family, (2.5, 0.1, 30)) < spent(family, a) < spent(family, (2.0, 0.1, 40))
    assert spent(family, a, (3.0, 0.0, 10)) == spent(family, a)
    assert spent(family, (2.0, 0.1, 0)) == spent(family, (2.0, 0.0, 9)) == 0.0
    assert spent(family, (0.0, 0.1, 3)) == math.inf
    assert spent(family, a, replace=True) > spent(family, a)
    unsampled = (1.0, 1.0, 30)  # two payloads are twice as far apart as one and none
    assert spent(family, (2.0, 1.0, 30), replace=True) == pytest.approx(spent(family, unsampled), rel=1e-3)
    assert spent(family, a, delta=1e-8) > spent(family, a)
    assert spent(family, (1e12, 0.5, 10)) < 1e-2


@pytest.mark.parametrize("family", BESIDE)
def test_a_cap_counts_the_dearest_steps_in_full(family: str) -> None:
    phases = [Phase(4.0, 0.9, 20), Phase(2.0, 0.9, 3), Phase(1.0, 0.0, 50)]
    name = BESIDE[family]
    capped = accountants.epsilon_of_phases_capped(phases, 5, DELTA, name, family=family)
    expected = spent(family, (2.0, 1.0, 3), (4.0, 1.0, 2))
    assert capped == pytest.approx(min(expected, spent(family, (4.0, 0.9, 20), (2.0, 0.9, 3))), rel=1e-12)
    most = accountants.epsilon_of_phases_capped(phases, 1000, DELTA, name, family=family)
    assert most == pytest.approx(accountants.epsilon_of_phases(phases, DELTA, name, family=family), rel=1e-12)


@pytest.mark.parametrize("family", ["discrete_gaussian", "skellam"])
def test_nothing_is_amplified(family: str) -> None:
    assert spent(family, (2.0, 1e-6, 50)) == spent(family, (2.0, 1.0, 50))
    loss = accountants.epsilon_occurrences(50 / 4.0, DELTA, "rdp", family=family)
    assert loss == pytest.approx(spent(family, (2.0, 1.0, 50)), rel=1e-12)
    assert accountants.epsilon_occurrences(0.0, DELTA, "rdp", family=family) == 0.0


def test_what_is_not_accounted_for_is_refused_by_name() -> None:
    one = [Phase(1.0, 0.5, 3)]
    for family, accountant, match in (
        ("laplace", "rdp", "'laplace' is accounted by 'pld', not by 'rdp'"),
        ("discrete_gaussian", "pld", "'rdp', not by 'pld'.*no amplification"),
        ("skellam", "moments", "'rdp', not by 'moments'"),
        ("correlated", "pld", "no formula here for noise family 'correlated', expected 'laplace' or"),
    ):
        with pytest.raises(AccountantError, match=match) as refused:
            accountants.epsilon_of_phases(one, DELTA, accountant, family=family)
        assert refused.value.code == "FAMILY"
    with pytest.raises(AccountantError, match="does not determine its epsilon"):
        accountants.epsilon_occurrences(1.0, DELTA, "pld", family="laplace")


@pytest.mark.parametrize("family", BESIDE)
def test_calibration_finds_the_least_multiplier(family: str) -> None:
    z = accountants.calibrate(2.0, 0.2, 40, DELTA, BESIDE[family], family=family)
    assert spent(family, (z, 0.2, 40)) <= 2.0 < spent(family, (z * 0.99, 0.2, 40))


WITHOUT = {
    "laplace, fast": {"mechanism": MechanismRule("laplace")},
    "laplace by rdp": {"mechanism": MechanismRule("laplace"), "exactness": "certified", "accountant": "rdp"},
    "laplace in public": {"mechanism": MechanismRule("laplace"), "exactness": "certified", "disclosure": "occurrences_public"},
    "discrete gaussian by pld": {"mechanism": MechanismRule("discrete_gaussian"), "exactness": "certified"},
    "skellam, fast": {"mechanism": MechanismRule("skellam"), "accountant": "rdp"},
    "discrete gaussian in parts": {
        "mechanism": MechanismRule("discrete_gaussian"), "accountant": "rdp", "exactness": "certified",
        "noise_injection": "per_microbatch", "noise_microbatches": 3,
    },
    "laplace in parts": {
        "mechanism": MechanismRule("laplace"), "exactness": "certified",
        "noise_injection": "per_microbatch", "noise_microbatches": 3,
    },
    "laplace with budgets": {"mechanism": MechanismRule("laplace"), "exactness": "certified", "noise_budgets": (1, 1, 1)},
}  # fmt: skip


def header(**changes: object) -> Header:
    return header_spec(policy=signed_policy(**changes)).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)


@pytest.mark.parametrize("case", WITHOUT)
def test_an_auditor_refuses_a_header_without_accounting(case: str) -> None:
    """Put into a header that was sound: the writer is not the one to ask."""
    sound, false = header(), signed_policy(**WITHOUT[case])
    name = AccountantInfo(false.policy.accountant, "own", "1", "none")
    with pytest.raises(LeafRefused) as refused:
        replace(sound, policy_payload=false.payload, policy_sign1=false.sign1, accountant=name)
    assert refused.value.code == "POLICY_UNSUPPORTED"


@pytest.mark.parametrize("family", BESIDE)
def test_a_header_names_the_family_s_accounting(family: str) -> None:
    sound = header(mechanism=MechanismRule(family), exactness="certified", accountant=BESIDE[family], delta=Fraction(1, 10**5))
    assert sound.accountant.name == BESIDE[family] and f"family={family}" in sound.accountant.parameters


def test_an_auditor_takes_skellam_noise_in_parts_at_the_price_of_one_draw() -> None:
    mechanism = MechanismRule("skellam")
    changes = {"mechanism": mechanism, "exactness": "certified", "accountant": "rdp", "delta": Fraction(1, 10**5)}
    whole, parts = header(**changes), header(**changes, noise_injection="per_microbatch", noise_microbatches=3)
    assert parts.accountant == whole.accountant and parts.policy.noise_microbatches == 3


@pytest.mark.parametrize("b", [1e-7, 1e-3, 0.5, 3.0, 40.0])
def test_the_renyi_divergence_of_laplace_noise_is_the_integral(b: float) -> None:
    """And at most a b^2 / 2 and b, which stand in where the closed form loses digits or overflows."""
    mpmath = pytest.importorskip("mpmath")
    for order in (1.016, 1.5, 4.0, 300.0):
        with mpmath.workdps(60):
            a, shift = mpmath.mpf(order), mpmath.mpf(b)
            middle = mpmath.exp((a - 1) * shift) * (1 - mpmath.exp((1 - 2 * a) * shift)) / (2 * a - 1)  # 0 < x < shift
            true = mpmath.log((mpmath.exp((a - 1) * shift) + middle + mpmath.exp(-a * shift)) / 2) / (a - 1)
        found = laplace.laplace_rdp(order, [b], [1])
        assert float(true) <= found * (1 + 1e-12) and found <= min(b, order * b * b / 2) + 2e-15
        if order * b > 1e-6 and (order - 1) * b < 600:
            assert found == pytest.approx(float(true), rel=1e-6, abs=1e-14)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("z", "steps", "delta"), [(1.0, 10**6, 1e-12), (0.05, 10**5, 1e-6), (20.0, 10**6, 1e-7), (1.0, 10**4, 1e-9)]
)
def test_long_laplace_runs_stay_below_their_renyi_bound_and_are_quick(z: float, steps: int, delta: float) -> None:
    """Where the library's rounding may eat delta, it is not asked; grids never grow beyond a few million points."""
    import time

    began = time.monotonic()
    found = spent("laplace", (z, 0.01, steps), delta=delta)
    assert time.monotonic() - began < 30
    renyi = integers.of_curve(integers.REAL_ORDERS, lambda a: laplace.laplace_rdp(a, [1 / z], [steps]), delta)
    assert 0 < found <= min(renyi, steps / z)


@pytest.mark.parametrize(
    "phases", [((1.0, 0.3, 200), (2.0, 1.0, 3), (0.5, 0.01, 1)), ((3.0, 1.0, 50),), ((1e12, 1e-9, 5),), ((300.0, 0.5, 2),)]
)
def test_a_laplace_figure_is_that_of_the_library_to_the_last_bit(phases: tuple[tuple[float, float, int], ...]) -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=laplace.LAPLACE_INTERVAL)
    for z, q, steps in sorted(phases):
        event = dp_accounting.LaplaceDpEvent(z)
        accountant.compose(event if q == 1.0 else dp_accounting.PoissonSampledDpEvent(q, event), steps)
    asked = DELTA - laplace.FFT_ERROR * sum(steps for _, _, steps in phases)
    assert spent("laplace", *phases) == max(0.0, accountant.get_epsilon(asked))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from ledger.accountants import Phase, epsilon_group, epsilon_of_phases
print(eval(sys.argv[1]))
"""


@pytest.mark.one_in(99)
@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        pytest.param(
            "epsilon_of_phases([Phase(50.0, 0.5, 10**6)], 1e-6, family='laplace')", 96.0, 98.0, marks=pytest.mark.slow
        ),
        ("epsilon_of_phases([Phase(50.0, 0.5, 10**7)], 1e-3, family='laplace')", 550.0, 1100.0),
        ("epsilon_of_phases([Phase(1e12, 1e-9, 10**11)], 1e-3, family='laplace')", 0.0, 0.0),
        ("epsilon_of_phases([Phase(0.001, 0.5, 10)], 1e-6, family='laplace')", 9990.0, 10000.0),
        ("epsilon_group(50.0, 0.5, 10**7, 2, 1e-3)", 550.0, 8400.0),
        ("epsilon_group(1e12, 0.5, 10**11, 3, 1e-3)", 0.0, 0.0),
        ("epsilon_group(0.0201, 1e-16, 10, 256, 1e-6)", 0.0, 1e10),
    ],
)
def test_no_schedule_takes_more_than_a_bounded_grid(asked: str, least: float, most: float) -> None:
    """In two gibibytes of addresses: sizes that grow with the steps, powers with gigabytes of digits, and e^1000."""
    command = [sys.executable, "-c", LIMITED, asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-300:]
    assert least <= float(done.stdout) <= most


def test_laplace_asks_for_a_smaller_delta_where_the_transform_loses_some_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    phases = [Phase(40.0, 0.2, 20_000)]
    laplace._laplace.cache_clear()
    asked = accountants.TABLE["laplace"].epsilon(Sampled(tuple(phases)), 1e-9, "pld")
    monkeypatch.setattr(laplace, "FFT_ERROR", 0.0)
    laplace._laplace.cache_clear()
    trusting = accountants.TABLE["laplace"].epsilon(Sampled(tuple(phases)), 1e-9, "pld")
    laplace._laplace.cache_clear()
    assert trusting < asked < 1.01 * trusting
