"""A second implementation of the gate, written along docs/formats: nothing of `attest` is imported.

Straightforward and slow. It gives the reason code of one contribution by itself (steps 2 to 16), or ADMITTED. The page has its
table of checks from `STEPS`, and every refusal here is held to be one of its step.
"""

import hashlib
import itertools
import math
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class Refused(Exception):
    """Carries a reason code."""


STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "the clock reads whole seconds before the year 10000, at most 60 s before the latest admission, and at most an hour"
        " before the last entry of the registry",
        ("CLOCK",),
    ),
    ("there is an attestation", ("UNATTESTED",)),
    ("descriptor at most 16 384 bytes, message at most 1 024, opening at most 512", ("SIZE",)),
    ("the descriptor is one item of the CBOR subset, nothing else", ("CBOR", "CBOR_NONCANONICAL", "RANGE")),
    (
        "it is a map with exactly the fields 1 to 12, perhaps 13 to 17, of the right types and ranges, for purposes that are"
        " served, and encodes to the bytes received",
        ("TYPE", "SCHEMA", "RANGE", "WINDOW", "PURPOSE", "CBOR_NONCANONICAL"),
    ),
    (
        "there is an opening; it is one item of the CBOR subset, a map with exactly the fields 1 to 5, perhaps 6, of the right"
        " types and lengths, and opens the four commitments of the descriptor",
        ("OPENING", "CBOR", "CBOR_NONCANONICAL", "TYPE", "RANGE"),
    ),
    (
        "the message is `d2` and one item of the CBOR subset, of the one form ([Signatures](encoding.md#signatures)); the"
        " signature has 64 bytes",
        ("CBOR", "CBOR_NONCANONICAL", "RANGE", "HEADER", "SIG_BAD"),
    ),
    ("the issuer is field 2 of the descriptor, in lower case hex", ("HEADER",)),
    (
        "the contributor that the opening names is in the registry, by the names beside it and has a key; the key id names one"
        " of its keys, which is neither revoked nor outside its validity",
        ("KEY_UNKNOWN", "SIG_BAD", "KEY_REVOKED", "KEY_NOT_VALID"),
    ),
    (
        "type and subject of the header are those of this descriptor; the key is sound; the signature verifies",
        ("HEADER", "KEY_WEAK", "SIG_BAD"),
    ),
    ("the corpus is the policy's", ("AUDIENCE",)),
    ("the principal, if both registry and opening state one, is the same", ("PRINCIPAL",)),
    (
        "the class is in the policy, and granted to the contributor; the use that is asked for, training or generation, is"
        " among the purposes of the descriptor, and of the class",
        ("CLASS_UNKNOWN", "CLASS_NOT_GRANTED", "PURPOSE"),
    ),
    (
        "not before <= now < not after, and validity no longer than the class and the policy allow",
        ("NOT_YET_VALID", "EXPIRED", "WINDOW"),
    ),
    (
        "in a public class, clip norm 10^15 and noise multiplier 1 and no other; in any class, clip norm at most, noise"
        " multiplier at least the class preset; except in a public class, both at least the corpus floors; examples at most"
        " the policy's. Equality passes. A public length is one of those that the class offers",
        (
            "BOUNDS_NOT_PUBLIC", "CLIP_ABOVE_CLASS", "NOISE_BELOW_CLASS", "CLIP_BELOW_FLOOR", "NOISE_BELOW_FLOOR", "EXAMPLES",
            "PUBLIC_LENGTH",
        ),
    ),
    ("there is content, and its hash is that of the opening", ("CONTENT_MISSING", "CONTENT_MISMATCH")),
    (
        "the descriptor hash was not withdrawn; neither it nor, to training, the content hash was admitted before; the"
        " contributor, or the person behind it, is below the cap",
        ("WITHDRAWN", "REPLAYED", "DUPLICATE_CONTENT", "CONTRIBUTOR_CAP"),
    ),
)  # fmt: skip
"""What is checked step by step, from 1, and the codes under which each step refuses."""


@contextmanager
def step(number: int) -> Iterator[None]:
    """Holds what is refused inside against the codes of a step."""
    try:
        yield
    except Refused as refused:
        assert str(refused) in STEPS[number - 1][1], f"step {number} refuses as {refused}"
        raise


@dataclass(frozen=True)
class Rules:
    """What a policy and a registry say, as plain values.

    Args:
        corpus: The audience.
        classes: Per class its clip norm, noise multiplier and longest validity.
        floors: Least clip norm and noise multiplier.
        max_examples: Examples per contribution.
        contributors: Per contributor its keys, each (raw, not before, not after, revoked at or None), classes and principal.
        registry_time: Time of the registry's last entry.
        lengths: Per class the public lengths that it offers.
        purposes: Per class its purposes; train where it is not named.
        purpose: The use that is asked for.
    """

    corpus: str
    classes: dict[str, tuple[int, int, int]]
    floors: tuple[int, int]
    max_examples: int
    contributors: dict[str, tuple[list[tuple[bytes, int, int, int | None]], list[str], str | None]]
    registry_time: int
    lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    purposes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    purpose: str = "train"


def judge(descriptor: bytes, message: bytes, opening: bytes, content_hash: bytes | None, rules: Rules, now: int) -> str:
    """The reason code of one contribution, or ADMITTED."""
    try:
        _judge(descriptor, message, opening, content_hash, rules, now)
    except Refused as refused:
        return str(refused)
    return "ADMITTED"


def require(condition: bool, code: str) -> None:
    """Refuse unless something holds."""
    if not condition:
        raise Refused(code)


# --- deterministic CBOR --------------------------------------------------------------------------------------------------


def read(data: bytes) -> Any:
    """Exactly one item of the subset."""
    value, end = _item(data, 0, 8)
    require(end == len(data), "CBOR")
    return value


def _item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    require(at < len(data), "CBOR")
    major, info = divmod(data[at], 32)
    if major == 7:
        return _simple(data, at, info)
    require(major != 6, "CBOR_NONCANONICAL")
    at += 1
    if info >= 24:
        require(info < 28 or (info == 31 and major >= 2), "CBOR")
        require(info != 31, "CBOR_NONCANONICAL")
        width = 2 ** (info - 24)
        require(len(data) >= at + width, "CBOR")
        number = int.from_bytes(data[at : at + width], "big")
        require(number >= (24 if width == 1 else 256 ** (width // 2)), "CBOR_NONCANONICAL")
        at += width
    else:
        number = info
    if major <= 1:
        require(number < 2**63, "RANGE")
        return (number if major == 0 else -1 - number), at
    if major <= 3:
        require(number <= len(data) - at, "CBOR")
        piece = data[at : at + number]
        if major == 2:
            return piece, at + number
        try:
            return piece.decode("utf-8"), at + number
        except UnicodeDecodeError as error:
            raise Refused("CBOR") from error
    require(depth > 0, "CBOR_NONCANONICAL")
    require(number * (major - 3) <= len(data) - at, "CBOR")
    if major == 4:
        items = []
        for _ in range(number):
            value, at = _item(data, at, depth - 1)
            items.append(value)
        return items, at
    pairs, last = {}, b""
    for _ in range(number):
        require(at >= len(data) or data[at] // 32 in (0, 1, 3), "CBOR_NONCANONICAL")
        key, end = _item(data, at, depth - 1)
        require(data[at:end] > last, "CBOR_NONCANONICAL")
        last = data[at:end]
        pairs[key], at = _item(data, end, depth - 1)
    return pairs, at


def _simple(data: bytes, at: int, info: int) -> tuple[Any, int]:
    if info in (20, 21, 22):
        return {20: False, 21: True, 22: None}[info], at + 1
    require(info < 28, "CBOR")
    require(info >= 25, "CBOR_NONCANONICAL")
    formats = [(">e", 2), (">f", 4), (">d", 8)]
    layout, width = formats[info - 25]
    require(len(data) >= at + 1 + width, "CBOR")
    (value,) = struct.unpack(layout, data[at + 1 : at + 1 + width])
    require(math.isfinite(value), "RANGE")
    for shorter, _ in formats[: info - 25]:
        try:
            require(struct.unpack(shorter, struct.pack(shorter, value))[0] != value, "CBOR_NONCANONICAL")
        except OverflowError:
            continue
    return value, at + 1 + width


# --- keys ----------------------------------------------------------------------------------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


@cache
def sound(raw: bytes) -> bool:
    """Whether a key is the canonical encoding of a point of prime order, in affine arithmetic."""
    y, sign = int.from_bytes(raw, "little") % 2**255, raw[31] >> 7
    if y >= P:
        return False
    x2 = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if x * x % P != x2:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != x2 or (x == 0 and sign):
        return False
    point = (P - x if x % 2 != sign else x, y)
    return _times(8, point) != (0, 1) and _times(L, point) == (0, 1)


def _plus(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + product, P - 2, P)
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, P - 2, P)
    return x % P, y % P


def _times(number: int, point: tuple[int, int]) -> tuple[int, int]:
    result = (0, 1)
    for bit in bin(number)[2:]:
        result = _plus(result, result)
        if bit == "1":
            result = _plus(result, point)
    return result


# --- the steps -----------------------------------------------------------------------------------------------------------

ID = re.compile(r"[a-z0-9._/-]{1,64}\Z")
MICRO, MOMENT, COUNT = (1, 10**15), (0, 253402300799), (0, 2**32 - 1)
NUMBERS = {5: MICRO, 6: MICRO, 8: MOMENT, 9: MOMENT, 12: COUNT, 14: MICRO, 15: (1, 10**12 - 1)}
NUMBERS |= dict.fromkeys((13, 17), (1, COUNT[1]))


def _id(value: Any) -> None:
    require(type(value) is str, "TYPE")
    require(ID.match(value) is not None, "RANGE")


def _int(value: Any, low: int, high: int) -> None:
    require(type(value) is int, "TYPE")
    require(low <= value <= high, "RANGE")


def _bytes(value: Any, length: int) -> None:
    require(type(value) is bytes, "TYPE")
    require(len(value) == length, "RANGE")


def _purposes(words: Any) -> None:
    require(type(words) is list, "TYPE")
    require(1 <= len(words) <= 3, "RANGE")
    for word in words:
        require(type(word) is str, "TYPE")
        require(word in ("generate", "query", "train"), "RANGE")
    require(all(one < other for one, other in itertools.pairwise(words)), "RANGE")


def _descriptor(fields: Any) -> dict[int, Any]:
    require(type(fields) is dict, "TYPE")
    require(set(range(1, 13)) <= set(fields) <= set(range(1, 18)), "SCHEMA")
    require(type(fields[1]) is str, "TYPE")
    require(fields[1] == "dptrain.contribution/2", "SCHEMA")
    for key, value in sorted(fields.items()):
        if key in (2, 3, 7, 10):
            _bytes(value, 32)
        elif key in (4, 11):
            _id(value)
        elif key in NUMBERS and (key < 13 or value is not None):
            _int(value, *NUMBERS[key])
        elif key == 16 and value is not None:
            _purposes(value)
    require((fields.get(14) is None) is (fields.get(15) is None), "RANGE")
    require(fields[9] > fields[8], "WINDOW")
    require("query" not in (fields.get(16) or ()), "PURPOSE")
    require(None not in fields.values(), "CBOR_NONCANONICAL")
    return fields


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def _opening(data: bytes, descriptor: dict[int, Any]) -> dict[int, Any]:
    require(data != b"", "OPENING")
    fields = read(data)
    require(type(fields) is dict and set(range(1, 6)) <= set(fields) <= set(range(1, 7)), "OPENING")
    for key, length in ((1, 16), (2, 32), (3, 48)):
        _bytes(fields[key], length)
    for key in (4, 5, 6):
        if key < 6 or fields.get(6) is not None:
            _id(fields[key])
    require(None not in fields.values(), "CBOR_NONCANONICAL")
    salts = fields[3]
    for key, opened in (
        (2, _hash(b"dptrain/commit/contributor/1\0", fields[4].encode(), salts[:16])),
        (3, _hash(b"dptrain/commit/data-class/1\0", fields[5].encode(), salts[16:32])),
        (7, _hash(b"dptrain/commit/content/1\0", fields[2], fields[1])),
        (10, _hash(b"dptrain/commit/principal/1\0", fields.get(6, "").encode(), salts[32:])),
    ):
        require(descriptor[key] == opened, "OPENING")
    return fields


def _message(data: bytes) -> tuple[dict[int, Any], bytes, bytes]:
    require(data[:1] == b"\xd2", "HEADER")
    parts = read(data[1:])
    require(type(parts) is list and len(parts) == 4, "HEADER")
    protected, unprotected, payload, signature = parts
    require(type(protected) is bytes and type(unprotected) is dict and not unprotected and payload is None, "HEADER")
    require(type(signature) is bytes, "HEADER")
    require(len(signature) == 64, "SIG_BAD")
    header = read(protected)
    require(type(header) is dict and set(header) == {1, 4, 15, 16}, "HEADER")
    claims = header[15]
    require(type(header[1]) is int and header[1] == -19, "HEADER")
    require(type(header[4]) is bytes and len(header[4]) == 8, "HEADER")
    require(type(claims) is dict and set(claims) == {1, 2}, "HEADER")
    require(type(claims[1]) is str and ID.match(claims[1]) is not None, "HEADER")
    require(type(claims[2]) is str and type(header[16]) is str, "HEADER")
    return header, protected, signature


def _string(data: bytes) -> bytes:
    if len(data) < 24:
        return bytes([0x40 + len(data)]) + data
    return (b"\x58" + len(data).to_bytes(1, "big") if len(data) < 256 else b"\x59" + len(data).to_bytes(2, "big")) + data


def _judge(
    descriptor: bytes, message: bytes, opening: bytes, content_hash: bytes | None, rules: Rules, now: int
) -> None:
    with step(1):
        require(rules.registry_time <= now + 3600, "CLOCK")
    with step(3):
        require(len(descriptor) <= 16384 and len(message) <= 1024 and len(opening) <= 512, "SIZE")
    with step(4):
        item = read(descriptor)
    with step(5):
        fields = _descriptor(item)
    with step(6):
        opened = _opening(opening, fields)
    with step(7):
        header, protected, signature = _message(message)
    with step(8):
        require(header[15][1] == fields[2].hex(), "HEADER")
    keys, granted, principal = rules.contributors.get(opened[4], ([], [], None))
    with step(9):
        require(bool(keys), "KEY_UNKNOWN")
        named = [key for key in keys if hashlib.sha256(key[0]).digest()[:8] == header[4]]
        require(bool(named), "SIG_BAD")
        raw, not_before, not_after, revoked_at = named[0]
        require(revoked_at is None or now < revoked_at, "KEY_REVOKED")
        require(not_before <= now < not_after, "KEY_NOT_VALID")
    with step(10):
        require(header[16] == "application/vnd.dptrain.attestation+cose", "HEADER")
        require(header[15][2] == "sha-256:" + hashlib.sha256(descriptor).hexdigest(), "HEADER")
        require(sound(raw), "KEY_WEAK")
        require(int.from_bytes(signature[32:], "little") < L, "SIG_BAD")
        signed = b"\x84\x6aSignature1" + _string(protected) + b"\x40" + _string(descriptor)
        try:
            Ed25519PublicKey.from_public_bytes(raw).verify(signature, signed)
        except InvalidSignature as error:
            raise Refused("SIG_BAD") from error
    with step(11):
        require(fields[11] == rules.corpus, "AUDIENCE")
    with step(12):
        require(principal is None or opened.get(6) in (None, principal), "PRINCIPAL")
    with step(13):
        require(fields[4] in rules.classes, "CLASS_UNKNOWN")
        require(fields[4] in granted, "CLASS_NOT_GRANTED")
        require(rules.purpose in fields.get(16, ["train"]), "PURPOSE")
        require(rules.purpose in rules.purposes.get(fields[4], ("train",)), "PURPOSE")
    clip, noise, window = rules.classes[fields[4]]
    with step(14):
        require(fields[8] <= now, "NOT_YET_VALID")
        require(now < fields[9], "EXPIRED")
        require(fields[9] - fields[8] <= window, "WINDOW")
    with step(15):
        public = (clip, noise) == (10**15, 1)
        require(not public or (fields[5], fields[6]) == (10**15, 1), "BOUNDS_NOT_PUBLIC")
        require(fields[5] <= clip, "CLIP_ABOVE_CLASS")
        require(fields[6] >= noise, "NOISE_BELOW_CLASS")
        require(public or fields[5] >= rules.floors[0], "CLIP_BELOW_FLOOR")
        require(public or fields[6] >= rules.floors[1], "NOISE_BELOW_FLOOR")
        require(fields.get(13, 1) <= rules.max_examples, "EXAMPLES")
        require(17 not in fields or fields[17] in rules.lengths.get(fields[4], ()), "PUBLIC_LENGTH")
    with step(16):
        require(content_hash is not None, "CONTENT_MISSING")
        require(content_hash == opened[2], "CONTENT_MISMATCH")
