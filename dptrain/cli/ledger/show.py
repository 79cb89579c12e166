"""Show what a ledger, its header and the audit of an export say, for people and as JSON."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from attest.files import read_limited
from attest.fixed_point import MICRO
from attest.registry import read_states
from attest.schema.plain import utc, visible
from attest.schema.rounding import at_least
from dptrain.cli.output import counted, number, spent, styled, table, table_of
from dptrain.cli.registry.show import keys_table
from dptrain.cli.results import Shown, Told, pick
from ledger import layout
from ledger.audit import AuditReport, Verdict
from ledger.audit.findings import QUALIFIERS, WHERE_BEYOND, headline, word_of
from ledger.budget.audit import WORDS, BudgetReport, ContributionRow, RuleRow
from ledger.note import parse_verifier_key
from ledger.release import ReleaseReport
from ledger.replay import Replay
from ledger.views.geometry import geometry_of
from ledger.views.summary import class_summaries, release_rows

COLOURS: Final = {"FULL": "green", "SUMMARISED": "yellow", "TOLD": "yellow", "SIGNED": "yellow"}
"""Of a verdict; any other is red."""


def summary(state: Replay, root: bytes) -> dict[str, Any]:
    """Returns what a ledger says of its run, as JSON."""
    header, policy = state.header, state.header.policy
    told = pick(header, "origin run_id time private owner registry_root delta randomness unprobed", exactness="exactness_note")
    told |= pick(policy, "corpus adjacency steps redo_steps") | {"accountant": header.accountant.name, "root": root.hex()}
    told |= pick(state, "size last_time attempt", finished="closed", charged_steps="charged", step="position")
    geometry = geometry_of(header)
    return told | {
        "clock_sets": [pick(leaf, "before time", leaf="seq") for leaf in state.timeline.sets],
        "key": state.keys.current,
        "isolation": state.isolation.sentence,
        "isolation_held": state.isolation.held,
        "geometry": None if geometry is None else asdict(geometry),
        "epochs": len(state.epochs),
        "classes": [asdict(item) for item in class_summaries(state)],
        "releases": [asdict(row) for row in release_rows(state)],
        "release_count": len(state.releases.recorded),
        "blocks": [pick(block, "name std classes") for block in header.blocks],
    }


def summary_text(data: dict[str, Any]) -> Iterator[Shown]:
    """Yields the summary for people."""
    yield styled("bold", data["origin"], f"  run {data['run_id']}  {'closed' if data['finished'] else 'open'}")
    yield f"{data['size']} leaves, root {data['root']}"
    yield f"corpus {data['corpus']}, delta {data['delta']:g}, {data['accountant']}, {data['adjacency']}"
    yield (
        f"since {utc(data['time'])}: {data['charged_steps']} steps charged of {data['steps']} (and {data['redo_steps']} that "
        f"may be redone), last released {data['step']}, attempt {data['attempt']}"
    )
    for item in data["clock_sets"]:
        yield f"leaf {item['leaf']} sets the clock back from {utc(item['before'])} to {utc(item['time'])}"
    yield f"statement A (isolation): {data['isolation']}"
    if data["geometry"] is not None:
        yield f"geometry: {data['geometry']['sentence']}"
    if not data["private"]:
        yield styled("bold red", "NOT PRIVATE", ": this run used a fixed test key and cannot be exported")
    yield from classes_text(data["classes"])
    yield from releases_text(data["releases"], [item["name"] for item in data["classes"]])


def audit_text(audited: AuditReport) -> Iterator[Shown]:
    """Yields the verdict and what weakens it, what is wrong, what a reader should know, and then the figures."""
    tree = None if audited.origin is None else f"{audited.size} leaves, root {audited.root_hex}"
    yield from report_text(audited, audited.origin or "the checkpoint was refused", tree)
    if audited.classes:
        yield (
            f"corpus {audited.corpus}, policy signed by {audited.owner}, {audited.charged} steps charged of {audited.steps}, "
            f"delta {audited.delta:g}, {audited.accountant}"
        )
        yield f"statement A (isolation): {audited.isolation}"
        if audited.geometry is not None:
            yield f"geometry: {audited.geometry.sentence}"
        yield from classes_text([asdict(item) for item in audited.classes])
        yield from releases_text([asdict(row) for row in audited.releases], [item.name for item in audited.classes])
    yield WHERE_BEYOND


def budget_text(audited: BudgetReport) -> Iterator[Shown]:
    """Yields the verdict on a budget log, what is wrong, what a reader should know, and what units of each kind have spent."""
    yield verdict_line(audited.verdict, audited.qualifiers, audited.origin or "the checkpoint was refused")
    if audited.origin is not None:
        yield f"budget log of {audited.size} leaves, root {audited.root_hex}"
    for finding in audited.findings:
        yield styled("red", finding.code, f" {visible(finding.where, plain=True)}: {finding.sentence}")
    for word in audited.qualifiers:
        yield styled("yellow", word, f" {WORDS[word].sentence}; {WORDS[word].remedy}")
    for note in audited.notes:
        yield f"note: {note}"
    for origin, size, root in audited.beside:
        yield f"stands beside the ledger {visible(origin, plain=True)} at {size} leaves, root {root}"
    for cap in audited.caps:
        yield (
            f"{cap.unit}: cap epsilon {cap.epsilon:g} at delta {cap.delta:g} ({cap.cap_nano} of 1e-9 rho); {cap.units} paid, "
            f"the most {cap.most_nano}, epsilon {spent(cap.most_epsilon)}"
        )
    yield (
        f"{audited.reserves} reservations of {audited.reserved_nano} in all, {audited.freed_nano} freed, {audited.open} open; "
        f"{audited.budget_epochs} epochs closed"
    )
    for row in audited.generation:
        yield from _rule_text(row)
    for one in audited.contributions:
        yield from _charged_text(one)
    if len(audited.contributions) > 1:
        yield _together(audited.contributions)


def _rule_text(row: RuleRow) -> Iterator[Shown]:
    """Yields the rule of a class, and what its contributions have spent."""
    rule = row.rule
    whose = "as the owner signed it" if row.signed else "the operator's word"
    drawn = "the whole vocabulary" if rule.top_k is None else f"{rule.top_k} tokens"
    yield styled("bold", f"generation from class {rule.name}", f", policy {row.policy}: {whose}")
    yield (
        f"  B {rule.references}, C {number(rule.clip_norm_micro / MICRO)}, tau {number(rule.temperature_micro / MICRO)}, "
        f"{drawn}, at most {rule.tokens} tokens a text; a token costs {row.token_nano} or more, a contribution pays at most "
        f"{rule.max_rho_nano} of 1e-9 rho"
    )
    yield (
        f"  {counted(row.admitted, 'contribution')} admitted, {row.verified} with a signature that verified, "
        f"{row.withdrawn} withdrawn; the most spent {row.most_nano}, epsilon {spent(row.most_epsilon)} at delta {row.delta:g}"
    )


def _charged_text(row: ContributionRow) -> Iterator[Shown]:
    """Yields what was charged to a contribution, text by text."""
    if row.admitted is not None:
        about = f"admitted to generation by leaf {row.admitted}, class {row.rule}"
    else:
        about = "not admitted to generation by this log"
    yield styled("bold", row.account, f"  {about}")
    if row.withdrawn is not None:
        yield f"  withdrawn by leaf {row.withdrawn}: nothing is reserved for it behind that"
    for text in row.texts:
        computed = "no leaf says how many were computed" if text.computed is None else f"{text.computed} computed"
        yield (
            f"  leaf {text.seq}, {utc(text.time)}: {counted(text.releases, 'token')} of {text.rho_nano} each, {computed}; "
            f"charged {text.charged_nano}; {text.mechanism}: {visible(text.words, plain=True)}"
        )
    cap = "no cap" if row.cap_nano is None else f"of at most {row.cap_nano}"
    worth = "" if row.spent_epsilon is None else f"; epsilon {spent(row.spent_epsilon)}"
    limit = "" if row.cap_epsilon is None else f" of at most {spent(row.cap_epsilon)} at delta {row.delta:g}"
    yield f"  {counted(len(row.texts), 'text')}, {row.spent_nano} {cap} (1e-9 rho){worth}{limit}"
    yield f"  {row.reserved_nano} reserved, {row.freed_nano} freed: what was never computed, by the operator's word"


def _together(rows: Sequence[ContributionRow]) -> Shown:
    """Returns what was charged to several contributions; a text may have references of more than one."""
    texts = {text.seq: text for row in rows for text in row.texts}
    tokens = sum(text.releases if text.computed is None else text.computed for text in texts.values())
    most = max(row.spent_nano for row in rows)
    return styled(
        "bold",
        "in all",
        f"  {counted(len(texts), 'text')} of {counted(len(rows), 'contribution')}, {tokens:,} tokens; "
        f"the most charged to one {most} (1e-9 rho)",
    )


def report_text(report: AuditReport | ReleaseReport, about: str, of: str | None = None) -> Iterator[Shown]:
    """Yields the verdict of a report, what it is the verdict on, what is wrong, and what a reader should know."""
    yield from verdict_text(report.verdict, report.qualifiers, about, [finding.code for finding in report.findings])
    if of is not None:
        yield of
    for finding in report.findings:
        yield styled("red", finding.code, f" {visible(finding.where, plain=True)}: {finding.sentence}")
    for note in report.notes:
        yield f"note: {note}"


def verdict_text(verdict: Verdict, qualifiers: Iterable[str], about: str, codes: Iterable[str] = ()) -> Iterator[Shown]:
    """Yields the verdict with what weakens it, and a line for what each word says and what the reader can do about it. `codes`:
    of the findings."""
    words, said = tuple(qualifiers), word_of(verdict, codes)
    yield verdict_line(verdict, words, about)
    yield f"{said.sentence}; {said.remedy}"
    if verdict != "FAILED":
        for word in words:
            yield styled("yellow", word, f" {QUALIFIERS[word].sentence}; {QUALIFIERS[word].remedy}")


def verdict_line(verdict: Verdict, qualifiers: Iterable[str], about: str) -> Text:
    """Returns a verdict with its qualifiers in its colour, and what it is on."""
    return styled(f"bold {COLOURS.get(verdict, 'red')}", headline(verdict, qualifiers), f"  {about}")


def classes_text(classes: list[dict[str, Any]]) -> Iterator[Shown]:
    """Yields a table of what the contributions of each class have spent at most."""
    counted = any(item["occurrences"] is not None for item in classes)
    preset = any(item["epsilon_preset"] is not None for item in classes)
    yield table_of(
        classes,
        {
            "class": lambda item: item["name"],
            "active": lambda item: str(item["active"]),
            "withdrawn": lambda item: str(item["withdrawn"]),
            "q": lambda item: number(item["sampling_rate"]),
            "least z": _noise,
            "steps": lambda item: str(item["steps"]),
            **({"occurrences": lambda item: str(item["occurrences"])} if counted else {}),
            "epsilon": lambda item: spent(item["epsilon"]),
            "if content replaced": lambda item: spent(item["epsilon_replace"]),
            **({"at preset, no caps": lambda item: spent(item["epsilon_preset"])} if preset else {}),
            "parameters": lambda item: str(item["coordinates"]),
        },
    )


def releases_text(rows: Iterable[dict[str, Any]], classes: list[str]) -> Iterator[Shown]:
    """Yields each release, whose influence may be in it, and what it costs each of these classes at most."""
    for row in rows:
        basis = "planned horizon" if row["planned_horizon"] else "whole run"
        yield styled("bold", f"released at leaf {row['seq']}", f", {utc(row['time'])}, step {row['step']}")
        yield f"  release.cose has SHA-256 {row['manifest_digest']}"
        for part in row["parts"]:
            costs = [
                f"{name} {'has no bound' if epsilon == math.inf else spent(epsilon)}"
                for name, epsilon in zip(classes, part["epsilons"], strict=True)
                if name in part["influenced_by"]
            ]
            what = f"epsilon of the {basis}: {', '.join(costs)}" if costs else "no class has any influence on it"
            yield f"  {part['name']}: {what}"


def _noise(item: dict[str, Any]) -> str:
    """Returns the least noise multiplier of a class; nothing where no contribution has one."""
    found = item["noise_multiplier"]
    return "public" if item["public"] else "" if found is None else at_least(found)


def shown_parties(run: Replay, ledger: str) -> Told:
    """Returns the signing parties of a run, and where each key was read. Raises RegistryRefused: the registry in the export,
    which was audited, does not verify."""
    signing, rows = _parties(run), table("who", "name", "key", "read from")
    for item in signing:
        rows.add_row(*item.values())
    path = Path(ledger) / layout.REGISTRY
    if not path.is_file():
        return Told({"parties": signing, "contributors": None}, [rows, "contributors: no registry here"])
    data = read_limited(path, layout.MAX_REGISTRY_SIZE, "contributor registry")
    registry = read_states(data, run.header.owner_key, run.header.registry_root)[1]
    keys = "key_id not_before not_after revoked_at proved"
    known = [
        pick(item, "classes cap", commitment="name") | {"keys": [pick(record, keys, key="raw") for record in item.keys]}
        for item in registry.contributors
    ]
    head = f", as commitments, in a registry with the root {registry.root().hex()}"
    return Told(
        {"parties": signing, "contributors": known},
        [rows, styled("bold", "contributors", head), keys_table(registry.contributors)],
    )


def _parties(run: Replay) -> list[dict[str, str]]:
    """Returns who signs what of a run: role, name, key, and where the key was read."""
    header = run.header
    owner = {"role": "owner", "name": header.owner, "key": header.owner_key.hex(), "source": "header; it signs the policy"}
    found = [owner]
    for place, vkey in enumerate(run.keys.vkeys):
        source = "KEY leaf, signed by the key before" if place else "header"
        found.append({"role": "ledger", "name": parse_verifier_key(vkey).name, "key": vkey, "source": source})
    for vkey in header.policy.auditors:
        found.append({"role": "auditor", "name": parse_verifier_key(vkey).name, "key": vkey, "source": "signed policy"})
    return found
