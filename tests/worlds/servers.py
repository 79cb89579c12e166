"""A server without a training run: a gate that admits by class, a small model with one adapter of its head, and a budget."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from starlette.testclient import TestClient

from dptrain.serve import service as services
from dptrain.serve.access import add_token
from dptrain.serve.app import make_app
from dptrain.serve.config import ServeConfig
from dptrain.serve.paying import create_log
from dptrain.serve.service import Service
from ledger.errors import ReleaseRefused
from ledger.release import Rights
from ledger.serving import Admission, Certified, Posture

WORDS = [
    "<unk>", "<s>", "</s>", "the", "a", "of", "and", "to", "in", "harbour", "boat", "tide", "net", "gull", "rope", "mast",
    "sail", "crew", "storm", "calm", "dawn", "dusk", "fish", "salt", "orchard", "apple", "pear", "plum", "bee", "tree", "leaf",
    "root", "fruit", "crate", ".", ",", "!", "?", "is", "was", "has", "sees", "takes", "brings", "keeps",
]  # fmt: skip
WIDTH = 32


@cache
def model_folders() -> tuple[Path, Path]:
    """Returns folders of a base model and of a release that has its adapter `pub`; made once in a process."""
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = Path(mkdtemp(prefix="served-"))
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    base = LlamaForCausalLM(config)
    base.save_pretrained(folder / "base")
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    made.save_pretrained(folder / "base")
    adapted: Any = get_peft_model(base, LoraConfig(r=4, target_modules=["lm_head"]), "pub")
    for name, tensor in adapted.named_parameters():
        if "lora_B" in name:
            tensor.data.normal_(0.0, 0.5)
    adapted.save_pretrained(folder / "release")
    return folder / "base", folder / "release"


class OpenGate:
    """Admits to `adapter:pub` whoever may hear of the class `pub`, and everybody to the base."""

    def __init__(self, config: ServeConfig, classes: Mapping[str, Any]) -> None:
        self.classes = {name: tuple(each.artifacts) for name, each in classes.items()}
        self.artifacts = tuple({name for each in self.classes.values() for name in each})
        self.closed: str | None = None
        self.weights = ()
        self.gone: set[str] = set()
        self.refuses: ReleaseRefused | None = None

    def files(self, name: str) -> tuple[Any, ...]:
        paths = ["config.json"] if name == "base" else ["pub/adapter_config.json", "pub/adapter_model.safetensors"]
        return tuple(SimpleNamespace(path=path) for path in paths)

    def fetch(self, name: str, into: Path) -> Path:
        base, release = model_folders()
        return Path(shutil.copytree(base if name == "base" else release, into))

    def withdrawn(self, name: str) -> bool:
        return name in self.gone

    def revoke(self, serials: Any) -> None:
        self.revoked = list(serials)

    def refresh(self, export: Path) -> None:
        if self.refuses is not None:
            self.closed = self.refuses.code
            raise self.refuses

    def admit(self, generation_class: str, rights: Rights | bytes, *, holder: str | None = None) -> Admission:
        if self.closed is not None:
            raise ReleaseRefused("GATE_CLOSED", "the gate is closed")
        assert isinstance(rights, Rights), "envelopes are tested over a real release"
        for name in self.classes[generation_class]:
            if name == "base" or ("pub" in rights.classes and (name not in self.gone or rights.withdrawn)):
                certificate = () if name == "base" else (Certified("pub", 4_000_000),)
                posture = Posture(name, (), certificate, "1/100000", "FULL", (), "TIED", ())
                return Admission(
                    generation_class=generation_class, artifact=name, files=(), posture=posture, holder=holder, serial=None,
                    granter=None, ledger_size=7, artifacts_digest=b"", time=0,
                )  # fmt: skip
        raise ReleaseRefused("CLASS", "class pub may have influenced adapter:pub, and the rights do not allow it")

    def posture(self) -> dict[str, Any]:
        rows = [
            {"name": name, "epsilon": {} if name == "base" else {"pub": 4.0}, "withdrawn_classes": [], "blocks": []}
            for name in sorted(self.artifacts)
        ]
        return {
            "verdict": "FULL", "weights": "TIED", "qualifiers": ["NO_AUDITORS"], "newer_withdrawals": 0,
            "origin": "run.example", "ledger_size": 7, "delta": "1/100000", "closed": None, "artifacts": rows,
        }  # fmt: skip


CLASSES: dict[str, dict[str, Any]] = {
    "plain": {"artifacts": ["adapter:pub", "base"]},
    "released": {"artifacts": ["adapter:pub"], "mode": "released"},
    "split": {"artifacts": ["adapter:pub"], "mode": "split"},
}
ENCRYPTED: dict[str, dict[str, Any]] = {
    "chain": {"artifacts": ["adapter:pub"], "mode": "released", "encrypt": True},
    "he": {"artifacts": ["adapter:pub"], "mode": "encrypted"},
}


def table(**changes: Any) -> dict[str, Any]:
    """Returns the file of a server; a table that is given takes the place of the one here, key by key."""
    found: dict[str, Any] = {
        "server": {"name": "gate.example", "port": 0, "streams": 4, "waiting": 2, "max_tokens": 64, "max_prompt": 64},
        "gate": {"release": "release", "keys": ["ledger.pub"]},
        "classes": CLASSES,
        "tokens": "tokens.toml",
        "budget": {"log": "budget.db", "key": "budget.key", "caps": {"user": {"epsilon": 20.0, "delta": 1e-5}}},
        "release": {"epsilon": 4.0, "delta": 1e-5, "clip": 1.0},
        "limits": {"requests_per_minute": 100_000, "adapter_states_per_hour": 100_000},
    }
    for name, value in changes.items():
        merged = isinstance(value, dict) and name not in ("classes", "release")
        found[name] = {**found.get(name, {}), **value} if merged else value
    return {name: value for name, value in found.items() if value is not None}


@dataclass
class Running:
    """A server in this process, without a socket."""

    service: Service
    http: TestClient
    tokens: dict[str, str]
    config: ServeConfig
    calls: list[int] = field(default_factory=list)

    def headers(self, client: str = "anna") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[client]}"}

    def post(self, path: str, body: Any, client: str = "anna") -> Any:
        return self.http.post(path, headers=self.headers(client), json=body)

    def complete(self, model: str, client: str = "anna", **asked: Any) -> Any:
        body = {"model": model, "prompt": "the boat", "max_tokens": 8, **asked}
        return self.post("/v1/completions", body, client)


@contextmanager
def running(folder: Path, *, encrypted_only: bool = False, **changes: Any) -> Iterator[Running]:
    """Runs a server over a folder, which may have one's budget and tokens already. Clients: anna and bob with rights for `pub`,
    eve with none, and the operator `op`. `Running.calls` counts forward passes of every model."""
    config = ServeConfig.of(table(**changes), folder)
    if config.budget is not None and not (folder / "budget.db").exists():
        create_log(config).close()
    kept = folder / "tokens.kept"
    tokens = dict(line.split() for line in kept.read_text().splitlines()) if kept.exists() else {}
    if not tokens:
        for name in ("anna", "bob", "eve"):
            tokens[name] = add_token(config.tokens, name, rights=Rights({"pub": 4.0} if name != "eve" else {}))
        tokens["op"] = add_token(config.tokens, "op", role="operator")
        kept.write_text("".join(f"{name} {token}\n" for name, token in tokens.items()))
    with mock.patch.object(services, "open_gate", OpenGate):
        service = Service(config, encrypted_only=encrypted_only)
    calls: list[int] = []
    models = [served.model for served in service.artifacts._models.values()]
    while models:  # none is kept here: some tests ask whether a model has left memory
        models.pop().register_forward_pre_hook(lambda module, inputs: calls.append(1))
    try:
        with TestClient(make_app(service), raise_server_exceptions=False) as http:
            yield Running(service, http, tokens, config, calls)
    finally:
        service.close()
