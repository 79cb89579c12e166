"""Holds the names behind the commitments of a registry: a file of the corpus owner, `registry.names` beside `registry.cbor`.

The registry travels in exports and says contributors and principals by salted commitments. This file opens them. The gate and
the trainer need it beside the registry; no export holds it. `PackedNames` holds the file as it lies on disk, with a table of
places and an index of commitments at 12 bytes a row: no object for each name.
"""

import os
import re
import secrets
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from attest import cbor
from attest.errors import AttestError, CborError, RegistryRefused
from attest.files import atomic_write, read_limited
from attest.registry.entries import Action, Contributor, Enrol, Grant, Revoke
from attest.schema.plain import (
    COMMITMENT_SIZE,
    REGISTRY_CONTRIBUTOR,
    REGISTRY_PRINCIPAL,
    SALT_SIZE,
    check_bytes,
    check_id,
    commit,
)

if TYPE_CHECKING:
    import numpy as np


WIDTH: Final = 32
"""Bytes of a row."""

_WORDS: Final = WIDTH // 8
_MASK: Final = 2**64 - 1
_FACTORS: Final = tuple(secrets.randbits(64) | 1 for _ in range(_WORDS))
"""Secret of this process, and of those that it starts: nobody prepares rows that are taken for each other."""


class DigestIndex:
    """Indexes hashes of rows in sorted arrays, with the numbers of the rows.

    Guarantee: `extended` returns None where a row could be one that is there, or one row stands twice among the new ones; it
    may do so for rows that differ. `row` returns the one row that could be the one asked for. Both go by a hash of 64 bits, so
    whoever asks compares the bytes. An index never changes; those that grow from it share its arrays.

    Looking up a row takes no library beside Python's own, so that a worker of the gate need not load one.

    Args:
        levels: Sorted hashes and row numbers; a level holds more than twice the rows of the next one.
    """

    __slots__ = ("_factors", "_levels")

    def __init__(self, levels: "tuple[tuple[array[int], array[int]], ...]" = (), factors: tuple[int, ...] = _FACTORS) -> None:
        self._levels, self._factors = levels, factors

    def extended(self, rows: bytes | bytearray, start: int) -> "DigestIndex | None":
        """Returns an index with more rows; None where one of them may be there already."""
        import numpy as np

        hashes = self._hashes(rows)
        order = np.argsort(hashes, kind="stable")
        hashes, numbers = hashes[order], order.astype(np.uint32) + np.uint32(start)
        if (hashes[1:] == hashes[:-1]).any() or any(self._places(level, hashes)[1].any() for level, _ in self._levels):
            return None
        levels = list(self._levels)
        while levels and len(levels[-1][0]) <= 2 * len(hashes):
            level, known = levels.pop()
            both = np.concatenate((np.frombuffer(level, np.uint64), hashes))
            order = np.argsort(both, kind="stable")
            hashes, numbers = both[order], np.concatenate((np.frombuffer(known, np.uint32), numbers))[order]
        return DigestIndex((*levels, (array("Q", hashes.tobytes()), array("I", numbers.tobytes()))), self._factors)

    def row(self, wanted: bytes) -> int | None:
        """Returns the number of the only row that can be the one given; None if none can."""
        if not self._levels or len(wanted) != WIDTH:
            return None
        words = (int.from_bytes(wanted[at : at + 8], "little") for at in range(0, WIDTH, 8))
        value = sum(word * factor for word, factor in zip(words, self._factors, strict=True)) & _MASK
        for hashes, numbers in self._levels:
            place = bisect_left(hashes, value)
            if place < len(hashes) and hashes[place] == value:
                return numbers[place]
        return None

    def rows(self, wanted: bytes, missing: int) -> "np.ndarray[Any, Any]":
        """Returns what `row` returns of each of many strings of 32 bytes, as 32-bit numbers; `missing` where no row can be it.
        """
        import numpy as np

        hashes = self._hashes(wanted)
        result = np.full(len(hashes), missing, np.uint32)
        for level, numbers in self._levels:
            places, hit = self._places(level, hashes)
            result[hit] = np.frombuffer(numbers, np.uint32)[places[hit]]
        return result

    def _hashes(self, rows: bytes | bytearray) -> "np.ndarray[Any, Any]":
        """Returns a hash of each row: the sum of its words times secret odd factors, modulo 2^64."""
        import numpy as np

        words = np.frombuffer(rows, "<u8").reshape(-1, _WORDS)
        total = np.zeros(len(words), np.uint64)
        for column, factor in enumerate(self._factors):
            total += words[:, column] * np.uint64(factor)
        return total

    @staticmethod
    def _places(level: "array[int]", hashes: "np.ndarray[Any, Any]") -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
        """Returns where hashes would stand in a level, and which of them stand there."""
        import numpy as np

        known = np.frombuffer(level, np.uint64)
        places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        return places, known[places] == hashes


LEAST: Final = 1 << 16
"""Bytes of a file of names from which on it is kept as it lies on disk."""

_TEXT: Final = rb"([\x61-\x77]|\x78[\x18-\x40])([a-z0-9._/-]{1,64})"
_ITEM: Final = re.compile(rb"\x83" + _TEXT + rb"\x50(.{16})(?:\xf6|" + _TEXT + rb")", re.DOTALL)
"""An array of name, salt, and principal or null; the lengths that the heads of the texts say are compared apart."""


@dataclass(frozen=True, slots=True)
class Named:
    """Opens the commitments of one contributor.

    Args:
        salt: 16 random bytes, of this contributor in this registry alone.
        principal: Identifier of the person or group behind it, None if none is stated.

    Raises:
        RegistryRefused: Code TYPE or RANGE.
    """

    name: str
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(SALT_SIZE), repr=False)
    principal: str | None = None

    def __post_init__(self) -> None:
        check_id(self.name, "contributor", error=RegistryRefused)
        check_bytes(self.salt, "salt of a contributor", SALT_SIZE, error=RegistryRefused)
        if self.principal is not None:
            check_id(self.principal, f"principal of {self.name}", error=RegistryRefused)

    def commitment(self) -> bytes:
        """Returns what the registry says in place of the name."""
        return commit(REGISTRY_CONTRIBUTOR, self.name.encode("ascii"), self.salt)

    def committed_principal(self, principal: object) -> bytes:
        """Returns what the registry says in place of a principal of this contributor."""
        identifier = check_id(principal, f"principal of {self.name}", error=RegistryRefused)
        return commit(REGISTRY_PRINCIPAL, identifier.encode("ascii"), self.salt)


class PackedNames:
    """Holds names in ascending order, each with its salt and perhaps a principal; immutable.

    Guarantee: `read` accepts a file only if `attest.registry.names.Names.read` finds these names in it one by one.
    """

    __slots__ = ("_commitments", "_index", "_starts", "data")

    def __init__(
        self,
        data: bytes = b"",
        starts: Sequence[int] = (),
        commitments: bytes | bytearray = b"",
        index: DigestIndex = DigestIndex(),  # noqa: B008
    ) -> None:
        self.data, self._starts, self._commitments, self._index = data, starts, commitments, index

    @classmethod
    def read(cls, data: bytes) -> "PackedNames | None":
        """Reads a file; None for one that is small, or that is for the strict decoder to judge."""
        if len(data) < LEAST:
            return None
        starts, commitments, at, previous = array("I"), bytearray(), 0, b""
        for item in _ITEM.finditer(data):
            head, name, salt, head_of_principal, principal = item.groups()
            if item.start() != at or name <= previous or not _says(head, name):
                return None
            if principal is not None and not _says(head_of_principal, principal):
                return None
            starts.append(at)
            commitments += commit(REGISTRY_CONTRIBUTOR, name, salt)
            at, previous = item.end(), name
        index = DigestIndex().extended(commitments, 0) if at == len(data) else None
        return None if index is None else cls(data, starts, commitments, index)

    def __len__(self) -> int:
        return len(self._starts)

    def at(self, number: int) -> str:
        """Returns a name by its place in the order."""
        return self._name(number).decode("ascii")

    def entry(self, number: int) -> Named:
        """Returns a name with its salt and its principal."""
        item = _ITEM.match(self.data, self._starts[number])
        if item is None:
            raise IndexError(number)
        _, name, salt, _, principal = item.groups()
        return Named(name.decode("ascii"), salt, None if principal is None else principal.decode("ascii"))

    def find(self, name: str) -> int | None:
        """Returns the number of a name; None if it is not there."""
        wanted = name.encode("utf-8", "surrogatepass")
        number = bisect_left(range(len(self)), wanted, key=self._name)
        return number if number < len(self) and self._name(number) == wanted else None

    def find_commitment(self, commitment: bytes) -> int | None:
        """Returns the number of the name that a commitment is to; None if there is none."""
        number = self._index.row(commitment)
        return number if number is not None and self._commitment(number) == commitment else None

    def numbers(self, commitments: bytes, missing: int) -> "np.ndarray[Any, Any]":
        """Returns what `find_commitment` returns of each of many commitments, as 32-bit numbers; `missing` where there is none.
        """
        import numpy as np

        found = self._index.rows(commitments, missing)
        asked, known = (np.frombuffer(part, f"S{COMMITMENT_SIZE}") for part in (commitments, self._commitments))
        there = np.flatnonzero(found != missing)
        found[there[asked[there] != known[found[there]]]] = missing
        return found

    def _name(self, number: int) -> bytes:
        start = self._starts[number] + 2
        length = self.data[start - 1] - 0x60
        if length == 24:  # The head that says that the length stands in the next byte.
            length, start = self.data[start], start + 1
        return self.data[start : start + length]

    def _commitment(self, number: int) -> bytes:
        return bytes(self._commitments[COMMITMENT_SIZE * number : COMMITMENT_SIZE * (number + 1)])


def _says(head: bytes, text: bytes) -> bool:
    """Tells whether the head of a text says its length."""
    return (head[0] - 0x60 if len(head) == 1 else head[1]) == len(text)


SUFFIX: Final = ".names"

MAX_SIZE: Final = 512 << 20
"""Bytes of the file; more than two million contributors with names of the greatest length."""

_MAX_ITEM = 256


class Names:
    """Opens the commitments of a registry; immutable. `packed`: those that are kept as their file holds them, which need not be
    all.

    Guarantee: a name stands here for a commitment only if it opens it. A file that was changed, or that belongs to another
    registry, opens nothing and so names nobody.
    """

    def __init__(self, entries: Iterable[Named] = (), packed: PackedNames | None = None) -> None:
        # What stands in the dictionaries goes before what stands in the file as it was read.
        self.packed = packed or PackedNames()
        self._by_name = {entry.name: entry for entry in entries}
        self._by_commitment = {entry.commitment(): entry for entry in self._by_name.values()}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Names":
        """Reads a file of names strictly; an accepted file is exactly `to_cbor()` of the result. Raises RegistryRefused: code
        NAMES if it is malformed; FILE or SIZE."""
        shown, entries, at = os.fspath(path), list[Named](), 0
        try:
            data = read_limited(path, MAX_SIZE, "names of the registry")
            packed = PackedNames.read(data)
            if packed is not None:
                return cls((), packed)
            while at < len(data):
                value, at = cbor.decode_prefix(data, at, max_size=_MAX_ITEM)
                entries.append(_named(value))
        except (CborError, RegistryRefused) as error:
            raise RegistryRefused("NAMES", f"{shown!r}, name {len(entries) + 1}: {error.sentence}; restore the file") from error
        except AttestError as error:
            raise RegistryRefused(error.code, error.sentence) from error
        names = [entry.name for entry in entries]
        if names != sorted(set(names)):
            raise RegistryRefused("NAMES", f"{shown!r} does not hold each name once and in order; restore the file")
        return cls(entries)

    def find(self, name: str) -> Named | None:
        """Returns what opens the commitments of a contributor, by its name."""
        return self._by_name.get(name) or self._in_file(self.packed.find(name))

    def _named(self, commitment: bytes) -> Named | None:
        """Returns what opens a commitment to a contributor."""
        return self._by_commitment.get(commitment) or self._in_file(self.packed.find_commitment(commitment))

    def _in_file(self, number: int | None) -> Named | None:
        return None if number is None else self.packed.entry(number)

    def _all(self) -> dict[str, Named]:
        """Returns everything, by name; an object for each."""
        in_file = map(self.packed.entry, range(len(self.packed)))
        return {entry.name: entry for entry in in_file} | self._by_name

    def to_cbor(self) -> bytes:
        """Returns the bytes of the file: a CBOR sequence of `[name, salt, principal or null]`, by name."""
        if not self._by_name:
            return self.packed.data
        known = self._all()
        entries = (known[name] for name in sorted(known))
        return b"".join(cbor.encode([entry.name, entry.salt, entry.principal]) for entry in entries)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, all of it or nothing, readable by its owner alone."""
        atomic_write(path, self.to_cbor(), mode=0o600)

    def opened(self, contributor: Contributor) -> Contributor | None:
        """Returns a contributor whose commitments stand in hex, under its name; None where that is not known."""
        entry = self._named(bytes.fromhex(contributor.name))
        if entry is None:
            return None
        if contributor.principal is None:
            return replace(contributor, name=entry.name)
        if entry.principal is None or entry.committed_principal(entry.principal).hex() != contributor.principal:
            return None
        return replace(contributor, name=entry.name, principal=entry.principal)

    def told(self, text: str) -> str:
        """Returns a sentence with the names of contributors in place of their commitments in hex."""

        def name(found: re.Match[str]) -> str:
            entry = self._named(bytes.fromhex(found[0]))
            return found[0] if entry is None else entry.name

        return re.sub("[0-9a-f]{64}", name, text)

    def committed(
        self, actions: Iterable[Action], enrolled: Mapping[str, Contributor] = MappingProxyType({})
    ) -> tuple[list[Action], "Names"]:
        """Returns actions with commitments in place of names, and the names that open them: these, and those enrolled first.

        Args:
            enrolled: The contributors as the entries say them, by name. A principal that stands here alone, as after an
                enrolment that was cut short, gives way to one that is stated.

        Raises:
            RegistryRefused: Code KEY_UNKNOWN for a contributor who is not enrolled; TYPE or RANGE.
        """
        known, changed = self._by_name.copy(), list[Action]()
        for action in actions:
            if isinstance(action, Enrol) and not isinstance(action.name, bytes):
                entry = known.get(action.name) or self.find(action.name) or Named(action.name)
                said, principal = action.principal, None
                if said is not None:
                    principal = entry.committed_principal(said)
                    held = enrolled.get(entry.name)
                    entry = entry if held is not None and held.principal else replace(entry, principal=str(said))
                if entry != self.find(entry.name):
                    known[entry.name] = entry
                action = replace(action, name=entry.commitment(), principal=principal)
            elif isinstance(action, Grant | Revoke) and not isinstance(action.name, bytes):
                found = (known.get(action.name) or self.find(action.name)) if type(action.name) is str else None
                if found is None:
                    raise RegistryRefused("KEY_UNKNOWN", f"contributor {ascii(action.name)[:80]} is not in the registry")
                action = replace(action, name=found.commitment())
            changed.append(action)
        return changed, self if known == self._by_name else Names(known.values(), self.packed)


def beside(registry: str | os.PathLike[str]) -> Path:
    """Tells where the names of a registry lie: `registry.names` beside `registry.cbor`."""
    return Path(registry).with_suffix(SUFFIX)


def names_of(registry: str | os.PathLike[str]) -> Names | None:
    """Returns the names beside a registry; None where there is no such file. Raises RegistryRefused: As for `Names.read`."""
    path = beside(registry)
    return Names.read(path) if os.path.lexists(path) else None


def _named(value: Any) -> Named:
    if type(value) is not list or len(value) != 3:
        raise RegistryRefused("SCHEMA", "it is not an array of name, salt and principal")
    return Named(*value)
