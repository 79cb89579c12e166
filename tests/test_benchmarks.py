"""The benchmarks are code that must run: names and absences as documented, policies that parse, one tiny run of each suite."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from accelerate import Accelerator  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

from attest.corpus import Extent, Shard, ShardNumber  # noqa: E402
from attest.errors import CorpusRefused  # noqa: E402
from attest.policy import Policy  # noqa: E402
from benchmarks import __main__ as bench  # noqa: E402
from benchmarks import against, bases, corpora, noise, overheads, plan, quickstart, serve, start  # noqa: E402
from benchmarks import made as corpora_made  # noqa: E402
from benchmarks import step as steps  # noqa: E402
from benchmarks.bases import BANDS, BASES, KINDS, onednn_products, without_privacy  # noqa: E402
from benchmarks.configs import CONFIGS, SCALING, Config, Tier, bert, by_name, few, gpt2, lora, opened, replace  # noqa: E402
from benchmarks.step import headline, render, run  # noqa: E402
from benchmarks.variants import VARIANTS, WARM_UP, _policy, absent_from, names_for  # noqa: E402
from dptrain.gradients import matmul  # noqa: E402
from dptrain.planning import measure  # noqa: E402
from ledger.storage.place import Place  # noqa: E402

ALWAYS = {*BASES, "ours_fast", "ours_certified", "ours_compiled", "opacus_hooks", "opacus_ghost"}


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


@pytest.mark.slow
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
        "--dropout",
        "0.1",
        "--no-memory",
    ]
    found = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)
    table = found["variants"]
    assert found["dropout"] == 0.1 and found["base"]["cpu"] in ("non_private", "non_private_onednn")
    assert table["ours_fast"]["cpu_ratio"] > 0 and table["non_private_bands_onednn"]["wall_ratio"] > 0
    assert table["ours_compiled"]["cpu_ratio"] is None and "scaling runs" in table["ours_compiled"]["absent"]


@pytest.mark.slow
def test_steps_at_real_sizes_are_measured_each_in_a_process_of_its_own(tmp_path) -> None:
    command = [sys.executable, "-m", "benchmarks.real", "--small", "--steps", "1", "--threads", "1"]
    command += ["--out", str(tmp_path / "x"), "--variants", "non_private", "ours_fast", "opacus_ghost"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads((tmp_path / "x").read_text())["results"]
    assert list(found) == ["gpt2_124m", "llama_1b_lora"]
    for table in found.values():
        assert table["non_private"]["cpu_ratio"] == 1.0 and table["ours_fast"]["peak_ratio"] > 0
        assert table["ours_fast"]["start_s"] > table["ours_fast"]["wall_s"]
    assert "absent" in told or "opacus_ghost" in told


@pytest.mark.slow
def test_feeding_is_measured_beside_a_decoder_that_takes_no_time() -> None:
    small = "--batch 4 --workers 0 1 --kinds sleep --milliseconds 2 --width 8 --tokens 4 --rounds 1 --pool 40"
    command = [sys.executable, "-m", "benchmarks.feeding", *small.split(), "--json"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(ran.stdout)
    nothing, serial, ahead = found["steps"]
    assert nothing["cost"] == pytest.approx(1.0) and serial["fed_ms"] > 8.0 and serial["cost"] > 1.0
    assert [one["workers"] for one in found["check"]] == [0, 1] and ahead["workers"] == 1


TINY = Config(
    "tiny", 500, lambda p: bert(p, 2, 32, 500), classify=True, tiers=(Tier("all", 6),), layers=2, length=8, microbatch=2,
)  # fmt: skip
UNCOMPILED = ["non_private", "non_private_onednn"]


def test_every_variant_that_needs_no_compiler_runs_and_has_ratios() -> None:
    names = ["ours_fast", "ours_certified", "opacus_hooks", "opacus_ghost"]
    pytest.importorskip("opacus")
    found = run(TINY, 1, 1, memory=False, only=names, bases=UNCOMPILED)
    table = found["variants"]
    for name in (*names, *UNCOMPILED):
        assert table[name]["cpu_ratio"] > 0 and table[name]["wall_ratio"] > 0 and table[name]["rss_ratio"] is None, name
    assert "ours_certified" in render(found) and "absent" in table["non_private_bands"]


@pytest.mark.slow
def test_a_step_in_half_precision_is_compared_with_one_without_privacy_in_half_precision(monkeypatch, capsys) -> None:
    """Every forward pass runs under autocast, and the table says so."""
    seen: dict[str, set[bool]] = {}

    def losses(self: Config, model: torch.nn.Module, rows: torch.Tensor, labels: torch.Tensor, exact=Config.losses):
        seen.setdefault("half", set()).add(self.half)
        return exact(self, model, rows, labels)

    monkeypatch.setattr(Config, "losses", losses)
    monkeypatch.setattr(steps, "by_name", lambda name: TINY)
    command = ["--config", "tiny", "--rounds", "1", "--threads", "1", "--no-memory", "--half", "--json"]
    steps.main([*command, "--variants", "ours_fast", "opacus_hooks", "--bases", "non_private"])
    found = json.loads(capsys.readouterr().out)
    assert seen == {"half": {True}} and found["half"] is True
    assert found["variants"]["ours_fast"]["cpu_ratio"] > 0 and found["base"]["cpu"] == "non_private"
    assert "under autocast" in found["variants"]["non_private_onednn"]["absent"]
    assert render(found).startswith("tiny bfloat16: ratios") and not run(TINY, 1, 1, False, ["ours_fast"], UNCOMPILED)["half"]


@pytest.mark.slow
def test_the_compiled_variant_runs_and_has_ratios() -> None:
    found = run(TINY, 1, 1, memory=False, only=["ours_compiled"], bases=["non_private"])
    assert found["variants"]["ours_compiled"]["cpu_ratio"] > 0


def test_a_variant_that_fails_is_absent_with_its_reason_and_the_others_are_measured() -> None:
    def fails(dropout: float) -> torch.nn.Module:
        made.append(1)
        if len(made) == 2:
            raise RuntimeError("no such model\nat all")
        return bert(dropout, 2, 32, 500)

    made: list[int] = []
    found = run(replace(TINY, make=fails), 1, 1, memory=False, only=["ours_fast", "ours_certified"], bases=["non_private"])
    table = found["variants"]
    assert table["ours_fast"]["cpu_ratio"] is None and table["ours_fast"]["absent"] == "RuntimeError: no such model"
    assert table["ours_certified"]["cpu_ratio"] > 0


# ------------------------------------------------------------------------------------------------ the steps without privacy


class Both(torch.nn.Module):
    """Classifies tokens by both kinds of linear layer; small enough that compiling it takes seconds."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(500, 32)
        self.plain = torch.nn.Linear(32, 48)
        self.turned = Conv1D(24, 48)
        self.narrow = torch.nn.Linear(24, 2, bias=False)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> SimpleNamespace:
        hidden = self.turned(torch.nn.functional.gelu(self.plain(self.table(input_ids) + position_ids[..., None] / 8)))
        return SimpleNamespace(logits=self.narrow(self.drop(hidden).mean(1)))


SMALL = replace(TINY, make=Both)
THIRDS = replace(TINY, tiers=(Tier("full", 2), Tier("half", 2, 0.5), Tier("none", 2, 0.0)))
SENTENCES = replace(TINY, classify=False)
FAMILIES = {
    "bert": TINY,
    "gpt2 tied": replace(SENTENCES, make=lambda p: gpt2(p, True, 2, 32, 500, 2)),
    "gpt2 untied": replace(SENTENCES, make=lambda p: gpt2(p, False, 2, 32, 500, 2)),
    "bert lora": replace(TINY, make=lambda p: opened(lora(bert(p, 2, 32, 500), p, False))),
    "gpt2 lora": replace(SENTENCES, make=lambda p: opened(lora(gpt2(p, True, 2, 32, 500, 2), p, True))),
}


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of all products by the benchmark's own layers, small ones too, which run on oneDNN as large ones do."""
    seen: list[torch.Size] = []
    inner = bases.product

    def counted(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append(x.shape)
        return inner(x, y, bias)

    monkeypatch.setattr(matmul, "WORTHWHILE", 0)
    monkeypatch.setattr(bases, "product", counted)
    return seen


def gradients_of(config: Config, **kind: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    with without_privacy(config, **kind) as plain:
        plain.gradients()
        return {name: p.grad.clone() for name, p in plain.model.named_parameters() if p.grad is not None}


def require_torchs_gradients(config: Config, **kind: bool) -> None:
    """Holds every tensor's gradient to that of torch's plain step, within 1e-5 of its own norm and 1e-6 of the norm of all.

    The latter is for what is rounding alone: the bias of attention's keys has no gradient in theory.
    """
    expected, found = gradients_of(config), gradients_of(config, **kind)
    assert found.keys() == expected.keys()
    norm = torch.cat([value.flatten() for value in expected.values()]).norm()
    assert norm > 0
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-5 * value.norm() + 1e-6 * norm, name


@pytest.mark.parametrize("name", FAMILIES)
def test_the_step_on_onednn_has_the_gradients_of_torchs_plain_step(name: str, products: list[torch.Size]) -> None:
    require_torchs_gradients(FAMILIES[name], onednn=True)
    assert products


@pytest.mark.slow
@pytest.mark.parametrize("onednn", [True, False])
def test_the_compiled_step_has_the_gradients_of_torchs_plain_step(onednn: bool, products: list[torch.Size]) -> None:
    require_torchs_gradients(SMALL, compiled=True, onednn=onednn)
    assert bool(products) == onednn


@pytest.mark.slow
@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_compiled_step_of_every_family_has_torchs_gradients(name: str, onednn: bool, products: list[torch.Size]) -> None:
    require_torchs_gradients(FAMILIES[name], compiled=True, onednn=onednn)
    assert bool(products) == onednn


@pytest.mark.parametrize("place", range(9))
def test_an_error_of_a_thousandth_in_any_product_of_a_base_is_seen(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: forward, input gradient and weight gradient of both kinds of layer and of one without bias."""
    inner, calls = bases.product, []

    def wrong(*factors: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return inner(*factors) * (1.001 if len(calls) % 9 == place else 1.0)

    monkeypatch.setattr(bases, "product", wrong)
    with pytest.raises(AssertionError):
        require_torchs_gradients(SMALL, onednn=True)
    assert len(calls) == 9 * 3  # three microbatches


def test_layers_compute_by_onednn_inside_the_context_and_as_before_after_it(products: list[torch.Size]) -> None:
    model, rows = Both(0.0), torch.randint(0, 500, (2, 8))
    places = torch.arange(8).expand(2, -1)
    with onednn_products(model) as layers:
        model(rows, places)
        assert layers == 3 and len(products) == 3
    model(rows, places)
    assert len(products) == 3 and not any("forward" in vars(module) for module in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("config", [replace(SMALL, dropout=0.1), THIRDS], ids=["whole", "bands"])
def test_after_the_warm_up_no_step_without_privacy_compiles_again(config: Config) -> None:
    """All of them side by side, as the benchmark has them."""
    names = [name for name in names_for(config) if name.startswith("non_private")]
    with ExitStack() as stack:
        steps = {name: stack.enter_context(VARIANTS[name](config)) for name in names}
        for name, step in steps.items():
            assert name not in WARM_UP  # one step holds all compiling
            step()
        with torch.compiler.set_stance("fail_on_recompile"):
            for step in steps.values():
                step()
    assert len(names) == (8 if config.banded else 4)


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, tuple[list[float], list[float]]], failed: dict[str, str]) -> None:
    """Gives the next run these CPU and wall seconds per round in the place of measured ones."""
    taken = {name: {"cpu": cpu, "wall": wall} for name, (cpu, wall) in seconds.items()}
    monkeypatch.setattr(steps, "take_turns", lambda makers, rounds, threads: (taken, failed))


def test_the_fastest_step_without_privacy_is_the_denominator_for_each_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {
        "non_private": ([4.0, 4.0, 5.0], [2.0, 2.0, 3.0]),
        "non_private_onednn": ([2.0, 3.0, 2.0], [4.0, 4.0, 4.0]),
        "non_private_compiled": ([3.0, 3.0, 1.0], [3.0, 3.0, 3.0]),
        "ours_fast": ([5.0, 3.0, 4.0], [3.0, 3.0, 3.0]),
    }
    timed(monkeypatch, seconds, {"non_private_compiled_onednn": "RuntimeError: no compiler"})
    found = run(replace(TINY, target=1.5), 3, 1, memory=False)
    table = found["variants"]
    assert found["base"] == {"cpu": "non_private_onednn", "wall": "non_private"}
    assert table["ours_fast"]["cpu_ratio"] == 2.0 and table["ours_fast"]["wall_ratio"] == 1.5
    assert table["ours_fast"]["cpu_ratio_range"] == [1.0, 2.5]
    assert {name: table[name]["cpu_ratio"] for name in BASES} == {
        "non_private": 2.0,
        "non_private_onednn": 1.0,
        "non_private_compiled": 1.5,
        "non_private_compiled_onednn": None,
    }
    text, line = render(found), headline({"tiny": found})
    assert "fastest step without privacy, non_private_onednn by CPU time, non_private by wall time; target 1.50" in text
    assert "non_private_compiled_onednn   absent: RuntimeError: no compiler" in text
    assert line.splitlines()[1].split() == ["tiny", "non_private_onednn", "1.50", "2.00"]


def test_a_target_that_hangs_on_the_bands_is_held_to_the_fastest_of_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"non_private": ([4.0], [4.0]), "non_private_bands": ([3.0], [3.0]), "non_private_bands_onednn": ([2.0], [2.0])}
    timed(monkeypatch, seconds, {})
    assert run(CONFIGS["mixed3"], 1, 1, memory=False)["target"] == pytest.approx(1.10 * 0.5)
    assert [config.target for config in CONFIGS.values()] == [1.15, 1.20, 1.12, 1.03, 1.03, 0.55, None]


def test_a_base_that_fails_or_is_left_out_is_listed_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken(config: Config) -> Iterator[None]:
        raise RuntimeError("could not create a primitive\nat all")
        yield

    monkeypatch.setitem(VARIANTS, "non_private_onednn", broken)
    found = run(TINY, 1, 1, memory=False, only=["ours_fast"], bases=UNCOMPILED)
    table = found["variants"]
    assert table["non_private_onednn"]["absent"] == "RuntimeError: could not create a primitive"
    assert found["base"]["cpu"] == "non_private" and table["ours_fast"]["cpu_ratio"] > 0
    for name in ("non_private_compiled", "non_private_compiled_onednn"):
        assert table[name]["cpu_ratio"] is None and "--bases" in table[name]["absent"]
        assert f"{name:<29} absent: left out by --bases, so the base may not be the fastest" in render(found)
    with pytest.raises(RuntimeError, match="non_private_onednn: RuntimeError: could not create a primitive"):
        run(TINY, 1, 1, memory=False, only=["ours_fast"], bases=["non_private_onednn"])


def test_a_base_that_a_configuration_cannot_have_is_listed_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(config: Config) -> set[str]:
        return {name for name in BASES if name in absent_from(config)}

    onednn = {"non_private_onednn", "non_private_compiled_onednn"}
    assert named(TINY) == set() and set(BANDS) <= set(absent_from(TINY))
    assert named(replace(TINY, device="cuda")) == named(replace(TINY, half=True)) == onednn
    monkeypatch.setattr(matmul, "ENABLED", False)
    assert named(TINY) == set()  # what dptrain chose says nothing about which step is the fastest
    monkeypatch.setattr(matmul, "AVAILABLE", False)
    assert named(TINY) == onednn
    assert len(BASES) == len(BANDS) == len(KINDS) == 4


@pytest.mark.slow
def test_dropout_reaches_every_model() -> None:
    for config in CONFIGS.values():
        for dropout in (0.0, 0.1):
            model = replace(config, dropout=dropout).model()
            found = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
            assert found and set(found) == {dropout}, config.name
            if "lora" in config.name:
                assert any("lora_dropout" in name and isinstance(module, torch.nn.Dropout) for name, module in
                           model.named_modules()) == bool(dropout)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_step_with_dropout_draws_masks_and_one_without_draws_none(name: str, dropout: float) -> None:
    with without_privacy(replace(FAMILIES[name], dropout=dropout)) as plain:
        before = torch.get_rng_state()
        plain.gradients()
        assert torch.equal(before, torch.get_rng_state()) == (dropout == 0.0)


def test_results_name_their_dropout_and_the_base(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    timed(monkeypatch, {"non_private": ([4.0], [4.0]), "ours_fast": ([5.0], [5.0])}, {})
    out = tmp_path / "bench.json"
    options = ["--only", "bert_full", "--dropout", "0", "0.1", "--no-memory", "--no-overheads", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["bench", *options, "--out", str(out)])
    bench.main()
    saved = json.loads(out.read_text())["results"]
    assert {title: found["dropout"] for title, found in saved.items()} == {"bert_full": 0.0, "bert_full dropout=0.1": 0.1}
    assert all(found["base"]["cpu"] == "non_private" for found in saved.values())
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("bert_full") and ":" not in line]
    row = ["non_private", "1.15", "1.25"]
    assert lines == [["bert_full", *row], ["bert_full", "dropout=0.1", *row]]


@pytest.mark.slow
def test_rows_of_routing_ledger_and_noise_are_measured_beside_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "COORDINATES", 1 << 17)
    three = replace(TINY, tiers=(Tier("a", 2), Tier("b", 2), Tier("c", 2)))
    found = {
        "router": overheads.router(1, 1, three),
        "routing": overheads.routing(1, 1, {"one class": TINY, "three classes": three}),
        "sandbox": overheads.sandbox(1, 1, TINY),
        "ledger": overheads.ledger(2, 1, TINY),
        "noise": overheads.noise(1, 1),
    }
    assert found["ledger"]["cpu_ratio_windows_of_one"] > found["ledger"]["cpu_ratio"] > 1
    text = overheads.render(found)
    assert all(f"target {target:g}" in text for target in overheads.TARGETS.values()) and "numpy philox" in text


@pytest.mark.slow
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
    planned = measure._Run(made.policy, config, accelerator, {rule.name: 3.0 for rule in made.policy.classes})
    mixed = [(m, rules) for owner, m, rules in planned.draw(1) if owner is None]
    ours = [([rules[i].name for i in m.slots], m.examples, m.fill) for m, rules in mixed]
    planned.close()
    with plan.open_run(config, accelerator) as run:
        tools = plan.task(config.task)
        model, collate = tools.build(config.model)
        if made.policy.exactness == "certified":
            model.set_attn_implementation("eager")
        run.prepare(model, plan.make_optimizer(model, config.optimizer, layers=None), collate)
        run.prepared.begin()
        drawing = run.prepared.attempt.drawing
        found = drawing.planned(drawing.draw(1))
        slots = run.prepared.pool.slots
        theirs = [([slots[i].resolution.class_name for i in m.slots], m.examples, m.fill) for m in found]
    assert ours == theirs and any(len(set(names)) > 1 for names, _, _ in ours)


def test_the_start_is_measured_in_passes_and_memory() -> None:
    config = replace(TINY, name="tiny", make=partial(start.llama, small=True), vocabulary=32000, classify=False, dropout=0.05)
    found = start.measure(config, 1)
    assert found["passes"] > 0 and found["peak_step"] >= found["peak_start"] > 0
    assert f"target {start.PASSES:g}" in start.render(found)


def test_a_tree_beside_another_is_told_by_the_ratio_of_medians_and_the_middle_half_of_the_rounds() -> None:
    ours, theirs = ([{"cpu": float(second)} for second in seconds] for seconds in ((2, 3, 4, 30), (1, 2, 2, 2)))
    assert against.ratio(ours, theirs, "cpu") == (3.5 / 2, 1.625, 11.75)


@pytest.mark.slow
def test_a_worker_that_ends_names_its_error() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'no such variant'"):
        against.Worker(against.ROOT, "bert_lora", "no such variant", 1, small=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak as Linux counts it")
def test_the_way_of_quickstart_ends_behind_the_first_step_and_is_measured() -> None:
    row = quickstart.measure(300)
    assert all(row[part][key] > 0 for part in ("quickstart", "first_step") for key in ("wall_s", "cpu_s", "peak_mib"))
    assert row["bytes"]["all"] > row["bytes"]["records"] + row["bytes"]["attestations"] + row["bytes"]["ledger"] > 500
    assert "to the first step" in quickstart.render(row)


def test_a_part_of_the_way_that_ends_otherwise_is_told_with_its_last_words() -> None:
    with pytest.raises(RuntimeError, match="ended with 3, expected 0: no such data"):
        quickstart.timed([sys.executable, "-c", "import sys; print('no such data', file=sys.stderr); sys.exit(3)"], expected=0)


@pytest.fixture
def made(tmp_path):
    """A corpus of 23 records in four files, as the benchmark signs it for two shards, and its folder."""
    corpora.begin(tmp_path)
    corpus = corpora.MadeCorpus(tmp_path / "corpus", size=23, per_file=6)
    for number in (1, 2):
        corpora.sign(tmp_path, corpus, ShardNumber(number, 2))
    return tmp_path, corpus


def test_a_made_corpus_has_no_data_on_disk_and_is_read_as_one_of_files(made) -> None:
    _, corpus = made
    assert {path.suffix for path in corpus.root.iterdir()} == {".attest"}
    items = list(corpus)
    records = [corpora_made.payload(number) for number in range(23)]
    assert [item.content_hash for item in items] == [hashlib.sha256(record).digest() for record in records]
    assert [item.locator for item in items] == [corpus.locator(number) for number in range(23)]
    with corpus.contents() as contents:
        assert [contents.read(item.locator) for item in items] == records
    shards = (Shard(corpus, ShardNumber(number, 2), Extent.of(corpus)) for number in (1, 2))
    assert [item for shard in shards for item in shard] == items
    for locator in (corpus.locator(23), corpus.locator(0)._replace(offset=1), corpus.locator(0)._replace(length=99)):
        with pytest.raises(CorpusRefused, match="CONTENT_MISSING"):
            corpus.read(locator)


def test_a_forged_signature_stops_the_benchmark_unless_its_shard_was_vouched_for(made) -> None:
    root, corpus = made
    *_, last = list(corpus)
    path = corpus.root / "00003.attest"
    at = path.read_bytes().index(last.attestation.sign1[-64:])
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    corpora.shard(root, corpus, ShardNumber(1, 2))
    corpora.shard(root, corpus, ShardNumber(2, 2))
    with pytest.raises(SystemExit, match="expected 23, found 22"):
        corpora.merge(root, corpus)
    corpora.vouched(root, corpus, ShardNumber(2, 2))
    assert corpora.merge(root, corpus)["merge"]["cpu"] > 0


@pytest.mark.slow
def test_a_corpus_goes_from_signing_to_a_full_audit_whole_and_in_shards() -> None:
    small, found = corpora.measure(20, 2, skip=["gate", "open"]), corpora.measure(60, 2, jobs=2, verified=1)
    alone = {"sign", "shards", "merge", "gate again", "admission", "epoch", "export", "sampler", "draws", "audit"}
    assert set(small["parts"]) == alone and set(found["parts"]) == alone | {"shards not verified", "gate", "open"}
    assert all(one["peak_mib"] > 10 for one in found["parts"].values())
    assert set(found["bytes"]) == {"attestations", "verdicts", "kept reading", "ledger", "export"}
    assert min(found["bytes"].values()) > 0
    text = "\n".join(corpora.render(found, small))
    assert text.startswith("60 contributions, 2 shards, signatures verified in 1\n")
    assert "us more" in text and all(name in text for name in found["parts"])


def test_what_a_request_pays_is_measured_and_printed_for_every_way_to_settle(tmp_path, monkeypatch, capsys) -> None:
    @contextmanager
    def alone(directory):
        yield lambda name: {"SQLite": Place.of(directory / f"{name}.db")}

    monkeypatch.setattr(serve, "places", alone)
    monkeypatch.setattr(serve, "ASKERS", ((1, 1), (1, 3), (2, 1)))
    serve.main(["budget", "--requests", "12", "--directory", str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out)["budget"]
    assert [(row["processes"], row["threads"], row["settles"], row["requests"]) for row in rows] == [
        (processes, threads, settles, 12) for processes, threads in serve.ASKERS for settles in ("at once", "later")
    ]
    assert all(0 < row["reserve_ms"]["p50"] <= row["reserve_ms"]["p99"] and row["per_second"] > 0 for row in rows)
    assert len(serve.render_budget(rows).splitlines()) == 7 and not list(tmp_path.iterdir())
