"""The noise that one contribution's own bounds would need, against the formula computed another way."""

import math
from dataclasses import replace
from fractions import Fraction
from statistics import NormalDist

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from attest.descriptor import PUBLIC_BOUNDS, SignedBounds
from attest.policy import MechanismRule, SamplingRule
from attest.policy.mechanism import Bands
from attest.policy.sampling import Groups
from dptrain.clipping.own_noise import OwnBounds, multiplier_for, own_bounds, own_noise, strictest
from ledger import accountants
from ledger.errors import AccountantError
from ledger.leaves import Admit
from ledger.replay.budgets import of_plan
from tests.test_layering import run_without_torch
from tests.worlds.ledgers import START, signed_policy

PHI = NormalDist().cdf


def bounds(**changes) -> OwnBounds:
    """A contribution of clip norm 1 and multiplier 1e-3, so that its limit of epsilon decides."""
    signed = {"clip_micro": 1_000_000, "sigma_micro": 1_000, "max_occurrences": 0}
    limit = {"epsilon_micro": 3_000_000, "delta_pico": 10**7}
    fields = {
        "rate": Fraction(1, 100), "steps": 1000, "disclosure": "secret_poisson", "accountant": "pld", "family": "gaussian",
    }  # fmt: skip
    for name, value in changes.items():
        next(group for group in (signed, limit, fields) if name in group)[name] = value
    return OwnBounds(SignedBounds(**signed), tuple(limit.values()), **fields)


def public(**changes) -> OwnBounds:
    return bounds(disclosure="occurrences_public", **changes)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that is (epsilon, delta)-DP and no more, by halving (Dong et al. 2022, Cor. 2.13)."""

    def spent(mu: float) -> float:
        return PHI(-epsilon / mu + mu / 2) - math.exp(epsilon) * PHI(-epsilon / mu - mu / 2)

    low, high = 1e-3, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) <= delta else (low, middle)
    return low


@pytest.mark.parametrize(
    ("epsilon", "delta_pico", "n", "clip", "variance"), [(3.0, 10**7, 10, 1.0, 19.34), (8.0, 10**6, 5, 0.5, 0.5329)]
)
def test_public_occurrences_give_the_golden_variances_of_the_design(epsilon, delta_pico, n, clip, variance):
    limit = {"epsilon_micro": round(epsilon * 1e6), "delta_pico": delta_pico}
    found = own_noise(public(clip_micro=round(clip * 1e6), max_occurrences=n, steps=10_000, **limit))
    assert found.expected == n and found.limited
    assert found.variance == pytest.approx(variance, rel=5e-4)
    assert found.variance == pytest.approx((math.sqrt(n) / gaussian_mu(epsilon, delta_pico / 1e12) * clip) ** 2, rel=1e-4)


def test_draws_in_every_step_are_as_many_gaussians_whether_secret_or_public():
    """At rate 1 nothing is sampled: z* = sqrt(T) / mu*."""
    expected = math.sqrt(40) / gaussian_mu(3.0, 1e-5)
    for made in (bounds, public):
        found = own_noise(made(rate=Fraction(1), steps=40))
        assert found.expected == 40 and found.multiplier == pytest.approx(expected, rel=1e-4)


def test_secret_draws_give_the_least_multiplier_that_another_accountant_finds():
    found = own_noise(bounds(epsilon_micro=2_000_000))

    def spent(multiplier: float) -> float:
        accountant = PLDAccountant()
        accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(multiplier)), 1000))
        return accountant.get_epsilon(1e-5)

    assert found.expected == 10.0
    assert spent(found.multiplier * 1.002) <= 2.0 + 1e-3 and spent(found.multiplier * 0.995) > 2.0
    assert found.variance == found.multiplier**2


def test_without_a_limit_what_was_signed_decides_however_often_it_is_drawn():
    for cap, expected in ((0, 10.0), (3, 3.0), (50, 10.0)):
        found = own_noise(bounds(clip_micro=500_000, sigma_micro=1_200_000, max_occurrences=cap, epsilon_micro=0, delta_pico=0))
        assert (found.expected, found.multiplier, found.limited) == (expected, 1.2, False)
        assert found.variance == (1.2 * 0.5) ** 2


def test_the_larger_of_what_was_signed_and_what_the_limit_needs_decides():
    needed = own_noise(public()).multiplier
    assert own_noise(public(sigma_micro=round(needed * 1e6) - 1)).multiplier == needed
    more = own_noise(public(sigma_micro=round(needed * 1e6) + 1))
    assert more.multiplier == pytest.approx(needed + 1e-6) and not more.limited


@pytest.mark.slow
def test_a_cap_helps_only_as_far_as_it_is_proved_to(caps=(1, 3, 8)):
    """Up to the cap draws come at the rate of the class, so a rate of cap / T would be too little noise."""
    free = own_noise(bounds())
    for cap in caps:
        capped, counted = own_noise(bounds(max_occurrences=cap)), own_noise(public(max_occurrences=cap))
        assert capped.multiplier == min(free.multiplier, counted.multiplier)
        spent = accountants.epsilon_of_phases_capped([accountants.Phase(capped.multiplier, 0.01, 1000)], cap, 1e-5)
        assert spent <= 3.0
    tempting = accountants.calibrate(3.0, 1 / 1000, 1000, 1e-5)
    assert tempting < own_noise(bounds(max_occurrences=1)).multiplier
    assert accountants.epsilon_of_phases_capped([accountants.Phase(tempting, 0.01, 1000)], 1, 1e-5) > 3.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 500), st.integers(1, 500), st.integers(10**5, 10**7), st.integers(10**5, 10**7))
def test_more_occurrences_and_a_smaller_limit_need_no_less_noise(n, m, epsilon, other):
    few, many = sorted((n, m))
    small, large = sorted((epsilon, other))
    at = {"steps": 1000, "rate": Fraction(1, 2)}
    assert own_noise(public(max_occurrences=few, **at)).variance <= own_noise(public(max_occurrences=many, **at)).variance
    assert (
        own_noise(public(max_occurrences=few, epsilon_micro=large, **at)).variance
        <= own_noise(public(max_occurrences=few, epsilon_micro=small, **at)).variance
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 200))
def test_the_variance_grows_with_clip_norm_and_multiplier_and_never_below_what_was_signed(clip, sigma, other, cap):
    low, high = sorted((sigma, other))
    least, most = (own_noise(public(clip_micro=clip, sigma_micro=value, max_occurrences=cap)) for value in (low, high))
    assert least.variance <= most.variance
    assert least.multiplier >= low / 1e6
    wider = own_noise(public(clip_micro=2 * clip, sigma_micro=low, max_occurrences=cap))
    assert wider.variance == pytest.approx(4 * least.variance)
    assert wider.expected == least.expected == min(cap, 10)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_the_strictest_limits_imply_all_others_and_none_of_them_another(limits):
    found = strictest(limits)
    real = {limit for limit in limits if limit[0]}
    assert set(found) <= real and bool(found) == bool(real)
    for epsilon, delta in real:
        assert any(e <= epsilon and d <= delta for e, d in found)
    for one in found:
        assert not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in found)


TURNS = {"disclosure": "occurrences_public", "sampling": SamplingRule("cyclic")}
BANDS = MechanismRule("banded_toeplitz", Bands(bands=2, coefficients=(1 << 20, 1 << 19)))
GROUPS = {"disclosure": "secret_draws", "sampling": SamplingRule("cyclic_poisson", Groups(groups=2))}
KINDS = {
    "secret": {}, "turns": TURNS, "correlated turns": {**TURNS, "mechanism": BANDS}, "groups": GROUPS,
    "correlated groups": {**GROUPS, "mechanism": BANDS},
}  # fmt: skip


@pytest.mark.one_in(7)
@pytest.mark.parametrize("cap", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_suffices_for_a_limit_suffices_if_all_steps_that_may_be_are_done_again(kind, cap):
    """Keeps the limit by the rule that admits to a run, where a millionth less does not."""
    fields = KINDS[kind]
    rules = tuple(replace(rule, sampling_rate=Fraction(1, 10)) for rule in signed_policy().policy.classes)
    policy = signed_policy(**{"classes": rules} | fields).policy
    own = own_bounds(policy, "open", SignedBounds(1_000_000, 1_000, cap), (1_000_000, 10**6))
    found = own_noise(own).multiplier
    if kind == "turns":  # four, and ten once more; where draws are public a cap holds over all attempts
        assert found == multiplier_for(1.0, cap or 14, 1e-6)
        return
    kept, less = (of_plan(policy, 0, (z,)).epsilon(1e-6) for z in (found, found - 2e-6))
    if kind == "correlated turns" and cap:  # the plan counts on no cap
        turns = accountants.turns_under(policy, Fraction(1, 10))
        loss = turns.most(cap=cap) + 10 * turns.dearest_again()
        kept, less = (accountants.epsilon_occurrences(loss / z**2, 1e-6) for z in (found, found - 2e-6))
    assert kept <= 1.0 < less


def test_an_auditor_derives_it_from_the_admit_leaf_and_the_signed_policy():
    policy = signed_policy().policy
    rule = policy.class_rule("sensitive")
    bound = (250_000, 4_000_000, 7, bytes(32), bytes(8), bytes(32), 0, 2_000_000, 10**6)
    leaf = Admit(3, START, bytes(32), "sensitive", 1, *bound)
    found = own_bounds(policy, leaf.class_name, leaf.bounds, leaf.limit)
    assert found == own_bounds(policy, "sensitive", SignedBounds(250_000, 4_000_000, 7), (2_000_000, 10**6))
    assert found.expected == min(7.0, float(rule.sampling_rate * policy.steps))
    assert own_noise(found).variance >= (4.0 * 0.25) ** 2


def test_there_is_none_for_public_classes_for_laplace_and_where_no_multiplier_does():
    policy = signed_policy().policy
    classes = tuple(
        replace(rule, public=True, clip_norm_micro=10**15, noise_multiplier_micro=1) if rule.name == "open" else rule
        for rule in policy.classes
    )
    assert own_bounds(replace(policy, classes=classes), "open", PUBLIC_BOUNDS) is None
    for impossible in (bounds(family="laplace"), public(epsilon_micro=1, max_occurrences=10**6, steps=10**7, delta_pico=1)):
        with pytest.raises(AccountantError):
            own_noise(impossible)


def test_it_takes_no_torch():
    done = run_without_torch("import dptrain.clipping.own_noise\nassert 'torch' not in sys.modules\n")
    assert done.returncode == 0, done.stderr
