"""Many processes reserve at once: the cap is granted exactly, and a process that is killed takes nothing back."""

import multiprocessing
import pickle
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ledger.budget import Unit
from ledger.budget.log import BudgetLog, adopt
from ledger.errors import BudgetExhausted, LedgerBehind
from ledger.storage.place import Place
from tests.worlds.budgets import ANNA, UNIT_COST, ReadThenWrite, WithoutTurns, created, granted, wait_for
from tests.worlds.ledgers import SIGNER, START
from tests.worlds.postgres import Cluster

PROCESSES = 6


def raced(place: Place, asked: int, units: list[Unit], log: type[BudgetLog] = BudgetLog) -> int:
    """Returns how many single releases so many processes were granted together, each of its unit."""
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(len(units))
    with ProcessPoolExecutor(len(units), mp_context=fork, initializer=wait_for, initargs=(barrier,)) as pool:
        return sum(pool.map(partial(granted, place, asked, log=log), units))


def test_six_processes_of_forty_are_granted_exactly_the_cap_of_a_hundred(place: Place) -> None:
    created(place, 100).close()
    assert raced(place, 40, [ANNA] * PROCESSES) == 100
    with BudgetLog.open(place) as log:
        assert log.balance(ANNA).spent == 100 * UNIT_COST and log.state.reserves == 100


def test_the_database_alone_grants_exactly_the_cap_to_machines_that_share_no_lock(place: Place) -> None:
    created(place, 100).close()
    assert raced(place, 40, [ANNA] * PROCESSES, WithoutTurns) == 100


def test_machines_with_marks_of_their_own_are_granted_exactly_the_cap_of_one_server(cluster: Cluster, tmp_path: Path) -> None:
    url = f"{cluster.url()}?schema=machines"
    first = Place.of(url, tmp_path / "first")
    with created(first, 50) as log:
        note = log.checkpoint()
    places = [first, *(Place.of(url, tmp_path / f"machine{n}") for n in range(2))]
    with pytest.raises(LedgerBehind, match="MARK_MISSING"):
        BudgetLog.open(places[1])
    for other in places[1:]:
        adopt(other, note, SIGNER.vkey).close()
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("fork")) as pool:
        assert sum(pool.map(partial(granted, asked=30), places)) == 50


def test_sessions_of_one_user_in_six_processes_are_granted_exactly_the_cap_of_the_user(path: Path) -> None:
    created(path, 50).close()
    assert raced(Place.of(path), 20, [Unit("session", f"s{n}", ANNA) for n in range(PROCESSES)]) == 50
    with BudgetLog.open(path) as log:
        assert log.balance(ANNA).spent == 50 * UNIT_COST


def test_a_copy_that_looks_and_then_charges_grants_more(path: Path) -> None:
    """The race is there to be lost: what the test above would say of a faulty log."""
    created(path, 30).close()
    assert raced(Place.of(path), 20, [ANNA] * PROCESSES, ReadThenWrite) > 30


def test_threads_of_one_process_are_granted_exactly_the_cap(path: Path) -> None:
    count = []
    with created(path, 30) as log:

        def ask() -> None:
            for _ in range(10):
                with suppress(BudgetExhausted):
                    count.append(log.reserve(ANNA, "token", 1, now=START))

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(count) == len({paid.seq for paid in count}) == 30


def test_a_signer_closes_epochs_while_others_reserve(path: Path) -> None:
    created(path, 1000).close()
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=fork) as pool, BudgetLog.open(path) as log:
        asked = [pool.submit(granted, Place.of(path), 60) for _ in range(2)]
        epochs = 0
        while not all(item.done() for item in asked):
            assert log.close_epoch(SIGNER, now=START).number == epochs + 1
            epochs += 1
        assert [item.result() for item in asked] == [60, 60] and epochs > 1
        assert log.balance(ANNA).spent == 120 * UNIT_COST


@pytest.mark.slow
def test_nothing_that_was_granted_is_lost_when_processes_are_killed(place: Place) -> None:
    """Four processes are killed while they reserve: what they heard is there, and at most one more of each."""
    created(place, 1_000_000, caps={"user": (10**9, 10_000_000)}).close()
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    code += "import pickle; from tests.worlds.budgets import *; reserves_for_ever(pickle.loads(bytes.fromhex(sys.argv[1])))"
    named, kills, acknowledged = pickle.dumps(place).hex(), 4, 0
    chance = random.Random(1)
    for _ in range(kills):
        running = subprocess.Popen([sys.executable, "-c", code, named], stdout=subprocess.PIPE)
        assert running.stdout is not None
        assert running.stdout.read(1) == b"."
        time.sleep(chance.uniform(0.01, 0.2))
        running.kill()
        acknowledged += 1 + len(running.stdout.read())
        running.wait()
        running.stdout.close()
    with BudgetLog.open(place) as log:
        assert acknowledged <= log.state.reserves <= acknowledged + kills
        assert log.balance(ANNA).spent == log.state.reserves * UNIT_COST
        log.reserve(ANNA, "token", 1, now=START)
