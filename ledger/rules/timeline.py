"""The times of a ledger's leaves: they never run back, except at a CLOCK leaf, and may not lie ahead of a reader's clock.

A leaf says when it was written by the clock of the writer, and nothing else shows that. What is judged here: times follow one
another; a CLOCK leaf says which time it takes back; and how far the last one lies from the clock of whoever asks.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from attest.schema.plain import AHEAD_SECONDS, is_ahead, utc
from ledger.errors import LeafRefused
from ledger.leaves import Clock, Header, Leaf

JUMP_SECONDS: Final = 14 * 86400
"""Seconds that may lie between two leaves of a run that goes on. Beyond it the writer asks whether its clock is right: what a
false clock lets expire is withdrawn for good."""


class Timeline:
    """Takes the time of every leaf in order.

    Attributes:
        last: time of the last leaf.
        sets: all CLOCK leaves that took a time back.
        loose: whether the leaf before was pruned: its time is gone, and was that of the last one that is kept, or a later one.
    """

    def __init__(self, header: Header) -> None:
        """Begins with leaf 0."""
        self.last = header.time
        self.sets: list[Clock] = []
        self.loose = False
        self._seqs, self._times = array("q", [0]), array("q", [header.time])  # where the time changes, and to what

    def take(self, leaf: Leaf, seq: int) -> Iterator[LeafRefused]:
        """Takes the leaf at ``seq``, and yields what is wrong with its time.

        Guarantee:
            Without a problem the time is no earlier than that of any leaf since the last CLOCK leaf; and a CLOCK leaf says the
            time of the leaf before it, so that it takes back what stands there and no other time (of a leaf that was pruned,
            no earlier time than that of the last one that is kept).
        """
        loose, self.loose = self.loose, False
        if isinstance(leaf, Clock):
            if leaf.before < self.last or (leaf.before > self.last and not loose):
                yield LeafRefused("CLOCK", f"the leaf takes back the time {leaf.before}, the leaf before it says {self.last}")
                return
            self.sets.append(leaf)
        elif leaf.time < self.last:
            sentence = f"time runs back from {self.last} to {leaf.time}, and no CLOCK leaf says why"
            yield LeafRefused("CLOCK", sentence)
            return
        if leaf.time != self.last:
            self._seqs.append(seq)
            self._times.append(leaf.time)
            self.last = leaf.time

    def at(self, size: int) -> int:
        """Returns the time of the last one of the first ``size`` leaves."""
        return self._times[bisect_right(self._seqs, size - 1) - 1]

    def counts(self, time: int, size: int, now: int | None) -> bool:
        """Tells whether somebody can have signed a checkpoint at a time.

        Guarantee:
            True only for times in [time of the last leaf under the checkpoint, ``now`` + `AHEAD_SECONDS`]: nobody signs a leaf
            before it is written, or tomorrow.

        Args:
            time: POSIX seconds that the signature states.
            size: size of the checkpoint.
            now: POSIX seconds by the reader's clock; None where it has none, and then the end is not judged.
        """
        return self.at(size) <= time and (now is None or not is_ahead(time, now))

    def require_not_ahead(self, now: int) -> None:
        """Holds the times since the last CLOCK leaf against a clock; what that leaf took back is told, and no fault.

        Raises:
            LeafRefused: code CLOCK, with the position of the first leaf that lies ahead.
        """
        if not is_ahead(self.last, now):
            return
        since = self.sets[-1].seq if self.sets else 0
        first = next(seq for seq, time in zip(self._seqs, self._times, strict=True) if seq >= since and is_ahead(time, now))
        sentence = (
            f"it is dated {utc(self.at(first + 1))}, {self.at(first + 1) - now} s ahead of the clock here ({utc(now)}); "
            f"expected {AHEAD_SECONDS} s at most. Whose clock is wrong? A ledger's is set back by 'dptrain ledger set-clock'"
        )
        raise LeafRefused("CLOCK", sentence, seq=first)

    def require_no_jump(self, now: int, accepted: int) -> None:
        """Refuses to go on where the clock is so far ahead of the last leaf that it may be wrong.

        Args:
            now: POSIX seconds.
            accepted: a reading of the clock that somebody vouched for; 0 for none.

        Raises:
            LeafRefused: code CLOCK_JUMP.
        """
        known = max(self.last, accepted)
        if now <= known + JUMP_SECONDS:
            return
        raise LeafRefused(
            "CLOCK_JUMP",
            f"the clock says {utc(now)} and the last leaf is of {utc(self.last)}, {(now - self.last) // 86400} days before; "
            f"more than {JUMP_SECONDS // 86400} are not taken unasked, since what a false clock lets expire stays withdrawn. "
            "Set the clock right, or if it is, say so with --clock-jump-ok (clock_jump_ok=True); nothing was written",
        )
