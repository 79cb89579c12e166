"""Re-derives everything a ledger file claims from the bodies of its leaves, and believes nothing else in it."""

import hashlib
from dataclasses import dataclass

from ledger.errors import LeafRefused, LedgerBehind, LedgerCorrupt, NoteError
from ledger.leaves import Header, decode_leaf
from ledger.merkle import Frontier, leaf_hash
from ledger.replay import Replay
from ledger.storage.hashes import LeafHashes
from ledger.storage.store import Row, Snapshot, Store


@dataclass(slots=True)
class Loaded:
    """A ledger file that was found whole.

    Attributes:
        replay: the state of the run.
        frontier: the frontier of its tree.
        hashes: all leaf hashes.
        header_digest: SHA-256 of the bytes of leaf 0.
        checkpoints: signed notes by size.
    """

    replay: Replay
    frontier: Frontier
    hashes: LeafHashes
    header_digest: bytes
    checkpoints: dict[int, bytes]


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
    verified = [0]
    replay: Replay | None = None
    digest = b""
    for row in snapshot.rows():
        seq = len(hashes)
        _check_row(row, seq)
        try:
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
            replay = Replay(leaf, hashes.root, recompute=recompute)
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
    replay.recompute = True
    return Loaded(replay, frontier, hashes, digest, notes)


def _check_row(row: Row, seq: int) -> None:
    if row.seq != seq:
        raise LedgerCorrupt("GAP", f"leaf {seq} is missing; the next one stored is {row.seq}", seq=seq)
    if not row.body:
        raise LedgerCorrupt("PRUNED", f"the body of leaf {seq} is gone; this version reads whole ledgers", seq=seq)
    if leaf_hash(row.body) != row.leaf_hash:
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
