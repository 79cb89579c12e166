"""Re-derives everything a ledger file claims from the bodies of its leaves, and believes nothing else in it."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from ledger.errors import LeafRefused, LedgerBehind, LedgerCorrupt, NoteError
from ledger.leaves import Header, Leaf, Spend, decode_leaf
from ledger.merkle import Frontier, leaf_hash
from ledger.replay import Replay
from ledger.retention.retained import RetainedReplay
from ledger.retention.statements import vouched_end, vouchers
from ledger.storage.hashes import LeafHashes
from ledger.storage.store import PRUNABLE_KINDS, Anchor, Row, Snapshot, Store


@dataclass(slots=True)
class Loaded:
    """A ledger file that was found whole.

    Attributes:
        replay: the state of the run.
        frontier: the frontier of its tree.
        hashes: all leaf hashes.
        header_digest: SHA-256 of the bytes of leaf 0.
        checkpoints: signed notes by size.
        pruned_before: position below which bodies may be gone.
    """

    replay: Replay
    frontier: Frontier
    hashes: LeafHashes
    header_digest: bytes
    checkpoints: dict[int, bytes]
    pruned_before: int


def load(store: Store, *, recompute: bool) -> Loaded:
    """Reads a whole ledger and checks it.

    Guarantee:
        Every body hashes to its stored leaf hash and stands at its own seq; head, frontier and index columns agree with
        the bodies; every stored checkpoint is signed by the key of its size and has the root of the tree at its size; and
        the leaves tell a run without contradiction.

    Args:
        store: the open database.
        recompute: also recompute every recorded epsilon, which takes the accountant's time.

    Raises:
        LedgerCorrupt: naming the first leaf that is wrong, if one can be named.
        LedgerBehind: if leaves that the file itself vouches for are gone from its end.
    """
    with store.snapshot() as snapshot:
        return _load(snapshot, recompute)


def _load(snapshot: Snapshot, recompute: bool) -> Loaded:
    hashes = LeafHashes()
    frontier = Frontier()
    notes = snapshot.checkpoints()
    kept = _Kept(snapshot)
    verified = [0]
    replay: RetainedReplay | None = None
    digest = b""
    for row in snapshot.rows():
        seq = len(hashes)
        _check_row(row, seq)
        leaf: Leaf
        try:
            if replay is not None and not row.body:
                leaf, problems = replay.stand_in(kept.of(row))
            else:
                leaf = decode_leaf(row.body)
                problems = [] if replay is None else replay.apply(leaf)
        except LeafRefused as error:
            raise LedgerCorrupt("LEAF", f"leaf {seq}: {error.sentence}", seq=seq) from error
        hashes.append(row.leaf_hash)
        frontier.append(row.leaf_hash)
        if problems:
            raise LedgerCorrupt("REPLAY", f"leaf {seq}: {problems[0].sentence}", seq=seq)
        if replay is None:
            if not isinstance(leaf, Header):
                raise LedgerCorrupt("HEADER", "leaf 0 is not a header", seq=0)
            digest = hashlib.sha256(row.body).digest()
            replay = RetainedReplay(leaf, hashes.root, recompute=recompute)
            replay.tally.hashes = hashes.between
        if (row.kind, row.descriptor_hash) != (leaf.KIND, getattr(leaf, "descriptor_hash", None)):
            raise LedgerCorrupt("INDEX", f"the index columns of leaf {seq} differ from its body", seq=seq)
        if frontier.size in notes:
            _check_note(notes[frontier.size], replay, frontier, verified[-1])
            verified.append(frontier.size)
    if replay is None:
        raise LedgerCorrupt("HEADER", "the ledger has no header leaf; creating it did not finish", seq=0)
    _check_end(snapshot.head(), frontier, notes)
    if verified[1:] != sorted(notes):
        raise LedgerCorrupt("CHECKPOINT", "a checkpoint is stored for a size that the ledger never had")
    kept.check(replay, notes)
    replay.recompute = True
    return Loaded(replay, frontier, hashes, digest, notes, kept.before)


def check(snapshot: Snapshot) -> None:
    """Does what `load` does and forgets the result; for a ledger that is not there yet (`Lean`)."""
    _load(snapshot, False)


class Lean:
    """A database as it would be, were bodies of it pruned.

    Attributes:
        dropped: positions of the bodies that would go, once its rows were read.
        stored: descriptor hashes whose anchors are in the database already.
    """

    def __init__(self, snapshot: Snapshot, before: int, anchors: Mapping[int, Anchor], kinds: Collection[int]) -> None:
        """Takes the database as it is, and what would go as `Store.prune`: leaves with anchors, and all of ``kinds``."""
        self.dropped: list[int] = []
        self.stored = {anchor.descriptor_hash for anchor in snapshot.anchors()}
        self._snapshot, self._before, self._added, self._kinds = snapshot, before, anchors, kinds

    def head(self) -> Frontier:
        """As it is."""
        return self._snapshot.head()

    def rows(self) -> Iterator[Row]:
        """Yields the rows without the bodies that would go."""
        self.dropped = []
        for row in self._snapshot.rows():
            if row.body and row.seq < self._before and (row.kind in self._kinds or row.seq in self._added):
                self.dropped.append(row.seq)
                yield replace(row, body=b"")
            else:
                yield row

    def checkpoints(self) -> dict[int, bytes]:
        """As they are."""
        return self._snapshot.checkpoints()

    def pruned_before(self) -> int:
        """As it would be."""
        return self._before

    def anchors(self) -> Iterator[Anchor]:
        """Yields what is there and what would come."""
        yield from self._snapshot.anchors()
        yield from (anchor for anchor in self._added.values() if anchor.descriptor_hash not in self.stored)


class _Kept:
    """What a database keeps of pruned leaves, and whether it was allowed to prune them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.before = snapshot.pruned_before()
        self._anchors = {anchor.descriptor_hash: anchor.record for anchor in snapshot.anchors()}

    def of(self, row: Row) -> bytes:
        """Returns what stands in for a leaf without a body."""
        if row.seq >= self.before or row.kind not in PRUNABLE_KINDS:
            raise LedgerCorrupt("PRUNED", f"the body of leaf {row.seq} is gone, and no pruning can have taken it", seq=row.seq)
        if row.kind == Spend.KIND:
            return b""
        record = self._anchors.pop(row.descriptor_hash or b"", None)
        if record is None:
            raise LedgerCorrupt("ANCHOR", f"leaf {row.seq} was pruned, and its anchor is gone", seq=row.seq)
        return record

    def check(self, replay: RetainedReplay, notes: dict[int, bytes]) -> None:
        """Checks that auditors vouch for all that is gone; raises LedgerCorrupt."""
        if not (self.before or replay.pruned):
            return
        try:
            names = vouchers(replay.header, notes, replay.tally.summaries)
        except NoteError as error:
            raise LedgerCorrupt("VOUCHED", f"a statement of an auditor on summaries: {error.sentence}") from error
        end = vouched_end(replay.header, replay.tally.summaries, names)
        wrong = replay.unvouched(end)
        if wrong is None and self.before > end:
            wrong = f"bodies below {self.before} may be gone, and auditors vouch for summaries of the leaves below {end} only"
        if wrong is None and self._anchors:
            wrong = f"{len(self._anchors)} anchors stand for leaves that were not pruned"
        if wrong is not None:
            raise LedgerCorrupt("UNVOUCHED", wrong)


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
