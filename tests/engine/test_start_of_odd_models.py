"""Models whose start was refused for a wrong cause, or passed without a look: each in the smallest form that shows it."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.engine import start  # noqa: E402
from dptrain.errors import ConfigError, CoupledModel, UnsupportedModule  # noqa: E402
from dptrain.gradients.generic import GenericRule  # noqa: E402
from tests.worlds.training import make_world, token_record  # noqa: E402

LENGTH = 4
"""Tokens of an example; and just as many rows are in a microbatch of the probes."""


class Net(nn.Module):
    """Tokens, one more module, two layers and a head."""

    def __init__(self, extra: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(50, 8)
        self.extra = extra or nn.Identity()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.embed(ids))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head((x * mask[..., None]).mean(1))


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([[*e["ids"][: LENGTH - 1], 0] for e in examples])
    return {"ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([e["label"] for e in examples])}


def begun(tmp_path, model: nn.Module, probe: list[bytes] | None = None) -> PrivateTraining:
    """A run of this model, closed after its first step."""
    world = make_world(tmp_path, per_class=2, steps=2, rate="1")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        warnings.catch_warnings(),
        PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private,
    ):
        warnings.simplefilter("ignore")
        _, _, steps = private.prepare(model, optimizer, collate, layers="layers", probe=probe)
        for rows in next(iter(steps)):
            logits = model(rows["ids"], rows["attention_mask"])
            private.backward(nn.functional.cross_entropy(logits, rows["labels"], reduction="none"), rows)
        optimizer.step()
    return private


def records() -> list[bytes]:
    return [json.dumps(token_record(100 + k)).encode() for k in range(8)]


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        y += x
        return y


def test_the_output_of_a_linear_map_over_tokens_may_be_changed_in_place(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(tmp_path, Net(InPlace())).prepared.probe.unprobed == ()
    monkeypatch.setattr("torch.Tensor._is_view", lambda value: False)  # the hook stays on the view that torch made
    with pytest.raises(UnsupportedModule, match=r"GRADIENT_MISMATCH.*extra\.inner"):
        begun(tmp_path / "hook lost", Net(InPlace()))


class Positions(nn.Module):
    """Adds a row per position, whose numbers come beside the tokens: as many as there are rows in the probes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Rows()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, torch.arange(LENGTH))


class _Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(LENGTH, 8))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x + self.rows[positions]


def test_an_input_as_long_as_there_are_rows_is_not_taken_for_one_with_examples(tmp_path, monkeypatch) -> None:
    assert begun(tmp_path, Net(Positions())).prepared.probe.unprobed == ()
    monkeypatch.setattr(GenericRule, "learn", lambda *args: None)  # one number of rows decides, as before
    with pytest.raises((UnsupportedModule, CoupledModel)):  # poisoned rows would show positions taken for rows
        begun(tmp_path / "by one number", Net(Positions()))


def test_a_tensor_that_another_module_uses_too_is_probed_where_one_of_them_runs(tmp_path) -> None:
    model = Net()
    model.shared = nn.Embedding(50, 8)
    model.shared.weight = model.embed.weight
    model.never = nn.Linear(2, 2)
    assert begun(tmp_path, model).prepared.probe.unprobed == ("never.bias", "never.weight")


class Sleeps(Net):
    """Its last rectifier is open until something moves its bias far enough."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Linear(1, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.relu(super().forward(ids, mask) + self.shift(mask[:, :1].float()) + 2.0)


def test_an_offset_that_shuts_a_last_rectifier_is_not_held_against_the_model(tmp_path, monkeypatch) -> None:
    seeds = []
    genuine = start.opened_gates

    @contextmanager
    def shutting(router, seed: int) -> Iterator[None]:
        seeds.append(seed)
        with genuine(router, seed):
            if len(seeds) == 1:
                model.shift.bias.data.sub_(100.0)
            yield

    monkeypatch.setattr(start, "opened_gates", shutting)
    model = Sleeps()
    begun(tmp_path, model)
    assert len(set(seeds)) == len(seeds) == 2


def test_a_model_that_gets_no_gradient_at_all_is_refused_before_anything_is_charged(tmp_path) -> None:
    def dead() -> nn.Module:
        model = Sleeps()
        nn.init.constant_(model.shift.bias, -1000.0)
        return model

    with pytest.raises(ConfigError, match=r"PROBE_NEEDED.*no trained tensor"):
        begun(tmp_path / "made up", dead())
    with pytest.raises(ConfigError, match=r"NO_GRADIENT.*nothing was charged"):
        begun(tmp_path / "given", dead(), records())
    assert not (tmp_path / "given" / "ledger.db").exists()


class Shifted(Net):
    """Reads its last token in front, as models do that shift what is to be told; there is none in a row of padding."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        last = ids.gather(1, (ids != 0).sum(1, keepdim=True) - 1)
        return super().forward(torch.cat((last, ids[:, 1:]), 1), mask)


def test_made_up_rows_whose_indices_are_out_of_range_ask_for_records(tmp_path) -> None:
    """Such a row counts as zero, so that no comparison with autograd's own gradient could hold."""
    with pytest.raises(ConfigError, match=r"PROBE_NEEDED.*out of range"):
        begun(tmp_path / "made up", Shifted())
    begun(tmp_path / "given", Shifted(), records())


class Bare(Net):
    """Means another thing where the mask of the whole batch hides nothing, as PaliGemma's attention does."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(ids, mask) * (2.0 if bool(mask.all()) else 1.0)


@pytest.mark.parametrize("probe", [None, "records"])
def test_a_model_for_which_the_padding_of_one_decides_for_all_is_refused(tmp_path, probe: str | None) -> None:
    """Though every record that is given is padded."""
    with pytest.raises(CoupledModel, match="REPLACEMENT"):
        begun(tmp_path, Bare(), records() if probe else None)
