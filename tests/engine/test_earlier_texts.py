"""A run counts the texts that its contributions may pay for: limits over all runs, by orders that were added up elsewhere."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from dptrain.errors import ConfigError, ResumeRefused
from ledger.accountants.renyi import ORDERS
from ledger.audit import verify_export
from ledger.budget.audit import given_texts
from ledger.budget.export import export_budget
from ledger.errors import BudgetExceeded, LeafRefused, LedgerBehind, LedgerForked
from ledger.leaves.header import TEXTS
from ledger.log import Ledger
from ledger.replay.earlier_texts import WITHDRAWN
from tests.engine.test_earlier_runs import STEPS, finish, other
from tests.worlds.budgets_beside import MAX_RHO, SIGNER, attested, budget_beside, name_of, unit, world_with_texts
from tests.worlds.trainer import Trainer
from tests.worlds.training import World

DELTA = 1e-5
Z, Q = 0.6, 0.5
"""Stands for class `open`."""


# --- the sum of orders, by other means ----------------------------------------------------------------------------------------


@cache
def moment(order: float) -> float:
    """The divergence of one step at an order, by the trapezoid rule: E (1 - q + q e^((2x - 1) / 2z^2))^a over N(0, z^2)."""
    count, low, high = 40_000, -12 * Z, order + 12 * Z
    step = (high - low) / count
    logs = [
        order * math.log1p(Q * math.expm1(min((2 * x - 1) / (2 * Z * Z), 700.0))) - 0.5 * (x / Z) ** 2
        for x in (low + step * place for place in range(count + 1))
    ]
    top = max(logs)
    total = top + math.log(math.fsum(math.exp(value - top) for value in logs)) + math.log(step / Z / math.sqrt(2 * math.pi))
    return total / (order - 1)


def worth(divergence: float, order: float, delta: float) -> float:
    """The least epsilon of a divergence: the better of the conversion of Balle et al. and of the tangent at 1."""
    balle = divergence - (math.log(delta) + math.log(order)) / (order - 1) + math.log1p(-1 / order)
    if (order - 1) * divergence > 300:
        return balle  # of numbers so large both are one
    slope = delta / math.expm1((order - 1) * divergence)
    at = (1 + 1 / (slope * order)) ** (1 / (order - 1))
    tangent = at - slope * (at**order - 1 - order * (at - 1))
    return min(balle, math.log(tangent)) if tangent > 0 else balle


def room(order: float, epsilon: float) -> float:
    """The largest divergence that is within epsilon."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if worth(middle, order, DELTA) <= epsilon else (low, middle)
    return low


SMALL = [order for order in ORDERS if order < 30 and order != 2.0]
"""Says where the filter is for these limits, as `order_for` asserts."""


def order_for(epsilon: float) -> float:
    """The order at which the budget, which came first, could be repeated most often within the limit."""
    found = max(SMALL, key=lambda order: room(order, epsilon) / (order * MAX_RHO))
    assert SMALL[0] < found < SMALL[-1]
    return found


def together(epsilon: float, steps: int) -> float:
    """Return what the budget and a run of so many steps come to, as epsilon, under a limit."""
    order = order_for(epsilon)
    return worth(order * MAX_RHO + steps * moment(order), order, DELTA)


def least_limit(steps: int) -> float:
    """The least epsilon that the budget and a run stay within."""
    low, high = 1.0, 60.0
    while high - low > 1e-8:
        middle = (low + high) / 2
        low, high = (middle, high) if together(middle, steps) > middle else (low, middle)
    return high


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Steps that the policy of these worlds plans, redone ones among them."""
    trainer = Trainer(world_with_texts(tmp_path_factory.mktemp("probe"), per_class=1, steps=STEPS))
    redo = trainer.private.policy.redo_steps
    trainer.close()
    return STEPS + redo


@pytest.fixture(scope="module")
def bound(planned: int) -> float:
    return least_limit(planned)


# --- limits -------------------------------------------------------------------------------------------------------------------


def with_budget(world: World, **options: Any) -> Path:
    """A world's budget before its run: everybody of the class is admitted, and has paid for one text."""
    place = world.root / "texts.db"
    with budget_beside(world, place, **options) as log:
        found = attested(world)
        if log.header.generation:
            assert log.admit(found, now=world.now).refused == {}
        reserved = log.reserve_text([unit(one) for one in found[:2]], "invisibleink", 2, rho_nano=3_000_000, now=world.now)
        log.commit(reserved, 2, now=world.now)
        log.close_epoch(SIGNER, now=world.now)
    return place


@pytest.mark.parametrize("by", ["contributor", "class"])
def test_texts_count_toward_a_limit_over_all_runs_with_what_their_rule_allows(tmp_path, planned, bound, by):
    """One text was paid for, 0.006 of rho; 0.05 counts, for it may be paid for yet."""
    for name, micro in (("within", math.ceil(bound * 1e6) + 1), ("beyond", math.floor(bound * 1e6) - 1)):
        signed = {"limit": micro} if by == "contributor" else {"total": micro / 1e6}
        world = world_with_texts(tmp_path / name, steps=STEPS, **signed)
        budget = with_budget(world)
        if name == "within":
            Trainer(world, earlier=[budget]).close()
            continue
        Trainer(other(world)).close()  # by itself it may run
        with pytest.raises(BudgetExceeded) as refused:
            Trainer(world, earlier=[budget])
        assert refused.value.code == "BUDGET" and not world.ledger.exists()
        said = f"could bring it to {together(micro / 1e6, planned):.6g}"
        assert said in refused.value.sentence, refused.value.sentence
        fits = [n for n in range(1, STEPS) if together(micro / 1e6, planned - STEPS + n) <= micro / 1e6]
        assert refused.value.nearest == max(fits, default=0) < STEPS


def test_who_was_never_admitted_to_texts_counts_likewise_and_other_classes_count_nothing(tmp_path, bound):
    world = world_with_texts(tmp_path, steps=STEPS, limit=math.floor(bound * 1e6) - 1)
    budget_beside(world, tmp_path / "texts.db").close()
    with pytest.raises(BudgetExceeded) as refused:
        Trainer(world, earlier=[tmp_path / "texts.db"])
    named = refused.value.sentence.split(" ")[0]
    assert named in {name_of(one).hex() for one in attested(world)} and "(as do 1 others)" in refused.value.sentence


def test_a_budget_that_counts_no_runs_takes_nobody_with_a_limit_and_so_counts_for_nobody_with_one(tmp_path, bound):
    """Such a log refuses their REFERENCE leaves, and its audit does: what may be paid of them there is nothing."""
    world = world_with_texts(tmp_path, steps=STEPS, limit=math.floor(bound * 1e6) - 1)
    with budget_beside(world, tmp_path / "texts.db", previous=None) as log:
        assert {error.code for error in log.admit(attested(world), now=world.now).refused.values()} == {"LIMIT"}
    Trainer(world, earlier=[tmp_path / "texts.db"]).close()
    unlimited = world_with_texts(tmp_path / "free", steps=STEPS, total=bound - 2e-6)
    with budget_beside(world_with_texts(tmp_path / "signed", steps=STEPS), tmp_path / "free.db", previous=None):
        pass
    with pytest.raises(BudgetExceeded):
        Trainer(unlimited, earlier=[tmp_path / "free.db"])


# --- what may be named --------------------------------------------------------------------------------------------------------


def exported(place: Path, out: Path) -> Path:
    from ledger.budget.log import BudgetLog

    with BudgetLog.open(place, read_only=True) as log:
        return export_budget(log, out)


def keys_of(world: World, *runs: World) -> list[str]:
    return [SIGNER.vkey, *((world.root / f"{one.ledger.stem}.pub").read_text().strip() for one in (world, *runs))]


@pytest.mark.one_in(99)
@pytest.mark.parametrize("as_export", [False, True])
def test_a_run_that_counts_a_budget_is_full_with_its_export_and_carries_what_texts_may_cost(tmp_path, as_export):
    world = world_with_texts(tmp_path, steps=STEPS, limit=100_000_000)
    place = with_budget(world)
    budget = exported(place, tmp_path / "texts")
    (tmp_path / "texts.pub").write_text(SIGNER.vkey)
    options = {"earlier": [budget], "earlier_keys": [tmp_path / "texts.pub"]} if as_export else {"earlier": [place]}
    run = finish(Trainer(world, **options), tmp_path / "one")
    with Ledger.open(world.ledger, read_only=True) as one:
        (cited,) = one.header.previous
        carried = {found.terms.class_name: found.terms.carried_micro for found in one.state.contributions.values()}
    assert (cited.origin, cited.reason, cited.log_vkey) == (SIGNER.name, TEXTS, SIGNER.vkey)
    # Canonne, Kamath and Steinke, 2020, Corollary 13, at its best order
    alone = min(
        a * MAX_RHO + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1)
        for a in (1 + step / 1000 for step in range(1000, 60_000))
    )
    assert carried["internal"] == carried["sensitive"] == 0 and abs(carried["open"] / 1e6 - alone) < 2e-6
    keys = keys_of(world)
    report = verify_export(run, keys, earlier=[], texts=[given_texts(budget, keys)])
    assert report.verdict == "FULL" and not {"EARLIER_TOLD", "LIMITS_ALONE"} & {*report.qualifiers}, report
    assert any(note.startswith(f"counted with {SIGNER.name}, a budget log of texts") for note in report.notes)
    alone_ = verify_export(run, keys)
    assert {"EARLIER_TOLD", "LIMITS_ALONE"} <= {*alone_.qualifiers}
    assert [item.code for item in verify_export(run, keys, earlier=[]).findings] == ["EARLIER_MISSING"]


def test_a_later_run_names_the_budget_again_and_one_that_a_budget_counts(tmp_path):
    world = world_with_texts(tmp_path, steps=STEPS, limit=100_000_000)
    place = with_budget(world)
    first = finish(Trainer(world, earlier=[place]), tmp_path / "one")
    with pytest.raises(LeafRefused) as refused:
        Trainer(other(world), earlier=[world.ledger])
    assert refused.value.code == "EARLIER_UNCITED" and SIGNER.name in refused.value.sentence
    second = finish(Trainer(other(world), earlier=[world.ledger, place]), tmp_path / "two")
    budget, keys = exported(place, tmp_path / "texts"), keys_of(world, other(world))
    report = verify_export(second, keys, earlier=[first], texts=[given_texts(budget, keys)])
    assert report.verdict == "FULL" and "EARLIER_APART" not in report.qualifiers, report.findings


def test_a_budget_that_counts_a_run_asks_for_that_run_too(tmp_path):
    world = world_with_texts(tmp_path, steps=STEPS, limit=100_000_000)
    finish(Trainer(world), tmp_path / "one")
    from dptrain.record.earlier_runs import Earlier

    spent = Earlier([world.ledger]).registry(None, bytes(32))
    with budget_beside(world, tmp_path / "texts.db", previous=spent.previous) as log:
        log.admit(attested(world), spent=spent, now=world.now)
    with pytest.raises(LeafRefused) as refused:
        Trainer(other(world), earlier=[tmp_path / "texts.db"])
    assert refused.value.code == "EARLIER_UNCITED" and "test-corpus/ledger" in refused.value.sentence
    Trainer(other(world), earlier=[tmp_path / "texts.db", world.ledger]).close()


def test_a_budget_without_rules_and_one_that_a_run_would_replace_are_refused_by_name(tmp_path):
    world = world_with_texts(tmp_path, steps=STEPS)
    records = budget_beside(world, tmp_path / "records.db", rules=False)
    records.close_epoch(SIGNER, now=world.now)
    export = export_budget(records, tmp_path / "records")
    records.close()
    (tmp_path / "texts.pub").write_text(SIGNER.vkey)
    for named in (tmp_path / "records.db", export):
        with pytest.raises(LeafRefused) as refused:
            Trainer(world, earlier=[named], earlier_keys=[tmp_path / "texts.pub"])
        assert refused.value.code == "RULE" and "records" in refused.value.sentence
    with pytest.raises(ConfigError) as replaced:
        Trainer(world, replaces=with_budget(world))
    assert replaced.value.code == "EARLIER" and "budget log" in replaced.value.sentence


def test_an_export_of_a_budget_is_audited_before_it_is_counted(tmp_path):
    world = world_with_texts(tmp_path, steps=STEPS)
    budget = exported(with_budget(world), tmp_path / "texts")
    for code, keys in (("EARLIER_KEY", []), ("EARLIER", [world.root / "owner.vkey"])):
        (world.root / "owner.vkey").write_text(replace(SIGNER, name="test-corpus/others").vkey)
        with pytest.raises((ConfigError, LeafRefused)) as refused:
            Trainer(world, earlier=[budget], earlier_keys=keys)
        assert refused.value.code == code and not world.ledger.exists()
    (tmp_path / "texts.pub").write_text(SIGNER.vkey)
    (budget / "more").write_text("beside what was signed")
    with pytest.raises(LeafRefused) as refused:
        Trainer(world, earlier=[budget], earlier_keys=[tmp_path / "texts.pub"])
    assert refused.value.code == "EARLIER" and "FAILED" in refused.value.sentence


# --- going on -----------------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(99)
@pytest.mark.parametrize("as_export", [False, True])
def test_a_resumed_run_takes_a_budget_that_grew_and_no_shorter_or_other_one(tmp_path, as_export):
    world = world_with_texts(tmp_path, steps=STEPS, limit=100_000_000)
    place, keys = with_budget(world), [tmp_path / "texts.pub"]
    keys[0].write_text(SIGNER.vkey)
    backup = {path: path.read_bytes() for path in tmp_path.glob("texts.db*")}
    early = exported(place, tmp_path / "early")
    first = attested(world)[0]
    with budget_of(place) as log:
        log.withdraw(unit(first), now=world.now)
        log.close_epoch(SIGNER, now=world.now)
    counted = exported(place, tmp_path / "counted")
    trainer = Trainer(world, earlier=[counted if as_export else place], earlier_keys=keys)
    trainer.one(next(iter(trainer.steps)))
    state = trainer.private.opened.recorder.ledger.state
    (gone,) = state.withdrawals
    assert gone == name_of(first) and state.steps(state.contributions[gone]) == 0
    trainer.private.save()
    trainer.close()
    with budget_of(place) as log:
        log.withdraw(unit(attested(world)[1]), now=world.now)
        log.close_epoch(SIGNER, now=world.now)
    grown = exported(place, tmp_path / "grown")
    resumed = Trainer(world, earlier=[grown if as_export else place], earlier_keys=keys, resume=True).begin()
    assert {*resumed.private.opened.recorder.ledger.state.withdrawals} == {name_of(one) for one in attested(world)[:2]}
    resumed.close()
    for path in {*tmp_path.glob("texts.db*")} - {*backup}:
        path.unlink()
    for path, data in backup.items():
        path.write_bytes(data)
    with pytest.raises(LedgerBehind):
        Trainer(world, earlier=[early if as_export else place], earlier_keys=keys, resume=True)
    with budget_of(place) as log:  # another history behind the first leaves, as long as the first
        log.withdraw(unit(attested(world)[1]), now=world.now)
        log.close_epoch(SIGNER, now=world.now)
    forked = exported(place, tmp_path / "forked")
    with pytest.raises(LedgerForked):
        Trainer(world, earlier=[forked if as_export else place], earlier_keys=keys, resume=True)
    stranger = tmp_path / "stranger.db"
    budget_beside(world, stranger, log_id=bytes(range(16))).close()
    with pytest.raises(ResumeRefused):
        Trainer(world, earlier=[stranger], earlier_keys=keys, resume=True)
    Trainer(world, resume=True).close()


def budget_of(place: Path) -> Any:
    from ledger.budget.log import BudgetLog

    return BudgetLog.open(place)


def test_what_a_budget_has_withdrawn_takes_no_part_and_the_audit_finds_nothing_wrong_with_it(tmp_path):
    from attest import signed_file
    from attest.withdrawal import Withdrawal, sign_withdrawal

    world = world_with_texts(tmp_path, steps=STEPS)
    place, first = with_budget(world), attested(world)[0]
    with budget_of(place) as log:
        log.withdraw(unit(first), now=world.now)
    run = finish(Trainer(world, earlier=[place]), tmp_path / "one")
    with budget_of(place) as log:
        log.close_epoch(SIGNER, now=world.now)
    keys, budget = keys_of(world), exported(place, tmp_path / "texts")
    report = verify_export(run, keys, earlier=[], texts=[given_texts(budget, keys)])
    assert report.verdict == "FULL" and [row.reason for row in report.withdrawals] == [WITHDRAWN], report.findings
    assert "WITHDRAWALS_TOLD" in report.qualifiers
    said = Withdrawal(name_of(first), "test-corpus", world.now - 5, "consent")
    payload, message = sign_withdrawal(said, world.contributor_keys["contributor-open"], signer="contributor-open")
    (tmp_path / "signed").mkdir()
    signed_file.write(tmp_path / "signed" / "one.cose", payload, message)
    shown = verify_export(run, keys, earlier=[], texts=[given_texts(budget, keys)], withdrawals=tmp_path / "signed")
    assert shown.verdict == "FULL" and "WITHDRAWALS_TOLD" not in shown.qualifiers, shown.findings
    forged = Withdrawal(name_of(first), "test-corpus", world.now - 5, "error")
    other_key = world.contributor_keys["contributor-internal"]
    signed_file.write(tmp_path / "signed" / "one.cose", *sign_withdrawal(forged, other_key, signer="contributor-internal"))
    told = verify_export(run, keys, earlier=[], texts=[given_texts(budget, keys)], withdrawals=tmp_path / "signed")
    assert told.verdict == "FULL" and "WITHDRAWALS_TOLD" in told.qualifiers
