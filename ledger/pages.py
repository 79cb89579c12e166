"""Writes what the documentation says of the documents of a ledger from their declaration: ``python -m ledger.pages docs``.

A test compares the pages with what is written here, so that neither says what the other does not.
"""

import sys
from typing import Any, Final

from attest.documents import declarations
from attest.documents.pages import Pages, cddl_map, cddl_row, fields_table, table, with_section, with_tables, write_pages
from attest.documents.quick import Array, Row
from ledger.leaves import Header
from ledger.leaves.codec import RECORDS

_WRITTEN: Final = "; Written from the declaration (python -m ledger.pages docs).\n"
_LEAVES: Final[tuple[type[Any], ...]] = (Header, *sorted(RECORDS.values(), key=lambda leaf: leaf.KIND))


def formats_page(page: str) -> str:
    """Returns formats.md with the tables of leaves as the declaration has them."""
    leaves = {f"{leaf.KIND} {leaf.__name__.upper()}": leaf for leaf in _LEAVES}
    rows = {f"{name}, {item.label}": cls for name, leaf in leaves.items() for item, cls in rows_in(leaf)}
    kinds = [(*name.split(), said_of(leaf)) for name, leaf in leaves.items()]
    tables = [
        table(("kind", "name", "what it says"), kinds),
        fields_table("leaf", leaves, least=3),
        fields_table("row of", rows, key="place"),
    ]
    return with_tables(page, "Leaves", tables)


def cddl_page(page: str) -> str:
    """Returns ledger.cddl with the parts that are declared."""
    return with_section(page, "leaves", _WRITTEN + "\n".join(map(cddl_with_rows, _LEAVES)))


def cddl_with_rows(cls: type) -> str:
    """Returns the rules of a document, with those of the rows in it."""
    return "\n".join([f"; {said_of(cls)}\n{cddl_map(cls)}", *(cddl_row(row) for _, row in rows_in(cls))])


def rows_in(cls: type) -> list[tuple[Any, type]]:
    """Returns the fields of a document that hold rows of their own form, with the class of these."""
    kinds = [(item, item.kind.kind if type(item.kind) is Array else item.kind) for item in declarations(cls)]
    return [(item, kind.type) for item, kind in kinds if isinstance(kind, Row)]


def said_of(cls: type) -> str:
    """Returns the first sentence that is said of a document, on one line."""
    return " ".join(str(cls.__doc__).split("\n\n")[0].split())


PAGES: Final[Pages] = {"formats.md": formats_page, "ledger.cddl": cddl_page}


if __name__ == "__main__":
    write_pages(PAGES, sys.argv[1])
