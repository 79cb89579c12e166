"""Runs in bfloat16: the compiled form goes through the real compiler, agrees with the hook form and rounds where it does."""

import dataclasses
import logging
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import CompileRefused  # noqa: E402
from tests.guarantees.peers import Run, per_example, small_world  # noqa: E402
from tests.worlds.training import World  # noqa: E402

Accelerator = pytest.importorskip("accelerate").Accelerator

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error::dptrain.routing.compiled.CompileNotice")]

WAYS = ["accelerate", "autocast"]
"""Who switches bfloat16 on: accelerate, inside the model's own forward, or the user, around the whole loop."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch writes a record per node to whoever listens, and pytest listens."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("half"), per_class=6, steps=2, rate="1")


class Net(nn.Module):
    """Embedding, three layers between residual streams, head: small, as a compiler takes seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x.mean(1))


Types = dict[str, list[tuple[str, torch.dtype]]]


@dataclass
class Found:
    """Losses and releases of a run, in their order, the types of pieces by tensor, how many graphs it made, and whether hooks
    saw half precision."""

    values: list[torch.Tensor] = field(default_factory=list)
    types: list[Types] = field(default_factory=list)
    graphs: int = 0
    half: bool = False


def types_of(router: Any) -> Types:
    """Of every tensor of every piece that the armed microbatch has, the name of the field and the type."""
    return {
        router.tensors[index][1].name: [
            (item.name, getattr(piece, item.name).dtype)
            for piece in router.pieces[index]
            for item in dataclasses.fields(piece)
            if isinstance(getattr(piece, item.name), torch.Tensor)
        ]
        for index in sorted(router.pieces)
    }


def run(world: World, way: str, *, compiled: bool) -> Found:
    """Two steps in bfloat16, or in float32 where ``way`` is "float32"."""
    torch.manual_seed(0)
    inner = Net()
    model, optimizer, options = inner, torch.optim.SGD(inner.parameters(), lr=0.1), {}
    if way == "accelerate":
        accelerator = Accelerator(mixed_precision="bf16", cpu=True)
        model, optimizer = accelerator.prepare(inner, optimizer)
        options = {"accelerator": accelerator}
    found = Found()
    with Run(world, model, optimizer=optimizer, microbatch=6, **options) as made:
        private = made.private
        loss = private.loss(per_example, compiled=True) if compiled else per_example
        fold = private.prepared.folding.fold

        def noting() -> None:
            found.types.append(types_of(private.prepared.router))
            found.half = found.half or private.prepared.router.half
            fold()

        private.prepared.folding.fold = noting
        with torch.autocast("cpu", dtype=torch.bfloat16) if way == "autocast" else nullcontext():
            for step in made.steps:
                for rows in step:
                    losses = loss(model, rows)
                    private.backward(losses, rows)
                    found.values += [] if private.prepared.probe.active else [losses.detach().float()]
                found.values += [parameter.grad.clone() for parameter in inner.parameters()]
                optimizer.step()
        found.graphs = loss.graphs if compiled else 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_runs_through_the_real_compiler_and_agrees_with_the_hook_form(world: World, way: str) -> None:
    """A piece has the type that it has in the hook form: what is float32 there was not rounded to bfloat16 on the way."""
    plain, compiled = run(world, way, compiled=False), run(world, way, compiled=True)
    assert compiled.graphs == 1
    assert compiled.types == plain.types and len(plain.types) == 2
    kinds = {kind for held in plain.types[0].values() for _, kind in held}
    assert kinds == {torch.float32, torch.int64}, "norms and sums are formed of these, and never in half precision"
    assert plain.half, "and yet the model computes in it"
    for one, other in zip(plain.values, compiled.values, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert float((one - other).norm()) <= 5e-2 * float(one.norm())


@pytest.mark.parametrize("way", [way if way == "accelerate" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_a_graph_casts_where_its_trace_did_and_nowhere_else(world: World, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was traced, without the compiler's code, it is the hook form to the bit."""
    monkeypatch.setattr("torch._inductor.compile", lambda graph, values: graph)
    plain, traced = run(world, way, compiled=False), run(world, way, compiled=True)
    assert traced.graphs == 1 and traced.types == plain.types
    assert all(torch.equal(one, other) for one, other in zip(plain.values, traced.values, strict=True))


def off_by(part: float) -> Any:
    """In the place of the compiler: a graph whose numbers are all off by this part of them."""
    return lambda graph, values: lambda given: [v * (1.0 + part) if v.is_floating_point() else v for v in graph(given)]


@pytest.mark.parametrize("way", [way if way == "accelerate" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_the_comparison_allows_what_half_precision_rounds_wherever_it_is_switched_on(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hundredth is rounding where 8 bits are kept, and ten are none."""
    monkeypatch.setattr("torch._inductor.compile", off_by(0.01))
    assert run(world, way, compiled=True).graphs == 1
    monkeypatch.setattr("torch._inductor.compile", off_by(0.1))
    with pytest.raises(CompileRefused, match="COMPILED_MISMATCH"):
        run(world, way, compiled=True)


def test_in_float32_the_same_error_is_a_mismatch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.compile", off_by(0.01))
    with pytest.raises(CompileRefused, match="COMPILED_MISMATCH"):
        run(world, "float32", compiled=True)
