"""One-shot writers of a ledger, to be traced and struck: ``python -m tests.fault.one_shot SOCKET``.

Python makes thousands of system calls before it is ready, so a writer is forked from a process that has imported everything
and lived each life once. It says its process number, waits to be let go on, which is the marker, and then makes nothing but
its own calls. What it was told is durable it reports over the socket (`Report`), one JSON object a line, and at last how it
ended: ``done``, or the typed error; an error without a type ends it with status 70.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from ledger.budget.log import BudgetLog
from ledger.errors import LedgerBehind, LedgerClosed, LedgerError
from ledger.leaves import Charge
from ledger.log import Ledger
from ledger.storage.fsck import set_unfinished_aside
from ledger.storage.place import Place
from ledger.storage.sql import turns
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission, attested_header
from tests.worlds.budgets import ANNA, created
from tests.worlds.ledgers import SIGNER, START, Driver
from tests.worlds.retained_ledgers import ready_to_prune

ROOM = 1 << 16
"""Bytes that a budget's log gets ahead here: less than in use, so that its states can be told one by one."""

_PR_SET_PTRACER = 0x59616D61
_libc = ctypes.CDLL(None, use_errno=True)

Report = Callable[[dict], None]


class NotRefused(AssertionError):
    """A handle went on after a failed write."""


def create(directory: Path, report: Report) -> None:
    """A ledger is created, two contributions enter, a window is paid for and settled."""
    with Ledger.create(directory / "ledger.db", attested_header(), SIGNER, now=START) as ledger:
        run = Reporting(ledger, report)
        run.each(lambda: run.admit(attested_admission(1), attested_admission(2, "sensitive")), run.steps)


def go_on(directory: Path, report: Report) -> None:
    """A ledger is opened and resumed, one contribution enters, two windows run, one leaves, an epoch is closed."""
    with Ledger.open(directory / "ledger.db", SIGNER) as ledger:
        run = Reporting(ledger, report, now=ledger.state.last_time + 100)
        fresh = 100 + len(ledger.state.contributions)
        run.each(
            lambda: ledger.resume(0, None, now=run.tick()),
            lambda: run.admit(attested_admission(fresh)),
            run.steps,
            lambda: run.withdraw(fresh),
            run.steps,
            run.epoch,
        )


def export(directory: Path, report: Report) -> None:
    """A ledger is opened, its last leaves are signed, and it is exported."""
    with Ledger.open(directory / "ledger.db", SIGNER) as ledger:
        ledger.export(directory / "export")
        report(_facts(ledger))


def prune(directory: Path, report: Report) -> None:
    """A ledger is opened, and what its auditors vouch for is pruned."""
    with Ledger.open(directory / "ledger.db", SIGNER) as ledger:
        report(_facts(ledger))
        ledger.prune()
        report(_facts(ledger) | {"gone": True})


def drop_hashes(directory: Path, report: Report) -> None:
    """A pruned ledger is opened, and the hashes of what was pruned long ago go."""
    with Ledger.open(directory / "ledger.db", SIGNER) as ledger:
        report(_facts(ledger))
        ledger.drop_hashes()
        report(_facts(ledger) | {"gone": True})


def pay(directory: Path, report: Report) -> None:
    """A budget log is opened, and releases are reserved, settled at once and settled later; an epoch is closed."""
    with BudgetLog.open(directory / "budget.db") as log:
        acts = (
            lambda: log.reserve(ANNA, "token", 3, now=START),
            lambda: log.commit(1, 1, now=START),
            lambda: log.settle_later(log.reserve(ANNA, "token", 4, now=START), 2, now=START),
            lambda: log.reserve(ANNA, "token", 1, now=START),
            lambda: log.close_epoch(SIGNER, now=START),
            lambda: log.settle_later(log.reserve(ANNA, "token", 2, now=START), 0, now=START),
        )
        for act in acts:
            try:
                act()
            except LedgerError as error:
                # Where the signer's own memory cannot be read, no epoch is closed, and no more.
                if (type(error), error.code) != (LedgerBehind, "HIGHWATER"):
                    _must_refuse(log)
                raise
            report({"size": log.size, "root": log.root.hex()})


def _must_refuse(log: BudgetLog) -> None:
    try:
        log.reserve(ANNA, "token", 1, now=START)
    except LedgerClosed:
        return
    raise NotRefused("a handle under which a write failed paid again")


LIVES: dict[str, Callable[[Path, Report], None]] = {"create": create, "go_on": go_on, "export": export}
RETAINING: dict[str, Callable[[Path, Report], None]] = {"prune": prune, "drop_hashes": drop_hashes}
PAYING: dict[str, Callable[[Path, Report], None]] = {"pay": pay}


def after(directory: Path, report: Report) -> None:
    """What an operator does after a fault: sets an unfinished ledger aside, and goes on."""
    place = Place.of(directory / "ledger.db")
    if set_unfinished_aside(place) or not (directory / "ledger.db").exists():
        create(directory, report)
    go_on(directory, report)


class Reporting(AttestedDriver):
    """A driver that reports a charge as soon as it returns, before it is settled."""

    def __init__(self, ledger: Ledger, report: Report, now: int = START) -> None:
        super().__init__(ledger, now=now)
        self.report = report
        report(_facts(ledger))

    def charge(self, n_steps: int = 4) -> Charge:
        window = super().charge(n_steps)
        self.report(_facts(self.ledger))
        return window

    def each(self, *steps: Callable[[], object]) -> None:
        """Takes steps, reporting after each."""
        for step in steps:
            try:
                step()
            except LedgerError:
                _must_be_refused(self)
                raise
            self.report(_facts(self.ledger))


def _must_be_refused(run: Driver) -> None:
    try:
        run.withdraw(77)
    except LedgerClosed:
        return
    raise NotRefused("a handle under which a write failed appended again")


def _facts(ledger: Ledger) -> dict:
    pin = ledger.pin()
    return {"charged": ledger.state.charged, "pin": [pin.origin, pin.size, pin.root.hex(), pin.header_digest.hex()]}


def live(name: str, directory: Path, report: Report) -> int:
    """Lives one life; returns the exit status."""
    try:
        (LIVES | RETAINING | PAYING | {"after": after})[name](directory, report)
    except LedgerError as error:
        report({"end": type(error).__name__, "code": error.code, "sentence": error.sentence})
        return 3
    except BaseException:
        report({"end": "untyped", "code": "", "sentence": traceback.format_exc()})
        return 70
    report({"end": "done", "code": "", "sentence": ""})
    return 0


def child(connection: socket.socket) -> int:
    """Waits at the marker, then lives."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)
    name, directory = json.loads(connection.recv(4096))
    connection.sendall(b"%d\n" % os.getpid())
    connection.recv(1)
    return live(name, Path(directory), lambda facts: connection.sendall(json.dumps(facts).encode() + b"\n"))


def main(path: str) -> None:
    """Warms up, then forks a writer for every connection."""
    with tempfile.TemporaryDirectory() as warm:
        (retained := Path(warm) / "retained").mkdir()
        ready_to_prune(retained)
        turns.ROOM = ROOM
        created(Path(warm) / "budget.db").close()
        for name in (*LIVES, *PAYING, *RETAINING):
            assert live(name, Path(warm) if name not in RETAINING else retained, lambda facts: None) == 0, name
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("READY", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os._exit(child(connection))
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
