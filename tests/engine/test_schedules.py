"""A schedule that drives the optimizer and is not in the checkpoints is warned of, when one is written."""

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from accelerate import Accelerator  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from tests.guarantees.peers import collate, net, per_example, small_world  # noqa: E402


def saved(world: Any, how: str) -> list[str]:
    """Returns what is warned of when a checkpoint of a run is written."""
    accelerator = Accelerator(cpu=True)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = LambdaLR(optimizer, lambda step: 1.0) if how != "none" else None
    given = accelerator.prepare(schedule) if how == "accelerate" else schedule
    found: list[str] = []
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, accelerator=accelerator) as private:
        states = [given] if how in ("registered", "accelerate") else []
        _, _, steps = private.prepare(model, optimizer, collate, layers="layers", states=states)
        for step in steps:
            for rows in step:
                private.backward(per_example(model, rows), rows)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                private.save()
            found += [str(each.message) for each in caught if "schedule" in str(each.message)]
    return found


@pytest.mark.parametrize("how", ["none", "registered", "accelerate", "forgotten"])
def test_a_schedule_that_is_not_registered_is_warned_of(tmp_path: Path, how: str) -> None:
    found = saved(small_world(tmp_path, now=None), how)
    assert bool(found) == (how == "forgotten")
    assert all("prepare(states=[scheduler])" in sentence for sentence in found)
