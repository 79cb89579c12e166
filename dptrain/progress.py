"""Progress bars on a terminal and in a notebook, and nothing at all in a pipe."""

import contextlib
import html
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from attest.attestation import read_sequence
from attest.corpus.records import JSONL, SUFFIX, open_beneath
from attest.errors import AttestError

_REFRESH = 0.2
"""Seconds between two pictures."""

_TOLD = 5.0
"""Seconds between two looks at what stands behind the title of a bar; it may take a while to compute."""

_LINE = 60.0
"""Seconds between two lines where there is no terminal."""

_CHUNK = 1 << 20


class _Rate(ProgressColumn):
    """Contributions a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


@contextlib.contextmanager
def progress_bar(
    what: str,
    total: Callable[[], int],
    screen: Console | None = None,
    *,
    shown: bool = True,
    told: Callable[[], str] | None = None,
) -> Iterator[Callable[[int], None] | None]:
    """Yields a callback that takes the number done so far and draws a bar with rate and time left on standard error.

    In a notebook it is an element of the page, without rate or time, which a saved notebook would keep.

    Args:
        what: What is being done.
        total: About how many there are; asked on a terminal alone, so a pipe costs nothing.
        screen: Where to draw; default: standard error.
        shown: False to draw nothing, whatever the screen is.
        told: What stands behind the title, asked for now and then. With it, a line a minute goes where there is no terminal.

    Yields:
        The callback; None where standard error is no terminal and nothing is told.
    """
    if shown and screen is None and (notebook := _notebook()) is not None:
        with _widget(notebook, what, total(), told) as update:
            yield update
        return
    screen = screen or Console(stderr=True)
    if not (shown and screen.is_terminal):
        yield None if told is None or not shown else _lines(what, total(), told)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    # Drawn by the callback: a thread that draws would take the interpreter from the work.
    with Progress(*columns, console=screen, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(what, total=total())
        due = told_due = 0.0

        def progress(count: int) -> None:
            nonlocal due, told_due
            if (now := time.monotonic()) >= due:
                due = now + _REFRESH
                if told is not None and now >= told_due:
                    told_due = now + _TOLD
                    bar.update(task, description=f"{what}  {told()}")
                bar.update(task, completed=count, refresh=True)

        yield progress


def say(sentence: str, screen: Console | None = None, *, shown: bool = True) -> None:
    """Says on standard error, in one line, what is going to take a while.

    Args:
        sentence: what is said. screen: where; default: standard error. shown: False to say nothing.
    """
    if shown:
        (screen or Console(stderr=True)).print(sentence, markup=False, highlight=False, soft_wrap=True)


def _notebook() -> Any | None:
    """Returns the module of IPython that displays, where a notebook runs this; rich wants a package more for its own bar."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return None if getattr(shell, "kernel", None) is None else importlib.import_module("IPython.display")


@contextlib.contextmanager
def _widget(page: Any, what: str, total: int, told: Callable[[], str] | None) -> Iterator[Callable[[int], None]]:
    """Yields the callback of a bar in a notebook; the last picture stays."""
    done, due, told_due, said = 0, 0.0, 0.0, ""

    def picture() -> Any:
        beside = html.escape(f"{done:,} of {total:,}{', ' if said else ''}{said}")
        return page.HTML(f'<div>{html.escape(what)} <progress value="{done}" max="{total}"></progress> {beside}</div>')

    handle = page.display(picture(), display_id=True)

    def progress(count: int) -> None:
        nonlocal done, due, told_due, said
        done = count
        if (now := time.monotonic()) >= due:
            due = now + _REFRESH
            if told is not None and now >= told_due:
                told_due, said = now + _TOLD, told()
            handle.update(picture())

    try:
        yield progress
    finally:
        if told is not None and sys.exc_info()[0] is None:
            said = told()
        handle.update(picture())


def _lines(what: str, total: int, told: Callable[[], str]) -> Callable[[int], None]:
    """Returns a callback that prints a line on standard error, once a minute."""
    due = time.monotonic() + _LINE

    def progress(count: int) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + _LINE
            print(f"{what}: {count:,} of {total:,}, {told()}", file=sys.stderr, flush=True)

    return progress


def contributions_in(data: Path) -> int:
    """Estimates how many contributions a piece of data holds, for a progress bar: lines, files, or one.

    Empty lines and links are counted too; the numbers that matter are counted while signing.
    """
    if data.is_dir():
        return sum(1 for folder, _, names in os.walk(data) for _ in names)
    if data.suffix != JSONL:
        return 1
    lines, chunk = 0, b"\n"
    with data.open("rb") as stream:
        while more := stream.read(_CHUNK):
            lines, chunk = lines + more.count(b"\n"), more
    return lines + (not chunk.endswith(b"\n"))


def attestations_in(corpus: Path) -> int:
    """Estimates how many attestations a corpus holds, for a progress bar: sizes of files over the size of their first item."""
    beside = Path(os.path.abspath(corpus) + SUFFIX)
    if beside.is_file():
        return attestations_of(beside)
    return sum(
        attestations_of(Path(folder, name)) for folder, _, names in os.walk(corpus) for name in names if name.endswith(SUFFIX)
    )


def attestations_of(path: Path) -> int:
    """Estimates how many attestations a file holds; they are nearly equally long when one command signed them."""
    try:
        with open_beneath(path.parent, path.name) as stream:
            first = next(read_sequence(stream), None)
            return 0 if first is None else round(os.fstat(stream.fileno()).st_size / len(first.to_cbor()))
    except (OSError, AttestError):
        return 0
