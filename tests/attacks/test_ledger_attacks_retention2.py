"""Attacks on the second stage of retention, and on what an export carries of a pruned ledger: by whoever carries it."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import tiles
from ledger.audit import verify_export
from ledger.audit.findings import AuditReport
from ledger.errors import LedgerError
from ledger.log import Ledger
from ledger.proofs.reader import ExportReader
from ledger.retention.anchors import AnchorRecord
from ledger.retention.retained import is_stand_in
from tests.ledger.ledger_runs import SIGNER
from tests.ledger.retained_runs import export_of, hashes_gone, pruned_run

KEYS = [SIGNER.vkey]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("lean")
    driver = hashes_gone(base / "ledger.db", base)
    driver.ledger.close()
    with Ledger.open(base / "ledger.db", read_only=True) as ledger:
        return ledger.export(base / "export")


@pytest.fixture
def lean(exported, tmp_path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "export"))


def codes(report: AuditReport) -> list[tuple[str, str]]:
    assert (report.verdict == "FAILED") == bool(report.findings)
    return [(found.code, found.where) for found in report.findings]


def kept_notes(export: Path) -> list[bytes]:
    return tiles.split_bundle((export / "retained" / "notes").read_bytes(), None)


def put_notes(export: Path, notes: list[bytes]) -> None:
    (export / "retained" / "notes").write_bytes(tiles.entry_bundle(notes))


def test_a_kept_note_repeated_is_a_fault_and_ends_the_list(lean):
    """2000 copies of a note, in 1 MB, took 11 seconds; nothing is said by the second that the first did not say."""
    notes = kept_notes(lean)
    put_notes(lean, [*notes, *notes[-1:] * 1000])
    assert codes(verify_export(lean, KEYS)) == [("NOTES", "retained/notes")]


def test_kept_notes_without_content_are_one_fault_and_not_one_each(lean):
    """Half a million empty notes are 1 MB: each was a finding of its own."""
    put_notes(lean, [*kept_notes(lean), *[b""] * 1000])
    assert codes(verify_export(lean, KEYS)) == [("NOTE", "retained/notes")]


@pytest.mark.parametrize("change", [{"last_seq": 9}, {"spent_micro": None}, {"content_anchor": bytes(32)}], ids=str)
def test_an_anchor_that_its_summary_does_not_commit_to_is_refused_whatever_it_leads_to(tmp_path, monkeypatch, change):
    """With another last SPEND leaf its epsilon is recomputed; where that is the recorded one, as here, all figures fit."""
    monkeypatch.setattr("ledger.accountants.to_micro_up", lambda value: math.ceil(value * 1e6))
    driver = pruned_run(tmp_path / "ledger.db")
    export = export_of(driver, tmp_path / "export")
    driver.ledger.close()
    (path,) = (path for path in (export / "retained").rglob("*") if path.is_file() and path.name != "notes")
    entries = tiles.split_bundle(path.read_bytes(), None)
    place = next(seq for seq, entry in enumerate(entries) if entry and is_stand_in(entry))
    entries[place] = replace(AnchorRecord.from_bytes(entries[place]), **change).to_bytes()
    assert verify_export(export, KEYS).verdict == "SUMMARISED"
    path.write_bytes(tiles.entry_bundle(entries))
    assert ("UNVOUCHED", "retained/notes") in codes(verify_export(export, KEYS))


@pytest.mark.parametrize("size", [1 << 40, 1 << 62])
def test_a_size_that_nobody_signed_costs_a_reader_no_memory(lean, size):
    """A reader of single leaves takes the checkpoint's word for the size until the proof is verified."""
    lines = (lean / "checkpoint").read_text().split("\n")
    lines[1] = str(size)
    (lean / "checkpoint").write_text("\n".join(lines))
    with pytest.raises(LedgerError):
        ExportReader(lean).leaf(5)
