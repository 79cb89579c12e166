"""Layers and classes: who may touch what, behind how much noise. A table, coloured; every colour has its figure."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledger.audit import AuditReport
from ledger.report.markup import NONE, hidden, rounded_down, rounded_up, section, soft, text
from ledger.report.verdict import PUBLIC
from ledger.views.summary import ClassSummary

HEATS: Final = 8
"""Shades in the style sheet."""

MAX_ROWS: Final = 300
"""Rows that are shown, after equal neighbours are merged; models with more have thousands of heads by themselves."""

_LAYER = re.compile(r"^(.*?\.\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Row:
    """Neighbouring blocks that the same classes touch behind the same noise.

    Attributes:
        first: layer of the first block.
        last: layer of the last block.
        coordinates: number of parameters.
        std: standard deviation of the noise.
        cells: per class its noise multiplier; `PUBLIC` for a public class; None where it may not touch them.
    """

    first: str
    last: str
    coordinates: int
    std: float
    cells: tuple[float | str | None, ...]


def layers(report: AuditReport) -> str:
    """Returns the heat map of layers and classes."""
    if not report.blocks:
        return ""
    rows = merged(report)
    figures = [value for row in rows for value in row.cells if isinstance(value, float)]
    scale = (min(figures, default=1.0), max(figures, default=1.0))
    head = "".join(f"<th scope='col' class='heat-head'>{text(c.name)}{_spent(c)}</th>" for c in report.classes)
    body = "".join(_row(row, scale) for row in rows[:MAX_ROWS])
    what, when = _told(report)
    cut = soft(f"{len(rows) - MAX_ROWS:,} more rows are left out; the export has all blocks.") if len(rows) > MAX_ROWS else ""
    return section(
        "layers",
        "Layers and classes",
        f"<div class='scroll' role='group' aria-labelledby='layers-c' tabindex='0'><table class='heatmap'>"
        f"<caption id='layers-c'><span>{text(what)} {NONE} where a class may not touch the layer, {PUBLIC} where nothing is "
        f"promised to it. {text(when, 4000)}</span></caption>"
        f"<thead><tr><th scope='col'>layer</th>{head}<th scope='col' class='num'>noise</th>"
        f"<th scope='col' class='num'>parameters</th></tr></thead><tbody>{body}</tbody></table></div>",
        _key(scale) if figures else "",
        cut,
        soft(
            "A figure here is about the direct update of one layer in one step. What the whole run reveals, by way of other "
            "layers and later steps too, is the ε of the class, and no layer has a smaller one of its own."
        ),
    )


def merged(report: AuditReport) -> list[Row]:
    """Merges blocks into layers by the number in their name, and runs of equal layers into one row."""
    names = [c.name for c in report.classes]
    rows: list[Row] = []
    for block, multipliers in zip(report.blocks, report.multipliers, strict=True):
        match = _LAYER.match(block.name)
        layer = match[1] if match else block.name
        cells = tuple(
            None if name not in block.classes else PUBLIC if value is None else value
            for name, value in zip(names, multipliers, strict=True)
        )
        if rows and (rows[-1].std, rows[-1].cells) == (block.std, cells):
            rows[-1] = Row(rows[-1].first, layer, rows[-1].coordinates + block.coordinates, block.std, cells)
        else:
            rows.append(Row(layer, layer, block.coordinates, block.std, cells))
    return rows


def _spent(summary: ClassSummary) -> str:
    return "" if summary.epsilon is None else f" <small>ε {rounded_up(summary.epsilon)}</small>"


def _told(report: AuditReport) -> tuple[str, str]:
    if report.noise_follows_draw:
        what = (
            "Least noise multiplier of a contribution in a step that drew it. The noise is the standard deviation that one "
            "contribution of the most demanding class brings to the sum of clipped gradients;"
        )
        when = "The noise of a step follows its draw: the variances of those drawn add up, and nobody drawn, no noise."
    else:
        what = (
            "Noise multiplier at the preset bounds of a class, layer by layer: how many times the largest possible update by "
            "one contribution the noise is. The noise is the standard deviation on the sum of clipped gradients;"
        )
        when = "Fixed before the first step, by the signed policy and the stack of layers that the header names."
    if report.noise_phases:
        told = ", ".join(f"{scale:g} from step {first:,}" for first, scale, _ in report.noise_phases)
        when += f" The noise of a step is that of the table times the factor of its phase: {told}."
    return what, when


def _row(row: Row, scale: tuple[float, float]) -> str:
    label = row.first if row.first == row.last else f"{row.first} … {row.last}"
    noise = f"{rounded_down(row.std)}" if row.std else f"<span aria-hidden='true'>{NONE}</span>{hidden('none')}"
    cells = "".join(_cell(value, scale) for value in row.cells)
    sizes = f"<td class='num'>{noise}</td><td class='num'>{row.coordinates:,}</td>"
    return f"<tr><th scope='row'>{text(label)}</th>{cells}{sizes}</tr>"


def _cell(value: float | str | None, scale: tuple[float, float]) -> str:
    if value is None:
        return f"<td class='none'><span aria-hidden='true'>{NONE}</span>{hidden('may not touch')}</td>"
    if isinstance(value, str):
        return f"<td class='none'>{text(value)}</td>"
    return f"<td class='heat h{shade(value, scale)}'>{rounded_down(value)}</td>"


def shade(value: float, scale: Sequence[float]) -> int:
    """The shade of a figure between the least and the largest, by its logarithm; the middle where all are equal."""
    least, most = scale
    if not least < most:
        return HEATS // 2
    return min(int(math.log(value / least) / math.log(most / least) * HEATS), HEATS - 1)


def _key(scale: tuple[float, float]) -> str:
    least, most = map(rounded_down, scale)
    if least == most:
        return ""
    shades = "".join(f"<span class='heat h{place}'></span>" for place in range(HEATS))
    return f"<p class='soft'>Shades from {least} <span class='shades' aria-hidden='true'>{shades}</span> to {most}</p>"
