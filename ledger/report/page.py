"""Writing the report: one page of sections, under a policy that lets it fetch and run nothing."""

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Final

from attest.files import atomic_write
from ledger.audit import AuditReport
from ledger.audit.findings import headline
from ledger.errors import StorageFailed
from ledger.report.checkpoints import checkpoints, releases
from ledger.report.events import gate, read_extras, results, summaries, withdrawals
from ledger.report.layers import layers
from ledger.report.markup import text
from ledger.report.spending import classes, distribution, over_the_run
from ledger.report.verdict import about, findings, notes, qualifiers, scope, verdict

_STYLE: Final = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_HEADING: Final = re.compile(r"<section id='([a-z]+)'>\n<h2>(.*?)</h2>")


def write_report(
    export_dir: str | Path, out_html: str | Path, *, report: AuditReport, extras: Mapping[str, Any] | None = None
) -> Path:
    """Writes one self-contained page: readable on a phone, on paper, in the dark, by keyboard and by ear.

    Guarantee:
        The page has no script and fetches nothing, and its own content security policy forbids both: it allows one style
        sheet, by digest. No word of the export or the extras is markup in it. Its size does not grow with the number of
        contributions, and is bounded in that of epochs, blocks and findings.

    Args:
        export_dir: the audited export; its checkpoint is printed as it stands.
        out_html: the page.
        report: the audit of that export.
        extras: what the ledger does not know, as `ledger.report.events.read_extras` takes it; shown as told, not as audited.

    Returns:
        The path of the page.

    Raises:
        ExtrasRefused: the extras have another form.
        StorageFailed: the page cannot be written.
    """
    told = read_extras(extras)
    sections = [
        findings(report),
        qualifiers(report),
        about(report),
        notes(report),
        scope(report),
        classes(report),
        over_the_run(report),
        distribution(report),
        layers(report),
        releases(report),
        withdrawals(report),
        summaries(report),
        gate(told),
        results(told),
        checkpoints(report, Path(export_dir)),
    ]
    body = "\n".join(section for section in sections if section)
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    page = Template(template).substitute(
        title=text(f"Privacy ledger of {report.origin or 'an unknown run'}: {headline(report.verdict, report.qualifiers)}"),
        subject=text(report.origin or "an unknown run"),
        style_digest=_digest_of_style(template),
        contents="".join(f"<li><a href='#{ident}'>{title}</a></li>" for ident, title in _HEADING.findall(body)),
        verdict=verdict(report),
        body=body,
    )
    try:
        atomic_write(out_html, page.encode())
    except OSError as error:
        raise StorageFailed("REPORT", f"cannot write {out_html}: {error.strerror or error}") from error
    return Path(out_html)


def _digest_of_style(template: str) -> str:
    """The digest of the style sheet as a content security policy names it (CSP Level 3, section 2.3.1)."""
    (style,) = _STYLE.findall(template)
    return f"sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}"
