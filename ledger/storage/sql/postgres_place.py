"""Reads the URL of a ledger on PostgreSQL: libpq's own syntax, with one key more.

    postgresql://writer@db.example/privacy?sslmode=verify-full&schema=run7

``schema`` is the schema of that database which holds this one ledger (default `DEFAULT_SCHEMA`).
"""

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ledger.errors import LedgerError
from ledger.storage.place import STATE_NAME, Place

DEFAULT_SCHEMA: Final = "dptrain"
"""The schema of a ledger whose URL names none."""

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_SECRET: Final = frozenset({"password", "sslpassword"})


def server_place(url: str, state: str | os.PathLike[str] | None) -> Place:
    """Reads a URL and a state directory.

    Raises:
        LedgerError: code URL; a sentence shows nothing that may be a part of a password.
    """
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    authority, _, database = rest.partition("/")
    if "@" in f"{database}{query}" or "#" in url:
        # What follows may be the rest of a password, so the URL is not shown.
        raise LedgerError("URL", "a URL has @ only before the host, and no #; write / ? @ # in a password as %2F %3F %40 %23")
    pairs = [part.partition("=")[::2] for part in query.split("&") if part]
    schemas = [value for key, value in pairs if key == "schema"] or [DEFAULT_SCHEMA]
    schema = schemas[0]
    if len(schemas) > 1 or not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        found = ",".join(schemas)
        raise LedgerError("URL", f"schema={found} is no schema for a ledger: [a-z_][a-z0-9_]*, at most 48, not pg_*")
    user, at, host = authority.rpartition("@")
    name = schema if schema != DEFAULT_SCHEMA else unquote(database) or STATE_NAME
    return Place(
        "postgresql",
        _with_query(base, [pair for pair in pairs if pair[0] != "schema"]),
        schema,
        None if state is None else Path(state) / STATE_NAME,
        name,
        _with_query(f"{scheme}://{user.partition(':')[0]}{at}{host}/{database}", [p for p in pairs if p[0] not in _SECRET]),
        ":" in user or any(key in _SECRET for key, _ in pairs),
    )


def _with_query(base: str, pairs: list[tuple[str, str]]) -> str:
    """Joins a query as libpq reads it: percent-encoded, and a plus sign is a plus sign."""
    return base + ("?" + "&".join(f"{key}={value}" for key, value in pairs) if pairs else "")
