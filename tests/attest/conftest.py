"""A small world for the tests of `attest`: two contributors, an operator's policy, and everything signed."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import keys, sign1
from attest.attestation import Attestation
from attest.corpus import SigningTemplate
from attest.descriptor import ContributionDescriptor
from attest.gate import Admission, Refusal, Seen, decide
from attest.policy import ClassRule, DepthRule, Policy
from attest.registry import Registry, RegistryLog
from tests.registries import continued, load, registry_file

NOW = 1_800_000_000
CONTENT = b'{"text": "one record"}'


@dataclass
class World:
    """Keys, registry, policy and a valid descriptor; methods sign and judge."""

    alice: Ed25519PrivateKey
    bob: Ed25519PrivateKey
    owner: Ed25519PrivateKey
    registry: Registry
    registry_file: bytes
    policy: Policy
    descriptor: ContributionDescriptor
    template: SigningTemplate
    now: int = NOW
    content: bytes = CONTENT

    def sign(self, descriptor=None, key=None, contributor=None):
        """An attestation of a descriptor (the valid one by default)."""
        descriptor = descriptor or self.descriptor
        payload = descriptor.to_cbor()
        message = sign1.sign(payload, key or self.alice, contributor=contributor or descriptor.issuer)
        return Attestation(payload, message, descriptor.opening())

    def changed(self, *changes: Callable[[RegistryLog], object]) -> Registry:
        """A later state of the registry, after some changes; the world itself stays as it is."""
        return load(continued(self.registry_file, self.owner, *changes), self.owner)

    def variant(self, **changes):
        """An attestation of the valid descriptor with some fields changed, properly signed."""
        return self.sign(replace(self.descriptor, **changes))

    def judge(self, attestation, *, content=CONTENT, now=NOW, seen=None, policy=None, registry=None):
        """The gate's outcome."""
        return decide(
            attestation,
            None if content is None else hashlib.sha256(content).digest(),
            policy=policy or self.policy,
            registry=registry or self.registry,
            now=now,
            seen=Seen() if seen is None else seen,
        )

    def code(self, attestation, **options):
        """The gate's reason code, or `ADMITTED`."""
        outcome = self.judge(attestation, **options)
        if isinstance(outcome, Admission):
            return "ADMITTED"
        assert isinstance(outcome, Refusal)
        assert outcome.sentence
        return str(outcome.code)


@pytest.fixture(scope="session")
def world():
    alice, bob, owner = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2, 3))
    year = 365 * 86400
    valid = {"not_before": NOW - year, "not_after": NOW + year, "now": NOW - year}
    file = registry_file(
        owner,
        NOW - year,
        lambda log: log.enrol("alice", keys.public_bytes(alice), classes=("sensitive",), **valid),
        lambda log: log.enrol("bob", keys.public_bytes(bob), classes=("open", "sensitive"), cap=2, **valid),
    )
    registry = load(file, owner)
    rules = tuple(
        ClassRule(
            name=name,
            clip_norm_micro=1_000_000,
            noise_multiplier_micro=1_100_000,
            sampling_rate=Fraction(1, 250),
            depth=DepthRule(band=(Fraction(3, 4), Fraction(1))),
            max_window=window,
        )
        for name, window in (("sensitive", 90 * 86400), ("open", None))
    )
    policy = Policy(
        corpus="clinic-notes-2026",
        delta=Fraction(1, 10**6),
        steps=2000,
        normalizer=64,
        classes=rules,
        min_clip_norm_micro=10_000,
        min_noise_multiplier_micro=500_000,
        max_window=365 * 86400,
        max_examples=4,
        registry_root=registry.root(),
    )
    template = SigningTemplate(
        contributor="alice",
        data_class="clinic/notes",
        admissibility_class="sensitive",
        clip_norm_micro=1_000_000,
        noise_multiplier_micro=1_100_000,
        corpus="clinic-notes-2026",
        not_before=NOW - 1000,
        not_after=NOW + 1000,
    )
    descriptor = template.descriptor(hashlib.sha256(CONTENT).digest())
    return World(alice, bob, owner, registry, file, policy, descriptor, template)


@pytest.fixture(scope="session")
def vectors():
    """Read a published vector file by name."""
    folder = Path(__file__).resolve().parents[1] / "vectors"
    return lambda name: json.loads((folder / f"{name}.json").read_text())
