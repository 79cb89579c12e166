"""One call or one command makes a private run of data that are all one's own; its record says that one party holds all keys."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from attest.policy import Policy  # noqa: E402
from attest.policy.classes import DepthRule  # noqa: E402
from dptrain import PrivateTraining  # noqa: E402
from dptrain.data.items import collate_items, decode_item, encode_item, items_of  # noqa: E402
from dptrain.demo.quickstart import columns_of, quickstart  # noqa: E402
from dptrain.engine.one_owner import corpus_name, owners_policy  # noqa: E402
from dptrain.errors import ConfigError, ResumeRefused  # noqa: E402
from ledger.accountants import epsilon  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.worlds.programs import ran  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {"target_epsilon": 8.0, "epochs": 2, "batch_size": 8, "delta": None, "clip_norm": 1.0, "corpus": "own"}
PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.text(max_size=5).filter(lambda key: key not in ("array", "bytes", "tuple"))
ITEMS = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(ITEMS)
def test_an_item_comes_back_as_it_was_and_is_one_line(item: object) -> None:
    line = encode_item(item)
    assert b"\n" not in line and decode_item(line) == [item]


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "uint8", "bool", "float16", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_an_array_comes_back_bit_for_bit(kind: str, shape: tuple[int, ...]) -> None:
    value = np.random.default_rng(0).integers(0, 2, shape).astype(kind)
    for item in (value, torch.from_numpy(np.array(value, np.dtype(kind).newbyteorder("=")))):
        (found,) = decode_item(encode_item({"x": item}))
        assert found["x"].shape == shape and found["x"].dtype.newbyteorder("=") == np.dtype(kind).newbyteorder("=")
        assert np.array_equal(found["x"], value)


@pytest.mark.parametrize("item", [{1: 2}, {"array": 1}, object(), {"x": {1, 2}}, np.array(["a"])])
def test_what_has_no_form_is_refused_without_being_repeated(item: object) -> None:
    with pytest.raises(ConfigError, match=r"ENCODE.*encode="):
        encode_item(item)


def test_pairs_are_inputs_and_labels() -> None:
    found = collate_items([decode_item(encode_item((torch.ones(3), number)))[0] for number in range(2)])
    assert found["inputs"].shape == (2, 3) and found["labels"].tolist() == [0, 1]


def test_data_sets_are_lists_torch_data_sets_and_tables(tmp_path: Path) -> None:
    rows = [{"x": 1.5, "label": 0}, {"x": -2.0, "label": 1}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["x", "label"])
        table.writeheader()
        table.writerows(rows)
    for dataset in (rows, tmp_path / "a.jsonl", tmp_path / "a.csv"):
        assert list(items_of(dataset)) == rows
    pairs = list(items_of(torch.utils.data.TensorDataset(torch.ones(2, 3), torch.tensor([0, 1]))))
    assert len(pairs) == 2 and isinstance(pairs[0], tuple)
    for wrong in ({"a": 1}, 5, iter(rows), tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="DATASET"):
            list(items_of(wrong))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("count", [1000, 3, 200_000, 7_000_001])
def test_the_policy_keeps_the_target_and_no_less_noise_would(count: int) -> None:
    size = min(8, count)
    rules = Policy.from_toml(owners_policy(count, **NUMBERS | {"batch_size": size}))
    (rule,) = rules.classes
    assert rule.sampling_rate * count == size and rules.steps == -(-2 * count // size)
    assert float(rules.delta) <= min(1e-6, 0.1 / count) < 10 * float(rules.delta)
    steps = rules.steps + rules.redo_steps
    spent = [
        epsilon((rule.noise_multiplier_micro + more) / 1e6, float(rule.sampling_rate), steps, float(rules.delta))
        for more in (0, -0.001 * rule.noise_multiplier_micro)
    ]
    assert spent[0] <= 8.0 < spent[1]


@pytest.mark.parametrize("multiplier", [1, 0.7, 1.1, 1.000_000_5])
def test_a_noise_multiplier_is_no_less_than_the_one_that_was_given_and_its_epsilon_is_told(multiplier: float) -> None:
    text = owners_policy(1000, **NUMBERS | {"target_epsilon": None, "noise_multiplier": multiplier})
    rules = Policy.from_toml(text)
    (rule,) = rules.classes
    assert multiplier * 1e6 <= rule.noise_multiplier_micro + 1e-6 < multiplier * 1e6 + 1
    spent = epsilon(
        rule.noise_multiplier_micro / 1e6, float(rule.sampling_rate), rules.steps + rules.redo_steps, float(rules.delta)
    )
    told = float(text.split("so epsilon ")[1].split()[0])
    assert spent <= told < spent + 0.001


def test_a_target_and_a_noise_multiplier_together_are_refused_and_neither_means_eight(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"OWN.*target_epsilon=8.*noise_multiplier=1.*leave one out"):
        PrivateTraining.own(points(), target_epsilon=8, noise_multiplier=1, directory=tmp_path / "run")
    assert not list(tmp_path.iterdir())
    assert owners_policy(10, **NUMBERS | {"target_epsilon": None}) == owners_policy(10, **NUMBERS)


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"batch_size": 11}, {"epochs": 0}, {"clip_norm": 0}, {"target_epsilon": -1},
     {"target_epsilon": None, "noise_multiplier": 0}, {"target_epsilon": None, "noise_multiplier": float("inf")}],
)  # fmt: skip
def test_numbers_that_describe_no_run_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match="OWN"):
        owners_policy(10, **NUMBERS | wrong)


@pytest.mark.parametrize(("folder", "name"), [("My Run 3", "my-run-3"), ("ärger", "rger"), ("___", "own")])
def test_a_corpus_is_named_after_its_folder(folder: str, name: str) -> None:
    assert corpus_name(Path(folder)) == name


@pytest.mark.parametrize(
    ("depth", "whole"),
    [({"from": 0, "to": 1}, True), ({"from": 0.5, "to": 1}, False), ({"from": 0, "to": 1, "head": False}, False),
     ({"from": 0, "to": 1, "heads": [0]}, False), ({"layers": [0]}, False)],
)  # fmt: skip
def test_everything_is_the_whole_depth_with_both_ends(depth: dict, whole: bool) -> None:
    text = ", ".join(f"{key} = {json.dumps(value)}" for key, value in depth.items())
    rules = Policy.from_toml(owners_policy(10, **NUMBERS).replace("from = 0.0, to = 1.0", text))
    assert isinstance(rules.classes[0].depth, DepthRule) and rules.classes[0].depth.everything is whole


def points(count: int = 40) -> list[dict]:
    torch.manual_seed(0)
    return [{"x": torch.randn(6), "label": number % 2} for number in range(count)]


def train(directory: Path, data: object, **options) -> PrivateTraining:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    with PrivateTraining.own(data, epochs=1, batch_size=8, directory=directory, progress=False, **options) as private:
        _, optimizer, steps = private.prepare(model, optimizer)
        for step in steps:
            for rows in step:
                private.backward(nn.functional.cross_entropy(model(rows["x"]), rows["label"], reduction="none"), rows)
            optimizer.step()
        assert private.epsilon()["own"].planned <= 8.0
        if not (directory / "export").exists():
            private.export(directory / "export")
    return private


def test_a_run_of_ones_own_is_trained_by_one_call_and_says_that_one_party_holds_all_keys(tmp_path: Path) -> None:
    """The model is a plain Sequential without a stack of like layers, and nobody asks for layers=."""
    private = train(tmp_path / "run", points())
    key = private.opened.recorder.signer.vkey
    found = verify_export(tmp_path / "run" / "export", [key], owner_key=(private.opened.recorder.owner_public))
    assert found.verdict == "FULL" and "ONE_PARTY" in found.qualifiers
    with pytest.raises(ResumeRefused, match=r"FINISHED.*another ledger or directory"):
        train(tmp_path / "run", points())
    with pytest.raises(ConfigError, match="ONE_OWNER"):
        PrivateTraining.own(points(41), epochs=1, batch_size=8, directory=tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match="ONE_OWNER"):
        PrivateTraining.own(points(), epochs=2, batch_size=8, directory=tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"epsilon": 8}, "target_epsilon"), ({"batchsize": 8}, "batch_size"), ({"target_epsilon": "8"}, "'8'"),
     ({"max_grad_norm": 1.0}, "clip_norm"), ({"target_delta": 1e-5}, "delta?"),
     ({"noise_multiplier": "1"}, "noise_multiplier='1'"),
     ({"batch_size": 10.5}, "10.5"), ({"epochs": "2"}, "'2'"), ({"directory": 7}, "a path")],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name_before_anything_is_made(tmp_path: Path, wrong: dict, told: str) -> None:
    with pytest.raises(ConfigError, match="OWN") as refused:
        PrivateTraining.own(points(), **{"directory": tmp_path / "run"} | wrong)
    assert told in str(refused.value) and not list(tmp_path.iterdir())


def test_records_that_stand_twice_are_left_out_with_a_word(tmp_path: Path) -> None:
    data = points()
    with pytest.warns(UserWarning, match="1 of 41 items repeat another one.* counts once.*a number of its own"):
        PrivateTraining.own([*data, data[0]], batch_size=8, directory=tmp_path / "run", progress=False).close()


def test_quickstart_counts_a_repeated_record_once(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"stars": n % 5, "label": n % 2}) + "\n" for n in range(30)))
    with pytest.warns(UserWarning, match="20 of 30 items repeat"):
        made = quickstart(data, tmp_path / "run", epochs=2, batch_size=20)
    assert (made.contributions, made.sampling_rate, made.steps) == (10, 1.0, 2)


def test_other_encodings_are_signed_as_they_are(tmp_path: Path) -> None:
    data = [f"{number},{number % 2}" for number in range(20)]
    with PrivateTraining.own(data, batch_size=4, directory=tmp_path / "run", encode=str.encode, progress=False) as private:
        assert private.opened.corpus is not None
    assert (tmp_path / "run" / "corpus" / "contributor.jsonl").read_text().splitlines() == data


def test_what_was_half_made_is_made_anew(tmp_path: Path, monkeypatch) -> None:
    from dptrain.engine import one_owner

    monkeypatch.setattr(one_owner, "sign_corpus", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        PrivateTraining.own(points(), batch_size=8, directory=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    PrivateTraining.own(points(), batch_size=8, directory=tmp_path / "run", progress=False).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


RECORDS = [
    {"text": f"it is {'good' if n % 2 else 'bad'} {n}", "stars": n % 5, "n": n, "label": "yes" if n % 2 else "no"}
    for n in range(30)
]


@pytest.mark.parametrize("kind", ["texts", pytest.param("numbers", marks=pytest.mark.slow)])
def test_quickstart_makes_a_program_that_trains_and_is_audited(tmp_path: Path, kind: str) -> None:
    """Through the command and the program, as a person does it."""
    keep = ("text", "label") if kind == "texts" else ("stars", "n", "label")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({key: row[key] for key in keep}) + "\n" for row in RECORDS))

    def run(*arguments: str) -> str:
        done = ran([*arguments], ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = str(tmp_path / "run")
    how = ["--epochs", "1", "--batch-size", "10", "--dir", where, "--json"]
    made = json.loads(run("-m", "dptrain", "quickstart", str(data), *how))
    assert made["contributions"] == 30 and made["steps"] == 3 and made["label"] == "label"
    assert len(Path(made["program"]).read_text().splitlines()) <= 42
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); exec(open({made['program']!r}).read())"
    assert f"Epsilon(spent={made['epsilon_planned']}, " in run("-c", program)
    assert made["epsilon_planned"] < made["epsilon"] == 8.0 and made["redo_steps"] == 8
    assert [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]
    told = json.loads(run("-m", "dptrain", "ledger", "verify", f"{where}/export", "--key", f"{where}/ledger.pub", "--json"))
    assert told["verdict"] == "FULL" and "ONE_PARTY" in told["qualifiers"]


@pytest.mark.parametrize(
    ("rows", "told"),
    [([], "holds no record"), ([{"a": 1}], "--label"), ([{"label": 1, "x": 1}, {"label": 1}], "record 2"),
     ([{"label": 1.5, "x": 1}], "a float"), ([{"label": 1}], "beside"), ([[1]], "a list")],
)  # fmt: skip
def test_tables_that_are_none_are_refused_by_name(tmp_path: Path, rows: list, told: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match="COLUMNS") as refused:
        quickstart(data, tmp_path / "run")
    assert told in str(refused.value) and not (tmp_path / "run").exists()


def test_the_label_may_be_named(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in RECORDS))
    found = columns_of(data, "stars")
    assert (found.label, found.labels, found.texts, found.numbers) == ("stars", (0, 1, 2, 3, 4), ("text", "label"), ("n",))
