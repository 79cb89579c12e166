"""Makes proofs in logarithmic time: from a tree in memory, or from the few files of an export that a proof needs.

Both are the same computation over *nodes*: node (level, index) is the hash of the perfect subtree over the leaves
[index 2^level, (index + 1) 2^level). Nothing here is trusted: a proof holds or not, whoever made it (`ledger.merkle`).

Whoever reads through this checks what comes out: a leaf by its inclusion proof, a root by a consistency proof. Whether the
whole export holds is for the audit (`ledger.audit`).
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from ledger import layout, tiles
from ledger.errors import LedgerCorrupt, ProofError
from ledger.merkle import EMPTY_ROOT, HASH_SIZE, consistency_path, inclusion_path, node_hash
from ledger.note import peek_checkpoint
from ledger.retention import is_stand_in
from ledger.tiles import KeptNodes, refuse_within

TILES_KEPT: Final = 1024
"""Tiles whose nodes are held at a time, 16 KiB of hashes each; a proof needs two per level."""

NODES_KEPT: Final = 1 << 18
"""Nodes over kept ones that are held at a time: all there can be over a thousand tiles."""

Node = Callable[[int, int], bytes]
"""Gives the hash of the perfect subtree (level, index)."""


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


class TileTree:
    """Gives the nodes of an export's tree, from its hash tiles as they are needed, and from what it keeps where these are gone.
    """

    def __init__(self, fetch: Callable[[str], bytes], size: int, kept: KeptNodes | None = None) -> None:
        """Takes what reads a file of the export by its name, the signed size, and the nodes that stand for gone hashes."""
        self._fetch = fetch
        self._size = size
        self._kept = kept
        self._rebuilt: dict[tuple[int, int], bytes] = {}
        self._tiles: dict[tuple[int, int], list[list[bytes]]] = {}

    def node(self, level: int, index: int) -> bytes:
        """Returns the hash of a perfect subtree. Raises ProofError: the tree has none there, or a tile has another length than
        its width asks for; code HASHES_GONE where the hashes below it are gone, and it with them."""
        if (index + 1) << level > self._size:
            raise ProofError("NODE", f"a tree of {self._size} leaves has no perfect subtree {index} of {1 << level} leaves")
        row, height = divmod(level, layout.TILE_HEIGHT)
        n, place = divmod(index << height, layout.TILE_WIDTH)
        if self._kept is not None and not self._kept.has_tile(row, n):
            return self._kept_node(self._kept, level, index)
        return self._tile(row, n)[height][place >> height]

    def _kept_node(self, kept: KeptNodes, level: int, index: int) -> bytes:
        """Returns a node of a tile that is not there: one that is kept, or over such."""
        node = kept.around(index << level)
        if node is not None and node.level >= level:
            if node.level > level:
                refuse_within(node.first, node.end, index << level)
            return node.hash
        if not level:
            raise ProofError("NODE", f"neither a tile nor a kept node has the hash of leaf {index}; verify the export")
        if (level, index) not in self._rebuilt:
            if len(self._rebuilt) == NODES_KEPT:
                self._rebuilt.clear()
            below = self.node(level - 1, 2 * index), self.node(level - 1, 2 * index + 1)
            self._rebuilt[level, index] = node_hash(*below)
        return self._rebuilt[level, index]

    def _tile(self, row: int, n: int) -> list[list[bytes]]:
        """Returns the perfect subtrees of a tile by height, the tile's own hashes first."""
        if (row, n) not in self._tiles:
            width = min(layout.TILE_WIDTH, (self._size >> layout.TILE_HEIGHT * row) - n * layout.TILE_WIDTH)
            name = layout.tile_path(row, n, width)
            data = self._fetch(name)
            if len(data) != width * HASH_SIZE:
                raise ProofError("TILE", f"{name} has {len(data)} bytes, {width} hashes take {width * HASH_SIZE}")
            if len(self._tiles) == TILES_KEPT:
                self._tiles.clear()
            self._tiles[row, n] = _folded([data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE)])
        return self._tiles[row, n]


def tree_root(node: Node, size: int) -> bytes:
    """Returns the root over the first ``size`` leaves (RFC 6962, 2.1)."""
    return _range(node, 0, size) if size else EMPTY_ROOT


def inclusion_proof(node: Node, index: int, size: int) -> list[bytes]:
    """Returns the audit path of leaf ``index`` in the tree of ``size`` leaves (RFC 6962, 2.1.1), leaf side first. Raises
    ProofError: if the index is not in the tree."""
    return inclusion_path(partial(_range, node), index, size)


def consistency_proof(node: Node, old_size: int, size: int) -> list[bytes]:
    """Returns the proof that the tree of ``size`` leaves extends that of its first ``old_size`` (RFC 6962, 2.1.2). Raises
    ProofError: unless 1 <= old_size <= size."""
    return consistency_path(partial(_range, node), old_size, size)


def _range(node: Node, low: int, high: int) -> bytes:
    """Returns the root over leaves [low, high), where low is a multiple of a power of two that is at least high - low."""
    parts: list[bytes] = []
    while low < high:
        level = (high - low).bit_length() - 1
        parts.append(node(level, low >> level))
        low += 1 << level
    result = parts.pop()
    while parts:
        result = node_hash(parts.pop(), result)
    return result


def _folded(hashes: list[bytes]) -> list[list[bytes]]:
    """Returns the hashes, the perfect pairs over them, the perfect pairs over these, and so on."""
    levels = [hashes]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([node_hash(below[at], below[at + 1]) for at in range(0, len(below) - 1, 2)])
    return levels


class ExportReader:
    """Reads a directory in the layout of an export. What its note claims is to be verified before it is relied on."""

    def __init__(self, base: Path) -> None:
        """Reads the checkpoint. Raises LedgerCorrupt: it cannot be read; NoteError: it is no checkpoint; ProofError: what it
        keeps of gone hashes is damaged."""
        self.base = base
        self.checkpoint = _read(base, layout.CHECKPOINT)
        self.claimed = peek_checkpoint(self.checkpoint)
        self.size = self.claimed.size
        kept = None
        if (base / layout.RETAINED_NODES).is_file():
            kept = KeptNodes(self.read(layout.RETAINED_NODES), self.size)
        self._tree = TileTree(self.read, self.size, kept)

    def read(self, name: str) -> bytes:
        """Reads a file by its computed name; raises LedgerCorrupt if it cannot be read or is too large."""
        return _read(self.base, name, self.size)

    def node(self, level: int, index: int) -> bytes:
        """Returns a node of the tree (`ledger.proofs.prover.Node`); raises ProofError, code HASHES_GONE, where it is gone."""
        return self._tree.node(level, index)

    def leaf(self, seq: int) -> bytes:
        """Returns the bytes of a leaf; raises ProofError if the export has none of that number."""
        if not 0 <= seq < self.size:
            raise ProofError("INDEX", f"the export has leaves 0 to {self.size - 1}, and no leaf {seq}")
        found = self._bundle(seq // layout.TILE_WIDTH)[seq % layout.TILE_WIDTH]
        if is_stand_in(found):
            raise ProofError("PRUNED", f"the body of leaf {seq} was pruned; a proof file handed out before still shows it")
        return found

    def backwards(self) -> Iterator[tuple[int, bytes]]:
        """Yields (number, bytes) of all leaves, the last one first."""
        for n in reversed(range(-(-self.size // layout.TILE_WIDTH))):
            bundle = self._bundle(n)
            for place in reversed(range(len(bundle))):
                if not is_stand_in(bundle[place]):
                    yield n * layout.TILE_WIDTH + place, bundle[place]

    def entries(self) -> Iterator[bytes]:
        """Yields the bytes of all leaves in order, or what stands in for pruned ones."""
        for n in range(-(-self.size // layout.TILE_WIDTH)):
            yield from self._bundle(n)

    def _bundle(self, n: int) -> list[bytes]:
        width = layout.width_of(n, self.size)
        retained = layout.retained_path(n, width)
        name = retained if (self.base / retained).is_file() else layout.entries_path(n, width)
        return tiles.split_bundle(self.read(name), width)


def _read(base: Path, name: str, size: int = 0) -> bytes:
    limit = layout.max_file_size(name, size)
    try:
        descriptor = os.open(base / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            # The limit may follow from a size that nobody signed: no more is asked for than there is.
            data = stream.read(min(limit, found.st_size) + 1) if stat.S_ISREG(found.st_mode) else None
    except OSError as error:
        raise LedgerCorrupt("FILE", f"{base / name} cannot be read ({error.strerror or error}); is this an export?") from error
    if data is None or len(data) > limit:
        raise LedgerCorrupt("FILE", f"{base / name} is no regular file of at most {limit} bytes; verify the export")
    return data
