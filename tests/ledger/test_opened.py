"""Asking a verified export: the same answers as of the ledger, also where much was pruned, and none of another tree."""

import pytest

from ledger.audit import verify as module
from ledger.audit.verify import open_export
from ledger.errors import ExportChanged
from ledger.views.summary import class_summaries
from ledger.views.trace import withdrawal_statement
from tests.worlds.retained_ledgers import crowded_and_pruned, is_pruned


@pytest.fixture
def run(tmp_path):
    made = crowded_and_pruned(tmp_path / "ledger.db", tmp_path, people=24, retention_hash_epochs=0)
    made.ledger.export(tmp_path / "export")
    yield made
    made.ledger.close()


def test_a_pruned_export_answers_as_its_ledger_does(run, tmp_path):
    found = open_export(tmp_path / "export", [run.ledger.state.keys.current])
    assert is_pruned(found.report) and found.report.root_hex == run.ledger.root.hex()
    assert class_summaries(found.run) == class_summaries(run.ledger.state)
    assert withdrawal_statement(found.run) == withdrawal_statement(run.ledger.state)
    assert found.given.leaves.size == found.run.size == run.ledger.size


def test_leaves_that_the_audit_did_not_see_are_not_asked(run, tmp_path, monkeypatch):
    audited = module.verify_export

    def then_changed(path, keys, **options):
        report = audited(path, keys, **options)
        return module.AuditReport(verdict=report.verdict, findings=(), size=report.size, root_hex="00" * 32)

    monkeypatch.setattr(module, "verify_export", then_changed)
    with pytest.raises(ExportChanged, match="changed while it was audited"):
        open_export(tmp_path / "export", [run.ledger.state.keys.current])
