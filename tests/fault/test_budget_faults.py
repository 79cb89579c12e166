"""Faults under a budget log: every system call of its writer fails, the writer dies at every one, and the power fails.

Whatever befalls it, what was reported as paid is in the log, no unit is above its cap, nothing is free that no COMMIT leaf
freed, and the log goes on. A disk that only says that it synced is found out, or nothing is lost.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ledger.budget.log import BudgetLog
from ledger.budget.mark import Reached
from ledger.errors import LedgerBehind, LedgerError
from ledger.merkle import root as root_of
from tests.fault.disk_model import OPTIONS, Disk
from tests.fault.scene import NOT_FILES
from tests.fault.test_power_loss import SYNCS
from tests.fault.test_syscall_faults import CANNOT_FAIL, FAULTS, JOBS, MUTATING
from tests.fault.tracing import HARNESS, Writers, require_strace
from tests.worlds.budgets import ANNA, UNIT_COST, created
from tests.worlds.ledgers import START

RELEASES = 9


@dataclass(slots=True)
class Payers:
    """Writers of budget logs, each of a log of its own that no copy stands for."""

    writers: Writers
    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def begin(self) -> Path:
        """Returns a directory with a fresh log."""
        directory = self.folder / f"run{next(self._numbers)}"
        directory.mkdir()
        created(directory / "budget.db", RELEASES).close()
        return directory

    def traced(self) -> "Traced":
        """Lets one writer live, and keeps what it wrote."""
        directory, start, file = self.begin(), self.folder / "start", self.folder / "writes"
        shutil.copytree(directory, start)
        outcome = self.writers.run("pay", directory, *OPTIONS, trace=file)
        assert outcome.end == "done", outcome
        return Traced(start, directory, file.read_text().splitlines())

    def lay_out(self, state: dict[str, bytes]) -> Path:
        """Returns a directory with these files, under a mark that takes the database for the one that was."""
        directory = self.folder / f"run{next(self._numbers)}"
        directory.mkdir()
        for name, data in state.items():
            (directory / name).write_bytes(data)
        mark, inode = directory / "budget.db.mark", (directory / "budget.db").stat().st_ino
        reached = Reached.from_bytes(mark.read_bytes(), "the mark")
        mark.write_bytes(Reached(reached.size, reached.root, f"inode:{inode}").to_bytes())
        return directory


@dataclass(frozen=True, slots=True)
class Traced:
    """What a writer did, and what it began with."""

    start: Path
    directory: Path
    lines: list[str]

    def syncs(self) -> list[tuple[int, str]]:
        """Returns the lines that sync something of the log, and the file that each syncs."""
        disk = Disk(self.start)
        taken = ((n, disk.take(line, self.directory)) for n, line in enumerate(self.lines))
        return [(n, did[1]) for n, did in taken if did is not None and did[0] in SYNCS]

    def crashes(self, lie: int = -1) -> Iterator[tuple[dict[str, bytes], list[dict]]]:
        """Yields every state that the disk may be in, once, and what had been reported by then; with one sync left out."""
        disk, reports, seen = Disk(self.start), [], set()
        for number, line in enumerate(self.lines):
            did = disk.take(line, self.directory, lying=number == lie)
            if did is None or number < lie:
                continue
            if did[0] == "sendto":
                reports.extend(facts for facts in [json.loads(did[1])] if "root" in facts)
            for state in disk.states(seed=number):
                digest = hashlib.sha256(b"".join(name.encode() + data for name, data in sorted(state.items()))).digest()
                if (digest, len(reports)) not in seen:
                    seen.add((digest, len(reports)))
                    yield state, list(reports)


@pytest.fixture(scope="module")
def payers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Payers]:
    require_strace()
    with Writers() as writers:
        yield Payers(writers, tmp_path_factory.mktemp("payers"))


def holds(directory: Path, reports: list[dict]) -> None:
    """Opens a log, asserts that everything that was reported is in it, and pays from it."""
    with BudgetLog.open(directory / "budget.db") as log:
        bodies = [row.body for row in log.rows(log.size)]
        for report in reports:
            assert report["size"] <= len(bodies), "a leaf was reported and is gone"
            assert root_of(bodies[: report["size"]]).hex() == report["root"]
        assert log.balance(ANNA).spent == log.state.reserved - log.state.freed <= RELEASES * UNIT_COST
        log.reserve(ANNA, "token", 1, now=START)


def calls_of(payers: Payers) -> Counter[str]:
    """Counts the calls of a life that nothing befalls."""
    outcome = payers.writers.run("pay", payers.begin(), trace=payers.folder / "trace")
    assert outcome.end == "done", outcome
    return Counter({call: n for call, n in outcome.calls.items() if call not in NOT_FILES | HARNESS})


def strike(payers: Payers, call: str, fault: str, n: int) -> str:
    """Runs one life under one fault, and all checks; returns how it ended."""
    directory = payers.begin()
    outcome = payers.writers.run("pay", directory, "-e", f"inject={call}:{FAULTS[fault]}:when={n}")
    assert outcome.end != "untyped", f"{call} {n} {fault}: {outcome.sentence}"
    assert (outcome.end == "killed") == (fault == "KILL"), (call, n, fault, outcome)
    try:
        holds(directory, outcome.reports)
    except (AssertionError, LedgerError) as error:
        raise AssertionError(f"{call} {n} {fault}, then {outcome.end} {outcome.code}: {error!r}") from error
    shutil.rmtree(directory)
    return f"{outcome.end} {outcome.code}".strip()


def sweep(payers: Payers, wanted: Callable[[str], bool], every: int = 1) -> None:
    """Strikes at every so many of the calls that are wanted, and prints the figures."""
    struck = [
        (call, fault, n)
        for call, count in sorted(calls_of(payers).items())
        for fault in FAULTS
        if wanted(call) and (fault == "KILL" or call not in CANNOT_FAIL)
        for n in range(1, count + 1)
    ][::every]
    ends, failed = Counter[str](), []
    with ThreadPoolExecutor(JOBS) as pool:
        for future in [pool.submit(strike, payers, *one) for one in struck]:
            try:
                ends[future.result()] += 1
            except AssertionError as error:
                failed.append(str(error))
    assert not failed, "\n".join(failed)
    print(f"pay: {len(struck)} injections, {dict(ends)}, under-counts 0")
    assert len(struck) > 30 and ends["killed"] and sum(ends.values()) > ends["killed"] + ends["done"]


def test_the_writer_of_a_budget_syncs_log_and_mark_for_every_turn_before_it_reports(payers: Payers) -> None:
    traced = payers.traced()
    turns, since = [], []
    disk = Disk(traced.start)
    for line in traced.lines:
        did = disk.take(line, traced.directory)
        if did is not None and did[0] in SYNCS:
            since.append(did[1])
        elif did is not None and did[0] == "sendto" and "root" in json.loads(did[1]):
            turns.append([name for name in since if name.endswith(("-wal", ".mark"))])
            since = []
    assert len(turns) == 6 and all(turn[-2:] == ["budget.db-wal", "budget.db.mark"] for turn in turns), turns
    shutil.rmtree(traced.start)


def test_what_was_paid_survives_a_loss_of_power(payers: Payers) -> None:
    traced, count = payers.traced(), 0
    for state, reports in traced.crashes():
        directory = payers.lay_out(state)
        try:
            holds(directory, reports)
        except (AssertionError, LedgerError) as error:
            raise AssertionError(f"crash {count}, {len(reports)} reports: {error!r}") from error
        shutil.rmtree(directory)
        count += 1
    print(f"pay: {count} states after a loss of power, under-counts 0")
    assert count > 100
    shutil.rmtree(traced.start)


@pytest.mark.slow
def test_a_disk_that_only_says_that_it_synced_loses_no_charge_unseen(payers: Payers) -> None:
    traced, ends = payers.traced(), Counter[str]()
    for lie, name in traced.syncs():
        for number, (state, reports) in enumerate(traced.crashes(lie)):
            if number % 6:
                continue
            directory = payers.lay_out(state)
            try:
                holds(directory, reports)
            except LedgerError as error:
                ends[f"{type(error).__name__} {error.code}"] += 1
            else:
                ends[f"whole, without a sync of {name.rpartition('.')[2]}"] += 1
            shutil.rmtree(directory)
    print(f"pay: {len(traced.syncs())} syncs left out, {dict(ends)}, undetected 0")
    assert ends[f"{LedgerBehind.__name__} BEHIND"] > 0
    shutil.rmtree(traced.start)


@pytest.mark.slow
def test_a_sample_of_failing_calls_under_a_budget_loses_nothing(payers: Payers) -> None:
    sweep(payers, MUTATING.__contains__, every=int(os.environ.get("EVERY", "3")))


@pytest.mark.slow
def test_every_failing_call_under_a_budget_loses_nothing(payers: Payers) -> None:
    sweep(payers, lambda call: True)
