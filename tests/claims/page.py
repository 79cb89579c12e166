"""Writes tables of docs/mechanism, guarantee, geometry and inference: what each page rests on, every guarantee with its test.

A table stands between two comments, the first of which names what is made there. So the tables follow the code, `clauses.toml`
and `limits.toml`, and a page cannot say of its code what is not so.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.claims import tables
from tests.claims.clauses import clauses, code_in_words, limits, names_of_tests
from tests.claims.paragraphs import PACKAGES, ROOT, guarantees
from tests.claims.tests_of import find, held

FOLDER = Path("docs/mechanism")
INDEX = FOLDER / "README.md"
ALL = FOLDER / "guarantees.md"
BEGIN, END = "<!-- made by `make pages`: {}; do not edit -->", "<!-- end of what is made -->"
_MADE = re.compile(rf"{re.escape(BEGIN).replace(re.escape('{}'), '(.+?)')}.*?{re.escape(END)}", re.DOTALL)

GROUPS = {
    "What a step releases": (
        "theorem-1-signed-bound", "theorem-2-lattice", "theorem-3-noise-per-microbatch", "theorem-4-certified-integers",
        "theorem-5-public-contributions", "one-clip", "theorem-6-public-occurrences", "proposition-3-noise-energy",
        "theorem-7-divided-clip-norms", "stricter-bounds", "theorem-8-phases", "theorem-15-correlated-noise",
        "theorem-16-coordinates",
    ),
    "Noise of other laws": ("families", "theorem-9-laplace", "theorem-10-discrete-gaussian", "theorem-11-skellam"),
    "Who takes part, and what it costs": (
        "theorem-12-turns", "theorem-13-limits-over-runs", "theorem-14-addressed-randomness", "lemmas", "accounting",
        "what-pld-computes", "charge-before-draw",
    ),
    "What the model may do": ("isolation", "separability", "modules", "compiled-form"),
}  # fmt: skip
"""The pages in the order of the index."""

MEASURED = ("performance.md", "opacus.md", "scaling.md", "demo.md")
"""Pages with figures of `benchmarks/measured.json`."""


def pages(root: Path = ROOT) -> list[Path]:
    """The pages of theorems, in the order of the index."""
    return [root / FOLDER / f"{name}.md" for names in GROUPS.values() for name in names]


def made(text: str, page: str) -> str:
    """A page with everything made anew that is made.

    Raises:
        LookupError: a comment names nothing that can be made, or a clause names what is not there.
    """
    return _MADE.sub(lambda found: f"{BEGIN.format(found[1])}\n{_section(found[1], page)}\n{END}", text)


def _section(name: str, page: str) -> str:
    kinds: dict[str, Callable[[], Iterator[str]]] = {
        "clauses": lambda: _clauses(page), "index": _index, "assumptions": _assumptions, **tables.KINDS,
        **{table: partial(_limits, table) for table in limits()},
    }  # fmt: skip
    if name in kinds:
        return "\n".join(kinds[name]())
    if name.startswith("proof of "):
        return tables.proof(name.removeprefix("proof of "))
    if name.startswith("measured "):
        return "\n".join(["", *tables.measured(name.removeprefix("measured ")), ""])
    if name.startswith("prism "):
        return "\n".join(["", *tables.prism(name.removeprefix("prism ")), ""])
    known = f"{', '.join(sorted(kinds))}, 'proof of FILE', 'measured TABLE' or 'prism TABLE'"
    raise LookupError(f"{page}: nothing makes {name!r}; it can be {known}")


def _clauses(page: str) -> Iterator[str]:
    yield "| it needs | kept by | test that fails without it |"
    yield "|---|---|---|"
    for one in clauses()[page]:
        kept = "**assumed**" if one.assumed else "; ".join(map(code_in_words, one.code))
        yield f"| {one.needs} | {kept} | {names_of_tests(one.shown_by)} |"


def _limits(table: str) -> Iterator[str]:
    columns = {
        "payloads": "what | as a function of payloads | test",
        "loop": "what | what happens | test that shows it",
        "threats": "who | may try to | what stands against it | test",
        "published": "published | what holds | test",
        "geometry": "does not go with it | why, or what to do | test",
        "states": "published | what holds | test",
    }[table]
    yield f"| {columns} |"
    yield "|" + "---|" * (columns.count("|") + 1)
    for one in limits()[table]:
        yield "| " + " | ".join([*filter(None, [one.who]), one.what, one.tells, names_of_tests(one.tests)]) + " |"


def _title(page: str) -> str:
    return (ROOT / FOLDER / f"{page}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _index() -> Iterator[str]:
    yield "| | pages |"
    yield "|---|---|"
    for group, names in GROUPS.items():
        yield f"| {group} | {'<br>'.join(f'[{_title(name)}]({name}.md)' for name in names)} |"


def _assumptions() -> Iterator[str]:
    yield "| assumed | by |"
    yield "|---|---|"
    for names in GROUPS.values():
        for name in names:
            yield from (f"| {one.needs} | [{_title(name)}]({name}.md) |" for one in clauses()[name] if one.assumed)


def every() -> str:
    """The page of all guarantees."""
    lines = [
        "# Every guarantee of the code, and the test that holds it",
        "",
        BEGIN.format("the whole page"),
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
    return "\n".join([*lines, END, ""])


def _tests(name: str) -> str:
    return ", ".join(f"`{find(test).name.rpartition('::')[2]}`" for test in held()[name])


def made_pages(root: Path = ROOT) -> list[Path]:
    """The pages of which something is made here."""
    filled = ("guarantee.md", "threat-model.md", "geometry.md", "inference.md", "private-text.md", *MEASURED)
    others = (root / "docs" / name for name in filled)
    return [root / ALL, root / INDEX, *others, *pages(root)]


def written(root: Path = ROOT) -> dict[Path, str]:
    """Returns what each page made here, wholly or in part, has to say."""
    parts = [path for path in made_pages(root) if path != root / ALL]
    return {root / ALL: every()} | {path: made(path.read_text(encoding="utf-8"), path.stem) for path in parts}
