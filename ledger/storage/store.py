"""SQLite storage of one ledger: durable, append-only, one writer, and nothing that the tree does not check again.

Life of a leaf: (1) the writer holds ``<path>.lock`` (an advisory lock, released by the kernel if the process dies);
(2) ``BEGIN IMMEDIATE`` takes SQLite's own write lock; (3) the head is compared with what the writer last saw; (4) rows
are inserted, each checked by a trigger to be the next one; (5) the frontier of the Merkle tree is stored beside the
new size; (6) COMMIT with ``synchronous=FULL`` reaches the disk before the call returns. The triggers are a seat belt
against accidents: whoever can write the file can drop them, and is found out by the tree.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import sqlalchemy as sa

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, ProofError, StorageFailed
from ledger.merkle import Frontier

SCHEMA_VERSION: Final = "1"
BUSY_TIMEOUT_SECONDS: Final = 10
INSERT_BATCH: Final = 8_192

_metadata = sa.MetaData()
_META = sa.Table(
    "meta",
    _metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sqlite_strict=True,
)
_ENTRY = sa.Table(
    "entry",
    _metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Integer, nullable=False),
    sa.Column("dhash", sa.LargeBinary),
    sa.Column("leaf", sa.LargeBinary, sa.CheckConstraint("length(leaf) = 32"), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("entry_dhash", "dhash", sqlite_where=sa.text("dhash IS NOT NULL")),
    sqlite_strict=True,
)
_HEAD = sa.Table(
    "head",
    _metadata,
    sa.Column("id", sa.Integer, sa.CheckConstraint("id = 0"), primary_key=True, autoincrement=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("frontier", sa.LargeBinary, nullable=False),
    sqlite_strict=True,
)
_CHECKPOINT = sa.Table(
    "checkpoint",
    _metadata,
    sa.Column("size", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("note", sa.LargeBinary, nullable=False),
    sqlite_strict=True,
)
_LEASE = sa.Table(
    "lease",
    _metadata,
    sa.Column("id", sa.Integer, sa.CheckConstraint("id = 0"), primary_key=True, autoincrement=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sqlite_strict=True,
)

_TRIGGERS: Final = (
    # INSERT OR REPLACE fires no DELETE trigger unless recursive_triggers is on; the dense check stops it either way.
    """CREATE TRIGGER entry_dense BEFORE INSERT ON entry
       WHEN NEW.seq IS NOT (SELECT size FROM head WHERE id = 0)
       BEGIN SELECT RAISE(ABORT, 'entry.seq must be the size of the ledger'); END""",
    """CREATE TRIGGER entry_bump AFTER INSERT ON entry
       BEGIN UPDATE head SET size = size + 1 WHERE id = 0; END""",
    """CREATE TRIGGER head_grows BEFORE UPDATE ON head WHEN NEW.size < OLD.size OR NEW.id IS NOT OLD.id
       BEGIN SELECT RAISE(ABORT, 'the head of the ledger never shrinks'); END""",
    """CREATE TRIGGER lease_grows BEFORE UPDATE ON lease WHEN NEW.fence <= OLD.fence OR NEW.id IS NOT OLD.id
       BEGIN SELECT RAISE(ABORT, 'the fence of the ledger only grows'); END""",
    *(
        f"""CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table}
            BEGIN SELECT RAISE(ABORT, '{table} rows are never changed or removed'); END"""
        for table, verbs in (
            ("entry", ("UPDATE", "DELETE")),
            ("checkpoint", ("UPDATE", "DELETE")),
            ("meta", ("UPDATE", "DELETE")),
            ("head", ("DELETE",)),
            ("lease", ("DELETE",)),
        )
        for verb in verbs
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One leaf as stored: the body is what counts, the other columns are an index over it."""

    seq: int
    kind: int
    descriptor_hash: bytes | None
    leaf_hash: bytes
    body: bytes


class Snapshot:
    """What the file held at one moment; valid inside `Store.snapshot`."""

    def __init__(self, connection: sa.Connection) -> None:
        """Takes a connection inside a transaction."""
        self._connection = connection

    def head(self) -> Frontier:
        """Returns the stored size and frontier."""
        row = self._connection.execute(sa.select(_HEAD.c.size, _HEAD.c.frontier)).one_or_none()
        if row is None:
            raise LedgerCorrupt("HEAD", "the stored head is gone")
        try:
            return Frontier.from_bytes(row.size, row.frontier)
        except ProofError as error:
            raise LedgerCorrupt("HEAD", f"the stored head is not one of a tree: {error.sentence}") from error

    def rows(self) -> Iterator[Row]:
        """Yields all rows in order of seq."""
        columns = (_ENTRY.c.seq, _ENTRY.c.kind, _ENTRY.c.dhash, _ENTRY.c.leaf, _ENTRY.c.body)
        query = sa.select(*columns).order_by(_ENTRY.c.seq)
        for row in self._connection.execution_options(yield_per=INSERT_BATCH).execute(query):
            yield Row(*row)

    def checkpoints(self) -> dict[int, bytes]:
        """Returns all stored checkpoint notes by size."""
        query = sa.select(_CHECKPOINT.c.size, _CHECKPOINT.c.note).order_by(_CHECKPOINT.c.size)
        return {row.size: row.note for row in self._connection.execute(query)}


class Store:
    """One SQLite file. Not for use from several threads, nor across a fork."""

    def __init__(self, path: Path, engine: sa.Engine, lock: IO[bytes] | None, fence: int) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.fence = fence
        self._engine = engine
        self._lock = lock

    @classmethod
    def create(cls, path: Path) -> "Store":
        """Creates an empty ledger file; refuses an existing one."""
        lock = _take_lock(path)
        if path.exists():
            lock.close()
            raise LedgerError("EXISTS", f"{path} exists; a ledger is never written over, choose another name")
        engine = _engine(path, read_only=False)
        try:
            with _translated("creating the ledger"), engine.begin() as connection:
                _metadata.create_all(connection)
                for trigger in _TRIGGERS:
                    connection.exec_driver_sql(trigger)
                connection.execute(sa.insert(_META), [{"key": "schema", "value": SCHEMA_VERSION}])
                connection.execute(sa.insert(_HEAD), [{"id": 0, "size": 0, "frontier": b""}])
                connection.execute(sa.insert(_LEASE), [{"id": 0, "holder": _holder(), "fence": 1}])
        except BaseException:
            cls(path, engine, lock, 1).discard()
            raise
        return cls(path, engine, lock, 1)

    @classmethod
    def open(cls, path: Path, *, read_only: bool) -> "Store":
        """Opens a ledger file, as its only writer unless ``read_only``."""
        if not path.is_file():
            raise LedgerError("MISSING", f"there is no ledger at {path}")
        lock = None if read_only else _take_lock(path)
        engine = _engine(path, read_only=read_only)
        store = cls(path, engine, lock, 0)
        try:
            with _translated("opening the ledger"), engine.begin() as connection:
                version = connection.scalar(sa.select(_META.c.value).where(_META.c.key == "schema"))
                if version != SCHEMA_VERSION:
                    sentence = f"{path} has schema {version!r}, this version reads {SCHEMA_VERSION!r}"
                    raise LedgerCorrupt("SCHEMA", sentence)
                if not read_only:
                    bump = sa.update(_LEASE).values(fence=_LEASE.c.fence + 1, holder=_holder())
                    connection.execute(bump)
                    store.fence = connection.scalar(sa.select(_LEASE.c.fence)) or 0
        except BaseException:
            store.close()
            raise
        return store

    def append(self, rows: Sequence[Row], frontier: Frontier, note: bytes | None = None) -> None:
        """Appends rows, all or none.

        Guarantee:
            When this returns, the rows are on disk (WAL, ``synchronous=FULL``). When it raises, none of them is in the
            ledger. A writer that lost its lease, or whose view of the head is old, appends nothing.

        Args:
            rows: the next leaves, in order.
            frontier: the tree's frontier after the last of them.
            note: signed checkpoint of the size after the last of them.

        Raises:
            LedgerBusy: another writer has taken over, or the database stays locked.
            StorageFailed: the disk refused the write.
        """
        expected = frontier.size - len(rows)
        with _translated("appending"), self._engine.begin() as connection:
            # The advisory lock keeps out processes of this program on this host; fence and size keep out all others.
            if connection.scalar(sa.select(_LEASE.c.fence)) != self.fence:
                raise LedgerBusy("FENCED", "another writer has taken the ledger over; close this one")
            size = connection.scalar(sa.select(_HEAD.c.size))
            if size != expected:
                raise LedgerBusy("HEAD_MOVED", f"the ledger has {size} leaves, this writer knows of {expected}")
            for start in range(0, len(rows), INSERT_BATCH):
                connection.execute(sa.insert(_ENTRY), [_columns(row) for row in rows[start : start + INSERT_BATCH]])
            moved = sa.update(_HEAD).where(_HEAD.c.size == frontier.size).values(frontier=frontier.to_bytes())
            if connection.execute(moved).rowcount != 1:
                raise LedgerCorrupt("HEAD", "the head did not move with the rows; the insert trigger is missing")
            if note is not None:
                connection.execute(sa.insert(_CHECKPOINT), [{"size": frontier.size, "note": note}])

    @contextmanager
    def snapshot(self) -> Iterator["Snapshot"]:
        """Opens one view of the whole file, which a writer elsewhere does not move."""
        with _translated("reading the ledger"), self._engine.begin() as connection:
            yield Snapshot(connection)

    def discard(self) -> None:
        """Closes and removes a ledger that could not be created whole; only for the one who has just created it."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file and gives up the writer's lock."""
        self._engine.dispose()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _columns(row: Row) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "kind": row.kind,
        "dhash": row.descriptor_hash,
        "leaf": row.leaf_hash,
        "body": row.body,
    }


def _holder() -> str:
    return f"pid {os.getpid()}"


def _take_lock(path: Path) -> IO[bytes]:
    with _translated("locking the ledger"):
        lock = open(f"{path}.lock", "ab")  # noqa: SIM115 (held open for the life of the store)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise LedgerBusy("LOCKED", f"another process is writing {path}; wait for it, or open read-only") from error
    return lock


def _engine(path: Path, *, read_only: bool) -> sa.Engine:
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, poolclass=sa.pool.StaticPool, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        # pysqlite would otherwise begin transactions by itself, deferred, and fail under a second writer.
        connection.isolation_level = None
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != ("wal",):
            raise StorageFailed("WAL", f"{path} cannot use a write-ahead log (found {mode}); put it on a local disk")
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "recursive_triggers=ON", "trusted_schema=OFF"):
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
        return LedgerCorrupt("DATABASE", f"{doing}: {error}")
    return StorageFailed("STORAGE", f"{doing}: {error}; free space or mend the disk, then reopen the ledger")
