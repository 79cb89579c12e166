"""Names the place of a ledger and registers the stores that can lie there, each for the scheme of its URLs.

A ledger is named by a path, which is one of SQLite, or by a URL. `register_store` says which store keeps the ledgers of a
scheme; the two that come with this package are registered in `ledger.storage`. An installed package offers more of them in the
group `ENTRY_POINTS` of its entry points; its module is imported when a ledger of that scheme is first named.

The signer's own memory must not lie where it can be rolled back with the database. So it is no part of the URL, which is copied
from machine to machine: a ledger on a server takes a *state directory* beside it, on the machine that signs.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ledger.errors import LedgerError, StorageFailed

ENTRY_POINTS: Final = "dptrain.stores"
"""Group of the entry points of installed stores: the name is the scheme, the value a module that registers it."""

STATE_NAME: Final = "ledger"
"""Name of the files in a state directory: ``ledger.highwater``, ``ledger.withdrawals/``, ``ledger.key``."""

DEFAULT_SCHEMA: Final = "dptrain"
"""The schema of a ledger on PostgreSQL whose URL names none."""

_SQL_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_SECRET: Final = frozenset({"password", "sslpassword"})
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """One ledger's place.

    Attributes:
        kind: the scheme under which its store is registered.
        target: what the store opens: the path of a file, or the URI of a server. May hold a password; `shown` never does.
        schema: PostgreSQL schema of the ledger, empty elsewhere.
        beside: what the names of the files beside the ledger begin with; None for a server without a state directory.
        name: short name of the ledger.
        shown: how messages name it.
        has_password: whether the name itself holds one.
        file: the one file that holds the ledger; None on a server.
    """

    kind: str
    target: str = field(repr=False)
    schema: str
    beside: Path | None
    name: str
    shown: str
    has_password: bool = False
    file: Path | None = None

    @classmethod
    def of(cls, ledger: "str | os.PathLike[str] | Place", state: str | os.PathLike[str] | None = None) -> "Place":
        """Reads a ledger's name.

        Args:
            ledger: a path or a URL.
            state: state directory of a ledger on a server.

        Raises:
            LedgerError: code URL for a URL that names no ledger, STATE for a state directory where none belongs.
            StorageFailed: code DRIVER, an installed store offers the scheme and cannot be imported.
        """
        if isinstance(ledger, Place):
            return ledger
        url = _URL.match(ledger) if isinstance(ledger, str) else None
        if url is None:
            return _file("sqlite", Path(ledger), state)
        kind = _registered(url[1])
        if kind is None:
            raise LedgerError(
                "URL", f"{url[0]} is no place for a ledger; give a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
            )
        return kind.place(str(ledger), state)

    @property
    def directory(self) -> Path:
        """The directory of the files beside the ledger."""
        return self._beside().parent

    @property
    def key(self) -> Path:
        """Path of the ledger's private key, unless another one is named."""
        return self._beside().with_suffix(".key")

    @property
    def public(self) -> Path:
        """Path of the ledger's verifier key."""
        return self._beside().with_suffix(".pub")

    def from_directory(self, base: Path) -> str:
        """Returns a name of this ledger, which lies in one file, with a relative path taken from a directory."""
        path = base / self.target
        return str(path) if self.kind == "sqlite" else f"{self.kind}:///{path}"

    def make_state_directory(self) -> None:
        """Makes the state directory of a ledger on a server, for its owner alone; the directory of a file must be there."""
        if self.file is not None:
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            sentence = f"cannot make the state directory {self.directory}: {error.strerror or error}"
            raise StorageFailed("STATE", sentence) from error

    def side(self, suffix: str) -> Path:
        """Returns the file or directory beside the ledger with a suffix, such as ``.highwater``. Raises LedgerError: code STATE
        if the ledger is on a server and no state directory was named."""
        return Path(f"{self._beside()}{suffix}")

    def _beside(self) -> Path:
        if self.beside is None:
            raise LedgerError(
                "STATE",
                f"the signer of {self.shown} keeps its own record outside the database; name its state directory "
                "(--state DIR, or ledger_state in the run file)",
            )
        return self.beside


PlaceReader = Callable[[str, str | os.PathLike[str] | None], Place]
"""Reads a URL and a state directory; raises LedgerError, code URL or STATE."""


@dataclass(frozen=True, slots=True)
class StoreKind:
    """Names the store of a scheme.

    Attributes:
        scheme: what its URLs begin with.
        store: its class, or where that lies.
        place: reads its URLs.
        needs: what to do where it cannot be imported.
    """

    scheme: str
    store: type[Any] | str
    place: PlaceReader
    needs: str

    @property
    def named(self) -> str:
        """Module and name of the class, by which a module that runs again registers its store anew."""
        return self.store if isinstance(self.store, str) else f"{self.store.__module__}:{self.store.__qualname__}"

    def load(self) -> type[Any]:
        """Returns the class of the store, imported now if only its name was given. Raises StorageFailed: code DRIVER, something
        that it imports is not installed."""
        if not isinstance(self.store, str):
            return self.store
        module, _, name = self.store.partition(":")
        try:
            found: type[Any] = getattr(import_module(module), name)
        except ImportError as error:
            raise StorageFailed("DRIVER", self.needs.format(error=error)) from error
        return found


_KINDS: Final[dict[str, StoreKind]] = {}


def register_store(
    scheme: str,
    store: type[Any] | str,
    *,
    place: PlaceReader | None = None,
    aliases: Sequence[str] = (),
    needs: str = "the store of this ledger cannot be imported ({error}); install what it needs",
) -> None:
    """Registers the store of all ledgers whose URLs have a scheme: the one call that a new store takes.

    Args:
        scheme: what stands before ``://``, in lower case; it becomes `Place.kind`.
        store: a class that keeps the promise of `ledger.storage.store.Store`, or ``"package.module:Class"``, which is
            imported when the first such ledger is met. Hold it to the promise with `ledger.storage.checking.check_store`.
        place: reads a URL and a state directory; by default `file_place`: a ledger is one file, ``scheme:///PATH``.
        aliases: further schemes of the same ledgers.
        needs: what to say where an import fails, with ``{error}`` for why.

    Raises:
        LedgerError: code SCHEME, the scheme is malformed or has another store already.
    """
    kind = StoreKind(scheme, store, file_place if place is None else place, needs)
    for name in (scheme, *aliases):
        if not _SCHEME.fullmatch(name):
            raise LedgerError("SCHEME", f"{name!r} is no scheme of a URL; use [a-z][a-z0-9+.-]*")
        if _KINDS.get(name, kind).named != kind.named:
            raise LedgerError("SCHEME", f"{name}:// has the store {_KINDS[name].named} already; choose another scheme")
    for name in (scheme, *aliases):
        _KINDS[name] = kind


def store_of(place: Place) -> type[Any]:
    """Returns the class of the store that keeps the ledger at a place.

    Raises:
        LedgerError: code URL, no store is registered for its kind.
        StorageFailed: code DRIVER, it cannot be imported.
    """
    kind = _registered(place.kind)
    if kind is None:
        raise LedgerError("URL", f"no store is registered for {place.kind}:// in this process; import the module of the store")
    return kind.load()


def _registered(scheme: str) -> StoreKind | None:
    """Returns the store of a scheme, looking among the installed ones where none is registered."""
    if scheme not in _KINDS:
        for offered in entry_points(group=ENTRY_POINTS, name=scheme):
            try:
                offered.load()
            except ImportError as error:
                sentence = f"the store of {scheme}:// cannot be imported ({error}); install what it needs"
                raise StorageFailed("DRIVER", sentence) from error
    return _KINDS.get(scheme)


def file_place(url: str, state: str | os.PathLike[str] | None) -> Place:
    """Reads ``scheme:///PATH`` as the place of a ledger in one file; the files of its signer lie beside it. Raises LedgerError:
    code URL for one without a path, STATE for a state directory, which no file takes."""
    scheme, _, path = url.partition("://")
    if not path.startswith("/") or path == "/" or set("?#") & set(path):
        raise LedgerError("URL", f"{url!r} names no file; write {scheme}:///relative.db or {scheme}:////absolute.db")
    return _file(scheme, Path(path[1:]), state)


def server_place(url: str, state: str | os.PathLike[str] | None) -> Place:
    """Reads the URL of a ledger on PostgreSQL: libpq's own syntax, with one key more.

    That is ``schema``, the schema of that database which holds this one ledger (default `DEFAULT_SCHEMA`), as in
    ``postgresql://writer@db.example/privacy?sslmode=verify-full&schema=run7``.

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
    if len(schemas) > 1 or not _SQL_SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
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


def _file(kind: str, path: Path, state: str | os.PathLike[str] | None) -> Place:
    if state is not None:
        raise LedgerError("STATE", f"the files of {path} lie beside it; only a ledger on a server takes a state directory")
    shown = str(path) if kind == "sqlite" else f"{kind}:///{path}"
    return Place(kind, str(path), "", path, path.stem, shown, file=path)
