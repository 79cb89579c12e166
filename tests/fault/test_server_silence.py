"""B13, B18: a server that acknowledges and does not answer is given up in bounded time, and nothing is under-counted.

Method: a proxy between writer and server goes silent at the n-th message of a charge and a settlement: it takes everything
from both ends, so no time-out of TCP ever strikes, and hands nothing on. The n-th message itself is swallowed, or reaches the
server and is not answered. Then the writer must have a typed error within the limit, the handle must refuse everything, and
the ledger must open again with at least every charge that was reported; a commit that was not answered is there or is not.
"""

import itertools
import time
from collections import Counter
from types import SimpleNamespace

import psycopg
import pytest

from ledger.errors import LedgerBusy, LedgerClosed, StorageFailed
from ledger.log import Ledger
from ledger.storage.sql import postgres
from ledger.storage.sql.postgres import Connection
from tests.fault.server_scene import Proxy, Writer
from tests.worlds.ledgers import SIGNER

LIMIT = 0.4
SLACK = 5.0
"""What a busy machine may add."""


@pytest.fixture
def short(monkeypatch):
    """Silence is found out sooner than by a run."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(postgres, "SILENT_AFTER_SECONDS", seconds)

    return set_to


def silenced(server, tmp_path, short, where: str, every: int) -> None:
    schema = f"silent_{where}_{every}"
    writer = Writer(f"{server.url()}?schema={schema}", tmp_path)
    outcomes: Counter[str] = Counter()
    message, charged = 1, False
    while True:
        proxy = Proxy(server.port)
        driver = writer.open(f"{server.url(port=proxy.port)}?schema={schema}")
        proxy.arm(message, where)
        before, started = writer.reported, time.monotonic()
        short(LIMIT)
        try:
            writer.charge(driver)
        except StorageFailed as error:
            assert error.code in {"CONNECTION", "COMMIT_UNKNOWN"} and "did not answer" in error.sentence, error
            assert proxy.struck and LIMIT <= time.monotonic() - started < LIMIT + SLACK
            outcomes[error.code] += 1
            with pytest.raises(LedgerClosed):
                driver.charge(1)
        short(postgres.STATEMENT_TIMEOUT_SECONDS)
        driver.ledger.close()
        if not proxy.struck:
            break
        with pytest.raises(LedgerBusy):  # the server cannot know that its writer has given up
            Ledger.open(writer.url, SIGNER, state=writer.state)
        proxy.close()
        charged, extra = writer.reported > before, writer.check()
        assert extra in (0, 1) and not (extra and charged)
        outcomes["unreported"] += extra
        message += every
    proxy.close()
    writer.check_all()
    print(f"{where}: {message - 1} silences in a charge and a settlement, {dict(outcomes)}, under-counts 0")
    assert outcomes["CONNECTION"] > 10 // every and outcomes["COMMIT_UNKNOWN"] >= 1
    assert outcomes["unreported"] == (where == "unanswered")


@pytest.mark.one_in(99)
@pytest.mark.parametrize("where", ["unanswered", "swallowed"])
def test_a_server_that_goes_silent_is_given_up_in_bounded_time(server, tmp_path, short, where):
    silenced(server, tmp_path, short, where, every=3)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["swallowed", "unanswered"])
def test_silence_at_every_message_loses_no_charge(server, tmp_path, short, where):
    silenced(server, tmp_path, short, where, every=1)


@pytest.mark.slow
def test_a_silent_server_is_given_up_while_it_is_connected_to_and_read(server, tmp_path, short):
    writer = Writer(f"{server.url()}?schema=read_silent", tmp_path)
    short(LIMIT)
    for message in (3, 20, 40):
        proxy = Proxy(server.port)
        proxy.arm(message, "unanswered")
        url, started = f"{server.url(port=proxy.port)}?schema=read_silent&connect_timeout=2", time.monotonic()
        with pytest.raises(StorageFailed) as found:
            Ledger.open(url, SIGNER, state=tmp_path)
        assert found.value.code == "CONNECTION" and time.monotonic() - started < 2 + LIMIT + SLACK
        proxy.close()
    assert writer.check() == 0


def test_a_commit_that_waits_for_a_lost_standby_may_have_happened(server, tmp_path, short):
    """The server's own limit on statements does not apply to a commit."""
    writer = Writer(f"{server.url()}?schema=standby", tmp_path)
    driver = writer.open()
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'gone'")
    server.execute("SELECT pg_reload_conf()")
    short(LIMIT)
    try:
        with pytest.raises(StorageFailed) as found:
            for _ in range(1000):  # until the server has read its settings again
                writer.charge(driver)
        assert found.value.code == "COMMIT_UNKNOWN"
        driver.ledger.close()
    finally:
        server.execute("ALTER SYSTEM RESET synchronous_standby_names")
        server.execute("SELECT pg_reload_conf()")
    short(postgres.STATEMENT_TIMEOUT_SECONDS)
    assert writer.check() in (0, 1)  # the commit of a settlement pays for nothing
    writer.check_all()


def test_an_answer_that_is_there_is_read_however_late(monkeypatch):
    """A run that was suspended goes on; one that looks and finds nothing gives up."""
    given_up = psycopg.OperationalError("given up")
    connection = SimpleNamespace(_give_up=lambda: given_up)

    def exchange():
        return "an answer" if (yield "to be read") else (yield "still to be read")

    def late():
        waiting = Connection._bounded(connection, exchange())
        assert next(waiting) == "to be read"
        return waiting

    clock = itertools.count(step=1_000_000)
    monkeypatch.setattr(postgres.time, "monotonic", lambda: next(clock))
    with pytest.raises(StopIteration) as end:
        late().send(1)
    assert end.value.value == "an answer"
    with pytest.raises(psycopg.OperationalError) as found:
        late().send(0)
    assert found.value is given_up
    monkeypatch.setattr(postgres.time, "monotonic", lambda: 0.0)
    assert late().send(0) == "still to be read"
