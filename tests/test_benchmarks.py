"""The benchmarks are code that must run: names and absences as documented, policies that parse, one tiny run of each suite."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from accelerate import Accelerator  # noqa: E402

from attest.policy import Policy  # noqa: E402
from benchmarks import gpu, noise, overheads, plan  # noqa: E402
from benchmarks.configs import CONFIGS, SCALING, Config, Tier, bert, by_name, few, replace  # noqa: E402
from benchmarks.step import render, run  # noqa: E402
from benchmarks.variants import _policy, absent_from, names_for  # noqa: E402
from dptrain.planning import measure  # noqa: E402
from dptrain.routing import sums  # noqa: E402

ALWAYS = {"ours_fast", "ours_certified", "ours_compiled", "opacus_hooks", "opacus_ghost"}


def test_every_configuration_names_every_variant_measured_or_absent_with_a_reason() -> None:
    named = {"bert_full", "gpt2_tied", "gpt2_untied", "bert_lora", "gpt2_lora", "bert_band25", "mixed3"}
    assert set(CONFIGS) == named
    for config in CONFIGS.values():
        measured, absent = set(names_for(config)), absent_from(config)
        assert measured | set(absent) >= ALWAYS and not measured & set(absent)
        assert all(absent.values())


@pytest.mark.parametrize(
    "config", [*CONFIGS.values(), *(c for g in SCALING.values() for c in g.values())], ids=lambda c: c.name
)
def test_policies_of_the_benchmarks_are_valid_and_admit_every_contribution(config) -> None:
    policy = Policy.from_toml(_policy(config))
    assert policy.normalizer == config.contributions == sum(tier.contributions for tier in config.tiers)
    assert by_name(config.name).name == config.name


def test_a_step_of_mixed_classes_runs_and_prints_the_table_as_json() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.step",
        "--config",
        "classes=2",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--no-memory",
    ]
    found = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)
    assert found["ours_fast"]["cpu_ratio"] > 0 and found["non_private_bands"]["wall_ratio"] > 0
    assert found["ours_compiled"]["cpu_ratio"] is None and "scaling runs" in found["ours_compiled"]["absent"]


TINY = Config(
    "tiny", 500, lambda: bert(2, 32, 500), classify=True, tiers=(Tier("all", 6),), layers=2, length=8, microbatch=2,
)  # fmt: skip


def test_every_variant_that_needs_no_compiler_runs_and_has_ratios() -> None:
    names = ["ours_fast", "ours_certified", "opacus_hooks", "opacus_ghost"]
    pytest.importorskip("opacus")
    table = run(TINY, 1, 1, memory=False, only=names)
    for name in names:
        assert table[name]["cpu_ratio"] > 0 and table[name]["wall_ratio"] > 0 and table[name]["rss_ratio"] is None, name
    assert "ours_certified" in render("tiny", table) and "absent" in table["non_private_bands"]


@pytest.mark.slow
def test_the_compiled_variant_runs_and_has_ratios() -> None:
    assert run(TINY, 1, 1, memory=False, only=["ours_compiled"])["ours_compiled"]["cpu_ratio"] > 0


def test_a_variant_that_fails_is_absent_with_its_reason_and_the_others_are_measured() -> None:
    def fails() -> torch.nn.Module:
        made.append(1)
        if len(made) == 2:
            raise RuntimeError("no such model\nat all")
        return bert(2, 32, 500)

    made: list[int] = []
    table = run(replace(TINY, model=fails), 1, 1, memory=False, only=["ours_fast", "ours_certified"])
    assert table["ours_fast"]["cpu_ratio"] is None and table["ours_fast"]["absent"] == "RuntimeError: no such model"
    assert table["ours_certified"]["cpu_ratio"] > 0


def test_rows_of_routing_ledger_and_noise_are_measured_beside_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "COORDINATES", 1 << 17)
    three = replace(TINY, tiers=(Tier("a", 2), Tier("b", 2), Tier("c", 2)))
    found = {
        "routing": overheads.routing(1, 1, {"one class": TINY, "three classes": three}),
        "ledger": overheads.ledger(2, 1, TINY),
        "noise": overheads.noise(1, 1),
    }
    assert found["ledger"]["cpu_ratio_windows_of_one"] > found["ledger"]["cpu_ratio"] > 1
    text = overheads.render(found)
    assert all(f"target {target:g}" in text for target in overheads.TARGETS.values()) and "numpy philox" in text


def test_every_generator_of_noise_is_measured_on_each_number_of_threads() -> None:
    found = noise.run(1, (1, 2), coordinates=1 << 17)
    assert all(cell["cpu_ns"] > 0 for rows in found["threads"].values() for cell in rows.values())
    text = noise.render(found)
    for name in (
        "dptrain release",
        "dptrain release device",
        "dptrain release laplace",
        "dptrain release discrete gaussian",
        "dptrain release skellam",
        "dptrain release skellam in 2 draws",
        "numpy pcg64 skellam int64",
        "torch randn float64",
        "numpy pcg64",
        "urandom box muller float64",
    ):
        assert name in text
    assert set(noise.run(1, (1,), 1 << 15, ["release_skellam", "cipher"])["threads"]["1"]) == {"release_skellam", "cipher"}
    assert "2 threads" in text and json.loads(json.dumps(found))["coordinates"] == 1 << 17


def test_memory_is_measured_on_two_microbatches_of_every_class_at_most() -> None:
    assert [tier.contributions for tier in few(CONFIGS["bert_full"]).tiers] == [32]
    assert few(CONFIGS["mixed3"]) == CONFIGS["mixed3"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="would run the whole suite")
def test_the_gpu_suite_says_that_there_is_no_cuda_and_succeeds() -> None:
    ran = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], check=True, capture_output=True, text=True)
    assert "no CUDA device" in ran.stdout


def test_the_code_of_the_gpu_suite_runs_at_tiny_sizes() -> None:
    for config in gpu.configs(smoke=True):
        found = gpu.measure(config, rounds=1, variants=("ours_fast", "ours_device_noise"))
        assert found["ours_fast"]["tokens_per_s"] > 0 and found["ours_device_noise"]["tokens_per_s"] > 0


def test_the_gpu_suite_finds_the_routers_sums_equal_to_a_loop_and_stops_if_they_are_not(monkeypatch) -> None:
    found = gpu.exact("cpu")
    assert len(found) == 4 and all(value < 1e-4 for value in found.values())
    exact = sums.FastSums.coefficients
    monkeypatch.setattr(sums.FastSums, "coefficients", lambda self, norms, bounds: exact(self, norms * 1.01, bounds))
    with pytest.raises(RuntimeError, match="from those of a loop"):
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


TOLERANCE = 1.4
"""Between what a plan says of a step and what a run takes for it, medians of rounds in turns: a loaded machine included."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "vit, certified", "vit, noise in 4 parts"])
def test_a_planned_step_takes_as_long_as_it_says(name: str) -> None:
    found = plan.compare(plan.CASES[name], rounds=5, steps=5)
    assert 1 / TOLERANCE < found["ratio"] < TOLERANCE, found


@pytest.mark.slow
def test_a_plan_of_half_the_contributions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: half of what a step draws, planned for the same run."""
    monkeypatch.setattr(plan, "counts_of", lambda case: dict.fromkeys(plan.BANDS, case.per_class // 2))
    assert plan.compare(plan.CASES["vit"], rounds=5, steps=5)["ratio"] > TOLERANCE


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak as Linux counts it")
def test_a_plan_holds_as_much_memory_as_the_run() -> None:
    found = plan.peaks("vit", 1)
    assert 0.9 < found["run"] / found["plan"] < 1.1, found


def test_a_plan_is_measured_beside_a_run_of_it() -> None:
    case = plan.Case(8, 2, 4, per_class=4, rate=1.0, microbatch=4)
    row = plan.compare(case, rounds=1, steps=1) | {"peak_bytes": {"plan": 1 << 20, "run": 2 << 20}, "load": 0.5}
    assert row["planned_s"] > 0 and row["run_s"] > 0 and row["contributions_per_step"] == 12
    assert row["ratio"] == row["run_s"] / row["planned_s"]
    assert plan.render("tiny", row).split()[-3:] == ["1", "2", "0.5"] and len(plan.HEAD.split()) == 12


@pytest.mark.parametrize(
    "extra", ["", '[noise]\ninjection = "per_microbatch"\nmicrobatches = 2\n', 'exactness = "certified"\n']
)
def test_a_plan_times_the_microbatches_that_a_run_makes_of_a_draw(extra: str, tmp_path) -> None:
    """Every contribution drawn: classes of different depth share microbatches, in the order that a step takes them."""
    case = plan.Case(8, 4, 4, per_class=3, rate=1.0, microbatch=4, policy=extra)
    made, config = plan.world(tmp_path, case, 2, 1)
    accelerator = Accelerator(cpu=True)
    steps = measure._Steps(made.policy, config, accelerator)
    drawn = [rule for rule in made.policy.classes for _ in range(3)]
    ours = [([drawn[i].name for i in m.slots], m.examples, m.fill) for m in steps.mixed(drawn)]
    steps.close()
    with plan.open_run(config, accelerator) as run:
        tools = plan.task(config.task)
        model, collate = tools.build(config.model)
        if made.policy.exactness == "certified":
            model.set_attn_implementation("eager")
        run.prepare(model, plan.make_optimizer(model, config.optimizer, layers=None), collate)
        found = run.drawing.planned(run.drawing.draw(1))
        slots = run.pool.slots
        theirs = [([slots[i].resolution.class_name for i in m.slots], m.examples, m.fill) for m in found]
    assert ours == theirs and any(len(set(names)) > 1 for names, _, _ in ours)
