"""Reads and writes the rows of a ledger, in statements that SQLite and PostgreSQL share.

`SqlStore` has the body of every operation. What a database does its own way is a method that its store gives: how a transaction
begins and ends, how a head is locked and compared, how many rows go in at once, and how equal terms are found.
"""

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Self, TypeVar

import sqlalchemy as sa

from ledger.errors import LedgerCorrupt, LedgerError, ProofError, StorageFailed
from ledger.leaves.attestations import orphans, pack
from ledger.merkle import Frontier
from ledger.storage.place import Place
from ledger.storage.sql.schema import Tables
from ledger.storage.store import EMPTY_HEAD, SCHEMA_VERSION, Aggregated, Attested, Row, Snapshot, Store, found_terms
from ledger.tiles import Subtree

READ_BATCH: Final = 4_096
"""Rows in memory at once while a ledger is read or pruned."""

_STREAMED: Final = {"yield_per": READ_BATCH}
"""Options of one statement: set on the connection, they would turn a later UPDATE into a cursor."""

_BLOBS: Final = (bytes, type(None))
_Value = TypeVar("_Value")


def stored(kind: type[_Value], value: object) -> _Value:
    """Returns a value of the type that its column has in a ledger; a table of SQLite made again without STRICT holds any."""
    if type(value) is not kind:
        raise LedgerCorrupt("DATABASE", f"the file has {value!r:.40} where a ledger has a value of another type")
    return value


@contextmanager
def translating(
    doing: str, driver: type[Exception], typed: Callable[[str, BaseException | None], LedgerError]
) -> Iterator[None]:
    """Turns errors of the database, by what its driver raises, and of the system into the ledger's."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise typed(doing, error.orig) from error
    except driver as error:
        raise typed(doing, error) from error
    except OSError as error:
        raise StorageFailed("IO", f"{doing}: {error.strerror or error}") from error


class SqlSnapshot(Snapshot):
    """Reads what the database held at one moment."""

    def __init__(self, connection: sa.Connection, known: Tables) -> None:
        """Takes a connection inside a transaction."""
        self._connection = connection
        self._tables = known

    def head(self) -> Frontier:
        head = self._tables.head
        row = self._connection.execute(sa.select(head.c.size, head.c.frontier)).one_or_none()
        if row is None:
            raise LedgerCorrupt("HEAD", "the stored head is gone")
        try:
            return Frontier.from_bytes(stored(int, row.size), stored(bytes, row.frontier))
        except ProofError as error:
            raise LedgerCorrupt("HEAD", f"the stored head is not one of a tree: {error.sentence}") from error

    def rows(self) -> Iterator[Row]:
        entry = self._tables.entry
        for seq, kind, leaf, body, level in self._streamed(entry, "seq", "kind", "leaf", "body", "level"):
            if type(leaf) not in _BLOBS or type(body) not in _BLOBS or type(level) is not int:
                raise LedgerCorrupt("DATABASE", f"row {seq!r:.40} of the leaves has values of other types than a ledger has")
            yield Row(seq, kind, leaf or b"", body or b"", level)

    def checkpoints(self) -> dict[int, bytes]:
        checkpoint = self._tables.checkpoint
        query = sa.select(checkpoint.c.size, checkpoint.c.note).order_by(checkpoint.c.size)
        return {stored(int, row.size): stored(bytes, row.note) for row in self._connection.execute(query)}

    def pruned_before(self) -> int:
        return stored(int, self._connection.scalar(sa.select(self._tables.head.c.pruned_before)) or 0)

    def hashes_before(self) -> int:
        return stored(int, self._connection.scalar(sa.select(self._tables.head.c.hashes_before)) or 0)

    def aggregates(self) -> Iterator[Aggregated]:
        for first, past, seq, record in self._streamed(self._tables.aggregate, "first", "past", "summary_seq", "record"):
            yield Aggregated(stored(int, first), stored(int, past), stored(int, seq), stored(bytes, record))

    def terms(self) -> Iterator[tuple[int, bytes]]:
        for number, data in self._streamed(self._tables.terms, "number", "data"):
            yield number, b"" if data is None else stored(bytes, data)

    def terms_at(self, numbers: Sequence[int]) -> list[bytes]:
        terms = self._tables.terms
        rows = self._connection.execute(sa.select(terms.c.number, terms.c.data).where(terms.c.number.in_(numbers)))
        return found_terms(numbers, {row.number: row.data and stored(bytes, row.data) for row in rows})

    def attestations(self) -> Iterator[tuple[int, bytes]]:
        for seq, data in self._streamed(self._tables.attestation, "seq", "data"):
            yield seq, stored(bytes, data)

    def _streamed(self, table: sa.Table, *names: str) -> Iterable[Any]:
        """Returns the rows of a table in order of its first column, a batch in memory at a time."""
        query = sa.select(*(table.c[name] for name in names)).order_by(table.c[names[0]])
        return self._connection.execute(query, execution_options=_STREAMED)


class Turn(SqlSnapshot):
    """Reads and appends as the only one of many writers until its end; valid inside `SqlStore.turn`."""

    def __init__(
        self, connection: sa.Connection, known: Tables, insert: Callable[[sa.Connection, Sequence[Row]], None]
    ) -> None:
        """Takes a connection inside a transaction that holds the head, and what inserts leaves."""
        super().__init__(connection, known)
        self._insert = insert

    def rows_from(self, first: int) -> Iterator[Row]:
        """Yields the leaves from a position on, in order."""
        entry = self._tables.entry
        query = sa.select(entry.c.seq, entry.c.kind, entry.c.leaf, entry.c.body).where(entry.c.seq >= first)
        for seq, kind, leaf, body in self._connection.execute(query.order_by(entry.c.seq), execution_options=_STREAMED):
            yield Row(stored(int, seq), stored(int, kind), stored(bytes, leaf), stored(bytes, body))

    def append(self, rows: Sequence[Row], frontier: Frontier, note: bytes | None = None) -> None:
        """Appends leaves, and a checkpoint of the tree behind them; durable when the turn has ended without an error.

        Raises:
            LedgerCorrupt: code HEAD, the head did not move with the rows.
        """
        known = self._tables
        self._insert(self._connection, rows)
        if self._move(frontier) != 1:
            raise LedgerCorrupt("HEAD", "the head did not move with the rows; the insert trigger is missing")
        if note is not None:
            self._connection.execute(sa.insert(known.checkpoint), [{"size": frontier.size, "note": note}])

    def _move(self, frontier: Frontier) -> int:
        """Stores the frontier beside a head that has its size already; returns how many rows that changed."""
        head = self._tables.head
        moved = sa.update(head).where(head.c.size == frontier.size).values(frontier=frontier.to_bytes())
        return self._connection.execute(moved).rowcount

    def kept(self, key: str) -> str | None:
        """Returns what is kept beside the leaves under a key; None for nothing."""
        meta = self._tables.meta
        value = self._connection.scalar(sa.select(meta.c.value).where(meta.c.key == key))
        return None if value is None else stored(str, value)

    def keep(self, key: str, value: str) -> None:
        """Keeps something beside the leaves, once and for all: it is never changed or removed."""
        self._connection.execute(sa.insert(self._tables.meta), [{"key": key, "value": value}])


class SqlStore(Store, ABC):
    """An open database with SQL."""

    def __init__(self, place: Place, engine: sa.Engine, known: Tables) -> None:
        """Takes an engine of one connection; a database's `create` and `open` make it."""
        self.place = place
        self.fence = 0
        self._engine = engine
        self._tables = known
        self._left: Frontier | None = None

    @abstractmethod
    def _transaction(self, doing: str) -> AbstractContextManager[sa.Connection]:
        """Opens a transaction, committed durably at its end, with the errors of the database as the ledger's."""

    @classmethod
    @abstractmethod
    def open_shared(cls, place: Place, *, read_only: bool) -> Self:
        """Opens a database that many processes write, each in turns; none of them holds it between two turns.

        Raises:
            LedgerError: code MISSING if there is none.
            LedgerCorrupt: it was written by another version, or is no ledger.
            StorageFailed: it cannot be reached, or not relied on to keep what it commits.
        """

    @abstractmethod
    def turn(self, doing: str) -> AbstractContextManager[Turn]:
        """Opens one transaction in which nobody else writes, of a database opened by `open_shared`.

        Guarantee: what the body reads is all that was ever committed before, and nothing else is committed until it ends. When
        it ends without an error, what it appended is durable, in the database that has the name of this one. When it raises,
        nothing of it is there, unless the failure came with the commit itself (codes COMMIT_UNKNOWN, STORAGE, IO, UNLINKED
        and REPLACED).

        Raises:
            LedgerReplaced: the database under the name is another one, or none.
            LedgerBusy: others did not end their turns in time.
            StorageFailed: the database refused, or the connection is lost.
        """

    @property
    @abstractmethod
    def identity(self) -> str:
        """Tells this database from every copy of it, in printable ASCII without blanks."""

    def _writing(self, doing: str) -> AbstractContextManager[sa.Connection]:
        """Opens a transaction that changes the record."""
        return self._transaction(doing)

    @abstractmethod
    def _check_fence(self, connection: sa.Connection, expected: int | None) -> None:
        """Keeps out other writers until the transaction ends, and compares the head with what was left (`check_head`)."""

    @abstractmethod
    def _insert_rows(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Inserts leaves, the fastest way that the database has."""

    @abstractmethod
    def _insert_attestations(self, connection: sa.Connection, kept: Iterable[tuple[int, bytes]]) -> None:
        """Inserts positions and attestations, the fastest way that the database has."""

    @abstractmethod
    def _is_one_of(self, column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
        """Returns the condition that a column has one of at most `READ_BATCH` values."""

    @property
    @abstractmethod
    def _terms_key(self) -> sa.ColumnElement[bytes]:
        """The expression whose index finds stored terms."""

    @abstractmethod
    def _key_of(self, terms: bytes) -> bytes:
        """Returns the key of terms."""

    def append(
        self, rows: Sequence[Row], frontier: Frontier, note: bytes | None = None, attested: Sequence[Attested] = ()
    ) -> None:
        known, expected = self._tables, frontier.size - len(rows)
        with self._writing("appending") as connection:
            self._check_fence(connection, expected)
            if rows:
                self._insert_rows(connection, rows)
            if attested:
                numbers = self._numbered(connection, attested)
                self._insert_attestations(
                    connection, ((item.seq, pack(numbers[item.terms], item.signature)) for item in attested)
                )
            moved = sa.update(known.head).where(known.head.c.size == frontier.size).values(frontier=frontier.to_bytes())
            if connection.execute(moved).rowcount != 1:
                raise LedgerCorrupt("HEAD", "the head did not move with the rows; the insert trigger is missing")
            if note is not None:
                connection.execute(sa.insert(known.checkpoint), [{"size": frontier.size, "note": note}])
        self._left = frontier.copy()

    def put_note(self, size: int, note: bytes) -> None:
        checkpoint = self._tables.checkpoint
        with self._writing("storing signatures") as connection:
            self._check_fence(connection, None)
            changed = sa.update(checkpoint).where(checkpoint.c.size == size).values(note=note)
            if connection.execute(changed).rowcount != 1:
                raise LedgerError("NO_CHECKPOINT", f"the ledger has no checkpoint of {size} leaves")

    def prune(self, size: int, before: int, seqs: Sequence[int], aggregates: Sequence[Aggregated]) -> None:
        """Drops bodies and stores what stands for them.

        SQLite zeroes the bytes that are gone (``secure_delete``); PostgreSQL keeps them on disk until the table is vacuumed.
        """
        known = self._tables
        with self._writing("pruning") as connection:
            self._check_fence(connection, size)
            connection.execute(sa.update(known.head).values(pruned_before=before))
            if aggregates:
                values = [
                    {"first": kept.first, "past": kept.end, "summary_seq": kept.summary_seq, "record": kept.record}
                    for kept in aggregates
                ]
                connection.execute(sa.insert(known.aggregate), values)
            dropped = forgotten = 0
            for at in range(0, len(seqs), READ_BATCH):
                batch = seqs[at : at + READ_BATCH]
                leaves, signed = (self._is_one_of(table.c.seq, batch) for table in (known.entry, known.attestation))
                dropped += connection.execute(sa.update(known.entry).where(leaves).values(body=None)).rowcount
                forgotten += connection.execute(sa.delete(known.attestation).where(signed)).rowcount
            snapshot = SqlSnapshot(connection, known)
            if forgotten and (unused := orphans(snapshot.terms(), snapshot.attestations())):
                empty = sa.update(known.terms).where(known.terms.c.number == sa.bindparam("orphan")).values(data=None)
                connection.execute(empty, [{"orphan": number} for number in unused])
            if dropped != len(seqs):
                raise LedgerCorrupt("PRUNE", f"of {len(seqs)} leaves to prune, {dropped} are there")

    def drop_hashes(self, size: int, before: int, subtrees: Sequence[Subtree]) -> None:
        """Puts roots of subtrees in the place of leaf hashes; bytes that are gone leave the disk as in `prune`."""
        entry, given = self._tables.entry, sa.bindparam
        with self._writing("dropping hashes") as connection:
            self._check_fence(connection, size)
            connection.execute(sa.update(self._tables.head).values(hashes_before=before))
            if not subtrees:
                return
            root = sa.update(entry).where(entry.c.seq == given("first")).values(leaf=given("root"), level=given("height"))
            inside = (
                sa.update(entry)
                .where(entry.c.seq.between(given("second"), given("last")))
                .values(leaf=None, level=given("height"))
            )
            roots = [{"first": node.first, "root": node.hash, "height": node.level} for node in subtrees]
            rest = [{"second": node.first + 1, "last": node.end - 1, "height": node.level} for node in subtrees]
            # The first row of a subtree is set before the others, which the triggers let go by its level.
            found = connection.execute(root, roots).rowcount + connection.execute(inside, rest).rowcount
            expected = sum(node.end - node.first for node in subtrees)
            if found != expected:
                raise LedgerCorrupt("PRUNE", f"of {expected} leaves whose hashes go, {found} are there")

    def close(self) -> None:
        self._engine.dispose()

    def _fill(self, connection: sa.Connection) -> None:
        """Gives fresh tables the rows of a ledger without a leaf and without a writer."""
        known = self._tables
        connection.execute(sa.insert(known.meta), [{"key": "schema", "value": SCHEMA_VERSION}])
        connection.execute(sa.insert(known.head), [EMPTY_HEAD])
        connection.execute(sa.insert(known.lease), [{"id": 0, "holder": "", "fence": 0}])

    def _check_version(self, connection: sa.Connection) -> None:
        """Refuses a ledger of another version of the tables."""
        meta = self._tables.meta
        version = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema"))
        if version != SCHEMA_VERSION:
            sentence = f"{self.place.shown} has schema {version!r}, this version reads {SCHEMA_VERSION!r}"
            raise LedgerCorrupt("SCHEMA", f"{sentence}; use the one that wrote it")

    def _take_over(self, connection: sa.Connection) -> None:
        """Makes this the writer: its fence is larger than every one before it."""
        lease, holder = self._tables.lease, f"{socket.gethostname()} pid {os.getpid()}"
        bump = sa.update(lease).values(fence=lease.c.fence + 1, holder=holder).returning(lease.c.fence)
        self.fence = connection.scalar(bump) or 0

    def _numbered(self, connection: sa.Connection, attested: Sequence[Attested]) -> dict[bytes, int]:
        """Returns the numbers of the terms of attestations, and stores those that are not there yet."""
        known, key = self._tables.terms, self._terms_key
        keys = {self._key_of(item.terms): item.terms for item in attested}
        numbers, pending = dict[bytes, int](), list(keys)
        for at in range(0, len(pending), READ_BATCH):
            there = self._is_one_of(key, pending[at : at + READ_BATCH])
            found = connection.execute(sa.select(key, known.c.number).where(there))
            numbers |= {keys[item]: number for item, number in found}
        if fresh := [data for data in keys.values() if data not in numbers]:
            first = connection.scalar(sa.select(sa.func.coalesce(sa.func.max(known.c.number) + 1, 0))) or 0
            numbers |= {data: number for number, data in enumerate(fresh, start=first)}
            connection.execute(sa.insert(known), [{"number": numbers[data], "data": data} for data in fresh])
        return numbers
