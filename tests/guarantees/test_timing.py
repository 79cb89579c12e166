"""What clocks reveal, as the threat model says it: the times in a ledger come from one clock, which may be a coarse one, and
how many microbatches a step has follows from the draw alone."""

import time

import pytest

torch = pytest.importorskip("torch")

from dptrain.record.pin import found, read_record  # noqa: E402
from ledger.leaves import decode_leaf  # noqa: E402
from tests.guarantees.peers import Run, net, per_example, small_world  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

HOUR = 3600


def test_every_time_in_a_ledger_comes_from_the_clock_of_the_run(tmp_path) -> None:
    """With a clock that shows hours no leaf tells minutes, and a checkpoint holds no time at all."""
    now = int(time.time()) // HOUR * HOUR
    world = make_world(tmp_path, per_class=3, steps=4, rate="1", now=now - 2 * HOUR)
    readings = iter(range(10_000))

    def hours() -> int:
        return now - (0 if next(readings) > 3 else HOUR)

    trainer = Trainer(world, clock=hours)
    trainer.run(save_every=2)
    trainer.private.save()
    log = trainer.private.opened.recorder.ledger
    with log.rows() as rows:
        times = [decode_leaf(row.body).time for row in rows]
    assert len(times) > 10 and {t % HOUR for t in times} == {0} and len(set(times)) == 2
    ledger = trainer.private.opened.recorder.ledger
    pins = [read_record(ledger, path) for _, path in found(world.root / "ledger.db.checkpoints")]
    assert pins and not any("time" in name for pin in pins for name in (*vars(pin), *pin.pin.__slots__))
    trainer.private.export(tmp_path / "export")
    trainer.close()


@pytest.mark.one_in(9)
@pytest.mark.parametrize("microbatch", [3, 40])
def test_the_number_of_microbatches_follows_from_how_many_were_drawn(tmp_path, microbatch: int) -> None:
    """What an observer of the pace learns; a microbatch that holds the whole pool leaves one, or none for an empty draw."""
    world = small_world(tmp_path, per_class=20, rate="0.3", steps=6)
    counts = []
    with Run(world, net(), microbatch=microbatch) as run:
        for step in run.steps:
            sizes = []
            for rows in step:
                if not run.private.prepared.probe.active:
                    sizes.append(rows.contributions)
                run.private.backward(per_example(run.model, rows), rows)
            run.optimizer.step()
            counts.append((len(sizes), sum(sizes)))
    assert all(number == -(-drawn // microbatch) for number, drawn in counts)
    assert len({drawn for _, drawn in counts}) > 1
    assert len({number for number, _ in counts}) == (1 if microbatch == 40 else len({-(-d // 3) for _, d in counts}))


def test_a_gradient_that_is_not_finite_changes_neither_pace_nor_shape_of_what_follows(tmp_path) -> None:
    """It counts zero, in silence: as many microbatches, the same rows, and the step is charged like any other."""
    seen: dict[bool, list[int]] = {}
    for spoiled in (False, True):
        with Run(small_world(tmp_path / str(spoiled), per_class=7, steps=2), net(), microbatch=3) as run:
            sizes = []
            for step in run.steps:
                for rows in step:
                    losses = per_example(run.model, rows)
                    if not run.private.prepared.probe.active:
                        sizes.append(rows.contributions)
                        if spoiled:
                            losses = losses * torch.where(rows["seeds"] == 2, float("inf"), 1.0)
                    run.private.backward(losses, rows)
                run.optimizer.step()
            seen[spoiled] = sizes
            assert run.private.opened.recorder.ledger.state.charged == 2
            assert all(bool(torch.isfinite(p).all()) for p in run.model.parameters())
    assert seen[True] == seen[False] == [3, 3, 1] * 2
