"""Make a corpus for a recipe: keys, registry, signed policy, and contributions signed by their contributors.

    python -m recipes.prepare sst2 --data DATA --out runs/sst2
    python -m recipes.prepare digits --out runs/digits

DATA has a folder for each set of files, as sst2/train.tsv. One program plays the owner and all contributors here;
docs/walkthrough.md shows who does what in earnest.
"""

import argparse
import csv
import gzip
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptrain.demo.rehearsal import Tier, policy_text, shares
from dptrain.engine.one_owner import Contributor, stage, write_records
from dptrain.errors import ConfigError
from dptrain.programs import guarded
from ledger.accountants import calibrate

TIERS = (Tier("sensitive", 3.0, "0.75"), Tier("internal", 5.0, "0.5"), Tier("open", 8.0, "0.0"))
"""The top quarter of the layers, the top half, or all of them; epsilon of one contribution over the whole run."""

WEIGHTS = (0.4, 0.3, 0.3)
"""Shares of the contributions that the tiers have."""

DELTA = 4e-6
"""Delta of every recipe, or a tenth of one over the number of contributions where that is less."""

VENUES = (Tier("pub", 4.0, ""), Tier("restaurant", 6.0, ""), Tier("coffee", 8.0, ""))
"""Classes that have an adapter each; of E2E, the first word of the kind of venue that a text describes."""


@dataclass(frozen=True)
class Corpus:
    """Holds the records that contributors hand in, and public examples to measure with."""

    records: Sequence[Any]
    validation: Sequence[Any]


def sst2(data: Path, contributions: int = 24_000, *, min_words: int = 10) -> Corpus:
    """Reads phrases of SST-2 and their labels; those of at least ``min_words`` words are contributed."""
    return tables(data / "sst2" / "train.tsv", data / "sst2" / "dev.tsv", contributions, min_words=min_words)


def tables(train: Path, validation: Path, contributions: int, *, min_words: int = 10) -> Corpus:
    """Reads texts and labels from two files that have the form of SST-2's."""
    phrases = [record for record in read_tsv(train) if len(record["text"].split()) >= min_words]
    return Corpus(some(phrases, contributions), read_tsv(validation))


def mnist(data: Path, contributions: int = 12_000, *, validation: int = 1_000) -> Corpus:
    """Reads pictures of 28 by 28 pixels from the four gzipped files of MNIST."""

    def part(name: str) -> list[dict[str, Any]]:
        import numpy as np

        def read(kind: str, skip: int) -> Any:
            return np.frombuffer(gzip.decompress((data / "mnist" / f"{name}-{kind}.gz").read_bytes()), np.uint8, offset=skip)

        pixels, labels = read("images-idx3-ubyte", 16).reshape(-1, 28, 28), read("labels-idx1-ubyte", 8)
        return [{"pixels": x.tolist(), "label": int(y)} for x, y in zip(pixels, labels, strict=True)]

    return Corpus(some(part("train"), contributions), part("t10k")[:validation])


def cifar10(data: Path, contributions: int = 3_000, *, validation: int = 1_000) -> Corpus:
    """Reads colour pictures of 32 by 32 pixels: 3,000 of CIFAR-10's training set, 1,000 of its test set."""

    def part(name: str) -> list[dict[str, Any]]:
        import numpy as np

        with np.load(data / "cifar10" / name) as found:
            return [{"pixels": x.tolist(), "label": int(y)} for x, y in zip(found["x"], found["y"], strict=True)]

    return Corpus(some(part("train_3k.npz"), contributions), part("test_1k.npz")[:validation])


def adult(data: Path, contributions: int = 24_000, *, validation: int = 4_000) -> Corpus:
    """Reads people of the census of 1994; label 1 is an income above 50,000 dollars. Equal ones are contributed once."""

    def part(name: str) -> list[dict[str, Any]]:
        with open(data / "adult" / name, encoding="utf-8", newline="") as stream:
            rows = [{key.strip(): value.strip() for key, value in row.items()} for row in csv.DictReader(stream)]
        said = [key for key in rows[0] if key not in ("Y", "fnlwgt")]
        return unique({key: row[key] for key in said} | {"label": int(">" in row["Y"])} for row in rows)

    return Corpus(some(part("adult.data"), contributions), some(part("adult.test"), validation))


def e2e(data: Path, contributions: int = 6_000, *, validation: int = 100) -> Corpus:
    """Reads facts of venues and texts about them from E2E NLG."""

    def part(name: str) -> list[dict[str, Any]]:
        with gzip.open(data / "e2e" / name, "rt", encoding="utf-8") as stream:
            rows = [json.loads(line) for line in stream]
        return unique({"prompt": row["mr"] + "\n", "completion": row["ref"]} for row in rows)

    return Corpus(some(part("e2e_train.jsonl.gz"), contributions), some(part("e2e_valid.jsonl.gz"), validation))


def gsm8k(data: Path, contributions: int = 6_000, *, validation: int = 100) -> Corpus:
    """Reads questions and worked answers from GSM8K, without the notes for a calculator."""

    def part(name: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in (data / "gsm8k" / name).read_bytes().splitlines()]
        return unique(
            {"prompt": row["question"] + "\n", "completion": re.sub("<<.*?>>", "", row["answer"])} for row in rows
        )

    return Corpus(some(part("train.jsonl"), contributions), some(part("test.jsonl"), validation))


def venue_of(record: Mapping[str, Any]) -> str:
    """Returns the class of a record of E2E among `VENUES`, "" where its facts name no kind of venue."""
    found = re.search(r"eatType\[(\w+)", record["prompt"])
    return found.group(1) if found else ""


def some(records: Sequence[Any], count: int) -> list[Any]:
    """Returns so many records in a random order that is always one; fewer where there are fewer."""
    shuffled = list(records)
    random.Random(0).shuffle(shuffled)
    return shuffled[:count]


def unique(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records in their order, each once."""
    return list({json.dumps(record): record for record in records}.values())


def read_tsv(path: Path) -> list[dict[str, Any]]:
    """Reads the records of a file with the header ``sentence<TAB>label``; a sentence that occurs twice is kept once."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    if header.split("\t") != ["sentence", "label"]:
        raise ConfigError("TSV", f"{path} begins with {header[:60]!r}, expected the columns sentence and label")
    pairs: Sequence[list[str]] = [line.rsplit("\t", 1) for line in lines if line]
    return [{"text": text, "label": label} for text, label in {text.strip(): int(label) for text, label in pairs}.items()]


def stage_tiers(
    out: Path,
    name: str,
    corpus: Corpus,
    *,
    steps: int,
    draws: int,
    tiers: Sequence[Tier] = TIERS,
    weights: Sequence[float] = WEIGHTS,
    now: int | None = None,
) -> None:
    """Signs a corpus under a policy with a class for each tier, and writes the public examples beside it.

    Args:
        out: folder to write to. name: of the corpus. steps: horizon. draws: contributions drawn per step, on average.
        tiers, weights: see `TIERS`; one tier of weight 1 gives everybody the same epsilon and depth.
        now: seconds since 1970; default: the clock's.
    """
    count, rate = _rate(corpus, draws)
    policy = policy_text(
        name, tiers, steps=steps, rate=rate, normalizer=draws, clip_norm=1.0, delta=min(DELTA, 0.1 / count)
    )  # fmt: skip
    _stage(out, policy, shares(corpus.records, tiers, weights, per_tier=4), corpus, now)


def stage_adapters(
    out: Path,
    name: str,
    corpus: Corpus,
    class_of: Callable[[Any], str],
    *,
    steps: int,
    draws: int,
    tiers: Sequence[Tier] = VENUES,
    now: int | None = None,
) -> None:
    """Signs a corpus under a policy whose classes train and read an adapter of their own; records of no class are left out.

    Args:
        class_of: a record to the name of its tier. tiers: names, and epsilons; an adapter has the name of its class.
        others: as `stage_tiers`.
    """
    dealt = {tier.name: [record for record in corpus.records if class_of(record) == tier.name] for tier in tiers}
    if empty := next((tier for tier, own in dealt.items() if not own), None):
        raise ConfigError("CONTRIBUTIONS", f"no record is of the class {empty!r}; give more --contributions")
    kept = Corpus([record for own in dealt.values() for record in own], corpus.validation)
    count, rate = _rate(kept, draws)
    delta = min(DELTA, 0.1 / count)
    lines = [f'corpus = "{name}"', f"delta = {delta:g}", f"steps = {steps}", f"normalizer = {draws}"]
    lines += ["", "[isolation]", "required = true"]
    for tier in tiers:
        lines += [
            "",
            f"[[class]]                      # epsilon {tier.epsilon:g} per contribution over the whole run",
            f'name = "{tier.name}"',
            "clip_norm = 1.0",
            f"noise_multiplier = {calibrate(tier.epsilon, rate, steps, delta) + 1e-6:.6f}",
            f"sampling_rate = {rate:g}",
            f'depth = {{ adapter = "{tier.name}" }}',
            f'reads = {{ adapters = ["{tier.name}"] }}',
        ]
    people = [Contributor(f"{tier}-{place + 1}", tier, own[place::4]) for tier, own in dealt.items() for place in range(4)]
    _stage(out, "\n".join(lines) + "\n", [one for one in people if one.records], kept, now)


def _rate(corpus: Corpus, draws: int) -> tuple[int, float]:
    count = len(corpus.records)
    if not 0 < draws <= count:
        raise ConfigError("DRAWS", f"{draws} draws per step from {count} contributions; give --draws at most that")
    return count, round(draws / count, 6)


def _stage(out: Path, policy: str, people: Sequence[Contributor], corpus: Corpus, now: int | None) -> None:
    stage(out, policy, people, now=int(time.time()) if now is None else now)
    write_records(out / "validation.jsonl", corpus.validation)


def prepare_digits(out: Path) -> None:
    """Signs the corpus of the demo, and writes the public model that it starts from."""
    from dptrain.demo.public import CONTRIBUTORS_PER_TIER, CORPUS, DELTA, TIERS, WEIGHTS, digits, public_model

    data, rate = digits(), 0.5
    policy = policy_text(
        CORPUS, TIERS, steps=80, rate=rate, normalizer=round(rate * len(data.contributed)), clip_norm=1.0, delta=DELTA
    )
    stage(out, policy, shares(data.contributed, TIERS, WEIGHTS, CONTRIBUTORS_PER_TIER), now=int(time.time()))
    write_records(out / "validation.jsonl", data.validation)
    public_model(out / "public-model")


READERS: Mapping[str, tuple[Callable[..., Corpus], str, int, int, str]] = {
    "sst2": (sst2, "movie-phrases", 100, 512, "movie phrases, positive or negative (sst2/train.tsv, sst2/dev.tsv)"),
    "mnist": (mnist, "mnist", 80, 512, "handwritten digits (four gzipped files in mnist/)"),
    "cifar10": (cifar10, "cifar10", 100, 500, "small colour pictures (cifar10/train_3k.npz, cifar10/test_1k.npz)"),
    "adult": (adult, "adult", 150, 512, "people of a census (adult/adult.data, adult/adult.test)"),
    "e2e": (e2e, "venues", 80, 256, "facts and texts about venues (e2e/e2e_train.jsonl.gz, e2e/e2e_valid.jsonl.gz)"),
    "gsm8k": (gsm8k, "questions", 80, 256, "questions and worked answers (gsm8k/train.jsonl, gsm8k/test.jsonl)"),
}
"""By name: what reads the files, the name of the corpus, steps, draws per step, and what it is."""


def prepare(arguments: argparse.Namespace) -> None:
    """Reads the records of a command, and signs them."""
    reader, name, *_ = READERS[arguments.command]
    how = {"steps": arguments.steps, "draws": arguments.draws}
    if arguments.command == "sst2":
        corpus = tables(*_tables(arguments), arguments.contributions, min_words=arguments.min_words)
    else:
        corpus = reader(arguments.data, arguments.contributions)
    if arguments.command == "e2e" and arguments.by_venue:
        stage_adapters(arguments.out, name, corpus, venue_of, **how)
    elif arguments.epsilon is not None:
        stage_tiers(arguments.out, name, corpus, **how, tiers=[Tier("everybody", arguments.epsilon, "0.0")], weights=[1.0])
    else:
        stage_tiers(arguments.out, name, corpus, **how)


def _tables(arguments: argparse.Namespace) -> tuple[Path, Path]:
    folder = None if arguments.data is None else arguments.data / "sst2"
    found = arguments.train or (folder and folder / "train.tsv"), arguments.validation or (folder and folder / "dev.tsv")
    if None in found:
        raise ConfigError("DATA", "no files are named; give --data, or --train and --validation")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command", metavar="CORPUS")
    for name, (reader, _, steps, draws, what) in READERS.items():
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("--data", type=Path, required=name != "sst2", metavar="DIR", help=f"holds {name}/")
        command.add_argument("--contributions", type=int, default=reader.__defaults__[0], help="at most (default: %(default)s)")
        command.add_argument("--steps", type=int, default=steps, help="(default: %(default)s)")
        command.add_argument("--draws", type=int, default=draws, help="per step, on average (default: %(default)s)")
        command.add_argument("--epsilon", type=float, help="one for everybody, and all layers (default: a class for each tier)")
        if name == "sst2":
            command.add_argument("--train", type=Path, metavar="TSV", help="in the place of DIR/sst2/train.tsv")
            command.add_argument("--validation", type=Path, metavar="TSV", help="in the place of DIR/sst2/dev.tsv")
            command.add_argument("--min-words", type=int, default=10, help="of a contribution (default: %(default)s)")
        if name == "e2e":
            command.add_argument("--by-venue", action="store_true", help="an adapter for each kind of venue")
    commands.add_parser("digits", help="the handwritten digits of scikit-learn, and a public model to start from")
    for command in commands.choices.values():
        command.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    if arguments.command == "digits":
        prepare_digits(arguments.out)
    else:
        prepare(arguments)
    print(f"wrote {arguments.out}: policy.toml and policy.cose, registry.cbor, keys/, corpus/, validation.jsonl")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
