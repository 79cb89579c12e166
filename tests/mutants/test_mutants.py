"""Every mutant still edits something, and names a test that is there; `make mutants` runs them."""

import ast
from functools import cache

import pytest

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.mutants import GROUPS

ALL = [pytest.param(mutant, id=f"{group}: {mutant.promise}") for group, mutants in GROUPS.items() for mutant in mutants]


@cache
def functions(file: str) -> frozenset[str]:
    """Names of the functions of a file of tests."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("mutant", ALL)
def test_a_mutant_edits_one_place_of_a_program_that_stays_one_and_names_a_test(mutant: Mutant) -> None:
    source = mutant.source()
    if mutant.file.endswith(".py"):
        ast.parse(source)
    assert source != (ROOT / mutant.file).read_text(encoding="utf-8")
    file, _, name = mutant.test.partition("::")
    function = name.partition("[")[0].rpartition("::")[2]
    assert function in functions(file)


def test_promises_are_told_apart() -> None:
    promises = [mutant.promise for mutants in GROUPS.values() for mutant in mutants]
    assert len(set(promises)) == len(promises)
