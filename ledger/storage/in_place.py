"""Whether the SQLite files that a writer has open are still those under the ledger's name, as it left them.

A file that is deleted or renamed goes on being written by whoever has it open: every charge would be committed, and none found
again. So a writer remembers device and inode of the database, of its write-ahead log and of the log's index, which SQLite keeps
open as long as the writer lives (sqlite.org/howtocorrupt.html, 4), and asks before and after everything that it writes. A file
that was written in place keeps its inode: then size and times tell that something else wrote.
"""

import os
from pathlib import Path
from typing import Final

from ledger.errors import LedgerReplaced, StorageFailed

DATABASE: Final = ""
LOG: Final = "-wal"
INDEX: Final = "-shm"
FILES: Final = (DATABASE, LOG, INDEX)
"""What SQLite holds open in this mode (sqlite.org/wal.html), by what follows the ledger's name."""

_NAMES: Final = {DATABASE: "the ledger", LOG: "its write-ahead log", INDEX: "the index of its write-ahead log"}


class OpenFiles:
    """The files of a database that one writer has open.

    Args:
        path: the database; a first transaction has been committed, so that all three are there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # a program may change its directory while the files stay open
        self._identity = {suffix: _identity(self._status(suffix)) for suffix in FILES}
        self._left: dict[str, tuple[int, ...]] = {}
        self.leave()

    def leave(self) -> None:
        """Remembers how the files are now, after this writer wrote them.

        Raises:
            LedgerReplaced, StorageFailed: as `require`.
        """
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
