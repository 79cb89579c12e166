"""Writes what the pages on extending say of interfaces: attributes, defaults and methods, from the classes themselves.

Classes are read, not imported, so that pages are written where torch is not.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from ledger.storage.checking import PROMISE
from tests.pages.documents import Pages, table
from tests.pages.marked import cell, filled, paragraph

_ROOT: Final = Path(__file__).resolve().parents[2]
_ATTRIBUTE: Final = re.compile(r"^    ([a-z_]+(?:, [a-z_]+)*): ", re.MULTILINE)

_TABLE: Final = "ledger/accountants/table.py"
_PHASES: Final = "ledger/accountants/phases.py"
_MECHANISM: Final = "dptrain/noise/mechanism.py"


def attributes(path: str, name: str) -> list[tuple[str, str, str]]:
    """Returns the attributes that a class declares: names, defaults, and what its docstring says of them.

    Raises:
        ValueError: the docstring explains an attribute that the class does not have, or leaves one out.
    """
    found = _class(path, name)
    fields = [one for one in found.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    defaults = {one.target.id: _default(one.value) for one in fields}  # type: ignore[union-attr]
    told = _explained(ast.get_docstring(found) or "")
    explained = [one for names in told for one in names.split(", ")]
    if sorted(explained) != sorted(defaults):
        raise ValueError(f"{path}, {name}: the docstring explains {explained}, the class has {list(defaults)}; mend it")
    rows = []
    for names, text in told.items():
        each = names.split(", ")
        least = dict.fromkeys(defaults[one] for one in each)
        shown = next(iter(least)) if len(least) == 1 else ", ".join(defaults[one] for one in each)
        rows.append((", ".join(f"`{one}`" for one in each), shown, cell(text)))
    return rows


def methods(path: str, name: str) -> list[tuple[str, str]]:
    """Returns the public methods of a class as they are called, each with the first paragraph of its docstring."""
    rows = []
    for one in _class(path, name).body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            property_of = any(isinstance(word, ast.Name) and word.id == "property" for word in one.decorator_list)
            call = one.name if property_of else f"{one.name}({', '.join(_arguments(one.args))})"
            rows.append((f"`{call}`", paragraph(ast.get_docstring(one) or "")))
    return rows


def _arguments(found: ast.arguments) -> Iterator[str]:
    yield from (one.arg for one in found.args if one.arg != "self")
    yield from (f"{one.arg}=" for one in found.kwonlyargs)


def _explained(docstring: str) -> dict[str, str]:
    """Returns the entries under "Attributes:" of a docstring, by the names before the colon."""
    section = re.search(r"^Attributes:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    parts = _ATTRIBUTE.split(section[1]) if section else [""]
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _default(value: ast.expr | None) -> str:
    if value is None:
        return "required"
    written = ast.unparse(value).replace("'", '"')
    return {"()": "empty", '""': "empty", "{}": "empty"}.get(written, f"`{written}`")


@cache
def _class(path: str, name: str) -> ast.ClassDef:
    tree = ast.parse((_ROOT / path).read_text(encoding="utf-8"))
    return next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)


def attributes_table(path: str, name: str) -> str:
    """Returns the attributes of a class."""
    return table(("attribute", "default", "meaning"), attributes(path, name))


def methods_table(path: str, name: str) -> str:
    """Returns the methods of a class."""
    return table(("method", "what it does"), methods(path, name))


def patterns_table() -> str:
    """Returns the fields of what an accountant is asked about."""
    rows = []
    for name in ("Phase", "Sampled", "Counted"):
        rows += [(f"`{name}`", field, text) for field, _, text in attributes(_PHASES, name)]
    return table(("class", "field", "meaning"), rows)


def promise_table() -> str:
    """Returns the parts of the promise of a store."""
    return table(("code", "what is tried"), [(f"`{code}`", cell(tried)) for code, tried in PROMISE.items()])


def accountant_page(page: str) -> str:
    """Returns extending/accountant.md with its tables as the classes have them."""
    own = attributes_table(_TABLE, "Accountant"), methods_table(_TABLE, "Accountant")
    return filled(page, "\n".join((patterns_table(), *own)))


def noise_page(page: str) -> str:
    """Returns extending/noise.md with its tables as the classes have them."""
    cost = attributes_table(_TABLE, "Cost"), methods_table(_TABLE, "Cost")
    source = attributes_table(_MECHANISM, "Source")
    return filled(page, "\n".join(cost), source, methods_table(_MECHANISM, "Mechanism"))


PAGES: Final[Pages] = {
    "extending/accountant.md": accountant_page,
    "extending/noise.md": noise_page,
    "extending/store.md": lambda page: filled(page, promise_table()),
}
