"""A text is paid for by every contribution that it has, in one turn: all of them pay, or none; each is named by its digest."""

import hashlib
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from ledger.budget import Unit
from ledger.budget.generation import CONTRIBUTIONS
from ledger.budget.leaves import Notice, Reserve, Text, decode_leaf
from ledger.budget.log import BudgetLog
from ledger.budget.mark import Held
from ledger.errors import BudgetExhausted, LeafRefused
from ledger.storage.place import Place
from tests.worlds.budgets import ANNA, UNIT_COST, cap_of, created, granted_texts, wait_for
from tests.worlds.ledgers import START

ROOT = Path(__file__).parents[2]


def contribution(number: int) -> Unit:
    return Unit("contribution", hashlib.sha256(b"%d" % number).hexdigest())


SEVEN = [contribution(number) for number in range(7)]


def log_of(place: Place, releases: int = 10) -> BudgetLog:
    return created(place, caps={"contribution": cap_of(releases), "user": cap_of(releases)})


def leaves(log: BudgetLog, kind: type) -> list:
    return [leaf for row in log.rows(log.size) if isinstance(leaf := decode_leaf(row.body), kind)]


def spent(log: BudgetLog, units: list[Unit]) -> list[int]:
    return [log.balance(unit).spent // UNIT_COST for unit in units]


@pytest.mark.parametrize("name", ["", "ab" * 31, "ab" * 33, "AB" * 32, "letter-1", "g" * 64, "ab" * 31 + "a\n"])
def test_a_contribution_is_named_by_64_hex_digits_and_nothing_else(name: str) -> None:
    with pytest.raises(LeafRefused):
        Unit("contribution", name)


def test_a_contribution_stands_under_nobody_and_nobody_under_it() -> None:
    for kind, name, parent in (("contribution", "ab" * 32, ANNA), ("session", "s", Unit("contribution", "ab" * 32))):
        with pytest.raises(LeafRefused, match="PARENT"):
            Unit(kind, name, parent)


def test_a_contribution_is_found_in_the_leaves_by_its_digest_alone(place: Place) -> None:
    with log_of(place) as log:
        log.reserve_text(SEVEN[:1], "token", 3, now=START)
        assert leaves(log, Text)[0].accounts[0] == hashlib.sha256(b"0").digest() == log.account(SEVEN[0])


def test_all_of_a_text_pay_by_one_leaf_and_one_sync_and_end_by_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = Held.write
    monkeypatch.setattr(Held, "write", lambda held, reached: (written.append(reached.size), write(held, reached))[1])
    with log_of(place) as log:
        written.clear()
        paid = log.reserve_text(SEVEN, "token", 3, now=START)
        assert written == [2] and paid.seq == 1 and log.size == 2
        assert spent(log, SEVEN) == [3] * 7 and log.state.reserved == 7 * 3 * UNIT_COST
        log.commit(paid, 1, now=START)
        assert log.size == 3 and spent(log, SEVEN) == [1] * 7
        assert log.state.freed == 7 * 2 * UNIT_COST and not log.state.open


def test_where_one_cannot_pay_none_has(place: Place) -> None:
    with log_of(place) as log:
        log.reserve_text([SEVEN[5]], "token", 4, now=START)
        with pytest.raises(BudgetExhausted) as refused:
            log.reserve_text(SEVEN, "token", 7, now=START)
        assert (refused.value.unit, refused.value.spent) == ("contribution", 4 * UNIT_COST)
        assert spent(log, SEVEN) == [0, 0, 0, 0, 0, 4, 0] and len(leaves(log, Text)) == 1
        assert [(one.account, one.percent) for one in leaves(log, Notice)] == [(log.account(SEVEN[5]), 0)]
        log.reserve_text(SEVEN, "token", 6, now=START)
        assert spent(log, SEVEN) == [6, 6, 6, 6, 6, 10, 6]


def test_a_leaf_names_contributions_in_ascending_order_whatever_order_they_were_given_in(place: Place) -> None:
    with log_of(place) as log:
        for units in (SEVEN, SEVEN[::-1]):
            log.reserve_text(units, "token", 1, now=START)
        one, two = leaves(log, Text)
        assert one.accounts == two.accounts == tuple(sorted(log.account(unit) for unit in SEVEN))


def test_thresholds_of_each_stand_behind_the_text_in_the_order_of_the_leaf(place: Place) -> None:
    with log_of(place) as log:
        paid = log.reserve_text(SEVEN[:2], "token", 9, now=START)
        told = [(one.seq, one.account, one.percent) for one in leaves(log, Notice)]
        first, second = sorted(log.account(unit) for unit in SEVEN[:2])
        assert told == [(2, first, 50), (3, first, 80), (4, second, 50), (5, second, 80)] and paid.seq == 1


def test_contributions_pay_by_texts_alone_and_nobody_else_pays_by_them(place: Place) -> None:
    many = [contribution(number) for number in range(CONTRIBUTIONS + 1)]
    with log_of(place) as log:
        with pytest.raises(LeafRefused, match="reserve_text"):
            log.reserve(SEVEN[0], "token", 1, now=START)
        for units in ([], [SEVEN[0], SEVEN[0]], [SEVEN[0], ANNA], [ANNA], [Unit("session", "s", ANNA)], many):
            with pytest.raises(LeafRefused) as refused:
                log.reserve_text(units, "token", 1, now=START)
            assert refused.value.code == "UNITS"
        with pytest.raises(LeafRefused) as refused:
            log.reserve_text(SEVEN, "none", 1, now=START)
        assert refused.value.code == "MECHANISM" and log.size == 1 and not log.state.open
        with pytest.raises(LeafRefused) as refused:
            Reserve(1, START, "contribution", log.account(SEVEN[0]), None, None, "token", 1, UNIT_COST, bytes(16))
        assert refused.value.code == "UNIT"
        with pytest.raises(LeafRefused) as refused:
            Text(1, START, tuple(sorted(log.account(unit) for unit in many)), "token", 1, UNIT_COST, bytes(16))
        assert refused.value.code == "RANGE"


def test_without_a_cap_of_contributions_no_text_is_paid_for(path: Path) -> None:
    with created(path) as log, pytest.raises(LeafRefused) as refused:
        log.reserve_text(SEVEN, "token", 1, now=START)
    assert refused.value.code == "NO_CAP"


@pytest.mark.one_in(99)
def test_processes_that_share_one_contribution_are_granted_exactly_its_cap(place: Place) -> None:
    """Every text of every process has one contribution in common, and another of its own."""
    log_of(place, 25).close()
    context = get_context("spawn")
    barrier = context.Barrier(2)
    with ProcessPoolExecutor(2, context, wait_for, (barrier,)) as pool:
        futures = [pool.submit(granted_texts, place, 40, [SEVEN[0], SEVEN[1 + number]]) for number in range(2)]
        counts = [future.result(120) for future in futures]
    with BudgetLog.open(place) as log:
        assert sum(counts) == 25 and spent(log, SEVEN[:3]) == [25, *counts]


def test_a_text_of_a_process_that_is_killed_is_paid_for_by_all_or_by_none(path: Path) -> None:
    log_of(Place.of(path), 10**6).close()
    names = [unit.name for unit in SEVEN]
    program = f"from tests.worlds.budgets import texts_for_ever; texts_for_ever({str(path)!r}, {names!r})"
    heard = 0
    for after in (1, 7, 20):
        running = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
        assert running.stdout is not None
        got = running.stdout.read(after)
        running.kill()
        heard += len(got + running.stdout.read())
        running.wait()
        running.stdout.close()
    with BudgetLog.open(path) as log:
        [count] = set(spent(log, SEVEN))
        assert heard <= count <= heard + 3
