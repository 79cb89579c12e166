"""Pages say what the code declares: their parts between marks are those that `python -m tests.pages` writes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.proofs.monitoring import ALARMS
from ledger.storage import checking
from tests.claims.page import END
from tests.pages import interfaces, marked, rooms, words

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {**interfaces.PAGES, **rooms.PAGES, **words.PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_says_what_the_code_declares(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert PAGES[name](page) == page, "write it again: python -m tests.pages"
    assert PAGES[name](page.replace(f"|\n\n{END}", f"|\n| stale | row |\n\n{END}")) == page


def test_a_page_with_another_number_of_marks_is_refused() -> None:
    page = f"a\n{marked.BEGIN}\nold\n{END}\nb\n"
    assert marked.filled(page, "new\n") == f"a\n{marked.BEGIN}\n\nnew\n\n{END}\nb\n"
    for parts in ((), ("one\n", "two\n")):
        with pytest.raises(ValueError, match="has 1 parts between marks, expected"):
            marked.filled(page, *parts)


def test_what_a_docstring_says_stands_in_one_cell() -> None:
    told = "Holds ``a | b`` on\n    two lines. Says more.\n\nAnd much more."
    assert marked.paragraph(told) == r"Holds `a \| b` on two lines. Says more."
    assert marked.sentence(told) == r"Holds `a \| b` on two lines."


def test_an_attribute_that_a_docstring_leaves_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told = '"""Holds.\n\n    Attributes:\n        a, b: two.\n    """'
    (found,) = ast.parse(f"class C:\n    {told}\n    a: int\n    b: int = 2\n").body
    monkeypatch.setattr(interfaces, "_class", lambda path, name: found)
    assert interfaces.attributes("c.py", "C") == [("`a`, `b`", "required, `2`", "two.")]
    found.body.pop()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"explains \['a', 'b'\], the class has \['a'\]"):
        interfaces.attributes("c.py", "C")


def test_every_code_of_an_unfit_store_is_a_part_of_the_promise() -> None:
    assert set(_codes()) == set(checking.PROMISE)


def _codes() -> Iterator[str]:
    """Yields what the checks hand on as a code: the words beside a sentence in a call of `_require` and its like."""
    for call in ast.walk(ast.parse(Path(checking.__file__).read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            place = {"_require": 1, "_expect": 2, "_refused": 2, "StoreUnfit": 0}.get(call.func.id)
            if place is not None and isinstance(code := call.args[place], ast.Constant):
                yield code.value


def test_every_alarm_says_what_it_is_and_what_to_do() -> None:
    assert all(word.sentence and word.remedy and word.code > 1 for word in ALARMS.values())
