"""Reads what the pages of docs/mechanism rest on: clauses, the code that keeps each, and the tests that fail without it."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.claims.paragraphs import ROOT, guarantees
from tests.claims.tests_of import find, held

CLAUSES = Path(__file__).with_name("clauses.toml")
LIMITS = Path(__file__).with_name("limits.toml")


@dataclass(frozen=True)
class Clause:
    """One row under a theorem.

    Attributes:
        needs: the clause. code: names of guarantees, files, or file::name. tests: names of tests, or files of tests.
        assumed: nothing keeps it.
    """

    needs: str
    code: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    assumed: bool = False

    @property
    def shown_by(self) -> tuple[str, ...]:
        """The tests of its own, or else those of its guarantees."""
        named = (test for name in self.code for test in held().get(name, ()))
        return self.tests or tuple(dict.fromkeys(named))


@dataclass(frozen=True)
class Limit:
    """One row of what follows from payloads, of what is not defended, or of who may try what."""

    what: str
    tells: str
    tests: tuple[str, ...]
    who: str = ""


@cache
def clauses(path: Path = CLAUSES) -> dict[str, tuple[Clause, ...]]:
    """The clauses of each page, by its name without ending."""
    return {page: tuple(Clause(**_frozen(row)) for row in rows) for page, rows in _read(path).items()}


@cache
def limits(path: Path = LIMITS) -> dict[str, tuple[Limit, ...]]:
    """The rows of each table of limits, by its name."""
    return {table: tuple(Limit(**_frozen(row)) for row in rows) for table, rows in _read(path).items()}


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def code_in_words(name: str) -> str:
    """Names the code of a clause, with the room that it lies in.

    Raises:
        LookupError: there is no such guarantee, file, or function in the file.
    """
    if name in guarantees():
        return f"`{name.rpartition('.')[2] if name.startswith('ledger.') else name}`, {guarantees()[name].path}"
    path, _, inside = name.partition("::")
    if not (ROOT / path).exists():
        raise LookupError(f"{name} is no guarantee and no file; name code of {CLAUSES.name} as it stands")
    if inside and f"def {inside}(" not in (ROOT / path).read_text(encoding="utf-8"):
        raise LookupError(f"{path} has no function {inside}, which {CLAUSES.name} names")
    return f"`{inside}`, {path}" if inside else path


def names_of_tests(names: Sequence[str]) -> str:
    """Names tests, functions by their name alone.

    Raises:
        LookupError: there is no such test or file of tests.
    """
    return ", ".join(_test(name) for name in names)


def _test(name: str) -> str:
    if "/" not in name:
        return f"`{find(name).name.rpartition('::')[2]}`"
    if not (ROOT / name).exists():
        raise LookupError(f"there is no {name}, which {CLAUSES.name} or {LIMITS.name} names")
    return f"`{name}`"
