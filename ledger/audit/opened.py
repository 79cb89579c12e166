"""A verified export as a run that can be asked: of one contribution, of those who withdrew, of what was spent."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ledger.audit.files import Leaves
from ledger.audit.findings import AuditReport
from ledger.audit.histories import read_export
from ledger.audit.replaying import begin, follow
from ledger.audit.verify import verify_export
from ledger.errors import ExportRefused
from ledger.replay import Replay


@dataclass(frozen=True, slots=True)
class OpenedExport:
    """An export that passed its audit.

    Attributes:
        report: what the audit says.
        run: the run, replayed to its last leaf.
        root: of the tree over all leaves.
        leaves: all of them in order, of pruned ones what stands in for them.
    """

    report: AuditReport
    run: Replay
    root: bytes
    leaves: Leaves


def open_export(
    path: str | Path, keys: Sequence[str], *, owner_key: bytes | None = None, now: int | None = None
) -> OpenedExport:
    """Audits an export, and replays it once more to be asked.

    Args:
        path: the directory.
        keys: verifier keys of the log, as for `verify_export`.
        owner_key: likewise.
        now: likewise.

    Raises:
        ExportRefused: code FAILED, the audit found something; no answer from such a record would be worth anything.
        ExportChanged: it changed after the audit.
        LeafRefused, ProofError: likewise.
    """
    report = verify_export(path, keys, owner_key=owner_key, now=now)
    if report.verdict == "FAILED":
        first = report.findings[0]
        more = f" (and {len(report.findings) - 1} findings more)" if len(report.findings) > 1 else ""
        sentence = f"the audit of {path} FAILED, {first.code} {first.where}: {first.sentence}{more}"
        raise ExportRefused("FAILED", f"{sentence}; nothing that it says can be relied on: see 'dptrain ledger verify {path}'")
    given = read_export(Path(path))
    given.require(report.size, report.root_hex)
    run = begin(given.leaves, recompute=False)
    deque(follow(run, given.leaves), maxlen=0)
    return OpenedExport(report, run, given.leaves.root_at(given.leaves.size), given.leaves)
