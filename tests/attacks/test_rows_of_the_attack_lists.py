"""Every row of the design's three attack lists is tried by at least one test that bears its number."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROWS = {"A": range(1, 30), "B": range(1, 28), "E": range(1, 9)}
"""A: attestations; B: the ledger; E: exports, releases and proofs."""

NAME = re.compile(r"test((?:_[ABE]\d+)+)_")
SKIPS = {"skip", "xfail"}


def rows_of(name: str) -> list[str]:
    """The rows in a test's name: ``test_B13_B14_...`` bears two."""
    match = NAME.match(name)
    return match[1].strip("_").split("_") if match else []


def decorated(function: ast.FunctionDef) -> set[str]:
    nodes = (node for decorator in function.decorator_list for node in ast.walk(decorator))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@cache
def by_row() -> dict[str, list[str]]:
    """Where each row is tried in the ordinary suite: functions that are not switched off."""
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for function in ast.parse(path.read_text()).body:
            if not isinstance(function, ast.FunctionDef) or decorated(function) & (SKIPS | {"slow", "gpu"}):
                continue
            for row in rows_of(function.name):
                found[row].append(f"{path.relative_to(TESTS)}::{function.name}")
    return dict(found)


@pytest.mark.parametrize("row", [f"{letter}{number}" for letter, numbers in ROWS.items() for number in numbers])
def test_the_row_has_a_test(row: str) -> None:
    assert by_row().get(row), f"no test bears {row}: name one test_{row}_..."


def test_no_test_bears_a_row_that_is_not_in_the_lists() -> None:
    known = {f"{letter}{number}" for letter, numbers in ROWS.items() for number in numbers}
    assert set(by_row()) <= known
