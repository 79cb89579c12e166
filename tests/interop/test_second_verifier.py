"""A second verifier of exports, written from docs/formats and the conformance vectors alone, says what ours says."""

import ast
import json
from pathlib import Path

import pytest

from tests.interop import second_verifier

VECTORS = Path(__file__).parent.parent / "vectors" / "conformance"
TABLE = json.loads((VECTORS / "exports.json").read_text())
HONEST = {row["name"]: row for row in TABLE["honest"]}


def test_it_shares_no_code_with_what_it_checks() -> None:
    tree = ast.parse(Path(second_verifier.__file__).read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported}.isdisjoint({"attest", "ledger", "dptrain", "tests", ""})


@pytest.mark.one_in(10)
@pytest.mark.parametrize("row", TABLE["honest"] + TABLE["lies"], ids=lambda row: row["name"])
def test_it_gives_every_export_of_the_vectors_its_verdict(row: dict, tmp_path: Path) -> None:
    found = second_verifier.judge_export(tmp_path, HONEST, row)
    assert found["verdict"] == row["verdict"], found["reasons"]
    if "figures" in row:
        assert second_verifier.compare_figures(row["figures"], found["figures"]) == ""
        assert sorted(found["qualifiers"]) == sorted(row["qualifiers"])


@pytest.mark.slow
def test_it_judges_every_vector_alike() -> None:
    assert second_verifier.count(second_verifier.vector_cases(VECTORS))
