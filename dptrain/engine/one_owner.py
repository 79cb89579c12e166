"""Everything that a run needs beside data and a model, made in one folder by one program that holds every key.

For somebody who owns the data alone, and for rehearsals. In a run of many, each of these keys lies on another machine.
"""

import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from attest import signed_file
from attest.corpus import SigningTemplate, sign_corpus
from attest.files import atomic_writer
from attest.fixed_point import MICRO
from attest.keys import generate, public_bytes, save_private_key, save_public_key
from attest.policy import Policy, sign_policy
from attest.registry import Enrol, RegistryLog
from dptrain.errors import ConfigError
from ledger import accountants

DAY = 86_400

ALONE = "contributor"
"""Name under which the one owner contributes."""

TARGET_EPSILON = 8.0
"""Epsilon of a run of one's own where nobody names an epsilon or a noise multiplier."""


@dataclass(frozen=True)
class Contributor:
    """One contributor, its records (values that JSON has, or lines of bytes) and the admissibility class."""

    name: str
    admissibility_class: str
    records: Iterable[Any]


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


def stage(
    root: Path,
    policy: str,
    contributors: Sequence[Contributor],
    *,
    now: int,
    one_key: bool = False,
    length_of: Callable[[bytes], int | None] | None = None,
) -> Stage:
    """Makes keys, enrols the contributors, signs the policy, and lets every contributor sign what it contributes.

    Args:
        root: directory to write to. policy: text of ``policy.toml``. contributors: who takes part. now: seconds since 1970.
        one_key: let the owner's key be that of all contributors too, so that everybody sees that one party holds it.
        length_of: a content to the public length that is signed for it.

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
    keys = dict.fromkeys(("owner", *classes), generate()) if one_key else {name: generate() for name in ("owner", *classes)}
    for name, key in {"owner": keys["owner"]}.items() if one_key else keys.items():
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
        template = made.template(contributor.name, contributor.admissibility_class)
        sign_corpus(data, None, keys[contributor.name], template, length_of=length_of)
    return made


def stage_alone(
    folder: Path,
    policy: str,
    records: Mapping[str, Iterable[Any]],
    length_of: Callable[[bytes], int | None] | None = None,
) -> Path:
    """Makes keys, registry, policy and attestations of one person in a folder; one that holds them already stays as it is.

    Args:
        policy: text of ``policy.toml``. records: contributions by class. length_of: as for `stage`.

    Raises:
        ConfigError: code ONE_OWNER, a class without rules, or a folder that was made with another policy or other records.
        AttestError: the policy or a record cannot be used.
    """
    known = [rule.name for rule in Policy.from_toml(policy).classes]
    if unknown := sorted(records.keys() - set(known)):
        raise ConfigError("ONE_OWNER", f"records has the class {unknown[0]!r}, expected one of the policy: {', '.join(known)}")
    contributors = [Contributor(ALONE, name, found) for name, found in records.items()]
    if not (folder / "policy.cose").exists():
        aside = folder.with_name(f".{folder.name}.making")
        shutil.rmtree(aside, ignore_errors=True)
        stage(aside, policy, contributors, now=int(time.time()), one_key=True, length_of=length_of)
        os.link(aside / "keys" / "owner.key", aside / "ledger.key")  # where commands look for the key of ledger.db
        folder.mkdir(parents=True, exist_ok=True)
        names = ("keys", "ledger.key", "corpus", "registry.cbor", "registry.names", "policy.toml", "policy.cose")
        for name in names:  # once the last one is there the folder counts
            if (aside / name).exists():
                shutil.rmtree(folder / name, ignore_errors=True)
                (aside / name).replace(folder / name)
        aside.rmdir()
        return folder
    wanted: dict[Path, Iterable[bytes]] = {_file_of(folder, contributors, one): _lines(one.records) for one in contributors}
    wanted[folder / "policy.toml"] = [policy.encode()]
    for path, lines in wanted.items():
        if not path.exists() or not _is(path, lines):
            raise ConfigError(
                "ONE_OWNER",
                f"{path} is not what was given: the folder was made with another policy or other records. Give what it was "
                "made with, or another folder",
            )
    return folder


def owners_policy(
    count: int,
    *,
    target_epsilon: float | None,
    epochs: float,
    batch_size: int,
    delta: float | None,
    clip_norm: float,
    corpus: str,
    max_examples: int = 1,
    public_lengths: Sequence[int] = (),
    noise_multiplier: float | None = None,
    geometry: str | None = None,
) -> str:
    """Writes the policy of somebody who owns all data: one class that may touch everything, with noise for an epsilon.

    Args:
        count: contributions. target_epsilon: under zero-out adjacency, the one to put beside Opacus'; it holds even if all
            of the policy's ``redo_steps`` are used; default: `TARGET_EPSILON`, unless a noise multiplier is given.
        epochs: how often a contribution is drawn on average. batch_size: contributions that a step draws on average.
        delta: default: at most 1e-6 and 1 / (10 count). clip_norm: of every contribution. corpus: identifier.
        noise_multiplier: standard deviation of the noise over the clip norm, in the place of a target.
        max_examples: the most that one contribution holds. public_lengths: those that contributions may sign, in tokens.
        geometry: of LoRA pairs, a word of the policy.

    Returns:
        The text of a ``policy.toml``.

    Raises:
        ConfigError: code OWN, numbers that describe no run, or both a target and a multiplier.
        AccountantError: no noise reaches the epsilon.
    """
    if target_epsilon is not None and noise_multiplier is not None:
        raise ConfigError(
            "OWN",
            f"target_epsilon={target_epsilon!r} and noise_multiplier={noise_multiplier!r} were both given, expected one: each "
            "follows from the other; leave one out",
        )
    if target_epsilon is None:
        target_epsilon = TARGET_EPSILON
    goal, named = (target_epsilon, "target_epsilon") if noise_multiplier is None else (noise_multiplier, "noise_multiplier")
    whole = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    real = all(isinstance(value, int | float) for value in (goal, epochs, clip_norm, delta or 0.0))
    sizes = whole and count >= 1 and 1 <= batch_size <= count
    if not (sizes and real and epochs > 0 and clip_norm > 0 and 0 < goal < math.inf):
        raise ConfigError(
            "OWN",
            f"{count} contributions, batch_size={batch_size!r}, epochs={epochs!r}, clip_norm={clip_norm!r}, delta={delta!r} "
            f"and {named}={goal!r}, expected numbers above 0, and batches of whole contributions, all at most",
        )
    rate, steps = Fraction(batch_size, count), math.ceil(epochs * count / batch_size)
    if delta is None:
        most = min(1e-6, 0.1 / count)
        size = 10.0 ** math.floor(math.log10(most) + 1e-9)
        delta = float(f"{math.floor(most / size + 1e-9)}e{round(math.log10(size))}")
    again = 8 + steps // 50
    if noise_multiplier is None:
        micro = math.ceil(accountants.calibrate(target_epsilon, float(rate), steps + again, delta) * MICRO)
        told = f"Epsilon {target_epsilon:g} at most"
    else:
        micro = math.ceil(Fraction(repr(float(noise_multiplier))) * MICRO)
        spent = accountants.epsilon(micro / MICRO, float(rate), steps + again, delta)
        told = f"Noise multiplier {noise_multiplier:g}, so epsilon {math.ceil(spent * 1000) / 1000:g} at most"
    multiplier = max(micro, 1) / MICRO
    each = max(1, math.ceil(count / batch_size))
    several = f"max_examples = {max_examples}\n" if max_examples > 1 else ""
    charted = "" if geometry is None else f"geometry = {json.dumps(geometry)}\n"
    lengths = f"public_lengths = {sorted(set(public_lengths))}\n" if public_lengths else ""
    return f"""\
# {told}, at delta {delta:g}, even if {again} steps are charged again after exceptions and crashes:
# {epochs:g} epochs of {count} contributions in batches of about {batch_size}.
corpus = "{corpus}"
delta = {delta!r}
steps = {steps}
normalizer = {batch_size}
redo_steps = {again}
epoch_steps = {min(each, steps)}
{charted}
[floors]
clip_norm = {clip_norm!r}
noise_multiplier = {multiplier!r}

[gate]
contributor_cap = {count}
{several}
[[class]]
name = "own"
clip_norm = {clip_norm!r}
noise_multiplier = {multiplier!r}
sampling_rate = "{rate.numerator}/{rate.denominator}"
depth = {{ from = 0.0, to = 1.0 }}
{lengths}"""


def corpus_name(folder: Path) -> str:
    """Makes the identifier of a corpus from the name of a folder."""
    return re.sub(r"[^a-z0-9._-]+", "-", folder.resolve().name.lower()).strip("-._")[:64] or "own"


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Writes JSON lines; the file appears complete or not at all."""
    with atomic_writer(path) as stream:
        for line in _lines(records):
            stream.write(line)


def _lines(records: Iterable[Any]) -> Iterator[bytes]:
    """Yields the line of each record, which is JSON already where it is bytes."""
    for record in records:
        yield (record if isinstance(record, bytes) else json.dumps(record, ensure_ascii=False).encode()) + b"\n"


def _is(path: Path, lines: Iterable[bytes]) -> bool:
    """Tells whether a file has these lines, without holding them."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest() == digest.digest()


def _file_of(root: Path, contributors: Sequence[Contributor], one: Contributor) -> Path:
    """Returns the data of a contributor; of one with several classes, that of a class."""
    alone = sum(other.name == one.name for other in contributors) == 1
    return root / "corpus" / (f"{one.name}.jsonl" if alone else f"{one.name}-{one.admissibility_class}.jsonl")
