"""Progress bars on a terminal, and nothing at all in a pipe."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from attest.attestation import read_sequence
from attest.corpus.records import JSONL, SUFFIX, open_beneath
from attest.errors import AttestError

_REFRESH = 0.2
"""Seconds between two pictures."""

_CHUNK = 1 << 20


class _Rate(ProgressColumn):
    """Contributions a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


@contextlib.contextmanager
def progress_bar(
    what: str, total: Callable[[], int], screen: Console | None = None, *, shown: bool = True
) -> Iterator[Callable[[int], None] | None]:
    """Yields a callback that takes the number done so far and draws a bar with rate and time left on standard error.

    Args:
        what: What is being done.
        total: About how many there are; asked on a terminal alone, so a pipe costs nothing.
        screen: Where to draw; default: standard error.
        shown: False to draw nothing, whatever the screen is.

    Yields:
        The callback; None where standard error is no terminal.
    """
    screen = screen or Console(stderr=True)
    if not (shown and screen.is_terminal):
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    # Drawn by the callback: a thread that draws would take the interpreter from the work.
    with Progress(*columns, console=screen, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(what, total=total())
        due = 0.0

        def progress(count: int) -> None:
            nonlocal due
            if (now := time.monotonic()) >= due:
                due = now + _REFRESH
                bar.update(task, completed=count, refresh=True)

        yield progress


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
