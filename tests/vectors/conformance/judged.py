"""What this code says of the export of a vector: verdict, qualifiers, findings, and what every contribution has spent."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ledger.audit import AuditReport, verify_export
from ledger.audit.given import Export, begin, follow
from ledger.budget.audit import given_texts, holds_budget
from ledger.replay.state import of_record
from tests.vectors.conformance.honest import Pins
from tests.vectors.conformance.written import Files, put

_ASKED = ("steps", "charged", "attempts")


def audit(
    files: Files, pins: Pins, directory: Path, earlier: Sequence[Files] = (), withdrawals: Files | None = None
) -> AuditReport:
    """Audits files below a new directory as a reader who brings these pins.

    Args:
        files: the export.
        pins: what the reader brings.
        directory: a new one; what else is given lies beside it.
        earlier: exports of other runs, and of budgets, that are given.
        withdrawals: signed withdrawals that are given; none without any.
    """
    given = put(withdrawals, directory.with_name("withdrawals")) if withdrawals else None
    brought: dict[str, Any] = {"owner_key": pins.owner, "now": pins.now, "minimum_size": pins.minimum_size}
    brought |= {"require_quorum": pins.require_quorum, "withdrawals": given}
    export = put(files, directory)
    if not earlier:
        return verify_export(export, pins.log, **brought)
    others = [put(other, directory.with_name(f"earlier-{number}")) for number, other in enumerate(earlier)]
    texts = [given_texts(other, pins.log, now=pins.now) for other in others if holds_budget(other)]
    runs = [other for other in others if not holds_budget(other)]
    return verify_export(export, pins.log, earlier=runs, texts=texts, **brought)


def judged(
    files: Files, pins: Pins, earlier: Sequence[Files] = (), withdrawals: Files | None = None, *, figures: bool = False
) -> dict[str, Any]:
    """Returns what a vector says of an export: the verdict, what weakens it, and as information our own findings."""
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / "export"
        report = audit(files, pins, export, earlier, withdrawals)
        told: dict[str, Any] = {"verdict": report.verdict}
        if report.verdict == "FAILED":
            return told | {"findings": sorted({(found.code, _where(found.where, folder)) for found in report.findings})}
        told["qualifiers"] = list(report.qualifiers)
        if figures:
            told["figures"] = {name: getattr(report, name) for name in _ASKED} | {
                "size": report.size,
                "root": report.root_hex,
                "delta": report.delta,
                "closed": report.finished,
                "contributions": list(_contributions(export, pins)),
            }
    return told


def _where(where: str, folder: str) -> str:
    """Returns where a finding is, without the directory in which the files lay."""
    return where.removeprefix(f"{folder}/")


def _contributions(directory: Path, pins: Pins) -> Iterator[dict[str, Any]]:
    """Yields what each contribution has spent, in the order of their ADMIT leaves; with `prv` what is the least to be said."""
    export = Export(directory, lambda *told: None)
    export.scan()
    opened = export.checkpoint(list(pins.log))
    assert opened is not None
    assert export.check_names(opened[1].size)
    leaves = export.leaves(opened[1])
    assert leaves is not None
    run = begin(leaves)
    for _ in follow(run, leaves):
        pass
    spent = of_record(run.header, run.expenditure)
    for name, one in run.contributions.items():
        public = run.header.policy.classes[one.class_index].public
        yield {
            "descriptor": None if one.unnamed else name.hex(),
            "class": one.terms.class_name,
            "active": one.active,
            "multipliers": None if public else list(run.expenditure.of_contribution(one)),
            "steps": run.expenditure.steps(one, run.charged_phases),
            "occurrences": one.occurrences if run.header.occurrences_public else None,
            "epsilon": None if public else spent.epsilon(one, run.charged_phases, run.charged_attempt),
        }
