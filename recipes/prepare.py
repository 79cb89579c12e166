"""Make a corpus for a recipe: keys, registry, signed policy, and contributions signed by their contributors.

    python recipes/prepare.py sst2 --train TRAIN.tsv --validation DEV.tsv --out runs/sst2
    python recipes/prepare.py digits --out runs/digits

One program plays the owner and all contributors here; docs/walkthrough.md shows who does what in earnest.
"""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dptrain.demo.rehearsal import Tier, policy_text, shares
from dptrain.engine.one_owner import stage, write_records
from dptrain.errors import ConfigError
from dptrain.programs import guarded

TIERS = (Tier("sensitive", 3.0, "0.75"), Tier("internal", 5.0, "0.5"), Tier("open", 8.0, "0.0"))
"""The top quarter of the layers, the top half, or all of them; epsilon of one contribution over the whole run."""

DELTA = 4e-6
"""Below a tenth of one over the number of contributions."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    sst2 = commands.add_parser("sst2", help="sentences and labels from tab-separated files with a header line")
    sst2.add_argument("--train", type=Path, required=True, metavar="TSV")
    sst2.add_argument("--validation", type=Path, required=True, metavar="TSV", help="public examples for the accuracy")
    sst2.add_argument("--contributions", type=int, default=24_000)
    sst2.add_argument("--min-words", type=int, default=10, help="contributors hand in phrases of at least so many words")
    sst2.add_argument("--steps", type=int, default=100)
    sst2.add_argument("--draws", type=int, default=512, help="contributions drawn per step, on average")
    sst2.set_defaults(prepare=prepare_sst2)
    digits = commands.add_parser("digits", help="the handwritten digits of scikit-learn, and a public model to start from")
    digits.set_defaults(prepare=prepare_digits)
    for command in (sst2, digits):
        command.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    arguments.prepare(arguments)
    print(f"wrote {arguments.out}: policy.toml and policy.cose, registry.cbor, keys/, corpus/, validation.jsonl")
    return 0


def prepare_sst2(arguments: argparse.Namespace) -> None:
    """Sentences of SST-2, or of any file of the same form."""
    phrases = [record for record in read_tsv(arguments.train) if len(record["text"].split()) >= arguments.min_words]
    random.Random(0).shuffle(phrases)
    records = phrases[: arguments.contributions]
    if not 0 < arguments.draws <= len(records):
        raise ConfigError(
            "DRAWS", f"{arguments.draws} draws per step from {len(records)} contributions; give --draws at most that"
        )
    policy = policy_text(
        "movie-phrases",
        TIERS,
        steps=arguments.steps,
        rate=round(arguments.draws / len(records), 6),
        normalizer=arguments.draws,
        clip_norm=1.0,
        delta=DELTA,
    )
    stage(arguments.out, policy, shares(records, TIERS, (0.4, 0.3, 0.3), per_tier=4), now=int(time.time()))
    write_records(arguments.out / "validation.jsonl", read_tsv(arguments.validation))


def prepare_digits(arguments: argparse.Namespace) -> None:
    """The corpus of the demo, with the public model that it starts from."""
    from dptrain.demo.public import CONTRIBUTORS_PER_TIER, CORPUS, DELTA, TIERS, WEIGHTS, digits, public_model

    data, rate = digits(), 0.5
    policy = policy_text(
        CORPUS, TIERS, steps=80, rate=rate, normalizer=round(rate * len(data.contributed)), clip_norm=1.0, delta=DELTA
    )
    stage(arguments.out, policy, shares(data.contributed, TIERS, WEIGHTS, CONTRIBUTORS_PER_TIER), now=int(time.time()))
    write_records(arguments.out / "validation.jsonl", data.validation)
    public_model(arguments.out / "public-model")


def read_tsv(path: Path) -> list[dict[str, Any]]:
    """Records of a file with the header ``sentence<TAB>label``; a sentence that occurs twice is kept once."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    if header.split("\t") != ["sentence", "label"]:
        raise ConfigError("TSV", f"{path} begins with {header[:60]!r}, expected the columns sentence and label")
    pairs: Sequence[list[str]] = [line.rsplit("\t", 1) for line in lines if line]
    unique = {text.strip(): int(label) for text, label in pairs}
    return [{"text": text, "label": label} for text, label in unique.items()]


if __name__ == "__main__":
    raise SystemExit(guarded(main))
