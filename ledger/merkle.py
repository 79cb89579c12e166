"""Builds RFC 6962 Merkle trees over SHA-256: roots, inclusion proofs, consistency proofs, and a frontier for appends.

A leaf hashes as SHA-256(0x00 || data) and a node as SHA-256(0x01 || left || right) (RFC 6962, 2.1); the prefixes keep a leaf
from being read as a node. Functions take leaf *data*; those ending in ``_hashes`` or ``_hash`` take leaf hashes. Verification
follows the iterative algorithms of RFC 9162, 2.1.3.2 and 2.1.4.2.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ledger.errors import ProofError

HASH_SIZE: Final = 32
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()
"""Root of the tree with no leaves (RFC 6962, 2.1)."""

MAX_SIZE: Final = 1 << 63
"""Sizes stay below this, so that they fit a signed 64-bit column."""

RangeRoot = Callable[[int, int], bytes]
"""Gives the root over the leaves [low, high), where low is a multiple of a power of two that is at least high - low."""


def leaf_hash(data: bytes) -> bytes:
    """Hashes leaf data: SHA-256(0x00 || data)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hashes an interior node: SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def _pair_hash(pair: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + pair).digest()


class Frontier:
    """Keeps the perfect subtrees on the right edge of a growing tree: O(1) amortised appends, O(log n) memory.

    The stack holds one hash per set bit of the size, largest subtree first (the *compact range* [0, size)).
    """

    __slots__ = ("_stack", "size")

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """Restores a frontier. `hashes`: one 32-byte hash per set bit of ``size``, largest subtree first. Raises ProofError: if
        the number or the length of the hashes does not fit the size."""
        _check_size(size, "size")
        stack = list(hashes)
        if len(stack) != size.bit_count():
            expected = size.bit_count()
            raise ProofError("FRONTIER", f"a tree of {size} leaves has {expected} edge hashes, got {len(stack)}")
        _check_hashes(stack, "frontier")
        self.size = size
        self._stack = stack

    def append(self, hash_: bytes, level: int = 0) -> None:
        """Adds one leaf hash, or the root of a perfect subtree of 2^level leaves. Raises ProofError: no such subtree can begin
        at this size."""
        size = self.size >> level
        if size << level != self.size:
            raise ProofError("SUBTREE", f"no subtree of level {level} begins at leaf {self.size}")
        while size & 1:
            hash_ = node_hash(self._stack.pop(), hash_)
            size >>= 1
        self._stack.append(hash_)
        self.size += 1 << level

    def extend(self, hashes: Iterable[bytes]) -> None:
        """Adds leaf hashes in order."""
        for hash_ in hashes:
            self.append(hash_)

    def root(self) -> bytes:
        """Returns the root of the tree as it stands."""
        if not self._stack:
            return EMPTY_ROOT
        result = self._stack[-1]
        for left in reversed(self._stack[:-1]):
            result = node_hash(left, result)
        return result

    def copy(self) -> "Frontier":
        """Returns an independent copy."""
        return Frontier(self.size, self._stack)

    def to_bytes(self) -> bytes:
        """Returns the concatenated edge hashes, largest subtree first."""
        return b"".join(self._stack)

    @classmethod
    def from_bytes(cls, size: int, data: bytes) -> "Frontier":
        """Returns the inverse of `to_bytes`; raises ProofError when the bytes do not fit the size."""
        if len(data) % HASH_SIZE:
            raise ProofError("FRONTIER", f"edge hashes take a multiple of {HASH_SIZE} bytes, got {len(data)}")
        return cls(size, [data[i : i + HASH_SIZE] for i in range(0, len(data), HASH_SIZE)])


_AT_ONCE = 1 << 20
"""Bytes of a level that are hashed together, a multiple of a pair."""


class SlotTree:
    """Keeps a tree of which leaves change in place: O(log n) hashes per change, done when the root is asked for.

    All levels lie in one block of memory each, 64 bytes a leaf together.
    """

    __slots__ = ("_changed", "_levels", "_rooted")

    def __init__(self) -> None:
        self._levels = [bytearray()]
        self._changed: set[int] = set()  # of the leaves that were there when the root was last asked for
        self._rooted = 0

    @property
    def size(self) -> int:
        """Returns the number of leaves."""
        return len(self._levels[0]) // HASH_SIZE

    def append(self, hash_: bytes) -> int:
        """Adds a leaf hash, and returns its index."""
        _check_hashes([hash_], "leaf hash")
        index = self.size
        self._levels[0] += hash_
        return index

    def replace(self, index: int, hash_: bytes) -> None:
        """Puts another leaf hash in the place of one that is there."""
        _check_index(index, self.size)
        _check_hashes([hash_], "leaf hash")
        self._levels[0][index * HASH_SIZE : (index + 1) * HASH_SIZE] = hash_
        self._changed.add(index)

    def root(self) -> bytes:
        """Returns the RFC 6962 root of the tree as it stands."""
        if not self.size:
            return EMPTY_ROOT
        level, below, fresh = 0, self._levels[0], self.size - self._rooted
        whole = fresh > self._rooted
        changed = self._changed if whole or not fresh else self._changed.union(range(self._rooted, self.size))
        while len(below) > HASH_SIZE:
            level += 1
            if level == len(self._levels):
                self._levels.append(bytearray())
                whole = True
            here, pairs = self._levels[level], -(-len(below) // (2 * HASH_SIZE))
            # A lone right edge climbs unchanged, as in `root_of_hashes`.
            if whole := whole or len(changed) > pairs:
                here.clear()
                for start in range(0, len(below), _AT_ONCE):
                    data = bytes(below[start : start + _AT_ONCE])
                    end = len(data) // (2 * HASH_SIZE) * 2 * HASH_SIZE
                    hashes = [_pair_hash(data[at : at + 2 * HASH_SIZE]) for at in range(0, end, 2 * HASH_SIZE)]
                    here += b"".join(hashes) + data[end:]
            else:
                here += bytes(pairs * HASH_SIZE - len(here))
                changed = {index >> 1 for index in changed}
                for index in changed:
                    pair = bytes(below[2 * index * HASH_SIZE : 2 * (index + 1) * HASH_SIZE])
                    hash_ = _pair_hash(pair) if len(pair) > HASH_SIZE else pair
                    here[index * HASH_SIZE : (index + 1) * HASH_SIZE] = hash_
            below = here
        self._changed, self._rooted = set(), self.size
        return bytes(below)

    def inclusion_proof(self, index: int) -> list[bytes]:
        """Returns the audit path of a leaf in the tree as it stands (RFC 6962, 2.1.1), leaf side first. Raises ProofError: if
        the index is not in the tree."""
        _check_index(index, self.size)
        self.root()
        path = []
        for level in self._levels:
            sibling = bytes(level[(index ^ 1) * HASH_SIZE : ((index ^ 1) + 1) * HASH_SIZE])
            if sibling:
                path.append(sibling)
            index >>= 1
        return path


def root(leaves: Sequence[bytes]) -> bytes:
    """Returns the Merkle tree head of leaf data (RFC 6962, 2.1)."""
    return root_of_hashes([leaf_hash(leaf) for leaf in leaves])


def root_of_hashes(hashes: Sequence[bytes]) -> bytes:
    """Returns the Merkle tree head over leaf hashes."""
    level = list(hashes)
    _check_hashes(level, "leaf hashes")
    if not level:
        return EMPTY_ROOT
    while len(level) > 1:
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) & 1:
            # A lone right edge climbs unchanged, which is what splitting at the largest power of two amounts to.
            paired.append(level[-1])
        level = paired
    return level[0]


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Returns the audit path of leaf ``index`` in the tree over ``leaves`` (RFC 6962, 2.1.1). Raises ProofError: if the index
    is not in the tree."""
    return inclusion_proof_of_hashes([leaf_hash(leaf) for leaf in leaves], index)


def inclusion_proof_of_hashes(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Returns `inclusion_proof` over leaf hashes."""
    return inclusion_path(lambda low, high: root_of_hashes(hashes[low:high]), index, len(hashes))


def inclusion_path(root_of: RangeRoot, index: int, size: int) -> list[bytes]:
    """Returns the audit path of leaf ``index`` in a tree of ``size`` leaves (RFC 6962, 2.1.1), leaf side first. Raises
    ProofError: if the index is not in the tree."""
    _check_index(index, size)
    path: list[bytes] = []
    low, high = 0, size
    while high - low > 1:
        split = low + _largest_power_below(high - low)
        if index < split:
            path.append(root_of(split, high))
            high = split
        else:
            path.append(root_of(low, split))
            low = split
    path.reverse()
    return path


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Checks that ``leaf`` is entry ``index`` of the tree of ``size`` leaves with this ``root`` (RFC 9162, 2.1.3.2).

    Guarantee: Returns only if the proof recomputes ``root``. The same proof can also hold for other (index, size) pairs, so
    take the size from a signed checkpoint and the index from the leaf's own sequence number.

    Raises:
        ProofError: if the proof is malformed or gives another root.
    """
    verify_inclusion_hash(leaf_hash(leaf), index, size, proof, root)


def verify_inclusion_hash(hash_: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Runs `verify_inclusion` for a leaf hash."""
    _check_hashes([root], "root")
    result = root_of_inclusion(hash_, index, size, proof)
    if result != root:
        raise ProofError("INCLUSION", f"the proof leads to root {result.hex()}, expected {root.hex()}")


def root_of_inclusion(hash_: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """Returns the root to which a proof leads, which the caller compares, or whose signature it checks. Raises ProofError: if
    the proof does not have the hashes that leaf ``index`` of ``size`` needs."""
    _check_size(size, "size")
    _check_index(index, size)
    _check_hashes([hash_, *proof], "leaf hash and proof")
    node, last, result = index, size - 1, hash_
    for sibling in proof:
        if last == 0:
            raise ProofError("INCLUSION", f"the proof has more hashes than a tree of {size} leaves needs")
        if node & 1 or node == last:
            result = node_hash(sibling, result)
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            result = node_hash(result, sibling)
        node >>= 1
        last >>= 1
    if last != 0:
        raise ProofError("INCLUSION", f"the proof has fewer hashes than leaf {index} of {size} needs")
    return result


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """Returns the proof that the tree over ``leaves`` extends its own first ``old_size`` leaves (RFC 6962, 2.1.2). Raises
    ProofError: unless 1 <= old_size <= len(leaves)."""
    return consistency_proof_of_hashes([leaf_hash(leaf) for leaf in leaves], old_size)


def consistency_proof_of_hashes(hashes: Sequence[bytes], old_size: int) -> list[bytes]:
    """Returns `consistency_proof` over leaf hashes."""
    _check_size(old_size, "old size")
    return consistency_path(lambda low, high: root_of_hashes(hashes[low:high]), old_size, len(hashes))


def consistency_path(root_of: RangeRoot, old_size: int, size: int) -> list[bytes]:
    """Returns the proof that a tree of ``size`` leaves extends that of its first ``old_size`` (RFC 6962, 2.1.2). Raises
    ProofError: unless 1 <= old_size <= size."""
    if type(old_size) is not int or not 1 <= old_size <= size:
        raise ProofError("CONSISTENCY", f"the old size must lie in 1..{size}, got {old_size!r}")
    path: list[bytes] = []
    low, high, known = 0, size, True
    # SUBPROOF(m, D[low:high], known) of RFC 6962, unrolled from the top; `known` means the verifier has the old root.
    while old_size != high:
        split = low + _largest_power_below(high - low)
        if old_size <= split:
            path.append(root_of(split, high))
            high = split
        else:
            path.append(root_of(low, split))
            low, known = split, False
    if not known:
        path.append(root_of(low, high))
    path.reverse()
    return path


def verify_consistency(old_size: int, new_size: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> None:
    """Checks that the tree ``(new_size, new_root)`` is an extension of ``(old_size, old_root)`` (RFC 9162, 2.1.4.2).

    Guarantee: Returns only if every leaf under ``old_root`` is, unchanged and in place, under ``new_root``.

    Raises:
        ProofError: if the proof does not hold. An old size of 0 is refused: it would prove nothing.
    """
    _check_size(old_size, "old size")
    _check_size(new_size, "new size")
    _check_hashes(proof, "proof")
    if not 1 <= old_size <= new_size:
        raise ProofError("CONSISTENCY", f"need 1 <= old size <= new size, got {old_size} and {new_size}")
    if old_size == new_size:
        if proof:
            raise ProofError("CONSISTENCY", f"trees of one size need no proof, got {len(proof)} hashes")
        if old_root != new_root:
            raise ProofError("CONSISTENCY", f"two roots for size {old_size}: {old_root.hex()} and {new_root.hex()}")
        return
    path = list(proof)
    if old_size & (old_size - 1) == 0:
        path.insert(0, old_root)
    if not path:
        raise ProofError("CONSISTENCY", "the proof is empty")
    node, last = old_size - 1, new_size - 1
    while node & 1:
        node >>= 1
        last >>= 1
    old_result = new_result = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise ProofError("CONSISTENCY", "the proof has more hashes than the two sizes need")
        if node & 1 or node == last:
            old_result = node_hash(sibling, old_result)
            new_result = node_hash(sibling, new_result)
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            new_result = node_hash(new_result, sibling)
        node >>= 1
        last >>= 1
    if last != 0:
        raise ProofError("CONSISTENCY", "the proof has fewer hashes than the two sizes need")
    if old_result != old_root:
        raise ProofError("CONSISTENCY", f"the proof leads to old root {old_result.hex()}, expected {old_root.hex()}")
    if new_result != new_root:
        raise ProofError("CONSISTENCY", f"the proof leads to new root {new_result.hex()}, expected {new_root.hex()}")


def _largest_power_below(n: int) -> int:
    """Returns the largest power of two smaller than n (n >= 2)."""
    return 1 << ((n - 1).bit_length() - 1)


def _check_size(size: int, what: str) -> None:
    if type(size) is not int or not 0 <= size < MAX_SIZE:
        raise ProofError("SIZE", f"{what} must be an integer in 0..2^63-1, got {size!r}")


def _check_index(index: int, size: int) -> None:
    if type(index) is not int or not 0 <= index < size:
        raise ProofError("INDEX", f"a tree of {size} leaves has no leaf {index!r}")


def _check_hashes(hashes: Sequence[bytes], what: str) -> None:
    for hash_ in hashes:
        if type(hash_) is not bytes or len(hash_) != HASH_SIZE:
            raise ProofError("HASH", f"{what}: every hash is {HASH_SIZE} bytes")
