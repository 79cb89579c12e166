"""Any torch optimizer, scheduler, parameter group and step hook works on private gradients, and sees nothing else.

A shadow model with an optimizer of the same kind is given what was released, step by step, outside the engine; the trained
model must equal it bit by bit. Every run counts its releases: one per scheduled tensor and step.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

from dptrain.errors import ConfigError, NotPrivateUse, StepOrder  # noqa: E402
from dptrain.noise import LatticeGaussian  # noqa: E402
from tests.guarantees.peers import Run, net, per_example, small_world  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

STEPS = 3

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "sgd_nesterov": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd_foreach": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "sgd_fused": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, fused=True),
    "adam_amsgrad": lambda ps: torch.optim.Adam(ps, lr=0.1, amsgrad=True),
    "adam_fused": lambda ps: torch.optim.Adam(ps, lr=0.1, fused=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.1),
    "adamw_foreach": lambda ps: torch.optim.AdamW(ps, lr=0.1, foreach=True),
    "adamw_fused": lambda ps: torch.optim.AdamW(ps, lr=0.1, fused=True),
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.1, weight_decay=0.1),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.1, momentum=0.9, centered=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.1),
    "adagrad_fused": lambda ps: torch.optim.Adagrad(ps, lr=0.1, fused=True),
    "adadelta": lambda ps: torch.optim.Adadelta(ps),
    "adamax": lambda ps: torch.optim.Adamax(ps, lr=0.1),
    "nadam": lambda ps: torch.optim.NAdam(ps, lr=0.1),
    "radam": lambda ps: torch.optim.RAdam(ps, lr=0.1),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.1),
    "asgd": lambda ps: torch.optim.ASGD(ps, lr=0.1),
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["muon"] = lambda ps: torch.optim.Muon(ps, lr=0.1)


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(step, lane) of every release."""
    found: list[tuple[int, int]] = []
    release = LatticeGaussian.release_

    def counted(self: LatticeGaussian, total: torch.Tensor, *args: Any, step: int, lane: int, **kwargs: Any) -> torch.Tensor:
        found.append((step, lane))
        return release(self, total, *args, step=step, lane=lane, **kwargs)

    monkeypatch.setattr(LatticeGaussian, "release_", counted)
    return found


def matrices_only(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dim() == 2)
    return model


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def steps_of(run: Run) -> Iterator[int]:
    """Runs the microbatches of every step, with nothing in p.grad until all are through; the caller takes the step."""
    for step in run.steps:
        for rows in step:
            assert all(p.grad is None for p in run.model.parameters())
            run.private.backward(per_example(run.model, rows), rows)
            assert all(p.grad is None for p in run.model.parameters())
        yield step.number


def shadow_step(run: Run, shadow: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Takes the step on the shadow too, with copies of what was released."""
    for own, other in zip(run.model.parameters(), shadow.parameters(), strict=True):
        other.grad = None if own.grad is None else own.grad.clone()
    optimizer.step()


def assert_equal(model: nn.Module, other: nn.Module) -> None:
    for (name, own), their in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(own, their), name


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_torch_optimizer_trains_on_private_gradients_alone(tmp_path, releases, name: str) -> None:
    model = matrices_only(net()) if name == "muon" else net()
    shadow, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    make = OPTIMIZERS[name]
    other = make(trainable(shadow))
    with Run(small_world(tmp_path, steps=STEPS), model, optimizer=make(trainable(model))) as run:
        lanes = len(run.private.prepared.router.tensors)
        for _ in steps_of(run):
            shadow_step(run, shadow, other)
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert_equal(model, shadow)
    moved = {n for n, p in model.state_dict().items() if not torch.equal(p, start[n])}
    assert moved == {n for n, p in model.named_parameters() if p.requires_grad}, "what is scheduled moves, and nothing else"
    assert releases == [(step, lane) for step in range(1, STEPS + 1) for lane in range(lanes)]


def test_optimizers_that_evaluate_gradients_themselves_are_refused(tmp_path) -> None:
    model = net()
    with pytest.raises(NotPrivateUse, match="CLOSURE_OPTIMIZER"):
        Run(small_world(tmp_path), model, optimizer=torch.optim.LBFGS(model.parameters()))
    with Run(small_world(tmp_path / "b"), net()) as run:
        step = next(iter(run.steps))
        run.gradients(step)
        ran: list[int] = []
        for attempt in (lambda c: run.optimizer.step(c), lambda c: run.optimizer.step(closure=c)):
            with pytest.raises(NotPrivateUse, match="CLOSURE"):
                attempt(lambda: ran.append(1))
        assert not ran, "the closure never ran"
        run.optimizer.step(None)


class NoOptimizer:
    """What wraps an optimizer without being one: its step has no hooks."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters)}]


def test_an_optimizer_that_is_not_of_torch_is_refused_by_name(tmp_path) -> None:
    model = net()
    with pytest.raises(ConfigError, match=r"OPTIMIZER_TYPE.*NoOptimizer"):
        Run(small_world(tmp_path), model, optimizer=NoOptimizer(model.parameters()))


@pytest.mark.parametrize("part", ["head alone", "all but one bias"])
def test_an_optimizer_that_holds_a_part_of_what_is_scheduled_is_refused(tmp_path, part: str) -> None:
    model = net()
    held = list(model.head.parameters()) if part == "head alone" else list(model.parameters())[:-1]
    with pytest.raises(ConfigError, match=r"OPTIMIZER_PARAMETERS.*first: '(embed\.weight|head\.bias)'"):
        Run(small_world(tmp_path), model, optimizer=torch.optim.SGD(held, lr=0.1))
    assert all(p.requires_grad for p in model.parameters()), "a refused model is left as it was"


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda per group": lambda o: lr_scheduler.LambdaLR(o, [lambda k: 0.5**k, lambda k: 1.0 / (1 + k)]),
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.1),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, [0.3, 0.03], total_steps=STEPS),
    "warm-up, then linear": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 1), lr_scheduler.LinearLR(o, 1.0, 0.1, 2)], [1]
    ),
}


def two_groups(model: nn.Module) -> list[dict]:
    decayed = [p for p in trainable(model) if p.dim() == 2]
    rest = [p for p in trainable(model) if p.dim() != 2]
    return [{"params": decayed, "lr": 0.1, "weight_decay": 0.3}, {"params": rest, "lr": 0.01, "weight_decay": 0.0}]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_schedulers_step_once_per_logical_step_and_per_group(tmp_path, releases, name: str) -> None:
    model = net()
    shadow = copy.deepcopy(model)
    other = torch.optim.AdamW(two_groups(shadow))
    optimizer = torch.optim.AdamW(two_groups(model))
    scheduler, other_scheduler = SCHEDULERS[name](optimizer), SCHEDULERS[name](other)
    rates = []
    with Run(small_world(tmp_path, steps=STEPS), model, optimizer=optimizer, microbatch=2) as run:
        for _ in steps_of(run):
            shadow_step(run, shadow, other)
            run.optimizer.step()
            other_scheduler.step()
            scheduler.step()
            rates.append([group["lr"] for group in run.optimizer.param_groups])
            assert rates[-1] == [group["lr"] for group in other.param_groups]
    assert scheduler.last_epoch == STEPS, "microbatches do not count"
    assert len({tuple(rate) for rate in rates}) > 1 and rates[0][0] != rates[0][1]
    assert_equal(model, shadow)
    assert len(releases) == STEPS * len(run.private.prepared.router.tensors)


BANDS = """
[[class]]
name = "upper"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.34, to = 1.0 }}
"""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["adamw", "sgd_nesterov", "adafactor", "adamw_fused"])
def test_decay_and_momentum_never_move_a_tensor_that_is_frozen_or_outside_every_band(tmp_path, name: str) -> None:
    """The optimizer holds them, with a decay that would halve them in a step; without a gradient it leaves them alone."""
    model = net()
    frozen = model.layers[2].bias.requires_grad_(False)
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    for group in optimizer.param_groups:
        group["weight_decay"] = 5.0
    world = make_world(tmp_path, classes=BANDS, per_class=4, steps=STEPS, rate="1", now=1_800_000_000)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with Run(world, model, optimizer=optimizer) as run:
        scheduled = {tensor.name for _, tensor in run.private.prepared.router.tensors}
        for _ in steps_of(run):
            run.optimizer.step()
        still = {n for n, p in model.named_parameters() if torch.equal(p, before[n])}
        assert still == set(before) - scheduled
        assert {"embed.weight", "layers.0.weight", "layers.2.bias"} <= still
        outside = [frozen, model.embed.weight]
        assert all(p.grad is None and not run.optimizer.state.get(p) for p in outside), "nor do they have a state"


def test_user_hooks_see_the_private_gradient_or_nothing(tmp_path) -> None:
    """Also in a step that is refused: registered before prepare, a hook runs before ours."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[list[torch.Tensor | None]] = []

    def look(opt: torch.optim.Optimizer, *_: Any) -> None:
        seen.append([None if p.grad is None else p.grad.clone() for p in opt.param_groups[0]["params"]])

    optimizer.register_step_pre_hook(look)
    with Run(small_world(tmp_path, steps=2), model, optimizer=optimizer) as run:
        optimizer.register_step_pre_hook(look)
        optimizer.register_step_post_hook(look)
        with pytest.raises(StepOrder):
            optimizer.step()
        for _ in steps_of(run):
            released = [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            early, *later = seen
            assert all(g is None for g in early)
            assert len(later) == 3
            assert all(torch.equal(a, b) for look_ in later for a, b in zip(look_, released, strict=True))
            seen[1:] = []


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_clipping_what_was_released_acts_on_the_step_that_is_taken(tmp_path, clip: str) -> None:
    model = net()
    with Run(small_world(tmp_path, steps=2), model) as run:
        for _ in steps_of(run):
            before = [p.detach().clone() for p in model.parameters()]
            if clip == "norm":
                assert float(nn.utils.clip_grad_norm_(model.parameters(), 1e-3)) > 1e-3
            else:
                nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            expected = [b - 0.1 * p.grad for p, b in zip(model.parameters(), before, strict=True)]
            run.optimizer.step()
            assert all(torch.equal(p, e) for p, e in zip(model.parameters(), expected, strict=True))
            assert max(float(p.grad.abs().max()) for p in model.parameters()) <= 1e-3


def test_zero_grad_in_either_form_is_taken_before_and_after_but_not_within_a_step(tmp_path) -> None:
    for to_none in (True, False):
        with Run(small_world(tmp_path / str(to_none), steps=2), net()) as run:
            for step in run.steps:
                run.optimizer.zero_grad(set_to_none=to_none)
                for rows in step:
                    run.optimizer.zero_grad(set_to_none=to_none)
                    run.private.backward(per_example(run.model, rows), rows)
                released = run.model.embed.weight.grad
                assert released is not None and float(released.abs().min()) > 0
                run.optimizer.step()
                run.optimizer.zero_grad(set_to_none=to_none)


def test_a_group_added_during_a_run_moves_only_by_private_gradients(tmp_path) -> None:
    model = net()
    model.embed.weight.requires_grad_(False)
    with Run(small_world(tmp_path, steps=3), model, optimizer=torch.optim.AdamW(trainable(model), lr=0.1)) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        run.optimizer.add_param_group({"params": [model.embed.weight], "weight_decay": 0.9, "lr": 1.0})
        before = model.embed.weight.detach().clone()
        run.gradients(next(steps))
        run.optimizer.step()
        assert torch.equal(model.embed.weight, before), "a frozen tensor has no gradient and does not move"
        outside = nn.Parameter(torch.ones(3, dtype=torch.float64))
        run.optimizer.add_param_group({"params": [outside]})
        with pytest.raises(NotPrivateUse, match="FOREIGN_LEAF"):
            run.gradients(next(steps), lambda m, rows: per_example(m, rows) + outside.square().sum())
        assert outside.grad is None, "before a gradient is formed"
        assert torch.equal(outside, torch.ones(3, dtype=torch.float64))


def test_a_parameter_outside_the_model_that_the_optimizer_holds_is_refused(tmp_path) -> None:
    """A head kept beside the model, say: autograd would put a raw gradient into it."""
    model, head = net(), nn.Linear(8, 3).double()
    with pytest.raises(ConfigError, match="OPTIMIZER_FOREIGN"):
        Run(small_world(tmp_path), model, optimizer=torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1))


@pytest.mark.one_in(99)
@pytest.mark.parametrize("what", ["scheduled", "frozen"])
def test_flags_changed_during_a_run_are_refused_before_a_backward_and_before_a_step(tmp_path, what: str) -> None:
    model = net()
    model.head.bias.requires_grad_(False)
    changed = model.head.bias if what == "frozen" else model.head.weight
    with Run(small_world(tmp_path, steps=3), model, optimizer=torch.optim.SGD(trainable(model), lr=0.1)) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        step = next(steps)
        taken = iter(step)
        rows = next(taken)
        changed.requires_grad_(True)
        with pytest.raises(NotPrivateUse, match="REQUIRES_GRAD"):
            run.private.backward(per_example(model, rows), rows)
    with Run(small_world(tmp_path / "b", steps=1), net()) as run:
        step = next(iter(run.steps))
        for rows in step:
            run.private.backward(per_example(run.model, rows), rows)
        run.model.head.weight.requires_grad_(True)
        per_example(run.model, {"ids": torch.ones(1, 7, dtype=torch.long), "labels": torch.tensor([1])}).sum().backward()
        with pytest.raises(NotPrivateUse, match="REQUIRES_GRAD"):
            run.optimizer.step()


@pytest.mark.parametrize("how", ["attribute", "assign"])
def test_a_parameter_that_is_replaced_during_a_run_is_refused_by_name(tmp_path, how: str) -> None:
    """load_state_dict(assign=True), resized embeddings: the schedule and the optimizer would go on with the old tensor."""
    model = net()
    with Run(small_world(tmp_path, steps=3), model) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        if how == "attribute":
            model.head.weight = nn.Parameter(model.head.weight.detach().clone(), requires_grad=False)
        else:
            model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
        with pytest.raises(NotPrivateUse, match=r"PARAMETER_REPLACED.*weight"):
            run.gradients(next(steps))
