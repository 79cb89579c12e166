"""Reads a registry file, verified, and appends to one."""

import fcntl
import hashlib
import json
import os
import secrets
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, sign1
from attest.errors import AttestError, CborError, FileRefused, KeyRefused, RegistryRefused
from attest.files import atomic_write, read_limited
from attest.keys import check_public_key
from attest.keys.signers import Signer, as_signer
from attest.registry.entries import (
    MAX_SIZE,
    NO_ROOT,
    Action,
    Contributor,
    Create,
    Enrol,
    Entry,
    Grant,
    KeyStatement,
    Prove,
    Revoke,
    RevokeOwn,
    Rotate,
    SetClock,
    join,
    root_of,
    split,
    to_array,
)
from attest.registry.names import Names, names_of
from attest.registry.names import beside as names_beside
from attest.registry.replay import Registry, State, require_unlike
from attest.schema.plain import BACK_SECONDS, utc

_ROOM = 192 << 10
"""Bytes of actions that are put into one entry; readers take more, but an OpenSSH agent signs no more than 256 KiB."""


def open_registry(path: str | os.PathLike[str], owner_public_key: bytes, *, at: bytes | None = None) -> Registry:
    """Reads a registry file and verifies all of it.

    Guarantee: see `Registry`. A file that was cut off at the end of an entry is a registry too, an older one: whoever knows a
    later root asks `extends`. The gate asks for the root that the signed policy names, a run for the one that it began with.

    Args:
        owner_public_key: obtained from the owner by a trusted way.
        at: Root of the state wanted; None for the last one. The whole file is verified either way.

    Raises:
        RegistryRefused: Code FILE or SIZE; the code of what is wrong with an entry, which the sentence names; or REGISTRY_ROOT
            if the log has no state `at`.
    """
    data = _read(Path(path))
    if at is None:
        latest = _replay(State(), data, 0, owner_public_key)
        del data  # The names are as large again.
        return _view(latest, owner_public_key, path)
    wanted, last = read_states(data, owner_public_key, at, names=names_of(path), place=str(names_beside(path)))
    if wanted is None:
        raise RegistryRefused(
            "REGISTRY_ROOT",
            f"registry has the root {last.root().hex()} and does not extend {at.hex()}; it is another one, or it was"
            " cut back: get the latest from the owner",
        )
    return wanted


def read_states(
    data: bytes, owner_public_key: bytes, root: bytes, *, names: Names | None = None, place: str = "registry.names"
) -> tuple[Registry | None, Registry]:
    """Reads a registry from its bytes, and verifies all of it as `open_registry` does; returns the state with a root, None if
    the log never had it, and the last state.

    Args:
        root: of an earlier state that is wanted too.
        names: What opens the commitments; None where only these are known, as in an export.

    Raises:
        RegistryRefused: The code of what is wrong with an entry, which the sentence names.
    """
    state, earlier = State(), None
    for _ in _entries(state, data, 0, owner_public_key):
        if state.roots[-1] == root:
            earlier = state.view(owner_public_key, names, place)
    return earlier, earlier if earlier and state.roots[-1] == root else state.view(owner_public_key, names, place)


class RegistryWalk:
    """Goes through the states of a registry, from one to a later one; every entry is verified once."""

    def __init__(
        self, data: bytes, owner_public_key: bytes, *, names: Names | None = None, place: str = "registry.names"
    ) -> None:
        self._state, self._view = State(), (owner_public_key, names, place)
        self._entries = _entries(self._state, data, 0, owner_public_key)

    def to(self, root: bytes) -> Registry | None:
        """Goes on to the state with a root; returns None at the end if no state from here on has it. Raises RegistryRefused: as
        `open_registry`, for an entry on the way."""
        while not self._state.roots or self._state.roots[-1] != root:
            if next(self._entries, None) is None:
                return None
        return self._state.view(*self._view)


class RegistryPast:
    """Gives the states that a registry had at times in the past, in ascending order.

    Args:
        path: of the registry. owner_public_key: 32 raw bytes.

    Raises:
        RegistryRefused, FileRefused: as `open_registry`.
    """

    def __init__(self, path: str | os.PathLike[str], owner_public_key: bytes) -> None:
        data, state = _read(Path(path)), State()
        self._moments = deque((state.time, state.roots[-1]) for _ in _entries(state, data, 0, owner_public_key))
        self._walk = RegistryWalk(data, owner_public_key, names=names_of(path), place=str(names_beside(path)))
        self._now: Registry | None = None

    def at(self, time: int) -> Registry | None:
        """Returns the state behind the last entry of that time or before; None where there was none. Call it with times that
        ascend."""
        root = None
        while self._moments and self._moments[0][0] <= time:
            _, root = self._moments.popleft()
        if root is not None:
            self._now = self._walk.to(root)
        return self._now


class RegistryReader:
    """Reads a registry file again and again, and verifies only what is new."""

    def __init__(self, path: str | os.PathLike[str], owner_public_key: bytes) -> None:
        self.path = Path(path)
        self.owner_public_key = owner_public_key
        self._state = State()
        self._size = 0
        self._digest = hashlib.sha256().digest()

    def read(self) -> Registry:
        """Returns the registry as the file holds it now; a file that is refused leaves this reader as it was. Raises
        RegistryRefused: as `open_registry`."""
        data = _read(self.path)
        return self.adopt(data, self.advance(data))

    def advance(self, data: bytes) -> State:
        """Returns the state after all entries of `data`; goes on from what was read before if `data` begins with it."""
        if self._size and self.holds(data[: self._size]):
            return _replay(self._state.copy(), data, self._size, self.owner_public_key)
        return _replay(State(), data, 0, self.owner_public_key)

    def adopt(self, data: bytes, state: State) -> Registry:
        """Takes `data`, and the state that `advance` found in it, for what was read last."""
        self._state, self._size, self._digest = state, len(data), hashlib.sha256(data).digest()
        return _view(state, self.owner_public_key, self.path)

    def holds(self, data: bytes) -> bool:
        """Tells whether `data` is what was read last."""
        return hashlib.sha256(data).digest() == self._digest


class RegistryLog:
    """Appends to a registry as its owner.

    Guarantee: after `append` returns, the new entries are signed, follow the rules and are on disk, all of them; after an error
    or a crash, none is. The names beside the registry are on disk before entries that commit to them. Two writers never
    overwrite each other's entries: the later one is refused.
    """

    def __init__(self, path: str | os.PathLike[str], key: Signer | Ed25519PrivateKey) -> None:
        """Opens an existing registry to append to it as its owner. Raises RegistryRefused: above all SIG_BAD for another's key.
        """
        self.path = Path(path)
        self._signer = as_signer(key)
        self._reader = RegistryReader(path, self._signer.public_key)
        self._registry = self._reader.read()
        self._registry.require_names()
        self._names = names_of(path) or Names()

    @classmethod
    def create(cls, path: str | os.PathLike[str], key: Signer | Ed25519PrivateKey, *, owner: str, now: int) -> "RegistryLog":
        """Starts a registry in which nobody is enrolled yet. `owner`: identifier of the owner, who signs every entry under this
        name. Raises RegistryRefused: code EXISTS, or what is wrong with the arguments."""
        signer, entry = as_signer(key), Entry(0, NO_ROOT, now, (Create(secrets.token_bytes(16), owner),))
        payload = entry.to_cbor()
        message = sign1.sign(payload, signer, contributor=owner, typ=sign1.TYP_REGISTRY)
        State().accept(payload, message, signer.public_key)
        with _locked(Path(path)):
            if os.path.lexists(path):
                raise RegistryRefused("EXISTS", f"{os.fspath(path)!r} exists; add to it, or take another name")
            Names().write(names_beside(path))
            atomic_write(path, join([(payload, message)]))
        return cls(path, key)

    @property
    def registry(self) -> Registry:
        """Returns the registry as it stands."""
        return self._registry

    @property
    def names(self) -> Names:
        """Returns what opens the commitments of the registry."""
        return self._names

    def append(
        self, actions: Iterable[Action], *, now: int, progress: Callable[[int], None] | None = None, look_alikes: bool = False
    ) -> Registry:
        """Signs actions as one entry, or as several if they do not fit into one, and writes them.

        Every key enrolled goes through the whole of `check_public_key` here, about a millisecond each.

        Args:
            now: Seconds since 1970; up to 60 s before the last entry passes as its time.
            look_alikes: Whether a new name may look like an enrolled one, so that a person takes one for the other.

        Raises:
            RegistryRefused: What the rules forbid; LOOK_ALIKE; CLOCK; CONFLICT if the file changed since it was read.
        """
        wanted = list(actions)
        if not look_alikes:
            require_unlike(wanted, self._registry)
        return self._append(wanted, self._time(now), progress)

    def _append(self, wanted: list[Action], time: int, progress: Callable[[int], None] | None) -> Registry:
        """Signs actions as entries of one time, and writes them."""
        for number, action in enumerate(wanted, start=1):
            if isinstance(action, Enrol):
                _check_key(action)
            if progress is not None:
                progress(number)
        with _locked(self.path):
            before = _read(self.path)
            if not self._reader.holds(before):
                raise RegistryRefused("CONFLICT", f"{os.fspath(self.path)!r} changed since it was read; run the command again")
            committed, names = self._names.committed(wanted, self._registry.by_name)
            try:
                data = before + self._signed(committed, time)
                state = self._reader.advance(data)
            except RegistryRefused as error:
                raise RegistryRefused(error.code, names.told(error.sentence)) from error
            if missing := state.named(names, str(names_beside(self.path)))[1]:
                raise RegistryRefused("NAMES", f"nothing was written: {missing}")
            if names is not self._names:
                names.write(names_beside(self.path))
            atomic_write(self.path, data)
        self._registry, self._names = self._reader.adopt(data, state), names
        return self._registry

    def enrol(
        self,
        name: str,
        key: bytes,
        *,
        classes: Iterable[str],
        not_before: int,
        not_after: int,
        cap: int | None = None,
        principal: str | None = None,
        now: int,
        look_alikes: bool = False,
    ) -> Registry:
        """Enrols one key; arguments as in `Enrol` and `append`."""
        action = Enrol(name, key, not_before, not_after, sorted(set(classes)), cap, principal)
        return self.append([action], now=now, look_alikes=look_alikes)

    def prove(self, statement: KeyStatement, message: bytes, *, now: int) -> Registry:
        """Takes in a contributor's proof that it holds a key; arguments as in `Prove`."""
        return self.append([Prove(statement.to_cbor(), message)], now=now)

    def grant(self, name: str, *, classes: Iterable[str], cap: int | None, now: int) -> Registry:
        """Sets exactly what a contributor may attest; arguments as in `Grant`."""
        return self.append([Grant(name, sorted(set(classes)), cap)], now=now)

    def revoke(self, name: str, key: bytes | None = None, *, at: int, now: int) -> Registry:
        """Revokes keys; arguments as in `Revoke`, but `key` may be a key id of 8 bytes too."""
        return self.append([Revoke(name, self._raw_key(name, key), at)], now=now)

    def rotate(
        self,
        statement: KeyStatement,
        by_old: bytes,
        by_new: bytes,
        *,
        not_before: int,
        not_after: int,
        old_not_after: int,
        now: int,
    ) -> Registry:
        """Takes in a contributor's rotation; arguments as in `Rotate`."""
        action = Rotate(statement.to_cbor(), by_old, by_new, not_before, not_after, old_not_after)
        return self.append([action], now=now)

    def revoke_own(self, statement: KeyStatement, message: bytes, *, now: int) -> Registry:
        """Takes in a contributor's own revocation; arguments as in `RevokeOwn`."""
        return self.append([RevokeOwn(statement.to_cbor(), message)], now=now)

    def set_clock(self, reason: str, *, now: int) -> Registry:
        """Takes back times that a wrong clock put ahead, so that entries of today can follow; arguments as in `SetClock`.

        What was enrolled or revoked stays so, with the moments that those entries say.

        Raises:
            RegistryRefused: Code CLOCK_UNNEEDED if the last entry is not ahead of `now`; as `append`.
        """
        last = self._registry.time
        if now >= last - BACK_SECONDS:
            sentence = f"the clock reads {utc(now)} and the last entry is of {utc(last)}"
            raise RegistryRefused("CLOCK_UNNEEDED", f"{sentence}: entries can follow it as it is")
        return self._append([SetClock(last, reason)], now, None)

    def _raw_key(self, name: str, key: bytes | None) -> bytes | None:
        known = self._registry.find(name)
        if key is None or known is None:
            return key
        return next((record.raw for record in known.keys if key in (record.key_id, record.raw)), key.ljust(32, b"\x00"))

    def _time(self, now: int) -> int:
        last = self._registry.time
        if last - BACK_SECONDS <= now < last:
            return last
        if now < last:
            raise RegistryRefused(
                "CLOCK",
                f"clock reads {utc(now)}, {last - now} s before the last entry ({utc(last)}); set the clock right, or if it is"
                " and was wrong then, run 'dptrain registry set-clock'",
            )
        return now

    def _signed(self, actions: Sequence[Action], time: int) -> bytes:
        items, seq, root = [], len(self._registry.roots), self._registry.root()
        for part in _parts(actions):
            entry = Entry(seq, root, time, part)
            payload = entry.to_cbor()
            message = sign1.sign(payload, self._signer, contributor=self._registry.owner, typ=sign1.TYP_REGISTRY)
            items.append((payload, message))
            seq, root = seq + 1, root_of(payload)
        return join(items)


@dataclass(frozen=True, slots=True)
class Peek:
    """Shows what a registry file says; nobody has verified who signed it, and nothing takes it for a `Registry`."""

    registry_id: bytes
    owner: str
    contributors: tuple[Contributor, ...]
    entries: tuple[Entry, ...]
    roots: tuple[bytes, ...]


def peek(path: str | os.PathLike[str]) -> Peek:
    """Reads a registry file for display: its entries, the root after each, and what they amount to.

    Checks every rule but the owner's signatures.

    Raises:
        RegistryRefused: As `open_registry`.
    """
    state = State()
    entries = tuple(map(Entry.from_cbor, _entries(state, _read(Path(path)), 0, None)))
    by_name, _ = state.named(names_of(path), str(names_beside(path)))
    contributors = tuple(by_name[name] for name in sorted(by_name))
    return Peek(state.registry_id, state.owner, contributors, entries, tuple(state.roots))


def _entries(state: State, data: bytes, start: int, owner_key: bytes | None) -> Iterator[bytes]:
    """Takes a state through the entries of `data` from byte `start` on; yields the payload of each after it was taken in."""
    entries = split(data, start)
    while True:
        try:
            item = next(entries, None)
        except CborError as error:
            sentence = f"entry {len(state.roots)} of the registry cannot be read: {error.sentence}"
            raise RegistryRefused(error.code, sentence) from error
        if item is None:
            break
        state.accept(*item, owner_key)
        yield item[0]
    if not state.roots:
        raise RegistryRefused("SCHEMA", "the registry is empty; 'dptrain registry init' makes one")


def _replay(state: State, data: bytes, start: int, owner_key: bytes) -> State:
    for _ in _entries(state, data, start, owner_key):
        pass
    return state


def _view(state: State, owner_key: bytes, path: str | os.PathLike[str]) -> Registry:
    """Returns a state with the names beside the file it was read from."""
    return state.view(owner_key, names_of(path), str(names_beside(path)))


def _parts(actions: Sequence[Action]) -> Iterator[tuple[Action, ...]]:
    """Yields actions in as few entries as they fit into, in order."""
    part: list[Action] = []
    room = _ROOM
    for action in actions:
        size = len(cbor.encode(to_array(action)))
        if part and size > room:
            yield tuple(part)
            part, room = [], _ROOM
        part.append(action)
        room -= size
    yield tuple(part)


def _check_key(action: Enrol) -> None:
    try:
        check_public_key(action.key)
    except KeyRefused as error:
        raise RegistryRefused(error.code, f"contributor {ascii(action.name)[:80]}: {error.sentence}") from error


def _read(path: Path) -> bytes:
    try:
        return read_limited(path, MAX_SIZE, "contributor registry")
    except FileRefused as error:
        raise RegistryRefused(error.code, error.sentence) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one writer in at a time, by a lock on the directory: the file is replaced, and a lock file would be left over."""
    directory = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


SUFFIX: Final = ".registry"
"""Ends the name of such a file: `ledger.db.registry` beside a ledger, `.corpus.registry` beside a corpus."""

_MAX_SIZE: Final = 1 << 20


class RegistryMemory:
    """Remembers the largest state of each registry that was used for one ledger or one corpus, and where its file lay.

    Guarantee: after `keep` returned, `check` refuses every registry of the same id that lacks an entry of the one kept, or has
    another in its place, for as long as the file stays. The file is not signed: it holds against whoever can exchange the
    registry, and not against whoever can write beside the ledger or the corpus.

    Args:
        optional: Whether its place may be one that cannot be written, as a corpus on a disk that is read only.
    """

    def __init__(self, path: str | os.PathLike[str], what: str, *, optional: bool = False) -> None:
        self.path = Path(path)
        self._what = what
        self._optional = optional

    def check(self, registry: Registry) -> None:
        """Refuses a registry that does not extend the one that was kept. Raises RegistryRefused: code REGISTRY_OLDER, saying
        both sizes; FORMAT if the file is not one that `keep` wrote."""
        entry = self._known().get(registry.registry_id.hex())
        if entry is None:
            return
        entries, root, _ = entry
        if registry.extends(root) and len(registry.roots) >= entries:
            return
        found = len(registry.roots)
        how = "it was cut back" if found < entries else "it is another continuation of the same log"
        raise RegistryRefused(
            "REGISTRY_OLDER",
            f"the registry has {found} entries and the root {registry.root().hex()}; for {self._what} one with {entries}"
            f" entries and the root {root.hex()} was used before, which it does not extend: {how}. Get the latest from the"
            f" owner. If the owner did begin again from an older copy, remove {str(self.path)!r}",
        )

    def places(self) -> list[Path]:
        """Returns where the registries lay that were kept, as far as it was said; a file may have gone or changed since. Raises
        RegistryRefused: code FORMAT if the file is not one that `keep` wrote."""
        return [Path(place) for _, _, place in self._known().values() if place is not None]

    def keep(self, registry: Registry, place: Path | None = None) -> None:
        """Checks a registry and remembers it, durably; writes nothing if it is the one kept.

        Warns where an optional memory cannot be written.

        Raises:
            RegistryRefused: As `check`; code STORAGE if it cannot be written.
        """
        self.check(registry)
        known, name = self._known(), registry.registry_id.hex()
        before = known.get(name)
        where = (None if before is None else before[2]) if place is None else os.path.abspath(place)
        now = (len(registry.roots), registry.root(), where)
        if before == now:
            return
        rows = {key: _written(row) for key, row in (known | {name: now}).items()}
        try:
            atomic_write(self.path, json.dumps(rows, indent=2).encode() + b"\n")
        except OSError as error:
            sentence = f"cannot remember the registry in {str(self.path)!r}: {error.strerror or error}"
            if not self._optional:
                raise RegistryRefused("STORAGE", f"{sentence}; free space or mend the disk") from error
            warnings.warn(f"{sentence}, so an older copy of it would not be found out here", stacklevel=2)

    def _known(self) -> dict[str, "_Row"]:
        """Returns entries, root and place by registry id."""
        if not os.path.lexists(self.path):
            return {}
        try:
            rows: Any = json.loads(read_limited(self.path, _MAX_SIZE, "memory of registries"))
            return {name: _row(row) for name, row in rows.items()}
        except FileRefused as error:
            raise RegistryRefused(error.code, error.sentence) from error
        except (ValueError, TypeError, KeyError, AttributeError, AttestError) as error:
            sentence = f"{str(self.path)!r} does not say which registry was used: {error}; restore it, or remove it"
            raise RegistryRefused("FORMAT", sentence) from error


_Row = tuple[int, bytes, str | None]
"""Number of entries, root after the last of them, and the path of the file."""


def _row(row: Any) -> _Row:
    entries, root, place = row["entries"], bytes.fromhex(row["root"]), row.get("path")
    if type(entries) is not int or entries < 1 or len(root) != 32:
        raise ValueError("expected a number of entries and a root of 32 bytes")
    if place is not None and type(place) is not str:
        raise ValueError("expected a path")
    return entries, root, place


def _written(row: _Row) -> dict[str, Any]:
    entries, root, place = row
    return {"entries": entries, "root": root.hex()} | ({} if place is None else {"path": place})
