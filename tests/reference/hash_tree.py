"""A tree in memory with all its nodes: proofs made of it are those that are made of the files of an export."""

from collections.abc import Iterable

from ledger.errors import ProofError
from ledger.merkle import HASH_SIZE, node_hash


class HashTree:
    """Keeps all nodes of a growing tree, 64 bytes a leaf."""

    def __init__(self, hashes: Iterable[bytes] = ()) -> None:
        self._levels: list[bytearray] = [bytearray()]
        self.extend(hashes)

    @property
    def size(self) -> int:
        """Returns the number of leaves."""
        return len(self._levels[0]) // HASH_SIZE

    def extend(self, hashes: Iterable[bytes]) -> None:
        """Adds leaf hashes in order."""
        for hash_ in hashes:
            level = 0
            self._levels[0] += hash_
            while not len(self._levels[level]) % (2 * HASH_SIZE):
                row = self._levels[level]
                level += 1
                if level == len(self._levels):
                    self._levels.append(bytearray())
                self._levels[level] += node_hash(bytes(row[-2 * HASH_SIZE : -HASH_SIZE]), bytes(row[-HASH_SIZE:]))

    def node(self, level: int, index: int) -> bytes:
        """Returns the hash of a perfect subtree; raises ProofError where the tree has none."""
        row = self._levels[level] if level < len(self._levels) else b""
        hash_ = bytes(row[index * HASH_SIZE : (index + 1) * HASH_SIZE])
        if len(hash_) != HASH_SIZE:
            raise ProofError("NODE", f"a tree of {self.size} leaves has no perfect subtree {index} of {1 << level} leaves")
        return hash_
