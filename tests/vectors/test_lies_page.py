"""docs/formats/export.md shows every code under which a lie of the vectors is found, and qualifiers of honest exports."""

from pathlib import Path

from ledger.audit.findings import QUALIFIERS
from tests.pages.lies import PAGES, exports_by_qualifier, lies_by_code

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_what_is_written_from_the_vectors():
    for name, write in PAGES.items():
        page = (DOCS / name).read_text(encoding="utf-8")
        assert write(page) == page, "write it again: python -m tests.pages"


def test_every_code_and_every_word_has_a_row():
    page = (DOCS / "formats" / "export.md").read_text(encoding="utf-8")
    assert len(lies_by_code()) > 100 and set(exports_by_qualifier()) <= set(QUALIFIERS)
    assert all(f"\n| `{word}` | " in page for word in (*lies_by_code(), *exports_by_qualifier()))
