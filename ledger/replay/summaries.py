"""Adds up what a SUMMARY leaf must say, and makes the aggregates that stay of ADMIT leaves.

An aggregate holds what later leaves can be judged by, and the root over its members: nothing that leads to a person, and
nothing that grows with their number. From it the replay restores bounds and class at the place of every ADMIT leaf, and so
every count, charge and epsilon, exactly as from the leaves. SUMMARY leaves commit to the aggregates of their range by one root.
Whoever has a member record and its path can show that it was among the members.

Ranges begin with leaf 1 or where the range before ended, and end behind an EPOCH leaf that lies ``retention_epochs`` epochs
back: no gap, no overlap, no second summary of a range, no open window in one. A policy with ``retention_epochs = 0`` has none.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Final

from attest import cbor
from attest.errors import AttestError
from attest.schema import check_fields, declared, wire
from ledger.accountants import TABLE
from ledger.errors import LeafRefused
from ledger.leaves import Admit, Charge, Epoch, Header, Leaf, Settle, Summary, SummaryClass, SummaryKind, Withdraw
from ledger.leaves.kinds import ABOVE_0, MICRO, PICO_BELOW_1, SHA256, UINT, Checked, check_limit
from ledger.leaves.records import Quoted
from ledger.merkle import Frontier, leaf_hash, verify_inclusion
from ledger.merkle import root as merkle_root
from ledger.replay.contributions import Contribution, Group
from ledger.replay.state import RunState
from ledger.tiles import Pieces, joined

SharedTerms = tuple[int, int, int, int, int, int, int]
"""Class, clip norm, noise multiplier, cap, carried epsilon, and the limit over runs with its delta."""

MAX_AGGREGATE_SIZE: Final = 192
"""Longest encoded aggregate, in bytes."""


@dataclass(frozen=True, slots=True)
class Member(Checked):
    """Records one admission, as the root of its aggregate commits to it."""

    CDDL: ClassVar = "member-record"
    descriptor_hash: bytes = declared(1, SHA256, "SHA-256 of its descriptor.")
    seq: int = declared(2, ABOVE_0, "Position of its ADMIT leaf.")
    content_anchor: bytes = declared(3, SHA256, "Commitment to its content, as in that leaf.")

    @classmethod
    def of(cls, leaf: Admit) -> "Member":
        """Returns the record of an ADMIT leaf."""
        return cls(leaf.descriptor_hash, leaf.seq, leaf.anchor)

    def to_bytes(self) -> bytes:
        """Returns the record as it is hashed."""
        return cbor.encode(wire.encode_row(self))


@dataclass(frozen=True, slots=True)
class ShownMember:
    """Shows a member record by its path to the root over the members of its aggregate (RFC 6962, 2.1.1); nothing of it is
    verified."""

    member: Member
    path: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Aggregate(Checked, Quoted):
    """ADMIT leaves that follow one another without another leaf between them, all under equal terms."""

    CDDL: ClassVar = "aggregate"
    first: int = declared(1, ABOVE_0, "Position of the first of them.")
    count: int = declared(2, ABOVE_0, "How many they are.")
    class_index: int = declared(3, UINT, "Place of their class in the policy.")
    clip_micro: int = declared(4, MICRO, "Clip norm that each signed.")
    sigma_micro: int = declared(5, MICRO, "Noise multiplier that each signed.")
    max_occurrences: int = declared(6, UINT, "Its cap, 0 for none.")
    carried_micro: int = declared(7, MICRO, "What each had spent in earlier runs.")
    max_epsilon_micro: int = declared(8, MICRO, "Most that each might spend over all runs; 0 for no limit.")
    max_delta_pico: int = declared(9, PICO_BELOW_1, "The delta of that limit; 0 for no limit.", rule="0 exactly with the limit")
    members_root: bytes = declared(10, SHA256, "RFC 6962 root over their member records, in order.")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        check_limit(self.max_epsilon_micro, self.max_delta_pico)

    @property
    def end(self) -> int:
        """Returns the position behind the last of them."""
        return self.first + self.count

    @property
    def terms(self) -> SharedTerms:
        """Returns what they share: class, bounds, what was spent before, and the limit."""
        return self.class_index, *self.shared()

    def covers(self, seq: int) -> bool:
        """Tells whether the leaf at a position is one of them."""
        return self.first <= seq < self.end

    def to_bytes(self) -> bytes:
        """Returns the aggregate as it is hashed and exported."""
        return cbor.encode(wire.encode_row(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Aggregate":
        """Reads what `to_bytes` returned; raises LeafRefused for anything else."""
        if len(data) > MAX_AGGREGATE_SIZE:
            raise LeafRefused("SIZE", f"an aggregate has at most {MAX_AGGREGATE_SIZE} bytes, got {len(data)}")
        try:
            found = cbor.decode(data)
        except AttestError as error:
            raise LeafRefused(error.code, f"an aggregate: {error.sentence}") from error
        aggregate: Aggregate = wire.decode_row(cls, found, "an aggregate", LeafRefused)
        return aggregate

    def admission(self, seq: int, descriptor_hash: bytes, class_name: str, time: int) -> Admit:
        """Returns an ADMIT leaf that means to the replay what a pruned one did; what only the attestation tells is blank."""
        head = (seq, time, descriptor_hash, class_name, self.class_index)
        return Admit(*head, *self.bounds, bytes(32), bytes(8), bytes(32), self.carried_micro, *self.limit)

    def require_member(self, member: Member, path: Sequence[bytes]) -> None:
        """Checks that a record is one of the members.

        Guarantee: Returns only if the record, at its own position, is under the root over the members.

        Raises:
            ProofError: it is not.
            LeafRefused: code MEMBER, its position is of no member.
        """
        if not self.covers(member.seq):
            sentence = f"the record is of leaf {member.seq}, the aggregate of leaves {self.first} to {self.end - 1}"
            raise LeafRefused("MEMBER", sentence)
        verify_inclusion(member.to_bytes(), member.seq - self.first, self.count, path, self.members_root)


def set_root(aggregates: Iterable[Aggregate]) -> bytes:
    """Returns the RFC 6962 root over encoded aggregates, in the order of their leaves."""
    return merkle_root([aggregate.to_bytes() for aggregate in aggregates])


class Aggregating:
    """Puts the ADMIT leaves of an epoch into aggregates."""

    def __init__(self) -> None:
        self._made: list[Aggregate] = []
        self._first = self._count = 0
        self._terms: SharedTerms = (-1, 0, 0, 0, 0, 0, 0)
        self._members = Frontier()
        self._known: list[Aggregate] = []

    def take(self, leaf: Admit, place: int, known: Aggregate | None) -> None:
        """Takes the next ADMIT leaf.

        Guarantee: An aggregate that is known gives its root, and only where all else in it is what the leaves give: first leaf,
        number of leaves, class and every bound. Where it says anything else, or two stand for leaves that belong to one, no
        root comes out here that a SUMMARY leaf could have.
        """
        terms: SharedTerms = (place, *leaf.shared())
        if leaf.seq != self._first + self._count or terms != self._terms:
            self._finish()
            self._first, self._terms = leaf.seq, terms
        self._count += 1
        self._members.append(leaf_hash(Member.of(leaf).to_bytes()))
        if known is not None and known not in self._known[-1:]:
            self._known.append(known)

    def made(self) -> list[Aggregate]:
        """Returns the aggregates, once all leaves were taken."""
        self._finish()
        return self._made

    def _finish(self) -> None:
        if self._count:
            root = self._known[0].members_root if self._known else self._members.root()
            made = Aggregate(self._first, self._count, *self._terms, root)
            self._made.append(made if self._known in ([], [made]) else replace(made, members_root=bytes(32)))
            self._first = self._count = 0
            self._members, self._known = Frontier(), []


FIRST_LEAF: Final = 1
"""First leaf of the first range: the header is in none."""


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
class _Left:
    """Holds who left in an epoch, and what was recorded of it last, in 1e-6; ``since``: first leaf behind that epoch."""

    contribution: Contribution
    since: int
    micro: int


@dataclass(slots=True)
class _ClassTally:
    """One class over one epoch: of those that left the run with it, and of those that stay.

    ``raised``: of those who left before and spent more in it, as rows done again under correlated noise let them, first leaf
    behind the epoch in which they left, how much more, and how much in all.
    """

    admitted: int = 0
    active: int = 0
    left: _Spent = field(default_factory=_Spent)
    stay: _Spent = field(default_factory=_Spent)
    raised: list[tuple[int, int, int]] = field(default_factory=list)
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
        summarised: the aggregates to which SUMMARY leaves commit, in order, each with the position of that leaf.
        known: the aggregate that stands for the ADMIT leaf which the run applies next, where its body is gone.
    """

    def __init__(self, header: Header) -> None:
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
        self._grows = TABLE[header.policy.mechanism.name].memory(header.policy) > 0
        self._left: list[_Left] = []

    def see(self, leaf: Leaf, run: RunState) -> None:
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
        del self._closed[: len(segments)]
        self.start = leaf.end
        self._left = [one for one in self._left if one.since > leaf.end]
        self.summaries.append(leaf)

    def aggregate_of(self, seq: int) -> Aggregate | None:
        """Returns the aggregate to which a SUMMARY leaf commits and which has an ADMIT leaf; None where none has it."""
        place = bisect_right(self.summarised, seq, key=lambda item: item[0].first) - 1
        found = self.summarised[place][0] if place >= 0 else None
        return found if found is not None and found.covers(seq) else None

    def propose(self, seq: int, time: int) -> tuple[Summary, list[Aggregate]]:
        """Returns the SUMMARY leaf over all epochs past the horizon, and the aggregates that it commits to. Raises LeafRefused:
        code RETENTION if the policy keeps everything, NOTHING_DUE if no epoch is past the horizon."""
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
        count = bisect_right(self._closed, leaf.end, key=lambda segment: segment.end)
        if not count or self._closed[count - 1].end != leaf.end:
            sentence = f"a range ends behind an EPOCH leaf, where no window is open; {leaf.end - 1} is none after {leaf.first}"
            raise LeafRefused("SUMMARY_RANGE", sentence)
        if count > len(self._closed) - self._horizon:
            sentence = f"the policy keeps {self._horizon} epochs, {len(self._closed) - count} follow the range"
            raise LeafRefused("SUMMARY_HORIZON", sentence)
        return self._closed[:count]

    def _summary(self, seq: int, time: int, segments: Sequence[_Segment]) -> Summary:
        if self.pieces is None:
            raise LeafRefused("SUMMARY", "this replay was given no leaf hashes and can judge no summary")
        end, pieces = segments[-1].end, self.pieces
        kinds = sum((segment.kinds for segment in segments), Counter[int]())
        charged = sum(segment.charged for segment in segments)
        rows = [
            _class_row([segment.classes[place] for segment in segments], public, charged, self.start)
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

    def _admit(self, leaf: Admit, run: RunState) -> None:
        known, self.known = self.known, None
        contribution = run.contributions.get(leaf.descriptor_hash)
        if contribution is not None and contribution.seq == leaf.seq:
            self._open.classes[contribution.class_index].admitted += 1
            self._open.admissions.take(leaf, contribution.class_index, known)

    def _epoch(self, leaf: Epoch, run: RunState) -> None:
        segment = self._open
        segment.end = leaf.seq + 1
        for one in self._left:
            group = one.contribution.group
            if group is not None and group.epsilon_micro != one.micro:
                more, one.micro = group.epsilon_micro - one.micro, group.epsilon_micro
                segment.classes[one.contribution.class_index].raised.append((one.since, more, one.micro))
        for contribution in self._leaving:
            if contribution.group is not None:
                tally = segment.classes[contribution.class_index]
                tally.see_group(contribution.group, tally.left, 1)
                if self._grows:
                    self._left.append(_Left(contribution, segment.end, contribution.group.epsilon_micro))
        for group in run.register.groups.active():
            tally = segment.classes[group.class_index]
            tally.see_group(group, tally.stay, group.count)
        for tally, active in zip(segment.classes, run.register.active, strict=True):
            tally.active = active
        self._leaving = []
        self._closed.append(segment)
        self._open = _Segment(len(self._public))


def _aggregates(segments: Sequence[_Segment]) -> list[Aggregate]:
    return [aggregate for segment in segments for aggregate in segment.admissions.made()]


def _class_row(tallies: Sequence[_ClassTally], public: bool, charged: int, start: int) -> SummaryClass:
    """Returns the row of a class over these epochs, from leaf ``start`` on: all who left in them, and those who stay at the end
    of the last one."""
    spent = [*(tally.left for tally in tallies), tallies[-1].stay]
    seen = [tally.variances for tally in tallies if tally.variances is not None]
    low, high = min((low for low, _ in seen), default=0.0), max((high for _, high in seen), default=0.0)
    steps, active = max(tally.steps for tally in tallies), tallies[-1].active
    if public:
        return SummaryClass(sum(tally.admitted for tally in tallies), active, None, None, low, high, charged, steps)
    raised = [(more, micro) for tally in tallies for since, more, micro in tally.raised if since > start]
    total = sum(part.total for part in spent) + sum(more for more, _ in raised)
    most = max(*(part.most for part in spent), *(micro for _, micro in raised))
    return SummaryClass(sum(part.count for part in spent), active, total, most, low, high, charged, steps)
