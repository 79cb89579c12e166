"""A run over real data, made once: digits that three classes contributed, and a run file."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

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

    def copied_to(self, root: Path) -> "Digits":
        """Returns a private copy."""
        shutil.copytree(self.root, root)
        return Digits(root, Stage(root, self.made.policy, self.made.keys, self.made.now), self.contributors)

    def change_run(self, old: str, new: str) -> None:
        text = self.run.read_text()
        assert old in text
        self.run.write_text(text.replace(old, new))


def make_digits(root: Path, *, now: int | None = None) -> Digits:
    """Writes sixty pictures that three contributors signed, forty to validate on, and a run file for four steps over them."""
    data = digits(validation=40)
    # Drawn in every step: epsilon has a closed form, which keeps this quick.
    text = policy_text(CORPUS, TIERS, steps=4, rate=1.0, normalizer=60, clip_norm=1.0, delta=DELTA, epochs=2)
    contributors = shares(data.contributed[:60], TIERS, WEIGHTS, per_tier=1)
    made = stage(root, text, contributors, now=int(time.time()) if now is None else now)
    write_records(root / "validation.jsonl", data.validation)
    (root / "run.toml").write_text(RUN)
    return Digits(root, made, contributors)
