"""Runs the turns of a SQLite file that many processes write: few prepared statements, and a log that need not grow.

A commit in SQLite's mode WAL appends pages to the write-ahead log and syncs it. Where that makes the file larger, the sync
makes the file system write down the new size too. SQLite begins the log anew once its pages are in the database
(sqlite.org/wal.html, "Avoiding Excessively Large WAL Files") and does not cut the file, so from then on commits overwrite,
which costs less; `make_room` brings that about ahead. How much less hangs on the disk: ``make bench-serve`` prints both.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import sqlalchemy as sa

from ledger.errors import LedgerCorrupt, ProofError
from ledger.merkle import Frontier
from ledger.storage.disks import LOG
from ledger.storage.sql.schema import Tables
from ledger.storage.sql.statements import Turn, stored
from ledger.storage.store import Row

ROOM: Final = 4 << 20
"""Bytes that the log has ahead: about the 1000 pages after which SQLite begins it anew by default."""

_HEAD: Final = "SELECT size, frontier FROM head"
_MOVED: Final = "UPDATE head SET frontier = ? WHERE size = ?"
_FROM: Final = "SELECT seq, kind, leaf, body FROM entry WHERE seq >= ? ORDER BY seq"


class SqliteTurn(Turn):
    """A turn whose statements that every reservation runs go to the driver, which keeps them prepared."""

    def __init__(
        self, connection: sa.Connection, known: Tables, insert: Callable[[sa.Connection, Sequence[Row]], None]
    ) -> None:
        super().__init__(connection, known, insert)
        self._driver = driver_of(connection)

    def head(self) -> Frontier:
        row = self._driver.execute(_HEAD).fetchone()
        if row is None:
            raise LedgerCorrupt("HEAD", "the stored head is gone")
        try:
            return Frontier.from_bytes(stored(int, row[0]), stored(bytes, row[1]))
        except ProofError as error:
            raise LedgerCorrupt("HEAD", f"the stored head is not one of a tree: {error.sentence}") from error

    def rows_from(self, first: int) -> Iterator[Row]:
        for seq, kind, leaf, body in self._driver.execute(_FROM, (first,)):
            yield Row(stored(int, seq), stored(int, kind), stored(bytes, leaf), stored(bytes, body))

    def _move(self, frontier: Frontier) -> int:
        return self._driver.execute(_MOVED, (frontier.to_bytes(), frontier.size)).rowcount


def driver_of(connection: sa.Connection) -> sqlite3.Connection:
    """Returns SQLite's own connection."""
    return cast(sqlite3.Connection, connection.connection.driver_connection)


def make_room(driver: sqlite3.Connection, path: Path) -> None:
    """Makes the write-ahead log of a database as large as `ROOM`, if it is not.

    Guarantee: nothing that is in the database changes, whenever the process dies. SQLite itself writes pages of a transaction
    that is too large for its memory to the log, behind the last commit, and the transaction is rolled back: what stands there
    belongs to no commit, and is overwritten by the next ones. These sync as before (``synchronous=FULL``).

    Args:
        driver: outside a transaction, of the mode WAL.
        path: the database.

    Raises:
        sqlite3.Error, OSError: others did not end their turns in time, or the disk has no such room.
    """
    log = f"{path}{LOG}"
    with suppress(FileNotFoundError):
        if os.stat(log).st_size >= ROOM:
            return
    (cached,) = driver.execute("PRAGMA cache_size").fetchone()
    driver.execute("BEGIN IMMEDIATE")
    try:
        driver.execute("PRAGMA cache_size=8")
        driver.execute("CREATE TABLE room (filled BLOB) STRICT")
        driver.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM,))
    finally:
        if driver.in_transaction:
            driver.execute("ROLLBACK")
        driver.execute(f"PRAGMA cache_size={int(cached)}")
    # Else the first commit would wait for all of it. SQLite locks nothing on this file, so closing it gives up no lock.
    descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
