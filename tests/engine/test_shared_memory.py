"""Two tensors in one memory, of which a step moves one, are refused by name before a ledger is made."""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.engine import refusals  # noqa: E402
from dptrain.errors import UnsupportedModule  # noqa: E402
from tests.guarantees.peers import Run  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

BANDS = """
[[class]]
name = "top"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.9, to = 1.0 }}
[[class]]
name = "all"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""


class Tied(nn.Module):
    """Tokens, two layers, and scores of every token; ``tie`` says how the embedding and the head become one."""

    def __init__(self, tie: Callable[["Tied"], None]) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 50, bias=False)
        tie(self)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids).mean(1)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return self.head(hidden)


def by_data(model: Tied) -> None:
    model.head.weight.data = model.embed.weight.data


def by_a_second_parameter(model: Tied) -> None:
    model.head.weight = nn.Parameter(model.embed.weight)


def by_part(model: Tied) -> None:
    """The head over all but the first row of a longer table."""
    table = torch.randn(51, 8)
    model.embed.weight, model.head.weight = nn.Parameter(table[:50]), nn.Parameter(table[1:])


def with_a_frozen_one(model: Tied) -> None:
    model.head.weight = nn.Parameter(model.embed.weight.detach(), requires_grad=False)


def with_a_buffer(model: Tied) -> None:
    model.register_buffer("table", model.embed.weight.detach()[10:20])


def by_the_parameter(model: Tied) -> None:
    model.head.weight = model.embed.weight


def by_a_copy(model: Tied) -> None:
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())


def in_one_flat_buffer(model: Tied) -> None:
    flat = torch.randn(800)
    model.embed.weight, model.head.weight = nn.Parameter(flat[:400].view(50, 8)), nn.Parameter(flat[400:].view(50, 8))


def both_frozen(model: Tied) -> None:
    model.embed.weight.requires_grad_(False)
    with_a_frozen_one(model)


def without_memory(model: Tied) -> None:
    model.register_buffer("empty", model.embed.weight.detach()[3:3])
    model.register_parameter("meta", nn.Parameter(torch.empty(50, 8, device="meta"), requires_grad=False))


REFUSED = {
    by_data: "'head.weight'", by_a_second_parameter: "'head.weight'", by_part: "'head.weight'",
    with_a_frozen_one: "'head.weight'", with_a_buffer: "'table'",
}  # fmt: skip


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    """The same corpus twice; the class ``top``, which may touch the head alone, says something else."""
    root = tmp_path_factory.mktemp("worlds")
    other = lambda seed: token_record(seed + 500 if seed < 1000 else seed)  # noqa: E731
    return tuple(
        make_world(root / name, classes=BANDS, record=record, per_class=1, steps=1, rate="1", now=1_800_000_000)
        for name, record in (("one", token_record), ("two", other))
    )


def made(tie: Callable[[Tied], None]) -> Tied:
    torch.manual_seed(0)
    return Tied(tie)


@pytest.mark.parametrize("tie", REFUSED, ids=lambda tie: tie.__name__)
def test_a_trained_tensor_that_shares_memory_is_refused_by_name_before_there_is_a_ledger(worlds, tie) -> None:
    with pytest.raises(UnsupportedModule, match=r"SHARED_MEMORY.*assign the Parameter itself") as caught:
        Run(worlds[0], made(tie), name=tie.__name__)
    assert "'embed.weight'" in str(caught.value) and REFUSED[tie] in str(caught.value)
    assert not (worlds[0].root / f"{tie.__name__}.db").exists()


@pytest.mark.parametrize(
    "tie", [by_the_parameter, by_a_copy, in_one_flat_buffer, both_frozen, without_memory], ids=lambda tie: tie.__name__
)
def test_tensors_that_are_one_or_do_not_overlap_pass(tie) -> None:
    model = made(tie)
    refusals.refuse_shared_memory(model, {id(p) for p in model.parameters() if p.requires_grad})


def test_tensors_tied_between_the_preparation_and_the_first_step_are_refused_before_there_is_a_ledger(worlds) -> None:
    model = made(lambda model: None)
    with Run(worlds[0], model, name="late") as run:
        by_data(model)
        with pytest.raises(UnsupportedModule, match="SHARED_MEMORY"):
            run.gradients(next(iter(run.steps)))
        assert not run.private.recorder.begun


def embedding_after(world: World, tie: Callable[[Tied], None]) -> torch.Tensor:
    model = made(tie)
    with Run(world, model) as run:
        for step in run.steps:
            run.gradients(step)
            run.optimizer.step()
    return model.embed.weight.detach().clone()


def test_without_the_refusal_a_class_moves_a_block_that_it_may_not_touch(worlds, monkeypatch) -> None:
    """What the refusal is for; and the way that it names keeps the embedding out of the reach of the class."""
    one, two = (embedding_after(world, by_the_parameter) for world in worlds)
    assert torch.equal(one, two)
    monkeypatch.setattr(refusals, "refuse_shared_memory", lambda model, trained: None)
    one, two = (embedding_after(world, by_data) for world in worlds)
    assert not torch.equal(one, two)
