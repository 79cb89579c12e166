"""Fills the parts of a page that are made from the code: they stand between marks, in order."""

import re
from typing import Final

from tests.claims.page import END

BEGIN: Final = "<!-- made by `make pages`; do not edit -->"
_PART: Final = re.compile(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}\n", re.DOTALL)


def filled(page: str, *parts: str) -> str:
    """Returns a page with these parts between its marks.

    Args:
        page: the page, with as many pairs of marks.
        parts: what stands between them, in order, each ending with a newline.

    Raises:
        ValueError: the page has another number of parts.
    """
    found = len(_PART.findall(page))
    if found != len(parts):
        raise ValueError(f"the page has {found} parts between marks, expected {len(parts)}; add or remove marks")
    left = iter(parts)
    return _PART.sub(lambda _: f"{BEGIN}\n\n{next(left)}\n{END}\n", page)


def cell(text: str) -> str:
    """Returns text as it stands in a cell of a table: on one line, names between single backticks, no bar of its own."""
    return " ".join(text.split()).replace("``", "`").replace("|", r"\|")


def paragraph(text: str) -> str:
    """Returns the first paragraph of a docstring."""
    return cell(text.strip().split("\n\n")[0])


def sentence(text: str) -> str:
    """Returns the first sentence of a docstring."""
    return re.split(r"(?<=[.])\s(?=[A-Z`])", paragraph(text))[0]
