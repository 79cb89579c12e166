"""H1, H4, H10: what is released when nobody is drawn is the scheduled noise, block by block, and never the same twice."""

import math

import pytest

torch = pytest.importorskip("torch")

from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

ALARM = 5.0
"""Standard errors; about 6e-7 false alarms per comparison."""


def released(trainer: Trainer, steps: int) -> list[torch.Tensor]:
    """Whitened noise ``p.grad * B0 / s`` per block, steps concatenated; draws must be empty."""
    blocks: list[list[torch.Tensor]] = [[] for _ in trainer.private.prepared.schedule.blocks]
    iterator = iter(trainer.steps)
    for _ in range(steps):
        step = next(iterator)
        microbatches = 0
        for rows in step:
            microbatches += not trainer.private.prepared.probe.active
            trainer.private.backward(trainer.losses(rows), rows)
        assert microbatches == 0
        for g, tensor in trainer.private.prepared.router.tensors:
            block = trainer.private.prepared.schedule.blocks[g]
            blocks[g].append((tensor.parameter.grad.double() * trainer.private.policy.normalizer / block.std).flatten())
        trainer.optimizer.step()
    return [torch.cat(parts) for parts in blocks]


def test_noise_of_every_block_has_the_scheduled_variance(tmp_path) -> None:
    """Chi-square per block; blocks of this model have 2,000 coordinates and more over 8 steps."""
    trainer = Trainer(make_world(tmp_path, steps=8, rate="0.000000001"))
    for block, values in zip(trainer.private.prepared.schedule.blocks, released(trainer, 8), strict=True):
        d = values.numel()
        score = (float(values.square().sum()) - d) / math.sqrt(2 * d)
        assert abs(score) < ALARM, f"block {block.name}: variance {float(values.square().mean()):.4f} of the scheduled"
        assert abs(float(values.mean())) * math.sqrt(d) < ALARM
    trainer.close()


def test_blocks_and_steps_have_independent_noise(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, steps=2, rate="0.000000001"))
    values = released(trainer, 2)
    d = min(v.numel() for v in values)
    for i in range(len(values)):
        half = values[i].numel() // 2
        k = min(half, d)
        assert abs(float((values[i][:k] * values[i][half : half + k]).mean())) < ALARM / math.sqrt(k)
        for j in range(i):
            assert abs(float((values[i][:d] * values[j][:d]).mean())) < ALARM / math.sqrt(d)
    trainer.close()


def test_a_resumed_run_draws_fresh_noise_and_pays_again(tmp_path) -> None:
    world = make_world(tmp_path, steps=4, rate="0.000000001")
    first = Trainer(world)
    before = torch.cat(released(first, 2))
    first.close()
    second = Trainer(world, resume=True)
    after = torch.cat(released(second, 2))
    assert abs(float((before * after).mean())) < ALARM / math.sqrt(len(before))
    assert second.private.opened.recorder.ledger.state.charged == 4
    assert second.private.prepared.start_step == 0
    second.close()


def test_the_released_gradient_is_dense_in_every_scheduled_block_whoever_was_drawn(tmp_path) -> None:
    """M19: no block may show by its silence that a class was not drawn."""
    trainer = Trainer(make_world(tmp_path, steps=1, rate="0.000000001"))
    step = next(iter(trainer.steps))
    for rows in step:
        trainer.private.backward(trainer.losses(rows), rows)
    for _, tensor in trainer.private.prepared.router.tensors:
        assert bool((tensor.parameter.grad != 0).all())
    trainer.close()
