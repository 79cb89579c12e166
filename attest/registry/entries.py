"""The file: a CBOR sequence (RFC 8742) of `[payload, sign1]`, one item per entry."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attest import cbor, sign1
from attest.checks import check_bytes, check_int
from attest.clock import check_time
from attest.descriptor import MAX_COUNT
from attest.errors import CborError, RegistryRefused
from attest.registry.actions import Action, from_array, to_array

SCHEMA: Final = "dptrain.registry-entry/2"
NO_ROOT: Final = bytes(32)
"""What the first entry names as the root before it."""

MAX_ENTRY: Final = 1 << 20
"""Bytes of an entry's payload; about ten thousand enrolments."""

MAX_SIZE: Final = 256 << 20
"""Bytes of a registry file; more than two million contributors enrolled in bulk."""

_ROOT_PREFIX = b"dptrain.registry.root/1\x00"


@dataclass(frozen=True, slots=True)
class Entry:
    """One signed step of the log.

    Args:
        seq: Its position, from 0.
        previous: Root before it; 32 zero bytes for the first.
        time: Seconds since 1970, never before the entry before it.
        actions: What it does, in order.
    """

    seq: int
    previous: bytes
    time: int
    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        check_int(self.seq, "sequence number", 0, MAX_COUNT, error=RegistryRefused)
        check_bytes(self.previous, "previous root", 32, error=RegistryRefused)
        check_time(self.time, "time of the entry", error=RegistryRefused)
        if not self.actions:
            raise RegistryRefused("SCHEMA", "entry holds no action")

    def to_cbor(self) -> bytes:
        """The bytes that are signed.

        Raises:
            RegistryRefused: Code SIZE.
        """
        data = cbor.encode({1: SCHEMA, 2: self.seq, 3: self.previous, 4: self.time, 5: [to_array(a) for a in self.actions]})
        if len(data) > MAX_ENTRY:
            raise RegistryRefused("SIZE", f"entry has {len(data)} bytes, expected at most {MAX_ENTRY}; split it")
        return data

    @classmethod
    def from_cbor(cls, data: bytes) -> "Entry":
        """Read an entry strictly.

        Raises:
            CborError: Not strict CBOR, or larger than `MAX_ENTRY`.
            RegistryRefused: Code SCHEMA, TYPE or RANGE.
        """
        value: Any = cbor.decode(data, max_size=MAX_ENTRY)
        if type(value) is not dict or set(value) != {1, 2, 3, 4, 5}:
            raise RegistryRefused("SCHEMA", "entry is not a map with exactly the labels 1 to 5")
        if value[1] != SCHEMA:
            raise RegistryRefused("SCHEMA", f"entry has schema {ascii(value[1])[:60]}, expected {SCHEMA!r}")
        if type(value[5]) is not list:
            raise RegistryRefused("TYPE", "actions of the entry are not an array")
        return cls(value[2], value[3], value[4], tuple(from_array(item) for item in value[5]))


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
