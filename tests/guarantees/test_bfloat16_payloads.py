"""Under bfloat16 autocast a contribution moves a clipped sum by no more than its bound, whatever numbers it has the model form.

What a layer hands over in bfloat16 is widened first. Norms, coefficients and sums are then those of float32 numbers, and no
other margin is needed than that which pays for float32 products (`ledger.leaves.numerics.MARGINS`). Here contributions choose
the gradients of the model's outputs, and so what is rounded to eight bits on the way down.
"""

import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.clipping import fast as sums  # noqa: E402
from dptrain.gradients import forms  # noqa: E402
from dptrain.noise import LatticeGaussian  # noqa: E402
from tests.guarantees.peers import Run, must_fail, small_world  # noqa: E402
from tests.worlds.training import World  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error::dptrain.routing.compiled.CompileNotice")]

CLIP = 1.0
PEOPLE, T, OUT = 8, 48, 6
"""Contributions of a microbatch, positions, and numbers that a position gives."""


def _halfway(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Every number lies in the middle of two of bfloat16, on one side for all positions."""
    return torch.full(shape, 1.0 + 2.0**-8) * (1.0 + torch.randint(0, 2, shape, generator=draw) * 2.0**-7)


def _cancelling(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Positions cancel but for the last bit of bfloat16, of numbers in the thousands."""
    found = torch.randn(shape, generator=draw) * 4096.0
    found[1::2] = -found[::2] * (1.0 + 2.0**-8)
    return found


def _wide(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Sizes from 1e-18 to 1e12."""
    return torch.randn(shape, generator=draw).sign() * 10.0 ** (torch.rand(shape, generator=draw) * 30.0 - 18.0)


def _one_giant(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    found = torch.randn(shape, generator=draw) * 2.0**-8
    found[3, 2] = 1e12
    return found


def _equal(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """A drift of additions goes one way."""
    return torch.full(shape, 257.0 / 256.0)


def _tiny(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Squares vanish in float32, and yet the gradient is all that there is."""
    return torch.randn(shape, generator=draw) * 1e-25


def _overflow(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Beyond what a product of two such numbers holds: it counts as zero."""
    return torch.full(shape, 3e38)


def _plain(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=draw) * 100.0


KINDS = (_halfway, _cancelling, _wide, _one_giant, _equal, _tiny, _overflow, _plain)
BINDS = {_halfway, _cancelling, _one_giant, _equal, _plain}
"""Kinds that are surely clipped, and not taken for zero."""


class Model(nn.Module):
    """Table, normalisation, two linear layers between residual streams, head at every position; the rules that BERT has."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2)])
        self.head = nn.Linear(8, OUT)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def payloads() -> dict[int, torch.Tensor]:
    """By seed of a contribution, the gradients of its outputs, (T, OUT)."""
    return {place: kind((T, OUT), torch.Generator().manual_seed(place)) for place, kind in enumerate(KINDS)}


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    chosen = payloads()
    places = [e["seed"] % PEOPLE for e in examples]
    ids = [[(e["seed"] * 7 + t % 3) % 50 for t in range(T)] for e in examples]  # three rows of the table, again and again
    return {
        "ids": torch.tensor(ids),
        "place": torch.tensor(places),
        "payload": torch.stack([chosen[place] for place in places]),
    }


def losses(model: nn.Module, rows: Any) -> torch.Tensor:
    return (model(rows["ids"]).float() * rows["payload"]).sum((1, 2))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch writes a record per node to whoever listens, and pytest listens."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("payloads"), per_class=PEOPLE, steps=PEOPLE + 1, rate="1")


class Influences:
    """Norm of what every contribution moves the clipped sums of a microbatch by, that it shares with all others.

    Step 0 has everybody; in step k contribution k - 1 has a loss of zero. Nothing moves in between.
    """

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *, compiled: bool, around: str = "loop") -> None:
        before: list[dict[int, torch.Tensor]] = []
        release = LatticeGaussian.release_

        def listening(mechanism: Any, total: torch.Tensor, *args: Any, step: int, lane: int, **where: Any) -> torch.Tensor:
            if len(before) < step:
                before.append({})
            before[step - 1][lane] = total.double().clone()
            return release(mechanism, total, *args, step=step, lane=lane, **where)

        torch.manual_seed(0)
        model = Model()
        self.half = False
        with monkeypatch.context() as patched:
            patched.setattr(LatticeGaussian, "release_", listening)
            still = torch.optim.SGD(model.parameters(), lr=0.0)
            with Run(world, model, collate_fn=collate, microbatch=PEOPLE, optimizer=still) as run:
                loss = run.private.loss(losses, compiled=True) if compiled else losses
                with torch.autocast("cpu", torch.bfloat16, enabled=around == "loop"):
                    for number, step in enumerate(run.steps):
                        for rows in step:
                            rows["payload"][rows["place"] == number - 1] = 0.0
                            with torch.autocast("cpu", torch.bfloat16, enabled=around != "nothing"):
                                found = loss(model, rows)
                            run.private.backward(found, rows)
                            self.half = self.half or run.private.prepared.router.half
                        run.optimizer.step()
                self.graphs = loss.graphs if compiled else 0
        whole, *without = before
        self.of = {
            kind: sum(float((whole[lane] - part[lane]).square().sum()) for lane in whole) ** 0.5
            for kind, part in zip(KINDS, without, strict=True)
        }


def require_bounded(found: Influences) -> None:
    assert len(found.of) == PEOPLE and all(value <= CLIP for value in found.of.values()), found.of
    assert all(found.of[kind] > 0.99 * CLIP for kind in BINDS), f"the bound must bind: {found.of}"


@pytest.mark.one_in(99)
@pytest.mark.parametrize("around", ["loop", "forward"])
@pytest.mark.parametrize("compiled", [False, True])
def test_no_payload_under_bfloat16_autocast_moves_a_sum_by_more_than_its_bound(
    compiled: bool, around: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hook form and compiled form, with autocast around the forward pass and around the whole loop."""
    if compiled:
        monkeypatch.setattr("torch._inductor.compile", lambda graph, values: graph)  # as it was traced
    found = Influences(world, monkeypatch, compiled=compiled, around=around)
    assert found.half and found.graphs == int(compiled)
    require_bounded(found)


@pytest.mark.slow
def test_no_payload_moves_a_sum_by_more_than_its_bound_through_the_real_compiler(world: World, monkeypatch) -> None:
    found = Influences(world, monkeypatch, compiled=True)
    assert found.half and found.graphs == 1
    require_bounded(found)


def test_the_bound_is_broken_where_norms_are_formed_in_bfloat16(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: eight bits of a norm are off by more than the margin, and the check above sees it."""
    exact = sums.FastSums.coefficients

    def rounded(self: sums.FastSums, norms: torch.Tensor, *rest: Any) -> torch.Tensor:
        low = norms.sqrt().bfloat16().double()
        return exact(self, (low * (1.0 - 2.0**-8)).square(), *rest)

    monkeypatch.setattr(sums.FastSums, "coefficients", rounded)
    must_fail(lambda: require_bounded(Influences(world, monkeypatch, compiled=False)))


def test_the_bound_is_broken_where_what_is_summed_is_rounded_behind_the_norm(world: World, monkeypatch) -> None:
    """The control of the other half: a sum of numbers in bfloat16, of which the norm was formed in float32."""
    exact = forms.add_all_weighted

    def rounded(parts: list[tuple[list[Any], torch.Tensor, torch.Tensor]]) -> None:
        for piece in [piece for pieces, _, _ in parts for piece in pieces]:
            for name, value in vars(piece).items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    setattr(piece, name, (value * (1.0 + 2.0**-8)).bfloat16().to(value.dtype))
        exact(parts)

    monkeypatch.setattr(sums, "add_all_weighted", rounded)
    must_fail(lambda: require_bounded(Influences(world, monkeypatch, compiled=False)))
