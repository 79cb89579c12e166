"""Every `Guarantee:` paragraph of the code is held by a test that is named for it, and the tables of the docs say which."""

from functools import cache
from pathlib import Path

import pytest

from tests.claims import page, tables
from tests.claims.clauses import Clause, clauses, code_in_words, names_of_tests
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


@cache
def written() -> dict[Path, str]:
    return page.written()


@pytest.mark.parametrize("path", page.made_pages(), ids=lambda path: path.relative_to(page.ROOT).as_posix())
def test_what_is_made_of_a_page_is_what_the_code_says(path: Path) -> None:
    assert written()[path] == path.read_text(encoding="utf-8"), "write it again: make pages"


@pytest.mark.parametrize("path", page.pages(), ids=lambda path: path.stem)
def test_the_page_of_a_theorem_shows_its_clauses_and_the_code_that_keeps_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ") and "\n## It needs\n\n" + page.BEGIN.format("clauses") in text
    mine = clauses()[path.stem]
    assert {name for one in mine for name in one.code} & guarantees().keys(), "nothing of its code has a `Guarantee:` paragraph"


def test_every_page_of_the_folder_has_its_place_and_its_clauses() -> None:
    there = {path.stem for path in (page.ROOT / page.FOLDER).glob("*.md")} - {"README", "guarantees"}
    assert {path.stem for path in page.pages()} == there == clauses().keys()


@pytest.mark.parametrize("one", [pytest.param(one, id=name) for name, rows in clauses().items() for one in rows])
def test_a_clause_has_code_and_a_test_that_always_runs_or_is_said_to_be_assumed(one: Clause) -> None:
    assert one.assumed != bool(one.code), "either code keeps it, or it is assumed"
    assert not one.code or one.shown_by, "no test fails without it"
    assert one.assumed or any("/" in test or find(test).ordinary for test in one.shown_by)
    assert all(map(code_in_words, one.code)) and bool(names_of_tests(one.shown_by)) == bool(one.shown_by)


def test_names_of_clauses_that_lead_nowhere_are_refused() -> None:
    for name in ("NoSuchGuarantee", "ledger/no_such_file.py", "ledger/merkle.py::no_such_function"):
        with pytest.raises(LookupError):
            code_in_words(name)
    with pytest.raises(LookupError):
        names_of_tests(["tests/no_such_file.py"])
    with pytest.raises(LookupError, match="nothing makes"):
        page.made(f"{page.BEGIN.format('nonsense')}\n{page.END}", "README")


def test_a_proof_is_what_stands_behind_its_word_in_a_docstring() -> None:
    assert tables.proof("ledger/accountants/laplace.py").rstrip().endswith("plane.")
    with pytest.raises(LookupError, match="Proof"):
        tables.proof("ledger/merkle.py")


def test_a_table_of_measured_figures_has_one_width_and_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(tables.measured("bytes"))[1] == "|---|---|---|---|---|"
    with pytest.raises(LookupError, match="has no table 'nowhere'"):
        list(tables.measured("nowhere"))
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "measured.json").write_text('{"short": {"columns": ["a", "b"], "rows": [["1"]]}}')
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    with pytest.raises(LookupError, match="has 1 cells"):
        list(tables.measured("short"))


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


def test_what_is_made_is_made_anew_and_what_is_written_by_hand_stays() -> None:
    text = f"# Title\n\nBy hand.\n\n{page.BEGIN.format('clauses')}\nold\n{page.END}\n\nBy hand.\n"
    made = page.made(text, "one-clip")
    assert made.count("By hand.") == 2 and "\nold\n" not in made and f"| {clauses()['one-clip'][0].needs} |" in made


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
