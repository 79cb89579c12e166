"""Writes what the documentation says of the documents of a ledger from their declarations."""

import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from attest.schema import declarations
from attest.schema.quick import Array, Row
from ledger.audit.findings import QUALIFIERS
from ledger.budget import leaves as budget
from ledger.leaves import Header
from ledger.leaves.codec import RECORDS
from ledger.published import SAID
from ledger.published.facts import AUDITED, PATHS, PATTERNS
from ledger.release.contents import FORMS, RECOGNISED
from ledger.release.manifest import ISSUER, Manifest
from ledger.replay.summaries import MAX_AGGREGATE_SIZE, Aggregate, Member
from ledger.serving.envelope import MAX_ENVELOPE, RightsEnvelope
from tests.pages.documents import (
    Pages,
    cddl_map,
    cddl_row,
    commented,
    fields_table,
    said_of,
    table,
    with_section,
    with_source,
    with_tables,
)
from tests.reference import second_blocks

_WRITTEN: Final = "; Written from the declaration (python -m tests.pages).\n"
_LEAVES: Final[tuple[type[Any], ...]] = (Header, *sorted(RECORDS.values(), key=lambda leaf: leaf.KIND))


def ledger_page(page: str) -> str:
    """Returns formats/ledger.md with the tables that are declared."""
    leaves = {f"{leaf.KIND} {leaf.__name__.upper()}": leaf for leaf in _LEAVES}
    kinds = [(*name.split(), said_of(leaf)) for name, leaf in leaves.items()]
    tables = [table(("kind", "name", "what it says"), kinds), fields_table("leaf", leaves, least=3), rows_table(leaves)]
    page = with_tables(page, "Leaves", tables)
    return with_source(page, "Blocks", Path(second_blocks.__file__))


def runs_page(page: str) -> str:
    """Returns formats/runs.md with the tables that are declared."""
    records = fields_table("row", {"aggregate": Aggregate, "member record": Member}, key="place")
    return with_tables(page, "Retention", [records])


def release_page(page: str) -> str:
    """Returns formats/release.md with the tables that are declared."""
    manifest = {"manifest": Manifest}
    page = with_tables(page, "Release", [fields_table("of the", manifest), rows_table(manifest)])
    page = with_tables(page, "Documents and bundles", [table(("path", "what it is", "covered by"), SAID)])
    forms = [(f"`{form}`", *said) for form, said in RECOGNISED.items()]
    page = with_tables(page, "Forms of files", [table(("form", "bytes", "a file of it"), forms)])
    rights = {"rights": RightsEnvelope}
    return with_tables(page, "Rights envelope", [fields_table("of the", rights), rows_table(rights)])


def cddl_page(page: str) -> str:
    """Returns ledger.cddl with the parts that are declared."""
    forms = [f'"{form}"' for form in FORMS]
    named = f"file-form = {' / '.join(forms[:8])}\n  / {' / '.join(forms[8:])}\nfile-tensors-or-nil = [* tensor] / nil\n"
    named += "".join(f'{name} = tstr .regexp "{pattern}"\n' for name, pattern in PATTERNS.items())
    named += "license-or-nil = license / nil\n"
    for name, words in (("document", PATHS), ("audit-verdict", AUDITED), ("qualifier", QUALIFIERS)):
        lines = textwrap.wrap(" / ".join(f'"{word}"' for word in words), 110)
        named += f"{name} = " + "\n  ".join(lines) + "\n"
    aggregates = [
        "; What a SUMMARY leaf commits to by a root, in order. It stands at the first ADMIT leaf that is gone, in at most\n"
        f"; {MAX_AGGREGATE_SIZE} bytes.\n{cddl_row(Aggregate)}",
        "; Stands at the others of them.\nanother-member = []\n",
        "; What the last field of an aggregate is a root over, in order.\n" + cddl_row(Member),
    ]
    signed = f'; release.cose, with the issuer "{ISSUER}".\nsigned-release = [bstr .cbor manifest, message]\n'
    page = with_section(page, "leaves", _WRITTEN + "\n".join(map(cddl_with_rows, _LEAVES)))
    page = with_section(page, "aggregates", _WRITTEN + "\n".join(aggregates))
    return with_section(page, "releases", _WRITTEN + "\n".join([signed, cddl_with_rows(Manifest), named]))


def budget_page(page: str) -> str:
    """Returns budget.cddl with the leaves that are declared, but for rows that ledger.cddl has."""
    kinds = (budget.Header, *sorted(budget.RECORDS.values(), key=lambda leaf: leaf.KIND))
    theirs = {row for leaf in _LEAVES for row in rows_in(leaf).values()}
    return with_section(page, "leaves", _WRITTEN + "\n".join(cddl_with_rows(kind, theirs) for kind in kinds))


def serving_page(page: str) -> str:
    """Returns serving.cddl with the rights that are declared."""
    signed = f"; A .rights file, at most {MAX_ENVELOPE} bytes.\nsigned-rights = [bstr .cbor rights, message]\n"
    return with_section(page, "rights", _WRITTEN + signed + "\n" + cddl_with_rows(RightsEnvelope))


def cddl_with_rows(cls: type, elsewhere: Collection[type] = ()) -> str:
    """Returns the rules of a document, with those of the rows in it. `elsewhere`: rows that another schema has."""
    rows = [row for row in rows_in(cls).values() if row not in elsewhere]
    return "\n".join([f"{commented(cls)}{cddl_map(cls)}", *(f"{commented(row)}{cddl_row(row)}" for row in rows)])


def rows_table(documents: Mapping[str, type]) -> str:
    """Returns the table of the columns of rows, by the documents that hold them and their labels there."""
    rows = {f"{name}, {place}": row for name, cls in documents.items() for place, row in rows_in(cls).items()}
    return fields_table("row of", rows, key="place")


def rows_in(cls: type) -> dict[str, type]:
    """Returns the classes of the rows that a document holds, by the label of their field; of those in rows by several."""
    found: dict[str, type] = {}
    for item in declarations(cls):
        kind = item.kind.kind if type(item.kind) is Array else item.kind
        if isinstance(kind, Row):
            found |= {str(item.label): kind.type} | {f"{item.label}.{inner}": row for inner, row in rows_in(kind.type).items()}
    return found


PAGES: Final[Pages] = {
    "formats/ledger.md": ledger_page,
    "formats/runs.md": runs_page,
    "formats/release.md": release_page,
    "ledger.cddl": cddl_page,
    "budget.cddl": budget_page,
    "serving.cddl": serving_page,
}
