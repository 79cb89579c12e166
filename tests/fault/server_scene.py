"""What faults of a server strike: a run that remembers what was reported to it, and the way between it and the server."""

import socket
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from ledger.errors import LedgerBusy, StorageFailed
from ledger.log import Ledger
from ledger.storage import fsck
from ledger.storage.store import open_store
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec, signed_policy


class Proxy:
    """Forwards one connection to the server, and cuts it, or goes silent, where it is told to."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.messages = 0
        self.struck = False
        self._ends: list[socket.socket] = []
        self._silent = False
        self._strike: tuple[int, str] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, message: int, where: str) -> None:
        """Strikes at the n-th message from now on that the writer sends.

        Args:
            message: n, from 1.
            where: ``before``, ``inside`` or ``after`` it, to cut the connection there; or, to go silent, ``swallowed``,
                or ``unanswered``, where it still comes through: all that comes from both ends is taken, nothing handed on.
        """
        self.messages, self._strike = 0, (message, where)

    def close(self) -> None:
        """Ends every connection, as far as it is still there."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._ends += [client, server]
                for source, target, counted in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._forward, args=(source, target, counted), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.messages += counted
                if counted and not self.struck and self._strike is not None and self.messages == self._strike[0]:
                    self.struck = True
                    if self._strike[1] in ("before", "inside", "after"):
                        self._cut(source, target, data, self._strike[1])
                        return
                    self._silent = True
                    if self._strike[1] == "unanswered":
                        target.sendall(data)
                elif not self._silent:
                    target.sendall(data)
        if not self._silent:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _cut(self, client: socket.socket, server: socket.socket, data: bytes, where: str) -> None:
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
            assert ledger.state.charged >= self.reported, "a charge was reported and is gone"
            extra = ledger.state.charged - self.reported
            self.reported = ledger.state.charged
        return extra

    def check_all(self) -> None:
        """Recomputes every epsilon from the bodies of the leaves."""
        with self.open().ledger as ledger:
            ledger.close_epoch(ledger.state.position, bytes(32), isolation="held", now=self.tick())
        with closing(open_store(ledger.place, read_only=True)) as store:
            assert fsck.load(store, recompute=True).frontier.size == ledger.size
