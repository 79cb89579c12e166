"""A step waits for its device once a microbatch: for the norms by which it clips."""

import pytest

torch = pytest.importorskip("torch")

from dptrain.data import microbatch  # noqa: E402
from dptrain.kernels import reductions  # noqa: E402
from dptrain.routing.accumulate import Folding  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from tests.worlds.device_reads import DeviceReads  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

CLIP = "clipping/fast.py:_on_host:cpu"


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(tmp_path, per_class=4, steps=3, window_steps=2, rate="1")


def reads(world: World, family: str, monkeypatch, size: int = 3) -> tuple[list[dict[str, int]], dict[str, int]]:
    """Returns what the host reads of a device in each microbatch of the second step, and in all of the step."""
    monkeypatch.setattr(Sandbox, "_found", lambda self, bad: True)  # what it says on a device
    monkeypatch.setattr(reductions, "takes_rows", lambda matrix: False)  # likewise
    trainer = Trainer(world, family, microbatch=size)
    steps, each = iter(trainer.steps), []
    trainer.one(next(steps))
    watch = DeviceReads([*trainer.model.parameters(), *trainer.model.buffers()])
    with watch.watching():
        for rows in next(steps):
            for value in rows.inputs.values():
                watch.place(value)
            before = watch.found.copy()
            trainer.private.backward(trainer.losses(rows), rows)
            each.append(dict(watch.found - before))
    trainer.optimizer.step()
    trainer.close()
    return each, dict(watch.found)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", ["bert", "gpt2_lora", "bert_lora"])
def test_the_host_reads_a_device_once_a_microbatch(world: World, monkeypatch, family: str) -> None:
    each, _ = reads(world, family, monkeypatch)
    assert len(each) > 2 and each == [{CLIP: 1}] * len(each)


def test_what_a_step_reads_beside_that_does_not_grow_with_its_microbatches(tmp_path, monkeypatch) -> None:
    found = []
    for size in (2, 3):
        world = make_world(tmp_path / str(size), per_class=4, steps=3, window_steps=2, rate="1")
        each, whole = reads(world, "bert", monkeypatch, size)
        assert whole.pop(CLIP) == len(each)
        found.append(whole)
    assert found[0] == found[1]


def test_a_read_that_is_planted_is_found(world: World, monkeypatch) -> None:
    original = Folding.backward

    def backward(self, losses, rows):
        assert losses.sum().item() == losses.sum().item()
        return original(self, losses, rows)

    monkeypatch.setattr(Folding, "backward", backward)
    each, _ = reads(world, "bert", monkeypatch)
    assert all(sum(one.values()) == 3 and one[CLIP] == 1 for one in each)


def test_whether_an_index_is_out_of_range_is_not_asked_of_a_device(world: World) -> None:
    """A tensor without numbers has no answer, and none is asked for."""
    trainer = Trainer(world)
    sandbox = trainer.private.prepared.sandbox
    with sandbox.enter(0, (b"row",), learning=True):
        assert sandbox._found(torch.zeros(3, dtype=torch.bool, device="meta"))
        assert not sandbox._found(torch.zeros(3, dtype=torch.bool))
    trainer.close()


def test_rows_go_to_a_device_from_pinned_memory_and_nobody_waits(monkeypatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (done.append("pinned"), self)[1])
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: "pinned" in done)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **how: (done.append((*args, how)), self)[1])
    value, device = torch.ones(2), torch.device("cuda")
    rows = microbatch.build([[1], [2]], lambda rows: {"x": value}, device)
    assert rows["x"] is value and done == ["pinned", (device, {"non_blocking": True})]
    microbatch.to_device(value, device)  # which lies there already
    assert done.count("pinned") == 1
    done.clear()
    microbatch.to_device(value, torch.device("cpu"))
    assert done == [(torch.device("cpu"), {})]
