"""Contributors of a registry as one mapping: those enrolled in runs as columns of bytes, the others as objects.

A run is enrolments that stand one after the other in an entry and are alike.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attest import cbor
from attest.errors import AttestError, RegistryRefused
from attest.keys.ed25519 import P
from attest.registry.entries import ACTION, MAX_ENTRY, SCHEMA, SMALL_ORDER_Y, Contributor, Enrol, Entry, KeyRecord
from attest.registry.names import DigestIndex, Names, PackedNames
from attest.schema import check_fields
from attest.schema.kinds import Told
from attest.schema.plain import COMMITMENT_SIZE

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
    """Holds contributors with one key each, enrolled one after the other for one time and the same classes. `principals`:
    commitments, 32 bytes each, as of names and keys; None if none is stated."""

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
    """Holds an entry that does nothing but enrol contributors in runs, by its first action alone and the runs in order."""

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
    """Returns the fields of an entry before its actions, the number of these, and where they begin. Raises ValueError,
    IndexError, CborError: they are not the ones of an entry in their only encoding."""
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
    """Returns where the enrolment that begins at a byte ends, and what it says. Raises ValueError, AttestError: it is no
    enrolment."""
    value, end = cbor.decode_prefix(payload, at, max_size=_MAX_TERMS)
    action = ACTION.decode(value, Told("actions"), RegistryRefused)
    if type(action) is not Enrol:
        raise ValueError("no enrolment")
    check_fields(action, RegistryRefused)
    return end, action


def _run(payload: bytes, at: int, stride: int, left: int, first: Enrol) -> Run | None:
    """Returns the longest run that begins with an enrolment of `stride` bytes at a byte; None if it is short, or nothing for a
    run."""
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


_NONE = 2**32 - 1


class Enrolled(Mapping[str, Contributor]):
    """Contributors by their commitments in hex, in order of their enrolment, and the keys of all of them.

    A contributor who was enrolled in a run takes 64 bytes and two places in an index. It is made an object when somebody asks
    for it, and is kept as one once something of it is changed.
    """

    def __init__(self) -> None:
        self._single: dict[str, Contributor] = {}
        self._holders: dict[bytes, str] = {}
        self._order: list[Run | str] = []
        self._runs: list[Run] = []
        self._starts: list[int] = []
        self._in_runs = self._size = 0
        self._names = self._keys = DigestIndex()

    def copy(self) -> "Enrolled":
        """Returns these contributors as they are now, to go their own way from here."""
        other = Enrolled()
        other._single, other._holders = self._single.copy(), self._holders.copy()
        other._order, other._runs, other._starts = self._order.copy(), self._runs.copy(), self._starts.copy()
        other._in_runs, other._size = self._in_runs, self._size
        other._names, other._keys = self._names, self._keys
        return other

    @property
    def has_runs(self) -> bool:
        """Tells whether contributors are kept as columns."""
        return bool(self._runs)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, name: str) -> Contributor:
        single = self._single.get(name)
        if single is not None:
            return single
        row = self._row(name)
        if row is None:
            raise KeyError(name)
        run, number = self.place(row)
        return run.contributor(number)

    def __contains__(self, name: object) -> bool:
        return name in self._single or (type(name) is str and self._row(name) is not None)

    def __setitem__(self, name: str, contributor: Contributor) -> None:
        if name not in self:
            self._order.append(name)
            self._size += 1
        self._single[name] = contributor

    def __iter__(self) -> Iterator[str]:
        for item in self._order:
            if isinstance(item, str):
                yield item
            else:
                yield from (item.name(number) for number in range(len(item)))

    def holder(self, key: bytes) -> str | None:
        """Returns the commitment to whose key it is, in hex; None if it is nobody's."""
        known = self._holders.get(key)
        row = self._keys.row(key) if known is None and self._runs else None
        if row is None:
            return known
        run, number = self.place(row)
        return run.name(number) if run.key(number) == key else None

    def claim(self, key: bytes, name: str) -> None:
        """Takes in that a key, which is nobody's yet, is a contributor's."""
        self._holders[key] = name

    def take(self, runs: Sequence[Run]) -> bool:
        """Takes in runs of contributors, all or none; True where all of them and all of their keys are new.

        Guarantee: a contributor or a key that is there, or that stands twice in the runs, is never taken.
        """
        names, keys = b"".join(run.names for run in runs), b"".join(run.keys for run in runs)
        if self._holders and any(keys[at : at + 32] in self._holders for at in range(0, len(keys), 32)):
            return False
        if self._single and any(names[at : at + 32].hex() in self._single for at in range(0, len(names), 32)):
            return False
        more_names, more_keys = self._names.extended(names, self._in_runs), self._keys.extended(keys, self._in_runs)
        if more_names is None or more_keys is None:
            return False
        self._names, self._keys = more_names, more_keys
        for run in runs:
            self._starts.append(self._in_runs)
            self._runs.append(run)
            self._order.append(run)
            self._in_runs += len(run)
            self._size += len(run)
        return True

    def _row(self, name: str) -> int | None:
        """Returns the row of a contributor who was enrolled in a run."""
        if not self._runs:
            return None
        try:
            row = self._names.row(bytes.fromhex(name)) if len(name) == 64 else None
        except ValueError:
            return None
        if row is None:
            return None
        run, number = self.place(row)
        return row if run.name(number) == name else None

    def place(self, row: int) -> tuple[Run, int]:
        """Returns the run in which a row lies, and its place there."""
        at = bisect_right(self._starts, row) - 1
        return self._runs[at], row - self._starts[at]


class Opened(Mapping[str, Contributor]):
    """The contributors of a registry by their names, where all of these are known; immutable.

    Args:
        enrolled: The contributors by commitment; not changed any more.
        names: What opens all of the commitments.
        packed: The names in their order.
        singles: Those who are objects, by name, with their names.
        numbers: For each run the places of its names in that order.
        rows: For each name the row of its contributor, `_NONE` if it is in no run.
    """

    def __init__(
        self,
        enrolled: Enrolled,
        names: Names,
        packed: PackedNames,
        singles: dict[str, Contributor],
        numbers: "list[array[int]]",
        rows: "array[int]",
    ) -> None:
        self._enrolled, self._names, self._packed, self._singles = enrolled, names, packed, singles
        self._numbers, self._rows = numbers, rows

    @classmethod
    def of(cls, enrolled: Enrolled, names: Names) -> "Opened | None":
        """Returns contributors by name; None if a name is missing, or one that is known does not open what it should.

        Guarantee: each name opens the commitment of its contributor, and its principal the commitment to that.
        """
        packed = names.packed
        if not len(packed):
            return None
        import numpy as np

        numbers, rows = list["array[int]"](), np.full(len(packed), _NONE, np.uint32)
        for start, run in zip(enrolled._starts, enrolled._runs, strict=True):
            found = packed.numbers(run.names, _NONE)
            if (found == _NONE).any():
                return None
            rows[found] = np.arange(start, start + len(run), dtype=np.uint32)
            numbers.append(array("I", found.tobytes()))
            if run.principals is not None and any(names.opened(run.contributor(number)) is None for number in range(len(run))):
                return None
        singles: dict[str, Contributor] = {}
        for contributor in enrolled._single.values():
            opened = names.opened(contributor)
            if opened is None:
                return None
            singles[opened.name] = opened
        return cls(enrolled, names, packed, singles, numbers, array("I", rows.tobytes()))

    def __len__(self) -> int:
        return len(self._enrolled)

    def __getitem__(self, name: str) -> Contributor:
        single = self._singles.get(name)
        if single is not None:
            return single
        number = self._packed.find(name) if type(name) is str else None
        row = _NONE if number is None else self._rows[number]
        if number is None or row == _NONE:
            raise KeyError(name)
        run, place = self._enrolled.place(row)
        return run.named(place, name, None if run.principals is None else self._packed.entry(number).principal)

    def __iter__(self) -> Iterator[str]:
        numbers = iter(self._numbers)
        for item in self._enrolled._order:
            if isinstance(item, str):
                opened = self._names.opened(self._enrolled[item])
                yield opened.name if opened is not None else item
                continue
            for number in next(numbers):
                yield self._packed.at(number)

    def holder(self, key: bytes) -> Contributor | None:
        """Returns the contributor whose key it is, by its 32 raw bytes; None if it is nobody's."""
        name = self._enrolled.holder(key)
        return None if name is None else self._names.opened(self._enrolled[name])
