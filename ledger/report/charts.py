"""Draws the charts of the page as inline SVG, by one function.

Every chart has a title and a description for those who hear the page, and stands beside a table of its figures.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from markupsafe import Markup

from attest.schema.plain import visible
from ledger.report.shown import LONGEST_NAME, rounded_up, text
from ledger.views.summary import Spread

COLOURS: Final = 8
"""Colours, and as many dashes, in the style sheet. Lines 1 to 8 differ in both, up to 64 lines in one of them."""

MARKS: Final = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-3.5-3.5h7v7h-7z", "M0-5L4.6 3.5H-4.6z", "M0-5L4.5 0L0 5L-4.5 0z")
"""Outlines of the marks at the points of a line, around the origin: circle, square, triangle, diamond."""

MAX_MARKED: Final = 30
"""Points of a line that are marked one by one; more would make a band of them."""

MAX_DESCRIPTION: Final = 4000
"""Characters of the description of a chart."""

LABEL_STEP: Final = 16
LONGEST_LABEL: Final = 14

_SIZES: Final = {"wide": (720, 320, 62, 176, 16, 44), "narrow": (340, 250, 44, 14, 30, 42), "small": (340, 190, 48, 12, 26, 40)}
"""Width, height, and the margins left, right, top and bottom of a drawing, by its class in the style sheet."""


class Axis(NamedTuple):
    """An axis from 0: what it shows, its end, and where numbers stand."""

    label: str
    top: float
    ticks: Sequence[float]


class Column(NamedTuple):
    """A column of a chart over a range of its abscissa."""

    low: float
    high: float
    height: float
    told: str


def chart(
    ident: str,
    size: str,
    title: str,
    description: str,
    x: Axis,
    y: Axis,
    *,
    lines: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    columns: Sequence[Column] = (),
) -> Markup:
    """Draws lines from the origin through points, or columns.

    Args:
        ident: beginning of the ids of this chart.
        size: `wide` with the names at the ends of the lines, `narrow` with them in a list below it, or `small`.
        title: what it shows, in a few words.
        description: the same with its most important figures, for those who hear it.
        x: abscissa.
        y: ordinate.
        lines: points per name.
        columns: columns; none is drawn where nothing was counted.
    """
    lines = lines or {}
    width, height, left, right, top, bottom = _SIZES[size]
    if size == "wide":
        height = max(height, LABEL_STEP * len(lines) + 76)
    end, floor = width - right, height - bottom

    def at(value: float, level: float) -> tuple[float, float]:
        return left + (end - left) * value / x.top, floor - (floor - top) * level / y.top

    parts = []
    for tick in y.ticks:
        level = at(0, tick)[1]
        parts.append(f"<line class='grid' x1='{left}' x2='{end}' y1='{level:.1f}' y2='{level:.1f}'/>")
        parts.append(f"<text class='tick' x='{left - 6}' y='{level + 4:.1f}' text-anchor='end'>{tick:,.6g}</text>")
    for tick in x.ticks[:: 2 if size == "narrow" else 1]:
        across = at(tick, 0)[0]
        parts.append(f"<text class='tick' x='{across:.1f}' y='{floor + 17:.1f}' text-anchor='middle'>{tick:,.6g}</text>")
    for column in columns:
        if column.height:
            (low, level), high = at(column.low, column.height), at(column.high, 0)[0]
            level = min(level, floor - 1.5)
            box = f"x='{low:.1f}' y='{level:.1f}' width='{high - low - 1:.1f}' height='{floor - level:.1f}'"
            parts.append(f"<rect class='bar' {box}><title>{text(column.told)}</title></rect>")
    if columns:
        parts.append(f"<line class='base' x1='{left}' x2='{end}' y1='{floor:.1f}' y2='{floor:.1f}'/>")
    center, middle = (left + end) / 2, (top + floor) / 2
    parts.append(f"<text class='axis' x='{center:.1f}' y='{height - 6}' text-anchor='middle'>{text(x.label)}</text>")
    turned = f"x='14' y='{middle:.1f}' text-anchor='middle' transform='rotate(-90 14 {middle:.1f})'"
    place_of_label = turned if size == "wide" else "x='4' y='14'"
    parts.append(f"<text class='axis' {place_of_label}>{text(y.label)}</text>")
    drawn = {name: [at(*point) for point in points] for name, points in lines.items()}
    for place, points in enumerate(drawn.values()):
        path = " ".join(f"{across:.1f},{level:.1f}" for across, level in [at(0, 0), *points])
        parts.append(f"<polyline class='line {_style(place)}' points='{path}'/>")
        parts += [_mark(place, *point) for point in (points if len(points) <= MAX_MARKED else points[-1:])]
    said = [(name, rounded_up(points[-1][1])) for name, points in lines.items()]
    if size == "wide":
        ends = sorted((points[-1][1] + 4, place) for place, points in enumerate(drawn.values()))
        for level, (_, place) in zip(_spread_out([level for level, _ in ends], height - 8), ends, strict=True):
            name, value = said[place]
            short = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…"
            label = text(f"{short} {value}")
            parts.append(f"<text class='label c{place % COLOURS}' x='{end + 12}' y='{level:.1f}'>{label}</text>")
    svg = (
        f"<svg class='{size}' viewBox='0 0 {width} {height}' role='img' aria-labelledby='{ident}-t'"
        f" aria-describedby='{ident}-d'><title id='{ident}-t'>{text(title)}</title><desc id='{ident}-d'>"
        f"{text(description, MAX_DESCRIPTION)}</desc>{''.join(parts)}</svg>"
    )
    if size != "narrow":
        return Markup(svg)
    items = "".join(
        f"<li><svg class='key' viewBox='0 0 40 12' aria-hidden='true'><line class='line {_style(place)}' x1='0' x2='40' y1='6'"
        f" y2='6'/>{_mark(place, 20, 6)}</svg> {text(name)} {value}</li>"
        for place, (name, value) in enumerate(said)
    )
    return Markup(f"{svg}<ul class='legend'>{items}</ul>")


def over_time(ident: str, title: str, xs: Sequence[int], series: Mapping[str, Sequence[float]], x: str, y: str) -> Markup:
    """Draws what was recorded at increasing abscissae, one line per name, for wide and for narrow screens.

    Args:
        ident: beginning of the ids.
        title: what it shows, in a few words.
        xs: abscissae, the start excluded.
        series: values per name, one per abscissa.
        x: what the abscissa counts.
        y: what the lines show.
    """
    ends = ", ".join(f"{visible(name, longest=LONGEST_NAME)} {rounded_up(values[-1])}" for name, values in series.items())
    description = f"Lines over {x} from 0 to {xs[-1]:,}. {y} at the end: {ends}. The table below has every figure."
    axes = [Axis(x, *_scale(xs[-1])), Axis(y, *_scale(max(map(max, series.values()))))]
    lines = {name: list(zip(xs, values, strict=True)) for name, values in series.items()}
    sizes = ("wide", "narrow")
    return Markup("").join(chart(f"{ident}-{size}", size, title, description, *axes, lines=lines) for size in sizes)


def distribution(ident: str, title: str, spread: Spread) -> Markup:
    """Draws how many contributions have spent how much."""
    most, scale = spread.most, ticks(max(spread.counts))
    description = (
        f"Columns of {spread.contributions:,} contributions by ε, from 0 to {rounded_up(most)}; half have spent no more "
        f"than {rounded_up(spread.median)}. The table below has every figure."
    )
    columns = [
        Column(low, high, count, f"{rounded_up(low)} to {rounded_up(high)}: {count:,}")
        for (low, high), count in zip(pairwise(bin_edges(spread)), spread.counts, strict=True)
    ]
    x = Axis("ε of a contribution", most, [tick for tick in ticks(most) if tick <= most * 1.0001])
    y = Axis("contributions", scale[-1], [tick for tick in scale if tick == int(tick)])
    return chart(ident, "small", title, description, x, y, columns=columns)


def bin_edges(spread: Spread) -> list[float]:
    """Returns the ends of the bins of a distribution, one more than there are bins."""
    return [spread.most * place / len(spread.counts) for place in range(len(spread.counts) + 1)]


def bar(count: int, largest: int) -> Markup:
    """Draws one bar beside its figure in a table; those who hear the page have the figure."""
    width = max(100.0 * count / largest, 0.5) if count else 0.0
    return Markup(
        "<svg class='inline' viewBox='0 0 100 10' preserveAspectRatio='none' aria-hidden='true'>"
        f"<rect class='bar' width='{width:.1f}' height='10'/></svg>"
    )


def ticks(top: float) -> list[float]:
    """Returns round numbers from 0 to at least ``top``, five or so."""
    if not top > 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(top / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if top / (step * factor) <= 5)
    return [step * count for count in range(math.ceil(top / step - 1e-9) + 1)]


def _scale(top: float) -> tuple[float, list[float]]:
    found = ticks(top)
    return found[-1], found


def _style(place: int) -> str:
    return f"c{place % COLOURS} d{(place + place // COLOURS) % COLOURS}"


def _mark(place: int, x: float, y: float) -> str:
    return f"<path class='mark c{place % COLOURS}' d='{MARKS[place % len(MARKS)]}' transform='translate({x:.1f} {y:.1f})'/>"


def _spread_out(heights: Sequence[float], lowest: float) -> list[float]:
    """Moves ascending heights apart by a line of text, none below the lowest."""
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + LABEL_STEP) if found else height)
    return [min(height, lowest - LABEL_STEP * (len(found) - 1 - place)) for place, height in enumerate(found)]
