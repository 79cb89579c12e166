"""What holds noise under budgets up where a step of it fails: the exact repair, the gap, the lower bound, the auditor."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from test_allocation import BUDGETS, M, Part, noised, random_parts, rule

from attest.descriptor import PUBLIC_BOUNDS, SignedBounds
from attest.errors import ValueRefused
from attest.schedule import allocation, convex


def test_a_block_at_several_places_has_the_largest_of_their_shares():
    budgets = (5, 7, 3)
    assert [allocation.share_of([place], budgets) for place in ("embeddings", "layers", "head")] == [5, 7, 3]
    assert allocation.share_of(["embeddings", "head"], budgets) == allocation.share_of(["head", "embeddings"], budgets) == 5
    assert allocation.share_of(["head", "layers"], budgets) == 7


def test_contributions_of_equal_bounds_each_bring_their_variance():
    assert [SignedBounds(*bounds).variance for bounds in ((2, 3), (3, 2), (6, 1, 9), (1, 1))] == [36, 36, 36, 1]


@pytest.mark.parametrize("seed", range(4))
def test_multipliers_that_are_a_little_off_are_mended_before_noise_rests_on_them(seed, monkeypatch):
    rules, parts = random_parts(random.Random(seed))
    demands, costs = allocation.demands(rules, parts), [float(part.coordinates) for part in parts]
    dual = convex._dual
    monkeypatch.setattr(convex, "_dual", lambda *given: [x * (1.0 - 1e-9) for x in dual(*given)])
    found = convex.solve(costs, demands)
    assert convex.feasible(found.stds, demands) and found.gap <= convex.LARGEST_GAP


def test_multipliers_that_are_far_off_are_refused(monkeypatch):
    rules = [rule("a", 1.0, 1.0), rule("b", 2.0, 1.0)]
    parts = [Part("x", ("a",), 50, M), Part("y", ("a", "b"), 200, M), Part("z", ("b",), 1000, 2 * M)]
    monkeypatch.setattr(convex, "_dual", lambda groups, classes: [1.0, 1e6][:classes])
    with pytest.raises(ValueRefused, match="PROGRAMME"):
        allocation.budget_stds(rules, parts)


def test_the_bound_is_never_above_the_optimum_of_one_class():
    """One class has sum of sqrt(cost demand) squared as its optimum: exact for one block, and blocks that are alike."""
    rng = random.Random(5)
    for _ in range(300):
        cost, demand = rng.randint(1, 10**9), Fraction(rng.randint(1, 10**12), rng.randint(1, 10**12))
        found = convex.solve([float(cost)], [{0: demand}])
        assert Fraction(found.bound) <= cost * demand <= Fraction(found.energy) * (1 + Fraction(1, 10**15))
        count = rng.randint(2, 9)
        found = convex.solve([float(cost)] * count, [dict.fromkeys(range(count), demand)])
        assert Fraction(found.bound) <= count**2 * cost * demand


SCHEDULE = [Part("x", ("a",), 50, M), Part("y", ("a", "b"), 200, M), Part("z", ("b",), 1000, 2 * M), Part("p", ("open",), 5)]


@pytest.mark.parametrize(
    ("place", "changes", "sentence"),
    [
        (0, {"share": 0}, "has the share 0"),
        (1, {"share": 3 * M}, "has the share 3000000"),
        (3, {"share": M}, "has the share 1000000"),
        (3, {"std": 1.0}, "has noise 1.0, and no private class"),
        (0, {"std": 0.0}, "has noise 0.0, and a private class"),
    ],
)
def test_an_auditor_says_which_block_has_what_it_may_not_have(place, changes, sentence):
    """Each of these alone: shares outside the policy, noise where no private class is, none where one is."""
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    public = replace(rule("open", 1.0, 1.0), public=True, **bounds)
    rules = [rule("a", 1.0, 1.0), rule("b", 2.0, 1.0), public]
    held = noised(SCHEDULE, allocation.budget_stds(rules, SCHEDULE).stds)
    allocation.check_budgets(rules, BUDGETS, held)
    held[place] = replace(held[place], **changes)
    with pytest.raises(ValueRefused, match=sentence):
        allocation.check_budgets(rules, BUDGETS, held)
