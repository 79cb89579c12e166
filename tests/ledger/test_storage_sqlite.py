"""What only the SQLite store can get wrong: pragmas, REPLACE, the lock file, a full disk, a killed process."""

import gc
import os
import sqlite3
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import sqlalchemy as sa
from storage_backends import SqliteBackend

from ledger.errors import LedgerBusy, LedgerClosed, LedgerCorrupt, StorageFailed
from ledger.log import Ledger
from ledger.storage.fsck import set_unfinished_aside
from ledger.storage.place import Place
from ledger.storage.sql import sqlite
from tests.worlds.attested_ledgers import attested_run
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec


@pytest.fixture
def closed_file(run, path):
    """A whole run, closed on disk."""
    run.whole_run()
    run.ledger.close()
    return SqliteBackend(path.parent)


@pytest.fixture
def attested_file(path):
    """A whole run of which every admission has what was signed, closed on disk."""
    driver = attested_run(path)
    driver.whole_run()
    driver.ledger.close()
    return SqliteBackend(path.parent)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO entry SELECT seq, kind, leaf, x'00', 0 FROM entry WHERE seq = 1",
        "REPLACE INTO entry SELECT * FROM entry WHERE seq = 2",
        "UPDATE OR REPLACE entry SET seq = 2 WHERE seq = 1",
        "REPLACE INTO head VALUES (0, 0, x'', 0, 0)",
        "REPLACE INTO checkpoint SELECT size, x'00' FROM checkpoint",
        "UPDATE OR REPLACE checkpoint SET size = 1",
        "REPLACE INTO meta VALUES ('schema', '9')",
        "REPLACE INTO lease VALUES (0, 'nobody', 0)",
        "REPLACE INTO attestation SELECT seq, x'00' FROM attestation",
        "UPDATE OR REPLACE attestation SET seq = 2 WHERE seq = 1",
        "REPLACE INTO terms SELECT number, x'00' FROM terms",
        "REPLACE INTO terms SELECT 4, data FROM terms WHERE number = 1",
    ],
)
@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_nothing_is_replaced_whatever_the_recursion_of_triggers(attested_file, statement, recursive):
    """Without recursive_triggers, REPLACE removes the old row and fires no DELETE trigger."""
    with attested_file._connection() as connection:
        connection.execute(f"PRAGMA recursive_triggers={recursive}")
        with pytest.raises(attested_file.refused):
            connection.execute(statement)
        connection.rollback()
    attested_file.open().close()


def test_bytes_that_are_no_database_are_corrupt(closed_file):
    closed_file.path.write_bytes(b"not a database" * 1000)
    with pytest.raises(LedgerCorrupt):
        closed_file.open()


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


def test_a_reader_s_connection_takes_no_write(run, path):
    """Whatever its code would do: it holds no lock that would keep a writer out meanwhile."""
    run.ledger.close()
    refusal = pytest.raises(sa.exc.OperationalError, match="readonly")
    with Ledger.open(path) as ledger, ledger._file.store._engine.connect() as connection, refusal:
        connection.exec_driver_sql("UPDATE lease SET fence = fence + 1")


def test_a_disk_that_keeps_no_write_ahead_log_is_refused():
    with pytest.raises(StorageFailed) as found:
        sqlite._engine(Path(":memory:"), read_only=False).connect()
    assert found.value.code == "WAL"


def test_a_second_writer_that_got_past_the_lock_is_fenced(run, path):
    """As on a file system without advisory locks: the older writer finds out before it writes."""
    Path(f"{path}.lock").unlink()
    with Ledger.open(path, SIGNER):
        with pytest.raises(LedgerBusy) as found:
            run.admit(admission(1))
        assert found.value.code == "FENCED"


def test_a_transaction_holds_the_write_lock_from_its_beginning(run, path):
    """B17: a deferred one would take it at its first write, and fail where another has written since its first read."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    with run.ledger._file.store._transaction("appending"), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.close()
    run.admit(admission(1))


def test_disk_full_refuses_the_charge_and_leaves_nothing_half_written(run, path):
    run.admit(admission(1))
    size, root = run.ledger.size, run.ledger.root
    _limit_pages(run.ledger, spare=0)
    with pytest.raises(StorageFailed):
        run.admit(*(admission(n) for n in range(10, 500)))
    with pytest.raises(LedgerClosed):
        run.charge()
    run.ledger.close()
    with Ledger.open(path, SIGNER) as ledger:
        assert (ledger.size, ledger.root) == (size, root)
        Driver(ledger, now=run.now).steps()


def _limit_pages(ledger: Ledger, *, spare: int) -> None:
    with ledger._file.store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages + spare}")


def test_a_killed_writer_loses_nothing_it_was_told_is_durable(tmp_path):
    """The process dies by SIGKILL right after charge() returns: the charge is there, and the lock is free."""
    path = tmp_path / "ledger.db"
    program = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from tests.worlds.ledgers import *\n"
        f"run = Driver(Ledger.create(Path({str(path)!r}), header_spec(), SIGNER, now=START))\n"
        "run.admit(admission(1))\n"
        "run.charge()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], timeout=120)
    assert done.returncode == -9
    with Ledger.open(path, SIGNER) as ledger:
        assert ledger.state.charged == 4 and ledger.state.open_window is not None


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.002, 0.011, 0.023, 0.05, 0.08, 0.13])
def test_killed_anywhere_no_reported_charge_is_lost(tmp_path, delay):
    """A writer reports each charge after it returns and is killed at some instant: the ledger has at least those."""
    path = tmp_path / "ledger.db"
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from tests.worlds.ledgers import *\n"
        "policy = signed_policy(steps=100_000, window_steps=1)\n"
        f"run = Driver(Ledger.create(Path({str(path)!r}), header_spec(policy), SIGNER, now=START))\n"
        "run.admit(admission(1))\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    window = run.charge(1)\n"
        "    print(window.window, flush=True)\n"
        "    run.ledger.settle(window, 1, now=run.tick())\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    time.sleep(delay)
    writer.kill()
    reported = writer.stdout.read().split("\n")[:-1]
    writer.wait()
    with Ledger.open(path, SIGNER) as ledger:
        assert ledger.state.charged >= int(reported[-1] if reported else 0)
        Driver(ledger, now=START + 10**6).ledger.resume(0, None, now=START + 10**6)


def test_an_empty_file_is_set_aside(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_bytes(b"")
    assert set_unfinished_aside(Place.of(path)) == f"{path}.unfinished-1"
    assert not path.exists() and Path(f"{path}.unfinished-1").exists()
    Ledger.create(path, header_spec(), SIGNER, now=START).close()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("found", ["by its last reference", "by the garbage collector"])
def test_a_ledger_that_is_dropped_gives_up_database_and_lock_without_a_warning(path, monkeypatch, found):
    """A warning would come in whatever code the garbage collector interrupts, and be an error where warnings are."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    gc.collect()
    gc.disable()
    try:
        ledger = Ledger.create(path, header_spec(), SIGNER, now=START)
        assert {f"{path}", f"{path}-wal", f"{path}.lock"} <= _open_files()
        kept = [ledger]
        if found == "by the garbage collector":
            kept.append(kept)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del ledger, kept
            if found == "by the garbage collector":
                with pytest.raises(LedgerBusy):
                    Ledger.open(path, SIGNER)
                gc.collect()
        assert not unraisable
        assert not [name for name in _open_files() if name.startswith(str(path))]
        Ledger.open(path, SIGNER).close()
    finally:
        gc.enable()


def _open_files() -> set[str]:
    """Returns the names of the files that this process has open."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(entry))
        except FileNotFoundError:  # that of the listing itself
            continue
    return found
