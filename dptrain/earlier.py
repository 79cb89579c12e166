"""The earlier runs that a new run counts, read from their ledgers."""

import os
from collections.abc import Sequence

from dptrain.errors import ResumeRefused
from ledger.errors import LeafRefused, LedgerClosed
from ledger.handles import Pin
from ledger.leaves import Previous
from ledger.leaves.previous import COMPROMISED, SPENT
from ledger.log import Ledger
from ledger.rules.spent import Earlier, SpentRegistry, left_out

LedgerPath = str | os.PathLike[str]


def registry_of(
    earlier: Sequence[LedgerPath], replaces: LedgerPath | None, cited: tuple[Previous, ...] | None
) -> SpentRegistry:
    """Opens the ledgers of earlier runs, checks each of them in full, and returns what was spent in them.

    Args:
        earlier: ledgers of closed runs over the same corpus.
        replaces: a ledger whose key was lost to others, which the new one continues.
        cited: what the header of a resumed run cites; None for a new run.

    Raises:
        LedgerClosed: code EARLIER_OPEN, an earlier run is not closed, so that more could be charged to it unseen.
        LedgerBehind, LedgerForked: a ledger is not what a resumed run once counted.
        ResumeRefused: a resumed run cites other ledgers than these.
        LeafRefused: code EARLIER_UNCITED, one of them counted a ledger that is not named.
    """
    named = [(ledger, SPENT) for ledger in earlier] + ([] if replaces is None else [(replaces, COMPROMISED)])
    runs = [_read(ledger, reason, cited) for ledger, reason in named]
    if cited is not None and runs and {run.cited.header_digest for run in runs} != {item.header_digest for item in cited}:
        raise ResumeRefused("ANOTHER_RUN", "the run was started with other earlier ledgers; name those that it counts, or none")
    for origin, missing in left_out(runs):
        raise LeafRefused("EARLIER_UNCITED", f"{origin} counted what was spent in {missing.origin}; name that ledger too")
    return SpentRegistry(runs)


def _read(ledger: LedgerPath, reason: str, cited: tuple[Previous, ...] | None) -> Earlier:
    with Ledger.open(ledger, read_only=True, recompute=True) as log:
        if reason == SPENT and not log.finished:
            raise LedgerClosed(
                "EARLIER_OPEN", f"the run of {log.place.shown} is not closed, and what it charges later would not be counted"
            )
        for item in cited or ():
            if item.header_digest == log.header_digest:
                log.check_pin(Pin(item.origin, item.size, item.root, item.header_digest))
        found = Previous(log.header.origin, log.size, log.root, log.header_digest, log.state.keys.current, reason)
        return Earlier(found, log.state)
