"""Cosigns an export as an auditor, and asks witnesses to cosign its checkpoint.

By a cosignature this auditor says: the export under this checkpoint was audited without a finding (the verdict was not FAILED;
bounds that are TOLD are not vouched for, and nobody vouches for a summary over them), and its tree extends every tree of that
log which was cosigned before (C2SP tlog-cosignature; the audit is the additional statement that the key stands for). So two
auditors' quorums that overlap in one honest auditor never sign two histories of one ledger.

Life of a cosignature: (1) the export is audited; (2) the memory is locked, so that two runs of one auditor do not cross; (3)
the note remembered for this origin is read, and verified as the auditor's own; (4) a consistency proof leads from it to the new
checkpoint; (5) the new note is on disk before anybody sees it.

A witness vouches for history alone: the tree under a checkpoint extends every tree of that log which it cosigned before. It is
sent the size that it cosigned last, the proof that the tree extends that one, and the checkpoint. It answers with its signature
lines, which are merged into the checkpoint as an auditor's are. Nothing here speaks HTTP: bodies are files.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from attest.schema.plain import BACK_SECONDS, read_decimal, utc
from ledger.audit import AuditReport, verify_export
from ledger.errors import CosignRefused, NoteError, WitnessRefused
from ledger.merkle import MAX_SIZE
from ledger.note import MAX_NOTE_SIZE, MAX_SIGNATURES, Cosigner, cosign, lines_of, peek_checkpoint, with_lines
from ledger.proofs.memory import Memory, Remembered, audited_checkpoint, check_extends, contradicted
from ledger.proofs.prover import ExportReader, Node, consistency_proof
from ledger.retention import vouch


@dataclass(frozen=True, slots=True)
class Cosigned:
    """Holds a checkpoint that was cosigned.

    Attributes:
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

    Guarantee: A note is returned only if the audit does not say FAILED, and the tree extends the one remembered of that log;
    and then it is what is remembered, on disk. A checkpoint that contradicts the memory is never cosigned, and both notes are
    kept as evidence that anybody can check. With ``summary`` it vouches for those SUMMARY leaves alone of which this export has
    every body that they speak for, and so has every later one; and only if the ADMIT leaf of everybody who has not left is
    there, and the bounds of every one that is were derived from signed attestations. So those that will go say what their
    contributors signed, and were charged for no longer than they signed.

    Args:
        log_keys: verifier keys of the log, obtained from a place that the log's operator does not control.
        now: POSIX seconds by the auditor's clock, against which the times of leaves are held; the cosignature says this time
            or, where the clock lags behind by less than two clocks may differ, that of the last leaf.
        first: whether nothing of this log was ever cosigned. An auditor says so once, so that a lost memory is not taken for a
            new log.
        summary: whether to vouch for the last summaries too, as many as the export has whole (`ledger.retention`).
            Once a quorum of auditors does, the ledger's operator may delete what they speak for.

    Raises:
        CosignRefused: the audit failed, nothing is remembered of the log though it is not the first time, or the reverse; code
            BOUNDS_TOLD, bounds are the operator's word and a summary is to be vouched for; code FOLDED, who stayed is gone
            already; code NO_SUMMARY, there is no summary to vouch for; code CITED, the header cites an earlier ledger otherwise
            than this auditor cosigned it.
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


MAX_ANSWER_SIZE: Final = 1_000_000
"""Longest answer that is looked at, in bytes."""

MAX_REQUEST_SIZE: Final = MAX_NOTE_SIZE + 4_096
"""Longest request that is read back, in bytes: a note, and 64 lines."""

_STATUS_LINE = re.compile(rb"HTTP/[0-9.]+ ([0-9]{3})[^\r\n]*\r?\n")

_REFUSALS: Final = {
    400: ("WITNESS_REQUEST", "the witness does not understand the request; write it again with 'ledger witness-request'"),
    403: ("WITNESS_FORBIDDEN", "the witness trusts no key that signed this checkpoint; give it the ledger's present key"),
    404: ("WITNESS_UNKNOWN", "the witness does not know this ledger; ask who runs it to add the ledger's verifier key"),
    422: (
        "WITNESS_PROOF",
        "the witness says that the tree does not extend the one it cosigned: it has seen another history of this ledger, or "
        "the request is not what was written; keep both, and have the ledger audited",
    ),
}
"""Code and sentence for each status by which a witness refuses."""


@dataclass(frozen=True, slots=True)
class WitnessRequest:
    """Holds a request to cosign: the checkpoint signed by the ledger alone, and the size that the witness cosigned last, 0 for
    none."""

    since: int
    note: bytes


def make_request(node: Node, note: bytes, since: int) -> bytes:
    """Returns the body of an ``add-checkpoint`` request.

    It holds the checkpoint with the ledger's own lines alone: who else cosigned it is no business of the witness. Raises
    NoteError: the note is malformed; ProofError: the size lies beyond the checkpoint; code HASHES_GONE where the ledger cannot
    make that proof any more.
    """
    checkpoint = peek_checkpoint(note)
    own = [line for name, line in lines_of(note) if name == checkpoint.origin]
    proof = consistency_proof(node, since, checkpoint.size) if since else []
    lines = [f"old {since}", *(base64.b64encode(hash_).decode() for hash_ in proof), ""]
    return "".join(f"{line}\n" for line in lines).encode() + with_lines(note, own)


def read_request(data: bytes) -> WitnessRequest:
    """Reads a request back for its checkpoint; the proof is not looked at. Raises WitnessRefused: code WITNESS_REQUEST, it is
    none."""
    head, blank, note = data.partition(b"\n\n")
    first = head.split(b"\n", 1)[0].decode("ascii", "replace")
    since = read_decimal(first.removeprefix("old ")) if first.startswith("old ") else None
    if not blank or since is None or since >= MAX_SIZE or len(data) > MAX_REQUEST_SIZE:
        raise WitnessRefused("WITNESS_REQUEST", "expected the request that was sent, as 'ledger witness-request' wrote it")
    return WitnessRequest(since, note)


def read_answer(data: bytes, request: WitnessRequest) -> bytes:
    """Returns the checkpoint of a request with the lines that a witness answered; nothing of them is verified yet.

    Guarantee: A note is returned only where the answer is one or more signature lines and nothing else. It has the text of the
    request, so that whoever verifies it (`ledger.note.merge_notes`) verifies what was asked for.

    Args:
        data: the body of the answer; status line and headers may stand before it, as ``curl -i`` prints them. Without these the
            body tells whether it is a cosignature or, by a size, status 409.

    Raises:
        WitnessRefused: the witness did not cosign; the code says why, and ``size`` what it cosigned before, where it tells.
    """
    if len(data) > MAX_ANSWER_SIZE:
        raise WitnessRefused("WITNESS_ANSWER", f"an answer has at most {MAX_ANSWER_SIZE} bytes")
    status, body = _unwrapped(data)
    text = body.decode("utf-8", "replace")
    size = read_decimal(text[:-1]) if text.endswith("\n") else None
    if status == 409 or (status is None and size is not None):
        raise _conflict(size, request)
    if status not in (None, 200):
        code, sentence = _REFUSALS.get(status, ("WITNESS_STATUS", f"the witness answered with status {status}"))
        raise WitnessRefused(code, f"{sentence} (it says: {text.strip()!a:.200})" if text.strip() else sentence)
    lines = text.split("\n")
    if lines.pop() != "" or not 0 < len(lines) <= MAX_SIGNATURES or not all(line.startswith("— ") for line in lines):
        sentence = f"expected signature lines, each beginning with a dash and ended by a newline, got {text!a:.200}"
        raise WitnessRefused("WITNESS_ANSWER", f"{sentence}; save the answer with 'curl -i', so that its status is in it")
    try:
        note = with_lines(request.note, [line for _, line in lines_of(request.note)] + lines)
        lines_of(note)  # each line must be one of a signed note
    except NoteError as error:
        raise WitnessRefused("WITNESS_ANSWER", f"the lines of the answer make no note: {error.sentence}") from error
    return note


def _unwrapped(data: bytes) -> tuple[int | None, bytes]:
    """Splits status lines and headers off; the last status counts, since proxies and 100 Continue come before it."""
    status = None
    while (match := _STATUS_LINE.match(data)) is not None:
        status = int(match[1])
        found = re.search(rb"\r?\n\r?\n", data[match.end() - 2 :])
        data = data[match.end() - 2 + found.end() :] if found is not None else b""
    return status, data


def _conflict(size: int | None, request: WitnessRequest) -> WitnessRefused:
    if size is None:
        return WitnessRefused("WITNESS_CONFLICT", "the witness cosigned another size before, and does not say which")
    how = f"write the request again with --since {size}"
    if size == request.since:
        how = "it says the size that was asked for: ask again, and whoever runs it if that does not help"
    elif size > peek_checkpoint(request.note).size:
        how = "that is more than this checkpoint has: use the newest one, and ask who signed a larger tree if there is none"
    told = f"the witness cosigned {size} leaves of this ledger before, and was asked from {request.since} on"
    return WitnessRefused("WITNESS_CONFLICT", f"{told}; {how}", size=size)
