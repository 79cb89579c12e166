"""Contributions of several public lengths: the shape of a row follows from what its contribution signed, never from others."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import ConfigError, CoupledModel, NotPrivateUse  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.worlds.trainer import opening  # noqa: E402
from tests.worlds.training import World, chance_of, make_world  # noqa: E402

LENGTHS = (8, 4, 2)
NOW = int(time.time())
CLASSES = """
[[class]]
name = "long"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
public_lengths = [2, 4, 8]
[[class]]
name = "plain"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""


class Reader(nn.Module):
    """Takes the mean over all positions, padding too, so that a padded row differs from a short one; drops by position."""

    def __init__(self, coupled_at: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 6)
        self.drop = nn.Dropout(0.3)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self._coupled_at = coupled_at

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.inner(self.drop(self.embed(input_ids)))).mean(1)
        if input_ids.shape[1] == self._coupled_at:
            hidden = hidden - hidden.mean(0)
        return self.head(hidden)


def collate(examples: list[dict], length: int) -> dict[str, torch.Tensor]:
    ids = [(example["ids"] + [0] * length)[:length] for example in examples]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([example["label"] for example in examples])}


def record(seed: int) -> dict[str, Any]:
    """Records of the first class alternate between lengths; those of the second say none."""
    return {"ids": [1 + (seed * 7 + place) % 30 for place in range(1 + seed % 8)], "label": seed % 3, "seed": seed}


def length_of(content: bytes) -> int | None:
    seed = json.loads(content)["seed"]
    return LENGTHS[seed % 3] if seed < 1000 else None


def losses(model: nn.Module, rows: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(rows["input_ids"]), rows["labels"], reduction="none")


def world_of(root: Path, **options: Any) -> World:
    with chance_of("lengths"):
        given = {"classes": CLASSES, "record": record, "length_of": length_of, "rate": "1", "now": NOW} | options
        return make_world(root, **given)


class Run:
    """A run, and what its loop saw of every private row: the loss and the length, by its name."""

    def __init__(self, world: World, model: nn.Module | None = None, *, compiled: bool = False, **options: Any) -> None:
        torch.manual_seed(3)
        self.model = model or Reader()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.private = PrivateTraining.open(
            world.policy, world.corpus, progress=False, **opening(world.ledger, **{"microbatch": 3} | options)
        )
        _, _, self.steps = self.private.prepare(self.model, self.optimizer, collate)
        self.loss = self.private.loss(losses, compiled=True) if compiled else losses
        self.seen: dict[bytes, tuple[float, int]] = {}
        self.shapes: list[tuple[int | None, torch.Size]] = []

    def step(self, step: Any) -> None:
        for rows in step:
            found = self.loss(self.model, rows)
            if not self.private.prepared.probe.active:
                self.shapes.append((rows.length, rows["input_ids"].shape))
                values = found.detach().tolist()
                self.seen |= {name: (value, rows.length) for name, value in zip(rows.names, values, strict=True)}
            self.private.backward(found, rows)
        self.optimizer.step()

    def first(self) -> dict[bytes, tuple[float, int]]:
        """Runs one step and ends the run."""
        self.step(next(iter(self.steps)))
        self.private.close()
        return self.seen


def test_every_contribution_has_the_length_that_it_signed_or_the_longest(tmp_path: Path) -> None:
    run = Run(world_of(tmp_path, per_class=7))
    pool = run.private.prepared.pool
    seen = run.first()
    assert all(shape[1] == length for length, shape in run.shapes)
    assert [length for length, _ in run.shapes] == sorted((length for length, _ in run.shapes), reverse=True)
    for index in range(len(pool)):
        signed = pool.slots.admission(index).descriptor.public_length
        assert seen[pool.slots.descriptor_hash(index) + bytes(4)][1] == (signed or 8)
    assert {length for _, length in seen.values()} == set(LENGTHS)


def test_what_a_contribution_gives_is_the_same_whoever_is_drawn_with_it(tmp_path: Path) -> None:
    """Losses under dropout, of a model that reads padding: a row in another's shape, or under its numbers, differs."""
    few = Run(world_of(tmp_path / "few", per_class={"long": 6, "plain": 1})).first()
    many = Run(world_of(tmp_path / "many", per_class={"long": 6, "plain": 9})).first()
    common = few.keys() & many.keys()
    assert len(common) == 7
    for name in common:
        assert few[name] == pytest.approx(many[name], abs=1e-6)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_coupling_at_one_length_alone_is_found_before_anything_is_charged(tmp_path: Path, length: int) -> None:
    world = world_of(tmp_path, per_class=4)
    run = Run(world, Reader(coupled_at=length))
    with pytest.raises(CoupledModel):
        run.first()
    assert not world.ledger.exists()


def test_a_coupling_at_a_length_that_nobody_signed_is_nobodys(tmp_path: Path) -> None:
    assert Run(world_of(tmp_path, per_class=4), Reader(coupled_at=3)).first()


def test_a_collate_that_takes_no_length_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    private = PrivateTraining.open(world.policy, world.corpus, progress=False, **opening(world.ledger))
    with pytest.raises(ConfigError, match=r"COLLATE.*8, 4, 2 tokens.*collate\(examples, length\)"):
        private.prepare(Reader(), torch.optim.SGD(Reader().parameters(), lr=0.1), lambda examples: collate(examples, 8))


def test_a_collate_that_does_not_pad_to_the_length_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path, per_class=8)
    private = PrivateTraining.open(world.policy, world.corpus, progress=False, **opening(world.ledger))
    model = Reader()

    def longest(examples: list[dict], length: int) -> dict[str, torch.Tensor]:
        return collate(examples, min(length, max(len(example["ids"]) for example in examples)))

    with pytest.raises(CoupledModel, match="PADDING"):
        private.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), longest)


@pytest.mark.parametrize("exactness", ["fast", "certified"])
def test_a_whole_run_is_audited_in_full_and_goes_on_after_an_interruption(tmp_path: Path, exactness: str) -> None:
    world = world_of(tmp_path, per_class=5, rate="0.5", policy_extra=f'exactness = "{exactness}"\n')
    run = Run(world)
    for step in run.steps:
        run.step(step)
        if step.number == 2:
            run.private.save()
            break
    run.private.close()
    run = Run(world, resume=True)
    for step in run.steps:
        run.step(step)
    out = run.private.export(tmp_path / "export")
    key, owner = run.private.opened.recorder.signer.vkey, run.private.opened.recorder.owner_public
    run.private.close()
    found = verify_export(out, [key], owner_key=owner)
    assert found.verdict == "FULL", found.findings


@pytest.mark.slow
def test_a_graph_is_compiled_for_every_length(tmp_path: Path) -> None:
    plain = Run(world_of(tmp_path / "plain", per_class=6)).first()
    run = Run(world_of(tmp_path / "compiled", per_class=6), compiled=True)
    assert run.first() == {name: pytest.approx(value, abs=1e-5) for name, value in plain.items()}
    assert run.loss.graphs == 3


def test_a_form_with_a_length_that_the_class_does_not_offer_resolves_to_nothing(tmp_path: Path) -> None:
    """Nothing rests on the gate having run: whatever turns bounds into noise asks again."""
    run = Run(world_of(tmp_path, per_class=3))
    schedule, slots = run.private.prepared.schedule, run.private.prepared.pool.slots
    admission = slots.admission(0)
    admission._descriptor = replace(admission.descriptor, public_length=3)
    with pytest.raises(NotPrivateUse, match=r"PUBLIC_LENGTH.*is 3, class long offers 2, 4, 8"):
        schedule.resolve(admission)
    run.private.close()
