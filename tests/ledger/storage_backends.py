"""The databases that ledgers live in, as the storage suite sees them: a place to open, and an attacker's hands on it."""

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from ledger.log import Ledger
from ledger.storage.place import Place
from ledger.storage.sql.schema import TABLES
from tests.worlds.ledgers import SIGNER
from tests.worlds.postgres import Cluster

_numbers = count(1)


class Backend:
    """One ledger's place, and ways around the ledger's own code."""

    refused: type[Exception]
    """What the database raises where a trigger or constraint refuses."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def open(self, **options: Any) -> Ledger:
        return Ledger.open(self.place, SIGNER, **options)

    def execute(self, *statements: str) -> None:
        """Runs statements as any client could, in one transaction."""
        raise NotImplementedError

    def edit(self, *statements: str) -> None:
        """Runs statements as an attacker would: without the triggers."""
        raise NotImplementedError

    def fetch(self, query: str) -> list[tuple]:
        raise NotImplementedError

    def save(self) -> Any:
        """A backup of the whole database; the ledger must be closed."""
        raise NotImplementedError

    def restore(self, saved: Any) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError


class SqliteBackend(Backend):
    refused = sqlite3.IntegrityError

    def __init__(self, directory: Path) -> None:
        super().__init__(Place.of(directory / "ledger.db"))
        self.path = directory / "ledger.db"

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as connection:
            yield connection

    def execute(self, *statements: str) -> None:
        with self._connection() as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def edit(self, *statements: str) -> None:
        with self._connection() as connection, connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement)

    def fetch(self, query: str) -> list[tuple]:
        with self._connection() as connection:
            return connection.execute(query).fetchall()

    def save(self) -> Path:
        return Path(shutil.copy(self.path, self.path.with_name(f"saved-{next(_numbers)}.db")))

    def restore(self, saved: Path) -> None:
        shutil.copy(saved, self.path)

    def remove(self) -> None:
        return


class PostgresBackend(Backend):
    refused = psycopg.IntegrityError

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        schema = f"t{next(_numbers)}"
        super().__init__(Place.of(f"{cluster.url()}?schema={schema}", directory / "state"))

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.cluster.url(), options=f"-c search_path={self.place.schema}") as connection:
            yield connection

    def execute(self, *statements: str) -> None:
        with self._connection() as connection:
            for statement in statements:
                connection.execute(_translate(statement))

    def edit(self, *statements: str) -> None:
        self.execute("SET session_replication_role = replica", *statements)

    def fetch(self, query: str) -> list[tuple]:
        with self._connection() as connection:
            return connection.execute(_translate(query)).fetchall()

    def save(self) -> str:
        saved = f"saved_{next(_numbers)}"
        self.execute(*(f"CREATE TABLE {saved}_{name} AS TABLE {name}" for name in TABLES))
        return saved

    def restore(self, saved: str) -> None:
        self.edit(*(f"DELETE FROM {name}" for name in TABLES), *(f"INSERT INTO {name} TABLE {saved}_{name}" for name in TABLES))

    def remove(self) -> None:
        self.cluster.execute(f"DROP SCHEMA IF EXISTS {self.place.schema} CASCADE")


def _translate(statement: str) -> str:
    """SQLite's blob literals as PostgreSQL's."""
    return re.sub(r"x'([0-9a-f]*)'", r"'\\x\1'::bytea", statement)
