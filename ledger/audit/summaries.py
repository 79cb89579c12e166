"""What an audit says of summaries: which ranges they speak for, what of them is pruned, and which auditors vouch for that."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ledger import layout
from ledger.audit.carried import Carried
from ledger.audit.findings import SummaryRow
from ledger.errors import NoteError
from ledger.retention.retained import RetainedReplay
from ledger.retention.statements import vouched_end, vouchers

Report = Callable[[str, str, str], None]


def judge_summaries(run: RetainedReplay, carried: Sequence[Carried], fault: Report, notes: list[str]) -> tuple[SummaryRow, ...]:
    """Returns a row per SUMMARY leaf, and reports what is pruned though no quorum of auditors vouches for it.

    Args:
        run: the run, whose SUMMARY leaves were judged as they were replayed.
        carried: the checkpoints of the export; what auditors say below any of them counts together.
        fault: takes (code, where, sentence) of everything wrong.
        notes: takes what a reader should know.
    """
    summaries = run.tally.summaries
    try:
        said = [vouchers(run.header, {item.size: item.data}, summaries) for item in carried]
    except NoteError:
        return ()  # told already, when the note was opened under all keys
    names = {leaf.seq: tuple(sorted({name for found in said for name in found[leaf.seq]})) for leaf in summaries}
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
