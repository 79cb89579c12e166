"""A rehearsal: one program plays the corpus owner and every contributor, on data that is public anyway.

For the demo, the recipes and tests. In a real run each of these keys lies on another machine; see docs/walkthrough.md.
"""

import json
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
from ledger.accountants import calibrate

DAY = 86_400


@dataclass(frozen=True)
class Contributor:
    """One contributor, its records and the admissibility class."""

    name: str
    admissibility_class: str
    records: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Tier:
    """An admissibility class as a corpus owner thinks of it: what may be spent, and how deep it may reach.

    Attributes:
        name: name of the class. epsilon: of one contribution, over the whole run. start: depth at which its band begins.
    """

    name: str
    epsilon: float
    start: str


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


def policy_text(
    corpus: str,
    tiers: Sequence[Tier],
    *,
    steps: int,
    rate: float,
    normalizer: int,
    clip_norm: float,
    delta: float,
    epochs: int = 5,
) -> str:
    """A policy whose classes spend the epsilons of their tiers.

    All classes get the same product of clip norm and noise multiplier, so that one noise level on every block serves them
    all and none of them is protected (and disturbed) more than it signed for. What a tier pays for its smaller epsilon is a
    smaller clip norm.

    Args:
        corpus: identifier of the corpus. tiers: its classes. steps: horizon. rate: probability that a contribution is drawn.
        normalizer: public divisor of noised sums. clip_norm: of the tier with the largest epsilon. delta: of the guarantee.
        epochs: signed checkpoints over the run.
    """
    multipliers = [calibrate(tier.epsilon, rate, steps, delta) for tier in tiers]
    least = min(multipliers)
    lines = [
        f'corpus = "{corpus}"',
        f"delta = {delta:g}",
        f"steps = {steps}",
        f"normalizer = {normalizer}",
        f"epoch_steps = {max(1, steps // epochs)}",
    ]
    for tier, multiplier in zip(tiers, multipliers, strict=True):
        lines += [
            "",
            f"[[class]]                      # epsilon {tier.epsilon:g} per contribution over the whole run",
            f'name = "{tier.name}"',
            f"clip_norm = {clip_norm * least / multiplier - 1e-6:.6f}",
            f"noise_multiplier = {multiplier + 1e-6:.6f}",
            f"sampling_rate = {rate:g}",
            f"depth = {{ from = {tier.start}, to = 1.0 }}",
        ]
    return "\n".join(lines) + "\n"


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
    keys = {name: generate() for name in ("owner", *(contributor.name for contributor in contributors))}
    for name, key in keys.items():
        save_private_key(root / "keys" / f"{name}.key", key)
        save_public_key(root / "keys" / f"{name}.pub", public_bytes(key), name)
    log = RegistryLog.create(root / "registry.cbor", keys["owner"], owner="owner", now=now)
    registry = log.append(
        [
            Enrol(
                contributor.name,
                public_bytes(keys[contributor.name]),
                not_before=now - DAY,
                not_after=now + 730 * DAY,
                classes=(contributor.admissibility_class,),
            )
            for contributor in contributors
        ],
        now=now,
    )
    (root / "policy.toml").write_text(policy, encoding="utf-8")
    payload, message = sign_policy(rules, keys["owner"], owner="owner", registry_root=registry.root())
    signed_file.write(root / "policy.cose", payload, message)
    made = Stage(root, rules, keys, now)
    for contributor in contributors:
        data = made.corpus / f"{contributor.name}.jsonl"
        write_records(data, contributor.records)
        sign_corpus(data, None, keys[contributor.name], made.template(contributor.name, contributor.admissibility_class))
    return made


def shares(records: Sequence[Any], tiers: Sequence[Tier], weights: Sequence[float], per_tier: int) -> list[Contributor]:
    """Deals records out to ``per_tier`` contributors in each tier; tier k gets the fraction ``weights[k]``."""
    found: list[Contributor] = []
    start = 0
    for index, (tier, weight) in enumerate(zip(tiers, weights, strict=True)):
        end = len(records) if index == len(tiers) - 1 else start + round(weight * len(records))
        for place in range(per_tier):
            own = records[start + place : end : per_tier]
            found.append(Contributor(f"contributor-{len(found) + 1:02d}", tier.name, own))
        start = end
    return found


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
