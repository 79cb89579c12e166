"""The head of the page: what the audit says, what it is about, and what is wrong.

Verdicts and qualifiers are the words of `ledger.audit.words`, with their sentences; a sign and a colour are added here.
"""

from collections.abc import Sequence
from typing import Final

from ledger.audit import QUALIFIERS, VERDICTS, AuditReport, Verdict
from ledger.report.markup import Html, code, counted, number, rounded_up, section, soft, table, text

MAX_TILES: Final = 12
"""Classes whose epsilon is told at a glance; the table has all."""

PUBLIC: Final = "public"
"""In place of every figure about the privacy of a public class: no number would be true, zero least of all."""

_SIGNS: Final[dict[Verdict, str]] = {"FULL": "✓", "SUMMARISED": "◐", "TOLD": "◑", "SIGNED": "◌", "FAILED": "✗"}


def verdict(report: AuditReport) -> str:
    """Returns the verdict and the figures that most people look for."""
    kind, sign, sentence = report.verdict.lower(), _SIGNS[report.verdict], VERDICTS[report.verdict].sentence
    return "\n".join(
        [
            "<section id='verdict' aria-label='Verdict'>",
            f"<div class='verdict {kind}'><p><strong><span aria-hidden='true'>{sign}</span> {report.verdict}</strong>",
            f"{text(sentence)}.</p>{_weakened(report)}</div>",
            "" if report.verdict == "FAILED" else _tiles(report),
            "</section>",
        ]
    )


def _weakened(report: AuditReport) -> str:
    """Returns the qualifiers in one line, where the eye falls."""
    if report.verdict == "FAILED" or not report.qualifiers:
        return ""
    return f"<p>Weakened by <strong>{text(', '.join(report.qualifiers))}</strong></p>"


def qualifiers(report: AuditReport) -> str:
    """Returns what weakens the verdict: each word with its sentence, and what the reader can do about it."""
    if report.verdict == "FAILED" or not report.qualifiers:
        return ""
    rows = [(word, QUALIFIERS[word]) for word in report.qualifiers]
    facts = [(word, Html(f"{text(found.sentence)}<small>{text(found.remedy)}</small>")) for word, found in rows]
    meaning = f"What to do about {report.verdict}: {VERDICTS[report.verdict].remedy}."
    return section("qualifiers", "What weakens the verdict", soft(meaning), fact_list(facts, "facts claims"))


def findings(report: AuditReport) -> str:
    """Returns what is wrong, or nothing."""
    if not report.findings:
        return ""
    rows = ((Html(f"{code(found.where)}<small>{text(found.code)}</small>"), found.sentence) for found in report.findings)
    told = table("findings-c", "What is wrong, and where", ("where", "what is wrong"), rows, caption_shown=False)
    return section("findings", "Findings", told)


def notes(report: AuditReport) -> str:
    """Returns what a reader should know though nothing is wrong."""
    if not report.notes:
        return ""
    return section("notes", "Notes", f"<ul>{''.join(f'<li>{text(note)}</li>' for note in report.notes)}</ul>")


def _tiles(report: AuditReport) -> str:
    tiles = []
    for summary in report.classes[:MAX_TILES]:
        spent = PUBLIC if summary.epsilon is None else f"ε ≤ {rounded_up(summary.epsilon)}"
        counts = f"{summary.active:,} active, {summary.withdrawn:,} withdrawn"
        tiles.append(f"<li><span>{text(summary.name)}</span><strong>{text(spent)}</strong><span>{text(counts)}</span></li>")
    return f"<ul class='tiles' aria-label='Largest epsilon of a contribution, by class'>{''.join(tiles)}</ul>" if tiles else ""


def about(report: AuditReport) -> str:
    """Returns which ledger it is about, and how far that is."""
    facts = [
        ("corpus", report.corpus),
        ("ledger", report.origin),
        ("leaves", report.size),
        ("root", report.root_hex),
        ("policy signed by", report.owner),
        ("δ", report.delta),
        ("accountant", report.accountant),
        (
            "steps charged",
            f"{report.charged:,} in {counted(report.attempts, 'attempt')}, horizon {report.steps:,}" if report.steps else None,
        ),
        ("run", ("closed" if report.finished else "open: more may be charged") if report.steps else None),
        ("isolation (statement A)", report.isolation),
        ("model digest", report.model_digest),
    ]
    told = [(name, value) for name, value in facts if value is not None]
    if not told:
        return section("about", "The ledger", "<p>The checkpoint was refused, so there is nothing more to tell.</p>")
    return section("about", "The ledger", fact_list([(name, _fact(value)) for name, value in told]))


def fact_list(facts: Sequence[tuple[str, Html]], kind: str = "facts") -> str:
    """Returns names with what belongs to each; the kind is a class of the style sheet."""
    return f"<dl class='{kind}'>{''.join(f'<div><dt>{text(name)}</dt><dd>{value}</dd></div>' for name, value in facts)}</dl>"


def _fact(value: str | int | float) -> Html:
    return code(value) if isinstance(value, str) else number(value)
