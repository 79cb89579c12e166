"""Allocation: the programme against closed forms and scipy, exact feasibility, effective noise, energies and waste."""

import itertools
import math
import random
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from attest.errors import ValueRefused
from attest.policy import ClassRule, DepthRule
from attest.schedule import allocation, convex, scheduled_std

M = 1_000_000
BUDGETS = (200_000, 1_000_000, 2_000_000)


@dataclass(frozen=True)
class Part:
    name: str
    classes: tuple[str, ...]
    coordinates: int
    share: int = 0
    std: float = 0.0


def rule(name: str, sigma: float, clip: float) -> ClassRule:
    return ClassRule(
        name=name, clip_norm_micro=round(clip * M), noise_multiplier_micro=round(sigma * M), sampling_rate=Fraction(1, 100),
        depth=DepthRule(band=(Fraction(0), Fraction(1))),
    )  # fmt: skip


def random_parts(rng: random.Random, most_classes: int = 5, most_blocks: int = 14) -> tuple[list[ClassRule], list[Part]]:
    """Classes with bands that overlap at random, over blocks of very different sizes."""
    count, blocks = rng.randint(1, most_classes), rng.randint(1, most_blocks)
    rules = [rule(f"c{k}", 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-1, 0.5)) for k in range(count)]
    bands = []
    for _ in rules:
        low = rng.randrange(blocks)
        bands.append(range(low, rng.randint(low + 1, blocks)))
    parts = []
    for index in range(blocks):
        classes = tuple(own.name for own, band in zip(rules, bands, strict=True) if index in band)
        parts.append(Part(f"b{index}", classes, round(10 ** rng.uniform(0, 6)), rng.choice(BUDGETS) if classes else 0))
    return rules, parts


def noised(parts: list[Part], stds) -> list[Part]:
    return [replace(part, std=std) for part, std in zip(parts, stds, strict=True)]


def constraint(rules: ClassRule, parts: list[Part]) -> Fraction:
    """sigma_k^2 times the sum of C_kl^2 / s_l^2, written out from the definition."""
    own = [part for part in parts if rules.name in part.classes]
    whole = sum(Fraction(part.share) ** 2 for part in own)
    clip, sigma = (Fraction(value, M) for value in (rules.clip_norm_micro, rules.noise_multiplier_micro))
    return sum((clip**2 * Fraction(part.share) ** 2 / whole / Fraction(part.std) ** 2 for part in own), Fraction(0)) * sigma**2


def test_random_programmes_are_exactly_feasible_and_nearly_optimal():
    rng = random.Random(0)
    worst = 0.0
    for _ in range(300):
        rules, parts = random_parts(rng)
        found = allocation.budget_stds(rules, parts)
        worst = max(worst, found.gap)
        held = noised(parts, found.stds)
        assert all(constraint(own, held) <= 1 for own in rules)
        assert all((part.std > 0) == bool(part.classes) for part in held)
        assert found.bound <= found.energy == allocation.noise_energy(held)
        flat = sum(p.coordinates * scheduled_std([own for own in rules if own.name in p.classes]) ** 2 for p in parts)
        assert found.energy <= flat * (1 + 1e-9), "the max rule keeps the same constraints"
        allocation.check_budgets(rules, BUDGETS, held)
    assert worst < 1e-9


def test_one_class_has_its_closed_form():
    """v_l = sigma^2 (sum_j C_j sqrt d_j) C_l / sqrt d_l, of energy (sigma sum_j C_j sqrt d_j)^2."""
    rng = random.Random(1)
    for _ in range(50):
        own = rule("a", rng.uniform(0.3, 5), rng.uniform(0.1, 3))
        parts = [Part(f"b{i}", ("a",), round(10 ** rng.uniform(0, 7)), rng.choice(BUDGETS)) for i in range(rng.randint(1, 30))]
        found = allocation.budget_stds([own], parts)
        whole = math.sqrt(sum(part.share**2 for part in parts))
        caps = [own.bounds.clip_norm * part.share / whole for part in parts]
        total = sum(cap * math.sqrt(part.coordinates) for cap, part in zip(caps, parts, strict=True))
        for std, cap, part in zip(found.stds, caps, parts, strict=True):
            assert std**2 == pytest.approx(own.bounds.noise_multiplier**2 * total * cap / math.sqrt(part.coordinates), rel=1e-9)
        assert found.energy == pytest.approx((own.bounds.noise_multiplier * total) ** 2, rel=1e-9)
        uniform = (own.bounds.noise_multiplier * own.bounds.clip_norm) ** 2 * sum(part.coordinates for part in parts)
        assert found.energy <= uniform * (1 + 1e-9), "Cauchy and Schwarz"


def test_budgets_in_proportion_to_the_root_of_the_size_need_what_flat_clipping_needs():
    own = rule("a", 1.5, 0.5)
    parts = [Part("x", ("a",), 4, 2 * M), Part("y", ("a",), 9, 3 * M), Part("z", ("a",), 1, 1 * M)]
    assert allocation.budget_stds([own], parts).stds == pytest.approx([0.75] * 3, rel=1e-9)


def by_scipy(optimize, numpy, rules: list[ClassRule], parts: list[Part]) -> float:
    """The least energy. In x = log(v / flat) objective and constraints are convex, and the start, x = 0, is feasible."""
    used = [index for index, part in enumerate(parts) if part.classes]
    sizes = numpy.array([float(parts[index].coordinates) for index in used])
    rows = [numpy.array([float(row.get(index, 0)) for index in used]) for row in allocation.demands(rules, parts)]
    flat = numpy.array([scheduled_std([own for own in rules if own.name in parts[i].classes]) ** 2 for i in used])
    scale = float(sizes @ flat)
    result = optimize.minimize(
        lambda x: float(sizes @ (flat * numpy.exp(x))) / scale,
        numpy.zeros(len(used)),
        jac=lambda x: sizes * flat * numpy.exp(x) / scale,
        constraints=[
            {
                "type": "ineq",
                "fun": lambda x, row=row: 1 - float(row @ (numpy.exp(-x) / flat)),
                "jac": lambda x, row=row: row * numpy.exp(-x) / flat,
            }
            for row in rows
        ],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    assert min(1 - float(row @ (numpy.exp(-result.x) / flat)) for row in rows) > -1e-7, result.message
    return float(result.fun * scale)


def test_scipy_finds_the_same_optimum():
    optimize = pytest.importorskip("scipy.optimize")
    numpy = pytest.importorskip("numpy")
    rng = random.Random(2)
    for _ in range(25):
        rules, parts = random_parts(rng, 4, 8)
        assert allocation.budget_stds(rules, parts).energy == pytest.approx(by_scipy(optimize, numpy, rules, parts), rel=1e-5)


def test_general_demands_need_no_common_shape():
    """Two classes that divide their norms in opposite ways over two blocks: symmetric, so v is equal, and both bind."""
    rows = [{0: Fraction(9, 10), 1: Fraction(1, 10)}, {0: Fraction(1, 10), 1: Fraction(9, 10)}]
    found = convex.solve([1.0, 1.0], rows)
    assert found.stds == pytest.approx([1.0, 1.0], rel=1e-9)
    lopsided = convex.solve([1.0, 100.0], rows)
    first, second = (std**2 for std in lopsided.stds)
    assert second < 1.0 < first and lopsided.energy < 101.0
    grid = min(
        first + 100 * max(float(row[1]) / (1 - float(row[0]) / first) if first > row[0] else math.inf for row in rows)
        for first in (1 + i * 1e-4 for i in range(50_000))
    )
    assert lopsided.energy == pytest.approx(grid, rel=1e-6)


def test_classes_that_follow_from_others_change_nothing():
    rules = [rule("wide", 1.0, 1.0), rule("same", 1.0, 1.0), rule("less", 0.2, 1.0)]
    parts = [Part(f"b{i}", ("wide", "same", "less"), 100 * (i + 1), M) for i in range(4)]
    alone = [replace(part, classes=("wide",)) for part in parts]
    assert allocation.budget_stds(rules, parts).stds == allocation.budget_stds(rules[:1], alone).stds


def test_many_classes_over_a_deep_model_are_solved_in_time():
    """Forty bands over a hundred layers; and one that could hardly be further away from the others."""
    import time

    rng = random.Random(3)
    rules = [rule(f"c{k}", rng.uniform(0.3, 4), rng.uniform(0.1, 2)) for k in range(40)]
    bands = [sorted((rng.randrange(100), rng.randrange(100))) for _ in rules]
    parts = [
        Part(f"b{i}", tuple(r.name for r, (a, b) in zip(rules, bands, strict=True) if a <= i <= b), 7_000_000, M)
        for i in range(100)
    ]
    parts = [part if part.classes else replace(part, share=0) for part in parts]
    start = time.perf_counter()
    found = allocation.budget_stds(rules, parts)
    assert time.perf_counter() - start < 20
    assert found.gap < 1e-9
    far = [rule("tiny", 0.001, 0.000001), rule("huge", 1000.0, 1000.0)]
    shared = [Part("low", ("tiny",), 10, M), Part("mid", ("tiny", "huge"), 10**9, M), Part("high", ("huge",), 1, M)]
    found = allocation.budget_stds(far, shared)
    held = noised(shared, found.stds)
    assert all(constraint(own, held) <= 1 for own in far) and found.gap < 1e-9
    assert held[0].std == pytest.approx(0.001 * 0.000001 * math.sqrt(0.5), rel=1e-3), "the small class pays for itself alone"


@pytest.mark.parametrize("fault", ["less", "more", "share", "scale", "silent", "loud"])
def test_an_auditor_refuses_another_schedule(fault):
    rules = [rule("a", 1.0, 1.0), rule("b", 2.0, 1.0)]
    parts = [Part("x", ("a",), 50, M), Part("y", ("a", "b"), 200, M), Part("z", ("b",), 1000, 2 * M), Part("f", (), 5)]
    held = noised(parts, allocation.budget_stds(rules, parts).stds)
    allocation.check_budgets(rules, BUDGETS, held)
    wrong = {
        "less": lambda part: replace(part, std=part.std * (1 - 1e-6)),
        "more": lambda part: replace(part, std=part.std * 1.01),
        "share": lambda part: replace(part, share=3 * M) if part.share else part,
        "scale": lambda part: replace(part, share=3 * part.share),
        "silent": lambda part: replace(part, std=0.0),
        "loud": lambda part: replace(part, std=1.0) if not part.classes else part,
    }[fault]
    with pytest.raises(ValueRefused, match=r"block|class|energy"):
        allocation.check_budgets(rules, BUDGETS, [wrong(part) for part in held])


def test_the_effective_noise_of_a_class_is_rounded_down_and_never_below_the_least():
    rng = random.Random(4)
    for _ in range(300):
        size = rng.randint(1, 12)
        stds = [10 ** rng.uniform(-6, 3) for _ in range(size)]
        shares = [rng.randint(1, 10**9) for _ in range(size)]
        found = allocation.effective_std(stds, shares)
        whole = sum(share**2 for share in shares)
        inverse = sum(Fraction(share**2, whole) / Fraction(std) ** 2 for std, share in zip(stds, shares, strict=True))
        assert Fraction(found) ** 2 * inverse <= 1
        assert Fraction(math.nextafter(found, math.inf)) ** 2 * inverse > 1 - Fraction(1, 2**100)
        assert found >= min(stds)
        order = list(range(size))
        rng.shuffle(order)
        assert allocation.effective_std([stds[i] for i in order], [shares[i] for i in order]) == found
    assert allocation.effective_std([0.7, 0.7, 0.7], [1, 2, 3]) == 0.7
    assert allocation.effective_std([3.0, 0.7, 2.0]) == allocation.effective_std([3.0, 0.7, 2.0], [1, 0, 1]) == 0.7


def wastes(rules, parts):
    """The waste meter of every private class: the multiplier at its own bounds, by the one that it signed."""
    private = [own for own in rules if not own.public]
    found = {own.name: allocation.effective_multiplier(own.bounds, [allocation.class_std(own, parts)]) for own in private}
    return {own.name: allocation.waste(found[own.name], own.bounds.noise_multiplier) for own in private}


def test_the_programme_gives_every_class_its_multiplier_and_some_exactly():
    rng = random.Random(5)
    for _ in range(100):
        rules, parts = random_parts(rng)
        held = noised(parts, allocation.budget_stds(rules, parts).stds)
        found = wastes(rules, held)
        assert min(found.values()) == pytest.approx(1.0, abs=1e-9) and min(found.values()) >= 1.0


def test_proposition_3_energies_by_hand():
    """A demanding class in the top fifth, four times the noise: a quarter of the energy, as 0.2 + 0.8 / 16."""
    rules = [rule("top", 2.0, 2.0), rule("all", 1.0, 1.0)]
    parts = [Part("low", ("all",), 800), Part("high", ("top", "all"), 200), Part("frozen", (), 77)]
    found = allocation.energies(rules, noised(parts, [1.0, 4.0, 0.0]))
    assert (found.scheduled, found.routed, found.uniform, found.bound) == (4000.0, 4000.0, 16000.0, 4000.0)
    assert found.of_uniform == pytest.approx(0.25) and found.gap == 0.0
    assert pytest.approx(found.of_uniform) == 0.2 + 0.8 / 16
    larger = [replace(part, coordinates=size) for part, size in zip(parts, (700, 300, 1), strict=True)]
    more = allocation.energies(rules, noised(larger, [1.0, 4.0, 0.0]))
    assert more.of_uniform == pytest.approx(0.34, abs=0.005)
    assert wastes(rules, noised(parts, [1.0, 4.0, 0.0])) == {"top": 1.0, "all": 1.0}
    apart = [replace(parts[0], classes=("top",)), replace(parts[1], classes=("all", "top"))]
    assert wastes(rules, noised(apart, [4.0, 4.0])) == {"top": 1.0, "all": 4.0}, "overlap with louder noise is waste"


def test_energies_with_budgets_are_bounded_by_the_dual():
    rules = [rule("a", 1.0, 1.0), rule("b", 1.0, 0.5)]
    parts = [Part("x", ("a",), 10_000, 200_000), Part("y", ("a", "b"), 100, M), Part("z", ("b",), 1000, 2 * M)]
    found = allocation.energies(rules, noised(parts, allocation.budget_stds(rules, parts).stds))
    assert found.bound <= found.scheduled < 0.5 * found.routed < found.uniform and found.gap < 1e-9


@pytest.mark.parametrize(
    "call",
    [
        lambda: allocation.effective_std([]),
        lambda: allocation.effective_std([1.0, math.nan]),
        lambda: allocation.effective_std([1.0, -1.0]),
        lambda: allocation.effective_std([1.0, 2.0], [1]),
        lambda: convex.solve([1.0], []),
        lambda: convex.solve([1.0], [{}]),
        lambda: convex.solve([0.0], [{0: Fraction(1)}]),
        lambda: convex.solve([1.0], [{0: Fraction(0)}]),
        lambda: allocation.demands([rule("a", 1.0, 1.0)], [Part("x", ("b",), 1, 1)]),
        lambda: allocation.demands([rule("a", 1.0, 1.0)], [Part("x", ("a",), 1, 0)]),
        lambda: allocation.energies([rule("a", 1.0, 1.0)], [Part("x", (), 1, 0)]),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call):
    with pytest.raises(ValueRefused):
        call()


def test_the_exact_check_is_never_true_where_the_constraint_fails_by_less_than_its_grid():
    for excess, fits in ((Fraction(0), True), (Fraction(1, 2**300), False), (Fraction(-1, 2**300), True)):
        assert convex.feasible([1.0], [{0: 1 + excess}]) is fits
        assert convex.feasible([1.0, 2.0], [{0: Fraction(1, 2) + excess, 1: Fraction(2)}]) is fits


def test_the_exact_check_is_never_true_where_the_constraint_fails():
    """Random points on either side of a constraint, down to one unit in the last place."""
    rng = random.Random(6)
    for _, size in itertools.product(range(100), (1, 2, 7)):
        row = {i: Fraction(rng.randint(1, 10**12), 10**12) for i in range(size)}
        stds = [math.sqrt(size * float(row[i])) for i in range(size)]
        for steps in range(-3, 4):
            moved = [s * (1 + steps * 2.0**-52) for s in stds]
            true = sum((row[i] / Fraction(moved[i]) ** 2 for i in range(size)), Fraction(0))
            said = convex.feasible(moved, [row])
            assert not said or true <= 1
            assert said or true > 1 - Fraction(size + 1, 2**100)
