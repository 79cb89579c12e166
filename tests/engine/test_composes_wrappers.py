"""accelerate, averages of weights, copies, saved models, evaluation in the loop, and several runs in one process.

Runs under one test key draw the same contributions and the same noise, so whatever must make no difference makes none in
the last bit of the trained parameters.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402

from dptrain.errors import CoupledModel, DptrainError, NotPrivateUse, StepOrder, UnsupportedModule  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from tests.guarantees.peers import NORMALIZER, Run, collate, net, per_example, small_world  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import World  # noqa: E402

STEPS = 3

State = dict[str, torch.Tensor]


def state_of(model: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(first: State, second: State) -> None:
    assert list(first) == list(second)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def idle(run: Run) -> None:
    """What happens besides the run, when nothing does."""


def train(run: Run, *, between: Callable[[Run], Any] = idle, inside: Callable[[Run], Any] = idle) -> State:
    """Trains to the end; ``inside`` runs after every backward pass and before every forward, ``between`` after every step."""
    for step in run.steps:
        for rows in step:
            inside(run)
            run.private.backward(per_example(run.model, rows), rows)
            inside(run)
            assert all(p.grad is None for p in run.model.parameters())
        assert all(p.grad is not None for p in run.model.parameters())
        run.optimizer.step()
        between(run)
    return state_of(run.model)


def dropping() -> nn.Module:
    return net(lambda: nn.Dropout(0.5))


@pytest.fixture
def world(tmp_path) -> World:
    """One for both runs of a comparison: masks belong to contributions, and another world has others."""
    return small_world(tmp_path / "world", steps=STEPS)


@pytest.fixture
def plain(world) -> State:
    """What the run gives when nothing else happens."""
    torch.manual_seed(1)
    with Run(world, dropping(), microbatch=2) as run:
        return train(run)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


# --- accelerate ------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("order", ["accelerate first", "dptrain first", "without accelerate"])
def test_accelerate_in_either_order_with_a_prepared_scheduler(tmp_path, order: str) -> None:
    torch.manual_seed(0)
    model = net()
    optimizer: Any = adamw(model)
    scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5**k)
    accelerator = None if order == "without accelerate" else Accelerator(cpu=True)
    if accelerator and order == "accelerate first":
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    world = small_world(tmp_path, steps=STEPS)
    with Run(world, model, optimizer=optimizer, accelerator=accelerator) as run:
        steps = run.steps
        if accelerator and order == "dptrain first":
            model, optimizer, scheduler, steps = accelerator.prepare(model, optimizer, scheduler, steps)
            assert steps is run.steps, "the loop over steps passes through accelerate as it is"
        scheduled = len(run.private.prepared.router.tensors)
        for step in steps:
            for rows in step:
                if accelerator:
                    with accelerator.accumulate(model):
                        run.private.backward(per_example(model, rows), rows)
                else:
                    run.private.backward(per_example(model, rows), rows)
            assert sum(p.grad is not None for p in model.parameters()) == scheduled
            if accelerator:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        assert run.private.opened.recorder.ledger.state.charged == STEPS
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**STEPS)
    found = state_of(model if accelerator is None else accelerator.unwrap_model(model))
    reference = torch.load(_reference(tmp_path), weights_only=True)
    assert_same(found, reference)


def _reference(root: Any) -> Any:
    """The same run with plain torch objects, saved once."""
    path = root / "reference.pt"
    torch.manual_seed(0)
    model = net()
    optimizer = adamw(model)
    with Run(small_world(root / "reference", steps=STEPS), model, optimizer=optimizer) as run:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5**k)
        for step in run.steps:
            run.gradients(step)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    torch.save(state_of(model), path)
    return path


def test_accelerators_own_backward_leaves_no_gradient_and_adds_nothing(tmp_path, world, plain) -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    with Run(world, dropping(), microbatch=2, accelerator=accelerator) as run:
        for step in run.steps:
            for rows in step:
                losses = per_example(run.model, rows)
                accelerator.backward(losses.sum() * 1e6, retain_graph=True)
                assert all(p.grad is None for p in run.model.parameters())
                run.private.backward(losses, rows)
            run.optimizer.step()
        assert_same(state_of(run.model), plain)
    with Run(small_world(tmp_path / "b"), net(), accelerator=accelerator) as run:
        with pytest.raises(StepOrder, match="BACKWARD_MISSING"):
            for rows in next(iter(run.steps)):
                accelerator.backward(per_example(run.model, rows).mean())
        assert all(p.grad is None for p in run.model.parameters())


# --- averages of weights, copies -------------------------------------------------------------------------------------


@pytest.mark.one_in(99)
@pytest.mark.parametrize("kind", ["swa", "ema"])
@pytest.mark.parametrize("made", ["before prepare", "during the run"])
def test_averages_of_the_weights_are_averages_of_released_states(tmp_path, kind: str, made: str) -> None:
    average = get_ema_multi_avg_fn(0.9) if kind == "ema" else None
    model = net()
    averaged = AveragedModel(model, multi_avg_fn=average) if made == "before prepare" else None
    states: list[State] = []
    with Run(small_world(tmp_path, steps=STEPS), model, optimizer=adamw(model)) as run:
        for step in run.steps:
            run.gradients(step)
            run.optimizer.step()
            if averaged is None:
                averaged = AveragedModel(model, multi_avg_fn=average)
            averaged.update_parameters(model)
            states.append(state_of(model))
            with torch.no_grad():
                averaged(torch.ones(2, 7, dtype=torch.long))
        assert all(p.grad is None for p in averaged.parameters())
    for name, value in averaged.module.state_dict().items():
        expected = states[0][name]
        for count, state in enumerate(states[1:], 1):
            share = 0.1 if kind == "ema" else 1.0 / (count + 1)
            expected = expected + (state[name] - expected) * share
        assert torch.allclose(value, expected, rtol=0, atol=1e-12), name


@pytest.mark.one_in(99)
@pytest.mark.parametrize("when", ["between steps", "with a microbatch under way"])
def test_a_copy_of_the_model_is_no_part_of_the_run(world, plain, when: str) -> None:
    """Its hooks do nothing: its forwards, its own training and its size leave the run alone, and no gradient comes along."""
    copies: list[nn.Module] = []

    def clone(run: Run) -> None:
        twin = copy.deepcopy(run.model)
        copies.append(twin)
        assert all(p.grad is None for p in twin.parameters())
        for hook in (h for m in twin.modules() for h in [*m._forward_hooks.values(), *m._forward_pre_hooks.values()]):
            router = hook.func.__self__
            assert isinstance(router, Router) and router is not run.private.prepared.router and not hasattr(router, "sums")
        twin.eval().requires_grad_(True)
        other = {"ids": torch.ones(5, 7, dtype=torch.long), "labels": torch.zeros(5, dtype=torch.long)}
        with torch.set_grad_enabled(when == "between steps"):  # a foreign leaf within a microbatch would be refused
            losses = per_example(twin, other)
        if when == "between steps":
            losses.sum().backward()
            assert all(p.grad is not None for p in twin.parameters()), "the copy trains as any model does"
        assert all(not p.requires_grad for p in run.model.parameters()) or run.private.prepared.probe.active

    torch.manual_seed(1)
    with Run(world, dropping(), microbatch=2) as run:
        hooked = {"between": clone} if when == "between steps" else {"inside": clone}
        assert_same(train(run, **hooked), plain)
    assert copies and all(type(c) is type(run.model) for c in copies)


def test_a_copy_made_during_a_run_can_be_the_model_of_another_run(tmp_path) -> None:
    with Run(small_world(tmp_path, steps=1), net()) as run:
        run.gradients(next(iter(run.steps)))
        twin = copy.deepcopy(run.model)
        run.optimizer.step()
    with pytest.raises(UnsupportedModule, match="NOTHING_TO_TRAIN"):
        Run(small_world(tmp_path / "b"), twin)
    twin.requires_grad_(True)
    fresh = net()
    found = []
    for name, model in (("c", twin), ("d", fresh)):
        with Run(small_world(tmp_path / name, steps=2), model) as run:
            found.append(train(run))
    assert_same(*found)


# --- saved models ----------------------------------------------------------------------------------------------------


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", ["bert", "gpt2_tied"])
def test_transformers_save_during_and_after_a_run_and_load_back(tmp_path, family: str) -> None:
    trainer = Trainer(small_world(tmp_path, steps=2, now=None), family)
    kind, keys = type(FAMILIES[family]().model), list(trainer.model.state_dict())
    assert type(trainer.private.prepared.model) is kind and isinstance(trainer.model, nn.Module)
    for step in trainer.steps:
        for rows in step:
            trainer.private.backward(trainer.losses(rows), rows)
            trainer.model.save_pretrained(tmp_path / "inside")
        trainer.optimizer.step()
        where = tmp_path / f"step-{step.number}"
        trainer.model.save_pretrained(where)
        loaded = kind.from_pretrained(where)
        assert list(loaded.state_dict()) == keys
        assert_same(loaded.state_dict(), state_of(trainer.model))
        assert all(p.requires_grad for p in loaded.parameters())
    trainer.close()
    trainer.model.save_pretrained(tmp_path / "after")
    assert_same(kind.from_pretrained(tmp_path / "after").state_dict(), state_of(trainer.model))
    assert all(p.requires_grad for p in trainer.model.parameters())


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", ["bert_lora", "gpt2_lora"])
def test_peft_saves_adapters_during_and_after_a_run_and_loads_back(tmp_path, family: str) -> None:
    from peft import PeftModel

    trainer = Trainer(small_world(tmp_path, steps=2, now=None), family)
    trainable = {n for n, p in FAMILIES[family]().model.named_parameters() if p.requires_grad}

    def check(where: Any) -> None:
        trainer.model.save_pretrained(where)
        torch.manual_seed(0)
        base = FAMILIES[family]().model.unload().to(torch.float32)
        loaded = PeftModel.from_pretrained(base, where, is_trainable=True)
        assert_same(loaded.state_dict(), state_of(trainer.model))
        assert {n for n, p in loaded.named_parameters() if p.requires_grad} == trainable

    for step in trainer.steps:
        trainer.one(step)
        check(tmp_path / f"step-{step.number}")
    trainer.close()
    check(tmp_path / "after")


def test_adapters_switched_off_inside_the_loop_are_refused_by_name(tmp_path) -> None:
    """peft's disable_adapter() gives the adapter back to autograd when it ends; no raw gradient may follow."""
    trainer = Trainer(small_world(tmp_path, steps=2, now=None), "bert_lora")
    steps = iter(trainer.steps)
    trainer.one(next(steps))
    with pytest.raises(NotPrivateUse, match="REQUIRES_GRAD"):
        for rows in next(steps):
            with trainer.model.disable_adapter(), torch.no_grad():
                trainer.losses(rows)
            trainer.private.backward(trainer.losses(rows), rows)
    assert all(p.grad is None for p in trainer.model.parameters())
    trainer.close()


def test_the_whole_model_can_be_pickled_during_a_run(tmp_path) -> None:
    """Neither keys nor sums hang on the model: torch.save of the module itself holds weights and hooks that do nothing."""
    with Run(small_world(tmp_path, steps=1), net(), microbatch=2) as run:
        for rows in next(iter(run.steps)):
            losses = per_example(run.model, rows)
            torch.save(run.model, tmp_path / "whole.pt")
            run.private.backward(losses, rows)
            torch.save(run.model, tmp_path / "whole.pt")
        loaded = torch.load(tmp_path / "whole.pt", weights_only=False)
        hooks = [h for m in loaded.modules() for h in [*m._forward_hooks.values(), *m._forward_pre_hooks.values()]]
        assert hooks and all(vars(hook.func.__self__) == {"_armed": None} for hook in hooks)
        assert_same(loaded.state_dict(), run.model.state_dict())
        assert float(loaded.requires_grad_(True)(torch.ones(2, 7, dtype=torch.long)).detach().abs().sum()) > 0


# --- evaluation in the loop ------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("guard", [torch.inference_mode, torch.no_grad, torch.enable_grad], ids=lambda g: g.__name__)
@pytest.mark.parametrize("when", ["between", "inside"])
def test_evaluation_inside_the_loop_changes_nothing(world, plain, guard: Any, when: str) -> None:
    """Between steps, and with a microbatch under way (before its forward, after its backward pass), in eval mode."""
    if when == "inside" and guard is torch.enable_grad:
        pytest.skip("a graph over other rows while a microbatch is armed is refused; see the next test")
    outputs = []

    def evaluate(run: Run) -> None:
        run.model.eval()
        with guard():
            outputs.append(run.model(torch.ones(5, 7, dtype=torch.long)))
        run.model.train()

    torch.manual_seed(1)
    with Run(world, dropping(), microbatch=2) as run:
        assert_same(train(run, **{when: evaluate}), plain)
    assert outputs and all(not out.requires_grad for out in outputs)


def test_a_graph_over_other_rows_while_a_microbatch_is_under_way_is_refused(tmp_path) -> None:
    with Run(small_world(tmp_path), net()) as run, pytest.raises(DptrainError, match="BATCH_DIMENSION"):
        for rows in next(iter(run.steps)):
            run.model(torch.ones(5, 7, dtype=torch.long))
            run.private.backward(per_example(run.model, rows), rows)


def test_a_mode_switched_to_coupling_after_the_check_of_the_step_is_refused(tmp_path) -> None:
    """Batch norm in eval() couples nothing; train() inside the microbatch, after the start of the step was checked, does."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x.mT).mT

    model = net(Turned).eval()
    with Run(small_world(tmp_path, steps=3), model) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        with pytest.raises(CoupledModel, match="BATCH_NORM"):
            for rows in next(steps):
                model.train()
                run.private.backward(per_example(model, rows), rows)
        assert all(p.grad is None for p in model.parameters())


# --- several runs in one process -------------------------------------------------------------------------------------


def test_two_runs_side_by_side_are_two_runs(tmp_path) -> None:
    def make(name: str) -> Run:
        model = net()
        return Run(small_world(tmp_path / name, steps=STEPS), model, optimizer=adamw(model), microbatch=2)

    with make("alone") as alone:
        expected = train(alone)
    with make("first") as first, make("second") as second:
        for one, two in zip(first.steps, second.steps, strict=True):
            batches = [iter(one), iter(two)]
            while batches:  # microbatches of the two runs take turns
                for run, own in ((first, batches[0]), (second, batches[-1])):
                    rows = next(own, None)
                    if rows is None:
                        batches.remove(own)
                        break
                    run.private.backward(per_example(run.model, rows), rows)
            first.optimizer.step()
            second.optimizer.step()
        assert_same(state_of(first.model), expected)
        assert_same(state_of(second.model), expected)


def test_one_model_is_not_bound_twice_and_one_optimizer_does_not_serve_two_runs(tmp_path) -> None:
    model, other = net(), net()
    world = small_world(tmp_path, steps=2)
    with Run(world, model) as run:
        with pytest.raises(UnsupportedModule, match="NOTHING_TO_TRAIN"):
            Run(world, model, optimizer=run.optimizer, name="other")
        run.gradients(next(iter(run.steps)))
        run.optimizer.step()
    assert all(p.requires_grad for p in model.parameters())
    shared = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(DptrainError, match="OPTIMIZER_FOREIGN"):
        Run(world, model, optimizer=shared)


def test_a_model_can_be_trained_again_after_its_run_was_closed(tmp_path) -> None:
    model = net()
    with Run(small_world(tmp_path, steps=1), model) as run:
        train(run)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(torch.ones(2, 7, dtype=torch.long)), torch.tensor([0, 1])).backward()
    optimizer.step()
    with Run(small_world(tmp_path / "again", steps=2), model, optimizer=optimizer, collate_fn=collate) as run:
        train(run)
        assert float(next(model.parameters()).grad.abs().max()) * NORMALIZER > 0
