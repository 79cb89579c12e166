"""Appends to a ledger: stages leaves, checks what they mean, commits them whole, and drops what may go.

The mechanics under `ledger.log.Ledger`: it decides what to append, this decides whether and how.
"""

from abc import abstractmethod
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TypeVar, overload

from attest.attestation import SIGNATURE_SIZE
from attest.files import atomic_write
from attest.schema.kinds import Told
from attest.schema.plain import BACK_SECONDS, utc
from ledger.errors import (
    LeafRefused,
    LedgerBehind,
    LedgerClosed,
    LedgerError,
    LedgerForked,
    LedgerReplaced,
    LedgerWrongRun,
)
from ledger.leaves import Leaf, Resume, decode_leaf, encode_leaf
from ledger.leaves.kinds import MOMENT
from ledger.merkle import HASH_SIZE, Frontier, leaf_hash
from ledger.note import NoteSigner, checkpoint_text, merge_notes, peek_checkpoint, sign_note
from ledger.proofs.memory import Evidence
from ledger.proofs.prover import consistency_proof
from ledger.storage import fsck, highwater
from ledger.storage.store import Aggregated, Attested, Row, Snapshot, Store
from ledger.tiles import Subtree, joined

Item = TypeVar("Item")


def without_hashes(rows: Iterable[Row], subtrees: Iterable[Subtree]) -> Iterator[Row]:
    """Yields rows as `Store.drop_hashes` would leave them. `subtrees`: those that would stand for hashes, in order."""
    pending = iter(subtrees)
    subtree = next(pending, None)
    for row in rows:
        while subtree is not None and subtree.end <= row.seq:
            subtree = next(pending, None)
        if subtree is None or row.seq < subtree.first:
            yield row
        else:
            yield row._replace(leaf_hash=subtree.hash if row.seq == subtree.first else b"", level=subtree.level)


def droppable(snapshot: Snapshot, before: int, cuts: Iterable[int]) -> Iterator[Subtree]:
    """Yields the maximal aligned subtrees of pruned leaves that are not in the database already, each of two leaves or more.

    Args:
        snapshot: the database.
        before: position below which hashes may go.
        cuts: sizes of trees whose roots must still be made, such as those of checkpoints; those that RESUME leaves cite are
            found here.
    """
    there: dict[int, int] = {}
    resumed = (decode_leaf(row.body) for row in snapshot.rows() if row.kind == Resume.KIND and row.body)
    pins = {leaf.pinned_size for leaf in resumed if isinstance(leaf, Resume) and leaf.pinned_size is not None}

    def pruned() -> Iterator[Subtree]:
        for row in snapshot.rows():
            if row.seq >= before:
                break
            if not row.body and row.leaf_hash:
                if row.level:
                    there[row.seq] = row.level
                yield Subtree(row.seq, row.level, row.leaf_hash)

    for subtree in joined(pruned(), pins.union(cuts)):
        if subtree.level and there.pop(subtree.first, 0) != subtree.level:
            yield subtree


class Packed(Sequence[Item]):
    """Keeps items in blocks of memory, and makes each anew for who asks for it."""

    __slots__ = ()

    @abstractmethod
    def at(self, place: int) -> Item:
        """Makes the item at a place, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        places = range(len(self))[index]
        return self.at(places) if isinstance(places, int) else [self.at(place) for place in places]

    def __iter__(self) -> Iterator[Item]:
        return map(self.at, range(len(self)))


class StagedRows(Packed[Row]):
    """Keeps rows to append in three blocks of memory, so that an admission of millions takes little more than their bytes.

    Guarantee: the row at a place equals the one that was added there.
    """

    __slots__ = ("_bodies", "_ends", "_hashes", "_kinds", "_seqs")

    def __init__(self) -> None:
        self._kinds, self._hashes, self._bodies = bytearray(), bytearray(), bytearray()
        self._seqs, self._ends = array("Q"), array("Q")

    def add(self, row: Row) -> None:
        """Adds a whole row behind the last one."""
        assert len(row.leaf_hash) == HASH_SIZE and not row.level
        self._kinds.append(row.kind)
        self._hashes += row.leaf_hash
        self._bodies += row.body
        self._seqs.append(row.seq)
        self._ends.append(len(self._bodies))

    def leaf_hashes(self) -> Iterator[bytes]:
        """Yields their leaf hashes."""
        return (bytes(self._hashes[at : at + HASH_SIZE]) for at in range(0, len(self._hashes), HASH_SIZE))

    def __len__(self) -> int:
        return len(self._seqs)

    def at(self, place: int) -> Row:
        start, end = self._ends[place - 1] if place else 0, self._ends[place]
        hashed = bytes(self._hashes[HASH_SIZE * place : HASH_SIZE * (place + 1)])
        return Row(self._seqs[place], self._kinds[place], hashed, bytes(self._bodies[start:end]))


class StagedAttested(Packed[Attested]):
    """Keeps what is to be kept of attestations, 80 bytes each; terms that are one object stay one."""

    __slots__ = ("_seqs", "_signatures", "_terms")

    def __init__(self) -> None:
        self._seqs, self._terms, self._signatures = array("Q"), list[bytes](), bytearray()

    def add(self, attested: Attested) -> None:
        """Adds one behind the last one."""
        assert len(attested.signature) == SIGNATURE_SIZE
        self._seqs.append(attested.seq)
        self._terms.append(attested.terms)
        self._signatures += attested.signature

    def __len__(self) -> int:
        return len(self._seqs)

    def at(self, place: int) -> Attested:
        signature = bytes(self._signatures[SIGNATURE_SIZE * place : SIGNATURE_SIZE * (place + 1)])
        return Attested(self._seqs[place], self._terms[place], signature)


class Appender:
    """A ledger's store, its replayed state, and the signer that may extend it.

    Attributes:
        store: the open database.
        signer: the ledger's key, None for reading only.
        replay: the state of the run.
        frontier: the frontier of the tree.
        checkpoints: signed notes by size.
        header_digest: SHA-256 of leaf 0.
        pruned_before: position below which bodies may be gone.
        hashes_before: position below which leaf hashes of pruned leaves may be gone.
        listeners: lists that the bytes of leaves are added to when these are durable.
    """

    def __init__(self, store: Store, signer: NoteSigner | None, *, recompute: bool = False) -> None:
        """Loads and checks the ledger, its recorded epsilons too if ``recompute``."""
        self.store = store
        self.signer = signer
        self._staged = StagedRows()
        self._attested = StagedAttested()
        self._broken = False
        self.listeners: list[list[bytes]] = []
        self._take(fsck.load(store, recompute=recompute))

    @property
    def size(self) -> int:
        """Number of leaves."""
        return self.frontier.size

    def root_at(self, size: int) -> bytes:
        """Returns the root over the first ``size`` leaves; raises ProofError, code HASHES_GONE, where it cannot be made."""
        return self.frontier.root() if size == self.size else self._subtrees.root(size)

    def require_in_place(self) -> None:
        """Asks whether the open database is still the one under the ledger's name; a handle that failed or reads is not asked.
        Raises LedgerReplaced: it is not; the handle refuses everything from then on."""
        if self.signer is not None and not self._broken:
            with self._told():
                self.store.require_in_place()

    def close(self) -> None:
        """Gives up the database."""
        self.store.close()
        self._broken = True

    @contextmanager
    def appending(
        self, now: int, *, checkpoint: bool = False, successor: NoteSigner | None = None, back: bool = False
    ) -> Iterator[int]:
        """Collects leaves staged in its body, then appends them in one transaction.

        Guarantee: When the body ends without an error, its leaves are durable, and then the signer's high-water file. When this
        raises, the ledger has none of them, unless it was the commit itself that failed or the high-water file that could not
        be written. A refused leaf leaves the handle as it was; a failed write makes it refuse everything until it is reopened.

        Args:
            now: POSIX seconds.
            checkpoint: sign the resulting tree, in the same transaction.
            successor: signs it too, and alone from then on.
            back: whether the body stages a CLOCK leaf, so that the time may lie before the last one.

        Yields:
            The time that the leaves must carry.
        """
        signer = self.require_signer()
        time, writing = (now if back else self.time_at(now)), False
        told = self._told()
        try:
            yield time
            rows, frontier = self._staged, self._grown()
            text = checkpoint_text(signer.name, frontier.size, frontier.root())
            signers = (signer,) if successor is None else (signer, successor)
            note = sign_note(text, *signers) if checkpoint else None
            writing = True
            with told:
                self.store.append(rows, frontier, note, self._attested)
            self.frontier = frontier
            self._subtrees.extend(rows.leaf_hashes())
            for heard in self.listeners:
                heard.extend(row.body for row in rows)
            if note is not None:
                self.checkpoints[frontier.size] = note
            self.signer = signers[-1]
            highwater.write(self.store.place, self.signer, frontier.size, frontier.root())
        except BaseException:
            self._broken = True
            if not writing:
                # Nothing was written: forget what the refused leaves did to the state, and go on.
                self._take(fsck.load(self.store, recompute=False))
                self._broken = False
            raise
        finally:
            self._staged, self._attested = StagedRows(), StagedAttested()

    def time_at(self, now: int) -> int:
        """Returns the time of leaves appended now; raises LeafRefused, code CLOCK, for a clock that is behind the last one."""
        MOMENT.check(now, Told("now"), LeafRefused)
        last = self.replay.last_time
        if now < last - BACK_SECONDS:
            sentence = f"the clock says {utc(now)}, the last leaf {utc(last)}; set the clock right"
            raise LeafRefused("CLOCK", f"{sentence}, or if it is and was wrong then, run 'dptrain ledger set-clock'")
        return max(now, last)

    def add_signatures(self, note: bytes, verifier_keys: Sequence[str]) -> bytes:
        """Stores what other keys have signed below a checkpoint; see `ledger.log.ledger.Ledger.add_signatures`."""
        self.require_signer()
        keys = self.replay.keys
        _, found = keys.open_note(note)
        stored = self.checkpoints.get(found.size)
        if found.origin != self.replay.header.origin:
            raise LedgerWrongRun("WRONG_RUN", f"the note is of {found.origin!r}, not of {self.replay.header.origin!r}")
        if found.size <= self.size and self.root_at(found.size) != found.root:
            raise self._forked(note, f"the ledger's key signed another history of {found.size} leaves than it has")
        if stored is None:
            raise LedgerError("NO_CHECKPOINT", f"the ledger has no checkpoint of {found.size} leaves, none was signed there")
        merged = merge_notes(stored, [note], list(dict.fromkeys([*keys.required(found.size), *verifier_keys])))
        if merged != stored:
            try:
                with self._told():
                    self.store.put_note(found.size, merged)
            except BaseException:
                self._broken = True
                raise
            self.checkpoints[found.size] = merged
        return merged

    def prune(self, before: int, seqs: Container[int], aggregates: Iterable[Aggregated]) -> int:
        """Drops bodies for good, having tried first that the ledger can do without them.

        Guarantee: When this returns, the bodies are gone and what stands in for them is stored, durably. When it raises,
        nothing is gone, unless it was the commit itself that failed. The ledger that would be left was replayed as a whole
        before anything was dropped, and again from the database after.

        Args:
            before: position below which bodies go.
            seqs: positions of the ADMIT leaves that go; those whose bodies are gone already are passed over.
            aggregates: what stands in for them; those that are stored already are passed over.

        Returns:
            How many bodies went.
        """
        self.require_signer()

        def goes(row: Row) -> bool:
            return bool(row.body) and row.seq < before and row.seq in seqs

        with self.store.snapshot() as snapshot:
            there = fsck.Contents.of(snapshot)
            stored = {kept.first for kept in there.aggregates}
            fresh = [kept for kept in aggregates if kept.first not in stored]
            gone = array("q", (row.seq for row in there.rows() if goes(row)))
            lean = replace(there, pruned_before=before, aggregates=[*there.aggregates, *fresh])
            lean = replace(lean, rows=lambda: (row._replace(body=b"") if goes(row) else row for row in there.rows()))
            fsck.derived(lean)
        self._drop(lambda: self.store.prune(self.size, before, gone, fresh))
        return len(gone)

    def drop_hashes(self, before: int, keep: Iterable[int] = ()) -> int:
        """Drops the hashes of pruned leaves for good, but for the roots of the subtrees that they fill, tried as in `prune`.

        Guarantee: As `prune`. Every stored checkpoint still has its root, as has every size that a RESUME leaf cites.

        Args:
            before: position below which hashes go.
            keep: further sizes whose roots must still be made.

        Returns:
            How many hashes went.
        """
        self.require_signer()
        with self.store.snapshot() as snapshot:
            subtrees = list(droppable(snapshot, before, {*self.checkpoints, *keep}))
            there = fsck.Contents.of(snapshot)
            lean = replace(there, hashes_before=before, rows=lambda: without_hashes(there.rows(), subtrees))
            fsck.derived(lean)
            gone = sum(bool(row.leaf_hash) for row in there.rows()) - sum(bool(row.leaf_hash) for row in lean.rows())
        self._drop(lambda: self.store.drop_hashes(self.size, before, subtrees))
        return gone

    def stage(self, leaf: Leaf) -> None:
        """Checks the next leaf against the run and queues its bytes; raises LeafRefused when it contradicts the run."""
        problems = self.replay.apply(leaf)
        if problems:
            raise problems[0]
        body = encode_leaf(leaf)
        self._staged.add(Row(leaf.seq, leaf.KIND, leaf_hash(body), body))

    def attach(self, attested: Attested) -> None:
        """Queues what is kept of the attestation of a staged ADMIT leaf; the caller has held it against the leaf."""
        self._attested.add(attested)

    def check_identity(self, signer: NoteSigner | None, expect_header: bytes | None, mark: bytes | None = None) -> None:
        """Checks that this is the ledger, and the key, that the caller means.

        Args:
            signer: the key to append with.
            expect_header: SHA-256 of leaf 0, as pinned elsewhere.
            mark: the high-water file: it tells a wrong key from a ledger that lost the leaf which introduced the key.
        """
        found = self.header_digest
        if expect_header is not None and expect_header != found:
            raise LedgerWrongRun("WRONG_HEADER", f"the header is {found.hex()}, {expect_header.hex()} was pinned")
        vkey = self.replay.keys.current
        if signer is None or signer.vkey == vkey:
            return
        committed = None if signer.vkey in self.replay.keys.vkeys else highwater.committed(mark, signer)
        if mark is not None and committed is not None:
            sentence = (
                f"{signer.vkey} committed to {committed} leaves; the ledger has {self.size}, and none introduces that key"
            )
            raise LedgerBehind("BEHIND", sentence) if committed > self.size else self._forked(mark, sentence)
        retired = next((seq for seq, _ in self.replay.keys.changes), None) if signer.vkey in self.replay.keys.vkeys else None
        since = "" if retired is None else f", which leaf {retired} and those after it put in its place; sign with that key"
        raise LedgerWrongRun("WRONG_KEY", f"the key given is {signer.vkey}, the ledger is signed by {vkey}{since}")

    def check_highwater(self, note: bytes | None) -> None:
        """Compares the ledger with the signer's own memory, and brings that up to date when writing. `note`: the high-water
        file, read before this ledger was loaded."""
        place, origin = self.store.place, self.replay.header.origin
        if note is not None:
            mark = highwater.parse(note, self.replay.keys)
            if mark.origin != origin:
                raise LedgerWrongRun("WRONG_RUN", f"the high-water file is of {mark.origin!r}, not {origin!r}")
            if mark.size > self.size:
                sentence = f"the signer committed to {mark.size} leaves, the ledger has {self.size}"
                raise LedgerBehind("BEHIND", f"{sentence}: an old copy, or its tail was lost; put back one with all of them")
            if self.root_at(mark.size) != mark.root:
                raise self._forked(note, f"the signer committed to another history of {mark.size} leaves than this one")
        elif self.signer is not None and self.size > self.replay.begins_with:
            missing = highwater.path_of(place)
            raise LedgerBehind("HIGHWATER_MISSING", f"{missing} is gone, so a lost tail could not be seen; restore it")
        if self.signer is not None:
            highwater.write(place, self.signer, self.size, self.frontier.root())

    def _told(self) -> AbstractContextManager[None]:
        """Lets an error say what of the run is in the ledger as it is now, and how to go on."""
        run = self.replay
        return _telling(self, f"{self.size} leaves, {run.charged} steps charged, settled up to step {run.position}")

    def _forked(self, note: bytes, sentence: str) -> LedgerForked:
        """Keeps both histories' notes as evidence (`ledger.proofs.memory`), and returns the error that says where.

        It shows a fork to anybody where this ledger has a checkpoint of that size or a larger one; else the two notes alone.
        """
        path = self.store.place.side(".fork-evidence")
        other, size = peek_checkpoint(note).size, max(self.checkpoints)
        evidence = Evidence(note, self.checkpoints[size])
        if 0 < other < size:
            proof = consistency_proof(self._subtrees.node, other, size)
            evidence = Evidence(note, self.checkpoints[size], self.root_at(other), tuple(proof))
        with suppress(OSError):
            atomic_write(path, evidence.to_bytes())
        return LedgerForked("FORKED", f"{sentence}; both are in {path}")

    def require_signer(self) -> NoteSigner:
        """Returns the key that signs; raises LedgerClosed for a handle that may not append."""
        if self._broken:
            raise LedgerClosed("HANDLE", "this handle was closed, or a write failed under it; open the ledger again")
        if self.signer is None:
            raise LedgerClosed("READ_ONLY", "this ledger was opened for reading; open it with its key to append")
        return self.signer

    def _drop(self, write: Callable[[], None]) -> None:
        """Drops something for good, and reads all of the ledger again."""
        self._broken = True
        with self._told():
            write()
        self._take(fsck.load(self.store, recompute=False))
        self._broken = False

    def _take(self, loaded: fsck.Loaded) -> None:
        self.replay = loaded.replay
        self.frontier = loaded.frontier
        self.checkpoints = loaded.checkpoints
        self.header_digest = loaded.header_digest
        self.pruned_before = loaded.pruned_before
        self.hashes_before = loaded.hashes_before
        self._subtrees = loaded.subtrees

    def _grown(self) -> Frontier:
        """Returns the frontier of the tree with what is staged behind it."""
        frontier = self.frontier.copy()
        frontier.extend(self._staged.leaf_hashes())
        return frontier


@contextmanager
def _telling(file: Appender, recorded: str) -> Iterator[None]:
    try:
        yield
    except LedgerReplaced as error:
        file._broken = True
        sentence = (
            f"{error.sentence}. Nothing more is charged, and no further step runs. What was recorded counts: {recorded}. "
            f"{file.store.rescue()}"
        )
        raise LedgerReplaced(error.code, sentence) from error
