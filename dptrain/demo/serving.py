"""The demo of a service, told stage by stage: a language model with private adapters, released, served, asked until refused."""

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dptrain.cli.output import console, number, styled, table
from dptrain.demo import language, topics
from dptrain.demo.language import TIERS, Size, World
from dptrain.demo.server import PRIVATE, Answer, DemoServer
from dptrain.demo.stages import Narrator, audit, flipped_copy, judge, make_room, plant_refusals, verdict_of, without_torch
from dptrain.errors import ConfigError
from dptrain.programs import guarded, print_json, quiet_libraries
from dptrain.routing.router import FallbackNotice
from ledger import layout
from ledger.accountants import epsilon
from ledger.audit.findings import exit_code
from ledger.budget.export import export_budget
from ledger.budget.log import BudgetLog
from ledger.release import Rights

ASKED: Final = "workshop"
"""Class that is asked in the story: its adapter has learnt most, since its contributions allow most."""

ALL, ONE, NONE = "anna", "ben", "carl"
"""Clients: one that may hear of all classes, one that may hear of `ASKED` alone, and one that may hear of none."""

TOKENS: Final = 24
"""Are the most of each answer."""

PATIENCE: Final = 50
"""Private answers until the budget has to have refused one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo.

    Args:
        argv: arguments after the name of the program; default: those of the process.

    Returns:
        0 if everything went as it must: rights and budget refused, also behind a restart, and both records verify.
    """
    parser = argparse.ArgumentParser(prog="dptrain demo --serve", description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("demo"), metavar="DIR", help="where everything is written")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the story goes to standard error")
    parser.add_argument("--quick", action="store_true", help="a few steps only: for tests of the demo itself")
    arguments = parser.parse_args(argv)

    def work() -> int:
        require_extra()
        quiet_libraries()
        warnings.simplefilter("ignore", FallbackNotice)
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
        results = tell(arguments.dir, language.QUICK if arguments.quick else Size(), Narrator(silent=arguments.json))
        if arguments.json:
            print_json(results)
        else:
            _print(results)
        return 0 if held(results) else 1

    return guarded(work, as_json=arguments.json)


def require_extra() -> None:
    """Refuses before anything is made where the server cannot run. Raises ConfigError: code EXTRA."""
    try:
        import dptrain.serve.program  # noqa: F401 - whether it can be imported is all that is asked
    except ModuleNotFoundError as error:
        raise ConfigError("EXTRA", f"{error.name} is missing, which the server needs: pip install 'dptrain[serve]'") from error


def tell(directory: Path, size: Size, narrator: Narrator) -> dict[str, Any]:
    """Plays all parts and returns the public results."""
    earlier = make_room(directory)
    if earlier is not None:
        narrator.say("earlier", f"the run that lay in {directory} is now in {earlier}")
    world, told = _made(directory, size, narrator)
    may: dict[str, dict[str, float]] = {ALL: dict(world.classes), ONE: {ASKED: world.classes[ASKED]}, NONE: {}}
    narrator.say("rights", "; ".join(f"{name} may hear of {_classes(rights)}" for name, rights in may.items()))
    with DemoServer(world, {name: Rights(rights) for name, rights in may.items()}) as server:
        narrator.say("serve", f"a process of its own serves the release at {server.start()}, as serve.toml says")
        learnt = _learnt(server, world, size.repeats, narrator)
        rights = _asked(server, narrator)
        private = _spent(server, narrator)
        server.kill()
        narrator.say("kill", "SIGKILL ends the server at once; another one is started over the same files")
        server.start()
        again = _private(server)
        balance = server.ask("GET", "/v1/budgets/self", client=ALL).body
        narrator.say("again", f"{_refusal(again)}")
        ended = server.end()
        narrator.say("end", f"asked to end, the server lets answers end, signs its budget log, and ends with code {ended}")
    return told | {
        "topics": learnt,
        "rights": rights,
        "private": private,
        "restarted": {"status": again.status, "refusal": again.body.get("error"), "balance": balance, "ended": ended},
        "budget": _audited(directory, narrator),
        "files": {
            name: str(directory / path)
            for name, path in {
                "server": "serve.toml", "said": "server.log", "token": f"{ALL}.token", "release": "model/release.cose",
                "base": "base", "ledger": "ledger.db", "key": "ledger.pub", "export": "export", "policy": "policy.toml",
                "budget": "budget.db", "spent": "budget-export", "its key": "budget.pub",
            }.items()
        },
    }  # fmt: skip


def held(results: dict[str, Any]) -> bool:
    """Tells whether everything went as it must."""
    private, restarted, budget = results["private"], results["restarted"], results["budget"]
    for_all, for_one, for_none, refused = results["rights"]
    own = set(for_all["influenced_by"] or {}) <= {ASKED}  # where one adapter alone was active in each forward of the training
    return bool(
        not exit_code(results["verdict"])
        and not exit_code(results["release"]["verdict"])
        and results["release"]["weights"] == "TIED"
        and for_all["artifact"] == f"adapter:{ASKED}"
        and for_one["artifact"] == (for_all["artifact"] if own else "base")
        and for_none["artifact"] == "base"
        and (refused["status"], refused["refusal"]["type"]) == (403, "rights_refused")
        and len(private["answers"]) > 0
        and private["status"] == restarted["status"] == 403
        and private["refusal"]["type"] == restarted["refusal"]["type"] == "privacy_budget_exhausted"
        and private["balance"] == restarted["balance"]
        and restarted["ended"] == 0
        and not exit_code(budget["verdict"])
        and budget["tampered"]["verdict"] == "FAILED"
    )


def _made(directory: Path, size: Size, narrator: Narrator) -> tuple[World, dict[str, Any]]:
    """Makes the world, and returns what came of its training and its release."""
    made, people = language.contribute(directory, size), language.contributors_of(size)
    spare = [{"text": line} for line in topics.texts(topics.PRIVATE[people[-1].admissibility_class], 12, seed=2000)]
    bad = plant_refusals(made, people[-1], spare)
    narrator.say(
        "contribute",
        f"{len(people)} contributors sign {len(TIERS) * size.contributions} texts in {len(TIERS)} classes, a topic for each; "
        f"{bad} bad attestations are slipped in",
    )
    gate = judge(made, narrator)
    narrator.say("public", f"a small language model learns from {size.public_texts} texts about other topics: nobody's data")
    language.base_model(directory / "base", size)
    steps = made.policy.steps
    planned = ", ".join(
        f"{rule.name} ε = {number(epsilon(rule.bounds.noise_multiplier, float(rule.sampling_rate), steps, language.DELTA), 3)}"
        for rule in made.policy.classes
    )
    narrator.say("plan", f"{steps} steps, every contribution drawn with probability {size.rate:g}: {planned}")
    narrator.say("train", "each class trains a LoRA adapter of the head; each window of steps is charged before its first step")
    outcome = language.trained(directory, made, size)
    audited = audit(directory, "ledger", "verify", "export")
    narrator.say("audit", f"the record of the run is verified where torch is missing: {audited['verdict']}")
    language.publish(directory)
    told = audit(directory, "release", "--check", "model")
    weights = told["weights"]
    narrator.say("release", f"{weights['trained_in_files']} of {weights['trained']} trained tensors are {weights['status']}")
    return World(directory, {tier.name: tier.epsilon for tier in TIERS}), {
        "classes": [dict(row) for row in outcome.classes],
        "gate": gate.counts(),
        **{key: audited[key] for key in ("verdict", "qualifiers", "findings")},
        "release": {**{key: told[key] for key in ("verdict", "qualifiers", "findings")}, "weights": weights["status"]},
    }


def _learnt(server: DemoServer, world: World, repeats: int, narrator: Narrator) -> list[dict[str, Any]]:
    """Asks for texts about no topic, and counts how many of their words are about the topic of the class that is asked.

    Whoever has rights for no class is answered by the base; the adapters were released, so what they write costs nothing more.
    """
    found = []
    for name, spent in world.classes.items():
        told: dict[str, Any] = {"class": name, "epsilon": spent}
        for client, artifact in ((NONE, "base"), (ALL, "adapter")):
            written = [
                f"{prompt} {server.complete(client, name, prompt, TOKENS, seed=seed).text}"
                for prompt in topics.BEGINNINGS
                for seed in range(repeats)
            ]
            told[artifact] = topics.share(written, topics.PRIVATE[name])
        found.append(told)
    shares = ", ".join(f"{row['class']} {row['base']:.0%} by the base, {row['adapter']:.0%} by its adapter" for row in found)
    narrator.say("learnt", f"words about the topic of the class: {shares}")
    return found


def _asked(server: DemoServer, narrator: Narrator) -> list[dict[str, Any]]:
    """Asks one thing as several clients: what answers, or refuses, follows from their rights alone."""
    found = []
    for client, model in ((ALL, ASKED), (ONE, ASKED), (NONE, ASKED), (NONE, f"{PRIVATE}{ASKED}")):
        came = server.complete(client, model, topics.BEGINNINGS[0], TOKENS, seed=1)
        if came.status == 200:
            privacy = came.body["privacy"]
            row = {"artifact": privacy["artifact"], "influenced_by": privacy["influenced_by"], "words": came.text}
            narrator.say("ask", f"{client} asks {model}: {row['artifact']} answers: {topics.BEGINNINGS[0]} {came.text}")
            if client == ONE and row["artifact"] == "base":
                narrator.say("", "all adapters were active while each was trained, so the other classes may have influenced it")
        else:
            row = {"artifact": None, "refusal": came.body["error"]}
            narrator.say("ask", f"{client} asks {model}: {_refusal(came)}")
        found.append({"client": client, "model": model, "status": came.status} | row)
    return found


def _spent(server: DemoServer, narrator: Narrator) -> dict[str, Any]:
    """Asks for private answers until the budget refuses."""
    answers: list[dict[str, Any]] = []
    came = _private(server)
    while came.status == 200 and len(answers) < PATIENCE:
        released = came.body["privacy"]["release"]
        balance = server.ask("GET", "/v1/budgets/self", client=ALL).body
        row = {key: released[key] for key in ("epsilon", "delta", "releases", "clip", "sigma", "nano_rho")}
        answers.append(row | {"epsilon_spent": balance["epsilon_spent"], "words": came.text})
        narrator.say(
            "private",
            f"answer {len(answers)}: ε {number(row['epsilon'], 3)} of the states, {number(balance['epsilon_spent'], 3)} of "
            f"{balance['epsilon_cap']:g} spent: {topics.BEGINNINGS[0]} {came.text}",
        )
        came = _private(server)
    balance = server.ask("GET", "/v1/budgets/self", client=ALL).body
    narrator.say("refused", _refusal(came))
    if answers:
        noise = answers[0]["sigma"] * language.WIDTH**0.5
        # Without any state below the noise, as many words of the topic come out: they tell of the adapter's weights alone.
        read = f"the adapter read states clipped to norm {answers[0]['clip']:g} under noise of norm {noise:.0f}"
        narrator.say("noise", f"{read}, so what it added to these answers follows the noise, and hardly the state")
    return {
        "answers": answers,
        "status": came.status,
        "refusal": came.body.get("error"),
        "balance": balance,
    }


def _private(server: DemoServer) -> Answer:
    return server.complete(ALL, f"{PRIVATE}{ASKED}", topics.BEGINNINGS[0], TOKENS)


def _audited(directory: Path, narrator: Narrator) -> dict[str, Any]:
    """Exports the budget log and verifies the export, and a copy of it with one bit changed, where torch is missing."""
    with BudgetLog.open(directory / "budget.db", read_only=True) as log:
        export_budget(log, directory / "budget-export")

    def verified(name: str) -> dict[str, Any]:
        key = str(directory / "budget.pub")
        return without_torch("ledger", "verify", str(directory / name), "--key", key, "--json")[1]

    told = verified("budget-export")
    counts = f"{told['reserves']} reservations, {told['open']} of them open"
    narrator.say("audit", f"the budget's export is verified where torch is missing: {told['verdict']}, {counts}")
    entries = f"{Path(layout.entries_path(0)).parent}/**/*"
    changed = flipped_copy(directory / "budget-export", directory / "budget-export-tampered", entries, middle=True)
    refuted = verified("budget-export-tampered")
    narrator.say("tamper", f"one bit flipped in {changed} of a copy: the audit says {refuted['verdict']}")
    kept = ("verdict", "qualifiers", "findings", "size", "caps", "reserves", "open", "reserved_nano", "freed_nano")
    return {key: told[key] for key in kept} | {"tampered": {"file": changed, "verdict": refuted["verdict"]}}


def _refusal(came: Answer) -> str:
    error = came.body.get("error", {})
    return f"{came.status} {error.get('type')} {error.get('code')}: {error.get('message')}"


def _classes(rights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} up to ε {number(most, 3)}" for name, most in rights.items()) or "no class"


def _print(results: dict[str, Any]) -> None:
    out = console()
    learnt = {row["class"]: row for row in results["topics"]}
    rows = table("class", "admitted", "clip norm", "multiplier", "ε", "ε content replaced", "topic by base", "by adapter")
    for row in results["classes"]:
        figures = (row["clip_norm"], row["effective_multiplier"], row["epsilon"], row["epsilon_replace"])
        shares = (f"{learnt[row['class']][artifact]:.0%}" for artifact in ("base", "adapter"))
        rows.add_row(row["class"], str(row["admitted"]), *map(number, figures), *shares)
    out.print(rows)
    asked = table("client", "asks", "answers", "influenced by")
    for item in results["rights"]:
        said = item["artifact"] or f"{item['status']} {item['refusal']['code']}"
        asked.add_row(item["client"], item["model"], said, _classes(item.get("influenced_by") or {}))
    out.print(asked)
    paid = table("private answer", "states", "ε", "ε spent", "of")
    private = results["private"]
    most = number(private["balance"]["epsilon_cap"])
    for place, item in enumerate(private["answers"], start=1):
        paid.add_row(str(place), str(item["releases"]), number(item["epsilon"]), number(item["epsilon_spent"]), most)
    out.print(paid)
    out.print(styled("bold", "refused", f"  {json.dumps(private['refusal'])}"))
    out.print(styled("bold", "killed and started again", f"  {results['restarted']['refusal']['code']}"))
    out.print(verdict_of(results, "the export of the run"))
    out.print(verdict_of(results["release"], f"the release: weights {results['release']['weights']}"))
    out.print(verdict_of(results["budget"], f"the export of the budget: {results['budget']['reserves']} reservations"))
    tampered = results["budget"]["tampered"]
    out.print(styled("bold red", tampered["verdict"], f"  its tampered copy, in {tampered['file']}"))
    for name, path in results["files"].items():
        out.print(f"  {name:<9}{path}")
