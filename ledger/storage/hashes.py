"""All leaf hashes of an open ledger in one block of memory: 32 bytes a leaf, where a list of bytes takes about 90."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from ledger.errors import ProofError
from ledger.merkle import HASH_SIZE, Frontier


class LeafHashes(Sequence[bytes]):
    """Leaf hashes by position."""

    __slots__ = ("_data",)

    def __init__(self, hashes: Iterable[bytes] = ()) -> None:
        self._data = bytearray()
        self.extend(hashes)

    def __len__(self) -> int:
        return len(self._data) // HASH_SIZE

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self._at(index) for index in range(*at.indices(len(self)))]
        return self._at(range(len(self))[at])

    def append(self, hash_: bytes) -> None:
        """Adds one leaf hash."""
        if len(hash_) != HASH_SIZE:
            raise ProofError("HASH", f"a leaf hash has {HASH_SIZE} bytes, got {len(hash_)}")
        self._data += hash_

    def extend(self, hashes: Iterable[bytes]) -> None:
        """Adds leaf hashes in order."""
        for hash_ in hashes:
            self.append(hash_)

    def between(self, first: int, end: int) -> Iterator[bytes]:
        """Yields the leaf hashes from one position up to another."""
        return map(self._at, range(first, min(end, len(self))))

    def root(self, size: int) -> bytes:
        """Returns the root over the first ``size`` leaves, in memory that does not grow with them.

        Raises:
            ProofError: if there are fewer.
        """
        if not 0 <= size <= len(self):
            raise ProofError("SIZE", f"there are {len(self)} leaves, not {size}")
        frontier = Frontier()
        for index in range(size):
            frontier.append(self._at(index))
        return frontier.root()

    def _at(self, index: int) -> bytes:
        return bytes(self._data[index * HASH_SIZE : (index + 1) * HASH_SIZE])
