"""Layers that hold time before the examples, (T, B, D): every contribution is clipped by its own gradient, whatever T and B
are, and what mixes examples there, or moves them, is refused."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import DptrainError, UnsupportedModule  # noqa: E402
from dptrain.gradients.dimensions import Dimension  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from tests.guarantees.peers import Run, nothing, per_example, small_world  # noqa: E402
from tests.guarantees.test_shared_tables import routed  # noqa: E402
from tests.worlds.training import token_record  # noqa: E402
from tests.zoo.family import RANDOM  # noqa: E402
from tests.zoo.judge import judge  # noqa: E402
from tests.zoo.start import EXACT  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::dptrain.routing.FallbackNotice", "ignore::dptrain.engine.start.Unprobed",
    "ignore::dptrain.engine.start.ContentBranch", "ignore::dptrain.engine.start.ProbeFailed",
)  # fmt: skip

CLIP = 0.05
WIDTH = 8


class Scored(nn.Module):
    """Attention whose tensors are its own, with a mask (T, T, B), as XLNet has it."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.r = nn.Parameter(torch.randn(WIDTH) / 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        score = torch.einsum("ibd,jbd->bij", x @ self.q, x) + (self.r * far).sum() - 1e9 * mask.permute(2, 0, 1)
        return torch.einsum("bij,jbd->ibd", score.softmax(-1), x) + far[:, None, :1] * (x @ self.q)


class Turned(nn.Module):
    """Token ids -> (T, B, 8) -> class; time stands first from the table to the last norm.

    Args:
        between: what maps (T, B, 8) to (T, B, 8) in the middle.
    """

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.scored = Scored()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=False)
        self.rnn = nn.GRU(WIDTH, WIDTH)
        self.between = between or nn.Identity()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = ids.t() % 5 == 0  # ragged
        hidden = hidden & (torch.arange(len(hidden)) > 0)[:, None]
        x = self.norm(self.embed(ids.t()))
        mask = hidden[None].expand(len(x), *hidden.shape).to(x)
        x = x + self.scored(x, mask, torch.ones(len(x), WIDTH).to(x))
        x = x + self.attention(x, x, x, key_padding_mask=hidden.t(), need_weights=False)[0]
        x = self.between(x)
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return self.head(x.transpose(0, 1).mean(1) + self.rnn(x)[0][-1])


def turned(between: Callable[[], nn.Module] | None = None) -> nn.Module:
    torch.manual_seed(0)
    return Turned(between() if between else None).double()


def true_sum(model: nn.Module, length: int, seeds: list[int], weight: Callable = lambda seed: 1.0) -> dict[str, torch.Tensor]:
    """The clipped sum by a loop over contributions, each alone."""
    total: dict[str, torch.Tensor] = {}
    for seed in seeds:
        one = token_record(seed, length=length)
        loss = nn.functional.cross_entropy(model(torch.tensor([one["ids"]])), torch.tensor([one["label"]])) * weight(seed)
        names, tensors = zip(*model.named_parameters(), strict=True)
        own = dict(zip(names, torch.autograd.grad(loss, tensors, allow_unused=True), strict=True))
        own = {name: g for name, g in own.items() if g is not None}
        norm = torch.stack([g.norm() for g in own.values()]).norm()
        if not bool(norm.isfinite()):
            continue
        for name, g in own.items():
            total[name] = total.get(name, 0.0) + g * min(1.0, CLIP / float(norm))
    return total


def signals(
    root: Path, length: int, model: Callable[[], nn.Module] = turned, losses: Callable = per_example, **options: Any
) -> tuple[dict[str, torch.Tensor], list[int]]:
    """What a first release adds to its noise, and whose contributions it is made of."""
    world = small_world(root, clip=str(CLIP), record=partial(token_record, length=length))
    found = []
    for loss in (losses, nothing):
        with Run(world, model(), **options) as run:
            found.append(run.gradients(next(iter(run.steps)), loss))
            drawn = run.drawn[0]
    return {name: found[0][name] - found[1][name] for name in found[0]}, sorted(drawn)


def require_true(found: dict[str, torch.Tensor], true: dict[str, torch.Tensor]) -> None:
    for name, value in found.items():
        assert torch.allclose(value, true.get(name, torch.zeros_like(value)), rtol=1e-5, atol=1e-7), name


@pytest.mark.one_in(7)
@pytest.mark.parametrize("microbatch", [1, 3, 4, 16])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_every_contribution_is_clipped_by_its_own_gradient(tmp_path: Path, length: int, microbatch: int) -> None:
    """Among them as many rows as positions, in the run (4) and where it is learnt (1, 2 and 3), and one position alone."""
    found, drawn = signals(tmp_path, length, microbatch=microbatch)
    assert len(drawn) == 4
    true = true_sum(turned(), length, drawn)
    assert set(true) == set(found)
    require_true(found, true)


def bad(seed: int, what: float) -> Callable:
    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        return per_example(model, rows) * torch.where(rows["seeds"] == seed, what, 1.0)

    return losses


@pytest.mark.one_in(99)
@pytest.mark.parametrize("length", [1, 4, 7])
@pytest.mark.parametrize("what", [1e9, float("inf"), float("nan")])
def test_a_hostile_row_adds_no_more_than_its_clip_and_touches_nobody(tmp_path: Path, what: float, length: int) -> None:
    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        return (bad(2, what) if bool((rows["seeds"] > 1).any()) and not run_probes(rows) else per_example)(model, rows)

    def run_probes(rows: Any) -> bool:
        return any(name.startswith(b"probe") for name in rows.names)

    found, drawn = signals(tmp_path, length, losses=losses)
    require_true(found, true_sum(turned(), length, drawn, lambda seed: what if seed == 2 else 1.0))


class Over(nn.Module):
    """Mixes (T, B, D) in some way."""

    def __init__(self, how: Callable[[torch.Tensor], torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.how, self.parts = how, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.how(*self.parts, x)


class Weighed(nn.Module):
    """Runs again, and mixes inside."""

    def __init__(self, how: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.how(x * self.weight)


def attending(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x, x, x, need_weights=False)[0]


ATTENDING = "attention that takes examples for time"

MIXING = {
    "the mean over the examples": lambda: Over(lambda x: x - x.mean(1, keepdim=True)),
    "the mean, without a gradient": lambda: Over(lambda x: x - x.detach().mean(1, keepdim=True)),
    "a sum over examples in order": lambda: Over(lambda x: x.cumsum(1)),
    "the example before": lambda: Over(lambda x: x.roll(1, 1)),
    ATTENDING: lambda: Over(attending, nn.MultiheadAttention(WIDTH, 2, batch_first=True)),
    "a recurrence that takes examples for time": lambda: Over(
        lambda rnn, x: rnn(x)[0], nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "a convolution over examples": lambda: Over(lambda conv, x: conv(x.permute(0, 2, 1)).permute(0, 2, 1),
                                                nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    "a mean inside of what runs again": lambda: Weighed(lambda x: x.mean(1, keepdim=True)),
    "a largest inside of what runs again": lambda: Weighed(lambda x: x.detach().amax(1, keepdim=True)),
    "the example before, inside of what runs again": lambda: Weighed(lambda x: x.roll(1, 1)),
}  # fmt: skip


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("what", "length"), [(what, length) for what in MIXING for length in (1, 3, 7) if (what, length) != (ATTENDING, 1)]
)
def test_what_mixes_examples_where_they_come_second_is_refused(tmp_path: Path, what: str, length: int) -> None:
    world = small_world(tmp_path, record=partial(token_record, length=length))
    with Run(world, turned(MIXING[what])) as run, pytest.raises(DptrainError) as told:
        run.gradients(next(iter(run.steps)))
    assert told.value.code in ("CROSS_SAMPLE_GRADIENT", "REPLACEMENT", "BATCH_DIMENSION")
    assert not run.private.opened.recorder.begun


@pytest.mark.one_in(5)
@pytest.mark.parametrize("length", [2, 3, 4, 7])
def test_what_looks_along_time_alone_is_none_of_them(tmp_path: Path, length: int) -> None:
    def along() -> nn.Module:
        return Over(lambda x: x.cumsum(0) + x.roll(1, 0) + x.mean(0, keepdim=True))

    found, drawn = signals(tmp_path, length, model=lambda: turned(along))
    require_true(found, true_sum(turned(along), length, drawn))


class Twice(nn.Module):
    """One layer, called with examples first and with examples second."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.layer(x.transpose(0, 1)).transpose(0, 1)


LAYERS = {"a linear map": lambda: nn.Linear(WIDTH, WIDTH), "a norm": lambda: nn.LayerNorm(WIDTH), "what runs again": lambda: (
    Weighed(lambda x: x.tanh()))}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_has_examples_here_and_there_is_refused(tmp_path: Path, layer: str, length: int) -> None:
    world = small_world(tmp_path, record=partial(token_record, length=length))
    with Run(world, turned(lambda: Twice(LAYERS[layer]()))) as run, pytest.raises(DptrainError, match="BATCH_DIMENSION"):
        run.gradients(next(iter(run.steps)))


class Placed(nn.Module):
    """Adds positions that are looked up once for all rows, as (1, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, WIDTH), nn.Embedding(8, WIDTH)
        self.drop = nn.Dropout(0.3)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.drop(self.places(torch.arange(ids.shape[1])[None]))
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return self.head(x.mean(1))


@pytest.mark.one_in(99)
@pytest.mark.parametrize("microbatch", [1, 3, 4, 16])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_positions_of_all_rows_are_taken_for_no_time(tmp_path: Path, length: int, microbatch: int) -> None:
    """Where there are as many positions as rows that it is learnt by, one row of positions looks like one position of rows."""

    def placed() -> nn.Module:
        torch.manual_seed(0)
        model = Placed().double()
        model.drop.p = 0.0
        return model

    found, drawn = signals(tmp_path, length, model=placed, microbatch=microbatch)
    require_true(found, true_sum(placed(), length, drawn))


@pytest.mark.parametrize("length", [2, 3])
def test_what_such_positions_draw_is_learnt_with_a_row_for_each(tmp_path: Path, length: int) -> None:
    """With dropout on them: numbers of its own for every contribution, and no refusal."""
    found, drawn = signals(tmp_path, length, model=lambda: Placed().double())
    assert len(drawn) == 4
    assert all(bool(value.isfinite().all()) for value in found.values())


@pytest.mark.one_in(99)
@pytest.mark.parametrize("name", [
    "XLNet", "XLNet as a language model", "FSMT", "BROS", "nn.TransformerEncoder, batch second", "nn.LSTM, batch second",
    "LoRA over FSMT",
])  # fmt: skip
def test_families_that_hold_time_first_train_exactly(name: str) -> None:
    """Through the start of a run, and in microbatches of five and eight rows of eight tokens."""
    assert judge(name, RANDOM).verdict == EXACT


# ------------------------------------------------------------------------------------------------- what it is found by

def seen(*calls: tuple[tuple[int, ...], int]) -> Dimension:
    found = Dimension()
    for sizes, rows in calls:
        found.see(sizes, rows)
    return found


def test_one_number_of_rows_shows_no_other_dimension() -> None:
    assert seen(((7, 3, 8), 3)).found == 0
    assert seen(((7, 3, 8), 3), ((7, 2, 8), 2)).found == 1
    assert seen(((7, 1, 8), 1)).found == 1, "one row is all there ever is"


@pytest.mark.parametrize("calls", [
    (((3, 7, 8), 3), ((2, 7, 8), 2)),  # rows first
    (((3, 3, 8), 3), ((2, 3, 8), 2)),  # and as many positions as rows once
    (((7, 3, 3), 3), ((7, 2, 2), 2)),  # two that fit
    (((7, 3, 8), 3), ((2, 7, 8), 2)),  # here and there
    (((2, 7, 8), 2), ((7, 3, 8), 3)),
    (((6, 3, 8), 3), ((6, 4, 8), 2)),  # not the number of rows
])  # fmt: skip
def test_what_does_not_fit_alone_is_not_found(calls: tuple) -> None:
    assert seen(*calls).found == 0


def test_what_was_used_is_no_other_from_then_on() -> None:
    found = seen(((7, 3, 8), 3), ((7, 2, 8), 2))
    found.fix()
    found.see((3, 5, 8), 3)
    assert found.found == 1 and found.lost and not found.open
    both = seen(((3, 3, 8), 3), ((2, 2, 8), 2))
    both.fix()
    both.see((5, 3, 8), 3)
    assert both.found == 0 and both.lost


class Switching(nn.Module):
    """Time first in texts of one length, and examples first in all others."""

    def __init__(self, first: Callable[[int], bool]) -> None:
        super().__init__()
        self.first, self.layers = first, nn.ModuleList([nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layers[0]
        return layer(x) if self.first(x.shape[1]) else layer(x.transpose(0, 1)).transpose(0, 1)


def microbatch_of(router: Router, model: nn.Module, rows: int, length: int, *, learning: bool = False) -> torch.Tensor:
    """Losses in an armed microbatch, and the gradients that come back."""
    router.arm(rows, 1, torch.ones(rows, 1, dtype=torch.bool))
    with router.sandbox.enter(1, [bytes([row]) for row in range(rows)], learning=learning):
        x = torch.linspace(-1.0, 2.0, rows * length * WIDTH, dtype=torch.float64).view(rows, length, WIDTH)
        losses = model(x).square().sum((1, 2))
        if not learning:
            router.backward(losses, torch.ones(rows, dtype=torch.float64))
    return losses


@pytest.mark.parametrize("long_first", [True, False])
def test_a_layer_that_moves_examples_with_the_length_is_refused(long_first: bool) -> None:
    """What one length has proved is not undone by another: a microbatch of as many rows would go unseen."""
    model = Switching(lambda length: (length == 5) != long_first).double()
    router = routed(model, "layers")
    router.attach()
    try:
        for length in (5, 4):
            for rows in (3, 2):
                if length == 5:
                    microbatch_of(router, model, rows, length, learning=True)
                    continue
                with pytest.raises(UnsupportedModule, match="BATCH_DIMENSION"):
                    microbatch_of(router, model, rows, length, learning=True)
            if length == 5:
                microbatch_of(router, model, 4, length)
        for length in (5, 4):
            with pytest.raises(UnsupportedModule, match="BATCH_DIMENSION"):
                microbatch_of(router, model, length, length)  # as many rows as positions
    finally:
        router.detach()


class Paired(nn.Module):
    """Every example with every example in texts of one length, and time first in all others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != 5:
            return self.layers[0](x.transpose(0, 1)).transpose(0, 1)
        return self.layers[0](x[:, :1].expand(len(x), len(x), WIDTH)).sum(1, keepdim=True)


def test_where_two_dimensions_fitted_the_one_that_was_used_stays() -> None:
    model = Paired().double()
    router = routed(model, "layers")
    router.attach()
    try:
        for rows in (3, 2):
            microbatch_of(router, model, rows, 5, learning=True)
        microbatch_of(router, model, 4, 5)
        with pytest.raises(UnsupportedModule, match="BATCH_DIMENSION"):
            microbatch_of(router, model, 3, 4, learning=True)
    finally:
        router.detach()


class Table(nn.Embedding):
    """A table of a class of its own, which runs again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 1.5


class Looked(nn.Module):
    """Numbers of rows in a table, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Table(20, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x[..., 0].abs().mul(7).long().t()).transpose(0, 1)


def test_one_position_that_comes_out_is_not_one_row_for_all() -> None:
    model = Looked().double()
    router = routed(model, "layers")
    router.attach()
    try:
        for rows in (3, 2):
            microbatch_of(router, model, rows, 5, learning=True)
        losses = microbatch_of(router, model, 4, 1)
        assert losses.shape == (4,)
        ((piece,),) = router.pieces.values()
        x = torch.linspace(-1.0, 2.0, 4 * WIDTH, dtype=torch.float64).view(4, 1, WIDTH)
        for row in range(4):
            table = model.layers[0].weight.detach().clone().requires_grad_(True)
            place = x[row, 0, 0].abs().mul(7).long()
            (true,) = torch.autograd.grad((table[place] * 1.5).square().sum(), table)
            assert torch.allclose(piece.dense(table.shape)[row], true)
    finally:
        router.detach()


def test_a_layer_that_was_not_learnt_holds_examples_first() -> None:
    model = Switching(lambda length: False).double()
    router = routed(model, "layers")
    router.attach()
    try:
        with pytest.raises(UnsupportedModule, match="BATCH_DIMENSION"):
            microbatch_of(router, model, 4, 5)
    finally:
        router.detach()
