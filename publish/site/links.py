"""Turns links that lead out of the docs into links to the project's repository."""

import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_LINK: Final = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^)\s]+)(\))")
_FENCE: Final = re.compile(r"(^[ ]*(`{3,})[^\n]*\n.*?^[ ]*\2[ ]*$)", re.MULTILINE | re.DOTALL)


@cache
def repository() -> str:
    """Returns the address of the repository, from pyproject.toml."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    return str(urls["Repository"]).rstrip("/")


def outward(text: str, page: str) -> str:
    """Returns a page with its links out of docs/ rewritten.

    Args:
        text: Markdown. page: its path below docs/.
    """
    parts = _FENCE.split(text)
    # A fence has two groups, itself and its ticks: of every three parts the first is text.
    return "".join(
        _LINK.sub(lambda found: f"{found[1]}{_target(found[2], page)}{found[3]}", part) if number % 3 == 0 else part
        for number, part in enumerate(parts)
        if number % 3 != 2
    )


def _target(link: str, page: str) -> str:
    path, sign, anchor = link.partition("#")
    if not path or "://" in path or path.startswith(("mailto:", "/")):
        return link
    place = os.path.normpath(Path("docs") / Path(page).parent / path)
    if place == "docs/../README.md" or place == "README.md":
        return f"{repository()}#readme"
    if Path(place).is_relative_to("docs") and (ROOT / place).is_file():
        return link
    if (ROOT / place).is_dir() and (ROOT / place / "README.md").is_file() and Path(place).is_relative_to("docs"):
        return f"{path.rstrip('/')}/README.md{sign}{anchor}"
    if (ROOT / place).exists():
        kind = "tree" if (ROOT / place).is_dir() else "blob"
        return f"{repository()}/{kind}/main/{place}{sign}{anchor}"
    return link
