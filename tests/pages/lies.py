"""Writes what a reader of exports finds, by the lies of the conformance vectors, and what it qualifies, by honest ones."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from tests.pages.documents import Pages, table, with_tables

VECTORS: Final = Path(__file__).resolve().parents[1] / "vectors" / "conformance" / "exports.json"
MOST: Final = 3
"""Lies of one code that are shown, those with the fewest findings first."""


def lies_by_code() -> dict[str, list[str]]:
    """Returns the titles of all lies in which a code is found, by code, those with the fewest findings first."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in _rows("lies"):
        codes = dict.fromkeys(code for code, _ in row["findings"])
        for code in codes:
            found[code].append((len(codes), row["title"]))
    return {code: [title for _, title in sorted(found[code], key=lambda one: one[0])] for code in sorted(found)}


def exports_by_qualifier() -> dict[str, list[str]]:
    """Returns the names of honest exports that have a qualifier, by qualifier, those with the fewest first."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in _rows("honest"):
        for word in row["qualifiers"]:
            found[word].append((len(row["qualifiers"]), row["name"]))
    return {word: [name for _, name in sorted(found[word], key=lambda one: one[0])] for word in sorted(found)}


def export_page(page: str) -> str:
    """Returns formats/export.md with the tables of lies and of qualifiers."""
    lies = [(f"`{code}`", _some(titles)) for code, titles in lies_by_code().items()]
    words = [(f"`{word}`", _some(names)) for word, names in exports_by_qualifier().items()]
    page = with_tables(page, "Lies that a reader finds", [table(("code", "lies of the vectors"), lies)])
    return with_tables(page, "Qualifiers by example", [table(("qualifier", "honest exports of the vectors"), words)])


def _rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))[name]
    return found


def _some(titles: list[str]) -> str:
    different = list(dict.fromkeys(titles))
    more = f"; {len(different) - MOST} more" if len(different) > MOST else ""
    return "; ".join(title.replace("|", r"\|") for title in different[:MOST]) + more


PAGES: Final[Pages] = {"formats/export.md": export_page}
