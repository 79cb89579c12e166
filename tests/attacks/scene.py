"""The scene on which the attacks are played: contributors, two corpora, and tools that forge what the library never would.

Everything is deterministic. What a test gives to the gate goes through `Scene.code`, which asks `decide` and `run_gate`
and insists that they say the same.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, keys, sign1
from attest.attestation import Attestation
from attest.corpus import Item, Locator
from attest.descriptor import SCHEMA, TRAIN
from attest.errors import AttestError
from attest.gate import Admission, Refusal, Seen, decide, run_gate
from attest.keys import ed25519
from attest.policy import Policy
from attest.registry import Registry
from tests.worlds.gate import (
    ALICE,
    CONTENT,
    CORPUS,
    MICRO,
    NOW,
    RAW,
    make_policy,
    make_registry,
)

LEFT_OUT: Any = object()
"""As a field's value: leave the field out."""


# --- forging ----------------------------------------------------------


def with_fields(fields: Mapping[Any, Any], changes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Fields with some replaced or left out."""
    return {key: value for key, value in (dict(fields) | dict(changes)).items() if value is not LEFT_OUT}


NONCE = b"\x5a" * 16
SALTS = b"\xa1" * 16 + b"\xa2" * 16 + b"\xa3" * 16
"""Salts of contributor, data class and principal."""

OPENED = {"nonce": 1, "content hash": 2, "salts": 3, "contributor": 4, "data class": 5, "principal": 6}
"""Fields of an opening by the names under which changes give them; changes of a descriptor's own fields go by number."""


def opening_fields(
    changes: Mapping[Any, Any] | None = None, *, content: bytes = CONTENT, nonce: bytes = NONCE
) -> dict[int, Any]:
    """The fields of an opening, with those replaced that changes give by name."""
    fields = {1: nonce, 2: hashlib.sha256(content).digest(), 3: SALTS, 4: "alice", 5: "clinic/notes"}
    return with_fields(fields, {OPENED[name]: value for name, value in (changes or {}).items() if name in OPENED})


def opening(changes: Mapping[Any, Any] | None = None, *, content: bytes = CONTENT, nonce: bytes = NONCE) -> bytes:
    """Bytes of an opening, whatever its fields hold."""
    return cbor.encode(opening_fields(changes, content=content, nonce=nonce))


def commitment(kind: str, value: Any, salt: bytes) -> bytes:
    """A commitment as docs/formats has it, spelled out here so that no test leans on the code under test.

    What is no value of a field is committed to by its encoding: no opening is admitted that holds it.
    """
    octets = value if type(value) is bytes else value.encode() if type(value) is str else cbor.encode(value)
    return hashlib.sha256(f"dptrain/commit/{kind}/1".encode() + bytes(1) + octets + salt).digest()


def commitments(opened: Mapping[int, Any]) -> dict[int, bytes]:
    """Fields 2, 3, 7 and 10 of the descriptor that fits an opening."""
    salts = opened[3] if type(opened.get(3)) is bytes else SALTS
    return {
        2: commitment("contributor", opened.get(4), salts[:16]),
        3: commitment("data-class", opened.get(5), salts[16:32]),
        7: commitment("content", opened.get(2), opened[1] if type(opened.get(1)) is bytes else NONCE),
        10: commitment("principal", opened.get(6, b""), salts[32:]),
    }


def descriptor_fields(
    changes: Mapping[Any, Any] | None = None, *, content: bytes = CONTENT, nonce: bytes = NONCE
) -> dict[int, Any]:
    """The fields of a descriptor that the gate admits from Alice, changed: by number, or by name what its opening says."""
    committed = commitments(opening_fields(changes, content=content, nonce=nonce))
    fields = {1: SCHEMA, 4: "sensitive", 5: MICRO, 6: 1_100_000, 8: NOW - 1000, 9: NOW + 1000, 11: CORPUS, 12: 0, **committed}
    changed = with_fields(fields, {key: value for key, value in (changes or {}).items() if key not in OPENED})
    return {key: changed[key] for key in sorted(changed, key=lambda key: (type(key) is str, key))}


def descriptor(changes: Mapping[Any, Any] | None = None, *, content: bytes = CONTENT, nonce: bytes = NONCE) -> bytes:
    """Bytes of a descriptor, whatever its fields hold."""
    return cbor.encode(descriptor_fields(changes, content=content, nonce=nonce))


OPENING = opening()
ISSUER = commitments(opening_fields())[2].hex()
"""Opening and issuer of what Alice signs unless a test says otherwise."""


def issuer_of(payload: bytes) -> str:
    """The issuer that belongs to a descriptor; Alice's where it is none."""
    try:
        found = cbor.decode(payload)[2]
    except (AttestError, LookupError, TypeError):
        return ISSUER
    return found.hex() if type(found) is bytes and len(found) == 32 else ISSUER


def header_fields(
    payload: bytes, raw: bytes = RAW["alice"], issuer: str | None = None, typ: str = sign1.TYP_ATTESTATION
) -> dict[Any, Any]:
    """The protected header that the profile wants."""
    claims = {1: issuer_of(payload) if issuer is None else issuer, 2: sign1.subject_of(payload)}
    return {1: -19, 4: keys.key_id(raw), 15: claims, 16: typ}


def attested(payload: bytes, message: bytes, opened: bytes = OPENING) -> Attestation:
    """An attestation with the opening that most tests need."""
    return Attestation(payload, message, opened)


def envelope(protected: bytes, signature: bytes, *, unprotected: bytes = b"\xa0", payload: bytes = b"\xf6") -> bytes:
    """A COSE_Sign1 message around any parts."""
    return b"\xd2\x84" + cbor.encode(protected) + unprotected + payload + cbor.encode(signature)


def sealed(
    payload: bytes, protected: bytes, key: Ed25519PrivateKey = ALICE, opened: bytes = OPENING, **parts: bytes
) -> Attestation:
    """An attestation whose signature is right over whatever protected bytes it carries."""
    signature = key.sign(b"".join(sig_structure(protected, payload)))
    return Attestation(payload, envelope(protected, signature, **parts), opened)


def sig_structure(protected: bytes, payload: bytes) -> tuple[bytes, ...]:
    """RFC 9052 section 4.4, spelled out here so that no test leans on the code under test."""
    return (b"\x84\x6aSignature1", _bstr(protected), b"\x40", _bstr(payload))


def _bstr(data: bytes) -> bytes:
    length = len(data)
    if length < 24:
        return bytes((0x40 | length,)) + data
    width = next(width for width in (1, 2, 4) if length < 256**width)
    return bytes((0x57 + width.bit_length(),)) + length.to_bytes(width, "big") + data


def signed(
    changes: Mapping[Any, Any] | None = None,
    *,
    key: Ed25519PrivateKey = ALICE,
    content: bytes = CONTENT,
    nonce: bytes = NONCE,
    header: Mapping[Any, Any] | None = None,
    payload: bytes | None = None,
) -> Attestation:
    """An attestation with some fields of descriptor, opening and header changed, signed by whoever holds `key`."""
    payload = descriptor(changes, content=content, nonce=nonce) if payload is None else payload
    fields = header_fields(payload, keys.public_bytes(key))
    opened = opening(changes, content=content, nonce=nonce)
    return sealed(payload, cbor.encode(with_fields(fields, header or {})), key, opened)


def compress(point: ed25519.Point) -> bytes:
    """The canonical encoding of a point."""
    x, y, z, _ = point
    inverse = pow(z, -1, ed25519.P)
    return ((y * inverse % ed25519.P) | (x * inverse % ed25519.P & 1) << 255).to_bytes(32, "little")


def secret_scalar(key: Ed25519PrivateKey) -> int:
    """The secret scalar of RFC 8032 section 5.1.5."""
    digest = bytearray(hashlib.sha512(key.private_bytes_raw()).digest()[:32])
    digest[0] &= 248
    digest[31] = digest[31] & 127 | 64
    return int.from_bytes(digest, "little")


def challenge(r: bytes, raw: bytes, message: bytes) -> int:
    """The challenge h of RFC 8032 section 5.1.6."""
    return int.from_bytes(hashlib.sha512(r + raw + message).digest(), "little") % ed25519.L


BASE = ed25519.decompress(bytes.fromhex("58" + "66" * 31))


def split(message):
    """Everything before the signature, and the signature."""
    return message[:-64], message[-64:]


@dataclass(frozen=True)
class Scene:
    """Registry and policy, and the gate in front of them."""

    registry: Registry
    policy: Policy

    def outcome(
        self,
        attestation: Attestation | None,
        *,
        content: bytes | None = CONTENT,
        policy: Policy | None = None,
        registry: Any = None,
        now: int = NOW,
        seen: Seen | None = None,
        purpose: str = TRAIN,
    ) -> Admission | Refusal:
        """What `decide` says."""
        return decide(
            attestation,
            None if content is None else hashlib.sha256(content).digest(),
            policy=policy or self.policy,
            registry=registry or self.registry,
            now=now,
            seen=Seen() if seen is None else seen,
            purpose=purpose,
        )

    def code(self, attestation: Attestation | None, **options: Any) -> str:
        """The reason code or ADMITTED; `decide` and `run_gate` must agree on it, and on the sentence."""
        outcome = self.outcome(attestation, **options)
        content = options.get("content", CONTENT)
        registry = options.get("registry") or self.registry
        policy = named_in(options.get("policy") or self.policy, registry)
        batch = run_gate(
            [item_of(attestation, content)],
            policy,
            registry,
            now=options.get("now", NOW),
            seen=options.get("seen"),
            purpose=options.get("purpose", TRAIN),
        )
        if isinstance(outcome, Admission):
            assert [entry.admission for entry in batch.admitted] == [outcome] and not batch.refused
            return "ADMITTED"
        assert not batch.admitted and [entry.refusal for entry in batch.refused] == [outcome]
        assert outcome.sentence and outcome.sentence.isascii() and outcome.sentence.isprintable()
        assert len(outcome.sentence) < 1000
        return str(outcome.code)

    def codes(self, items: Iterable[tuple[Attestation | None, bytes | None]], **options: Any) -> list[str]:
        """Outcomes of one batch in corpus order."""
        listed = [item_of(attestation, content, f"{n}.txt") for n, (attestation, content) in enumerate(items)]
        registry = options.pop("registry", self.registry)
        policy = named_in(options.pop("policy", self.policy), registry)
        report = run_gate(listed, policy, registry, now=options.pop("now", NOW), **options)
        found = {entry.locator: "ADMITTED" for entry in report.admitted}
        found |= {entry.locator: str(entry.refusal.code) for entry in report.refused}
        assert len(found) == len(report.admitted) + len(report.refused)
        return [found[item.locator] for item in listed]


def named_in(policy: Policy, registry: Any) -> Policy:
    """The policy with this registry's root."""
    return policy if policy.registry_root == registry.root() else replace(policy, registry_root=registry.root())


def item_of(attestation: Attestation | None, content: bytes | None, name: str = "x.txt") -> Item:
    """A corpus item as `open_corpus` would yield it."""
    if content is None:
        return Item(None, None, attestation)
    return Item(Locator(name, 0, len(content)), hashlib.sha256(content).digest(), attestation)


def make_scene() -> Scene:
    """The scene of all tests."""
    registry = make_registry()
    return Scene(registry, make_policy(registry))
