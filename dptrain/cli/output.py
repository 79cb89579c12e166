"""Print what commands say: tables and numbers, on a screen that nothing of others can change."""

import codecs
import contextlib
import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from attest.schema.plain import visible
from attest.schema.rounding import at_most
from dptrain.planning.picture import ASCII, PLAIN, UNICODE, Glyphs, Line

_IN_PLAIN = "dptrain.plain"

_PIPE_WIDTH = 160
"""Columns of a table where there is no terminal to ask."""


@dataclass(frozen=True)
class _Shown:
    """Shows every character of what is printed: file names, and what documents say, are by others."""

    renderable: Any

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        for segment in screen.render(self.renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, lines=True), segment.style)


class _Showing(RenderHook):
    """Lets nothing through to a screen but what `attest.schema.plain.visible` makes of it."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(renderable) for renderable in renderables]


def screen_for(*, stderr: bool = False) -> Console:
    """Returns a console on which nothing that others wrote moves the cursor, changes colours or reorders what stands there.

    Guarantee: the only control characters that reach the screen are those of this program's own styles.
    """
    # No markup: file names and sentences may hold brackets, and must be printed as they are.
    screen = Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False)
    screen.push_render_hook(_Showing())
    return screen


def console() -> Console:
    """Returns a console on the current standard output; the terminal wraps lines, so that hashes stay copyable."""
    screen = screen_for()
    if not screen.is_terminal:
        screen.width = _PIPE_WIDTH
    if screen.options.ascii_only and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_IN_PLAIN)
    return screen


_COMMAND = re.compile(r"\b(accelerate|dptrain|pip|python|ssh-keygen) [a-z\[/-]")


def print_line(paragraph: str | Text) -> None:
    """Print a line or a paragraph; on a terminal broken between words, but not where a command stands, which is copied."""
    screen = console()
    for line in (Text(paragraph) if isinstance(paragraph, str) else paragraph).split("\n", allow_blank=True):
        whole = not screen.is_terminal or _COMMAND.search(line.plain)
        for part in (line,) if whole else _broken(line, screen.width):
            screen.print(part)


def _broken(line: Text, width: int) -> Iterable[Text]:
    """Returns lines that fit, as far as words do: hashes and paths stay whole."""
    ends, began = [], 0
    for word in re.finditer(r"\S+", line.plain):
        if word.end() - began > width and word.start() > began:
            began = word.start()
            ends.append(began)
    lines = line.divide(ends)
    for one in lines[:-1]:
        one.rstrip()
    return lines


def _in_plain(error: UnicodeError) -> tuple[str, int]:
    """Returns what stands for characters that the standard output does not take."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(char, "?") for char in error.object[error.start : error.end]), error.end


codecs.register_error(_IN_PLAIN, _in_plain)


def print_picture(draw: Callable[[Glyphs], list[Line]]) -> None:
    """Print a picture of characters, plain ones where the screen takes no others."""
    out = console()
    plain = out.options.ascii_only or os.environ.get("TERM") == "dumb"
    for line in draw(ASCII if plain else UNICODE):
        out.print(Text.assemble(*line), no_wrap=True)


def styled(style: str, text: str, rest: str = "") -> Text:
    """Returns a text that begins in a style, for example a red reason code."""
    return Text.assemble((text, style), rest)


def warned(sentence: str) -> None:
    """Says on standard error what a person should know whom the answer does not tell it."""
    screen_for(stderr=True).print(styled("yellow", "warning", f": {visible(sentence)}"))


@contextlib.contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """Returns a callback that shows a running count on a terminal, and nothing where standard error is a file or a pipe."""
    screen, what = Console(stderr=True, markup=False), visible(what)
    with screen.status(what) if screen.is_terminal else contextlib.nullcontext() as status:

        def progress(count: int) -> None:
            if status is not None and count % 500 == 0:
                status.update(f"{what} {count}")

        yield progress


def table(*columns: str) -> Table:
    """Returns a table whose columns after the first are right-aligned."""
    built = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        built.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    return built


def table_of(items: Iterable[Any], columns: dict[str, Callable[[Any], str]]) -> Table:
    """Returns a table with a row per item: for each head, what stands below it."""
    rows = table(*columns)
    for item in items:
        rows.add_row(*(cell(item) for cell in columns.values()))
    return rows


def print_table(rows: Table) -> None:
    """Print a table; on a terminal that is too narrow for it, a list per row, so that no number is broken."""
    out = console()
    needed = out.measure(rows, options=out.options.update(max_width=10_000)).maximum
    if not out.is_terminal or needed <= out.width:
        out.print(rows)
        return
    heads = [str(column.header) for column in rows.columns]
    for cells in zip(*(column.cells for column in rows.columns), strict=True):
        out.print(cells[0])
        for head, cell in zip(heads[1:], cells[1:], strict=True):
            if str(cell):
                out.print(f"  {head}: {cell}")


def number(value: float, digits: int = 4) -> str:
    """Returns a number for a person: significant digits, and the infinity sign for an unbounded epsilon."""
    return "∞" if math.isinf(value) else f"{value:.{digits}g}"


def promised(value: float | None, digits: int = 4) -> str:
    """Returns a figure about the privacy of a class; None, of a public one, is told in words: no number would be true."""
    return "public" if value is None else number(value, digits)


def spent(value: float | None, digits: int = 6) -> str:
    """Returns an epsilon for a person, rounded up: a smaller one would be no bound. None, of a public class, in words."""
    return "public" if value is None else at_most(value, digits)


def amount(value: float) -> str:
    """Returns a count, or a ratio of any size, for a person: no exponents above one, thousands set off."""
    return f"{value:,.0f}" if value >= 1000 else number(value)


def duration(seconds: float) -> str:
    """Returns a length of time for a person: `3.2 ms`, `14 s`, `2 h 5 min`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs" if seconds else "0 s"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.1f} days"


def size(count: int) -> str:
    """Returns a number of bytes for a person."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def counted(count: int, thing: str) -> str:
    """Returns a number of things: `1 contribution`, `2,000 contributions`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
