"""A database that is deleted, renamed, replaced or overwritten while it is open: no charge goes where nobody finds it."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from storage_backends import PostgresBackend

from ledger.errors import LedgerBusy, LedgerClosed, LedgerReplaced
from ledger.log import Ledger
from ledger.storage import highwater
from ledger.storage.sql.schema import TABLES, postgres_statements
from ledger.storage.sql.sqlite import SqliteStore
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec


@pytest.fixture
def running(run: Driver) -> Driver:
    """A run of one settled window; nothing of it is in the file itself yet, all in its log."""
    run.admit(admission(1), admission(2, "sensitive"))
    run.steps()
    return run


def other_file(path: Path) -> None:
    path.rename(path.with_name("mine.db"))
    with Ledger.create(path.with_name("theirs.db"), header_spec(run_id=b"r" * 16), SIGNER, now=START):
        pass
    path.with_name("theirs.db").rename(path)


def same_bytes(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    os.replace(path.with_name("copy.db"), path)


def gone(suffix: str) -> Callable[[Path], None]:
    return lambda path: Path(f"{path}{suffix}").unlink()


LOST = {
    "deleted": (gone(""), "UNLINKED"),
    "renamed": (lambda path: path.rename(path.with_name("elsewhere.db")), "UNLINKED"),
    "replaced": (other_file, "REPLACED"),
    "replaced by its own copy": (same_bytes, "REPLACED"),
    "without its log": (gone("-wal"), "UNLINKED"),
    "without the index of its log": (gone("-shm"), "UNLINKED"),
}


def charged(run: Driver) -> None:
    run.window = run.charge()


WRITES = {
    "charge": lambda run: run.charge(),
    "settle": lambda run: run.ledger.settle(run.window, 4, now=run.tick()),
    "withdraw": lambda run: run.withdraw(1),
    "epoch": lambda run: run.epoch(),
    "finish": lambda run: run.ledger.finish(now=run.tick()),
    "resume": lambda run: run.ledger.resume(4, run.ledger.pin(), now=run.tick()),
    "sign a pin": lambda run: run.ledger.sign_pinned("dptrain.test/1", []),
    "export": lambda run: run.ledger.export(run.ledger.place.side(".export")),
    "ask": lambda run: run.ledger.require_in_place(),
}
FIRST = {"settle": charged, "finish": lambda run: run.epoch(), "export": lambda run: run.epoch()}
"""What must have happened before."""


def lost(run: Driver, write: Callable[[Driver], object] = WRITES["ask"]) -> LedgerReplaced:
    with pytest.raises(LedgerReplaced) as caught:
        write(run)
    with pytest.raises(LedgerClosed):
        run.withdraw(77)
    run.ledger.require_in_place()  # said once; what closes the handle later does not say it again
    return caught.value


def put_back(run: Driver, path: Path) -> Ledger:
    """Does what the error says, and opens the ledger again."""
    run.ledger.close()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.with_name("ledger.db.rescued-1").rename(path)
    return Ledger.open(path, SIGNER)


@pytest.mark.parametrize("how", LOST)
def test_a_lost_file_is_seen_and_all_of_it_is_copied_beside(running, path, how):
    """Guarantee: none returns for leaves that went into a file without a name."""
    size, root = running.ledger.size, running.ledger.root
    attack, code = LOST[how]
    attack(path)
    error = lost(running, WRITES["charge"])
    assert error.code == code
    for told in (f"{size} leaves", "4 steps charged", "settled up to step 4", "ledger.db.rescued-1", "resume"):
        assert told in error.sentence
    with put_back(running, path) as ledger:
        assert (ledger.size, ledger.root) == (size, root)
        ledger.resume(4, ledger.pin(), now=running.tick())
        Driver(ledger, now=running.now, streams=50).steps()
    assert sorted(item.name for item in path.parent.glob("*rescued*")) == []


@pytest.mark.parametrize("what", WRITES)
def test_whatever_writes_or_ends_a_run_asks(running, path, what):
    FIRST.get(what, lambda _: None)(running)
    path.unlink()
    assert lost(running, WRITES[what]).code == "UNLINKED"


def test_a_run_is_told_where_the_directory_was_renamed_or_removed(running, path):
    moved = path.parent.rename(path.parent.with_name("moved"))
    error = lost(running)
    assert error.code == "UNLINKED" and "If ledger.db was renamed, give it its name again" in error.sentence
    running.ledger.close()
    moved.rename(path.parent)
    with Ledger.open(path, SIGNER) as ledger:
        assert ledger.state.charged == 4, "nothing is lost by that"


def test_a_commit_into_a_file_that_lost_its_name_meanwhile_is_no_charge(running, path):
    """Between the question and the commit: asked again, before anybody is told that it was charged."""
    charged(running)
    mark, size = highwater.read_bytes(path), running.ledger.size
    engine = running.ledger._file.store._engine
    sa.event.listen(engine, "commit", lambda _: path.unlink(missing_ok=True))
    lost(running, lambda run: run.ledger.settle(run.window, 4, now=run.tick()))
    assert highwater.read_bytes(path) == mark, "the signer commits to nothing that may be lost"
    with put_back(running, path) as ledger:
        assert ledger.size == size + 1, "what was written is in the copy"


def test_an_older_copy_written_over_the_file_is_seen(run, path):
    """`cp yesterday.db ledger.db`: device and inode stay."""
    run.admit(admission(1))
    run.ledger.close()
    shutil.copy(path, path.with_name("yesterday.db"))
    with Ledger.open(path, SIGNER) as ledger:
        again = Driver(ledger, now=run.now)
        again.admit(*(admission(n) for n in range(2, 60)))
        again.steps(2)
    with Ledger.open(path, SIGNER) as ledger:
        again = Driver(ledger, now=again.now, streams=10)
        ledger.resume(8, ledger.pin(), now=again.tick())
        again.steps()
        size, root, inode = ledger.size, ledger.root, path.stat().st_ino
        shutil.copy(path.with_name("yesterday.db"), path)
        assert path.stat().st_ino == inode
        error = lost(again, WRITES["charge"])
        assert error.code == "OVERWRITTEN"
        with put_back(again, path) as ledger:
            assert (ledger.size, ledger.root) == (size, root), "what this process still had in memory was enough"


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("kept", [0, 4096])
def test_a_truncated_file_is_seen(run, path, suffix, kept):
    run.admit(*(admission(n) for n in range(1, 60)))
    run.ledger.close()
    with Ledger.open(path, SIGNER) as ledger:
        again = Driver(ledger, now=run.now)
        again.steps()
        os.truncate(f"{path}{suffix}", kept)
        error = lost(again, WRITES["charge"])
        assert error.code == "OVERWRITTEN" and (not suffix or "this writer left" in error.sentence)


def test_pages_that_hold_no_leaf_are_looked_at_too(run, path):
    """An index of another moment would be found by nobody who reads the leaves, and spoil what is appended."""
    run.admit(*(admission(n) for n in range(1, 60)))
    run.ledger.close()
    with closing(sqlite3.connect(path)) as other:
        (page,) = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_meta_1'").fetchone()
        (size,) = other.execute("PRAGMA page_size").fetchone()
    with Ledger.open(path, SIGNER) as ledger:
        again = Driver(ledger, now=run.now)
        again.charge()
        with open(path, "r+b") as file:
            file.seek((page - 1) * size)
            data = bytearray(file.read(size))
            data[-4] ^= 1
            file.seek((page - 1) * size)
            file.write(data)
        assert lost(again, lambda run: run.withdraw(5)).code == "OVERWRITTEN"


def test_one_changed_byte_of_an_old_leaf_is_seen_at_the_next_charge(run, path):
    run.admit(*(admission(n) for n in range(1, 60)))
    run.ledger.close()
    with Ledger.open(path, SIGNER) as ledger:
        again = Driver(ledger, now=run.now)
        again.steps()
        data = path.read_bytes()
        place = data.index(admission(1).anchor)
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(bytes([data[place] ^ 1]))
        assert lost(again, WRITES["charge"]).code == "OVERWRITTEN"


@pytest.mark.parametrize(
    "touch",
    [
        lambda path: os.utime(path),
        lambda path: path.chmod(0o600),
        lambda path: os.utime(f"{path}-wal"),
        lambda path: os.link(path, path.with_name("link.db")),
        lambda path: _sql(path, "PRAGMA wal_checkpoint(PASSIVE)"),
        lambda path: _backup(path),
    ],
    ids=["touched", "mode changed", "log touched", "linked", "checkpointed by another", "backed up"],
)
def test_what_leaves_every_byte_of_it_stops_no_run(running, path, touch):
    touch(path)
    running.steps(2)
    assert list(path.parent.glob("*rescued*")) == []
    running.ledger.close()
    with Ledger.open(path, SIGNER) as ledger:
        assert ledger.state.charged == 12


def _sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute(statement).fetchall()


def _backup(path: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(path.with_name("backup.db"))) as target:
        source.backup(target)


def test_readers_come_and_go_beside_a_run_and_nothing_is_read_again_for_them(running, path, monkeypatch):
    monkeypatch.setattr(SqliteStore, "_copy", lambda _: pytest.fail("read again"))
    for _ in range(3):
        with Ledger.open(path) as reader:
            assert reader.size == running.ledger.size
        running.withdraw(running.now)


def test_another_writer_is_told_apart_from_a_lost_file(running, path):
    _sql_edit(path, "UPDATE lease SET fence = fence + 1")
    with pytest.raises(LedgerBusy) as caught:
        running.charge()
    assert caught.value.code == "FENCED"


def _sql_edit(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(statement)


def test_a_program_that_changes_its_directory_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Ledger.create("ledger.db", header_spec(), SIGNER, now=START) as ledger:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        ledger.require_in_place()


# --- the same on a server ----------------------------------------------------


@pytest.fixture
def server(cluster, tmp_path):
    made = PostgresBackend(cluster, tmp_path)
    yield made
    made.remove()


@pytest.fixture
def served(server):
    with Ledger.create(server.place, header_spec(), SIGNER, now=START) as ledger:
        made = Driver(ledger)
        made.admit(admission(1), admission(2, "sensitive"))
        made.steps()
        yield made


def restored(server: PostgresBackend) -> None:
    """A dump of the schema is loaded again, under its name, while the run goes on: every row is there, in other tables."""
    schema = server.place.schema
    old = f"{schema}_old"
    server.cluster.execute(f"ALTER SCHEMA {schema} RENAME TO {old}")
    server.cluster.execute(f"CREATE SCHEMA {schema}")
    for statement in postgres_statements(schema):
        server.cluster.execute(statement)
    server.edit(*(f"INSERT INTO {name} TABLE {old}.{name}" for name in TABLES))


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize(
    ("how", "code"), [("dropped", "UNLINKED"), ("renamed", "UNLINKED"), ("one table", "UNLINKED"), ("restored", "REPLACED")]
)
@pytest.mark.one_in(6)
def test_a_schema_that_is_gone_or_another_is_seen_by_all_that_writes(server, served, how, code, what):
    FIRST.get(what, lambda _: None)(served)
    schema, size, steps = server.place.schema, served.ledger.size, served.ledger.state.charged
    if how == "restored":
        restored(server)
    else:
        server.cluster.execute(
            {
                "dropped": f"DROP SCHEMA {schema} CASCADE",
                "renamed": f"ALTER SCHEMA {schema} RENAME TO {schema}_old",
                "one table": f"DROP TABLE {schema}.checkpoint CASCADE",
            }[how]
        )
    error = lost(served, WRITES[what])
    assert error.code == code and f"{size} leaves, {steps} steps charged, settled up to step 4" in error.sentence
    if how in ("renamed", "restored"):
        assert f"ALTER SCHEMA {schema}_old RENAME TO {schema}" in error.sentence
        served.ledger.close()
        server.cluster.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        server.cluster.execute(f"ALTER SCHEMA {schema}_old RENAME TO {schema}")
        with server.open() as ledger:
            assert ledger.size == size
    elif how == "dropped":
        assert "the server's own archive" in error.sentence


def test_rows_of_a_backup_put_back_while_the_run_goes_on_are_an_older_copy(server, served):
    """Table by table, so that every name stays: head and lease tell."""
    saved = server.save()
    served.withdraw(1)
    server.restore(saved)
    error = lost(served, WRITES["charge"])
    assert error.code == "OVERWRITTEN" and "an older copy was put in its place" in error.sentence


def test_a_backup_that_another_writer_brought_to_the_same_size_is_seen(server, served):
    saved = server.save()
    served.withdraw(1)
    server.restore(saved)
    server.edit("UPDATE head SET size = size + 1")
    with pytest.raises(LedgerBusy) as caught:
        served.charge()
    assert caught.value.code == "HEAD_MOVED"
