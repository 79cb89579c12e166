"""Dropout in the generic path: the second run uses the random numbers of the forward.

The reference is one forward without hooks under the same addresses, and a backward pass per contribution.
"""

import copy
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.gradients import generic as draws  # noqa: E402
from dptrain.gradients.generic import GenericRule  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from dptrain.routing.probes import check_exact  # noqa: E402
from dptrain.sandbox import Draw, Sandbox  # noqa: E402
from tests.guarantees.test_layer_rules import Stack, batch_of, cross_entropy  # noqa: E402
from tests.reference.compare import compare, learn, names_of, random_schedule  # noqa: E402
from tests.sandbox.scene import Scene  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore:enable_nested_tensor is True")


class Scaled(nn.Module):
    """A module without a rule of its own that drops by ``drop`` in the middle of its forward."""

    def __init__(self, drop) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.drop = drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.drop(x * self.scale)) * self.scale


class DropPath(nn.Module):
    """Stochastic depth as transformers and timm draw it: one number per example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = torch.rand((len(x), *(1,) * (x.dim() - 1)), dtype=x.dtype).add_(0.7).floor_()
        return x / 0.7 * keep


class OfTheTable(nn.Module):
    """A dropout of what all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x * nn.functional.dropout(self.table, 0.4), 0.3)


def torch_attention(**options) -> nn.Module:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True, dropout=0.3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, **options)[0]

    return Attention()


MODULES = {
    "dropout": lambda: Scaled(nn.Dropout(0.4)),
    "dropout in place": lambda: Scaled(nn.Dropout(0.4, inplace=True)),
    "alpha dropout": lambda: Scaled(nn.AlphaDropout(0.4)),
    "dropout of channels": lambda: Scaled(nn.Dropout1d(0.4)),
    "functional": lambda: Scaled(lambda x: nn.functional.dropout(x, 0.4) + nn.functional.dropout(x, 0.2)),
    "stochastic depth": lambda: Scaled(DropPath()),
    "additive noise": lambda: Scaled(lambda x: x + torch.randn_like(x)),
    "everything dropped": lambda: Scaled(nn.Dropout(1.0)),
    "as on a GPU": lambda: Scaled(lambda x: torch.native_dropout(x, 0.4, True)[0]),
    "a shared table": OfTheTable,
    "attention with weights": torch_attention,
    "attention without weights": lambda: torch_attention(need_weights=False),
    "attention by product": lambda: Scaled(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3)),
    "encoder layer": lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.3, batch_first=True),
    "decoder layer": lambda: Decoder(),
}


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, 6, dropout=0.3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x.square())


@pytest.mark.one_in(7)
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("case", MODULES)
def test_sums_are_those_of_the_same_masks(case: str, examples: int) -> None:
    torch.manual_seed(0)
    model = Stack([nn.Linear(4, 4), MODULES[case](), MODULES[case]()], 4, lambda x: x.mean(1)).double()
    compare(
        model,
        batch_of(5, 4, rows=9 * examples),
        cross_entropy,
        examples=examples,
        layers="layers",
        redraw=7,
        seed=f"{case}/{examples}",
    )


def test_a_microbatch_of_one_contribution_has_its_own_masks() -> None:
    torch.manual_seed(0)
    model = Stack([torch_attention(), Scaled(nn.Dropout(0.4))], 4, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 4, rows=4), cross_entropy, layers="layers", redraw=7)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.scaled = nn.Linear(4, 4), Scaled(nn.Dropout(0.4))
        self.attention = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: self.attention(self.scaled(self.first(y))), x, use_reentrant=False)


@pytest.mark.parametrize("examples", [1, 2])
def test_masks_inside_a_checkpoint_are_dropped_and_drawn_again_alike(examples: int) -> None:
    torch.manual_seed(0)
    model = Stack([Checkpointed(), Checkpointed()], 4, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 4, rows=9 * examples), cross_entropy, examples=examples, layers="layers", redraw=7)


@contextmanager
def entered(router: Router, model: nn.Module, x: torch.Tensor) -> Iterator[None]:
    """A pass over the rows of ``x``, after two in which the sandbox learns where rows lie."""
    with router.paused():
        learn(router.sandbox, model, {"x": x}, lambda model, rows: model(rows["x"]), 1)
    with router.sandbox.enter(1, names_of(len(x))):
        yield


def armed(model: nn.Module, rows: int) -> Router:
    schedule = random_schedule(model, random.Random(0), 1, "layers")
    model.requires_grad_(False)
    trained = frozenset(id(tensor.parameter) for block in schedule.blocks for tensor in block.tensors)
    router = Router(model, schedule, sandbox=Sandbox(model, trained, b"0123456789abcdef"))
    router.attach()
    router.arm(rows, 1, torch.ones(rows, len(schedule.blocks), dtype=torch.bool))
    return router


def test_what_another_run_is_given_is_a_mask_of_the_right_share_one_per_example(monkeypatch) -> None:
    scaled = Scaled(nn.Dropout(0.3))
    model = Stack([scaled], 4, lambda x: x.mean(1)).double()
    seen: list[Draw] = []
    drawn = Router._drawn
    monkeypatch.setattr(Router, "_drawn", lambda self, site: (seen.extend(found := drawn(self, site)), found)[1])
    router = armed(model, 64)
    ones = torch.ones(64, 50, 4, dtype=torch.float64)
    with entered(router, model, ones):
        model(ones)
    router.detach()
    (mask,) = seen
    value = mask.values()
    assert mask.kind == "keep" and value.dtype == torch.bool and value.shape == (64, 50, 4)
    shares = value.double().mean((1, 2))
    assert float(value.double().mean()) == pytest.approx(0.7, abs=0.02) and float(shares.std()) < 0.06
    assert len({row.numpy().tobytes() for row in value}) == 64, "no two examples share a mask"
    assert torch.equal(mask.of_rows(5, 3), value[5:8]) and torch.equal(mask.by_row()[:, 0], value)


def test_no_mode_is_left_behind_by_a_forward_that_raises() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("on purpose")

    def stopped(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    depth = torch.utils._python_dispatch._len_torch_dispatch_stack
    for drop, error in ((broken, KeyError), (stopped, KeyboardInterrupt)):
        model = Stack([Scaled(drop)], 4, lambda x: x.mean(1)).double()
        router = armed(model, 8)
        x = batch_of(5, 4)["x"]
        with pytest.raises(error), router.sandbox.enter(1, names_of(8)):
            model(x)
        router.detach()
        assert depth() == 0


def gradients_pass(model: nn.Module) -> None:
    compare(model, batch_of(5, 4, rows=9), cross_entropy, layers="layers", redraw=7)


@pytest.mark.parametrize("examples", [1, 2])
def test_one_contribution_after_the_other_has_its_own_masks(examples: int, monkeypatch) -> None:
    """The way of modules that vmap does not know: one contribution at a time, on its rows alone."""
    alone = []
    one_by_one = GenericRule._one_by_one
    monkeypatch.setattr(GenericRule, "_vectorised", _unknown_to_vmap)
    monkeypatch.setattr(GenericRule, "_one_by_one", lambda self, *args: alone.append(1) or one_by_one(self, *args))
    model = Stack([Scaled(nn.Dropout(0.4)), Scaled(nn.Dropout(0.4))], 4, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 4, rows=9 * examples), cross_entropy, layers="layers", redraw=7, examples=examples)
    assert alone


def _unknown_to_vmap(self: GenericRule, *args: object) -> None:
    raise NotImplementedError("an operation without a batching rule")


def test_a_second_run_with_fresh_masks_would_be_seen(monkeypatch) -> None:
    def fresh(rows: int):
        return lambda draw, shape: torch.rand(shape) < 0.6

    monkeypatch.setattr("dptrain.gradients.generic.every_row", fresh)
    model = Stack([Scaled(nn.Dropout(0.4)), Scaled(nn.Dropout(0.4))], 4, lambda x: x.mean(1)).double()
    with pytest.raises((UnsupportedModule, AssertionError)):
        gradients_pass(model)


def test_a_second_run_with_the_masks_of_others_would_be_seen(monkeypatch) -> None:
    monkeypatch.setattr("dptrain.gradients.generic.every_row", lambda rows: lambda draw, shape: draw.by_row().roll(1, 0))
    model = Stack([Scaled(nn.Dropout(0.4)), Scaled(nn.Dropout(0.4))], 4, lambda x: x.mean(1)).double()
    with pytest.raises((UnsupportedModule, AssertionError)):
        gradients_pass(model)


class Lopsided(nn.Module):
    """Draws for all rows at once where nobody's rows can be found."""

    def __init__(self, draw) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * self.draw(x)


@pytest.mark.parametrize(
    ("draw", "code"),
    [
        (lambda x: nn.functional.dropout(torch.ones(len(x) + 1, 5, 4, dtype=x.dtype), 0.5)[: len(x)], "DRAW_ROWS"),
        (lambda x: torch.poisson(torch.ones_like(x)), "DRAW_UNKNOWN"),
        (lambda x: x + (torch.rand(()) if len(x) > 1 else 0.0), "DROPOUT_IN_FALLBACK"),  # fewer the second time
        (lambda x: x + (torch.rand(()) if len(x) == 1 else 0.0), "DROPOUT_IN_FALLBACK"),  # more the second time
    ],
)
def test_draws_that_have_no_rows_are_refused(draw, code: str) -> None:
    torch.manual_seed(0)
    model = Stack([Lopsided(draw)], 4, lambda x: x.mean(1)).double()
    with pytest.raises(UnsupportedModule, match=code):
        compare(model, batch_of(5, 4), cross_entropy, layers="layers", redraw=7)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: nn.functional.dropout(torch.ones_like(x).transpose(0, 1), 0.5).transpose(0, 1),  # examples in dimension 1
        lambda x: torch.multinomial(torch.ones(len(x), 4), 4).to(x)[:, None],  # not one number per element
    ],
)
def test_draws_of_rows_in_other_places_are_those_of_the_forward(draw) -> None:
    torch.manual_seed(0)
    model = Stack([nn.Linear(4, 4), Lopsided(draw), Lopsided(draw)], 4, lambda x: x.mean(1)).double()
    compare(model, batch_of(5, 4, rows=9), cross_entropy, layers="layers", redraw=7)


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand])
def test_draws_of_python_and_numpy_are_refused(draw) -> None:
    """They are not written down, and another run would take others; a rare one would pass the probes."""
    torch.manual_seed(0)
    model = Stack([Scaled(lambda x: x * 2.0 if draw() < 1e-9 else x)], 4, lambda x: x.mean(1)).double()
    with pytest.raises(UnsupportedModule, match=r"DROPOUT_IN_FALLBACK.*numpy's in its forward"):
        compare(model, batch_of(5, 4), cross_entropy, layers="layers")


class DroppedExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, 4)
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for k, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == k).flatten()
            out = out.index_add(0, rows, nn.functional.dropout(expert(flat[rows]), 0.5) * weight[rows, None])
        return out.view_as(x)


def test_dropout_of_gathered_tokens_is_refused_whatever_their_number() -> None:
    torch.manual_seed(0)
    model = Stack([DroppedExperts()], 4, lambda x: x.mean(1)).double()
    with pytest.raises(UnsupportedModule, match="DRAW_ROWS"):
        compare(model, batch_of(5, 4), cross_entropy, layers="layers", redraw=7)


def test_dropout_that_is_switched_on_after_a_silent_start_is_refused() -> None:
    """The site was seen to draw nothing; what it draws later is not kept, and must not be drawn anew."""
    drop = nn.Dropout(0.0)
    model = Stack([Scaled(drop)], 4, lambda x: x.mean(1)).double()
    router = armed(model, 8)
    model(batch_of(5, 4)["x"])
    drop.p = 0.5
    router.arm(8, 1, torch.ones(8, len(router.schedule.blocks), dtype=torch.bool))
    losses = cross_entropy(model, batch_of(5, 4))
    with pytest.raises(UnsupportedModule, match=r"DROPOUT_IN_FALLBACK.*draws random numbers"):
        router.backward(losses, torch.ones(8, dtype=torch.float64))
    router.detach()


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, share: nn.functional.dropout(x, share),
        lambda x, share: torch.native_dropout(x, share, True)[0],
        lambda x, share: torch.empty_like(x).bernoulli_(share),
    ],
)
def test_a_second_run_with_another_share_is_given_nothing(draw) -> None:
    """The same kind of draw of the same shape, but from another distribution: its numbers would not be those asked for."""
    scene = Scene(nn.Identity(), torch.ones(3, 4, dtype=torch.float64), lambda m, x: draw(x, 0.4))
    with scene.sandbox.enter(1, names_of(3)):
        x = scene.data[0]
        first = draw(x, 0.4)
        entries = scene.sandbox.since(0)
        with draws.Replay(entries, draws.rows_of(0, 3, 3)):
            again = draw(x, 0.4)
        with draws.Replay(entries, draws.rows_of(1, 2, 3)):
            fewer = draw(x[1:], 0.4)
        with pytest.raises(draws.Unmatched, match="other random numbers"), draws.Replay(entries, draws.rows_of(0, 3, 3)):
            draw(x, 0.3)
        with pytest.raises(draws.Unmatched, match="fewer"), draws.Replay(entries, draws.rows_of(0, 3, 3)):
            pass
    torch.testing.assert_close(again, first, rtol=0, atol=1e-12)
    torch.testing.assert_close(fewer, first[1:], rtol=0, atol=1e-12)


def test_a_second_run_reads_the_truths_that_the_first_was_told() -> None:
    scene = Scene(nn.Identity(), torch.zeros(3, 4), lambda m, x: 2.0 if (x > 1).any() else 1.0)
    scene.run([0, 1], probing=True)
    with scene.sandbox.enter(1, names_of(3)):
        hostile = torch.full((3, 4), 9.0)
        assert scene.function(None, hostile) == 1.0
        entries = scene.sandbox.since(0)
        with draws.Replay(entries, draws.rows_of(0, 3, 3)):
            assert scene.function(None, hostile[:1]) == 1.0


def test_the_probes_see_the_same_masks_as_autograd() -> None:
    """P0 compares with autograd's own gradient of the very same forward."""
    torch.manual_seed(0)
    model = Stack([Scaled(nn.Dropout(0.4)), torch_attention()], 4, lambda x: x.mean(1)).double()
    router, batch = armed(model, 8), batch_of(5, 4)
    with entered(router, model, batch["x"]):
        router.arm(8, 1, torch.ones(8, len(router.schedule.blocks), dtype=torch.bool))
        model.requires_grad_(True)
        check_exact(router, cross_entropy(model, batch), torch.ones(8, dtype=torch.float64))
    router.detach()


def test_copies_of_a_model_under_way_carry_no_draws() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.MultiheadAttention(4, 2, batch_first=True, dropout=0.3)])})
    router = armed(model, 8)
    x = torch.randn(8, 5, 4)
    with router.sandbox.enter(1, names_of(8)), pytest.raises(UnsupportedModule, match="UNSEEN_DRAW"):
        model["layers"][0](x, x, x)  # which leaves the router in the middle of a forward
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(twin["layers"]) == 1
        hooks = [hook for module in twin.modules() for hook in module._forward_pre_hooks.values()]
        assert hooks and all(vars(hook.func.__self__) == {"_armed": None} for hook in hooks)
    router.detach()
