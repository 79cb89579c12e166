"""What an audit remembers of withdrawals while it reads: all of them counted, the last ones one by one."""

from collections import Counter, deque
from typing import Final

from ledger.audit.findings import WithdrawalCount, WithdrawalRow
from ledger.leaves import Leaf, Withdraw
from ledger.replay import Replay

MAX_LISTED: Final = 50
"""Withdrawals told one by one; the export has the others, and the counts have them all."""


class Withdrawals:
    """Takes every leaf of a run in order, and keeps no more than `MAX_LISTED` of them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str | None, str]] = Counter()
        self._last: deque[Withdraw] = deque(maxlen=MAX_LISTED)
        self._passing: dict[bytes, tuple[str | None, str]] = {}

    def see(self, leaf: Leaf, run: Replay) -> None:
        """Takes a leaf that the run has applied."""
        if isinstance(leaf, Withdraw):
            key = _class_name(leaf, run), leaf.reason
            if before := self._passing.pop(leaf.descriptor_hash, None):  # it is out once, and now for good
                self._counts[before] -= 1
            if leaf.descriptor_hash in run.passing:
                self._passing[leaf.descriptor_hash] = key
            self._counts[key] += 1
            self._last.append(leaf)

    def counts(self) -> tuple[WithdrawalCount, ...]:
        """Returns how many contributions left by class and last reason, those of no admitted contribution last."""
        counts = (item for item in self._counts.items() if item[1])
        found = sorted(counts, key=lambda item: (item[0][0] is None, item[0][0] or "", item[0][1]))
        return tuple(WithdrawalCount(name, reason, count) for (name, reason), count in found)

    def rows(self, run: Replay) -> tuple[WithdrawalRow, ...]:
        """Returns the last ones in the order of their leaves, with what they have spent by the end of the run."""
        return tuple(_row(leaf, run) for leaf in self._last)


def _class_name(leaf: Withdraw, run: Replay) -> str | None:
    found = run.contributions.get(leaf.descriptor_hash)
    return None if found is None else run.header.policy.classes[found.class_index].name


def _row(leaf: Withdraw, run: Replay) -> WithdrawalRow:
    told = (leaf.seq, leaf.time, leaf.descriptor_hash.hex(), leaf.reason, _class_name(leaf, run))
    found = run.contributions.get(leaf.descriptor_hash)
    if found is None:
        return WithdrawalRow(*told, None, None)
    public = run.header.policy.classes[found.class_index].public
    return WithdrawalRow(*told, run.expenditure.steps(found, run.charged_phases), None if public else run.epsilon(found))
