"""What a SUMMARY leaf must say, added up while leaves are replayed, and the rules by which one is judged.

Ranges begin with leaf 1 or where the range before ended, and end behind an EPOCH leaf that lies ``retention_epochs`` epochs
back: no gap, no overlap, no second summary of a range, no open window in one. A policy with ``retention_epochs = 0`` has none.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from ledger.errors import LeafRefused
from ledger.leaves import Admit, Charge, Epoch, Header, Leaf, Settle, Summary, SummaryClass, SummaryKind, Withdraw
from ledger.retention.aggregates import Aggregate, Aggregating, set_root
from ledger.rules.groups import Contribution, Group
from ledger.subtrees import Pieces, joined

if TYPE_CHECKING:
    from ledger.replay import Replay

FIRST_LEAF: Final = 1
"""Where the first range begins: the header is in none."""


@dataclass(slots=True)
class _Spent:
    """Sums over contributions of one class, in 1e-6."""

    count: int = 0
    total: int = 0
    most: int = 0

    def add(self, micro: int, count: int) -> None:
        """Adds as many contributions as have each spent that."""
        self.count, self.total, self.most = self.count + count, self.total + count * micro, max(self.most, micro)


@dataclass(slots=True)
class _ClassTally:
    """One class over one epoch: of those that left the run with it, and of those that stay."""

    admitted: int = 0
    active: int = 0
    left: _Spent = field(default_factory=_Spent)
    stay: _Spent = field(default_factory=_Spent)
    variances: tuple[float, float] | None = None
    steps: int = 0

    def see_group(self, group: Group, spent: _Spent, count: int) -> None:
        """Adds as many members of a group as its last row tells of them."""
        spent.add(group.epsilon_micro, count)
        if group.told is not None:
            _, _, steps, variance = group.told
            self.see_variance(variance)
            self.steps = max(self.steps, steps)

    def see_variance(self, value: float) -> None:
        """Takes a variance that a leaf records for the class."""
        low, high = self.variances or (value, value)
        self.variances = min(low, value), max(high, value)


class _Segment:
    """The leaves of one epoch: those behind the EPOCH leaf before, its own EPOCH leaf included."""

    def __init__(self, classes: int) -> None:
        self.end = 0
        self.kinds: Counter[int] = Counter()
        self.charged = 0
        self.classes = [_ClassTally() for _ in range(classes)]
        self.admissions = Aggregating()


class Tally:
    """Takes every leaf that a replay has applied.

    Attributes:
        pieces: gives subtrees; None unless whoever holds them sets it, and then no summary can be judged.
        start: where the next range begins.
        summaries: all SUMMARY leaves.
        summarised: the aggregates to which SUMMARY leaves commit, in order, each with the position of that leaf.
        known: the aggregate that stands for the ADMIT leaf which the run applies next, where its body is gone.
    """

    def __init__(self, header: Header) -> None:
        """Takes leaf 0."""
        self.pieces: Pieces | None = None
        self.start = FIRST_LEAF
        self.summaries: list[Summary] = []
        self.summarised: list[tuple[Aggregate, int]] = []
        self.known: Aggregate | None = None
        self._horizon = header.policy.retention_epochs
        self._public = [rule.public for rule in header.policy.classes]
        self._closed: list[_Segment] = []
        self._open = _Segment(len(self._public))
        self._leaving: list[Contribution] = []

    def see(self, leaf: Leaf, run: "Replay") -> None:
        """Counts a leaf that the run has applied; nothing where the policy keeps everything."""
        if not self._horizon:
            return
        self._open.kinds[leaf.KIND] += 1
        match leaf:
            case Admit():
                self._admit(leaf, run)
            case Charge():
                self._open.charged += leaf.n_steps
            case Settle():
                for tally, variance in zip(self._open.classes, leaf.variances, strict=False):
                    tally.see_variance(variance)
            case Withdraw():
                contribution = run.contributions.get(leaf.descriptor_hash)
                if contribution is not None and run.withdrawals[leaf.descriptor_hash] == leaf.seq:
                    self._leaving.append(contribution)
            case Epoch():
                self._epoch(leaf, run)

    def judge(self, leaf: Summary) -> Iterator[LeafRefused]:
        """Yields what is wrong with a SUMMARY leaf, and takes its range off where that is a right one."""
        try:
            segments = self._range(leaf)
            expected = self._summary(leaf.seq, leaf.time, segments)
        except LeafRefused as error:
            yield error
            return
        wrong = [
            name
            for name in ("kinds", "subtree_roots", "set_root", "previous")
            if getattr(leaf, name) != getattr(expected, name)
        ]
        if len(leaf.classes) != len(expected.classes):
            wrong.append("classes")
        for rule, (found, right) in enumerate(zip(leaf.classes, expected.classes, strict=False)):
            names = (item.name for item in fields(SummaryClass) if getattr(found, item.name) != getattr(right, item.name))
            wrong.extend(f"{name} of class {rule}" for name in names)
        if wrong:
            yield LeafRefused("SUMMARY", f"leaves {leaf.first} to {leaf.end - 1} give another {', '.join(wrong)} than it says")
        else:
            self.summarised += [(aggregate, leaf.seq) for aggregate in _aggregates(segments)]
        self._closed = self._closed[len(segments) :]
        self.start = leaf.end
        self.summaries.append(leaf)

    def aggregate_of(self, seq: int) -> Aggregate | None:
        """Returns the aggregate to which a SUMMARY leaf commits and which has an ADMIT leaf; None where none has it."""
        place = bisect_right(self.summarised, seq, key=lambda item: item[0].first) - 1
        found = self.summarised[place][0] if place >= 0 else None
        return found if found is not None and found.covers(seq) else None

    def propose(self, seq: int, time: int) -> tuple[Summary, list[Aggregate]]:
        """Returns the SUMMARY leaf over all epochs past the horizon, and the aggregates that it commits to.

        Raises:
            LeafRefused: code RETENTION if the policy keeps everything, NOTHING_DUE if no epoch is past the horizon.
        """
        self._check_policy()
        due = len(self._closed) - self._horizon
        if due <= 0:
            sentence = f"{len(self._closed)} epochs are closed and not summarised, the policy keeps the last {self._horizon}"
            raise LeafRefused("NOTHING_DUE", f"{sentence}; {1 - due} more must close first")
        segments = self._closed[:due]
        return self._summary(seq, time, segments), _aggregates(segments)

    def _check_policy(self) -> None:
        if not self._horizon:
            raise LeafRefused("RETENTION", "the policy says retention_epochs = 0: everything is kept, nothing summarised")

    def _range(self, leaf: Summary) -> list[_Segment]:
        self._check_policy()
        if leaf.first != self.start:
            sentence = f"ranges follow one another without gap or overlap: the next one begins at {self.start}"
            raise LeafRefused("SUMMARY_RANGE", f"{sentence}, the leaf says {leaf.first}")
        ends = [segment.end for segment in self._closed]
        if leaf.end not in ends:
            sentence = f"a range ends behind an EPOCH leaf, where no window is open; {leaf.end - 1} is none after {leaf.first}"
            raise LeafRefused("SUMMARY_RANGE", sentence)
        count = ends.index(leaf.end) + 1
        if count > len(ends) - self._horizon:
            sentence = f"the policy keeps {self._horizon} epochs, {len(ends) - count} follow the range"
            raise LeafRefused("SUMMARY_HORIZON", sentence)
        return self._closed[:count]

    def _summary(self, seq: int, time: int, segments: Sequence[_Segment]) -> Summary:
        if self.pieces is None:
            raise LeafRefused("SUMMARY", "this replay was given no leaf hashes and can judge no summary")
        end, pieces = segments[-1].end, self.pieces
        kinds = sum((segment.kinds for segment in segments), Counter[int]())
        charged = sum(segment.charged for segment in segments)
        rows = [
            _class_row([segment.classes[place] for segment in segments], public, charged)
            for place, public in enumerate(self._public)
        ]
        return Summary(
            seq,
            time,
            self.start,
            end,
            tuple(SummaryKind(kind, kinds[kind]) for kind in sorted(kinds)),
            tuple(rows),
            tuple(piece.hash for piece in joined(pieces(self.start, end))),
            set_root(_aggregates(segments)),
            self.summaries[-1].seq if self.summaries else None,
        )

    def _admit(self, leaf: Admit, run: "Replay") -> None:
        known, self.known = self.known, None
        contribution = run.contributions.get(leaf.descriptor_hash)
        if contribution is not None and contribution.seq == leaf.seq:
            self._open.classes[contribution.class_index].admitted += 1
            self._open.admissions.take(leaf, contribution.class_index, known)

    def _epoch(self, leaf: Epoch, run: "Replay") -> None:
        segment = self._open
        segment.end = leaf.seq + 1
        for contribution in self._leaving:
            if contribution.group is not None:
                tally = segment.classes[contribution.class_index]
                tally.see_group(contribution.group, tally.left, 1)
        for group in run.register.groups.present():
            if group.active:
                tally = segment.classes[group.class_index]
                tally.see_group(group, tally.stay, group.count)
        for tally, active in zip(segment.classes, run.register.active, strict=True):
            tally.active = active
        self._leaving = []
        self._closed.append(segment)
        self._open = _Segment(len(self._public))


def _aggregates(segments: Sequence[_Segment]) -> list[Aggregate]:
    return [aggregate for segment in segments for aggregate in segment.admissions.made()]


def _class_row(tallies: Sequence[_ClassTally], public: bool, charged: int) -> SummaryClass:
    """Returns the row of a class over these epochs: all who left in them, and those who stay at the end of the last one."""
    spent = [*(tally.left for tally in tallies), tallies[-1].stay]
    seen = [tally.variances for tally in tallies if tally.variances is not None]
    low, high = min((low for low, _ in seen), default=0.0), max((high for _, high in seen), default=0.0)
    steps, active = max(tally.steps for tally in tallies), tallies[-1].active
    if public:
        return SummaryClass(sum(tally.admitted for tally in tallies), active, None, None, low, high, charged, steps)
    total, most = sum(part.total for part in spent), max(part.most for part in spent)
    return SummaryClass(sum(part.count for part in spent), active, total, most, low, high, charged, steps)
