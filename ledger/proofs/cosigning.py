"""Cosigning as an auditor: everything is verified, nothing that was ever cosigned may be taken back or contradicted.

By a cosignature this auditor says: the export under this checkpoint was audited without a finding (the verdict was not FAILED;
bounds that are TOLD are not vouched for, and nobody vouches for a summary over them), and its tree extends every tree of that
log which was cosigned before (C2SP tlog-cosignature; the audit is the additional statement that the key stands for). So two
auditors' quorums that overlap in one honest auditor never sign two histories of one ledger.

Life of a cosignature: (1) the export is audited; (2) the memory is locked, so that two runs of one auditor do not cross;
(3) the note remembered for this origin is read, and verified as the auditor's own; (4) a consistency proof leads from it to
the new checkpoint; (5) the new note is on disk before anybody sees it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from attest.schema.plain import BACK_SECONDS, utc
from ledger.audit import AuditReport, verify_export
from ledger.errors import CosignRefused
from ledger.note import Cosigner, cosign
from ledger.proofs.memory import Memory, Remembered, audited_checkpoint, check_extends, contradicted
from ledger.proofs.reader import ExportReader
from ledger.retention.statements import vouch


@dataclass(frozen=True, slots=True)
class Cosigned:
    """A checkpoint that was cosigned.

    Attributes:
        note: the log's note with the auditor's line, to be handed to the log and to readers.
        report: the audit.
        before: what was remembered; None at the first checkpoint of a log.
        vouched: positions of the SUMMARY leaves that the auditor vouches for in it.
        stayed: whether it vouches for whoever stayed until the run was closed.
    """

    note: bytes
    report: AuditReport
    before: Remembered | None
    vouched: tuple[int, ...] = ()
    stayed: bool = False


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
    registry: Path | None = None,
) -> Cosigned:
    """Audits an export and cosigns its checkpoint.

    Guarantee:
        A note is returned only if the audit does not say FAILED, and the tree extends the one remembered of that log; and then
        it is what is remembered, on disk. A checkpoint that contradicts the memory is never cosigned, and both notes are kept
        as evidence that anybody can check. With ``summary`` it vouches for those SUMMARY leaves alone of which this export has
        every body that they speak for, and so has every later one; and only if the ADMIT leaf of everybody who has not left is
        there, and the bounds of every one that is were derived from signed attestations. So those that will go say what their
        contributors signed, and were charged for no longer than they signed.

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
        summary: whether to vouch for the last summaries too, as many as the export has whole (`ledger.retention.statements`).
            Once a quorum of auditors does, the ledger's operator may delete what they speak for.
        registry: file of the contributor registry, as for the audit.

    Raises:
        CosignRefused: the audit failed, nothing is remembered of the log though it is not the first time, or the reverse;
            code BOUNDS_TOLD, bounds are the operator's word and a summary is to be vouched for; code FOLDED, who stayed is gone
            already; code NO_SUMMARY, there is no summary to vouch for; code CITED, the header cites an earlier ledger
            otherwise than this auditor cosigned it.
        LedgerForked: the log signed another history than the one remembered; the sentence names the evidence file.
        LedgerBehind: the tree is smaller than the one remembered; likewise.
        LedgerCorrupt, StorageFailed: the memory cannot be read or written.
        ExportChanged: files changed while they were read.
    """
    report = verify_export(export, log_keys, owner_key=owner_key, registry=registry, now=now)
    if report.verdict == "FAILED":
        raise CosignRefused("AUDIT_FAILED", _why(report))
    whole, since = _vouchable(report) if summary else ((), None)
    # The audit followed every change of the key from one that was pinned, and the current key must have signed.
    log_keys = list(dict.fromkeys([*log_keys, *report.log_keys]))
    reader = ExportReader(export)
    offered = audited_checkpoint(reader, report, log_keys)
    with memory.locked():
        before = memory.read(offered.origin)
        _check_first(before, offered.origin, first)
        time = max(report.last_time or 0, now if before is None else _time(before, now))
        if before is not None:
            check_extends(before, offered, reader, memory, log_keys)
        if wrong := contradicted(memory, report.cited):
            raise CosignRefused("CITED", f"{wrong}; ask the operator for an export of that ledger, and what became of it")
        note = cosign(reader.checkpoint, cosigner, log_keys, time=time)
        if since is not None:
            note = vouch(note, cosigner, log_keys, since=since, time=time)
        memory.keep(offered.origin, note)
    return Cosigned(note, report, before, whole, stayed=since is not None and report.finished)


def _why(report: AuditReport) -> str:
    first = report.findings[0]
    count = "one finding" if len(report.findings) == 1 else f"{len(report.findings)} findings, the first"
    return f"the audit {report.verdict} with {count} in {first.where}: {first.sentence}"


def _told(report: AuditReport) -> str:
    """Says why nobody vouches for summaries of this export: what goes must have been held against what was signed."""
    bounds = report.bounds
    lacks = "attestations" if bounds is None or not bounds.attested else "registry for them"
    sentence = f"the audit is TOLD: the export has no {lacks}, so that ADMIT leaves which may go once you vouch say what the"
    return f"{sentence} operator wrote; ask for an export with attestations and registry, or give the registry with --registry"


def _vouchable(report: AuditReport) -> tuple[tuple[int, ...], int]:
    """Returns the positions of the last SUMMARY leaves that were audited with every body, and since when the statement speaks.

    A statement speaks for every summary from its first one on: one that is whole does not count before one that is not. Of a
    closed run it speaks for who stayed too, even where no summary is whole any more because who left is gone.
    """
    if report.verdict == "TOLD":
        raise CosignRefused("BOUNDS_TOLD", _told(report))
    if report.folded:
        sentence = f"the ADMIT leaves of {report.folded} contributions that stayed until the close are gone"
        why = f"{sentence}, so that they cannot be held against what was signed"
        raise CosignRefused("FOLDED", f"{why}; ask for an export from before, or cosign without --summary")
    whole = tuple(row.seq for row in takewhile(lambda row: row.whole, reversed(report.summaries)))[::-1]
    if whole:
        return whole, whole[0]
    if report.finished and report.summaries:
        return (), report.summaries[-1].seq + 1
    sentence = "the last summary speaks for leaves that this export does not have, or there is none"
    raise CosignRefused("NO_SUMMARY", f"{sentence}: nothing to vouch for; ask for an export from before leaves were pruned")


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
