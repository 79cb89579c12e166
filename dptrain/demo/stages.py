"""The demo, told stage by stage: keys, gate, plan, training, ledger, export, audit, and an audit that must fail."""

import argparse
import json
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from attest.corpus import open_corpus
from attest.gate import GateReport, run_gate
from attest.keys import load_public_key
from attest.policy import open_policy
from attest.registry import open_registry
from dptrain.cli.ledger.show import COLOURS
from dptrain.cli.output import console, number, styled, table
from dptrain.demo.audit import checked, other_weights, released, tampered_copy, verify_without_torch
from dptrain.demo.public import CONTRIBUTORS_PER_TIER, CORPUS, DELTA, SIZES, TIERS, WEIGHTS, Digits, digits, public_model
from dptrain.demo.refusals import plant_refusals
from dptrain.demo.rehearsal import policy_text, shares
from dptrain.engine.one_owner import Stage, stage, write_records
from dptrain.errors import ConfigError
from dptrain.programs import guarded, print_json, quiet_libraries
from dptrain.routing.router import FallbackNotice
from dptrain.tasks.image_classification import build, evaluate
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import Outcome
from dptrain.train import train
from ledger.accountants import epsilon
from ledger.audit import verify_export
from ledger.audit.findings import exit_code, headline
from ledger.report import write_report

RUN = """\
# The run of the demo. Continue or repeat it with: dptrain train run.toml
task = "image_classification"

[model]
path = "public-model"
labels = {labels}
image_size = {size}
pixel_max = {most}

[data]
policy = "policy.cose"
corpus = "corpus"
owner_key = "keys/owner.pub"
validation = "validation.jsonl"

[optimizer]
name = "sgd"
learning_rate = {rate}
name_without_privacy = "adamw"    # the comparison, trained as suits gradients without noise
learning_rate_without_privacy = 3e-3
schedule = "cosine"
warmup_steps = 10

[run]
ledger = "ledger.db"
output = "."
microbatch = 256
threads = 1                       # a model this small is slower on several
"""


@dataclass(frozen=True)
class Scale:
    """The size of the demo; constants, chosen without looking at any contribution."""

    pictures: int = 6000
    epochs: int = 15
    steps: int = 80
    sampling_rate: float = 0.5
    learning_rate: float = 0.15
    clip_norm: float = 1.0


QUICK = Scale(pictures=640, epochs=1, steps=4, sampling_rate=1.0)


class Narrator:
    """Says one line per stage, with the time it began."""

    def __init__(self, *, silent: bool) -> None:
        # With --json standard output is for the object alone; the story goes to standard error.
        self._out = Console(stderr=True, highlight=False, markup=False) if silent else console()
        self._began = time.monotonic()

    def say(self, stage_name: str, sentence: str) -> None:
        self._out.print(styled("bold cyan", f"{time.monotonic() - self._began:6.1f} s  {stage_name:<11}", sentence))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo.

    Args:
        argv: arguments after the name of the program; default: those of the process.

    Returns:
        0 if everything went as it must: the export verifies and its tampered copy does not.
    """
    parser = argparse.ArgumentParser(prog="dptrain demo", description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("demo"), metavar="DIR", help="where everything is written")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the story goes to standard error")
    parser.add_argument("--quick", action="store_true", help="a few steps only: for tests of the demo itself")
    arguments = parser.parse_args(argv)

    def work() -> int:
        quiet_libraries()
        # Patch embeddings take the router's generic path: of interest to who brings a model, not to who watches.
        warnings.simplefilter("ignore", FallbackNotice)
        narrator = Narrator(silent=arguments.json)
        results = tell(arguments.dir, QUICK if arguments.quick else Scale(), narrator)
        if arguments.json:
            print_json(results)
        else:
            _print(results)
        release = results["release"]
        whole = not exit_code(results["verdict"]) and not exit_code(release["verdict"]) and release["weights"] == "TIED"
        return 0 if whole and results["tampered"]["verdict"] == release["other"]["verdict"] == "FAILED" else 1

    return guarded(work, as_json=arguments.json)


def tell(directory: Path, scale: Scale, narrator: Narrator) -> dict[str, Any]:
    """Plays all parts and returns the public results."""
    earlier = _make_room(directory)
    if earlier is not None:
        narrator.say("earlier", f"the run that lay in {directory} is now in {earlier}")
    data = digits()
    made = _contribute(directory, data, scale, narrator)
    gate = _judge(made, narrator)
    narrator.say("public", f"a small vision transformer learns from {scale.pictures} digits drawn by a program: nobody's data")
    public_model(directory / "public-model", pictures=scale.pictures, epochs=scale.epochs)
    (directory / "run.toml").write_text(
        RUN.format(labels=json.dumps(SIZES.labels), size=SIZES.image_size, most=SIZES.pixel_max, rate=scale.learning_rate)
    )
    config = RunConfig.load(directory / "run.toml")
    before = evaluate(*build(config.model), data.validation)
    steps = made.policy.steps
    planned = ", ".join(
        f"{rule.name} ε = {number(epsilon(rule.bounds.noise_multiplier, float(rule.sampling_rate), steps, DELTA), 3)}"
        for rule in made.policy.classes
    )
    narrator.say("plan", f"{scale.steps} steps, every contribution drawn with probability {scale.sampling_rate:g}: {planned}")
    narrator.say("train", "each window of steps is charged in ledger.db before its first step runs")
    outcome = train(config)
    narrator.say("compare", "the same model, data and steps once more without privacy, for comparison only")
    plain = train(config, privacy=False)
    log_key, owner_key = directory / "ledger.pub", made.owner_key
    narrator.say("audit", "the export is verified by a process that cannot import torch and has never seen the data")
    audited = verify_without_torch(directory / "export", log_key, owner_key)
    changed = tampered_copy(directory / "export", directory / "export-tampered")
    refuted = verify_without_torch(directory / "export-tampered", log_key, owner_key)
    narrator.say("tamper", f"one bit flipped in {changed} of a copy: the audit says {refuted['verdict']}")
    results = _results(directory, made, gate, outcome, before, plain, audited, refuted, changed)
    results["release"] = _release(directory, owner_key, narrator)
    _report(directory, made, results)
    narrator.say("done", f"everything lies in {directory}/")
    return results


def _release(directory: Path, owner_key: Path, narrator: Narrator) -> dict[str, Any]:
    """Releases the model; then one weight of a copy is another, and the copy is checked too."""
    narrator.say("release", "the model gets a signed manifest: its files, its ledger, and whose influence may be in it")
    told = released(directory, directory / "model", owner_key)
    weights = told["weights"]
    narrator.say(
        "weights",
        f"{weights['status']}: {weights['trained_in_files']} of {weights['trained']} trained tensors are those that the ledger "
        f"committed to after step {weights['step']} (leaf {weights['leaf']}), bit for bit; seen without torch",
    )
    changed = other_weights(directory / "model", directory / "model-tampered")
    other = checked(directory, directory / "model-tampered", owner_key)
    narrator.say("tamper", f"one bit flipped in {changed} of a copy: the check says {other['verdict']}")
    return {
        "verdict": told["verdict"],
        "qualifiers": told["qualifiers"],
        "findings": told["findings"],
        "weights": weights["status"],
        "epoch": weights["epoch"],
        "step": weights["step"],
        "leaf": weights["leaf"],
        "tensors": weights["trained_in_files"],
        "other": {"file": changed, "verdict": other["verdict"], "findings": other["findings"]},
    }


def _contribute(directory: Path, data: Digits, scale: Scale, narrator: Narrator) -> Stage:
    contributors = shares(data.contributed, TIERS, WEIGHTS, CONTRIBUTORS_PER_TIER)
    text = policy_text(
        CORPUS, TIERS, steps=scale.steps, rate=scale.sampling_rate, clip_norm=scale.clip_norm, delta=DELTA,
        normalizer=round(scale.sampling_rate * len(data.contributed)),
    )  # fmt: skip
    made = stage(directory, text, contributors, now=int(time.time()))
    bad = plant_refusals(made, contributors[-1], data.spare)
    write_records(directory / "validation.jsonl", data.validation)
    narrator.say(
        "contribute",
        f"{len(contributors)} contributors sign {len(data.contributed)} digits in {len(TIERS)} classes; {bad} bad attestations "
        "are slipped in",
    )
    return made


def _judge(made: Stage, narrator: Narrator) -> GateReport:
    owner = load_public_key(made.owner_key)
    signed = open_policy(made.signed_policy, owner)
    report = run_gate(open_corpus(made.corpus), signed.policy, open_registry(made.registry, owner), now=made.now)
    refused = ", ".join(str(item.refusal.code) for item in report.refused)
    narrator.say("gate", f"{len(report.admitted)} admitted, {len(report.refused)} refused: {refused}")
    return report


def _make_room(directory: Path) -> Path | None:
    """Moves an earlier demo aside; it holds keys and a ledger, so it is never deleted or written into."""
    if not directory.exists() or not any(directory.iterdir()):
        directory.mkdir(parents=True, exist_ok=True)
        return None
    if not (directory / "policy.cose").is_file():
        raise ConfigError("OUTPUT", f"{directory} is not empty and holds no earlier demo; choose another directory with --dir")
    taken = [int(path.name) for path in (directory / "earlier").glob("[0-9]*")] if (directory / "earlier").is_dir() else []
    aside = directory / "earlier" / f"{max(taken, default=0) + 1:03d}"
    aside.mkdir(parents=True)
    for path in list(directory.iterdir()):
        if path.name != "earlier":
            shutil.move(path, aside / path.name)
    return aside


def _results(
    directory: Path,
    made: Stage,
    gate: GateReport,
    outcome: Outcome,
    before: float,
    plain: Outcome,
    audited: dict[str, Any],
    refuted: dict[str, Any],
    changed: str,
) -> dict[str, Any]:
    """Everything that the demo found, as one JSON object."""
    registry = open_registry(made.registry, load_public_key(made.owner_key))
    classes_of = {contributor.name: contributor.classes[0] for contributor in registry.contributors}
    refused = Counter(classes_of.get(item.refusal.contributor or "") for item in gate.refused)
    bands = {rule.name: rule.depth.band for rule in made.policy.classes}
    return {
        "classes": [
            row | {"refused": refused[row["class"]], "band": [float(end) for end in bands[row["class"]] or ()]}
            for row in outcome.classes
        ],
        "gate": gate.counts()
        | {
            "examples": [
                {"where": item.locator.source, "code": str(item.refusal.code), "sentence": item.refusal.sentence}
                for item in gate.refused if item.locator is not None
            ]
        },
        "accuracy": {"public_only": before, "private": outcome.accuracy, "without_privacy": plain.accuracy},
        "verdict": audited["verdict"],
        "qualifiers": audited["qualifiers"],
        "findings": audited["findings"],
        "tampered": {"file": changed, "verdict": refuted["verdict"], "findings": refuted["findings"]},
        "files": {
            name: str(directory / path)
            for name, path in {
                "ledger": "ledger.db", "key": "ledger.pub", "owner": "keys/owner.pub", "export": "export", "model": "model",
                "report": "report.html", "release": "model/release.cose", "policy": "policy.toml", "run": "run.toml",
            }.items()
        },
    }  # fmt: skip


def _report(directory: Path, made: Stage, results: dict[str, Any]) -> None:
    export = directory / "export"
    keys = (directory / "ledger.pub").read_text().split()
    audited = verify_export(export, keys, owner_key=load_public_key(made.owner_key))
    accuracy = [
        {"model": name, "accuracy on public validation pictures": f"{results['accuracy'][key]:.1%}"}
        for name, key in (
            ("public model, before any contribution", "public_only"),
            ("private: this run", "private"),
            ("the same run without privacy, for comparison", "without_privacy"),
        )
    ]
    write_report(export, directory / "report.html", report=audited, extras={"gate": results["gate"], "results": accuracy})


def _verdict(found: dict[str, Any], about: str) -> Text:
    """Returns a verdict and what weakens it, in one line."""
    colour = COLOURS.get(found["verdict"], "red")
    return styled(f"bold {colour}", headline(found["verdict"], found["qualifiers"]), f"  {about}")


def _print(results: dict[str, Any]) -> None:
    out = console()
    rows = table("class", "admitted", "refused", "depth", "clip norm", "multiplier", "ε", "ε content replaced")
    for row in results["classes"]:
        low, high = row["band"]
        figures = (row["clip_norm"], row["effective_multiplier"], row["epsilon"], row["epsilon_replace"])
        rows.add_row(row["class"], str(row["admitted"]), str(row["refused"]), f"{low:.0%}-{high:.0%}", *map(number, figures))
    out.print(rows)
    refusals = table("handed in", "reason", "sentence")
    refusals.columns[1].justify = refusals.columns[2].justify = "left"
    for item in results["gate"]["examples"]:
        refusals.add_row(item["where"], item["code"], item["sentence"])
    out.print(refusals)
    reached = table("model", "accuracy")
    for name, key in (("public data alone", "public_only"), ("private", "private"), ("without privacy", "without_privacy")):
        reached.add_row(name, f"{results['accuracy'][key]:.1%}")
    out.print(reached)
    out.print(_verdict(results, "the export"))
    tampered = results["tampered"]
    finding = tampered["findings"][0] if tampered["findings"] else {"where": "", "sentence": "nothing found"}
    out.print(styled("bold red", tampered["verdict"], f"  its tampered copy: {finding['where']}: {finding['sentence']}"))
    release = results["release"]
    at = f"epoch {release['epoch']}, leaf {release['leaf']}"
    tied = f"the release: {release['tensors']} tensors {release['weights']} to {at}"
    out.print(_verdict(release, tied))
    for finding in release["other"]["findings"]:
        sentence = f"  a copy with one weight changed: {finding['where']}: {finding['sentence'].rpartition('; ')[2]}"
        out.print(styled("bold red", release["other"]["verdict"], sentence))
    for name, path in results["files"].items():
        out.print(f"  {name:<8}{path}")
