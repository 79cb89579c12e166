"""What contributions signed together have in common, and the encoding of the little in which they differ."""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from attest.attestation import Attestation
from attest.checks import check_bytes
from attest.commitments import SALT_SIZE, commit_content
from attest.descriptor import SALTS_SIZE, ContributionDescriptor
from attest.errors import DescriptorRefused
from attest.framing import SIGNATURE_SIZE, CommonTerms, Framing, around, subject_of
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

    Args:
        template: The fields in common.
        public_key: 32 raw bytes of the contributor's key.
    """

    __slots__ = ("_attestation", "_framing", "_opening", "to_be_signed")

    def __init__(self, template: SigningTemplate, public_key: bytes) -> None:
        content_hash, nonce = os.urandom(32), os.urandom(SALT_SIZE)
        descriptor = template.descriptor(content_hash, nonce)
        opening = descriptor.opening()
        self._framing = Framing(CommonTerms.of(descriptor.signed, key_id(public_key)))
        self._opening = around(opening, nonce, content_hash)
        self.to_be_signed = self._framing.to_be_signed
        payload = descriptor.to_cbor()
        message = self._framing.message(subject_of(payload), os.urandom(SIGNATURE_SIZE))
        self._attestation = around(Attestation(payload, message, opening).to_cbor(), payload, message, opening)

    def descriptor(self, content_hash: bytes, nonce: bytes) -> bytes:
        """The descriptor of one contribution.

        Raises:
            DescriptorRefused: Code TYPE or RANGE if hash or nonce are not 32 and 16 bytes.
        """
        check_bytes(content_hash, "content_hash", 32, error=DescriptorRefused)
        check_bytes(nonce, "nonce", SALT_SIZE, error=DescriptorRefused)
        return self._framing.descriptor(commit_content(content_hash, nonce))

    def opening(self, content_hash: bytes, nonce: bytes) -> bytes:
        """Returns the opening of one contribution, for hash and nonce that `descriptor` took."""
        before, between, after = self._opening
        return b"".join((before, nonce, between, content_hash, after))

    def attestation(self, payload: bytes, subject: bytes, signature: bytes, opening: bytes) -> bytes:
        """The attestation, as one item of an attestation file."""
        before, between, framing, after = self._attestation
        return b"".join((before, payload, between, self._framing.message(subject, signature), framing, opening, after))


def nonces() -> Iterator[bytes]:
    """Fresh nonces of 16 bytes without end, from the operating system's generator, drawn in blocks."""
    while True:
        block = os.urandom(SALT_SIZE * _NONCES_AT_ONCE)
        for at in range(0, len(block), SALT_SIZE):
            yield block[at : at + SALT_SIZE]
