"""Every way in which a user's code draws random numbers for a private microbatch: none may tell who was drawn.

Each scene is the two-layer net of the crowd audit with one source of random numbers, or a module that is known for its own
layout of them. The others' sum is computed in both worlds; where the engine cannot keep them equal it must refuse the scene by
name, before a step is charged.
"""

import random
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.guarantees.crowd.lockstep import Refused, compared, paced  # noqa: E402
from tests.guarantees.crowd.scenes import BERT, NET, Scene, TwoLayers, collate_features, dropout, net_loss  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::dptrain.routing.FallbackNotice", "ignore:enable_nested_tensor is True", "ignore:dropout option adds dropout"
)

STEPS, LATE = 2, 4
LIMIT = {"fast": 1e-5, "certified": 0.0}
"""Largest separation of the others' sums, in deviations of the noise."""

OPEN = "nothing addresses these random numbers, so those of the others depend on who is drawn"

@pytest.fixture(autouse=True)
def _windows_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the windows of the policy: only those of several steps hide something until their end."""
    monkeypatch.setattr("dptrain.record.recorder.SHORT", 0)


class Of(nn.Module):
    """A module without parameters from a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class NoisyRouter(nn.Module):
    """Two ways through the layer, weighed by noisy logits; both are computed, so no token is gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.one, self.other = nn.Linear(64, 2), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.router(x)
        weights = torch.softmax(logits + torch.randn_like(logits), -1)
        return weights[:, :1] * self.one(x) + weights[:, 1:] * self.other(x)


class LayerDrop(nn.Module):
    """One number for all rows decides about a layer: as a factor, or about whether it runs.

    ``high`` numbers let it run, as in transformers; the start-up probes see such a layer, and no layer that low ones let run.
    """

    def __init__(self, branch: bool, high: bool = True) -> None:
        super().__init__()
        self.inner, self.branch, self.high = nn.Linear(64, 64), branch, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        runs = (torch.rand([]) > 0.5) == self.high
        if self.branch:
            return x + self.inner(x) if runs else x
        return x + self.inner(x) * runs.to(x)


class Tokens(nn.Module):
    """Sees a row as eight tokens of width eight."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x.view(len(x), 8, 8))
        return (out[0] if isinstance(out, tuple) else out).reshape(len(x), 64)


class Attention(nn.Module):
    """Self-attention with dropout on its weights, which are drawn for rows, heads, queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Checkpointed(nn.Module):
    """A layer whose forward is computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def keeps(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x * mask.to(x) * 2.0


def row_path(x: torch.Tensor) -> torch.Tensor:
    return x * x.new_empty(len(x), 1).bernoulli_(0.5) * 2.0


def row_path_as_uniform(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand(len(x), 1).add_(0.5).floor_() * 2.0


def in_another_dimension(x: torch.Tensor) -> torch.Tensor:
    """64 features by as many rows as there are: square in a full microbatch."""
    return nn.functional.dropout(x.T, 0.5).T


def tokens_first(x: torch.Tensor) -> torch.Tensor:
    """Dimension 0 counts tokens and rows, rows inside."""
    flat = x.view(len(x), 8, 8).transpose(0, 1).reshape(-1, 8)
    return nn.functional.dropout(flat, 0.5).view(8, len(x), 8).transpose(0, 1).reshape(x.shape)


def tokens_last(x: torch.Tensor) -> torch.Tensor:
    """Dimension 0 counts rows and tokens, tokens inside."""
    return nn.functional.dropout(x.view(-1, 8), 0.5).view(x.shape)


def both_copies(x: torch.Tensor) -> torch.Tensor:
    """Every row twice, under two masks, as R-Drop does (Liang et al., 2021)."""
    one, other = nn.functional.dropout(torch.cat([x, x]), 0.5).chunk(2)
    return one + 0.5 * other


def gathered(x: torch.Tensor) -> torch.Tensor:
    """Rows that are chosen by content are dropped together, as experts do with theirs."""
    chosen = x[:, 0] > x[:, 1]
    return x.index_put((chosen,), nn.functional.dropout(x[chosen], 0.5))


def from_a_generator_of_its_own(x: torch.Tensor) -> torch.Tensor:
    """Seeded anew in every forward, so that row r has the same mask in each."""
    return keeps(torch.rand(x.shape, generator=torch.Generator().manual_seed(7)) < 0.5, x)


def by_numpy(x: torch.Tensor) -> torch.Tensor:
    return keeps(torch.from_numpy(np.random.random(tuple(x.shape)) < 0.5), x)


def by_python(x: torch.Tensor) -> torch.Tensor:
    return keeps(torch.tensor([[random.random() < 0.5] for _ in x]), x)


def by_permutation(x: torch.Tensor) -> torch.Tensor:
    """Half the features, the same half for all rows."""
    return keeps(torch.randperm(x.shape[1]) < x.shape[1] // 2, x)


def by_choice(x: torch.Tensor) -> torch.Tensor:
    return keeps(torch.multinomial(torch.ones(2).expand(len(x), 2), 1) == 0, x)


def by_normal(x: torch.Tensor) -> torch.Tensor:
    return torch.normal(x, 0.5)


def collate_torch(examples) -> dict[str, torch.Tensor]:
    rows = collate_features(examples)
    return rows | {"x": rows["x"] + torch.randn(rows["x"].shape)}


def collate_numpy(examples) -> dict[str, torch.Tensor]:
    rows = collate_features(examples)
    return rows | {"x": rows["x"] + torch.from_numpy(np.random.standard_normal(tuple(rows["x"].shape))).float()}


def collate_python(examples) -> dict[str, torch.Tensor]:
    rows = collate_features(examples)
    return rows | {"x": rows["x"] + torch.tensor([[random.gauss(0, 1) for _ in row] for row in rows["x"]])}


def noise_in_the_loss(model: nn.Module, rows) -> torch.Tensor:
    return net_loss(model, {**rows, "x": rows["x"] + torch.randn_like(rows["x"])})


def decode_torch(example: dict) -> dict:
    return example | {"x": [float(value) for value in torch.tensor(example["x"]) + torch.randn(16)]}


def decode_numpy(example: dict) -> dict:
    return example | {"x": [float(value) for value in example["x"] + np.random.standard_normal(16)]}


def decode_python(example: dict) -> dict:
    return example | {"x": [value + random.gauss(0, 1) for value in example["x"]]}


_OWN = np.random.default_rng(5)


def decode_by_its_own(example: dict) -> dict:
    return example | {"x": [float(value) for value in example["x"] + _OWN.standard_normal(16)]}


class Late(nn.Module):
    """Does something from the third step on, as schedules of regularisation do: the probes at start do not see it."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.begun = function, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) if self.begun else x


def begin_late(model: nn.Module, step: int) -> None:
    model.between.begun = step >= 3


@dataclass(frozen=True)
class Channel:
    """A scene of the audit.

    Attributes:
        refusable: whether the engine may decline it by name. late: whether it can do so only once the run has begun.
        open: whether it tells who was drawn today, and docs/threat-model.md says so.
    """

    scene: Scene
    refusable: bool = False
    late: bool = False
    open: bool = False


PLAIN = NET.but("plain", drawn=40, microbatch=16, audited=2)


def between(name: str, make, **changed) -> Scene:
    return PLAIN.but(name, model=lambda: TwoLayers(make()), **changed)


def recurrent(trained: bool) -> nn.Module:
    return Tokens(nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True).requires_grad_(trained))


def half(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5)


def bert_lora() -> nn.Module:
    """The tiny BERT with adapters whose inputs are dropped; B is not zero, or A would have no gradient at the start."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, lora_alpha=4, lora_dropout=0.05, target_modules=["query", "value", "dense"])
    model = get_peft_model(FAMILIES["bert"]().model, config).float()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)
    return model


lora = BERT.but(
    "LoRA with dropout", model=bert_lora, layers="base_model.model.bert.encoder.layer", drawn=24, microbatch=16, audited=2
)  # fmt: skip


def random_slope() -> nn.Module:
    return nn.Sequential(Of(lambda x: x - 0.5), nn.RReLU(-1.0, 1.0))


CHANNELS = [
    Channel(between("stochastic depth, Bernoulli", lambda: Of(row_path))),
    Channel(between("stochastic depth, uniform", lambda: Of(row_path_as_uniform))),
    Channel(between("a noisy router", NoisyRouter)),
    Channel(between("LayerDrop, as a factor", lambda: LayerDrop(False))),
    Channel(between("LayerDrop, as a branch", lambda: LayerDrop(True)), refusable=True),
    Channel(between("LayerDrop, by low numbers", lambda: LayerDrop(True, False)), refusable=True, late=True),
    Channel(between("rows in another dimension", lambda: Of(in_another_dimension), microbatch=64, drawn=120), refusable=True),
    Channel(between("tokens first", lambda: Of(tokens_first)), refusable=True),
    Channel(between("tokens last", lambda: Of(tokens_last)), refusable=True),
    Channel(between("both copies at once", lambda: Of(both_copies)), refusable=True),
    Channel(between("rows gathered by content", lambda: Of(gathered)), refusable=True),
    Channel(lora),
    Channel(between("dropout of channels", lambda: Tokens(nn.Dropout1d(0.5)))),
    Channel(between("alpha dropout", lambda: nn.AlphaDropout(0.5))),
    Channel(between("leaky units with a random slope", random_slope), refusable=True),
    Channel(between("normal numbers around activations", lambda: Of(by_normal)), refusable=True),
    Channel(between("Gumbel softmax", lambda: Of(lambda x: nn.functional.gumbel_softmax(x, hard=False))), refusable=True),
    Channel(between("a random choice per row", lambda: Of(by_choice)), refusable=True),
    Channel(between("a permutation of features", lambda: Of(by_permutation)), refusable=True),
    Channel(between("attention", lambda: Tokens(Attention())), refusable=True),
    Channel(between("a recurrent kernel", lambda: recurrent(True)), refusable=True),
    Channel(between("a recurrent kernel, frozen", lambda: recurrent(False)), refusable=True),
    Channel(between("checkpointed", lambda: Checkpointed(False))),
    Channel(between("checkpointed, reentrant", lambda: Checkpointed(True)), refusable=True),
    Channel(between("a generator of its own", lambda: Of(from_a_generator_of_its_own)), refusable=True),
    Channel(between("numpy in forward", lambda: Of(by_numpy)), refusable=True),
    Channel(between("Python in forward", lambda: Of(by_python)), refusable=True),
    Channel(between("dropout, begun late", lambda: Late(half), each_step=begin_late), refusable=True, late=True),
    Channel(PLAIN.but("torch in collate", model=dropout(0.0), collate=collate_torch)),
    Channel(PLAIN.but("numpy in collate", model=dropout(0.0), collate=collate_numpy), refusable=True),
    Channel(PLAIN.but("Python in collate", model=dropout(0.0), collate=collate_python), refusable=True),
    Channel(PLAIN.but("torch in decode", model=dropout(0.0), augment=decode_torch), refusable=True),
    Channel(PLAIN.but("numpy in decode", model=dropout(0.0), augment=decode_numpy), refusable=True),
    Channel(PLAIN.but("Python in decode", model=dropout(0.0), augment=decode_python), refusable=True),
    Channel(PLAIN.but("a generator of its own in decode", model=dropout(0.0), augment=decode_by_its_own), refusable=True),
    Channel(PLAIN.but("torch in the loss", model=dropout(0.0), loss=noise_in_the_loss)),
]


def check_channel(channel: Channel) -> None:
    scene = channel.scene
    try:
        found, added = compared(scene, LATE if scene.each_step is begin_late else STEPS)
    except Refused as refused:
        assert refused.charged == 0 or channel.late, "the refusal came after a charge"
        assert channel.refusable, f"refused: {refused.__cause__}"
        return
    assert float(found.own.min()) > 0.1, "the audited contribution must have a gradient of its own"
    assert float(found.separation.max()) <= LIMIT[scene.level]
    assert added <= LIMIT[scene.level], "its own random numbers are others in company than alone"


LONG = {
    "LoRA with dropout", "rows in another dimension", "a noisy router", "tokens last", "leaky units with a random slope",
    "LayerDrop, as a factor", "stochastic depth, uniform", "dropout of channels", "torch in decode", "attention",
    "alpha dropout",
    "normal numbers around activations", "a recurrent kernel, frozen", "Gumbel softmax", "Python in decode", "numpy in decode",
}  # fmt: skip
"""Channels among the slow tests: of each kind another is not."""


def marked(channel: Channel):
    assert {each.scene.name for each in CHANNELS} >= LONG
    marks = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=OPEN)] if channel.open else []
    marks += [pytest.mark.slow] if channel.scene.name in LONG else []
    return pytest.param(channel, id=channel.scene.name, marks=marks)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("channel", [marked(channel) for channel in CHANNELS])
def test_no_random_number_of_the_others_depends_on_who_is_drawn(channel: Channel) -> None:
    check_channel(channel)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [by_numpy, by_python])
def test_numbers_beside_torch_that_begin_late_leave_noise_alone_and_end_the_run(function) -> None:
    """From the very step in which they begin, nothing of anybody is released; the run ends at the end of the window."""
    scene = between(f"{function.__name__}, begun late", lambda: Late(function), each_step=begin_late, drawn=4, audited=1)
    with pytest.raises(Refused) as refused, paced(scene, 0) as pace:
        before, after = pace.readings(2), pace.readings(2)
        assert float(before.own.min()) > 0.1
        assert float(after.own.max()) == float(after.separation.max()) == 0.0
        pace.readings(50)
    assert refused.value.charged == 50
    assert refused.value.__cause__.code == "HOST_RANDOMNESS"
