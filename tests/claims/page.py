"""Writes the tables of docs/mechanism: each theorem with its code and its tests, and every guarantee with its test.

A page of a theorem names in backticks what keeps it. Where such a name has a `Guarantee:` paragraph, the table of the theorems
gets a row: the paragraph's room, and the tests that `held.toml` names for it. So the tables follow the code.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.claims.paragraphs import PACKAGES, ROOT, guarantees
from tests.claims.tests_of import find, held

FOLDER = Path("docs/mechanism")
INDEX = FOLDER / "README.md"
ALL = FOLDER / "guarantees.md"
BEGIN, END = "<!-- made by `make pages`; do not edit -->", "<!-- end of what is made -->"
_CODE = re.compile(r"`([^`\n]+)`")
_KEPT = re.compile(r"^## Kept by\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_PAPERS = {"README.md", "guarantees.md"}


def pages(root: Path = ROOT) -> list[Path]:
    """The pages of theorems, in the order in which the index links to them."""
    index = (root / INDEX).read_text(encoding="utf-8").split(BEGIN)[0]
    linked = [root / FOLDER / name for name in re.findall(r"\]\(([\w-]+\.md)", index) if name not in _PAPERS]
    return list(dict.fromkeys(linked))


def keepers(page: str) -> list[str]:
    """The names of guarantees that the section "Kept by" of a page has in backticks, in its order."""
    section = _KEPT.search(page)
    words = [] if section is None else [word.removesuffix("()") for word in _CODE.findall(section[1])]
    known = guarantees()
    return list(dict.fromkeys(word for word in words if word in known))


def index(root: Path = ROOT) -> str:
    """The index with its table made anew."""
    text = (root / INDEX).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    rows = "\n".join(_rows(root))
    head = "| theorem | code that keeps it | test that fails without it |\n|---|---|---|"
    return f"{before}{BEGIN}\n{head}\n{rows}\n{END}{after}"


def _rows(root: Path) -> Iterator[str]:
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        for number, name in enumerate(keepers(text)):
            first = f"[{title}]({page.name})" if number == 0 else ""
            one = guarantees()[name]
            yield f"| {first} | `{name}`, {one.path} | {_tests(name)} |"


def every() -> str:
    """The page of all guarantees."""
    lines = [
        "# Every guarantee of the code, and the test that holds it",
        "",
        "A function or class that a promise rests on has a paragraph `Guarantee:` in its docstring. Each has a row here.",
        "`tests/claims/held.toml` names its test. `make pages` writes the page, and a test holds the page to the code.",
        "",
    ]
    for package in PACKAGES:
        mine = {name: one for name, one in guarantees().items() if one.path.startswith(f"{package}/")}
        lines += [f"## {package}: {len(mine)} guarantees", "", "| of | in | held by |", "|---|---|---|"]
        lines += [f"| `{name}` | {one.path} | {_tests(name)} |" for name, one in mine.items()]
        lines.append("")
    return "\n".join(lines)


def _tests(name: str) -> str:
    return ", ".join(f"`{find(test).name.rpartition('::')[2]}`" for test in held()[name])


def written(root: Path = ROOT) -> dict[Path, str]:
    """What each page made here has to say."""
    return {root / INDEX: index(root), root / ALL: every()}
