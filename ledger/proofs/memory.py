"""Remembers the latest checkpoint of each ledger, holds later exports against it, and keeps evidence of a fork.

A file of text, for publication: whoever has the log's key can check it, and needs neither ledger nor export::

    dptrain-ledger-evidence-v1
    prefix <base64>          root that the later tree gives its first leaves, as many as the earlier one has; and
    <base64>                 the consistency proof from there to the later root (RFC 6962, 2.1.2), a hash a line.
                             Both are left out where the sizes are equal, or the checkpoint offered is the smaller one
    <checkpoint note remembered>

    <checkpoint note offered>

after an empty line each. A checkpoint's text has no empty line, so the parts cannot be mistaken.

An auditor who cosigns remembers what was cosigned (`ledger.proofs.cosigning`), whoever else verifies remembers the largest
checkpoint seen. Whoever loses the memory loses what keeps a log from showing two histories, or an old one: keep it as a key is
kept.

An export is of any size that was ever signed, so nothing in it shows that its tail was cut. Whoever remembers how far the
ledger had come finds that; and finds a fork, with evidence that anybody can check.
"""

import base64
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from attest.schema.plain import read_base64
from ledger import layout
from ledger.audit import AuditReport, Finding
from ledger.errors import ExportChanged, LedgerBehind, LedgerCorrupt, LedgerForked, NoteError, ProofError, StorageFailed
from ledger.leaves.header import COMPROMISED
from ledger.merkle import HASH_SIZE, verify_consistency
from ledger.note import MAX_NOTE_SIZE, Checkpoint, open_note, parse_checkpoint, peek_checkpoint
from ledger.proofs.prover import ExportReader, consistency_proof, tree_root

if TYPE_CHECKING:
    from ledger.audit import AuditReport
    from ledger.audit.findings import CitedRow


HEADER: Final = "dptrain-ledger-evidence-v1"
"""First line of an evidence file."""

MAX_EVIDENCE_SIZE: Final = 2 * MAX_NOTE_SIZE + 8_192
"""Longest evidence file that is looked at, in bytes."""

Contradiction = Literal["FORK", "ROLLBACK"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Holds two checkpoints of one log. `prefix`: where the note offered is of the larger tree, the root of that tree's first
    leaves, as many as the remembered one has; else None."""

    remembered: bytes
    offered: bytes
    prefix: bytes | None = None
    proof: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        """Returns the file."""
        lines = [HEADER]
        if self.prefix is not None:
            lines += [f"prefix {_base64(self.prefix)}", *map(_base64, self.proof)]
        return "\n".join(lines).encode() + b"\n\n" + self.remembered + b"\n" + self.offered


@dataclass(frozen=True, slots=True)
class Judgement:
    """Names what evidence shows. `kind`: FORK, two histories under the log's own signature; or ROLLBACK, a smaller tree offered
    after a larger one, which an old copy does too."""

    kind: Contradiction
    remembered: Checkpoint
    offered: Checkpoint


def parse_evidence(data: bytes) -> Evidence:
    """Reads an evidence file; raises ProofError if it is malformed."""
    if type(data) is not bytes or len(data) > MAX_EVIDENCE_SIZE:
        raise ProofError("EVIDENCE_SIZE", f"an evidence file has at most {MAX_EVIDENCE_SIZE} bytes")
    parts = data.split(b"\n\n")
    header, *lines = parts[0].decode("ascii", "replace").split("\n")
    if header != HEADER or len(parts) != 5:
        raise ProofError("EVIDENCE_FORMAT", f"expected {HEADER!r}, perhaps a prefix and a proof, and two checkpoint notes")
    prefix = None
    if lines:
        word, _, root = lines.pop(0).partition(" ")
        prefix = _hash(root if word == "prefix" else "")
    return Evidence(
        remembered=parts[1] + b"\n\n" + parts[2] + b"\n",
        offered=parts[3] + b"\n\n" + parts[4],
        prefix=prefix,
        proof=tuple(map(_hash, lines)),
    )


def judge(evidence: Evidence, log_keys: Sequence[str]) -> Judgement:
    """Says what evidence shows, believing nothing of it that the log's key does not confirm.

    Guarantee: FORK is returned only if a key given signed two checkpoints of one origin whose trees differ in a leaf that both
    have.

    Raises:
        NoteError: a note is not signed by the log's key.
        ProofError: the two checkpoints are of different logs, or nothing shows that they disagree.
    """
    remembered, offered = (parse_checkpoint(open_note(note, log_keys).text) for note in (evidence.remembered, evidence.offered))
    if remembered.origin != offered.origin:
        raise ProofError("EVIDENCE_ORIGIN", f"the checkpoints are of {remembered.origin!r} and of {offered.origin!r}")
    if offered.size < remembered.size:
        return Judgement("ROLLBACK", remembered, offered)
    prefix = offered.root if offered.size == remembered.size else evidence.prefix
    if prefix is None or prefix == remembered.root:
        raise ProofError("NO_EVIDENCE", "nothing here shows that the two checkpoints disagree")
    verify_consistency(remembered.size, offered.size, evidence.proof, prefix, offered.root)
    return Judgement("FORK", remembered, offered)


def _hash(text: str) -> bytes:
    found = read_base64(text)
    if found is None or len(found) != HASH_SIZE:
        raise ProofError("EVIDENCE_FORMAT", f"expected the base64 of {HASH_SIZE} bytes, got {text!r:.60}")
    return found


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_PRIVATE: Final = 0o600

Kind = Literal["cosigned", "seen"]
"""Tells notes that an auditor cosigned from notes that were seen. One directory may hold both."""

_SUFFIX: Final[dict[Kind, str]] = {"cosigned": "note", "seen": "seen"}


@dataclass(frozen=True, slots=True)
class Remembered:
    """Holds the latest checkpoint of a log. `time`: POSIX seconds of the cosignature; 0 where none was asked for."""

    note: bytes
    checkpoint: Checkpoint
    time: int


class Memory:
    """Keeps the latest note of each log in a directory.

    What was cosigned is verified as the auditor's own when it is read. What was seen was verified before it was kept; the log
    may have signed it with a later key than those that an older export leads to, so it is read whoever signed it.
    """

    def __init__(self, directory: Path, *keys: str, kind: Kind = "cosigned") -> None:
        """Takes the directory, which is made when it is first held; `keys` are the auditor's, for what was cosigned."""
        self.directory, self.kind = directory, kind
        self._keys = list(keys)

    def path(self, origin: str) -> Path:
        """Returns the file for a log."""
        return self.directory / f"{_digest(origin.encode())}.{_SUFFIX[self.kind]}"

    def read(self, origin: str) -> Remembered | None:
        """Returns what is remembered of a log, None for nothing. Raises LedgerCorrupt: the file is not a checkpoint of that
        log, or not one that this auditor cosigned."""
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
    """Returns the checkpoint of an export, which must be the one that its audit saw. Raises ExportChanged: code CHANGED;
    NoteError: none of the keys signed it."""
    offered = parse_checkpoint(open_note(reader.checkpoint, keys).text)
    if (offered.origin, offered.size, offered.root.hex()) != (report.origin, report.size, report.root_hex):
        raise ExportChanged("CHANGED", "the checkpoint changed while it was audited; audit a copy that nobody writes")
    return offered


def contradicted(memory: Memory, cited: Sequence["CitedRow"]) -> str | None:
    """Tells which earlier ledger a header cites otherwise than a locked memory has it; None for none.

    A ledger whose key is said to be lost at fewer leaves than are remembered had more: what was charged to it there would count
    nowhere. Of a ledger that was closed where it is cited leaves may follow, and only its export tells what they are. Raises
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


ANSWERED = "UNCOMPARED"
"""The qualifier that no longer holds once a checkpoint was compared with one seen before."""


def hold_against_memory(report: AuditReport, export: Path, directory: Path, log_keys: Sequence[str]) -> AuditReport:
    """Holds an export that passed its audit against the largest checkpoint that was seen of its ledger, and remembers it.

    Guarantee: The report comes back without a finding only if the tree extends the one remembered, or nothing was remembered;
    and then no smaller one is remembered, on disk; and no earlier ledger is cited otherwise than it is remembered
    (`ledger.proofs.memory.contradicted`). A smaller tree, or one of another history, is FAILED, and changes nothing but that an
    evidence file is written beside (`ledger.proofs.memory`). So is one of which it cannot be shown any more, because hashes
    about the remembered size are gone. A report that FAILED before comes back as it is, and is not remembered.

    Raises:
        StorageFailed: the memory cannot be read or written.
    """
    if report.verdict == "FAILED" or report.origin is None:
        return report
    keys = list(dict.fromkeys([*log_keys, *report.log_keys]))
    memory = Memory(directory, kind="seen")
    try:
        reader = ExportReader(export)
        offered = audited_checkpoint(reader, report, keys)
        with memory.locked():
            before = memory.read(report.origin)
            if before is not None:
                check_extends(before, offered, reader, memory, keys)
            if wrong := contradicted(memory, report.cited):
                return replace(report, verdict="FAILED", findings=(Finding("CITED", "seq 0", wrong),))
            if before is None or offered.size > before.checkpoint.size:
                memory.keep(report.origin, reader.checkpoint)
    except (LedgerBehind, LedgerForked, LedgerCorrupt, ExportChanged, NoteError, ProofError) as error:
        finding = Finding(error.code, layout.CHECKPOINT, error.sentence)
        return replace(report, verdict="FAILED", findings=(finding,))
    if before is None:
        told = f"nothing was remembered of {report.origin} in {directory} yet; these {offered.size} leaves are from now on"
        return replace(report, notes=(*report.notes, told))
    told = f"extends the {before.checkpoint.size} leaves of {report.origin} that are remembered in {directory}"
    words = tuple(word for word in report.qualifiers if word != ANSWERED)
    return replace(report, qualifiers=words, notes=(*report.notes, told))
