"""`dptrain.check` says of a model what a run of one's own says, by code and sentence, and its repairs hold."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from torch import nn  # noqa: E402

import dptrain  # noqa: E402
from dptrain import PrivateTraining  # noqa: E402
from dptrain.checks.subject import rows_of_file, rows_of_shapes  # noqa: E402
from dptrain.checks.verdict import CheckedModel, NotChecked  # noqa: E402
from dptrain.errors import DptrainError, UnsupportedModule  # noqa: E402
from tests.zoo.families import ZOO  # noqa: E402
from tests.zoo.family import Family  # noqa: E402

TAKEN = "taken"

FAMILIES = {
    "BERT": TAKEN,
    "GPT-2": TAKEN,
    "ViT": TAKEN,
    "nn.TransformerEncoder": TAKEN,
    "nn.LSTM forecast": TAKEN,
    "ResNet with group normalisation, in place": TAKEN,
    "LoRA with dropout over Llama": TAKEN,
    "ResNet with batch normalisation": "BATCH_NORM",
    "DeBERTa": TAKEN,
    "MPNet": TAKEN,
    "ProphetNet": TAKEN,
    "DETR": "GRADIENT_MISMATCH",
    "FSMT": TAKEN,
    "Swin": "BATCH_DIMENSION",
    "I-BERT": "BUFFER_CHANGES",
    "Autoformer": "CROSS_SAMPLE_GRADIENT",
    "Time series transformer": "REPLACEMENT",
    "Switch Transformers": "EXPERT_CAPACITY",
    "VB-LoRA over BERT": "ADAPTER_KIND",
}
"""Families of the zoo with the verdict, which the run itself must give too."""


def started(
    folder: Path, model: nn.Module, collate: Callable, loss: Callable, data: Any = range(24), **options: Any
) -> DptrainError | None:
    """The refusal of a real run of one's own, up to its first release; None where it begins."""
    with warnings.catch_warnings(), PrivateTraining.own(data, batch_size=16, directory=folder, progress=False) as private:
        warnings.simplefilter("ignore")
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        try:
            model, optimizer, steps = private.prepare(model, optimizer, collate, **options)
            made = private.loss(loss)
            step = next(iter(steps))
            for rows in step:
                private.backward(made(model, rows), rows)
            optimizer.step()
        except DptrainError as error:
            return error
    return None


def shapes(family: Family) -> dict[str, torch.Tensor]:
    return {key: value.to("meta") for key, value in family.rows(4).items()}


def layers_of(family: Family) -> Any:
    """Rows and a loss as a user passes them in the end, where nothing is found by structure."""
    return list(family.layers[-1]) if isinstance(family.layers[-1], tuple) else family.layers[-1]


@pytest.mark.one_in(99)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_check_says_what_a_run_says(name: str, tmp_path: Path) -> None:
    family = ZOO[name]
    refusal = started(
        tmp_path / "run", family.build(), family.collate, family.loss, [family.record(n) for n in range(24)],
        layers=layers_of(family),
    )  # fmt: skip
    found = dptrain.check(family.build(), shapes(family), loss=family.loss, layers=layers_of(family))
    assert (refusal.code if refusal else TAKEN) == FAMILIES[name]
    assert found.accepted == (refusal is None)
    first = [(item.code, item.sentence) for item in found.findings[:1]]
    assert first == ([(refusal.code, refusal.sentence)] if refusal else [])


class Flat(nn.Module):
    """A small classifier of pictures with whatever is put into its middle."""

    def __init__(self, *middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Conv2d(3, 8, 3), nn.Sequential(*middle), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)).mean((2, 3)))


PICTURES = {"x": torch.empty(2, 3, 8, 8, device="meta")}


def test_a_refusal_that_nobody_has_heard_of_is_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check has no list of its own: what the run comes to refuse, the check refuses."""

    def refuse(*_: Any) -> None:
        raise UnsupportedModule("NEW_REFUSAL", "found what nobody has heard of")

    assert dptrain.check(Flat(), PICTURES).accepted
    monkeypatch.setattr("dptrain.engine.refusals.refuse_shared_memory", refuse)
    [finding] = dptrain.check(Flat(), PICTURES).findings
    assert (finding.code, finding.sentence) == ("NEW_REFUSAL", "found what nobody has heard of")


def test_what_the_run_no_longer_refuses_by_name_the_check_finds_by_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def codes() -> list[str]:
        return [item.code for item in dptrain.check(Flat(nn.BatchNorm2d(8)), PICTURES).findings]

    assert codes() == ["BATCH_NORM"]
    monkeypatch.setattr("dptrain.engine.prepared.refuse_coupled", lambda model: None)
    assert codes() != ["BATCH_NORM"] and codes()


class Added(nn.Module):
    """Uses a tensor of a module that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(16, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)) @ self.table.weight)


def normed() -> list[nn.Module]:
    return [nn.BatchNorm2d(8), nn.InstanceNorm2d(8, track_running_stats=True), nn.utils.spectral_norm(nn.Conv2d(8, 8, 1))]


MENDED = {
    "batch normalisation": (lambda: Flat(nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8)), PICTURES),
    "several couplings": (
        lambda: Flat(*normed()),
        PICTURES,
    ),
    "a table used outside": (Added, {"x": torch.empty(2, 16, device="meta")}),
    "the model itself is a layer": (lambda: nn.Linear(4, 2), {"input": torch.empty(2, 4, device="meta")}),
}


def collated(numbers: list[int], rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: torch.zeros((len(numbers), *value.shape[1:])) for key, value in rows.items()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MENDED)
def test_the_repairs_that_are_shown_are_python_after_which_a_run_takes_the_model(name: str, tmp_path: Path) -> None:
    make, rows = MENDED[name]
    found = dptrain.check(make(), rows)
    assert isinstance(found, CheckedModel) and not found.accepted and found.mended
    names: dict[str, Any] = {"model": make(), "dptrain": dptrain}
    options: dict[str, Any] = {}
    for line in found.repairs:
        if given := re.search(r"layers=(\[.*\])", line):
            options["layers"] = eval(given[1])
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(line, names)

    def loss(model: nn.Module, given: Any) -> torch.Tensor:
        return (model(*given.values()) - torch.arange(model(*given.values()).shape[1])).square().mean(1)

    assert started(tmp_path / "run", names["model"], lambda e: collated(e, rows), loss, **options) is None
    assert found.left == sum(p.numel() for p in names["model"].parameters() if p.requires_grad)


def test_all_couplings_that_show_are_told_at_once_with_their_places() -> None:
    found = dptrain.check(MENDED["several couplings"][0](), PICTURES)
    assert {item.code: item.where for item in found.findings} == {
        "BATCH_NORM": "middle.0", "RUNNING_STATISTICS": "middle.1", "SPECTRAL_NORM": "middle.2",
    }  # fmt: skip


def test_half_of_a_model_is_not_frozen_to_save_the_rest() -> None:
    class Seconds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.big, self.last = nn.Linear(4, 64), nn.Linear(64, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(x @ self.big.weight.T))

    found = dptrain.check(Seconds(), {"x": torch.empty(2, 4, device="meta")})
    assert isinstance(found, CheckedModel)
    assert [item.code for item in found.findings] == ["GRADIENT_MISMATCH"] and found.mended is False and found.repairs == ()


def test_the_model_its_modes_and_the_random_numbers_are_as_they_were() -> None:
    model = Flat(nn.BatchNorm2d(8), nn.Dropout(0.5))
    model.last.weight.requires_grad_(False)
    model.first.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes, wanted = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    seed = torch.get_rng_state()
    assert not dptrain.check(model, PICTURES).accepted
    assert list(model.state_dict()) == list(before) and isinstance(model.middle[0], nn.BatchNorm2d)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes and [p.requires_grad for p in model.parameters()] == wanted
    assert torch.equal(torch.get_rng_state(), seed) and all(p.grad is None for p in model.parameters())


def test_what_a_policy_asks_besides_is_told_by_its_code() -> None:
    found = dptrain.check(Flat(), PICTURES)
    assert isinstance(found, CheckedModel) and found.accepted
    assert found.under == {"depth": "NO_LAYER_STACK", "certified": None}


def test_rows_that_are_given_go_to_the_probes(tmp_path: Path) -> None:
    """Made-up ids are 0 and 1; this model gives no gradient for them."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(8, 4), nn.Linear(4, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.last(self.words(ids).mean(1)) * (ids.amax(1) > 1)[:, None]

    lines = "".join(f'{{"ids": [2, {n}, 1], "labels": {n % 2}}}\n' for n in range(3, 8))
    (tmp_path / "rows.jsonl").write_text(lines)
    given = rows_of_file(tmp_path / "rows.jsonl")
    shapes = rows_of_shapes(["ids=int64:3", "labels=int64"])
    assert {key: value.shape[1:] for key, value in given.items()} == {key: value.shape[1:] for key, value in shapes.items()}
    assert [item.code for item in dptrain.check(Late(), shapes).findings] == ["PROBE_NEEDED"]
    assert dptrain.check(Late(), given).accepted


def test_an_optimizer_that_a_run_refuses_is_refused() -> None:
    [finding] = dptrain.check(Flat(), PICTURES, optimizer=torch.optim.LBFGS).findings
    assert finding.code == "CLOSURE_OPTIMIZER"


@pytest.mark.one_in(99)
@pytest.mark.parametrize("weights", [False, True])
def test_a_folder_of_transformers_is_checked_with_weights_or_without(tmp_path: Path, weights: bool) -> None:
    model = ZOO["BERT"].build()
    model.config.architectures = [type(model).__name__]
    (model.save_pretrained if weights else model.config.save_pretrained)(tmp_path)
    found = dptrain.check(tmp_path)
    assert isinstance(found, CheckedModel) and found.accepted
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.loss == "the loss per example of PrivateTrainer"
    assert set(found.rows) == {"input_ids", "attention_mask", "labels"}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere:make", "is not there"),
        ("net.py:gone", "no attribute 'gone'"),
        ("net.py:number", "gives a int, expected a torch.nn.Module"),
        ("net.py:raises", "ValueError at .*net.py:3: no weights"),
        ("net.py:two", "no rows could be made up that Two takes.*--inputs"),
        (".", "holds no config.json"),
        ("net", "names no callable"),
    ],
)
def test_what_cannot_be_checked_is_told_by_its_cause(
    place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\nnumber = 3\ndef raises(): raise ValueError('no weights')\n"
        "class Two(nn.Linear):\n    def forward(self, a, b): return super().forward(a + b)\ndef two(): return Two(4, 2)\n"
    )
    with pytest.raises(NotChecked, match=said):
        dptrain.check(place)
