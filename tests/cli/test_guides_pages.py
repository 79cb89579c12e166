"""The tables of the guides that programs write are what the declarations say."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.pages.guides import PAGES, RUN_FILE, attributes

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_is_declared(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert PAGES[name](page) == page, "write it again: python -m tests.pages"


@pytest.mark.parametrize("cls", RUN_FILE.values(), ids=lambda cls: cls.__name__)
def test_every_key_of_a_run_file_is_explained(cls: type) -> None:
    inherited = {name for base in cls.__mro__[1:] for name in vars(base).get("__annotations__", {})}
    own = set(vars(cls)["__annotations__"])
    assert own - inherited <= set(attributes(cls)) <= own
