"""What a program can do around an optimizer of pairs: nothing acts between the check of a release and its use unseen."""

import importlib
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from dptrain.errors import ConfigError, NonFinite, NotPrivateUse, UnsupportedModule  # noqa: E402
from dptrain.geometry import TangentAdam, TangentSGD  # noqa: E402
from dptrain.geometry.pairs import find_pairs  # noqa: E402
from dptrain.sandbox.isolation import IsolationNotice  # noqa: E402
from tests.geometry.runs import LAYERS, LINE, adam, first, net, run_of, tangent_world  # noqa: E402
from tests.guarantees.peers import Run, collate, per_example  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

REQUIRED = LINE + "[isolation]\nrequired = true\n"
TOP = (
    '\n[[class]]\nname = "top"\nclip_norm = 1.0\nnoise_multiplier = 1.0\nsampling_rate = {q}\n'
    "depth = {{ from = 0.67, to = 1.0 }}\n"
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return tangent_world(tmp_path / "world", policy=REQUIRED, steps=3)


def stepped(run: Run) -> None:
    run.gradients(next(iter(run.steps)))
    run.optimizer.step()


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_step_hooks_of_the_other_optimizer_are_refused(world: World, kind: str) -> None:
    with run_of(world, net()) as run:
        getattr(run.optimizer.others, f"register_step_{kind}_hook")(lambda *_: None)
        with pytest.raises(NotPrivateUse, match=r"OPTIMIZER_HOOK.*register them on the TangentAdam"):
            stepped(run)


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_all_optimizers_do_not_reach_the_other_one(world: World, when: str) -> None:
    seen = []
    register = getattr(importlib.import_module("torch.optim.optimizer"), f"register_optimizer_step_{when}_hook")
    with run_of(world, net()) as run:
        handle = register(lambda optimizer, *_: seen.append(type(optimizer).__name__))
        try:
            stepped(run)
        finally:
            handle.remove()
    assert seen == ["TangentAdam"]


class Mixed(torch.optim.SGD):
    """Keeps nothing apart."""


def replaced(optimizer: Any) -> None:
    optimizer.others = Mixed(optimizer.others.param_groups)


def shadowed(optimizer: Any) -> None:
    own = optimizer.directions
    optimizer.directions = types.MethodType(lambda self, *parts: own(*parts) * float(parts[3].X.norm()), optimizer)


def another_sgd(optimizer: Any) -> None:
    optimizer.others = torch.optim.SGD(optimizer.others.param_groups)


def other_pairs(optimizer: Any) -> None:
    optimizer.pairs = optimizer.pairs[::-1]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("change", [replaced, shadowed, another_sgd, other_pairs])
def test_an_optimizer_that_is_changed_behind_prepare_is_judged_again(world: World, change: Any) -> None:
    with run_of(world, net()) as run:
        change(run.optimizer)
        with pytest.raises(NotPrivateUse, match=r"ISOLATION|GRADIENT_REPLACED"):
            stepped(run)


@pytest.mark.parametrize("what", ["U", "V", "stds"])
def test_frames_and_noise_of_a_release_are_watched(tmp_path: Path, what: str) -> None:
    with run_of(tangent_world(tmp_path / "world"), net()) as run:
        run.gradients(next(iter(run.steps)))
        if what == "stds":
            run.optimizer.stds[0] *= 2.0
        else:
            getattr(run.optimizer.released[0], what).mul_(2.0)
        with pytest.warns(IsolationNotice, match="gradients were changed"):
            run.optimizer.step()


def test_a_direction_for_a_pair_that_no_class_may_touch_is_refused_and_an_earlier_one_forgotten(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", classes=TOP, per_class=3, steps=2, rate="1", now=1_800_000_000, policy_extra=REQUIRED)
    model = net()
    optimizer = adam(model)
    with run_of(tangent_world(tmp_path / "other"), net()) as other:
        other.gradients(next(iter(other.steps)))
        direction = other.optimizer.released[0]
    optimizer.take(0, direction)
    frozen = optimizer.pairs[0].A.detach().clone()
    with Run(world, model, layers=LAYERS, optimizer=optimizer) as run:
        stepped(run)
        assert torch.equal(optimizer.pairs[0].A, frozen)
        run.gradients(next(iter(run.steps)))
        optimizer.take(0, direction)
        with pytest.raises(NotPrivateUse, match="GRADIENT_REPLACED"):
            optimizer.step()


def test_groups_of_the_other_optimizer_are_seen_whenever_they_came(world: World) -> None:
    foreign = torch.nn.Parameter(torch.zeros(2))
    with run_of(world, net()) as run:
        run.optimizer.others.add_param_group({"params": [foreign]})
        run.gradients(next(iter(run.steps)))
        foreign.grad = torch.ones(2)
        with pytest.raises(NotPrivateUse, match="FOREIGN_GRADIENT"):
            run.optimizer.step()


def test_the_other_optimizer_has_all_that_trains_and_moves_no_pairs() -> None:
    model = net()
    with pytest.raises(ConfigError, match=r"GEOMETRY: the SGD in others= lacks 6 trainable parameters"):
        TangentAdam(model, others=torch.optim.SGD([model.base_model.model.head.weight]))
    with pytest.raises(ConfigError, match="GEOMETRY: others is a TangentSGD"):
        TangentAdam(model, others=lambda parameters: TangentSGD(model))
    added = adam(model)
    added.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 7.0})
    assert [group["lr"] for group in added.param_groups][-1] == 7.0 == added.others.param_groups[-1]["lr"]


def test_factors_too_small_for_the_frames_of_their_type_stop_no_contribution(tmp_path: Path) -> None:
    def tiny() -> Any:
        model = net(dtype=torch.float32)
        pair = find_pairs(model)[0]
        with torch.no_grad():
            pair.A.mul_(1e-39)
            pair.Bt.mul_(1e-39)
        return model

    with run_of(tangent_world(tmp_path / "world"), tiny()) as run:
        grads = run.gradients(next(iter(run.steps)))
        assert run.optimizer.released[0] is None and run.optimizer.released[1] is not None
        assert float(grads["base_model.model.head.weight"].norm()) > 0


def test_a_factor_that_is_not_finite_is_told_by_name(world: World) -> None:
    with run_of(world, net()) as run:
        run.gradients(next(iter(run.steps)))
        run.optimizer.step()
        run.optimizer.pairs[0].A.data[0, 0] = float("nan")
        with pytest.raises((NonFinite, NotPrivateUse), match=r"not finite|ISOLATION"):
            for step in run.steps:
                run.gradients(step)


def test_a_dry_run_moves_pairs_along_their_tangent_space(tmp_path: Path) -> None:
    world, model = tangent_world(tmp_path / "world"), net()
    from dptrain import PrivateTraining
    from tests.worlds.trainer import opening

    how = opening(world.root / "dry.db", progress=False, insecure_test_key=bytes(32), clock=lambda: world.now)
    run = PrivateTraining.open(world.policy, world.corpus, **how)
    _, optimizer, steps = run.prepare(model, adam(model), collate, layers=LAYERS, dry_run=True)
    for step in steps:
        for rows in step:
            run.backward(per_example(model, rows), rows)
        assert all(direction is not None for direction in optimizer.released)
        optimizer.step()
    run.close()


def test_a_factor_that_is_computed_and_one_of_a_convolution_are_refused_by_name(tmp_path: Path) -> None:
    model = net()
    torch.nn.utils.parametrizations.weight_norm(model.get_submodule(find_pairs(model)[0].module).lora_A["default"])
    with pytest.raises(UnsupportedModule, match="GEOMETRY_PAIR"):
        find_pairs(model)
    assert first(tangent_world(tmp_path / "world"), net())
