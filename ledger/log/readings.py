"""Tells what an open ledger says of itself, and what it can check beyond its leaves."""

from collections.abc import Mapping
from dataclasses import dataclass

from ledger.audit.findings import Finding
from ledger.audit.signatures import ignored_lines, known_keys, tell_ignored
from ledger.errors import NoteError
from ledger.leaves import Charge, Header
from ledger.note import open_note
from ledger.replay import Replay
from ledger.storage.appender import Appender
from ledger.storage.beside import Beside, check_beside
from ledger.storage.fsck import Signed, check_attestations
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


@dataclass(frozen=True, slots=True)
class Examination:
    """What was examined.

    Attributes:
        findings: all that is wrong, each naming its file.
        notes: what a reader should know though nothing is wrong.
        pages: whether the database checked its own pages; not where it has no such check for its users.
        beside: what lies beside the ledger.
        signed: what is kept of attestations.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    pages: bool
    beside: Beside
    signed: Signed


class Examining:
    """Examination of an open ledger."""

    _file: Appender

    def examine(self) -> Examination:
        """Checks what opening does not read: pages of the database, attestations, lines of auditors, public key file, weights.

        Guarantee: with what opening has checked, no byte that changes what a reader of the ledger could see goes unnamed. Not
        meant are the word on which process wrote last (``lease``), lines under a checkpoint by keys that the policy does not
        name, comments in the public key file, and blanks and quotes in the text that made a table. ADMIT leaves without an
        attestation are named in a note: whoever admitted had none.

        Raises:
            LedgerCorrupt: the database is too damaged to be checked.
            StorageFailed: it, or the disk beside it, cannot be read.
        """
        store, run = self._file.store, self._file.replay
        wrong, where = store.examine(), store.place.shown
        pages = [Finding("INTEGRITY", where, f"{sentence}; put the last good copy back") for sentence in wrong or ()]
        lines, notes = _signature_lines(run, self._file.checkpoints, where)
        beside = check_beside(store.place, run.keys, run.epochs, self._file.pruned_before)
        with store.snapshot() as snapshot:
            signed = check_attestations(snapshot)
        notes += [] if signed.remark is None else [signed.remark]
        findings = (*pages, *signed.findings, *lines, *beside.findings)
        return Examination(findings, tuple(notes), wrong is not None, beside, signed)


def _signature_lines(run: Replay, checkpoints: Mapping[int, bytes], where: str) -> tuple[list[Finding], list[str]]:
    """Returns the lines under the stored checkpoints: those of known keys that do not verify, and a word on those of others."""
    known, opened, found = known_keys(run, ()), [], []
    for size, data in sorted(checkpoints.items()):
        try:
            opened.append(open_note(data, known))
        except NoteError as error:
            sentence = f"the checkpoint of {size} leaves: {error.sentence}; put the last good copy back"
            found.append(Finding(error.code, where, sentence))
    return found, tell_ignored(ignored_lines(opened, known))
