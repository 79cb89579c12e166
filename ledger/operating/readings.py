"""What an open ledger says of itself, for reading."""

from ledger.leaves import Charge, Header
from ledger.replay import Replay
from ledger.storage.appender import Appender
from ledger.storage.place import Place


class Readings:
    """Public facts of an open ledger, each read from its replayed state."""

    _file: Appender

    @property
    def place(self) -> Place:
        """Where the ledger lies."""
        return self._file.store.place

    @property
    def header(self) -> Header:
        """Leaf 0."""
        return self.state.header

    @property
    def size(self) -> int:
        """Number of leaves."""
        return self._file.size

    @property
    def root(self) -> bytes:
        """Root of the tree over all leaves."""
        return self._file.frontier.root()

    @property
    def state(self) -> Replay:
        """The replayed run, for reading: windows, epochs, contributions, totals."""
        return self._file.replay

    @property
    def admitted(self) -> frozenset[bytes]:
        """Descriptor hashes of all contributions ever admitted."""
        return frozenset(self.state.contributions)

    @property
    def withdrawn(self) -> frozenset[bytes]:
        """Descriptor hashes of all withdrawals, those that matched no contribution included."""
        return frozenset(self.state.withdrawals)

    @property
    def windows(self) -> list[Charge]:
        """All CHARGE leaves."""
        return list(self.state.windows)

    @property
    def charged_steps(self) -> int:
        """Steps charged over all attempts."""
        return self.state.charged

    @property
    def attempt(self) -> int:
        """Number of the running attempt."""
        return self.state.attempt

    @property
    def header_digest(self) -> bytes:
        """SHA-256 of leaf 0."""
        return self._file.header_digest

    @property
    def finished(self) -> bool:
        """Whether the run was closed."""
        return self.state.closed

    @property
    def checkpoint_sizes(self) -> list[int]:
        """The sizes over which a signed checkpoint is kept, ascending."""
        return sorted(self._file.checkpoints)

    @property
    def checkpoint(self) -> bytes:
        """The latest signed checkpoint note."""
        return self._file.checkpoints[max(self._file.checkpoints)]
