"""What somebody remembers of ledgers: the latest checkpoint of each, and evidence against those that contradict it.

An auditor who cosigns remembers what was cosigned (`ledger.proofs.cosigning`), whoever else verifies remembers the largest
checkpoint seen (`ledger.proofs.remembering`). Whoever loses the memory loses what keeps a log from showing two histories, or an
old one: keep it as a key is kept.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from ledger.errors import ExportChanged, LedgerBehind, LedgerCorrupt, LedgerForked, NoteError, ProofError, StorageFailed
from ledger.leaves.previous import COMPROMISED
from ledger.merkle import verify_consistency
from ledger.note import MAX_NOTE_SIZE, Checkpoint, open_note, parse_checkpoint, peek_checkpoint
from ledger.proofs.evidence import Evidence, judge
from ledger.proofs.prover import consistency_proof, tree_root
from ledger.proofs.reader import ExportReader

if TYPE_CHECKING:
    from ledger.audit import AuditReport
    from ledger.audit.findings import CitedRow

_PRIVATE: Final = 0o600

Kind = Literal["cosigned", "seen"]
"""What is remembered: notes that an auditor cosigned, or notes that were seen. One directory may hold both."""

_SUFFIX: Final[dict[Kind, str]] = {"cosigned": "note", "seen": "seen"}


@dataclass(frozen=True, slots=True)
class Remembered:
    """The latest checkpoint of a log.

    Attributes:
        note: as it was kept.
        checkpoint: what it commits to.
        time: POSIX seconds of the cosignature; 0 where none was asked for.
    """

    note: bytes
    checkpoint: Checkpoint
    time: int


class Memory:
    """A directory with the latest note per log.

    What was cosigned is verified as the auditor's own when it is read. What was seen was verified before it was kept; the log
    may have signed it with a later key than those that an older export leads to, so it is read whoever signed it.
    """

    def __init__(self, directory: Path, *keys: str, kind: Kind = "cosigned") -> None:
        """Takes the directory.

        Args:
            directory: where it lies; it is made when it is first held.
            keys: verifier key of the auditor, for what was cosigned.
            kind: what is remembered.
        """
        self.directory, self.kind = directory, kind
        self._keys = list(keys)

    def path(self, origin: str) -> Path:
        """Returns the file for a log."""
        return self.directory / f"{_digest(origin.encode())}.{_SUFFIX[self.kind]}"

    def read(self, origin: str) -> Remembered | None:
        """Returns what is remembered of a log, None for nothing.

        Raises:
            LedgerCorrupt: the file is not a checkpoint of that log, or not one that this auditor cosigned.
        """
        path = self.path(origin)
        if not path.exists():
            return None
        try:
            note = read_limited(path, MAX_NOTE_SIZE, "memory of an auditor")
            if self.kind == "seen":
                checkpoint, time = peek_checkpoint(note), 0
            else:
                opened = open_note(note, self._keys)
                checkpoint, time = parse_checkpoint(opened.text), opened.signatures[0].timestamp or 0
        except (FileRefused, NoteError) as error:
            why = self._other_names(note, origin) if error.code == "UNSIGNED" else error.sentence
            raise LedgerCorrupt("MEMORY", f"{path} is not what was {self.kind}: {why}") from error
        if checkpoint.origin != origin:
            raise LedgerCorrupt("MEMORY", f"{path} is of {checkpoint.origin!r}, expected {origin!r}")
        return Remembered(note, checkpoint, time)

    def _other_names(self, note: bytes, origin: str) -> str:
        """Tells who cosigned a note that this auditor did not sign; a name that was left out is the usual reason."""
        lines = note.decode("utf-8", "replace").splitlines()
        names = [name for name in (line.split(" ")[1] for line in lines if line.startswith("— ")) if name != origin]
        by = ", ".join(names) or "nobody else"
        keys = ", ".join(self._keys)
        return f"{keys} did not, lines in it are by {by}; give the key, and with --name the name, that cosigned it"

    def keep(self, origin: str, note: bytes) -> None:
        """Replaces what is remembered of a log; on disk when it returns, and for its owner alone to read."""
        self._write(self.path(origin), note, _PRIVATE)

    def accuse(self, evidence: Evidence) -> Path:
        """Writes an evidence file beside the notes; the same evidence twice is one file."""
        data = evidence.to_bytes()
        path = self.directory / f"{_digest(data)}.evidence"
        self._write(path, data, 0o644)
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the memory for this process alone; waits for another that holds it."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.directory / "lock", os.O_WRONLY | os.O_CREAT | os.O_APPEND, _PRIVATE)
        except OSError as error:
            raise StorageFailed("MEMORY", f"cannot use {self.directory}: {error.strerror or error}") from error
        with open(descriptor, "ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _write(self, path: Path, data: bytes, mode: int) -> None:
        try:
            atomic_write(path, data, mode)
        except OSError as error:
            raise StorageFailed("MEMORY", f"cannot write {path}: {error.strerror or error}") from error


def audited_checkpoint(reader: ExportReader, report: "AuditReport", keys: Sequence[str]) -> Checkpoint:
    """Returns the checkpoint of an export, which must be the one that its audit saw.

    Raises:
        ExportChanged: code CHANGED.
        NoteError: none of the keys signed it.
    """
    offered = parse_checkpoint(open_note(reader.checkpoint, keys).text)
    if (offered.origin, offered.size, offered.root.hex()) != (report.origin, report.size, report.root_hex):
        raise ExportChanged("CHANGED", "the checkpoint changed while it was audited; audit a copy that nobody writes")
    return offered


def contradicted(memory: Memory, cited: Sequence["CitedRow"]) -> str | None:
    """Tells which earlier ledger a header cites otherwise than it is remembered; None for none.

    A ledger whose key is said to be lost at fewer leaves than are remembered had more: what was charged to it there would count
    nowhere. Of a ledger that was closed where it is cited leaves may follow, and only its export tells what they are.

    Args:
        memory: what is remembered; it should be locked.
        cited: the earlier ledgers.

    Raises:
        LedgerCorrupt: the memory cannot be read.
    """
    for item in cited:
        known = memory.read(item.origin)
        if known is None:
            continue
        size, told = known.checkpoint.size, f"{item.size} leaves of {item.origin} are cited as {item.reason}"
        if size > item.size and item.reason == COMPROMISED:
            return f"{told}, and {size} were {memory.kind}: it had not ended there"
        if size == item.size and known.checkpoint.root.hex() != item.root_hex:
            return f"{told} with the root {item.root_hex}, and as many were {memory.kind} with another: two histories of it"
    return None


def check_extends(
    before: Remembered, offered: Checkpoint, reader: ExportReader, memory: Memory, log_keys: Sequence[str]
) -> None:
    """Proves that the tree offered extends the one remembered, or raises with evidence that it does not.

    Args:
        before: what is remembered.
        offered: the checkpoint of the export, verified.
        reader: the export.
        memory: takes the evidence.
        log_keys: verifier keys of the log, under which evidence must stand.

    Raises:
        LedgerBehind: the tree offered is smaller; the sentence names the evidence file.
        LedgerForked: it is another history; likewise. The evidence stands alone where these keys signed both.
        ExportChanged: the export does not give its signed root any more.
    """
    old = before.checkpoint
    if offered.size < old.size:
        path = memory.accuse(Evidence(before.note, reader.checkpoint))
        sentence = f"{old.size} leaves were {memory.kind}, {offered.size} are offered: an old copy, or a rollback; see {path}"
        raise LedgerBehind("BEHIND", sentence)
    proof = consistency_proof(reader.node, old.size, offered.size)
    try:
        verify_consistency(old.size, offered.size, proof, old.root, offered.root)
    except ProofError as error:
        evidence = Evidence(before.note, reader.checkpoint)
        if offered.size > old.size:
            evidence = Evidence(before.note, reader.checkpoint, tree_root(reader.node, old.size), tuple(proof))
        try:
            judge(evidence, log_keys)
        except ProofError as unproved:
            sentence = f"the tiles do not give the signed root any more ({unproved.sentence}); audit a copy that nobody writes"
            raise ExportChanged("CHANGED", sentence) from error
        except NoteError:
            path, keys = memory.accuse(evidence), ", ".join(log_keys)
            raise LedgerForked(
                "FORKED",
                f"the {old.size} leaves that were {memory.kind} are not the first of this export, and none of {keys} signed "
                f"them: another ledger has its name, its key went another way, or the memory is damaged; see {path}",
            ) from error
        path = memory.accuse(evidence)
        raise LedgerForked(
            "FORKED",
            f"the log signed another history of the {old.size} leaves that were {memory.kind}; publish {path}, which shows it",
        ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
