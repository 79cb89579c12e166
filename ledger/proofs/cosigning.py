"""Cosigning as an auditor: everything is verified, nothing that was ever cosigned may be taken back or contradicted.

By a cosignature this auditor says: the export under this checkpoint was audited without a finding, in full or, where a quorum
of auditors let leaves be pruned, by what stays of them, and its tree
extends every tree of that log which was cosigned before (C2SP tlog-cosignature; the audit is the additional statement that
the key stands for). So two auditors' quorums that overlap in one honest auditor never sign two histories of one ledger.

Life of a cosignature: (1) the export is audited; (2) the memory is locked, so that two runs of one auditor do not cross;
(3) the note remembered for this origin is read, and verified as the auditor's own; (4) a consistency proof leads from it to
the new checkpoint; (5) the new note is on disk before anybody sees it.
"""

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attest.clock import BACK_SECONDS
from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from attest.shown import utc
from ledger.audit import AuditReport, verify_export
from ledger.errors import (
    CosignRefused,
    ExportChanged,
    LedgerBehind,
    LedgerCorrupt,
    LedgerForked,
    NoteError,
    ProofError,
    StorageFailed,
)
from ledger.merkle import verify_consistency
from ledger.note import MAX_NOTE_SIZE, Checkpoint, Cosigner, cosign, open_note, parse_checkpoint
from ledger.proofs.evidence import Evidence, judge
from ledger.proofs.prover import consistency_proof, tree_root
from ledger.proofs.reader import ExportReader
from ledger.retention.statements import vouch


@dataclass(frozen=True, slots=True)
class Remembered:
    """The latest checkpoint of a log that an auditor cosigned.

    Attributes:
        note: as it was cosigned.
        checkpoint: what it commits to.
        time: POSIX seconds of the cosignature.
    """

    note: bytes
    checkpoint: Checkpoint
    time: int


@dataclass(frozen=True, slots=True)
class Cosigned:
    """A checkpoint that was cosigned.

    Attributes:
        note: the log's note with the auditor's line, to be handed to the log and to readers.
        report: the audit.
        before: what was remembered; None at the first checkpoint of a log.
    """

    note: bytes
    report: AuditReport
    before: Remembered | None


class Memory:
    """What an auditor has cosigned: a directory with the latest note per log, each verified as the auditor's own.

    Whoever loses it loses what keeps a log from showing this auditor two histories: keep it as the key is kept.
    """

    def __init__(self, directory: Path, vkey: str) -> None:
        """Takes the directory and the auditor's verifier key."""
        self._directory = directory
        self._vkey = vkey

    def path(self, origin: str) -> Path:
        """Returns the file for a log."""
        return self._directory / f"{_digest(origin.encode())}.note"

    def read(self, origin: str) -> Remembered | None:
        """Returns what was cosigned last of a log, None for nothing.

        Raises:
            LedgerCorrupt: the file is not a checkpoint of that log cosigned by this auditor.
        """
        path = self.path(origin)
        if not path.exists():
            return None
        try:
            note = read_limited(path, MAX_NOTE_SIZE, "memory of an auditor")
            opened = open_note(note, [self._vkey])
            checkpoint = parse_checkpoint(opened.text)
        except (FileRefused, NoteError) as error:
            why = self._other_names(note, origin) if error.code == "UNSIGNED" else error.sentence
            raise LedgerCorrupt("MEMORY", f"{path} is not what this auditor cosigned: {why}") from error
        if checkpoint.origin != origin:
            raise LedgerCorrupt("MEMORY", f"{path} is of {checkpoint.origin!r}, expected {origin!r}")
        return Remembered(note, checkpoint, opened.signatures[0].timestamp or 0)

    def _other_names(self, note: bytes, origin: str) -> str:
        """Who a note that this auditor did not sign says that cosigned it; a name that was left out is the usual reason."""
        lines = note.decode("utf-8", "replace").splitlines()
        names = [name for name in (line.split(" ")[1] for line in lines if line.startswith("— ")) if name != origin]
        by = ", ".join(names) or "nobody else"
        return f"{self._vkey} did not, lines in it are by {by}; give the key, and with --name the name, that cosigned it"

    def keep(self, origin: str, note: bytes) -> None:
        """Replaces what is remembered of a log; on disk when it returns."""
        self._write(self.path(origin), note)

    def accuse(self, evidence: Evidence) -> Path:
        """Writes an evidence file beside the notes; the same evidence twice is one file."""
        data = evidence.to_bytes()
        path = self._directory / f"{_digest(data)}.evidence"
        self._write(path, data)
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the memory for this process alone; waits for another that holds it."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            stream = (self._directory / "lock").open("ab")
        except OSError as error:
            raise StorageFailed("MEMORY", f"cannot use {self._directory}: {error.strerror or error}") from error
        with stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _write(self, path: Path, data: bytes) -> None:
        try:
            atomic_write(path, data)
        except OSError as error:
            raise StorageFailed("MEMORY", f"cannot write {path}: {error.strerror or error}") from error


def cosign_export(
    export: Path,
    log_keys: Sequence[str],
    cosigner: Cosigner,
    memory: Memory,
    *,
    now: int,
    owner_key: bytes | None = None,
    first: bool = False,
    summary: bool = False,
) -> Cosigned:
    """Audits an export and cosigns its checkpoint.

    Guarantee:
        A note is returned only if the audit says FULL (or SUMMARISED, of a pruned ledger), and the tree extends the one
        remembered of that log; and then it is what is remembered, on disk. A checkpoint that contradicts the memory is never
        cosigned, and both notes are kept as evidence that anybody can check.

    Args:
        export: directory of the export.
        log_keys: verifier keys of the log, obtained from a place that the log's operator does not control.
        cosigner: the auditor.
        memory: what the auditor cosigned before.
        now: POSIX seconds by the auditor's clock, against which the times of leaves are held; the cosignature says this time
            or, where the clock lags behind by less than two clocks may differ, that of the last leaf.
        owner_key: raw public key of the corpus owner, as for the audit.
        first: whether nothing of this log was ever cosigned. An auditor says so once, so that a lost memory is not taken for
            a new log.
        summary: whether to vouch for the summaries too whose ranges the export has whole (`ledger.retention.statements`). Once
            a quorum of auditors does, the ledger's operator may delete what they speak for.

    Raises:
        CosignRefused: the audit failed, nothing is remembered of the log though it is not the first time, or the reverse;
            code NO_SUMMARY, there is no summary to vouch for.
        LedgerForked: the log signed another history than the one remembered; the sentence names the evidence file.
        LedgerBehind: the tree is smaller than the one remembered; likewise.
        LedgerCorrupt, StorageFailed: the memory cannot be read or written.
        ExportChanged: files changed while they were read.
    """
    report = verify_export(export, log_keys, owner_key=owner_key, now=now)
    if report.verdict == "FAILED":
        raise CosignRefused("NOT_FULL", _why(report))
    since = _first_whole(report) if summary else None
    # The audit followed every change of the key from one that was pinned, and the current key must have signed.
    log_keys = list(dict.fromkeys([*log_keys, *report.log_keys]))
    reader = ExportReader(export)
    offered = parse_checkpoint(open_note(reader.checkpoint, log_keys).text)
    if (offered.origin, offered.size, offered.root.hex()) != (report.origin, report.size, report.root_hex):
        raise ExportChanged("CHANGED", "the checkpoint changed while it was audited; audit a copy that nobody writes")
    with memory.locked():
        before = memory.read(offered.origin)
        _check_first(before, offered.origin, first)
        time = max(report.last_time or 0, now if before is None else _time(before, now))
        if before is not None:
            _check_extends(before, offered, reader, memory, log_keys)
        note = cosign(reader.checkpoint, cosigner, log_keys, time=time)
        if since is not None:
            note = vouch(note, cosigner, log_keys, since=since, time=time)
        memory.keep(offered.origin, note)
    return Cosigned(note, report, before)


def _why(report: AuditReport) -> str:
    first = report.findings[0]
    count = "one finding" if len(report.findings) == 1 else f"{len(report.findings)} findings, the first"
    return f"the audit {report.verdict} with {count} in {first.where}: {first.sentence}"


def _first_whole(report: AuditReport) -> int:
    """Position of the first SUMMARY leaf whose range was audited with all its bodies."""
    whole = next((row.seq for row in report.summaries if not row.pruned), None)
    if whole is None:
        raise CosignRefused("NO_SUMMARY", "the export has no summary of leaves that are all there, so none to vouch for")
    return whole


def _check_first(before: Remembered | None, origin: str, first: bool) -> None:
    if before is None and not first:
        raise CosignRefused(
            "NO_MEMORY",
            f"nothing is remembered of {origin!r}; restore the memory, or say with --first that you never cosigned a "
            "checkpoint of this log",
        )
    if before is not None and first:
        sentence = f"a checkpoint of {before.checkpoint.size} leaves of {origin!r} was cosigned before; this is not the first"
        raise CosignRefused("NOT_FIRST", sentence)


def _time(before: Remembered, now: int) -> int:
    if now < before.time - BACK_SECONDS:
        raise CosignRefused("CLOCK", f"the clock says {utc(now)}, the last cosignature {utc(before.time)}; set the clock right")
    return max(now, before.time)


def _check_extends(
    before: Remembered, offered: Checkpoint, reader: ExportReader, memory: Memory, log_keys: Sequence[str]
) -> None:
    """Proves that the tree offered extends the one remembered, or raises with evidence that it does not."""
    old = before.checkpoint
    if offered.size < old.size:
        path = memory.accuse(Evidence(before.note, reader.checkpoint))
        sentence = f"{old.size} leaves were cosigned, {offered.size} are offered: an old copy, or a rollback; see {path}"
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
        path = memory.accuse(evidence)
        raise LedgerForked(
            "FORKED",
            f"the log signed another history of the {old.size} leaves that were cosigned; publish {path}, which shows it",
        ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
