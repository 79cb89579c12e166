"""PostgreSQL's and psycopg's errors as the ledger's own, by SQLSTATE (PostgreSQL documentation, appendix A)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import sqlalchemy as sa

from ledger.errors import LedgerBusy, LedgerCorrupt, LedgerError, StorageFailed

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
