"""Writes the report: one page by an escaping template, under a policy that lets it fetch and run nothing."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from ledger import layout
from ledger.audit import QUALIFIERS, AuditReport, Verdict
from ledger.audit.findings import BEYOND, MAX_FINDINGS, count_of, headline, word_of
from ledger.errors import StorageFailed
from ledger.report import rows
from ledger.report.extras import read_extras
from ledger.report.shown import code, counted, day, is_number, moment, name, rounded_down, rounded_up, shown, text, utc
from ledger.views.attacker import CASES, WATCHER, hits

MAX_TILES: Final = 12
"""Classes that are told on the first screen; the table has all."""

MAX_CODES: Final = 8
"""Codes of findings that are told there; the table has all."""

_SIGNS: Final[dict[Verdict, str]] = {"FULL": "✓", "SUMMARISED": "◐", "TOLD": "◑", "SIGNED": "◌", "FAILED": "✗"}


def write_report(
    export_dir: str | Path, out_html: str | Path, *, report: AuditReport, extras: Mapping[str, Any] | None = None
) -> Path:
    """Writes one self-contained page: readable on a phone, on paper, in the dark, by keyboard and by ear.

    Guarantee: The page has no script and fetches nothing, and its own content security policy forbids both: it allows one style
    sheet, by digest. No word of the export or the extras is markup in it. Its size does not grow with the number of
    contributions, and is bounded in that of epochs, blocks and findings.

    Args:
        export_dir: the audited export; its checkpoint is printed as it stands.
        out_html: the page.
        report: the audit of that export.
        extras: what the ledger does not know, as `ledger.report.extras.read_extras` takes it; shown as told, not as audited.

    Returns:
        The path of the page.

    Raises:
        ExtrasRefused: the extras have another form.
        StorageFailed: the page cannot be written.
    """
    told = read_extras(extras)
    (run, run_chart), attacked = rows.run(report), rows.attacked(report)
    template, style = _template()
    page = template.render(
        report=report,
        extras=told,
        headline=headline(report.verdict, report.qualifiers),
        word=word_of(report.verdict, (finding.code for finding in report.findings)),
        leaves=_leaves(report),
        pruned=sum(row.pruned for row in report.summaries),
        attacked=attacked,
        worst=max((one.from_null or 0 for one in attacked), default=0),
        model=rows.model(report),
        cosigned=rows.cosigned(report),
        codes=list(dict.fromkeys(finding.code for finding in report.findings)),
        spent=rows.spent(report),
        about=rows.about(report),
        tables=rows.tables(report, told),
        preset=any(c.epsilon_preset is not None for c in report.classes),
        epochs=rows.evenly(report.epochs),
        run=run,
        run_chart=run_chart,
        spreads=rows.spreads(report),
        layers=rows.layers(report),
        tangents=len(rows.tangents(report)),
        releases=rows.releases(report),
        withdrawn_in_all=sum(row.count for row in report.withdrawal_counts),
        note=_note(Path(export_dir)),
        style=Markup(style),
        style_digest=_digest(style),
    )
    try:
        atomic_write(out_html, page.encode())
    except OSError as error:
        raise StorageFailed("REPORT", f"cannot write {out_html}: {error.strerror or error}") from error
    return Path(out_html)


@cache
def _template() -> tuple[Template, str]:
    """Reads the template, which escapes whatever it prints, and the style sheet."""
    environment = Environment(
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"code": code, "cut": text, "name": name, "up": rounded_up, "down": rounded_down}
    environment.filters |= {"moment": moment, "utc": utc, "day": day}
    environment.filters["short"] = "{:g}".format
    environment.tests["numeric"] = is_number
    environment.globals |= {
        "qualifiers": QUALIFIERS,
        "beyond": BEYOND,
        "signs": _SIGNS,
        "counted": counted,
        "shade": rows.shade,
        "heats": rows.HEATS,
        "max_tiles": MAX_TILES,
        "max_codes": MAX_CODES,
        "watcher": WATCHER,
        "cases": CASES,
        "guessed": hits(0.0, 0.0),
        "max_findings": MAX_FINDINGS,
        "other_key": rows.OTHER,
        "newline": Markup("\n"),
    }
    here = resources.files(__package__)
    return environment.from_string(here.joinpath("page.html").read_text("utf-8")), here.joinpath("style.css").read_text("utf-8")


def _leaves(report: AuditReport) -> Callable[..., str]:
    """Returns what says how many leaves of some kinds there are."""

    def leaves(*kinds: str) -> str:
        there = [f"{count:,} {kind}" for kind in kinds if (count := count_of(report.kinds, kind))]
        return f"leaves: {', '.join(there) or 'none'}"

    return leaves


def _note(export_dir: Path) -> list[str] | None:
    """Reads the lines of the signed checkpoint; None where there is none that can be read."""
    try:
        note = read_limited(export_dir / layout.CHECKPOINT, layout.MAX_TEXT_SIZE, "checkpoint")
    except FileRefused:
        return None
    return note.decode("utf-8", "backslashreplace").split("\n")[: rows.MAX_LINES]


def _digest(style: str) -> str:
    """Returns the digest of the style sheet as a content security policy names it (CSP Level 3, section 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}"
