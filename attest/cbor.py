"""Encodes and decodes deterministic CBOR: one strict decoder and one type-exact encoder for all that is signed or logged.

The accepted language is a subset of RFC 8949 section 4.2.1 (core deterministic encoding requirements):

* integers from -2^63 to 2^63 - 1, so that every store can hold them;
* byte strings, UTF-8 text strings, arrays;
* maps whose keys are integers or text, in strictly ascending bytewise order of their encodings;
* `false`, `true`, `null`, and finite floats in the shortest width that keeps their value;
* at most `max_depth` containers inside one another.

There are no tags, no indefinite lengths, no other simple values and no bytes after the item. `cbor2` is not used: it accepts
many encodings of one value, and hands out values that compare equal in Python (`1`, `1.0`, `True`), so that two readers of one
signature could see two documents. It sorts keys by the rule of RFC 7049 and encodes subclasses. In the tests it is the second
opinion.
"""

import math
import struct
from operator import itemgetter
from typing import Any

from attest.errors import CborError

MAX_SIZE = 16384
"""Bytes that `decode` accepts unless told otherwise; no attestation needs more."""

MAX_DEPTH = 8
"""Containers inside one another."""

_INT_LIMIT = 2**63
_HALF, _SINGLE, _DOUBLE = struct.Struct(">e"), struct.Struct(">f"), struct.Struct(">d")


def encode(value: Any, *, max_depth: int = MAX_DEPTH) -> bytes:
    """Encodes a value to its only accepted encoding.

    Guarantee: type-exact. Only `bool`, `int`, `float`, `str`, `bytes`, `None`, `list`, `tuple` and `dict` themselves are
    encoded; subclasses (an `IntEnum`, a numpy float) and everything else are refused, so nothing is signed under a type that a
    reader would not get back. Tuples are written as arrays.

    Raises:
        CborError: Code TYPE or RANGE.
    """
    out = bytearray()
    _encode_into(out, value, max_depth)
    return bytes(out)


def decode(data: bytes, *, max_size: int = MAX_SIZE, max_depth: int = MAX_DEPTH) -> Any:
    """Decodes exactly one item.

    Guarantee: `encode(decode(data)) == data` for every accepted `data`; time and memory are bounded by `max_size`, which is
    checked before anything is read. Arrays come back as `list`.

    Raises:
        CborError: Code SIZE (too long), CBOR (not well-formed), CBOR_NONCANONICAL (well-formed, outside the subset), RANGE (an
            integer beyond 64 bits, a float that is not finite).
    """
    _check_bytes(data)
    if len(data) > max_size:
        raise CborError("SIZE", f"found {len(data)} bytes, expected at most {max_size}")
    value, end = _decode_item(data, 0, max_depth)
    if end != len(data):
        raise CborError("CBOR", f"{len(data) - end} bytes follow the item, expected none")
    return value


def decode_prefix(data: bytes, offset: int, *, max_size: int = MAX_SIZE, max_depth: int = MAX_DEPTH) -> tuple[Any, int]:
    """Decodes one item of a CBOR sequence (RFC 8742) that starts at `offset`; returns the value and the offset after it. Raises
    CborError: as for `decode`; `max_size` counts the bytes of this one item."""
    _check_bytes(data)
    if not 0 <= offset <= len(data):
        raise CborError("CBOR", f"offset {offset} lies outside the {len(data)} bytes given")
    window = data[offset : offset + max_size]
    try:
        value, end = _decode_item(window, 0, max_depth)
    except CborError as error:
        if error.code == "CBOR" and len(data) - offset > max_size and isinstance(error, _TruncatedError):
            raise CborError("SIZE", f"item takes more than {max_size} bytes") from error
        raise
    return value, offset + end


def byte_string_triple(data: bytes, at: int) -> tuple[bytes, bytes, bytes, int] | None:
    """Returns the byte strings of an array of three that begins at `at`, and the offset after it.

    A shortcut for files of such arrays: what it returns is what `decode_prefix` returns, and wherever it returns None it leaves
    the verdict to `decode_prefix`.
    """
    parts = []
    try:
        if data[at] != 0x83:
            return None
        at += 1
        for _ in range(3):
            head = data[at]
            if head == 0x59:
                length, least, at = data[at + 1] << 8 | data[at + 2], 256, at + 3
            elif head == 0x58:
                length, least, at = data[at + 1], 24, at + 2
            else:
                length, least, at = head - 0x40, 0, at + 1
                if not 0 <= length < 24:
                    return None
            if length < least or at + length > len(data):
                return None
            parts.append(data[at : at + length])
            at += length
    except IndexError:
        return None
    return parts[0], parts[1], parts[2], at


def record_values(data: bytes, *, max_depth: int = MAX_DEPTH) -> list[Any] | None:
    """Returns the values of a map with the keys 0, 1, 2, ... (at most 23), in order of the keys.

    A shortcut for logs of such maps: what it returns are the values of what `decode` returns, and wherever it returns None it
    leaves the verdict to `decode`.

    Raises:
        CborError: As `decode` would, for a value that is neither a small integer nor a short byte string.
    """
    values: list[Any] = []
    try:
        count, at = data[0] - 0xA0, 1
        if not 0 < count < 24 or type(data) is not bytes:
            return None
        for key in range(count):
            if data[at] != key:
                return None
            head, value, least = data[at + 1], 0, 0
            at += 2
            if head < 0x18:
                values.append(head)
                continue
            if head == 0x58:
                end = at + 1 + data[at]
                if data[at] < 24 or end > len(data):
                    return None
                values.append(data[at + 1 : end])
                at = end
                continue
            if head == 0x1A:
                value, least, at = int.from_bytes(data[at : at + 4], "big"), 1 << 16, at + 4
            elif head == 0x19:
                value, least, at = data[at] << 8 | data[at + 1], 1 << 8, at + 2
            elif head == 0x18:
                value, least, at = data[at], 24, at + 1
            else:
                item, at = _decode_item(data, at - 1, max_depth - 1)
                values.append(item)
                continue
            if value < least:
                return None
            values.append(value)
    except IndexError:
        return None
    return values if at == len(data) else None


class _TruncatedError(CborError):
    """The input ended inside an item."""


def _check_bytes(data: object) -> None:
    if type(data) is not bytes:
        raise CborError("TYPE", f"found {type(data).__name__}, expected bytes")


def _truncated(wanted: int, left: int) -> _TruncatedError:
    return _TruncatedError("CBOR", f"input ends inside an item: {wanted} more bytes or items announced, {left} bytes left")


def _decode_item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Decodes the item at `at`; `depth` is the number of containers still allowed."""
    if at >= len(data):
        raise _truncated(1, 0)
    head = data[at]
    if head < 0x18:
        return head, at + 1
    major, info = head >> 5, head & 31
    if major == 7:
        return _decode_simple(data, at, info)
    if major == 6:
        raise CborError("CBOR_NONCANONICAL", f"tag at byte {at}; tags are not allowed")
    at += 1
    if info < 24:
        argument = info
    elif info < 28:
        width = 1 << (info - 24)
        if len(data) - at < width:
            raise _truncated(width, len(data) - at)
        argument = data[at] if width == 1 else int.from_bytes(data[at : at + width], "big")
        at += width
        if argument < 24 or (width > 1 and argument >> (4 * width) == 0):
            raise CborError("CBOR_NONCANONICAL", f"head before byte {at} is longer than {argument} needs")
    elif info == 31 and major >= 2:
        raise CborError("CBOR_NONCANONICAL", f"indefinite length before byte {at}; only definite lengths are allowed")
    else:
        raise CborError("CBOR", f"reserved head {head:#04x} before byte {at}")

    if major < 2:
        if argument >= _INT_LIMIT:
            raise CborError("RANGE", f"integer before byte {at} does not fit into 64 bits with sign")
        return (argument if major == 0 else -1 - argument), at
    if major < 4:
        end = at + argument
        if end > len(data):
            raise _truncated(argument, len(data) - at)
        if major == 2:
            return data[at:end], end
        try:
            return data[at:end].decode("utf-8"), end
        except UnicodeDecodeError as error:
            raise CborError("CBOR", f"text string at byte {at} is not UTF-8") from error
    if depth == 0:
        raise CborError("CBOR_NONCANONICAL", f"containers nested too deeply at byte {at}")
    left = len(data) - at
    if major == 4:
        if argument > left:
            raise _truncated(argument, left)
        items = []
        for _ in range(argument):
            value, at = _decode_item(data, at, depth - 1)
            items.append(value)
        return items, at
    if 2 * argument > left:
        raise _truncated(2 * argument, left)
    return _decode_map(data, at, argument, depth - 1)


def _decode_map(data: bytes, at: int, count: int, depth: int) -> tuple[dict[int | str, Any], int]:
    result: dict[int | str, Any] = {}
    previous = b""
    for _ in range(count):
        start = at
        if at < len(data) and data[at] >> 5 not in (0, 1, 3):
            raise CborError("CBOR_NONCANONICAL", f"map key at byte {at} is neither an integer nor text")
        key, at = _decode_item(data, at, depth)
        encoded = data[start:at]
        if encoded <= previous:
            kind = "repeated" if encoded == previous else "out of order"
            raise CborError("CBOR_NONCANONICAL", f"map key at byte {start} is {kind}; keys ascend bytewise")
        previous = encoded
        result[key], at = _decode_item(data, at, depth)
    return result, at


def _decode_simple(data: bytes, at: int, info: int) -> tuple[bool | float | None, int]:
    if info == 20:
        return False, at + 1
    if info == 21:
        return True, at + 1
    if info == 22:
        return None, at + 1
    if not 25 <= info <= 27:
        code = "CBOR" if 28 <= info <= 31 else "CBOR_NONCANONICAL"
        raise CborError(code, f"simple value at byte {at} is none of false, true, null or a float")
    layout = (_HALF, _SINGLE, _DOUBLE)[info - 25]
    end = at + 1 + layout.size
    if end > len(data):
        raise _truncated(layout.size, len(data) - at - 1)
    value: float = layout.unpack_from(data, at + 1)[0]
    if not math.isfinite(value):
        raise CborError("RANGE", f"float at byte {at} is not finite")
    if _shortest_float(value) != data[at:end]:
        raise CborError("CBOR_NONCANONICAL", f"float at byte {at} is wider than its value needs")
    return value, end


def _shortest_float(value: float) -> bytes:
    """Returns the head and payload of a finite float in the smallest width that keeps its value."""
    for head, layout in ((b"\xf9", _HALF), (b"\xfa", _SINGLE)):
        try:
            packed = layout.pack(value)
        except OverflowError:
            continue
        if layout.unpack(packed)[0] == value:
            return head + packed
    return b"\xfb" + _DOUBLE.pack(value)


_SMALL_HEADS = [[bytes((major << 5 | argument,)) for argument in range(24)] for major in range(6)]


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return _SMALL_HEADS[major][argument]
    if argument < 256:
        return bytes((major << 5 | 24, argument))
    for info, width in ((25, 2), (26, 4), (27, 8)):
        if argument >> (8 * width) == 0:
            return bytes((major << 5 | info,)) + argument.to_bytes(width, "big")
    raise CborError("RANGE", "length does not fit into 64 bits")


def _encode_into(out: bytearray, value: Any, depth: int) -> None:
    kind = type(value)
    if kind is int:
        if not -_INT_LIMIT <= value < _INT_LIMIT:
            raise CborError("RANGE", "integer does not fit into 64 bits with sign")
        out += _head(0, value) if value >= 0 else _head(1, -1 - value)
    elif kind is bytes:
        out += _head(2, len(value))
        out += value
    elif kind is str:
        try:
            text = value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise CborError("RANGE", "text holds a lone surrogate and has no UTF-8 form") from error
        out += _head(3, len(text))
        out += text
    elif kind is bool:
        out += b"\xf5" if value else b"\xf4"
    elif value is None:
        out += b"\xf6"
    elif kind is float:
        if not math.isfinite(value):
            raise CborError("RANGE", f"float is {value}, expected a finite number")
        out += _shortest_float(value)
    elif kind is list or kind is tuple or kind is dict:
        if depth == 0:
            raise CborError("RANGE", "containers nested too deeply")
        if kind is dict:
            _encode_map(out, value, depth - 1)
            return
        out += _head(4, len(value))
        for item in value:
            _encode_into(out, item, depth - 1)
    else:
        raise CborError("TYPE", f"cannot encode {kind.__name__}, expected a plain int, float, str, bytes, list or dict")


def _encode_map(out: bytearray, value: dict[Any, Any], depth: int) -> None:
    encoded: list[tuple[bytes, Any]] = []
    for key, item in value.items():
        if type(key) is int and 0 <= key < 24:
            encoded.append((_SMALL_HEADS[0][key], item))
            continue
        if type(key) is not int and type(key) is not str:
            raise CborError("TYPE", f"map key is {type(key).__name__}, expected int or str")
        buffer = bytearray()
        _encode_into(buffer, key, 0)
        encoded.append((bytes(buffer), item))
    encoded.sort(key=itemgetter(0))
    out += _head(5, len(encoded))
    for name, item in encoded:
        out += name
        _encode_into(out, item, depth)
