"""SQLite storage of one ledger: durable, append-only, one writer, and nothing that the tree does not check again.

Life of a leaf: (1) the writer holds ``<path>.lock`` (an advisory lock, released by the kernel if the process dies);
(2) ``BEGIN IMMEDIATE`` takes SQLite's own write lock; (3) the head is compared with what the writer last saw; (4) rows
are inserted, each checked by a trigger to be the next one; (5) the frontier of the Merkle tree is stored beside the
new size; (6) COMMIT with ``synchronous=FULL`` reaches the disk before the call returns; (7) before (2) and after (6) the files
open are compared with those under the ledger's name (`ledger.storage.disks`). The triggers
(`ledger.storage.sqlite_schema`) are a seat belt against accidents: whoever can write the file can drop them, and is found
out by the tree.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Final, TypeVar, cast

import sqlalchemy as sa

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, LedgerReplaced, ProofError, StorageFailed
from ledger.leaves.attestations import orphans, pack
from ledger.merkle import Frontier
from ledger.storage import fsck
from ledger.storage.disks import FILES, OpenFiles, is_there, require_local
from ledger.storage.place import Place
from ledger.storage.sqlite_schema import (
    AGGREGATE,
    ATTESTATION,
    CHECKPOINT,
    ENTRY,
    HEAD,
    LEASE,
    META,
    METADATA,
    TERMS,
    TRIGGERS,
)
from ledger.storage.store import (
    EMPTY_HEAD,
    LOCK_TIMEOUT_SECONDS,
    MAX_WRONG,
    SCHEMA_VERSION,
    Aggregated,
    Attested,
    Head,
    Row,
    check_head,
    found_terms,
)
from ledger.tiles import Subtree

READ_BATCH: Final = 4_096
"""Rows in memory at once while a ledger is read or pruned."""

_STREAMED: Final = {"yield_per": READ_BATCH}
"""Options of one statement: set on the connection, they would turn a later UPDATE into a cursor."""

_DROP_BODY: Final = "UPDATE entry SET body = NULL WHERE seq = ?"
_PUT_ROOT: Final = "UPDATE entry SET leaf = ?, level = ? WHERE seq = ?"
_DROP_HASHES: Final = "UPDATE entry SET leaf = NULL, level = ? WHERE seq > ? AND seq < ?"
_INSERT_AGGREGATE: Final = "INSERT INTO aggregate (first, past, summary_seq, record) VALUES (?, ?, ?, ?)"
_FIND_TERMS: Final = "SELECT number FROM terms WHERE data = ?"
_INSERT_TERMS: Final = "INSERT INTO terms (number, data) VALUES (?, ?)"
_INSERT_ATTESTATION: Final = "INSERT INTO attestation (seq, data) VALUES (?, ?)"
_DROP_ATTESTATION: Final = "DELETE FROM attestation WHERE seq = ?"
_EMPTY_TERMS: Final = "UPDATE terms SET data = NULL WHERE number = ?"
_INSERT_ENTRY: Final = "INSERT INTO entry (seq, kind, leaf, body) VALUES (?, ?, ?, ?)"


_TABLES: Final = "SELECT type, name, sql FROM sqlite_master"

_BLOBS: Final = (bytes, type(None))
_Value = TypeVar("_Value")


def _stored(kind: type[_Value], value: object) -> _Value:
    """Returns a value of the type that its column has in a ledger; a table made again without STRICT holds any."""
    if type(value) is not kind:
        raise LedgerCorrupt("DATABASE", f"the file has {value!r:.40} where a ledger has a value of another type")
    return value


class SqliteSnapshot:
    """What the file held at one moment; valid inside `SqliteStore.snapshot`."""

    def __init__(self, connection: sa.Connection) -> None:
        """Takes a connection inside a transaction."""
        self._connection = connection

    def head(self) -> Frontier:
        """Returns the stored size and frontier."""
        row = self._connection.execute(sa.select(HEAD.c.size, HEAD.c.frontier)).one_or_none()
        if row is None:
            raise LedgerCorrupt("HEAD", "the stored head is gone")
        try:
            return Frontier.from_bytes(_stored(int, row.size), _stored(bytes, row.frontier))
        except ProofError as error:
            raise LedgerCorrupt("HEAD", f"the stored head is not one of a tree: {error.sentence}") from error

    def rows(self) -> Iterator[Row]:
        """Yields all rows in order of seq."""
        columns = (ENTRY.c.seq, ENTRY.c.kind, ENTRY.c.leaf, ENTRY.c.body, ENTRY.c.level)
        query = sa.select(*columns).order_by(ENTRY.c.seq)
        for seq, kind, leaf, body, level in self._connection.execute(query, execution_options=_STREAMED):
            if any(type(blob) not in _BLOBS for blob in (leaf, body)) or type(level) is not int:
                raise LedgerCorrupt("DATABASE", f"row {seq!r:.40} of the leaves has values of other types than a ledger has")
            yield Row(seq, kind, leaf or b"", body or b"", level)

    def checkpoints(self) -> dict[int, bytes]:
        """Returns all stored checkpoint notes by size."""
        query = sa.select(CHECKPOINT.c.size, CHECKPOINT.c.note).order_by(CHECKPOINT.c.size)
        return {_stored(int, row.size): _stored(bytes, row.note) for row in self._connection.execute(query)}

    def pruned_before(self) -> int:
        """Returns the position below which bodies may be gone."""
        return _stored(int, self._connection.scalar(sa.select(HEAD.c.pruned_before)) or 0)

    def hashes_before(self) -> int:
        """Returns the position below which leaf hashes of pruned leaves may be gone."""
        return _stored(int, self._connection.scalar(sa.select(HEAD.c.hashes_before)) or 0)

    def aggregates(self) -> Iterator[Aggregated]:
        """Yields all aggregates in order of their leaves."""
        columns = (AGGREGATE.c.first, AGGREGATE.c.past, AGGREGATE.c.summary_seq, AGGREGATE.c.record)
        query = sa.select(*columns).order_by(AGGREGATE.c.first)
        for first, past, seq, record in self._connection.execute(query, execution_options=_STREAMED):
            yield Aggregated(_stored(int, first), _stored(int, past), _stored(int, seq), _stored(bytes, record))

    def terms(self) -> Iterator[tuple[int, bytes]]:
        """Yields numbers and bytes of all common terms, in order; b"" where pruning has emptied them."""
        query = sa.select(TERMS.c.number, TERMS.c.data).order_by(TERMS.c.number)
        for number, data in self._connection.execute(query, execution_options=_STREAMED):
            yield number, b"" if data is None else _stored(bytes, data)

    def terms_at(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the bytes of common terms, in the order of the numbers."""
        rows = self._connection.execute(sa.select(TERMS.c.number, TERMS.c.data).where(TERMS.c.number.in_(numbers)))
        return found_terms(numbers, {row.number: row.data and _stored(bytes, row.data) for row in rows})

    def attestations(self) -> Iterator[tuple[int, bytes]]:
        """Yields positions of ADMIT leaves and what is kept of their attestations, in order."""
        query = sa.select(ATTESTATION.c.seq, ATTESTATION.c.data).order_by(ATTESTATION.c.seq)
        for seq, data in self._connection.execute(query, execution_options=_STREAMED):
            yield seq, _stored(bytes, data)


class SqliteStore:
    """One SQLite file; a `ledger.storage.store.Store`."""

    def __init__(self, place: Place, engine: sa.Engine, lock: IO[bytes] | None, fence: int) -> None:
        """Use `create` or `open`."""
        self.place = place
        self.fence = fence
        self._engine = engine
        self._lock = lock
        self._files: OpenFiles | None = None
        self._left: Frontier | None = None
        self._rescued: Path | None = None

    @classmethod
    def create(cls, place: Place) -> "SqliteStore":
        """Creates an empty ledger file; refuses an existing one."""
        path = Path(place.target)
        require_local(path)
        lock = _take_lock(path)
        try:
            if is_there(path):
                raise LedgerError("EXISTS", f"{path} exists; a ledger is never written over, choose another name")
        except BaseException:
            lock.close()
            raise
        store = cls(place, _engine(path, read_only=False), lock, 1)
        try:
            with store._transaction("creating the ledger") as connection:
                METADATA.create_all(connection)
                for trigger in TRIGGERS:
                    connection.exec_driver_sql(trigger)
                connection.execute(sa.insert(META), [{"key": "schema", "value": SCHEMA_VERSION}])
                connection.execute(sa.insert(HEAD), [EMPTY_HEAD])
                connection.execute(sa.insert(LEASE), [{"id": 0, "holder": _holder(), "fence": 1}])
            store._watch(Frontier())
        except BaseException:
            store.discard()
            raise
        return store

    @classmethod
    def open(cls, place: Place, *, read_only: bool) -> "SqliteStore":
        """Opens a ledger file, as its only writer unless ``read_only``."""
        path = Path(place.target)
        with _translated("opening the ledger"):
            there = path.is_file()
        if not there:
            raise LedgerError("MISSING", f"there is no ledger at {path}")
        require_local(path)
        lock = None if read_only else _take_lock(path)
        store, head = cls(place, _engine(path, read_only=read_only), lock, 0), None
        try:
            with store._transaction("opening the ledger") as connection:
                version = connection.scalar(sa.select(META.c.value).where(META.c.key == "schema"))
                if version != SCHEMA_VERSION:
                    sentence = (
                        f"{path} has schema {version!r}, this version reads {SCHEMA_VERSION!r}; use the one that wrote it"
                    )
                    raise LedgerCorrupt("SCHEMA", sentence)
                if not read_only:
                    connection.execute(sa.update(LEASE).values(fence=LEASE.c.fence + 1, holder=_holder()))
                    store.fence = connection.scalar(sa.select(LEASE.c.fence)) or 0
                    with contextlib.suppress(LedgerCorrupt):  # whoever loads the ledger next says what is wrong with it
                        head = SqliteSnapshot(connection).head()
            if not read_only:
                store._watch(head)
        except BaseException:
            store.close()
            raise
        return store

    @staticmethod
    def exists(place: Place) -> bool:
        """Tells whether something lies at the place of a ledger."""
        return is_there(Path(place.target))

    @staticmethod
    def is_blank(place: Place) -> bool:
        """Tells whether a file has no table: its creation ended before the first one was there."""
        with contextlib.closing(sqlite3.connect(f"{Path(place.target).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
            except sqlite3.DatabaseError:
                return False

    @staticmethod
    def set_aside(place: Place) -> str:
        """Renames a ledger file and returns the new name; nothing is deleted."""
        path = Path(place.target)
        aside = _free_name(path, "unfinished")
        for suffix in ("-wal", "-shm", ""):
            side = path.with_name(path.name + suffix)
            if side.exists():
                side.rename(aside.with_name(aside.name + suffix))
        return str(aside)

    def append(
        self, rows: Sequence[Row], frontier: Frontier, note: bytes | None = None, attested: Sequence[Attested] = ()
    ) -> None:
        """Appends rows and attestations, all or none, on disk when it returns (WAL, ``synchronous=FULL``)."""
        expected = frontier.size - len(rows)
        with self._writing("appending") as connection:
            self._check_fence(connection, expected)
            if rows:
                values = [(row.seq, row.kind, row.leaf_hash, row.body) for row in rows]
                connection.exec_driver_sql(_INSERT_ENTRY, values)
            if attested:
                numbers = _numbered(connection, attested)
                for at in range(0, len(attested), READ_BATCH):
                    batch = attested[at : at + READ_BATCH]
                    kept = [(item.seq, pack(numbers[item.terms], item.signature)) for item in batch]
                    connection.exec_driver_sql(_INSERT_ATTESTATION, kept)
            moved = sa.update(HEAD).where(HEAD.c.size == frontier.size).values(frontier=frontier.to_bytes())
            if connection.execute(moved).rowcount != 1:
                raise LedgerCorrupt("HEAD", "the head did not move with the rows; the insert trigger is missing")
            if note is not None:
                connection.execute(sa.insert(CHECKPOINT), [{"size": frontier.size, "note": note}])
        self._left = frontier.copy()

    def put_note(self, size: int, note: bytes) -> None:
        """Replaces a stored note by itself with signature lines appended."""
        with self._writing("storing signatures") as connection:
            self._check_fence(connection, None)
            changed = sa.update(CHECKPOINT).where(CHECKPOINT.c.size == size).values(note=note)
            if connection.execute(changed).rowcount != 1:
                raise LedgerError("NO_CHECKPOINT", f"the ledger has no checkpoint of {size} leaves")

    def prune(self, size: int, before: int, seqs: Sequence[int], aggregates: Sequence[Aggregated]) -> None:
        """Drops bodies and stores what stands for them; SQLite zeroes the bytes that are gone (``secure_delete``)."""
        with self._writing("pruning") as connection:
            self._check_fence(connection, size)
            connection.execute(sa.update(HEAD).values(pruned_before=before))
            if aggregates:
                values = [(kept.first, kept.end, kept.summary_seq, kept.record) for kept in aggregates]
                connection.exec_driver_sql(_INSERT_AGGREGATE, values)
            dropped = forgotten = 0
            for at in range(0, len(seqs), READ_BATCH):
                batch = seqs[at : at + READ_BATCH]
                dropped += connection.exec_driver_sql(_DROP_BODY, [(seq,) for seq in batch]).rowcount
                forgotten += connection.exec_driver_sql(_DROP_ATTESTATION, [(seq,) for seq in batch]).rowcount
            snapshot = SqliteSnapshot(connection)
            if forgotten and (unused := orphans(snapshot.terms(), snapshot.attestations())):
                connection.exec_driver_sql(_EMPTY_TERMS, [(number,) for number in unused])
            if dropped != len(seqs):
                raise LedgerCorrupt("PRUNE", f"of {len(seqs)} leaves to prune, {dropped} are there")

    def drop_hashes(self, size: int, before: int, subtrees: Sequence[Subtree]) -> None:
        """Puts roots of subtrees in the place of leaf hashes; SQLite zeroes the bytes that are gone (``secure_delete``)."""
        with self._writing("dropping hashes") as connection:
            self._check_fence(connection, size)
            connection.execute(sa.update(HEAD).values(hashes_before=before))
            if subtrees:
                roots = connection.exec_driver_sql(_PUT_ROOT, [(node.hash, node.level, node.first) for node in subtrees])
                inside = connection.exec_driver_sql(_DROP_HASHES, [(node.level, node.first, node.end) for node in subtrees])
                found, expected = roots.rowcount + inside.rowcount, sum(node.end - node.first for node in subtrees)
                if found != expected:
                    raise LedgerCorrupt("PRUNE", f"of {expected} leaves whose hashes go, {found} are there")

    @contextmanager
    def snapshot(self) -> Iterator[SqliteSnapshot]:
        """Opens one view of the whole file, which a writer elsewhere does not move."""
        with self._transaction("reading the ledger") as connection:
            yield SqliteSnapshot(connection)

    def examine(self) -> list[str] | None:
        """Has SQLite check its pages, and compares tables and triggers with a new ledger's."""
        with self._transaction("checking the pages of the ledger") as connection:
            found = _wrong_pages(connection)
            found += [
                f"{name} is {value}, and a ledger leaves it at 0"
                for name in ("user_version", "application_id")
                if (value := connection.exec_driver_sql(f"PRAGMA {name}").scalar())
            ]
            tables = {(row.type, row.name): _text(*row) for row in connection.exec_driver_sql(_TABLES)}
        wanted = _made()
        for kind, name in sorted(wanted.keys() | tables.keys()):
            if tables.get((kind, name)) != wanted.get((kind, name)):
                how = "is gone" if (kind, name) not in tables else "is not that of a ledger"
                found.append(f"the {kind} {name} {how}; what it stops by accident is no longer stopped")
        return found[:MAX_WRONG]

    def require_in_place(self) -> None:
        """Asks for device and inode of the files; where something else wrote, reads all of them again, past every cache."""
        if self._files is None:
            return
        self._files.require()
        if not self._files.touched():
            return
        # What this process has in memory may be all that is left of the file: it is copied before it is forgotten.
        self._rescued = self._copy()
        try:
            with self._transaction("looking for what others wrote") as connection:
                self._check_fence(connection, None)
            self._driver().execute("PRAGMA shrink_memory")
            found = fsck.load(self, recompute=False).frontier
            with self._transaction("checking the pages of the ledger") as connection:
                if wrong := _wrong_pages(connection):
                    raise LedgerCorrupt("DATABASE", f"{wrong[0]!a:.200}")
        except (LedgerBusy, LedgerReplaced):
            raise
        except (LedgerError, sqlite3.Error) as error:
            raise LedgerReplaced("OVERWRITTEN", f"something else wrote into {self.place.shown}: {error}") from error
        if self._left is None or found.to_bytes() != self._left.to_bytes():
            raise LedgerReplaced("OVERWRITTEN", f"something else wrote into {self.place.shown}: it has other leaves now")
        if self._rescued is not None:
            _remove(self._rescued)
            self._rescued = None
        self._files.leave()

    def rescue(self) -> str:
        """Copies what the open database holds to a new file beside its name, and says how to go on from it."""
        path, copy = Path(self.place.target), self._rescued or self._copy()
        if copy is None:
            return (
                f"What is open here could not be copied whole. If {path.name} was renamed, give it its name again beside its "
                f"-wal; else put the newest copy there: one that lacks leaves is refused. Then resume"
            )
        return (
            f"All of it was copied to {copy}: when this process has ended, move away what lies at {path}, {path.name}-wal and "
            f"{path.name}-shm, rename the copy to {path.name}, and resume"
        )

    def discard(self) -> None:
        """Closes and removes a ledger that could not be created whole; only for the one who has just created it."""
        self.close()
        _remove(Path(self.place.target))

    def close(self) -> None:
        """Closes the file and gives up the writer's lock."""
        self._engine.dispose()
        if self._lock is not None:
            lock, self._lock = self._lock, None
            with _translated("giving up the writer's lock"):
                lock.close()

    def _driver(self) -> sqlite3.Connection:
        """Returns the one connection itself, for what SQLAlchemy has no words for."""
        with self._engine.connect() as connection:
            return cast(sqlite3.Connection, connection.connection.driver_connection)

    def _copy(self) -> Path | None:
        """Copies the database as this connection sees it; returns None, and leaves nothing, unless the copy is whole."""
        path, head = Path(self.place.target), self._left
        try:
            path = _free_name(path, "rescued")
            with contextlib.closing(sqlite3.connect(path)) as copy:
                self._driver().backup(copy)
            with contextlib.closing(SqliteStore.open(Place.of(path), read_only=True)) as store:
                found = fsck.load(store, recompute=False).subtrees
                if head is not None and found.root(head.size) == head.root():
                    return path
        except (LedgerError, sqlite3.Error, OSError):
            pass
        if path != Path(self.place.target):
            with contextlib.suppress(OSError):
                _remove(path)
        return None

    def _watch(self, head: Frontier | None) -> None:
        """Remembers files and head of a ledger that this store may write."""
        self._files, self._left = OpenFiles(Path(self.place.target)), head

    def _check_fence(self, connection: sa.Connection, expected: int | None) -> None:
        # The advisory lock keeps out processes of this program on this host; fence and size keep out all others.
        size, frontier = connection.execute(sa.select(HEAD.c.size, HEAD.c.frontier)).one_or_none() or (None, None)
        found = Head(connection.scalar(sa.select(LEASE.c.fence)), size, frontier)
        check_head(self.place.shown, found, self.fence, self._left, expected)

    @contextmanager
    def _writing(self, doing: str) -> Iterator[sa.Connection]:
        """Opens a transaction that counts only if it wrote the files under the ledger's name, looked at before and after it."""
        self.require_in_place()
        with self._transaction(doing) as connection:
            yield connection
        if self._files is not None:
            self._files.leave()

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sa.Connection]:
        with _translated(doing), self._engine.begin() as connection:
            yield connection


def _numbered(connection: sa.Connection, attested: Sequence[Attested]) -> dict[bytes, int]:
    """Returns the numbers of the terms of attestations, and stores those that are not there yet."""
    fresh = connection.scalar(sa.select(sa.func.max(TERMS.c.number)))
    fresh = 0 if fresh is None else fresh + 1
    numbers: dict[bytes, int] = {}
    for terms in dict.fromkeys(item.terms for item in attested):
        found = connection.exec_driver_sql(_FIND_TERMS, (terms,)).scalar()
        if found is None:
            connection.exec_driver_sql(_INSERT_TERMS, (fresh, terms))
            found, fresh = fresh, fresh + 1
        numbers[terms] = found
    return numbers


def _wrong_pages(connection: sa.Connection) -> list[str]:
    """Runs ``PRAGMA integrity_check`` (sqlite.org/pragma.html); returns what is wrong, a sentence each, at most `MAX_WRONG`.

    It reads every page: trees of tables and indices against each other, free pages, types and constraints.
    """
    lines = connection.exec_driver_sql(f"PRAGMA integrity_check({MAX_WRONG})").scalars().all()
    return [str(line).replace("\n", " ") for line in lines if line != "ok"]


def _text(kind: str, name: str, sql: str | None) -> str:
    """Returns the text that made a part of the database; of tables without blanks and quotes, which may be set otherwise."""
    text = sql or ""
    return text if kind == "trigger" else "".join(text.replace('"', "").split())


@cache
def _made() -> dict[tuple[str, str], str]:
    """Returns the tables, indices and triggers of a new ledger."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        METADATA.create_all(connection)
        for trigger in TRIGGERS:
            connection.exec_driver_sql(trigger)
        found = {(row.type, row.name): _text(*row) for row in connection.exec_driver_sql(_TABLES)}
    engine.dispose()
    return found


def _free_name(path: Path, why: str) -> Path:
    """Returns a name beside a ledger's that nothing has yet."""
    number = 1
    while is_there(aside := path.with_name(f"{path.name}.{why}-{number}")):
        number += 1
    return aside


def _remove(path: Path) -> None:
    """Removes a database with what SQLite keeps beside it."""
    for suffix in FILES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _holder() -> str:
    return f"pid {os.getpid()}"


def _take_lock(path: Path) -> IO[bytes]:
    with _translated("locking the ledger"):
        lock = open(f"{path}.lock", "ab")  # noqa: SIM115 (held open for the life of the store)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise LedgerBusy("LOCKED", f"another process is writing {path}; wait for it, or open read-only") from error
    except OSError as error:
        lock.close()
        raise StorageFailed("IO", f"cannot lock {path}: {error.strerror or error}; mend the disk") from error
    return lock


def _engine(path: Path, *, read_only: bool) -> sa.Engine:
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, poolclass=sa.pool.StaticPool, connect_args={"timeout": LOCK_TIMEOUT_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        # pysqlite would otherwise begin transactions by itself, deferred, and fail under a second writer.
        connection.isolation_level = None
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != ("wal",):
            raise StorageFailed("WAL", f"{path} cannot use a write-ahead log (found {mode}); put it on a local disk")
        for pragma in (
            "synchronous=FULL",
            "foreign_keys=ON",
            "recursive_triggers=ON",
            "trusted_schema=OFF",
            "secure_delete=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")
        if read_only:
            connection.execute("PRAGMA query_only=ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turns SQLite's and the system's errors into the ledger's."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _typed(doing, error.orig) from error
    except sqlite3.Error as error:
        raise _typed(doing, error) from error
    except OSError as error:
        raise StorageFailed("IO", f"{doing}: {error.strerror or error}") from error


def _typed(doing: str, error: BaseException | None) -> LedgerError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerBusy("LOCKED", f"{doing}: another process holds the database ({error})")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR):
        strange = code == sqlite3.SQLITE_NOTADB or "no such table" in str(error)
        why = "; another file was put in the ledger's place, or it was copied without its -wal" if strange else ""
        return LedgerCorrupt("DATABASE", f"{doing}: {error}{why}")
    return StorageFailed("STORAGE", f"{doing}: {error}; free space or mend the disk, then reopen the ledger")
