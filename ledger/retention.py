"""Replays a pruned ledger: says what stands in for bodies that are gone, and how far back they may go.

One kind of bodies goes: an ADMIT leaf, when its contribution has left the run, or once the run is closed. What stands for all
that followed one another under equal terms is their aggregate, from which the replay restores each at its place. Whom it
admitted the WITHDRAW leaf says, which is never pruned; of who stays nothing says it any more. So of a pruned ledger too every
charge, withdrawal and epsilon is recomputed, for those who left and for those who stay, and the number of members of every
pool and group; what rests on the auditors' word is that the aggregates are what the leaves under the signed root said, and
roots over members whose names are gone. While a run goes on, ADMIT leaves of whoever is active are kept: roots of pools to
come, and that nobody is admitted twice, need the names. DRAW leaves tell contributions by the order of admission, in which
stand-ins keep their places, and are never pruned: so public occurrences are counted again.

Auditors vouch for summaries: without that statement no body is ever pruned. The line of an auditor stands under a name of its
own, ``<auditor>/summary-v1``, below a checkpoint that covers the SUMMARY leaf (C2SP tlog-cosignature leaves additional
statements to separate names). It is made with the key that the policy names for the auditor, over a message that no cosignature
begins with: cosignatures of C2SP do not sign the name, so that under the same message anybody could pass an auditor's
cosignature off as this statement.

By it the auditor says: I had an export with every body for which the SUMMARY leaves from number ``since`` on speak, and
recomputed every field of them. These bodies are those of their ranges, and the ADMIT leaves to whose records they commit. I
also had the ADMIT leaf of everybody who had not left, and held it against what its contributor signed, through every charge
under this checkpoint. Below a checkpoint that covers CLOSE it says so of the whole run.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from attest.keys.signers import as_signer
from attest.keys.vkeys import SIGNATURE_SUMMARY_V1, VerifierKey
from attest.schema.plain import MAX_TIME
from ledger.errors import LeafRefused, NoteError
from ledger.leaves import Admit, Epoch, Header, Summary, Withdraw, decode_leaf, peek_kind
from ledger.merkle import MAX_SIZE
from ledger.note import Cosigner, open_note, parse_verifier_key, summary_message, with_signature
from ledger.replay import Replay
from ledger.replay.contributions import stand_in_name
from ledger.replay.signer import Timeline
from ledger.replay.summaries import Aggregate


def waited(summary: Summary, epochs: Sequence[Epoch], closed: bool) -> bool:
    """Tells whether what a SUMMARY leaf speaks for may go by now: an EPOCH leaf follows it, or the run is closed."""
    return closed or (bool(epochs) and summary.seq < epochs[-1].seq)


def hashes_end(header: Header, summaries: Iterable[Summary], epochs: Sequence[Epoch]) -> int:
    """Returns where the leaves end whose hashes the policy lets go; 0 where it keeps them.

    That is the end of the last summarised range which at least ``retention_hash_epochs`` closed epochs follow. Only pruned
    leaves lose their hashes, so bodies must be gone before, and auditors vouch for the range.
    """
    horizon = header.policy.retention_hash_epochs
    if not 0 < horizon <= len(epochs):
        return 0
    return max((leaf.end for leaf in summaries if leaf.end <= epochs[-horizon].seq), default=0)


MEMBER: Final = b"\x80"
"""Stands in for a pruned leaf behind the first one of its aggregate: an empty CBOR array."""


def is_stand_in(data: bytes) -> bool:
    """Tells a stand-in, which is a CBOR array, from a leaf, which is a CBOR map."""
    return bool(data) and data[0] >> 5 == 4


def named_by_withdrawals(entries: Iterable[bytes]) -> dict[int, bytes]:
    """Returns whom pruned ADMIT leaves admitted, as WITHDRAW leaves say it: descriptor hashes by position.

    Takes the leaves in order, or what stands in for pruned ones; empty ones are left out. Raises LeafRefused: a WITHDRAW leaf
    cannot be read.
    """
    found: dict[int, bytes] = {}
    for data in entries:
        if data and not is_stand_in(data) and peek_kind(data) == Withdraw.KIND:
            leaf = decode_leaf(data)
            if isinstance(leaf, Withdraw) and leaf.admit_seq is not None:
                found.setdefault(leaf.admit_seq, leaf.descriptor_hash)
    return found


class StandIns:
    """Stands in for pruned leaves, in their order: each aggregate once, at the first of its leaves that is gone."""

    def __init__(self, aggregates: Iterable[Aggregate]) -> None:
        self._aggregates = sorted(aggregates, key=lambda aggregate: aggregate.first)
        self._firsts = [aggregate.first for aggregate in self._aggregates]
        self._given: set[int] = set()

    def at(self, seq: int) -> bytes | None:
        """Returns what stands in for the leaf at a position; None where nothing does."""
        place = bisect_right(self._firsts, seq) - 1
        if place < 0 or not self._aggregates[place].covers(seq):
            return None
        if place in self._given:
            return MEMBER
        self._given.add(place)
        return self._aggregates[place].to_bytes()

    @property
    def unused(self) -> int:
        """Number of aggregates that stood for nothing that was asked for."""
        return len(self._aggregates) - len(self._given)


class RetainedReplay(Replay):
    """A replay that also takes stand-ins. `pruned`: positions of pruned leaves."""

    def __init__(
        self,
        header: Header,
        root_at: Callable[[int], bytes],
        *,
        recompute: bool = True,
        names: Mapping[int, bytes] | None = None,
    ) -> None:
        """Starts after leaf 0, as `Replay`. `names`: whom pruned ADMIT leaves admitted (`named_by_withdrawals`); of the others
        nothing says it."""
        super().__init__(header, root_at, recompute=recompute)
        self.pruned: array[int] = array("q")
        self._names = names or {}
        self._aggregate: Aggregate | None = None

    def stand_in(self, data: bytes) -> tuple[Admit, list[LeafRefused]]:
        """Applies what stands in for a pruned leaf; returns an ADMIT leaf that means the same, blank in what is gone, and what
        contradicts the leaves before it. Raises LeafRefused: no leaf can have been here whose stand-in this is."""
        if data != MEMBER:
            if self._aggregate is not None and self._aggregate.covers(self.size):
                until = self._aggregate.end - 1
                raise LeafRefused("AGGREGATE", f"an aggregate stands for leaf {self.size}; the one before goes on to {until}")
            self._aggregate = Aggregate.from_bytes(data)
        leaf = self._restored(self._aggregate)
        self.tally.known = self._aggregate
        problems = self.apply(leaf)
        self.pruned.append(leaf.seq)
        self.timeline.loose = True
        return leaf, problems

    def unvouched(self, end: int, at_close: frozenset[str]) -> str | None:
        """Says what is pruned beyond what auditors vouch for, or None when nothing is.

        Guarantee: On None whoever a pruned ADMIT leaf admitted left with a leaf for which auditors vouch, or was there when the
        run was closed; and then a quorum of auditors held all who were against what they signed, through the last charge.

        Args:
            end: where the ranges end for which a quorum of auditors vouches.
            at_close: which auditors vouch below a checkpoint that covers CLOSE (`vouchers_of_close`).
        """
        if self.pruned and self.pruned[-1] >= end:
            last = self.pruned[-1]
            return f"the body of leaf {last} is gone, and auditors vouch for summaries of the leaves below {end} only"
        for seq, left in self._gone():
            if left is None and not self.closed:
                return f"leaf {seq} is gone, no WITHDRAW leaf says whom it admitted, and the run is not closed"
            if left is not None and left >= end and seq not in self.shown_members:
                said = f"auditors vouch for what lies below {end} only"
                return f"leaf {seq} is gone; whom it admitted left with leaf {left}, which does not show it, and {said}"
        quorum = self.header.policy.auditor_quorum or 0
        stayed = next(self.folded(), None)
        if stayed is not None and len(at_close) < quorum:
            named = ", ".join(sorted(at_close)) or "nobody"
            said = f"{quorum} auditors must vouch below a checkpoint with the close, leaf {self.closed_at}, and {named} does"
            return f"leaf {stayed} is gone, and whom it admitted was there until the run was closed; {said}"
        return None

    def folded(self) -> Iterator[int]:
        """Yields the positions of pruned ADMIT leaves of who had not left when the run was closed."""
        for seq, left in self._gone():
            if left is None or (self.closed_at is not None and left > self.closed_at):
                yield seq

    def restored(self, leaf: Summary) -> int:
        """Returns how many ADMIT leaves are gone whose WITHDRAW leaves a summary speaks for; they may lie in earlier ranges."""
        return sum(1 for _, left in self._gone() if left is not None and leaf.first <= left < leaf.end)

    def too_early(self) -> str | None:
        """Says which pruned range had to wait for another epoch, or None when none had."""
        shown = self.shown_members
        needed = sorted(seq if left is None or seq in shown else max(seq, left) for seq, left in self._gone())
        for leaf in self.tally.summaries:
            gone = bisect_left(needed, leaf.end) - bisect_left(needed, leaf.first)
            if gone and not waited(leaf, self.epochs, self.closed):
                sentence = f"{gone} bodies of leaves {leaf.first} to {leaf.end - 1}, or of who left in them, are gone; their"
                return f"{sentence} summary, leaf {leaf.seq}, is followed by no EPOCH leaf, nor is the run closed"
        return None

    def _is_pruned(self, seq: int) -> bool:
        place = bisect_left(self.pruned, seq)
        return place < len(self.pruned) and self.pruned[place] == seq

    def _gone(self) -> Iterator[tuple[int, int | None]]:
        """Yields the position of every pruned leaf, and that of the WITHDRAW leaf of whom it admitted."""
        for seq in self.pruned:
            name = self._names.get(seq)
            yield seq, None if name is None else self.withdrawals.get(name)

    def _restored(self, aggregate: Aggregate | None) -> Admit:
        classes = self.header.policy.classes
        if aggregate is None or not aggregate.covers(self.size) or aggregate.class_index >= len(classes):
            where = "nothing" if aggregate is None else f"an aggregate of leaves {aggregate.first} to {aggregate.end - 1}"
            raise LeafRefused("AGGREGATE", f"{where} stands for leaf {self.size}")
        name = self._names.get(self.size)
        if name is None:
            name = stand_in_name(self.size)
            self._unnamed.add(self.size)
        return aggregate.admission(self.size, name, classes[aggregate.class_index].name, self.last_time)


NAME_SUFFIX: Final = "/summary-v1"
"""Behind an auditor's name, the name under which it vouches for summaries."""


def summary_key(auditor: str | VerifierKey) -> VerifierKey:
    """Returns the verifier key of an auditor's statements on summaries, from the one of its cosignatures. Raises NoteError: it
    is malformed."""
    key = parse_verifier_key(auditor) if isinstance(auditor, str) else auditor
    return VerifierKey(key.name + NAME_SUFFIX, SIGNATURE_SUMMARY_V1, key.public_key)


def summary_keys(header: Header) -> list[str]:
    """Returns these keys of the auditors whom the policy names, as `open_note` takes them."""
    return [str(summary_key(auditor)) for auditor in header.policy.auditors]


def vouch(data: bytes, cosigner: Cosigner, log_keys: Iterable[str], *, since: int, time: int) -> bytes:
    """Adds an auditor's statement on summaries to a checkpoint of the log.

    Only an auditor who has audited all bodies of these ranges may call this; `ledger.proofs.cosigning` is the way that does.

    Args:
        data: a note by the log, whose verifier keys are `log_keys`.
        since: position of the first SUMMARY leaf that it vouches for.
        time: POSIX seconds of signing.

    Raises:
        NoteError: the note is not one by the log, or the line of this auditor in it does not verify.
    """
    key = summary_key(cosigner.verifier)
    note = open_note(data, [*log_keys, str(key)])
    if any(signature.key == key for signature in note.signatures):
        return data
    if not 0 <= time < MAX_TIME or not 0 < since < MAX_SIZE:
        sentence = f"expected a time before the year 10000 and a first summary in 1..2^63-1, got {time} and {since}"
        raise NoteError("TIME", sentence)
    signature = as_signer(cosigner.key).sign(summary_message(time, since, note.text))
    return with_signature(data, key, time.to_bytes(8, "big") + since.to_bytes(8, "big") + signature)


def statements(header: Header, note: bytes, counts: Callable[[int], bool] = lambda time: True) -> dict[str, int]:
    """Returns who of the policy's auditors vouches in a note, by name, and since which SUMMARY leaf.

    A statement is left out unless `counts` says that it can have been made at its time, in POSIX seconds. Raises NoteError: the
    note is malformed, or such a line does not verify.
    """
    keys = summary_keys(header)
    if not keys or NAME_SUFFIX.encode() not in note:
        return {}
    try:
        found = open_note(note, keys).signatures
    except NoteError as error:
        if error.code == "UNSIGNED":
            return {}
        raise
    made = (signature for signature in found if counts(signature.timestamp or 0))
    return {signature.key.name.removesuffix(NAME_SUFFIX): signature.since or 0 for signature in made}


def vouchers(
    header: Header, notes: Mapping[int, bytes], summaries: Iterable[Summary], timeline: Timeline, now: int | None
) -> dict[int, tuple[str, ...]]:
    """Returns by position of each SUMMARY leaf the names of the policy's auditors who vouch for it.

    Guarantee: A statement counts only if its time lies where `Timeline.counts` lets it: not before the last leaf under the
    note, and not ahead of the clock.

    Args:
        notes: checkpoint notes by size, whose text is known to be the ledger's.
        now: POSIX seconds by the clock of whoever asks; None to leave statements that are dated ahead to an auditor.

    Raises:
        NoteError: a line that claims to be an auditor's does not verify.
    """
    made = [(size, *item) for size, names in _said(header, notes, timeline, now).items() for item in names.items()]
    return {
        leaf.seq: tuple(sorted({name for size, name, since in made if since <= leaf.seq < size})) for leaf in summaries
    }


def vouchers_of_close(
    header: Header, notes: Mapping[int, bytes], closed_at: int | None, timeline: Timeline, now: int | None
) -> frozenset[str]:
    """Returns the names of the policy's auditors who vouch below a checkpoint that covers CLOSE.

    Arguments and errors are those of `vouchers`; `closed_at` is the position of CLOSE, None before it, and then there are none.

    Guarantee: Each of them held whoever stayed against what was signed, through the last charge of the run: so nobody who
    stayed was charged for after their attestation had ended, or their key was revoked.
    """
    if closed_at is None:
        return frozenset()
    said = _said(header, notes, timeline, now)
    return frozenset(name for size, names in said.items() if size > closed_at for name in names)


def _said(header: Header, notes: Mapping[int, bytes], timeline: Timeline, now: int | None) -> dict[int, dict[str, int]]:
    """Returns, for each checkpoint, the auditors who vouch at times that count, and since which SUMMARY leaf."""
    return {size: statements(header, note, partial(timeline.counts, size=size, now=now)) for size, note in notes.items()}


def vouched_end(header: Header, summaries: Iterable[Summary], names: Mapping[int, tuple[str, ...]]) -> int:
    """Returns the end of the ranges, from the first on, that a quorum of the policy's auditors vouches for; 0 for none.

    A policy without auditors has no quorum: nothing may be pruned under it.
    """
    end, quorum = 0, header.policy.auditor_quorum
    for leaf in summaries:
        if not quorum or len(names[leaf.seq]) < quorum:
            break
        end = leaf.end
    return end
