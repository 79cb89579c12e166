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
_LEAVES: Final = sorted(RECORDS.values(), key=lambda leaf: leaf.KIND)


def formats_page(page: str) -> str:
    """Returns formats.md with the tables of leaves as the declaration has them."""
    leaves = {f"{leaf.KIND} {leaf.__name__.upper()}": leaf for leaf in _LEAVES}
    rows = {f"{name}, {item.label}": cls for name, leaf in leaves.items() for item, cls in rows_in(leaf)}
    kinds = [(*name.split(), said_of(leaf)) for name, leaf in ({"0 HEADER": Header} | leaves).items()]
    tables = [
        table(("kind", "name", "what it says"), kinds),
        fields_table("leaf", leaves, least=3),
        fields_table("row of", rows, key="place"),
    ]
    return with_tables(page, "Leaves", tables)


def cddl_page(page: str) -> str:
    """Returns ledger.cddl with the parts that are declared."""
    rules = []
    for leaf in _LEAVES:
        rules += [f"; {said_of(leaf)}\n{cddl_map(leaf)}", *(cddl_row(cls) for _, cls in rows_in(leaf))]
    return with_section(page, "leaves after the header", _WRITTEN + "\n".join(rules))


def rows_in(cls: type) -> list[tuple[Any, type]]:
    """Returns the fields of a document that hold rows, with the class of these."""
    arrays = [(item, item.kind.kind) for item in declarations(cls) if isinstance(item.kind, Array)]
    return [(item, kind.type) for item, kind in arrays if isinstance(kind, Row)]


def said_of(cls: type) -> str:
    """Returns the first sentence that is said of a document, on one line."""
    return " ".join(str(cls.__doc__).split("\n\n")[0].split())


PAGES: Final[Pages] = {"formats.md": formats_page, "ledger.cddl": cddl_page}


if __name__ == "__main__":
    write_pages(PAGES, sys.argv[1])
