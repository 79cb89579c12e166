"""Threads that reserve at once share a turn, and settlements ride with the next: nothing is heard before it is durable."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ledger.budget import Unit, group_commit
from ledger.budget import log as room
from ledger.budget.group_commit import MOST, GroupCommit
from ledger.budget.leaves import Commit, Reserve, decode_leaf
from ledger.budget.log import BudgetLog, Reservation
from ledger.budget.mark import Held
from ledger.errors import BudgetExhausted, LeafRefused, LedgerBehind, LedgerClosed, LedgerError, StorageFailed
from ledger.storage.place import Place
from ledger.storage.sql import turns
from ledger.storage.sql.sqlite import SqliteStore
from tests.worlds.budgets import ANNA, UNIT_COST, created
from tests.worlds.ledgers import SIGNER, START

ROOT = Path(__file__).parents[2]
WAIT = 30


class Door:
    """Stops the first sync of the mark until it is opened, and counts all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened, self.count = threading.Event(), threading.Event(), 0
        self.fails: BaseException | None = None
        write = Held.write

        def slow(held: Held, reached: Any) -> None:
            self.count += 1
            if self.count == 1:
                self.reached.set()
                assert self.opened.wait(WAIT)
            elif self.fails is not None:
                raise self.fails
            write(held, reached)

        monkeypatch.setattr(Held, "write", slow)


def asked_behind_one(log: BudgetLog, door: Door, pool: ThreadPoolExecutor, asks: list[Callable[[], Any]]) -> list[Future]:
    """Lets one thread lead, and all others ask, in order, while it waits for its sync; the first future is the leader's."""
    futures = [pool.submit(lambda: log.reserve(ANNA, "token", 1, now=START))]
    assert door.reached.wait(WAIT)
    for number, ask in enumerate(asks, start=1):
        futures.append(pool.submit(ask))
        deadline = time.monotonic() + WAIT
        while len(log._together._waiting) < number and time.monotonic() < deadline:
            time.sleep(0.0005)
    assert not any(future.done() for future in futures)
    return futures


def leaves(log: BudgetLog) -> list:
    return [decode_leaf(row.body) for row in log.rows(log.size)]


# --- groups ---------------------------------------------------------------------------------------------------------------


def test_who_asks_while_a_turn_lasts_shares_the_next_one_and_hears_nothing_before_its_sync(place: Place, monkeypatch) -> None:
    with created(place) as log, ThreadPoolExecutor(12) as pool:
        door = Door(monkeypatch)
        futures = asked_behind_one(log, door, pool, [lambda: log.reserve(ANNA, "token", 1, now=START)] * 10)
        door.opened.set()
        paid = [future.result(WAIT) for future in futures]
        assert door.count == 2 and sorted(item.seq for item in paid) == list(range(1, 12))
        assert log.balance(ANNA).spent == 11 * UNIT_COST


def test_each_of_a_group_is_judged_behind_those_before_it_and_a_wrong_one_harms_no_other(place: Place, monkeypatch) -> None:
    with created(place, 4) as log, ThreadPoolExecutor(12) as pool:
        door = Door(monkeypatch)
        asks = [
            lambda: log.reserve(ANNA, "token", 2, now=START),
            lambda: log.reserve(ANNA, "no such", 1, now=START),
            lambda: log.reserve(ANNA, "token", 2, now=START),
            lambda: log.reserve(ANNA, "token", 0, now=START),
            lambda: log.reserve(ANNA, "token", 1, now=START),
            lambda: log.reserve(ANNA, "token", 1, now=START),
        ]
        futures = asked_behind_one(log, door, pool, asks)
        door.opened.set()
        ends = [future.exception(WAIT) or future.result() for future in futures]
        kinds = [type(end) for end in ends]
        assert kinds == [Reservation, Reservation, LeafRefused, BudgetExhausted, LeafRefused, Reservation, BudgetExhausted]
        assert ends[3].spent == 3 * UNIT_COST and ends[6].spent == 4 * UNIT_COST
        assert door.count == 2 and log.balance(ANNA).spent == 4 * UNIT_COST


def test_a_turn_that_fails_grants_nothing_to_anyone_of_its_group(path: Path, monkeypatch) -> None:
    with created(path) as log, ThreadPoolExecutor(8) as pool:
        door = Door(monkeypatch)
        futures = asked_behind_one(log, door, pool, [lambda: log.reserve(ANNA, "token", 1, now=START)] * 5)
        door.fails = StorageFailed("MARK", "the disk refused")
        door.opened.set()
        assert isinstance(futures[0].result(WAIT), Reservation)
        failures = [future.exception(WAIT) for future in futures[1:]]
        assert [(type(item), item.code) for item in failures] == [(StorageFailed, "MARK")] * 5
        assert len({id(item) for item in failures}) == 5  # threads share no traceback
        with pytest.raises(LedgerClosed, match="HANDLE"):
            log.reserve(ANNA, "token", 1, now=START)
    monkeypatch.undo()
    with BudgetLog.open(path) as log:
        assert log.balance(ANNA).spent == 6 * UNIT_COST  # what the database has counts, whether anyone heard of it


def test_a_leader_that_is_interrupted_leaves_nobody_waiting() -> None:
    going, go = threading.Event(), threading.Event()

    def serve(group: list[int]) -> list:
        if 0 in group:
            going.set()
            assert go.wait(WAIT)
        elif 1 in group:
            raise KeyboardInterrupt
        return [n or -1 for n in group]

    together: GroupCommit[int, int] = GroupCommit(serve)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(together.ask, 0)
        assert going.wait(WAIT)
        rest = []
        for number in (1, 2, 3):
            rest.append(pool.submit(together.ask, number))
            while len(together._waiting) < number:
                time.sleep(0.0005)
        go.set()
        assert first.result(WAIT) == -1
        ends = [future.exception(WAIT) for future in rest]
        assert isinstance(ends[0], KeyboardInterrupt) and all(isinstance(end, LedgerClosed) for end in ends[1:])
        assert together.ask(7) == 7


def test_one_that_is_interrupted_while_it_waits_is_not_served_and_hands_on_the_lead() -> None:
    going, go, served = threading.Event(), threading.Event(), []

    def serve(group: list[int]) -> list:
        served.extend(group)
        going.set()
        assert go.wait(WAIT)
        return list(group)

    together: GroupCommit[int, int] = GroupCommit(serve)

    class Interrupted:
        def acquire(self) -> None:
            waited.set()
            assert go.wait(WAIT)
            while not together._waiting[0].leads:  # it is woken to lead, and interrupted right then
                time.sleep(0.0005)
            raise KeyboardInterrupt

        def release(self) -> None:
            """Wakes nobody."""

    waited = threading.Event()
    with ThreadPoolExecutor(3) as pool, pytest.MonkeyPatch.context() as patched:
        first = pool.submit(together.ask, 1)
        assert going.wait(WAIT)
        patched.setattr(group_commit._Waiting, "__init__", _with_lock(Interrupted))
        second = pool.submit(together.ask, 2)
        assert waited.wait(WAIT)
        patched.undo()
        third = pool.submit(together.ask, 3)
        while len(together._waiting) < 2:
            time.sleep(0.0005)
        go.set()
        assert first.result(WAIT) == 1 and third.result(WAIT) == 3
        assert isinstance(second.exception(WAIT), KeyboardInterrupt) and served == [1, 3]


def _with_lock(kind: type) -> Callable[..., None]:
    made = group_commit._Waiting.__init__

    def init(self: Any, asked: Any) -> None:
        made(self, asked)
        self.woken = kind()

    return init


def test_a_group_is_never_larger_than_it_may_be() -> None:
    sizes: list[int] = []
    going, go = threading.Event(), threading.Event()

    def serve(group: list[int]) -> list:
        sizes.append(len(group))
        going.set()
        assert go.wait(WAIT)
        return list(group)

    together: GroupCommit[int, int] = GroupCommit(serve)
    with ThreadPoolExecutor(MOST + 20) as pool:
        futures = [pool.submit(together.ask, n + 1) for n in range(MOST + 10)]
        deadline = time.monotonic() + WAIT
        while len(together._waiting) < MOST + 9 and time.monotonic() < deadline:
            time.sleep(0.001)
        go.set()
        assert [future.result(WAIT) for future in futures] == [n + 1 for n in range(MOST + 10)]
    assert sizes == [1, MOST, 9]


# --- settlements that ride with the next turn -----------------------------------------------------------------------------


def test_a_settlement_that_waits_frees_nothing_until_the_next_turn_and_everything_for_it(place: Place) -> None:
    with created(place, 10) as log:
        paid = log.reserve(ANNA, "token", 10, now=START)
        log.settle_later(paid, 4, now=START)
        with BudgetLog.open(place) as other:
            assert other.balance(ANNA).spent == 10 * UNIT_COST
        log.reserve(ANNA, "token", 6, now=START)
        kinds = [type(leaf) for leaf in leaves(log) if isinstance(leaf, Reserve | Commit)]
        assert kinds == [Reserve, Commit, Reserve] and log.balance(ANNA).spent == 10 * UNIT_COST
        with BudgetLog.open(place) as other:
            assert other.root == log.root and list(other.state.open) == list(log.state.open)


def test_what_waits_is_settled_by_closing_and_by_looking(place: Place) -> None:
    with created(place, 10) as log:
        log.settle_later(log.reserve(ANNA, "token", 6, now=START), 1, now=START)
        assert log.balance(ANNA).spent == UNIT_COST
        log.settle_later(log.reserve(ANNA, "token", 5, now=START), 0, now=START)
    with BudgetLog.open(place) as log:
        assert log.balance(ANNA).spent == UNIT_COST and not log.state.open


@pytest.mark.one_in(99)
def test_a_settlement_that_is_lost_with_its_process_frees_nothing(place: Place) -> None:
    created(place, 10).close()
    code = "import os, pickle, sys; from tests.worlds.budgets import *\n"
    code += "log = BudgetLog.open(pickle.loads(bytes.fromhex(sys.argv[1])))\n"
    code += "log.settle_later(log.reserve(ANNA, 'token', 6, now=START), 0, now=START); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code, pickle.dumps(place).hex()], capture_output=True, cwd=ROOT)
    assert done.returncode == -9, done.stderr
    with BudgetLog.open(place) as log:
        assert log.balance(ANNA).spent == 6 * UNIT_COST and len(log.state.open) == 1


def test_a_reservation_is_settled_once_and_for_no_more_than_was_paid(place: Place) -> None:
    with created(place, 20) as log, BudgetLog.open(place) as other:
        paid, ended = log.reserve(ANNA, "token", 4, now=START), log.reserve(ANNA, "token", 4, now=START)
        for computed in (5, -1, True, 1 << 63):
            with pytest.raises(LeafRefused):
                log.settle_later(paid, computed, now=START)
        log.settle_later(paid, 4, now=START)
        with pytest.raises(LeafRefused, match="COMMITTED"):
            log.settle_later(paid, 0, now=START)
        with pytest.raises(LeafRefused, match="COMMITTED"):
            log.commit(paid, 0, now=START)
        with pytest.raises(LeafRefused, match="COMMITTED"):
            log.settle_later(paid, 4, now=START)
        log.settle_later(ended, 0, now=START)
        other.commit(ended, 4, now=START)
        assert log.balance(ANNA).spent == 8 * UNIT_COST  # what the other process said stands
        made_up = Reservation(log.reserve(ANNA, "token", 1, now=START).seq, 400, UNIT_COST, bytes(16))
        log.settle_later(made_up, 300, now=START)
        log.reserve(ANNA, "token", 1, now=START)
        assert log.balance(ANNA).spent == 10 * UNIT_COST


def test_an_epoch_that_is_refused_signs_nothing_and_settles_what_waits(path: Path) -> None:
    with created(path) as log:
        log.settle_later(log.reserve(ANNA, "token", 2, now=START), 1, now=START)
        kept = log.place.side(".highwater")
        note = kept.read_bytes()
        kept.unlink()
        with pytest.raises(LedgerBehind, match="HIGHWATER"):
            log.close_epoch(SIGNER, now=START)
        kept.write_bytes(note)
        assert log.checkpoint() == note and log.size == 3 and log.balance(ANNA).spent == UNIT_COST
        assert log.close_epoch(SIGNER, now=START).number == 1


def test_settlements_that_wait_take_a_turn_of_their_own_when_there_are_many(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(room, "LATER", 3)
    with created(path) as log:
        paid = [log.reserve(ANNA, "token", 2, now=START) for _ in range(3)]
        for item in paid:
            assert log.size == 4
            log.settle_later(item, 1, now=START)
        assert log.size == 7


def test_a_settlement_waits_through_a_clock_that_others_moved_on(path: Path) -> None:
    with created(path) as log, BudgetLog.open(path) as other:
        log.settle_later(log.reserve(ANNA, "token", 2, now=START), 1, now=START)
        other.reserve(Unit("user", "ben"), "token", 1, now=START + 1000)
    with BudgetLog.open(path) as log:
        assert log.balance(ANNA).spent == UNIT_COST and leaves(log)[-1].time == START + 1000


def test_a_forked_handle_settles_nothing_and_waits_for_nobody(path: Path) -> None:
    with created(path) as log:
        paid = log.reserve(ANNA, "token", 2, now=START)
        log._together._busy = True  # as if the process was forked while a thread was leading
        child = os.fork()
        if child == 0:
            ends = []
            for act in (lambda: log.settle_later(paid, 0), lambda: log.reserve(ANNA, "token", 1, now=START)):
                try:
                    act()
                except LedgerClosed as error:
                    ends.append(error.code)
                except BaseException:
                    ends.append("")
            os._exit(0 if ends == ["FORKED", "FORKED"] else 1)
        log._together._busy = False
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert log.balance(ANNA).spent == 2 * UNIT_COST


# --- room in the write-ahead log ------------------------------------------------------------------------------------------


def test_commits_of_an_open_log_do_not_make_its_file_larger(path: Path) -> None:
    wal = Path(f"{path}-wal")
    with created(path, 400) as log:
        ahead = wal.stat().st_size
        assert ahead >= turns.ROOM
        for _ in range(100):
            log.settle_later(log.reserve(ANNA, "token", 1, now=START), 1, now=START)
        assert wal.stat().st_size == ahead
        with BudgetLog.open(path) as other:
            other.reserve(ANNA, "token", 1, now=START)
            assert wal.stat().st_size == ahead


def test_room_ahead_changes_nothing_in_the_database_and_a_training_ledger_has_none(path: Path, run) -> None:
    assert Path(f"{run.ledger.place.target}-wal").stat().st_size < turns.ROOM
    budget = path.with_name("budget.db")
    created(budget).close()
    before = budget.read_bytes()
    with ExitStack() as stack:
        store = SqliteStore.open_shared(Place.of(budget), read_only=False)
        stack.callback(store.close)
        assert Path(f"{budget}-wal").stat().st_size >= turns.ROOM and store.examine() == []
        with store._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA cache_size").scalar() != 8
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    assert budget.read_bytes() == before


def test_a_disk_without_room_refuses_with_a_typed_error(path: Path, monkeypatch) -> None:
    created(path).close()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(turns.os, "fdatasync", full)
    with pytest.raises(LedgerError, match="No space left") as refused:
        BudgetLog.open(path)
    assert refused.value.code == "IO"
