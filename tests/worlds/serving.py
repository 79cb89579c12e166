"""A release of two adapters over a base that nobody trained, its ledger before and after withdrawals, and rights to ask it."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.keys import public_bytes
from attest.policy import ClassRule, DepthRule
from ledger.leaves.weights import WeightRecord
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.release import Rights, release
from ledger.serving import InferenceGate, RightsEnvelope, sign_rights
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec, parameter, signed_policy, stack_of

GRANTER = Ed25519PrivateKey.from_private_bytes(b"granter of rights, 32 bytes long")
STRANGER = Ed25519PrivateKey.from_private_bytes(b"a stranger's own key of 32 bytes")
KEYS = [SIGNER.vkey]
NOW = START + 10_000
NAME, HOLDER = "house/gate", "client-7"
CHAT = {"chat": ["adapter:one", "adapter:two", "base"], "public": ["base"], "one": ["adapter:one"]}
BOTH: dict[str, int | None] = {"open": None, "sensitive": None}
ALL = Rights({"open": None, "sensitive": None}, told=True)


def values(name: str) -> bytes:
    """The 8 bytes of a tensor."""
    return hashlib.sha256(name.encode()).digest()[:8]


def safetensors(tensors: dict[str, bytes]) -> bytes:
    """A file of tensors of two float32 each."""
    places = {name: [8 * at, 8 * at + 8] for at, name in enumerate(tensors)}
    header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": at} for name, at in places.items()}).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(tensors.values())


def record(name: str, adapter: str | None = None, *others: str) -> WeightRecord:
    """What the run commits to of a tensor."""
    return WeightRecord((name, *others), adapter, adapter is not None, "F32", (2,), hashlib.sha256(values(name)).digest())


RECORDS = (
    record("head.weight"),
    record("layers.0.one", "one", "layers.0.lora"),
    record("layers.0.two", "two", "layers.0.lora"),
)


def model(directory: Path, *, base: bool = False) -> Path:
    """Two adapters as peft saves them, a tokenizer, and the base where it is asked for."""
    for name in ("one", "two"):
        (directory / name).mkdir(parents=True)
        (directory / name / "adapter_model.safetensors").write_bytes(
            safetensors({"layers.0.lora": values(f"layers.0.{name}")})
        )
        (directory / name / "adapter_config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    if base:
        (directory / "model.safetensors").write_bytes(safetensors({"head.weight": values("head.weight")}))
        (directory / "config.json").write_text("{}")
    return directory


def driver_of(path: Path, signer: NoteSigner = SIGNER) -> Driver:
    """A ledger whose run ended with these adapters: two contributions of each class."""
    bounds = {"clip_norm_micro": 10**6, "noise_multiplier_micro": 10**6, "sampling_rate": Fraction(1, 50)}
    bound = {"open": "one", "sensitive": "two"}
    policy = signed_policy(
        classes=tuple(ClassRule(name=name, depth=DepthRule(adapter=adapter), **bounds) for name, adapter in bound.items())
    )
    stack = stack_of(
        1,
        parameter("head.weight", 2, trained=False),
        parameter("layers.0.one", 2, adapter="one"),
        parameter("layers.0.two", 2, adapter="two"),
    )
    driver = Driver(Ledger.create(path, header_spec(policy, stack=stack), signer, now=START))
    driver.digest = driver.ledger.keep_weights(RECORDS)
    same = {"clip_micro": 10**6, "sigma_micro": 10**6}
    driver.admit(admission(1), admission(2), admission(3, "sensitive", **same), admission(4, "sensitive", **same))
    driver.steps(10)
    driver.epoch()
    return driver


@dataclass(frozen=True)
class Served:
    """What lies on the disk of a service.

    Attributes:
        adapters: a release without the base. whole: one with it, made right behind it. later: exports of the ledger after a
            contribution of class open was withdrawn, and then one of class sensitive too. forked: an export of another history
            of the same length as the first of these.
    """

    base: Path
    adapters: Path
    whole: Path
    later: tuple[Path, Path]
    forked: Path


def serve(base: Path) -> Served:
    """Makes the releases and the exports."""
    (base / "run").mkdir()
    driver = driver_of(base / "run" / "ledger.db")
    with driver.ledger as ledger:
        ledger.finish(now=driver.tick())
        release(ledger, model(base / "adapters"), now=driver.tick())
        release(ledger, model(base / "whole", base=True), now=driver.tick())
    shutil.copytree(base / "run", base / "other")
    with Ledger.open(base / "run" / "ledger.db", SIGNER) as ledger:
        driver.ledger = ledger
        driver.withdraw(2)
        one = ledger.export(base / "one")
        driver.withdraw(3)
        two = ledger.export(base / "two")
    with Ledger.open(base / "other" / "ledger.db", SIGNER) as ledger:
        driver.ledger = ledger
        driver.withdraw(1)
        forked = ledger.export(base / "forked")
    return Served(base, base / "adapters", base / "whole", (one, two), forked)


def gate_of(directory: Path, **changes: Any) -> InferenceGate:
    """A gate over a release."""
    settings: dict[str, Any] = {"name": NAME, "classes": CHAT, "granters": [public_bytes(GRANTER)], "now": NOW}
    return InferenceGate.open(directory, KEYS, **settings | changes)


def envelope(classes: dict[str, int | None] | None = None, **changes: Any) -> RightsEnvelope:
    """Rights of the holder for an hour before and behind `NOW`."""
    settings: dict[str, Any] = {
        "audience": NAME, "holder": HOLDER, "not_before": NOW - 3600, "expires": NOW + 3600, "generation": ("chat", "one"),
        "told": True, "serial": bytes(range(16)),
    }  # fmt: skip
    return RightsEnvelope.of(BOTH if classes is None else classes, **settings | changes)


def signed(classes: dict[str, int | None] | None = None, key: Ed25519PrivateKey = GRANTER, **changes: Any) -> bytes:
    """The same, signed."""
    return sign_rights(envelope(classes, **changes), key, granter="data-office")
