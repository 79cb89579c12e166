"""Faults by which peers trained a wrong model in silence: lost microbatches, stale captures, frozen and padded rows.

The form is that of test_peer_bugs_privacy.py; the list is in test_peer_bugs.py.
"""

import warnings

import pytest

torch = pytest.importorskip("torch")
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402

from dptrain.clipping.fast import FastSums  # noqa: E402
from dptrain.engine import prepared as engine  # noqa: E402
from dptrain.errors import CoupledModel, StepOrder, UnsupportedModule  # noqa: E402
from dptrain.gradients import Gather, gradient_rule, registry  # noqa: E402
from dptrain.routing import FallbackNotice, Router  # noqa: E402
from tests.guarantees.peers import (  # noqa: E402
    Run,
    assert_exact,
    first_release,
    giant,
    must_fail,
    net,
    norm,
    nothing,
    per_example,
    signal,
    small_world,
    whole_schedule,
)


def same(first: dict, second: dict) -> None:
    """Two releases under one key: equal up to the last bits of float64 sums, over noise of size one."""
    assert first.keys() == second.keys()
    for name in first:
        assert float((first[name] - second[name]).abs().max()) <= 1e-6, name


# --- processes and wrappers ------------------------------------------------------------------------------------------


@pytest.fixture
def process_group(tmp_path):
    """A gloo group of one, enough for torch's DistributedDataParallel to wrap a model."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_model_is_wrapped_for_several_processes_before_prepare_and_not_behind_it(tmp_path, process_group) -> None:
    """Opacus: make_private, then accelerator.prepare with two processes: replicas drifted apart by 0.16, without an error.

    On two processes: tests/distributed/test_order_of_wrapping.py.
    """
    world = small_world(tmp_path)
    with Run(world, net(), wrap=nn.parallel.DistributedDataParallel, name="first") as run:
        assert next(run.releases()).keys() == dict(net().named_parameters()).keys()
    with Run(world, net()) as run, pytest.raises(RuntimeError, match="any parameter that requires a gradient"):
        nn.parallel.DistributedDataParallel(run.model)


class Inner(nn.Module):
    """A part of the model that the user wraps after prepare()."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_a_wrapper_put_around_a_part_later_is_found_at_the_next_step(tmp_path) -> None:
    """The same order inside the model: what reduces raw gradients may not come in after prepare() either."""
    with Run(small_world(tmp_path), net(Inner)) as run:
        releases = run.releases()
        next(releases)
        run.model.extra = nn.DataParallel(run.model.extra)
        with pytest.raises(CoupledModel, match=r"REPLICATED_MODEL.*'extra'"):
            next(releases)


# --- accumulation ----------------------------------------------------------------------------------------------------


def test_every_microbatch_of_a_step_counts(tmp_path, monkeypatch) -> None:
    """Opacus ghost with accumulation: zero_grad() inside backward() dropped all microbatches but the last."""
    world = small_world(tmp_path, per_class=6)

    def check() -> None:
        whole = first_release(world, net(), microbatch=16)
        same(whole, first_release(world, net(), microbatch=1))
        same(whole, first_release(world, net(), microbatch=4))

    check()

    def dropping(self: FastSums, pieces, coefficients, exact=FastSums.accumulate):
        self._sums = [None] * len(self._sums)
        exact(self, pieces, coefficients)

    monkeypatch.setattr(FastSums, "accumulate", dropping)
    must_fail(check)


def test_a_short_last_microbatch_weighs_what_its_contributions_weigh(tmp_path) -> None:
    """Opacus without Poisson: a short last batch was divided by the size of a full one. Nothing is divided by a size here."""
    world = small_world(tmp_path, per_class=5)
    last = {s: signal(world, net, giant(s), microbatch=4) for s in (0, 4)}  # seed 4 is alone in the second microbatch
    alone = {s: signal(world, net, giant(s), microbatch=1) for s in (0, 4)}
    for seed in (0, 4):
        same(last[seed], alone[seed])
        assert norm(last[seed]) == pytest.approx(1.0, rel=1e-6)


def test_accelerate_accumulation_is_one_at_open_and_refused_behind(tmp_path) -> None:
    """Opacus hooks under accumulate(k): gradients divided by k twice, the accountant given q k (0.25 for 0.125)."""
    world = small_world(tmp_path)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    with pytest.warns(UserWarning, match="gradient_accumulation_steps=2 is 1"):
        Run(world, net(), accelerator=accelerator).private.close()
    assert accelerator.gradient_accumulation_steps == 1
    model = net()
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with Run(world, model, optimizer=optimizer, accelerator=accelerator) as run:
        run.optimizer = optimizer  # the wrapper, which skips steps while accelerate accumulates
        accelerator.gradient_accumulation_steps = 4
        steps = iter(run.steps)
        step = next(steps)
        with accelerator.accumulate(model):
            run.gradients(step)
            optimizer.step()
        with pytest.raises(StepOrder, match="the loop left step 1"):
            next(steps)
    accelerator.free_memory()


def test_microbatches_do_not_count_as_steps(tmp_path) -> None:
    """The other half of that bullet: the accountant sees logical steps, however many microbatches they have."""
    spent = []
    for microbatch in (1, 16):
        with Run(small_world(tmp_path / str(microbatch), rate="0.5"), net(), microbatch=microbatch) as run:
            for _ in run.releases():
                pass
            assert run.private.opened.recorder.ledger.state.charged == 2
            spent.append(run.private.opened.recorder.ledger.epsilon(run.private.prepared.pool.slots[0].descriptor_hash))
    assert spent[0] == spent[1] > 0


@pytest.mark.one_in(99)
@pytest.mark.parametrize("where", ["probe", "first", "second"])
def test_breaking_out_of_a_step_leaves_nothing_behind(tmp_path, where: str) -> None:
    """Opacus BatchMemoryManager: leaving the loop left 4 stale signals, and the next loop was out of step."""
    world = small_world(tmp_path, per_class=5)
    model = net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with Run(world, model, microbatch=2) as run:
        step = next(iter(run.steps))
        seen = 0
        for rows in step:
            if where == "probe":
                break
            if not run.private.prepared.probe.active:
                seen += 1
                if where == "first":
                    break
            run.private.backward(per_example(model, rows) * 1e6, rows)
            if seen == 2:
                break
        with pytest.raises(StepOrder):
            run.optimizer.step()
        if where != "probe":  # nothing was drawn in a probe, which may be run anew
            with pytest.raises(StepOrder):
                next(iter(step))
            with pytest.raises(StepOrder):
                run.private.save()
        assert all(p.grad is None for p in model.parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    same(first_release(world, model, microbatch=2), first_release(world, net(), microbatch=2))


def test_a_step_left_in_the_probe_can_be_taken_again(tmp_path) -> None:
    """The same for the probes: a loop that breaks in one and comes back releases what an unbroken loop does."""
    world = small_world(tmp_path)
    with Run(world, net()) as run:
        step = next(iter(run.steps))
        for rows in step:
            run.private.backward(per_example(run.model, rows) * 1e6, rows)
            break
        broken = run.gradients(step)
    same(broken, first_release(world, net()))


# --- captures --------------------------------------------------------------------------------------------------------


def test_the_padding_row_receives_no_signal(tmp_path, monkeypatch) -> None:
    """Opacus hooks ignore padding_idx: 2.0 in the gradient of a row where autograd has 0, and an inflated norm."""
    pad = 2  # the first token of contribution 0

    def make() -> nn.Module:
        return net(padding_idx=pad)

    batch = {"ids": torch.tensor([[pad, 5, 9], [7, pad, pad]]), "labels": torch.tensor([0, 1])}

    def check() -> None:
        model = make()
        assert_exact(model, lambda rows: per_example(model, {k: v[rows] for k, v in batch.items()}), 2, "layers")
        found = signal(small_world(tmp_path / str(len(list(tmp_path.iterdir())))), make, giant(0))
        assert float(found["embed.weight"][pad].abs().max()) < 1e-6 < float(found["embed.weight"].abs().max())

    check()
    monkeypatch.setattr(registry, "_entries", registry._entries)

    @gradient_rule(nn.Embedding, replace=True)
    def ignoring(module, call, grad):
        b = call.positions(grad, 1)
        return {"weight": Gather(call.inputs[0].reshape(b.shape[:2]), b)}

    must_fail(check)
    # Where made-up rows have the token, the fault is caught before any test looks: the probes compare with autograd.
    with pytest.raises(UnsupportedModule, match=r"GRADIENT_MISMATCH.*embed\.weight"):
        signal(small_world(tmp_path / "faulty"), lambda: net(padding_idx=1), giant(0))


class Sometimes(nn.Module):
    """LayerDrop: runs or not, as told."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.on = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x) if self.on else x


def test_a_module_that_does_not_run_adds_nothing_of_the_last_batch(tmp_path, monkeypatch) -> None:
    """Opacus ghost: `_norm_sample` of an unused module stayed from the batch before, norm 260 (experts, LayerDrop)."""
    batch = {"ids": torch.arange(14).view(2, 7), "labels": torch.tensor([0, 1])}

    def norms_after(first_on: bool) -> list[float]:
        model = net(Sometimes)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        schedule = whole_schedule(model, "layers")
        model.requires_grad_(False)
        made = Router(model, schedule)
        made.attach()
        everything, ones = torch.ones(2, 1, dtype=torch.bool), torch.ones(2, dtype=torch.float64)
        for scale, on in ((1e6, first_on), (1.0, False)):
            model.extra.on = on
            made.arm(2, 1, everything)
            made.backward(per_example(model, batch) * scale, ones)
            norms = made.sums.norms_sq(made.pieces, made.contributions)
            made.sums.accumulate(made.pieces, torch.zeros(2, 1, dtype=torch.float64))
            made.disarm()
        return norms.sqrt().flatten().tolist()

    def check() -> None:
        assert norms_after(True) == norms_after(False)

    check()

    def keeping(self: FastSums, found, contributions, exact=FastSums.norms_sq):
        """Pieces of the last microbatch stay where this one has none."""
        stale = vars(self).setdefault("stale", {})
        for index, pieces in stale.items():
            found.setdefault(index, pieces)
        stale.update({index: list(pieces) for index, pieces in found.items()})
        return exact(self, found, contributions)

    monkeypatch.setattr(FastSums, "norms_sq", keeping)
    must_fail(check)


def test_a_forward_without_backward_changes_nothing(tmp_path) -> None:
    """Opacus: a forward in training mode without a backward left activations, and the next grad_sample was None."""
    world = small_world(tmp_path)
    plain = first_release(world, net())
    ids = torch.arange(7 * 64).view(64, 7) % 50

    def wandering(model: nn.Module, rows) -> torch.Tensor:
        model(ids[: len(rows["ids"])])
        losses = per_example(model, rows)
        model(ids[: len(rows["ids"])]).sum()
        with torch.no_grad():
            model(ids[:1])
        return losses

    with Run(world, net()) as run:
        run.model(ids)
        step = next(iter(run.steps))
        run.model(ids)
        same(plain, run.gradients(step, wandering))
        run.model(ids)
        run.optimizer.step()


# --- parameters ------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A norm of its own making, with a tensor that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight + self.shift


class Transposed(nn.Module):
    """Positions first where the odd layer sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = Odd()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odd(x.transpose(0, 1)).transpose(0, 1)


class Flattened(Transposed):
    """Positions and examples in one dimension there: which example a row belongs to cannot be told."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.transpose(0, 1).flatten(0, 1)
        return self.odd(flat).unflatten(0, (x.shape[1], x.shape[0])).transpose(0, 1)


def test_an_unknown_layer_is_trained_or_refused_never_frozen(tmp_path, capsys) -> None:
    """fastDP froze the parameters of layers that it did not know (LlamaRMSNorm) and said so with a print()."""
    model = net(Odd)
    batch = {"ids": torch.arange(14).view(2, 7), "labels": torch.tensor([0, 1])}
    with pytest.warns(FallbackNotice, match="'shift', 'weight'"):
        assert_exact(model, lambda rows: per_example(model, {k: v[rows] for k, v in batch.items()}), 2, "layers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackNotice)
        found = signal(small_world(tmp_path), lambda: net(Odd), per_example)
        assert norm({k: v for k, v in found.items() if k.startswith("extra.")}) > 1e-3
        turned = signal(small_world(tmp_path / "t"), lambda: net(Transposed), per_example)
        for name, value in found.items():
            torch.testing.assert_close(turned[name.replace("extra.", "extra.odd.")], value, rtol=1e-4, atol=1e-6)
        with pytest.raises(UnsupportedModule, match=r"BATCH_DIMENSION.*'extra\.odd'.*Freeze"):
            first_release(small_world(tmp_path / "b"), net(Flattened))
    assert capsys.readouterr().out == ""


def test_a_tensor_unused_at_first_stays_in_the_schedule(tmp_path, monkeypatch) -> None:
    """fastDP: trainable, without a gradient at the first step, and dropped for good. Here it gets its noise at every step."""

    def make() -> nn.Module:
        model = net(Sometimes)
        model.extra.on = False
        return model

    def check() -> None:
        with Run(small_world(tmp_path / str(len(list(tmp_path.iterdir())))), make()) as run:
            for released in run.releases(nothing):
                assert set(released) == {name for name, _ in run.model.named_parameters()}
                assert all(bool((value != 0).all()) for value in released.values())

    check()

    class Dropping(engine.PrivateGradients):
        def release(self, noise, step: int, *args, **kwargs) -> None:
            super().release(noise, step, *args, **kwargs)
            for name, parameter in self._model.named_parameters():
                if name.startswith("extra."):
                    parameter.grad = None

    monkeypatch.setattr(engine, "PrivateGradients", Dropping)
    must_fail(check)
