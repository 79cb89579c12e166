"""Follows a ledger that another process writes: the same leaves, replayed here, under the root that the writer tells.

A run of several processes has one writer. The others draw only what the ledger charged, so each of them holds its own replay.
"""

import struct
from collections.abc import Iterator, Sequence

from ledger.errors import LedgerCorrupt
from ledger.leaves import Header, decode_leaf
from ledger.log.ledger import Ledger
from ledger.merkle import Frontier, leaf_hash
from ledger.replay import Replay
from ledger.storage import fsck
from ledger.storage.store import Aggregated, Row

_HEAD = struct.Struct(">QQQQQQ")
_ROW = struct.Struct(">BBHI")
_NOTE = struct.Struct(">QI")
_AGGREGATE = struct.Struct(">QQQI")
_NEWS = struct.Struct(">Q32sQ")


def contents_of(ledger: Ledger) -> bytes:
    """Returns all that `Followed` needs of a ledger: leaves, checkpoints and what stands for pruned leaves."""
    with ledger.contents() as found:
        notes, kept, tree = sorted(found.checkpoints.items()), list(found.aggregates), found.head()
        head = tree.to_bytes()
        parts = [_HEAD.pack(found.pruned_before, found.hashes_before, len(notes), len(kept), tree.size, len(head)), head]
        parts += [_NOTE.pack(size, len(note)) + note for size, note in notes]
        parts += [_AGGREGATE.pack(one.first, one.end, one.summary_seq, len(one.record)) + one.record for one in kept]
        parts += [
            _ROW.pack(row.kind, row.level, len(row.leaf_hash), len(row.body)) + row.leaf_hash + row.body for row in found.rows()
        ]
    return b"".join(parts)


def news_of(bodies: Sequence[bytes], ledger: Ledger) -> bytes:
    """Returns leaves that were appended last, under the size and the root of the ledger, for `Followed.take`."""
    return _NEWS.pack(ledger.size, ledger.root, len(bodies)) + b"".join(struct.pack(">I", len(body)) + body for body in bodies)


class Followed:
    """A ledger as it arrives from its writer; nothing can be appended here.

    Guarantee: the state is that of a replay of the very leaves over which the writer tells its root: a leaf that contradicts
    those before it, or gives another root, is refused.
    """

    def __init__(self, data: bytes) -> None:
        """Takes a whole ledger, as `contents_of` gives it.

        Raises:
            LedgerCorrupt, LeafRefused: as `ledger.storage.fsck.load`.
        """
        self._loaded = fsck.derived(_contents(data))

    @property
    def state(self) -> Replay:
        """The replayed run."""
        return self._loaded.replay

    @property
    def header(self) -> Header:
        """Leaf 0."""
        return self.state.header

    @property
    def size(self) -> int:
        """Number of leaves."""
        return self._loaded.frontier.size

    @property
    def root(self) -> bytes:
        """Root of the tree over all leaves."""
        return self._loaded.frontier.root()

    @property
    def header_digest(self) -> bytes:
        """SHA-256 of leaf 0."""
        return self._loaded.header_digest

    @property
    def finished(self) -> bool:
        """True once the run was closed."""
        return self.state.closed

    def take(self, news: bytes) -> None:
        """Replays leaves that the writer has made durable, as `news_of` gives them.

        Raises:
            LedgerCorrupt: code FOLLOWED, they contradict the run, or do not give the root that the writer told.
        """
        size, root, count = _NEWS.unpack_from(news)
        place = _NEWS.size
        for _ in range(count):
            (length,) = struct.unpack_from(">I", news, place)
            body = news[place + 4 : place + 4 + length]
            place += 4 + length
            problems = self.state.apply(decode_leaf(body))
            if problems:
                raise LedgerCorrupt("FOLLOWED", f"a leaf of the writer contradicts the run: {problems[0].sentence}")
            self._loaded.frontier.append(leaf_hash(body))
            self._loaded.subtrees.append(leaf_hash(body))
        if (self.size, self.root) != (size, root):
            raise LedgerCorrupt(
                "FOLLOWED",
                f"the writer tells {size} leaves under the root {root.hex()}, those that arrived are {self.size} under "
                f"{self.root.hex()}; stop every process and resume the run",
            )


def _contents(data: bytes) -> fsck.Contents:
    pruned, hashes, notes, kept, leaves, length = _HEAD.unpack_from(data)
    place = _HEAD.size
    head = data[place : place + length]
    place += length
    checkpoints: dict[int, bytes] = {}
    for _ in range(notes):
        size, length = _NOTE.unpack_from(data, place)
        place += _NOTE.size
        checkpoints[size] = data[place : place + length]
        place += length
    aggregates = []
    for _ in range(kept):
        first, end, summary, length = _AGGREGATE.unpack_from(data, place)
        place += _AGGREGATE.size
        aggregates.append(Aggregated(first, end, summary, data[place : place + length]))
        place += length

    def rows(place: int = place) -> Iterator[Row]:
        seq = 0
        while place < len(data):
            kind, level, hashed, length = _ROW.unpack_from(data, place)
            place += _ROW.size
            yield Row(seq, kind, data[place : place + hashed], data[place + hashed : place + hashed + length], level)
            place += hashed + length
            seq += 1

    return fsck.Contents(lambda: Frontier.from_bytes(leaves, head), rows, checkpoints, aggregates, pruned, hashes)
