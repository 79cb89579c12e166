"""An attestation, `[descriptor, sign1, opening]`, and files of many: CBOR sequences (RFC 8742)."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from attest import cbor, sign1
from attest.descriptor import MAX_OPENING, ContributionDescriptor, SignedDescriptor
from attest.descriptor import MAX_SIZE as MAX_DESCRIPTOR
from attest.errors import CborError

MAX_SIZE = 2 * MAX_DESCRIPTOR + 16
"""Bytes of one item of a sequence. Looser than the gate's limits on the three parts, so that one attestation that is too
large is refused by itself and does not end the file."""

_CHUNK = 1 << 20


@dataclass(slots=True, unsafe_hash=True)
class Attestation:
    """A descriptor, the signature over it, and what opens its commitments, all as received; nothing is checked yet.

    Args:
        descriptor: Bytes of the descriptor.
        sign1: Bytes of the COSE_Sign1 message.
        opening: Bytes of the opening; empty where it is not known, as to an auditor.
    """

    descriptor: bytes
    sign1: bytes
    opening: bytes = b""

    def __post_init__(self) -> None:
        if not type(self.descriptor) is type(self.sign1) is type(self.opening) is bytes:
            raise CborError("TYPE", "descriptor, signature and opening of an attestation are byte strings")

    def to_cbor(self) -> bytes:
        """One item of an attestation file."""
        return cbor.encode([self.descriptor, self.sign1, self.opening])

    def digest(self) -> bytes:
        """SHA-256 over descriptor and signature: names this very message, as a descriptor's digest names what was signed.

        The opening is left out, so whoever holds an export computes it too.
        """
        return hashlib.sha256(cbor.encode([self.descriptor, self.sign1])).digest()

    def opened(self) -> ContributionDescriptor:
        """Returns the descriptor with its opening; errors as for `ContributionDescriptor.open`."""
        return ContributionDescriptor.open(self.descriptor, self.opening)

    def read(self) -> ContributionDescriptor | SignedDescriptor:
        """Reads what there is: the descriptor opened, or as it was signed where its opening is not known.

        Raises:
            CborError, DescriptorRefused: As for `ContributionDescriptor.open`.
        """
        return self.opened() if self.opening else SignedDescriptor.from_cbor(self.descriptor)

    @property
    def within_limits(self) -> bool:
        """Tells whether all parts have an admissible size."""
        fits = len(self.descriptor) <= MAX_DESCRIPTOR and len(self.sign1) <= sign1.MAX_SIZE
        return fits and len(self.opening) <= MAX_OPENING


def read_sequence(stream: BinaryIO) -> Iterator[Attestation]:
    """Read attestations one by one; memory stays bounded whatever the file holds.

    Raises:
        CborError: An item is malformed or too large. What follows it cannot be found, so the sequence ends there.
    """
    for _, attestation in read_places(stream):
        yield attestation


def read_places(stream: BinaryIO) -> Iterator[tuple[int, Attestation]]:
    """Attestations with the byte at which each begins, counted from where the stream stands.

    Raises:
        CborError: As for `read_sequence`.
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
    """The attestation that begins at a byte of a file.

    Raises:
        CborError: There is none.
    """
    stream.seek(place)
    return _attestation(cbor.decode_prefix(stream.read(MAX_SIZE), 0, max_size=MAX_SIZE)[0])


def _attestation(value: Any) -> Attestation:
    if type(value) is not list or [type(part) for part in value] != [bytes] * 3:
        raise CborError("CBOR", "item of the attestation file is not [descriptor, signature, opening], all byte strings")
    return Attestation(*value)
