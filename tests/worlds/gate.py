"""Alice, Bob and their owner: a registry, a policy of two classes, and what the gate says of what they sign."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, keys, sign1, signed_file
from attest.attestation import Attestation
from attest.corpus import SigningTemplate
from attest.descriptor import ContributionDescriptor
from attest.gate import Admission, Refusal, Seen, decide
from attest.policy import ClassRule, DepthRule, Policy, sign_policy
from attest.registry import Create, Entry, Registry, RegistryLog
from attest.registry.names import Named, Names
from tests.worlds.registries import RegistryBytes, continued, load, put

NOW = 1_800_000_000
YEAR = 365 * 86400
MICRO = 1_000_000
CONTENT = b'{"text": "one record"}'
CORPUS, OTHER_CORPUS = "clinic-notes-2026", "clinic-notes-2027"


def key_of(seed: int) -> Ed25519PrivateKey:
    """A private key that is the same in every run."""
    return Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)


ALICE, BOB, MALLORY, OWNER = (key_of(seed) for seed in (1, 2, 3, 4))
RAW = {name: keys.public_bytes(key) for name, key in (("alice", ALICE), ("bob", BOB), ("mallory", MALLORY))}


@cache
def registry_bytes(alice: int | None = None, bob: int | None = None) -> RegistryBytes:
    """A registry file: Alice may attest `sensitive`, Bob `open` and `sensitive`, each up to a cap; Mallory is unknown."""
    first = Entry(0, bytes(32), NOW - YEAR, (Create(b"attacked-registry"[:16], "owner"),)).to_cbor()
    begun = RegistryBytes(cbor.encode([first, sign1.sign(first, OWNER, contributor="owner", typ=sign1.TYP_REGISTRY)]))
    # Salts that are the same in every run: the log finds them among the names and draws none.
    begun.names = Names(Named(name, name[:1].encode() * 16) for name in ("alice", "bob")).to_cbor()
    valid: dict[str, Any] = {"not_before": NOW - YEAR, "not_after": NOW + YEAR, "now": NOW - YEAR}
    return continued(
        begun,
        OWNER,
        lambda log: log.enrol("alice", RAW["alice"], classes=("sensitive",), cap=alice, **valid),
        lambda log: log.enrol("bob", RAW["bob"], classes=("open", "sensitive"), cap=bob, **valid),
    )


def make_registry(*changes: Callable[[RegistryLog], object], **caps: int | None) -> Registry:
    """The registry, after some changes by its owner such as `lambda log: log.revoke(...)`."""
    return load(continued(registry_bytes(**caps), OWNER, *changes), OWNER)


def make_policy(registry: Registry, corpus: str = CORPUS) -> Policy:
    """Two classes with the same presets."""
    rules = tuple(
        ClassRule(
            name=name,
            clip_norm_micro=MICRO,
            noise_multiplier_micro=1_100_000,
            sampling_rate=Fraction(1, 250),
            depth=DepthRule(band=(Fraction(3, 4), Fraction(1))),
            max_window=window,
        )
        for name, window in (("sensitive", 90 * 86400), ("open", None))
    )
    return Policy(
        corpus=corpus,
        delta=Fraction(1, 10**6),
        steps=2000,
        normalizer=64,
        classes=rules,
        min_clip_norm_micro=10_000,
        min_noise_multiplier_micro=500_000,
        max_window=YEAR,
        max_examples=4,
        registry_root=registry.root(),
    )


def write_signed_files(root: Path, **caps: int | None) -> None:
    """Registry, signed policy and the owner's public key, as the commands look for them."""
    put(root / "registry.cbor", registry_bytes(**caps))
    keys.save_public_key(root / "owner.pub", keys.public_bytes(OWNER), "owner")
    registry = make_registry(**caps)
    payload, message = sign_policy(make_policy(registry), OWNER, owner="owner", registry_root=registry.root())
    signed_file.write(root / "policy.cose", payload, message)


@dataclass
class GateWorld:
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

    def judge(self, attestation, *, content=CONTENT, now=NOW, seen=None, policy=None, registry=None, **options):
        """The gate's outcome."""
        return decide(
            attestation,
            None if content is None else hashlib.sha256(content).digest(),
            policy=policy or self.policy,
            registry=registry or self.registry,
            now=now,
            seen=Seen() if seen is None else seen,
            **options,
        )

    def code(self, attestation, **options):
        """The gate's reason code, or `ADMITTED`."""
        outcome = self.judge(attestation, **options)
        if isinstance(outcome, Admission):
            return "ADMITTED"
        assert isinstance(outcome, Refusal)
        assert outcome.sentence
        return str(outcome.code)


def make_gate_world() -> GateWorld:
    """Returns the world in which Bob may have two contributions admitted, and a descriptor that is admitted from Alice."""
    file = registry_bytes(bob=2)
    registry = load(file, OWNER)
    template = SigningTemplate(
        contributor="alice",
        data_class="clinic/notes",
        admissibility_class="sensitive",
        clip_norm_micro=MICRO,
        noise_multiplier_micro=1_100_000,
        corpus=CORPUS,
        not_before=NOW - 1000,
        not_after=NOW + 1000,
    )
    descriptor = template.descriptor(hashlib.sha256(CONTENT).digest())
    return GateWorld(ALICE, BOB, OWNER, registry, file, make_policy(registry), descriptor, template)
