"""Where a ledger lies: a file or a database, and the files that its signer keeps outside it.

A ledger is named by a path, by ``sqlite:///PATH``, or by a PostgreSQL URL in libpq's own syntax with one key more::

    postgresql://writer@db.example/privacy?sslmode=verify-full&schema=run7

``schema`` is the schema of that database which holds this one ledger (default `DEFAULT_SCHEMA`). The signer's own memory
must not lie where it can be rolled back with the database, so it is no part of the URL, which is copied from machine to
machine: a ledger on a server takes a *state directory* beside it, on the machine that signs.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote

from ledger.errors import LedgerError, StorageFailed

DEFAULT_SCHEMA: Final = "dptrain"
"""The PostgreSQL schema of a ledger whose URL names none."""

STATE_NAME: Final = "ledger"
"""What the files in a state directory are called: ``ledger.highwater``, ``ledger.withdrawals/``, ``ledger.key``."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_SECRET = frozenset({"password", "sslpassword"})


@dataclass(frozen=True, slots=True)
class Place:
    """One ledger's place.

    Attributes:
        kind: the backend.
        target: path of the file, or libpq's connection URI. May hold a password; `shown` never does.
        schema: PostgreSQL schema of the ledger, empty for a file.
        beside: what the names of the files beside the ledger begin with; None for a server without a state directory.
        name: short name of the ledger.
        shown: how messages name it.
        has_password: whether the name itself holds one.
    """

    kind: Literal["sqlite", "postgresql"]
    target: str = field(repr=False)
    schema: str
    beside: Path | None
    name: str
    shown: str
    has_password: bool = False

    @classmethod
    def of(cls, ledger: "str | os.PathLike[str] | Place", state: str | os.PathLike[str] | None = None) -> "Place":
        """Reads a ledger's name.

        Args:
            ledger: a path or a URL.
            state: state directory of a ledger on a server.

        Raises:
            LedgerError: code URL for a URL that names no ledger, STATE for a state directory where none belongs.
        """
        if isinstance(ledger, Place):
            return ledger
        scheme = _SCHEME.match(ledger) if isinstance(ledger, str) else None
        if scheme is None:
            return _file(Path(ledger), state)
        if scheme[1] == "sqlite":
            return _file(_sqlite_path(str(ledger)), state)
        if scheme[1] in ("postgresql", "postgres"):
            return _server(str(ledger), state)
        raise LedgerError(
            "URL", f"{scheme[0]} is no place for a ledger; give a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        )

    @property
    def directory(self) -> Path:
        """The directory of the files beside the ledger."""
        return self._beside().parent

    @property
    def key(self) -> Path:
        """Where the ledger's private key lies unless another place is named."""
        return self._beside().with_suffix(".key")

    @property
    def public(self) -> Path:
        """Where the ledger's verifier key is written."""
        return self._beside().with_suffix(".pub")

    def make_state_directory(self) -> None:
        """Makes the state directory of a ledger on a server, for its owner alone; the directory of a file must be there."""
        if self.kind == "sqlite":
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            sentence = f"cannot make the state directory {self.directory}: {error.strerror or error}"
            raise StorageFailed("STATE", sentence) from error

    def side(self, suffix: str) -> Path:
        """Returns the file or directory beside the ledger with a suffix, such as ``.highwater``.

        Raises:
            LedgerError: code STATE if the ledger is on a server and no state directory was named.
        """
        return Path(f"{self._beside()}{suffix}")

    def _beside(self) -> Path:
        if self.beside is None:
            raise LedgerError(
                "STATE",
                f"the signer of {self.shown} keeps its own record outside the database; name its state directory "
                "(--state DIR, or ledger_state in the run file)",
            )
        return self.beside


def _file(path: Path, state: str | os.PathLike[str] | None) -> Place:
    if state is not None:
        raise LedgerError("STATE", f"the files of {path} lie beside it; only a ledger on a server takes a state directory")
    return Place("sqlite", str(path), "", path, path.stem, str(path))


def _sqlite_path(url: str) -> Path:
    path = url.removeprefix("sqlite://")
    if not path.startswith("/") or path == "/" or set("?#") & set(path):
        raise LedgerError("URL", f"{url!r} names no file; write sqlite:///relative.db or sqlite:////absolute.db")
    return Path(path[1:])


def _server(url: str, state: str | os.PathLike[str] | None) -> Place:
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
    """As libpq reads it: percent-encoded, and a plus sign is a plus sign."""
    return base + ("?" + "&".join(f"{key}={value}" for key, value in pairs) if pairs else "")
