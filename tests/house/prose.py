"""Measures prose: how docstrings begin, and how long the sentences of the documentation are."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.house.modules import Module

QUESTION = re.compile(r"\s*(What|Who|Which|How|Whether)\b")
_FENCE = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r"([*+-]|\d+\.)\s+")
_END = re.compile(r"[.!?][)\"'*_]*(?:\s+|$)")


def docstrings(module: Module) -> Iterator[str]:
    """Every string that stands as a statement: the docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def questions(modules: Iterable[Module]) -> list[str]:
    """The docstrings that begin with a question word, as module and first line."""
    return [
        f"{module.name}: {text.strip().splitlines()[0]}"
        for module in modules
        for text in docstrings(module)
        if QUESTION.match(text)
    ]


def pages(root: Path) -> list[Path]:
    return [*sorted((root / "docs").rglob("*.md")), *sorted(root.glob("README.md"))]


def sentences(text: str) -> list[int]:
    """The words of each sentence of a page in Markdown.

    Counted are paragraphs and items of lists; not headings, tables and blocks of code. Code in a line is one word.
    """
    text = _COMMENT.sub("", _FENCE.sub("", text))
    counts = []
    for paragraph in _paragraphs(text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`+[^`]*`+", "code", paragraph))
        for sentence in _END.split(plain):
            words = sum(1 for word in sentence.split() if re.search(r"\w", word))
            if words:
                counts.append(words)
    return counts


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*map(str.strip, text.splitlines()), ""]:
        apart = not line or line.startswith(("#", "|", "---"))
        if apart or _ITEM.match(line):
            yield " ".join(lines)
            lines = []
        if not apart:
            lines.append(_ITEM.sub("", line, count=1))
