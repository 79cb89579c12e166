"""Couplings that hide: behind gates that start at zero, in gradients too small to show, in decisions over the batch, in what is
added to a model after its start. Each is refused, and with the probe that finds it switched off it is not."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.engine import start  # noqa: E402
from dptrain.errors import CoupledModel, DptrainError  # noqa: E402
from dptrain.routing import couplings  # noqa: E402
from tests.guarantees.peers import Net, Run, net, per_example, small_world  # noqa: E402
from tests.worlds.training import World, token_record  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore::dptrain.engine.start.Unprobed")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("hidden"), per_class=6)


def code_of_start(world: World, model: nn.Module, **options: Any) -> str:
    """Code of the refusal at the start, before anything is charged; nothing where there is none."""
    with Run(world, model, **options) as run:
        try:
            run.gradients(next(iter(run.steps)))
        except DptrainError as error:
            assert not run.private.opened.recorder.begun and all(p.grad is None for p in model.parameters())
            return error.code
    return ""


def shut() -> nn.Linear:
    """A layer of zeros."""
    layer = nn.Linear(8, 8, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


# --- behind gates -------------------------------------------------------------------------------------------------------


class Gated(nn.Module):
    """ReZero twice over: of two layers of zeros in a row neither has a gradient, whatever comes in."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch, self.first, self.second = branch, shut(), shut()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(self.branch(x)))


class OverTheBatch(nn.Module):
    """Takes the mean over the batch away, which carries no gradient from row to row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.detach().mean(0, keepdim=True)


class BesideItsModule(nn.Module):
    """Uses a weight without calling the module that owns it, so that no hook sees its gradient."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(8, 8), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * nn.functional.linear(x, self.inner.weight)


GATED = {
    "coupling": (lambda: Gated(OverTheBatch()), "REPLACEMENT"),
    "missing gradient": (lambda: Gated(BesideItsModule()), "GRADIENT_MISMATCH"),
}


@pytest.mark.parametrize("what", GATED)
def test_what_hides_behind_a_gate_that_starts_at_zero_is_refused(world: World, what: str, monkeypatch) -> None:
    extra, code = GATED[what]
    assert code_of_start(world, net(extra)) == code
    monkeypatch.setattr(start, "opened_gates", lambda router, seed: nullcontext())
    assert code_of_start(world, net(extra)) == "", "the negative control: behind a shut gate nothing shows"


def test_gates_without_anything_behind_them_pass_and_are_shut_again_to_the_bit(world: World) -> None:
    model = net(lambda: Gated(nn.Linear(8, 8)))
    with torch.no_grad():
        # What adding and taking away again would not give back.
        model.head.bias.copy_(torch.tensor([-0.0, 5e-324, 0.1], dtype=torch.float64))
    before = {name: value.clone().view(torch.int64) for name, value in model.state_dict().items()}
    met = []

    def noting(model: nn.Module, rows: Any) -> torch.Tensor:
        if run.private.prepared.probe.active:
            met.append(bool(model.extra.first.weight.any()))
        return per_example(model, rows)

    with Run(world, model) as run:
        for rows in next(iter(run.steps)):
            losses = noting(model, rows)
            if not run.private.prepared.probe.active:
                now = {name: value.view(torch.int64) for name, value in model.state_dict().items()}
                assert now.keys() == before.keys() and all(torch.equal(now[name], before[name]) for name in before)
            run.private.backward(losses, rows)
    assert any(met), "in the probes they were open"


# --- gradients that are missing altogether ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e-9])
def test_a_gradient_that_is_missing_is_refused_however_small_it_is_beside_others(world, scale: float, dtype) -> None:
    """At 1e-5 of the others it is a few millionths of the largest gradient; an error is held against its own tensor."""
    assert code_of_start(world, net(lambda: BesideItsModule(scale)).to(dtype)) == "GRADIENT_MISMATCH"


class Attention(nn.Module):
    """Its key bias has gradient zero in theory, and rounding noise in practice."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_is_rounding_noise_alone_is_no_mismatch(world, dtype) -> None:
    with Run(world, net(Attention).to(dtype)) as run:
        run.gradients(next(iter(run.steps)))
        assert run.private.prepared.probe.unprobed == ("extra.key.bias",)


# --- decisions over the batch -------------------------------------------------------------------------------------------


class DropsChannels(nn.Module):
    """Channels whose mean over the batch is below zero are dropped: a decision, and no number that could differ a little."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.detach().mean((0, 1)) > 0.0)


class OutlierColumns(nn.Module):
    """As LLM.int8 does: columns in which some entry of the batch is beyond 6 stay exact, others are rounded to 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        outliers = (x.detach().abs() > 6.0).flatten(0, -2).any(0)
        rest = torch.where(outliers, 0.0, x.detach())
        scale = rest.abs().amax(-1, keepdim=True).clamp_min(1e-9) / 127
        return torch.where(outliers, x, x + ((rest / scale).round() * scale - x).detach())


SEEDS = range(16)


def caught(root: Any, extra: Callable[[], nn.Module], microbatch: int, seeds: range = SEEDS) -> int:
    """How many corpora, with initial weights of their own, are refused."""
    found = 0
    for seed in seeds:
        world = small_world(root / str(seed), per_class=6, record=lambda k, seed=seed: token_record(k + 1000 * seed))
        torch.manual_seed(seed)
        found += code_of_start(world, Net(extra()).double(), microbatch=microbatch) == "REPLACEMENT"
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("microbatch", [8, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("extra", [DropsChannels, OutlierColumns])
def test_decisions_over_the_batch_are_refused_in_each_of_16_corpora(tmp_path, extra, microbatch) -> None:
    assert caught(tmp_path, extra, microbatch) == 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "microbatch", "least"),
    [(DropsChannels, 2, 12), (DropsChannels, 4, 15), (DropsChannels, 6, 15), (OutlierColumns, 4, 13), (OutlierColumns, 6, 16)],
)
def test_in_smaller_microbatches_decisions_are_refused_as_often_as_stated(tmp_path, extra, microbatch, least) -> None:
    """What docs/guarantee.md says of them: three passes of a small microbatch buy few comparisons."""
    assert caught(tmp_path, extra, microbatch) >= least


def test_outliers_come_of_stretching_activations(tmp_path, monkeypatch) -> None:
    """The negative control: initial weights alone bring no entry beyond the bound."""
    monkeypatch.setattr(start, "stretched", lambda router, seed: nullcontext())
    assert caught(tmp_path, OutlierColumns, 16, SEEDS[:4]) == 0


# --- what quantises by the batch, by name -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["Linear8bitLt", "SwitchBackLinear", "Float8Linear", "FakeQuantize", "FusedMovingAvgObsFakeQuantize"]
)
def test_modules_that_quantise_by_the_batch_are_refused_by_name(world: World, name: str) -> None:
    """Frozen too, as under an adapter. The names are those of bitsandbytes, torchao and torch."""
    assert name in couplings.QUANTISED
    kind = type(name, (nn.Linear,), {})
    with pytest.raises(CoupledModel, match=rf"BATCH_QUANTISATION: 'extra' \({name}\)"):
        Run(world, net(lambda: kind(8, 8).requires_grad_(False)))


def test_dynamic_quantisation_of_torch_is_refused_by_where_it_lives(world: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.ao.nn.quantized.dynamic.Linear(8, 8)
        with pytest.raises(CoupledModel, match="BATCH_QUANTISATION: 'extra'"):
            Run(world, net(lambda: quantised))


# --- what comes after the start -----------------------------------------------------------------------------------------


def _centred(module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
    return output - output.detach().mean(0, keepdim=True)


def _replaced_forward(layer: nn.Module) -> None:
    plain = layer.forward
    layer.forward = lambda x: _centred(layer, (), plain(x))


class _Centring(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _centred(self, (), super().forward(x))


LATE = {
    "forward hook": lambda layer: layer.register_forward_hook(_centred),
    "forward pre-hook": lambda layer: layer.register_forward_pre_hook(lambda m, args: (args[0] - args[0].mean(0),)),
    "backward hook": lambda layer: layer.register_full_backward_hook(lambda m, given, grads: None),
    "backward pre-hook": lambda layer: layer.register_full_backward_pre_hook(lambda m, grads: (grads[0].sum(0, True),)),
    "forward": _replaced_forward,
    "class": lambda layer: setattr(layer, "__class__", _Centring),
    "submodule": lambda layer: layer.add_module("added", nn.Identity()),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", LATE)
def test_a_hook_or_a_forward_that_comes_after_the_start_is_refused_by_name(world: World, what: str) -> None:
    with Run(world, net()) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        LATE[what](run.model.layers[1])
        with pytest.raises(CoupledModel, match=r"HOOK_ADDED: module 'layers\.1"):
            run.gradients(next(steps))


def test_a_hook_of_all_modules_that_comes_after_the_start_is_refused(world: World) -> None:
    with Run(world, net()) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        handle = nn.modules.module.register_module_forward_hook(lambda m, args, output: None)
        try:
            with pytest.raises(CoupledModel, match="HOOK_ADDED"):
                run.gradients(next(steps))
        finally:
            handle.remove()


def test_a_forward_that_a_class_gets_after_the_start_is_refused(world: World, monkeypatch) -> None:
    with Run(world, net()) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        monkeypatch.setattr(Net, "forward", lambda self, ids: self.head(self.embed(ids).mean(1)))
        with pytest.raises(CoupledModel, match="HOOK_ADDED"):
            run.gradients(next(steps))


def test_hooks_that_were_there_in_the_probes_stay_and_one_that_is_taken_out_again_does_no_harm(world: World) -> None:
    model = net()
    model.layers[0].register_forward_hook(lambda m, args, output: None)
    with Run(world, model) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        model.layers[1].register_forward_hook(lambda m, args, output: None).remove()
        run.gradients(next(steps))
        run.optimizer.step()


class Later(nn.Module):
    """A coupling that is switched on in Python, which no scan sees."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.detach().mean(0, keepdim=True) if self.on else x


class LaterBehindANumber(Later):
    """The same on one side of a number that is drawn for everybody."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if float(torch.rand(())) < 0.5 else x


@pytest.mark.parametrize(("kind", "since"), [(Later, 6), (LaterBehindANumber, 2)])
def test_the_probes_run_again_now_and_then_on_rows_that_are_nobodys_and_see_what_came_since(
    tmp_path, kind, since, monkeypatch
) -> None:
    """Every so many steps, and not more often than epochs; the step before which they run is a public number. Numbers that
    are drawn for everybody fall on one side in one of these probes, and on the other in the next."""
    monkeypatch.setattr(start, "AGAIN", 2)
    world = small_world(tmp_path, steps=9)
    model = net(kind)
    probed, ids, refused = [], [], ""
    with Run(world, model) as run:
        for step in run.steps:
            model.extra.on = step.number >= since
            try:
                for rows in step:
                    if run.private.prepared.probe.active:
                        probed.append(step.number)
                        ids.append(rows["ids"])
                    run.private.backward(per_example(model, rows), rows)
            except CoupledModel as error:
                refused = error.code
                break
            run.optimizer.step()
    assert refused == "REPLACEMENT" and sorted(set(probed)) == [1, 5, 9] and step.number == 9
    assert all(int(found.max()) <= 1 for found in ids), "made-up rows have ids 0 and 1 alone, and records none of them"


@pytest.mark.parametrize("repeated", [False, True])
def test_a_branch_of_the_loss_or_the_loop_goes_the_way_that_the_probes_saw(world: World, repeated: bool) -> None:
    """One contribution would double the losses of all who are in its microbatch; nobody's rows have no seed but 0 and 1."""
    told: dict[bool, set[bool]] = {False: set(), True: set()}

    def doubled(model: nn.Module, rows: Any) -> torch.Tensor:
        said = bool((rows["seeds"] > 1).any())
        told[run.private.prepared.probe.active].add(said)
        return per_example(model, rows) * (2.0 if said else 1.0)

    with warnings.catch_warnings(), Run(world, net()) as run:
        warnings.simplefilter("ignore")
        loss = run.private.loss(doubled) if repeated else doubled
        for step in run.steps:
            for rows in step:
                run.private.backward(loss(run.net, rows), rows)
            run.optimizer.step()
    assert told == {True: {False}, False: {False}}
