"""Admissions that contributors did sign, for the small ledgers of `ledgers`: a registry, its policy, and whole runs.

Everything is deterministic: an admission of one number and one set of changes is the same in every run, salts included.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, keys, sign1
from attest.attestation import Attestation, CommonTerms
from attest.corpus.signing import SigningTemplate, sign_descriptor
from attest.descriptor import SALTS_SIZE
from attest.policy import SignedPolicy
from attest.registry import Create, Entry, Registry
from attest.registry.names import Named, Names
from ledger.leaves import HeaderSpec
from ledger.log import Ledger
from ledger.replay.contributions import AdmitSpec
from tests.worlds.ledgers import OWNER_KEY, SIGNER, START, Driver, header_spec, signed_policy
from tests.worlds.registries import RegistryBytes, continued, load, put

CONTRIBUTORS = {name: Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed, name in ((21, "alice"), (22, "bob"))}
"""Private keys of the contributors by name; `attested_admission` takes them in turn."""

CLASSES = ("open", "sensitive")
NOT_BEFORE, NOT_AFTER = START - 1000, START + 10_000_000
"""Validity of keys and attestations."""

_BOUNDS = {"clip_micro": "clip_norm_micro", "sigma_micro": "noise_multiplier_micro"}
_SIGNED = ("max_occurrences", "max_epsilon_micro", "max_delta_pico")


@cache
def registry_bytes() -> RegistryBytes:
    """The file of a registry in which both contributors may attest both classes, with its names."""
    first = Entry(0, bytes(32), NOT_BEFORE, (Create(b"attested-ledgers", "owner"),)).to_cbor()
    begun = RegistryBytes(cbor.encode([first, sign1.sign(first, OWNER_KEY, contributor="owner", typ=sign1.TYP_REGISTRY)]))
    # Salts that are the same in every run: the log finds them among the names and draws none.
    begun.names = Names(Named(name, name[:1].encode() * 16) for name in CONTRIBUTORS).to_cbor()
    valid = {"classes": CLASSES, "not_before": NOT_BEFORE, "not_after": NOT_AFTER, "now": NOT_BEFORE}
    return continued(
        begun,
        OWNER_KEY,
        *(
            lambda log, name=name, key=key: log.enrol(name, keys.public_bytes(key), **valid)
            for name, key in CONTRIBUTORS.items()
        ),
    )


@cache
def registry() -> Registry:
    """What the file amounts to."""
    return load(registry_bytes(), OWNER_KEY)


def put_registry(directory: Path, data: RegistryBytes | None = None) -> Path:
    """Writes a registry, by default that of `registry_bytes`, and its names; returns its file."""
    path = directory / "registry.cbor"
    put(path, registry_bytes() if data is None else data)
    return path


def attested_policy(**changes: object) -> SignedPolicy:
    """`ledgers.signed_policy` that names the registry."""
    return signed_policy(registry_root=registry().root(), **changes)


def attested_header(policy: SignedPolicy | None = None, **changes: object) -> HeaderSpec:
    """`ledgers.header_spec` of a run that admitted by the registry."""
    return header_spec(policy or attested_policy(), **{"registry_root": registry().root(), **changes})


def attestation(n: int, class_name: str = "open", *, contributor: str | None = None, **changes: object) -> Attestation:
    """The n-th attestation: descriptor, message and opening, within the preset of its class.

    Args:
        n: number of its content.
        class_name: class that it asks for.
        contributor: who signs; by default alice and bob in turn.
        changes: what is signed otherwise, by the names of `AdmitSpec` or of `SigningTemplate`.
    """
    name = contributor or list(CONTRIBUTORS)[n % 2]
    place = CLASSES.index(class_name)
    fields: dict = {
        "contributor": name,
        "data_class": "notes",
        "admissibility_class": class_name,
        "clip_norm_micro": [1_000_000, 500_000][place],
        "noise_multiplier_micro": [1_000_000, 3_000_000][place],
        "corpus": "notes",
        "not_before": NOT_BEFORE,
        "not_after": NOT_AFTER,
        "salts": hashlib.sha512(name.encode()).digest()[:SALTS_SIZE],
    }
    fields.update({_BOUNDS.get(key, key): value for key, value in changes.items()})
    nonce = hashlib.sha256(b"nonce %d" % n).digest()[:16]
    descriptor = SigningTemplate(**fields).descriptor(hashlib.sha256(b"content %d" % n).digest(), nonce)
    return sign_descriptor(descriptor, CONTRIBUTORS[name])


def spec_of(signed: Attestation, **changes: object) -> AdmitSpec:
    """The admission of an attestation as a run records it; changes make the leaf say something else than was signed."""
    descriptor, message = signed.opened(), sign1.read(signed.sign1)
    fields: dict = {
        "descriptor_hash": descriptor.digest(),
        "class_name": descriptor.admissibility_class,
        "profile_id": CLASSES.index(descriptor.admissibility_class),
        **descriptor.bounds._asdict(),
        "attestation_hash": signed.digest(),
        "key_id": message.headers.key_id,
        "anchor": descriptor.commitments()["content"],
        "max_epsilon_micro": descriptor.max_epsilon_micro or 0,
        "max_delta_pico": descriptor.max_delta_pico or 0,
        "attestation": (CommonTerms.of(descriptor.signed, message.headers.key_id), message.signature),
    }
    return AdmitSpec(**(fields | changes))


def attested_admission(n: int, class_name: str = "open", **changes: object) -> AdmitSpec:
    """`ledgers.admission` that was signed: what bounds it is signed as it is recorded.

    `changes` of bounds (``clip_micro``, ``max_occurrences``, ...), ``contributor`` and fields of a `SigningTemplate` are signed
    so; other fields of `AdmitSpec`, such as ``carried_micro``, are recorded alone. For a leaf that says something else than was
    signed: ``dataclasses.replace(attested_admission(n), clip_micro=...)``.
    """
    recorded = {name: changes.pop(name) for name in AdmitSpec.__slots__ if name in changes and name not in (*_BOUNDS, *_SIGNED)}
    return spec_of(attestation(n, class_name, **changes), **recorded)


@dataclass
class AttestedDriver(Driver):
    """A driver whose admissions were signed; it withdraws by number what it admitted, under whatever terms.

    Attributes:
        admitted: descriptor hashes by content anchor.
        shown: what contributors signed, by descriptor hash.
    """

    admitted: dict[bytes, bytes] = field(default_factory=dict)
    shown: dict[bytes, tuple[CommonTerms, bytes]] = field(default_factory=dict)

    def admit(self, *specs: AdmitSpec) -> None:
        super().admit(*specs)
        self.admitted.update({spec.anchor: spec.descriptor_hash for spec in specs})
        self.shown.update({spec.descriptor_hash: spec.attestation for spec in specs if spec.attestation is not None})

    def withdraw(self, n: int) -> int:
        spec = attested_admission(n)
        found = self.admitted.get(spec.anchor, spec.descriptor_hash)
        return self.ledger.withdraw(found, "contributor", bytes(32), now=self.tick())

    def whole_run(self) -> None:
        """`Driver.whole_run` with signed admissions."""
        self.admit(attested_admission(1), attested_admission(2), attested_admission(3, "sensitive"))
        self.admit(attested_admission(4, "sensitive", clip_micro=250_000, sigma_micro=4_000_000))
        self.steps(2)
        self.epoch()
        self.withdraw(2)
        self.withdraw(99)
        self.admit(attested_admission(5))
        self.steps(2)
        self.epoch()
        self.ledger.finish(now=self.tick())


def attested_run(path: object, **header: object) -> AttestedDriver:
    """Creates a ledger at a path or place over the registry, under a driver; `whole_run` takes it to its end."""
    return AttestedDriver(Ledger.create(path, attested_header(**header), SIGNER, now=START))
