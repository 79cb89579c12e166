"""What an audit says of summaries: which ranges they speak for, what of them is pruned, and which auditors vouch for that."""

from bisect import bisect_left
from collections.abc import Callable

from ledger import layout
from ledger.audit.files import Export, Leaves
from ledger.audit.findings import SummaryRow
from ledger.errors import ExportChanged, NoteError
from ledger.note import Checkpoint
from ledger.retention.retained import RetainedReplay
from ledger.retention.statements import vouched_end, vouchers

Report = Callable[[str, str, str], None]


def judge_summaries(
    run: RetainedReplay, export: Export, leaves: Leaves, signed: tuple[Checkpoint, bytes], fault: Report, notes: list[str]
) -> tuple[SummaryRow, ...]:
    """Returns a row per SUMMARY leaf, and reports what is pruned though no quorum of auditors vouches for it.

    Args:
        run: the run, whose SUMMARY leaves were judged as they were replayed.
        export: the directory.
        leaves: its leaves.
        signed: the checkpoint under audit, and its note.
        fault: takes (code, where, sentence) of everything wrong.
        notes: takes what a reader should know.
    """
    found = _notes(run, export, leaves, fault)
    found.setdefault(signed[0].size, signed[1])
    summaries = run.tally.summaries
    try:
        names = vouchers(run.header, found, summaries)
    except NoteError as error:
        fault(error.code, layout.RETAINED_NOTES if export.retained else layout.CHECKPOINT, error.sentence)
        return ()
    end = vouched_end(run.header, summaries, names)
    wrong = run.unvouched(end)
    if wrong is not None:
        fault("UNVOUCHED", layout.RETAINED_NOTES, wrong)
    rows = []
    for leaf in summaries:
        gone = bisect_left(run.pruned, leaf.end) - bisect_left(run.pruned, leaf.first)
        rows.append(SummaryRow(leaf.seq, leaf.first, leaf.end, names[leaf.seq], gone))
        if gone:
            notes.append(
                f"leaves {leaf.first} to {leaf.end - 1} are summarised by leaf {leaf.seq}: the bodies of {gone} are gone, and "
                f"what they said is vouched for by {', '.join(names[leaf.seq]) or 'nobody'}; all figures were recomputed from "
                "what stays"
            )
    return tuple(rows)


def _notes(run: RetainedReplay, export: Export, leaves: Leaves, fault: Report) -> dict[int, bytes]:
    """The checkpoints that a pruned export keeps, each of this very tree."""
    found: dict[int, bytes] = {}
    for data in export.notes():
        try:
            _, checkpoint = run.keys.open_note(data)
            if checkpoint.size > leaves.size or leaves.root_at(checkpoint.size) != checkpoint.root:
                raise NoteError("ROOT", f"a kept checkpoint of {checkpoint.size} leaves is not of this tree")
        except (NoteError, ExportChanged) as error:
            fault(error.code, layout.RETAINED_NOTES, error.sentence)
        else:
            found[checkpoint.size] = data
    return found
