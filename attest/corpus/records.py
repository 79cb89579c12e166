"""Reads data on disk as contributions: the lines of a JSONL file, a single file, or the files of a folder.

Signer and gate read through this module, so both see the same bytes. Symbolic links are never followed, and names that begin
with a dot are never data.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, NamedTuple

from attest.errors import CorpusRefused

JSONL = ".jsonl"
SUFFIX = ".attest"
"""Attestations of data `X` lie in `X.attest`."""

MAX_RECORD = 256 << 20
"""Bytes of one JSONL record."""

_CHUNK = 1 << 20
_BLANK = b" \t\r\n"
_NEWLINE = 0x0A


class Locator(NamedTuple):
    """Says where a contribution's content lies: in which file below the corpus (forward slashes), from which byte, how long."""

    source: str
    offset: int
    length: int


class Record(NamedTuple):
    """A contribution's place and the SHA-256 of the bytes found there."""

    locator: Locator
    content_hash: bytes


def jsonl_records(root: Path, source: str, wanted: Callable[[], bool] | None = None) -> Iterator[Record]:
    """Yields the non-empty lines of a JSONL file, without their newlines, hashed while reading; a megabyte is held at a time.

    A line of blanks, tabs and carriage returns alone is empty. A carriage return before the newline belongs to the content: the
    bytes that were signed are the bytes that are read.

    Args:
        wanted: Asked before each line whether it is hashed; a record that is not has no bytes in the place of its hash.

    Raises:
        CorpusRefused: Code SIZE for a line above `MAX_RECORD`.
    """
    with open_beneath(root, source) as stream:
        start = 0
        while piece := stream.readline(_CHUNK):
            if piece[-1] == _NEWLINE and 1 < len(piece) <= MAX_RECORD + 1 and piece[0] not in _BLANK:
                # One whole line, as nearly all are.
                length = len(piece) - 1
                hashed = b"" if wanted is not None and not wanted() else hashlib.sha256(piece[:-1]).digest()
                yield Record(Locator(source, start, length), hashed)
                start += length + 1
                continue
            digest, length, empty = hashlib.sha256(), 0, True
            skipped = wanted is not None and not wanted()
            while piece:
                ended = piece.endswith(b"\n")
                content = piece[:-1] if ended else piece
                if not skipped:
                    digest.update(content)
                length += len(content)
                empty = empty and not content.strip(_BLANK)
                if length > MAX_RECORD:
                    raise CorpusRefused("SIZE", f"line at byte {start} is longer than {MAX_RECORD} bytes; split the record")
                piece = b"" if ended else stream.readline(_CHUNK)
            if not empty:
                yield Record(Locator(source, start, length), b"" if skipped else digest.digest())
            start += length + ended


def file_record(root: Path, source: str) -> Record:
    """Returns a whole file as one contribution, hashed while reading."""
    digest, length = hashlib.sha256(), 0
    with open_beneath(root, source) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            length += len(chunk)
    return Record(Locator(source, 0, length), digest.digest())


def folder_sources(root: Path, source: str) -> Iterator[str]:
    """Yields every regular file below a folder, as paths relative to `root`, sorted by code point.

    Only the names in the folders on the way to the current file are held. A folder within that cannot be listed comes as if it
    were a file, which nobody can read.

    Raises:
        CorpusRefused: Code CONTENT_MISSING if the folder itself cannot be listed.
    """
    waiting = [(source, iter(_listed(root, source)))]
    while waiting:
        folder, names = waiting[-1]
        name = next(names, None)
        if name is None:
            waiting.pop()
        elif name.endswith("/"):
            within = f"{folder}/{name[:-1]}"
            try:
                waiting.append((within, iter(_listed(root, within))))
            except CorpusRefused:
                yield within  # Whoever reads it is told; it hides no other file.
        else:
            yield f"{folder}/{name}"


def _listed(root: Path, folder: str) -> list[str]:
    """Returns the sorted names of the files and folders in a folder; a folder's name ends with a slash."""
    names = []
    try:
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name + "/")
                elif entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
    except OSError as error:
        raise CorpusRefused("CONTENT_MISSING", f"cannot list {folder!r}: {error.strerror or error}") from error
    names.sort()
    return names


def records_of(root: Path, source: str) -> Iterator[Record]:
    """Yields the contributions of one piece of data, by its kind. Raises CorpusRefused: code CONTENT_MISSING if it is neither a
    regular file nor a folder, or cannot be read."""
    kind = file_kind(root, source)
    if kind == "folder":
        for name in folder_sources(root, source):
            yield file_record(root, name)
    elif kind != "file":
        raise CorpusRefused("CONTENT_MISSING", f"{source!r} is neither a regular file nor a folder")
    elif source.endswith(JSONL):
        yield from jsonl_records(root, source)
    else:
        yield file_record(root, source)


def file_kind(root: Path, source: str) -> Literal["file", "folder", "other", "missing"]:
    """Returns what lies at a path; a symbolic link is `other`."""
    try:
        mode = os.lstat(os.path.join(root, source)).st_mode
    except OSError:
        return "missing"
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def open_beneath(root: Path, source: str) -> BinaryIO:
    """Opens a regular file below `root` without leaving it.

    Guarantee: every component is opened relative to its parent and without following a symbolic link, so the file read lies
    inside `root` even while others rename what is there.

    Raises:
        CorpusRefused: Code CONTENT_MISSING.
    """
    parts = PurePosixPath(source).parts
    if not parts or "\x00" in source or parts[0] == "/" or ".." in parts:
        raise CorpusRefused("CONTENT_MISSING", f"{ascii(source)[:120]} is not a path inside the corpus")
    nofollow = getattr(os, "O_NOFOLLOW", 0)
    # O_NONBLOCK: opening a named pipe must not hang before its kind is known.
    leaf_flags = os.O_RDONLY | nofollow | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if os.open not in os.supports_dir_fd:
            descriptor = os.open(root.joinpath(*parts), leaf_flags)
        else:
            parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for part in parts[:-1]:
                    child = os.open(part, os.O_RDONLY | os.O_DIRECTORY | nofollow, dir_fd=parent)
                    os.close(parent)
                    parent = child
                descriptor = os.open(parts[-1], leaf_flags, dir_fd=parent)
            finally:
                os.close(parent)
    except OSError as error:
        raise CorpusRefused("CONTENT_MISSING", f"cannot read {source!r}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorpusRefused("CONTENT_MISSING", f"{source!r} is not a regular file")
    return os.fdopen(descriptor, "rb")
