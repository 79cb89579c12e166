"""Makes the pieces of a page: HTML in which every word from outside is escaped, and inline SVG.

Every figure has a title and a description for those who hear the page, and stands beside a table of its figures.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from html import escape
from itertools import pairwise
from typing import Any, Final

from attest.schema.plain import utc as shown_utc
from attest.schema.plain import visible
from ledger.views.summary import Spread

LONGEST: Final = 600
"""Characters of one foreign text that are shown; an export made to fill the page must not."""

LONGEST_NAME: Final = 80
"""Characters of a class, reason or column that are shown; identifiers of ours have 64 at most."""

NONE: Final = "\N{EN DASH}"

_FOUR_UP: Final = Context(prec=4, rounding=ROUND_CEILING)
_FOUR_DOWN: Final = Context(prec=4, rounding=ROUND_FLOOR)


class Html(str):
    """Text that is markup already, made here from escaped words."""

    __slots__ = ()


def text(value: object, longest: int = LONGEST) -> Html:
    """Returns a value for people, escaped.

    Guarantee:
        The result has no markup and no character that hides, reorders or overwrites others: control and format characters
        (bidirectional ones too), lone surrogates and unusual spaces are shown by their escape sequences.
    """
    return Html(escape(visible(str(value), longest=longest)))


def code(value: object) -> Html:
    """Returns a hash, a key or a name as it must be compared: in fixed width."""
    return Html(f"<code>{text(value)}</code>")


def utc(seconds: int) -> Html:
    """Returns a time of the ledger; a number that is none is shown as it is."""
    shown = moment(seconds)
    return Html(f"<time datetime='{shown_utc(seconds)}'>{shown}</time>") if shown.endswith("UTC") else text(shown)


def moment(seconds: int) -> str:
    """Returns the same in words alone."""
    shown = shown_utc(seconds)
    return shown.replace("T", " ").replace("Z", " UTC") if shown.endswith("Z") else shown


def rounded_up(value: float) -> Decimal:
    """Returns four significant digits, never below the value: a bound that is shown smaller is no bound."""
    return Decimal(format(_FOUR_UP.create_decimal_from_float(value), "f"))


def rounded_down(value: float) -> Decimal:
    """Returns four significant digits, never above the value: noise that is shown larger was never there."""
    return Decimal(format(_FOUR_DOWN.create_decimal_from_float(value), "f"))


def section(ident: str, title: str, *parts: str) -> str:
    """Returns a section under a heading that the contents can point to."""
    return "\n".join([f"<section id='{ident}'>", f"<h2>{text(title)}</h2>", *(part for part in parts if part), "</section>"])


def soft(sentence: str) -> str:
    """Returns a remark."""
    return f"<p class='soft'>{text(sentence)}</p>"


def details(summary: str, *parts: str) -> str:
    """Returns what is folded on a screen; paper shows it."""
    return f"<details><summary>{text(summary)}</summary>{''.join(parts)}</details>"


def hidden(words: str) -> Html:
    """Returns words for those who hear the page."""
    return Html(f"<span class='hear'>{text(words)}</span>")


def table(
    ident: str,
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    caption_shown: bool = True,
) -> str:
    """Returns a table whose first column names the rows; it scrolls within itself, by keyboard too.

    Args:
        ident: id of the caption, unique in the page.
        caption: what the table shows.
        head: titles of the columns; an `Html` stays as it is, here and in the rows.
        rows: values; None is shown as a dash, numbers stand at the right.
        caption_shown: False where a heading beside it says the same to those who see it.
    """
    body = [list(row) for row in rows]
    numeric = [_is_numeric([row[at] for row in body]) for at in range(len(head))]
    titles = "".join(
        f"<th scope='col'{' class=num' if right else ''}>{_words(title)}</th>"
        for title, right in zip(head, numeric, strict=True)
    )
    lines = "".join(f"<tr>{_row_head(row[0], right=numeric[0])}{''.join(map(cell, row[1:], numeric[1:]))}</tr>" for row in body)
    kind = "" if caption_shown else " class='hear'"
    return (
        f"<div class='scroll' role='group' aria-labelledby='{ident}' tabindex='0'><table>"
        f"<caption id='{ident}'{kind}><span>{text(caption)}</span></caption>"
        f"<thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def cell(value: Any, right: bool = True) -> str:
    """Returns one cell of a table; without a value a dash, at the right where the column has numbers."""
    if value is None:
        return f"<td{' class=num' if right else ''}><span aria-hidden='true'>{NONE}</span>{hidden('none')}</td>"
    if is_number(value):
        return f"<td class='num'>{number(value)}</td>"
    return f"<td>{_words(value)}</td>"


def counted(count: int, thing: str, things: str = "") -> str:
    """Returns a number of things; their plural, where it is not made by an s."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def number(value: int | float | Decimal) -> Html:
    """Returns a number: integers and rounded bounds whole, others with four digits."""
    return text(f"{value:.4g}" if isinstance(value, float) else f"{value:,}")


def is_number(value: Any) -> bool:
    """Whether a value is shown as a number."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_numeric(values: Sequence[Any]) -> bool:
    """Whether a column has numbers, and dashes at most beside them."""
    return any(map(is_number, values)) and all(is_number(value) or value is None for value in values)


def _row_head(value: Any, *, right: bool) -> str:
    shown = NONE if value is None else number(value) if is_number(value) else _words(value)
    return f"<th scope='row'{' class=num' if right else ''}>{shown}</th>"


def _words(value: Any) -> Html:
    return value if isinstance(value, Html) else text(value)


COLOURS: Final = 8
"""Colours, and as many dashes, in the style sheet. Lines 1 to 8 differ in both, up to 64 lines in one of them."""

MARKS: Final = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-3.5-3.5h7v7h-7z", "M0-5L4.6 3.5H-4.6z", "M0-5L4.5 0L0 5L-4.5 0z")
"""Outlines of the marks at the points of a line, around the origin: circle, square, triangle, diamond."""

MAX_MARKED: Final = 30
"""Points of a line that are marked one by one; more would make a band of them."""

BAR: Final = hidden("as a bar")
"""Title of a column of bars."""

MAX_DESCRIPTION: Final = 4000
"""Characters of the description of a figure."""

LABEL_STEP: Final = 16
LONGEST_LABEL: Final = 14


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the plot lies in a drawing, in its units, and what its axes span."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    x_top: float
    y_top: float

    def x(self, value: float) -> float:
        """Abscissa of a value."""
        return self.left + (self.width - self.left - self.right) * value / self.x_top

    def y(self, value: float) -> float:
        """Ordinate of a value."""
        return self.height - self.bottom - (self.height - self.top - self.bottom) * value / self.y_top


def line_chart(
    ident: str, title: str, xs: Sequence[int], series: Mapping[str, Sequence[float]], *, x_label: str, y_label: str
) -> str:
    """Draws what was recorded at the given abscissae, one line per name, twice: for wide and for narrow screens.

    Args:
        ident: beginning of the ids of this figure.
        title: what it shows, in a few words.
        xs: increasing abscissae, the start excluded: every line begins at (0, 0).
        series: values per name, one per abscissa.
        x_label: what the abscissa counts.
        y_label: what the lines show.
    """
    x_top, y_top = ticks(max(xs))[-1], ticks(max(max(values) for values in series.values()))[-1]
    ends = ", ".join(f"{visible(name, longest=LONGEST_NAME)} {rounded_up(values[-1])}" for name, values in series.items())
    desc = f"Lines over {x_label} from 0 to {xs[-1]:,}. {y_label} at the end: {ends}. The table below has every figure."
    height = max(320, LABEL_STEP * len(series) + 76)
    wide = Frame(720, height, 62, 176, 16, 44, x_top, y_top)
    narrow = Frame(340, 250, 44, 14, 30, 42, x_top, y_top)
    drawn = [*_axes(wide, x_label, y_label, upright=True), *_lines(wide, xs, series), *_end_labels(wide, series)]
    small = [*_axes(narrow, x_label, y_label, upright=False), *_lines(narrow, xs, series)]
    return (
        _svg(f"{ident}-wide", "wide", wide, title, desc, drawn)
        + _svg(f"{ident}-narrow", "narrow", narrow, title, desc, small)
        + _legend(series)
    )


def histogram(ident: str, title: str, spread: Spread) -> str:
    """Draws how many contributions have spent how much."""
    frame = Frame(340, 190, 48, 12, 26, 40, spread.most, ticks(max(spread.counts))[-1])
    bottom = frame.y(0)
    parts: list[str] = []
    for tick in ticks(max(spread.counts)):
        if tick == int(tick):
            parts += _y_tick(frame, tick)
    parts += [_x_tick(frame, tick) for tick in ticks(spread.most) if tick <= spread.most * 1.0001]
    for (low, high), count in zip(pairwise(bin_edges(spread)), spread.counts, strict=True):
        if count:
            left, top = frame.x(low), min(frame.y(count), bottom - 1.5)
            told = f"{rounded_up(low)} to {rounded_up(high)}: {count:,}"
            parts.append(
                f"<rect class='bar' x='{left:.1f}' y='{top:.1f}' width='{frame.x(high) - left - 1:.1f}'"
                f" height='{bottom - top:.1f}'><title>{text(told)}</title></rect>"
            )
    parts.append(f"<line class='base' x1='{frame.left}' x2='{frame.width - frame.right}' y1='{bottom:.1f}' y2='{bottom:.1f}'/>")
    parts.append(_centred(frame, "ε of a contribution"))
    parts.append(f"<text class='axis' x='4' y='14'>{text('contributions')}</text>")
    desc = (
        f"Columns of {spread.contributions:,} contributions by ε, from 0 to {rounded_up(spread.most)}; half have spent no more "
        f"than {rounded_up(spread.median)}. The table below has every figure."
    )
    return _svg(ident, "small", frame, title, desc, parts)


def bin_edges(spread: Spread) -> list[float]:
    """Returns the ends of the bins of a distribution, one more than there are bins."""
    return [spread.most * place / len(spread.counts) for place in range(len(spread.counts) + 1)]


def bar(count: int, largest: int) -> Html:
    """Draws one bar beside its figure in a table; those who hear the page have the figure."""
    width = max(100.0 * count / largest, 0.5) if count else 0.0
    return Html(
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


def _svg(ident: str, kind: str, frame: Frame, title: str, desc: str, parts: Sequence[str]) -> str:
    return (
        f"<svg class='{kind}' viewBox='0 0 {frame.width} {frame.height}' role='img' aria-labelledby='{ident}-t'"
        f" aria-describedby='{ident}-d'><title id='{ident}-t'>{text(title)}</title><desc id='{ident}-d'>"
        f"{text(desc, MAX_DESCRIPTION)}</desc>{''.join(parts)}</svg>"
    )


def _axes(frame: Frame, x_label: str, y_label: str, *, upright: bool) -> list[str]:
    parts = [part for tick in ticks(frame.y_top) for part in _y_tick(frame, tick)]
    every = 1 if upright else 2
    parts += [_x_tick(frame, tick) for tick in ticks(frame.x_top)[::every]]
    parts.append(_centred(frame, x_label))
    if upright:
        middle = (frame.top + frame.y(0)) / 2
        turned = f"text-anchor='middle' transform='rotate(-90 14 {middle:.1f})'"
        return [*parts, f"<text class='axis' x='14' y='{middle:.1f}' {turned}>{text(y_label)}</text>"]
    return [*parts, f"<text class='axis' x='4' y='14'>{text(y_label)}</text>"]


def _y_tick(frame: Frame, tick: float) -> tuple[str, str]:
    at, right = frame.y(tick), frame.width - frame.right
    return (
        f"<line class='grid' x1='{frame.left}' x2='{right}' y1='{at:.1f}' y2='{at:.1f}'/>",
        f"<text class='tick' x='{frame.left - 6}' y='{at + 4:.1f}' text-anchor='end'>{tick:,.6g}</text>",
    )


def _x_tick(frame: Frame, tick: float) -> str:
    return f"<text class='tick' x='{frame.x(tick):.1f}' y='{frame.y(0) + 17:.1f}' text-anchor='middle'>{tick:,.6g}</text>"


def _centred(frame: Frame, label: str) -> str:
    center = (frame.left + frame.width - frame.right) / 2
    return f"<text class='axis' x='{center:.1f}' y='{frame.height - 6}' text-anchor='middle'>{text(label)}</text>"


def _style(place: int) -> str:
    return f"c{place % COLOURS} d{(place + place // COLOURS) % COLOURS}"


def _mark(place: int, x: float, y: float) -> str:
    return f"<path class='mark c{place % COLOURS}' d='{MARKS[place % len(MARKS)]}' transform='translate({x:.1f} {y:.1f})'/>"


def _lines(frame: Frame, xs: Sequence[int], series: Mapping[str, Sequence[float]]) -> list[str]:
    parts = []
    for place, values in enumerate(series.values()):
        points = [(frame.x(at), frame.y(value)) for at, value in zip(xs, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(frame.x(0), frame.y(0)), *points])
        parts.append(f"<polyline class='line {_style(place)}' points='{path}'/>")
        parts += [_mark(place, *point) for point in (points if len(points) <= MAX_MARKED else points[-1:])]
    return parts


def _end_labels(frame: Frame, series: Mapping[str, Sequence[float]]) -> list[str]:
    ends = sorted((frame.y(values[-1]) + 4, place, name) for place, (name, values) in enumerate(series.items()))
    parts, x = [], frame.width - frame.right + 12
    for at, (_, place, name) in zip(_spread_out([end for end, _, _ in ends], frame.height - 8), ends, strict=True):
        short = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…"
        label = f"{short} {rounded_up(series[name][-1])}"
        parts.append(f"<text class='label c{place % COLOURS}' x='{x}' y='{at:.1f}'>{text(label)}</text>")
    return parts


def _spread_out(heights: Sequence[float], lowest: float) -> list[float]:
    """Moves ascending heights apart by a line of text, none below the lowest."""
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + LABEL_STEP) if found else height)
    for place in range(len(found) - 1, -1, -1):
        found[place] = min(found[place], lowest - LABEL_STEP * (len(found) - 1 - place))
    return found


def _legend(series: Mapping[str, Sequence[float]]) -> str:
    """The names of the lines below the narrow drawing, which has no room for them beside."""
    items = "".join(
        f"<li><svg class='key' viewBox='0 0 40 12' aria-hidden='true'><line class='line {_style(place)}' x1='0' x2='40' y1='6'"
        f" y2='6'/>{_mark(place, 20, 6)}</svg> {text(name)} {rounded_up(values[-1])}</li>"
        for place, (name, values) in enumerate(series.items())
    )
    return f"<ul class='legend'>{items}</ul>"
