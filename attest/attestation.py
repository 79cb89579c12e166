"""Reads and writes attestations, `[descriptor, sign1, opening]`, and takes out what many of them share.

Files of many attestations are CBOR sequences (RFC 8742). Attestations of one contributor that differ in the content alone share
all bytes of descriptor and message but three runs of fixed length: the commitment to the content, the digest of the descriptor
in the subject claim, and the signature. A ledger keeps the common terms of many once, and commitment and signature of each.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

from attest import cbor, sign1
from attest.descriptor import MAX_OPENING, ContributionDescriptor, SignedDescriptor
from attest.descriptor import MAX_SIZE as MAX_DESCRIPTOR
from attest.errors import CborError, DescriptorRefused
from attest.schema.plain import COMMITMENT_SIZE, check_bytes

MAX_SIZE = 2 * MAX_DESCRIPTOR + 16
"""Bytes of one item of a sequence. Looser than the gate's limits on the three parts, so that one attestation that is too large
is refused by itself and does not end the file."""

_CHUNK = 1 << 20


@dataclass(slots=True, unsafe_hash=True)
class Attestation:
    """Holds descriptor, signature and opening as received; nothing is checked yet. The opening is empty where it is not known.
    """

    descriptor: bytes
    sign1: bytes
    opening: bytes = b""

    def __post_init__(self) -> None:
        if not type(self.descriptor) is type(self.sign1) is type(self.opening) is bytes:
            raise CborError("TYPE", "descriptor, signature and opening of an attestation are byte strings")

    def to_cbor(self) -> bytes:
        """Returns one item of an attestation file."""
        return cbor.encode([self.descriptor, self.sign1, self.opening])

    def digest(self) -> bytes:
        """Returns SHA-256 over descriptor and signature: names this very message, as a descriptor's digest names what was
        signed.

        The opening is left out, so whoever holds an export computes it too.
        """
        return hashlib.sha256(cbor.encode([self.descriptor, self.sign1])).digest()

    def opened(self) -> ContributionDescriptor:
        """Returns the descriptor with its opening; errors as for `ContributionDescriptor.open`."""
        return ContributionDescriptor.open(self.descriptor, self.opening)

    def read(self) -> ContributionDescriptor | SignedDescriptor:
        """Reads the descriptor, opened where its opening is known. Raises CborError, DescriptorRefused: as `opened`."""
        return self.opened() if self.opening else SignedDescriptor.from_cbor(self.descriptor)

    @property
    def within_limits(self) -> bool:
        """Tells whether all parts have an admissible size."""
        fits = len(self.descriptor) <= MAX_DESCRIPTOR and len(self.sign1) <= sign1.MAX_SIZE
        return fits and len(self.opening) <= MAX_OPENING


def read_sequence(stream: BinaryIO) -> Iterator[Attestation]:
    """Reads attestations one by one; memory stays bounded whatever the file holds. Raises CborError: an item is malformed or
    too large. What follows it cannot be found, so the sequence ends there."""
    for _, attestation in read_places(stream):
        yield attestation


def read_places(stream: BinaryIO) -> Iterator[tuple[int, Attestation]]:
    """Yields attestations with the byte at which each begins, counted from where the stream stands; errors as `read_sequence`.
    """
    buffer, at, start, ended = b"", 0, 0, False
    while True:
        while not ended and len(buffer) - at < MAX_SIZE + 1:
            chunk = stream.read(_CHUNK)
            ended = not chunk
            start += at
            buffer, at = buffer[at:] + chunk, 0
        if at == len(buffer):
            return
        place = start + at
        parts = cbor.byte_string_triple(buffer, at)
        if parts is not None and parts[3] - at <= MAX_SIZE:
            at = parts[3]
            yield place, Attestation(parts[0], parts[1], parts[2])
        else:
            value, at = cbor.decode_prefix(buffer, at, max_size=MAX_SIZE)
            yield place, _attestation(value)


def read_at(stream: BinaryIO, place: int) -> Attestation:
    """Returns the attestation that begins at a byte of a file. Raises CborError: There is none."""
    stream.seek(place)
    return _attestation(cbor.decode_prefix(stream.read(MAX_SIZE), 0, max_size=MAX_SIZE)[0])


def _attestation(value: Any) -> Attestation:
    if type(value) is not list or [type(part) for part in value] != [bytes] * 3:
        raise CborError("CBOR", "item of the attestation file is not [descriptor, signature, opening], all byte strings")
    return Attestation(*value)


KEY_ID_SIZE: Final = 8
SIGNATURE_SIZE: Final = 64

MAX_TERMS: Final = cbor.MAX_SIZE
"""Bytes of common terms; real ones take about 300."""

_NO_CONTENT: Final = bytes(COMMITMENT_SIZE)


@dataclass(frozen=True, slots=True)
class CommonTerms:
    """Holds the terms that attestations share which were signed together. `signed`: the descriptor with 32 zero bytes in place
    of the commitment to the content."""

    signed: SignedDescriptor
    key_id: bytes

    def __post_init__(self) -> None:
        check_bytes(self.key_id, "key id", KEY_ID_SIZE, error=DescriptorRefused)
        if self.signed.content != _NO_CONTENT:
            raise DescriptorRefused("RANGE", "common terms commit to a content; expected 32 zero bytes in its place")

    @classmethod
    def of(cls, signed: SignedDescriptor, key_id: bytes) -> "CommonTerms":
        """Returns the terms that a descriptor shares with those signed together with it."""
        return cls(replace(signed, content=_NO_CONTENT), key_id)

    def to_cbor(self) -> bytes:
        """Returns the bytes under which terms are stored: the array of descriptor and key id."""
        return cbor.encode([self.signed.to_cbor(), self.key_id])

    @classmethod
    def from_cbor(cls, data: bytes) -> "CommonTerms":
        """Reads terms strictly; an accepted byte string is exactly `to_cbor()` of the result. Raises CborError: code SIZE, CBOR
        or CBOR_NONCANONICAL; DescriptorRefused: as for `SignedDescriptor.from_cbor`; code TYPE for another form."""
        value = cbor.decode(data, max_size=MAX_TERMS)
        if type(value) is not list or [type(part) for part in value] != [bytes, bytes]:
            raise DescriptorRefused("TYPE", "common terms are not an array of descriptor and key id, both byte strings")
        return cls(SignedDescriptor.from_cbor(value[0]), value[1])


class Framing:
    """Holds the bytes around what differs among attestations of equal terms.

    Guarantee: `descriptor` is `to_cbor()` of the descriptor with that content, `to_be_signed` what `sign1.sign` signs of it for
    the key id and issuer of the terms, `message` the only COSE_Sign1 message over it that `sign1.read` accepts with that
    issuer, key id and signature, and `digest` is `Attestation.digest()` of both, byte for byte.
    """

    __slots__ = ("_descriptor", "_digested", "_message", "_to_be_signed")

    def __init__(self, terms: CommonTerms) -> None:
        # The pieces are what the ordinary encoders write around marks that stand for what differs. The marks are random, so
        # that no field of the terms can hold one.
        content, signature = os.urandom(COMMITMENT_SIZE), os.urandom(SIGNATURE_SIZE)
        payload = replace(terms.signed, content=content).to_cbor()
        protected = sign1.protected_header(payload, terms.key_id, terms.signed.issuer, sign1.TYP_ATTESTATION)
        subject = subject_of(payload)
        message = sign1.assemble(protected, signature)
        self._descriptor = around(payload, content)
        self._message = around(message, subject, signature)
        self._to_be_signed = around(sign1.to_be_signed(protected, payload), subject, payload)
        self._digested = around(cbor.encode([payload, message]), payload, message)

    def descriptor(self, content: bytes) -> bytes:
        """Returns the descriptor that commits to a content by these 32 bytes."""
        return content.join(self._descriptor)

    def to_be_signed(self, descriptor: bytes, subject: bytes) -> bytes:
        """Returns the bytes that are signed for a descriptor of these terms, whose `subject_of` is given."""
        before, between, after = self._to_be_signed
        return b"".join((before, subject, between, descriptor, after))

    def message(self, subject: bytes, signature: bytes) -> bytes:
        """Returns the COSE_Sign1 message over the descriptor whose `subject_of` is given."""
        before, between, after = self._message
        return b"".join((before, subject, between, signature, after))

    def digest(self, descriptor: bytes, message: bytes) -> bytes:
        """Returns the attestation hash of a descriptor and a message of these terms."""
        before, between, after = self._digested
        return hashlib.sha256(b"".join((before, descriptor, between, message, after))).digest()

    def attestation(self, content: bytes, signature: bytes) -> Attestation:
        """Returns the attestation of a content, without its opening; nothing is verified."""
        descriptor = self.descriptor(content)
        return Attestation(descriptor, self.message(subject_of(descriptor), signature))


class FramingPattern:
    """Makes the framings of terms that differ in commitments, times and key alone, without encoding each.

    Guarantee: `framing` is `Framing` of the terms that were cut, byte for byte, where these differ from the terms given here in
    the commitments, in times and in the key id alone.
    """

    __slots__ = ("_framing", "_message", "_to_be_signed")

    def __init__(self, terms: CommonTerms) -> None:
        contributor, key_id = os.urandom(COMMITMENT_SIZE), os.urandom(KEY_ID_SIZE)
        issuer = contributor.hex().encode("ascii")
        self._framing = Framing(CommonTerms(replace(terms.signed, contributor=contributor), key_id))
        self._message = around(self._framing._message[0], key_id, issuer)
        self._to_be_signed = around(self._framing._to_be_signed[0], key_id, issuer)

    def key_id(self, message: bytes) -> bytes:
        """Returns the 8 bytes that stand where messages of these terms have the key id."""
        at = len(self._message[0])
        return message[at : at + KEY_ID_SIZE]

    def framing(self, descriptor: list[bytes], contributor: bytes, key_id: bytes) -> Framing:
        """Returns the framing of a contributor's terms, by the bytes of its descriptor around the content's commitment."""
        made, known, issuer = object.__new__(Framing), self._framing, contributor.hex().encode("ascii")
        made._descriptor, made._digested = descriptor, known._digested
        for name, (before, between, after) in (("_message", self._message), ("_to_be_signed", self._to_be_signed)):
            first = b"".join((before, key_id, between, issuer, after))
            setattr(made, name, [first, *getattr(known, name)[1:]])
        return made


def subject_of(payload: bytes) -> bytes:
    """Returns `sign1.subject_of` in ASCII."""
    return b"sha-256:" + hashlib.sha256(payload).hexdigest().encode("ascii")


def around(data: bytes, *marks: bytes) -> list[bytes]:
    """Returns the pieces of `data` before, between and after marks, each of which stands in it exactly once, in this order."""
    pieces = []
    for mark in marks:
        piece, data = data.split(mark)
        pieces.append(piece)
    return [*pieces, data]
