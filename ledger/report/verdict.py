"""Shows what the audit says, what is wrong, where that stands, and what nobody can know from a ledger.

Verdicts and qualifiers are the words of `ledger.audit.findings`, with their sentences; a sign and a colour are added here.
"""

from collections.abc import Sequence
from typing import Final

from ledger.audit import QUALIFIERS, VERDICTS, AuditReport, Verdict
from ledger.audit.findings import BEYOND, count_of
from ledger.report.markup import Html, code, counted, details, number, rounded_up, section, soft, table, text

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


def scope(report: AuditReport) -> str:
    """Returns the claims that were checked, each with its leaves, and what was not checked; nothing of an audit that failed."""
    if report.verdict == "FAILED" or not report.kinds:
        return ""
    kinds = ((row.kind, row.count, row.first, row.last) for row in report.kinds)
    listed = table("kinds-c", "Leaves of the ledger by kind", ("kind", "leaves", "first", "last"), kinds)
    claims = [(claim, Html(f"{text(how)}<small>{text(leaves)}</small>")) for claim, leaves, how in _claims(report)]
    return section(
        "scope",
        "What was verified, and what was not",
        fact_list(claims, "facts claims"),
        details("Where these leaves stand", listed),
        "<h3>Not verified</h3>",
        soft("Beside the words that weaken the verdict, no audit can find in an export:"),
        f"<ul>{''.join(f'<li>{text(sentence)}</li>' for sentence in BEYOND)}</ul>",
    )


def _claims(report: AuditReport) -> list[tuple[str, str, str]]:
    """What was claimed, the leaves that say it, and how it was checked."""

    def leaves(*kinds: str) -> str:
        there = [f"{count:,} {kind}" for kind in kinds if (count := count_of(report.kinds, kind))]
        return f"leaves: {', '.join(there) or 'none'}"

    keys = " and ".join(f"{signer.name}, key id {signer.key_id}" for signer in report.signers if signer.of_log)
    owner = (
        "signed by the owner's key that was pinned"
        if report.owner_pinned
        else f"signed by the key that it names for {report.owner}"
    )
    found = [
        (
            "Nothing was changed since it was signed",
            _all_leaves(report),
            f"hashed to the root, signed by {keys}",
        ),
        ("The policy is the corpus owner's", "leaf 0, HEADER", owner),
        (
            "Noise on every layer that a class may touch is what the policy demands, unless the layer is told to be frozen",
            "leaf 0, HEADER",
            "blocks and noise derived again from the policy and the stack that the header names",
        ),
        (
            "Every step was charged, over the contributions of its moment",
            leaves("ADMIT", "CHARGE", "DRAW", "SETTLE", "RESUME"),
            "windows tile the run within its horizon; pools and noise streams compared",
        ),
        ("Every ε is at least what was spent", leaves("SPEND", "EPOCH"), f"computed again with {report.accountant}"),
        ("Who withdrew was drawn no more", leaves("WITHDRAW"), "gone from the pool of every later charge"),
    ]
    if report.bounds is not None and report.verdict in ("FULL", "SUMMARISED"):
        how = f"{report.bounds.held:,} attestations verify under {report.bounds.keys:,} keys of the owner's registry and say so"
        if not report.bounds.admits:
            how = "the auditors who vouch for what was pruned had the attestations, and held each leaf against its own"
        found.append(("Bounds and limits are what each contributor signed", leaves("ADMIT"), how))
    optional = (
        ("Releases cite this ledger as it was", "RELEASE", "root and withdrawals of their moment computed again"),
        ("Summaries say what their ranges said", "SUMMARY", _of_summaries(report)),
        ("The ledger's key was handed over by its holder", "KEY", "signed by the old key and by the new one"),
        ("The run is over", "CLOSE", "nothing is charged behind it"),
    )
    return found + [(claim, leaves(kind), how) for claim, kind, how in optional if count_of(report.kinds, kind)]


def _all_leaves(report: AuditReport) -> str:
    gone = sum(row.pruned for row in report.summaries)
    return f"all {report.size or 0:,} leaves{f', {gone:,} of them by their hash alone' if gone else ''}"


def _of_summaries(report: AuditReport) -> str:
    if any(row.pruned for row in report.summaries):
        return "computed again from what stays; of what is gone, auditors vouch"
    return "every figure computed again from the leaves"
