"""Promises what a ledger asks of the database that holds it; `ledger.storage.checking` holds a store to it.

A store keeps rows and knows nothing of what leaves mean. Whatever it says is derived again from the bodies when a ledger is
opened (`ledger.storage.fsck`), so a store can lose a ledger, but not falsify one unseen.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerReplaced
from ledger.leaves import Admit
from ledger.merkle import Frontier
from ledger.storage.place import Place, store_of
from ledger.tiles import Subtree

SCHEMA_VERSION: Final = "5"
"""Written into every new database and compared at opening; raised when its tables or triggers change."""

LOCK_TIMEOUT_SECONDS: Final = 10
"""Longest time that an append waits for a lock that another holds."""

PRUNABLE_KINDS: Final = (Admit.KIND,)
"""Leaves whose bodies retention may drop; all others are kept for ever."""

ADMIT_KIND: Final = Admit.KIND
"""Of such a leaf an aggregate must be there before its body goes."""

SUMMARY_KIND: Final = 6
"""A SUMMARY leaf speaks for a pruned range; ``pruned_before`` never passes the last one."""


MAX_WRONG: Final = 20
"""Faults that an examination of a database names; one damaged page may make hundreds."""

EMPTY_HEAD: Final[Mapping[str, object]] = {"id": 0, "size": 0, "frontier": b"", "pruned_before": 0, "hashes_before": 0}
"""The head of a ledger without a leaf."""


def locked(shown: str, *, here: bool) -> LedgerBusy:
    """Says that a ledger is being written already.

    Args:
        shown: name of the ledger. here: whether it is this very process that holds it.
    """
    if not here:
        return LedgerBusy("LOCKED", f"another process is writing {shown}; wait for it, or open read-only")
    return LedgerBusy(
        "LOCKED",
        f"this process has opened {shown} for writing already, and a ledger has one writer; close() the run or Ledger that "
        "holds it (in a notebook, that of an earlier cell, or restart the kernel), or open read-only",
    )


class Row(NamedTuple):
    """One leaf as stored: the body is what counts, the other columns are an index over it.

    A pruned leaf has the body b"". Where leaf hashes are gone too, the first leaf of every aligned subtree that stands for
    them has its root in place of a leaf hash, the others have b"", and all have its level.
    """

    seq: int
    kind: int
    leaf_hash: bytes
    body: bytes
    level: int = 0


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Stands for ADMIT leaves that were pruned.

    Attributes:
        first: position of the first leaf of the aggregate.
        end: position behind the last of them.
        summary_seq: the SUMMARY leaf that commits to it.
        record: the `ledger.replay.summaries.Aggregate`, encoded.
    """

    first: int
    end: int
    summary_seq: int
    record: bytes


class Attested(NamedTuple):
    """Keeps what the contributor of an ADMIT leaf signed (`ledger.leaves.attestations`).

    Attributes:
        seq: position of the leaf.
        terms: the common terms, encoded.
        signature: 64 bytes.
    """

    seq: int
    terms: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """Tells what a database says of its writer and its tree."""

    fence: int | None
    size: int | None
    frontier: bytes | None


def check_head(shown: str, found: Head, fence: int, left: Frontier | None, expected: int | None) -> None:
    """Compares what a database says with what its writer left, before that writes again.

    Args:
        shown: how messages name the ledger.
        found: what the database says, inside the transaction that will write.
        fence: number of this writer.
        left: the frontier that this writer left; None for one that has not looked yet.
        expected: number of leaves that the caller knows of, None to compare none.

    Raises:
        LedgerReplaced: code OVERWRITTEN, fence or size are smaller than this writer left them.
        LedgerBusy: code FENCED or HEAD_MOVED, another writer went on.
        LedgerCorrupt: there is no head.
    """
    if (found.fence or fence) < fence or (left is not None and found.size is not None and found.size < left.size):
        sentence = f"{shown} has {found.size} leaves by writer {found.fence}, writer {fence} left {left.size if left else 0}"
        raise LedgerReplaced("OVERWRITTEN", f"{sentence}: an older copy was put in its place while it was open")
    if found.fence != fence:
        raise LedgerBusy("FENCED", "another writer has taken the ledger over; close this one")
    if found.size is None:
        raise LedgerCorrupt("HEAD", "the stored head is gone")
    if expected is not None and found.size != expected:
        raise LedgerBusy("HEAD_MOVED", f"the ledger has {found.size} leaves, this writer knows of {expected}")
    if left is not None and (found.size, found.frontier) != (left.size, left.to_bytes()):
        raise LedgerBusy("HEAD_MOVED", f"the ledger has another head of {found.size} leaves than this writer left")


class Snapshot(Protocol):
    """Reads what the database held at one moment; valid inside `Store.snapshot`."""

    def head(self) -> Frontier:
        """Returns the stored size and frontier; raises LedgerCorrupt if they are gone or fit no tree."""

    def rows(self) -> Iterator[Row]:
        """Yields all rows in order of seq, a batch in memory at a time."""

    def checkpoints(self) -> dict[int, bytes]:
        """Returns all stored checkpoint notes by size."""

    def pruned_before(self) -> int:
        """Returns the position below which bodies may be gone."""

    def hashes_before(self) -> int:
        """Returns the position below which leaf hashes of pruned leaves may be gone."""

    def aggregates(self) -> Iterator[Aggregated]:
        """Yields all aggregates in order of their leaves."""

    def terms(self) -> Iterator[tuple[int, bytes]]:
        """Yields numbers and bytes of all common terms, in order; b"" where pruning has emptied them."""

    def terms_at(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the bytes of common terms, in the order of the numbers: some hundreds of them at most.

        Raises:
            LedgerCorrupt: code ATTESTATION, one of them is not there.
        """

    def attestations(self) -> Iterator[tuple[int, bytes]]:
        """Yields positions of ADMIT leaves and attestations as they are kept (`ledger.leaves.attestations.pack`), in order."""


def found_terms(numbers: Sequence[int], found: Mapping[int, bytes | None]) -> list[bytes]:
    """Returns what a database found of common terms, in the order of the numbers; raises LedgerCorrupt as `terms_at`."""
    for number in numbers:
        if not found.get(number):
            raise LedgerCorrupt("ATTESTATION", f"an attestation names the common terms {number}, which are not there")
    return [found[number] or b"" for number in numbers]


class Store(Protocol):
    """An open database of one ledger. Not for use from several threads, nor across a fork.

    Attributes:
        place: where it lies.
        fence: number of this writer, larger than that of every writer before it; 0 for a reader.
    """

    place: Place
    fence: int

    @classmethod
    def create(cls, place: Place) -> Self:
        """Creates an empty ledger, held by its only writer; raises LedgerError, code EXISTS, if there is one."""

    @classmethod
    def open(cls, place: Place, *, read_only: bool) -> Self:
        """Opens a ledger, as its only writer unless ``read_only``.

        Raises:
            LedgerError: code MISSING if there is none.
            LedgerBusy: another writer holds it.
            LedgerCorrupt: it was written by another version, or is no ledger.
            StorageFailed: it cannot be reached, or not relied on to keep what it commits.
        """

    @staticmethod
    def exists(place: Place) -> bool:
        """Tells whether something lies at the place of a ledger, whole or not, over which `create` would not go."""

    @staticmethod
    def is_blank(place: Place) -> bool:
        """Tells whether what lies there cannot be opened because its creation ended before it had a table."""

    @staticmethod
    def set_aside(place: Place) -> str:
        """Renames what lies there and returns the new name; nothing is deleted."""

    def append(
        self, rows: Sequence[Row], frontier: Frontier, note: bytes | None = None, attested: Sequence[Attested] = ()
    ) -> None:
        """Appends rows and attestations, all or none.

        Guarantee: When this returns, the rows are durable. When it raises, none of them is in the ledger; only where the
        failure came with the commit itself or right after it (codes COMMIT_UNKNOWN, STORAGE, IO, UNLINKED and REPLACED) they
        may be there, whole, when it is opened again. A writer that lost its lease, or whose view of the head is old, appends
        nothing. The database is the one under the ledger's name when it returns: nothing is reported that went into a file or a
        table without one.

        Args:
            rows: the next leaves, in order.
            frontier: the tree's frontier after the last of them.
            note: signed checkpoint of the size after the last of them.
            attested: what is kept of the attestations of ADMIT leaves among them, in order. Terms whose bytes are stored
                already get the number that they have; new ones the next.

        Raises:
            LedgerReplaced: the database under the ledger's name is another one, or none.
            LedgerBusy: another writer has taken over or appended, or the database stays locked.
            StorageFailed: the database refused, or the connection is lost.
        """

    def put_note(self, size: int, note: bytes) -> None:
        """Replaces a stored checkpoint note by itself with signature lines appended; durable as `append`.

        Raises:
            LedgerError: code NO_CHECKPOINT if none is stored for that size.
            LedgerCorrupt: the note is not the stored one with whole signature lines behind it.
            LedgerBusy, StorageFailed: as `append`.
        """

    def prune(self, size: int, before: int, seqs: Sequence[int], aggregates: Sequence[Aggregated]) -> None:
        """Drops bodies, stores what stands for them, and moves ``pruned_before``; all or nothing, durable as `append`.

        The attestation of a leaf goes with its body. Terms that no attestation is left of are emptied; they keep
        their number. Leaf hashes stay. Bodies of `PRUNABLE_KINDS` go, below ``before``, and that no further
        than the last SUMMARY leaf, those of ADMIT leaves only beside their aggregate; whether the summary was vouched for is
        the caller's to know.

        Args:
            size: number of leaves that the caller knows of.
            before: the new ``pruned_before``.
            seqs: leaves whose bodies go.
            aggregates: those of these leaves that are not stored yet.

        Raises:
            LedgerCorrupt: something may not go, or a leaf is not there; then nothing has changed.
            LedgerBusy, StorageFailed: as `append`.
        """

    def drop_hashes(self, size: int, before: int, subtrees: Sequence[Subtree]) -> None:
        """Puts roots of aligned subtrees in the place of leaf hashes, and moves ``hashes_before``; durable as `append`.

        A hash goes only into an aligned subtree of pruned leaves alone, below ``before``, and that no further than
        ``pruned_before``.

        Args:
            size: number of leaves that the caller knows of.
            before: the new ``hashes_before``.
            subtrees: each of two leaves or more; it may swallow smaller ones.

        Raises:
            LedgerCorrupt: something may not go, or a leaf is not there; then nothing has changed.
            LedgerBusy, StorageFailed: as `append`.
        """

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Opens one view of the whole ledger, which a writer elsewhere does not move."""

    def examine(self) -> list[str] | None:
        """Has the database check its own pages and tables, which a reader of leaves does not see.

        Returns:
            What is wrong, a sentence each, at most `MAX_WRONG`; None where the database has no such check for its users.

        Raises:
            LedgerCorrupt: it is too damaged to be checked.
            StorageFailed: it cannot be read.
        """

    def require_in_place(self) -> None:
        """Checks that the open database is still the one under the ledger's name, with the head that this writer left.

        Raises:
            LedgerReplaced: code UNLINKED, REPLACED or OVERWRITTEN.
            LedgerBusy, StorageFailed: as `append`.
        """

    def rescue(self) -> str:
        """Saves what it can of an open database that lost its name, and says how to go on, for the error that tells."""

    def discard(self) -> None:
        """Closes and removes a ledger that could not be created whole; only for the one who has just created it."""

    def close(self) -> None:
        """Gives up the database and the writer's lock."""


def create_store(place: Place) -> Store:
    """Creates an empty ledger at a place; see `Store.create`. A store is imported when a ledger of its kind is met."""
    store: Store = store_of(place).create(place)
    return store


def open_store(place: Place, *, read_only: bool) -> Store:
    """Opens the ledger at a place; see `Store.open`."""
    store: Store = store_of(place).open(place, read_only=read_only)
    return store


def exists(place: Place) -> bool:
    """Tells whether there is anything at the place of a ledger."""
    return bool(store_of(place).exists(place))
