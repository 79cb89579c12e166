"""Everything that a run needs beside data and a model, made in one folder by one program that holds every key.

For somebody who owns the data alone, and for rehearsals. In a run of many, each of these keys lies on another machine.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attest import signed_file
from attest.corpus import SigningTemplate, sign_corpus
from attest.keys import generate, public_bytes, save_private_key, save_public_key
from attest.policy import Policy, sign_policy
from attest.registry import Enrol, RegistryLog
from dptrain.errors import ConfigError

DAY = 86_400

ALONE = "contributor"
"""Name under which the one owner contributes."""


@dataclass(frozen=True)
class Contributor:
    """One contributor, its records and the admissibility class."""

    name: str
    admissibility_class: str
    records: Sequence[Any]


@dataclass(frozen=True)
class Stage:
    """A directory with keys, registry, signed policy and attested corpus."""

    root: Path
    policy: Policy
    keys: Mapping[str, Any]
    now: int

    @property
    def signed_policy(self) -> Path:
        return self.root / "policy.cose"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def owner_key(self) -> Path:
        return self.root / "keys" / "owner.pub"

    @property
    def registry(self) -> Path:
        return self.root / "registry.cbor"

    def template(self, contributor: str, class_name: str, **changes: Any) -> SigningTemplate:
        """Sign exactly what the class offers; ``changes`` for contributors who ask for something else."""
        rule = self.policy.class_rule(class_name)
        values: dict[str, Any] = {
            "contributor": contributor,
            "data_class": "public-benchmark",
            "admissibility_class": class_name,
            "clip_norm_micro": rule.clip_norm_micro,
            "noise_multiplier_micro": rule.noise_multiplier_micro,
            "corpus": self.policy.corpus,
            "not_before": self.now - DAY,
            "not_after": self.now + 365 * DAY,
        }
        return SigningTemplate(**values | changes)


def stage(root: Path, policy: str, contributors: Sequence[Contributor], *, now: int) -> Stage:
    """Makes keys, enrols the contributors, signs the policy, and lets every contributor sign what it contributes.

    Args:
        root: directory to write to. policy: text of ``policy.toml``. contributors: who takes part. now: seconds since 1970.

    Raises:
        ConfigError: the directory holds a rehearsal already.
        AttestError: the policy or a record cannot be used.
    """
    if (root / "policy.cose").exists():
        raise ConfigError("OUTPUT", f"{root} holds a corpus already; choose another directory, or remove it")
    rules = Policy.from_toml(policy)
    for folder in (root / "keys", root / "corpus"):
        folder.mkdir(parents=True, exist_ok=True)
    classes: dict[str, tuple[str, ...]] = {}
    for one in contributors:
        classes[one.name] = tuple(sorted((*classes.get(one.name, ()), one.admissibility_class)))
    keys = {name: generate() for name in ("owner", *classes)}
    for name, key in keys.items():
        save_private_key(root / "keys" / f"{name}.key", key)
        save_public_key(root / "keys" / f"{name}.pub", public_bytes(key), name)
    log = RegistryLog.create(root / "registry.cbor", keys["owner"], owner="owner", now=now)
    registry = log.append(
        [
            Enrol(name, public_bytes(keys[name]), not_before=now - DAY, not_after=now + 730 * DAY, classes=granted)
            for name, granted in classes.items()
        ],
        now=now,
    )
    (root / "policy.toml").write_text(policy, encoding="utf-8")
    payload, message = sign_policy(rules, keys["owner"], owner="owner", registry_root=registry.root())
    signed_file.write(root / "policy.cose", payload, message)
    made = Stage(root, rules, keys, now)
    for contributor in contributors:
        data = _file_of(root, contributors, contributor)
        write_records(data, contributor.records)
        sign_corpus(data, None, keys[contributor.name], made.template(contributor.name, contributor.admissibility_class))
    return made


def stage_alone(folder: Path, policy: str, records: Mapping[str, Sequence[Any]]) -> Path:
    """Makes keys, registry, policy and attestations of one person in a folder; one that holds them already stays as it is.

    Args:
        policy: text of ``policy.toml``. records: contributions by class.

    Raises:
        ConfigError: code ONE_OWNER, a class without rules, or a folder that was made with another policy or other records.
        AttestError: the policy or a record cannot be used.
    """
    known = [rule.name for rule in Policy.from_toml(policy).classes]
    if unknown := sorted(records.keys() - set(known)):
        raise ConfigError("ONE_OWNER", f"records has the class {unknown[0]!r}, expected one of the policy: {', '.join(known)}")
    contributors = [Contributor(ALONE, name, found) for name, found in records.items()]
    if not (folder / "policy.cose").exists():
        stage(folder, policy, contributors, now=int(time.time()))
        return folder
    wanted = {_file_of(folder, contributors, one): _lines(one.records) for one in contributors}
    wanted[folder / "policy.toml"] = policy
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            raise ConfigError(
                "ONE_OWNER",
                f"{path} is not what was given: the folder was made with another policy or other records. Give what it was "
                "made with, or another folder",
            )
    return folder


def write_records(path: Path, records: Sequence[Any]) -> None:
    """Writes JSON lines."""
    path.write_text(_lines(records), encoding="utf-8")


def _lines(records: Sequence[Any]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _file_of(root: Path, contributors: Sequence[Contributor], one: Contributor) -> Path:
    """Returns the data of a contributor; of one with several classes, that of a class."""
    alone = sum(other.name == one.name for other in contributors) == 1
    return root / "corpus" / (f"{one.name}.jsonl" if alone else f"{one.name}-{one.admissibility_class}.jsonl")
