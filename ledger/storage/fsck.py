"""Re-derives everything a ledger file claims from its leaves, and believes nothing else."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ledger.accountants.table import NOT_HERE
from ledger.errors import LeafRefused, LedgerBehind, LedgerCorrupt, LedgerError, NoteError, ProofError
from ledger.leaves import Header, Leaf, Withdraw, decode_leaf
from ledger.merkle import HASH_SIZE, Frontier, leaf_hash
from ledger.note import NoteSigner
from ledger.replay import Replay
from ledger.replay.summaries import Aggregate
from ledger.retention import (
    RetainedReplay,
    StandIns,
    hashes_end,
    named_by_withdrawals,
    vouched_end,
    vouchers,
    vouchers_of_close,
)
from ledger.storage import highwater
from ledger.storage.place import Place, store_of
from ledger.storage.store import PRUNABLE_KINDS, Aggregated, Row, Snapshot, Store, exists, open_store
from ledger.tiles import MAX_LEVEL, Subtree, Subtrees


@dataclass(frozen=True, slots=True)
class Contents:
    """Holds what `load` reads of a database, as the calls of `ledger.storage.store.Snapshot` return it."""

    head: Callable[[], Frontier]
    rows: Callable[[], Iterator[Row]]
    checkpoints: dict[int, bytes]
    aggregates: Sequence[Aggregated]
    pruned_before: int
    hashes_before: int

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Contents":
        """Returns the database as it is; with other fields it is one as it would be."""
        notes, kept = snapshot.checkpoints(), list(snapshot.aggregates())
        return cls(snapshot.head, snapshot.rows, notes, kept, snapshot.pruned_before(), snapshot.hashes_before())


@dataclass(slots=True)
class Loaded:
    """A ledger file that was found whole.

    Attributes:
        replay: the state of the run.
        frontier: the frontier of its tree.
        subtrees: all leaf hashes, and the roots of subtrees that stand for those that are gone.
        header_digest: SHA-256 of the bytes of leaf 0.
        checkpoints: signed notes by size.
        pruned_before: position below which bodies may be gone.
        hashes_before: position below which leaf hashes of pruned leaves may be gone.
    """

    replay: Replay
    frontier: Frontier
    subtrees: Subtrees
    header_digest: bytes
    checkpoints: dict[int, bytes]
    pruned_before: int
    hashes_before: int


def load(store: Store, *, recompute: bool) -> Loaded:
    """Reads a whole ledger and checks it.

    Guarantee: Every body hashes to its stored leaf hash and stands at its own seq; head, frontier and index columns agree with
    the bodies; every stored checkpoint is signed by the key of its size and has the root of the tree at its size; what is gone
    is what auditors vouch for and the policy's horizons let go; and the leaves tell a run without contradiction.

    Args:
        store: the open database.
        recompute: also recompute every recorded epsilon, which takes the accountant's time.

    Raises:
        LedgerCorrupt: naming the first leaf that is wrong, if one can be named.
        LedgerBehind: if leaves that the file itself vouches for are gone from its end.
        LeafRefused: of the codes `NOT_HERE`, which say nothing against the file.
    """
    with store.snapshot() as snapshot:
        return derived(Contents.of(snapshot), recompute=recompute)


def derived(contents: Contents, *, recompute: bool = False) -> Loaded:
    """Does what `load` does, also for a database that is not there yet (`ledger.storage.appender`)."""
    tree, notes, kept = _Tree(contents.hashes_before), contents.checkpoints, _Kept(contents)
    verified = [0]
    replay: RetainedReplay | None = None
    digest = b""
    for seq, row in enumerate(contents.rows()):
        _check_row(row, seq)
        leaf: Leaf
        try:
            if replay is not None and not row.body:
                leaf, problems = replay.stand_in(kept.of(row))
            else:
                leaf = decode_leaf(row.body)
                problems = [] if replay is None else replay.apply(leaf)
        except (LeafRefused, ProofError) as error:
            if error.code in NOT_HERE:
                raise
            raise LedgerCorrupt("LEAF", f"leaf {seq}: {error.sentence}", seq=seq) from error
        whole = tree.take(row)
        if problems:
            raise LedgerCorrupt("REPLAY", f"leaf {seq}: {problems[0].sentence}", seq=seq)
        if replay is None:
            if not isinstance(leaf, Header):
                raise LedgerCorrupt("HEADER", "leaf 0 is not a header", seq=0)
            digest = hashlib.sha256(row.body).digest()
            replay = RetainedReplay(leaf, tree.subtrees.root, recompute=recompute, names=kept.names)
            replay.tally.pieces = tree.subtrees.between
        if row.kind != leaf.KIND:
            raise LedgerCorrupt("INDEX", f"the index column of leaf {seq} differs from its body", seq=seq)
        if seq + 1 in notes:
            if not whole:
                sentence = f"the checkpoint at size {seq + 1} lies inside a subtree whose hashes are gone; it cannot be checked"
                raise LedgerCorrupt("HASHES", sentence, seq=seq)
            _check_note(notes[seq + 1], replay, tree.frontier, verified[-1])
            verified.append(seq + 1)
    if replay is None:
        raise LedgerCorrupt("HEADER", "there is no leaf yet: no run has begun its ledger here, or that did not finish", seq=0)
    _check_end(contents.head(), tree.frontier, notes)
    if verified[1:] != sorted(notes):
        raise LedgerCorrupt("CHECKPOINT", "a checkpoint is stored for a size that the ledger never had")
    kept.check(replay, notes)
    replay.recompute = True
    return Loaded(replay, tree.frontier, tree.subtrees, digest, notes, kept.before, tree.before)


def set_unfinished_aside(place: Place) -> str | None:
    """Renames a ledger whose creation was interrupted, so that it can be created anew.

    Only a ledger without the signer's high-water file, which creation writes last, and with at most what it begins with counts:
    it cannot hold a charge. Nothing is deleted.

    Returns:
        The new name, or None if the ledger is not an unfinished one.
    """
    if not exists(place) or highwater.exists(place) or not _unfinished(place):
        return None
    return store_of(place).set_aside(place)


def set_unused_aside(place: Place, signer: NoteSigner) -> str | None:
    """Renames a ledger that pays for no step and that nobody outside has seen, so that a run can begin anew under its name.

    Guarantee: nothing was drawn, released or withdrawn under a ledger that is set aside, its own and the signer's record agree
    on that, and no checkpoint over more than its header was signed, as every export has one. Nothing is deleted.

    Returns:
        The new name, or None if the ledger stays.
    """
    mark = highwater.read_bytes(place)
    try:
        store = open_store(place, read_only=False)  # waits for nobody: another writer may be about to charge
    except LedgerCorrupt:
        return None
    try:
        found = load(store, recompute=False)
    except LedgerError:
        return None
    finally:
        store.close()
    run, size = found.replay, found.frontier.size
    seen = highwater.committed(mark, signer)
    begun = run.begins_with  # an export signs the whole, of a ledger that was just begun these leaves
    known = size <= begun or max(found.checkpoints, default=0) > begun
    if known or run.windows or run.withdrawals or seen is None or seen > size:
        return None
    highwater.set_aside(place, hashlib.sha256(found.frontier.root()).hexdigest()[:8])
    return store_of(place).set_aside(place)


def _unfinished(place: Place) -> bool:
    try:
        store = open_store(place, read_only=True)
        try:
            found = load(store, recompute=False)
            return found.frontier.size == found.replay.begins_with
        finally:
            store.close()
    except LedgerCorrupt as error:
        return error.code == "HEADER" or store_of(place).is_blank(place)


class _Tree:
    """The hashes of a database, a row at a time: leaf hashes, and subtrees that stand for those that are gone.

    Attributes:
        subtrees: all of them so far.
        frontier: their frontier.
        before: position below which hashes may be gone.
    """

    def __init__(self, before: int) -> None:
        self.subtrees = Subtrees()
        self.frontier = Frontier()
        self.before = before
        self._open: Subtree | None = None

    def take(self, row: Row) -> bool:
        """Takes the next row; tells whether the tree ends behind it now, which it does not inside a subtree."""
        if not row.level and self._open is None:
            self._append(row.seq, row.leaf_hash, 0)
            return True
        self._check_gone(row)
        if self._open is None:
            self._open = Subtree(row.seq, row.level, row.leaf_hash)
        if row.seq + 1 < self._open.end:
            return False
        self._append(row.seq, self._open.hash, self._open.level)
        self._open = None
        return True

    def _append(self, seq: int, hash_: bytes, level: int) -> None:
        if len(hash_) != HASH_SIZE:
            raise LedgerCorrupt("HASHES", f"the hash of leaf {seq} is gone, and no subtree stands for it", seq=seq)
        self.subtrees.append(hash_, level)
        self.frontier.append(hash_, level)

    def _check_gone(self, row: Row) -> None:
        """Checks a row in a subtree: it is pruned, below the horizon, and in its place."""
        first = row.seq >> row.level << row.level if 0 < row.level <= MAX_LEVEL else -1
        expected = (first, row.level) if self._open is None else (self._open.first, self._open.level)
        heads = row.seq == first
        if (first, row.level) != expected or heads == (self._open is not None) or heads != bool(row.leaf_hash):
            sentence = f"leaf {row.seq} is said to lie in a subtree of level {row.level}, which fits no subtree before it"
            raise LedgerCorrupt("HASHES", sentence, seq=row.seq)
        if row.body:
            sentence = f"a subtree stands for leaf {row.seq}, which was not pruned: its hash is not its own"
            raise LedgerCorrupt("HASHES", sentence, seq=row.seq)
        if row.seq >= self.before:
            sentence = f"the hash of leaf {row.seq} is gone, and hashes below {self.before} may be"
            raise LedgerCorrupt("HASHES", sentence, seq=row.seq)


class _Kept:
    """Reads what a database keeps of pruned leaves, and checks that they were allowed to go."""

    def __init__(self, contents: Contents) -> None:
        self.before, self.hashes_before = contents.pruned_before, contents.hashes_before
        self._aggregates = contents.aggregates
        self._stand_ins = StandIns(map(_read, self._aggregates))
        withdrawn = [row for row in contents.rows() if row.kind == Withdraw.KIND] if self.before else []
        if gone := [row.seq for row in withdrawn if not row.body]:
            raise LedgerCorrupt("PRUNED", f"the body of leaf {gone[0]} is gone, and no pruning can have taken it", seq=gone[0])
        self.names = named_by_withdrawals(row.body for row in withdrawn)

    def of(self, row: Row) -> bytes:
        """Returns what stands in for a leaf without a body."""
        if row.seq >= self.before or row.kind not in PRUNABLE_KINDS:
            raise LedgerCorrupt("PRUNED", f"the body of leaf {row.seq} is gone, and no pruning can have taken it", seq=row.seq)
        found = self._stand_ins.at(row.seq)
        if found is None:
            raise LedgerCorrupt("AGGREGATE", f"leaf {row.seq} was pruned, and its aggregate is gone", seq=row.seq)
        return found

    def check(self, replay: RetainedReplay, notes: dict[int, bytes]) -> None:
        """Checks that auditors vouch for all that is gone; raises LedgerCorrupt."""
        if not (self.before or self.hashes_before or replay.pruned):
            return
        try:
            names = vouchers(replay.header, notes, replay.tally.summaries, replay.timeline, None)
            at_close = vouchers_of_close(replay.header, notes, replay.closed_at, replay.timeline, None)
        except NoteError as error:
            raise LedgerCorrupt("VOUCHED", f"a statement of an auditor on summaries: {error.sentence}") from error
        end = vouched_end(replay.header, replay.tally.summaries, names)
        wrong = replay.unvouched(end, at_close)
        if wrong is None and self.before > end:
            wrong = f"bodies below {self.before} may be gone, and auditors vouch for summaries of the leaves below {end} only"
        if wrong is None and self._stand_ins.unused:
            wrong = f"{self._stand_ins.unused} aggregates stand for leaves that were not pruned"
        if wrong is not None:
            raise LedgerCorrupt("UNVOUCHED", wrong)
        early = replay.too_early()
        if early is not None:
            raise LedgerCorrupt("TOO_EARLY", early)
        self._check_index(replay)
        allowed = hashes_end(replay.header, replay.tally.summaries, replay.epochs)
        if self.hashes_before > min(allowed, self.before):
            sentence = f"hashes below {self.hashes_before} may be gone, and the policy lets those below {allowed} go by now"
            raise LedgerCorrupt("HORIZON", f"{sentence}; bodies are pruned below {self.before}")

    def _check_index(self, replay: RetainedReplay) -> None:
        committed = {aggregate.first: seq for aggregate, seq in replay.tally.summarised}
        for kept in self._aggregates:
            seq = committed.get(kept.first)
            if seq != kept.summary_seq:
                which = f"the aggregate of leaves {kept.first} to {kept.end - 1}"
                sentence = f"leaf {seq} commits to {which}, which is said to belong to leaf {kept.summary_seq}"
                raise LedgerCorrupt("INDEX", sentence, seq=seq)


def _read(kept: Aggregated) -> Aggregate:
    """Reads an aggregate; raises LedgerCorrupt."""
    try:
        found = Aggregate.from_bytes(kept.record)
    except LeafRefused as error:
        raise LedgerCorrupt("AGGREGATE", f"the aggregate of leaves from {kept.first} on: {error.sentence}") from error
    if (found.first, found.end) != (kept.first, kept.end):
        raise LedgerCorrupt("INDEX", f"the index columns of the aggregate of leaves from {kept.first} differ from its record")
    return found


def _check_row(row: Row, seq: int) -> None:
    if row.seq != seq:
        raise LedgerCorrupt("GAP", f"leaf {seq} is missing; the next one stored is {row.seq}", seq=seq)
    if row.body and leaf_hash(row.body) != row.leaf_hash:
        raise LedgerCorrupt("LEAF_HASH", f"leaf {seq} was changed: its body does not hash to it", seq=seq)


def _check_note(note: bytes, replay: Replay, frontier: Frontier, verified_size: int) -> None:
    try:
        _, checkpoint = replay.keys.open_note(note)
    except NoteError as error:
        raise LedgerCorrupt("CHECKPOINT", f"the checkpoint at size {frontier.size}: {error.sentence}") from error
    if (checkpoint.origin, checkpoint.size, checkpoint.root) != (replay.header.origin, frontier.size, frontier.root()):
        raise LedgerCorrupt(
            "CHECKPOINT",
            f"the leaves do not give the root signed at size {frontier.size}; one of {verified_size}.."
            f"{frontier.size - 1} was changed",
        )


def _check_end(head: Frontier, frontier: Frontier, notes: dict[int, bytes]) -> None:
    vouched = max(head.size, *notes) if notes else head.size
    if frontier.size < vouched:
        raise LedgerBehind("TAIL_LOST", f"the file vouches for {vouched} leaves and has {frontier.size}")
    if (head.size, head.to_bytes()) != (frontier.size, frontier.to_bytes()):
        raise LedgerCorrupt("HEAD", f"the stored head (size {head.size}) is not that of the {frontier.size} leaves")
