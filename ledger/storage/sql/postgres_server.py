"""Connects to a PostgreSQL server, within bounded time, and turns its errors by SQLSTATE into the ledger's.

Nothing here waits for ever. A server that does not acknowledge is given up by TCP; one that acknowledges and does not answer
(a proxy that swallows what it is given, a commit that waits for a standby that is gone) by `Connection`, whose every wait has
an end. Then the connection is closed, and the call fails as for any lost one: a commit without an answer may have happened.
"""

import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, StorageFailed
from ledger.storage.place import Place
from ledger.storage.store import LOCK_TIMEOUT_SECONDS

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


@contextmanager
def translated(doing: str, *, committing: bool = False) -> Iterator[None]:
    """Turns the database's errors into the ledger's.

    Args:
        doing: what is being done, for the sentence.
        committing: a lost connection leaves open whether it happened.
    """
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _typed(doing, error.orig, committing) from error
    except psycopg.Error as error:
        raise _typed(doing, error, committing) from error
    except OSError as error:
        raise StorageFailed("IO", f"{doing}: {error.strerror or error}") from error


def _typed(doing: str, error: BaseException | None, committing: bool) -> LedgerError:
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
