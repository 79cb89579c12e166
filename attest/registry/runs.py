"""Enrolments that stand one after the other in an entry and are alike: kept as columns of bytes, without an object for each."""

from dataclasses import dataclass
from typing import Any, Final

from attest import cbor
from attest.commitments import COMMITMENT_SIZE
from attest.curve25519 import P
from attest.documents import check_fields
from attest.documents.kinds import Told
from attest.errors import AttestError, RegistryRefused
from attest.registry.actions import ACTION, Enrol
from attest.registry.entries import MAX_ENTRY, SCHEMA, Entry
from attest.registry.records import SMALL_ORDER_Y, Contributor, KeyRecord

LEAST: Final = 128
"""Enrolments from which on they are kept as a run, in an entry of at least `LEAST_IN_ENTRY`."""

LEAST_IN_ENTRY: Final = 1024
"""Fewer are read one by one sooner than the library for arrays is loaded."""

_NAME_AT: Final = 4
_KEY_AT: Final = _NAME_AT + COMMITMENT_SIZE + 2
_TERMS_AT: Final = _KEY_AT + 32
_HEAD: Final = cbor.encode([Enrol.CODE, bytes(32), bytes(32), 0, 0, [], None, None])[:_NAME_AT]
_BETWEEN: Final = b"\x58\x20"
"""An enrolment begins with these bytes, the commitment, these, and the key."""

_WEAK: Final = frozenset(
    (y | sign << 255).to_bytes(32, "little") for y in (*SMALL_ORDER_Y, *range(P, 2**255)) for sign in (0, 1)
)
"""The keys that a `KeyRecord` refuses."""

_MAX_TERMS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Run:
    """Contributors with one key each, enrolled one after the other for one time and the same classes.

    Args:
        names: Commitments to the contributors, 32 bytes each.
        keys: Keys, 32 bytes each.
        principals: Commitments to principals, 32 bytes each; None if none is stated.
        first: The first of them.
    """

    names: bytes
    keys: bytes
    principals: bytes | None
    first: Contributor

    def __len__(self) -> int:
        return len(self.keys) // 32

    def name(self, number: int) -> str:
        """Returns the commitment to a contributor in hex."""
        return self.names[32 * number : 32 * number + 32].hex()

    def key(self, number: int) -> bytes:
        """Returns the 32 raw bytes of a contributor's key."""
        return self.keys[32 * number : 32 * number + 32]

    def contributor(self, number: int) -> Contributor:
        """Returns a contributor as the entry enrolled it."""
        principal = None if self.principals is None else self.principals[32 * number : 32 * number + 32].hex()
        return self.named(number, self.name(number), principal)

    def named(self, number: int, name: str, principal: str | None) -> Contributor:
        """Returns a contributor under its name, and with its principal, where these are known."""
        terms = self.first.keys[0]
        record = KeyRecord(self.key(number), terms.not_before, terms.not_after)
        return Contributor(name, (record,), self.first.classes, self.first.cap, principal)


@dataclass(frozen=True, slots=True)
class Enrolments:
    """An entry that does nothing but enrol contributors in runs.

    Args:
        head: The entry, with the first of its actions alone.
        runs: What it enrols, in order.
    """

    head: Entry
    runs: tuple[Run, ...]


def read_enrolments(payload: bytes) -> Enrolments | None:
    """Reads an entry whose actions are enrolments, many that are alike at a time; None for any other bytes.

    Guarantee: where it returns something, `Entry.from_cbor` accepts the payload and finds these enrolments in this order, and
    `KeyRecord` and `Contributor` accept each of them. What it does not return, `Entry.from_cbor` judges.

    Bytes of one length that are the same but for the inside of byte strings are read by the strict decoder in the same way, so
    the first enrolment of a run is decoded, and the others are compared with it column by column.
    """
    try:
        if len(payload) > MAX_ENTRY:
            return None
        values, count, at = _head(payload)
        if count < LEAST_IN_ENTRY:
            return None
        runs: list[Run] = []
        left, first = count, None
        while left:
            end, enrol = _first(payload, at)
            first = first or enrol
            run = _run(payload, at, end - at, left, enrol)
            if run is None:
                return None
            runs.append(run)
            left -= len(run)
            at += len(run) * (end - at)
        if at != len(payload) or first is None:
            return None
        return Enrolments(Entry(values[2], values[3], values[4], (first,)), tuple(runs))
    except (AttestError, IndexError, TypeError, ValueError):
        return None


def _head(payload: bytes) -> tuple[dict[int, Any], int, int]:
    """The fields of an entry before its actions, the number of these, and where they begin.

    Raises:
        ValueError, IndexError, CborError: They are not the ones of an entry in their only encoding.
    """
    values: dict[int, Any] = {}
    at = 1
    for key in range(1, 5):
        if payload[at] != key:
            raise ValueError(key)
        values[key], at = cbor.decode_prefix(payload, at + 1, max_size=64)
    head, width = payload[at + 1], {0x98: 1, 0x99: 2, 0x9A: 4}.get(payload[at + 1], 0)
    start = at + 2 + width
    count = int.from_bytes(payload[at + 2 : start], "big") if width else head - 0x80
    whole = cbor.encode({**values, 5: []})
    least = {0: 0, 1: 24, 2: 256, 4: 65536}[width]
    if payload[: at + 1] != whole[:-1] or values[1] != SCHEMA or not least <= count or (not width and count > 23):
        raise ValueError(count)
    return values, count, start


def _first(payload: bytes, at: int) -> tuple[int, Enrol]:
    """Returns where the enrolment that begins at a byte ends, and what it says.

    Raises:
        ValueError, AttestError: It is no enrolment.
    """
    value, end = cbor.decode_prefix(payload, at, max_size=_MAX_TERMS)
    action = ACTION.decode(value, Told("actions"), RegistryRefused)
    if type(action) is not Enrol:
        raise ValueError("no enrolment")
    check_fields(action, RegistryRefused)
    return end, action


def _run(payload: bytes, at: int, stride: int, left: int, first: Enrol) -> Run | None:
    """The longest run that begins with an enrolment of `stride` bytes at a byte; None if it is short, or nothing for a run."""
    if payload[at : at + _NAME_AT] != _HEAD or payload[at + _KEY_AT - 2 : at + _KEY_AT] != _BETWEEN:
        return None
    count = min(left, (len(payload) - at) // stride)
    stated = first.principal is not None
    fixed = [*range(_NAME_AT), _KEY_AT - 2, _KEY_AT - 1, *range(_TERMS_AT, stride - (COMMITMENT_SIZE if stated else 0))]
    for column in fixed:
        place = at + column
        byte = payload[place : place + 1]
        found = payload[place : place + stride * count : stride]
        count -= len(found.lstrip(byte))
        if count < LEAST:
            return None
    whole = payload[at : at + stride * count]
    names, keys = _column(whole, _NAME_AT, stride), _column(whole, _KEY_AT, stride)
    if not _WEAK.isdisjoint(keys):
        return None
    principals = _column(whole, stride - COMMITMENT_SIZE, stride) if stated else None
    record = KeyRecord(first.key, first.not_before, first.not_after)
    principal = None if principals is None else principals[0].hex()
    contributor = Contributor(names[0].hex(), (record,), tuple(first.classes), first.cap, principal)
    return Run(b"".join(names), b"".join(keys), None if principals is None else b"".join(principals), contributor)


def _column(rows: bytes, start: int, stride: int) -> list[bytes]:
    return [rows[at : at + 32] for at in range(start, len(rows), stride)]
