"""A pass leaves generators and modes as they were, survives what loops do in it, and is the same when it is computed again."""

import random
import signal
import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack  # noqa: E402
from torch.overrides import _push_mode as _push_function_mode  # noqa: E402
from torch.utils._python_dispatch import (  # noqa: E402
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _push_mode,
)
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dptrain.errors import NotPrivateUse, UnsupportedModule  # noqa: E402
from tests.sandbox.scene import SEED, Scene, names  # noqa: E402

F = nn.functional
X = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))


def states() -> tuple:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:]


def dropping() -> Scene:
    return Scene(nn.Dropout(0.5), X)


def test_generators_stand_where_they_stood_whatever_was_drawn() -> None:
    def drawing(model, x):
        random.random()
        np.random.rand(3)
        torch.manual_seed(7)
        return F.dropout(x, 0.5) + torch.randn_like(x)

    scene = Scene(nn.Identity(), X, drawing)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)  # not where the pass itself would leave them
    before = states()
    scene.run(range(8))
    assert states() == before
    with pytest.raises(ZeroDivisionError):
        scene.run(range(8), data=[X, 1 / 0])
    assert states() == before and not _get_current_dispatch_mode_stack()


def test_python_and_numpy_draw_the_same_in_every_microbatch_of_a_step() -> None:
    """Where draws are public a forward may: its numbers follow from seed and step, whatever was drawn before."""
    drawn = []
    scene = Scene(nn.Identity(), X, lambda m, x: drawn.append((random.random(), float(np.random.rand()))), secret=False)
    drawn.clear()
    for step, rows in ((1, range(8)), (1, [3]), (2, range(8))):
        random.random(), np.random.rand()
        scene.run(rows, step=step)
    assert drawn[0] == drawn[1] and drawn[0][0] != drawn[2][0] and drawn[0][1] != drawn[2][1]


def test_a_pass_that_raises_is_left() -> None:
    scene = Scene(nn.Identity(), X, lambda m, x: F.dropout(x, 0.5) if len(x) < 8 else x @ x)
    before = states()
    with pytest.raises(RuntimeError):
        scene.run(range(8))
    assert states() == before and not _get_current_dispatch_mode_stack() and not scene.sandbox.active


class Blocks(nn.Module):
    """Four blocks, the second used twice; checkpointed as ``how`` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Tanh()) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place in (0, 1, 1, 2):
            block = self.blocks[place]
            x = block(x) if self.how == "plain" else checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return x


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_a_checkpoint_computes_the_same_masks_again(how: str) -> None:
    """Both kinds, a block that runs twice among them; the gradient is that of the same model without checkpoints."""

    def gradient(model, x):
        x = x.clone().requires_grad_(True)
        return torch.autograd.grad(model(x).sum(), x)[0] if how != "reentrant" else _backward(model, x)

    torch.manual_seed(0)
    plain = Scene(Blocks("plain"), X, gradient)
    torch.manual_seed(0)
    again = Scene(Blocks(how), X, gradient)
    for block in (*plain.model.blocks, *again.model.blocks):
        block.requires_grad_(False)
    wide = plain.run(range(8))
    assert torch.equal(again.run(range(8)), wide)
    assert torch.allclose(again.run([5, 2]), wide[[5, 2]], atol=1e-7)


def _backward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A reentrant checkpoint knows no ``autograd.grad``."""
    model(x).sum().backward()
    assert x.grad is not None
    return x.grad


def test_a_checkpoint_that_does_not_keep_the_generator_computes_other_masks_as_in_torch() -> None:
    class Careless(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
            return x

    def gradient(model, x):
        x = x.clone().requires_grad_(True)
        return torch.autograd.grad(model(x).sum(), x)[0]

    torch.manual_seed(0)
    plain = Scene(Blocks("plain"), X, gradient).run(range(8))
    torch.manual_seed(0)
    assert not torch.equal(Scene(Careless(""), X, gradient).run(range(8)), plain)
    with pytest.raises(UnsupportedModule, match="UNSEEN_DRAW"):  # where only forwards were seen, as by the probes
        scene = Scene(Careless(""), X)
        scene.function = gradient
        scene.run(range(8))


def test_a_generator_that_is_put_back_gives_the_same_numbers_again() -> None:
    """What torch does: fork_rng, and a state that was kept."""

    def twice(model, x):
        with torch.random.fork_rng(devices=[]):
            first = F.dropout(x, 0.5)
        state = torch.get_rng_state()
        second = F.dropout(x, 0.5)
        torch.set_rng_state(state)
        third = F.dropout(x, 0.5)
        fourth = F.dropout(x, 0.5)
        return torch.stack([first, second, third, fourth], 1)

    found = Scene(nn.Identity(), X.abs() + 1.0, twice).run(range(8)).unbind(1)
    assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2]) and not torch.equal(found[2], found[3])


def test_passes_within_passes_have_their_own_rows_and_the_outer_one_goes_on() -> None:
    scene = Scene(nn.Identity(), X, lambda m, x: torch.stack([F.dropout(x, 0.5), F.dropout(x, 0.5)], 1))
    right = scene.run(range(8))
    with scene.sandbox.enter(1, names(range(8))):
        first = F.dropout(X, 0.5)
        with scene.sandbox.enter(1, names([6, 2])):
            inner = F.dropout(X[[6, 2]], 0.5)
        second = F.dropout(X, 0.5)
    assert torch.equal(torch.stack([first, second], 1), right) and torch.equal(inner, right[[6, 2], 0])


def test_a_mode_of_the_users_own_stays_entered() -> None:
    class Counts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    scene, mode = dropping(), Counts()
    right = scene.run(range(8))
    context = scene.sandbox.enter(1, names(range(8)))
    context.__enter__()
    with mode:
        found = scene.model(X)
        context.__exit__(None, None, None)  # out of order: the pass ends while the user's mode is entered
        before = mode.count
        X + 1.0
        assert mode.count == before + 1 and _get_current_dispatch_mode_stack() == [mode]
    assert torch.equal(found, right) and not _get_current_dispatch_mode_stack()
    with mode, scene.sandbox.enter(1, names(range(8))):
        assert torch.equal(scene.model(X), right)


def test_what_runs_aside_is_left_alone_and_what_runs_inside_again_is_not() -> None:
    scene = dropping()
    right = scene.run(range(8))
    with scene.sandbox.enter(1, names(range(8))):
        with scene.sandbox.aside():
            assert torch.rand(3, generator=torch.Generator().manual_seed(1)).shape == (3,)
            with scene.sandbox.inside():
                found = scene.model(X)
            assert not _get_current_dispatch_mode_stack()
        assert len(_get_current_dispatch_mode_stack()) == 1
    assert torch.equal(found, right)


class Stop(Exception):
    """Raised by a handler of signals, which Python runs between two of its instructions."""


def test_an_interrupt_in_what_runs_aside_leaves_the_pass_as_it_was() -> None:
    def stop(*_: Any) -> None:
        raise Stop

    scene = Scene(nn.Identity(), X)
    sandbox, chance = scene.sandbox, random.Random(0)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(200):
            with sandbox.enter(1, names([0])):
                stopped = False
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-4))
                    while True:
                        with sandbox.aside():
                            pass
                except Stop:
                    stopped = True
                assert stopped
                assert [mode is sandbox._mode for mode in _get_current_dispatch_mode_stack()] == [True]
                assert [mode is sandbox._functions for mode in _get_current_function_mode_stack()] == [True]
            assert not _get_current_dispatch_mode_stack() and not _get_current_function_mode_stack()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_an_interrupt_left_is_gone_in_the_next_pass() -> None:
    scene = Scene(nn.Identity(), X)
    for push, mode in ((_push_mode, scene.sandbox._mode), (_push_function_mode, scene.sandbox._functions)):
        push(mode)
    with scene.sandbox.enter(1, names([0])):
        assert len(_get_current_dispatch_mode_stack()) == len(_get_current_function_mode_stack()) == 1
    assert not _get_current_dispatch_mode_stack() and not _get_current_function_mode_stack()


def test_modes_of_the_users_own_are_not_asked_about_what_runs_aside() -> None:
    """Their code would run there as nobody's program, and what it writes or draws would pass by."""
    asked: list[str] = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            asked.append("dispatch")
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            asked.append("function")
            return func(*args, **(kwargs or {}))

    scene = Scene(nn.Identity(), X)
    with scene.sandbox.enter(1, names([0])), Dispatch(), Functions():
        with scene.sandbox.aside():
            torch.ones(2) + 1.0
            assert asked == []
        torch.ones(2) + 1.0
        assert {"dispatch", "function"} == set(asked)
        assert len(_get_current_dispatch_mode_stack()) == len(_get_current_function_mode_stack()) == 2


def test_what_runs_aside_in_another_thread_lets_nothing_by_here() -> None:
    scene = Scene(nn.Dropout(0.5), X)
    inside, done = threading.Event(), threading.Event()

    def beside() -> None:
        with scene.sandbox.aside():
            inside.set()
            done.wait(10)

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=beside)
        thread.start()
        inside.wait(10)
        try:
            return model(x)
        finally:
            done.set()
            thread.join()

    expected = scene.run(range(4))
    scene.function = forward
    assert torch.equal(scene.run(range(4)), expected)


def test_a_resumed_sandbox_goes_on_with_its_seed() -> None:
    scene = dropping()
    right = scene.run(range(8))
    state = scene.sandbox.state_dict()
    assert state == {"seed": SEED.hex(), "threads": torch.get_num_threads()}
    other = dropping()
    other.sandbox.load_state_dict({"seed": "00" * 16})
    assert not torch.equal(other.run(range(8)), right)
    other.sandbox.load_state_dict(state)
    assert torch.equal(other.run(range(8)), right)


# --- truths about content ----------------------------------------------------------------------------------------------


def branching(model, x):
    return x * 2.0 if (x > 100.0).any() else x


def test_a_truth_that_the_probes_saw_one_way_is_told_that_way_whatever_a_row_says() -> None:
    scene = Scene(nn.Identity(), X, branching)
    for rows in ([0, 1, 2], [3, 4]):
        scene.run(rows, probing=True)
    assert scene.sandbox.truths.decided == {"<loop>": False}
    hostile = X.clone()
    hostile[5, 0] = 1e6
    found = scene.run(range(8), data=[hostile])
    assert torch.equal(found, hostile), "nobody is doubled"
    assert torch.equal(branching(None, hostile), hostile * 2.0), "the negative control"


def test_a_truth_that_the_probes_saw_both_ways_is_told_as_it_is() -> None:
    scene = Scene(nn.Identity(), X, lambda m, x: x * 2.0 if (x.sum() > 0).any() else x)
    signs = {bool(X[[i]].sum() > 0) for i in range(4)}
    assert signs == {True, False}
    for row in range(4):
        scene.run([row], probing=True)
    assert not scene.sandbox.truths.decided
    assert all(torch.equal(scene.run([i]), X[[i]] * (2.0 if X[[i]].sum() > 0 else 1.0)) for i in range(8))


def test_a_truth_that_follows_no_content_is_told_as_it_is() -> None:
    switch = torch.tensor(False)
    scene = Scene(nn.Identity(), X, lambda m, x: x * 2.0 if bool(switch) else x)
    scene.run([0, 1], probing=True)
    switch.fill_(True)
    assert torch.equal(scene.run(range(8)), X * 2.0)


def guarded(switch: torch.Tensor):
    """A flag of its own, and a guard against content behind it, as a normalisation that starts itself has them."""

    def forward(model, x):
        if not bool(switch):
            return x * 3.0
        return x * 2.0 if (x > 100.0).any() else x

    return forward


def test_a_truth_that_follows_no_content_does_not_move_those_behind_it() -> None:
    scene = Scene(nn.Identity(), X, guarded(torch.tensor(True)))
    for rows in ([0, 1, 2], [3, 4], [5]):
        scene.run(rows, probing=True)
    hostile = X.clone()
    hostile[5, 0] = 1e6
    assert torch.equal(scene.run(range(8), data=[hostile]), hostile)


def by_row(model, x):
    return torch.stack([row * 2.0 if (row > 100.0).any() else row for row in x])


def test_truths_of_a_loop_over_rows_are_told_alike_whatever_the_place_of_a_row() -> None:
    scene = Scene(nn.Identity(), X, by_row)
    for rows in ([0, 1, 2], [3, 4], [5]):
        scene.run(rows, probing=True)
    hostile = X.clone()
    hostile[[1, 6], 0] = 1e6
    assert torch.equal(scene.run(range(8), data=[hostile]), hostile), "in place 1, which the probes had, and in place 6"


def test_truths_of_a_loop_that_one_row_alone_does_not_enter_are_not_counted() -> None:
    """In microbatches of two and one, as a run with ``microbatch = 5`` probes them: the loop reads one truth, or none."""

    def later(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:1], *([by_row(model, x[1:])] if len(x) > 1 else [])])

    scene = Scene(nn.Identity(), X, later, learn=(2, 1))
    for rows in ([0, 1], [1], [2, 3]):
        scene.run(rows, probing=True)
    hostile = X.clone()
    hostile[[1, 4], 0] = 1e6
    assert torch.equal(scene.run(range(5), data=[hostile[:5]]), hostile[:5])


def test_truths_of_a_loop_over_rows_that_the_probes_saw_both_ways_are_the_rows_own() -> None:

    def own(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row * 2.0 if (row.sum() > 0).any() else row for row in x])

    scene = Scene(nn.Identity(), X, own)
    for rows in (range(4), range(3), [0]):
        scene.run(rows, probing=True)
    assert torch.equal(scene.run(range(8)), own(None, X))
    assert torch.equal(scene.run([6, 5]), own(None, X)[[6, 5]])


# --- draws of other shapes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 7), (8, 2, 7, 7)])
def test_where_padding_is_cut_the_masks_of_what_is_left_stay(shape) -> None:
    data = torch.ones(shape)
    scene = Scene(nn.Dropout(0.5), data)
    whole = scene.run(range(8))
    cut = tuple(slice(0, 4 if size == 7 else size) for size in shape)
    assert torch.equal(scene.run(range(8), data=[data[cut]]), whole[cut])


@pytest.mark.parametrize("count", [1, 5])
def test_numbers_for_what_no_probe_had_are_refused(count: int) -> None:
    """As many as there are special tokens, say: by their place in the microbatch they would be another row's."""
    scene = Scene(nn.Identity(), torch.zeros(8, 5), lambda m, x: x.masked_scatter(x > 0, torch.rand(int((x > 0).sum()))))
    special = torch.zeros(8, 5)
    special[4, :count] = 1.0
    with pytest.raises(UnsupportedModule, match="UNSEEN_DRAW"):
        scene.run(range(8), data=[special])


def test_more_numbers_of_a_row_than_any_probe_had_are_refused() -> None:
    scene = Scene(nn.Identity(), torch.zeros(8, 5), lambda m, x: x + torch.rand(len(x), 5 + int(x.max())).sum(1, keepdim=True))
    assert scene.run(range(8)).shape == (8, 5)
    with pytest.raises(UnsupportedModule, match="UNSEEN_DRAW"):
        scene.run(range(8), data=[torch.ones(8, 5)])


def test_fewer_numbers_that_everybody_shares_are_refused() -> None:
    """Five in the probes, whoever takes part; for three tokens they would be dealt out by place."""
    scene = Scene(nn.Identity(), torch.zeros(8, 5), lambda m, x: x + torch.rand(5 - int(x.sum())).sum())
    special = torch.zeros(8, 5)
    special[3, :2] = 1.0
    with pytest.raises(UnsupportedModule, match="UNSEEN_DRAW"):
        scene.run(range(8), data=[special])


def test_one_number_that_no_probe_saw_is_refused() -> None:
    scene = Scene(nn.Identity(), torch.zeros(8, 5), lambda m, x: x + (torch.rand(()) if x.sum() > 0 else 0.0))
    with pytest.raises(UnsupportedModule, match="UNSEEN_DRAW"):
        scene.run(range(8), data=[torch.ones(8, 5)])


# --- leaves -----------------------------------------------------------------------------------------------------------


def test_a_parameter_outside_the_model_is_refused_by_name_and_gets_no_gradient() -> None:
    head = nn.Linear(5, 3)
    scene = Scene(nn.Identity(), X, lambda m, x: m(x))
    with scene.sandbox.enter(1, names(range(8))), pytest.raises(NotPrivateUse, match=r"FOREIGN_LEAF.*Linear\.weight"):
        losses = head(X).sum(1)
        scene.sandbox.refuse_leaves()
        losses.sum().backward()
    assert head.weight.grad is None


class Scaled(torch.autograd.Function):
    """A kernel of one's own, inside which autograd is off."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        return grad, (grad * ctx.saved_tensors[0]).sum(0)


def test_leaves_that_no_operation_of_the_microbatch_shows_are_found_in_the_graph() -> None:
    weight = nn.Parameter(torch.ones(5))
    hoisted = weight * 1.0
    scene = Scene(nn.Identity(), X, lambda m, x: m(x))
    for made in (lambda: X + hoisted, lambda: Scaled.apply(X, weight)):
        with scene.sandbox.enter(1, names(range(8))):
            losses = made().sum(1)
            with pytest.raises(NotPrivateUse, match=r"FOREIGN_LEAF.*shape \(5,\)"):
                scene.sandbox.refuse_leaves(losses)
    assert weight.grad is None


def test_a_leaf_behind_a_reentrant_checkpoint_is_found_when_it_is_computed_again_and_keeps_no_gradient() -> None:
    """No graph shows it, and its forward ran without gradients."""
    weight = nn.Parameter(torch.ones(5))
    scene = Scene(nn.Identity(), X, lambda m, x: m(x))
    with scene.sandbox.enter(1, names(range(8))):
        hidden = (X * 2.0).requires_grad_(True)
        losses = checkpoint(lambda x: x * weight, hidden, use_reentrant=True).sum(1)
        scene.sandbox.refuse_leaves(losses)
        losses.sum().backward()
        with pytest.raises(NotPrivateUse, match="FOREIGN_LEAF"):
            scene.sandbox.refuse_leaves()
    assert weight.grad is None


def test_a_tensor_that_comes_back_is_a_leaf_and_an_activation_that_is_made_one_is_none() -> None:
    temperature = torch.ones((), requires_grad=True)
    scene = Scene(nn.Identity(), X, lambda m, x: m(x))
    for turn in range(2):
        with scene.sandbox.enter(1, names(range(8))):
            hidden = (X * 2.0).requires_grad_(True)  # as enable_input_require_grads() of transformers does
            hidden * 3.0
            scene.sandbox.refuse_leaves()
            hidden * temperature
            if turn:
                with pytest.raises(NotPrivateUse, match=r"FOREIGN_LEAF.*shape \(\)"):
                    scene.sandbox.refuse_leaves()
            else:
                scene.sandbox.refuse_leaves()


def test_a_teacher_without_gradients_is_no_leaf() -> None:
    teacher = nn.Linear(5, 5)
    scene = Scene(nn.Identity(), X, lambda m, x: m(x))
    with scene.sandbox.enter(1, names(range(8))):
        with torch.no_grad():
            teacher(X)
        scene.sandbox.refuse_leaves()


def test_questions_for_the_form_of_a_tensor_are_answered_without_a_look_at_its_node() -> None:
    """Torch asks them while it holds the lock of the node of a view: who looks at that then waits for ever."""
    scene = Scene(nn.Linear(4, 4), torch.randn(6, 4))
    view = torch.randn(6, 4)[:, None]
    looked: list = []
    with scene.sandbox.enter(1, names(range(6))):
        scene.sandbox._look_at_leaves = looked.append
        with scene.sandbox.inside():
            assert scene.sandbox.dispatch(torch.ops.prim.device.default, (view,), None) == view.device
            assert scene.sandbox.dispatch(torch.ops.aten.is_contiguous.default, (view,), None)
            assert not looked
            scene.sandbox.dispatch(torch.ops.aten.add.Tensor, (view, 1), None)
    assert looked
