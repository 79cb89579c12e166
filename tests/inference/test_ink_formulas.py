"""A token of InvisibleInk costs what Theorem 2 says: exact checks, published figures, and mutants that the checks see."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dptrain.inference.invisibleink import Plan, aggregate, clip_norm, expanded_top_k, probabilities, rho
from dptrain.inference.invisibleink.formulas import ADJACENCIES, DEEPEST, MOST, ROUNDING, bounded_range, nano_rho, weights
from dptrain.inference.invisibleink.plan import mechanism
from ledger.budget.rho import cap_nano, epsilon_of_rho
from ledger.errors import AccountantError
from tests.reference import ink

LOGITS = st.floats(-60.0, 60.0, width=32)


def code(call, *given, **named) -> str:
    with pytest.raises(AccountantError) as refused:
        call(*given, **named)
    return refused.value.code


# ---- a step


def test_a_step_passes_every_exact_check_and_the_checks_reach_their_bounds() -> None:
    assert ink.judged(probabilities) == set()
    assert ink.largest_range(probabilities) == pytest.approx(1.0, abs=1e-3)
    assert ink.largest_renyi(probabilities) > 0.99


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", ink.WRONG)
def test_the_checks_see_every_wrong_step(name: str) -> None:
    step, seen = ink.WRONG[name]
    assert seen <= ink.judged(step)


def test_the_checks_pass_a_second_writing_of_the_step() -> None:
    """Else a mutant may be seen for how it is written."""
    assert ink.judged(ink.written) == set()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_formulas_are_those_of_exact_numbers_to_1e_9(data: st.DataObject) -> None:
    B, V = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    public = data.draw(arrays.arrays(np.float64, V, elements=LOGITS))
    private = data.draw(arrays.arrays(np.float64, (B, V), elements=LOGITS))
    C, tau, k = data.draw(st.floats(0.0, 12.0)), data.draw(st.floats(0.3, 3.0)), data.draw(st.integers(1, V + 1))
    exact = np.array([float(one) for one in ink.aggregated(private.tolist(), public.tolist(), C)])
    assert np.allclose(aggregate(private, public, C), exact, rtol=1e-9, atol=1e-12)
    kept = ink.expanded(public.tolist(), k, C, B)
    found = expanded_top_k(public, k, C, B).tolist()
    edge = np.sort(public)[::-1][min(k, V) - 1] - 2 * C / B
    assert set(found) ^ set(kept) <= {y for y in range(V) if abs(public[y] - edge) < 1e-12}
    if found == kept:
        exact = ink.naive(private, public, k, C, tau)
        assert np.allclose(probabilities(private, public, k, C, tau), exact, rtol=1e-9, atol=1e-15)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_one_reference_moves_no_coordinate_by_more_than_C_over_B_whatever_its_logits(data: st.DataObject) -> None:
    B, V, C = data.draw(st.integers(1, 6)), 5, data.draw(st.floats(0.0, 10.0))
    public = data.draw(arrays.arrays(np.float32, V, elements=LOGITS))
    private = data.draw(arrays.arrays(np.float32, (B, V), elements=LOGITS))
    private[0] = data.draw(arrays.arrays(np.float32, V, elements=st.floats(width=32)))
    private[0, 0] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf, 3e38, 0.5]))
    null = private.copy()
    null[0] = public
    moved = np.abs(aggregate(private, public, C) - aggregate(null, public, C))
    assert (moved <= C / B + 1e-12).all()
    one, other = (weights(rows, public, 3, C, 1.0) for rows in (private, null))
    assert np.array_equal(one[0], other[0]) and (one[1] > 0).all() and (other[1] > 0).all()
    ratio = np.log(one[1]) - np.log(other[1])
    assert ratio.max() - ratio.min() <= 2 * C / B + ROUNDING


def test_null_references_leave_the_public_logits_as_they_are_and_so_does_a_clip_norm_of_zero() -> None:
    rng = np.random.default_rng(0)
    public, private = rng.normal(size=9), rng.normal(size=(4, 9))
    assert np.array_equal(aggregate(np.tile(public, (4, 1)), public, 0.7), public)
    assert np.array_equal(aggregate(private, public, 0.0), public)
    assert np.allclose(probabilities(private, public, 9, 0.0, 1.3), np.exp(public / 1.3) / np.exp(public / 1.3).sum())


def test_ties_at_the_k_th_logit_are_kept_and_so_is_what_lies_on_the_edge() -> None:
    public = np.array([4.0, 3.0, 3.0, 3.0, 2.0, 1.0, -np.inf])
    assert expanded_top_k(public, 2, 0.0, 1).tolist() == [0, 1, 2, 3]
    assert expanded_top_k(public, 2, 1.0, 2).tolist() == [0, 1, 2, 3, 4]
    assert expanded_top_k(public, 2, 1.0, 3).tolist() == [0, 1, 2, 3]
    assert expanded_top_k(public, 7, 1.0, 3).tolist() == [0, 1, 2, 3, 4, 5]  # what is never drawn is never drawn


def test_what_may_be_drawn_holds_the_top_k_as_moved_by_any_one_reference() -> None:
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(300):
        public, other = rng.normal(0, 0.3, 12), rng.normal(0, 3, 12)
        alone = public + np.clip(other - public, -0.9, 0.9) / 3
        top = set(np.argsort(alone)[-4:].tolist())
        assert top <= set(expanded_top_k(public, 4, 0.9, 3).tolist())
        missed += not top <= set(expanded_top_k(public, 4, 0.9, 4).tolist())
    assert missed > 0, "with B + 1 in place of B, as elsewhere, it is no superset"


def test_no_weight_is_zero_however_deep_a_logit_is() -> None:
    public = np.array([0.0, -1e6, -3.0, -900.0])
    _, found = weights(np.zeros((2, 4)), public, 4, 1.0, 1.0)
    assert found.tolist() == [1.0, math.exp(-DEEPEST), pytest.approx(math.exp(-2.0)), math.exp(-DEEPEST)]


# ---- what it costs


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("epsilon", "published"), [(1, 0.083), (3, 0.229), (5, 0.361), (10, 0.659)])
def test_clip_norms_are_the_published_ones(epsilon: float, published: float) -> None:
    """Table 12: B = 7, tau = 1.2, T = 500, delta = 1e-6; there to two digits."""
    found = clip_norm(epsilon, 1e-6, 500, 7, 1.2)
    assert abs(found - published) < 0.001
    assert found == pytest.approx(ink.clip(epsilon, 1e-6, 500, 7, 1.2), rel=1e-9)
    assert epsilon_of_rho(rho(found, 7, 1.2, 500), 1e-6) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(("C", "tight", "simple", "caption"), [(0.1, 1.22, 1.43, 1.3), (1.0, 16.56, 17.54, 17.6)])
def test_figure_9_is_not_theorem_2_with_the_numbers_it_names(C: float, tight: float, simple: float, caption: float) -> None:
    found = rho(C, 7, 1.2, 500)
    assert float(ink.epsilon(found, 1e-6)) == pytest.approx(tight, abs=0.005)
    assert epsilon_of_rho(found, 1e-6) == pytest.approx(float(ink.epsilon(found, 1e-6)), rel=1e-9)
    assert found + 2 * math.sqrt(found * math.log(1e6)) == pytest.approx(simple, abs=0.005)
    assert abs(tight - caption) > 0.05


def test_section_5_4_has_the_factor_upside_down() -> None:
    found = 7 * 1.2 / math.sqrt(2 * cap_nano(10_000_000, 1_000_000) / 1e9 / 500)
    assert found > 100 and epsilon_of_rho(rho(found, 7, 1.2, 500), 1e-6) > 1000


def test_the_sparse_vector_cost_says_where_the_published_table_has_no_text() -> None:
    """Table 2, Amin et al.: INF wherever 100 draws of noise s = 0.3 alone cost more than epsilon is worth."""
    table = {1: "INF INF INF", 3: "INF INF 55.4", 5: "INF INF 70.0", 10: "INF 71.9 69.8"}
    for epsilon, cells in table.items():
        most = cap_nano(epsilon * 1_000_000, 1_000_000) / 1e9
        for B, cell in zip((31, 63, 127), cells.split(), strict=True):
            assert (most <= 100 * 2 / (B * 0.3) ** 2) is (cell == "INF")


def test_rho_is_that_of_theorem_2_and_four_times_that_where_the_sensitivity_doubles() -> None:
    one = rho(0.5, 7, 1.1, 200)
    assert one == pytest.approx(200 * 0.5**2 / (2 * 7**2 * 1.1**2), rel=1e-12)
    for name, factor in {"zero-out": 1, "zero-logits": 4, "replace-one": 4, "retrieval": 4}.items():
        assert rho(0.5, 7, 1.1, 200, adjacency=name) == pytest.approx(factor * one, rel=1e-12)
        assert clip_norm(4, 1e-6, 200, 7, 1.1, adjacency=name) == pytest.approx(
            clip_norm(4, 1e-6, 200, 7, 1.1) / math.sqrt(factor), rel=1e-12
        )
    assert rho(0.5, 7, 1.1, 200, records=3) == pytest.approx(9 * one, rel=1e-12)
    assert set(ADJACENCIES) == {"zero-out", "zero-logits", "replace-one", "retrieval"}


@pytest.mark.parametrize(("name", "reached"), [("zero-out", 1.0), ("zero-logits", 2.0), ("replace-one", 2.0)])
def test_each_adjacency_reaches_its_sensitivity_and_none_exceeds_it(name: str, reached: float) -> None:
    B, C, public = 3, 0.5, np.array([30.0, 30.0, 30.0])
    most = 0.0
    for other in ([80.0, -20.0, 30.0], [80.0, 80.0, 30.0]):
        private = np.tile(public, (B, 1))
        private[-1] = other
        neighbour = private.copy()
        neighbour[-1] = {"zero-out": public, "zero-logits": np.zeros(3), "replace-one": 60.0 - np.array(other)}[name]
        moved = aggregate(private, public, C) - aggregate(neighbour, public, C)
        most = max(most, float(np.abs(moved).max()) / (C / B))
    assert most == pytest.approx(reached) == ADJACENCIES[name]


def test_add_or_remove_is_refused_with_its_reason() -> None:
    with pytest.raises(AccountantError, match="number of references would be private"):
        rho(1.0, 7, 1.0, adjacency="add-or-remove")


def test_numbers_that_cannot_be_are_refused_by_name() -> None:
    logits = np.zeros((2, 3)), np.zeros(3)
    assert code(aggregate, logits[0], np.zeros(4), 1.0) == code(aggregate, logits[0], logits[1] + np.nan, 1.0) == "LOGITS"
    assert code(aggregate, logits[0], logits[1] + np.inf, 1.0) == "LOGITS"
    assert code(aggregate, *logits, -1.0) == code(aggregate, *logits, math.nan) == code(rho, 0.0, 7, 1.0) == "CLIP_NORM"
    assert code(expanded_top_k, logits[1], 0, 1.0, 2) == "TOP_K" and code(expanded_top_k, logits[1], 1, 1.0, 0) == "BATCH"
    assert code(probabilities, *logits, 1, 1.0, 0.0) == code(rho, 1.0, 7, -1.0) == "TAU"
    assert code(rho, 1.0, 7, 1.0, 0) == "TOKENS" and code(rho, 1.0, 7, 1.0, records=0) == "RECORDS"
    assert code(rho, 1.0, 7, 1.0, adjacency="zero_out") == "ADJACENCY" and code(clip_norm, 0.0, 1e-6, 5, 7, 1.0) == "EPSILON"
    assert code(clip_norm, 1.0, 0.0, 5, 7, 1.0) == "DELTA" and code(bounded_range, MOST, 2, 1.0) == "ROUNDING"


# ---- a plan


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 50.0), st.sampled_from([1e-5, 1e-6, 1e-9]), st.integers(1, 600), st.integers(1, 31), st.floats(0.5, 2.0))
def test_the_charges_of_a_calibrated_plan_fit_a_cap_of_its_epsilon(e: float, d: float, T: int, B: int, tau: float) -> None:
    plan = Plan.for_epsilon(e, delta=d, batch=B, tokens=T, tau=tau)
    assert T * plan.nano_rho <= cap_nano(int(e * 1e6), round(d * 1e12)) and plan.epsilon <= e
    assert plan.clip <= clip_norm(e, d, T, B, tau)
    assert rho(plan.clip, B, tau, T) <= plan.rho and epsilon_of_rho(rho(plan.clip, B, tau, T), d) <= e
    if e > 0.5:
        assert plan.clip == pytest.approx(clip_norm(e, d, T, B, tau), rel=1e-3)


def test_the_charge_of_a_token_pays_for_what_float64_rounds() -> None:
    for C in np.linspace(9.0, 10.0, 50).tolist():
        assert nano_rho(C, 1, 0.5) >= (Fraction(bounded_range(C, 1, 0.5)) + Fraction(ROUNDING)) ** 2 / 8 * 10**9


def test_tokens_delta_and_batch_are_asked_for_and_never_guessed() -> None:
    whole = {"batch": 7, "tokens": 100, "delta": 1e-6}
    Plan.for_epsilon(3.0, **whole)
    for missing in whole:
        with pytest.raises(TypeError, match=missing):
            Plan.for_epsilon(3.0, **{name: value for name, value in whole.items() if name != missing})
    with pytest.raises(AccountantError):
        Plan.for_epsilon(3.0, **{**whole, "tokens": "auto"})
    with pytest.raises(TypeError):
        Plan(batch=7, clip=0.5, delta=1e-6)  # type: ignore[call-arg]


def test_a_plan_says_its_epsilon_rounded_up_and_its_exact_numbers() -> None:
    plan = Plan(batch=7, tokens=500, clip=0.66, delta=1e-6, tau=1.2)
    said = float(plan.sentence.split("epsilon ")[1].split(" ")[0])
    assert plan.epsilon <= said < plan.epsilon + 1.1e-4 and "one reference against none" in plan.sentence
    assert plan.mechanism == "invisibleink B=7 C=0.66 tau=1.2 k=50 T=500 zero-out records=1"
    assert "3 references of one person" in str(Plan(batch=7, tokens=500, clip=0.2, delta=1e-6, records=3))
    assert code(Plan, batch=7, tokens=5, clip=0.66, delta=1e-6, k=0) == "TOP_K"
    assert code(Plan.for_epsilon, 1e-4, delta=1e-6, batch=7, tokens=10_000) == "CAP"
    assert mechanism().name == "invisibleink" and mechanism().by_request
