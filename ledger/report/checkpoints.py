"""What was signed: the checkpoint of the export, by whom, and the epochs that it commits to."""

from pathlib import Path

from attest.errors import FileRefused
from attest.files import read_limited
from ledger import layout
from ledger.audit import AuditReport
from ledger.report.markup import code, details, section, soft, table, text, utc
from ledger.report.spending import evenly


def checkpoints(report: AuditReport, export_dir: Path) -> str:
    """Returns who signed the checkpoint, its text, and the recorded epochs."""
    try:
        note = read_limited(export_dir / layout.CHECKPOINT, layout.MAX_TEXT_SIZE, "checkpoint")
    except FileRefused:
        return ""
    return section(
        "checkpoints",
        "Checkpoints and who signed them",
        _signers(report, note),
        "<h3>The signed checkpoint</h3>",
        soft("Compare it with the one published elsewhere: the same size with another root is a fork, and proof of one."),
        f"<pre tabindex='0' role='group' aria-label='Signed checkpoint'>{_note(note)}</pre>",
        _epochs(report),
    )


def _signers(report: AuditReport, note: bytes) -> str:
    lines = sum(line.startswith("— ".encode()) for line in note.splitlines())
    others = lines - len(report.signers)
    ignored = f"{others} signature line{' is' if others == 1 else 's are'} by keys that were not pinned, and count for nothing."
    told = soft(ignored) if others > 0 else ""
    if not report.signers:
        return f"<p class='warning'>No signature was verified.</p>{told}"
    rows = (
        (
            code(signer.name),
            code(signer.key_id),
            "the ledger's own key" if signer.of_log else "cosigner",
            "not stated" if signer.time is None else utc(signer.time),
        )
        for signer in report.signers
    )
    head = ("name", "key id", "role", "time stated")
    alone = "" if any(not signer.of_log for signer in report.signers) else soft("No cosigner of the pinned keys has signed it.")
    return table("signers-c", "Pinned keys whose signatures were verified", head, rows) + alone + told


def _note(note: bytes) -> str:
    return "\n".join(text(line, 1000) for line in note.decode("utf-8", "backslashreplace").split("\n")[:120])


def _epochs(report: AuditReport) -> str:
    if not report.epochs:
        return ""
    epochs = [report.epochs[place] for place in evenly(len(report.epochs))]
    rows = ((row.number, row.seq, utc(row.time), row.step, code(row.model_digest)) for row in epochs)
    head = ("epoch", "leaf", "closed", "last step", "model digest")
    told = table("epochs-c", "Epochs recorded in the ledger that the checkpoint signs", head, rows)
    summary = f"{len(epochs):,} of {len(report.epochs):,} epochs" if len(epochs) < len(report.epochs) else "Epochs"
    return details(summary, told)
