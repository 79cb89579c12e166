"""The files of a directory, digested in one pass each, in memory that does not grow with them; nothing but regular files."""

import hashlib
import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Final

from attest.schema import declared
from attest.schema.quick import Array, OneOf, Row, Text
from ledger.errors import ReleaseRefused
from ledger.leaves.kinds import SHA256, TEXT, UINT, Checked
from ledger.release.contents import FORMS, MAX_NAMES, TENSORS, Looker
from ledger.release.tensors import SUFFIX, Tensor, digest_tensors

CHUNK: Final = 1 << 20
"""Bytes that are read at a time."""

MAX_FILES: Final = 100_000
"""Files of one release."""

MAX_PATH: Final = 512
"""Bytes of a path inside a release."""

_RESERVED: Final = frozenset(("con", "prn", "aux", "nul", *(f"{device}{n}" for device in ("com", "lpt") for n in range(10))))
_FORBIDDEN: Final = frozenset('<>:"|?*\\')


@dataclass(frozen=True, slots=True)
class Digested(Checked):
    """A file as it lies there."""

    CDDL: ClassVar = "released-file"
    TELLS: ClassVar = ("path", " of {}")
    path: str = declared(1, Text(code="PATH"), "Its place in the directory, parts joined by `/`.")
    size: int = declared(2, UINT, "Bytes.")
    sha256: bytes = declared(3, SHA256, "SHA-256 of all of them.")
    tensors: tuple[Tensor, ...] | None = declared(
        4,
        Array(Row(Tensor, "MANIFEST"), code="MANIFEST", named="file-tensors"),
        "Of a `.safetensors` file its tensors, ascending by name; else null.",
        nil=True,
        rule="null exactly where the form is not `tensors`",
    )
    form: str = declared(
        5, OneOf(tuple(FORMS), "MANIFEST", "file-form"), "What it is by its bytes ([Forms of files](#forms-of-files))."
    )
    names: tuple[str, ...] = declared(
        6,
        Array(TEXT),
        "What it names: the shards of an index, the keys by which settings name code.",
        default=(),
        rule=f"at most {MAX_NAMES}",
    )


def check_path(path: object) -> str:
    """Accepts a path that means one file below a directory, the same one on every system.

    Raises:
        ReleaseRefused: code PATH.
    """
    if type(path) is not str or not path or not path.isprintable():
        raise ReleaseRefused("PATH", f"a path is printable text, got {path!a:.100}")
    if unicodedata.normalize("NFC", path) != path:
        raise ReleaseRefused("PATH", f"the path {path!a:.100} is not in Unicode's composed form; rename the file")
    if len(path.encode()) > MAX_PATH:
        raise ReleaseRefused("PATH", f"the path {path!a:.100} has more than {MAX_PATH} bytes; rename the file")
    for part in path.split("/"):
        plain = part not in ("", ".", "..") and not part.endswith((".", " ")) and _FORBIDDEN.isdisjoint(part)
        if not plain or part.partition(".")[0].casefold() in _RESERVED:
            raise ReleaseRefused("PATH", f"the path {path!a:.100} does not name one file on every system; rename the file")
    return path


def check_distinct(paths: Iterable[str]) -> None:
    """Refuses paths of which two are one file, or a file and a folder, where case does not count.

    Raises:
        ReleaseRefused: code CASE.
    """
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            spelled = folders.setdefault(folder.casefold(), folder)
            if spelled != folder:
                raise ReleaseRefused("CASE", f"the folders {spelled!a} and {folder!a} differ in case only; rename one")
        other = seen.setdefault(path.casefold(), path)
        if other != path:
            raise ReleaseRefused("CASE", f"{path!a} and {other!a} differ in case only; rename one")
    for folded, folder in folders.items():
        if folded in seen:
            raise ReleaseRefused("CASE", f"{seen[folded]!a} is a file, and {folder!a} a folder; rename one")


def listed(base: Path, left_out: Iterable[str] = ()) -> list[str]:
    """Returns the paths of all files of a directory in order, without following a link.

    Args:
        base: the directory.
        left_out: names directly in it that are not looked at.

    Raises:
        ReleaseRefused: code NOT_A_FILE for links, devices and the like; PATH and CASE as `check_path` and `check_distinct`;
            MISSING if there is no such directory; TOO_MANY.
    """
    if not base.is_dir():
        raise ReleaseRefused("MISSING", f"there is no directory {str(base)!a}; give the directory of a model")
    skipped, found, pending = frozenset(left_out), [], [""]
    while pending:
        folder = pending.pop()
        with os.scandir(base / folder) as children:
            for child in children:
                name = f"{folder}{child.name}"
                if name in skipped:
                    continue
                if child.is_dir(follow_symlinks=False):
                    pending.append(f"{name}/")
                elif child.is_file(follow_symlinks=False):
                    found.append(check_path(name))
                else:
                    raise ReleaseRefused(
                        "NOT_A_FILE", f"{name!a} is no regular file; a release has no links and no devices: put a copy there"
                    )
                if len(found) > MAX_FILES:
                    raise ReleaseRefused("TOO_MANY", f"a release has at most {MAX_FILES} files; give the model's own directory")
    check_distinct(found)
    return sorted(found)


def digested(base: Path, path: str) -> Digested:
    """Digests one file of a directory, and each tensor in it if it is a safetensors file, or finds its form; reads it once.

    Raises:
        ReleaseRefused: code UNREADABLE or NOT_A_FILE; SAFETENSORS if a file of that name is of another form.
    """
    with opened(base, path) as stream:
        whole = hashlib.sha256()
        size = 0
        looker = None if path.endswith(SUFFIX) else Looker(path)

        def read(count: int) -> bytes:
            nonlocal size
            data = stream.read(count)
            whole.update(data)
            size += len(data)
            if looker is not None:
                looker.take(data)
            return data

        tensors = digest_tensors(read, os.fstat(stream.fileno()).st_size, path) if looker is None else None
        _drain(read)
        form, names = (TENSORS, ()) if looker is None else looker.form()
        return Digested(path, size, whole.digest(), tensors, form, names)


@contextmanager
def opened(base: Path, path: str) -> Iterator[BinaryIO]:
    """Opens a regular file below a directory; no part of its path may be a link.

    Raises:
        ReleaseRefused: code UNREADABLE or NOT_A_FILE, or PATH as `check_path`.
    """
    *folders, name = check_path(path).split("/")
    held: list[int] = []
    try:
        held.append(os.open(base, os.O_RDONLY | os.O_DIRECTORY))
        for folder in folders:
            held.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held[-1]))
        # Not blocking, so that a pipe that was put there meanwhile is not waited for.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=held[-1])
        with open(descriptor, "rb", buffering=CHUNK) as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ReleaseRefused("NOT_A_FILE", f"{path!a} is no regular file")
            yield stream
    except OSError as error:
        raise ReleaseRefused("UNREADABLE", f"{path!a} cannot be read: {error.strerror or error}") from error
    finally:
        for descriptor in held:
            os.close(descriptor)


def _drain(read: Callable[[int], bytes]) -> None:
    while read(CHUNK):
        pass
