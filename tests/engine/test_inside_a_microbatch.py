"""Through whole runs: what a private forward writes, which leaves it meets, and what its payloads set off, reach nobody."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from dptrain.engine import start  # noqa: E402
from dptrain.errors import CoupledModel, NotPrivateUse  # noqa: E402
from tests.guarantees.peers import Run, net, nothing, per_example, small_world  # noqa: E402
from tests.worlds.training import World  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four steps in windows of two."""
    return small_world(tmp_path_factory.mktemp("inside"), per_class=5, steps=4)


# --- what a forward writes ----------------------------------------------------------------------------------------------


class Writes(nn.Module):
    """Leaves something of its input in the model, once it is switched on."""

    def __init__(self, write: Callable[[nn.Module, torch.Tensor], None]) -> None:
        super().__init__()
        self.write, self.on = write, False
        self.register_buffer("buffer", torch.zeros(8, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.zeros(8, dtype=torch.float64), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on:
            with torch.no_grad():
                self.write(self, x.detach().mean((0, 1)))
        return x


BY_OPERATION = {
    "buffer": lambda m, value: m.buffer.add_(value),
    "frozen": lambda m, value: m.frozen.copy_(value),
}


def _by_numpy(tensor: Callable[[nn.Module], torch.Tensor]) -> Callable[[nn.Module, torch.Tensor], None]:
    """A write that no operation of torch announces."""

    def write(module: nn.Module, value: torch.Tensor) -> None:
        tensor(module).detach().numpy()[:] = value.numpy()

    return write


BEHIND_TORCH = {"buffer": _by_numpy(lambda m: m.buffer), "frozen": _by_numpy(lambda m: m.frozen)}


def written(world: World, write: Callable, *, at: int, losses: Any = per_example) -> tuple[list[dict], nn.Module, Any]:
    """Releases of a run whose forward writes from step ``at`` on, the model, and the error that ended it."""
    model = net(lambda: Writes(write))
    found = []
    with Run(world, model) as run:
        try:
            for step in run.steps:
                model.extra.on = step.number >= at
                found.append(run.gradients(step, losses))
                run.optimizer.step()
        except NotPrivateUse as error:
            return found, model, error
    return found, model, None


@pytest.mark.parametrize("what", BY_OPERATION)
@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.one_in(4)
def test_a_forward_that_begins_to_write_writes_a_copy_and_ends_the_run_at_the_end_of_its_window(world, what, at) -> None:
    """In the probes it was still; the message says nothing of what, when or how much."""
    found, model, error = written(world, BY_OPERATION[what], at=at)
    assert error is not None and error.code == "FORWARD_WROTE"
    assert len(found) == (2 if at <= 2 else 4), "windows of two steps"
    assert not bool(model.extra.buffer.any()) and not bool(model.extra.frozen.any())
    clean, _, _ = written(world, BY_OPERATION[what], at=99)
    assert len(clean) == 4
    for one, other in zip(found, clean, strict=False):
        assert all(torch.equal(one[name], other[name]) for name in one), "and what is released is what it would have been"


def test_a_probe_during_a_run_does_not_tell_of_what_a_private_microbatch_wrote(tmp_path, monkeypatch) -> None:
    """Neither earlier than at the end of the window, nor by another name."""
    monkeypatch.setattr(start, "AGAIN", 7)
    world = small_world(tmp_path, steps=12, window_steps=3)
    probed = []

    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        model.extra.on = len(found) == 6 and not run.private.prepared.probe.active
        if run.private.prepared.probe.active:
            probed.append(len(found))
        return per_example(model, rows)

    found: list[dict] = []
    with Run(world, net(lambda: Writes(BY_OPERATION["buffer"]))) as run, pytest.raises(NotPrivateUse, match="FORWARD_WROTE"):
        for step in run.steps:
            found.append(run.gradients(step, losses))
            run.optimizer.step()
    assert len(found) == 9 and 7 in probed, "there was a probe within the window"


def test_the_end_of_a_run_that_wrote_says_the_same_whatever_was_written(world) -> None:
    said = {str(written(world, write, at=at)[2]) for write in (*BY_OPERATION.values(), *BEHIND_TORCH.values()) for at in (2, 3)}
    assert len(said) == 1


@pytest.mark.one_in(99)
@pytest.mark.parametrize("what", BEHIND_TORCH)
def test_once_something_changed_that_no_operation_announced_noise_alone_is_released(world, what) -> None:
    found, model, error = written(world, BEHIND_TORCH[what], at=2)
    assert error is not None and error.code == "FORWARD_WROTE" and len(found) == 2
    assert bool(getattr(model.extra, what).any()), "it was written"
    clean, _, _ = written(world, BEHIND_TORCH[what], at=99)
    noise, _, _ = written(world, BEHIND_TORCH[what], at=99, losses=nothing)
    assert all(torch.equal(found[0][name], clean[0][name]) for name in found[0])
    assert all(torch.equal(found[1][name], noise[1][name]) for name in found[1])
    assert not all(torch.equal(clean[1][name], noise[1][name]) for name in clean[1]), "a step says something"


@pytest.mark.parametrize("what", BY_OPERATION)
def test_a_forward_that_writes_from_the_start_is_refused_before_the_charge(world, what) -> None:
    model = net(lambda: Writes(BY_OPERATION[what]))
    model.extra.on = True
    with Run(world, model) as run:
        with pytest.raises(CoupledModel, match="BUFFER_CHANGES" if what == "buffer" else r"FORWARD_WRITES.*extra\.frozen"):
            run.gradients(next(iter(run.steps)))
        assert not run.private.opened.recorder.begun
        assert not bool(model.extra.frozen.any()) and not bool(model.extra.buffer.any())


def test_a_table_with_a_largest_norm_is_refused_at_the_start_and_left_as_it_is(world) -> None:
    """Torch rewrites the rows of the tokens that occur, frozen or not."""
    model = net()
    model.embed = nn.Embedding(50, 8, max_norm=0.1).double().requires_grad_(False)
    before = model.embed.weight.clone()
    with Run(world, model) as run, pytest.raises(CoupledModel, match=r"FORWARD_WRITES.*'embed\.weight'"):
        run.gradients(next(iter(run.steps)))
    assert torch.equal(model.embed.weight, before)


def test_the_digest_of_what_is_not_trained_is_that_of_the_start_whatever_was_written_since(world) -> None:
    """A digest in a public leaf would tell what a forward wrote."""

    def digests(at: int) -> dict[tuple[str, ...], bytes]:
        model = net(lambda: Writes(BEHIND_TORCH["frozen"]))
        with Run(world, model) as run:
            for step in run.steps:
                model.extra.on = step.number >= at
                run.gradients(step)
                run.optimizer.step()
                if step.number == 4:
                    records = run.private.prepared.weights.records()
                    return {record.names: record.sha256 for record in records if not record.trained}
        raise AssertionError

    plain, wrote = digests(99), digests(4)
    assert plain == wrote and ("extra.frozen",) in plain


# --- leaves outside the model -------------------------------------------------------------------------------------------


@pytest.mark.one_in(99)
@pytest.mark.parametrize("when", ["first microbatch", "second shape", "another step"])
def test_a_leaf_outside_the_model_is_refused_whenever_it_first_takes_part(world: World, when: str) -> None:
    """Five contributions in microbatches of three: a step has two shapes, and the second may meet what the first did not."""
    temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
    filled: list[torch.Tensor] = []
    temperature.register_post_accumulate_grad_hook(filled.append)  # as of an optimizer that steps inside backward

    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        found = per_example(model, rows)
        now = {
            "first microbatch": run.private.prepared.attempt is not None,
            "second shape": run.private.prepared.attempt is not None and len(found) == 2,
            "another step": number == 2,
        }  # fmt: skip
        return found * temperature if now[when] else found

    with Run(world, net(), microbatch=3) as run:
        steps = iter(run.steps)
        number = 1
        if when == "another step":
            run.gradients(next(steps), losses)
            run.optimizer.step()
            number = 2
        with pytest.raises(NotPrivateUse, match="FOREIGN_LEAF"):
            run.gradients(next(steps), losses)
        assert temperature.grad is None and not filled


def test_a_leaf_that_a_backward_pass_of_the_users_own_has_filled_is_emptied_and_refused(world: World) -> None:
    head = nn.Linear(3, 1).double()
    with Run(world, net()) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        with pytest.raises(NotPrivateUse, match=r"FOREIGN_LEAF.*Linear\.(weight|bias)"):
            for rows in next(steps):
                losses = per_example(run.model, rows)
                if not run.private.prepared.probe.active:
                    head(run.model(rows["ids"]).detach()).sum().backward()
                    assert head.weight.grad is not None
                run.private.backward(losses, rows)
        assert head.weight.grad is None and head.bias.grad is None


# --- what payloads set off ----------------------------------------------------------------------------------------------


class Raised(Exception):
    """What a user's code raises."""


def _raises(model: nn.Module, rows: Any) -> torch.Tensor:
    if 2 in rows["seeds"].tolist():
        raise Raised("a payload")
    return per_example(model, rows)


def _times(value: float) -> Any:
    return lambda model, rows: per_example(model, rows) * torch.where(rows["seeds"] == 2, value, 1.0).double()


def _reads(key: str, value: int) -> Any:
    """One that reads something else where that contribution has its ids, or its label."""

    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        of_two = (rows["seeds"] == 2).view(-1, *(1,) * (rows[key].dim() - 1))
        return per_example(model, {**rows.inputs, key: rows[key].masked_fill(of_two, value)})

    return losses


HOSTILE: dict[str, Any] = {
    "raises": _raises, "infinite loss": _times(torch.inf), "NaN": _times(torch.nan),
    "token out of range": _reads("ids", 1 << 40), "label out of range": _reads("labels", 99),
}  # fmt: skip
"""Losses in which the contribution of seed 2 does its worst."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("size", [2, 5])
def test_a_hostile_payload_counts_as_zero_and_moves_no_other(world: World, what: str, size: int) -> None:
    """What is released is what it would be without it, up to the rounding of microbatches of another size."""

    def released(losses: Any) -> dict[str, torch.Tensor]:
        with Run(world, net(), microbatch=size) as run:
            safe = run.private.loss(losses)
            return run.gradients(next(iter(run.steps)), safe)

    found, expected, whole = released(HOSTILE[what]), released(_times(0.0)), released(per_example)
    for name, value in found.items():
        assert torch.allclose(value, expected[name], rtol=0.0, atol=1e-9), name
    assert any(not torch.allclose(value, whole[name], rtol=0.0, atol=1e-6) for name, value in found.items()), "it was drawn"


def test_losses_are_let_go_with_the_graph_that_they_carry(world: World) -> None:
    """Those of the probes too: what hooks remember of a microbatch is as large as its activations."""
    made: list[weakref.ref[torch.Tensor]] = []

    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        found = per_example(model, rows)
        made.append(weakref.ref(found))
        return found

    with Run(world, net()) as run:
        run.gradients(next(iter(run.steps)), run.private.loss(losses))
        assert made and not [one for one in made if one() is not None]


def test_whoever_is_repeated_alone_has_the_masks_that_it_has_together(world: World) -> None:
    """With dropout: the others of a microbatch that raised add what they add in one that did not."""

    def released(losses: Any) -> dict[str, torch.Tensor]:
        with Run(world, net(lambda: nn.Dropout(0.5))) as run:
            return run.gradients(next(iter(run.steps)), run.private.loss(losses))

    found, expected, other = released(_raises), released(_times(0.0)), released(per_example)
    for name, value in found.items():
        assert torch.allclose(value, expected[name], rtol=0.0, atol=1e-9), name
    assert any(not torch.allclose(value, other[name], rtol=0.0, atol=1e-6) for name, value in found.items())


class Attends(nn.Module):
    """Attention, which has several kernels, behind a map of rows that do not lie in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.map = nn.Linear(8, 768), nn.Linear(768, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.map(self.low(x).tanh()[:, 1:])[:, None].chunk(3, -1)
        return nn.functional.pad(nn.functional.scaled_dot_product_attention(q, k, v)[:, 0], (0, 0, 1, 0))


AROUND = (
    partial(torch.autocast, "cpu", torch.bfloat16), partial(sdpa_kernel, SDPBackend.MATH), torch.autograd.graph.save_on_cpu,
)  # fmt: skip


@pytest.mark.parametrize("around", AROUND)
def test_whoever_is_repeated_alone_computes_as_it_does_together(around: Any, tmp_path) -> None:
    """The loop has left what stood around the loss when its backward pass repeats it; at certified every bit is the same."""
    exact = small_world(tmp_path, per_class=5, policy_extra='exactness = "certified"')

    def released(losses: Any) -> dict[str, torch.Tensor]:
        with Run(exact, net(Attends).float()) as run:
            safe = run.private.loss(losses)

            def within(model: nn.Module, rows: Any) -> torch.Tensor:
                with around():
                    return safe(model, rows)

            return run.gradients(next(iter(run.steps)), within)

    found, expected, other = released(_raises), released(_times(0.0)), released(per_example)
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    assert any(not torch.equal(value, other[name]) for name, value in found.items())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class OfOthers(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def scaled(model: nn.Module) -> Iterator[None]:
    model.extra.scale = 3.0
    yield
    model.extra.scale = 1.0


@contextmanager
def by_default(model: nn.Module) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("around", [scaled, by_default, lambda model: OfOthers()], ids=["state", "setting", "mode"])
@pytest.mark.parametrize("both", [False, True])
def test_a_loop_that_leaves_what_its_loss_was_made_in_is_refused_whatever_rows_hold(both, around, world: World) -> None:
    """A repetition of what raises would be without it, so that one contribution would change what the others add."""
    with Run(world, net(Scaled)) as run:
        safe, backward = run.private.loss(per_example), run.private.backward

        def within(model: nn.Module, rows: Any) -> torch.Tensor:
            with around(model):
                return safe(model, rows)

        if not both:
            with pytest.raises(CoupledModel, match="LOSS_CONTEXT"):
                run.gradients(next(iter(run.steps)), within)
            return
        for rows in next(iter(run.steps)):
            with around(run.model):
                backward(safe(run.model, rows), rows)


def test_a_plain_loop_is_stopped_by_what_its_loss_raises(world: World) -> None:
    """The negative control; docs/guarantee.md names it."""
    with Run(world, net()) as run, pytest.raises(Raised):
        run.gradients(next(iter(run.steps)), _raises)


def test_a_program_that_raises_on_rows_of_nobody_raises(world: World) -> None:
    """It is no payload's doing, and to go on would train on nothing."""
    broken = []

    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        if broken:
            raise Raised("a bug")
        return per_example(model, rows)

    with Run(world, net()) as run:
        safe = run.private.loss(losses)
        steps = iter(run.steps)
        run.gradients(next(steps), safe)
        run.optimizer.step()
        broken.append(True)
        with pytest.raises(Raised, match="a bug"):
            run.gradients(next(steps), safe)


