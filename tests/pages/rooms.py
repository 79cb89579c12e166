"""Writes the tables of rooms on the page of the architecture: what each says of itself in its first sentence."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.house.layers import ROOT, Drawing
from tests.pages.documents import Pages, table
from tests.pages.marked import filled, sentence


def rooms(package: str, root: Path = ROOT) -> str:
    """Returns the rooms of a package, those that may import others above them."""
    drawing, folder = Drawing.of(root), root / package
    found = [path for path in folder.iterdir() if not path.name.startswith("__") and _is_room(path)]

    def order(path: Path) -> tuple[int, str]:
        rank = drawing.rank(f"{package}.{path.stem}")
        return (-rank[1] if rank else 0), path.name

    rows = [(f"`{path.stem}{'/' * path.is_dir()}`", _said(path), ", ".join(_files(path))) for path in sorted(found, key=order)]
    return table(("room", "what it says of itself", "files"), rows)


def files(folder: str, root: Path = ROOT) -> str:
    """Returns the files of one folder, each with its first sentence."""
    found = sorted(path for path in (root / folder).glob("*.py") if not path.name.startswith("__"))
    return table(("file", "what it says of itself"), [(f"`{path.stem}`", _said(path)) for path in found])


def _is_room(path: Path) -> bool:
    return path.suffix == ".py" or (path / "__init__.py").is_file()


def _files(path: Path) -> Iterator[str]:
    """Names the files of a folder, those of folders in it in parentheses behind their name; of a module nothing."""
    if not path.is_dir():
        return
    inner = sorted(one for one in path.iterdir() if not one.name.startswith("__") and _is_room(one))
    for one in inner:
        more = f" ({', '.join(_files(one))})" if one.is_dir() else ""
        yield f"`{one.stem}{'/' * one.is_dir()}`{more}"


def _said(path: Path) -> str:
    """Returns the first sentence of a module, or of the door of a folder."""
    file = path / "__init__.py" if path.is_dir() else path
    told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    if told is None:
        raise ValueError(f"{file} has no docstring; write one, whose first sentence says what it is for")
    return sentence(told)


def architecture_page(page: str) -> str:
    """Returns architecture.md with its tables as the packages have them."""
    return filled(page, *(rooms(package) for package in ("attest", "ledger", "dptrain")), files("dptrain/sandbox"))


PAGES: Final[Pages] = {"architecture.md": architecture_page}
