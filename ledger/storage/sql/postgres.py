"""PostgreSQL storage of one ledger, in a schema of its own; the promises of the SQLite store, kept by a server.

Life of a leaf: (1) the writer holds a session advisory lock, which the server releases when the connection ends; (2) ``SELECT
... FOR UPDATE`` on head and lease makes it the only one to append, and compares both with what it last saw; (3) rows go in by
one COPY, and a trigger checks that they follow the last one and moves the head; (4) the frontier is stored beside the new
size; (5) COMMIT with ``synchronous_commit=on`` reaches the server's disk before the call returns. In (2) the tables must still
be those that were opened, by their object identifiers. A connection that is lost during the commit leaves open whether the
rows are there: the error says so, no step runs, and reopening tells.

What the server says is believed no more than a file: the tree and the signer's record beside the run find out. The server
must be set up to keep what it commits, which is asserted at opening; and a standby that is promoted without the last commits
is behind the signer's record, and refused.

Nothing here waits for ever. A server that does not acknowledge is given up by TCP; one that acknowledges and does not answer
(a proxy that swallows what it is given, a commit that waits for a standby that is gone) by `Connection`, whose every wait has
an end. Then the connection is closed, and the call fails as for any lost one: a commit without an answer may have happened.
"""

import hashlib
import re
import time
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Final, Literal, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, LedgerReplaced, StorageFailed
from ledger.storage.place import Place
from ledger.storage.sql.schema import FUNCTIONS, TABLES, postgres_statements, tables, writer_grants
from ledger.storage.sql.statements import SqlSnapshot, SqlStore, Turn, translating
from ledger.storage.store import LOCK_TIMEOUT_SECONDS, Head, Row, check_head, locked

_COPY: Final = "COPY {schema}.entry (seq, kind, leaf, body) FROM STDIN (FORMAT BINARY)"
_COPY_TYPES: Final = ("int8", "int4", "bytea", "bytea")
_COPY_ATTESTATIONS: Final = "COPY {schema}.attestation (seq, data) FROM STDIN (FORMAT BINARY)"
_COPY_ATTESTATIONS_TYPES: Final = ("int8", "bytea")
_MISSING: Final = ("42P01", "3F000")
"""SQLSTATE of a table and of a schema that is not there."""

_WHERE: Final = sa.text("SELECT relnamespace::regnamespace::text FROM pg_catalog.pg_class WHERE oid = :oid")


_WRITERS: "weakref.WeakSet[PostgresStore]" = weakref.WeakSet()
"""Stores of this process that hold the lock of their ledger."""


class PostgresStore(SqlStore):
    """One schema of a PostgreSQL database."""

    def __init__(self, place: Place, engine: sa.Engine) -> None:
        """Use `create` or `open`."""
        super().__init__(place, engine, tables(place.schema))
        self._made_tables = False
        self._identity: tuple[int | None, ...] = ()
        self._locks_turns = False

    @classmethod
    def create(cls, place: Place) -> "PostgresStore":
        """Creates an empty ledger, and its schema if that is missing; takes over one without a leaf, made for this writer."""
        store = cls(place, engine_of(place, read_only=False))
        try:
            store._lock()
            with store._transaction("creating the ledger") as connection:
                found = _found(connection, place.schema)
                if found == "begun":
                    raise LedgerError("EXISTS", f"{place.shown} holds a ledger; name another schema= or database")
                if found == "nothing":
                    store._make_tables(connection)
                store._made_tables = found == "nothing"
                store._take_over(connection)
                store._watch(connection)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, place: Place, *, read_only: bool) -> "PostgresStore":
        store = cls(place, engine_of(place, read_only=read_only))
        try:
            if not read_only:
                store._lock()
            with store._transaction("opening the ledger") as connection:
                if _found(connection, place.schema) == "nothing":
                    raise LedgerError("MISSING", f"there is no ledger at {place.shown}")
                store._check_version(connection)
                if not read_only:
                    store._take_over(connection)
                    store._watch(connection)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open_shared(cls, place: Place, *, read_only: bool) -> "PostgresStore":
        """Opens a schema for turns: a lock on the row of the head keeps out all others while one lasts."""
        store = cls(place, engine_of(place, read_only=read_only))
        try:
            with store._transaction("opening the log") as connection:
                if _found(connection, place.schema) == "nothing":
                    raise LedgerError("MISSING", f"there is no log at {place.shown}")
                store._check_version(connection)
                store._identity = tuple(connection.execute(sa.select(*store._identities())).one())
                store._locks_turns = not read_only
        except BaseException:
            store.close()
            raise
        return store

    @contextmanager
    def turn(self, doing: str) -> Iterator[Turn]:
        query = sa.select(self._tables.head.c.id, *self._identities())
        isolation: Literal["READ COMMITTED", "REPEATABLE READ"] = "READ COMMITTED" if self._locks_turns else "REPEATABLE READ"
        with self._transaction(doing, isolation) as connection:
            try:
                found = connection.execute(query.with_for_update() if self._locks_turns else query).one_or_none()
            except sa.exc.ProgrammingError as error:
                if getattr(error.orig, "sqlstate", None) in _MISSING:
                    raise self._unlinked("head") from error
                raise
            if found is None:
                raise LedgerCorrupt("HEAD", "the stored head is gone")
            if tuple(found[1:]) != self._identity:
                sentence = f"the tables of {self.place.shown} are others than those that were opened"
                raise LedgerReplaced("REPLACED", f"{sentence}: a copy was put in their place")
            yield Turn(connection, self._tables, self._insert_rows)

    @property
    def identity(self) -> str:
        """The object identifiers of the tables, which a copy does not have."""
        return "oids:" + ",".join(map(str, self._identity))

    @staticmethod
    def exists(place: Place) -> bool:
        """Tells whether the schema of a ledger holds any of its tables, other than all of them without a leaf."""
        with _alone(place, "looking for the ledger", read_only=True) as connection:
            return _found(connection, place.schema) == "begun"

    @staticmethod
    def is_blank(place: Place) -> bool:
        """Says no: tables are created all at once, or not at all."""
        return False

    @staticmethod
    def set_aside(place: Place) -> str:
        with _alone(place, "setting an unfinished ledger aside", read_only=False) as connection:
            number = 1
            while _schema_exists(connection, aside := f"{place.schema}_unfinished_{number}"):
                number += 1
            connection.exec_driver_sql(f"ALTER SCHEMA {place.schema} RENAME TO {aside}")
            return aside

    @contextmanager
    def snapshot(self) -> Iterator[SqlSnapshot]:
        with translated("reading the ledger"), self._engine.connect() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ")
            yield SqlSnapshot(connection, self._tables)

    def examine(self) -> list[str] | None:
        """Says that there is none: PostgreSQL leaves the check of its pages to the server's keeper, with ``pg_amcheck``."""
        return None

    def require_in_place(self) -> None:
        """Asks for the identity of the tables under their names, and for the head."""
        if self._identity:
            with self._transaction("asking whether the ledger is in its place") as connection:
                self._check_fence(connection, None)

    def rescue(self) -> str:
        """Says how to go on: what a server dropped, only the server's own copies have."""
        try:
            with self._transaction("looking for the tables") as connection:
                where = connection.scalar(_WHERE, {"oid": self._identity[0] if self._identity else 0})
        except LedgerError:
            where = None
        if where is not None and where != self.place.schema:
            return (
                f"Its tables are in the schema {where} now: end this run, move away what has the name {self.place.schema}, "
                f"ALTER SCHEMA {where} RENAME TO {self.place.schema}, and resume"
            )
        return (
            "Nothing of it can be copied from here: restore it from the server's own archive, up to its last leaf (one that "
            "lacks leaves is refused), and resume"
        )

    def discard(self) -> None:
        """Closes and removes a ledger that could not be created whole; only for the one who has just created it.

        Tables that were made for this writer are their owner's to remove.
        """
        try:
            if self._made_tables:
                with self._transaction("removing the ledger") as connection:
                    for name in TABLES:
                        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {self.place.schema}.{name} CASCADE")
                    for name in FUNCTIONS:
                        connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {self.place.schema}.{name}()")
        finally:
            self.close()

    def grant(self, role: str) -> None:
        """Gives another role what a run needs, and no way to change or remove what is recorded; for the owner of the tables."""
        with self._transaction(f"granting rights to {role}") as connection:
            for statement in writer_grants(self.place.schema, role):
                connection.exec_driver_sql(statement)

    def _insert_rows(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        values = ((row.seq, row.kind, row.leaf_hash, row.body) for row in rows)
        _copy(connection, _COPY.format(schema=self.place.schema), _COPY_TYPES, values)

    def _insert_attestations(self, connection: sa.Connection, kept: Iterable[tuple[int, bytes]]) -> None:
        _copy(connection, _COPY_ATTESTATIONS.format(schema=self.place.schema), _COPY_ATTESTATIONS_TYPES, kept)

    def _is_one_of(self, column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
        return column == sa.any_(sa.cast(list(values), sa.ARRAY(column.type)))

    @property
    def _terms_key(self) -> sa.ColumnElement[bytes]:
        return sa.func.sha256(self._tables.terms.c.data, type_=sa.LargeBinary)

    def _key_of(self, terms: bytes) -> bytes:
        return hashlib.sha256(terms).digest()

    def _make_tables(self, connection: sa.Connection) -> None:
        if not _schema_exists(connection, self.place.schema):
            connection.exec_driver_sql(f"CREATE SCHEMA {self.place.schema}")
        for statement in postgres_statements(self.place.schema):
            connection.exec_driver_sql(statement)
        self._fill(connection)

    def _lock(self) -> None:
        # The advisory lock keeps out other writers of this program; fence and size keep out all others.
        with self._transaction("locking the ledger") as connection:
            taken = sa.select(sa.func.pg_try_advisory_lock(sa.func.hashtextextended(f"dptrain {self.place.schema}", 0)))
            if not connection.scalar(taken):
                raise locked(self.place.shown, here=any(other.place.shown == self.place.shown for other in _WRITERS))
        _WRITERS.add(self)

    def close(self) -> None:
        _WRITERS.discard(self)
        super().close()

    def _check_fence(self, connection: sa.Connection, expected: int | None) -> None:
        """Locks lease and head until the transaction ends; compares them, and the tables with those that were opened."""
        head, lease = self._tables.head, self._tables.lease
        try:
            row = connection.execute(sa.select(lease.c.fence, *self._identities()).with_for_update()).one_or_none()
        except sa.exc.ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) in _MISSING:
                raise self._unlinked("lease") from error
            raise
        fence, found = (None, self._identity) if row is None else (row[0], tuple(row[1:]))
        if None in found:
            raise self._unlinked(TABLES[found.index(None)])
        if found != self._identity:
            sentence = f"the tables of {self.place.shown} are others than those that were opened: a copy was put in their place"
            raise LedgerReplaced("REPLACED", sentence)
        query = sa.select(head.c.size, head.c.frontier).with_for_update()
        size, frontier = connection.execute(query).one_or_none() or (None, None)
        check_head(self.place.shown, Head(fence, size, frontier), self.fence, self._left, expected)

    def _watch(self, connection: sa.Connection) -> None:
        """Remembers tables and head of a ledger that this store may write."""
        self._identity = tuple(connection.execute(sa.select(*self._identities())).one())
        with suppress(LedgerCorrupt):  # whoever loads the ledger next says what is wrong with it
            self._left = SqlSnapshot(connection, self._tables).head()

    def _identities(self) -> Iterator[sa.ColumnElement[int | None]]:
        """Yields the object identifiers of the tables under their names now; NULL for one that is not there."""
        for name in TABLES:
            yield sa.literal_column(f"to_regclass('{self.place.schema}.{name}')::oid::bigint")

    def _unlinked(self, table: str) -> LedgerReplaced:
        sentence = f"{self.place.shown} has no table {table} any more: it was dropped or renamed while it was open"
        return LedgerReplaced("UNLINKED", sentence)

    @contextmanager
    def _transaction(
        self, doing: str, isolation: Literal["READ COMMITTED", "REPEATABLE READ"] = "READ COMMITTED"
    ) -> Iterator[sa.Connection]:
        with translated(doing), self._engine.connect() as connection:
            connection.execution_options(isolation_level=isolation)
            yield connection
            with translated(doing, committing=True):
                connection.commit()


@contextmanager
def _alone(place: Place, doing: str, *, read_only: bool) -> Iterator[sa.Connection]:
    """Opens one transaction on a connection of its own."""
    engine = engine_of(place, read_only=read_only)
    try:
        with translated(doing), engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def _found(connection: sa.Connection, schema: str) -> Literal["nothing", "empty", "begun"]:
    """Tells what a schema holds: none of a ledger's tables, all of them without a leaf, or anything else."""
    query = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = :schema AND tablename = ANY(:names)"
    count = connection.scalar(sa.text(query), {"schema": schema, "names": list(TABLES)})
    if count != len(TABLES):
        return "begun" if count else "nothing"
    leaves = f"SELECT EXISTS (SELECT 1 FROM {schema}.entry) OR NOT EXISTS (SELECT 1 FROM {schema}.head WHERE size = 0)"
    return "begun" if connection.exec_driver_sql(leaves).scalar() else "empty"


def _schema_exists(connection: sa.Connection, schema: str) -> bool:
    query = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = :schema"
    return bool(connection.scalar(sa.text(query), {"schema": schema}))


def _copy(connection: sa.Connection, statement: str, types: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)


_BUSY: Final = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock not available within ``lock_timeout``."""

_CORRUPT_CLASSES: Final = frozenset({"23", "42", "XX", "P0"})
"""A constraint or trigger refused, a table or column is not there, an index or page is broken."""

_CONNECTION_CLASSES: Final = frozenset({"08", "57"})
"""The connection failed, the server is shutting down or starting."""

_QUERY: Final = re.compile(r"\nLINE [0-9]+: .*\n *\^")
"""The place in a statement that a server points at: statements are this program's, and say nothing to its user."""

_TIMED_OUT: Final = "57014"
_NO_PRIVILEGE: Final = "42501"


def translated(doing: str, *, committing: bool = False) -> AbstractContextManager[None]:
    """Turns the database's errors into the ledger's. `committing`: a lost connection leaves open whether it happened."""
    return translating(doing, psycopg.Error, partial(_typed, committing=committing))


def _typed(doing: str, error: BaseException | None, *, committing: bool) -> LedgerError:
    state = getattr(error, "sqlstate", None)
    said = " ".join(_QUERY.sub("", str(error)).split())
    if state is None or (state[:2] in _CONNECTION_CLASSES and state != _TIMED_OUT):
        if committing:
            return StorageFailed(
                "COMMIT_UNKNOWN",
                f"{doing}: the connection was lost during the commit ({said}), so the leaves may be in the ledger or not; no "
                "step that they pay for may run; open the ledger again",
            )
        return StorageFailed("CONNECTION", f"{doing}: {said}; restore the connection, then open the ledger again")
    if state in _BUSY:
        return LedgerBusy("LOCKED", f"{doing}: another process holds the database ({said})")
    if state == _NO_PRIVILEGE:
        return StorageFailed("PRIVILEGE", f"{doing}: {said}; docs/storage.md tells what which role may do")
    if state[:2] in _CORRUPT_CLASSES:
        return LedgerCorrupt("DATABASE", f"{doing}: {said}")
    return StorageFailed("STORAGE", f"{doing}: {said}; mend the server, then open the ledger again")


STATEMENT_TIMEOUT_SECONDS: Final = 120
"""Longest time of one statement. Reading a ledger takes many, one a batch; the server does not apply this to a commit."""

CONNECT_TIMEOUT_SECONDS: Final = 10
"""Longest time until the server answers."""

LOST_AFTER_SECONDS: Final = 30
"""A connection over which nothing is acknowledged for so long counts as lost: here, so that a run stops, and at the server, so
that a writer that is gone gives up its lock."""

SILENT_AFTER_SECONDS: Final = STATEMENT_TIMEOUT_SECONDS + LOST_AFTER_SECONDS
"""A server that has not answered one message by then never will: it would have ended the statement itself."""

MUST_BE_ON: Final = ("fsync", "full_page_writes", "synchronous_commit")
"""Settings without which a commit may be forgotten."""

_KEEPALIVES: Final = {
    "keepalives_idle": LOST_AFTER_SECONDS // 3,
    "keepalives_interval": LOST_AFTER_SECONDS // 6,
    "keepalives_count": 4,
}
_SETTINGS: Final = {
    "synchronous_commit": "on",
    "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS}s",
    "lock_timeout": f"{LOCK_TIMEOUT_SECONDS}s",
    "tcp_user_timeout": f"{LOST_AFTER_SECONDS}s",
    **{f"tcp_{name}": str(value) for name, value in _KEEPALIVES.items()},
}

_Answer = TypeVar("_Answer")


class Connection(psycopg.Connection[Any]):
    """A connection that counts as lost, and is closed, when one exchange takes longer than `SILENT_AFTER_SECONDS`."""

    _given_up = False

    def wait(self, gen: Generator[Any, Any, _Answer], *args: Any, **kwargs: Any) -> _Answer:
        """Waits as psycopg does, which comes by every tenth of a second whether there is an answer or not."""
        if self._given_up:
            raise self._give_up()  # what cleans up after the first failure fails for the same reason
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _give_up(self) -> psycopg.OperationalError:
        self._given_up = True
        self.close()
        return psycopg.OperationalError(f"the server did not answer within {SILENT_AFTER_SECONDS} s")

    def _bounded(self, exchange: Generator[Any, Any, _Answer]) -> Generator[Any, Any, _Answer]:
        deadline = time.monotonic() + SILENT_AFTER_SECONDS
        try:
            awaited = next(exchange)
            while True:
                ready = yield awaited
                # An answer that is there is read, however late: perhaps it was this process that was stopped meanwhile.
                if not ready and time.monotonic() > deadline:
                    raise self._give_up()
                awaited = exchange.send(ready)
        except StopIteration as answered:
            return answered.value


def engine_of(place: Place, *, read_only: bool) -> sa.Engine:
    """Returns an engine of one connection, kept until the store is closed.

    It is never replaced in silence: the lock would be lost with it.
    """
    arguments = _arguments(place)
    made: list[object] = []

    def connect() -> Connection:
        if made:
            raise StorageFailed("CONNECTION", f"the connection to {place.shown} was lost; open the ledger again")
        with translated(f"connecting to {place.shown}"):
            connection = Connection.connect(**arguments)
            made.append(connection)
            _settle(connection)
            connection.read_only = read_only
            return connection

    return sa.create_engine("postgresql+psycopg://", creator=connect, poolclass=sa.pool.StaticPool)


def _arguments(place: Place) -> dict[str, Any]:
    """Returns what to connect with: the keys of the URL, over our defaults."""
    try:
        given: dict[str, Any] = dict(conninfo_to_dict(place.target))
    except psycopg.ProgrammingError as error:
        # libpq quotes what it cannot read, and that may be the password; a parameter that it does not know is not.
        said = str(error).strip() if "query parameter" in str(error) else "libpq cannot read it"
        raise LedgerError("URL", f"{place.shown} is no URL of a database: {said}") from None
    defaults = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "dptrain ledger"}
    return defaults | {"tcp_user_timeout": LOST_AFTER_SECONDS * 1000} | _KEEPALIVES | given


def _settle(connection: Connection) -> None:
    """Gives the session our settings, over those of role, database and URL, and asserts that its commits last."""
    connection.autocommit = True
    for name, value in _SETTINGS.items():
        connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
    for name in MUST_BE_ON:
        (value,) = connection.execute(f"SHOW {name}").fetchone() or ("",)
        if value != "on":
            raise StorageFailed("NOT_DURABLE", f"the server has {name}={value}, so it may forget what it commits; set it to on")
    connection.autocommit = False
