"""An attestation, `[descriptor, sign1]`, and files of many: CBOR sequences (RFC 8742)."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from attest import cbor, sign1
from attest.descriptor import MAX_SIZE as MAX_DESCRIPTOR
from attest.errors import CborError

MAX_SIZE = 2 * MAX_DESCRIPTOR + 16
"""Bytes of one item of a sequence. Looser than the gate's limits on the two parts, so that one attestation that is too
large is refused by itself and does not end the file."""

_CHUNK = 1 << 20


@dataclass(slots=True, unsafe_hash=True)
class Attestation:
    """A descriptor and the signature over it, both as received; nothing is checked yet.

    Args:
        descriptor: Bytes of the descriptor.
        sign1: Bytes of the COSE_Sign1 message.
    """

    descriptor: bytes
    sign1: bytes

    def __post_init__(self) -> None:
        if type(self.descriptor) is not bytes or type(self.sign1) is not bytes:
            raise CborError("TYPE", "descriptor and signature of an attestation are byte strings")

    def to_cbor(self) -> bytes:
        """One item of an attestation file."""
        return cbor.encode([self.descriptor, self.sign1])

    def digest(self) -> bytes:
        """SHA-256 over both parts; names this very message, as a descriptor's digest names what was signed."""
        return hashlib.sha256(self.to_cbor()).digest()

    @property
    def within_limits(self) -> bool:
        """Whether both parts have an admissible size."""
        return len(self.descriptor) <= MAX_DESCRIPTOR and len(self.sign1) <= sign1.MAX_SIZE


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
        pair = cbor.byte_string_pair(buffer, at)
        if pair is not None and pair[2] - at <= MAX_SIZE:
            at = pair[2]
            yield place, Attestation(pair[0], pair[1])
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
    if type(value) is not list or [type(part) for part in value] != [bytes, bytes]:
        raise CborError("CBOR", "item of the attestation file is not [descriptor, signature], both byte strings")
    return Attestation(value[0], value[1])
