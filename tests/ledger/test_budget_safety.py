"""What befalls a budget in service: writers in a race, killed and restarted; a database that is copied, put back, or damaged.

A cap is never passed, and where the log is not what it was, everything is refused with a code that says why.
"""

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ledger.budget.audit import verify_budget
from ledger.budget.export import export_budget
from ledger.budget.log import BudgetLog
from ledger.errors import BudgetExhausted, LedgerBehind, LedgerCorrupt, LedgerError, LedgerReplaced
from ledger.storage.place import Place
from tests.worlds.budgets import ANNA, UNIT_COST, copied, created, granted, wait_for
from tests.worlds.ledgers import SIGNER, START

PROCESSES, ASKED, CAP, KILLS = 8, 100, 300, 12



def pays(path: Path, asked: int, said: int) -> None:
    """Asks for single releases in a process of its own; says with a byte that it is at work, each grant, and each refusal."""
    with BudgetLog.open(path) as log:
        os.write(said, b"o")
        for _ in range(asked):
            try:
                paid = log.reserve(ANNA, "token", 1, now=START)
            except BudgetExhausted:
                os.write(said, b"x")
                continue
            os.write(said, b"+")
            log.settle_later(paid, 1, now=START)


class Worker:
    """One such process, and what it said so far."""

    def __init__(self, path: Path) -> None:
        self._reads, writes = os.pipe()
        os.set_blocking(self._reads, False)
        self.process = multiprocessing.get_context("fork").Process(target=pays, args=(path, ASKED, writes))
        self.process.start()
        os.close(writes)
        self.said = b""

    def listen(self) -> bytes:
        """Returns all that it said."""
        with suppress(BlockingIOError):
            while more := os.read(self._reads, 4096):
                self.said += more
        return self.said

    def end(self) -> None:
        """Waits until it has ended, and hears it out."""
        self.process.join(120)
        self.listen()
        os.close(self._reads)


def audited(log: BudgetLog, folder: Path) -> None:
    """Closes an epoch, exports, and has an auditor add everything up again."""
    log.close_epoch(SIGNER, now=START)
    report = verify_budget(export_budget(log, folder), [SIGNER.vkey], now=START + 60)
    assert report.verdict == "FULL", report.findings
    assert report.caps[0].most_nano <= report.caps[0].cap_nano


# --- races ----------------------------------------------------------------------------------------------------------------


def test_eight_processes_of_a_hundred_are_granted_exactly_the_cap_of_three_hundred(path: Path, tmp_path: Path) -> None:
    created(path, CAP).close()
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, mp_context=fork, initializer=wait_for, initargs=(barrier,)) as pool:
        counts = list(pool.map(partial(granted, Place.of(path), ASKED), [ANNA] * PROCESSES))
    assert sum(counts) == CAP
    with BudgetLog.open(path) as log:
        assert log.state.reserves == CAP and log.balance(ANNA).spent == CAP * UNIT_COST
        audited(log, tmp_path / "export")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_writers_that_are_killed_and_started_again_are_never_granted_more(path: Path, tmp_path: Path, seed: int) -> None:
    """Every one that hears of its grant says so with a byte; one that was killed may have paid once more than it said."""
    created(path, CAP).close()
    chance, struck = random.Random(seed), 0
    running, ended = [Worker(path) for _ in range(PROCESSES)], []
    while struck < KILLS:
        time.sleep(chance.uniform(0.002, 0.02))
        at_work = [worker for worker in running if b"+" in worker.listen() and worker.process.is_alive()]
        if not at_work:
            if all(b"x" in worker.said for worker in running):
                break
            continue
        killed = chance.choice(at_work)
        killed.process.kill()
        killed.end()
        if killed.process.exitcode == -signal.SIGKILL and b"x" not in killed.said:
            struck += 1
        running.remove(killed)
        ended.append(killed)
        running.append(Worker(path))
    for worker in running:
        worker.end()
        assert worker.process.exitcode == 0
    heard = sum(worker.said.count(b"+") for worker in [*running, *ended])
    print(f"{struck} processes killed while they were granted, {len(ended)} in all, {heard} grants heard of {CAP}")
    assert struck >= KILLS // 2 and CAP - len(ended) <= heard <= CAP
    with BudgetLog.open(path) as log:
        assert log.state.reserves == CAP and log.balance(ANNA).spent == CAP * UNIT_COST
        with pytest.raises(BudgetExhausted):
            log.reserve(ANNA, "token", 1, now=START)
        audited(log, tmp_path / "export")


# --- databases that are not what they were ----------------------------------------------------------------------------------


def _put_back(path: Path, kept: Path) -> None:
    """Writes the bytes of an old copy over the database, in place, as a restore does."""
    for side in ("-wal", "-shm"):
        Path(f"{path}{side}").unlink(missing_ok=True)
    path.write_bytes(kept.read_bytes())


def _copied_over(path: Path, kept: Path) -> None:
    shutil.copy(path, f"{path}.new")
    os.replace(f"{path}.new", path)


def _without_mark(path: Path, kept: Path) -> None:
    Path(f"{path}.mark").unlink()


def _mark_of_another(path: Path, kept: Path) -> None:
    created(path.with_name("other.db")).close()
    Path(f"{path}.mark").write_bytes(Path(f"{path.with_name('other.db')}.mark").read_bytes())


def _damaged_mark(path: Path, kept: Path) -> None:
    mark = Path(f"{path}.mark")
    mark.write_bytes(mark.read_bytes().replace(b" 3 ", b" 1 ", 1))


def _no_database(path: Path, kept: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def _half(path: Path, kept: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _gone(path: Path, kept: Path) -> None:
    path.unlink()


FOUND: list[tuple[Callable[[Path, Path], None], type[LedgerError], str]] = [
    (_put_back, LedgerBehind, "BEHIND"),
    (_copied_over, LedgerBehind, "COPIED"),
    (_without_mark, LedgerBehind, "MARK_MISSING"),
    (_mark_of_another, LedgerBehind, "COPIED"),
    (_damaged_mark, LedgerCorrupt, "MARK"),
    (_no_database, LedgerCorrupt, "DATABASE"),
    (_half, LedgerCorrupt, "DATABASE"),
    (_gone, LedgerError, "MISSING"),
]


@pytest.mark.parametrize(("befalls", "kind", "code"), FOUND, ids=[row[0].__name__.strip("_") for row in FOUND])
def test_a_log_that_is_not_what_it_was_is_refused_with_the_code_that_says_why(
    path: Path, befalls: Callable[[Path, Path], None], kind: type[LedgerError], code: str
) -> None:
    with created(path, 5) as log:
        log.reserve(ANNA, "token", 1, now=START)
    kept = path.with_name("kept.db")
    shutil.copy(path, kept)
    with BudgetLog.open(path) as log:
        log.reserve(ANNA, "token", 1, now=START)
    befalls(path, kept)
    with pytest.raises(kind) as refused:
        BudgetLog.open(path)
    assert type(refused.value) is kind and refused.value.code == code


@pytest.mark.parametrize(
    ("befalls", "codes"),
    [
        (_put_back, {"UNLINKED", "BEHIND", "REPLACED"}),
        (_copied_over, {"REPLACED"}),
        (_without_mark, {"MARK_MISSING"}),
        (_damaged_mark, {"MARK"}),
        (_gone, {"UNLINKED"}),
    ],
    ids=["put_back", "copied_over", "without_mark", "damaged_mark", "gone"],
)
def test_a_log_that_changes_under_an_open_handle_pays_for_nothing_more(
    path: Path, befalls: Callable[[Path, Path], None], codes: set[str]
) -> None:
    with created(path, 5) as log:
        log.reserve(ANNA, "token", 1, now=START)
    kept = path.with_name("kept.db")
    shutil.copy(path, kept)
    with BudgetLog.open(path) as log:
        log.reserve(ANNA, "token", 1, now=START)
        befalls(path, kept)
        with pytest.raises((LedgerBehind, LedgerReplaced, LedgerCorrupt)) as refused:
            log.reserve(ANNA, "token", 1, now=START)
        assert refused.value.code in codes
        with pytest.raises(LedgerError):
            log.reserve(ANNA, "token", 1, now=START)


def test_no_flipped_bit_of_a_database_gives_anything_back(path: Path) -> None:
    with created(path, 50) as log:
        for _ in range(6):
            log.settle_later(log.reserve(ANNA, "token", 2, now=START), 1, now=START)
    whole, inode = path.read_bytes(), path.stat().st_ino
    chance, refused = random.Random(7), 0
    for _ in range(150):
        at, bit = chance.randrange(len(whole)), 1 << chance.randrange(8)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ bit]))
        try:
            with BudgetLog.open(path, read_only=True) as log:
                assert log.state.spent(log.account(ANNA)) == 6 * UNIT_COST, f"byte {at}, bit {bit}"
        except LedgerError:
            refused += 1
        for side in ("-wal", "-shm"):
            Path(f"{path}{side}").unlink(missing_ok=True)
        with path.open("r+b") as file:
            file.write(whole)
            file.truncate(len(whole))
    assert path.stat().st_ino == inode and refused > 5


def test_two_copies_never_pay_together_more_than_the_one(path: Path) -> None:
    """A service that is moved by copying its folder: the copy refuses, so what both were granted is what one was."""
    created(path, 3).close()
    twin = copied(Place.of(path), "twin")
    count = 0
    for place in (path, twin, path):
        try:
            count += granted(Place.of(place), 2)
        except LedgerBehind as error:
            assert error.code == "COPIED"
    assert count == 3
