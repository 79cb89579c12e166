"""What only the PostgreSQL store can get wrong: roles, settings of the server, TRUNCATE, locks, and what errors say."""

import sys
import traceback

import psycopg
import pytest
from storage_backends import PostgresBackend

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, StorageFailed
from ledger.log import Ledger
from ledger.storage.sql import postgres
from ledger.storage.sql.schema import TABLES, writer_grants
from ledger.storage.store import create_store
from tests.worlds.attested_ledgers import AttestedDriver, attested_header
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec
from tests.worlds.postgres import Cluster


@pytest.fixture
def backend(cluster, tmp_path):
    made = PostgresBackend(cluster, tmp_path)
    yield made
    made.remove()


def setting(ledger: Ledger, name: str) -> str:
    with ledger._file.store._engine.connect() as connection:
        return connection.exec_driver_sql(f"SHOW {name}").scalar()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("table", TABLES)
def test_no_table_is_truncated(closed, table):
    with pytest.raises(closed.refused):
        closed.execute(f"TRUNCATE {table}")
    with pytest.raises(closed.refused):
        closed.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")
    closed.open().close()


def test_inserting_over_a_conflict_changes_nothing(closed):
    over = "INSERT INTO entry SELECT seq, kind, leaf, x'00', 0 FROM entry ON CONFLICT"
    closed.execute(f"{over} DO NOTHING")
    with pytest.raises(closed.refused):
        closed.execute(f"{over} (seq) DO UPDATE SET body = excluded.body")
    closed.open().close()


def test_a_reader_cannot_write_and_needs_no_state_directory(closed):
    with Ledger.open(f"{closed.cluster.url()}?schema={closed.place.schema}") as ledger:
        assert ledger.finished and setting(ledger, "transaction_read_only") == "on"
    with pytest.raises(LedgerError) as found:
        Ledger.open(f"{closed.cluster.url()}?schema={closed.place.schema}", SIGNER)
    assert found.value.code == "STATE"
    with pytest.raises(LedgerError) as found:
        Ledger.create(f"{closed.cluster.url()}?schema=other", header_spec(), SIGNER, now=START)
    assert found.value.code == "STATE"


def test_a_state_directory_of_another_or_no_run_is_refused(closed, tmp_path):
    url = f"{closed.cluster.url()}?schema={closed.place.schema}"
    with pytest.raises(LedgerError) as found:
        Ledger.open(url, SIGNER, state=tmp_path / "mistyped")
    assert found.value.code == "HIGHWATER_MISSING"


def test_settings_are_ours_whatever_the_role_and_the_url_say(begun, backend):
    begun.ledger.close()
    backend.cluster.execute("ALTER ROLE tester SET synchronous_commit = off")
    try:
        url = f"{backend.cluster.url()}?schema={backend.place.schema}&options=-c%20synchronous_commit%3Doff"
        with Ledger.open(url, SIGNER, state=backend.place.directory) as ledger:
            names = ("synchronous_commit", "lock_timeout", "statement_timeout", "application_name", "tcp_keepalives_idle")
            assert [setting(ledger, name) for name in names] == ["on", "10s", "2min", "dptrain ledger", "10"]
            Driver(ledger, now=begun.now).admit(admission(1))
    finally:
        backend.cluster.execute("ALTER ROLE tester RESET synchronous_commit")


def test_a_server_that_may_forget_is_refused(tmp_path):
    forgetful = Cluster({"fsync": "off"})
    try:
        with pytest.raises(StorageFailed) as found:
            Ledger.create(forgetful.url(), header_spec(), SIGNER, now=START, state=tmp_path)
        assert found.value.code == "NOT_DURABLE" and "fsync" in found.value.sentence
    finally:
        forgetful.stop()


def test_a_role_with_few_rights_writes_a_whole_run_and_cannot_touch_the_past(backend, tmp_path):
    create_store(backend.place).close()
    schema = backend.place.schema
    backend.execute(f"CREATE ROLE w_{schema} LOGIN PASSWORD 'w'", *writer_grants(schema, f"w_{schema}"))
    url = f"{backend.cluster.url(user=f'w_{schema}:w')}?schema={schema}"
    try:
        with Ledger.create(url, attested_header(), SIGNER, now=START, state=tmp_path / "w") as ledger:
            AttestedDriver(ledger).whole_run()
            ledger.export(tmp_path / "export")
        assert (tmp_path / "export" / "attestations").is_dir()
        with Ledger.open(url, SIGNER, state=tmp_path / "w") as ledger:
            assert ledger.finished
        for statement in (
            "DELETE FROM entry",
            "UPDATE entry SET body = NULL",
            "TRUNCATE entry",
            "DELETE FROM attestation",
            "UPDATE attestation SET data = ''",
            "UPDATE terms SET data = NULL",
            "UPDATE head SET size = 0",
            "UPDATE head SET pruned_before = 1",
            "UPDATE meta SET value = '9'",
            "DROP TABLE entry",
            "DROP TRIGGER entry_dense ON entry",
            "ALTER TABLE entry DISABLE TRIGGER ALL",
            "CREATE TABLE more (id int)",
            "SET session_replication_role = replica",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                psycopg.connect(url.partition("?")[0], options=f"-c search_path={schema}").execute(statement)
    finally:
        backend.execute(f"DROP OWNED BY w_{schema}", f"DROP ROLE w_{schema}")


def test_a_role_that_may_not_create_is_told_so(backend, tmp_path):
    backend.cluster.execute("CREATE ROLE guest LOGIN PASSWORD 'g'")
    try:
        url = f"{backend.cluster.url(user='guest:g')}?schema={backend.place.schema}"
        with pytest.raises(StorageFailed) as found:
            Ledger.create(url, header_spec(), SIGNER, now=START, state=tmp_path)
        assert found.value.code == "PRIVILEGE"
    finally:
        backend.cluster.execute("DROP ROLE guest")


def test_a_lock_held_elsewhere_is_waited_for_and_then_named(begun, backend, monkeypatch):
    begun.ledger.close()
    monkeypatch.setitem(postgres._SETTINGS, "lock_timeout", "200ms")
    with backend._connection() as other, backend.open() as ledger:
        other.execute("SELECT * FROM head FOR UPDATE")
        with pytest.raises(LedgerBusy) as found:
            Driver(ledger).admit(admission(1))
        assert found.value.code == "LOCKED"
    with backend.open() as ledger:
        assert ledger.size == 1


def test_nobody_takes_over_in_the_middle_of_an_append(begun, backend):
    """From the comparison of the fence to the commit, the lease is held."""
    store = begun.ledger._file.store
    with store._transaction("appending") as connection:
        store._check_fence(connection, 1)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            backend.execute("SET lock_timeout = '200ms'", "UPDATE lease SET fence = fence + 1")
    begun.admit(admission(1))


def test_two_ledgers_live_in_one_database(begun, cluster, tmp_path):
    other = PostgresBackend(cluster, tmp_path / "other")
    with Ledger.create(other.place, header_spec(run_id=b"r" * 16), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(7))
        begun.admit(admission(1))
        assert (ledger.size, begun.ledger.size) == (2, 2)
    other.remove()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda url: url.replace("tester:", "tester:wrong"), "CONNECTION"),
        (lambda url: url.replace("/postgres?", "/nowhere?"), "CONNECTION"),
        (lambda url: url.replace("127.0.0.1:", "127.0.0.1:1"), "CONNECTION"),
        (lambda url: url.replace("@127.0.0.1", "%00@127.0.0.1"), "URL"),
        (lambda url: url + "&no_such_key=1", "URL"),
        (lambda url: url.replace("@127.0.0.1", "@[127.0.0.1"), "URL"),
    ],
)
def test_what_cannot_be_reached_is_named_without_the_password(backend, tmp_path, change, code):
    url = change(f"{backend.cluster.url()}?schema={backend.place.schema}")
    with pytest.raises(LedgerError) as found:
        Ledger.create(url, header_spec(), SIGNER, now=START, state=tmp_path / "state")
    assert found.value.code == code
    assert backend.cluster.password not in "".join(traceback.format_exception(found.value))


def test_without_the_driver_the_extra_is_named(backend, monkeypatch):
    monkeypatch.setitem(sys.modules, "ledger.storage.sql.postgres", None)
    with pytest.raises(StorageFailed) as found:
        Ledger.open(backend.place)
    assert found.value.code == "DRIVER" and "dptrain[postgres]" in found.value.sentence


def test_an_empty_ledger_made_for_a_writer_is_taken_and_a_begun_one_is_not(begun, backend):
    begun.ledger.close()
    backend.place.side(".highwater").unlink()
    with pytest.raises(LedgerError) as found:
        Ledger.create(backend.place, header_spec(), SIGNER, now=START)
    assert found.value.code == "EXISTS"


def test_a_switched_off_trigger_is_noticed_by_the_next_append(begun, backend):
    backend.execute("ALTER TABLE entry DISABLE TRIGGER entry_dense")
    with pytest.raises(LedgerCorrupt) as found:
        begun.admit(admission(1))
    assert found.value.code == "HEAD"
