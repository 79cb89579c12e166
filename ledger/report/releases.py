"""Releases: which weights left the house by the ledger's word, whose influence may be in them, and at what cost per class."""

import math
from collections.abc import Sequence
from typing import Any, Final

from ledger.audit import AuditReport
from ledger.report.markup import Html, code, counted, details, moment, rounded_up, section, soft, table, text
from ledger.report.verdict import PUBLIC, fact_list
from ledger.views.released import ReleaseRow

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
