"""The file: a CBOR sequence (RFC 8742) of `[payload, sign1]`, one item per entry."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from attest import cbor, sign1
from attest.descriptor import MAX_COUNT
from attest.documents import declared
from attest.documents.groups import Many
from attest.documents.kinds import Whole
from attest.documents.payload import Payload
from attest.documents.values import MOMENT, SHA256
from attest.errors import CborError, RegistryRefused
from attest.registry.actions import ACTION, Action

SCHEMA: Final = "dptrain.registry-entry/2"
NO_ROOT: Final = bytes(32)
"""What the first entry names as the root before it."""

MAX_ENTRY: Final = 1 << 20
"""Bytes of an entry's payload; about ten thousand enrolments."""

MAX_SIZE: Final = 256 << 20
"""Bytes of a registry file; more than two million contributors enrolled in bulk."""

_ROOT_PREFIX = b"dptrain.registry.root/1\x00"


@dataclass(frozen=True, slots=True)
class Entry(Payload):
    """One signed step of the log.

    Raises:
        RegistryRefused: Code SCHEMA, TYPE or RANGE.
    """

    SCHEMA: ClassVar = SCHEMA
    CDDL: ClassVar = "registry-entry"
    WHAT: ClassVar = "entry"
    ERROR: ClassVar = RegistryRefused
    MAX_SIZE: ClassVar = MAX_ENTRY
    seq: int = declared(2, Whole(0, MAX_COUNT, f"0..{MAX_COUNT}"), "Position of the entry, from 0.")
    previous: bytes = declared(3, SHA256, "Root before this entry; zeros in the first.")
    time: int = declared(4, MOMENT, "Never less than in the entry before, except where action 7 says so.")
    actions: tuple[Action, ...] = declared(
        5,
        Many(ACTION, 1, MAX_ENTRY, "actions", distinct=False, named="[+ action]", counted="SCHEMA"),
        "What it does, in order.",
    )

    def to_cbor(self) -> bytes:
        """Returns the bytes that are signed.

        Raises:
            RegistryRefused: Code SIZE.
        """
        data = Payload.to_cbor(self)
        if len(data) > MAX_ENTRY:
            raise RegistryRefused("SIZE", f"entry has {len(data)} bytes, expected at most {MAX_ENTRY}; split it")
        return data


def root_of(payload: bytes) -> bytes:
    """The root after an entry. The payload holds the root before it, so this names the whole log up to here."""
    return hashlib.sha256(_ROOT_PREFIX + payload).digest()


def join(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The bytes of a file, or of its continuation, from payloads and messages."""
    return b"".join(cbor.encode([payload, message]) for payload, message in items)


def split(data: bytes, start: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Payloads and messages of a file, none of them verified.

    Args:
        data: The file.
        start: Where an entry begins.

    Raises:
        CborError: Something else than `[payload, message]`, or an end inside an item.
    """
    at = start
    while at < len(data):
        head, body = _byte_string(data, at + 1, MAX_ENTRY)
        tail, message = _byte_string(data, head, sign1.MAX_SIZE)
        if data[at] != 0x82:
            raise CborError("CBOR", f"byte {at} does not begin an array of payload and signature")
        yield body, message
        at = tail


def _byte_string(data: bytes, at: int, limit: int) -> tuple[int, bytes]:
    """End and content of the byte string at `at`.

    Only its head goes through the strict decoder: to hand it a window per entry would copy a megabyte for each.
    """
    width = {0x58: 1, 0x59: 2, 0x5A: 4}.get(data[at] if at < len(data) else 0, 0)
    head = data[at : at + 1 + width]
    length = int.from_bytes(head[1:], "big") if width else (head[0] - 0x40 if head else 0)
    end = at + 1 + width + length
    if not 0 <= length <= limit:
        raise CborError("SIZE", f"byte string at byte {at} is none, or takes more than {limit} bytes")
    if end > len(data):
        raise CborError("CBOR", f"the file ends inside the entry around byte {at}; it was cut off")
    content = data[end - length : end]
    if cbor.encode(content)[: 1 + width] != head:
        raise CborError("CBOR_NONCANONICAL", f"byte string at byte {at} has a longer head than it needs")
    return end, content
