"""Runs the notebooks of the docs, and turns them into pages with what they print.

They are stored without outputs: a difference between versions then shows what a person changed, and no output is older than the
code. What a reader of the site sees was printed when the site was built.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

ROOT: Final = Path(__file__).resolve().parents[2]
_SHELL: Final = re.compile(r"%%sh[^\n]*\n")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SECONDS: Final = 900
"""Longest that one cell may take."""


def executed(path: Path) -> Any:
    """Returns a notebook with its outputs. It runs in an empty folder, offline, with this tree's packages and commands.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails that does not say that it may (tag `raises-exception`).
    """
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        before = dict(os.environ)
        os.environ.update(
            PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), before.get("PYTHONPATH")])), HF_HUB_OFFLINE="1", COLUMNS="100",
            PATH=f"{_commands(Path(folder))}{os.pathsep}{before['PATH']}", IPYTHONDIR=f"{folder}/.ipython", NO_COLOR="1",
        )  # fmt: skip
        work = Path(folder) / "work"
        work.mkdir()
        try:
            NotebookClient(book, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(work)}}).execute()
        finally:
            os.environ.clear()
            os.environ.update(before)
    return book


def _commands(folder: Path) -> Path:
    """Makes the commands `dptrain` and `python` for cells that begin with `%%sh`. A kernel tells programs that they write to a
    terminal, where progress is drawn; a page is none."""
    place = folder / "bin"
    place.mkdir()
    for name, words in {"dptrain": "-m dptrain", "python": ""}.items():
        (place / name).write_text(f'#!/bin/sh\nunset FORCE_COLOR CLICOLOR_FORCE\nexec {sys.executable} {words} "$@"\n')
        (place / name).chmod(0o755)
    return place


def markdown(book: Any, name: str) -> str:
    """Returns a notebook as a page."""
    return "\n".join(_lines(book, name))


def _lines(book: Any, name: str) -> Iterator[str]:
    for number, cell in enumerate(book.cells):
        if cell.cell_type == "markdown":
            yield from (cell.source, "")
            if number == 0:
                yield from (f"[Download this notebook]({name}){{ download }}", "")
        elif cell.cell_type == "code":
            shell = _SHELL.match(cell.source)
            source = cell.source[shell.end() :] if shell else cell.source
            yield from (f"```{'sh' if shell else 'python'}", source, "```", "")
            for output in _joined(cell.outputs):
                yield from (*_output(output), "")


def _joined(outputs: list[Any]) -> Iterator[Any]:
    """Yields outputs, with what one stream printed in pieces as one."""
    last: Any = None
    for output in outputs:
        if last is not None and output.get("output_type") == "stream" == last.get("output_type") and output.name == last.name:
            last = nbformat.NotebookNode({**last, "text": last["text"] + output.text})
            continue
        if last is not None:
            yield last
        last = output
    if last is not None:
        yield last


def _output(output: Any) -> Iterator[str]:
    data = output.get("data", {})
    if "text/html" in data:
        # Blank lines would end the block of HTML.
        yield f'<div class="output" markdown="0">{re.sub(chr(10) + "+", " ", data["text/html"])}</div>'
    elif "image/svg+xml" in data:
        yield f'<div class="output">{re.sub(chr(10) + "+", " ", data["image/svg+xml"])}</div>'
    else:
        text = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", [])[-1:])
        if text.strip():
            shown = escape(_COLOUR.sub("", text).rstrip()).replace("\n", "&#10;")
            yield f'<pre class="output"><code>{shown}</code></pre>'
