"""Couplings inside modules that run again, and straight through them: each is refused before anything is charged."""

import json
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import CoupledModel, DptrainError  # noqa: E402
from dptrain.gradients import poison  # noqa: E402
from dptrain.routing import router  # noqa: E402
from tests.guarantees.peers import Run, small_world  # noqa: E402
from tests.worlds.training import World, token_record  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore::dptrain.engine.start.Unprobed")


class Scaled(nn.Module):
    """A tensor of its own and no rule, so that it runs again; what ``mix`` does to its output is inside."""

    def __init__(self, mix: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.mix = mix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(torch.tanh(x * self.scale) + 0.1 * x)


class FloatNet(nn.Module):
    """Nothing trained lies below ``extra``, so that P1 begins at its output."""

    def __init__(self, extra: nn.Module) -> None:
        super().__init__()
        self.extra = extra
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.extra(nn.functional.one_hot(ids % 8, 8).to(self.head.weight.dtype))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x.mean(1))


def crossing(y: torch.Tensor) -> torch.Tensor:
    """Adds zero, which has a gradient in the row beside."""
    other = 1e-6 * y.roll(1, 0)
    return y + other - other.detach()


def from_the_end(y: torch.Tensor) -> torch.Tensor:
    return torch.cat([y[:1] + 1e-6 * y[-1:], y[1:]])


def into_the_end(y: torch.Tensor) -> torch.Tensor:
    return torch.cat([y[:-1], y[-1:] + 1e-6 * y[:1]])


COUPLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the row beside": lambda y: y + 1e-6 * y.roll(1, 0),
    "the mean of the batch": lambda y: y + 1e-6 * y.mean(0, keepdim=True),
    "the largest of the batch, without its gradient": lambda y: y + 1e-6 * y.detach().amax(0, keepdim=True),
    "the last row in the first": from_the_end,
    "the first row in the last": into_the_end,
    "a gradient alone": crossing,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("poisoned"), per_class=6)


def code_of_start(world: World, model: nn.Module) -> str:
    with Run(world, model) as run:
        try:
            run.gradients(next(iter(run.steps)))
        except DptrainError as error:
            assert not run.private.opened.recorder.begun and all(p.grad is None for p in model.parameters())
            return str(error.code)
    return ""


def scaled(mix: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return FloatNet(Scaled(mix))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", COUPLINGS)
def test_what_rows_share_inside_a_module_that_runs_again_is_refused_however_small(world: World, name: str) -> None:
    assert code_of_start(world, scaled(COUPLINGS[name])) == "CROSS_SAMPLE_GRADIENT"


@pytest.mark.parametrize("name", ["the row beside", "the largest of the batch, without its gradient"])
def test_without_poisoned_rows_nothing_shows_it(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "check_poisoned", lambda *_, **__: None)
    assert code_of_start(world, scaled(COUPLINGS[name])) == ""


@pytest.mark.one_in(99)
@pytest.mark.parametrize("mix", [lambda y: y, lambda y: y.softmax(1), lambda y: y - y.mean(1, keepdim=True)])
def test_what_stays_in_its_row_trains(world: World, mix: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert code_of_start(world, scaled(mix)) == ""


# --- straight through, beside a large input ------------------------------------------------------------------------------

LARGE = 1e7
OFFSET = torch.tensor([LARGE] + [0.0] * 6)


class Straight(nn.Module):
    """Its output says nothing of ``common``, and the gradient of its table is made of that."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 7) * 0.3)

    def forward(self, x: torch.Tensor, common: torch.Tensor) -> torch.Tensor:
        made = nn.functional.linear(common, self.table)
        return (x - OFFSET) / 25 - 1 + (made - made.detach())


class Beside(nn.Module):
    """``spread``: the mean of the batch comes as a row per example."""

    def __init__(self, *, spread: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.spread = spread
        self.inner, self.up = Straight(), nn.Linear(7, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        common = ((x - OFFSET) / 25 - 1).detach().mean(0)
        h = torch.tanh(self.up(self.inner(x, common.expand(len(x), 7) if self.spread else common)))
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return self.head(h)


def beside_large(examples: list[dict]) -> dict[str, torch.Tensor]:
    x = torch.tensor([e["ids"] for e in examples], dtype=torch.float32)
    x[:, 0] += LARGE
    return {"x": x, "labels": torch.tensor([e["label"] for e in examples])}


@pytest.mark.parametrize("spread", [False, True])
def test_a_large_input_hides_no_gradient_that_follows_from_the_batch(world: World, spread: bool) -> None:
    """Rounding was measured by the longest input once; one replaced record then moved released sums by 14 clip norms."""
    probe = [json.dumps(token_record(10_000 + i)).encode() for i in range(6)]
    model = Beside(spread=spread)
    with Run(world, model, collate_fn=beside_large, probe=probe) as run, pytest.raises(CoupledModel, match="REPLACEMENT"):
        run.gradients(
            next(iter(run.steps)), lambda m, r: nn.functional.cross_entropy(m(r["x"]), r["labels"], reduction="none")
        )


def test_the_poison_is_larger_than_any_coupling_that_it_is_to_show() -> None:
    assert all(1e-6 * factor > 1e-4 for factor in (*poison.HUGE.values(), 2.0**30))
