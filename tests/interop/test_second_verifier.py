"""A second verifier of exports, written from docs/formats and the conformance vectors alone, says what ours says."""

import ast
import json
from pathlib import Path

import pytest

from attest.policy import Policy
from attest.schema.declare import declarations
from tests.interop import second_verifier

VECTORS = Path(__file__).parent.parent / "vectors" / "conformance"
TABLE = json.loads((VECTORS / "exports.json").read_text())
HONEST = {row["name"]: row for row in TABLE["honest"] + TABLE["budgets"]}


def test_it_shares_no_code_with_what_it_checks() -> None:
    tree = ast.parse(Path(second_verifier.__file__).read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported}.isdisjoint({"attest", "ledger", "dptrain", "tests", ""})


def test_it_knows_every_field_of_a_policy() -> None:
    """A field that only we know would make its answer to such a policy another one."""
    ours = {declared.label for declared in declarations(Policy)} | {1}
    assert ours == {*second_verifier.POLICY, *second_verifier.POLICY_OPTIONAL}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("row", TABLE["honest"] + TABLE["lies"], ids=lambda row: row["name"])
def test_it_gives_every_export_of_the_vectors_its_verdict(row: dict, tmp_path: Path) -> None:
    found = second_verifier.judge_export(tmp_path, HONEST, row)
    assert found["verdict"] == row["verdict"], found["reasons"]
    if "figures" in row:
        assert second_verifier.compare_figures(row["figures"], found["figures"]) == ""
        assert sorted(found["qualifiers"]) == sorted(row["qualifiers"])


def test_it_judges_every_budget_alike() -> None:
    cases = list(second_verifier.budget_cases(json.loads((VECTORS / "budgets.json").read_text())))
    assert len(cases) > 60 and [case for case in cases if case[1] != case[2]] == []


def test_it_judges_rights_alike() -> None:
    cases = list(second_verifier.serving_cases(json.loads((VECTORS / "serving.json").read_text())))
    assert len(cases) >= 30 and [case for case in cases if case[1] != case[2]] == []


@pytest.mark.slow
def test_it_judges_every_vector_alike() -> None:
    assert second_verifier.count(second_verifier.vector_cases(VECTORS))
