"""Run files: what is read, what is refused, and that nothing in one can weaken the guarantee."""

import dataclasses
from pathlib import Path

import pytest

from attest.policy import Policy
from dptrain.errors import ConfigError
from dptrain.tasks.runconfig import (
    POLICY_KEYS,
    DataConfig,
    ImageModel,
    MachineConfig,
    OptimizerConfig,
    RunConfig,
    TextModel,
)

DATA = '[data]\npolicy = "policy.cose"\ncorpus = "corpus"\n'
TEXT = f'task = "text_classification"\n{DATA}'


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_toml(text)
    return caught.value


def test_a_run_file_is_read_with_paths_relative_to_it(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(TEXT + '[run]\nledger = "runs/ledger.db"\n[model]\nmax_length = 40\nlabels = ["no", "yes"]\n')
    config = RunConfig.load(run)
    assert config.data.policy == tmp_path / "policy.cose"
    assert config.run.ledger == str(tmp_path / "runs" / "ledger.db")
    assert config.model == TextModel(max_length=40, labels=("no", "yes"))
    assert config.opening()["corpus"] == tmp_path / "corpus"


def test_a_ledger_may_be_on_a_server_with_its_state_on_this_machine(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    url = "postgresql://trainer@db.example/privacy?schema=run7"
    run.write_text(TEXT + f'[run]\nledger = "{url}"\nledger_state = "state"\n')
    opening = RunConfig.load(run).opening()
    assert (opening["ledger"].place, opening["ledger"].state) == (url, tmp_path / "state")
    run.write_text(TEXT + '[run]\nledger = "sqlite:///runs/ledger.db"\n')
    assert RunConfig.load(run).opening()["ledger"].place == str(tmp_path / "runs" / "ledger.db")


def test_earlier_ledgers_are_named_relative_to_the_run_file_or_by_their_url(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    more = 'replaces = "lost.db"\nearlier_keys = ["keys/one.pub"]\n'
    run.write_text(TEXT + f'[run]\nearlier = ["one.db", "postgresql://reader@db.example/privacy"]\n{more}')
    opening = RunConfig.load(run).opening()["earlier"]
    assert opening.ledgers == (str(tmp_path / "one.db"), "postgresql://reader@db.example/privacy")
    assert opening.replaces == str(tmp_path / "lost.db")
    assert opening.keys == (tmp_path / "keys" / "one.pub",)
    for wrong in ('earlier = "one.db"', "earlier = [1]", "replaces = []", "earlier_keys = [1]", 'earlier_keys = "a"'):
        run.write_text(TEXT + f"[run]\n{wrong}\n")
        with pytest.raises(ConfigError):
            RunConfig.load(run)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('ledger = "postgresql://trainer@db.example/privacy"', "run.ledger_state"),
        ('ledger = "postgresql://trainer:s3cret@db.example/privacy"\nledger_state = "state"', "PGPASSWORD"),
        ('ledger = "postgresql://trainer@db.example/privacy?password=s3cret"\nledger_state = "state"', "PGPASSWORD"),
        ('ledger_state = "state"', "state directory"),
        ('ledger = "mysql://db.example/privacy"', "mysql:// is no place"),
        ('ledger = "postgresql://db.example/privacy?schema=A"\nledger_state = "state"', "schema=A"),
    ],
)
def test_a_place_that_is_no_ledgers_is_refused(lines: str, said: str) -> None:
    sentence = refused(f"{TEXT}[run]\n{lines}\n").sentence
    assert said in sentence and "s3cret" not in sentence


def test_a_run_file_is_frozen() -> None:
    config = RunConfig.from_toml(TEXT)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.optimizer.learning_rate = 1.0


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    error = refused(TEXT + "[optimizer]\nlerning_rate = 0.1\n")
    assert error.code == "RUN_KEY"
    assert "optimizer.lerning_rate" in error.sentence
    assert "optimizer.learning_rate" in error.sentence


def test_an_unknown_table_is_named_with_the_nearest_known_one() -> None:
    assert "optimizer" in refused(TEXT + "[optimiser]\n").sentence


def test_a_key_in_the_wrong_table_is_sent_to_the_right_one() -> None:
    assert "[run]" in refused(TEXT + "[optimizer]\nmicrobatch = 4\n").sentence


@pytest.mark.parametrize("key", sorted(POLICY_KEYS))
@pytest.mark.parametrize("table", ["", "[model]\n", "[optimizer]\n", "[run]\n"])
def test_what_the_guarantee_rests_on_is_refused_wherever_it_stands(key: str, table: str) -> None:
    text = f"{key} = 1\n{TEXT}" if not table else f"{TEXT}{table}{key} = 1\n"
    assert "policy" in refused(text).sentence


def test_no_key_of_a_run_file_is_a_key_of_a_policy() -> None:
    ours = {
        item.name
        for kind in (RunConfig, TextModel, ImageModel, DataConfig, OptimizerConfig, MachineConfig)
        for item in dataclasses.fields(kind)
    }
    assert not ours & POLICY_KEYS
    assert not ours & ({item.name for item in dataclasses.fields(Policy)} - {"corpus"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[optimizer]\nlearning_rate = -1\n", "a positive number"),
        ("[optimizer]\nlearning_rate = nan\n", "a finite number"),
        ('[optimizer]\nlearning_rate = "0.1"\n', "a finite number"),
        ("[optimizer]\nlearning_rate = true\n", "a finite number"),
        ('[optimizer]\nname = "lbfgs"\n', "'adamw' or 'sgd'"),
        ("[run]\nmicrobatch = 0\n", "1 contribution or more"),
        ("[run]\nmicrobatch_rows = 0\n", "1 example or more"),
        ("[run]\nworkers = -1\n", "0 or more processes"),
        ("[run]\nprefetch = 0\n", "1 microbatch or more"),
        ("[run]\nmicrobatch = 1.5\n", "a whole number"),
        ("[run]\nmicrobatch = true\n", "a whole number"),
        ('[run]\nmixed_precision = "fp16"\n', "'no' or 'bf16'"),
        ("[run]\nledger = 3\n", "a path"),
        ('[run]\nledger = ""\n', "a path"),
        ('[model]\nlabels = ["a"]\n', "two or more"),
        ('[model]\nlabels = ["a", "a"]\n', "two or more"),
        ("[model]\nlabels = [1, 2]\n", "a list of strings"),
        ("[model]\ndropout = 1.0\n", "0 up to"),
        ("run = 3\n", "TOML"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    assert expected in refused(TEXT + text).sentence if expected != "TOML" else refused("run = 3\n" + TEXT)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("task = ", "RUN_FILE"),
        ("", "RUN_VALUE"),
        ('task = "regression"\n', "RUN_VALUE"),
        ('task = "text_classification"\n', "RUN_KEY"),
        ('task = "text_classification"\n[data]\ncorpus = "c"\n', "RUN_KEY"),
        ('task = "image_classification"\n' + DATA, "RUN_KEY"),
        ("model = 3\n" + TEXT, "RUN_VALUE"),
    ],
)
def test_an_incomplete_run_file_is_refused(text: str, code: str) -> None:
    assert refused(text).code == code


def test_an_unreadable_run_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RUN_FILE"):
        RunConfig.load(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        RunConfig.load(tmp_path / "binary.toml")


def test_sizes_of_a_fresh_vision_transformer_must_fit_together() -> None:
    with pytest.raises(ConfigError, match="divisor"):
        ImageModel(labels=("a", "b"), image_size=8, patch_size=3)
    with pytest.raises(ConfigError, match="divisor"):
        ImageModel(labels=("a", "b"), hidden_size=10, attention_heads=4)


def test_an_existing_export_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "out" / "export").mkdir(parents=True)
    config = RunConfig.from_toml(TEXT + '[run]\noutput = "out"\n', base=tmp_path)
    with pytest.raises(ConfigError, match="OUTPUT"):
        config.require_free_output()
