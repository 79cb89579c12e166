"""Writing the report: sections of HTML, every word from the ledger escaped."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from ledger import layout
from ledger.audit import AuditReport
from ledger.errors import StorageFailed
from ledger.leaves import HeaderBlock
from ledger.report.charts import bars, rounded_up, step_chart

_LAYER = re.compile(r"^(.*?\.\d+)(?:\.|$)")

_NONE = "\N{EN DASH}"

_PUBLIC = "public"
"""In place of every figure about the privacy of a public class: no number would be true, zero least of all."""

_MEANING = """
<p>Each figure bounds what the released model, and every step on the way to it, can reveal about one contribution: with
its payload replaced by a null of the same public shape, nothing that the run put out becomes more than e<sup>ε</sup>
times as likely, except with probability δ. Blocks outside a class's profile are never updated from its contributions
directly; what reaches them by way of the model's later state is within the same ε. The column for content replacement
compares one payload with another instead of with nothing.</p>
<p>The audit recomputed these figures from the admissions, charges and withdrawals in the ledger. It cannot show that
the trainer did what it recorded, or that nobody trained on the same data outside it. Withdrawn contributions keep what
they have spent: their influence is bounded, not removed.</p>
"""


def write_report(
    export_dir: str | Path, out_html: str | Path, *, report: AuditReport, extras: Mapping[str, Any] | None = None
) -> Path:
    """Writes one self-contained page: no scripts, no network, readable on paper, on a phone, and in the dark.

    Args:
        export_dir: the audited export; its checkpoint is printed as it stands.
        out_html: the page.
        report: the audit of that export.
        extras: what the ledger does not know. ``gate``: ``{"admitted": {class: n}, "refused": {code: n}, "examples":
            [...]}``. ``results``: a list of rows ``{column: value}``, or one mapping.

    Returns:
        The path of the page.
    """
    extras = extras or {}
    sections = [
        _verdict(report),
        _classes(report),
        _epochs(report),
        _schedule(report),
        _gate(extras.get("gate")),
        _results(extras.get("results")),
        _checkpoint(Path(export_dir)),
    ]
    template = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    title = f"Privacy ledger of {report.origin or 'an unknown run'}: {report.verdict}"
    page = template.substitute(title=escape(title), body="\n".join(section for section in sections if section))
    try:
        atomic_write(out_html, page.encode())
    except OSError as error:
        raise StorageFailed("REPORT", f"cannot write {out_html}: {error.strerror or error}") from error
    return Path(out_html)


def _verdict(report: AuditReport) -> str:
    good = report.verdict == "FULL"
    sign = "✓ FULL: everything was re-derived" if good else f"✗ {report.verdict}"
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
            f"{report.charged} in {report.attempts} attempts, horizon {report.steps}" if report.steps else None,
        ),
        ("run", ("closed" if report.finished else "open") if report.steps else None),
        ("model digest", report.model_digest),
    ]
    rows = [(f"<th scope='row'>{escape(name)}</th>", _cell(value, code=True)) for name, value in facts if value is not None]
    parts = [
        "<h1>Privacy ledger report</h1>",
        f"<p class='verdict {'full' if good else 'failed'}' role='status'>{escape(sign)}</p>",
        f"<div class='scroll'><table><tbody>{''.join(f'<tr>{a}{b}</tr>' for a, b in rows)}</tbody></table></div>",
    ]
    if report.findings:
        found = ((f.where, f.code, f.sentence) for f in report.findings)
        parts += ["<h2>Findings</h2>", _table(("where", "code", "what is wrong"), found)]
    if report.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
        parts.append(f"<h2>Notes</h2><ul>{items}</ul>")
    return "\n".join(parts)


def _classes(report: AuditReport) -> str:
    if not report.classes:
        return ""
    counted = any(c.occurrences is not None for c in report.classes)
    steps = ("steps", "occurrences") if counted else ("steps",)
    head = ("class", "active", "withdrawn", "sampling rate", "noise multiplier", *steps, "ε", "ε, content replacement")
    rows: list[tuple[Any, ...]] = []
    for c in report.classes:
        spent = [_PUBLIC if value is None else rounded_up(value) for value in (c.epsilon, c.epsilon_replace)]
        multiplier = _PUBLIC if c.public else c.noise_multiplier
        taken = (c.steps, c.occurrences) if counted else (c.steps,)
        rows.append((c.name, c.active, c.withdrawn, c.sampling_rate, multiplier, *taken, *spent))
    table = _table(head, rows, "Largest value of one contribution per class; ε rounded up")
    return f"<h2>What contributions have spent</h2>{table}{_MEANING}"


def _epochs(report: AuditReport) -> str:
    if not report.epochs:
        return ""
    names = [c.name for c in report.classes]
    # Steps charged, not step numbers: re-executed steps count again, and the line never runs back.
    series = {
        c.name: [row.epsilons[place] or 0.0 for row in report.epochs] for place, c in enumerate(report.classes) if not c.public
    }
    chart = step_chart(
        [row.charged for row in report.epochs], series, x_label="steps charged", y_label="largest ε of a contribution"
    )
    head = ("epoch", "last step", "steps charged", *names)
    rows = (
        (row.number, row.step, row.charged, *(_PUBLIC if value is None else rounded_up(value) for value in row.epsilons))
        for row in report.epochs
    )
    table = _table(head, rows)
    return f"<h2>ε per class over the run</h2>{chart}<details><summary>Figures</summary>{table}</details>"


def _schedule(report: AuditReport) -> str:
    if not report.blocks:
        return ""
    names = [c.name for c in report.classes]
    layers = _layers(report.blocks, names)
    largest = max((std for _, _, stds in layers for std in stds if std is not None), default=1.0)
    head = "".join(f"<th scope='col' class='num'>{escape(name)}</th>" for name in names)
    rows = []
    for label, coordinates, stds in layers:
        cells = "".join(
            f"<td class='none' aria-label='not touched'>{_NONE}</td>"
            if std is None
            else f"<td class='none'>{_PUBLIC}</td>"
            if std == 0.0
            else f"<td class='heat' style='--v:{std / largest:.3f}'>{std:.4g}</td>"
            for std in stds
        )
        rows.append(f"<tr><th scope='row'>{escape(label)}</th><td class='num'>{coordinates:,}</td>{cells}</tr>")
    if report.noise_follows_draw:
        what, when = (
            "Standard deviation of the noise that one contribution of the most demanding class brings to the sum of clipped "
            "gradients when it is drawn,",
            "The noise of a step follows its draw: the variances of those drawn add up, and nobody drawn, no noise.",
        )
    else:
        what = "Standard deviation of the noise on the sum of clipped gradients"
        when = "Fixed by the signed policy before the first step."
    if report.noise_phases:
        told = ", ".join(f"{scale:g} from step {first:,}" for first, scale, _ in report.noise_phases)
        when += f" The noise of a step is that of the table times the factor of its phase: {told}."
    return (
        f"<h2>Layers and classes</h2><div class='scroll'><table><caption>{what} where a class may touch a layer; {_NONE} where "
        f"it may not, {_PUBLIC} where only public classes may. {when}</caption><thead><tr><th scope='col'>layer</th>"
        f"<th scope='col' class='num'>parameters</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _layers(blocks: Sequence[HeaderBlock], names: Sequence[str]) -> list[tuple[str, int, tuple[float | None, ...]]]:
    """Merges blocks into layers by the number in their name, and runs of equal layers into one row."""
    merged: list[tuple[str, str, int, tuple[float | None, ...]]] = []
    for block in blocks:
        match = _LAYER.match(block.name)
        layer = match[1] if match else block.name
        stds = tuple(block.std if name in block.classes else None for name in names)
        if merged and merged[-1][3] == stds:
            first, _, coordinates, _ = merged[-1]
            merged[-1] = (first, layer, coordinates + block.coordinates, stds)
        else:
            merged.append((layer, layer, block.coordinates, stds))
    return [(a if a == b else f"{a} … {b}", coordinates, stds) for a, b, coordinates, stds in merged]


def _gate(gate: Mapping[str, Any] | None) -> str:
    if not gate:
        return ""
    parts = ["<h2>The gate</h2>"]
    for key, caption in (("admitted", "Admitted, by class"), ("refused", "Refused, by reason")):
        counts = {str(name): int(count) for name, count in (gate.get(key) or {}).items()}
        parts.append(f"<h3>{caption}</h3>" + (bars(counts, label=caption) if counts else "<p class='soft'>None.</p>"))
    examples = list(gate.get("examples") or [])
    if examples:
        rows = [row if isinstance(row, Mapping) else {"refusal": row} for row in examples]
        parts.append(f"<details><summary>Examples of refusals</summary>{_rows(rows)}</details>")
    return "".join(parts)


def _results(results: Any) -> str:
    if not results:
        return ""
    rows = [results] if isinstance(results, Mapping) else list(results)
    return f"<h2>Results</h2>{_rows(rows)}"


def _checkpoint(export_dir: Path) -> str:
    try:
        note = read_limited(export_dir / layout.CHECKPOINT, layout.MAX_TEXT_SIZE, "checkpoint")
    except FileRefused:
        return ""
    text = escape(note.decode("utf-8", "replace"))
    return f"<h2>Signed checkpoint</h2><p class='soft'>Compare it with the one published elsewhere.</p><pre>{text}</pre>"


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(str(key) for row in rows for key in row))
    return _table(columns, ([row.get(column) for column in columns] for row in rows))


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str | None = None) -> str:
    body = [list(row) for row in rows]
    numeric = [all(_is_number(row[at]) or row[at] is None for row in body) for at in range(len(head))]
    titles = "".join(
        f"<th scope='col'{' class=num' if right else ''}>{escape(title)}</th>"
        for title, right in zip(head, numeric, strict=True)
    )
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in body)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<div class='scroll'><table>{title}<thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>"


def _cell(value: Any, *, code: bool = False) -> str:
    if value is None:
        return f"<td class='num'>{_NONE}</td>"
    if _is_number(value) and not code:
        shown = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
        return f"<td class='num'>{shown}</td>"
    text = escape(str(value))
    return f"<td><code>{text}</code></td>" if code else f"<td>{text}</td>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
