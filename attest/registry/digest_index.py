"""Finds rows among many strings of 32 bytes: keys and commitments of a large registry, at 12 bytes a row."""

import secrets
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

WIDTH: Final = 32
"""Bytes of a row."""

_WORDS: Final = WIDTH // 8
_MASK: Final = 2**64 - 1
_FACTORS: Final = tuple(secrets.randbits(64) | 1 for _ in range(_WORDS))
"""Secret of this process, and of those that it starts: nobody prepares rows that are taken for each other."""


class DigestIndex:
    """Hashes of rows in sorted arrays, and the numbers of the rows.

    Guarantee: `extended` returns None where a row could be one that is there, or one row stands twice among the new ones; it
    may do so for rows that differ. `row` returns the one row that could be the one asked for. Both go by a hash of 64 bits, so
    whoever asks compares the bytes. An index never changes; those that grow from it share its arrays.

    Looking up a row takes no library beside Python's own, so that a worker of the gate need not load one.

    Args:
        levels: Sorted hashes and row numbers; a level holds more than twice the rows of the next one.
        factors: Of the hash.
    """

    __slots__ = ("_factors", "_levels")

    def __init__(
        self, levels: "tuple[tuple[array[int], array[int]], ...]" = (), factors: tuple[int, ...] = _FACTORS
    ) -> None:
        self._levels, self._factors = levels, factors

    def extended(self, rows: bytes | bytearray, start: int) -> "DigestIndex | None":
        """Returns an index with more rows; None where one of them may be there already.

        Args:
            rows: One after the other.
            start: Number of the first.
        """
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
        """Returns what `row` returns of each of many, as an array of 32-bit numbers.

        Args:
            wanted: Strings of 32 bytes, one after the other.
            missing: Stands for those that no row can be.
        """
        import numpy as np

        hashes = self._hashes(wanted)
        result = np.full(len(hashes), missing, np.uint32)
        for level, numbers in self._levels:
            places, hit = self._places(level, hashes)
            result[hit] = np.frombuffer(numbers, np.uint32)[places[hit]]
        return result

    def _hashes(self, rows: bytes | bytearray) -> "np.ndarray[Any, Any]":
        """A hash of each row: the sum of its words times secret odd factors, modulo 2^64."""
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
