"""A small complete world for tests: owner, contributors, registry, signed policy and an attested JSONL corpus."""

import hashlib
import itertools
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import signed_file
from attest.corpus import SigningTemplate, sign_corpus
from attest.fixed_point import to_micro
from attest.keys import public_bytes, save_public_key
from attest.policy import Policy, sign_policy
from attest.policy.signed import coefficients_file
from attest.registry import Registry, RegistryLog

DAY = 86_400

SENSITIVE = """
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.5
sampling_rate = {q}
depth = {{ from = 0.67, to = 1.0 }}
"""
PUBLIC = """
[[class]]
name = "encyclopedia"
public = true
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""
"""A class of which nothing is promised."""
CLASSES = SENSITIVE + """[[class]]
name = "internal"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.34, to = 1.0 }}
[[class]]
name = "open"
clip_norm = 1.0
noise_multiplier = 0.6
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""


@dataclass
class World:
    """Paths and keys; ``open_args`` are the first arguments of ``PrivateTraining.open``."""

    root: Path
    policy: Path
    corpus: Path
    owner_key: Any
    contributor_keys: dict[str, Any]
    registry: Registry
    now: int

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.db"

    @classmethod
    def at(cls, root: Path) -> "World":
        """A world that was made before, without keys, for another process."""
        return cls(root, root / "policy.cose", root / "corpus", None, {}, Any, 0)


def token_record(seed: int, vocabulary: int = 50, length: int = 7, labels: int = 3) -> dict:
    """A deterministic example of the token families: no padding inside, one label."""
    ids = [2 + (seed * 31 + 17 * t + (seed * t) % 13) % (vocabulary - 2) for t in range(length)]
    return {"ids": ids, "label": seed % labels, "seed": seed}


def make_world(
    root: Path,
    *,
    per_class: int | Mapping[str, int] = 4,
    steps: int = 4,
    window_steps: int = 2,
    rate: str = "0.5",
    classes: str = CLASSES,
    record: Callable[[int], Any] = token_record,
    policy_extra: str = "",
    coefficients: bytes | None = None,
    template_extra: dict | None = None,
    signed_bounds: Callable[[str], dict] | None = None,
    now: int | None = None,
    begins: int = -DAY,
    length_of: Callable[[bytes], int | None] | None = None,
) -> World:
    """Writes a world under ``root``: one contributor per class, ``per_class`` contributions each or by class.

    Attestations are valid from ``begins`` seconds after now. Keys, salts and nonces are fresh, but under :func:`chance_of`.
    """
    root.mkdir(parents=True, exist_ok=True)
    now = int(time.time()) if now is None else now
    text = (
        f'corpus = "test-corpus"\ndelta = 1e-5\nsteps = {steps}\nnormalizer = 4\n'
        f"window_steps = {window_steps}\nepoch_steps = {max(2 * window_steps, steps // 10)}\n{policy_extra}\n"
        + classes.format(q=rate)
    )
    policy = Policy.from_toml(text)
    owner = _key()
    log = RegistryLog.create(root / "registry.cbor", owner, owner="owner", now=now - DAY)
    keys = {}
    corpus = root / "corpus"
    corpus.mkdir(exist_ok=True)
    for k, rule in enumerate(policy.classes):
        name = f"contributor-{rule.name}"
        keys[name] = _key()
        log.enrol(
            name, public_bytes(keys[name]), classes=(rule.name,), not_before=now - DAY, not_after=now + 300 * DAY, now=now - DAY
        )
        bounds = {"clip_norm_micro": rule.clip_norm_micro, "noise_multiplier_micro": rule.noise_multiplier_micro}
        if signed_bounds is not None:
            bounds |= {key: to_micro(value, rounding="exact") for key, value in signed_bounds(rule.name).items()}
        template = SigningTemplate(
            contributor=name, data_class="test", admissibility_class=rule.name, corpus="test-corpus", not_before=now + begins,
            not_after=now + 200 * DAY, **bounds, **(template_extra or {}),
        )  # fmt: skip
        data = corpus / f"{rule.name}.jsonl"
        count = per_class if isinstance(per_class, int) else per_class[rule.name]
        write_jsonl(data, [record(1000 * k + i) for i in range(count)])
        sign_corpus(data, None, keys[name], template, length_of=length_of)
    save_public_key(root / "owner.pub", public_bytes(owner), "owner")
    payload, message = sign_policy(policy, owner, owner="owner", registry_root=log.registry.root())
    signed_file.write(root / "policy.cose", payload, message)
    if coefficients is not None:
        coefficients_file(root / "policy.cose").write_bytes(coefficients)
    return World(root, root / "policy.cose", corpus, owner, keys, log.registry, now)


@contextmanager
def chance_of(seed: str) -> Iterator[None]:
    """Within it keys, salts and nonces of a world follow from the seed, and so does the order in which a ledger numbers
    contributions: two worlds of one seed have equal bytes."""
    counter = itertools.count()

    def drawn(size: int) -> bytes:
        return hashlib.shake_256(f"{seed}/{next(counter)}".encode()).digest(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", drawn)
        patch.setattr(secrets, "token_bytes", drawn)
        yield


def _key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(secrets.token_bytes(32))


def write_jsonl(path: Path, records: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in records))
