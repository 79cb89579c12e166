"""The same keys on 1, 2 and 4 processes: equal bits at `certified`, equal up to the stated bound at `fast`."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.distributed.launched import launched  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

KEY = b"\x31" * 32
STEPS = 20


def trained(rank: int, root: Path, family: str) -> dict[str, Any]:
    """Trains to the end; returns digests of all states, how many microbatches there were, and the head of the ledger."""
    trainer = Trainer(World.at(root), family, insecure_test_key=KEY, microbatch=4)
    microbatches = 0
    for step in trainer.steps:
        for rows in step:
            microbatches += 1
            trainer.private.backward(trainer.losses(rows), rows)
        trainer.optimizer.step()
    ledger = trainer.private.opened.recorder.ledger
    found = {
        "parameters": digest(dict(trainer.model.named_parameters())),
        "optimizer": digest({f"{i}/{k}": v for i, s in trainer.optimizer.state_dict()["state"].items() for k, v in s.items()}),
        "weights": {name: value.detach().clone() for name, value in trainer.model.named_parameters()},
        "microbatches": microbatches,
        "head": (ledger.size, ledger.root),
        "charged": ledger.state.charged,
        "epsilon": {name: one.spent for name, one in trainer.private.epsilon().items()},
    }
    trainer.close()
    return found


def digest(tensors: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def on(ranks: int, world: World, *arguments: Any, folder: Path) -> list[dict[str, Any]]:
    """Trains a copy of a world, so that each number of processes begins with the same bytes."""
    copy = folder / f"on-{ranks}"
    shutil.copytree(world.root, copy)
    return launched(trained, ranks, copy, *arguments)


@pytest.mark.parametrize("family", ["bert", "gpt2_lora"])
def test_certified_runs_are_equal_to_the_bit_on_any_number_of_processes(tmp_path: Path, family: str) -> None:
    world = make_world(tmp_path / "world", per_class=8, steps=STEPS, rate="0.5", policy_extra='exactness = "certified"')
    found = {ranks: on(ranks, world, family, folder=tmp_path) for ranks in (1, 2, 4)}
    first = found[1][0]
    for ranks, each in found.items():
        for one in each:
            assert one["parameters"] == first["parameters"], f"parameters on {ranks} processes"
            assert one["optimizer"] == first["optimizer"], f"optimizer on {ranks} processes"
            assert one["charged"] == STEPS and one["epsilon"] == first["epsilon"]
        assert len({one["microbatches"] for one in each}) == 1, "ranks ran different numbers of microbatches"
        assert len({one["head"] for one in each}) == 1, "ranks followed different ledgers"
    assert found[2][0]["microbatches"] < first["microbatches"]
