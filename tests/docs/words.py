"""Counts the words of the handbook that people wrote: README, docs and the text of notebooks.

A word is what stands between blanks and has a letter or a digit. Not counted are fenced code, comments, and what a program
writes: each writer is asked for it. Tables that people wrote count.

    python -m tests.docs.words         prints the words of every page
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest.mock import patch

from tests.docs.blocks import ROOT, pages

MOST = 30_000
"""A handbook of more is read by nobody."""

MADE = re.compile(r"<!-- made by.*?<!-- end of what is made -->", re.DOTALL)
"""What stands between these comments a program writes; `python -m tests.claims` brought them in."""

_FENCE = re.compile(r"^[ ]*(`{3,})[^\n]*\n.*?^[ ]*\1[ ]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def words(text: str) -> int:
    """Returns how many words people wrote in a text from which what programs wrote was taken."""
    rest = _COMMENT.sub("", _FENCE.sub("", MADE.sub("", text)))
    return sum(any(sign.isalnum() for sign in word) for word in rest.replace("|", " ").split())


def of_tests_pages() -> Iterator[tuple[str, str]]:
    """Yields the tables that `python -m tests.pages` puts into pages, as it hands them over."""
    from tests.pages import documents, leaves, scaling

    handed: list[str] = []
    original = documents.with_tables

    def keep(page: str, heading: str, tables: Iterable[str]) -> str:
        given = list(tables)
        handed.extend(given)
        return original(page, heading, given)

    for module in (documents, leaves, scaling):
        for name, write in module.PAGES.items():
            if name.endswith(".md"):
                handed.clear()
                with patch.object(module, "with_tables", keep):
                    write((ROOT / "docs" / name).read_text(encoding="utf-8"))
                yield from ((f"docs/{name}", one) for one in handed)


def of_tests_claims() -> Iterator[tuple[str, str]]:
    """Yields the page of all guarantees. The table of theorems stands between the comments that begin and end it."""
    from tests.claims.page import ALL, every

    yield ALL.as_posix(), every()


def of_tests_zoo() -> Iterator[tuple[str, str]]:
    """Yields the rows of families; sentences around them are people's, also those that `expected.toml` holds."""
    from tests.zoo.expectations import read
    from tests.zoo.report import page

    for line in page(read()).splitlines():
        if line.startswith("|"):
            yield "docs/models.md", f"{line}\n"


def of_tables_that_tests_compare() -> Iterator[tuple[str, str]]:
    """Yields the table of settings of several processes, and that of correlated noise from the results of its runs."""
    from recipes.correlated_noise import Results, lines_of
    from tests.distributed.table_rows import HEADING, NEXT

    name = "docs/ranks.md"
    section = (ROOT / name).read_text(encoding="utf-8").partition(HEADING)[2].partition(NEXT)[0]
    yield from ((name, f"{line}\n") for line in section.splitlines() if line.startswith("|"))
    for line in lines_of(Results(ROOT / "benchmarks" / "correlated_noise.json")):
        yield "docs/correlated.md", f"{line}\n"


WRITERS: tuple[Callable[[], Iterator[tuple[str, str]]], ...] = (
    of_tests_pages,
    of_tests_claims,
    of_tests_zoo,
    of_tables_that_tests_compare,
)


def by_hand(root: Path = ROOT) -> dict[str, int]:
    """Returns the words of every page, by its path below the root."""
    texts = dict(pages(root))
    for path in sorted((root / "docs").rglob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        said = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        texts[path.relative_to(root).as_posix()] = "\n\n".join(said)
    for writer in WRITERS:
        for name, made in writer():
            if name in texts:
                texts[name] = texts[name].replace(made, "\n", 1)
    return {name: words(text) for name, text in texts.items()}


if __name__ == "__main__":
    counted = by_hand()
    for name, number in sorted(counted.items(), key=lambda one: -one[1]):
        print(f"{number:7,}  {name}")
    print(f"{sum(counted.values()):7,}  of {MOST:,}")
