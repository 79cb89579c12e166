"""Inline SVG: a step chart of epsilon and horizontal bars. Colours come from the page's style sheet."""

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 320
LEFT: Final = 58
RIGHT: Final = 150
TOP: Final = 16
BOTTOM: Final = 44
SERIES_STYLES: Final = 8
"""Distinct line styles in the style sheet; each differs in colour and in dashes."""

_FOUR_UP: Final = Context(prec=4, rounding=ROUND_CEILING)

BAR_HEIGHT: Final = 26
BAR_LEFT: Final = 190


def step_chart(xs: Sequence[int], series: Mapping[str, Sequence[float]], *, x_label: str, y_label: str) -> str:
    """Draws cumulative values that change at the given abscissae, one labelled line per name.

    Args:
        xs: increasing abscissae, the start excluded: every line begins at (0, 0).
        series: values per name, one per abscissa.
        x_label: what the abscissa counts.
        y_label: what the lines show.
    """
    x_ticks, y_ticks = ticks(max(xs)), ticks(max((max(values) for values in series.values()), default=0.0))
    x_top, y_top = x_ticks[-1], y_ticks[-1]

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / x_top

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / y_top

    right, bottom = x(x_top), y(0)
    center, middle = (LEFT + right) / 2, (TOP + bottom) / 2
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)} over {escape(x_label)}">',
        f'<text class="axis" x="{center:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text class="axis" x="14" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 14 {middle:.1f})">'
        f"{escape(y_label)}</text>",
    ]
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right:.1f}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{tick:g}</text>')
    label_at = TOP - 16.0
    ends = sorted(((y(values[-1]), place, name) for place, (name, values) in enumerate(series.items())))
    for end, place, name in ends:
        points = [f"{x(0):.1f},{y(0):.1f}"]
        for at, value in zip(xs, series[name], strict=True):
            points.append(f"{x(at):.1f},{points[-1].split(',')[1]}")
            points.append(f"{x(at):.1f},{y(value):.1f}")
        style = f"s{place % SERIES_STYLES}"
        parts.append(f'<polyline class="line {style}" points="{" ".join(points)}"/>')
        label_at = max(end + 4, label_at + 16)
        label = f"{name} {rounded_up(series[name][-1])}"
        parts.append(f'<text class="label {style}" x="{right + 8:.1f}" y="{label_at:.1f}">{escape(label)}</text>')
    return "".join([*parts, "</svg>"])


def bars(counts: Mapping[str, int], *, label: str) -> str:
    """Draws one horizontal bar per name, with its count in figures."""
    largest = max(counts.values(), default=0) or 1
    height = BAR_HEIGHT * len(counts) + 4
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">']
    for row, (name, count) in enumerate(counts.items()):
        top, width = row * BAR_HEIGHT + 4, (WIDTH - BAR_LEFT - 70) * count / largest
        parts.append(f'<text class="tick" x="{BAR_LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="{BAR_LEFT}" y="{top}" width="{max(width, 1):.1f}" height="18" rx="2"/>')
        parts.append(f'<text class="tick" x="{BAR_LEFT + max(width, 1) + 6:.1f}" y="{top + 14}">{count}</text>')
    return "".join([*parts, "</svg>"])


def rounded_up(value: float) -> Decimal:
    """Returns four significant digits, never below the value: a bound that is shown smaller is no bound."""
    return Decimal(format(_FOUR_UP.create_decimal_from_float(value), "f"))


def ticks(top: float) -> list[float]:
    """Returns round numbers from 0 to at least ``top``, five or so."""
    if not top > 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(top / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if top / (step * factor) <= 5)
    return [step * count for count in range(math.ceil(top / step - 1e-9) + 1)]
