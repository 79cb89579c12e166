"""accelerate and torch's wrapper before `prepare`, and after it: replicas stay the same, and nothing reduces."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from tests.distributed.jobs import NOW, digest, loud, net  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.distributed.test_messages import Meter  # noqa: E402
from tests.guarantees.peers import KEY, collate, small_world  # noqa: E402
from tests.worlds.trainer import opening  # noqa: E402
from tests.worlds.training import World  # noqa: E402

STEPS = 2


def trained(rank: int, root: Path) -> dict[str, Any]:
    """A program of accelerate: prepared in its order, then once more in the order that is wrong elsewhere."""
    accelerator = Accelerator(cpu=True)
    world, model = World.at(root), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told: dict[str, Any] = {"processes": accelerator.num_processes, "kind": str(accelerator.distributed_type)}
    options = opening(root / "ledger.db", progress=False, insecure_test_key=KEY, clock=lambda: NOW, microbatch=2)
    private = PrivateTraining.open(world.policy, world.corpus, accelerator=accelerator, **options)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    told["first"] = type(wrapped).__name__
    wrapped, optimizer, steps = private.prepare(wrapped, optimizer, collate, layers="layers")
    again = accelerator.prepare(wrapped)
    told["again"] = again is wrapped
    with pytest.raises(RuntimeError, match="any parameter that requires a gradient"):
        nn.parallel.DistributedDataParallel(model)
    meter, grads = Meter(), []
    for step in steps:
        for rows in step:
            meter.switch("microbatch")
            private.backward(loud(again, rows), rows)
            meter.switch("")
        grads.append(digest({name: parameter.grad for name, parameter in model.named_parameters()}))
        optimizer.step()
        optimizer.zero_grad()
    private.close()
    told |= {"sent": dict(meter.counts["microbatch"]), "grads": grads, "weights": digest(dict(model.named_parameters()))}
    return told


def test_accelerate_may_prepare_first_and_once_more_behind_and_nothing_reduces(tmp_path: Path) -> None:
    """Opacus: made private first, prepared behind, each rank overwrote what was reduced, and replicas drifted apart."""
    small_world(tmp_path, per_class=5, steps=STEPS)
    first, other = launched(trained, 2, tmp_path)
    assert first["processes"] == 2 and first["kind"].endswith("MULTI_CPU") and first["first"] == "DistributedDataParallel"
    assert first["sent"] == other["sent"] == {}
    assert len(first["grads"]) == STEPS and first["grads"] == other["grads"] and first["weights"] == other["weights"]
    assert first["again"] and other["again"]


def bare(rank: int, root: Path) -> tuple[bool, bool, bool]:
    """What torch's wrapper does once a run has ended: its reducer fires as before."""
    world, model = World.at(root), net()
    model.register_buffer("scale", torch.ones(4))
    wrapper = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = opening(root / "closed.db", progress=False, insecure_test_key=KEY, clock=lambda: NOW)
    private = PrivateTraining.open(world.policy, world.corpus, **options)
    private.prepare(wrapper, optimizer, collate, layers="layers")
    held = wrapper.require_backward_grad_sync, wrapper.require_forward_param_sync
    private.close()
    meter = Meter()
    meter.switch("after")
    wrapper(torch.zeros(3, 7, dtype=torch.int64)).sum().backward()
    meter.switch("")
    return held == (False, False), meter.counts["after"]["allreduce_"] > 0, meter.counts["after"]["broadcast_"] > 0


def test_a_wrapper_reduces_again_once_the_run_is_closed(tmp_path: Path) -> None:
    small_world(tmp_path, per_class=5, steps=STEPS)
    assert launched(bare, 2, tmp_path) == [(True, True, True)] * 2
