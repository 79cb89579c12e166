"""The pool of a run: batches in public order, passed over whole where one contribution cannot pay."""

import threading
from dataclasses import dataclass, field

import pytest

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink import Plan
from dptrain.inference.invisibleink.plan import NAME, mechanism
from dptrain.inference.invisibleink.pool import Pool
from dptrain.inference.invisibleink.references import References
from ledger.budget.log import BudgetLog, BudgetSpec
from ledger.errors import BudgetExhausted, LeafRefused
from tests.worlds.ledgers import SIGNER
from tests.worlds.text_runs import SALT, spent_by, write_labels, write_references

PLAN = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=6)
COST = PLAN.tokens * PLAN.nano_rho


@dataclass
class Ink:
    """Pays for a text and makes none."""

    paid: list = field(default_factory=list)

    def stream(self, references, meter, *, labels=None):
        found = meter.reserve(PLAN.tokens, mechanism=PLAN.mechanism, nano_rho=PLAN.nano_rho)
        self.paid.append(tuple(unit.name for unit in meter.units))
        return meter, found


def log_at(path, epsilon=8.0):
    caps = {"contribution": (round(epsilon * 1e6), 10**6)}
    return BudgetLog.create(path, BudgetSpec(caps=caps, mechanisms=[mechanism(SALT)], thresholds=()), SIGNER)


@pytest.fixture
def references(tmp_path):
    return References.read(write_references(tmp_path / "refs.jsonl", 11), salt=SALT)


@pytest.fixture
def log(tmp_path):
    with log_at(tmp_path / "b.db") as found:
        yield found


def test_batches_come_in_public_order_once_and_then_the_budget_is_exhausted(references, log):
    pool, ink = Pool(references, PLAN, log, SALT), Ink()
    assert pool.sizes == {None: 3} and pool.left() == 3
    for _ in range(3):
        pool.stream(ink)
    assert ink.paid == [tuple(one.unit.name for one in batch) for batch in references.batches(3, SALT)[None]]
    with pytest.raises(BudgetExhausted, match="none of 3 batches has contributions that can all pay for 6 tokens"):
        pool.take()
    assert pool.left() == 0


def test_a_batch_of_which_one_contribution_cannot_pay_is_passed_over_whole(references, log):
    first, second, _ = references.batches(3, SALT)[None]
    log.reserve_text([first[1].unit], NAME, 1, rho_nano=PLAN.nano_rho)
    pool = Pool(references, PLAN, log, SALT)
    assert pool.take()[0] == second
    assert spent_by(log, [one.unit for one in first]) == [0, PLAN.nano_rho, 0]


def test_what_a_finished_text_gives_back_pays_for_another_only_where_it_is_T_tokens(references, log):
    pool = Pool(references, PLAN, log, SALT)
    first = references.batches(3, SALT)[None][0]
    meter, paid = pool.stream(Ink())
    meter.settle(paid, 1)
    assert spent_by(log, [one.unit for one in first]) == [PLAN.nano_rho] * 3
    assert not pool.pays(first)
    meter, paid = pool.stream(Ink())
    meter.settle(paid, 0)
    assert pool.left() == 2


def test_a_larger_cap_pays_for_more_texts_of_every_batch_one_round_after_the_other(references, tmp_path):
    with log_at(tmp_path / "large.db", epsilon=14.0) as log:
        pool, ink = Pool(references, PLAN, log, SALT), Ink()
        assert log.header.cap("contribution") // COST == 2
        assert pool.left() == 6
        for _ in range(6):
            pool.stream(ink)
        assert ink.paid[:3] == ink.paid[3:]
        with pytest.raises(BudgetExhausted):
            pool.stream(ink)


def test_a_pool_goes_on_where_an_earlier_one_ended(references, tmp_path):
    with log_at(tmp_path / "large.db", epsilon=14.0) as log:
        pool = Pool(references, PLAN, log, SALT)
        pool.stream(Ink())
        later = Pool(references, PLAN, log, SALT)
        later.go_on(pool.places)
        assert later.take()[0] == references.batches(3, SALT)[None][1]


def test_threads_that_share_a_pool_pay_for_every_batch_once(references, log):
    pool, ink, refused = Pool(references, PLAN, log, SALT), Ink(), []

    def ask():
        try:
            pool.stream(ink)
        except BudgetExhausted as error:
            refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ink.paid)) == len(ink.paid) == 3
    assert len(refused) == 5


def test_two_processes_that_share_a_log_pay_for_every_batch_once(references, log):
    with BudgetLog.open(log.place) as other:
        one, two, ink = Pool(references, PLAN, log, SALT), Pool(references, PLAN, other, SALT), Ink()
        _batch, meter = one.take()
        two.stream(ink)
        with pytest.raises(BudgetExhausted):
            ink.stream([], meter)
        one.stream(ink)
        two.stream(ink)
        assert len(set(ink.paid)) == 3
        with pytest.raises(BudgetExhausted):
            one.stream(ink)


def test_a_batch_that_another_process_pays_with_meanwhile_is_passed_over(references, log):
    first, second, _ = references.batches(3, SALT)[None]
    pool = Pool(references, PLAN, log, SALT)

    class Slower(Ink):
        def stream(self, texts, meter, *, labels=None):
            if not self.paid:
                self.paid.append("another")
                log.reserve_text([one.unit for one in first], NAME, PLAN.tokens, rho_nano=PLAN.nano_rho)
            return super().stream(texts, meter, labels=labels)

    ink = Slower()
    pool.stream(ink)
    assert ink.paid == ["another", tuple(one.unit.name for one in second)]


def test_a_batch_of_which_one_contribution_is_withdrawn_meanwhile_is_passed_over(references, log):
    first, second, third = references.batches(3, SALT)[None]
    pool = Pool(references, PLAN, log, SALT)

    class Slower(Ink):
        def stream(self, texts, meter, *, labels=None):
            if not self.paid:
                self.paid.append("another")
                with BudgetLog.open(log.place) as other:
                    other.withdraw(first[1].unit)
            return super().stream(texts, meter, labels=labels)

    ink = Slower()
    pool.stream(ink)
    assert ink.paid == ["another", tuple(one.unit.name for one in second)]
    assert pool.take()[0] == third


def test_a_reservation_that_is_refused_for_another_reason_is_told(references, log):
    class Wrong(Ink):
        def stream(self, texts, meter, *, labels=None):
            raise LeafRefused("RHO", "a token costs more")

    with pytest.raises(LeafRefused, match="RHO"):
        Pool(references, PLAN, log, SALT).stream(Wrong())


def test_a_label_is_public_and_one_without_a_batch_is_refused_by_name(tmp_path, log):
    rows = write_references(tmp_path / "refs.jsonl", 10)
    listed = References.read(rows, salt=SALT, labels=write_labels(tmp_path / "l.csv", labels=("calm",) * 4 + ("loud",)))
    pool = Pool(listed, PLAN, log, SALT)
    assert pool.sizes == {"calm": 2, "loud": 0}
    assert {one.label for one in pool.take("calm")[0]} == {"calm"}
    for label in ("loud", None, "north"):
        with pytest.raises(ConfigError, match="those that have: 'calm'") as refused:
            pool.take(label)
        assert refused.value.code == "LABEL"
