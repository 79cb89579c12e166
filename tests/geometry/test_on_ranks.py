"""A run under a geometry on two processes: frames come from the first, and the sums are those of one within rounding."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from dptrain.errors import RanksError, UnsupportedModule  # noqa: E402
from dptrain.geometry.charts import Charts  # noqa: E402
from dptrain.geometry.pairs import find_pairs  # noqa: E402
from tests.distributed.launched import RankFailed, launched  # noqa: E402
from tests.geometry.runs import LINE, adam, net, run_of  # noqa: E402
from tests.guarantees.peers import per_example  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

STEPS = 3
CLASSES = (
    '\n[[class]]\nname = "open"\nclip_norm = 0.5\nnoise_multiplier = 1.0\nsampling_rate = {q}\n'
    "depth = {{ from = 0.0, to = 1.0 }}\n"
    '[[class]]\nname = "top"\nclip_norm = 1.0\nnoise_multiplier = 1.0\nsampling_rate = {q}\n'
    "depth = {{ from = 0.67, to = 1.0 }}\n"
)


def made(root: Path, steps: int = STEPS) -> World:
    return make_world(
        root, classes=CLASSES, per_class=8, steps=steps, rate="0.75", window_steps=1, now=1_800_000_000, policy_extra=LINE
    )


def trained(rank: int, root: Path, name: str, until: int | None, shift: bool = False) -> dict[str, Any]:
    """Trains on, to the end or to a step, and returns weights and what was released last."""
    world = World.at(root)
    world.now = 1_800_000_000
    model = net(dtype=torch.float32)
    if shift and rank:
        computed = Charts.computed
        pytest.MonkeyPatch().setattr(Charts, "computed", lambda self: [_turned(space) for space in computed(self)])
    with run_of(world, model, microbatch=2, name=name, resume=True) as run:
        for step in run.steps:
            run.gradients(step, lambda net, rows: per_example(net, rows) * 3.0)
            run.optimizer.step()
            if step.number == until:
                run.private.save()
                break
        return {
            "weights": {name: p.detach().clone() for name, p in run.model.named_parameters() if p.grad is None},
            "means": [run.optimizer.state[pair.A]["X"].clone() for pair in run.optimizer.pairs],
            "head": run.private.opened.recorder.ledger.size,
        }


def _turned(space: Any) -> Any:
    """Returns frames as another processor might find them: turned by a sign."""
    space.U, space.PA = -space.U, -space.PA
    return space


@pytest.mark.parametrize(
    "shift",
    [pytest.param(False, id="as they are", marks=pytest.mark.slow), pytest.param(True, id="others would find others")],
)
def test_two_processes_release_what_one_does_and_hold_the_same_bits(tmp_path: Path, shift: bool) -> None:
    world = made(tmp_path / "world")
    alone = launched(trained, 1, world.root, "one", None)[0]
    both = launched(trained, 2, world.root, "two", None, shift)
    assert both[0]["head"] == both[1]["head"] == alone["head"]
    for name, value in both[0]["weights"].items():
        assert torch.equal(value, both[1]["weights"][name]), name
        torch.testing.assert_close(value, alone["weights"][name], rtol=1e-3, atol=1e-4)
    for one, other in zip(both[0]["means"], both[1]["means"], strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_alone_and_the_reverse(tmp_path: Path) -> None:
    world = made(tmp_path / "world")
    for name, (before, after) in {"fewer": (2, 1), "more": (1, 2)}.items():
        begun = launched(trained, before, world.root, name, 2)
        ended = launched(trained, after, world.root, name, None)
        assert begun[0]["head"] < ended[0]["head"]
        assert all(torch.equal(v, ended[-1]["weights"][k]) for k, v in ended[0]["weights"].items())


def drifted(rank: int, root: Path) -> None:
    world = World.at(root)
    world.now = 1_800_000_000
    with run_of(world, net(dtype=torch.float32), name="drift") as run:
        for step in run.steps:
            if step.number == 2 and rank:
                with torch.no_grad():
                    run.optimizer.pairs[0].A.mul_(1.001)
            run.gradients(step)
            run.optimizer.step()


def test_processes_whose_factors_have_drifted_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RankFailed) as failed:
        launched(drifted, 2, made(tmp_path / "world").root)
    errors = failed.value.ranks.values()
    assert any(isinstance(error, RanksError) and "factors of the adapters" in str(error) for error in errors)


def sharded(rank: int, root: Path) -> str:
    world = World.at(root)
    world.now = 1_800_000_000
    from torch.distributed.fsdp import fully_shard

    model = net(dtype=torch.float32)
    try:
        run_of(world, model, name="sharded", wrap=fully_shard)
    except UnsupportedModule as error:
        return error.code
    return "taken"


def test_factors_that_lie_over_processes_are_refused_by_name(tmp_path: Path) -> None:
    assert launched(sharded, 2, made(tmp_path / "world").root) == ["GEOMETRY_SHARDED"] * 2


def test_frames_are_read_as_they_were_written(tmp_path: Path) -> None:
    from dptrain.geometry.charts import ChartedPair

    pairs = find_pairs(net())
    charts = Charts([ChartedPair(2 * place, 2 * place + 1, pair.A, pair.Bt) for place, pair in enumerate(pairs)])
    (space,) = charts.computed()
    (read,) = charts.read(charts.written())
    for name in ("U", "V", "PA", "PB", "rank_A", "rank_B", "A", "B"):
        assert torch.equal(getattr(space, name), getattr(read, name)), name
    assert adam(net()).pairs
