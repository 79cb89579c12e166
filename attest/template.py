"""What contributions signed together have in common, and the encoding of the little in which they differ."""

import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from attest import sign1
from attest.attestation import Attestation
from attest.checks import check_bytes
from attest.descriptor import ContributionDescriptor
from attest.errors import DescriptorRefused
from attest.keys import key_id

_NONCE = 16
_NONCES_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningTemplate:
    """What all contributions signed together have in common; see `ContributionDescriptor` for the fields."""

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

    def __post_init__(self) -> None:
        self.descriptor(bytes(32))

    def descriptor(self, content_hash: bytes, nonce: bytes | None = None) -> ContributionDescriptor:
        """The descriptor of one contribution, with a fresh nonce unless one is given."""
        return ContributionDescriptor(
            contributor=self.contributor,
            data_class=self.data_class,
            admissibility_class=self.admissibility_class,
            clip_norm_micro=self.clip_norm_micro,
            noise_multiplier_micro=self.noise_multiplier_micro,
            content_hash=content_hash,
            not_before=self.not_before,
            not_after=self.not_after,
            nonce=secrets.token_bytes(_NONCE) if nonce is None else nonce,
            corpus=self.corpus,
            max_occurrences=self.max_occurrences,
            principal=self.principal,
            max_examples=self.max_examples,
            max_epsilon_micro=self.max_epsilon_micro,
            max_delta_pico=self.max_delta_pico,
        )


class TemplateEncoder:
    """Encodes what one key signs from one template, by joining pieces that were encoded once.

    Guarantee: `descriptor` is `SigningTemplate.descriptor(...).to_cbor()`, `to_be_signed` is what `sign1.sign` has signed
    for it, and `attestation` is `Attestation(payload, sign1.sign(payload, ...)).to_cbor()`, byte for byte. Contributions of
    one template differ in fields of fixed length alone (content hash, nonce, subject, signature), so no length moves.

    Args:
        template: The fields in common.
        public_key: 32 raw bytes of the contributor's key.
    """

    __slots__ = ("_attestation", "_descriptor", "_to_be_signed")

    def __init__(self, template: SigningTemplate, public_key: bytes) -> None:
        # The pieces are what the ordinary encoder writes around marks that stand for what differs. The marks are random,
        # so that no field of a template can hold one.
        content_hash, nonce, signature = os.urandom(32), os.urandom(_NONCE), os.urandom(64)
        payload = template.descriptor(content_hash, nonce).to_cbor()
        protected = sign1.protected_header(payload, key_id(public_key), template.contributor, sign1.TYP_ATTESTATION)
        subject = sign1.subject_of(payload).encode("ascii")
        whole = Attestation(payload, sign1.assemble(protected, signature)).to_cbor()
        self._descriptor = _around(payload, content_hash, nonce)
        self._to_be_signed = _around(sign1.to_be_signed(protected, payload), subject, payload)
        self._attestation = _around(whole, payload, subject, signature)

    def descriptor(self, content_hash: bytes, nonce: bytes) -> bytes:
        """The descriptor of one contribution.

        Raises:
            DescriptorRefused: Code TYPE or RANGE if hash or nonce are not 32 and 16 bytes.
        """
        check_bytes(content_hash, "content_hash", 32, error=DescriptorRefused)
        check_bytes(nonce, "nonce", _NONCE, error=DescriptorRefused)
        before, between, after = self._descriptor
        return b"".join((before, content_hash, between, nonce, after))

    def to_be_signed(self, payload: bytes, subject: bytes) -> bytes:
        """The message to sign for a descriptor of this template and its subject claim."""
        before, between, after = self._to_be_signed
        return b"".join((before, subject, between, payload, after))

    def attestation(self, payload: bytes, subject: bytes, signature: bytes) -> bytes:
        """The attestation, as one item of an attestation file."""
        before, between, behind, after = self._attestation
        return b"".join((before, payload, between, subject, behind, signature, after))


def subject_claim(payload: bytes) -> bytes:
    """`sign1.subject_of` in ASCII."""
    return b"sha-256:" + hashlib.sha256(payload).hexdigest().encode("ascii")


def nonces() -> Iterator[bytes]:
    """Fresh nonces of 16 bytes without end, from the operating system's generator, drawn in blocks."""
    while True:
        block = os.urandom(_NONCE * _NONCES_AT_ONCE)
        for at in range(0, len(block), _NONCE):
            yield block[at : at + _NONCE]


def _around(data: bytes, *marks: bytes) -> list[bytes]:
    """The pieces of `data` before, between and after marks, each of which stands in it exactly once, in this order."""
    pieces = []
    for mark in marks:
        piece, data = data.split(mark)
        pieces.append(piece)
    return [*pieces, data]
