"""Reading an export for single leaves: a proof needs a few of its files, and trusts none of them.

Whoever reads through this checks what comes out: a leaf by its inclusion proof, a root by a consistency proof. Whether the
whole export holds is for the audit (`ledger.audit`).
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ledger import layout, tiles
from ledger.errors import LedgerCorrupt, ProofError
from ledger.note import peek_checkpoint
from ledger.proofs.prover import TileTree
from ledger.retention.nodes import KeptNodes
from ledger.retention.retained import is_stand_in


class ExportReader:
    """A directory in the layout of an export.

    Attributes:
        base: the directory.
        checkpoint: its signed note, as it lies there.
        claimed: what the note says; verify the note before relying on it.
        size: number of leaves that it claims.
    """

    def __init__(self, base: Path) -> None:
        """Reads the checkpoint.

        Raises:
            LedgerCorrupt: it cannot be read.
            NoteError: it is no checkpoint.
            ProofError: what it keeps of gone hashes is damaged.
        """
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
