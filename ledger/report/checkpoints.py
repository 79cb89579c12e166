"""Shows what was signed: the checkpoint, by whom, its epochs, and the releases."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from attest.errors import FileRefused
from attest.files import read_limited
from ledger import layout
from ledger.audit import AuditReport, Signer
from ledger.audit.findings import IgnoredLine
from ledger.note import parse_verifier_key
from ledger.report.markup import Html, code, counted, details, moment, rounded_up, section, soft, table, text, utc
from ledger.report.spending import evenly
from ledger.report.verdict import PUBLIC, fact_list
from ledger.views.summary import ReleaseRow


def checkpoints(report: AuditReport, export_dir: Path) -> str:
    """Returns who signed the checkpoint, its text, and the recorded epochs."""
    try:
        note = read_limited(export_dir / layout.CHECKPOINT, layout.MAX_TEXT_SIZE, "checkpoint")
    except FileRefused:
        return ""
    return section(
        "checkpoints",
        "Checkpoints and who signed them",
        _signers(report),
        _keys(report),
        "<h3>The signed checkpoint</h3>",
        soft("Compare it with the one published elsewhere: the same size with another root is a fork, and proof of one."),
        f"<pre tabindex='0' role='group' aria-label='Signed checkpoint'>{_note(note)}</pre>",
        _epochs(report),
    )


def _signers(report: AuditReport) -> str:
    ignored = _ignored(report)
    if not report.signers:
        return f"<p class='warning'>No signature was verified.</p>{ignored}"
    rows = [_signer(signer, report) for signer in report.signers]
    signed = {(signer.name, signer.key_id) for signer in report.signers}
    rows += [(*map(code, key), role, "has not cosigned", None) for key, role in _cosigners(report).items() if key not in signed]
    head = ("name", "key id", "role", "signature", "time stated")
    quorum = _quorum(report) if report.corpus is not None else ""
    return quorum + table("signers-c", "Who signed the checkpoint, and who has not", head, rows) + ignored


def _ignored(report: AuditReport) -> str:
    """Signature lines that nobody could verify; auditors are known only once the policy was read."""
    if not report.ignored:
        return ""
    whose = (
        "by keys neither pinned nor named by the policy"
        if report.corpus is not None
        else "by keys not pinned, and the audit never came to the policy"
    )
    rows = ((code(row.name), code(row.key_id), row.lines, _resembled(row)) for row in report.ignored)
    head = ("name in the line", "key id in the line", "lines", "the known key that it resembles")
    told = table("ignored-c", "Signature lines that count for nothing", head, rows)
    lines = counted(sum(row.lines for row in report.ignored), "signature line")
    return soft(f"{lines} could not be verified: {whose}.") + told


def _resembled(row: IgnoredLine) -> Html | None:
    if row.resembles is None:
        return None
    key = parse_verifier_key(row.resembles)
    return Html(f"{code(key.name)} {code(key.key_id.hex())}<small>damaged, forged, or by another key</small>")


def _keys(report: AuditReport) -> str:
    """The keys of a ledger that was handed over to another one."""
    keys = [parse_verifier_key(vkey) for vkey in report.log_keys]
    if len(keys) < 2:
        return ""
    rows = (
        (place, code(key.name), code(key.key_id.hex()), "current" if place == len(keys) else "replaced")
        for place, key in enumerate(keys, start=1)
    )
    caption = "Keys of the ledger, in the order in which they signed it; each handed it over to the next"
    return table("keys-c", caption, ("key", "name", "key id", "state"), rows)


def _signer(signer: Signer, report: AuditReport) -> tuple[Any, ...]:
    role = "the ledger itself" if signer.of_log else _cosigners(report).get((signer.name, signer.key_id), "other pinned key")
    time = None if signer.time is None else utc(signer.time)
    signed = "verified" if signer.counts else "verified, counts for nothing: dated before the last leaf, or ahead of the clock"
    return (code(signer.name), code(signer.key_id), role, signed, time)


def _cosigners(report: AuditReport) -> dict[tuple[str, str], str]:
    """Role by name and key id of the auditors and witnesses whom the signed policy names."""
    named = [(vkey, "auditor") for vkey in report.auditors] + [(vkey, "witness") for vkey in report.witnesses]
    keys = [(parse_verifier_key(vkey), role) for vkey, role in named]
    return {(key.name, key.key_id.hex()): role for key, role in keys}


def _quorum(report: AuditReport) -> str:
    if report.quorum is None and report.witness_quorum is None:
        return soft("The signed policy names no auditors and no witnesses, so nobody but the ledger itself has to sign.")
    parts = []
    for role, several, vkeys, quorum, met in (
        ("auditor", "auditors", report.auditors, report.quorum, report.quorum_met),
        ("witness", "witnesses", report.witnesses, report.witness_quorum, report.witness_quorum_met),
    ):
        if quorum is None:
            continue
        asked = text(f"The signed policy names {counted(len(vkeys), role, several)} and asks for {quorum} of them")
        if met:
            parts.append(f"<p>{asked}: <strong>they have cosigned</strong>.</p>")
        else:
            wrong = "not so many have cosigned, and readers who ask for them refuse this checkpoint"
            parts.append(f"<p class='warning'>{asked}: {wrong}.</p>")
    return "".join(parts)


def _note(note: bytes) -> str:
    return "\n".join(text(line, 1000) for line in note.decode("utf-8", "backslashreplace").split("\n")[:120])


def _epochs(report: AuditReport) -> str:
    if not report.epochs:
        return ""
    epochs = [report.epochs[place] for place in evenly(len(report.epochs))]
    rows = ((row.number, row.seq, utc(row.time), row.step, code(row.model_digest)) for row in epochs)
    head = ("epoch", "leaf", "closed", "last step", "model digest")
    told = table("epochs-c", "Epochs recorded in the ledger that the checkpoint signs", head, rows)
    summary = f"{len(epochs):,} of {len(report.epochs):,} epochs" if len(epochs) < len(report.epochs) else "Epochs"
    return details(summary, told)


MAX_RELEASES: Final = 10
MAX_PARTS: Final = 20
"""Releases, and parts of each, that are shown; a page must not grow with what an operator may repeat at will."""

NO_INFLUENCE: Final = "no influence"
NO_BOUND: Final = "no bound known"


def releases(report: AuditReport) -> str:
    """Returns the releases that the ledger records, the last one first; nothing where there are none."""
    if not report.releases:
        return ""
    last, *before = reversed(report.releases[-MAX_RELEASES:])
    names = [c.name for c in report.classes]
    left_out = report.release_count - len(before) - 1
    return section(
        "releases",
        "Releases",
        soft(
            "The ledger records digests. Which files they are says the manifest beside the weights: "
            "dptrain release --check holds it against them and against this ledger."
        ),
        f"<h3>{text(_title(last))}</h3>",
        _release(last, names),
        *(details(_title(row), _release(row, names)) for row in before),
        soft(f"{left_out:,} earlier releases are left out; the export has all.") if left_out else "",
    )


def _title(row: ReleaseRow) -> str:
    return f"Leaf {row.seq:,}: step {row.step:,}, {moment(row.time)}"


def _release(row: ReleaseRow, names: Sequence[str]) -> str:
    basis = (
        "of the planned horizon and all steps that may be done again: the run had not gone to its signed end"
        if row.planned_horizon
        else "of the whole run, which had gone to its signed end"
    )
    facts = [
        ("manifest", Html(f"release.cose with SHA-256 {code(row.manifest_digest)}")),
        ("files", Html(f"digest {code(row.artifacts_digest)}")),
        ("cites", Html(f"{counted(row.size, 'leaf', 'leaves')}, root {code(row.root)}")),
        ("withdrawals", text(f"{row.withdrawn:,} before it")),
        ("ε", text(basis)),
    ]
    head = ("part", "influence of", *(Html(f"ε {text(name)}") for name in names))
    rows: list[tuple[Any, ...]] = [
        (
            part.name,
            ", ".join(part.influenced_by) or "none",
            *(_cost(epsilon, name in part.influenced_by) for name, epsilon in zip(names, part.epsilons, strict=True)),
        )
        for part in row.parts[:MAX_PARTS]
    ]
    left_out = len(row.parts) - len(rows)
    rest = soft(f"{left_out:,} more parts are left out; the audit's JSON has all.") if left_out else ""
    caption = f"Leaf {row.seq:,}: whose influence may be in the weights, and the largest ε of one contribution; rounded up"
    return fact_list(facts) + table(f"release-{row.seq}-c", caption, head, rows) + rest


def _cost(epsilon: float | None, reached: bool) -> Any:
    """What a part costs a class; a figure of zero would read like a measurement."""
    if not reached:
        return NO_INFLUENCE
    if epsilon is None:
        return PUBLIC
    return rounded_up(epsilon) if math.isfinite(epsilon) else NO_BOUND
