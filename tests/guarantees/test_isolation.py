"""Depth isolation: outside its band, a payload changes no bit of parameters or optimizer state."""

import copy
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dptrain.data.slots import Slots  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

KEY = b"\x07" * 32


def other_payload(seed: int) -> dict:
    """The same record, but contribution 0 of class "sensitive" (seed 0) has another content of the same shape."""
    return token_record(777 if seed == 0 else seed)


def state_of(trainer: Trainer) -> tuple[dict, dict]:
    return copy.deepcopy(trainer.model.state_dict()), copy.deepcopy(trainer.optimizer.state_dict())


def step_once(trainer: Trainer, steps) -> list[dict[str, torch.Tensor]]:
    step = next(steps)
    trainer.one(step)
    slots = {t.name: t.parameter for _, t in trainer.private.prepared.router.tensors}
    return [
        {f"{name}/param": p.detach().clone()}
        | {f"{name}/{k}": v.clone() for k, v in trainer.optimizer.state[p].items() if isinstance(v, torch.Tensor)}
        for name, p in slots.items()
    ]


def two_worlds(root: Path, steps: int) -> tuple[World, World]:
    """Worlds that differ in the content of one contribution of class "sensitive"."""
    world_a = make_world(root / "a", steps=steps, rate="1", per_class=2)
    assert json.dumps(token_record(0)) != json.dumps(other_payload(0))
    return world_a, make_world(root / "b", steps=steps, rate="1", per_class=2, record=other_payload, now=world_a.now)


def assert_isolated(world_a: World, world_b: World, family: str, steps: int) -> None:
    """Teacher-forced: before every step, the states of one run are put into the other."""
    a = Trainer(world_a, family, insecure_test_key=KEY)
    b = Trainer(world_b, family, insecure_test_key=KEY)
    resolution = a.private.prepared.pool.slots[_slot_of(a, "sensitive")].resolution
    band = {a.private.prepared.schedule.blocks[i].name for i in resolution.profile}
    names = [(a.private.prepared.schedule.blocks[g].name, t.name) for g, t in a.private.prepared.router.tensors]
    assert any(block not in band for block, _ in names) and any(block in band for block, _ in names)
    steps_a, steps_b = iter(a.steps), iter(b.steps)
    changed_inside = 0
    for _ in range(steps):
        model_state, optimizer_state = state_of(a)
        b.model.load_state_dict(model_state)
        b.optimizer.load_state_dict(optimizer_state)
        after_a, after_b = step_once(a, steps_a), step_once(b, steps_b)
        for (block, tensor), x, y in zip(names, after_a, after_b, strict=True):
            assert x.keys() == y.keys() and len(x) >= 3
            same = all(torch.equal(x[k], y[k]) for k in x)
            if block not in band:
                assert same, f"{tensor} lies outside the band and changed"
            else:
                changed_inside += not same
    assert changed_inside > 4, "positive control: inside the band the payload must show"
    a.close()
    b.close()


@pytest.mark.parametrize("family", ["bert", "gpt2_tied"])
@pytest.mark.one_in(4)
def test_restricted_payload_leaves_other_blocks_and_their_optimizer_state_bit_identical(tmp_path, family: str) -> None:
    assert_isolated(*two_worlds(tmp_path, 4), family, 4)


def _slot_of(trainer: Trainer, class_name: str) -> int:
    return next(i for i, s in enumerate(trainer.private.prepared.pool.slots) if s.resolution.class_name == class_name)


def test_a_leaky_mask_would_be_caught(tmp_path) -> None:
    """Negative control of the test above: with the mask of one class opened, the same comparison fails."""
    world_a = make_world(tmp_path / "a", steps=1, rate="1", per_class=2)
    world_b = make_world(tmp_path / "b", steps=1, rate="1", per_class=2, record=other_payload, now=world_a.now)
    outcomes = []
    for world in (world_a, world_b):
        trainer = Trainer(world, insecure_test_key=KEY)
        everything = tuple(range(len(trainer.private.prepared.schedule.blocks)))
        trainer.private.prepared.pool.slots = Slots.of(
            [
                type(s)(s.admitted, type(s.resolution)(**{**vars(s.resolution), "profile": everything}))
                for s in trainer.private.prepared.pool.slots
            ]
        )
        outcomes.append(step_once(trainer, iter(trainer.steps)))
        trainer.close()
    assert not all(torch.equal(x[k], y[k]) for x, y in zip(*outcomes, strict=True) for k in x)
