"""Arms of private LoRA training are what their papers say, share one loop, and have equally many trials."""

import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from peft import LoraConfig, inject_adapter_in_model  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks import prism  # noqa: E402
from benchmarks.prism import arms, compare, harness, shapes, tasks, toy  # noqa: E402
from benchmarks.prism.arms import ARMS, CONTROLS, balanced, starts  # noqa: E402
from dptrain.geometry import TangentAdam, TangentSGD  # noqa: E402
from recipes.correlated_noise import SELECTING, Results  # noqa: E402

M, N, R = 6, 5, 2
LR, TAU = 0.05, 0.3


def made(seed: int = 0, m: int = M, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, R, generator=generator, dtype=torch.float64) for rows in (m, n))


def walk(name: str, steps: int = 3, arm: arms.Arm | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Takes steps of an arm on given gradients G of the product, and returns the factors before and after each."""
    arm = arm or ARMS[name]
    A, B = made()
    kept: arms.Kept = {}
    found = [(A.numpy(), B.numpy())]
    for G in products(steps):
        A, B = arm.before(A, B)
        at = arm.geometry(A, B)
        A, B = arm.step(kept, at, at.project(*at.coordinates(G @ B, G.mT @ A)), LR, TAU)
        found.append((A.numpy(), B.numpy()))
    return found


def products(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(M, N, generator=generator, dtype=torch.float64) for _ in range(steps)]


def scalar(steps: int, entry, move) -> list[tuple[np.ndarray, np.ndarray]]:
    """Moves both factors entry by entry, in plain numbers: ``move`` takes the entry's past gradients and tells its step."""
    A, B = (value.numpy() for value in made())
    past: dict[tuple[int, int, int], list[float]] = {}
    found = [(A, B)]
    for G in products(steps):
        gradients = (G.numpy() @ B, G.numpy().T @ A)
        fresh = []
        for side, (factor, g) in enumerate(zip((A, B), gradients, strict=True)):
            direction = np.zeros_like(factor)
            for i, j in np.ndindex(*factor.shape):
                past.setdefault((side, i, j), []).append(float(g[i, j]))
                direction[i, j] = entry(past[side, i, j])
            fresh.append(move(side, factor, direction))
        A, B = fresh
        found.append((A, B))
    return found


def of_adam(past: list[float], beta: float = 0.999, floor: float | None = None) -> float:
    t = len(past)
    m = sum(0.1 * 0.9 ** (t - 1 - k) * g for k, g in enumerate(past)) / (1 - 0.9**t)
    v = sum((1 - beta) * beta ** (t - 1 - k) * g * g for k, g in enumerate(past)) / (1 - beta**t)
    if floor is not None:
        v = max(v - TAU**2, floor * TAU**2)
    return m / (math.sqrt(v) + 1e-8)


def to_length(factor: np.ndarray, direction: np.ndarray) -> np.ndarray:
    direction = direction + arms.DECAY * factor
    return direction * np.linalg.norm(factor) / np.linalg.norm(direction)


NAIVE = {
    "sgd": (lambda past: past[-1], lambda side, f, d: f - LR * d),
    "adam": (of_adam, lambda side, f, d: f - LR * d),
    "adamw": (of_adam, lambda side, f, d: f * (1 - LR * arms.DECAY) - LR * d),
    "lora_plus": (of_adam, lambda side, f, d: f - LR * (16.0 if side == 0 else 1.0) * d),
    "lamb": (of_adam, lambda side, f, d: f - LR * to_length(f, d)),
    "adam_bc": (lambda past: of_adam(past, floor=arms.BC_FLOOR), lambda side, f, d: f - LR * d),
    "ffa": (of_adam, lambda side, f, d: f - LR * d if side == 0 else f),
    "ffa_sgd": (lambda past: past[-1], lambda side, f, d: f - LR * d if side == 0 else f),
}


@pytest.mark.parametrize("name", NAIVE)
def test_an_arm_of_factors_moves_them_as_plain_numbers_say(name) -> None:
    for found, expected in zip(walk(name), scalar(3, *NAIVE[name]), strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("beta", [0.999, 0.99])
def test_lora_rite_is_what_its_algorithm_says_with_frames_of_another_kind(beta) -> None:
    """The paper's QR decomposition in the place of the harness's frames: the factors do not depend on which it is."""
    A, B = (value.numpy() for value in made())
    state = {side: {"V": None, "m": 0.0, "v": 0.0, "rho": 0.0} for side in "AB"}
    expected = [(A, B)]
    for t, G in enumerate(products(3), 1):
        fresh = []
        for side, factor, other, gradient in (("A", A, B, G.numpy() @ B), ("B", B, A, G.numpy().T @ A)):
            kept = state[side]
            U, S = np.linalg.qr(other)
            g = gradient @ np.linalg.inv(S)
            v, m, rho = np.zeros((R, R)), np.zeros_like(g), 0.0
            if kept["V"] is not None:
                P = U.T @ kept["V"]
                v, m = P @ kept["v"] @ P.T, kept["m"] @ P.T
                fall = np.max(np.linalg.eigvalsh(kept["v"]) - np.linalg.eigvalsh(v))
                rho = beta * (kept["rho"] + max(fall, 0.0))
            v = beta * v + (1 - beta) * g.T @ g / len(g)
            sizes, turn = np.linalg.eigh((v + rho * np.eye(R)) / (1 - beta**t))
            m = 0.9 * m + 0.1 * g @ turn @ np.diag(1 / (np.sqrt(sizes) + 1e-8)) @ turn.T
            kept |= {"V": U, "m": m, "v": v, "rho": rho}
            fresh.append(factor - LR * m / (1 - 0.9**t) @ np.linalg.inv(S).T)
        A, B = fresh
        expected.append((A, B))
    arm = ARMS["rite"] if beta == 0.999 else CONTROLS["rite_99"]
    for found, wanted in zip(walk("rite", arm=arm), expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["balanced_sgd", "balanced_adam"])
def test_a_rebalanced_arm_is_the_plain_one_from_the_balanced_pair(name) -> None:
    A, B = balanced(*made())
    plain = ARMS[name.removeprefix("balanced_")]
    G = products(1)[0]
    at = plain.geometry(A, B)
    expected = plain.step({}, at, at.coordinates(G @ B, G.mT @ A), LR, TAU)
    found = walk(name, 1)[-1]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-9)


def test_rebalancing_changes_no_product_and_takes_the_nearest_balanced_pair() -> None:
    for seed in range(4):
        A, B = made(seed)
        A[:, 0] *= 30.0
        a, b = balanced(A, B)
        torch.testing.assert_close(a @ b.mT, A @ B.mT, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(a.mT @ a, b.mT @ b, rtol=1e-10, atol=1e-10)
        near = (a - A).square().sum() + (b - B).square().sum()
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            turn = torch.linalg.qr(torch.randn(R, R, generator=generator, dtype=torch.float64))[0]
            assert near <= (a @ turn - A).square().sum() + (b @ turn - B).square().sum() + 1e-9
        again = balanced(a, b)
        torch.testing.assert_close(again[0], a, rtol=1e-9, atol=1e-9)
    A[:, 1] = A[:, 0]
    assert torch.equal(balanced(A, B)[0], A), "a pair below rank r stays"


@pytest.mark.parametrize("name", ["ffa", "ffa_sgd"])
def test_ffa_never_moves_lora_a_whatever_the_noise(name) -> None:
    model = small()
    harness.start(model, "balanced", 1)
    recorder = harness.Recorder(model)
    before = recorder.stacks[0].factors()
    rows = examples()
    harness.fit(recorder, ARMS[name], harness.Plan(0.1, 1.0, 2.0, 0.5, 3, 1), loss, rows, rows)
    after = recorder.stacks[0].factors()
    assert torch.equal(after[1], before[1]) and not torch.equal(after[0], before[0])
    generator = torch.Generator().manual_seed(1)
    at = ARMS[name].geometry(*before)
    noise = at.project(*(torch.randn(value.shape, generator=generator) for value in before))
    assert at.dim == before[0].numel() and not noise[1].any() and noise[0].all()


class Small(nn.Module):
    """A model with pairs of two shapes and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.down = nn.Linear(N, M), nn.Linear(N, M), nn.Linear(M, 4)
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.down(torch.tanh(self.q(x)) * self.k(x)).mean(1))


def small(head: bool = True) -> nn.Module:
    torch.manual_seed(3)
    model = Small()
    model.requires_grad_(False)
    lora = LoraConfig(r=R, lora_alpha=3, target_modules=["q", "k", "down"])
    model = inject_adapter_in_model(lora, model).double()
    model.classifier.requires_grad_(head)
    return model.eval()


def examples(count: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return {"x": torch.randn(count, 7, N, generator=generator, dtype=torch.float64), "labels": labels}


def loss(model: nn.Module, rows) -> torch.Tensor:
    return nn.functional.cross_entropy(model(rows["x"]), rows["labels"], reduction="none")


def test_gradients_of_each_row_are_those_of_the_row_alone() -> None:
    model = small()
    harness.start(model, "balanced", 1)
    recorder = harness.Recorder(model)
    rows = examples()
    stacks, heads = recorder.gradients(loss, rows)
    assert sorted(len(stack.pairs) for stack in recorder.stacks) == [1, 2]
    for row in range(6):
        model.zero_grad()
        loss(model, {name: value[row : row + 1] for name, value in rows.items()}).sum().backward()
        for stack, (gA, gB) in zip(recorder.stacks, stacks, strict=True):
            for place, pair in enumerate(stack.pairs):
                torch.testing.assert_close(gA[row, place], pair.A.grad)
                torch.testing.assert_close(gB[row, place], pair.Bt.grad.mT)
        head = torch.cat([model.classifier.weight.grad, model.classifier.bias.grad[:, None]], -1)
        torch.testing.assert_close(heads[0][row], head)


@pytest.mark.parametrize("name", ARMS)
def test_norms_of_rows_do_not_change_with_what_lies_in_other_rows(name) -> None:
    model = small()
    harness.start(model, "balanced", 1)
    recorder, rows = harness.Recorder(model), examples()
    charts = [ARMS[name].geometry(*stack.factors()) for stack in recorder.stacks]
    before = harness.charted(recorder, charts, loss, rows)[2]
    rows["x"][2] *= 50.0
    after = harness.charted(recorder, charts, loss, rows)[2]
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(after[others], before[others], rtol=1e-12, atol=0.0)
    assert after[2] != before[2]


def test_a_start_leaves_the_function_of_the_model_as_it_was() -> None:
    rows = examples()
    expected = small()(rows["x"])
    for kind in ("zero", "balanced", "spectral"):
        model = small()
        harness.start(model, kind, 1)
        torch.testing.assert_close(model(rows["x"]), expected)
        ranks = [int(torch.linalg.matrix_rank(pair.A)) for pair in harness.find_pairs(model)]
        assert ranks == [0 if kind == "zero" else R] * 3


@pytest.mark.parametrize("name, kind", [("tangent_sgd", TangentSGD), ("tangent_adam", TangentAdam)])
def test_arms_along_the_tangent_space_are_the_optimizers_of_the_library(name, kind) -> None:
    ours, theirs = small(False), small(False)
    rows = examples()
    for model in (ours, theirs):
        harness.start(model, "balanced", 1)
    recorder, other = harness.Recorder(ours), harness.Recorder(theirs)
    rate = 0.1
    plan = harness.Plan(rate, 1.0, None, 1.0, 3, 1)
    C = harness.fit(recorder, ARMS[name], plan, loss, rows, rows)["clip_norm"]
    optimizer = kind(theirs, lr=rate if name == "tangent_adam" else rate / C)
    for _ in range(3):
        stacks, _ = other.gradients(loss, rows)
        optimizer.zero_grad()
        for stack, (gA, gB) in zip(other.stacks, stacks, strict=True):
            at = ARMS[name].geometry(*stack.factors())
            found = at.lift(gA.mean(0), gB.mean(0))
            for place, pair in enumerate(stack.pairs):
                where = [mine.a for mine in optimizer.pairs].index(pair.a)
                one = type(found)(*(value[place] for value in (found.X, found.Y, found.U, found.V)))
                optimizer.take(where, one)
        optimizer.step()
    for mine, its in zip(recorder.pairs, other.pairs, strict=True):
        torch.testing.assert_close(mine.A @ mine.Bt, its.A @ its.Bt, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["sgd", "tangent_sgd", "adam"])
def test_what_is_released_is_the_clipped_sum_over_the_expected_size_with_noise_of_sigma_c(name, monkeypatch) -> None:
    seen: list[tuple[torch.Tensor, ...]] = []

    def watch(kept, at, released, lr, tau):
        seen.append((*released, torch.tensor(tau)))
        return at.tensors

    arm = arms.Arm("watched", ARMS[name].geometry, watch)
    rows, q, sigma = examples(), 0.5, 0.7
    model = small(False)
    harness.start(model, "balanced", 1)
    recorder = harness.Recorder(model)
    charts = [arm.geometry(*stack.factors()) for stack in recorder.stacks]
    coordinates, _, norms = harness.charted(recorder, charts, loss, rows)
    C = 1.05 * float(norms.median())
    drawn = torch.rand(6, generator=torch.Generator().manual_seed(11)) < q
    weights = (C / norms).clamp_max(1.0) * drawn
    assert 0 < int(drawn.sum()) < 6 and len(set((weights[drawn] < 1).tolist())) == 2, "some are clipped and some are not"
    harness.fit(recorder, arm, harness.Plan(0.1, 1.05, sigma, q, 1, 1, microbatch=2), loss, rows, rows)
    noise = torch.Generator().manual_seed(12)
    for released, values, at in zip(seen, coordinates, charts, strict=True):
        sums = [torch.tensordot(weights, value, 1) / 3.0 for value in values]
        tau = sigma * C / 3.0
        assert float(released[2]) == pytest.approx(tau)
        expected = at.project(*(value + tau * torch.randn(value.shape, generator=noise).double() for value in sums))
        for one, other in zip(released, expected, strict=False):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["adam", "ffa", "tangent_sgd"])
def test_norms_of_the_toy_are_those_of_materialised_gradients(name) -> None:
    generator = torch.Generator().manual_seed(1)
    A, B = (torch.randn(3, rows, R, generator=generator, dtype=torch.float64) for rows in (M, N))
    d, x = (torch.randn(3, 4, rows, generator=generator, dtype=torch.float64) for rows in (M, N))
    at = ARMS[name].geometry(A, B)
    found = toy.norms(at, d, x)
    for b in range(4):
        G = d[:, b, :, None] * x[:, b, None, :]
        values = at.coordinates(G @ B, G.mT @ A)
        torch.testing.assert_close(found[:, b].square(), sum(value.square().sum((-2, -1)) for value in values))


def test_the_toy_learns_without_privacy_and_counts_failed_trials_as_infinitely_wrong() -> None:
    setting = toy.Setting(m=12, n=10, rank=R, contributions=300, q=0.3, steps=60)
    errors = toy.train(ARMS["tangent_sgd"], setting, (1, 2), [0.1, 1e5], None)
    assert errors.shape == (2, 2) and bool((errors[:, 0] < 0.1).all()) and bool(torch.isinf(errors[:, 1]).all())


def test_a_spectral_start_takes_the_leading_part_of_the_base() -> None:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(M, N, generator=generator, dtype=torch.float64)
    A, B = starts("spectral", M, N, R, generator, base=base)
    left, sizes, right = torch.linalg.svd(base, full_matrices=False)
    torch.testing.assert_close(A @ B.mT, left[:, :R] * sizes[:R] @ right[:R])
    with pytest.raises(ValueError, match="base weight"):
        starts("spectral", M, N, R, generator)
    with pytest.raises(ValueError, match="expected zero, balanced or spectral"):
        starts("warm", M, N, R, generator)


def test_every_arm_has_equally_many_trials() -> None:
    counts = {len(toy.trials(arm, True)[0]) for arm in toy.ALL.values()}
    assert counts == {len(toy.CLIPS) * len(toy.RATES[True])} and len(toy.RATES[True]) == len(toy.RATES[False])
    assert len(compare.RATES[True]) == len(compare.RATES[False])


@pytest.mark.skipif(not prism.RESULTS.exists(), reason="nothing was measured")
def test_results_hold_equally_many_trials_of_every_arm_and_choose_on_other_seeds() -> None:
    rows = Results(prism.RESULTS).rows
    for private in (True, False):
        assert len({row["trials"] for row in rows if row["part"] == "toy" and row["private"] is private}) <= 1
    for task in {row["task"] for row in rows if row["part"] == "task"}:
        own = [row for row in rows if row["part"] == "task" and row["task"] == task]
        trials: dict[tuple[str, float | None], int] = {}
        for row in own:
            trials.setdefault((row["arm"], row["epsilon"]), 0)
            trials[row["arm"], row["epsilon"]] += row["seed"] == SELECTING
        tried = {epsilon for (_, epsilon), count in trials.items() if count}
        for epsilon in tried:
            assert len({count for (_, at), count in trials.items() if at == epsilon and count}) == 1
    assert not set(toy.CHOOSING) & set(toy.REPORTING)
    assert list(toy.lines_of(rows)) and list(shapes.lines_of(rows)) and list(compare.tasks_lines(rows))


def test_a_comparison_chooses_at_the_first_epsilon_and_reports_on_other_seeds(tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def measure(ready, key):
        asked.append((key["epsilon"], key["start"], key["lr"], key["seed"]))
        return {"choosing": key["lr"] if key["start"] == "zero" else -1.0, "reporting": 0.5 + key["seed"] / 100}

    rows = examples()
    ready = tasks.Ready(
        "sst2", small, rows, rows, rows, rows, loss, loss, sizes={"model": "m", "contributions": 9, "steps": 2, "draws": 3}
    )
    results = Results(tmp_path / "found.json")
    for _ in range(2):  # a second call finds all of it done
        compare.run(results, ready, ["adam", "tangent_sgd"], [3.0, 1.0], [1, 2], measure=measure)
    trials = len(compare.STARTS) * len(compare.RATES[True])
    assert len(asked) == 2 * (trials + 2 + 2)
    assert asked[trials : trials + 2] == [(3.0, "zero", compare.RATES[True][-1], seed) for seed in (1, 2)]
    lines = list(compare.lines_of(results.rows, "sst2"))
    assert any("DP-Adam | 6 | 51.5 ± 0.7 (2; zero, 0.064)" in line for line in lines) and "+0.0" in lines[-1]


def test_the_table_of_tasks_names_twelve_and_says_which_were_not_run() -> None:
    lines = list(compare.tasks_lines([]))
    assert len(tasks.TWELVE) == 12 and len(lines) == 2 + len(tasks.TASKS)
    assert all("not run" in line for line in lines[2:])


def test_the_command_runs_a_toy_and_prints_tables(tmp_path: Path, monkeypatch, capsys) -> None:
    tiny = toy.Setting(m=8, n=8, rank=R, contributions=50, q=0.2, steps=2)
    monkeypatch.setattr(toy.run, "__defaults__", (tuple(toy.ALL), (tiny,)))
    found = tmp_path / "found.json"
    assert prism.main(["--task", "toy", "--arms", "sgd", "tangent_adam", "--results", str(found), "--table"]) == 0
    told = capsys.readouterr().out
    assert "tangent Adam (ours)" in told and len(Results(found).rows) == 4


def test_shapes_of_a_small_model_are_measured_in_every_part(monkeypatch) -> None:
    monkeypatch.setattr(shapes, "MODELS", {"tiny": shapes.llama("tiny", 2, 16, 8, 24, 4)})
    found = shapes.measured("tiny")
    assert set(shapes.PARTS) < set(found) and shapes.MODELS["tiny"].pairs == 14


def test_records_of_word_problems_become_prompts_and_completions() -> None:
    row = {"Question": "Cups number0 and number1 ?", "Numbers": "8.0 2.5", "Equation": "- number0 number1", "Answer": "5.5"}
    assert tasks._numbered(row) == {"prompt": "Cups 8 and 2.5 ?\n", "completion": "- 8 2.5 = 5.5"}
    svamp = {"Body": "A pack costs 7.", "Question": "How much?", "Equation": "( 7.0 )", "Answer": 7.0}
    assert tasks.TASKS["svamp"].row(svamp) == {"prompt": "A pack costs 7. How much?\n", "completion": "( 7.0 ) = 7.0"}
    pair = tasks.TASKS["mnli"].row({"premise": "It rains.", "hypothesis": "It is wet.", "label": 0})
    assert pair == {"text": "It rains.\nIt is wet.", "label": 0}
    assert tasks.TASKS["stsb"].row({"sentence1": "a", "sentence2": "b", "label": 3.8})["label"] == 4
