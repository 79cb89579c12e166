"""Digests the files of a release and the tensors in them, and names how a directory differs from a manifest.

Source: the safetensors format (huggingface/safetensors, README, "Format"): 8 bytes of header length, little-endian; a JSON
object of name to dtype, shape and data_offsets; the data, without holes.
"""

import hashlib
import json
import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

from attest.schema import declared
from attest.schema.quick import Array, OneOf, Row, Text
from ledger.audit.findings import Finding
from ledger.errors import LedgerError, ReleaseRefused
from ledger.leaves.kinds import SHA256, TEXT, UINT, Checked
from ledger.release.contents import FORMS, MAX_NAMES, TENSORS, Looker, unique_names

SUFFIX: Final = ".safetensors"
MAX_HEADER: Final = 16 << 20
"""Bytes of the JSON header. The reference implementation takes 100 000 000: a million empty tensors, which cost whoever merely
checks a release many seconds and a gigabyte."""

MAX_TENSORS: Final = 100_000
"""Tensors of one file; models of thousands of experts have some ten thousand, in many files."""

MAX_DIMENSIONS: Final = 64
"""Of one tensor, as in torch and numpy; the product of a million sizes would take hours."""

_CHUNK: Final = 1 << 20
_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64,
    "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor(Checked):
    """Describes a tensor of a file."""

    CDDL: ClassVar = "tensor"
    name: str = declared(1, Text(code="MANIFEST"), "Its name in the file.")
    dtype: str = declared(2, Text(code="MANIFEST"), "As the format spells it.")
    shape: tuple[int, ...] = declared(3, Array(UINT, code="MANIFEST"), "Sizes.")
    sha256: bytes = declared(4, SHA256, "SHA-256 of its bytes.")


def digest_tensors(read: Callable[[int], bytes], size: int, path: str) -> tuple[Tensor, ...]:
    """Digests every tensor of a file, in order of name.

    Guarantee: every byte of the data belongs to exactly one tensor, so that the tensors are all that a reader can load.

    Args:
        read: gives the next bytes of the file, at most as many as asked for, and none at its end.

    Raises:
        ReleaseRefused: code SAFETENSORS, the file is of another form.
    """
    length = int.from_bytes(_exactly(read, 8, path), "little")
    if length > min(MAX_HEADER, size - 8):
        expected = f"{MAX_HEADER} at most, and no more than the file has"
        raise _refused(path, f"its header claims {length} bytes, expected {expected}")
    entries = sorted(_entries(_exactly(read, length, path), path), key=lambda entry: (entry[3], entry[4]))
    found, at = [], 0
    for name, dtype, shape, start, end in entries:
        if start != at:
            raise _refused(path, f"tensor {name!a:.100} begins at {start}, the one before ended at {at}")
        if end < start or (end - start) * 8 != prod(shape) * _BITS[dtype]:
            raise _refused(path, f"tensor {name!a:.100} of {dtype} {list(shape)} does not take {end - start} bytes")
        found.append(Tensor(name, dtype, shape, _digest(read, end - start, path)))
        at = end
    if size != 8 + length + at:
        raise _refused(path, f"it has {size} bytes, its tensors end at {8 + length + at}")
    return tuple(sorted(found, key=lambda tensor: tensor.name))


def _entries(data: bytes, path: str) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    if data.count(b'"data_offsets"') > MAX_TENSORS:  # before it is parsed, which costs most
        raise _too_many(path, data.count(b'"data_offsets"'))
    try:
        header = json.loads(data.decode(), object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"its header is no JSON with distinct names ({error})") from error
    if type(header) is not dict:
        raise _refused(path, "its header is no JSON object")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise _too_many(path, len(header))
    return [_entry(name, value, path) for name, value in header.items()]


def _too_many(path: str, count: int) -> ReleaseRefused:
    return _refused(path, f"it has {count} tensors, expected {MAX_TENSORS} at most in one file: split it")


def _entry(name: str, value: Any, path: str) -> tuple[str, str, tuple[int, ...], int, int]:
    known = type(value) is dict and set(value) == {"dtype", "shape", "data_offsets"} and type(value["dtype"]) is str
    if not known or value["dtype"] not in _BITS:
        raise _refused(path, f"tensor {name!a:.100} is not described by a known dtype, shape and data_offsets")
    shape, offsets = value["shape"], value["data_offsets"]
    numbers = [*shape, *offsets] if type(shape) is list and type(offsets) is list and len(offsets) == 2 else [None]
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers) or len(shape) > MAX_DIMENSIONS:
        raise _refused(path, f"shape or offsets of tensor {name!a:.100} are no lists of sizes")
    if any("\ud800" <= char <= "\udfff" for char in name):
        raise _refused(path, f"the name of tensor {name!a:.100} is no text: it holds half a character (a lone surrogate)")
    return name, value["dtype"], tuple(shape), offsets[0], offsets[1]


def _digest(read: Callable[[int], bytes], count: int, path: str) -> bytes:
    digest = hashlib.sha256()
    while count:
        data = read(min(count, _CHUNK))
        if not data:
            raise _refused(path, "it ends inside a tensor")
        digest.update(data)
        count -= len(data)
    return digest.digest()


def _exactly(read: Callable[[int], bytes], count: int, path: str) -> bytes:
    parts = []
    while count:
        data = read(count)
        if not data:
            raise _refused(path, "it ends inside its header")
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


def _refused(path: str, why: str) -> ReleaseRefused:
    return ReleaseRefused("SAFETENSORS", f"{path!a} is no whole safetensors file: {why}; write it again")


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
    """Describes a file as it lies there."""

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
    """Accepts a path that means one file below a directory, the same one on every system. Raises ReleaseRefused: code PATH."""
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
    """Refuses paths of which two are one file, or a file and a folder, where case does not count. Raises ReleaseRefused: code
    CASE."""
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
    """Returns the paths of all files of a directory in order, without following a link. Raises ReleaseRefused: code NOT_A_FILE
    for links, devices and the like; PATH and CASE as `check_path` and `check_distinct`; MISSING if there is no such directory;
    TOO_MANY."""
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
                    sentence = f"{name!a} is no regular file; a release has no links and no devices: put a copy there"
                    raise ReleaseRefused("NOT_A_FILE", sentence)
                if len(found) > MAX_FILES:
                    raise ReleaseRefused("TOO_MANY", f"a release has at most {MAX_FILES} files; give the model's own directory")
    check_distinct(found)
    return sorted(found)


def digested(base: Path, path: str) -> Digested:
    """Digests one file of a directory, and each tensor in it if it is a safetensors file, or finds its form; reads it once.
    Raises ReleaseRefused: code UNREADABLE or NOT_A_FILE; SAFETENSORS if a file of that name is of another form."""
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
        while read(CHUNK):  # what stands behind the tensors, or all of another file
            pass
        form, names = (TENSORS, ()) if looker is None else looker.form()
        return Digested(path, size, whole.digest(), tensors, form, names)


@contextmanager
def opened(base: Path, path: str) -> Iterator[BinaryIO]:
    """Opens a regular file below a directory; no part of its path may be a link. Raises ReleaseRefused: code UNREADABLE or
    NOT_A_FILE, or PATH as `check_path`."""
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


MAX_NAMED: Final = 50
"""Files that are missing, extra or changed are named up to this many of each."""


def differences(directory: Path, files: Sequence[Digested], left_out: Sequence[str]) -> Iterator[Finding]:
    """Names every file that is missing, not in the manifest, or another than it says. Raises ReleaseRefused: the directory has
    what no release can have (`ledger.release.files.listed`)."""
    found = set(listed(directory, left_out))
    expected = {file.path: file for file in files}
    for path in islice(sorted(expected.keys() - found), MAX_NAMED):
        yield Finding("MISSING_FILE", path, "the manifest has this file, the directory has not")
    for path in islice(sorted(found - expected.keys()), MAX_NAMED):
        yield Finding("UNKNOWN_FILE", path, "this file is not in the manifest: it was not released")
    pairs = ((path, _difference(directory, expected[path])) for path in sorted(expected.keys() & found))
    wrong = (Finding("CHANGED_FILE", path, problem) for path, problem in pairs if problem is not None)
    yield from islice(wrong, MAX_NAMED)


def _difference(directory: Path, expected: Digested) -> str | None:
    try:
        found = digested(directory, expected.path)
    except LedgerError as error:
        return error.sentence
    if found == expected:
        return None
    if (found.size, found.sha256) == (expected.size, expected.sha256):
        if (found.form, found.names) != (expected.form, expected.names):
            named = [f"{file.form} that names {', '.join(file.names) or 'nothing'}" for file in (expected, found)]
            return f"the manifest says {named[0]:.200}, its bytes are {named[1]:.200}"
        return "the manifest says other tensors of this very file"
    told = (
        f"it has {found.size} bytes with SHA-256 {found.sha256.hex()}, the manifest says {expected.size} bytes with "
        f"{expected.sha256.hex()}"
    )
    if expected.tensors is None or found.tensors is None:
        return told
    return f"{told}; {_tensors_that_differ(found.tensors, expected.tensors)}"


def _tensors_that_differ(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """Names what is different about the tensors of a file, each with what it is."""
    here, there = ({tensor.name: tensor for tensor in tensors} for tensors in (found, expected))
    told = []
    for name in sorted(here.keys() | there.keys()):
        if name not in here or name not in there:
            told.append(f"{name!a:.100} {'is missing' if name in there else 'is new'}")
        elif (here[name].dtype, here[name].shape) != (there[name].dtype, there[name].shape):
            one, other = (f"{tensor.dtype} {list(tensor.shape)}" for tensor in (here[name], there[name]))
            told.append(f"{name!a:.100} is {one} and not {other}")
        elif here[name] != there[name]:
            told.append(f"{name!a:.100} has other values")
    if not told:
        return "its tensors are the same, its header is another or they stand in another order"
    return f"tensors that differ: {', '.join(told[:5])}{' ...' if told[5:] else ''}"
