"""What an audit says of summaries: which ranges they speak for, and which auditors vouch for them."""

from collections.abc import Callable, Mapping

from ledger import layout
from ledger.audit.findings import SummaryRow
from ledger.errors import NoteError
from ledger.replay import Replay
from ledger.statements import vouchers


def judge_summaries(
    run: Replay, signed: Mapping[int, bytes], fault: Callable[[str, str, str], None]
) -> tuple[SummaryRow, ...]:
    """Returns a row per SUMMARY leaf.

    Args:
        run: the run, whose SUMMARY leaves were judged as they were replayed.
        signed: checkpoint notes of this very tree, by size.
        fault: takes (code, where, sentence) of everything wrong.
    """
    try:
        names = vouchers(run.header, signed, run.tally.summaries)
    except NoteError as error:
        fault(error.code, layout.CHECKPOINT, error.sentence)
        return ()
    return tuple(SummaryRow(leaf.seq, leaf.first, leaf.end, names[leaf.seq]) for leaf in run.tally.summaries)
