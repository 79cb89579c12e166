"""SQLite storage of one ledger: durable, append-only, one writer, and nothing that the tree does not check again.

Life of a leaf: (1) the writer holds ``<path>.lock`` (an advisory lock, released by the kernel if the process dies);
(2) ``BEGIN IMMEDIATE`` takes SQLite's own write lock; (3) the head is compared with what the writer last saw; (4) rows
are inserted, each checked by a trigger to be the next one; (5) the frontier of the Merkle tree is stored beside the
new size; (6) COMMIT with ``synchronous=FULL`` reaches the disk before the call returns; (7) before (2) and after (6) the files
open are compared with those under the ledger's name (`ledger.storage.disks`). The triggers
(`ledger.storage.sql.schema`) are a seat belt against accidents: whoever can write the file can drop them, and is found
out by the tree.
"""

import contextlib
import fcntl
import os
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import sqlalchemy as sa

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, LedgerReplaced, StorageFailed
from ledger.merkle import Frontier
from ledger.storage import fsck
from ledger.storage.disks import FILES, OpenFiles, is_there, require_local
from ledger.storage.place import Place
from ledger.storage.sql.schema import METADATA, SQLITE, tables
from ledger.storage.sql.statements import READ_BATCH, SqlSnapshot, SqlStore, Turn, translating
from ledger.storage.sql.turns import SqliteTurn, driver_of, make_room
from ledger.storage.store import LOCK_TIMEOUT_SECONDS, MAX_WRONG, Head, Row, check_head, locked

_INSERT_ENTRY: Final = "INSERT INTO entry (seq, kind, leaf, body) VALUES (?, ?, ?, ?)"
_INSERT_ATTESTATION: Final = "INSERT INTO attestation (seq, data) VALUES (?, ?)"

_TABLES: Final = "SELECT type, name, sql FROM sqlite_master"


class SqliteStore(SqlStore):
    """One SQLite file."""

    def __init__(self, place: Place, engine: sa.Engine, lock: IO[bytes] | None) -> None:
        """Use `create` or `open`."""
        super().__init__(place, engine, tables())
        self._lock = lock
        self._dropped = weakref.finalize(self, _give_up, engine, lock)
        self._dropped.atexit = False  # a run that is still open then settles first
        self._files: OpenFiles | None = None
        self._rescued: Path | None = None

    @classmethod
    def create(cls, place: Place) -> "SqliteStore":
        path = Path(place.target)
        require_local(path)
        lock = _take_lock(path)
        try:
            if is_there(path):
                raise LedgerError("EXISTS", f"{path} exists; a ledger is never written over, choose another name")
        except BaseException:
            lock.close()
            raise
        store = cls(place, _engine(path, read_only=False), lock)
        try:
            with store._transaction("creating the ledger") as connection:
                _make_tables(connection)
                store._fill(connection)
                store._take_over(connection)
            store._watch(Frontier())
        except BaseException:
            store.discard()
            raise
        return store

    @classmethod
    def open(cls, place: Place, *, read_only: bool) -> "SqliteStore":
        path = Path(place.target)
        with _translated("opening the ledger"):
            there = path.is_file()
        if not there:
            raise LedgerError("MISSING", f"there is no ledger at {path}")
        require_local(path)
        lock = None if read_only else _take_lock(path)
        store, head = cls(place, _engine(path, read_only=read_only), lock), None
        try:
            with store._transaction("opening the ledger") as connection:
                store._check_version(connection)
                if not read_only:
                    store._take_over(connection)
                    with contextlib.suppress(LedgerCorrupt):  # whoever loads the ledger next says what is wrong with it
                        head = SqlSnapshot(connection, store._tables).head()
            if not read_only:
                store._watch(head)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open_shared(cls, place: Place, *, read_only: bool) -> "SqliteStore":
        """Opens a file for turns: ``BEGIN IMMEDIATE`` keeps out all others while one lasts."""
        path = Path(place.target)
        with _translated("opening the log"):
            there = path.is_file()
        if not there:
            raise LedgerError("MISSING", f"there is no log at {path}")
        require_local(path)
        store = cls(place, _engine(path, read_only=read_only), None)
        try:
            with store._transaction("opening the log") as connection:
                store._check_version(connection)
            if not read_only:
                store._watch(None)
                with _translated("making room in the write-ahead log"):
                    make_room(store._driver(), path)
        except BaseException:
            store.close()
            raise
        return store

    @contextmanager
    def turn(self, doing: str) -> Iterator[Turn]:
        self._require_open_files()
        with self._transaction(doing) as connection:
            yield SqliteTurn(connection, self._tables, self._insert_rows)
            self._require_open_files()
        self._require_open_files()

    @property
    def identity(self) -> str:
        """The number of the file on its disk, which a copy does not have."""
        with _translated("looking at the file of the log"):
            return f"inode:{os.stat(self.place.target).st_ino}"

    def _require_open_files(self) -> None:
        if self._files is not None:
            self._files.require()

    @staticmethod
    def exists(place: Place) -> bool:
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
        path = Path(place.target)
        aside = _free_name(path, "unfinished")
        for suffix in ("-wal", "-shm", ""):
            side = path.with_name(path.name + suffix)
            if side.exists():
                side.rename(aside.with_name(aside.name + suffix))
        return str(aside)

    @contextmanager
    def snapshot(self) -> Iterator[SqlSnapshot]:
        with self._transaction("reading the ledger") as connection:
            yield SqlSnapshot(connection, self._tables)

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
        self.close()
        _remove(Path(self.place.target))

    def close(self) -> None:
        self._dropped.detach()
        super().close()
        if self._lock is not None:
            lock, self._lock = self._lock, None
            with _translated("giving up the writer's lock"):
                lock.close()

    def _driver(self) -> sqlite3.Connection:
        """Returns the one connection itself, for what SQLAlchemy has no words for."""
        with self._engine.connect() as connection:
            return driver_of(connection)

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
        head, lease = self._tables.head, self._tables.lease
        size, frontier = connection.execute(sa.select(head.c.size, head.c.frontier)).one_or_none() or (None, None)
        found = Head(connection.scalar(sa.select(lease.c.fence)), size, frontier)
        check_head(self.place.shown, found, self.fence, self._left, expected)

    def _insert_rows(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        pending = ((row.seq, row.kind, row.leaf_hash, row.body) for row in rows)
        while batch := list(islice(pending, READ_BATCH)):
            connection.exec_driver_sql(_INSERT_ENTRY, batch)

    def _insert_attestations(self, connection: sa.Connection, kept: Iterable[tuple[int, bytes]]) -> None:
        pending = iter(kept)
        while batch := list(islice(pending, READ_BATCH)):
            connection.exec_driver_sql(_INSERT_ATTESTATION, batch)

    def _is_one_of(self, column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
        return column.in_(values)

    @property
    def _terms_key(self) -> sa.ColumnElement[bytes]:
        return self._tables.terms.c.data

    def _key_of(self, terms: bytes) -> bytes:
        return terms

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


def _make_tables(connection: sa.Connection) -> None:
    METADATA.create_all(connection)
    for statement in SQLITE:
        connection.exec_driver_sql(statement)


@cache
def _made() -> dict[tuple[str, str], str]:
    """Returns the tables, indices and triggers of a new ledger."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        _make_tables(connection)
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


_LOCKS: "weakref.WeakSet[IO[bytes]]" = weakref.WeakSet()
"""Locks that this process holds."""


def _take_lock(path: Path) -> IO[bytes]:
    with _translated("locking the ledger"):
        lock = open(f"{path}.lock", "ab")  # noqa: SIM115 (held open for the life of the store)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        here = any(not own.closed and os.path.sameopenfile(own.fileno(), lock.fileno()) for own in _LOCKS)
        lock.close()
        raise locked(str(path), here=here) from error
    except OSError as error:
        lock.close()
        raise StorageFailed("IO", f"cannot lock {path}: {error.strerror or error}; mend the disk") from error
    _LOCKS.add(lock)
    return lock


def _give_up(engine: sa.Engine, lock: IO[bytes] | None) -> None:
    """Closes what a store held that its program dropped without closing it: first the database, then the lock.

    Unlike the file of the lock, it does so without a ResourceWarning. That would come at any later time, in code of others,
    where the garbage collector has to find the store: an exception that a notebook keeps refers to it in a cycle.
    """
    try:
        engine.dispose()
    finally:
        if lock is not None:
            lock.close()


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


def _translated(doing: str) -> AbstractContextManager[None]:
    return translating(doing, sqlite3.Error, _typed)


def _typed(doing: str, error: BaseException | None) -> LedgerError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerBusy("LOCKED", f"{doing}: another process holds the database ({error})")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR):
        strange = code == sqlite3.SQLITE_NOTADB or "no such table" in str(error)
        why = "; another file was put in the ledger's place, or it was copied without its -wal" if strange else ""
        return LedgerCorrupt("DATABASE", f"{doing}: {error}{why}")
    return StorageFailed("STORAGE", f"{doing}: {error}; free space or mend the disk, then reopen the ledger")
