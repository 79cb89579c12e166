"""The tensors of a safetensors file, one digest each, without holding any: the file is read once from front to back.

Source: the safetensors format (huggingface/safetensors, README, "Format"): 8 bytes of header length, little-endian; a JSON
object of name to dtype, shape and data_offsets; the data, without holes.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Final

from attest.schema import declared
from attest.schema.quick import Array, Text
from ledger.errors import ReleaseRefused
from ledger.leaves.kinds import SHA256, UINT, Checked

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
    """A tensor of a file."""

    CDDL: ClassVar = "tensor"
    name: str = declared(1, Text(code="MANIFEST"), "Its name in the file.")
    dtype: str = declared(2, Text(code="MANIFEST"), "As the format spells it.")
    shape: tuple[int, ...] = declared(3, Array(UINT, code="MANIFEST"), "Sizes.")
    sha256: bytes = declared(4, SHA256, "SHA-256 of its bytes.")


def digest_tensors(read: Callable[[int], bytes], size: int, path: str) -> tuple[Tensor, ...]:
    """Digests every tensor of a file.

    Guarantee: every byte of the data belongs to exactly one tensor, so that the tensors are all that a reader can load.

    Args:
        read: gives the next bytes of the file, at most as many as asked for, and none at its end.
        size: bytes of the file.
        path: for messages.

    Returns:
        The tensors in order of name.

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
        header = json.loads(data.decode(), object_pairs_hook=_unique)
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


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
