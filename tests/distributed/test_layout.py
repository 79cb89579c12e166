"""Where rows of sharded parameters lie is checked against torch's own reduction, before anything is charged."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import UnsupportedModule, UnsupportedPolicy  # noqa: E402
from dptrain.parallel.placement import Shards  # noqa: E402
from tests.distributed.jobs import Job, opened  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import small_world  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402


def begun(rank: int, root: Path, turned: bool) -> str:
    """Runs the start of a run under FSDP2; with sums that go to the rows of others, if they are turned."""
    if turned:
        add = Shards.add

        def other(self: Shards, index: int, total: Any) -> None:
            add(self, index, None if total is None else total.flip(0))

        Shards.add = other  # type: ignore[method-assign]
    trainer = Trainer(World.at(root), "bert", sharded=True)
    try:
        trainer.begin()
    except UnsupportedModule as error:
        return error.code
    finally:
        trainer.close()
    return "begun"


def split(rank: int, root: Path) -> str:
    try:
        Trainer(World.at(root), "bert", sharded=True)
    except UnsupportedPolicy as error:
        return error.code
    return "prepared"


HEADS = """
[[class]]
name = "some"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0, heads = [0] }}
[[class]]
name = "all"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""


def test_sums_that_would_go_to_rows_of_others_are_refused(tmp_path: Path) -> None:
    make_world(tmp_path, steps=2)
    assert launched(begun, 2, tmp_path, True) == ["SHARD_LAYOUT", "SHARD_LAYOUT"]
    assert not (tmp_path / "ledger.db").exists()
    assert launched(begun, 2, tmp_path, False) == ["begun", "begun"]


def test_masks_of_heads_over_sharded_parameters_are_refused_by_name(tmp_path: Path) -> None:
    make_world(tmp_path, steps=2, classes=HEADS)
    assert launched(split, 2, tmp_path) == ["SPLIT_SHARDED", "SPLIT_SHARDED"]


class Attends(nn.Module):
    """Token ids -> class; attention of torch is one site with all that is in it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, width), nn.Linear(width, 3)
        self.layers = nn.ModuleList([nn.MultiheadAttention(width, 2, batch_first=True)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        logits: torch.Tensor = self.head(self.layers[0](x, x, x)[0].mean(1))
        return logits


def cut_inside() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = Attends()
    fully_shard(model.layers[0].out_proj)
    fully_shard(model)
    return model


def unit_inside(rank: int, root: Path) -> str:
    try:
        opened(Job(root, options={"model": cut_inside, "wrap": lambda model: model}))
    except UnsupportedModule as error:
        return error.code
    return "prepared"


def test_a_unit_inside_a_module_that_runs_again_is_refused_by_name(tmp_path: Path) -> None:
    small_world(tmp_path, per_class=4, steps=2)
    assert launched(unit_inside, 2, tmp_path) == ["AGAIN_SHARDED", "AGAIN_SHARDED"]
