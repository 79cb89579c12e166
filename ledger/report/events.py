"""Shows withdrawals, and what the operator alone tells: refusals of the gate, and how good the model is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from attest.errors import ReasonCode
from ledger.audit import AuditReport, WithdrawalRow
from ledger.errors import LedgerError
from ledger.report.markup import BAR, LONGEST_NAME, Html, bar, code, details, rounded_up, section, soft, table, text, utc
from ledger.report.verdict import PUBLIC

MAX_EXAMPLES: Final = 50
"""Refusals told one by one; the gate's own report has the others."""

MAX_ROWS: Final = 200
MAX_COLUMNS: Final = 20
_MAX_COUNT: Final = 2**63


class ExtrasRefused(LedgerError, ValueError):
    """What the operator wants to show beside the audit has not the form that the report takes."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What the operator tells.

    Attributes:
        admitted: contributions that the gate admitted, by class.
        refused: contributions that it refused, by reason code.
        examples: refusals one by one, each a row by column; at most `MAX_EXAMPLES` are shown.
        results: rows of results, by column.
    """

    admitted: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    examples: Sequence[Mapping[str, Any]] = ()
    results: Sequence[Mapping[str, Any]] = ()

    @property
    def has_gate(self) -> bool:
        """Whether anything was told of the gate."""
        return bool(self.admitted or self.refused or self.examples)


def read_extras(extras: Mapping[str, Any] | None) -> Extras:
    """Reads ``{"gate": {"admitted": {class: n}, "refused": {code: n}, "examples": [...]}, "results": [...]}``, all optional.

    The gate's own JSON may stand under ``gate``: its ``refusals`` are taken as examples. A single result may be a mapping.

    Raises:
        ExtrasRefused: a count is no count, or a row no row.
    """
    given = extras or {}
    gate = _mapping(given.get("gate"), "gate")
    examples = gate.get("examples", gate.get("refusals"))
    results = given.get("results")
    rows = [{"refusal": row} if isinstance(row, str) else row for row in _rows(examples, "gate.examples")]
    return Extras(
        admitted=_read_counts(gate.get("admitted"), "gate.admitted"),
        refused=_read_counts(gate.get("refused"), "gate.refused"),
        examples=[_mapping(row, "a row of gate.examples") for row in rows],
        results=[
            _mapping(row, "a row of results")
            for row in ([results] if isinstance(results, Mapping) else _rows(results, "results"))
        ],
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ExtrasRefused("EXTRAS", f"{what} is {value!r:.80}, expected an object")
    return value


def _rows(value: Any, what: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ExtrasRefused("EXTRAS", f"{what} is {value!r:.80}, expected a list")
    return value


def _read_counts(value: Any, what: str) -> Mapping[str, int]:
    found = _mapping(value, what)
    for name, count in found.items():
        if type(count) is not int or not 0 <= count < _MAX_COUNT:
            raise ExtrasRefused("EXTRAS", f"{what} of {name!r:.80} is {count!r:.80}, expected a count")
    return found


_NEVER = "never admitted"


def withdrawals(report: AuditReport) -> str:
    """Returns how many contributions were withdrawn and why, and the last ones with what they keep."""
    if not report.classes:
        return ""
    counts = report.withdrawal_counts
    if not counts:
        return section("withdrawals", "Withdrawals", "<p>None.</p>")
    largest, total = max(row.count for row in counts), sum(row.count for row in counts)
    # Class and reason share a column, so that on a phone there is room for whole bars, whose lengths can be compared.
    rows = (
        (Html(f"{text(row.class_name or _NEVER)}<small>{code(row.reason)}</small>"), row.count, bar(row.count, largest))
        for row in counts
    )
    told = table("withdrawn-c", f"{total:,} withdrawals by class and reason", ("class, reason", "count", BAR), rows)
    head = ("leaf", "time", "contribution", "reason", "class", "steps charged", "ε spent and kept")
    last = table("withdrawn-last-c", "What each had spent when it left", head, map(_withdrawal, report.withdrawals))
    shown = len(report.withdrawals)
    summary = f"The last {shown} of {total:,}" if shown < total else "One by one"
    meaning = (
        "A contribution is drawn no more from the next charge on. What it has spent stays spent: its influence is bounded, "
    )
    return section(
        "withdrawals", "Withdrawals", soft(f"{meaning}not removed."), told, details(summary, last) if report.withdrawals else ""
    )


def summaries(report: AuditReport) -> str:
    """Returns which ranges of the ledger have a summary, and who vouches for it."""
    if not report.summaries:
        return ""
    head = ("leaf", "first leaf", "last leaf", "bodies that are gone", "auditors who vouch for it")
    rows = ((row.seq, row.first, row.end - 1, row.pruned, ", ".join(row.vouchers) or "none") for row in report.summaries)
    pruned = sum(row.pruned for row in report.summaries)
    trusted = "What they said is known by the summaries alone, and by the word of the auditors who vouch for them. "
    return section(
        "summaries",
        "Summaries",
        soft(f"{trusted if pruned else ''}The signed checkpoint covers every leaf of these ranges."),
        table("summaries-c", "Ranges of the ledger that have a summary", head, rows),
    )


def gate(extras: Extras) -> str:
    """Returns what the gate admitted and refused, as the operator tells it."""
    if not extras.has_gate:
        return ""
    return section(
        "gate",
        "The gate",
        soft("Told by the operator. Refused contributions never reach the ledger, so the audit cannot check these counts."),
        "<h3>Admitted</h3>",
        _counts("admitted-c", "Admitted, by class", "class", extras.admitted, meanings=False),
        "<h3>Refused</h3>",
        _counts("refused-c", "Refused, by reason", "reason", extras.refused, meanings=True),
        _examples(extras.examples),
    )


def results(extras: Extras) -> str:
    """Returns the results, as the operator tells them."""
    if not extras.results:
        return ""
    return section(
        "results",
        "Results",
        soft("Told by the operator; no audit of the ledger can check them."),
        _free(extras.results, "results-c", "Results", MAX_ROWS),
    )


def _withdrawal(row: WithdrawalRow) -> tuple[Any, ...]:
    admitted = row.class_name is not None
    spent = None if not admitted else PUBLIC if row.epsilon is None else rounded_up(row.epsilon)
    return (row.seq, utc(row.time), code(row.descriptor_hash), code(row.reason), row.class_name or _NEVER, row.steps, spent)


def _counts(ident: str, caption: str, what: str, counts: Mapping[str, int], *, meanings: bool) -> str:
    if not counts:
        return "<p>None.</p>"
    shown = sorted(counts.items(), key=lambda item: -item[1])[:MAX_ROWS]
    rest, largest = sum(counts.values()) - sum(count for _, count in shown), max(counts.values())
    rows: list[tuple[Any, ...]] = [
        (_reason(name) if meanings else text(name, LONGEST_NAME), count, bar(count, largest)) for name, count in shown
    ]
    if rest:
        rows.append(("all others", rest, ""))
    return table(ident, caption, (what, "count", BAR), rows, caption_shown=False)


def _reason(name: str) -> Html:
    """A reason code, with its meaning where it is one of ours."""
    known = ReasonCode.__members__.get(name)
    return (
        Html(f"{code(name)}<small>{text(known.meaning)}</small>") if known else Html(f"<code>{text(name, LONGEST_NAME)}</code>")
    )


def _examples(examples: Sequence[Mapping[str, Any]]) -> str:
    if not examples:
        return ""
    shown = f"{MAX_EXAMPLES} of {len(examples):,} refusals" if len(examples) > MAX_EXAMPLES else "Refusals, one by one"
    return details(shown, _free(examples, "examples-c", "Refusals", MAX_EXAMPLES))


def _free(rows: Sequence[Mapping[str, Any]], ident: str, caption: str, most: int) -> str:
    """A table of rows whose columns nobody knows beforehand."""
    shown = rows[:most]
    columns = list(dict.fromkeys(key for row in shown for key in row))[:MAX_COLUMNS]
    told = table(
        ident,
        caption,
        [text(column, LONGEST_NAME) for column in columns],
        ([row.get(key) for key in columns] for row in shown),
        caption_shown=False,
    )
    return told + (soft(f"{len(rows) - most:,} more rows are left out.") if len(rows) > most else "")
