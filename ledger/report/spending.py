"""What contributions have spent: per class, over the run, and how it is distributed."""

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, Final

from ledger.audit import AuditReport
from ledger.report.markup import (
    BAR,
    Html,
    bar,
    bin_edges,
    details,
    histogram,
    line_chart,
    rounded_down,
    rounded_up,
    section,
    soft,
    table,
    text,
    utc,
)
from ledger.report.verdict import PUBLIC
from ledger.views.summary import ClassSummary, Spread

MAX_POINTS: Final = 200
"""Epochs that are drawn or listed; of more, as many evenly spaced ones and the last."""

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

_TOLD = """
<p>That contributions were admitted under these bounds is the operator's word. The column for the preset hangs on no such
word: it is what a contribution at the preset bounds of its class has spent, without a cap and admitted before the first
charge. No contribution that the signed policy takes has spent more.</p>
"""


def classes(report: AuditReport) -> str:
    """Returns the largest value of one contribution per class, and what it means."""
    if not report.classes:
        return ""
    counted = any(c.occurrences is not None for c in report.classes)
    steps = ("steps", "occurrences") if counted else ("steps",)
    told = any(c.epsilon_preset is not None for c in report.classes)
    preset = ("ε at the preset, no caps",) if told else ()
    head = ("class", "ε", "ε, content replacement", *preset, "noise multiplier", "sampling rate", *steps, "active", "withdrawn")
    rows: list[tuple[Any, ...]] = []
    for c in report.classes:
        values = (c.epsilon, c.epsilon_replace, *([c.epsilon_preset] if told else []))
        spent = [PUBLIC if value is None else rounded_up(value) for value in values]
        multiplier = PUBLIC if c.public else None if c.noise_multiplier is None else rounded_down(c.noise_multiplier)
        taken = (c.steps, c.occurrences) if counted else (c.steps,)
        rows.append((c.name, *spent, multiplier, c.sampling_rate, *taken, c.active, c.withdrawn))
    shown = table("classes-c", "Largest value of one contribution per class; ε rounded up, noise down", head, rows)
    return section("spent", "What contributions have spent", _warning(report), shown, _TOLD if told else "", _MEANING)


def over_the_run(report: AuditReport) -> str:
    """Returns epsilon per class over the steps charged, as recorded epoch by epoch, and as it stands now."""
    if not report.epochs:
        return ""
    epochs = [report.epochs[place] for place in evenly(len(report.epochs))]
    names = [c.name for c in report.classes]
    last, now = epochs[-1], tuple(c.epsilon for c in report.classes)
    # Steps charged, not step numbers: re-executed steps count again, and the line never runs back.
    points = [(row.charged, row.epsilons) for row in epochs] + (
        [(report.charged, now)] if report.charged > last.charged else []
    )
    series = {
        c.name: [epsilons[place] or 0.0 for _, epsilons in points] for place, c in enumerate(report.classes) if not c.public
    }
    head = (
        "epoch",
        "leaf",
        "last step",
        "steps charged",
        *(Html(f"ε {text(name)}") for name in names),
        "active",
        "withdrawn",
        "closed",
    )
    rows: list[tuple[Any, ...]] = [
        (
            row.number,
            row.seq,
            row.step,
            row.charged,
            *map(_bound, row.epsilons),
            sum(row.active),
            sum(row.withdrawn),
            utc(row.time),
        )
        for row in epochs
    ]
    if len(points) > len(epochs):
        counts = (sum(c.active for c in report.classes), sum(c.withdrawn for c in report.classes))
        rows.append(("in no epoch yet", None, None, report.charged, *map(_bound, now), *counts, None))
    chart = ""
    if series and points[-1][0] and all(map(math.isfinite, chain.from_iterable(series.values()))):
        title, x_label, y_label = "ε per class over the run", "steps charged", "largest ε of a contribution"
        chart = line_chart("run", title, [at for at, _ in points], series, x_label=x_label, y_label=y_label)
    listed = table("run-c", "Largest ε of a contribution, at the close of each epoch; rounded up", head, rows)
    cut = f" Of {len(report.epochs):,} epochs {len(epochs):,} are shown." if len(epochs) < len(report.epochs) else ""
    return section(
        "run",
        "ε per class over the run",
        soft(f"Recorded at the close of every epoch; the lines only connect what was recorded.{cut}"),
        f"<figure>{chart}{details('Figures of this chart', listed)}</figure>",
    )


def distribution(report: AuditReport) -> str:
    """Returns how the epsilons of the contributions of each class are distributed."""
    spreads = [(c, c.spread) for c in report.classes if c.spread is not None]
    if not spreads:
        return ""
    head = ("class", "contributions", "least", "a quarter up to", "half up to", "three quarters up to", "most")
    rows = (
        (c.name, s.contributions, *map(rounded_up, (s.least, s.quarter, s.median, s.three_quarters, s.most)))
        for c, s in spreads
    )
    told = table("spread-c", "ε of all contributions ever admitted, withdrawn ones included; rounded up", head, rows)
    figures = "".join(_figure(place, c, s) for place, (c, s) in enumerate(spreads))
    return section("spread", "How expenditure is distributed", told, f"<div class='grid'>{figures}</div>")


def _figure(place: int, summary: ClassSummary, spread: Spread) -> str:
    title = f"<h3>{text(summary.name)}</h3>"
    if spread.least == spread.most:
        return f"<div>{title}<p>Each of the {spread.contributions:,} has spent {rounded_up(spread.most)}.</p></div>"
    if not math.isfinite(spread.most):
        return f"<div>{title}<p>No bound is known for some of the {spread.contributions:,}, so nothing is drawn.</p></div>"
    ends = list(pairwise(map(rounded_up, bin_edges(spread))))
    rows = [
        (Html(f"{low} to {high}"), count, bar(count, max(spread.counts)))
        for (low, high), count in zip(ends, spread.counts, strict=True)
    ]
    caption = f"Contributions of class {summary.name} by ε"
    listed = table(f"spread-{place}-c", caption, ("ε", "count", BAR), rows, caption_shown=False)
    drawn = histogram(f"spread-{place}", caption, spread)
    return f"<figure>{title}{drawn}{details('Figures of this chart', listed)}</figure>"


def _warning(report: AuditReport) -> str:
    if report.verdict != "FAILED":
        return ""
    return "<p class='warning'>The audit failed: these are the figures of what could be read, and prove nothing.</p>"


def _bound(value: float | None) -> Any:
    return PUBLIC if value is None else rounded_up(value)


def evenly(count: int) -> Sequence[int]:
    """Places of at most `MAX_POINTS` of so many, the last among them."""
    if count <= MAX_POINTS:
        return range(count)
    return [(place + 1) * count // MAX_POINTS - 1 for place in range(MAX_POINTS)]
