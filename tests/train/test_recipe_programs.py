"""The recipes over small data of their form: what they read, train, resume, refuse and release."""

import gzip
import importlib
import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import ConfigError  # noqa: E402
from dptrain.programs import guarded  # noqa: E402
from dptrain.tasks.runconfig import RunConfig  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from recipes import prepare  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
PEOPLE = "age, workclass, fnlwgt, education, education-num, marital-status, occupation, relationship, race, sex, capital-gain, \
capital-loss, hours-per-week, native-country, Y"


def write_data(data: Path, count: int = 24) -> Path:
    """Writes files of the form of each corpus, with made-up contents."""
    chance = np.random.default_rng(0)
    for name in ("mnist", "cifar10", "adult", "e2e", "gsm8k"):
        (data / name).mkdir(parents=True)
    for part in ("train", "t10k"):
        pixels, labels = chance.integers(0, 256, (count, 28, 28)), np.arange(count) % 10
        for kind, values, skip in (("images-idx3", pixels, 16), ("labels-idx1", labels, 8)):
            packed = gzip.compress(bytes(skip) + values.astype(np.uint8).tobytes())
            (data / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(packed)
    for part in ("train_3k", "test_1k"):
        pictures = chance.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        np.savez(data / "cifar10" / f"{part}.npz", x=pictures, y=np.arange(count) % 10)
    for part, end in (("data", ""), ("test", ".")):
        rows = [
            f"{20 + n}, {'?' if n % 5 == 0 else 'Private'}, 7, HS-grad, 9, Divorced, Sales, Wife, White, Female, {n * 100}, 0, "
            f"40, Cuba, {'>50K' if n % 3 == 0 else '<=50K'}{end}" for n in range(count)
        ]  # fmt: skip
        (data / "adult" / f"adult.{part}").write_text("\n".join([PEOPLE, *rows, rows[0]]) + "\n")
    for part in ("train", "valid"):
        venues = [{"mr": f"name[a {'b' * n}], eatType[{kind}]", "ref": f"the {kind} a {'b' * n}"}
                  for n in range(count // 4) for kind in ("pub", "restaurant", "coffee shop")]  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in [*venues, venues[0], {"mr": "name[none]", "ref": "none"}])
        (data / "e2e" / f"e2e_{part}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for part in ("train", "test"):
        asked = [{"question": f"what is {'a' * n}", "answer": f"it is <<1+1=2>>{'a' * n}"} for n in range(count)]
        (data / "gsm8k" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    return data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of two layers whose tokens are letters, as `from_pretrained` takes it."""
    from tests.integrations.scene import language_model
    from tests.integrations.words import tokenizer

    folder = tmp_path_factory.mktemp("model")
    language_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def staged(data: Path, out: Path, name: str, **options: Any) -> Path:
    """Signs a small corpus of two steps."""
    prepare.stage_tiers(out, name, prepare.READERS[name][0](data), **{"steps": 2, "draws": 8} | options)
    return out


def config_of(file: str, world: Path, models: Any, **model: Any) -> RunConfig:
    """Reads a run file of the recipes for a folder, with other values of its model."""
    text = (RECIPES / file).read_text()
    name = text.partition("runs/")[2].partition("/")[0]
    config = RunConfig.from_toml(text.replace(f"../../runs/{name}", str(world)), models=models)
    return replace(config, model=replace(config.model, **model), run=replace(config.run, checkpoint_every=1, microbatch=4))


def told(work: Callable[[], int], code: int = 0) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert work() == code
    return out.getvalue()


def audited(world: Path, epsilons: dict[str, float]) -> None:
    """Demands a FULL record, whose classes have spent no more than they were to."""
    report = verify_export(world / "export", (world / "ledger.pub").read_text().split())
    assert report.verdict == "FULL", report.findings
    spent = {row.name: row.epsilon for row in report.classes}
    assert {name: value <= epsilons[name] for name, value in spent.items()} == dict.fromkeys(epsilons, True)


TIERED = {"sensitive": 3.0, "internal": 5.0, "open": 8.0}


@pytest.mark.parametrize(("name", "first"), [("mnist", {"pixels", "label"}), ("cifar10", {"pixels", "label"}),
                                             ("adult", {"age", "education", "label"}), ("e2e", {"prompt", "completion"}),
                                             ("gsm8k", {"prompt", "completion"})])  # fmt: skip
def test_a_reader_gives_different_records_and_public_examples(name: str, first: set[str], data: Path) -> None:
    found = prepare.READERS[name][0](data, 10)
    assert len(found.records) == 10 and found.validation and first <= found.records[0].keys()
    assert len({json.dumps(record) for record in prepare.READERS[name][0](data).records}) in (18, 19, 24)
    assert prepare.READERS[name][0](data, 10) == found


def test_the_notes_for_a_calculator_and_weights_of_the_census_are_left_out(data: Path) -> None:
    assert "<<" not in json.dumps(prepare.gsm8k(data).records)
    assert "fnlwgt" not in prepare.adult(data).records[0] and {row["label"] for row in prepare.adult(data).validation} == {0, 1}


def test_prepare_signs_what_it_read(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["prepare", *map(str, arguments)])
        return guarded(prepare.main)

    small = ("--data", data, "--steps", 2, "--draws", 8)
    assert "policy.cose" in told(lambda: call("adult", *small, "--epsilon", 2, "--out", tmp_path / "one"))
    assert "everybody" in (tmp_path / "one" / "policy.toml").read_text()
    assert "policy.cose" in told(lambda: call("e2e", *small, "--by-venue", "--out", tmp_path / "venues"))
    assert 'adapter = "coffee"' in (tmp_path / "venues" / "policy.toml").read_text()
    wrong = {"DRAWS": ("adult", "--data", data), "IO": ("adult", "--data", tmp_path), "DATA": ("sst2",)}
    wrong["OUTPUT"] = ("adult", *small)
    for code, rest in wrong.items():
        said = io.StringIO()
        with redirect_stderr(said):
            assert call(*rest, "--out", tmp_path / "one") == 1
        assert said.getvalue().startswith(f"{code}: ")


def test_a_run_file_of_another_recipe_is_refused() -> None:
    from recipes.language.texts import load

    with pytest.raises(ConfigError, match="task is 'table', expected 'language'"):
        load(RECIPES / "tabular" / "adult.toml")
    with pytest.raises(ConfigError, match="task is 'table', expected 'text_classification' or"):
        RunConfig.load(RECIPES / "tabular" / "adult.toml")


# Tables -----------------------------------------------------------------------------------------------------------------------


def test_a_table_is_trained_on_and_its_record_holds(data: Path, tmp_path: Path) -> None:
    from recipes.tabular.adult import TableModel, train

    world = staged(data, tmp_path / "world", "adult")
    config = config_of("tabular/adult.toml", world, {"table": TableModel}, width=8)
    outcome = train(config)
    assert outcome.verdict == "FULL" and 0.0 <= outcome.accuracy <= 1.0
    audited(world, TIERED)
    assert (world / "model" / "model.safetensors").is_file()
    assert not train(config, privacy=False).private
    assert (world / "model-not-private" / "NOT_PRIVATE").is_file()


def test_the_numbers_of_a_row_follow_from_that_row_alone(data: Path) -> None:
    from recipes.tabular.adult import WIDTH, collate

    rows = prepare.adult(data).records
    together = collate(rows)
    assert together["x"].shape == (len(rows), WIDTH) and together["x"].abs().max() <= 1.0
    for number, row in enumerate(rows):
        assert torch.equal(collate([row])["x"][0], together["x"][number])
    changed = collate([rows[0] | {"workclass": "?", "native-country": "?"}])["x"]
    assert changed.shape == (1, WIDTH)
    for wrong in ({"age": 3}, rows[0] | {"label": 2}, rows[0] | {"age": "old"}):
        with pytest.raises(ConfigError, match="EXAMPLE"):
            collate([wrong])


# Pictures ---------------------------------------------------------------------------------------------------------------------


def test_folding_statistics_into_convolutions_changes_no_output() -> None:
    """A convolution and its batch normalisation in evaluation, as torch computes them, against one convolution."""
    from torch import nn

    from recipes.images.resnet import ResNet20, folded

    torch.manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    widths = {"conv1": (3, 16)}
    for layer, (inner, outer) in enumerate(((16, 16), (16, 32), (32, 64)), start=1):
        for place in range(3):
            widths[f"layer{layer}.{place}.conv1"] = (inner if place == 0 else outer, outer)
            widths[f"layer{layer}.{place}.conv2"] = (outer, outer)
    for conv, (inner, outer) in widths.items():
        norm = conv.replace("conv", "bn")
        weights[f"{conv}.weight"] = torch.randn(outer, inner, 3, 3)
        for part in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{norm}.{part}"] = torch.rand(outer) + 0.5
    model = ResNet20(10, folded=True)
    missing, unexpected = model.load_state_dict(folded(weights), strict=False)
    assert (missing, unexpected) == (["head.weight", "head.bias"], [])
    x, name = torch.randn(2, 16, 8, 8), "layer2.0"
    conv, norm = nn.Conv2d(16, 32, 3, 2, padding=1, bias=False), nn.BatchNorm2d(32).eval()
    conv.load_state_dict({"weight": weights[f"{name}.conv1.weight"]})
    parts = ("weight", "bias", "running_mean", "running_var")
    norm.load_state_dict({part: weights[f"{name}.bn1.{part}"] for part in parts}, strict=False)
    torch.testing.assert_close(model.blocks[3].conv1(x), norm(conv(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_pictures_are_trained_on_and_their_record_holds(name: str, data: Path, tmp_path: Path) -> None:
    from recipes.images.resnet import ResNetModel, train

    world = staged(data, tmp_path / "world", name)
    config = config_of(f"images/{name}.toml", world, {"resnet": ResNetModel}, freeze=())
    outcome = train(config)
    assert outcome.verdict == "FULL" and 0.0 <= outcome.accuracy <= 1.0
    audited(world, TIERED)
    assert (world / "model" / "model.safetensors").is_file()


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    from recipes.images.resnet import ResNetModel, build

    torch.save({"state_dict": {}}, tmp_path / "empty.th")
    for path in (tmp_path / "empty.th", tmp_path / "missing.th"):
        with pytest.raises(ConfigError, match="MODEL"):
            build(ResNetModel(labels=("0", "1"), image_size=28, weights=path))
    with pytest.raises(ConfigError, match="freeze none"):
        build(ResNetModel(labels=("0", "1"), image_size=28, freeze=("head.*",)))


# Language models --------------------------------------------------------------------------------------------------------------


def language(world: Path, model: Path, **options: Any) -> RunConfig:
    from recipes.language.texts import MODELS

    return config_of("language/e2e.toml", world, MODELS, **{"name": None, "path": model, "max_length": 48, "rank": 2} | options)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Lets the backward pass of a private run raise after so many calls from now on; None for never."""
    backward = PrivateTraining.backward

    def after(calls: int | None) -> None:
        left = iter(range(1 << 30 if calls is None else calls))

        def failing(self: Any, *given: Any) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            backward(self, *given)

        monkeypatch.setattr(PrivateTraining, "backward", failing)

    return after


@pytest.mark.parametrize("program", ["loop", "trainer", "sft"])
def test_three_programs_train_under_one_policy_and_run_file(
    program: str, data: Path, small_model: Path, tmp_path: Path, interrupted: Callable[[int | None], None]
) -> None:
    if program == "sft":
        pytest.importorskip("trl", reason="trl is not installed: pip install 'dptrain[trl]'")
    from recipes.language.texts import show

    train = importlib.import_module(f"recipes.language.{program}").train
    world = staged(data, tmp_path / "world", "e2e", steps=4)
    config = language(world, small_model)
    interrupted(9)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    assert not (world / "export").exists() and list(world.glob("ledger.db.checkpoints/*"))
    interrupted(None)
    out = told(lambda: show(train(config, resume=True)))
    assert "FULL" in out and "loss per token on public validation texts" in out
    assert verify_export(world / "export", (world / "ledger.pub").read_text().split()).verdict == "FULL"
    assert {path.name for path in (world / "model").iterdir()} >= {"adapter_model.safetensors", "tokenizer.json"}


def test_rows_are_those_that_trl_makes(data: Path, small_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl is not installed: pip install 'dptrain[trl]'")
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from recipes.language.texts import LanguageModel, build

    records = prepare.e2e(data).records
    model, collate = build(LanguageModel(path=small_model, max_length=48, rank=2))
    args = SFTConfig(str(tmp_path), max_length=48, use_cpu=True, report_to=[], gradient_checkpointing=False)
    given = {"train_dataset": Dataset.from_list(records), "processing_class": collate.tokenizer}
    made = SFTTrainer(model, args, **given).train_dataset
    rows = collate(records)
    for number, row in enumerate(made):
        own = rows["input_ids"][number][rows["attention_mask"][number].bool()]
        assert own.tolist() == list(row["input_ids"])
        assert rows["labels"][number][: len(own)].tolist() == list(row["labels"])


def test_every_class_trains_its_adapter_and_an_answer_needs_the_rights(
    data: Path, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dptrain.cli import main as dptrain
    from recipes.language import answer
    from recipes.language.loop import train

    world = tmp_path / "world"
    prepare.stage_adapters(world, "venues", prepare.e2e(data), prepare.venue_of, steps=2, draws=8)
    assert train(language(world, small_model, adapters=("pub", "restaurant", "coffee"))).outcome.verdict == "FULL"
    audited(world, {"pub": 4.0, "restaurant": 6.0, "coffee": 8.0})
    for name in ("pub", "restaurant", "coffee"):
        assert (world / "model" / name / "adapter_model.safetensors").is_file()
    monkeypatch.setattr(sys, "argv", ["dptrain", "release", str(world / "model"), "--ledger", str(world / "ledger.db")])
    with redirect_stdout(io.StringIO()) as out:
        try:
            dptrain()
        except SystemExit as done:
            assert not done.code
    assert "TIED" in out.getvalue()

    def asked(*allowed: str) -> str:
        given = ["answer", world / "model", "--key", world / "ledger.pub", "--base", small_model, "--adapter", "pub"]
        monkeypatch.setattr(sys, "argv", [*map(str, given), "--prompt", "a", "--allow", *allowed])
        return told(answer.main)

    assert asked("pub=4").startswith("adapter:pub may answer")  # no other class has a path to it
    assert asked("restaurant=6", "coffee=8").startswith("base may answer")
    assert asked("pub=1", "restaurant=6", "coffee=8").startswith("base may answer")
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-3], "pub=much"])
    with pytest.raises(ConfigError, match="ALLOW"):
        answer.main()


def test_a_class_without_records_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CONTRIBUTIONS"):
        prepare.stage_adapters(tmp_path / "world", "venues", prepare.e2e(data), lambda record: "pub", steps=2, draws=8)
