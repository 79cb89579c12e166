"""A complete small world on real data, made once: digits, three classes, a run file."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dptrain.demo.public import CORPUS, DELTA, TIERS, WEIGHTS, digits
from dptrain.demo.rehearsal import Contributor, Stage, policy_text, shares, stage, write_records

RUN = """\
task = "image_classification"
[model]
labels = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
pixel_max = 16
hidden_size = 16
hidden_layers = 4
attention_heads = 2
[data]
policy = "policy.cose"
corpus = "corpus"
owner_key = "keys/owner.pub"
validation = "validation.jsonl"
[optimizer]
name = "sgd"
learning_rate = 0.1
[run]
ledger = "ledger.db"
output = "out"
microbatch = 16
checkpoint_every = 2
"""


@dataclass(frozen=True)
class Digits:
    """A directory with everything that a run of four steps needs."""

    root: Path
    made: Stage
    contributors: list[Contributor]

    @property
    def run(self) -> Path:
        return self.root / "run.toml"

    def change_run(self, old: str, new: str) -> None:
        text = self.run.read_text()
        assert old in text
        self.run.write_text(text.replace(old, new))


@pytest.fixture(scope="session")
def digits_template(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    root = tmp_path_factory.mktemp("digits") / "world"
    data = digits(validation=40)
    records = data.contributed[:60]
    # Drawn in every step: epsilon has a closed form, which keeps these tests fast.
    text = policy_text(CORPUS, TIERS, steps=4, rate=1.0, normalizer=60, clip_norm=1.0, delta=DELTA, epochs=2)
    contributors = shares(records, TIERS, WEIGHTS, per_tier=1)
    made = stage(root, text, contributors, now=int(time.time()))
    write_records(root / "validation.jsonl", data.validation)
    (root / "run.toml").write_text(RUN)
    return Digits(root, made, contributors)


@pytest.fixture
def digits_world(digits_template: Digits, tmp_path: Path) -> Digits:
    """A private copy of the world."""
    root = tmp_path / "world"
    shutil.copytree(digits_template.root, root)
    made = Stage(root, digits_template.made.policy, digits_template.made.keys, digits_template.made.now)
    return Digits(root, made, digits_template.contributors)


@pytest.fixture
def train_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict]]:
    """Runs `dptrain.train.main` with `--json` and reads what it prints."""

    def run(*arguments: object) -> tuple[int, dict]:
        from dptrain.train import main

        code = main([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run
