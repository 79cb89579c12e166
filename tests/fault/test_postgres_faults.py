"""B13, B18 for a ledger on a server: the connection is cut at every message, the server and its processes are killed.

Method: a writer charges window after window, and remembers what was reported to it as charged. A fault strikes: a proxy
between writer and server drops the connection at the n-th message of an append, before, inside or after it, for every n; or
the server, or the one process that serves the writer, gets SIGKILL at a random moment. Then the writer must have a typed
error, and the ledger must open again, whole, with at least every charge that was reported. An append whose commit was cut may
be there or not: both are counted, and both occur.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from ledger.errors import LedgerBusy, StorageFailed
from ledger.log import Ledger
from ledger.storage.fsck import set_unfinished_aside
from ledger.storage.place import Place
from ledger.storage.store import exists
from tests.fault.server_scene import Proxy, Writer
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec
from tests.worlds.postgres import Cluster

TYPED = {"CONNECTION", "COMMIT_UNKNOWN"}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_a_connection_cut_at_every_message_loses_no_charge(server, tmp_path, where):
    schema = f"cut_{where}"
    writer = Writer(f"{server.url()}?schema={schema}", tmp_path)
    outcomes: Counter[str] = Counter()
    message = 0
    while True:
        message += 1
        proxy = Proxy(server.port)
        driver = writer.open(f"{server.url(port=proxy.port)}?schema={schema}")
        proxy.arm(message, where)
        before = writer.reported
        try:
            writer.charge(driver)
        except StorageFailed as error:
            assert error.code in TYPED, error
            outcomes[error.code] += 1
        driver.ledger.close()
        proxy.close()
        charged = writer.reported > before
        extra = writer.check()
        assert extra in (0, 1) and not (extra and charged)
        outcomes["unreported"] += extra
        if not proxy.struck:
            break
    writer.check_all()
    print(f"{where}: {message - 1} cuts in a charge and a settlement, {dict(outcomes)}, under-counts 0")
    assert message > 10 and outcomes["CONNECTION"] >= 8 and outcomes["COMMIT_UNKNOWN"] >= 2
    assert outcomes["unreported"] == (1 if where == "after" else 0)


def cut_creations(server: Cluster, tmp_path: Path, where: str, every: int) -> None:
    """Cuts the connection while a ledger is created; the next start must find the way to a whole ledger by itself."""
    message, outcomes = 1, Counter[str]()
    while True:
        schema, state = f"created_{where}_{every}_{message}", tmp_path / f"{where}-{message}"
        place = Place.of(f"{server.url()}?schema={schema}", state)
        proxy = Proxy(server.port)
        proxy.arm(message, where)
        try:
            through = f"{server.url(port=proxy.port)}?schema={schema}"
            Ledger.create(through, header_spec(), SIGNER, now=START, state=state).close()
            outcomes["created"] += 1
        except StorageFailed as error:
            assert error.code in TYPED, error
            outcomes[error.code] += 1
        proxy.close()
        for _ in range(100):  # until the server has noticed
            with suppress(LedgerBusy):
                outcomes["set aside"] += set_unfinished_aside(place) is not None
                outcomes["whole"] += exists(place)
                (
                    Ledger.open(place, SIGNER) if exists(place) else Ledger.create(place, header_spec(), SIGNER, now=START)
                ).close()
                break
            time.sleep(0.05)
        with Ledger.open(place, SIGNER) as ledger:
            Driver(ledger).admit(admission(1))
        if not proxy.struck:
            break
        message += every
    print(f"{where}: {message} messages of a creation, {dict(outcomes)}")
    assert outcomes["CONNECTION"] > 3


@pytest.mark.one_in(2)
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.slow
def test_a_creation_that_was_cut_is_begun_anew(server, tmp_path, where):
    cut_creations(server, tmp_path, where, every=9)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_a_creation_cut_at_every_message_is_begun_anew(server, tmp_path, where):
    cut_creations(server, tmp_path, where, every=1)


def kill_server(server: Cluster) -> None:
    server.kill()


def kill_process(server: Cluster) -> None:
    """The process of our connection dies; the server ends all others and recovers."""
    for pid in server.backends():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def terminate(server: Cluster) -> None:
    """As an administrator ends a connection."""
    with psycopg.connect(server.url()) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dptrain ledger'")


def strike(server: Cluster, writer: Writer, fault: Callable[[Cluster], None], delay: float) -> int:
    """Strikes once while a writer charges; returns the charges that are there and were not reported."""
    driver = writer.open()
    timer = threading.Timer(delay, fault, args=(server,))
    timer.start()
    try:
        while True:
            writer.charge(driver)
    except StorageFailed as error:
        assert error.code in TYPED, error
    finally:
        timer.join()
        driver.ledger.close()
    if fault is kill_server:
        server.start()
    return writer.check()


def strike_often(server: Cluster, tmp_path: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    writer = Writer(f"{server.url()}?schema=killed_{seed}", tmp_path)
    unreported, faults = 0, [kill_server, kill_process, terminate]
    for turn in range(times):
        extra = strike(server, writer, faults[turn % 3], rng.uniform(0.01, 0.25))
        assert extra in (0, 1)
        unreported += extra
    writer.check_all()
    print(f"{times} kills, {writer.reported} charges, {unreported} of them unreported, under-counts 0")


def test_a_killed_server_loses_no_charge(server, tmp_path):
    strike_often(server, tmp_path, times=6, seed=1)


@pytest.mark.slow
def test_a_server_killed_sixty_times_loses_no_charge(server, tmp_path):
    strike_often(server, tmp_path, times=60, seed=2)


def test_a_lost_connection_is_never_replaced_in_silence(server, tmp_path):
    """A new one would not hold the lock."""
    writer = Writer(f"{server.url()}?schema=lost", tmp_path)
    driver = writer.open()
    terminate(server)
    with pytest.raises(StorageFailed), driver.ledger.rows() as rows:
        list(rows)
    with pytest.raises(StorageFailed):
        writer.charge(driver)
    driver.ledger.close()
    assert writer.check() == 0
