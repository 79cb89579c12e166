"""Attacks on the second stage of retention, and on what an export carries of a pruned ledger: by whoever carries it."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import tiles
from ledger.audit import verify_export
from ledger.audit.findings import AuditReport
from ledger.errors import LedgerCorrupt, LedgerError
from ledger.log import Ledger
from ledger.proofs.prover import ExportReader
from ledger.replay.summaries import Aggregate
from ledger.retention import is_stand_in
from tests.worlds.ledgers import SIGNER
from tests.worlds.retained_ledgers import export_of, hashes_gone, is_pruned, pruned_run

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


def test_an_aggregate_that_its_summary_does_not_commit_to_is_refused_whatever_it_leads_to(tmp_path):
    """The replay does not need the root over the members, and all figures fit."""
    driver = pruned_run(tmp_path / "ledger.db")
    export = export_of(driver, tmp_path / "export")
    driver.ledger.close()
    (path,) = (path for path in (export / "retained").rglob("*") if path.is_file() and path.name != "notes")
    entries = tiles.split_bundle(path.read_bytes(), None)
    place = next(seq for seq, entry in enumerate(entries) if entry and is_stand_in(entry))
    entries[place] = replace(Aggregate.from_bytes(entries[place]), members_root=bytes(32)).to_bytes()
    assert is_pruned(verify_export(export, KEYS))
    path.write_bytes(tiles.entry_bundle(entries))
    assert [code for code, _ in codes(verify_export(export, KEYS))] == ["SUMMARY"]


@pytest.mark.parametrize("size", [1 << 40, 1 << 62])
def test_a_size_that_nobody_signed_costs_a_reader_no_memory(lean, size):
    """A reader of single leaves takes the checkpoint's word for the size until the proof is verified."""
    lines = (lean / "checkpoint").read_text().split("\n")
    lines[1] = str(size)
    (lean / "checkpoint").write_text("\n".join(lines))
    with pytest.raises(LedgerError):
        ExportReader(lean).leaf(5)


@pytest.fixture(scope="module")
def dropped(tmp_path_factory) -> Path:
    """A ledger in a file, without the hashes of what was pruned."""
    base = tmp_path_factory.mktemp("database")
    hashes_gone(base / "ledger.db", base).ledger.close()
    return base


def loosened(path: Path, table: str, statement: str) -> None:
    """Makes a table again that holds values of any type, and changes some; whoever may write the file can."""
    with closing(sqlite3.connect(path)) as database, database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        columns = ", ".join(row[1] for row in database.execute(f"PRAGMA table_info({table})"))
        database.execute(f"CREATE TABLE loose ({columns})")
        database.execute(f"INSERT INTO loose SELECT * FROM {table}")
        database.execute(f"DROP TABLE {table}")
        database.execute(f"ALTER TABLE loose RENAME TO {table}")
        assert database.execute(statement).rowcount > 0


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("entry", "level = 'x' WHERE seq = 5"), ("entry", "level = '3' WHERE level > 0"),
        ("entry", "level = NULL WHERE level > 0"),
        ("entry", "level = level + 0.5 WHERE level > 0"), ("entry", "level = -1 WHERE level > 0"),
        ("entry", "level = 1099511627776 WHERE level > 0"), ("entry", "body = 'abc' WHERE seq = 2"),
        ("entry", "body = 7 WHERE seq = 2"), ("entry", "leaf = 'abc' WHERE seq = 2"), ("entry", "seq = 'a' WHERE seq = 2"),
        ("entry", "leaf = 7 WHERE level > 0 AND leaf IS NOT NULL"), ("entry", "kind = 'a' WHERE seq = 2"),
        ("aggregate", "record = 'a'"), ("aggregate", "record = 5"), ("aggregate", "first = 'a' || first"),
        ("head", "pruned_before = 'a'"), ("head", "hashes_before = 'a'"), ("head", "size = 'a'"), ("head", "frontier = 5"),
        ("checkpoint", "note = 'a'"), ("checkpoint", "size = 'a' WHERE size = (SELECT min(size) FROM checkpoint)"),
    ],
    ids=lambda value: value,
)  # fmt: skip
@pytest.mark.one_in(3)
def test_values_of_other_types_in_a_database_are_LedgerCorrupt(dropped, tmp_path, table, change):
    place = Path(shutil.copytree(dropped, tmp_path / "ledger")) / "ledger.db"
    loosened(place, table, f"UPDATE {table} SET {change}")
    for signer in (None, SIGNER):
        with pytest.raises(LedgerCorrupt):
            Ledger.open(place, signer)


def test_an_aggregate_under_another_summary_is_LedgerCorrupt(dropped, tmp_path):
    """The column is an index over what the leaves say, and compared as every other."""
    place = Path(shutil.copytree(dropped, tmp_path / "ledger")) / "ledger.db"
    loosened(place, "aggregate", "UPDATE aggregate SET summary_seq = summary_seq + 1 WHERE rowid = 1")
    with pytest.raises(LedgerCorrupt, match=r"INDEX: leaf \d+ commits to the aggregate"):
        Ledger.open(place)
