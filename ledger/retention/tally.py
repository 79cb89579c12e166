"""What a SUMMARY leaf must say, added up while leaves are replayed, and the rules by which one is judged.

Ranges begin with leaf 1 or where the range before ended, and end behind an EPOCH leaf that lies ``retention_epochs`` epochs
back: no gap, no overlap, no second summary of a range, no open window in one. A policy with ``retention_epochs = 0`` has none.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ledger.errors import LeafRefused
from ledger.leaves import Admit, Charge, Epoch, Header, Leaf, Settle, Spend, Summary, SummaryClass, SummaryKind, Withdraw
from ledger.retention.anchors import AnchorRecord, set_root
from ledger.rules.contributions import Contribution
from ledger.subtrees import Pieces, joined

if TYPE_CHECKING:
    from ledger.replay import Replay

FIRST_LEAF: Final = 1
"""Where the first range begins: the header is in none."""


@dataclass(slots=True)
class _Spent:
    """Sums over SPEND leaves of one class; ``slack`` is how much more pruned ones may have recorded, in 1e-6."""

    count: int = 0
    total: int = 0
    most: int = 0
    slack: float = 0.0
    most_slack: float = 0.0

    def add(self, micro: int, slack: float) -> None:
        self.count, self.total, self.most = self.count + 1, self.total + micro, max(self.most, micro)
        self.slack, self.most_slack = self.slack + slack, max(self.most_slack, slack)


@dataclass(slots=True)
class _ClassTally:
    """One class over one epoch: of those that left the run with it, and of those that stay."""

    admitted: int = 0
    active: int = 0
    left: _Spent = field(default_factory=_Spent)
    stay: _Spent = field(default_factory=_Spent)
    variances: tuple[float, float] | None = None
    steps: int = 0

    def see_variance(self, value: float) -> None:
        low, high = self.variances or (value, value)
        self.variances = min(low, value), max(high, value)


class _Segment:
    """The leaves of one epoch: those behind the EPOCH leaf before, its own EPOCH leaf included."""

    def __init__(self, classes: int) -> None:
        self.end = 0
        self.kinds: Counter[int] = Counter()
        self.charged = 0
        self.classes = [_ClassTally() for _ in range(classes)]
        self.records: list[AnchorRecord] = []


class Tally:
    """Takes every leaf that a replay has applied.

    Attributes:
        pieces: gives subtrees; None unless whoever holds them sets it, and then no summary can be judged.
        start: where the next range begins.
        summaries: all SUMMARY leaves.
        slack: how much more than it says the SPEND leaf that is seen may record, in 1e-6: not 0 only for a stand-in.
        summarised: by descriptor hash, the end of the range in whose summary the record of a contribution is, and the record.
    """

    def __init__(self, header: Header) -> None:
        """Takes leaf 0."""
        self.pieces: Pieces | None = None
        self.start = FIRST_LEAF
        self.summaries: list[Summary] = []
        self.slack = 0.0
        self.summarised: dict[bytes, tuple[int, AnchorRecord]] = {}
        self._horizon = header.policy.retention_epochs
        self._public = [rule.public for rule in header.policy.classes]
        self._anchors = not header.occurrences_public  # there no ADMIT leaf is ever pruned, so nothing needs a record
        self._closed: list[_Segment] = []
        self._open = _Segment(len(self._public))
        self._leaving: list[tuple[Contribution, int]] = []
        self._admitted = array("q")  # positions of ADMIT leaves, and their content anchors one after the other
        self._content_anchors = bytearray()

    def see(self, leaf: Leaf, run: "Replay") -> None:
        """Counts a leaf that the run has applied; nothing where the policy keeps everything."""
        if not self._horizon:
            return
        self._open.kinds[leaf.KIND] += 1
        match leaf:
            case Spend():
                self._spend(leaf, run)
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
                    self._leaving.append((contribution, leaf.seq))
            case Epoch():
                self._epoch(leaf, run)

    def judge(self, leaf: Summary) -> Iterator[LeafRefused]:
        """Yields what is wrong with a SUMMARY leaf, and takes its range off where that is a right one."""
        try:
            segments = self._range(leaf)
            expected, slack = self._summary(leaf.seq, leaf.time, segments)
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
        for rule, pair in enumerate(zip(leaf.classes, expected.classes, slack, strict=False)):
            wrong.extend(f"{name} of class {rule}" for name in _unlike(*pair))
        if wrong:
            yield LeafRefused("SUMMARY", f"leaves {leaf.first} to {leaf.end - 1} give another {', '.join(wrong)} than it says")
        else:
            records = (record for segment in segments for record in segment.records)
            self.summarised |= {record.descriptor_hash: (leaf.end, record) for record in records}
        self._closed = self._closed[len(segments) :]
        self.start = leaf.end
        self.summaries.append(leaf)

    def propose(self, seq: int, time: int) -> tuple[Summary, list[AnchorRecord]]:
        """Returns the SUMMARY leaf over all epochs past the horizon, and the records that it commits to.

        Raises:
            LeafRefused: code RETENTION if the policy keeps everything, NOTHING_DUE if no epoch is past the horizon.
        """
        self._check_policy()
        due = len(self._closed) - self._horizon
        if due <= 0:
            sentence = f"{len(self._closed)} epochs are closed and not summarised, the policy keeps the last {self._horizon}"
            raise LeafRefused("NOTHING_DUE", f"{sentence}; {1 - due} more must close first")
        segments = self._closed[:due]
        return self._summary(seq, time, segments)[0], [record for segment in segments for record in segment.records]

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

    def _summary(self, seq: int, time: int, segments: Sequence[_Segment]) -> tuple[Summary, list[_Spent]]:
        if self.pieces is None:
            raise LeafRefused("SUMMARY", "this replay was given no leaf hashes and can judge no summary")
        end, pieces = segments[-1].end, self.pieces
        kinds = sum((segment.kinds for segment in segments), Counter[int]())
        rows, slack = [], []
        for place, public in enumerate(self._public):
            row, spent = _class_row([segment.classes[place] for segment in segments], public)
            row_charged = sum(segment.charged for segment in segments)
            rows.append(SummaryClass(*row[:-1], row_charged, row[-1]))
            slack.append(spent)
        records = [record for segment in segments for record in segment.records]
        leaf = Summary(
            seq,
            time,
            self.start,
            end,
            tuple(SummaryKind(kind, kinds[kind]) for kind in sorted(kinds)),
            tuple(rows),
            tuple(piece.hash for piece in joined(pieces(self.start, end))),
            set_root(records),
            self.summaries[-1].seq if self.summaries else None,
        )
        return leaf, slack

    def _admit(self, leaf: Admit, run: "Replay") -> None:
        contribution = run.contributions.get(leaf.descriptor_hash)
        if contribution is not None and contribution.seq == leaf.seq:
            self._open.classes[contribution.class_index].admitted += 1
            if self._anchors:
                self._admitted.append(leaf.seq)
                self._content_anchors += leaf.anchor

    def _spend(self, leaf: Spend, run: "Replay") -> None:
        contribution = run.contributions.get(leaf.descriptor_hash)
        if contribution is None:
            return
        tally = self._open.classes[contribution.class_index]
        tally.see_variance(leaf.variance)
        tally.steps = max(tally.steps, leaf.steps)
        (tally.stay if contribution.active else tally.left).add(leaf.epsilon_micro, self.slack)
        if self._anchors and not contribution.active:
            self._open.records.append(self._record(contribution, leaf.seq, leaf.epsilon_micro))

    def _epoch(self, leaf: Epoch, run: "Replay") -> None:
        segment = self._open
        segment.end = leaf.seq + 1
        for contribution, seq in self._leaving:
            if self._anchors and self._public[contribution.class_index]:
                segment.records.append(self._record(contribution, seq, None))
        for tally, active in zip(segment.classes, run.register.active, strict=True):
            tally.active = active
        self._leaving = []
        self._closed.append(segment)
        self._open = _Segment(len(self._public))

    def _record(self, contribution: Contribution, seq: int, micro: int | None) -> AnchorRecord:
        terms, hash_ = contribution.terms, contribution.descriptor_hash
        bounds = (terms.clip_micro, terms.sigma_micro, terms.max_occurrences)
        limit = (contribution.carried_micro, terms.max_epsilon_micro, terms.max_delta_pico)
        place = 32 * bisect_left(self._admitted, contribution.seq)
        anchor = bytes(self._content_anchors[place : place + 32])
        return AnchorRecord(hash_, terms.class_index, contribution.seq, seq, micro, *bounds, *limit, anchor)


def _class_row(
    tallies: Sequence[_ClassTally], public: bool
) -> tuple[tuple[int, int, int | None, int | None, float, float, int], _Spent]:
    """The fields of a class but for the charged steps, and its sums over pruned SPEND leaves."""
    spent = _Spent()
    for part in (*(tally.left for tally in tallies), tallies[-1].stay):
        spent.count += part.count
        spent.total += part.total
        spent.slack += part.slack
        spent.most, spent.most_slack = max(spent.most, part.most), max(spent.most_slack, part.most_slack)
    seen = [tally.variances for tally in tallies if tally.variances is not None]
    low, high = min((low for low, _ in seen), default=0.0), max((high for _, high in seen), default=0.0)
    steps, active = max(tally.steps for tally in tallies), tallies[-1].active
    if public:
        return (sum(tally.admitted for tally in tallies), active, None, None, low, high, steps), spent
    return (spent.count, active, spent.total, spent.most, low, high, steps), spent


def _unlike(found: SummaryClass, expected: SummaryClass, spent: _Spent) -> Iterator[str]:
    """Names the fields that differ; epsilons may be above the expected by what pruned leaves may have recorded more."""
    for name in ("contributions", "active", "min_variance", "max_variance", "charged", "occurrences"):
        if getattr(found, name) != getattr(expected, name):
            yield name
    for name, slack in (("sum_epsilon_micro", spent.slack), ("max_epsilon_micro", spent.most_slack)):
        said, least = getattr(found, name), getattr(expected, name)
        if (said is None) != (least is None) or (said is not None and not least <= said <= least + slack):
            yield name
