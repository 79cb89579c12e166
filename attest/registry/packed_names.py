"""The file of names as it lies on disk, with a table of places and an index of commitments: no object for each name."""

import re
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from attest.commitments import COMMITMENT_SIZE, REGISTRY_CONTRIBUTOR, commit
from attest.registry.digest_index import DigestIndex

if TYPE_CHECKING:
    import numpy as np

LEAST: Final = 1 << 16
"""Bytes of a file of names from which on it is kept as it lies on disk."""

_TEXT: Final = rb"([\x61-\x77]|\x78[\x18-\x40])([a-z0-9._/-]{1,64})"
_ITEM: Final = re.compile(rb"\x83" + _TEXT + rb"\x50(.{16})(?:\xf6|" + _TEXT + rb")", re.DOTALL)
"""An array of name, salt, and principal or null; the lengths that the heads of the texts say are compared apart."""


class PackedNames:
    """Names in ascending order, each with its salt and perhaps a principal; immutable.

    Guarantee: `read` accepts a file only if `attest.registry.names.Names.read` finds these names in it one by one.

    Args:
        data: The file.
        starts: Where each name's item begins.
        commitments: To the contributors of these names, 32 bytes each.
        index: Finds them.
    """

    __slots__ = ("_commitments", "_index", "_starts", "data")

    def __init__(self, data: bytes, starts: "array[int]", commitments: bytearray, index: DigestIndex) -> None:
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

    def entry(self, number: int) -> tuple[str, bytes, str | None]:
        """Returns a name, its salt and its principal."""
        item = _ITEM.match(self.data, self._starts[number])
        if item is None:
            raise IndexError(number)
        _, name, salt, _, principal = item.groups()
        return name.decode("ascii"), salt, None if principal is None else principal.decode("ascii")

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
        """Returns what `find_commitment` returns of each of many, as an array of 32-bit numbers.

        Args:
            commitments: 32 bytes each, one after the other.
            missing: Stands for those that are to none of these names.
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
