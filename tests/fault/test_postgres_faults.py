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
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from ledger.errors import LedgerBusy, StorageFailed
from ledger.log import Ledger
from ledger.storage import fsck
from ledger.storage.opening import exists, open_store, set_unfinished_aside
from ledger.storage.place import Place
from tests.ledger.ledger_runs import SIGNER, START, Driver, admission, header_spec, signed_policy
from tests.ledger.pg_cluster import Cluster, require_server

TYPED = {"CONNECTION", "COMMIT_UNKNOWN"}


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    require_server()
    cluster = Cluster()
    yield cluster
    cluster.stop()


class Proxy:
    """Forwards one connection to the server, and cuts it where it is told to."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.messages = 0
        self.struck = False
        self._cut: tuple[int, str] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, message: int, where: str) -> None:
        """Cuts at the n-th message from now on that the writer sends: before it, inside it, or after it."""
        self.messages, self._cut = 0, (message, where)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                for source, target, counted in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._forward, args=(source, target, counted), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if counted:
                    self.messages += 1
                    if self._cut is not None and self.messages == self._cut[0]:
                        self._strike(source, target, data, self._cut[1])
                        return
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _strike(self, client: socket.socket, server: socket.socket, data: bytes, where: str) -> None:
        self.struck = True
        client.shutdown(socket.SHUT_RDWR)  # first, so that no answer comes through
        server.sendall({"before": b"", "inside": data[: len(data) // 2], "after": data}[where])
        server.shutdown(socket.SHUT_WR)


class Writer:
    """A run that is struck again and again, and what was reported to it."""

    def __init__(self, url: str, state: Path) -> None:
        self.url, self.state, self.now = url, state, START
        self.reported = 0
        policy = signed_policy(steps=100_000, redo_steps=100_000, window_steps=1)
        with Ledger.create(url, header_spec(policy), SIGNER, now=START, state=state) as ledger:
            Driver(ledger, now=self.tick()).admit(admission(1))

    def tick(self) -> int:
        self.now += 10
        return self.now

    def open(self, url: str | None = None) -> Driver:
        """Opens the ledger, waiting until the server has noticed that the writer before is gone."""
        deadline = time.monotonic() + 30
        while True:
            try:
                ledger = Ledger.open(url or self.url, SIGNER, state=self.state)
                break
            except (LedgerBusy, StorageFailed):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        if ledger.state.windows:
            ledger.resume(0, None, now=self.tick())
        return Driver(ledger, now=self.tick())

    def charge(self, driver: Driver) -> None:
        window = driver.charge(1)
        self.reported += 1
        driver.ledger.settle(window, 1, now=driver.tick())
        self.now = driver.now

    def check(self) -> int:
        """Asserts that no reported charge is missing; returns the charges that are there and were not reported."""
        with self.open().ledger as ledger:
            assert ledger.charged_steps >= self.reported, "a charge was reported and is gone"
            extra = ledger.charged_steps - self.reported
            self.reported = ledger.charged_steps
        return extra

    def check_all(self) -> None:
        """Recomputes every epsilon from the bodies of the leaves."""
        with self.open().ledger as ledger:
            ledger.close_epoch(ledger.state.position, bytes(32), now=self.tick())
        with closing(open_store(ledger.place, read_only=True)) as store:
            assert fsck.load(store, recompute=True).frontier.size == ledger.size


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


@pytest.mark.parametrize("where", ["before", "after"])
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
