"""Carries keys, states and answers as bytes, and refuses what is too long or not in form before SEAL reads it.

An object of SEAL may be compressed, and so may each object within it: a few kilobytes may ask for terabytes. So the bytes are
unpacked here up to the size that they must have, and all of them but the coefficients are held against what SEAL writes under
these parameters. What SEAL then reads is not compressed, and every length in it is known. The layout is that of SEAL 4
(`Serialization`, `Ciphertext::save_members`, `KSwitchKeys::save_members`); other parameters have another hash in it.
"""

import hashlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from dptrain.errors import ConfigError
from dptrain.inference.he.scheme import (
    DEGREE,
    HOW,
    MODULI,
    SCALE,
    WIDTHS,
    EncryptionRefused,
    context,
    element,
    levels,
    loaded,
    rotations,
    saved,
    sealapi,
)  # fmt: skip

KEYS, STATE, DELTA = b"dptrain-he-keys\n", b"dptrain-he-stat\n", b"dptrain-he-delt\n"
MOST_STATE: Final = 420_000
"""Bytes of an encrypted state at most; an answer has a third of its coefficients. Uncompressed ones have 393,313."""
MOST_KEYS: Final = 20_000_000
"""Bytes of a public bundle at most. Uncompressed ones have 18,944,053 at a width of 2048."""

_BUNDLE = struct.Struct("<16sHH4Bb")  # kind, width, N, bits of the primes, bits of the scale
_ENVELOPE = struct.Struct("<16s16sHH")  # kind, name of the keys, length of the vector, width
_HEADER = struct.Struct("<HBBBBHQ")  # SEALHeader: magic, its own size, version, compression, reserved, size of the object
_MAGIC, _NONE, _ZSTD = 0xA15E, 0, 2
_DECOMPOSED = len(MODULI) - 1  # a key of one rotation has as many ciphertexts as data has primes
_SECRET = 262_216  # bytes of a secret key under these parameters, unpacked and without its header


@dataclass(frozen=True, slots=True)
class Envelope:
    """An encrypted vector.

    Attributes:
        keys: Name of the keys under which it is. length: Of the vector. width: That of its keys.
        vector: The ciphertext, as SEAL has it.
    """

    keys: bytes
    length: int
    width: int
    vector: Any


def key_name(bundle: bytes) -> bytes:
    """Returns the name of keys, 16 bytes of SHA-256 of their public bundle."""
    return hashlib.sha256(bundle).digest()[:16]


def pack_keys(galois: Any, width: int) -> bytes:
    """Returns a public bundle: the parameters, and keys that turn ciphertexts. It has no field for a secret key."""
    return _BUNDLE.pack(KEYS, width, DEGREE, *MODULI, round(math.log2(SCALE))) + saved(galois)


def unpack_keys(bundle: bytes) -> tuple[int, Any]:
    """Returns the width and the keys of a bundle that is wholly in form.

    Raises:
        EncryptionRefused: `KEYS_TOO_LONG`, `SECRET_IN_BUNDLE`, `NOT_A_BUNDLE`, `WRONG_PARAMETERS` or `MALFORMED_KEYS`.
    """
    if not isinstance(bundle, bytes):
        raise EncryptionRefused("NOT_A_BUNDLE", f"keys come as bytes, not {type(bundle).__name__}; send HEKeys.public")
    if len(bundle) > MOST_KEYS:
        raise EncryptionRefused(
            "KEYS_TOO_LONG", f"a bundle of keys has {len(bundle)} bytes, at most {MOST_KEYS} are read; send HEKeys.public"
        )
    if not bundle.startswith(KEYS) or len(bundle) < _BUNDLE.size:
        if _has_secret_of_tenseal(bundle):
            raise _secret("it is a TenSEAL context with its secret key")
        raise EncryptionRefused("NOT_A_BUNDLE", "these bytes are no bundle of public keys; send HEKeys.public")
    _, width, degree, *moduli, scale = _BUNDLE.unpack_from(bundle)
    if (degree, tuple(moduli), scale) != (DEGREE, MODULI, math.log2(SCALE)) or width not in WIDTHS:
        raise EncryptionRefused(
            "WRONG_PARAMETERS",
            f"keys are of N = {degree}, primes of {moduli} bits, scale 2^{scale} and width {width}; taken are N = {DEGREE}, "
            f"{list(MODULI)}, 2^{math.log2(SCALE):.0f} and one of {list(WIDTHS)}; make keys by HEKeys.generate",
        )
    skeleton = list(_keys_skeleton(width))
    whole = _checked(bundle[_BUNDLE.size :], skeleton, "MALFORMED_KEYS", "a bundle of keys")
    return width, _read(sealapi().GaloisKeys(), whole, "MALFORMED_KEYS", "a bundle of keys")


def pack_vector(kind: bytes, keys: bytes, length: int, width: int, vector: Any) -> bytes:
    """Returns an encrypted vector as bytes: its kind, the name of its keys, its length and width, and the ciphertext."""
    return _ENVELOPE.pack(kind, keys, length, width) + saved(vector)


def unpack_vector(kind: bytes, data: object) -> Envelope:
    """Returns the encrypted vector of bytes that are wholly in form.

    Args:
        kind: `STATE`, with three primes, or `DELTA`, with one.

    Raises:
        EncryptionRefused: `STATE_IN_CLEAR` where the data is, or looks like, numbers that are not encrypted;
            `TOO_LONG`, `NOT_A_CIPHERTEXT`, `WRONG_LENGTH` or `MALFORMED_CIPHERTEXT`.
    """
    what = "an encrypted state" if kind == STATE else "an encrypted answer"
    if not isinstance(data, bytes):
        raise _in_clear(f"a {type(data).__name__} came in the place of an encrypted state")
    if len(data) > MOST_STATE:
        raise EncryptionRefused("TOO_LONG", f"{what} has {len(data)} bytes, at most {MOST_STATE} are read; send it as made")
    if not data.startswith(kind) or len(data) < _ENVELOPE.size:
        if _looks_clear(data):
            raise _in_clear("bytes that read as numbers came in the place of an encrypted state")
        raise EncryptionRefused("NOT_A_CIPHERTEXT", f"these bytes are not {what}; send what encrypt or apply gave")
    _, keys, length, width = _ENVELOPE.unpack_from(data)
    if width not in WIDTHS or not 0 < length <= width:
        raise EncryptionRefused("WRONG_LENGTH", f"{what} is {length} long at a width of {width}; widths are {WIDTHS}")
    skeleton = [(0, _ciphertext_skeleton(0 if kind == STATE else 2)), (_ciphertext_size(0 if kind == STATE else 2), b"")]
    whole = _checked(data[_ENVELOPE.size :], skeleton, "MALFORMED_CIPHERTEXT", what)
    vector = _read(sealapi().Ciphertext(), whole, "MALFORMED_CIPHERTEXT", what)
    if vector.is_transparent():  # (m, 0) reads as m without a key
        raise _in_clear("a ciphertext came whose second polynomial is zero: it shows its content to anybody")
    return Envelope(keys, length, width, vector)


def _secret(why: str) -> EncryptionRefused:
    return EncryptionRefused(
        "SECRET_IN_BUNDLE", f"a secret key came with the keys ({why}), and is not read; make new ones, and send HEKeys.public"
    )


def _in_clear(why: str) -> EncryptionRefused:
    return EncryptionRefused("STATE_IN_CLEAR", f"{why}; only encrypted states are taken: send what HEKeys.encrypt gives")


def _looks_clear(data: bytes) -> bool:
    """Tells whether bytes are JSON, an array of numpy, or numbers of two, four or eight bytes of the size that states have."""
    if data[:1] in (b"[", b"{") or data.startswith(b"\x93NUMPY") or data[:4] == b"PK\x03\x04":
        return True
    if data.isascii() or len(data) < 64:
        return False
    for kind in ("<f8", "<f4", "<f2"):
        if len(data) % np.dtype(kind).itemsize == 0:
            with np.errstate(invalid="ignore"):
                numbers = np.abs(np.frombuffer(data, kind).astype(np.float64))
            if np.isfinite(numbers).all() and np.mean((numbers < 1e5) & ((numbers > 1e-8) | (numbers == 0))) > 0.99:
                return True
    return False


def _has_secret_of_tenseal(bundle: bytes) -> bool:
    """Tells whether bytes are a `TenSEALContextProto` with a private part, which holds a secret key: its field 3."""
    place, fields = 0, set()
    while place < len(bundle):
        tag, place = _varint(bundle, place)
        length, place = _varint(bundle, place)
        if tag & 7 == 2:
            place += length
        elif tag & 7 != 0:
            return False
        fields.add(tag >> 3)
    return place == len(bundle) and {1, 3} <= fields <= {1, 2, 3, 4}


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            break
        value |= (data[place] & 0x7F) << shift
        place += 1
        if not data[place - 1] & 0x80:
            break
    return value, place


def _checked(data: bytes, skeleton: list[tuple[int, bytes]], code: str, what: str) -> bytes:
    """Returns an object of SEAL without compression, after all in it but coefficients was found as expected.

    Args:
        skeleton: Places in the unpacked object, and what must stand there; the last one is its end.
    """
    size = skeleton[-1][0]
    if len(data) < _HEADER.size:
        raise EncryptionRefused(code, f"{what} ends before its header does; send it whole")
    magic, own, major, minor, compression, reserved, length = _HEADER.unpack_from(data)
    if (magic, own, reserved) != (_MAGIC, _HEADER.size, 0) or (major, minor) != _version() or length != len(data):
        raise EncryptionRefused(
            code,
            f"{what} has {len(data)} bytes and says it is {length} of SEAL {major}.{minor}; one object of SEAL "
            f"{_version()[0]}.{_version()[1]} was expected, and nothing after it; use the same tenseal on both sides",
        )
    if compression == _ZSTD:
        whole = _inflated(data[_HEADER.size :], size, code, what)
    elif compression == _NONE:
        whole = data[_HEADER.size :]
    else:
        raise EncryptionRefused(code, f"{what} is compressed in way {compression}; {_NONE} and {_ZSTD} are read")
    if len(whole) == _SECRET and code == "MALFORMED_KEYS":
        raise _secret("it stands where keys of rotations are expected")
    if len(whole) != size or any(whole[place : place + len(part)] != part for place, part in skeleton):
        raise EncryptionRefused(
            code, f"{what} is not of the form or the parameters expected ({len(whole)} bytes of {size} read); make it anew"
        )
    return _HEADER.pack(_MAGIC, _HEADER.size, major, minor, _NONE, 0, _HEADER.size + len(whole)) + whole


def _inflated(data: bytes, size: int, code: str, what: str) -> bytes:
    """Unpacks no more than one byte over the size expected."""
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError("NO_ZSTANDARD", f"encrypted adapters need zstandard, not installed ({error}); {HOW}") from error
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 23).stream_reader(data) as reader:
            return reader.read(size + 1)
    except (zstandard.ZstdError, MemoryError) as error:
        raise EncryptionRefused(code, f"{what} cannot be unpacked ({error}); send it whole") from error


def _read(thing: Any, whole: bytes, code: str, what: str) -> Any:
    try:
        return loaded(thing, whole)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise EncryptionRefused(code, f"SEAL refuses {what} ({error}); make it anew") from error


@cache
def _version() -> tuple[int, int]:
    header = sealapi().Serialization.SEALHeader()
    return header.version_major, header.version_minor


def _ciphertext(level: Any, primes: int, scale: float) -> bytes:
    """Returns all of a ciphertext of two polynomials but its coefficients."""
    count = 2 * primes * DEGREE
    array = _HEADER.pack(_MAGIC, _HEADER.size, *_version(), _NONE, 0, _HEADER.size + 8 + 8 * count)
    members = struct.pack("<4QBQQQdQ", *level.parms_id(), 1, 2, DEGREE, primes, scale, 1)  # in NTT form; no factor of BGV
    return members + array + struct.pack("<Q", count)


@cache
def _ciphertext_skeleton(level: int) -> bytes:
    return _ciphertext(levels()[level], len(MODULI) - 1 - level, SCALE)


@cache
def _ciphertext_size(level: int) -> int:
    return len(_ciphertext_skeleton(level)) + 2 * (len(MODULI) - 1 - level) * DEGREE * 8


def _keys_skeleton(width: int) -> Iterator[tuple[int, bytes]]:
    """Yields all of the keys of a width but coefficients: N places, and three ciphertexts at each that is used."""
    level = context().key_context_data()
    coefficients = 2 * len(MODULI) * DEGREE * 8
    inner = _ciphertext(level, len(MODULI), 1.0)
    key = _HEADER.pack(_MAGIC, _HEADER.size, *_version(), _NONE, 0, _HEADER.size + len(inner) + coefficients) + inner
    used = {(element(steps) - 1) // 2 for steps in rotations(width)}
    pending, place = struct.pack("<4QQ", *level.parms_id(), DEGREE), 0
    for number in range(DEGREE):
        pending += struct.pack("<Q", _DECOMPOSED if number in used else 0)
        for _ in range(_DECOMPOSED if number in used else 0):
            pending += key
            yield place, pending
            place, pending = place + len(pending) + coefficients, b""
    yield place, pending
    yield place + len(pending), b""
