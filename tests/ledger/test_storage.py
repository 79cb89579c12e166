"""The ledger on disk: what an accident cannot do, what an attacker cannot hide, what a full disk leaves behind."""

import hashlib
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ledger_runs import OTHER_KEY, SIGNER, START, Driver, admission, header_spec

from ledger.audit import verify_export
from ledger.errors import (
    LedgerBehind,
    LedgerBusy,
    LedgerClosed,
    LedgerCorrupt,
    LedgerError,
    LedgerForked,
    LedgerWrongRun,
    StorageFailed,
)
from ledger.leaves import decode_leaf
from ledger.log import Ledger
from ledger.merkle import Frontier, leaf_hash
from ledger.note import NoteSigner
from ledger.storage import fsck, highwater
from ledger.storage.opening import create_store, open_store
from ledger.storage.place import Place
from ledger.storage.store import Row


@pytest.fixture
def closed(run, path):
    """A whole run, closed on disk."""
    run.whole_run()
    run.ledger.close()
    return path


def edit(path: Path, *statements: str) -> None:
    """Edits the file as an attacker would: without the triggers."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def opens(path: Path) -> Ledger:
    return Ledger.open(path, SIGNER)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET body = x'00' WHERE seq = 1",
        "UPDATE entry SET kind = 2 WHERE seq = 1",
        "DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)",
        "DELETE FROM entry",
        "INSERT OR REPLACE INTO entry SELECT seq, kind, dhash, leaf, x'00' FROM entry WHERE seq = 1",
        "REPLACE INTO entry SELECT * FROM entry WHERE seq = 2",
        "INSERT INTO entry SELECT 1000, kind, dhash, leaf, body FROM entry WHERE seq = 1",
        "INSERT INTO entry SELECT -1, kind, dhash, leaf, body FROM entry WHERE seq = 1",
        "INSERT INTO entry (seq, kind, leaf, body) SELECT size, 1, x'00', x'00' FROM head",
        "INSERT INTO entry (seq, kind, leaf, body) SELECT size, 1, NULL, x'00' FROM head",
        "UPDATE head SET size = size - 1",
        "DELETE FROM head",
        "INSERT INTO head VALUES (1, 0, x'', 0)",
        "UPDATE checkpoint SET note = x'00'",
        "DELETE FROM checkpoint",
        "UPDATE meta SET value = '2'",
        "DELETE FROM meta",
        "UPDATE lease SET fence = fence - 1",
        "DELETE FROM lease",
    ],
)
@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_triggers_refuse_every_way_to_rewrite_the_past(closed, statement, recursive):
    connection = sqlite3.connect(closed)
    connection.execute(f"PRAGMA recursive_triggers={recursive}")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    connection.rollback()
    connection.close()
    opens(closed).close()


def test_an_edited_body_is_named(closed):
    edit(closed, "UPDATE entry SET body = x'a0' WHERE seq = 3")
    with pytest.raises(LedgerCorrupt) as found:
        opens(closed)
    assert found.value.seq == 3


def test_an_edited_body_with_its_leaf_hash_contradicts_the_signed_root(closed):
    connection = sqlite3.connect(closed)
    (body,) = connection.execute("SELECT body FROM entry WHERE seq = 1").fetchone()
    connection.close()
    changed = bytearray(body)
    changed[-1] ^= 1
    leaf = hashlib.sha256(b"\0" + changed).hexdigest()
    edit(closed, f"UPDATE entry SET body = x'{changed.hex()}', leaf = x'{leaf}' WHERE seq = 1")
    with pytest.raises(LedgerCorrupt) as found:
        opens(closed)
    assert found.value.code == "CHECKPOINT"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entry WHERE seq = 4",
        "UPDATE entry SET seq = seq + 1000 WHERE seq = 4",
        "UPDATE entry SET kind = 5 WHERE seq = 4",
        "UPDATE entry SET dhash = x'00' WHERE seq = 4",
        "UPDATE head SET frontier = zeroblob(length(frontier))",
        "UPDATE head SET size = size - 1",
        "UPDATE checkpoint SET note = x'00'",
        "INSERT INTO checkpoint SELECT 0, note FROM checkpoint LIMIT 1",
        "INSERT INTO checkpoint SELECT size - 2, note FROM checkpoint ORDER BY size DESC LIMIT 1",
        "DELETE FROM head",
        "UPDATE meta SET value = '9'",
        "DELETE FROM entry",
        "DROP TABLE entry",
    ],
)
def test_other_edits_are_corruption(closed, statement):
    edit(closed, statement)
    with pytest.raises((LedgerCorrupt, LedgerBehind)):
        opens(closed)


def test_a_changed_fence_only_changes_the_fence(closed):
    edit(closed, "UPDATE lease SET fence = 40")
    with opens(closed) as ledger:
        assert ledger.size > 1


def test_bytes_that_are_no_database_are_corrupt(closed):
    closed.write_bytes(b"not a database" * 1000)
    with pytest.raises(LedgerCorrupt):
        opens(closed)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(LedgerError) as found:
        opens(tmp_path / "none.db")
    assert found.value.code == "MISSING" and not (tmp_path / "none.db").exists()


def test_tail_truncation_is_behind_even_when_the_file_agrees_with_itself(run, path, tmp_path):
    run.admit(admission(1))
    run.steps()
    pin = run.ledger.pin()
    run.ledger.close()
    backup = shutil.copy(path, tmp_path / "backup.db")
    with opens(path) as ledger:
        after = Driver(ledger, now=run.now + 10)
        ledger.resume(4, pin, now=after.tick())
        after.steps()
        later = ledger.pin()
    shutil.copy(backup, path)  # rolled back whole, notes and all
    with pytest.raises(LedgerBehind) as found:
        opens(path)
    assert found.value.code == "BEHIND"
    highwater.path_of(path).unlink()
    with pytest.raises(LedgerBehind) as found:
        opens(path)
    assert found.value.code == "HIGHWATER_MISSING"
    with Ledger.open(path) as reader, pytest.raises(LedgerBehind):
        reader.check_pin(later)


def test_rows_cut_from_the_end_are_missed_by_the_file_itself(closed):
    edit(closed, "DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)")
    with pytest.raises(LedgerBehind) as found:
        opens(closed)
    assert found.value.code == "TAIL_LOST"


def test_a_fork_leaves_evidence(run, path, tmp_path):
    run.admit(admission(1))
    run.ledger.close()
    other = Path(shutil.copy(path, tmp_path / "other.db"))
    shutil.copy(highwater.path_of(path), highwater.path_of(other))
    for n, copy in ((2, path), (3, other)):
        with opens(copy) as ledger:
            Driver(ledger, now=run.now).admit(admission(n))
            pin = ledger.pin()
    shutil.copy(other, path)  # one history under the other's memory
    with pytest.raises(LedgerForked):
        opens(path)
    evidence = Path(f"{path}.fork-evidence").read_bytes()
    assert evidence.count(b"ledger.example/run1\n3\n") == 1
    shutil.copy(highwater.path_of(other), highwater.path_of(path))
    with opens(path) as ledger:
        ledger.check_pin(pin)


def test_pins_tell_forked_behind_and_wrong_run(run, tmp_path):
    run.admit(admission(1))
    other = Ledger.create(tmp_path / "b.db", header_spec(run_id=b"r" * 16), SIGNER, now=START)
    with other, pytest.raises(LedgerWrongRun):
        other.check_pin(run.ledger.pin())
    with Ledger.create(tmp_path / "c.db", header_spec(), SIGNER, now=START) as ledger:
        with pytest.raises(LedgerBehind):
            ledger.check_pin(run.ledger.pin())
        Driver(ledger).admit(admission(2))
        with pytest.raises(LedgerForked):
            ledger.check_pin(run.ledger.pin())


def test_a_forged_highwater_file_is_refused(closed):
    mark = highwater.path_of(closed)
    signer = NoteSigner(SIGNER.name, OTHER_KEY)
    highwater.write(closed, signer, 1, bytes(32))
    with pytest.raises(LedgerCorrupt):
        opens(closed)
    mark.write_bytes(b"junk")
    with pytest.raises(LedgerCorrupt):
        opens(closed)


def test_a_crash_before_the_highwater_file_is_caught_up(run, path):
    run.admit(admission(1))
    before = highwater.path_of(path).read_bytes()
    run.steps()
    size = run.ledger.size
    run.ledger.close()
    highwater.path_of(path).write_bytes(before)
    opens(path).close()
    mark = highwater.read_bytes(path)
    assert mark is not None and highwater.parse(mark, SIGNER.vkey).size == size


def test_disk_full_refuses_the_charge_and_leaves_nothing_half_written(run, path):
    run.admit(admission(1))
    size, root = run.ledger.size, run.ledger.root
    _limit_pages(run.ledger, spare=0)
    with pytest.raises(StorageFailed):
        run.admit(*(admission(n) for n in range(10, 500)))
    with pytest.raises(LedgerClosed):
        run.charge()
    run.ledger.close()
    with opens(path) as ledger:
        assert (ledger.size, ledger.root) == (size, root)
        Driver(ledger, now=run.now).steps()


def _limit_pages(ledger: Ledger, *, spare: int) -> None:
    with ledger._file.store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages + spare}")


def test_a_failing_highwater_file_fails_the_charge_but_not_the_record(run, path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(highwater, "atomic_write", full)
        with pytest.raises(StorageFailed):
            run.charge()
    run.ledger.close()
    with opens(path) as ledger:
        assert ledger.charged_steps == 4


def test_a_ledger_that_cannot_be_created_leaves_no_file(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    for place in (highwater, "atomic_write"), (fsck, "load"):
        with monkeypatch.context() as patched:
            patched.setattr(*place, full)
            with pytest.raises((StorageFailed, OSError)):
                Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START)
        assert [p.name for p in tmp_path.iterdir()] == ["ledger.db.lock"]
    Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START).close()


def test_a_killed_writer_loses_nothing_it_was_told_is_durable(tmp_path):
    """The process dies by SIGKILL right after charge() returns: the charge is there, and the lock is free."""
    path = tmp_path / "ledger.db"
    program = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from ledger_runs import *\n"
        f"run = Driver(Ledger.create(Path({str(path)!r}), header_spec(), SIGNER, now=START))\n"
        "run.admit(admission(1))\n"
        "run.charge()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], timeout=120)
    assert done.returncode == -9
    with opens(path) as ledger:
        assert ledger.charged_steps == 4 and ledger.state.open_window is not None


def test_a_second_writer_that_got_past_the_lock_is_fenced(run, path):
    """As on a file system without advisory locks: the older writer finds out before it writes."""
    Path(f"{path}.lock").unlink()
    with opens(path):
        with pytest.raises(LedgerBusy) as found:
            run.admit(admission(1))
        assert found.value.code == "FENCED"


def test_a_moved_head_is_seen_before_anything_is_written(tmp_path):
    store = create_store(Place.of(tmp_path / "s.db"))
    frontier = Frontier()
    frontier.append(leaf_hash(b"x"))
    store.append([Row(0, 0, None, leaf_hash(b"x"), b"x")], frontier)
    with pytest.raises(LedgerBusy) as found:
        store.append([Row(0, 0, None, leaf_hash(b"x"), b"x")], frontier)
    assert found.value.code == "HEAD_MOVED"
    with store.snapshot() as snapshot:
        assert snapshot.head().size == 1
    store.close()


def test_durability_settings_are_on(run):
    with run.ledger._file.store._engine.connect() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers", "trusted_schema")
        }
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "trusted_schema": 0,
    }


def test_fsck_recomputes_the_recorded_epsilons(closed):
    store = open_store(Place.of(closed), read_only=True)
    loaded = fsck.load(store, recompute=True)
    assert loaded.replay.closed and loaded.frontier.size == len(loaded.hashes)
    store.close()


def test_stored_bodies_are_the_canonical_leaves(closed):
    with Ledger.open(closed) as ledger, ledger.rows() as rows:
        for row in rows:
            assert leaf_hash(row.body) == row.leaf_hash and decode_leaf(row.body).seq == row.seq


def test_a_reader_beside_a_writer_sees_one_moment(run, path, tmp_path):
    """The writer goes on while a reader is open: the reader's export is of the tree that it has checked."""
    run.admit(admission(1))
    run.steps()
    run.epoch()
    with Ledger.open(path) as reader:
        size = reader.size
        run.steps(2)
        run.epoch()
        export = reader.export(tmp_path / "export")
    report = verify_export(export, [SIGNER.vkey])
    assert (report.verdict, report.size) == ("FULL", size)
    assert run.ledger.size > size


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.002, 0.011, 0.023, 0.05, 0.08, 0.13])
def test_killed_anywhere_no_reported_charge_is_lost(tmp_path, delay):
    """A writer reports each charge after it returns and is killed at some instant: the ledger has at least those."""
    path = tmp_path / "ledger.db"
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from ledger_runs import *\n"
        "policy = signed_policy(steps=100_000, window_steps=1)\n"
        f"run = Driver(Ledger.create(Path({str(path)!r}), header_spec(policy), SIGNER, now=START))\n"
        "run.admit(admission(1))\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    window = run.charge(1)\n"
        "    print(window.id, flush=True)\n"
        "    run.ledger.settle(window, 1, now=run.tick())\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    time.sleep(delay)
    writer.kill()
    reported = writer.stdout.read().split("\n")[:-1]
    writer.wait()
    with opens(path) as ledger:
        assert ledger.charged_steps >= int(reported[-1] if reported else 0)
        Driver(ledger, now=START + 10**6).ledger.resume(0, None, now=START + 10**6)
