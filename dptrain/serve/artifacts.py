"""Opens the gate of a server, and loads what it admits from copies that were compared byte for byte.

A base model that is not in the release is taken only if its tensors are, name by name and bit for bit, those that the run had
frozen, to which the ledger's header committed before the first step.
"""

import copy
import itertools
import json
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attest.files import read_limited
from attest.keys import load_public_key
from dptrain.errors import ConfigError
from dptrain.serve.adapters import LastAdapter
from dptrain.serve.config import Generation, ServeConfig
from dptrain.serve.decoding import Served
from ledger.budget import Beside
from ledger.errors import ReleaseRefused
from ledger.leaves.weights import WeightRecord
from ledger.note import parse_verifier_key
from ledger.release.contents import shards_of
from ledger.release.files import CHUNK, digested, listed, opened
from ledger.release.manifest import open_manifest, read_manifest
from ledger.release.tied import few
from ledger.serving import InferenceGate

BASE: Final = "base"
ADAPTER: Final = "adapter:"

_MOST_KEY: Final = 4096


def open_gate(config: ServeConfig, classes: Mapping[str, Generation]) -> InferenceGate:
    """Opens the gate that a server's file describes.

    Raises:
        ReleaseRefused, RightsRefused, KeyRefused: as `InferenceGate.open`. FileRefused, NoteError: a key cannot be read.
    """
    table = config.gate
    return InferenceGate.open(
        table.release,
        [key for path in table.keys for key in _verifier_keys(path)],
        name=config.server.name,
        classes={name: each.artifacts for name, each in classes.items()},
        export=table.export,
        minimum_size=table.minimum_size,
        owner_key=None if table.owner_key is None else load_public_key(table.owner_key),
        require_quorum=table.require_quorum,
        granters=[load_public_key(path) for path in table.granters],
        revoked=[bytes.fromhex(serial) for serial in table.revoked],
    )


def beside(config: ServeConfig) -> Beside:
    """Returns the checkpoint of the training ledger that the release cites, for the header of a budget log beside it.

    Raises:
        ReleaseRefused: there is no manifest that one of the keys signed.
    """
    keys = [key for path in config.gate.keys for key in _verifier_keys(path)]
    manifest = open_manifest(read_manifest(config.gate.release), keys)
    return Beside(manifest.origin, manifest.size, manifest.root)


def _verifier_keys(path: Path) -> list[str]:
    found = read_limited(path, _MOST_KEY, "file of verifier keys").decode("utf-8", "replace").split()
    for key in found:
        parse_verifier_key(key)
    if not found:
        raise ConfigError("SERVE_VALUE", f"{path} holds no verifier key; give the ledger's public key")
    return found


class Artifacts:
    """Loads artifacts once, and keeps them until they are withdrawn.

    Guarantee: what is loaded was copied into a directory of this process alone while it was hashed, and the hash is that of the
    manifest, or of the tensors to which the ledger commits.
    """

    def __init__(self, gate: InferenceGate, base: Path | None) -> None:
        """``base``: directory of the base model, where the release does not have it."""
        self._gate, self._base = gate, base
        self._models: dict[str, Served] = {}
        self._last: dict[str, LastAdapter] = {}
        self._lock = threading.RLock()

    def model(self, name: str) -> Served:
        """Returns a model that generates: ``full``, ``base``, or the base with one adapter.

        Raises:
            ReleaseRefused: code CHANGED_FILE, as the gate; BASE_NOT_TIED, the base is not what the run trained from; CODE.
            ConfigError: code BASE, there is no base model; MODEL, it cannot be loaded.
        """
        with self._lock:
            if name not in self._models:
                self._models[name] = self._load(name)
            return self._models[name]

    def last(self, name: str) -> LastAdapter:
        """Returns an adapter of the head alone.

        Raises:
            ConfigError: code LAST_ADAPTER, it reads more than the last state.
        """
        with self._lock:
            if name not in self._last:
                self._last[name] = self._read_last(name)
            return self._last[name]

    def drop(self, names: set[str]) -> set[str]:
        """Lets artifacts go that were withdrawn, and returns those that were held."""
        with self._lock:
            gone = {name for name in names if self._models.pop(name, None) is not None}
            return gone | {name for name in names if self._last.pop(name, None) is not None}

    def _load(self, name: str) -> Served:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        with tempfile.TemporaryDirectory(prefix="dptrain-serve-") as scratch:
            place = Path(scratch) / "artifact"
            try:
                if name.startswith(ADAPTER):
                    base = self.model(BASE)
                    folder = self._gate.fetch(name, place) / self._folder(name)
                    model = PeftModel.from_pretrained(_twin(base.model), folder, adapter_name="served", local_files_only=True)
                    return Served.of(model, base.tokenizer)
                self._whole(name, place)
                settings = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
                model, found = AutoModelForCausalLM.from_pretrained(place, output_loading_info=True, **settings)
                if wrong := sorted(name for kind in ("missing_keys", "mismatched_keys") for name in map(str, found[kind])):
                    sentence = f"{name} lacks {few(wrong)}, which its settings ask for"
                    raise ConfigError("MODEL", f"{sentence}; serve it as it was saved")
                return Served.of(model, AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False))
            except (OSError, ValueError, KeyError, AttributeError) as error:
                first = str(error).strip().split("\n")[0]
                sentence = f"{name} cannot be loaded: {first:.300}"
                raise ConfigError("MODEL", f"{sentence}; release what from_pretrained reads") from error

    def _whole(self, name: str, place: Path) -> None:
        """Copies a model that is no adapter."""
        if self._gate.files(name):
            self._gate.fetch(name, place)
        elif self._base is None:
            raise ConfigError("BASE", "the release has adapters alone; set gate.base to the model that they were trained on")
        else:
            copy_base(self._base, place, self._gate.weights)

    def _folder(self, name: str) -> str:
        """Returns the folder of the release in which an adapter lies."""
        found = [file.path for file in self._gate.files(name) if file.path.rpartition("/")[2] == "adapter_config.json"]
        if len(found) != 1:
            raise ConfigError("MODEL", f"{name} has {len(found)} files adapter_config.json, expected one; save it as peft does")
        return found[0].rpartition("/")[0]

    def _read_last(self, name: str) -> LastAdapter:
        from safetensors.numpy import load_file

        with tempfile.TemporaryDirectory(prefix="dptrain-serve-") as scratch:
            folder = self._gate.fetch(name, Path(scratch) / "artifact") / self._folder(name)
            settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            tensors = load_file(folder / "adapter_model.safetensors")
        # peft saves the head beside its pair; the base has that already.
        tensors = {key: value for key, value in tensors.items() if not key.endswith(".base_layer.weight")}
        pair = {key.rpartition(".lora_")[2].partition(".")[0]: value for key, value in tensors.items() if ".lora_" in key}
        plain = not settings.get("use_dora") and settings.get("bias", "none") == "none" and not settings.get("rank_pattern")
        heads = all(".lm_head." in f".{key}" or ".embed_out." in f".{key}" for key in tensors)
        if set(pair) != {"A", "B"} or len(tensors) != 2 or not plain or not heads:
            sentence = f"{name} has {len(tensors)} tensors, not one LoRA pair of lm_head"
            raise ConfigError("LAST_ADAPTER", f"{sentence}; train it with target_modules=['lm_head']")
        rank = pair["A"].shape[0]
        alpha = float(settings["lora_alpha"])
        scaling = alpha / rank**0.5 if settings.get("use_rslora") else alpha / rank
        return LastAdapter(name, pair["A"].astype("f8"), pair["B"].astype("f8"), scaling)


BASE_FILES: Final = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|model\.safetensors\.index)\.json"
    r"|merges\.txt|vocab\.txt|(tokenizer|spiece|sentencepiece\.bpe)\.model|chat_template\.(jinja|json)|[\w.-]+\.safetensors"
)
"""Files that a base model is made of; what else lies beside them is neither copied nor read."""


def copy_base(source: Path, place: Path, records: tuple[WeightRecord, ...]) -> None:
    """Copies a base model, if its tensors are those that the run had frozen: all of them, and no others.

    Its settings and tokenizer are no tensors: nothing says that they are those of the run.

    Args:
        records: the tensors of the run, to which the ledger commits.

    Raises:
        ReleaseRefused: code BASE_NOT_TIED, a tensor is another, is missing, or the run had none of that name; or an index names
            files that do not lie there; or as `ledger.release.files`.
    """
    kept = [record for record in records if not record.trained and record.adapter is None]
    frozen, left = {_plain(name): record for record in kept for name in record.names}, {record.names[0] for record in kept}
    place.mkdir(mode=0o700)
    paths = [path for path in listed(source) if BASE_FILES.fullmatch(path)]
    for path in paths:
        with opened(source, path) as stream, (place / path).open("xb") as out:
            while data := stream.read(CHUNK):
                out.write(data)
        if path.endswith(".index.json"):
            shards = shards_of((place / path).read_bytes())
            if shards is None or not set(shards) <= set(paths):
                told = f"{path} names files that are not beside it"
                raise ReleaseRefused("BASE_NOT_TIED", f"{told}; give the model that the adapters were trained on")
        for tensor in digested(place, path).tensors or ():
            record = frozen.get(_plain(tensor.name))
            if record is None or (record.dtype, record.shape, record.sha256) != (tensor.dtype, tensor.shape, tensor.sha256):
                told = "the run had none of that name frozen" if record is None else "it is another than the run's"
                sentence = f"tensor {tensor.name!a:.120} of {path!a:.120} of the base: {told}"
                raise ReleaseRefused("BASE_NOT_TIED", f"{sentence}; give the model that the adapters were trained on")
            left.discard(record.names[0])
    if left:
        sentence = f"the base lacks {len(left)} tensors that the run had frozen: {few(sorted(left))}"
        raise ReleaseRefused("BASE_NOT_TIED", f"{sentence}; give the model that the adapters were trained on")


def _plain(name: str) -> str:
    """Returns the name of a tensor without what peft puts around a base model."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _twin(model: Any) -> Any:
    """Returns a model of its own with the same tensors in memory."""
    tensors: Iterator[Any] = itertools.chain(model.parameters(), model.buffers())
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    head = twin.get_output_embeddings()
    head._forward_hooks.clear()
    return twin
