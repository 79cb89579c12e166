"""The digests of a model's tensors: of the bytes and under the names that a file of them has."""

from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dptrain.record.weights import PIECE, Weights, _pieces, digest_of, saved_forms
from ledger.leaves.weights import ordered
from ledger.release import Commitment, tie
from ledger.release.files import digested, listed
from tests.reference.families import FAMILIES


def bound(model: nn.Module, *trained_names: str) -> Weights:
    """The digests of a model of which these tensors are trained, without a run."""
    from types import SimpleNamespace

    named = dict(model.named_parameters())
    tensors = [(0, SimpleNamespace(parameter=named[name])) for name in trained_names]
    return Weights(model, SimpleNamespace(tensors=tensors, schedule=SimpleNamespace(stack=SimpleNamespace(adapters={}))))


def test_a_tensor_that_is_not_trained_is_read_once_whatever_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a forward left in it would otherwise be in the public record of the next epoch."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    weights = bound(model, "1.weight")
    read: list[int] = []
    monkeypatch.setattr("dptrain.record.weights.digest_of", lambda tensor: read.append(id(tensor)) or digest_of(tensor))
    first = weights.records()
    assert len(read) == 4
    weights.records()
    assert read[4:] == [id(model[1].weight)]
    with torch.no_grad():
        model[0].bias.add_(1.0)
    model[0].weight = nn.Parameter(torch.zeros(4, 4))
    again = {record.names[0]: record for record in weights.records()}
    for name in ("0.bias", "0.weight"):
        assert again[name] == next(record for record in first if record.names[0] == name)
    weights.fix()
    assert {record.names[0]: record for record in weights.records()}["0.weight"].sha256 == digest_of(torch.zeros(4, 4))


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).T, torch.tensor(3.5), torch.zeros(0, 3), torch.ones(5, dtype=torch.bfloat16),
        torch.arange(9)[::2], torch.tensor([True, False]), torch.randn(PIECE // 4 + 3), torch.randn(3, 1 << 21).T,
        torch.randn(2, 3, 1 << 20).transpose(1, 2), torch.ones(4).to(torch.float8_e4m3fn),
    ],
    ids=["transposed", "scalar", "empty", "bf16", "strided", "bool", "long", "long transposed", "long inside", "fp8"],
)  # fmt: skip
def test_a_digest_is_of_the_bytes_that_safetensors_writes(tensor: torch.Tensor, tmp_path: Path) -> None:
    save_file({"w": tensor.contiguous()}, tmp_path / "x.safetensors")
    (found,) = digested(tmp_path, "x.safetensors").tensors or ()
    assert found.sha256 == digest_of(tensor)
    (record,) = bound(_Holder(tensor)).records()
    assert (record.dtype, record.shape, record.sha256) == (found.dtype, found.shape, found.sha256)


class _Holder(nn.Module):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("w", tensor)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("shape", [(1 << 25,), (1 << 10, 1 << 15), (1, 1 << 25), (2, 1 << 10, 1 << 14)])
def test_no_more_than_a_piece_is_copied_at_a_time(shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    for value in (tensor, tensor.transpose(0, -1)):
        sizes = [piece.numel() * piece.element_size() for piece in _pieces(value)]
        assert max(sizes) <= PIECE and sum(sizes) == tensor.numel() * 4


def test_the_names_of_files_are_those_that_the_libraries_write(tmp_path: Path) -> None:
    lora = {"target_modules": ["query", "value"], "modules_to_save": ["classifier"], "use_dora": True}
    bert = peft.get_peft_model(FAMILIES["bert"]().model, peft.LoraConfig(**lora), adapter_name="clinic")
    bert.add_adapter("lab-b", peft.LoraConfig(target_modules=["query"], modules_to_save=["classifier"]))
    prompts = peft.PromptTuningConfig(task_type=peft.TaskType.CAUSAL_LM, num_virtual_tokens=3)
    models = {
        "bert": bert,
        "prompts": peft.get_peft_model(FAMILIES["gpt2_tied"]().model, prompts),
        "vit": FAMILIES["vit"]().model,
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        known = {other for saved in saved_forms(model)[0].values() for other in saved} | set(model.state_dict())
        for path in (tmp_path / name).rglob("*.safetensors"):
            assert set(load_file(path)) <= known, f"{name}: {set(load_file(path)) - known}"
    assert saved_forms(nn.Linear(2, 2)) == ({}, [])


def test_adapters_that_transformers_added_are_tied_as_it_saves_them(tmp_path: Path) -> None:
    """It writes them as peft would, with what a model of peft has in front of its names."""
    model = FAMILIES["bert"]().model
    model.add_adapter(peft.LoraConfig(target_modules=["query"]))
    records = bound(model, *(name for name, parameter in model.named_parameters() if "lora_" in name)).records()
    model.save_pretrained(tmp_path)
    told = tie(Commitment(1, 1, 1, ordered(records)), [digested(tmp_path, path) for path in listed(tmp_path)])
    assert (told.status, told.present, told.files[0].view.drop) == ("TIED", 6, "base_model.model.")


def test_experts_that_are_saved_one_by_one_are_tied_to_the_tensor_that_holds_them(tmp_path: Path) -> None:
    """The model has them in one tensor, transformers writes each by itself; both forms are committed to."""
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 50}
    model = MixtralForCausalLM(MixtralConfig(**sizes, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1.mlp.experts" in name or "lm_head" in name)
    weights = bound(model, *(name for name, parameter in model.named_parameters() if parameter.requires_grad))
    records = weights.records()
    assert sum(bool(record.sources) for record in records) == 3 * 6 and len({record.names[0] for record in records}) == len(
        records
    )
    model.save_pretrained(tmp_path)
    files = [digested(tmp_path, path) for path in listed(tmp_path)]
    told = tie(Commitment(1, 1, 1, ordered(records)), files)
    assert (told.status, told.trained, told.present, told.left_out) == ("TIED", 3, 3, ())
    assert told.present + told.untrained == len(model.state_dict())
    with torch.no_grad():
        model.model.layers[1].mlp.experts.down_proj[0, 0, 0] += 1
        model.model.layers[0].mlp.experts.down_proj[0, 0, 0] += 1
    again = tie(Commitment(1, 1, 1, ordered(weights.records())), files)
    assert again.files[0].changed == ("model.layers.1.block_sparse_moe.experts.0.w2.weight",), "the other is not trained"
    assert again.left_out == ("model.layers.1.mlp.experts.down_proj",)


def test_a_library_that_cannot_tell_how_it_saves_a_model_keeps_nobody_from_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        raise KeyError("experts")

    monkeypatch.setattr("dptrain.record.weights._reverted", broken)
    with pytest.warns(UserWarning, match="cannot tell how it is saved"):
        assert saved_forms(FAMILIES["vit"]().model) == ({}, [])
