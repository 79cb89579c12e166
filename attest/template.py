"""What contributions signed together have in common, and the encoding of the little in which they differ."""

import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from attest import sign1
from attest.attestation import Attestation
from attest.checks import check_bytes
from attest.commitments import SALT_SIZE, commit_content
from attest.descriptor import SALTS_SIZE, ContributionDescriptor
from attest.errors import DescriptorRefused
from attest.keys import key_id

_NONCES_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningTemplate:
    """What all contributions signed together have in common; see `ContributionDescriptor` for the fields.

    They share the salts too: an export shows that they were signed together, and nothing else of who signed them.
    """

    contributor: str
    data_class: str
    admissibility_class: str
    clip_norm_micro: int
    noise_multiplier_micro: int
    corpus: str
    not_before: int
    not_after: int
    max_occurrences: int = 0
    principal: str | None = None
    max_examples: int | None = None
    max_epsilon_micro: int | None = None
    max_delta_pico: int | None = None
    purposes: tuple[str, ...] | None = None
    salts: bytes = field(default_factory=lambda: secrets.token_bytes(SALTS_SIZE), repr=False)

    def __post_init__(self) -> None:
        self.descriptor(bytes(32))

    def descriptor(self, content_hash: bytes, nonce: bytes | None = None) -> ContributionDescriptor:
        """The descriptor of one contribution, with a fresh nonce unless one is given."""
        common = {item.name: getattr(self, item.name) for item in fields(self)}
        nonce = secrets.token_bytes(SALT_SIZE) if nonce is None else nonce
        return ContributionDescriptor(content_hash=content_hash, nonce=nonce, **common)


class TemplateEncoder:
    """Encodes what one key signs from one template, by joining pieces that were encoded once.

    Guarantee: `descriptor` and `opening` are `to_cbor()` and `opening()` of `SigningTemplate.descriptor(...)`,
    `to_be_signed` is what `sign1.sign` has signed for it, and `attestation` is `Attestation(...).to_cbor()`, byte for byte.
    Contributions of one template differ in fields of fixed length alone (commitment to the content, its hash, nonce,
    subject, signature), so no length moves.

    Args:
        template: The fields in common.
        public_key: 32 raw bytes of the contributor's key.
    """

    __slots__ = ("_attestation", "_descriptor", "_opening", "_to_be_signed")

    def __init__(self, template: SigningTemplate, public_key: bytes) -> None:
        # The pieces are what the ordinary encoder writes around marks that stand for what differs. The marks are random,
        # so that no field of a template can hold one.
        content_hash, nonce, signature = os.urandom(32), os.urandom(SALT_SIZE), os.urandom(64)
        descriptor = template.descriptor(content_hash, nonce)
        signed, opening = descriptor.signed, descriptor.opening()
        payload = signed.to_cbor()
        protected = sign1.protected_header(payload, key_id(public_key), signed.issuer, sign1.TYP_ATTESTATION)
        subject = sign1.subject_of(payload).encode("ascii")
        whole = Attestation(payload, sign1.assemble(protected, signature), opening).to_cbor()
        self._descriptor = _around(payload, signed.content)
        self._opening = _around(opening, nonce, content_hash)
        self._to_be_signed = _around(sign1.to_be_signed(protected, payload), subject, payload)
        self._attestation = _around(whole, payload, subject, signature, opening)

    def descriptor(self, content_hash: bytes, nonce: bytes) -> bytes:
        """The descriptor of one contribution.

        Raises:
            DescriptorRefused: Code TYPE or RANGE if hash or nonce are not 32 and 16 bytes.
        """
        check_bytes(content_hash, "content_hash", 32, error=DescriptorRefused)
        check_bytes(nonce, "nonce", SALT_SIZE, error=DescriptorRefused)
        before, after = self._descriptor
        return b"".join((before, commit_content(content_hash, nonce), after))

    def opening(self, content_hash: bytes, nonce: bytes) -> bytes:
        """Returns the opening of one contribution, for hash and nonce that `descriptor` took."""
        before, between, after = self._opening
        return b"".join((before, nonce, between, content_hash, after))

    def to_be_signed(self, payload: bytes, subject: bytes) -> bytes:
        """The message to sign for a descriptor of this template and its subject claim."""
        before, between, after = self._to_be_signed
        return b"".join((before, subject, between, payload, after))

    def attestation(self, payload: bytes, subject: bytes, signature: bytes, opening: bytes) -> bytes:
        """The attestation, as one item of an attestation file."""
        before, between, behind, framing, after = self._attestation
        return b"".join((before, payload, between, subject, behind, signature, framing, opening, after))


def subject_claim(payload: bytes) -> bytes:
    """`sign1.subject_of` in ASCII."""
    return b"sha-256:" + hashlib.sha256(payload).hexdigest().encode("ascii")


def nonces() -> Iterator[bytes]:
    """Fresh nonces of 16 bytes without end, from the operating system's generator, drawn in blocks."""
    while True:
        block = os.urandom(SALT_SIZE * _NONCES_AT_ONCE)
        for at in range(0, len(block), SALT_SIZE):
            yield block[at : at + SALT_SIZE]


def _around(data: bytes, *marks: bytes) -> list[bytes]:
    """The pieces of `data` before, between and after marks, each of which stands in it exactly once, in this order."""
    pieces = []
    for mark in marks:
        piece, data = data.split(mark)
        pieces.append(piece)
    return [*pieces, data]
