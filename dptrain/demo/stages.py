"""The demo, told stage by stage: keys, gate, plan, training, ledger, export, audit, and an audit that must fail."""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from attest import sign1
from attest.attestation import Attestation, read_sequence
from attest.corpus import SigningTemplate, open_corpus, sign_corpus
from attest.gate import GateReport, run_gate
from attest.keys import generate, load_private_key, load_public_key
from attest.policy import open_policy
from attest.registry import open_registry
from dptrain.cli.ledger.show import COLOURS
from dptrain.cli.output import console, number, styled, table
from dptrain.cli.release import publish_all
from dptrain.demo import depth
from dptrain.demo.public import CONTRIBUTORS_PER_TIER, CORPUS, DELTA, SIZES, TIERS, WEIGHTS, Digits, digits, public_model
from dptrain.demo.rehearsal import Tier, policy_text, shares
from dptrain.engine.one_owner import DAY, Contributor, Stage, stage, write_records
from dptrain.errors import ConfigError
from dptrain.programs import guarded, print_json, quiet_libraries
from dptrain.record.registry_watch import registry_of_run
from dptrain.routing.router import FallbackNotice
from dptrain.tasks.image_classification import build, evaluate
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import Outcome
from dptrain.train import train
from ledger import layout
from ledger.accountants import epsilon
from ledger.audit import verify_export
from ledger.audit.findings import exit_code, headline
from ledger.log import Ledger
from ledger.note import NoteSigner, parse_verifier_key
from ledger.release import release as release_model
from ledger.report import write_report
from ledger.storage.place import Place

RUN = """\
# The run of the demo. Continue or repeat it with: dptrain train run.toml
task = "image_classification"

[model]
path = "{model}"
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
    clip_norm: float = 1.0


QUICK = Scale(pictures=640, epochs=1, steps=2, sampling_rate=1.0)


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
    earlier = make_room(directory)
    if earlier is not None:
        narrator.say("earlier", f"the run that lay in {directory} is now in {earlier}")
    data = digits()
    contributors = shares(data.contributed, TIERS, WEIGHTS, CONTRIBUTORS_PER_TIER)
    made = _contribute(directory, data, contributors, scale, narrator)
    gate = judge(made, narrator)
    narrator.say("public", f"a small vision transformer learns from {scale.pictures} digits drawn by a program: nobody's data")
    public_model(directory / "public-model", pictures=scale.pictures, epochs=scale.epochs)
    *others, own = depth.arms(TIERS, scale.clip_norm)
    (directory / "run.toml").write_text(_run("public-model", own.learning_rate))
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
    runs = [_rehearsed(directory, data, contributors, scale, arm, narrator) for arm in others]
    compared = depth.compared([*runs, (own, directory, outcome)])
    narrator.say("audit", "the export is verified by a process that cannot import torch and has never seen the data")
    audited = audit(directory, "ledger", "verify", "export")
    entries = f"{Path(layout.entries_path(0)).parent}/**/*"
    changed = flipped_copy(directory / "export", directory / "export-tampered", entries, middle=True)
    refuted = audit(directory, "ledger", "verify", "export-tampered")
    narrator.say("tamper", f"one bit flipped in {changed} of a copy: the audit says {refuted['verdict']}")
    results = _results(directory, made, gate, outcome, audited) | {
        "accuracy": {"public_only": before, "private": outcome.accuracy, "without_privacy": plain.accuracy},
        "tampered": {"file": changed, "verdict": refuted["verdict"], "findings": refuted["findings"]},
        "depth": compared,
        "release": _release(directory, narrator),
    }
    _report(directory, made, results)
    narrator.say("done", f"everything lies in {directory}/")
    return results


def _release(directory: Path, narrator: Narrator) -> dict[str, Any]:
    """Releases the model; then one weight of a copy is another, and the copy is checked too."""
    narrator.say("release", "the model gets a signed manifest: its files, its ledger, and whose influence may be in it")
    log_key = (directory / "ledger.pub").read_text().split()
    signer = NoteSigner(parse_verifier_key(log_key[0]).name, load_private_key(directory / "ledger.key"))
    with Ledger.open(directory / "ledger.db", signer) as log:
        registry = registry_of_run(Place.of(directory / "ledger.db"))
        publish = publish_all(directory / "ledger.key", "Digits of the demo")
        release_model(log, directory / "model", now=int(time.time()), registry=registry, publish=publish)
    told = audit(directory, "release", "--check", "model")
    weights = told["weights"]
    narrator.say(
        "weights",
        f"{weights['status']}: {weights['trained_in_files']} of {weights['trained']} trained tensors are those that the ledger "
        f"committed to after step {weights['step']} (leaf {weights['leaf']}), bit for bit; seen without torch",
    )
    narrator.say("published", f"{', '.join(told['documents'])} say what this check found, to the byte; model.sig is signed")
    changed = flipped_copy(directory / "model", directory / "model-tampered", "**/*.safetensors", middle=False)
    other = audit(directory, "release", "--check", "model-tampered")
    narrator.say("tamper", f"one bit flipped in {changed} of a copy: the check says {other['verdict']}")
    return {
        **{key: told[key] for key in ("verdict", "qualifiers", "findings")},
        "weights": weights["status"],
        **{key: weights[key] for key in ("epoch", "step", "leaf")},
        "tensors": weights["trained_in_files"],
        "documents": told["documents"],
        "other": {"file": changed, "verdict": other["verdict"], "findings": other["findings"]},
    }


def _policy(tiers: Sequence[Tier], data: Digits, scale: Scale) -> str:
    return policy_text(
        CORPUS, tiers, steps=scale.steps, rate=scale.sampling_rate, clip_norm=scale.clip_norm, delta=DELTA,
        normalizer=round(scale.sampling_rate * len(data.contributed)),
    )  # fmt: skip


def _run(model: str, rate: float) -> str:
    return RUN.format(model=model, labels=json.dumps(SIZES.labels), size=SIZES.image_size, most=SIZES.pixel_max, rate=rate)


def _rehearsed(
    directory: Path, data: Digits, contributors: Sequence[Contributor], scale: Scale, arm: depth.Arm, narrator: Narrator
) -> tuple[depth.Arm, Path, Outcome]:
    """Trains under a policy beside which the demo's own stands."""
    narrator.say("depth", f"once more with privacy, {arm.sentence}: to see what depth buys")
    text, folder = _policy(arm.tiers, data, scale), directory / "compared" / arm.name
    run = _run("../../public-model", arm.learning_rate)
    return arm, folder, depth.rehearse(folder, text, contributors, data.validation, run)


def _contribute(
    directory: Path, data: Digits, contributors: Sequence[Contributor], scale: Scale, narrator: Narrator
) -> Stage:
    made = stage(directory, _policy(TIERS, data, scale), contributors, now=int(time.time()))
    bad = plant_refusals(made, contributors[-1], data.spare)
    write_records(directory / "validation.jsonl", data.validation)
    narrator.say(
        "contribute",
        f"{len(contributors)} contributors sign {len(data.contributed)} digits in {len(TIERS)} classes; {bad} bad attestations "
        "are slipped in",
    )
    return made


def judge(made: Stage, narrator: Narrator) -> GateReport:
    """Runs the gate over a corpus, and says what it refused."""
    owner = load_public_key(made.owner_key)
    signed = open_policy(made.signed_policy, owner)
    report = run_gate(open_corpus(made.corpus), signed.policy, open_registry(made.registry, owner), now=made.now)
    refused = ", ".join(str(item.refusal.code) for item in report.refused)
    narrator.say("gate", f"{len(report.admitted)} admitted, {len(report.refused)} refused: {refused}")
    return report


def make_room(directory: Path) -> Path | None:
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


def _results(directory: Path, made: Stage, gate: GateReport, outcome: Outcome, audited: dict[str, Any]) -> dict[str, Any]:
    """Returns what the run and its audit found, for one JSON object."""
    registry = open_registry(made.registry, load_public_key(made.owner_key))
    classes_of = {contributor.name: contributor.classes[0] for contributor in registry.contributors}
    refused = Counter(classes_of.get(item.refusal.contributor or "") for item in gate.refused)
    bands = {rule.name: rule.depth.band for rule in made.policy.classes}
    files = {
        "ledger": "ledger.db", "key": "ledger.pub", "owner": "keys/owner.pub", "export": "export", "model": "model",
        "report": "report.html", "release": "model/release.cose", "policy": "policy.toml", "run": "run.toml",
    }  # fmt: skip
    examples = [
        {"where": item.locator.source, "code": str(item.refusal.code), "sentence": item.refusal.sentence}
        for item in gate.refused
        if item.locator is not None
    ]
    return {
        "classes": [
            row | {"refused": refused[row["class"]], "band": [float(end) for end in bands[row["class"]] or ()]}
            for row in outcome.classes
        ],
        "gate": gate.counts() | {"examples": examples},
        **{key: audited[key] for key in ("verdict", "qualifiers", "findings")},
        "files": {name: str(directory / path) for name, path in files.items()},
    }


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
    tables = {
        "What depth buys: accuracy, and noise energy in a step, of the first policy's": [
            {"policy": arm["sentence"], "accuracy": f"{arm['accuracy']:.1%}", "noise energy": f"{arm['energy']:.0%}"}
            for arm in results["depth"]["arms"]
        ],
        "Noise energy of each block, of the first policy's": [
            {"block": block["name"], "parameters": block["parameters"]}
            | {arm["sentence"]: f"{arm['energy_by_block'][block['name']]:.0%}" for arm in results["depth"]["arms"]}
            for block in results["depth"]["blocks"]
        ],
    }
    extras = {"gate": results["gate"], "results": accuracy, "tables": tables}
    write_report(export, directory / "report.html", report=audited, extras=extras)


def verdict_of(found: dict[str, Any], about: str) -> Text:
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
    arms, blocks = results["depth"]["arms"], [block["name"] for block in results["depth"]["blocks"]]
    depths = table("noise energy in", *blocks, "all", "accuracy")
    for arm in arms:
        energies = (f"{arm['energy_by_block'][block]:.0%}" for block in blocks)
        depths.add_row(arm["sentence"], *energies, f"{arm['energy']:.0%}", f"{arm['accuracy']:.1%}")
    out.print(depths)
    out.print(verdict_of(results, "the export"))
    tampered = results["tampered"]
    finding = tampered["findings"][0] if tampered["findings"] else {"where": "", "sentence": "nothing found"}
    out.print(styled("bold red", tampered["verdict"], f"  its tampered copy: {finding['where']}: {finding['sentence']}"))
    release = results["release"]
    at = f"epoch {release['epoch']}, leaf {release['leaf']}"
    tied = f"the release: {release['tensors']} tensors {release['weights']} to {at}"
    out.print(verdict_of(release, tied))
    for finding in release["other"]["findings"]:
        sentence = f"  a copy with one weight changed: {finding['where']}: {finding['sentence'].rpartition('; ')[2]}"
        out.print(styled("bold red", release["other"]["verdict"], sentence))
    for name, path in results["files"].items():
        out.print(f"  {name:<8}{path}")


REFUSED = "refused"
"""Prefix of bad attestations; sorts after the names of contributors: a copy must come after what it copies."""


def plant_refusals(made: Stage, contributor: Contributor, pictures: list[Mapping[str, Any]]) -> int:
    """Adds data with attestations that the gate must refuse, each wrong in one way, made with real keys; returns how many.

    Args:
        made: the corpus. contributor: whose name and key they use. pictures: records that nobody contributed, ten or more.
    """
    key = made.keys[contributor.name]
    honest = made.template(contributor.name, contributor.admissibility_class)
    spare = iter(pictures)

    def sign(name: str, template: SigningTemplate, signer: Any = key) -> Path:
        data = made.corpus / f"{REFUSED}-{name}.jsonl"
        write_records(data, [next(spare)])
        sign_corpus(data, None, signer, template)
        return data

    sign("expired", replace(honest, not_before=made.now - 60 * DAY, not_after=made.now - 30 * DAY))
    sign("forged", honest, generate())
    sign("too-permissive", replace(honest, clip_norm_micro=4 * honest.clip_norm_micro))
    sign("too-little-noise", replace(honest, noise_multiplier_micro=honest.noise_multiplier_micro // 2))
    sign("wrong-corpus", replace(honest, corpus="another-corpus"))

    changed = sign("changed-content", honest)
    write_records(changed, [next(spare)])

    replayed = made.corpus / f"{REFUSED}-replayed.jsonl"
    original = made.corpus / f"{contributor.name}.jsonl"
    with open(original.with_name(f"{original.name}.attest"), "rb") as stream:
        first = next(iter(read_sequence(stream)))
    replayed.write_bytes(original.read_bytes().splitlines(keepends=True)[0])
    replayed.with_name(f"{replayed.name}.attest").write_bytes(first.to_cbor())

    loose = made.corpus / f"{REFUSED}-non-canonical.jsonl"
    write_records(loose, [next(spare)])
    content = loose.read_bytes().rstrip(b"\n")
    right = honest.descriptor(hashlib.sha256(content).digest())
    encoded = right.to_cbor()
    # The same map with its size in two bytes instead of one: valid CBOR, but not the one encoding (RFC 8949, 4.2.1).
    payload = bytes([0xB8, encoded[0] & 0x1F]) + encoded[1:]
    message = sign1.sign(payload, key, contributor=right.issuer)
    loose.with_name(f"{loose.name}.attest").write_bytes(Attestation(payload, message, right.opening()).to_cbor())

    write_records(made.corpus / f"{REFUSED}-unattested.jsonl", [next(spare)])
    return 9


_AUDITOR = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
from dptrain.cli import main
sys.argv[0] = "dptrain"
main()
"""


def audit(directory: Path, *command: str) -> dict[str, Any]:
    """Returns what a command of the auditor prints about a part of the demo, the last argument, where torch is missing."""
    keys = ("--key", str(directory / "ledger.pub"), "--owner-key", str(directory / "keys" / "owner.pub"))
    return without_torch(*command[:-1], str(directory / command[-1]), *keys, "--json")[1]


def without_torch(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs a command of ``dptrain`` that prints JSON where torch is not installed; its exit code and what it said."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", _AUDITOR, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the auditor's process failed: {done.stderr.strip()[-2000:]}")
    return done.returncode, json.loads(done.stdout)


def flipped_copy(source: Path, copy: Path, wanted: str, *, middle: bool) -> str:
    """Copies a directory, flips one bit of the first file of a pattern, in its middle or its last byte, and names the file."""
    shutil.copytree(source, copy)
    path = min(path for path in copy.glob(wanted) if path.is_file() and layout.CHECKPOINT not in path.relative_to(copy).parts)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if middle else -1] ^= 1
    path.write_bytes(bytes(content))
    return path.relative_to(copy).as_posix()
