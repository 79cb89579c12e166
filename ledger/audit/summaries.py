"""What an audit says of summaries: which ranges they speak for, what of them is pruned, and which auditors vouch for that."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ledger import layout
from ledger.audit.carried import Carried
from ledger.audit.findings import SummaryRow
from ledger.audit.remarks import Remarks
from ledger.errors import NoteError
from ledger.retention.horizons import hashes_end
from ledger.retention.nodes import KeptNodes
from ledger.retention.retained import RetainedReplay
from ledger.retention.statements import vouched_end, vouchers, vouchers_of_close

Report = Callable[[str, str, str], None]


def judge_summaries(
    run: RetainedReplay, nodes: KeptNodes | None, carried: Sequence[Carried], now: int, fault: Report, remarks: Remarks
) -> tuple[SummaryRow, ...]:
    """Returns a row per SUMMARY leaf, and reports what is pruned though no quorum of auditors vouches for it.

    Args:
        run: the run, whose SUMMARY leaves were judged as they were replayed.
        nodes: what stands for leaf hashes that are gone, None where all are there.
        carried: the checkpoints of the export; what auditors say below any of them counts together.
        now: POSIX seconds by the auditor's clock.
        fault: takes (code, where, sentence) of everything wrong.
        remarks: takes what a reader should know.
    """
    summaries = run.tally.summaries
    try:
        notes = [{item.size: item.data} for item in carried]
        said = [vouchers(run.header, note, summaries, run.timeline, now) for note in notes]
        at_close = [vouchers_of_close(run.header, note, run.closed_at, run.timeline, now) for note in notes]
    except NoteError:
        return ()  # told already, when the note was opened under all keys
    names = {leaf.seq: tuple(sorted({name for found in said for name in found[leaf.seq]})) for leaf in summaries}
    end = vouched_end(run.header, summaries, names)
    wrong = run.unvouched(end, frozenset().union(*at_close))
    if wrong is not None:
        fault("UNVOUCHED", layout.RETAINED_NOTES, wrong)
    early = run.too_early()
    if early is not None:
        fault("TOO_EARLY", layout.RETAINED_NOTES, early)
    allowed = hashes_end(run.header, summaries, run.epochs)
    if nodes is not None and nodes.gone_before > allowed:
        sentence = f"hashes below {nodes.gone_before} are gone, and the policy lets those below {allowed} go by now"
        fault("HORIZON", layout.RETAINED_NODES, sentence)
    rows = []
    for leaf in summaries:
        gone = bisect_left(run.pruned, leaf.end) - bisect_left(run.pruned, leaf.first)
        hashes = 0 if nodes is None else nodes.count_gone(leaf.first, leaf.end)
        whole = not gone and not run.restored(leaf)
        rows.append(SummaryRow(leaf.seq, leaf.first, leaf.end, names[leaf.seq], gone, hashes, whole))
        if gone:
            remarks.qualify(
                "PRUNED",
                f"leaves {leaf.first} to {leaf.end - 1} are summarised by leaf {leaf.seq}: the bodies of {gone} are gone, and "
                f"what they said is vouched for by {', '.join(names[leaf.seq]) or 'nobody'}; all figures were recomputed from "
                "what stays",
            )
        if hashes:
            remarks.note(
                f"the hashes of {hashes} of these are gone too, but for the roots of their subtrees: that such a leaf was "
                "there can be shown only by a proof file made before; every other proof is as good as ever"
            )
    if unnamed := sum(run.register.unnamed):
        remarks.note(
            f"of {unnamed} contributions that stayed nothing says any more who they are: whether one is among them only its "
            "member record shows, and roots over them are what auditors vouch for"
        )
    return tuple(rows)
