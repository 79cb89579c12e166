"""Finds rows among many strings of 32 bytes: keys and commitments of a large registry, at 12 bytes a row."""

import secrets
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

    Args:
        levels: Sorted hashes and row numbers; a level holds more than twice the rows of the next one.
        factors: Of the hash.
    """

    __slots__ = ("_factors", "_levels")

    def __init__(
        self, levels: "tuple[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], ...]" = (), factors: tuple[int, ...] = _FACTORS
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
        order = np.argsort(hashes, kind="stable").astype(np.uint32)
        hashes, numbers = hashes[order], order + np.uint32(start)
        if (hashes[1:] == hashes[:-1]).any() or any(self._found(level, hashes).any() for level, _ in self._levels):
            return None
        levels = [*self._levels, (hashes, numbers)]
        while len(levels) > 1 and len(levels[-2][0]) <= 2 * len(levels[-1][0]):
            (one, first), (two, second) = levels[-2:]
            both = np.concatenate((one, two))
            merged = np.argsort(both, kind="stable")
            levels[-2:] = [(both[merged], np.concatenate((first, second))[merged])]
        return DigestIndex(tuple(levels), self._factors)

    def row(self, wanted: bytes) -> int | None:
        """Returns the number of the only row that can be the one given; None if none can."""
        if not self._levels or len(wanted) != WIDTH:
            return None
        words = (int.from_bytes(wanted[at : at + 8], "little") for at in range(0, WIDTH, 8))
        value = sum(word * factor for word, factor in zip(words, self._factors, strict=True)) & _MASK
        for hashes, numbers in self._levels:
            place = int(hashes.searchsorted(hashes.dtype.type(value)))
            if place < len(hashes) and int(hashes[place]) == value:
                return int(numbers[place])
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
            places = np.minimum(np.searchsorted(level, hashes), len(level) - 1)
            hit = level[places] == hashes
            result[hit] = numbers[places[hit]]
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
    def _found(level: "np.ndarray[Any, Any]", hashes: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        import numpy as np

        found: np.ndarray[Any, Any] = level[np.minimum(np.searchsorted(level, hashes), len(level) - 1)] == hashes
        return found
