"""Verifying against what was seen before: the largest checkpoint per ledger, which a later export must extend.

An export is of any size that was ever signed, so nothing in it shows that its tail was cut. Whoever remembers how far the
ledger had come finds that; and finds a fork, with evidence that anybody can check.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ledger import layout
from ledger.audit import AuditReport, Finding
from ledger.errors import ExportChanged, LedgerBehind, LedgerCorrupt, LedgerForked, NoteError, ProofError
from ledger.proofs.memory import Memory, audited_checkpoint, check_extends, contradicted
from ledger.proofs.reader import ExportReader

ANSWERED = "UNCOMPARED"
"""The qualifier that no longer holds once a checkpoint was compared with one seen before."""


def hold_against_memory(report: AuditReport, export: Path, directory: Path, log_keys: Sequence[str]) -> AuditReport:
    """Holds an export that passed its audit against the largest checkpoint that was seen of its ledger, and remembers it.

    Guarantee:
        The report comes back without a finding only if the tree extends the one remembered, or nothing was remembered; and
        then no smaller one is remembered, on disk; and no earlier ledger is cited otherwise than it is remembered
        (`ledger.proofs.memory.contradicted`). A smaller tree, or one of another history, is FAILED, and changes nothing
        but that an evidence file is written beside (`ledger.proofs.evidence`). So is one of which it cannot be shown any more,
        because hashes about the remembered size are gone. A report that FAILED before comes back as it is, and is not
        remembered.

    Args:
        report: the audit of the export.
        export: its directory.
        directory: the memory (`ledger.proofs.memory.Memory`), made if it is not there.
        log_keys: the verifier keys under which the audit was made.

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
