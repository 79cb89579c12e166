"""A text is paid for by every contribution that it has, in one turn: all of them pay, or none; each is named by its digest."""

import hashlib
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from ledger.budget import Unit
from ledger.budget.leaves import Notice, Reserve, decode_leaf
from ledger.budget.log import BudgetLog
from ledger.budget.mark import Held
from ledger.errors import BudgetExhausted, LeafRefused
from ledger.storage.place import Place
from tests.worlds.budgets import ANNA, UNIT_COST, cap_of, created, granted_each, wait_for
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
        log.reserve(SEVEN[0], "token", 3, now=START)
        assert leaves(log, Reserve)[0].account == hashlib.sha256(b"0").digest() == log.account(SEVEN[0])


def test_all_of_a_text_pay_in_one_turn_with_one_sync_of_the_mark(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = Held.write
    monkeypatch.setattr(Held, "write", lambda held, reached: (written.append(reached.size), write(held, reached))[1])
    with log_of(place) as log:
        written.clear()
        paid = log.reserve_each(SEVEN, "token", 3, now=START)
        assert written == [8] and [one.seq for one in paid] == list(range(1, 8))
        assert len({one.request for one in paid}) == 7
        assert spent(log, SEVEN) == [3] * 7


def test_where_one_cannot_pay_none_has(place: Place) -> None:
    with log_of(place) as log:
        log.reserve(SEVEN[5], "token", 4, now=START)
        with pytest.raises(BudgetExhausted) as refused:
            log.reserve_each(SEVEN, "token", 7, now=START)
        assert (refused.value.unit, refused.value.spent) == ("contribution", 4 * UNIT_COST)
        assert spent(log, SEVEN) == [0, 0, 0, 0, 0, 4, 0] and len(leaves(log, Reserve)) == 1
        assert [(one.account, one.percent) for one in leaves(log, Notice)] == [(log.account(SEVEN[5]), 0)]
        log.reserve_each(SEVEN, "token", 6, now=START)
        assert spent(log, SEVEN) == [6, 6, 6, 6, 6, 10, 6]


def test_what_units_pay_together_counts_once_more_for_who_stands_above_several_of_them(place: Place) -> None:
    sessions = [Unit("session", name, ANNA) for name in "abc"]
    with log_of(place) as log:
        with pytest.raises(BudgetExhausted) as refused:
            log.reserve_each(sessions, "token", 4, now=START)
        assert (refused.value.spent, refused.value.asked) == (0, 12 * UNIT_COST) and log.balance(ANNA).spent == 0
        log.reserve_each(sessions, "token", 3, now=START)
        assert log.balance(ANNA).spent == 9 * UNIT_COST
        with pytest.raises(BudgetExhausted):
            log.reserve_each([ANNA, sessions[0]], "token", 1, now=START)


def test_thresholds_of_each_stand_behind_its_own_reservation(place: Place) -> None:
    with log_of(place) as log:
        paid = log.reserve_each(SEVEN[:2], "token", 9, now=START)
        told = [(one.seq, one.account, one.percent) for one in leaves(log, Notice)]
        first, second = (log.account(unit) for unit in SEVEN[:2])
        assert told == [(2, first, 50), (3, first, 80), (5, second, 50), (6, second, 80)]
        assert [one.seq for one in paid] == [1, 4]


def test_who_pays_together_is_named_once_and_what_is_refused_for_one_is_refused_for_all(place: Place) -> None:
    with log_of(place) as log:
        for units, code in (([], "UNITS"), ([SEVEN[0], SEVEN[0]], "UNITS"), ([SEVEN[0], Unit("corpus", "c")], "NO_CAP")):
            with pytest.raises(LeafRefused) as refused:
                log.reserve_each(units, "token", 1, now=START)
            assert refused.value.code == code
        with pytest.raises(LeafRefused):
            log.reserve_each(SEVEN, "no such", 1, now=START)
        assert log.size == 1 and not log.state.open


def test_processes_that_share_one_contribution_are_granted_exactly_its_cap(place: Place) -> None:
    """Every text of every process has one contribution in common, and another of its own."""
    log_of(place, 25).close()
    context = get_context("spawn")
    barrier = context.Barrier(2)
    with ProcessPoolExecutor(2, context, wait_for, (barrier,)) as pool:
        futures = [pool.submit(granted_each, place, 40, [SEVEN[0], SEVEN[1 + number]]) for number in range(2)]
        counts = [future.result(120) for future in futures]
    with BudgetLog.open(place) as log:
        assert sum(counts) == 25 and spent(log, SEVEN[:3]) == [25, *counts]


def test_a_text_of_a_process_that_is_killed_is_paid_for_by_all_or_by_none(path: Path) -> None:
    log_of(Place.of(path), 10**6).close()
    program = f"from tests.worlds.budgets import each_for_ever; each_for_ever({str(path)!r}, {[unit.name for unit in SEVEN]!r})"
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
