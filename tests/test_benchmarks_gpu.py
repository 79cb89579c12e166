"""``make gpu`` on the CPU: every path that it takes, with tiny models; what it reckons; nothing is left out in silence."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from benchmarks import gpu, variants  # noqa: E402
from benchmarks.bases import Step, unmarked  # noqa: E402
from benchmarks.configs import PEERS, Config, Pictures, Tier, replace  # noqa: E402
from benchmarks.variants import VARIANTS, absent_from  # noqa: E402
from dptrain.clipping import fast as sums  # noqa: E402
from dptrain.noise import DeviceGaussian, LatticeGaussian, speed  # noqa: E402

MODELS = ("gpt2_smoke", "llama_lora_smoke", "vit_smoke")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No code is generated: what is compiled runs as it was traced; noise is measured on a few thousand coordinates."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    monkeypatch.setattr("torch._inductor.compile", lambda graph, values: graph)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(gpu, "WARM_UP", {"ours_compiled": 2})
    monkeypatch.setattr(speed, "COORDINATES", 1 << 12)
    monkeypatch.setattr(speed, "_FEW", 1 << 8)


def ran(monkeypatch: pytest.MonkeyPatch, capsys, *options: str) -> tuple[dict[str, Any], str]:
    """What the command prints, as it would for ``make gpu``, and what it says on the way."""
    monkeypatch.setattr(sys, "argv", ["gpu", "--smoke", "--rounds", "1", *options])
    gpu.main()
    out, told = capsys.readouterr()
    assert len(out.splitlines()) == 1, "one JSON object on standard output, and nothing else"
    return json.loads(out), told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("models", [MODELS[:1], pytest.param(MODELS, marks=pytest.mark.slow)], ids=["one", "all"])
def test_every_path_of_the_gpu_suite_is_walked_on_the_cpu(
    models: tuple[str, ...], quick: None, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Each model, all rows: plain, ours with noise of both generators, peers, both compiled ones; correctness before."""
    drawn = set()
    for kind in (DeviceGaussian, LatticeGaussian):

        def listening(self, *args, release=kind.release_, name=kind.__name__, **where):
            drawn.add(name)
            return release(self, *args, **where)

        monkeypatch.setattr(kind, "release_", listening)
    found, told = ran(monkeypatch, capsys, *(("--only", *models) if models != MODELS else ()))
    assert tuple(found["results"]) == models and found["left_out"] == [] and found["logical"] == [8, 16, 32]
    assert drawn == {"DeviceGaussian", "LatticeGaussian"}
    for name, rows in found["results"].items():
        assert tuple(rows) == gpu.ORDER and set(PEERS) < set(rows)
        gone = {row: rows[row]["absent"] for row in rows if "absent" in rows[row]}
        assert set(gone) <= {"opacus_ghost", "fastdp"} | set(PEERS), gone
        assert gone.get("fastdp") == "fastDP is not installed" or variants.find_spec("fastDP")
        assert ("opacus_ghost" in gone) is (name == "gpt2_smoke") or not variants.find_spec("opacus")
        for row in rows.values():
            if "absent" in row:
                continue
            assert list(row["batches"]) == ["8", "16", "32"] and row["microbatches"] == 4
            assert [batch["how"] for batch in row["batches"].values()] == ["run", "reckoned", "reckoned"]
            unit = "pictures" if name == "vit_smoke" else "tokens"
            for size, batch in row["batches"].items():
                each = 1 if unit == "pictures" else 16
                assert batch[f"{unit}_per_s"] == pytest.approx(int(size) * each / batch["step_s"])
                assert batch["base"] in ("non_private", "non_private_compiled") and batch["ratio"] > 0
    assert [item["config"] for item in found["checked"]] == list(models)
    assert all(item["run_s"] > 0 and item["contributions"] == 16 for item in found["checked"])
    assert found["how"] == gpu.HOW and found["spent_s"] >= found["correctness_s"] > 0
    assert {row["family"] for row in found["noise"]["draws"] if row["generator"] == "device" and row["drawn"]} == {"gaussian"}
    assert told.index("sums beside a loop") < told.index("non_private"), "correctness comes first"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_compiled_rows_run_through_the_real_compiler(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    rows = ["--variants", "non_private", "non_private_compiled", "ours_compiled"]
    found, _ = ran(monkeypatch, capsys, "--only", "vit_smoke", *rows)
    for results in found["results"].values():
        assert all("step_s" in row for row in results.values()), results


def test_what_does_not_fit_into_the_budget_is_listed_and_what_was_asked_for_is_all_there(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(gpu, "exact", lambda device: {})
    found, told = ran(monkeypatch, capsys, "--budget", "0", "--variants", "non_private", "ours_fast")
    listed = {(item["config"], item["variant"]) for item in found["left_out"]}
    assert listed == {(name, row) for name in MODELS for row in ("non_private", "ours_fast")}
    assert all("budget of 0 s" in row["left_out"] for rows in found["results"].values() for row in rows.values())
    assert told.count("left_out: the budget of 0 s was spent") == 6 and found["checked"] == []


def test_a_row_is_stopped_when_the_budget_ends_and_the_rows_before_it_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def endless(config: Config) -> Iterator[Step]:
        def step(mark: Any = unmarked) -> None:
            while True:
                try:
                    time.sleep(0.01)
                except Exception:  # as a program that goes on whatever happens
                    continue

        yield step

    @contextmanager
    def brief(config: Config) -> Iterator[Step]:
        def step(mark: Any = unmarked) -> None:
            for _ in range(config.contributions // config.microbatch):
                mark()

        yield step

    monkeypatch.setattr(gpu.gc, "collect", lambda: 0)  # all that other tests left is no part of the row
    monkeypatch.setitem(VARIANTS, "non_private", brief)
    monkeypatch.setitem(VARIANTS, "ours_fast", endless)
    config = gpu.configs(smoke=True)[2]
    rows = ("non_private", "ours_fast", "opacus_hooks")
    found = gpu.table([config], rows, 1, (8, 16), gpu.Budget(1.0), lambda line: None)
    table = found["results"]["vit_smoke"]
    assert table["non_private"]["batches"]["16"]["ratio"] == 1.0
    assert "s of this row" in table["ours_fast"]["left_out"] and "after earlier rows" in table["opacus_hooks"]["left_out"]
    assert [item["variant"] for item in found["left_out"]] == ["ours_fast", "opacus_hooks"]


def test_a_budget_stops_what_loses_the_first_error_that_stops_it() -> None:
    """As a finalizer does in which the signal comes."""
    lost = 0
    with pytest.raises(gpu.OutOfTime), gpu.Budget(0.2).limit():
        for _ in range(1000):
            try:
                time.sleep(0.01)
            except gpu.OutOfTime:
                lost += 1
                if lost > 1:
                    raise
    assert lost == 2


class Clock:
    """Seconds that pass only where a step lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(gpu.time, "perf_counter", lambda: self.now)

    def variant(self, microbatch: float, once: float, first: float = 0.0) -> Any:
        """A step whose microbatches take so long, the first a little longer, and what comes once."""

        @contextmanager
        def made(config: Config) -> Iterator[Step]:
            def step(mark: Any = unmarked) -> None:
                self.now += first
                for _ in range(config.contributions // config.microbatch):
                    self.now += microbatch
                    mark()
                self.now += once

            yield step

        return made


def test_a_larger_step_is_reckoned_by_microbatches_and_what_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setitem(VARIANTS, "non_private", clock.variant(1.0, 0.5))
    monkeypatch.setitem(VARIANTS, "ours_fast", clock.variant(1.25, 2.0, first=0.75))
    config = replace(gpu.configs(smoke=True)[0], tiers=(Tier("all", 16),), microbatch=4)
    found = gpu.table([config], ["non_private", "ours_fast"], 2, (16, 64, 256), gpu.Budget(1e3), lambda line: None)
    ours, plain = (found["results"]["gpt2_smoke"][name] for name in ("ours_fast", "non_private"))
    assert ours["microbatch_s"] == 1.25 and ours["step_s"] == 4 * 1.25 + 2.75 and ours["release_s"] == 2.75
    assert {size: batch["step_s"] for size, batch in ours["batches"].items()} == {"16": 7.75, "64": 22.75, "256": 82.75}
    assert ours["batches"]["256"]["ratio"] == pytest.approx(82.75 / (64 * 1.0 + 0.5)) and plain["release_s"] == 0.5
    assert ours["batches"]["64"]["tokens_per_s"] == pytest.approx(64 * 16 / 22.75)
    [checked] = found["checked"]
    assert checked["contributions"] == 64 and checked["run_s"] == checked["reckoned_s"] == 22.75 and checked["off"] == 0.0


def test_a_larger_step_that_does_not_fit_is_listed_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VARIANTS, "ours_fast", Clock(monkeypatch).variant(1000.0, 1.0))
    config = gpu.configs(smoke=True)[0]
    found = gpu.table([config], ["ours_fast"], 1, (8, 16), gpu.Budget(60.0), lambda line: None)
    assert found["checked"] == [] and "run whole needs some" in found["left_out"][0]["reason"]
    assert found["results"]["gpt2_smoke"]["ours_fast"]["batches"]["16"]["ratio"] is None, "no step without privacy ran"


def test_a_row_that_fails_is_absent_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken(config: Config) -> Iterator[Step]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\n2 GiB")
        yield

    monkeypatch.setitem(VARIANTS, "opacus_hooks", broken)
    found = gpu.table(gpu.configs(smoke=True)[:1], ["opacus_hooks"], 1, (8,), gpu.Budget(60.0), lambda line: None)
    assert found["results"]["gpt2_smoke"]["opacus_hooks"]["absent"].endswith("Tried to allocate")


def test_peers_that_are_not_installed_are_absent_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "find_spec", lambda package: None)
    config = gpu.configs(smoke=True)[1]
    assert {absent_from(config)[name] for name in PEERS} == {"opacus is not installed", "fastDP is not installed"}
    monkeypatch.setattr(variants, "find_spec", lambda package: SimpleNamespace())
    assert not set(PEERS) & set(absent_from(config))


def test_fastdp_is_called_as_its_engine_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for its engine: one backward pass a microbatch, and one step of the optimizer that it was attached to."""
    seen: dict[str, Any] = {"steps": 0}

    class Engine:
        def __init__(self, module: torch.nn.Module, **options: Any) -> None:
            print("as fastDP does")
            seen.update(options, module=module)

        def attach(self, optimizer: torch.optim.Optimizer) -> None:
            def step() -> None:
                seen["steps"] += 1
                seen["gradients"] = sum(p.grad is not None for p in seen["module"].parameters())

            optimizer.step = step

    monkeypatch.setitem(sys.modules, "fastDP", SimpleNamespace(PrivacyEngine=Engine))
    marks = []
    with VARIANTS["fastdp"](gpu.configs(smoke=True)[0]) as step:
        step(lambda: marks.append(1))
    assert seen["steps"] == 1 and len(marks) == 4 and seen["gradients"] > 0
    assert (seen["batch_size"], seen["max_grad_norm"], seen["clipping_fn"], seen["loss_reduction"]) == (8, 1.0, "Abadi", "sum")


# ---------------------------------------------------------------------------------------------------------- correctness


@pytest.mark.filterwarnings("ignore")
def test_the_gpu_suite_finds_the_routers_sums_equal_to_a_loop_and_stops_if_they_are_not(monkeypatch) -> None:
    found = gpu.exact("cpu")
    bounds = {name: value for name, value in found.items() if name.endswith("of the bound")}
    assert len(found) == 9 and len(bounds) == 3 and all(0.99 < value <= 1.0 for value in bounds.values())
    assert all(value < 1e-4 for name, value in found.items() if name not in bounds)
    exact = sums.FastSums.coefficients
    monkeypatch.setattr(sums.FastSums, "coefficients", lambda self, norms, bounds: exact(self, norms * 1.01, bounds))
    with pytest.raises(RuntimeError, match="from those of a loop"):
        gpu.exact("cpu")


@pytest.mark.filterwarnings("ignore")
def test_the_gpu_suite_stops_if_a_contribution_moves_a_sum_too_far_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = sums.FastSums.coefficients

    def rounded(self: sums.FastSums, norms: torch.Tensor, *rest: Any) -> torch.Tensor:
        low = norms.sqrt().bfloat16().double()
        return exact(self, (low * (1.0 - 2.0**-8)).square(), *rest)

    monkeypatch.setattr(gpu.exactness, "distance", lambda *given: 0.0)
    monkeypatch.setattr(sums.FastSums, "coefficients", rounded)
    with pytest.raises(RuntimeError, match="of its bound, expected 1 at most"):
        gpu.exact("cpu")


def test_the_gpu_suite_stops_if_noise_of_the_device_is_another_there(monkeypatch: pytest.MonkeyPatch) -> None:
    normals, calls = gpu.exactness.DeviceGaussian.normals, []

    def drifting(self, *address):
        calls.append(1)
        return normals(self, *address) * (1 + 1e-9 * len(calls))

    monkeypatch.setattr(gpu.exactness.DeviceGaussian, "normals", drifting)
    monkeypatch.setattr(gpu, "configs", lambda smoke: [])
    with pytest.raises(RuntimeError, match="draws other numbers there"):
        gpu.exact("cpu")


# ---------------------------------------------------------------------------------------------------- what a config reads


@pytest.mark.parametrize("config", gpu.configs(smoke=True), ids=lambda config: config.name)
def test_a_line_of_the_corpus_gives_the_row_that_the_steps_without_privacy_read(config: Config) -> None:
    inputs, labels = config.batch()
    assert len(inputs) == len(labels) == config.contributions
    read = [config.inputs.read(json.loads(json.dumps(config.inputs.recorded(row, i)))) for i, row in enumerate(inputs)]
    assert torch.equal(torch.stack(read), inputs)
    assert torch.equal(config.batch()[0], inputs)
    logits = config.logits(config.model(), inputs)
    assert logits.dtype is torch.float32 and logits.isfinite().all()


def test_pictures_are_of_a_few_kinds_so_that_a_corpus_of_thousands_stays_small() -> None:
    config = replace(gpu.configs(smoke=True)[2], tiers=(Tier("all", 10),), inputs=Pictures(8, distinct=4))
    inputs, _ = config.batch()
    assert inputs.shape == (10, 3, 8, 8) and len(inputs.unique(dim=0)) == 4
    assert torch.equal(inputs[1], inputs[5]) and not torch.equal(inputs[1], inputs[2])


def test_the_models_of_the_table_are_those_of_the_issue_and_are_made_on_their_device() -> None:
    sizes = {}
    for config in gpu.configs(smoke=False):
        assert config.device == "cuda" and config.half and config.contributions == 256
        model = replace(config, device="meta").model()
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}, "none was drawn on the processor"
        sizes[config.name] = sum(p.numel() for p in model.parameters()), sum(
            p.numel() for p in model.parameters() if p.requires_grad
        )
    assert 120e6 < sizes["gpt2_124m"][0] < 130e6 and 85e6 < sizes["vit_b"][0] < 88e6
    assert 1.0e9 < sizes["llama_1b_lora"][0] < 1.3e9 and sizes["llama_1b_lora"][1] < 15e6
    assert gpu.LOGICAL == (256, 1024, 4096) and gpu.BUDGET < 600


@pytest.mark.skipif(torch.cuda.is_available(), reason="would run the whole suite")
@pytest.mark.slow
def test_the_gpu_suite_says_that_there_is_no_cuda_and_succeeds() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], check=True, capture_output=True, text=True)
    assert "no CUDA device" in json.loads(done.stdout)["absent"]
