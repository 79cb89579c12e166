"""Runs in a signed order: everybody once in each period, E-fold epsilon, resumed in the middle of a period, and audited."""

import math
import warnings

import pytest

torch = pytest.importorskip("torch")

from attest.schedule.turns import Order  # noqa: E402
from dptrain.data.sampling import OrderedSampler  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.errors import HorizonExceeded, LeafRefused  # noqa: E402
from ledger.leaves import Draw, decode_leaf  # noqa: E402
from tests.worlds.trainer import Trainer, audited, foreseen_holds  # noqa: E402
from tests.worlds.training import PUBLIC, SENSITIVE, make_world  # noqa: E402

ORDERS = ("cyclic", "shuffled")
TURNS = 'disclosure = "occurrences_public"\nsampling = {{ order = "{}" }}\n'
PHASES = "noise = { phase = [{ from_step = 1, scale = 2 }, { from_step = 5, scale = 1 }] }\n"
LITERAL = 'noise = { injection = "per_sample" }\n'
CERTIFIED = 'exactness = "certified"\n'
THIRD = '"1/3"'


def world_of(path, order, extra="", **changes):
    return make_world(
        path, **{"steps": 8, "rate": THIRD, "per_class": 4, "policy_extra": TURNS.format(order) + extra} | changes
    )


def draws_of(trainer) -> dict[int, list[tuple[int, ...]]]:
    """Who was drawn, per step, in every attempt."""
    found: dict[int, list[tuple[int, ...]]] = {}
    with trainer.private.opened.recorder.ledger.rows() as rows:
        for row in rows:
            if isinstance(leaf := decode_leaf(row.body), Draw):
                found.setdefault(leaf.step, []).append(leaf.drawn)
    return found


@pytest.mark.one_in(9)
@pytest.mark.parametrize("order", [ORDERS[0], *(pytest.param(order, marks=pytest.mark.slow) for order in ORDERS[1:])])
@pytest.mark.parametrize("extra", ["", PHASES, LITERAL, CERTIFIED], ids=["plain", "phases", "literal", "certified"])
def test_everybody_takes_part_once_in_each_period_and_pays_for_that(tmp_path, order, extra) -> None:
    """Eight steps are two periods of three and two steps of another: E = 3."""
    world = world_of(tmp_path, order, extra)
    trainer = Trainer(world)
    trainer.run()
    draws = draws_of(trainer)
    assert sorted(draws) == list(range(1, 9)) and all(len(found) == 1 for found in draws.values())
    slots = trainer.private.prepared.pool.slots
    for number, slot in enumerate(slots):
        steps = [step for step, found in draws.items() if number in found[0]]
        assert [(step - 1) // 3 for step in steps] == [0, 1, 2][: len(steps)] and len(steps) >= 2
        if order == "cyclic":
            assert len({(step - 1) % 3 for step in steps}) == 1
        if extra != LITERAL:
            z = {step: slot.resolution.multiplier * (2 if extra == PHASES and step < 5 else 1) for step in steps}
            expected = accountants.gaussian.epsilon_of_mu(math.sqrt(sum(1 / z[step] ** 2 for step in steps)), 1e-5)
            assert trainer.private.opened.recorder.ledger.epsilon(slot.descriptor_hash) == pytest.approx(expected, rel=1e-9)
    for first in (1, 4):
        sizes = [len(draws[step][0]) for step in range(first, first + 3)]
        assert sum(sizes) == len(slots) and max(sizes) - min(sizes) <= 3  # at most one of each of three classes
    rows = trainer.private.prepared.summary()
    report = audited(trainer, world, tmp_path / "export")
    assert [found.occurrences for found in report.classes] == [3, 3, 3]
    for row, found in zip(rows, report.classes, strict=True):
        assert found.epsilon == row["epsilon"] <= row["epsilon_planned"] * (1 + 1e-12)
        if extra in ("", CERTIFIED):
            assert row["epsilon_planned"] == pytest.approx(row["epsilon"], rel=1e-12)
            folds = accountants.epsilon(row["effective_multiplier"], 1.0, 3, 1e-5)
            assert row["epsilon"] == pytest.approx(folds, rel=1e-6)
    assert not world.ledger.with_name(world.ledger.name + ".sealed").exists()
    trainer.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("order", ORDERS)
def test_a_run_resumed_inside_a_period_has_the_turns_of_one_that_never_stopped(tmp_path, order) -> None:
    """Saved after step 4, crashed in step 6, resumed: nobody is passed over or drawn twice in a period but by repetition."""
    world = world_of(tmp_path, order)
    first = Trainer(world)
    for step in first.steps:
        first.one(step)
        if step.number == 4:
            first.private.save()
        if step.number == 6:
            break
    first.close()
    second = Trainer(world, resume=True)
    assert second.private.prepared.start_step == 4
    second.run()
    foreseen_holds(second, redone=2)
    draws = draws_of(second)
    assert {step: len(found) for step, found in draws.items()} == {step: 1 + (step in (5, 6)) for step in range(1, 9)}
    assert all(len(set(found)) == 1 for found in draws.values())
    counts = [0] * len(second.private.prepared.pool.slots)
    for found in draws.values():
        for drawn in found:
            for number in drawn:
                counts[number] += 1
    state = second.private.opened.recorder.ledger.state
    assert [entry.occurrences for entry in state.contributions.values()] == counts
    assert sum(counts) == sum(len(found[0]) * len(found) for found in draws.values())
    for period in ((1, 2, 3), (4, 5, 6)):
        assert sorted(n for step in period for n in draws[step][0]) == list(range(len(counts)))
    audited(second, world, tmp_path / "export")
    second.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("order", ORDERS)
def test_a_cap_counts_what_the_ledger_recorded_in_all_attempts(tmp_path, order) -> None:
    world = world_of(tmp_path, order, template_extra={"max_occurrences": 2})
    first = Trainer(world)
    for step in first.steps:
        first.one(step)
        if step.number == 2:
            break
    first.close()
    second = Trainer(world, resume=True)
    second.run()
    assert {entry.occurrences for entry in second.private.opened.recorder.ledger.state.contributions.values()} == {2}
    audited(second, world, tmp_path / "export")
    second.close()


def test_steps_are_repeated_as_often_as_redo_steps_says_and_the_warning_says_from_where(tmp_path) -> None:
    world = world_of(tmp_path, "cyclic", "redo_steps = 1\n", per_class=1)
    first = Trainer(world)
    for step in first.steps:
        first.one(step)
        if step.number in (4, 5):
            first.private.save()
        if step.number == 6:
            break
    first.close()
    second = Trainer(world, resume=True)
    assert second.private.prepared.start_step == 5
    for step in second.steps:
        second.one(step)
        if step.number == 6:
            break
    second.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        third = Trainer(world, resume=True).begin()
    assert any("pays for 0 more steps" in str(item.message) and "at step 7 or later" in str(item.message) for item in caught)
    with pytest.raises(HorizonExceeded, match="would be charged again, redo_steps of the policy allows 1"):
        third.run()
    third.close()


def _off_by_one(self, step):
    return due(self, step + 1)


def _forgets_one(self, step):
    return due(self, step)[1:]


due = Order.due


@pytest.mark.one_in(4)
@pytest.mark.parametrize("fault", [_off_by_one, _forgets_one])
@pytest.mark.parametrize("order", ORDERS)
def test_a_sampler_that_leaves_the_order_stops_before_its_gradient(tmp_path, monkeypatch, order, fault) -> None:
    """The ledger holds every draw against the order by itself, and a step whose draw is not recorded does not run."""
    trainer = Trainer(world_of(tmp_path, order)).begin()
    sampler = trainer.private.prepared.attempt.streams.sampler
    assert isinstance(sampler, OrderedSampler)

    class Faulty(Order):
        due = fault

    sampler._order.__class__ = Faulty
    with pytest.raises(LeafRefused) as refused:
        trainer.run()
    assert refused.value.code == "TURN"
    assert all(tensor.parameter.grad is None for _, tensor in trainer.private.prepared.router.tensors)
    trainer.close()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("order", ORDERS)
def test_who_withdraws_leaves_the_turns_of_the_others(tmp_path, order) -> None:
    from time import time

    world = world_of(tmp_path, order)
    trainer = Trainer(world)
    gone = trainer.private.prepared.pool.slots[0]
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 4:  # the end of a window
            trainer.private.opened.recorder.ledger.withdraw(gone.descriptor_hash, "contributor", bytes(32), now=int(time()))
    draws = draws_of(trainer)
    recorder = trainer.private.opened.recorder
    classes = [entry.class_index for entry in recorder.ledger.state.contributions.values()]
    turns = Order(trainer.private.policy, recorder.ledger.header.run_id, classes)
    for step in range(1, 9):
        assert list(draws[step][0]) == [n for n in turns.due(step) if n or step <= 4]
    audited(trainer, world, tmp_path / "export")
    trainer.close()


def test_classes_have_periods_of_their_own_and_public_ones_turns_too(tmp_path) -> None:
    classes = SENSITIVE + PUBLIC.replace("{q}", "0.5")
    world = world_of(tmp_path, "shuffled", classes=classes, per_class=3)
    trainer = Trainer(world)
    trainer.run()
    draws = draws_of(trainer)
    of_class = {slot: trainer.private.prepared.pool.slots[slot].resolution.class_name for slot in range(6)}
    for name, length in (("sensitive", 3), ("encyclopedia", 2)):
        members = [slot for slot, own in of_class.items() if own == name]
        for start in range(1, 8 - length + 2, length):
            assert sorted(n for step in range(start, start + length) for n in draws[step][0] if n in members) == members
    audited(trainer, world, tmp_path / "export")
    trainer.close()
