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
"""

import hashlib
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

import sqlalchemy as sa

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, LedgerReplaced
from ledger.storage.place import Place
from ledger.storage.sql.postgres_schema import FUNCTIONS, statements, writer_grants
from ledger.storage.sql.postgres_server import engine_of, translated
from ledger.storage.sql.statements import SqlSnapshot, SqlStore
from ledger.storage.sql.tables import TABLES, tables
from ledger.storage.store import Head, Row, check_head

_COPY: Final = "COPY {schema}.entry (seq, kind, leaf, body) FROM STDIN (FORMAT BINARY)"
_COPY_TYPES: Final = ("int8", "int4", "bytea", "bytea")
_COPY_ATTESTATIONS: Final = "COPY {schema}.attestation (seq, data) FROM STDIN (FORMAT BINARY)"
_COPY_ATTESTATIONS_TYPES: Final = ("int8", "bytea")
_MISSING: Final = ("42P01", "3F000")
"""SQLSTATE of a table and of a schema that is not there."""

_WHERE: Final = sa.text("SELECT relnamespace::regnamespace::text FROM pg_catalog.pg_class WHERE oid = :oid")


class PostgresStore(SqlStore):
    """One schema of a PostgreSQL database; a `ledger.storage.store.Store`."""

    def __init__(self, place: Place, engine: sa.Engine) -> None:
        """Use `create` or `open`."""
        super().__init__(place, engine, tables(place.schema))
        self._made_tables = False
        self._identity: tuple[int | None, ...] = ()

    @classmethod
    def create(cls, place: Place) -> "PostgresStore":
        """Creates an empty ledger, and its schema if that is missing; takes over one without a leaf, made for this writer."""
        store = cls(place, engine_of(place, read_only=False))
        created = False
        try:
            store._lock()
            with store._transaction("creating the ledger") as connection:
                found = _found(connection, place.schema)
                if found == "begun":
                    raise LedgerError("EXISTS", f"{place.shown} holds a ledger; name another schema= or database")
                if found == "nothing":
                    store._make_tables(connection)
                store._made_tables = found == "nothing"
                store._take_over(connection, _holder())
                store._watch(connection)
            created = True
            return store
        finally:
            if not created:
                store.close()

    @classmethod
    def open(cls, place: Place, *, read_only: bool) -> "PostgresStore":
        """Opens a ledger, as its only writer unless ``read_only``."""
        store = cls(place, engine_of(place, read_only=read_only))
        opened = False
        try:
            if not read_only:
                store._lock()
            with store._transaction("opening the ledger") as connection:
                if _found(connection, place.schema) == "nothing":
                    raise LedgerError("MISSING", f"there is no ledger at {place.shown}")
                store._check_version(connection)
                if not read_only:
                    store._take_over(connection, _holder())
                    store._watch(connection)
            opened = True
            return store
        finally:
            if not opened:
                store.close()

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
        """Renames the schema of a ledger and returns the new name; nothing is deleted."""
        with _alone(place, "setting an unfinished ledger aside", read_only=False) as connection:
            number = 1
            while _schema_exists(connection, aside := f"{place.schema}_unfinished_{number}"):
                number += 1
            connection.exec_driver_sql(f"ALTER SCHEMA {place.schema} RENAME TO {aside}")
            return aside

    @contextmanager
    def snapshot(self) -> Iterator[SqlSnapshot]:
        """Opens one view of the whole ledger, which a writer elsewhere does not move."""
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
        for statement in statements(self.place.schema):
            connection.exec_driver_sql(statement)
        self._fill(connection)

    def _lock(self) -> None:
        # The advisory lock keeps out other writers of this program; fence and size keep out all others.
        with self._transaction("locking the ledger") as connection:
            taken = sa.select(sa.func.pg_try_advisory_lock(sa.func.hashtextextended(f"dptrain {self.place.schema}", 0)))
            if not connection.scalar(taken):
                raise LedgerBusy("LOCKED", f"another process is writing {self.place.shown}; wait for it, or open read-only")

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
    def _transaction(self, doing: str) -> Iterator[sa.Connection]:
        with translated(doing), self._engine.connect() as connection:
            connection.execution_options(isolation_level="READ COMMITTED")
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


def _holder() -> str:
    return f"{socket.gethostname()} pid {os.getpid()}"
