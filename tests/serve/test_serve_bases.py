"""A base model that lies outside the release is served only if it is the one that the adapters were trained on."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dptrain.errors import ConfigError
from dptrain.serve.artifacts import Artifacts, copy_base
from ledger.errors import ReleaseRefused
from ledger.leaves.weights import WeightRecord
from tests.worlds.servers import OpenGate, model_folders

WEIGHTS = "model.safetensors"


def records(folder: Path) -> tuple[WeightRecord, ...]:
    """What a run that froze this model commits to; peft's names are those of its modules."""
    found = load_file(folder / WEIGHTS)
    return tuple(
        WeightRecord(
            (f"base_model.model.{name}",), None, False, "F32", tuple(tensor.shape),
            hashlib.sha256(tensor.numpy().tobytes()).digest(),
        )
        for name, tensor in sorted(found.items())
    )  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folders()[0], tmp_path / "base"))


def changed(base: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(base / WEIGHTS)
    change(tensors)
    save_file(tensors, base / WEIGHTS, metadata={"format": "pt"})


def code(base: Path, given: tuple[WeightRecord, ...], into: Path) -> str:
    with pytest.raises(ReleaseRefused) as refused:
        copy_base(base, into, given)
    return refused.value.code


def test_the_base_that_was_frozen_is_copied_and_nothing_beside_it(base: Path, tmp_path: Path) -> None:
    (base / "adapter_config.json").write_text("{}")  # by which a loader would go elsewhere
    (base / "modeling_extra.py").write_text("raise SystemExit")
    (base / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    copy_base(base, tmp_path / "copy", records(base))
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert WEIGHTS in names and not names & {"adapter_config.json", "modeling_extra.py", "pytorch_model.bin"}


def test_one_bit_one_name_or_one_tensor_more_or_less_is_refused(base: Path, tmp_path: Path) -> None:
    given = records(base)
    name = sorted(load_file(base / WEIGHTS))[3]
    spoilt: list[Callable[[dict[str, torch.Tensor]], None]] = [
        lambda tensors: tensors[name].view(-1).view(torch.int32)[0].bitwise_xor_(1),
        lambda tensors: tensors.__setitem__(f"{name}.other", tensors.pop(name)),
        lambda tensors: tensors.__setitem__("more.weight", torch.zeros(2)),
        lambda tensors: tensors.pop(name),
        lambda tensors: tensors.__setitem__(name, tensors[name].half()),
    ]
    whole = (base / WEIGHTS).read_bytes()
    for number, change in enumerate(spoilt):
        changed(base, change)
        assert code(base, given, tmp_path / f"copy{number}") == "BASE_NOT_TIED"
        (base / WEIGHTS).write_bytes(whole)
    (base / WEIGHTS).unlink()
    assert code(base, given, tmp_path / "none") == "BASE_NOT_TIED"


def test_an_index_that_leads_elsewhere_is_refused(base: Path, tmp_path: Path) -> None:
    given = records(base)
    elsewhere = Path(shutil.copy(base / WEIGHTS, tmp_path / "other.safetensors"))
    for target in (str(elsewhere), "../other.safetensors", "absent.safetensors"):
        index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(base / WEIGHTS), target)}
        (base / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
        assert code(base, given, tmp_path / f"copy-{len(target)}") == "BASE_NOT_TIED"
    (base / f"{WEIGHTS}.index.json").write_text("{")
    assert code(base, given, tmp_path / "copy") == "BASE_NOT_TIED"


def test_a_base_whose_settings_ask_for_tensors_that_it_lacks_is_not_served(base: Path) -> None:
    """They would be drawn at random."""
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 3}))

    class Gate(OpenGate):
        weights = records(base)  # type: ignore[assignment]

        def __init__(self) -> None:
            self.artifacts = ("base",)

        def files(self, name: str) -> tuple[object, ...]:
            return ()

    with pytest.raises(ConfigError, match="lacks"):
        Artifacts(Gate(), base).model("base")  # type: ignore[arg-type]
