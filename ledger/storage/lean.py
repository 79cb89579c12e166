"""A database as it would be, were bodies or hashes of it gone: it is read and checked whole before anything is dropped."""

from array import array
from collections.abc import Container, Iterable, Iterator

from ledger.leaves import Resume, decode_leaf
from ledger.merkle import Frontier
from ledger.storage.store import Aggregated, Row, Snapshot
from ledger.subtrees import Subtree, joined


class _AsItIs:
    """A snapshot, passed through."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def head(self) -> Frontier:
        """Returns the head, as it is."""
        return self._snapshot.head()

    def rows(self) -> Iterator[Row]:
        """Returns the rows, as they are."""
        return self._snapshot.rows()

    def checkpoints(self) -> dict[int, bytes]:
        """Returns the checkpoint notes, as they are."""
        return self._snapshot.checkpoints()

    def pruned_before(self) -> int:
        """Returns below which position bodies may be gone, as it is now."""
        return self._snapshot.pruned_before()

    def hashes_before(self) -> int:
        """Returns below which position hashes may be gone, as it is now."""
        return self._snapshot.hashes_before()

    def aggregates(self) -> Iterator[Aggregated]:
        """Returns the aggregates, as they are."""
        return self._snapshot.aggregates()


class WithoutBodies(_AsItIs):
    """A database as `Store.prune` would leave it.

    Attributes:
        dropped: positions of the bodies that would go, once its rows were read.
        fresh: the aggregates that would come into the database.
    """

    def __init__(self, snapshot: Snapshot, before: int, seqs: Container[int], aggregates: Iterable[Aggregated]) -> None:
        """Takes the database as it is, the leaves whose bodies go, and what would stand for them."""
        super().__init__(snapshot)
        self.dropped = array("q")
        stored = {aggregate.first for aggregate in snapshot.aggregates()}
        self.fresh = [aggregate for aggregate in aggregates if aggregate.first not in stored]
        self._before, self._seqs = before, seqs

    def rows(self) -> Iterator[Row]:
        """Yields the rows without the bodies that would go."""
        self.dropped = array("q")
        for row in self._snapshot.rows():
            if row.body and row.seq < self._before and row.seq in self._seqs:
                self.dropped.append(row.seq)
                yield row._replace(body=b"")
            else:
                yield row

    def pruned_before(self) -> int:
        """Returns below which position bodies may be gone, as it would be."""
        return self._before

    def aggregates(self) -> Iterator[Aggregated]:
        """Yields what is there and what would come."""
        yield from self._snapshot.aggregates()
        yield from self.fresh


class WithoutHashes(_AsItIs):
    """A database as `Store.drop_hashes` would leave it.

    Attributes:
        dropped: how many hashes would go, once its rows were read.
    """

    def __init__(self, snapshot: Snapshot, before: int, subtrees: Iterable[Subtree]) -> None:
        """Takes the database as it is, and the subtrees that would stand for hashes, in order."""
        super().__init__(snapshot)
        self.dropped = 0
        self._before, self._subtrees = before, list(subtrees)

    def rows(self) -> Iterator[Row]:
        """Yields the rows without the hashes that would go."""
        self.dropped, pending = 0, iter(self._subtrees)
        subtree = next(pending, None)
        for row in self._snapshot.rows():
            while subtree is not None and subtree.end <= row.seq:
                subtree = next(pending, None)
            if subtree is None or row.seq < subtree.first:
                yield row
                continue
            kept = subtree.hash if row.seq == subtree.first else b""
            self.dropped += bool(row.leaf_hash) and not kept
            yield row._replace(leaf_hash=kept, level=subtree.level)

    def hashes_before(self) -> int:
        """Returns below which position hashes may be gone, as it would be."""
        return self._before


def droppable(snapshot: Snapshot, before: int, cuts: Iterable[int]) -> Iterator[Subtree]:
    """Yields the maximal aligned subtrees of pruned leaves that are not in the database already, each of two leaves or more.

    Args:
        snapshot: the database.
        before: position below which hashes may go.
        cuts: sizes of trees whose roots must still be made, such as those of checkpoints; those that RESUME leaves cite are
            found here.
    """
    there: dict[int, int] = {}

    def pruned() -> Iterator[Subtree]:
        for row in snapshot.rows():
            if row.seq >= before:
                break
            if not row.body and row.leaf_hash:
                if row.level:
                    there[row.seq] = row.level
                yield Subtree(row.seq, row.level, row.leaf_hash)

    for subtree in joined(pruned(), _with_pins(snapshot, cuts)):
        if subtree.level and there.pop(subtree.first, 0) != subtree.level:
            yield subtree


def _with_pins(snapshot: Snapshot, cuts: Iterable[int]) -> Container[int]:
    pins = (decode_leaf(row.body) for row in snapshot.rows() if row.kind == Resume.KIND and row.body)
    return {*cuts, *(leaf.pinned_size for leaf in pins if isinstance(leaf, Resume) and leaf.pinned_size is not None)}
