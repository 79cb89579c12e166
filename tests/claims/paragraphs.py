"""Finds the `Guarantee:` paragraphs of the product, from its text alone: nothing is executed.

A guarantee has the name of what it is a promise of: a class, a function or a method, without its module. Two of one name are
told apart by their modules.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("attest", "ledger", "dptrain")
_BEGINS = re.compile(r"\bGuarantee\b[^:.\n]*:\s*")
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Source|Attributes):", re.MULTILINE)


@dataclass(frozen=True)
class Guarantee:
    """One paragraph.

    Attributes:
        path: the file, below the root. within: class and function in it, with dots. text: the paragraph in one line.
    """

    path: str
    within: str
    text: str
    bare: bool = False
    """Whether it stands over no statement of its own: a class of fields alone, or a function that subclasses fill in."""

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def paragraphs_of(path: str, source: str) -> Iterator[Guarantee]:
    """The guarantees of a file, in its order."""
    for within, node in _named(ast.parse(source, path), ""):
        found = _BEGINS.search(ast.get_docstring(node) or "")
        if found:
            rest = _SECTION.split(found.string[found.end() :])[0]
            text = " ".join(rest.split("\n\n")[0].split())
            bare = not any(isinstance(one, ast.FunctionDef) or not _only_says(one) for one in node.body)
            yield Guarantee(path, within, text, bare)


def _only_says(statement: ast.stmt) -> bool:
    says = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return says or isinstance(statement, ast.AnnAssign)


def _named(node: ast.AST, name: str) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        yield name, node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _named(child, f"{name}.{child.name}".lstrip("."))


@cache
def guarantees(root: Path = ROOT) -> dict[str, Guarantee]:
    """Every guarantee of the product under its name."""
    found = [
        guarantee
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        for guarantee in paragraphs_of(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    ]
    count = Counter(one.within for one in found)
    return {one.within if count[one.within] == 1 and one.within else _whole(one): one for one in found}


def _whole(one: Guarantee) -> str:
    return f"{one.module}.{one.within}".rstrip(".")
