"""A signed document in one file: the CBOR array `[payload, sign1]`, both byte strings."""

import os

from attest import cbor, sign1
from attest.errors import CborError, FileRefused
from attest.files import atomic_write, read_limited

__all__ = ["MAX_PAYLOAD", "atomic_write", "read", "split", "write"]

MAX_PAYLOAD = 1 << 20
"""Bytes of a payload; the largest signed document is a policy with long depth tables."""

_MAX_FILE = MAX_PAYLOAD + sign1.MAX_SIZE + 16


def write(path: str | os.PathLike[str], payload: bytes, message: bytes) -> None:
    """Writes a payload and its signature, all or not at all."""
    data = cbor.encode([payload, message])
    if len(data) > _MAX_FILE:
        raise FileRefused("SIZE", f"signed document has {len(data)} bytes, expected at most {_MAX_FILE}")
    atomic_write(path, data)


def read(path: str | os.PathLike[str], *, what: str = "signed document") -> tuple[bytes, bytes]:
    """Reads payload and signature; neither is verified. Raises FileRefused: code FILE, SIZE or FORMAT."""
    return split(read_limited(path, _MAX_FILE, what), f"{os.fspath(path)!r}", max_size=_MAX_FILE)


def split(data: bytes, what: str, *, max_size: int) -> tuple[bytes, bytes]:
    """Cuts the bytes of a signed file into payload and signature; neither is verified. Raises FileRefused: code FORMAT."""
    try:
        value = cbor.decode(data, max_size=max_size)
    except CborError as error:
        raise FileRefused("FORMAT", f"{what} is not a signed file: {error.sentence}") from error
    if type(value) is not list or [type(part) for part in value] != [bytes, bytes]:
        raise FileRefused("FORMAT", f"{what} is not a signed file: expected [payload, signature]")
    return value[0], value[1]
