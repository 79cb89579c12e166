"""Which leaves a ledger has: counted by kind as they are read, so that a reader knows where to look for what was said."""

from collections.abc import Iterable

from ledger.audit.findings import KindRow
from ledger.leaves import Leaf


class Kinds:
    """Takes every leaf of a run in order, and keeps a row per kind."""

    def __init__(self, header: Leaf) -> None:
        """Begins with leaf 0."""
        self._rows: dict[type, tuple[int, int, int]] = {}
        self.see(header)

    def see(self, leaf: Leaf) -> None:
        """Takes the next leaf."""
        count, first, _ = self._rows.get(type(leaf), (0, leaf.seq, 0))
        self._rows[type(leaf)] = count + 1, first, leaf.seq

    def rows(self) -> tuple[KindRow, ...]:
        """Returns the kinds in the order in which they first came."""
        return tuple(KindRow(kind.__name__.upper(), *row) for kind, row in self._rows.items())


def count_of(rows: Iterable[KindRow], kind: str) -> int:
    """Returns how many leaves of a kind there are."""
    return next((row.count for row in rows if row.kind == kind), 0)
