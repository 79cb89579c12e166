"""Keeps beside a budget log, outside the database, how far it has come, and gives its writers on one machine their turns.

A database can be put back from a copy, whole and valid, and a budget with it. The mark is one record of a fixed size that is
overwritten in place after every commit and synced: it says the size and the root that the log has reached, and which database
it lies in. A log that is shorter, has another history, or lies in another file than the mark says is refused. What a database
committed right before its process was killed may be missing from the mark; that makes it weaker for a moment, never wrong. Who
puts the mark back together with the database goes unseen here, and is found by whoever remembers a checkpoint.

The lock on the file of the mark is the turn: the kernel drops it with the process that held it.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledger.errors import LedgerBehind, LedgerBusy, LedgerCorrupt, LedgerError, StorageFailed
from ledger.storage.place import Place

TURN_SECONDS: Final = 10
"""Longest wait for a turn."""

_SIZE: Final = 512
"""Bytes of the record: no more than a disk writes whole."""

_PAUSE: Final = 0.0001
"""Seconds between two looks whether the turn is free: less than a turn takes, so that those who wait come in between."""

_RECORD: Final = re.compile(rb"dptrain\.mark/1 ([1-9][0-9]{0,18}) ([0-9a-f]{64}) ([!-~]{1,250}) ([0-9a-f]{64})\n +\n")


@dataclass(frozen=True, slots=True)
class Reached:
    """Says how far a log has come: number of leaves, root over them, and the database that they lie in."""

    size: int
    root: bytes
    identity: str

    def to_bytes(self) -> bytes:
        """Returns the record."""
        said = f"dptrain.mark/1 {self.size} {self.root.hex()} {self.identity}"
        line = f"{said} {hashlib.sha256(said.encode()).hexdigest()}\n".encode()
        return line.ljust(_SIZE - 1) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, shown: str) -> "Reached":
        """Reads the record. Raises LedgerCorrupt: code MARK, it is none, or damaged."""
        found = _RECORD.fullmatch(data)
        if found is None or len(data) != _SIZE or hashlib.sha256(data[: found.start(4) - 1]).hexdigest().encode() != found[4]:
            raise LedgerCorrupt("MARK", f"{shown} is no record of a budget log, or damaged; {_ADOPT}")
        return cls(int(found[1]), bytes.fromhex(found[2].decode()), found[3].decode())


_ADOPT: Final = "adopt the log again under the newest checkpoint that its signer keeps (ledger.budget.adopt)"


def path_of(place: Place) -> Path:
    """Returns where the mark of a log lies: beside it, or in its state directory."""
    return place.side(".mark")


class Held:
    """Holds the turn, and what the mark said when it began; valid inside `turn` and `taken_over`."""

    def __init__(self, descriptor: int, reached: Reached | None, shown: str) -> None:
        self._descriptor, self.reached, self._shown = descriptor, reached, shown

    def require(self, identity: str, size: int) -> Reached:
        """Checks that a database is the one that the mark speaks of, and has all leaves that it had.

        Raises:
            LedgerBehind: code COPIED, it is another file or table; BEHIND, it has fewer leaves.
        """
        reached = self.reached
        assert reached is not None
        if reached.identity != identity:
            sentence = f"{self._shown} speaks of the database {reached.identity}, this one is {identity}: a copy"
            raise LedgerBehind("COPIED", f"{sentence}, and two copies would pay twice; put back the one, or {_ADOPT}")
        if reached.size > size:
            sentence = f"{self._shown} says {reached.size} leaves, the log has {size}: an old copy, or its tail was lost"
            raise LedgerBehind("BEHIND", f"{sentence}; put back the one with all of them")
        return reached

    def write(self, reached: Reached) -> None:
        """Writes what the log has reached, and syncs it. Raises StorageFailed: code MARK, the disk refused."""
        try:
            if os.pwrite(self._descriptor, reached.to_bytes(), 0) != _SIZE:
                raise OSError(None, "only a part was written")
            os.fdatasync(self._descriptor)
        except OSError as error:
            sentence = f"cannot write {self._shown}: {error.strerror or error}; what was reserved counts"
            raise StorageFailed("MARK", f"{sentence}; mend the disk, then open the log again") from error
        self.reached = reached


@contextmanager
def turn(place: Place) -> Iterator[Held]:
    """Waits for the turn, and holds it until the end.

    Raises:
        LedgerBehind: code MARK_MISSING, there is no mark, so a log that was put back could not be told.
        LedgerCorrupt: code MARK. LedgerBusy: code LOCKED, others did not end their turns. StorageFailed: code MARK.
    """
    path = path_of(place)
    with _locked(path, os.O_RDWR) as descriptor:
        yield Held(descriptor, _record(descriptor, path), str(path))


@contextmanager
def taken_over(place: Place) -> Iterator[Held]:
    """As `turn`, where there may be no mark yet, or a damaged one, which then says nothing."""
    path = path_of(place)
    with _locked(path, os.O_RDWR | os.O_CREAT) as descriptor:
        try:
            found = _record(descriptor, path)
        except LedgerCorrupt:
            found = None
        yield Held(descriptor, found, str(path))


def read(place: Place) -> Reached:
    """Reads the mark without a turn; raises as `turn`."""
    path = path_of(place)
    with _opened(path, os.O_RDONLY) as descriptor:
        return _record(descriptor, path)


def _record(descriptor: int, path: Path) -> Reached:
    try:
        data = os.pread(descriptor, _SIZE + 1, 0)
    except OSError as error:
        raise StorageFailed("MARK", f"cannot read {path}: {error.strerror or error}; mend the disk") from error
    return Reached.from_bytes(data, str(path))


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except FileNotFoundError as error:
        sentence = f"{path} is gone, so a log that was put back could not be told"
        raise LedgerBehind("MARK_MISSING", f"{sentence}; restore it, or {_ADOPT}") from error
    except OSError as error:
        raise StorageFailed("MARK", f"cannot open {path}: {error.strerror or error}; mend the disk or its rights") from error
    try:
        yield descriptor
    finally:
        with suppress(OSError):  # what counts was synced, and says whether it failed
            os.close(descriptor)


@contextmanager
def _locked(path: Path, flags: int) -> Iterator[int]:
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        with _opened(path, flags) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            except OSError as error:
                raise StorageFailed("MARK", f"cannot lock {path}: {error.strerror or error}; mend the disk") from error
            else:
                try:
                    yield descriptor
                finally:
                    # A process forked meanwhile has the descriptor too. Where this fails, closing gives up the lock.
                    with suppress(OSError):
                        fcntl.flock(descriptor, fcntl.LOCK_UN)
                return
        if time.monotonic() > deadline:
            raise LedgerBusy("LOCKED", f"others held {path} for {TURN_SECONDS} s; end what hangs, and ask again")
        time.sleep(_PAUSE)


@contextmanager
def only_one(path: Path) -> Iterator[bool]:
    """Tells whether nobody else on this machine is inside with the same file, and keeps others out until the end."""
    try:
        with open(path, "ab") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
    except OSError as error:
        raise LedgerError("LOCK", f"cannot lock {path}: {error.strerror or error}; mend the disk or its rights") from error
