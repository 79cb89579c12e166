"""Finds the test that holds each guarantee: `held.toml` names it, by the name of its function alone.

A test may be moved to another file without an edit here. Where two files have a test of one name, the file stands before it:
``test_descriptor::test_round_trip``.
"""

import ast
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.claims.paragraphs import ROOT

HELD = Path(__file__).with_name("held.toml")
_ELSEWHERE = {"slow", "gpu", "skip", "skipif", "xfail"}
"""Marks of tests that the ordinary suite leaves out, or may leave out."""


class Found(NamedTuple):
    """A function of the tests."""

    path: str
    """Below the root."""
    name: str
    ordinary: bool
    """Whether `make test` always runs it, or one of its cases."""

    @property
    def node_id(self) -> str:
        return f"{self.path}::{self.name}"


@cache
def held(path: Path = HELD) -> dict[str, list[str]]:
    """The tests that hold each guarantee, by its name."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def tests(root: Path = ROOT) -> dict[str, list[Found]]:
    """Every test of the project under its name, and under its file and name."""
    found: dict[str, list[Found]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node, inside in _functions(tree, ""):
            name = f"{inside}{node.name}"
            one = Found(path.relative_to(root).as_posix(), name, not _marks(node) & _ELSEWHERE)
            found[node.name].append(one)
            found[f"{path.stem}::{node.name}"].append(one)
    return dict(found)


def find(name: str) -> Found:
    """The one test of a name.

    Raises:
        LookupError: there is none, or more than one.
    """
    found = tests().get(name, [])
    if len(found) != 1:
        where = ", ".join(one.path for one in found) or "nowhere"
        raise LookupError(f"test {name} stands {where}, expected in one place; name it as file::test in {HELD.name}")
    return found[0]


def _functions(node: ast.AST, inside: str) -> list[tuple[ast.FunctionDef, str]]:
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            found += _functions(child, f"{inside}{child.name}::")
        elif isinstance(child, ast.FunctionDef) and child.name.startswith("test"):
            found.append((child, inside))
    return found


def _marks(function: ast.FunctionDef) -> set[str]:
    """Marks of the whole test; those of a single case are none."""
    named = (decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in function.decorator_list)
    return {one.attr for one in named if isinstance(one, ast.Attribute)}
