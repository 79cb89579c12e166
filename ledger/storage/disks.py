"""Looks at the files of a SQLite ledger: on which disk they lie, and whether they are still those that were opened.

SQLite's log needs memory that the processes using it share (sqlite.org/wal.html), and locks that work. Network file systems
give neither, and lose commits without a word.

A file that is deleted or renamed goes on being written by whoever has it open: every charge would be committed, and none found
again. So a writer remembers device and inode of the database, of its write-ahead log and of the log's index, which SQLite keeps
open as long as the writer lives (sqlite.org/howtocorrupt.html, 4), and asks before and after everything that it writes. A file
that was written in place keeps its inode: then size and times tell that something else wrote.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ledger.errors import LedgerReplaced, StorageFailed

NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "fuse.sshfs", "fuse.s3fs"})
"""File systems over a network, by the names that the kernel gives them."""

MOUNTS: Final = Path("/proc/self/mounts")


def is_there(path: Path) -> bool:
    """Tells whether something lies at a path; a disk that cannot tell has not said no. Raises StorageFailed: code IO."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageFailed("IO", f"cannot tell whether {path} is there: {error.strerror or error}; mend the disk") from error
    return True


def require_local(path: Path) -> None:
    """Refuses a place on a network file system; where the system does not tell, lets it pass. Raises StorageFailed: code
    NETWORK_DISK."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    kind = file_system(path.resolve(), lines)
    if kind in NETWORK:
        raise StorageFailed(
            "NETWORK_DISK", f"{path} is on a network file system ({kind}), which loses commits; use a local disk, or PostgreSQL"
        )


def file_system(path: Path, mounts: Iterable[str]) -> str | None:
    """Returns the kind of file system of the deepest mount point above an absolute path; later mounts hide earlier ones.

    Args:
        path: need not exist.
        mounts: lines as in ``/proc/self/mounts`` (fstab(5)): device, mount point with octal escapes, kind, and more.
    """
    found, depth = None, -1
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].encode().decode("unicode_escape"))
        if len(point.parts) >= depth and path.is_relative_to(point):
            found, depth = fields[2], len(point.parts)
    return found


DATABASE: Final = ""
LOG: Final = "-wal"
INDEX: Final = "-shm"
FILES: Final = (DATABASE, LOG, INDEX)
"""Suffixes of the files that SQLite holds open in this mode (sqlite.org/wal.html)."""

_NAMES: Final = {DATABASE: "the ledger", LOG: "its write-ahead log", INDEX: "the index of its write-ahead log"}


class OpenFiles:
    """The files of a database that one writer has open. `path`: the database; a first transaction has been committed, so that
    all three are there."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # a program may change its directory while the files stay open
        self._identity = {suffix: _identity(self._status(suffix)) for suffix in FILES}
        self._left: dict[str, tuple[int, ...]] = {}
        self.leave()

    def leave(self) -> None:
        """Remembers how the files are now, after this writer wrote them. Raises LedgerReplaced, StorageFailed: as `require`."""
        self.require()
        self._left = self._written()

    def require(self) -> None:
        """Checks that the files open are those under their names.

        Raises:
            LedgerReplaced: code UNLINKED for one that has no name any more, REPLACED for another file under its name.
            StorageFailed: code IO, the disk does not tell.
        """
        for suffix in FILES:
            if _identity(self._status(suffix)) != self._identity[suffix]:
                raise LedgerReplaced(
                    "REPLACED",
                    f"{self._path}{suffix} is another file than the one that this writer has open as {_NAMES[suffix]}",
                )

    def touched(self) -> bool:
        """Tells whether database or log were written, or given other times, since this writer left them.

        Raises:
            LedgerReplaced: code OVERWRITTEN, the log is shorter than it was left: what was committed last is gone from it.
            StorageFailed: as `require`.
        """
        now = self._written()
        if now[LOG][0] < self._left[LOG][0]:
            raise LedgerReplaced(
                "OVERWRITTEN", f"{self._path}{LOG} has {now[LOG][0]} bytes, this writer left {self._left[LOG][0]}"
            )
        return now != self._left

    def _written(self) -> dict[str, tuple[int, ...]]:
        """Sizes and times; of the log not that of its status, which SQLite changes for every reader that root opens."""
        database, log = self._status(DATABASE), self._status(LOG)
        return {
            DATABASE: (database.st_size, database.st_mtime_ns, database.st_ctime_ns),
            LOG: (log.st_size, log.st_mtime_ns),
        }

    def _status(self, suffix: str) -> os.stat_result:
        path = f"{self._path}{suffix}"
        try:
            return os.stat(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            sentence = f"{path} is gone: {_NAMES[suffix]} was deleted or renamed while this writer has it open"
            raise LedgerReplaced("UNLINKED", sentence) from error
        except OSError as error:
            sentence = f"cannot tell whether {path} is in its place: {error.strerror or error}; mend the disk"
            raise StorageFailed("IO", sentence) from error


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
