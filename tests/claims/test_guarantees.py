"""Every `Guarantee:` paragraph of the code is held by a test that is named for it, and the tables of the docs say which."""

from pathlib import Path

import pytest

from tests.claims import page
from tests.claims.paragraphs import guarantees, paragraphs_of
from tests.claims.reached import holds
from tests.claims.tests_of import find, held


def test_every_guarantee_names_its_test_and_no_name_is_left_over() -> None:
    without, over = guarantees().keys() - held().keys(), held().keys() - guarantees().keys()
    assert not without, f"name the tests that hold these in tests/claims/held.toml: {sorted(without)}"
    assert not over, f"no guarantee has these names any more; take them off tests/claims/held.toml: {sorted(over)}"


@pytest.mark.parametrize("name", held())
def test_the_tests_of_a_guarantee_are_there_and_one_runs_in_the_ordinary_suite(name: str) -> None:
    found = [find(test) for test in held()[name]]
    assert any(test.ordinary for test in found), f"{name} is held by tests that the ordinary suite leaves out"


def test_a_test_of_no_name_or_of_two_files_is_refused() -> None:
    with pytest.raises(LookupError, match="stands nowhere"):
        find("test_that_is_not_there")
    with pytest.raises(LookupError, match="name it as file::test"):
        find("test_round_trip")
    assert find("test_descriptor::test_round_trip").path == "tests/attest/test_descriptor.py"


@pytest.mark.parametrize("path", [page.INDEX, page.ALL], ids=str)
def test_a_table_of_the_docs_is_what_the_code_says(path: Path) -> None:
    whole = page.ROOT / path
    assert page.written()[whole] == whole.read_text(encoding="utf-8"), "write it again: make pages"


@pytest.mark.parametrize("path", page.pages(), ids=lambda path: path.stem)
def test_the_page_of_a_theorem_names_code_that_keeps_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ") and "\n## Kept by\n" in text
    assert page.keepers(text), "its section `Kept by` names nothing that has a `Guarantee:` paragraph"


def test_every_page_of_the_folder_is_linked_from_its_index() -> None:
    there = {path.name for path in (page.ROOT / page.FOLDER).glob("*.md")} - {"README.md", "guarantees.md"}
    assert {path.name for path in page.pages()} == there


SOURCE = '''
class Sampler:
    """Draws.

    Guarantee: nobody is drawn
    twice.

    Args:
        x: no part of it.
    """

    def take(self):
        """Takes.

        Guarantee, errors: as `Sampler`.
        """

    def plain(self):
        """Guarantees nothing: the word alone is no paragraph."""
'''


def test_a_paragraph_is_found_with_its_name_and_its_words() -> None:
    found = [(one.within, one.text) for one in paragraphs_of("wing/room.py", SOURCE)]
    assert found == [("Sampler", "nobody is drawn twice."), ("Sampler.take", "as `Sampler`.")]


def test_code_of_a_guarantee_is_what_stands_behind_the_last_heading_of_its_page() -> None:
    name = next(iter(guarantees()))
    text = f"# Title\n\n`{name}` is named here too.\n\n## Kept by\n\n`nobody` and `{name}`.\n\n## Source\n\n`{name}`\n"
    assert page.keepers(text) == [name]
    assert page.keepers(text.replace("## Kept by", "## Code")) == []


def test_code_that_ran_counts_for_the_guarantee_that_it_keeps_and_for_no_other() -> None:
    known = guarantees()
    method = next(name for name, one in known.items() if "." in one.within and not one.bare)
    one = known[method]
    assert holds(method, {(one.path, one.within)}) and holds(method, {(one.path, f"{one.within}.<locals>.inner")})
    assert not holds(method, {(one.path, f"{one.within}s"), ("attest/elsewhere.py", one.within)})
    filled_in = next(name for name, one in known.items() if one.bare and "." in one.within)
    one = known[filled_in]
    beside = f"{one.path.rpartition('/')[0]}/beside.py"
    assert holds(filled_in, {(beside, f"Other.{one.within.rpartition('.')[2]}")})
    assert not holds(filled_in, {("attest/elsewhere.py", one.within), (beside, "Other.something_else")})
