"""Writes a folder whole or not at all: aside, flushed to the disk, and then under its name; alone, or from every rank.

A crash leaves the folder that had the name before. Files are for their owner alone, whatever the umask.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from attest.files import make_private_directory, sync_directory
from dptrain.parallel.ranks import Ranks
from dptrain.record.pin import folder_name
from ledger.errors import StorageFailed


class Whole:
    """Writes the folder of a step into a directory, which is made for its owner alone where there is none.

    Args:
        directory: where folders lie, one a step. what: what it holds, in words.
    """

    def __init__(self, directory: Path, step: int, what: str) -> None:
        self.final = directory / folder_name(step)
        self.aside = directory / f".{self.final.name}.{os.getpid()}"
        self._what = what

    def begin(self) -> None:
        """Makes the folder aside, and removes those that processes left there when they were killed.

        Raises:
            StorageFailed: the disk refuses.
        """
        directory = self.final.parent
        try:
            if not directory.is_dir():
                directory.parent.mkdir(parents=True, exist_ok=True)
                make_private_directory(directory)
            for left in directory.glob(".step-*"):
                shutil.rmtree(left, ignore_errors=True)
            make_private_directory(self.aside)
        except OSError as error:
            raise not_written(self._what, self.final, error) from error

    @contextmanager
    def named(self) -> Iterator[Path]:
        """Yields the folder aside, and gives it its name once all is written; removes it where something fails.

        Raises:
            StorageFailed: the disk refuses what the caller writes, or the name.
        """
        try:
            yield self.aside
            sync_directory(self.aside)
            if self.final.exists():
                shutil.rmtree(self.final)
            os.rename(self.aside, self.final)
            sync_directory(self.final.parent)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            raise not_written(self._what, self.final, error) from error
        finally:
            shutil.rmtree(self.aside, ignore_errors=True)

    def together(self, ranks: Ranks, write: Callable[[Path], object], end: Callable[[Path], bytes]) -> bytes:
        """Has every rank write what it has, and the first one the rest; every rank calls it.

        Args:
            write: writes into the folder aside, at every rank. end: at the first, once all have written.

        Returns:
            What ``end`` returned.

        Raises:
            StorageFailed: a disk refuses, at any rank.
        """
        ranks.all(b"", f"{self._what} is written")

        def begun() -> bytes:
            self.begin()
            return os.fsencode(self.aside)

        self.aside = Path(os.fsdecode(ranks.first(begun)))
        failed = ""
        try:
            write(self.aside)
        except (OSError, RuntimeError) as error:
            failed = str(error) or type(error).__name__
        first = next(filter(None, ranks.texts(failed)), None)

        def ended() -> bytes:
            with self.named() as aside:
                if first is not None:
                    raise OSError(first)
                return end(aside)

        return ranks.first(ended)


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Makes a file for its owner alone, whatever the umask, and flushes it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        yield file
        file.flush()
        os.fsync(descriptor)


def not_written(what: str, final: Path, error: Exception) -> StorageFailed:
    """Returns the error of a folder that the disk refused."""
    sentence = f"could not write {what} {final} ({error}); free space and resume from the previous checkpoint"
    return StorageFailed("STORAGE", sentence)
