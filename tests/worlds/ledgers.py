"""A small signed policy, ledgers over it, and a driver through their life, for all ledger tests."""

import hashlib
from dataclasses import dataclass, field, replace
from fractions import Fraction

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.keys import public_bytes
from attest.policy import ClassRule, DepthRule, Policy, SignedPolicy, sign_policy, verify_policy
from attest.policy.classes import DecodingRule
from attest.schedule.stack import EMBEDDINGS, HEAD, NO_TOWER, Stack, StackTensor, Tower
from ledger.leaves import HELD, Charge, HeaderSpec
from ledger.leaves.header import ADDRESSED
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay.contributions import AdmitSpec

OWNER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
LOG_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
SIGNER = NoteSigner("ledger.example/run1", LOG_KEY)
START = 1_750_000_000
"""In 2025: before the clock of any machine that audits what is made here."""


GENERATING = ClassRule(
    name="texts",
    clip_norm_micro=9_000_000,
    noise_multiplier_micro=9_000_000,
    sampling_rate=Fraction(1, 10),
    depth=DepthRule(band=(Fraction(0), Fraction(1))),
    purposes=("generate",),
    generation=DecodingRule(
        references=7, clip_norm_micro=500_000, temperature_micro=1_000_000, tokens=100, max_rho_nano=1_000_000_000
    ),
)
"""A class that is for generation alone; were it trained on, it would touch every block and raise its noise."""


def signed_policy(**changes: object) -> SignedPolicy:
    """Two classes, 40 steps in windows of 4, 10 re-executed steps; ``registry_root`` names a registry."""
    root = changes.pop("registry_root", bytes(32))
    band = DepthRule(band=(Fraction(1, 2), Fraction(1)))
    everything = DepthRule(band=(Fraction(0), Fraction(1)))
    fields: dict = {
        "corpus": "notes",
        "delta": Fraction(1, 10**6),
        "steps": 40,
        "redo_steps": 10,
        "window_steps": 4,
        "epoch_steps": 8,
        "normalizer": 4,
        "classes": (
            ClassRule(
                name="open",
                clip_norm_micro=1_000_000,
                noise_multiplier_micro=1_000_000,
                sampling_rate=Fraction(1, 50),
                depth=everything,
            ),
            ClassRule(
                name="sensitive",
                clip_norm_micro=500_000,
                noise_multiplier_micro=3_000_000,
                sampling_rate=Fraction(1, 100),
                depth=band,
            ),
        ),
    }
    fields.update(changes)
    policy = Policy(**fields)
    payload, message = sign_policy(policy, OWNER_KEY, owner="owner", registry_root=root)
    signed = verify_policy(payload, message, public_bytes(OWNER_KEY))
    return replace(signed, policy=replace(signed.policy, mechanism=policy.mechanism))


def parameter(name: str, coordinates: int = 10, *, trained: bool = True, adapter: str | None = None) -> StackTensor:
    """A parameter that lies where its name says: ``layers.3.weight``, ``embedding``, anything else in the head."""
    first, _, rest = name.partition(".")
    position = int(rest.split(".")[0]) if first == "layers" else EMBEDDINGS if first == "embedding" else HEAD
    return StackTensor((name,), coordinates, ((NO_TOWER, position),), adapter, (), trained)


def ordered(*parameters: StackTensor) -> tuple[StackTensor, ...]:
    """Parameters as a stack has them."""
    return tuple(sorted(parameters, key=lambda tensor: tensor.names))


def stack_of(layers: int, *parameters: StackTensor) -> Stack:
    """A model of one stack of layers with these parameters."""
    return Stack((Tower(NO_TOWER, "", tuple(f"layers.{place}" for place in range(layers))),), ordered(*parameters))


STACK = stack_of(
    4,
    parameter("layers.0.weight", 6),
    parameter("layers.1.weight", 100),
    parameter("layers.2.weight", 4),
    parameter("embedding.weight", 1000, trained=False),
)


def header_spec(policy: SignedPolicy | None = None, **changes: object) -> HeaderSpec:
    """Four blocks: two that only ``open`` touches, one of both classes, one frozen."""
    fields: dict = {
        "policy": policy or signed_policy(),
        "owner_key": public_bytes(OWNER_KEY),
        "registry_root": bytes(32),
        "model_fingerprint": hashlib.sha256(b"model").digest(),
        "stack": STACK,
        "isolation": HELD,
        "randomness": ADDRESSED,
        "unprobed": (),
        "run_id": bytes(16),
    }
    fields.update(changes)
    return HeaderSpec(**fields)


def descriptor(n: int) -> bytes:
    """The n-th descriptor hash."""
    return hashlib.sha256(b"descriptor %d" % n).digest()


def admission(n: int, class_name: str = "open", **changes: object) -> AdmitSpec:
    """An admission that signs exactly the preset of its class."""
    place = ["open", "sensitive"].index(class_name)
    fields: dict = {
        "descriptor_hash": descriptor(n),
        "class_name": class_name,
        "profile_id": place,
        "clip_micro": [1_000_000, 500_000][place],
        "sigma_micro": [1_000_000, 3_000_000][place],
        "max_occurrences": 0,
        "attestation_hash": hashlib.sha256(b"attestation %d" % n).digest(),
        "key_id": b"key%05d" % n,
        "anchor": hashlib.sha256(b"anchor %d" % n).digest(),
    }
    fields.update(changes)
    return AdmitSpec(**fields)


@dataclass
class Driver:
    """Runs a ledger through ordinary life, with a clock and fresh noise streams."""

    ledger: Ledger
    now: int = START
    streams: int = 0
    digest: bytes = field(default=b"\x07" * 32)
    isolation: str = HELD
    frozen_digest: bytes | None = None

    def tick(self) -> int:
        self.now += 1
        return self.now

    def stream(self) -> bytes:
        self.streams += 1
        return self.now.to_bytes(8, "big") + self.streams.to_bytes(8, "big")

    def admit(self, *specs: AdmitSpec) -> None:
        self.ledger.admit(specs, now=self.tick())

    def charge(self, n_steps: int = 4) -> Charge:
        first = self.ledger.state.position + 1
        return self.ledger.charge(first, n_steps, now=self.tick(), noise_stream=self.stream())

    def steps(self, n_windows: int = 1, n_steps: int = 4) -> None:
        for _ in range(n_windows):
            self.ledger.settle(self.charge(n_steps), n_steps, now=self.tick())

    def epoch(self) -> bytes:
        said = {"isolation": self.isolation, "frozen_digest": self.frozen_digest}
        return self.ledger.close_epoch(self.ledger.state.position, self.digest, **said, now=self.tick())

    def withdraw(self, n: int) -> int:
        return self.ledger.withdraw(descriptor(n), "contributor", bytes(32), now=self.tick())

    def whole_run(self) -> None:
        """Admissions, two epochs, a withdrawal, and the close."""
        self.admit(admission(1), admission(2), admission(3, "sensitive"))
        self.admit(admission(4, "sensitive", clip_micro=250_000, sigma_micro=4_000_000))
        self.steps(2)
        self.epoch()
        self.withdraw(2)
        self.withdraw(99)
        self.admit(admission(5))
        self.steps(2)
        self.epoch()
        self.ledger.finish(now=self.tick())
