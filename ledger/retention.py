"""Retention: the oldest epochs are summarised, auditors vouch for the summary, and only then may bodies in its range go."""

from ledger.leaves import Summary
from ledger.storage.appender import Appender


class Retaining:
    """Summaries of an open ledger."""

    _file: Appender

    def summarise(self, *, now: int) -> Summary:
        """Appends the SUMMARY leaf over all epochs past the policy's horizon, under a signed checkpoint; also after the close.

        Guarantee:
            When this returns, leaf and checkpoint are durable. Every field of the leaf is recomputed by whoever opens or
            audits the ledger, while the bodies of the range are there.

        Raises:
            LeafRefused: code RETENTION if the policy keeps everything, NOTHING_DUE if no epoch is past the horizon.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        with self._file.appending(now, checkpoint=True) as time:
            leaf, _ = self._file.replay.tally.propose(self._file.size, time)
            self._file.stage(leaf)
        return leaf
