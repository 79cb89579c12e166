"""Writes files all or not at all, and reads them without following a symbolic link."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from attest.errors import FileRefused


@contextlib.contextmanager
def atomic_writer(path: str | os.PathLike[str], mode: int = 0o644) -> Iterator[BinaryIO]:
    """Opens a file that appears under `path`, in place of an existing one, only once it is complete and on disk.

    Guarantee: after a crash at any instant `path` holds either its old content or the whole new one. The data is written to a
    temporary file beside it, synced, renamed over it, and the directory is synced.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_directory(target.parent)


def atomic_write(path: str | os.PathLike[str], data: bytes, mode: int = 0o644) -> None:
    """Writes a whole file as `atomic_writer` does."""
    with atomic_writer(path, mode) as stream:
        stream.write(data)


def make_private_directory(path: str | os.PathLike[str]) -> None:
    """Makes a directory that its owner alone may enter, whatever the umask; its parent must be there, and it must not."""
    os.mkdir(path, 0o700)
    os.chmod(path, 0o700)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Makes a rename or a new name in a directory durable, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: str | os.PathLike[str]) -> None:
    """Makes a directory durable with all that is below it, where the system can.

    After all of it was written, so that the system writes many small files back together; the cost is near a quarter of a
    millisecond a file.
    """

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(path, topdown=False, onerror=refuse):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(folder)


def read_limited(path: str | os.PathLike[str], limit: int, what: str) -> bytes:
    """Reads a regular file of at most `limit` bytes."""
    shown = os.fspath(path)
    try:
        if not os.path.isfile(path):
            raise FileRefused("FILE", f"no {what} at {shown!r}; check the path")
        with open(path, "rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise FileRefused("FILE", f"cannot read the {what} {shown!r}: {error.strerror or error}") from error
    if len(data) > limit:
        raise FileRefused("SIZE", f"the {what} {shown!r} is longer than {limit} bytes; is it the right file?")
    return data


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes | None:
    """Reads a regular file that others may have put there: no link is followed, no pipe waited for, no memory asked for that
    the file does not fill. Returns a byte more than `limit` where it is longer, None where it is no regular file.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        return stream.read(min(limit, found.st_size) + 1) if stat.S_ISREG(found.st_mode) else None
