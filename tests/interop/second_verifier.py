"""A second verifier of dptrain ledger exports, written from docs/formats alone; one file, to be taken away and read by itself.

Standard library, `cryptography` (Ed25519) and numpy/scipy (privacy loss distributions) only.

    python second_verifier.py EXPORT --key VKEY [--owner-key HEX] [--earlier DIR ...] [--withdrawals DIR]
    python second_verifier.py --vectors vectors/

Every finding is a pair of a code and a sentence; any finding makes the verdict FAILED. Codes are close to those of the page,
not always the same. Not covered, and refused as UNSUPPORTED: the noise family laplace.
"""

import argparse
import base64
import bisect
import fnmatch
import hashlib
import itertools
import json
import math
import re
import struct
import sys
import tempfile
import time as clock
import unicodedata
from fractions import Fraction
from pathlib import Path

import numpy
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from scipy import optimize, special

MICRO = 10**6
MOST_MICRO = 10**15
LAST_MOMENT = 253402300799
FIRST_MOMENT = 1577836800
HOUR = 3600
MONTH = 30 * 86400


class Refused(Exception):
    """What was read is not what the format says: a code and a sentence."""

    def __init__(self, code, text=""):
        """Keep code and text apart."""
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


def need(condition, code, text=""):
    """Refuse unless the condition holds."""
    if not condition:
        raise Refused(code, text)


def sha256(*parts):
    """Return the SHA-256 of the parts, one behind the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


# --- Deterministic CBOR -----------------------------------------------------------------------------------------------


class Reader:
    """Reads one item of the subset from bytes, and refuses every other encoding."""

    def __init__(self, data):
        """Begin at the first byte."""
        self.data, self.at = data, 0

    def take(self, count):
        """Return the next bytes."""
        need(count <= len(self.data) - self.at, "CBOR", "input ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def head(self):
        """Return the major type, the additional information and the argument of the next head."""
        first = self.take(1)[0]
        major, info = first >> 5, first & 31
        if info < 24:
            return major, info, info
        need(info < 28 or info == 31, "CBOR", "reserved additional information")
        need(info != 31, "CBOR_NONCANONICAL" if 2 <= major <= 5 else "CBOR", "indefinite length")
        width = 1 << (info - 24)
        value = int.from_bytes(self.take(width), "big")
        if major != 7:
            need(value >= (24 if width == 1 else 1 << (4 * width)), "CBOR_NONCANONICAL", "head is not the shortest")
        return major, info, value

    def item(self, depth=0):
        """Return the next item as None, bool, int, float, bytes, str, list or dict."""
        major, info, value = self.head()
        if major < 2:
            need(value < 2**63, "RANGE", "integer beyond 64 bits")
            return value if major == 0 else -1 - value
        if major < 4:
            data = self.take(value)
            if major == 2:
                return data
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError:
                raise Refused("CBOR", "text is not UTF-8") from None
        if major == 4:
            need(value <= len(self.data) - self.at, "CBOR", "array longer than the input")
            need(depth < 8, "CBOR_NONCANONICAL", "nested too deep")
            return [self.item(depth + 1) for _ in range(value)]
        if major == 5:
            return self.map(value, depth)
        need(major == 7, "CBOR_NONCANONICAL", "tag")
        return self.simple(info, value)

    def map(self, count, depth):
        """Return a map whose keys ascend by their encoded bytes."""
        need(2 * count <= len(self.data) - self.at, "CBOR", "map longer than the input")
        need(depth < 8, "CBOR_NONCANONICAL", "nested too deep")
        result, before = {}, b""
        for _ in range(count):
            start = self.at
            key = self.item(depth + 1)
            encoded = self.data[start : self.at]
            need(type(key) in (int, str), "CBOR_NONCANONICAL", "key is neither integer nor text")
            need(encoded > before, "CBOR_NONCANONICAL", "keys do not ascend")
            before = encoded
            result[key] = self.item(depth + 1)
        return result

    @staticmethod
    def simple(info, value):
        """Return false, true, null or a finite float in its shortest form."""
        if info in (20, 21, 22):
            return {20: False, 21: True, 22: None}[info]
        need(info in (25, 26, 27), "CBOR_NONCANONICAL", "simple value")
        width = 1 << (info - 24)
        number = struct.unpack({2: ">e", 4: ">f", 8: ">d"}[width], value.to_bytes(width, "big"))[0]
        need(math.isfinite(number), "RANGE", "float is not finite")
        need(len(encode(number)) == 1 + width, "CBOR_NONCANONICAL", "float is not in its shortest form")
        return number


def decode(data):
    """Return the one item that the bytes are."""
    reader = Reader(data)
    value = reader.item()
    need(reader.at == len(data), "CBOR", "bytes after the item")
    return value


def sequence(data):
    """Return the items of a CBOR sequence."""
    reader, items = Reader(data), []
    while reader.at < len(data):
        items.append(reader.item())
    return items


def encode_head(major, value):
    """Return the shortest head."""
    for info, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 24:
            return bytes([major << 5 | value])
        if value < 1 << (8 * width):
            return bytes([major << 5 | info]) + value.to_bytes(width, "big")
    raise Refused("RANGE", "integer beyond 64 bits")


def encode(value):
    """Return the one encoding of a value."""
    kind = type(value)
    if value is None or kind is bool:
        return {False: b"\xf4", True: b"\xf5", None: b"\xf6"}[value]
    if kind is int:
        return encode_head(0, value) if value >= 0 else encode_head(1, -1 - value)
    if kind is bytes:
        return encode_head(2, len(value)) + value
    if kind is str:
        data = value.encode()
        return encode_head(3, len(data)) + data
    if kind is list:
        return encode_head(4, len(value)) + b"".join(map(encode, value))
    if kind is dict:
        rows = sorted((encode(key), encode(item)) for key, item in value.items())
        return encode_head(5, len(rows)) + b"".join(key + item for key, item in rows)
    need(kind is float, "TYPE", str(kind))
    for info, form in ((25, ">e"), (26, ">f")):
        try:
            data = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, data)[0] == value:
            return bytes([7 << 5 | info]) + data
    return b"\xfb" + struct.pack(">d", value)


# --- Shapes of values -------------------------------------------------------------------------------------------------

IDENTIFIER = re.compile(r"[a-z0-9._/-]{1,64}")
PRINTABLE = re.compile(r"[ -~]{1,200}")


def uint(low=0, high=2**63 - 1):
    """Return a check of integers from low to high."""

    def check(value):
        need(type(value) is int, "TYPE", "no integer")
        need(low <= value <= high, "RANGE", f"{value} is not from {low} to {high}")

    return check


def blob(*sizes):
    """Return a check of byte strings, of one of the sizes."""

    def check(value):
        need(type(value) is bytes, "TYPE", "no byte string")
        need(not sizes or len(value) in sizes, "TYPE", f"{len(value)} bytes")

    return check


def word(*words):
    """Return a check of texts that are one of the words."""

    def check(value):
        need(type(value) is str, "TYPE", "no text")
        need(not words or value in words, "RANGE", value)

    return check


def optional(check):
    """Return a check that takes null, too."""
    return lambda value: value is None or check(value)


def identifier(value):
    """Check an identifier."""
    need(type(value) is str, "TYPE", "no text")
    need(IDENTIFIER.fullmatch(value), "RANGE", "no identifier")


def real(value):
    """Check a float that is not negative."""
    need(type(value) is float, "TYPE", "no float")
    need(value >= 0, "RANGE", str(value))


def of_type(kind):
    """Return a check of a type."""
    return lambda value: need(type(value) is kind, "TYPE", f"no {kind.__name__}")


def only_true(value):
    """Check true."""
    need(value is True, "TYPE", "not true")


boolean, text = of_type(bool), of_type(str)


def rows(*checks):
    """Return a check of arrays of tuples, or with one check of arrays of values."""

    def check(value):
        need(type(value) is list, "TYPE", "no array")
        for row in value:
            if len(checks) == 1:
                checks[0](row)
                continue
            need(type(row) is list and len(row) == len(checks), "TYPE", "row of another length")
            for part, item in zip(checks, row, strict=True):
                part(item)

    return check


def fraction(value):
    """Check a reduced pair of numerator and denominator, and return it."""
    need(type(value) is list and len(value) == 2, "TYPE", "no fraction")
    uint()(value[0])
    uint(1)(value[1])
    need(math.gcd(*value) == 1, "RANGE", "fraction is not reduced")
    return Fraction(*value)


def shape(value, required, allowed=None):
    """Check that a value is a map with the required keys, perhaps some of the allowed ones, and their checks."""
    allowed = allowed or {}
    need(type(value) is dict, "TYPE", "no map")
    missing = [key for key in required if key not in value]
    other = [key for key in value if key not in required and key not in allowed]
    need(not missing and not other, "TYPE", f"fields missing {missing}, unknown {other}")
    for key, item in value.items():
        try:
            (required.get(key) or allowed[key])(item)
        except Refused as refused:
            raise Refused(refused.code, f"field {key}: {refused.text}") from None


micro = uint(1, MOST_MICRO)
moment = uint(0, LAST_MOMENT)
count32 = uint(1, 2**32 - 1)
hash32 = blob(32)
seconds = uint(1, 3153600000)
positive = uint(1, 10**9)


# --- Ed25519 and COSE_Sign1 -------------------------------------------------------------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def add_points(a, b):
    """Add two points in extended coordinates."""
    e = (a[1] - a[0]) * (b[1] - b[0]) % P
    f = (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    w, x, y, z = f - e, h - g, h + g, f + e
    return w * x % P, y * z % P, x * y % P, w * z % P


def times_point(scalar, point):
    """Multiply a point."""
    result = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = add_points(result, point)
        point, scalar = add_points(point, point), scalar >> 1
    return result


def is_neutral(point):
    """Tell whether it is the neutral element."""
    return point[0] % P == 0 and (point[1] - point[2]) % P == 0


SOUND_KEYS = {}


def sound_key(raw):
    """Tell whether 32 bytes are the canonical encoding of a point of prime order."""
    if raw not in SOUND_KEYS:
        SOUND_KEYS[raw] = point_is_sound(raw)
    return SOUND_KEYS[raw]


def point_is_sound(raw):
    """Decode a point, and hold its order against L."""
    y, sign = int.from_bytes(raw, "little") & (2**255 - 1), raw[31] >> 7
    if len(raw) != 32 or y >= P:
        return False
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and sign):
        return False
    if x & 1 != sign:
        x = P - x
    point = (x, y, 1, x * y % P)
    return not is_neutral(times_point(8, point)) and is_neutral(times_point(L, point))


def signature_ok(raw, signature, message):
    """Tell whether a signature of 64 bytes with S < L verifies under a sound key."""
    if len(signature) != 64 or int.from_bytes(signature[32:], "little") >= L or not sound_key(raw):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def key_id(raw):
    """Return the key id of a raw key."""
    return sha256(raw)[:8]


TYPE = "application/vnd.dptrain.%s+cose"


def protected_header(kind, kid, issuer, payload):
    """Return the bytes of the one protected header."""
    claims = {1: issuer, 2: "sha-256:" + sha256(payload).hex()}
    return encode({1: -19, 4: kid, 15: claims, 16: TYPE % kind})


def message_bytes(protected, signature):
    """Return the bytes of a message."""
    return b"\xd2" + encode([protected, {}, None, signature])


def read_message(message):
    """Return key id, issuer, subject, type, protected bytes and signature of a message of the one form."""
    need(type(message) is bytes, "TYPE", "no message")
    need(len(message) <= 1024, "SIZE", "message")
    need(message[:1] == b"\xd2", "CBOR", "no tag 18")
    parts = decode(message[1:])
    need(type(parts) is list and len(parts) == 4, "HEADER", "no COSE_Sign1")
    protected, unprotected, payload, signature = parts
    need(type(protected) is bytes and unprotected == {} and payload is None, "HEADER", "another form")
    need(type(unprotected) is dict and type(signature) is bytes, "HEADER", "another form")
    need(len(signature) == 64, "SIG_BAD", "signature is not 64 bytes")
    header = decode(protected)
    try:
        shape(header, {1: uint(-19, -19), 4: blob(8), 15: lambda v: shape(v, {1: text, 2: text}), 16: text})
    except Refused as refused:
        raise Refused("HEADER", refused.text) from None
    return header[4], header[15][1], header[15][2], header[16], protected, signature


def check_message(message, kind, payload, raw, issuer):
    """Refuse a message that is not this kind of signature, by this key and issuer, over this payload."""
    kid, named, subject, given, protected, signature = read_message(message)
    need(named == issuer, "HEADER", "another issuer")
    need(given == TYPE % kind, "HEADER", "another type")
    need(subject == "sha-256:" + sha256(payload).hex(), "HEADER", "another subject")
    need(sound_key(raw), "KEY_WEAK")
    need(kid == key_id(raw), "SIG_BAD", "another key id")
    signed = encode(["Signature1", protected, b"", payload])
    need(signature_ok(raw, signature, signed), "SIG_BAD", "signature does not verify")


def read_pair(data, limit=2**20):
    """Return payload and message of a .cose file."""
    parts = decode(data)
    need(type(parts) is list and len(parts) == 2 and all(type(x) is bytes for x in parts), "TYPE", "no signed document")
    need(len(parts[0]) <= limit, "SIZE", "payload")
    return parts


# --- Merkle trees (RFC 6962) ------------------------------------------------------------------------------------------


def leaf_hash(data):
    """Hash a leaf."""
    return sha256(b"\0", data)


def node_hash(left, right):
    """Hash two children."""
    return sha256(b"\1", left, right)


def levels_of(hashes):
    """Return the complete nodes of every level above these hashes, from level 0."""
    levels = [hashes]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)])
    return levels


def root_of(levels, size):
    """Return the root over the first leaves, given the complete nodes."""
    if size == 0:
        return sha256(b"")
    result, at = None, size
    for level in range(size.bit_length()):
        if at & 1:
            node = levels[level][at - 1]
            result = node if result is None else node_hash(node, result)
        at >>= 1
    return result


def merkle_root(leaves):
    """Return the root over leaves."""
    return root_of(levels_of([leaf_hash(leaf) for leaf in leaves]), len(leaves))


def aligned(first, end):
    """Return the maximal aligned subtrees [start, height] that tile a range."""
    result = []
    while first < end:
        height = (first & -first).bit_length() - 1 if first else 64
        while 1 << height > end - first:
            height -= 1
        result.append((first, height))
        first += 1 << height
    return result


# --- Signed notes, checkpoints, cosignatures --------------------------------------------------------------------------

ED25519, COSIGNATURE, SUMMARY_NAME = 1, 4, b"dptrain/summary/v1"


class VerifierKey:
    """A verifier key of a signed note: NAME+KEYID+BASE64."""

    def __init__(self, line, kind):
        """Parse, and hold the key id against name, type and key."""
        parts = line.split("+", 2)
        need(len(parts) == 3 and re.fullmatch(r"[0-9a-f]{8}", parts[1]), "VKEY", line)
        self.line, self.name = line, parts[0]
        need(self.name and not re.search(r"[\s+]", self.name), "VKEY", "name")
        data = unbase64(parts[2])
        need(data is not None and len(data) == 33 and data[0] == kind, "VKEY", "type or length")
        self.raw = data[1:]
        self.id = sha256(self.name.encode(), b"\n", data)[:4]
        need(self.id.hex() == parts[1], "VKEY", "key id")
        need(sound_key(self.raw), "KEY_WEAK", self.name)

    def summary_id(self):
        """Return the key id under which the same key vouches for summaries."""
        return sha256(self.name.encode() + b"/summary-v1\n\xff" + SUMMARY_NAME + self.raw)[:4]


def unbase64(value):
    """Return the bytes of canonical base64, or None."""
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError:
        return None
    return data if base64.b64encode(data).decode() == value else None


class Note:
    """A signed note: its text and the lines below it."""

    def __init__(self, data):
        """Parse text and lines."""
        need(len(data) <= 10**6, "NOTE", "too large")
        try:
            whole = data.decode("utf-8")
        except UnicodeDecodeError:
            raise Refused("NOTE", "not UTF-8") from None
        need(not re.search(r"[\x00-\x09\x0b-\x1f]", whole), "NOTE", "control character")
        at = whole.rfind("\n\n")
        need(at >= 0 and whole.endswith("\n"), "NOTE", "no signatures")
        self.text, self.lines = whole[: at + 1], []
        need(len(whole) > at + 2, "NOTE", "no signatures")
        for line in whole[at + 2 : -1].split("\n"):
            match = re.fullmatch(r"\u2014 ([^\s+]+) (\S+)", line)
            value = unbase64(match[2]) if match else None
            need(value is not None and len(value) > 4, "NOTE", "signature line")
            self.lines.append((match[1], value[:4], value[4:]))
        need(len(self.lines) <= 100, "NOTE", "too many lines")

    def signed_by(self, key):
        """Tell whether the ledger's key signed; refuse a line of its that does not verify."""
        signature = self.only_line(key.name, key.id, 64)
        if signature is None:
            return False
        need(signature_ok(key.raw, signature, self.text.encode()), "SIG_BAD", f"line of {key.name}")
        return True

    def only_line(self, name, kid, length):
        """Return what the one line of a key holds, or None without a line."""
        found = [signature for row, other, signature in self.lines if (row, other) == (name, kid)]
        need(len(found) < 2, "NOTE", f"two lines of {name}")
        need(not found or len(found[0]) == length, "SIG_BAD", f"line of {name}")
        return found[0] if found else None

    def cosigned_at(self, key):
        """Return the time of the line of a cosigner, or None; refuse one that does not verify."""
        signature = self.only_line(key.name, key.id, 72)
        if signature is None:
            return None
        time = int.from_bytes(signature[:8], "big")
        signed = f"cosignature/v1\ntime {time}\n{self.text}".encode()
        need(signature_ok(key.raw, signature[8:], signed), "SIG_BAD", f"line of {key.name}")
        return time

    def vouched(self, key):
        """Return time and first position of the statement of an auditor about summaries, or None."""
        signature = self.only_line(key.name + "/summary-v1", key.summary_id(), 80)
        if signature is None:
            return None
        time, since = struct.unpack(">QQ", signature[:16])
        signed = f"{SUMMARY_NAME.decode()}\ntime {time}\nsummaries from {since}\n{self.text}".encode()
        need(signature_ok(key.raw, signature[16:], signed), "SIG_BAD", f"statement of {key.name}")
        return time, since


def read_checkpoint(body, origin=None):
    """Return origin, size and root of the text of a checkpoint."""
    match = re.fullmatch(r"([^\n]+)\n(0|[1-9][0-9]{0,18})\n([A-Za-z0-9+/=]{44})\n((?:[^\n]+\n)*)", body)
    need(match, "CHECKPOINT", "not origin, size and root")
    root = unbase64(match[3])
    need(root is not None and len(root) == 32, "CHECKPOINT", "root")
    need(origin is None or match[1] == origin, "CHECKPOINT", "another origin")
    need(int(match[2]) < 2**63 and (match[2] != "0" or root == sha256(b"")), "CHECKPOINT", "size")
    return match[1], int(match[2]), root


# --- Attestations -----------------------------------------------------------------------------------------------------


def purposes(value):
    """Check purposes: no queries are served."""
    need(type(value) is list and value, "TYPE", "purposes")
    rows(word("generate", "query", "train"))(value)
    need(value == sorted(set(value)), "RANGE", "purposes")
    need("query" not in value, "PURPOSE", str(value))


DESCRIPTOR = {
    1: text, 2: hash32, 3: hash32, 4: identifier, 5: micro, 6: micro, 7: hash32, 8: moment, 9: moment, 10: hash32,
    11: identifier, 12: uint(0, 2**32 - 1),
}  # fmt: skip
DESCRIPTOR_OPTIONAL = {13: count32, 14: micro, 15: uint(1, 10**12 - 1), 16: purposes, 17: count32}


def read_descriptor(data):
    """Return the fields of a descriptor."""
    need(len(data) <= 16384, "SIZE", "descriptor")
    value = decode(data)
    need(type(value) is dict, "TYPE", "descriptor")
    if type(value.get(1)) is str:
        need(value[1] == "dptrain.contribution/2", "SCHEMA", value[1])
    shape(value, DESCRIPTOR, DESCRIPTOR_OPTIONAL)
    need((14 in value) == (15 in value), "RANGE", "limit without a delta, or a delta without a limit")
    need(value[8] < value[9], "WINDOW", "ends before it begins")
    return value


def judge_purpose(descriptor, rule, purpose="train"):
    """Step 13: hold a use against what the contributor signed and the class has."""
    need(purpose in descriptor.get(16, ["train"]), "PURPOSE", f"not signed to {purpose}")
    need(purpose in rule["purposes"], "PURPOSE", f"class {rule['name']} is not to {purpose}")


def judge_bounds(descriptor, rule, policy):
    """Step 15: hold the bounds of a descriptor against its class and the policy."""
    clip, sigma = descriptor[5], descriptor[6]
    if rule["public"]:
        need(clip == MOST_MICRO and sigma == 1, "BOUNDS_NOT_PUBLIC")
    need(clip <= rule["clip"], "CLIP_ABOVE_CLASS")
    need(sigma >= rule["sigma"], "NOISE_BELOW_CLASS")
    if not rule["public"]:
        need(clip >= policy[15], "CLIP_BELOW_FLOOR")
        need(sigma >= policy[16], "NOISE_BELOW_FLOOR")
    need(descriptor.get(13, 1) <= policy[19], "EXAMPLES")
    need(17 not in descriptor or descriptor[17] in rule["lengths"], "PUBLIC_LENGTH")


# --- Policy -----------------------------------------------------------------------------------------------------------


def numbers(value):
    """Check an array of numbers, strictly ascending."""
    rows(uint(0, 65535))(value)
    need(1 <= len(value) <= 4096, "RANGE", "how many numbers")
    need(value == sorted(set(value)), "RANGE", "numbers do not ascend")


def band(value):
    """Check a band of the depth."""
    need(type(value) is list and len(value) == 2, "TYPE", "band")
    low, high = fraction(value[0]), fraction(value[1])
    need(0 <= low < high <= 1, "RANGE", "band")


def patterns(value):
    """Check name patterns."""
    rows(text)(value)
    need(1 <= len(value) <= 4096 and all(1 <= len(x.encode()) <= 128 for x in value), "RANGE", "patterns")


def depth_rule(value):
    """Check a depth: exactly one of 1 to 4, and what may stand beside it."""
    masks = {7: numbers, 8: numbers} if type(value) is dict and (1 in value or 2 in value) else {}
    whole = {1: band, 2: numbers, 3: patterns, 4: text, 5: boolean, 6: boolean, **masks}
    shape(value, {}, whole)
    need(sum(key in value for key in (1, 2, 3, 4)) == 1, "TYPE", "not exactly one form of depth")
    need(4 not in value or 1 <= len(value[4].encode()) <= 64, "RANGE", "adapter")


def class_rule(value):
    """Check a class of the policy."""
    required = {1: identifier, 2: micro, 3: micro, 4: fraction, 5: depth_rule, 6: optional(seconds)}
    shape(value, required, {7: only_true, 8: micro, 9: reads, 10: purposes, 11: decoding, 12: not_built, 13: lengths})
    own = value[5].get(4)
    need(9 not in value or own is None or own in value[9][1], "RANGE", "an adapter that is touched and not read")
    need(value.get(10) != ["train"], "CBOR_NONCANONICAL", "a default written out")
    need(("generate" in value.get(10, [])) == (11 in value), "RANGE", "generation and its purpose")
    need(0 < fraction(value[4]) <= 1, "RANGE", "sampling rate")
    if 7 in value:
        need(value[2] == MOST_MICRO and value[3] == 1 and 8 not in value, "RANGE", "public class")


def decoding(value):
    """Check how texts are generated, and that max rho pays for one of them."""
    shape(value, {1: uint(1, 65535), 2: micro, 3: micro, 4: count32, 5: uint(1, 10**15)}, {6: count32})
    token = -(-(10**9) * value[2] ** 2 // (2 * value[1] ** 2 * value[3] ** 2))
    need(value[4] * token <= value[5], "RANGE", "max rho pays for no text")


def lengths(value):
    """Check the public lengths of a class."""
    rows(count32)(value)
    need(1 <= len(value) <= 64 and value == sorted(set(value)), "RANGE", "lengths")


def reads(value):
    """Check what the forward of a class reads."""
    shape(value, {1: lambda names: names == [] or adapter_names(names)}, {2: lambda item: patterns(item) or not_built(item)})
    need(type(value[1]) is list, "TYPE", "no adapters")


def not_built(value):
    """Refuse what the format has and no version serves yet."""
    raise Refused("NOT_BUILT", str(value)[:100])


def with_word(value, words_, rest):
    """Check a word that has no parameters, and what stands behind them."""
    need(type(value) is list and len(value) == 2 + len(rest), "TYPE", "no word with its parameters")
    text(value[0])
    need(value[0] in words_, "NOT_BUILT", value[0])
    shape(value[1], {})
    need(value[2:] == rest, "TYPE", "more than word and parameters")


def mechanism(value):
    """Check the law of the noise."""
    if type(value) is list and len(value) == 3 and type(value[0]) is str and value[0] in CORRELATED:
        in_file = value[0] in ("banded", "dense")
        if value[0] == "buffered_toeplitz":
            buffers(value[1])
        elif value[0] == "dense":
            shape(value[1], {})
        elif in_file or value[2] is not None:
            shape(value[1], {1: uint(2, 10**9)}, {3: only_true})
        else:
            bands(value[1])
        need(value[2] is not None or not in_file, "RANGE", "no digest")
        need(value[2] is None or value[0] != "buffered_toeplitz", "RANGE", "a digest of buffers")
        optional(hash32)(value[2])
    else:
        with_word(value, ("gaussian", "laplace", "discrete_gaussian", "skellam"), [None])


def bands(value):
    """Check the parameters of a strategy whose coefficients are among them."""
    shape(value, {1: uint(2, 10**9), 2: rows(of_type(int))}, {3: only_true})
    need(len(value[2]) == value[1] <= 4096 and value[2][0] == 2**20, "RANGE", "as many as bands, the first 2^20")
    need(all(abs(number) <= 2**20 for number in value[2]), "RANGE", "coefficients")


def buffers(value):
    """Check the parameters of a strategy of buffers."""
    shape(value, {1: rows(uint(1, 2**40 - 1)), 2: rows(uint(1, 2**40))})
    need(1 <= len(value[1]) <= 16 and len(value[1]) == len(value[2]), "RANGE", "as many scales as decays")


def sampling(value):
    """Check the order of draws; Poisson draws are told by no field."""
    if type(value) is list and len(value) == 2 and value[0] == "cyclic_poisson":
        shape(value[1], {1: uint(2, 10**9)})
    else:
        with_word(value, ("cyclic", "shuffled"), [])


def geometry(value):
    """Check the geometry of adapters."""
    rows(word("lora_tangent"), lambda item: shape(item, {}), optional(adapter_names))(value)
    need(1 <= len(value) <= 64, "RANGE", "geometries")
    need(len(value) == 1 or all(row[2] is not None for row in value), "RANGE", "all adapters, and others")
    named = [name for row in value for name in row[2] or []]
    need(len(set(named)) == len(named), "RANGE", "an adapter in two of them")


def adapter_names(value):
    """Check names of adapters, strictly ascending."""
    rows(text)(value)
    need(1 <= len(value) <= 256 and value == sorted(set(value)), "RANGE", "adapters")
    need(all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in value), "RANGE", "name of an adapter")


def cosigner_keys(value):
    """Check the verifier keys of auditors or witnesses."""
    rows(text)(value)
    need(1 <= len(value) <= 32 and len(set(value)) == len(value), "RANGE", "keys")
    need(len({VerifierKey(line, COSIGNATURE).raw for line in value}) == len(value), "RANGE", "a key twice")


CORRELATED = ("banded_toeplitz", "banded_inverse", "buffered_toeplitz", "banded", "dense")
POLICY = {
    1: word("dptrain.policy/2"), 2: identifier, 3: fraction, 4: word("pld", "rdp", "moments", "prv"), 5: word("zero-out"),
    6: word("secret_poisson", "occurrences_public", "secret_draws"), 7: word("fast", "certified"), 8: positive, 9: uint(),
    10: positive, 11: positive, 12: count32, 13: mechanism,
    14: word("scheduled", "per_microbatch", "per_sample"), 15: micro, 16: micro, 17: seconds, 18: count32, 19: count32,
    20: uint(), 21: hash32, 22: rows(class_rule),
}  # fmt: skip
POLICY_OPTIONAL = {
    23: uint(1, 65536), 24: rows(positive, uint(MICRO, MOST_MICRO)), 25: rows(uint(1, 10**9)), 26: sampling,
    27: cosigner_keys, 28: uint(1, 32), 30: uint(1, 10**9), 31: only_true, 32: cosigner_keys, 33: uint(1, 32), 34: geometry,
}  # fmt: skip


def read_policy(data):
    """Return the fields of a policy, with its classes as dictionaries under "classes"."""
    need(len(data) <= 2**20, "SIZE", "policy")
    policy = decode(data)
    shape(policy, POLICY, POLICY_OPTIONAL)
    need(0 < fraction(policy[3]) < 1, "RANGE", "delta")
    need((23 in policy) == (policy[14] == "per_microbatch"), "RANGE", "injections per step")
    phases = policy.get(24, [[1, MICRO]])
    need(1 <= len(phases) <= 64, "RANGE", "phases")
    steps = [first for first, _ in phases]
    need(steps == sorted(set(steps)) and steps[-1] <= policy[8], "RANGE", "phases")
    need(policy[14] != "per_sample" or not {24, 25} & set(policy), "RANGE", "phases or budgets with per_sample")
    need(25 not in policy or len(policy[25]) == 3, "RANGE", "budgets")
    need((27 in policy) == (28 in policy) and (32 in policy) == (33 in policy), "RANGE", "keys without a quorum")
    auditors, witnesses = policy.get(27, []), policy.get(32, [])
    need(policy.get(28, 0) <= len(auditors) and policy.get(33, 0) <= len(witnesses), "RANGE", "quorum")
    need(not set(auditors) & set(witnesses) and len(auditors) + len(witnesses) <= 32, "RANGE", "auditors and witnesses")
    need(30 not in policy or (27 in policy and 0 < policy[20] <= policy[30]), "RANGE", "second horizon")
    need(34 not in policy or (policy[13][0], policy[7]) == ("gaussian", "fast"), "GEOMETRY", "with other noise, or certified")
    policy["order"], parameters = policy.get(26, ["poisson", {}])
    policy["turns"], policy["groups"] = policy["order"] in ("cyclic", "shuffled"), parameters.get(1, 1)
    kept = {"poisson": "secret_poisson", "cyclic_poisson": "secret_draws"}.get(policy["order"])
    need(policy[6] in ("occurrences_public", kept), "RANGE", "order and disclosure")
    need(1 <= len(policy[22]) <= 256, "RANGE", "classes")
    names = [rule[1] for rule in policy[22]]
    need(len(set(names)) == len(names), "RANGE", "a class twice")
    policy["classes"] = [
        {"name": rule[1], "clip": rule[2], "sigma": rule[3], "q": fraction(rule[4]), "depth": rule[5],
         "validity": rule[6], "public": 7 in rule, "limit": rule.get(8), "lengths": rule.get(13, []),
         "reads": rule[9][1] if 9 in rule else None, "purposes": rule.get(10, ["train"])}
        for rule in policy[22]
    ]  # fmt: skip
    need(31 in policy or all(rule["reads"] is None for rule in policy["classes"]), "RANGE", "reads without statement A")
    need(not policy["turns"] or all(rule["q"].numerator == 1 for rule in policy["classes"]), "RANGE", "order")
    return policy


# --- Registry ---------------------------------------------------------------------------------------------------------


def class_names(value):
    """Check the classes of an action."""
    rows(identifier)(value)
    need(len(value) <= 256 and value == sorted(set(value)), "RANGE", "classes are not sorted")


CAP = optional(uint(0, 2**32 - 1))
ACTIONS = {
    0: (blob(16), identifier),
    1: (hash32, hash32, moment, moment, class_names, CAP, optional(hash32)),
    2: (hash32, class_names, CAP),
    3: (blob(), blob(), blob(), moment, moment, moment),
    4: (hash32, optional(hash32), moment),
    5: (blob(), blob()),
    6: (blob(), blob()),
    7: (moment, lambda value: need(type(value) is str and PRINTABLE.fullmatch(value), "TYPE", "reason")),
}
STATEMENT = {
    1: word("dptrain.key-statement/2"), 2: word("rotate", "revoke", "prove"), 3: blob(16), 4: optional(hash32), 5: moment,
    6: optional(hash32), 7: optional(moment),
}  # fmt: skip


class Registry:
    """The state of a registry after all its entries, or after those up to a root."""

    def __init__(self, data, owner, owner_key, named=()):
        """Verify every entry, and keep the states behind the entries whose roots are named."""
        need(len(data) <= 2**28, "SIZE", "registry")
        self.roots, self.contributors, self.keys, self.seen = [], {}, {}, set()
        self.id, self.time, self.owner, self.root = None, 0, owner, bytes(32)
        self.states = {}
        for seq, item in enumerate(sequence(data)):
            try:
                self.entry(seq, item, owner_key)
            except Refused as refused:
                raise Refused("REGISTRY", f"entry {seq}: {refused}") from None
            if self.root in named:
                self.states[self.root] = self.snapshot()
        need(self.roots, "REGISTRY", "empty")

    def snapshot(self):
        """Return keys and contributors as they stand."""
        people = {name: dict(state) for name, state in self.contributors.items()}
        return {raw: dict(state) for raw, state in self.keys.items()}, people

    def entry(self, seq, item, owner_key):
        """Verify one entry and apply its actions."""
        need(type(item) is list and len(item) == 2 and all(type(x) is bytes for x in item), "TYPE", "no entry")
        payload, message = item
        need(len(payload) <= 2**20, "SIZE", "entry")
        value = decode(payload)
        whole = {1: word("dptrain.registry-entry/2"), 2: uint(seq, seq), 3: hash32, 4: moment, 5: lambda v: None}
        shape(value, whole)
        check_message(message, "registry", payload, owner_key, self.owner)
        need(value[3] == self.root, "ROOT", "another root before")
        need(type(value[5]) is list and value[5], "TYPE", "no actions")
        before, self.time = self.time, value[4]
        for place, action in enumerate(value[5]):
            need(type(action) is list and action and type(action[0]) is int, "TYPE", "no action")
            code, fields = action[0], action[1:]
            need(code in ACTIONS, "RANGE", f"action {code}")
            need(len(fields) == len(ACTIONS[code]), "TYPE", f"action {code}")
            for check, field in zip(ACTIONS[code], fields, strict=True):
                check(field)
            need((code == 0) == (seq == 0 and place == 0), "RANGE", "create")
            need(code != 7 or (place == 0 and seq), "RANGE", "set clock")
            if code == 7:
                need(fields[0] == before and self.time < before, "CLOCK", "set clock")
            elif place == 0:
                need(self.time >= before, "CLOCK", "times run back")
            self.apply(code, fields)
        self.root = sha256(b"dptrain.registry.root/1\0", payload)
        self.roots.append(self.root)

    def apply(self, code, fields):
        """Apply one action."""
        if code == 0:
            self.id = fields[0]
            need(fields[1] == self.owner, "OWNER", "another owner")
        elif code == 1:
            self.enrol(*fields)
        elif code == 2:
            person = self.person(fields[0])
            person["classes"], person["cap"] = set(fields[1]), fields[2]
        elif code == 3:
            self.rotate(*fields)
        elif code == 4:
            self.person(fields[0])
            self.revoke(fields[0], fields[1], fields[2])
        elif code in (5, 6):
            self.statement_action(code, *fields)

    def person(self, name):
        """Return the state of a contributor."""
        need(name in self.contributors, "UNKNOWN", "no such contributor")
        return self.contributors[name]

    def new_key(self, name, raw, start, end):
        """Give a contributor a key."""
        need(raw not in self.keys, "KEY_TWICE", raw.hex())
        need(int.from_bytes(raw, "little") & (2**255 - 1) < P and sound_key(raw), "KEY_WEAK", raw.hex())
        need(start < end, "RANGE", "validity of a key")
        self.keys[raw] = {"who": name, "from": start, "to": end, "revoked": None}

    def enrol(self, name, raw, start, end, classes, cap, principal):
        """Enrol a contributor, or one more key of one."""
        person = self.contributors.setdefault(name, {"classes": set(), "cap": None, "principal": None})
        person["classes"] = person["classes"] | set(classes)
        if cap is not None:
            person["cap"] = cap
        if principal is not None:
            need(person["principal"] in (None, principal), "PRINCIPAL", "another principal")
            person["principal"] = principal
        self.new_key(name, raw, start, end)

    def revoke(self, name, raw, time):
        """Revoke a key, or all keys, of a contributor."""
        chosen = [key for key, state in self.keys.items() if state["who"] == name and raw in (None, key)]
        need(chosen, "UNKNOWN", "no such key")
        for key in chosen:
            before = self.keys[key]["revoked"]
            self.keys[key]["revoked"] = time if before is None else min(before, time)
            self.keys[key]["said"] = min(self.keys[key].get("said", LAST_MOMENT), max(self.time, time))

    def statement(self, data, kind):
        """Return the fields of a key statement."""
        value = decode(data)
        shape(value, STATEMENT)
        need(value[2] == kind and value[3] == self.id, "STATEMENT", "kind or registry")
        need((value[6] is not None) == (kind == "rotate"), "STATEMENT", "new key")
        need((value[7] is not None) == (kind == "revoke"), "STATEMENT", "revoked at")
        need(value[4] is not None or kind == "revoke", "STATEMENT", "key")
        need(self.time - MONTH <= value[5] <= self.time + HOUR, "STATEMENT", "signed at another time")
        need(data not in self.seen, "STATEMENT", "taken in twice")
        self.seen.add(data)
        return value

    def valid_key(self, raw):
        """Return the state of a key that is valid at the time of the entry."""
        need(raw in self.keys, "KEY_UNKNOWN")
        need(key_state(self.keys[raw], self.time) == "", "KEY_NOT_VALID")
        return self.keys[raw]

    def rotate(self, data, by_old, by_new, start, end, old_end):
        """Take in a new key that the old one signed."""
        value = self.statement(data, "rotate")
        old = self.valid_key(value[4])
        check_message(by_old, "key", data, value[4], value[4].hex())
        check_message(by_new, "key", data, value[6], value[6].hex())
        need(old_end <= old["to"], "RANGE", "new end of the old key")
        self.new_key(old["who"], value[6], start, end)
        old["to"] = old_end

    def statement_action(self, code, data, message):
        """Take in a contributor's own revocation or proof."""
        value = self.statement(data, "revoke" if code == 5 else "prove")
        if code == 6:
            need(value[4] in self.keys, "KEY_UNKNOWN")
            check_message(message, "key", data, value[4], value[4].hex())
            return
        kid, issuer = read_message(message)[:2]
        signers = [raw for raw in self.keys if raw.hex() == issuer and key_id(raw) == kid]
        need(len(signers) == 1, "KEY_UNKNOWN")
        signer = self.valid_key(signers[0])
        check_message(message, "key", data, signers[0], issuer)
        need(value[4] is None or self.keys.get(value[4], {}).get("who") == signer["who"], "KEY_UNKNOWN", "not its own")
        self.revoke(signer["who"], value[4], value[7])


def key_state(state, time):
    """Return why a key is not valid at a time, or nothing."""
    if state["revoked"] is not None and time >= state["revoked"]:
        return "KEY_REVOKED"
    return "" if state["from"] <= time < state["to"] else "KEY_NOT_VALID"


# --- Blocks: dptrain.depth/1 ------------------------------------------------------------------------------------------

HEAD = 2**31  # the head comes behind all layers
KINDS = ("heads", "experts")
WHOLE_KINDS = ("attention", "router")


class Names:
    """Reads names, each told by the words that it shares with the one before."""

    def __init__(self, words):
        """Begin before the first name."""
        self.words, self.before, self.used = words, [], []

    def read(self, item):
        """Return the next name."""
        rows(uint())(item)
        need(item, "STACK", "empty name")
        shared, places = item[0], item[1:]
        need(shared <= len(self.before) and all(place < len(self.words) for place in places), "STACK", "name")
        self.used += places
        name = self.before[:shared] + [self.words[place] for place in places]
        common = 0
        while common < min(len(name), len(self.before)) and name[common] == self.before[common]:
            common += 1
        need(name and common == shared, "STACK", "name shares more or fewer words")
        need("" not in name or name == [""], "STACK", "empty word")
        self.before = name
        return ".".join(name)


def in_order_of_use(used, count, what):
    """Check that each of so many is used, first in ascending order."""
    need(list(dict.fromkeys(used)) == list(range(count)), "STACK", f"{what} not in the order of their first use")


def read_stack(stack):
    """Return towers and parameters of a stack."""
    need(type(stack) is list and len(stack) == 5 and all(type(x) is list for x in stack), "STACK", "no five arrays")
    words, towers, divisions, forms, parameters = stack
    rows(text)(words)
    need(len(set(words)) == len(words) and not any("." in word for word in words), "STACK", "words")
    names, layers = Names(words), []
    rows(text, text, lambda v: need(type(v) is list, "STACK", "layers"))(towers)
    for name, root, items in towers:
        layers.append((name, root, [names.read(item) for item in items]))
    need(layers and len({name for name, _, _ in layers}) == len(layers), "STACK", "towers")
    need(len({layer for _, _, items in layers for layer in items}) == sum(len(x[2]) for x in layers), "STACK", "a layer twice")
    whole = [layer for _, _, items in layers for layer in items]
    need("" not in whole or len(whole) == 1, "STACK", "the layer of the empty name, which is the model, beside others")
    rows(uint(0, 1), uint(1), rows(uint(), uint(1), uint(1)))(divisions)
    for _, count, entries in divisions:
        pairs = [(first, stop) for first, stop, _ in entries]
        need(all(a < b <= count for a, b in pairs) and pairs == sorted(set(pairs)), "STACK", "division")
        need(not entries or math.gcd(*[weight for _, _, weight in entries]) == 1, "STACK", "weights")
    place = rows(uint(-1), uint(-2))
    rows(uint(1), boolean, optional(text), place, rows(uint()))(forms)
    result, seen, before = [], set(), ""
    for item in parameters:
        need(type(item) is list and len(item) >= 2 and type(item[0]) is int, "STACK", "parameter")
        need(0 <= item[0] < len(forms), "STACK", "form")
        own = [names.read(name) for name in item[1:]]
        need(own == sorted(set(own)) and not seen & set(own), "STACK", "a name twice")
        need(own[0] > before, "STACK", "parameters do not ascend")
        seen, before = seen | set(own), own[0]
        result.append(read_parameter(own, item[0], forms[item[0]], layers, divisions))
    in_order_of_use(names.used, len(words), "words")
    in_order_of_use([item[0] for item in parameters], len(forms), "forms")
    in_order_of_use([number for form in forms for number in form[4]], len(divisions), "divisions")
    return layers, result


def read_parameter(names, form_number, form, layers, divisions):
    """Return a parameter with its places."""
    coordinates, trained, adapter, places, numbers_ = form
    told, outside = set(), False
    for name in names:
        found = [
            (tower, depth)
            for tower, (_, _, items) in enumerate(layers)
            for depth, layer in enumerate(items)
            if not layer or name.startswith(layer + ".")
        ]
        if found:
            told.add(min(found, key=lambda x: x[1]))
        outside = outside or not found
    given = {(tower, HEAD if position == -2 else position) for tower, position in places}
    need(len(given) == len(places), "STACK", "a place twice")
    for tower, position in given:
        need(tower < len(layers), "STACK", "tower")
        inside = 0 <= position < HEAD
        need(not inside or (tower >= 0 and position < len(layers[tower][2])), "STACK", "position")
        need((tower, position) not in told, "STACK", "a place that its names tell")
        need(adapter is not None or (outside and not inside), "STACK", "a place where its names do not lie")
    whole = told | given
    need(whole, "STACK", f"{names[0]} has no place")
    key = sorted((layers[t][0] if t >= 0 else "", p) for t, p in whole)
    need(all(number < len(divisions) for number in numbers_), "STACK", "division")
    return {
        "names": names, "form": form_number, "size": coordinates, "trained": trained, "adapter": adapter, "places": key,
        "where": whole, "divisions": [divisions[number] for number in numbers_],
    }  # fmt: skip


def permits(depth, parameter, layers):
    """Tell whether a depth permits a parameter."""
    if 3 in depth:
        tests = [re.compile(fnmatch.translate(pattern)) for pattern in depth[3]]
        return all(any(test.match(name) for test in tests) for name in parameter["names"])
    if 4 in depth:
        return parameter["adapter"] == depth[4]
    low, high = (Fraction(*pair) for pair in depth[1]) if 1 in depth else (None, None)
    for tower, position in parameter["where"]:
        if position in (-1, HEAD):
            default = (low == 0 if position == -1 else high == 1) if 1 in depth else False
            allowed = depth.get(5 if position == -1 else 6, default)
        elif 1 in depth:
            count = len(layers[tower][2])
            allowed = math.floor(low * count) <= position < math.ceil(high * count)
        else:
            allowed = position in depth[2]
        if not allowed:
            return False
    return True


def pieces_of(parameter, classes, layers):
    """Return the pieces of a parameter: class indices, coordinates, label."""
    allowed = [i for i, rule in enumerate(classes) if permits(rule["depth"], parameter, layers)]
    masks = [{kind: set(classes[i]["depth"].get(7 + kind, ())) or None for kind in (0, 1)} for i in range(len(classes))]
    divisions = parameter["divisions"]
    masked = [d for d in divisions if any(masks[i][d[0]] is not None for i in allowed)]
    if not masked:
        return [(allowed, parameter["size"], ("", []))]
    kind = masked[0][0]
    if len(divisions) > 1:

        def whole(i, division):
            mask, entries = masks[i][division[0]], division[2]
            if mask is None or not entries:
                return mask is None
            return mask >= set(range(min(e[0] for e in entries), max(e[1] for e in entries)))

        left = [i for i in allowed if all(whole(i, division) for division in divisions)]
        return [(left, parameter["size"], (WHOLE_KINDS[kind], []))]
    _, count, entries = divisions[0]
    if not entries:
        return [([i for i in allowed if masks[i][kind] is None], parameter["size"], ("router", []))]
    total, parts = sum(entry[2] for entry in entries), {}
    for first, stop, weight in entries:
        left = tuple(i for i in allowed if masks[i][kind] is None or masks[i][kind] >= set(range(first, stop)))
        owners, sum_ = parts.get(left, (set(), 0))
        parts[left] = (owners | set(range(first, stop)), sum_ + weight)
    result = []
    for left, (owners, weight) in parts.items():
        need(parameter["size"] * weight % total == 0, "STACK", "a division does not divide")
        same = [o for o in range(count) if tuple(i for i in allowed if masks[i][kind] is None or o in masks[i][kind]) == left]
        label = (KINDS[kind], same) if owners <= set(same) else (WHOLE_KINDS[kind], [])
        result.append((list(left), parameter["size"] * weight // total, label))
    return result


def runs(values):
    """Return the runs of ascending numbers, as pairs of first and last."""
    result = []
    for value in values:
        if result and result[-1][1] == value - 1:
            result[-1][1] = value
        else:
            result.append([value, value])
    return result


def block_name(places, adapter, label):
    """Return the name of a block, without what tells it from others of one name."""
    parts = []
    for tower in dict.fromkeys(name for name, _ in places):
        before = tower + "." if tower else ""
        positions = [position for name, position in places if name == tower]
        parts += [before + "embeddings"] * (-1 in positions)
        for first, last in runs([p for p in positions if 0 <= p < HEAD]):
            if last - first > 1:
                parts.append(f"{before}layer.{first}-{last}")
            else:
                parts += [f"{before}layer.{p}" for p in range(first, last + 1)]
        parts += [before + "head"] * (HEAD in positions)
    name = "+".join(parts) + (f" adapter {adapter}" if adapter else "")
    if label[0]:
        name += " " + label[0]
    if label[1]:
        pairs = [f"{a}-{b}" if b > a else str(a) for a, b in runs(label[1])]
        name += " " + "+".join(pairs if len(pairs) <= 12 else pairs[:10])
        name += f"+... ({len(label[1])})" if len(pairs) > 12 else ""
    return name


def derive_blocks(classes, stack):
    """Return the blocks that follow from policy and stack: name, coordinates, class indices."""
    layers, parameters = read_stack(stack)
    bound = {rule["depth"].get(4) for rule in classes}
    live, frozen = {}, {}
    for parameter in parameters:
        places = parameter["places"]
        where = (sorted({position for _, position in places}), places)
        pieces = pieces_of(parameter, classes, layers) if parameter["trained"] else [([], parameter["size"], ("", []))]
        for allowed, size, label in pieces:
            if allowed:
                adapter = parameter["adapter"] if parameter["adapter"] in bound else None
                key = (*where, adapter or "", label, [classes[i]["name"] for i in allowed])
                chosen, value = live, (adapter, label, allowed)
            else:
                key, chosen, value = (*where, not parameter["trained"]), frozen, (None, ("", []), [])
            entry = chosen.setdefault(repr(key), [key, value, 0, set()])
            entry[2] += size
            entry[3].add(parameter["adapter"])
    blocks, seen = [], {}
    for table, is_frozen in ((live, False), (frozen, True)):
        for key, (adapter, label, allowed), size, within in sorted(table.values(), key=lambda x: x[0]):
            name = block_name(key[1], adapter, label)
            suffix = ""
            if is_frozen:
                suffix = " (untrained)" if key[2] else " (frozen)"
            elif all(classes[i]["public"] for i in allowed):
                suffix = " (public)"
            if not is_frozen:
                seen[name] = seen.get(name, 0) + 1
                name += f"#{seen[name]}" if seen[name] > 1 else ""
            blocks.append((name + suffix, size, allowed, key[0], within))
    return blocks


def check_reads(classes, stack, blocks, said):
    """Hold the blocks that classes are said to read against policy and stack, and return what influences what."""
    narrowed = any(rule["reads"] is not None for rule in classes)
    need((said is not None) == narrowed, "READS", "reads that no class has, or none where one has them")
    if not narrowed:
        return
    parameters = read_stack(stack)[1]
    there = {parameter["adapter"] for parameter in parameters} - {None}
    for parameter in parameters:
        own = parameter["adapter"]
        need(own is None or all(own in name.split(".") for name in parameter["names"]), "READS", parameter["names"][0])
    expected = []
    for number, rule in enumerate(classes):
        need(set(rule["reads"] or ()) <= there, "READS", "an adapter that the model does not have")
        seen = []
        for place, (name, _, allowed, _, within) in enumerate(blocks):
            if rule["reads"] is None or within & {None, *rule["reads"]}:
                seen.append(place)
            else:
                need(number not in allowed, "READS", f"{rule['name']} touches {name}, which it does not read")
        expected.append([rule["name"], seen])
    need(said[1] == expected, "READS", "other reads than follow")


def factors(policy, parameters):
    """Return the places of factors under the geometry of a policy, by what is around them and their adapter."""
    chosen = [row[2] for row in policy[34]]
    present = {parameter["adapter"] for parameter in parameters} - {None}
    adapters = present if None in chosen else {name for names in chosen for name in names}
    found = {}
    for place, parameter in enumerate(parameters):
        for name in parameter["names"] if parameter["trained"] else ():
            match = re.fullmatch(r"(?:(.*)\.)?(lora_(?:embedding_)?[AB]|lora_magnitude_vector)(?:\.(.*))?", name, re.DOTALL)
            if match is None:
                continue
            outer, mark, behind = match.groups("")
            adapter = parameter["adapter"]
            if adapter not in adapters:
                of_model = None in chosen and adapter is None and behind.endswith(".weight")
                lent = mark in ("lora_A", "lora_B") and (of_model or behind in {f"{other}.weight" for other in adapters})
                need(not lent, "GEOMETRY", f"{name} is of another adapter")
            elif (mark, behind) != ("lora_B", f"{adapter}.bias"):
                sound = mark in ("lora_A", "lora_B") and behind == f"{adapter}.weight"
                need(sound, "GEOMETRY", f"{name} is no factor of a pair")
                need(len(parameter["names"]) == 1, "GEOMETRY", f"{name} has other names")
                found.setdefault((outer, adapter), {})[mark] = place
    need(found and (None in chosen or adapters == {adapter for _, adapter in found}), "GEOMETRY", "an adapter without a pair")
    return found


def check_geometry(policy, classes, stack, said):
    """Hold the pairs of a header against what follows from policy and stack."""
    need((said is not None) == (34 in policy), "GEOMETRY", "pairs without a geometry, or none with one")
    if said is None:
        return
    layers, parameters = read_stack(stack)
    expected = []
    for own in factors(policy, parameters).values():
        need(len(own) == 2, "GEOMETRY", "a factor without its partner")
        lying = []
        for place in own.values():
            parameter = parameters[place]
            parts = pieces_of(parameter, classes, layers)
            need(len(parts) == 1, "GEOMETRY", f"a mask cuts {parameter['names'][0]}")
            allowed, _, label = parts[0]
            lying.append((parameter["places"], list(allowed), label if allowed else None))
        need(lying[0] == lying[1], "GEOMETRY", "a pair in two blocks")
        expected.append([own["lora_B"], own["lora_A"]])
    need([row[:2] for row in said[1]] == sorted(expected), "GEOMETRY", "other pairs than follow")
    for first, second, rank in said[1]:
        for size in (parameters[first]["size"], parameters[second]["size"]):
            need(size and size % rank == 0, "GEOMETRY", f"rank {rank} of {size} coordinates")


# --- Privacy loss -----------------------------------------------------------------------------------------------------

TAIL = 1e-15


def loss_at(q, z, x):
    """Return the loss of one step at a point."""
    return float(numpy.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + (2 * x - 1) / (2 * z * z)))


def step_distribution(q, z, remove, width):
    """Return first index and masses on a grid of the loss of one step.

    Pair: (1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2), with `remove` in this order, else the other way round. The mass
    between two points of the grid goes to both so that the masses of both distributions stay what they are, which adds
    width^2 / 6 to the variance of the loss: the Gaussian step of the page ("Epsilon").
    """
    low, high = -9.5 * z, 1 + 9.5 * z
    first, last = math.floor(loss_at(q, z, low) / width), math.ceil(loss_at(q, z, high) / width)
    points = numpy.arange(first, last + 1) * width
    with numpy.errstate(divide="ignore", invalid="ignore"):
        x = z * z * (numpy.log(numpy.expm1(points) + q) - math.log(q)) + 0.5
    x = numpy.clip(numpy.nan_to_num(x, nan=low, neginf=low), low, high)
    x[0], x[-1] = low, high
    masses = []
    for mean in (0.0, 1.0):
        u = (x - mean) / z
        masses.append(numpy.where(u[:-1] > 0, -numpy.diff(special.ndtr(-u)), numpy.diff(special.ndtr(u))))
    base, mixed = masses[0], (1 - q) * masses[0] + q * masses[1]
    if remove:
        return first, split_masses(mixed, base, points, width)
    return -last, split_masses(base[::-1], mixed[::-1], -points[::-1], width)


def split_masses(upper, lower, points, width):
    """Split the mass of every cell: a + b = upper, a e^-y + b e^-(y + width) = lower."""
    above = (upper - lower * numpy.exp(numpy.minimum(points[:-1], 700.0))) / -math.expm1(-width)
    above = numpy.clip(above, 0, upper)
    result = numpy.zeros(len(points))
    result[:-1] += upper - above
    result[1:] += above
    return result


def tail_bounds(parts, width):
    """Return a range of the sum of losses outside of which there is next to nothing (Chernoff)."""
    best = [math.inf, math.inf]
    for rate in numpy.exp(numpy.linspace(-4, 9, 53)):
        for side, sign in ((0, -1.0), (1, 1.0)):
            total = -math.log(TAIL)
            for first, masses, count in parts:
                signed = sign * rate * (first + numpy.arange(len(masses))) * width
                peak = float(signed[masses > 0].max())
                total += count * (peak + math.log(float((masses * numpy.exp(signed - peak)).sum())))
            best[side] = min(best[side], total / rate)
    return -best[0], best[1]


def compose(parts, width):
    """Return grid of losses and masses of the composition of (first, masses, count)."""
    low, high = tail_bounds(parts, width)
    first, size = math.floor(low / width), math.ceil(high / width) - math.floor(low / width) + 1
    length = 1 << max(size, max(len(masses) for _, masses, _ in parts)).bit_length()
    spectrum, shift = 1.0, 0
    for start, masses, count in parts:
        spectrum = spectrum * numpy.fft.rfft(masses, length) ** count
        shift += start * count
    whole = numpy.maximum(numpy.fft.irfft(spectrum, length), 0)
    return (first + numpy.arange(length)) * width, numpy.roll(whole, (shift - first) % length)


def least_epsilon(divergence, delta, high=1.0):
    """Return the least epsilon >= 0 at which a falling divergence is at most delta."""
    if divergence(0.0) <= delta:
        return 0.0
    low = 0.0
    while divergence(high) > delta:
        low, high = high, 2 * high
        if high > 1e9:
            return math.inf
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if divergence(middle) <= delta else (middle, high)
    return high


def gaussian_epsilon(mu, delta):
    """Return G(mu), the epsilon of one Gaussian release."""
    if mu == 0:
        return 0.0
    return least_epsilon(
        lambda e: special.ndtr(mu / 2 - e / mu) - math.exp(min(700.0, e + special.log_ndtr(-mu / 2 - e / mu))), delta
    )


def grid_epsilon(sampled, gaussian, delta, width):
    """Return epsilon of sampled steps (q, z, n) and one Gaussian step of mu^2, on a grid."""
    best = 0.0
    for remove in (True, False):
        parts = [(*step_distribution(q, z, remove, width), n) for q, z, n in sampled]
        if gaussian > width * width / 6:
            parts.append((*step_distribution(1.0, (gaussian - width * width / 6) ** -0.5, remove, width), 1))
        grid, masses = compose(parts, width)
        lost = max(0.0, 1 - math.prod(float(part.sum()) ** n for _, part, n in parts))

        def divergence(epsilon, grid=grid, masses=masses, lost=lost):
            at = int(numpy.searchsorted(grid, epsilon, side="right"))
            return lost + float((masses[at:] * -numpy.expm1(epsilon - grid[at:])).sum())

        best = max(best, least_epsilon(divergence, delta))
    return best


CACHE = {}


def normal_terms(terms):
    """Join equal (q, z) of a schedule, as doubles, z at most 1e12."""
    sums = {}
    for q, z, n in terms:
        key = (float(q), min(z, 1e12))
        sums[key] = sums.get(key, 0) + n
    return tuple(sorted((q, z, n) for (q, z), n in sums.items() if n and q))


def pld_epsilon(terms, delta):
    """Return (epsilon, least recorded, most recorded) of a schedule (q, z, n) with the accountant pld."""
    terms = normal_terms(terms)
    if (terms, delta) not in CACHE:
        CACHE[terms, delta] = pld_figures(terms, delta)
    return CACHE[terms, delta]


def pld_figures(terms, delta):
    """Compute what pld_epsilon returns; 4e-7 for our own arithmetic."""
    sampled = [(q, z, n) for q, z, n in terms if q < 1 and z >= 0.02]
    whole = gaussian_epsilon(math.sqrt(sum(n / z**2 for _, z, n in terms)), delta)
    if not sampled:
        return whole, whole - 4e-7, whole + 2e-6
    if all(q < 1 for q, _, _ in terms) and -math.expm1(sum(n * math.log1p(-q) for q, _, n in terms)) <= delta:
        return 0.0, 0.0, 2e-6
    rest = sum(n / z**2 for q, z, n in terms if (q, z, n) not in sampled)
    wide = any(
        (loss_at(q, z, 1 + 11 * z) - loss_at(q, z, -11 * z)) / (1e-4 * max(1.0, (0.3 / z) ** 2)) > 2**22 for q, z, _ in sampled
    )
    if sum(n for _, _, n in sampled) > 2**24 or rest > 128**2 or wide:
        figure = min(whole, renyi_epsilon(terms, delta, False))
        return figure, figure * (1 - 1e-9) - 4e-7, figure * (1 + 1e-9) + 2e-6
    width = 1e-4 * max([1.0] + [(0.3 / z) ** 2 for _, z, _ in sampled] + [rest / 100] * (len(terms) > 1))
    figure = min(whole, grid_epsilon(sampled, rest, delta, width))
    regular = delta <= 0.01 and figure <= 100
    for q, z, _ in sampled:
        w = 2 * math.pi * q / (z * width)
        regular = regular and q <= 0.5 and w >= 6 and z * math.log(w) >= 4
    if regular:
        return figure, figure - 8e-7, figure + 2.4e-6
    exact = min(whole, grid_epsilon(sampled, rest, delta, width / 4))
    return figure, exact - 4e-7, figure + 5.04e-5


def log_moment(q, z, order):
    """Return log E (1 - q + q e^((2x - 1) / 2 z^2))^order over x from N(0, z^2), by the trapezoidal rule."""
    if q == 1 or z < 0.02:
        return order * (order - 1) / (2 * z * z)
    step = min(z / 4, z * z / 2)
    x = numpy.arange(-13 * z, order + 13 * z, step)
    log_ratio = numpy.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z))
    values = order * log_ratio - x * x / (2 * z * z) + math.log(step / (z * math.sqrt(2 * math.pi)))
    return float(special.logsumexp(values))


ORDERS = [i / 10 for i in range(11, 110)] + list(range(12, 64)) + [128, 256, 512]


def lattice_epsilon(terms, delta, family):
    """Return epsilon of discrete Gaussian or Skellam noise, which sampling does not amplify."""
    loss = sum(n / z**2 for _, z, n in normal_terms(terms))
    if not loss:
        return 0.0
    if family == "skellam":
        orders = [*range(2, 257), *(round(2 ** (8 + k / 16)) for k in range(1, 65))]
        pairs = [(a, loss * (a / 2 + min((2 * a + 5) / 2**34, 1.5))) for a in orders]
    else:
        pairs = [(a, a * loss / 2) for a in (1 + 2 ** (k / 16) for k in range(-96, 353))]
    return max(0.0, min(d + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a, d in pairs))


def order_two(divergence, delta):
    """Return the epsilon that the chi-square divergence gives."""
    if divergence > 600:
        return divergence - math.log(4 * delta)
    return max(0.0, math.log(max(1e-300, 1 + math.expm1(divergence) / (4 * delta) - delta)))


def order_epsilon(divergence, order, delta):
    """Return the epsilon that a Rényi divergence of one order gives (rdp)."""
    if divergence <= 0:
        return 0.0
    if order == 2:
        return order_two(divergence, delta)
    total = (order - 1) * divergence
    plain = divergence - (math.log(delta) + math.log(order)) / (order - 1) + math.log1p(-1 / order)
    log_u = (total if total > 700 else math.log(math.expm1(total))) - math.log(order * delta)
    log_v = float(numpy.logaddexp(0, log_u)) / (order - 1)
    tight = log_v + math.log1p(-1 / order) + math.log1p(-math.expm1(-log_v) * math.exp(-log_u))
    return max(0.0, min(tight, plain))


def renyi_epsilon(terms, delta, moments):
    """Return epsilon of a schedule (q, z, n) with the accountant rdp or moments."""
    terms, best = normal_terms(terms), math.inf
    if (terms, delta, moments) in CACHE:
        return CACHE[terms, delta, moments]
    for order in range(2, 34) if moments else ORDERS:
        total = sum(n * log_moment(q, z, order) for q, z, n in terms)
        divergence = total / (order - 1)
        if moments:
            best = min(best, (total - math.log(delta)) / (order - 1))
            if order == 2 and math.expm1(min(divergence, 1)) <= 1:
                best = min(best, order_two(divergence, delta))
        else:
            best = min(best, order_epsilon(divergence, order, delta))
    CACHE[terms, delta, moments] = best
    return best


# --- What runs add up to ----------------------------------------------------------------------------------------------


class Spending:
    """What one run took of a contribution: sampled steps (q, z, n), or the loss of public draws; by whom it is accounted."""

    def __init__(self, accountant, family, terms=(), loss=0.0, cap=0):
        """Keep them; prv counts as pld."""
        self.accountant = "pld" if accountant == "prv" else accountant
        self.family, self.terms, self.loss, self.cap = family, normal_terms(terms), loss, cap

    def __bool__(self):
        """Tell whether anything was released."""
        return bool(self.terms or self.loss)

    def epsilon(self, delta):
        """Return its epsilon by itself."""
        if self.loss:
            return self.of_terms(((1, self.loss**-0.5, 1),), delta)
        whole = self.of_terms(self.terms, delta)
        if not self.cap or not self.terms:
            return whole
        left, square = self.cap, 0.0
        for _, z, n in sorted(self.terms, key=lambda term: term[1]):
            square, left = square + min(n, left) / z**2, left - min(n, left)
        return min(whole, self.of_terms(((1, square**-0.5, 1),), delta))

    def of_terms(self, terms, delta):
        """Return the epsilon of terms by its accountant."""
        if self.family in LATTICE:
            return lattice_epsilon(terms, delta, self.family)
        if self.accountant == "pld":
            return pld_epsilon(terms, delta)[0]
        return renyi_epsilon(terms, delta, self.accountant == "moments")

    def divergences(self):
        """Return its Rényi divergence at every order of rdp."""
        key = (self.family, self.terms, self.loss)
        if key not in CACHE:
            loss = self.loss or sum(n / z**2 for _, z, n in self.terms)
            if self.family == "skellam":
                CACHE[key] = [loss * (b / 2 + min((2 * b + 5) / 2**34, 1.5)) for b in map(math.ceil, ORDERS)]
            elif self.loss or self.family in LATTICE:
                CACHE[key] = [a * loss / 2 for a in ORDERS]
            else:
                CACHE[key] = [sum(n * log_moment(q, z, a) for q, z, n in self.terms) / (a - 1) for a in ORDERS]
        return CACHE[key]


class TextSpending:
    """Hold what a budget lets a contribution spend for texts: rho-zCDP."""

    accountant, family, loss, terms = "zcdp", "texts", 0.0, ()

    def __init__(self, rho):
        """Keep rho."""
        self.rho = rho

    def epsilon(self, delta):
        """Return its epsilon by itself."""
        return zcdp_worth(self.rho, delta)

    def divergences(self):
        """Return its Rényi divergence at every order of rdp."""
        return [a * self.rho for a in ORDERS]


def composed(spendings, delta):
    """Return the epsilon of several runs together, none of them chosen by looking at what another one released."""
    groups = {}
    for one in spendings:
        if one:
            groups.setdefault((one.accountant, one.family, bool(one.loss) and one.family in LATTICE), []).append(one)
    joined = []
    for (accountant, family, of_loss), members in groups.items():
        if family == "texts":
            joined.append(TextSpending(sum(one.rho for one in members)))
            continue
        loss = sum(one.loss for one in members)
        terms = [term for one in members for term in (one.terms or [(1, one.loss**-0.5, 1)])]
        if len(members) == 1:
            joined += members
        elif of_loss or all(one.loss for one in members):
            joined.append(Spending(accountant, family, loss=loss))
        else:
            joined.append(Spending(accountant, family, terms))
    if len(joined) < 2:
        return joined[0].epsilon(delta) if joined else 0.0
    sums = [sum(values) for values in zip(*(one.divergences() for one in joined), strict=True)]
    least = min(order_epsilon(value, order, delta) for value, order in zip(sums, ORDERS, strict=True))
    share = delta / len(joined)
    return least if share < 1e-12 else min(least, sum(one.epsilon(share) for one in joined))


class Account:
    """A run in the account of a contribution: what it spent, what it could have, when it counts, under which limits."""

    def __init__(self, run, spent, planned, limits):
        """Keep them; runs stand in the order of how many they cite, and of their headers' times."""
        self.order, self.spent, self.planned, self.limits = (len(run.earlier), run.began), spent, planned, limits


def room(order, epsilon, delta):
    """Return the largest divergence of an order that is within epsilon at delta."""
    low, high = 0.0, 1.0
    while order_epsilon(high, order, delta) <= epsilon:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if order_epsilon(middle, order, delta) <= epsilon else (low, middle)
    return low


def reached(limit, accounts):
    """Return what of a limit (epsilon in 1e-6, delta) these accounts use (Several runs, the filter)."""
    used = [account for account in accounts if account.spent]
    epsilon, delta = limit[0] / MICRO, float(limit[1])
    if len(used) < 2:
        return used[0].spent.epsilon(delta) if used else 0.0
    first = min(used, key=lambda account: account.order).planned.divergences()
    ratios = [room(a, epsilon, delta) / need_ if need_ else math.inf for a, need_ in zip(ORDERS, first, strict=True)]
    place = ratios.index(max(ratios))
    total = max(sum(account.spent.divergences()[place] for account in used), first[place])
    return order_epsilon(total, ORDERS[place], delta)


def keep_within(before, own, delta, where):
    """Refuse a run that could have brought a contribution above one of its limits over runs."""
    for limit in dict.fromkeys(limit for account in (*before, own) for limit in account.limits):
        uses = [reached(limit, (*before, own))]
        if limit in own.limits:
            uses += [reached(limit, (own,)), composed((a.spent for a in before), float(delta)) if limit[1] <= delta else 0.0]
        need(max(uses) * MICRO <= limit[0] + 2, "BUDGET", f"{where}: {max(uses)} of {limit[0] / MICRO}")


# --- Noise that is correlated between steps ---------------------------------------------------------------------------


def added(values):
    """Return the sum of numbers in their order, every addition rounded."""
    total = 0.0
    for value in values:
        total += value
    return total


def in_a_file(mechanism_, steps):
    """Return how many coefficients of a strategy lie behind the header."""
    family, values, digest = mechanism_
    if digest is None:
        return 0
    if family == "dense":
        need(steps <= 2048, "UNSUPPORTED", "steps of a dense strategy")
        return steps * (steps + 1) // 2
    if family == "banded":
        need(steps <= 2**14 and values[1] <= steps, "UNSUPPORTED", "steps or bands")
        count = sum(min(values[1], i + 1) for i in range(steps))
    else:
        count = values[1]
    need(count <= 2**22, "UNSUPPORTED", "coefficients")
    return count


class Strategy:
    """The strategy C of a policy, over its steps; rows and columns count from 0."""

    def __init__(self, mechanism_, steps, data=None):
        """Compute the first column, the factors of columns, the largest product N, the slack h, and the width b. `data`: the
        coefficients that lie behind the header."""
        family, values, digest = mechanism_
        self.steps = n = steps
        self.slack, self.width, self.matrix, self.column = 0.0, n, None, None
        self.lags, self.factors, self.normalized = {}, [1.0] * n, values.get(3) is True
        if digest is not None:
            given = [number / 2.0**20 for (number,) in struct.iter_unpack(">i", data)]
            need(len(given) == in_a_file(mechanism_, n), "UNSUPPORTED", "coefficients")
            if family in ("banded", "dense"):
                self.of_matrix(family, values, given)
                return
            values = values | {2: [number * 2.0**20 for number in given]}
            need(given[0] > 0, "UNSUPPORTED", "a diagonal")
        if family == "buffered_toeplitz":
            need(sum(values[2]) <= 2**40, "UNSUPPORTED", "scales of more than 1 together")
            pairs = [(scale / 2.0**40, decay / 2.0**40) for decay, scale in zip(values[1], values[2], strict=True)]
            terms, self.column = [scale for scale, _ in pairs], [1.0]
            while len(self.column) < n:
                self.column.append(added(terms))
                terms = [term * decay for term, (_, decay) in zip(terms, pairs, strict=True)]
            self.slack = (2 * n + 2 * len(pairs)) * 2.0**-53
        elif family == "banded_toeplitz":
            given = [number / 2.0**20 for number in values[2]][:n]
            self.width = len(given)
            self.column = given + [0.0] * (n - len(given))
        else:
            need(3 not in values, "UNSUPPORTED", "a normalized inverse")
            w, rest = [number / 2.0**20 for number in values[2]], [1.0] + [0.0] * (n - 1)
            for t in range(n):
                rest[t] /= w[0]
                for j in range(1, min(len(w), n - t)):
                    rest[t + j] -= w[j] * rest[t]
            self.column = rest
            need(max(map(abs, rest)) < 1e100, "UNSUPPORTED", "a strategy that float64 loses")
            sums = [math.fsum(map(abs, numbers_)) for numbers_ in (rest, w)]
            error = (len(w) + 2) * 2.0**-52 * sums[1] * sums[0]
            self.slack = 2 * error * sums[0] * math.sqrt(n) / rest[0]
        need(self.slack < 1, "UNSUPPORTED", "a strategy that float64 loses")
        self.each = 1
        self.beside = len(values[2]) if family == "banded_inverse" else self.width if self.normalized else 1
        if self.normalized:
            self.factors = [1 / math.sqrt(self.lag(0)[n - 1 - j]) for j in range(n)]
        self.largest = max(self.product(j, 0) for j in range(n))

    def of_matrix(self, family, values, given):
        """Take the rows of C, of a strategy whose columns are their own."""
        n, self.beside = self.steps, 1
        numbers_, self.matrix = iter(given), []
        for i in range(n):
            first = max(0, i - values[1] + 1) if family == "banded" else 0
            self.matrix.append([0.0] * first + [next(numbers_) for _ in range(first, i + 1)])
        need(all(row[-1] > 0 for row in self.matrix), "UNSUPPORTED", "a diagonal")
        if family == "banded":
            self.width = self.each = values[1]
        else:
            self.slack, self.each = 2.0**-20, n
            self.width = 1 + max(i - j for i, row in enumerate(self.matrix) for j, number in enumerate(row) if number)
        if self.normalized:
            self.factors = [1 / math.sqrt(self.sum_of(j, 0)) for j in range(n)]
        self.largest = max(self.product(j, 0) for j in range(n))

    def sum_of(self, j, a):
        """Return the sum of C_(i, j+a) C_(i, j), before they have factors."""
        last = min(self.steps, j + self.width)
        return added(self.matrix[i][j + a] * self.matrix[i][j] for i in range(j + a, last))

    def entry(self, t, i):
        """Return C_(t, i)."""
        return (self.column[t - i] if self.matrix is None else self.matrix[t][i]) * self.factors[i]

    def lag(self, a):
        """Return the sums of c_(i+a) c_i up to every i."""
        if a not in self.lags:
            pairs = zip(self.column[a:], self.column, strict=False)
            self.lags[a] = list(itertools.accumulate(one * other for one, other in pairs))
        return self.lags[a]

    def product(self, j, a):
        """Return X_(j, j+a)."""
        if self.matrix is not None:
            return self.sum_of(j, a) * self.factors[j] * self.factors[j + a]
        return self.lag(a)[self.steps - 1 - j - a] * self.factors[j] * self.factors[j + a]

    def up(self, x):
        """Return what a number is at most."""
        return x * (1 + (4 * self.steps + 64) * 2.0**-53) * ((1 + self.slack) * (1 + self.slack))

    def occurrence(self, period, t):
        """Return what an occurrence in step t adds at z = 1."""
        x = self.product(t, 0)
        for a in range(period, min(t + 1, self.width), period):
            x += 2 * (abs(self.product(t - a, a)) + self.width * 2.0**-52 * self.largest)
        return self.up(x) / self.largest

    def again(self, period, t, o):
        """Return what one more release of step t adds at z = 1 for whoever is due at place o, or 0."""
        v = added(abs(self.entry(t, i)) for i in range(o, t + 1, period))
        w = v + self.slack * math.sqrt(self.largest)
        return self.up(w * w) / self.largest if v else 0.0

    def turns(self, period):
        """Return what a header says of a class."""
        n, places = self.steps, range(min(period, self.steps))
        need(n <= 2**22 and n * self.beside <= 2**29, "UNSUPPORTED", "more steps than anybody adds up")
        need(n * (1 + (self.width - 1) // period) * self.each <= 2**29, "UNSUPPORTED", "more products than anybody adds up")
        most = max(math.fsum(self.occurrence(period, t) for t in range(o, n, period)) for o in places)
        last = range(max(0, n - self.width - 1), n) if self.normalized else [n - 1]
        last = last if self.matrix is None else range(n)
        return [period, most, max(self.again(period, t, o) for t in last for o in places)]


# --- Leaves -----------------------------------------------------------------------------------------------------------

(
    HEADER, ADMIT, CHARGE, SETTLE, SPEND, WITHDRAW, SUMMARY, KEY, EPOCH, RESUME, RELEASE, CLOSE, DRAW, CLOCK, REGISTRY,
    COEFFICIENTS,
) = range(16)  # fmt: skip
NOBODY_SIGNS = ("expired", "key-revoked", "class-not-granted")
FROM_TEXTS = "withdrawn-from-texts"


def words(most):
    """Return a check of printable ASCII text."""

    def check(value):
        text(value)
        need(1 <= len(value) <= most and re.fullmatch(r"[ -~]*", value), "TYPE", "not printable")

    return check


def ascending(check):
    """Return a check of arrays of distinct values in ascending order."""

    def both(value):
        rows(check)(value)
        need(value == sorted(set(value)), "ORDER", "not ascending")

    return both


def several(check):
    """Return a check of arrays with at least one item."""

    def both(value):
        check(value)
        need(value, "RANGE", "empty")

    return both


def group_row(value):
    """Check a group of the header."""
    need(type(value) is list and len(value) in (2, 3), "TYPE", "group")
    for check, item in zip((ascending(uint()), real, uint()), value, strict=False):
        check(item)


def pairs(value):
    """Check the form of the pairs of a header."""
    need(type(value) is list and len(value) == 2, "TYPE", "geometry")
    word("dptrain.frames/1")(value[0])
    several(rows(uint(), uint(), uint(1)))(value[1])


def forwards(value):
    """Check the form of the reads of a header."""
    need(type(value) is list and len(value) == 2, "TYPE", "reads")
    word("dptrain.forwards/1")(value[0])
    several(rows(identifier, several(rows(uint()))))(value[1])


def log_key(line):
    """Check the verifier key of a ledger."""
    words(400)(line)
    VerifierKey(line, ED25519)


ABOVE0, TERM = uint(1), uint(0, 10**12 - 1)
EARLIER_ROW = (words(200), ABOVE0, hash32, hash32, log_key, word("spent", "compromised", "texts"))
LEAVES = {
    HEADER: (
        word("dptrain.ledger/4"), words(200), blob(), blob(), identifier, hash32, log_key, blob(16), word("poisson", "none"),
        hash32, several(rows(group_row)), several(rows(words(200), ABOVE0, uint())), rows(words(200)), words(1000), boolean,
        real, boolean, hash32, rows(*EARLIER_ROW), words(200), word("addressed", "unaddressed"), ascending(words(400)),
        word("dptrain.depth/1"), of_type(list), optional(hash32), rows(ABOVE0, real, real), optional(pairs),
        forwards,
    ),
    ADMIT: (hash32, identifier, uint(), ABOVE0, ABOVE0, uint(), hash32, blob(8), hash32, uint(), uint(), TERM),
    CHARGE: (
        ABOVE0, uint(), ABOVE0, ABOVE0, several(rows(identifier, uint(), ABOVE0, ABOVE0, ABOVE0, real, uint(), hash32)),
        blob(16), uint(),
    ),
    SETTLE: (ABOVE0, uint(), several(rows(real))),
    SPEND: (
        several(rows(uint(), ABOVE0, ABOVE0, uint(), uint(), uint(), TERM, uint(), uint(), optional(uint()), uint(), real,
                     ABOVE0, hash32, uint(), real, uint())),
    ),
    WITHDRAW: (hash32, optional(ABOVE0), identifier, hash32, optional(several(rows(hash32)))),
    SUMMARY: (
        ABOVE0, ABOVE0, several(rows(uint(), ABOVE0)),
        several(rows(uint(), uint(), optional(uint()), optional(uint()), real, real, uint(), uint())),
        several(rows(hash32)), hash32, optional(ABOVE0),
    ),
    KEY: (log_key, log_key, blob(64), blob(64)),
    EPOCH: (
        ABOVE0, uint(), uint(), several(rows(uint(), uint(), optional(uint()))), hash32, words(200), optional(hash32),
    ),
    RESUME: (ABOVE0, uint(), optional(ABOVE0), optional(hash32), optional(ABOVE0)),
    RELEASE: (uint(), ABOVE0, hash32, hash32, hash32, hash32),
    CLOSE: (uint(), uint()),
    DRAW: (ABOVE0, ABOVE0, ascending(uint()), several(rows(real))),
    CLOCK: (uint(FIRST_MOMENT, LAST_MOMENT), words(200)),
    REGISTRY: (hash32, hash32),
    COEFFICIENTS: (blob(),),
}  # fmt: skip


def leaf_alone(kind, time, fields):
    """Check what holds inside one leaf."""
    if kind == ADMIT:
        need((fields[10] == 0) == (fields[11] == 0), "RANGE", "limit and its delta")
    elif kind == SPEND:
        for row in fields[0]:
            need((row[5] == 0) == (row[6] == 0), "RANGE", "limit and its delta")
            need(row[9] is None or row[9] >= row[7], "RANGE", "window until")
    elif kind == WITHDRAW:
        need(fields[4] is None or (fields[1] is not None and len(fields[4]) <= 64), "RANGE", "what shows a member")
    elif kind == COEFFICIENTS:
        need(4 <= len(fields[0]) <= 64_000, "TYPE", f"{len(fields[0])} bytes")
    elif kind == REGISTRY:
        need(fields[0] != fields[1], "REGISTRY", "the same state")
    elif kind == SUMMARY:
        kinds = [row[0] for row in fields[2]]
        need(fields[0] < fields[1] and kinds == sorted(set(kinds)), "ORDER", "range or kinds")
        need(sum(row[1] for row in fields[2]) == fields[1] - fields[0], "RANGE", "leaves per kind")
        need(all((row[2] is None) == (row[3] is None) for row in fields[3]), "TYPE", "epsilons")
    elif kind == RESUME:
        need((fields[2] is None) == (fields[3] is None), "TYPE", "size without a root")
    elif kind == CLOCK:
        need(fields[0] > time, "RANGE", "takes nothing back")
    elif kind == HEADER:
        need(fields[15] < 1 and len(fields[12]) == 4, "RANGE", "clip margin or accountant")


def effective_std(blocks):
    """Return S of blocks (std, share), rounded down as the page says."""
    least, sums = min(std for std, _ in blocks), {}
    for std, share in blocks:
        sums[std] = sums.get(std, 0) + share**2
    below = sum(math.ceil(2**110 * share * (Fraction(least) / Fraction(std)) ** 2) for std, share in sums.items())
    root = math.isqrt(2**330 * sum(sums.values()) // below)
    exact = Fraction(least) * root / 2**110
    result = float(exact)
    return result if Fraction(result) <= exact else math.nextafter(result, 0.0)


def read_leaf(data, seq=None):
    """Return kind, time and fields of a leaf, at its position or, without one, alone."""
    need(len(data) <= 65535, "SIZE", "leaf")
    value = decode(data)
    need(type(value) is dict and list(value) == list(range(len(value))) and len(value) >= 3, "TYPE", "leaf")
    uint()(value[0])
    uint(0, COEFFICIENTS)(value[1])
    need(value[0] == seq or seq is None, "SEQ", str(value[0]))
    need((value[0] == 0) == (value[1] == HEADER), "SEQ", "a header stands at 0, and nothing else")
    uint(FIRST_MOMENT, LAST_MOMENT)(value[2])
    checks, fields = LEAVES[value[1]], list(value.values())[3:]
    least = len(checks) - 3 * (value[1] == HEADER)  # without what turns add up to, without pairs, and without reads
    need(least <= len(fields) <= len(checks), "TYPE", f"{len(fields)} fields")
    for place, (check, field) in enumerate(zip(checks, fields, strict=False)):
        try:
            check(field)
        except Refused as refused:
            raise Refused(refused.code, f"field {place + 3}: {refused.text}") from None
    leaf_alone(value[1], value[2], fields)
    return value[1], value[2], fields


FAST = (
    "fast: clipped sums by float32 GEMMs, rounded once to s*2^-32, integer Gaussian noise added in float64; clip bounds shrunk"
    " by clip_margin for rounding. Remaining assumption: the rounding of float32 products within a microbatch stays within that"
    " margin; sums over microbatches are float64."
)
CERTIFIED = (
    "certified: every contribution is truncated to integers on the lattice s*2^-%d, and its signed bounds are checked on them"
    " in exact arithmetic before they are added; integer sums are exact, and %s is added."
    " clip_margin aims below the bounds so that checks pass; no bound rests on it. Remaining assumption: the integers of a"
    " contribution depend on no other's content."
)
INTEGERS = "integer Gaussian noise on s*2^-32"
NOISE = {
    "gaussian": INTEGERS,
    "banded_toeplitz": INTEGERS + ", correlated by a banded Toeplitz strategy",
    "banded_inverse": INTEGERS + ", correlated by a strategy with a banded inverse",
    "buffered_toeplitz": INTEGERS + ", correlated by a buffered Toeplitz strategy",
    "banded": INTEGERS + ", correlated by a banded strategy",
    "dense": INTEGERS + ", correlated by a dense strategy",
    "discrete_gaussian": "discrete Gaussian noise on s*2^-%d, sigma = s, drawn exactly,",
    "skellam": "Skellam noise on s*2^-%d, of standard deviation s, drawn exactly,",
}
DEVICE = " Noise is drawn on the device of the sums, by ChaCha20 and float64 functions within 4 units in the last place."
WIRE = (
    " Each of several processes rounds its sums to float32 before they are added in float64; clip bounds are shrunk"
    " further by what that rounding can add."
)
SUMS = (
    " Each of several processes rounds its sums to float32 before they are added, and those over microbatches, of which each"
    " process keeps a part, are float32 too; clip bounds are shrunk further by what that rounding can add."
)
PRODUCTS = " Float32 products are by oneDNN, and by kernels of dptrain's own, wherever these are the fastest on the processor."
UP = " rounding=up-1e-6"
RDP = "orders=1.1..10.9/0.1,12..63,128,256,512 conversion=Asoodeh2021,Balle2020 relation=ADD_OR_REMOVE_ONE" + UP
MOMENTS = "lambda=1..32 conversion=Abadi2016,chi2 relation=ADD_OR_REMOVE_ONE" + UP
OPACUS = "eps_error=0.01 delta_error=delta*0.001 points<=4194304 bracket=pld-2+0..0.02 else=+0.02" + UP
ACCOUNTANTS = [
    ["pld", "dptrain", "pld-2", "interval=0.0001 relation=ADD_OR_REMOVE_ONE" + UP],
    ["rdp", "dptrain", "renyi-2", RDP],
    ["moments", "dptrain", "renyi-2", MOMENTS],
    ["prv", "dptrain", "pld-2", "pld+0.02" + UP],
]  # fmt: skip
LATTICE = {
    "discrete_gaussian": "family=discrete_gaussian zcdp=1/(2z^2) amplification=none conversion=Canonne2020-12" + UP,
    "skellam": "family=skellam variance=2^32 integer-orders amplification=none conversion=Canonne2020-12" + UP,
}


AGGREGATE = (ABOVE0, ABOVE0, uint(), uint(), uint(), uint(), uint(), uint(), TERM, hash32)


def read_aggregate(data):
    """Return an aggregate, which stands in for pruned ADMIT leaves."""
    need(len(data) <= 192, "SIZE", "aggregate")
    row = decode(data)
    rows(*AGGREGATE)([row])
    need((row[7] == 0) == (row[8] == 0), "RANGE", "limit and its delta")
    need(row[0] + row[1] < 2**63, "RANGE", "leaves of an aggregate")
    return row


def stands_in(entry):
    """Tell whether an entry of a retained bundle is an array: what stands in for a pruned leaf."""
    return len(entry) > 0 and entry[0] >> 5 == 4


def fold(index, size, value, path):
    """Return the root to which a path leads (RFC 9162, 2.1.3.2)."""
    need(0 <= index < size and all(type(x) is bytes and len(x) == 32 for x in path), "PATH", "place or form")
    node, last = index, size - 1
    for item in path:
        need(last, "PATH", "a hash too many")
        if node & 1 or node == last:
            value = node_hash(item, value)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            value = node_hash(value, item)
        node, last = node >> 1, last >> 1
    need(last == 0, "PATH", "a hash too few")
    return value


def check_member(aggregate, digest, seq, anchor, path):
    """Hold a member record against its aggregate, by the path from it."""
    first, count_ = aggregate[:2]
    need(first <= seq < first + count_, "MEMBER", f"leaf {seq} is none of the aggregate")
    root = fold(seq - first, count_, leaf_hash(encode([digest, seq, anchor])), path)
    need(root == aggregate[9], "MEMBER", f"leaf {seq}: another root")


def steps_of(window):
    """Return the steps of a window."""
    return range(window["first"], window["first"] + window["steps"])


class Run:
    """The replay of one ledger: what its leaves add up to."""

    def __init__(self, report, levels, gone=None):
        """Begin before leaf 0; `gone` has, by position, the descriptor hashes of pruned ADMIT leaves, None if unsaid."""
        self.report, self.levels, self.gone = report, levels, gone or {}
        self.aggregate, self.aggregates, self.state, self.roots_in_force = None, [], None, []
        self.time, self.kinds, self.withdrawals = 0, [], []
        self.people, self.by_hash, self.anchors, self.quoted = [], {}, set(), set()
        self.windows, self.open, self.noise, self.turns, self.drawn_steps = [], None, set(), {}, set()
        self.attempt, self.position, self.charged, self.repeated, self.furthest = 0, 0, 0, 0, 0
        self.over, self.closed, self.fence = False, None, 0
        self.groups, self.said, self.batch, self.epochs, self.summaries = {}, {}, [], [], []
        self.stds, self.largest, self.key_leaves, self.clocks, self.pools, self.vkeys = {}, {}, [], [], {}, []
        self.plans, self.spent = {}, {}
        self.copies, self.behind, self.groups_, self.bands = {}, None, 1, 1
        self.awaited, self.coefficients, self.turns_said = 0, b"", []

    # header

    def header(self, _seq, *fields):
        """Verify policy, blocks and noise of the header."""
        (_, self.origin, payload, message, self.owner, self.owner_key, vkey, self.run_id, amplification, _, groups, blocks,
         accountant, note, private, margin, self.caps, self.registry_root, self.earlier, self.isolation, self.randomness,
         self.unprobed, _, stack, self.frozen, *said) = fields  # fmt: skip
        self.began, self.roots_in_force = self.time, [self.registry_root]
        need(len({(row[0], row[3]) for row in self.earlier}) == len(self.earlier), "PREVIOUS", "a ledger cited twice")
        lost = [(row[0], VerifierKey(row[4], ED25519)) for row in self.earlier if row[5] == "compromised"]
        own = VerifierKey(vkey, ED25519).raw
        need(len(lost) < 2, "PREVIOUS", "two lost ledgers")
        need(all(name != self.origin and key.raw != own for name, key in lost), "PREVIOUS", "goes on with what was lost")
        need(all(VerifierKey(row[4], ED25519).name == row[0] for row in self.earlier), "LOG_KEY", "key of another name")
        check_message(message, "policy", payload, self.owner_key, self.owner)
        self.policy = policy = read_policy(payload)
        self.classes = [rule for rule in policy["classes"] if "train" in rule["purposes"]]
        need(self.classes, "POLICY_UNSUPPORTED", "no class is for training")
        self.pools = {i: {"leaves": [], "active": 0, "root": None, "unknown": False} for i in range(len(self.classes))}
        self.delta = float(Fraction(*policy[3]))
        self.public_draws = policy[6] == "occurrences_public"
        self.per_sample = policy[14] == "per_sample"
        self.phases = policy.get(24, [[1, MICRO]])
        if self.phases[0][0] > 1:
            self.phases = [[1, MICRO], *self.phases]
        first = VerifierKey(vkey, ED25519)
        need(first.name == self.origin, "LOG_KEY", "name of the key is not the origin")
        self.cosigners = {VerifierKey(line, COSIGNATURE).raw for line in policy.get(27, []) + policy.get(32, [])}
        need(first.raw not in self.cosigners, "LOG_KEY", "the key of an auditor or a witness")
        self.vkeys.append(first)
        need(private, "NOT_PRIVATE", "fixed test key")
        family = self.family = policy[13][0]
        need(family in NOISE, "UNSUPPORTED", f"noise family {family}")
        reads_said = said.pop() if len(said) == 3 else None
        need(reads_said is not None or said[1:] != [None], "SCHEMA", "null in the place of pairs, and nothing behind it")
        pairs_said = said.pop() if len(said) == 2 else None
        if pairs_said is not None:
            need(said == [[]], "TURNS", "turns and pairs")
        if pairs_said is not None or reads_said is not None:
            said = [] if said == [[]] else said
        self.check_strategy(said)
        none = self.public_draws or family in LATTICE
        need(amplification == ("none" if none else "poisson"), "SCHEMA", "amplification")
        opacus = accountant[:2] == ["prv", "opacus"] and accountant[2].endswith("+pld-2") and accountant[3] == OPACUS
        allowed = accountant in ACCOUNTANTS or opacus
        if family in LATTICE:
            allowed = accountant == ["rdp", "own", "1", LATTICE[family]]
        need(accountant[0] == policy[4] and allowed, "ACCOUNTANT", str(accountant))
        self.accountant = accountant
        need(31 not in policy or self.isolation == "held", "ISOLATION_REQUIRED", self.isolation)
        self.derived = derive_blocks(self.classes, stack)
        check_geometry(policy, self.classes, stack, pairs_said)
        check_reads(self.classes, stack, self.derived, reads_said)
        need(reads_said is None or self.randomness == "addressed", "READS", "one generator for all")
        self.check_blocks(groups, blocks)
        self.check_numerics(note, margin)

    def check_strategy(self, said):
        """Hold what the header says that turns add up to against the strategy of the policy."""
        policy, self.strategy = self.policy, None
        self.class_turns, self.groups_, self.bands = [], policy["groups"], 1
        if self.groups_ > 1:
            served = policy[6] == "secret_draws" and self.family not in LATTICE and policy[14] != "per_sample"
            need(served and self.groups_ * max(1, len(policy.get(24, []))) <= 4096, "UNSUPPORTED", "groups")
        if self.family in CORRELATED:
            need(policy["order"] in ("cyclic", "cyclic_poisson"), "UNSUPPORTED", "order of correlated noise")
            need(policy[14] == "scheduled" and 24 not in policy, "UNSUPPORTED", "noise")
            if self.groups_ > 1:
                self.bands = policy[13][1][1] if self.family in ("banded_toeplitz", "banded") else math.inf
                need(self.bands <= self.groups_, "UNSUPPORTED", "more bands than groups")
                need(policy[8] <= 2**22 and policy[9] <= 4096, "UNSUPPORTED", "more steps than anybody counts")
            self.awaited = 4 * in_a_file(policy[13], policy[8])
            if len(self.coefficients) < self.awaited:
                self.turns_said = said
                return
            if self.groups_ > 1:
                Strategy(policy[13], policy[8], self.coefficients)
            else:
                self.strategy = Strategy(policy[13], policy[8], self.coefficients)
                lengths, each = {rule["q"].denominator for rule in self.classes}, self.strategy.each
                products = sum(self.strategy.steps * (1 + (self.strategy.width - 1) // length) * each for length in lengths)
                need(products <= 2**29, "UNSUPPORTED", "more products than anybody adds up")
                self.class_turns = [self.strategy.turns(rule["q"].denominator) for rule in self.classes]
        need(said == ([self.class_turns] if self.class_turns else []), "TURNS", str(said))

    def more_coefficients(self, _seq, data):
        """Take the next coefficients; behind the last of them, hold them against policy and header."""
        left = self.awaited - len(self.coefficients)
        need(left and len(data) == min(left, 64_000), "COEFFICIENTS", f"{len(data)} bytes, {left} are left")
        self.coefficients += data
        if len(self.coefficients) == self.awaited:
            need(sha256(self.coefficients) == self.policy[13][2], "COEFFICIENTS", "not those of the digest")
            self.check_strategy(self.turns_said)

    def check_numerics(self, note, margin):
        """Hold exactness note and clip margin against the tables of the page."""
        fast = self.policy[7] == "fast"
        need(margin in ((2.0**-9, 2.0**-40) if fast else (2.0**-20, 2.0**-40)), "NUMERICS", "clip margin")
        private = [rule["sigma"] for rule in self.classes if not rule["public"]]
        size = sum(block[1] for block in self.derived if block[2])
        bits = 22 if size <= 2**22 else 24 if size <= 2**28 else 26
        least = min(private, default=MICRO)
        bits = max(1, min(32, bits + math.floor(math.log2(least / MICRO))))
        bits = 16 if self.family == "skellam" else bits
        noise = NOISE[self.family]
        sums = FAST.replace("integer Gaussian noise", noise) if self.family in CORRELATED else FAST
        words_ = sums if fast else CERTIFIED % (bits, noise % bits if "%" in noise else noise)
        known = [words_, words_ + DEVICE] if self.family == "gaussian" else [words_]
        if fast and margin == 2.0**-9:
            parts = [other.replace("; sums over microbatches are float64.", ".") + SUMS for other in known]
            known += [other + WIRE for other in known] + parts
        known += [other + PRODUCTS for other in known]
        need(note in known, "NUMERICS", "exactness note")

    def std_of(self, allowed):
        """Return the standard deviation of a block without clip budgets."""
        rules = [self.classes[i] for i in allowed if not self.classes[i]["public"]]
        return float(max((Fraction(rule["sigma"] * rule["clip"], MICRO**2) for rule in rules), default=Fraction(0)))

    def share_of(self, block):
        """Return the share of a block, with clip budgets."""
        _, _, allowed, positions = block
        if all(self.classes[i]["public"] for i in allowed):
            return 0
        weights = self.policy[25]
        return max(weights[0] if p == -1 else weights[2] if p == HEAD else weights[1] for p in positions)

    def check_blocks(self, groups, blocks):
        """Hold the header's groups and blocks against what follows from policy and stack."""
        budgets, order = 25 in self.policy, []
        need(len(blocks) == len(self.derived), "DEPTH_DROPPED", f"{len(blocks)} blocks, {len(self.derived)} follow")
        self.blocks = []
        for given, block in zip(blocks, self.derived, strict=True):
            name, size, allowed, *_ = block
            need(given[0] == name, "DEPTH_UNKNOWN", f"{given[0]}, not {name}")
            need(given[1] == size, "COORDINATES", name)
            need(given[2] < len(groups), "BLOCK", "group")
            group = groups[given[2]]
            need(group[0] == allowed, "DEPTH_WIDER", f"{name}: {group[0]}")
            share = self.share_of(block) if budgets else None
            touched = any(not self.classes[i]["public"] for i in allowed)
            std = group[1] if budgets and touched else self.std_of(allowed)
            need(group == [allowed, std] + [share] * budgets and (std > 0) == touched, "SCHEDULE", f"{name}: {group}")
            self.blocks.append((allowed, std, share, size))
            order.append(given[2])
        in_order_of_use(order, len(groups), "groups")
        touching = {i for block in self.blocks for i in block[0]}
        need(touching == set(range(len(self.classes))), "BLOCK", "class without a block")
        if budgets:
            self.check_budgets()

    def check_budgets(self):
        """Check the noise of blocks with clip budgets: every class is bounded, and the energy is next to least."""
        weights, private = [], [i for i, rule in enumerate(self.classes) if not rule["public"]]
        live = [block for block in self.blocks if block[1] > 0]
        for i in private:
            rule = self.classes[i]
            mine = [block for block in live if i in block[0]]
            total, clip = sum(share**2 for _, _, share, _ in mine), Fraction(rule["clip"], MICRO)
            spent = sum(clip**2 * share**2 / total / Fraction(std) ** 2 for _, std, share, _ in mine)
            need(spent <= 1 / Fraction(rule["sigma"], MICRO) ** 2, "SCHEDULE", f"noise of {rule['name']}")
            bound = float(clip * Fraction(rule["sigma"], MICRO)) ** 2 / total
            weights.append([bound * share**2 if i in allowed else 0.0 for allowed, _, share, _ in live])
        # least energy >= (sum of sqrt(d_l (A^T x)_l))^2 / sum of x, for every x >= 0; x from the condition for the least
        table = numpy.array(weights)
        sizes = numpy.array([float(size) for _, _, _, size in live])
        target = numpy.array([size * std**4 for (_, std, _, size) in live])
        chosen = optimize.nnls((table / target).T, numpy.ones(len(live)))[0]
        least = float(numpy.sqrt(sizes * (chosen @ table)).sum()) ** 2 / float(chosen.sum())
        energy = sum(size * std**2 for _, std, _, size in live)
        need(energy <= least * (1 + 1.01e-6), "SCHEDULE", f"energy {energy}, least {least}")

    def phase(self, step):
        """Return place and scale of the phase of a step."""
        place = bisect.bisect_right([first for first, _ in self.phases], step) - 1
        return place, Fraction(self.phases[place][1], MICRO)

    def std(self, i, step):
        """Return S, the effective standard deviation of a class at a step."""
        place, scale = self.phase(step)
        if (i, place) not in self.stds:
            mine = [(float(Fraction(std) * scale), share) for allowed, std, share, _ in self.blocks if i in allowed]
            least = min(std for std, _ in mine)
            if 25 in self.policy and not self.classes[i]["public"]:
                least = effective_std([(std, share) for std, share in mine if std > 0])
            self.stds[i, place] = least
        return self.stds[i, place]

    # leaves

    def leaf(self, seq, data):
        """Replay one leaf."""
        kind, time, fields = read_leaf(data, seq)
        self.kinds.append(kind)
        need((kind == HEADER) == (seq == 0), "ORDER", "header")
        if kind == CLOCK:
            need(fields[0] == self.time and time < self.time, "CLOCK", "not what a CLOCK leaf takes back")
        else:
            need(time >= self.time, "CLOCK", f"times run back from {self.time} to {time}")
        self.time = time
        if self.closed is not None:
            need(kind in (WITHDRAW, KEY, SUMMARY, RELEASE, CLOCK), "CLOSED", f"kind {kind} behind CLOSE")
        if self.batch:
            need(kind in (SPEND, EPOCH), "EPOCH_ORDER", "SPEND leaves without their EPOCH")
        if kind != HEADER:
            need(len(self.coefficients) == self.awaited or kind == COEFFICIENTS, "COEFFICIENTS", "are not all there")
        actions = {
            HEADER: self.header, ADMIT: self.admit, CHARGE: self.charge, SETTLE: self.settle, SPEND: self.spend,
            WITHDRAW: self.withdraw, SUMMARY: self.summary, KEY: self.key, EPOCH: self.epoch, RESUME: self.resume,
            RELEASE: self.release, CLOSE: self.close, DRAW: self.draw, CLOCK: self.clock,
            REGISTRY: self.later_state, COEFFICIENTS: self.more_coefficients,
        }  # fmt: skip
        actions[kind](seq, *fields)

    def stand_in(self, seq, data):
        """Replay what stands in for a pruned ADMIT leaf."""
        if data == b"\x80":
            need(
                self.aggregate is not None and self.aggregate[0] < seq < sum(self.aggregate[:2]), "AGGREGATE", "of no aggregate"
            )
        else:
            row = read_aggregate(data)
            before = self.aggregate
            need(before is None or sum(before[:2]) <= row[0], "AGGREGATE", "overlaps the one before")
            need(row[0] <= seq < row[0] + row[1], "AGGREGATE", "of other leaves")
            self.aggregate = row
            self.aggregates.append(row)
        need(not self.batch and self.closed is None, "ORDER", "an ADMIT leaf here")
        need(not self.policy["turns"] or not self.windows, "ADMIT_LATE", "behind a CHARGE")
        _, _, i, clip, sigma, cap, carried, limit, limit_delta, _ = self.aggregate
        need(i < len(self.classes), "CLASS_UNKNOWN", str(i))
        self.kinds.append(ADMIT)
        digest = self.gone[seq]
        known = digest is not None
        self.join(
            seq, digest if known else b"leaf %d" % seq, i, clip, sigma, cap, None, None, None, carried, limit, limit_delta
        )
        self.people[-1]["pruned"], self.people[-1]["known"] = True, known

    def aggregates_of(self, first, end):
        """Return the aggregates of the ADMIT leaves of a range, in order."""
        result, runs_ = [], []
        for person in self.people:
            if first <= person["seq"] < end:
                terms = [person[key] for key in ("class", "clip", "sigma", "cap", "carried", "limit", "limit_delta")]
                if runs_ and runs_[-1][0] == terms and runs_[-1][1][-1]["seq"] == person["seq"] - 1:
                    runs_[-1][1].append(person)
                else:
                    runs_.append((terms, [person]))
        given = {row[0]: row for row in self.aggregates}
        for terms, people in runs_:
            at = people[0]["seq"]
            if any(person["pruned"] for person in people):
                row = given.get(at)
                need(row is not None and row[:9] == [at, len(people), *terms], "AGGREGATE", f"of the leaves from {at} on")
            else:
                records = [encode([person["hash"], person["seq"], person["anchor"]]) for person in people]
                row = [at, len(people), *terms, merkle_root(records)]
            result.append(row)
        return result

    def check_aggregates(self):
        """Ask that every aggregate given is that of the leaves at which it stands."""
        follow = self.aggregates_of(0, math.inf)
        need(all(row in follow for row in self.aggregates), "AGGREGATE", "stands where nothing can")

    def admit(self, seq, digest, name, i, clip, sigma, cap, attestation, kid, anchor, carried, limit, limit_delta):
        """Take somebody in."""
        need(i < len(self.classes) and self.classes[i]["name"] == name, "CLASS_UNKNOWN", f"{name} at {i}")
        need(not self.policy["turns"] or not self.windows, "ADMIT_LATE", "behind a CHARGE")
        need(attestation not in self.quoted, "REPLAYED", "attestation hash")
        self.quoted.add(attestation)
        self.join(seq, digest, i, clip, sigma, cap, attestation, kid, anchor, carried, limit, limit_delta)

    def join(self, seq, digest, i, clip, sigma, cap, attestation, kid, anchor, carried, limit, limit_delta):
        """Enter a contribution in pool and group."""
        need(digest not in self.by_hash, "REPLAYED", digest.hex())
        need(not self.withdrawn(digest), "WITHDRAWN", digest.hex())
        need(anchor is None or anchor not in self.anchors, "DUPLICATE_CONTENT", "anchor")
        self.anchors.add(anchor)
        rule = self.classes[i]
        judge_bounds({5: clip, 6: sigma}, rule, self.policy)
        person = {
            "seq": seq, "hash": digest, "class": i, "clip": clip, "sigma": sigma, "cap": cap, "attestation": attestation,
            "kid": kid, "anchor": anchor, "carried": carried, "limit": limit, "limit_delta": limit_delta, "time": self.time,
            "before": len(self.windows), "attempt": self.attempt, "until": None, "gone": None, "reason": None,
            "drawn": 0, "loss": 0.0, "pruned": False, "known": True,
            "number": len(self.people), "place": len(self.pools[i]["leaves"]),
        }  # fmt: skip
        self.people.append(person)
        self.by_hash[digest] = person
        pool = self.pools[i]
        pool["leaves"].append(digest)
        pool["unknown"] = pool["unknown"] or (seq in self.gone and self.gone[seq] is None)
        pool["active"], pool["root"] = pool["active"] + 1, None
        if not rule["public"]:
            self.enter(person)
            self.budget(person)

    def withdrawn(self, digest):
        """Return the reasons of the WITHDRAW leaves of a contribution."""
        return [row[1] for row in self.withdrawals if row[0] == digest]

    def plan(self, i):
        """Return the terms (std, steps) of the whole horizon of a class, phase by phase."""
        firsts = [first for first, _ in self.phases] + [self.policy[8] + 1]
        return [(self.std(i, a), b - a) for a, b in itertools.pairwise(firsts)]

    def limits_of(self, i, limit, limit_delta):
        """Return the limits (epsilon in 1e-6, delta) of a contribution of a class."""
        rule = self.classes[i]
        found = [(limit, Fraction(limit_delta, 10**12))] if limit else []
        return [] if rule["public"] else found + ([(rule["limit"], Fraction(*self.policy[3]))] if rule["limit"] else [])

    def spending(self, terms=(), loss=0.0, cap=0):
        """Return what this run took of somebody."""
        family = "gaussian" if self.family in CORRELATED else self.family
        return Spending(self.policy[4], family, terms, loss, cap)

    def planned(self, i, person):
        """Return the account of who signed these bounds, as the whole run is planned, redo steps at the dearest noise."""
        key = (i, person["sigma"], person["clip"], person["limit"], person["limit_delta"])
        if key not in self.plans:
            q = self.classes[i]["q"]
            rows_ = [[self.multiplier_of(person, std), count] for std, count in self.plan(i)]
            if self.policy["turns"]:
                rows_ = [[z, math.ceil(count * q) + (count > 0)] for z, count in rows_]
            rows_ = [[z, -(-count // self.groups_)] for z, count in rows_]
            min((row for row in rows_ if row[1]), key=lambda row: row[0])[1] += self.policy[9]
            if self.class_turns:
                _, most, again = self.class_turns[i]
                plan = self.spending(loss=(most + self.policy[9] * again) / min(rows_[0][0], 1e12) ** 2)
            elif self.public_draws:
                plan = self.spending(loss=sum(count / min(z, 1e12) ** 2 for z, count in rows_ if count))
            else:
                redo, (z, count) = self.policy[9], rows_[0]
                if self.bands > 1 and redo:
                    dearer = min(2 * redo, count)
                    rows_ = [(z, count - dearer), (min(z, 1e12) / math.sqrt(1 + redo), dearer)]
                plan = self.spending([(q, z, count) for z, count in rows_])
            self.plans[key] = Account(self, plan, plan, self.limits_of(i, person["limit"], person["limit_delta"]))
        return self.plans[key]

    def budget(self, person):
        """Refuse who has a limit that the plan by itself, or the carried epsilon, exceeds."""
        own = self.planned(person["class"], person)
        for limit in own.limits:
            self.report.qualify("LIMITS_ALONE")
            planned = reached(limit, (own,))
            need(planned * MICRO <= limit[0] + 2, "BUDGET", f"{planned} planned, {limit[0] / MICRO} allowed")
            need(Fraction(*self.policy[3]) < limit[1] or person["carried"] <= limit[0], "BUDGET", "carried")

    # groups

    def group_key(self, person):
        """Return the first twelve fields of the row of a contribution."""
        return (
            person["class"], person["clip"], person["sigma"], person["cap"], person["carried"], person["limit"],
            person["limit_delta"], person["before"], person["attempt"], person["until"], person["drawn"], person["loss"],
        )  # fmt: skip

    def enter(self, person):
        """Enter a contribution in its group."""
        key = self.group_key(person)
        group = self.groups.setdefault(key, {"leaves": [], "members": 0, "key": key, "person": dict(person)})
        person["group"], person["group_place"] = group, len(group["leaves"])
        group["leaves"].append(person["hash"])
        group["members"] += 1

    def leave(self, person):
        """Take a contribution out of its group."""
        person["group"]["leaves"][person["group_place"]] = b""
        person["group"]["members"] -= 1

    def spent_terms(self, i, before, until):
        """Return the (std, steps) charged to a class behind one window, up to another: of the group that has most."""
        sums = {}
        for place, steps in enumerate(self.phase_steps(before, until)):
            std = self.std(i, self.phases[place][0])
            sums[std] = sums.get(std, 0) + steps
        return sorted((std, steps) for std, steps in sums.items() if steps)

    def phase_steps(self, before, until):
        """Return the steps charged behind one window, up to another, in every phase: of the group that has most."""
        sums = [{} for _ in self.phases]
        for window in self.windows[before:until]:
            own = sums[self.phase(window["first"])[0]]
            for step in steps_of(window) if self.groups_ > 1 else ():
                own[step % self.groups_] = own.get(step % self.groups_, 0) + 1
            if self.groups_ == 1:
                own[0] = own.get(0, 0) + window["steps"]
        return [max(own.values(), default=0) for own in sums]

    def at_least(self):
        """Return how many draws of somebody have 1, 2, .. copies at least, of the group that has most (Copies)."""
        result = []
        while True:
            sums = {}
            for step, copies in self.copies.items():
                if copies > len(result):
                    times = sum(step in steps_of(window) for window in self.windows)
                    sums[step % self.groups_] = sums.get(step % self.groups_, 0) + times
            if not sums:
                return result
            result.append(max(sums.values()))

    def with_copies(self, terms):
        """Return terms (q, z, steps) of which draws with copies stand behind less noise; there is one z then."""
        at_least = self.at_least()
        if not at_least or not terms:
            return terms
        ((q, z, n),) = terms
        found = [min(n, count) for count in (n, *at_least)] + [0]
        return [(q, z / math.sqrt(1 + k), found[k] - found[k + 1]) for k in range(len(found) - 1) if found[k] > found[k + 1]]

    def multiplier(self, person, std):
        """Return z of a contribution at an effective standard deviation."""
        return max(person["sigma"] / MICRO, float(Fraction(std) * MICRO / person["clip"]))

    def multiplier_of(self, person, std):
        """Return z of a contribution before anybody is drawn: with injection per sample what it signed, and no more."""
        return person["sigma"] / MICRO if self.per_sample else self.multiplier(person, std)

    def terms_with(self, i, terms, person):
        """Return terms (q, z, steps) of a contribution."""
        return self.with_copies([(self.classes[i]["q"], self.multiplier(person, std), steps) for std, steps in terms])

    def epsilon(self, terms, delta):
        """Return epsilon of terms (q, z, steps) by the header's accountant, and the least and most that may be recorded."""
        name = self.accountant[0]
        if name in ("pld", "prv"):
            figure, low, high = pld_epsilon(terms, delta)
            return figure, low, high + 0.02 * (name == "prv")
        if self.family in LATTICE:
            figure = lattice_epsilon(terms, delta, self.family)
        else:
            figure = renyi_epsilon(terms, delta, name == "moments")
        return figure, figure * (1 - 1e-9), figure * (1 + 1e-9) + 2e-6

    def epsilon_of(self, person):
        """Return what a contribution has spent by now: the figure, and the least and most that may be recorded."""
        if self.public_draws:
            if self.accountant[0] in ("pld", "prv"):
                figure = gaussian_epsilon(math.sqrt(person["loss"]), self.delta)
                return figure, figure - 4e-7, figure + 2e-6 + 0.02 * (self.accountant[0] == "prv")
            return self.epsilon([(1, person["loss"] ** -0.5, 1)] if person["loss"] else [], self.delta)
        i, before, until = person["class"], person["before"], person["until"]
        terms = self.terms_with(i, self.spent_terms(i, before, until), person)
        figures = self.epsilon(terms, self.delta)
        steps = sum(n for _, _, n in terms)
        if self.caps and person["cap"] and steps:
            attempts = max(1, self.windows[:until][-1]["attempt"] - person["attempt"] + 1)
            left, square = min(person["cap"] * attempts, steps), 0.0
            for _, z, n in sorted(terms, key=lambda term: term[1]):
                square, left = square + min(n, left) / z**2, left - min(n, left)
            capped = self.epsilon([(1, square**-0.5, 1)], self.delta)
            figures = tuple(min(a, b) for a, b in zip(figures, capped, strict=True))
        return figures

    def leaves_of(self, key, group):
        """Return the leaves over which the root of a group is; those that nothing names are shorter than a hash."""
        if self.public_draws and key[9] is None:
            return [person["hash"] for person in self.people if person.get("group") is group and person["until"] is None]
        return group["leaves"]

    def row_of(self, key, group):
        """Return count, root, steps, variance of a group, as they are now."""
        terms = self.spent_terms(key[0], key[7], key[9])
        std = min(std for std, _ in terms or self.plan(key[0]))
        return group["members"], merkle_root(self.leaves_of(key, group)), sum(n for _, n in terms), std * std

    def spend(self, seq, rows_):
        """Keep rows until the EPOCH leaf."""
        need(rows_, "SPEND", "no row")
        need(self.open is None, "SPEND_ORDER", "window is open")
        self.batch += [tuple(row) for row in rows_]

    def check_rows(self):
        """Hold the rows before an EPOCH leaf against the groups that changed."""
        expected = {}
        for key, group in self.groups.items():
            if group["members"]:
                row = self.row_of(key, group)
                if self.said.get(key, ())[:4] != row:
                    expected[key] = row
        order = sorted(expected, key=lambda key: [-1 if field is None else field for field in key])
        need([row[:12] for row in self.batch] == order, "SPEND_ORDER", f"{len(self.batch)} rows, {len(order)} follow")
        for row in self.batch:
            key = row[:12]
            if any(len(leaf) not in (0, 32) for leaf in self.leaves_of(key, self.groups[key])):  # the root is vouched for
                row = (*row[:13], expected[key][1], *row[14:])
            need(row[12:16] == expected[key], "SPEND", f"{row[12:16]}, not {expected[key]}")
            _, low, high = self.epsilon_of(self.groups[key]["person"])
            need(low <= row[16] / MICRO <= high, "SPEND_EPSILON", f"{row[16]}, not from {low} to {high}")
            self.said[key] = row[12:]
            self.largest[key[0]] = max(self.largest.get(key[0], 0), row[16])
        self.batch = []

    # the order of a run

    def charge(self, seq, window, attempt, first, steps, rows_, stream, fence):
        """Check a charge against policy, pools and schedule."""
        need(self.open is None and not self.over, "TILE", "a window is open, or the attempt is over")
        need(window == len(self.windows) + 1 and attempt == self.attempt, "TILE", f"window {window}, attempt {attempt}")
        need(first == self.position + 1, "TILE", f"first step {first} behind {self.position}")
        last = first + steps - 1
        need(steps <= self.policy[10], "WINDOW_LONG", str(steps))
        need(last <= self.policy[8], "HORIZON", "beyond the steps of the policy")
        need(self.phase(first) == self.phase(last), "PHASE", "window in two phases")
        self.charged += steps
        self.repeated += max(0, min(last, self.furthest) - first + 1)
        farthest, self.furthest = self.furthest, max(self.furthest, last)
        need(self.charged <= self.policy[8] + self.policy[9], "HORIZON", "more steps than the horizon and its redo steps")
        need(self.repeated <= self.policy[9] or (26 not in self.policy and len(self.phases) == 1), "HORIZON", "repeated steps")
        self.copy(first, last, farthest)
        need(stream not in self.noise, "NOISE_REUSED", stream.hex())
        need(fence >= self.fence, "FENCE", str(fence))
        self.noise.add(stream)
        self.fence = fence
        need(len(rows_) == len(self.classes), "CHARGE_CLASS", "classes")
        for i, row in enumerate(rows_):
            rule, pool = self.classes[i], self.pools[i]
            if pool["root"] is None:
                pool["root"] = merkle_root(pool["leaves"])
            q = rule["q"]
            follows = [rule["name"], q.numerator, q.denominator, rule["sigma"], rule["clip"], self.std(i, first)]
            root = row[7] if pool["unknown"] else pool["root"]
            need(row == [*follows, pool["active"], root], "CHARGE_CLASS", f"{row[:7]}, not {follows}, {pool['active']}")
        for person in self.people:
            if person["gone"] is None:
                who = f"contribution of leaf {person['seq']} in the pool"
                need(self.time < person.get("ends", math.inf), "EXPIRED", who)
                need(not self.clocks or person.get("begins", 0) <= self.time, "NOT_YET_VALID", who)
                need(not self.barred(person), "BARRED", who)
                self.report.ask_revoked(person, self.time)
        self.open = {"number": window, "attempt": attempt, "first": first, "steps": steps, "seq": seq, "drawn": []}
        self.windows.append(self.open)

    def copy(self, first, last, farthest):
        """Count which draws have copies more by a window, where all before it charged steps up to one (Copies)."""
        behind, self.behind = self.behind, None
        if self.bands == 1:
            return
        if any(first <= step <= last for step in self.copies):
            self.said = {}
        if behind and farthest > behind:
            self.said = {}
            for step in range(max(1, behind - self.bands + 2), behind + 1):
                self.copies[step] = self.copies.get(step, 0) + 1

    def settle(self, seq, window, released, rows_):
        """Close a window."""
        need(self.open is not None and window == self.open["number"], "SETTLE", "no such window")
        need(released <= self.open["steps"], "SETTLE", "more steps than charged")
        need(not self.public_draws or len(self.open["drawn"]) == released, "DRAW_MISSING", "not one for every released step")
        if self.per_sample:
            steps = [self.variances(first, drawn) for first, drawn in self.open["drawn"]]
            follows = [min((step[i] for step in steps), default=0.0) for i in range(len(self.classes))]
        else:
            follows = [self.std(i, self.open["first"]) ** 2 for i in range(len(self.classes))]
        need(rows_ == follows, "VARIANCE", f"{rows_}, not {follows}")
        self.position = self.open["first"] + released - 1
        self.over = released < self.open["steps"]
        self.open["settle"], self.open["variances"] = seq, follows
        self.open = None

    def squares(self, drawn):
        """Return V of each class in a step with noise per sample, in 1e-24."""
        private = [self.people[place] for place in drawn if not self.classes[self.people[place]["class"]]["public"]]
        result = []
        for i in range(len(self.classes)):
            sets = [allowed for allowed, _, _, _ in self.blocks if i in allowed]
            sums = [sum((p["sigma"] * p["clip"]) ** 2 for p in private if p["class"] in allowed) for allowed in sets]
            result.append(min(sums))
        return result

    def variances(self, step, drawn):
        """Return the variance that a DRAW leaf says of each class."""
        if not self.per_sample:
            return [self.std(i, step) ** 2 for i in range(len(self.classes))]
        roots = [math.sqrt(float(square)) / 1e12 for square in self.squares(drawn)]
        return [root * root for root in roots]

    def draw(self, seq, window, step, drawn, rows_):
        """Take in who was drawn in a step."""
        need(self.public_draws, "DRAW_SECRET", "draws are secret")
        need(self.open is not None and window == self.open["number"], "DRAW", "no such window")
        need(step == self.open["first"] + len(self.open["drawn"]) < self.open["first"] + self.open["steps"], "DRAW", "step")
        need(not drawn or drawn[-1] < len(self.people), "DRAW", "numbers")
        need(rows_ == self.variances(step, drawn), "VARIANCE", str(rows_))
        self.check_turns(step, drawn)
        self.open["drawn"].append((step, drawn))
        repeated = step in self.drawn_steps
        self.drawn_steps.add(step)
        squares = self.squares(drawn) if self.per_sample else None
        for person in [self.people[place] for place in drawn]:
            i = person["class"]
            need(person["gone"] is None, "WITHDRAWN", "drawn")
            need(not (self.caps and 0 < person["cap"] <= person["drawn"]), "DRAW", "more than its cap")
            if self.classes[i]["public"]:
                person["drawn"] += 1
                continue
            self.leave(person)
            person["drawn"] += 1
            if self.per_sample:
                person["loss"] += float(Fraction(person["clip"] ** 2 * 10**12, squares[i]))
            elif self.strategy:
                z = self.multiplier(person, self.std(i, step))
                period = self.classes[i]["q"].denominator
                person["loss"] += 0.0 if repeated else self.strategy.occurrence(period, step - 1) / (z * z)
            else:
                z = self.multiplier(person, self.std(i, step))
                person["loss"] += 1 / (z * z)
            self.enter(person)
        if repeated and self.strategy:
            self.released_again(step)

    def released_again(self, step):
        """Count that a step was released once more for whoever took part in it or before, gone or not, in order."""
        for person in self.people:
            i = person["class"]
            if not self.classes[i]["public"] and person["drawn"]:
                period = self.classes[i]["q"].denominator
                more = self.strategy.again(period, step - 1, person["place"] % period)
                if more:
                    z = self.multiplier(person, self.std(i, step))
                    self.leave(person)
                    person["loss"] += more / (z * z)
                    self.enter(person)

    def check_turns(self, step, drawn):
        """Hold a draw against the signed order (Turns)."""
        if not self.policy["turns"]:
            return
        due = set()
        for i, rule in enumerate(self.classes):
            period = rule["q"].denominator
            order = self.turn_order(i, (step - 1) // period)
            due |= {person["number"] for person in order[(step - 1) % period :: period]}
        for number_ in sorted(due):
            person = self.people[number_]
            if person["gone"] is not None or (self.caps and 0 < person["cap"] <= person["drawn"]):
                due.remove(number_)
        need(set(drawn) == due, "TURN", f"step {step}: {drawn}, not {sorted(due)}")

    def turn_order(self, i, period):
        """Return the members of a class in the order of a period."""
        if (i, period) not in self.turns:
            members = [person for person in self.people if person["class"] == i]
            if self.policy["order"] == "shuffled":
                seed = b"dptrain.order/1\0" + self.run_id + struct.pack(">IQ", i, period)
                words_ = struct.unpack(f"<{len(members)}Q", hashlib.shake_256(seed).digest(8 * len(members)))
                members = [members[place] for place in sorted(range(len(members)), key=lambda place: (words_[place], place))]
            self.turns[i, period] = members
        return self.turns[i, period]

    def barred(self, person):
        """Return why the state of the registry in force does not support a contribution, or nothing."""
        if self.state is None or "key" not in person:
            return ""
        keys, people = self.state
        state = keys.get(person["key"])
        if state is None or (state["revoked"] is not None and state["revoked"] <= self.time):
            return "key-revoked"
        granted = self.classes[person["class"]]["name"] in people[state["who"]]["classes"]
        return "" if granted else "class-not-granted"

    def later_state(self, seq, before, after):
        """Take in a later state of the registry."""
        need(before == self.roots_in_force[-1], "REGISTRY", "does not go on from the state in force")
        need(after not in self.roots_in_force, "REGISTRY", "a state that was in force before")
        self.roots_in_force.append(after)
        registry = self.report.registry
        if registry is not None:
            need(after in registry.states, "REGISTRY_ROOT", "no state of the registry")
            places = [registry.roots.index(root) for root in self.roots_in_force[-2:]]
            need(places[0] < places[1], "REGISTRY_ROOT", "states in another order")
            self.state = registry.states[after]

    def withdraw(self, seq, digest, admitted, why, evidence, shown):
        """Take a contribution out of pool and group."""
        person = self.by_hash.get(digest)
        need(admitted == (person["seq"] if person else None), "WITHDRAW", "position of its ADMIT")
        if shown is not None:
            need(self.closed is not None and not self.withdrawn(digest), "MEMBER", "shown before the close, or once more")
            need(person is not None and person["pruned"], "MEMBER", "shown, though its ADMIT leaf is there")
            rows_ = [row for row in self.aggregates_of(1, math.inf) if row[0] <= admitted < row[0] + row[1]]
            check_member(rows_[0], digest, admitted, shown[0], shown[1:])
            person["shown"] = True
        if why == "expired" and person and person["attestation"] is not None:
            need(evidence == person["attestation"], "WITHDRAWAL_EVIDENCE", "of an expiry")
            need(self.time >= person.get("ends", 0), "NOT_EXPIRED", "withdrawn before its end")
        if why in NOBODY_SIGNS:
            here = person is not None and person["gone"] is None and self.closed is None
            need(here, "WITHDRAW", f"{why}, of who is in no pool")
        if why in ("key-revoked", "class-not-granted"):
            need(evidence == self.roots_in_force[-1], "WITHDRAWAL_EVIDENCE", "not the root of the state in force")
            if "key" in person and self.state is not None:
                need(self.barred(person), "NOT_BARRED", "the state in force supports it")
        before = self.withdrawn(digest)
        need(not before or (len(before) == 1 and before[0] in NOBODY_SIGNS and why not in NOBODY_SIGNS), "WITHDRAW", "twice")
        self.withdrawals.append((digest, why, seq, evidence))
        if person is None or before:
            return
        person["gone"], person["reason"] = seq, why
        pool = self.pools[person["class"]]
        pool["leaves"][person["place"]] = b""
        pool["active"], pool["root"] = pool["active"] - 1, None
        if not self.classes[person["class"]]["public"]:
            self.leave(person)
            person["until"] = len(self.windows)
            self.enter(person)

    def epoch(self, seq, count, step, charged, rows_, _, isolation, frozen):
        """Check an EPOCH leaf, and the rows before it."""
        need(self.open is None, "EPOCH_ORDER", "window is open")
        need(count == len(self.epochs) + 1, "EPOCH", f"number {count}")
        need((step, charged) == (self.position, self.charged), "EPOCH", f"step {step}, charged {charged}, not {self.charged}")
        self.check_rows()
        follows = []
        for i, pool in self.pools.items():
            largest = None if self.classes[i]["public"] else self.largest.get(i, 0)
            follows.append([pool["active"], len(pool["leaves"]) - pool["active"], largest])
        need(rows_ == follows, "EPOCH", f"{rows_}, not {follows}")
        need(self.isolation in ("held", isolation), "ISOLATION", isolation)
        need(31 not in self.policy or isolation == "held", "ISOLATION_REQUIRED", isolation)
        self.isolation = isolation
        need(frozen == self.frozen, "FROZEN", "other frozen parameters")
        self.epochs.append(seq)
        self.epoch_charged = charged
        if self.policy[20]:
            for person in self.people:
                if not self.classes[person["class"]]["public"]:
                    said = self.said[person["group"]["key"]]
                    person["last"] = (said[4], said[3], said[2])

    def resume(self, seq, attempt, step, size, root, threads):
        """Begin another attempt at a step."""
        need(attempt == self.attempt + 1, "RESUME", f"attempt {attempt}, not {self.attempt + 1}")
        need((step == 0 and threads is None) or size is not None, "RESUME", "no pin")
        need(size is None or (size <= seq and root_of(self.levels, size) == root), "RESUME", "pinned root")
        if step:
            covering = [w for w in self.windows if w["seq"] < size and w["first"] <= step < w["first"] + w["steps"]]
            if self.public_draws:
                covering = [w for w in covering if step - w["first"] < len(w["drawn"])]
            need(covering, "RESUME", f"step {step} was not charged below the pin")
        self.attempt, self.position, self.open, self.over, self.behind = attempt, step, None, False, step

    def close(self, seq, step, charged):
        """Close the run."""
        need(self.open is None and (step, charged) == (self.position, self.charged), "CLOSE", f"step {step}, charged {charged}")
        need(self.epochs and self.epoch_charged == charged, "CLOSE", "no EPOCH with these charged steps")
        self.closed = seq

    def release(self, seq, step, size, root, _manifest, _files, withdrawn):
        """Check what a RELEASE leaf cites."""
        need(size == seq and root == root_of(self.levels, size), "RELEASE", "checkpoint")
        need(step == self.position, "RELEASE", "step")
        gone = list(dict.fromkeys(row[0] for row in self.withdrawals))
        need(withdrawn == merkle_root(gone), "RELEASE", "withdrawals")

    def key(self, seq, old, new, by_old, by_new):
        """Hand the ledger to another key."""
        before, after = self.vkeys[-1], VerifierKey(new, ED25519)
        need(old == before.line and after.name == before.name, "LOG_KEY", "not the key until now")
        need(after.raw not in {key.raw for key in self.vkeys} | self.cosigners, "LOG_KEY", "key was used before")
        signed = b"dptrain/rotate-ledger-key/1\0" + encode([self.origin, self.run_id, seq, old, new])
        need(signature_ok(before.raw, by_old, signed), "SIG_BAD", "change of the key, by the old one")
        need(signature_ok(after.raw, by_new, signed), "SIG_BAD", "change of the key, by the new one")
        self.vkeys.append(after)
        self.key_leaves.append(seq)

    def clock(self, seq, before, why):
        """Keep a change of the clock; `leaf` has checked it."""
        self.clocks.append((seq, before, why))

    # summaries

    def summary(self, seq, first, end, kinds, rows_, roots, root, before):
        """Recompute every field of a SUMMARY leaf."""
        start = self.summaries[-1][2] if self.summaries else 1
        need(first == start and before == (self.summaries[-1][0] if self.summaries else None), "SUMMARY", "range")
        need(first < end <= seq and end - 1 in self.epochs, "SUMMARY", "does not end behind an EPOCH")
        behind = len(self.epochs) - self.epochs.index(end - 1) - 1
        need(0 < self.policy[20] <= behind, "SUMMARY", "horizon")
        counts = [[kind, self.kinds[first:end].count(kind)] for kind in range(15)]
        need(kinds == [row for row in counts if row[1]], "SUMMARY", "leaves per kind")
        nodes = [self.levels[height][at >> height] for at, height in aligned(first, end)]
        need(roots == nodes, "SUMMARY", "roots of subtrees")
        records = [encode(row) for row in self.aggregates_of(first, end)]
        need(root == merkle_root(records), "SUMMARY", "root over its contributions")
        need(rows_ == [self.summary_row(i, first, end) for i in range(len(self.classes))], "SUMMARY", "classes")
        self.summaries.append((seq, first, end))

    def summary_row(self, i, first, end):
        """Return the row of a class in a SUMMARY leaf; figures as at the EPOCH that ends the range."""
        public = self.classes[i]["public"]
        at = self.snapshots[end - 1]
        active = [s for s in at if s["class"] == i and s["gone"] is None]
        left = [s for s in at if s["class"] == i and s["gone"] is not None and first <= s["gone"] < end]
        inside = [s for s in at if s["class"] == i and first <= s["seq"] < end]
        chosen = inside if public else active + left
        epsilons = [s["last"][0] for s in chosen] if not public else []
        windows = [w for w in self.windows if first <= w.get("settle", 0) < end]
        variances = [w["variances"][i] for w in windows] + ([s["last"][1] for s in chosen] if not public else [])
        charged = sum(w["steps"] for w in self.windows if first <= w["seq"] < end)
        most = max((s["last"][2] for s in chosen), default=0) if not public else 0
        return [
            len(chosen), len(active), None if public else sum(epsilons), None if public else max(epsilons, default=0),
            min(variances, default=0.0), max(variances, default=0.0), charged, most,
        ]  # fmt: skip


# --- Exports ----------------------------------------------------------------------------------------------------------


def tile_path(number_, width):
    """Return the path of a tile or bundle (C2SP tlog-tiles)."""
    parts = [f"{number_ % 1000:03}"]
    while number_ >= 1000:
        number_ //= 1000
        parts.insert(0, f"x{number_ % 1000:03}")
    return "/".join(parts) + (f".p/{width}" if width < 256 else "")


def tiles_of(count):
    """Return (number, width) of the tiles for so many hashes."""
    full = [(i, 256) for i in range(count // 256)]
    return full + ([(count // 256, count % 256)] if count % 256 else [])


def split_bundle(data, width, extra=2):
    """Return the entries of a bundle, each after its length."""
    entries, at = [], 0
    while at < len(data):
        need(len(data) - at >= extra, "BUNDLE", "length")
        length = int.from_bytes(data[at : at + extra], "big")
        at += extra
        need(len(data) - at >= length, "BUNDLE", "entry")
        entries.append(data[at : at + length])
        at += length
    need(width is None or len(entries) == width, "BUNDLE", f"{len(entries)} entries, not {width}")
    return entries


class Report:
    """What is found."""

    def __init__(self):
        """Begin with nothing found."""
        self.findings, self.qualifiers, self.notes = [], [], []
        self.run = self.registry = None

    def ask_revoked(self, person, time):
        """Add a qualifier where the last state of the registry had entered a revocation of somebody's key by then."""
        state = self.registry.keys.get(person.get("key")) if self.registry else None
        if state and state.get("said", LAST_MOMENT) <= time:
            self.qualify("KEY_REVOKED")

    def find(self, refused, where):
        """Keep a finding."""
        self.findings.append((refused.code, f"{where}: {refused.text}"))

    def attempt(self, where, action, *arguments):
        """Do something, keep what it refuses, and return what it returns."""
        try:
            return action(*arguments)
        except Refused as refused:
            self.find(refused, where)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, ArithmeticError) as error:
            self.find(Refused("MALFORMED", f"{type(error).__name__}: {error}"), where)
        return None

    def qualify(self, qualifier):
        """Add a qualifier once."""
        if qualifier not in self.qualifiers:
            self.qualifiers.append(qualifier)


class Export:
    """The files of an export."""

    def __init__(self, folder):
        """List regular files; anything else is refused."""
        self.folder, self.files, self.used = Path(folder), set(), set()
        need(self.folder.is_dir() and not self.folder.is_symlink(), "EXPORT", "no folder")
        for path in self.folder.rglob("*"):
            need(not path.is_symlink() and (path.is_dir() or path.is_file()), "FILES", f"{path}: no regular file")
            if path.is_file():
                self.files.add(path.relative_to(self.folder).as_posix())

    def read(self, name):
        """Return the bytes of a file."""
        need(name in self.files, "FILES", f"{name} is missing")
        self.used.add(name)
        return (self.folder / name).read_bytes()

    def leaves(self, size):
        """Return the entries of all leaves, and how many bundles are retained ones."""
        entries, retained = [], 0
        for number_, width in tiles_of(size):
            name = tile_path(number_, width)
            kept = f"retained/{name}" in self.files
            need(not kept or retained == number_, "FILES", f"retained/{name} stands behind other bundles")
            retained += kept
            entries += split_bundle(self.read(("retained/" if kept else "tile/entries/") + name), width)
        return entries, retained

    def hashes(self, size, entries, retained):
        """Return the complete nodes of all levels, None for those that are gone; hold tiles against them."""
        self.gone = []
        self.pruned = {at for at, entry in enumerate(entries) if at < 256 * retained and stands_in(entry)}
        own = [None if at in self.pruned else leaf_hash(entry) for at, entry in enumerate(entries)]
        levels = [own]
        while len(levels[-1]) > 1:
            levels.append([None] * (len(levels[-1]) // 2))
        for number_, width in tiles_of(size):
            name = f"tile/0/{tile_path(number_, width)}"
            if name in self.files:
                data = self.read(name)
                need(len(data) == 32 * width, "TILE", name)
                for place in range(width):
                    node = data[32 * place : 32 * place + 32]
                    need(own[256 * number_ + place] in (None, node), "TILE", f"{name}, hash {place}")
                    own[256 * number_ + place] = node
        if "retained/nodes" in self.files:
            self.place_nodes(levels, entries, self.read("retained/nodes"))
        for height in range(1, len(levels)):
            below = levels[height - 1]
            for place in range(len(levels[height])):
                left, right = below[2 * place : 2 * place + 2]
                if left is not None and right is not None:
                    need(levels[height][place] is None, "NODES", "a subtree over known hashes")
                    levels[height][place] = node_hash(left, right)
        level = 0
        while size >> (8 * level):
            for number_, width in tiles_of(size >> (8 * level)):
                name = f"tile/{level}/{tile_path(number_, width)}"
                nodes = levels[8 * level][256 * number_ : 256 * number_ + width]
                if None in nodes:
                    need(name not in self.files, "FILES", f"{name} cannot be told")
                    need(self.gone, "FILES", f"{name} is missing")
                else:
                    need(self.read(name) == b"".join(nodes), "TILE", name)
            level += 1
        return levels

    def place_nodes(self, levels, entries, data):
        """Enter the roots of subtrees whose hashes are gone."""
        need(len(data) > 32 and (len(data) - 32) % 41 == 0 and data[-32:] == sha256(data[:-32]), "NODES", "form")
        end = 0
        for at in range(0, len(data) - 32, 41):
            first, height = struct.unpack(">QB", data[at : at + 9])
            root = data[at + 9 : at + 41]
            need(first >= end and first % (1 << height) == 0 and first + (1 << height) <= len(entries), "NODES", "place")
            end = first + (1 << height)
            inside = levels[0][first:end]
            need(height == 0 or inside == [None] * len(inside), "NODES", "stands over a known leaf")
            need(levels[height][first >> height] in (None, root), "NODES", "root")
            need(height == 0 or self.pruned.issuperset(range(first, end)), "NODES", "not pruned")
            levels[height][first >> height] = root
            self.gone += [(first, end)] * (height > 0)

    def attestations(self, entries):
        """Return {position: (descriptor, key id, signature)} of all ADMIT leaves with a body, or None without files."""
        if not any(name.startswith("attestations/") for name in self.files):
            return None
        admits = {at: decode(e) for at, e in enumerate(entries) if at not in self.pruned and decode(e).get(1) == ADMIT}
        signed = {}
        for number_, width in tiles_of(len(entries)):
            here = [at for at in admits if at // 256 == number_]
            if here:
                rows_ = split_bundle(self.read(f"attestations/signed/{tile_path(number_, width)}"), width)
                for place, row in enumerate(rows_):
                    need((row != b"") == (256 * number_ + place in admits), "ATTESTATIONS", f"entry {place}")
                signed |= {at: decode(rows_[at % 256]) for at in here}
        for row in signed.values():
            need(type(row) is list and len(row) == 2, "TYPE", "entry")
            uint(0, len(signed))(row[0])
            blob(64)(row[1])
        used = list(dict.fromkeys(signed[at][0] for at in sorted(signed)))
        need(used == list(range(len(used))), "ATTESTATIONS", "terms not in the order of their first use")
        terms = []
        for number_, width in tiles_of(len(used)):
            terms += split_bundle(self.read(f"attestations/terms/{tile_path(number_, width)}"), width)
        parsed = []
        for data in terms:
            row = decode(data)
            need(type(row) is list and len(row) == 2, "TYPE", "terms")
            blob()(row[0])
            blob(8)(row[1])
            fields = read_descriptor(row[0])
            need(fields[7] == bytes(32), "ATTESTATIONS", "terms with a content")
            parsed.append((fields, row[1]))
        need(len(set(terms)) == len(terms), "ATTESTATIONS", "terms twice")
        result = {}
        for at, (number_, signature) in signed.items():
            fields, kid = parsed[number_]
            result[at] = (encode({**fields, 7: admits[at][11]}), kid, signature)
        return result


def attestation_digest(descriptor, message):
    """Return the attestation hash, over the CBOR array of both."""
    return sha256(encode([descriptor, message]))


def check_attestation(run, person, signed, state):
    """Make an attestation again, and hold it against leaf, policy and registry (What the auditor does, 9)."""
    data, kid, signature = signed
    fields = read_descriptor(data)
    need(sha256(data) == person["hash"], "ATTESTATION", "descriptor hash")
    message = message_bytes(protected_header("attestation", kid, fields[2].hex(), data), signature)
    need(attestation_digest(data, message) == person["attestation"], "ATTESTATION", "attestation hash")
    need(kid == person["kid"], "ATTESTATION", "key id")
    rule, policy = run.classes[person["class"]], run.policy
    quoted = (rule["name"], person["clip"], person["sigma"], person["cap"], person["anchor"], person["limit"])
    need((fields[4], fields[5], fields[6], fields[12], fields[7], fields.get(14, 0)) == quoted, "ATTESTATION", "fields")
    need(fields.get(15, 0) == person["limit_delta"], "ATTESTATION", "delta of the limit")
    if state is None:
        return
    keys, people = state
    found = [raw for raw in keys if key_id(raw) == kid]
    need(found, "KEY_UNKNOWN", kid.hex())
    errors = []
    for raw in found:
        try:
            check_message(message, "attestation", data, raw, fields[2].hex())
            break
        except Refused as refused:
            errors.append(refused)
    else:
        raise errors[0]
    why = key_state(keys[raw], person["time"])
    need(not why, why, "key of the contributor")
    need(fields[11] == policy[2], "AUDIENCE", fields[11])
    who = people[keys[raw]["who"]]
    need(rule["name"] in who["classes"], "CLASS_NOT_GRANTED", rule["name"])
    judge_purpose(fields, rule)
    need(fields[8] <= person["time"], "NOT_YET_VALID")
    need(person["time"] < fields[9], "EXPIRED")
    longest = policy[17] if rule["validity"] is None else min(policy[17], rule["validity"])
    need(fields[9] - fields[8] <= longest, "WINDOW", "longer than class and policy allow")
    judge_bounds(fields, rule, policy)
    person["who"], person["key"] = keys[raw]["who"], raw
    person["begins"], person["ends"] = fields[8], fields[9]
    cap = policy[18] if who["cap"] is None else min(policy[18], who["cap"])
    same = sum(other.get("who") == person["who"] for other in run.people)
    need(same <= cap, "CONTRIBUTOR_CAP", f"{same} of one contributor")


def trust_policy(run):
    """Return the text of the file `policy` (Proof files)."""
    witnesses, groups, names = [], [], []
    for one, many, keys, quorum in (("auditor", "auditors", 27, 28), ("witness", "witnesses", 32, 33)):
        lines = run.policy.get(keys, [])
        witnesses += [f"witness {one}-{i + 1} {line}" for i, line in enumerate(lines)]
        if lines:
            members = " ".join(f"{one}-{i + 1}" for i in range(len(lines)))
            groups.append(f"group {many} {run.policy[quorum]} {members}")
            names.append(many)
    if len(names) == 2:
        groups.append("group auditors-and-witnesses 2 auditors witnesses")
        names = ["auditors-and-witnesses"]
    return "\n".join([f"log {run.vkeys[-1].line}", *witnesses, *groups, f"quorum {names[0] if names else 'none'}"]) + "\n"


def check_cosigners(report, run, notes, text, times, now, require):
    """Verify the lines of auditors and witnesses, and tell whether the quorum is there."""
    for keys, quorum, qualifier in ((27, 28, "NO_QUORUM"), (32, 33, "NO_WITNESS_QUORUM")):
        counted = set()
        for line in run.policy.get(keys, []):
            key = VerifierKey(line, COSIGNATURE)
            for note, covered in notes:
                time = report.attempt("checkpoint", note.cosigned_at, key)
                if time is not None and note.text == text:
                    if times[covered - 1] <= time <= now + HOUR:
                        counted.add(line)
                    else:
                        report.notes.append(f"line of {key.name} at a time that does not count")
        if len(counted) < run.policy.get(quorum, 0):
            if require:
                report.find(Refused("QUORUM", f"{len(counted)} have cosigned"), "checkpoint")
            report.qualify(qualifier)
    if 27 not in run.policy:
        report.qualify("NO_AUDITORS")


def signers_at(run, size):
    """Return the ledger's keys that sign a tree of this size."""
    changes = [at for at in run.key_leaves if at < size]
    return run.vkeys[len(changes) - 1 if changes and changes[-1] == size - 1 else len(changes) :][: 1 + (size - 1 in changes)]


def check_signers(run, note, size):
    """Ask for the signatures of the ledger's keys of this size."""
    for key in signers_at(run, size):
        need(note.signed_by(key), "SIG_BAD", f"no signature of {key.line}")


def check_log_key(report, run, note, size, pins):
    """Hold the note against the chain of the ledger's keys, and the chain against what was pinned."""
    check_signers(run, note, size)
    if not pins:
        report.qualify("LOG_KEY_NOT_PINNED")
    chain = {key.line for key in run.vkeys}
    for line in pins:
        need(line in chain or VerifierKey(line, ED25519).name != run.origin, "LOG_KEY", "a pinned key is not in the chain")
    need(not pins or any(line in chain for line in pins), "LOG_KEY", "no pinned key signed")


def check_pruned(report, run, notes, times, now, gone):
    """Ask for a summary, an EPOCH behind it, and a quorum of statements, for every pruned leaf; check the second horizon."""
    for first, end in gone:
        far = [(a, b) for _, a, b in run.summaries if sum(epoch >= b for epoch in run.epochs) >= run.policy.get(30, math.inf)]
        need(all(any(a <= at < b for a, b in far) for at in range(first, end)), "HORIZON", f"hashes of {first} to {end}")
    pruned = [person for person in run.people if person["pruned"]]
    needed, stayed = set(), False
    for person in pruned:
        where = f"leaf {person['seq']}"
        places = [person["seq"]]
        if person["gone"] is None or person.get("shown"):
            need(run.closed is not None, "PRUNED", f"{where}: who stays is gone from a run that goes on")
            stayed = True
        else:
            places.append(person["gone"])
        for at in places:
            found = [seq for seq, first, end in run.summaries if first <= at < end]
            need(found, "UNVOUCHED", f"{where}: no summary speaks for leaf {at}")
            needed.add(found[0])
    for seq in needed:
        later = any(epoch > seq for epoch in run.epochs) or run.closed is not None
        need(later, "TOO_EARLY", f"summary at {seq}")
    if needed:
        report.qualify("PRUNED")
        needed = {seq for seq, _, _ in run.summaries if seq <= max(needed)}
        if stayed:
            needed.add(run.closed)
        speaking = {seq: set() for seq in needed}
        for line in run.policy.get(27, []):
            key = VerifierKey(line, COSIGNATURE)
            for note, covered in notes:
                statement = note.vouched(key)
                if statement and times[covered - 1] <= statement[0] <= now + HOUR:
                    for seq in needed:
                        if seq < covered and (statement[1] <= seq or seq == run.closed):
                            speaking[seq].add(line)
        for seq, who in speaking.items():
            need(27 in run.policy and len(who) >= run.policy[28], "UNVOUCHED", f"{len(who)} auditors vouch at {seq}")


class SignedWithdrawal:
    """A file that is given as a signed withdrawal; of its signature only the form is read."""

    def __init__(self, data):
        """Read it, or refuse what is none."""
        self.payload, self.message = read_pair(data)
        self.kid, self.issuer, subject, kind, _, _ = read_message(self.message)
        need(kind == TYPE % "withdrawal" and subject == "sha-256:" + sha256(self.payload).hex(), "HEADER", "no withdrawal")
        value = decode(self.payload)
        shape(value, {1: word("dptrain.withdrawal/1"), 2: hash32, 3: identifier, 4: moment, 5: identifier})
        need(value[5] not in NOBODY_SIGNS, "REASON", value[5])
        self.digest, self.corpus, self.time, self.reason = value[2], value[3], value[4], value[5]
        self.evidence = sha256(self.message)

    def holds(self, run, registry, time=None):
        """Tell whether its signer may withdraw: True, False for a bad signature, None where nothing shows who signed."""
        if self.issuer == run.owner:
            return self.verifies(run.owner_key)
        person = run.by_hash.get(self.digest)
        keys = registry.keys if registry and person else {}
        who = {state["who"] for raw, state in keys.items() if key_id(raw) == person["kid"]}
        found = None
        for raw, state in keys.items():
            valid = any(key_state(state, moment_) == "" for moment_ in {self.time, time} - {None})
            if state["who"] in who and key_id(raw) == self.kid and valid:
                found = self.verifies(raw)
                if found:
                    return True
        return found

    def verifies(self, raw):
        """Tell whether it verifies under a key."""
        try:
            check_message(self.message, "withdrawal", self.payload, raw, self.issuer)
        except Refused:
            return False
        return True


def read_withdrawals(folder):
    """Return the signed withdrawals in a folder; other files count for nothing."""
    found = []
    for path in sorted(Path(folder).iterdir()):
        if path.is_file():
            try:
                found.append(SignedWithdrawal(path.read_bytes()))
            except (Refused, LookupError, TypeError, ValueError):
                continue
    return found


def check_withdrawals(report, run, folder, registry):
    """Hold WITHDRAW leaves against the signed withdrawals in a folder; return the positions of those that are shown."""
    given, shown, late = read_withdrawals(folder), set(), {}
    for digest, why, seq, evidence in run.withdrawals:
        own = [item for item in given if item.evidence == evidence]
        if own:
            said = (own[0].digest, own[0].corpus, own[0].reason)
            need(said == (digest, run.policy[2], why), "WITHDRAWAL_EVIDENCE", f"leaf {seq}: {said[1:]}")
            holds = own[0].holds(run, registry, run.times[seq])
            need(holds is not False, "WITHDRAWAL_EVIDENCE", f"leaf {seq}: a bad signature")
            if holds:
                shown.add(seq)
                continue
        if why == FROM_TEXTS and any(row[5] == "texts" for row in run.earlier):
            theirs = [item for item in given if item.digest == digest and item.corpus == run.policy[2]]
            if any(item.time <= run.times[seq] and item.holds(run, registry, run.times[seq]) for item in theirs):
                shown.add(seq)
            continue
        for other in given:
            alike = other.digest == digest and other.corpus == run.policy[2] and other not in own
            if alike and other.reason != why and other.time <= run.times[seq] and other.holds(run, registry, run.times[seq]):
                need(why in NOBODY_SIGNS, "WITHDRAWAL_REASON", f"leaf {seq}: {other.reason} was signed")
                late.setdefault(digest, seq)
    entered = {row[0] for row in run.withdrawals if row[1] not in NOBODY_SIGNS}
    for item in given:
        if (item.digest in run.by_hash or nameless(run)) and item.digest not in entered:
            need(item.digest not in late, "WITHDRAWAL_REASON", f"leaf {late.get(item.digest)}")
            if item.corpus == run.policy[2] and item.holds(run, registry):
                report.qualify("WITHDRAWAL_UNENTERED")
    return shown


# --- Earlier runs -----------------------------------------------------------------------------------------------------


def nameless(run):
    """Return how many a run has of whom nothing says who they are."""
    return sum(not person["known"] for person in run.people)


INHERITED = (
    "CLOCK_SET", "DRAWS_TOLD", "FROZEN_TOLD", "NO_AUDITORS", "NO_QUORUM", "NO_WITNESS_QUORUM", "PRUNED", "TOLD", "UNADDRESSED",
    "UNPROBED",
)  # fmt: skip
UNSHOWN = "DRAWS_TOLD", "NO_AUDITORS", "NO_QUORUM", "NO_WITNESS_QUORUM"


class Counted:
    """A cited run, as it was at the size at which it is cited."""

    def __init__(self, other, size, how):
        """Keep it; it is lost if its key was, before it was closed."""
        self.other, self.size, self.digest = other, size, other.digest
        self.closed = other.closed is not None and other.closed < size
        self.lost = how == "compromised" and not self.closed

    def left_for_good(self):
        """Return the descriptor hashes of who was withdrawn by then, not merely taken out for a while."""
        return {digest for digest, why, seq, _ in self.other.withdrawals if seq < self.size and why not in NOBODY_SIGNS}

    def account(self, person, name, named=False):
        """Return the account of a contribution of a class of this name in the run; None without one, or of nobody `named`."""
        other, before = self.other, self.other.by_hash.get(person["hash"])
        places = [i for i, rule in enumerate(other.classes) if rule["name"] == name and not rule["public"]]
        if self.lost:
            return other.planned(places[0], person) if places else None
        if before is not None and (before["known"] or before.get("shown")):
            return None if other.classes[before["class"]]["public"] else account_of(other, before)
        members = [p for p in other.people if not p["known"] and p["class"] in places]
        if not members or named:
            return None
        plan = other.planned(places[0], person)
        return Account(other, most_of(other, members), plan.planned, plan.limits)


class Texts:
    """A budget log that was given beside a run: what it lets everybody of a class spend, and whom it names."""

    def __init__(self, folder, keys):
        """Verify files, tree and signature, and replay the leaves."""
        export = Export(folder)
        note = Note(export.read("checkpoint"))
        self.origin, self.size, root = read_checkpoint(note.text)
        entries, retained = export.leaves(self.size)
        self.levels = export.hashes(self.size, entries, retained)
        need(self.size and not retained and root_of(self.levels, self.size) == root, "ROOT", "tiles do not fold to the root")
        budget_spent(entries)
        leaves = [read_budget_leaf(entry) for entry in entries]
        _, _, self.began, header = leaves[0]
        self.digest, self.vkey = sha256(entries[0]), header[2]
        need(header[1] == self.origin and self.vkey in keys, "UNSIGNED", "another origin, or a key that was not given")
        need(note.signed_by(VerifierKey(self.vkey, ED25519)), "UNSIGNED", "not signed by the log's key")
        need(export.read("policy").decode() == f"log {self.vkey}\nquorum none\n", "POLICY_FILE", "another text")
        need(export.files == export.used, "FILES", "unknown files")
        caps = [row[3] for row in header[5] if row[0] == "contribution"]
        self.most = {row[1]: min(row[7], *caps) for row in header[10]} if len(header) > 10 else {}
        over = header[11] if len(header) > 11 else None
        self.counts_runs, self.earlier = over is not None, over[0] if over else []
        self.limits = {name: (epsilon, Fraction(delta, 10**12)) for name, epsilon, delta in (over[1] if over else [])}
        self.times = [moment_ for _, _, moment_, _ in leaves]
        self.withdrawn = {fields[0]: seq for seq, kind, _, fields in leaves if kind == 38}
        self.signed = {sha256(fields[1]): read_descriptor(fields[1]) for _, kind, _, fields in leaves if kind == 37}

    def account(self, person, name, named=False):
        """Return the account of everybody of a class of this name who has a limit like this; None where nobody is taken."""
        if name not in self.most or (person["limit"] and not self.counts_runs):
            return None
        limits = [(person["limit"], Fraction(person["limit_delta"], 10**12))] if person["limit"] else []
        limits += [self.limits[name]] if name in self.limits else []
        spent = TextSpending(self.most[name] / 10**9)
        return Account(self, spent, spent, limits)


def holds_texts(folder):
    """Tell whether the first leaf of an export says that it is of a budget log."""
    first = sorted((Path(folder) / "tile" / "entries").glob("000*"))
    path = next((item for item in [*first, *(more for item in first for more in item.glob("*"))] if item.is_file()), None)
    data = b"" if path is None else path.read_bytes()
    try:
        value = decode(data[2 : 2 + int.from_bytes(data[:2], "big")])
    except Refused:
        return False
    return type(value) is dict and str(value.get(3)).startswith("dptrain.budget/")


def read_texts(run, paths, keys):
    """Return the longest export of each budget that is given; refuse two histories of one."""
    given, longest = [Texts(path, keys) for path in paths], {}
    for one in sorted(given, key=lambda one: -one.size):
        whole = longest.setdefault(one.digest, one)
        need(root_of(whole.levels, one.size) == root_of(one.levels, one.size), "EARLIER_FORKED", one.origin)
    return list(longest.values())


def check_texts(run, others, budgets):
    """Hold citations of budgets, and those in them, against what is given; return the budgets that the run counts."""
    known = {one.digest: one for one in (run, *others, *budgets)}
    for citing in (*others, *budgets):
        for origin, size, root, digest, *_ in citing.earlier:
            found = known.get(digest)
            if found is None or (found not in budgets and citing not in budgets):
                continue
            need(size <= found.size or found is run, "EARLIER_BEHIND", origin)
            need(size > found.size or root_of(found.levels, size) == root, "EARLIER_FORKED", origin)
    counted = []
    for origin, size, root, digest, vkey, how in run.earlier:
        if how != "texts":
            continue
        found = next((one for one in budgets if one.digest == digest), None)
        need(found, "EARLIER_MISSING", origin)
        need(found.size >= size, "EARLIER_BEHIND", origin)
        need(root_of(found.levels, size) == root, "EARLIER_FORKED", origin)
        need((origin, vkey) == (found.origin, found.vkey), "EARLIER_NAME", origin)
        need(found.times[size - 1] <= run.began + HOUR, "EARLIER_TIME", origin)
        need(found.most, "EARLIER_RULES", origin)
        counted.append(found)
    cited = {row[3]: row[1] for row in run.earlier}
    for found in budgets:
        need(found.digest not in cited or all(row[3] in cited for row in found.earlier), "EARLIER_UNCITED", found.origin)
        for person in run.people:
            took = person["known"] and sum(phase_steps(run, person))
            signed = found.signed.get(person["hash"]) if person["known"] else None
            seq = found.withdrawn.get(person["hash"], math.inf)
            gone = seq < cited.get(found.digest, 0) or (seq < math.inf and found.times[seq] <= run.began)
            need(not (took and gone), "EARLIER_WITHDRAWN", f"leaf {person['seq']}")
            if signed:
                bounds = person["clip"], person["sigma"], person["cap"]
                same = signed[4] == run.classes[person["class"]]["name"] and (signed[5], signed[6], signed[12]) == bounds
                need(same, "EARLIER_TERMS", f"leaf {person['seq']}")
                need((signed.get(14, 0), signed.get(15, 0)) == (person["limit"], person["limit_delta"]), "LIMIT", "of a budget")
                before = found.began <= run.began and run.digest not in {row[3] for row in found.earlier}
                left_out = before and took and found.digest not in cited
                need(not left_out, "EARLIER_LEFT_OUT", f"{found.origin}, leaf {person['seq']}")
    return counted


def texts_held(run, budgets):
    """Return whether limits are held against all that each budget can ever say; nothing of one that cannot use them up."""
    cited, private = {row[3] for row in run.earlier}, {rule["name"] for rule in run.classes if not rule["public"]}
    held = []
    for one in budgets:
        counts = run.digest in {row[3] for row in one.earlier}
        if one.digest in cited or (not counts and (not one.most or private & one.most.keys())):
            held.append(one.digest in cited)
    return held


def phase_steps(run, person):
    """Return the steps charged to somebody in every phase of the noise."""
    return run.phase_steps(person["before"], person["until"])


def occurrences_of(run, person, steps):
    """Return in how many steps a cap that is kept lets somebody take part; 0 without one."""
    if not (run.caps and person["cap"] and steps):
        return 0
    attempts = max(1, run.windows[: person["until"]][-1]["attempt"] - person["attempt"] + 1)
    return min(person["cap"] * attempts, steps)


def multipliers_of(run, person):
    """Return z of somebody in every phase of the noise."""
    return [run.multiplier_of(person, std) for std, _ in run.plan(person["class"])]


def account_of(run, person):
    """Return what somebody spent in a run, with what it could have spent."""
    key = run.group_key(person)
    if key not in run.spent:
        plan = run.planned(person["class"], person)
        steps = phase_steps(run, person)
        q = run.classes[person["class"]]["q"]
        terms = run.with_copies([(q, z, n) for z, n in zip(multipliers_of(run, person), steps, strict=True)])
        spent = run.spending(terms, cap=occurrences_of(run, person, sum(steps)))
        run.spent[key] = Account(
            run, run.spending(loss=person["loss"]) if run.public_draws else spent, plan.planned, plan.limits
        )
    return run.spent[key]


def most_of(run, members):
    """Return what is no less than anybody of these spent, all of one class of whom nothing says who they are."""
    if run.public_draws:
        return run.spending(loss=max(person["loss"] for person in members))
    steps = [phase_steps(run, person) for person in members]
    caps = [occurrences_of(run, person, sum(own)) for person, own in zip(members, steps, strict=True)]
    least = [min(column) for column in zip(*(multipliers_of(run, person) for person in members), strict=True)]
    most = [max(column) for column in zip(*steps, strict=True)]
    q = run.classes[members[0]["class"]]["q"]
    terms = run.with_copies([(q, z, n) for z, n in zip(least, most, strict=True)])
    return run.spending(terms, cap=max(caps) if all(caps) else 0)


def audit_earlier(report, run, paths, brought):
    """Audit the exports that are given beside a run, and hold the run against them."""
    audits, others = [], [path for path in paths if not holds_texts(path)]
    budgets = read_texts(run, [path for path in paths if path not in others], brought[0])
    for path in others:
        found = audit(path, *brought)
        need(not found.findings, "EARLIER", f"{path}: {found.findings[:1]}")
        audits.append(found)
    longest = {run.digest: report}
    for found in sorted(audits, key=lambda found: -found.run.size):
        longest.setdefault(found.run.digest, found)
    for found in (report, *audits):
        whole = max((one.run for one in (report, *audits) if one.run.digest == found.run.digest), key=lambda one: one.size)
        same = root_of(whole.levels, found.run.size) == root_of(found.run.levels, found.run.size)
        need(same, "EARLIER_FORKED", f"two histories of {found.run.origin}")
    del longest[run.digest]
    check_citations(run, [found.run for found in longest.values()])
    counted = [check_cited(report, run, longest, row) for row in run.earlier if row[5] != "texts"]
    texts = check_texts(run, [found.run for found in longest.values()], budgets)
    told = check_others(run, [found.run for found in longest.values()], counted)
    check_apart(report, counted, texts)
    told |= check_totals(run, counted, texts)
    limits = [*(True for _ in counted), *texts_held(run, budgets)]
    for found in longest.values():
        limits += check_limits_held(report, run, found)
    if not nameless(run):
        if limits and all(limits):
            report.qualifiers = [word_ for word_ in report.qualifiers if word_ != "LIMITS_ALONE"]
        report.qualifiers = [word_ for word_ in report.qualifiers if word_ != "EARLIER_TOLD"]
    if told:
        report.qualify("EARLIER_TOLD")


def check_citations(run, others):
    """Ask that all exports, and all that the runs in them cite, tell one history of each ledger."""
    known = {other.digest: other for other in (run, *others)}
    for citing in others:
        for origin, size, root, digest, _, how in citing.earlier:
            found = known.get(digest)
            if found is not None and size <= found.size:
                need(root_of(found.levels, size) == root, "EARLIER_FORKED", origin)
                need(how == "spent" or found.size == size, "EARLIER_COMPROMISED", origin)
            else:
                need(found is None or found is run, "EARLIER_BEHIND", origin)


def check_cited(report, run, longest, row):
    """Hold a citation against the export of the run, and return it as it was then."""
    origin, size, root, digest, vkey, how = row
    need(digest in longest, "EARLIER_MISSING", origin)
    found = longest[digest]
    other = found.run
    need(other.size >= size, "EARLIER_BEHIND", origin)
    need(root_of(other.levels, size) == root, "EARLIER_FORKED", origin)
    need((origin, vkey) == (other.origin, signers_at(other, size)[-1].line), "EARLIER_NAME", origin)
    need(other.policy[2] == run.policy[2], "EARLIER_CORPUS", origin)
    need(how == "spent" or other.size == size, "EARLIER_COMPROMISED", origin)
    need(other.times[size - 1] <= run.began + HOUR, "EARLIER_TIME", origin)
    counted = Counted(other, size, how)
    need(counted.closed or how == "compromised", "EARLIER_OPEN", origin)
    for before in other.earlier:
        need(before[3] in {cited[3] for cited in run.earlier}, "EARLIER_UNCITED", before[0])
    for qualifier in INHERITED:
        if qualifier in found.qualifiers:
            report.qualify(qualifier)
    return counted


def check_others(run, others, counted):
    """Hold a run against every other one that was given, cited or not; return whether what one spent is told."""
    told = False
    for one, other in itertools.combinations([*others, run], 2):
        need(not one.noise & other.noise, "NOISE_REUSED", f"{one.origin} and {other.origin}")
        compare_terms(other, one)
    cited = {one.digest: one for one in counted}
    for other in others:
        by_then = cited[other.digest].size if other.digest in cited else 0
        gone = {digest for digest, why, seq, _ in other.withdrawals
                if why not in NOBODY_SIGNS and (seq < by_then or other.times[seq] <= run.began)}  # fmt: skip
        for person in run.people:
            charged = sum(phase_steps(run, person))
            need(person["hash"] not in gone or not charged, "EARLIER_WITHDRAWN", f"leaf {person['seq']}")
        if other.digest not in cited and run.digest not in {row[3] for row in other.earlier} and other.began <= run.began:
            whole = Counted(other, other.size, "spent")
            told |= bool(nameless(run) or nameless(other))
            for person in run.people:
                account = whole.account(person, run.classes[person["class"]]["name"], True) if person["known"] else None
                need(not (account and account.spent), "EARLIER_LEFT_OUT", f"{other.origin}, leaf {person['seq']}")
    return told


def check_limits_held(report, run, found):
    """Return whether limits are held against all of an uncited run, in a list; an empty one where it cannot use them up."""
    other, linked = found.run, {row[3] for row in run.earlier}
    if other.digest in linked or run.digest in {row[3] for row in other.earlier} or other.policy[2] != run.policy[2]:
        return []
    whole, before = Counted(other, other.size, "spent"), other.began <= run.began
    if before:
        for qualifier in UNSHOWN:
            if qualifier in found.qualifiers:
                report.qualify(qualifier)
        return [whole.closed and "TOLD" not in found.qualifiers]
    named = (person for person in run.people if person["known"])
    accounts = (whole.account(person, run.classes[person["class"]]["name"], True) for person in named)
    return [False] if any(account and account.spent for account in accounts) else []


def check_apart(report, counted, texts):
    """Add a qualifier where two cited runs, or a run and a budget, may share contributions, and neither counts the other."""
    for one, budget in itertools.product(counted, texts):
        run, linked = one.other, {row[3] for row in (*one.other.earlier, *budget.earlier)}
        people = (person for person in run.people if person["seq"] < one.size and not run.classes[person["class"]]["public"])
        shared = any(budget.account(person, run.classes[person["class"]]["name"]) for person in people)
        if shared and linked.isdisjoint((one.digest, budget.digest)):
            report.qualify("EARLIER_APART")
    for one, two in itertools.combinations(counted, 2):
        a, b = one.other, two.other
        names = [{p["hash"] for p in run.people if p["known"]} for run in (a, b)]
        unknown = [nameless(run) for run in (a, b)]
        shared = len(names[0] & names[1]) + min(unknown[0], len(b.people)) + min(unknown[1], len(a.people))
        if shared and {one.digest, two.digest}.isdisjoint(row[3] for run in (a, b) for row in run.earlier):
            report.qualify("EARLIER_APART")


def compare_terms(run, other):
    """Refuse one descriptor under other terms in another run, and one content under another descriptor."""
    by_anchor = {person["anchor"]: person["hash"] for person in other.people if person["anchor"] is not None}
    for person in run.people:
        if not person["known"]:
            continue
        where = f"leaf {person['seq']}"
        need(by_anchor.get(person["anchor"], person["hash"]) == person["hash"], "EARLIER_ANCHOR", where)
        before = other.by_hash.get(person["hash"])
        if before and before["known"]:
            names = run.classes[person["class"]]["name"], other.classes[before["class"]]["name"]
            anchors = {person["anchor"], before["anchor"]} - {None}
            bounds = all(person[key] == before[key] for key in ("clip", "sigma", "cap"))
            same = bounds and names[0] == names[1] and len(anchors) < 2
            need(same, "EARLIER_TERMS", where)


def check_totals(run, counted, texts):
    """Hold what ADMIT leaves say of earlier runs, and limits over runs, against what is recomputed; return what is told."""
    delta, told = Fraction(*run.policy[3]), False
    for one in counted:
        before = [other for other in (*counted, *texts) if other.digest in {row[3] for row in one.other.earlier}]
        told |= bool(one.other.earlier and nameless(one.other))
        for person in one.other.people if before else ():
            if person["seq"] < one.size and person["known"] and not one.other.classes[person["class"]]["public"]:
                told |= check_within(one.other, person, before)
    for person in run.people:
        name = run.classes[person["class"]]["name"]
        if run.classes[person["class"]]["public"] or not person["known"]:
            continue
        said = person["carried"] / MICRO + 2e-6
        for named in (True, False):
            accounts = [account for account in (one.account(person, name, named) for one in (*counted, *texts)) if account]
            follows = composed((account.spent for account in accounts), float(delta))
            need(not named or said >= follows, "CARRIED", f"leaf {person['seq']}: {person['carried']}, not {follows}")
            told |= said < follows
        told |= check_within(run, person, (*counted, *texts))
        for one in counted:
            before = one.other.by_hash.get(person["hash"])
            if before and before["known"] and not one.lost and not one.other.classes[before["class"]]["public"]:
                limits = [(p["limit"], p["limit_delta"]) for p in (before, person)]
                need(limits[0] == limits[1], "LIMIT", "of an earlier run")
    return told


def check_within(run, person, counted):
    """Ask that a run, as planned, brought nobody above a limit over the runs that it counted; return whether it may have."""
    name, own = run.classes[person["class"]]["name"], run.planned(person["class"], person)
    for named in (True, False):
        accounts = [account for account in (one.account(person, name, named) for one in counted) if account]
        try:
            keep_within(accounts, own, Fraction(*run.policy[3]), f"leaf {person['seq']}")
        except Refused:
            if named:
                raise
            return True
    return False


# --- The audit --------------------------------------------------------------------------------------------------------


def named_by_withdrawals(export, entries):
    """Return {position: descriptor hash or None} of pruned ADMIT leaves, as WITHDRAW leaves say."""
    gone = dict.fromkeys(export.pruned)
    for at, entry in enumerate(entries):
        value = Report().attempt("", read_leaf, entry, at) if at not in gone else None
        if value and value[0] == WITHDRAW and value[2][1] in gone and gone[value[2][1]] is None:
            gone[value[2][1]] = value[2][0]
    return gone


def replay(report, export, size, entries, levels, signed, owner_key):
    """Replay all leaves, and return the run and its registry."""
    run, registry = Run(report, levels, named_by_withdrawals(export, entries)), None
    run.size, run.digest, run.times, run.snapshots = size, sha256(entries[0]), [], {}
    report.run = run
    for at, entry in enumerate(entries):
        before = len(report.findings)
        action = run.stand_in if at in export.pruned else run.leaf
        report.attempt(f"leaf {at}", action, at, entry)
        run.times.append(run.time)
        if at == 0:
            if report.findings:
                return run, None
            registry = report.attempt("registry", read_registry, report, export, run, owner_key, entries)
            report.registry = registry
            run.state = registry.states[run.registry_root] if registry else None
        elif (
            len(report.findings) == before and at not in export.pruned and run.people and run.people[-1]["seq"] == at and signed
        ):
            report.attempt(f"attestation of leaf {at}", check_attestation, run, run.people[-1], signed[at], run.state)
        if run.epochs and run.epochs[-1] == at and run.policy[20]:
            keys = ("class", "gone", "seq", "last")
            run.snapshots[at] = [{key: person.get(key) for key in keys} for person in run.people]
    if run.batch:
        report.find(Refused("EPOCH_ORDER", "SPEND leaves without their EPOCH"), "end")
    if len(run.coefficients) != run.awaited:
        report.find(Refused("COEFFICIENTS", "are not all there"), "end")
    report.attempt("retained", run.check_aggregates)
    return run, registry


def read_registry(report, export, run, owner_key, entries):
    """Verify registry and owner's key, and return the registry with the states that the ledger names."""
    need(owner_key is None or run.owner_key == owner_key, "OWNER", "the owner's key is another one")
    if "registry" not in export.files:
        report.qualify("TOLD")
        return None
    named = {run.registry_root}
    for at, entry in enumerate(entries):
        value = Report().attempt("", read_leaf, entry, at)
        if value and value[0] == REGISTRY:
            named.add(value[2][1])
    registry = Registry(export.read("registry"), run.owner, run.owner_key, named)
    need(run.policy[21] in registry.roots, "REGISTRY_ROOT", "the policy's root is not in the registry")
    need(run.registry_root in registry.roots, "REGISTRY_ROOT", "the header's root is not in the registry")
    places = registry.roots.index(run.policy[21]), registry.roots.index(run.registry_root)
    need(places[0] <= places[1], "REGISTRY_ROOT", "the header's root lies before the policy's")
    return registry


def audit(folder, keys, owner_key, now, require_quorum, min_size, withdrawals):
    """Audit one export and return report and run."""
    report = Report()
    export = report.attempt("export", Export, folder)
    if export is None:
        return report
    report.attempt("export", audit_files, report, export, keys, owner_key, now, require_quorum, min_size, withdrawals)
    return report


def audit_files(report, export, keys, owner_key, now, require_quorum, min_size, withdrawals):
    """Open the checkpoint, fold the tree, replay the leaves, and hold everything else against them."""
    note = Note(export.read("checkpoint"))
    origin, size, root = read_checkpoint(note.text)
    need(size >= max(1, min_size or 0), "OLD", f"{size} leaves")
    need(size <= len(export.files) * 256, "FILES", "fewer files than leaves")
    entries, retained = export.leaves(size)
    levels = export.hashes(size, entries, retained)
    need(None not in (levels[height][at >> height] for at, height in aligned(0, size)), "NODES", "a gap")
    need(root_of(levels, size) == root, "ROOT", "tiles do not fold to the root")
    signed = report.attempt("attestations", export.attestations, entries)
    told = not any(name.startswith("attestations/") for name in export.files)
    run, registry = replay(report, export, size, entries, levels, signed, owner_key)
    if report.findings:
        return
    need(run.origin == origin, "CHECKPOINT", "origin is not the header's")
    notes = [(note, size)]
    if "retained/notes" in export.files:
        for data in split_bundle(export.read("retained/notes"), None):
            kept = Note(data)
            _, covered, old = read_checkpoint(kept.text, run.origin)
            need(len(notes) == 1 or notes[-1][1] <= covered, "NOTES", "order")
            before = {line for other, other_size in notes[1:] if other_size == covered for line in other.lines}
            need(set(kept.lines) - before, "NOTES", "no signature that those before it have not")
            check_signers(run, kept, covered)
            need(0 < covered <= size and root_of(levels, covered) == old, "FORKED", f"kept checkpoint of {covered}")
            notes.append((kept, covered))
    report.attempt("checkpoint", check_log_key, report, run, note, size, keys)
    since = run.clocks[-1][0] if run.clocks else 0
    if max(run.times[since:]) > now + HOUR:
        report.find(Refused("CLOCK", "the ledger lies ahead of this clock"), "leaves")
    report.attempt("checkpoint", check_cosigners, report, run, notes, note.text, run.times, now, require_quorum)
    report.attempt("retained", check_pruned, report, run, notes, run.times, now, export.gone)
    if export.read("policy") != trust_policy(run).encode():
        report.find(Refused("POLICY_FILE", "another text"), "policy")
    shown = set()
    if withdrawals:
        shown = report.attempt("withdrawals", check_withdrawals, report, run, withdrawals, registry) or shown
    left = sorted(export.files - export.used)
    if left:
        report.find(Refused("FILES", f"unknown files {left[:5]}"), "export")
    if told:
        report.qualify("TOLD")
    if run.people and all(person["pruned"] for person in run.people):
        report.qualifiers = [name for name in report.qualifiers if name != "TOLD"]
    roots = registry.roots if registry else ()
    signed_away = [
        seq for _, why, seq, evidence in run.withdrawals
        if seq not in shown and why != "expired" and not (why in NOBODY_SIGNS and evidence in roots)
    ]  # fmt: skip
    holders = {key.raw for key in run.vkeys} | {run.owner_key}
    theirs = [person["kid"] == key_id(run.owner_key) and not person["pruned"] for person in run.people]
    alone = len(holders) == 1 and theirs and all(theirs)
    untold = run.public_draws and (not run.policy["turns"] or any(len(w["drawn"]) < w["steps"] for w in run.windows))
    for qualifier, holds in (
        ("OPEN", run.closed is None), ("ONE_PARTY", alone), ("CLOCK_SET", run.clocks), ("UNPINNED", owner_key is None),
        ("UNCOMPARED", min_size is None), ("DRAWS_TOLD", untold),
        ("FROZEN_TOLD", any(not block[2] for block in run.derived)), ("WITHDRAWALS_TOLD", signed_away),
        ("KEY_LOST", any(row[5] == "compromised" for row in run.earlier)), ("ISOLATION_WEAKENED", run.isolation != "held"),
        ("UNPROBED", run.unprobed), ("UNADDRESSED", run.randomness == "unaddressed" and not run.public_draws),
    ):  # fmt: skip
        if holds:
            report.qualify(qualifier)


def figures_of(run):
    """Return what an export says of steps and contributions."""
    rows_ = []
    for person in run.people:
        i, public = person["class"], run.classes[person["class"]]["public"]
        until = person["until"] if not public or person["gone"] is None else None
        rows_.append({
            "descriptor": person["hash"].hex() if person["known"] else None, "class": run.classes[i]["name"],
            "active": person["gone"] is None,
            "steps": sum(run.phase_steps(person["before"], until)),
            "occurrences": person["drawn"] if run.public_draws else None,
            "epsilon": None if public else run.epsilon_of(person)[0],
            "multipliers": None if public else [run.multiplier_of(person, std) for std, _ in run.plan(i)],
        })  # fmt: skip
    return {
        "steps": run.policy[8], "charged": run.charged, "attempts": run.attempt + 1, "size": run.size,
        "root": root_of(run.levels, run.size).hex(), "delta": run.delta, "closed": run.closed is not None,
        "contributions": rows_,
    }  # fmt: skip


def verify(folder, keys=(), owner_key=None, earlier=(), withdrawals=None, require_quorum=False, min_size=None, now=None):
    """Verify an export; `keys` are verifier keys of the ledger, `owner_key` 32 bytes, `earlier` other exports."""
    now = int(clock.time()) if now is None else now
    report = audit(folder, list(keys), owner_key, now, require_quorum, min_size, withdrawals)
    run = report.run
    if not report.findings and run.earlier:
        report.qualify("EARLIER_TOLD")
    if not report.findings and earlier:
        brought = (list(keys), owner_key, now, require_quorum, None, withdrawals)
        report.attempt("earlier", audit_earlier, report, run, list(earlier), brought)
    verdict = "FAILED" if report.findings else "FULL"
    if verdict == "FULL" and "PRUNED" in report.qualifiers:
        verdict = "SUMMARISED"
    if not report.findings and "TOLD" in report.qualifiers:
        verdict = "TOLD"
    qualifiers = [name for name in report.qualifiers if name not in ("TOLD",)]
    epsilon, figures = {}, {}
    if run is not None and not report.findings:
        figures = figures_of(run)
        for i, rule in enumerate(run.classes):
            epsilon[rule["name"]] = None if rule["public"] else run.largest.get(i, 0)
    return {
        "verdict": verdict,
        "qualifiers": qualifiers,
        "reasons": report.findings,
        "epsilon": epsilon,
        "notes": report.notes,
        "figures": figures,
    }


# --- Budgets ----------------------------------------------------------------------------------------------------------

def filled(most):
    """Return a check of byte strings of 1 byte to so many."""

    def check(value):
        need(type(value) is bytes and 1 <= len(value) <= most, "TYPE", "no such byte string")

    return check


UNIT = word("contribution", "corpus", "session", "user")
PAYER = word("corpus", "session", "user")


def digests(most):
    """Return a check of 1 to so many digests, ascending."""

    def check(value):
        need(type(value) is list and 1 <= len(value) <= most, "RANGE", "digests")
        for item in value:
            blob(32)(item)
        need(value == sorted(set(value)), "ORDER", "digests")

    return check


OVER_RUNS = (
    rows(words(200), uint(1), blob(32), blob(32), words(400), word("spent", "compromised", "texts")),
    rows(identifier, uint(1), uint(1, 10**12 - 1)),
)


def over_runs(value):
    """Check the form of what a header says of runs that a log counts."""
    need(type(value) is list and len(value) == 2, "TYPE", "no pair of lists")
    for check, item in zip(OVER_RUNS, value, strict=True):
        check(item)
    need(len(value[0]) <= 100 and len(value[1]) <= 100, "RANGE", "too many rows")


BUDGET_LEAVES = {
    0: (
        word("dptrain.budget/1"), words(200), words(400), blob(16), word("zcdp-filter/1"),
        several(rows(UNIT, uint(1), uint(1, 10**12 - 1), uint(1))), several(rows(identifier, uint(1), boolean, words(200))),
        ascending(uint(1, 100)), blob(32), rows(words(200), uint(1), blob(32)),
        several(rows(blob(32), identifier, uint(1, 1900), micro, micro, count32, optional(count32), uint(1, 10**15))),
        over_runs,
    ),
    32: (PAYER, blob(32), optional(UNIT), optional(blob(32)), identifier, uint(1), uint(1), blob(16)),
    33: (uint(1), uint()),
    34: (uint(1), uint(), uint(), uint(), uint(), uint(), blob(32)),
    35: (UNIT, blob(32), uint(0, 100), uint()),
    36: (uint(1),),
    37: (identifier, filled(16384), filled(1024)),
    38: (blob(32),),
    39: (digests(1900), identifier, uint(1), uint(1), blob(16)),
}  # fmt: skip


def read_budget_leaf(data):
    """Return position, kind, time and fields of a leaf of a budget log, by itself."""
    need(len(data) <= 65535, "SIZE", "leaf")
    value = decode(data)
    need(type(value) is dict and list(value) == list(range(len(value))) and len(value) >= 3, "TYPE", "leaf")
    seq, kind, moment, *fields = value.values()
    uint()(seq)
    need(type(kind) is int and kind in BUDGET_LEAVES, "KIND", "leaf")
    need((seq == 0) == (kind == 0), "SEQ", "a header stands at 0, and nothing else")
    uint(FIRST_MOMENT, LAST_MOMENT)(moment)
    checks = BUDGET_LEAVES[kind]
    need(len(fields) == len(checks) or (kind == 0 and 0 < len(checks) - len(fields) <= 2), "TYPE", f"{len(fields)} fields")
    for check, field in zip(checks, fields, strict=False):
        check(field)
    if kind == 0:
        caps, mechanisms = fields[5], fields[6]
        for named in ([row[0] for row in caps], [row[0] for row in mechanisms]):
            need(named == sorted(set(named)), "ORDER", "rows do not ascend")
        need(len(mechanisms) <= 200 and len(fields[9]) <= 100, "RANGE", "too many rows")
        if len(fields) > 10:
            named = [row[1] for row in fields[10]]
            need(named == sorted(set(named)) and len(named) <= 100, "ORDER", "rules")
            need("contribution" in [row[0] for row in caps], "RULE_CAP", "rules without a cap")
        if len(fields) > 11:
            check_over_runs(fields)
        need([row[0] for row in caps] != ["session"], "SESSION_ALONE", "caps")
        need(VerifierKey(fields[2], 1).name == fields[1], "LOG_KEY", "another name")
    if kind == 32:
        unit, _, above, parent, _, releases, rho, _ = fields
        need((above is None) == (parent is None) == (unit != "session"), "PARENT", unit)
        need(above not in ("session", "contribution"), "PARENT", above)
        need(releases * rho < 2**63, "RANGE", "cost")
    if kind == 39:
        need(len(fields[0]) * fields[2] * fields[3] < 2**63, "RANGE", "cost")
    return seq, kind, moment, fields


def check_over_runs(header):
    """Hold what a header says of runs that its log counts, and of limits of classes, against its other fields."""
    previous, limits = header[11]
    most = texts_of(header)
    need(len({(row[0], row[3]) for row in previous}) == len(previous), "PREVIOUS", "cited twice")
    lost = [(row[0], VerifierKey(row[4], 1)) for row in previous if row[5] == "compromised"]
    need(len(lost) <= 1, "PREVIOUS", "two lost keys")
    for row in previous:
        need(VerifierKey(row[4], 1).name == row[0], "LOG_KEY", "another name")
    for origin, key in lost:
        need(origin != header[1] and key.raw != VerifierKey(header[2], 1).raw, "PREVIOUS", "a lost key goes on")
    names = [row[0] for row in limits]
    need(names == sorted(set(names)) and set(names) <= most.keys(), "ORDER", "limits")
    for name, epsilon, delta in limits:
        need_room(most[name], epsilon, delta)


def texts_of(header):
    """Return the most that a contribution of each class may spend by texts, in 1e-9 of rho."""
    [cap] = [row[3] for row in header[5] if row[0] == "contribution"]
    return {row[1]: min(cap, row[7]) for row in header[10]}


def need_room(rho, epsilon, delta):
    """Refuse a limit over all runs that texts alone could pass."""
    need(zcdp_worth(rho / 1e9, delta / 1e12) <= epsilon / 1e6 * (1 + 1e-9), "LIMIT", "texts alone could pass it")


def budget_spent(leaves):
    """Add up the leaves of a budget log, from the first on; return what each unit has spent. Refused names the place."""
    spent, kinds, open_, told, pending, delivered, requests = {}, {}, {}, set(), [], set(), {}
    admitted, contents, withdrawn, generation = {}, set(), set(), {}

    def cap_of(unit, account):
        most = caps[unit][3]
        return min(most, generation[admitted[account][0]][7]) if unit == "contribution" and account in admitted else most
    totals, last, epochs, at = [0, 0, 0], 0, 0, 0
    caps = mechanisms = thresholds = None
    for at, data in enumerate(leaves):
        seq, kind, moment, fields = read_budget_leaf(data)
        need(seq == at and (kind == 0) == (at == 0), "SEQ", at)
        need(moment >= last, "CLOCK", at)
        last = moment
        need(not pending or kind == 35, "NOTICE", at)
        if kind == 0:
            caps, mechanisms = ({row[0]: row for row in rows_} for rows_ in fields[5:7])
            thresholds = fields[7]
            generation = {row[1]: row for row in fields[10]} if len(fields) > 10 else {}
            texts = texts_of(fields) if len(fields) > 11 else None
        elif kind in (32, 39):
            name, releases, rho, request = fields[-4:]
            if kind == 39:
                payers, counts = [("contribution", account, None) for account in fields[0]], len(fields[0])
                judge_text(fields[0], releases, rho, moment, (generation, admitted, withdrawn))
            else:
                unit, account, above, parent = fields[:4]
                payers, counts = ([(above, parent, None)] if parent else []) + [(unit, account, parent)], 1
                need(name != "invisibleink" or not generation, "MECHANISM", at)
            need(name in mechanisms, "MECHANISM", at)
            need(rho == mechanisms[name][1] or (mechanisms[name][2] and rho > mechanisms[name][1]), "RHO", at)
            need(request not in requests, "REQUEST", at)
            need(any(payer[0] in caps and payer[0] != "session" for payer in payers), "NO_CAP", at)
            for payer in payers:
                need(kinds.get(payer[1], payer[::2]) == payer[::2], "ACCOUNT", at)
                after = spent.get(payer[1], 0) + releases * rho
                need(payer[0] not in caps or after <= cap_of(*payer[:2]), "EXHAUSTED", at)
            for payer in payers:
                kinds[payer[1]] = payer[::2]
                spent[payer[1]] = spent.get(payer[1], 0) + releases * rho
                for percent in thresholds if payer[0] in caps else ():
                    reached = 100 * spent[payer[1]] >= percent * cap_of(*payer[:2])
                    if reached and (payer[1], percent) not in told:
                        pending.append((payer[0], payer[1], percent))
            accounts = [payer[1] for payer in payers]
            open_[seq], requests[request] = (releases, rho, accounts, request, counts), seq
            totals[0], totals[1] = totals[0] + 1, totals[1] + counts * releases * rho
        elif kind == 33:
            need(fields[0] in open_, "COMMITTED", at)
            releases, rho, accounts, request, counts = open_[fields[0]]
            need(fields[1] <= releases, "COMPUTED", at)
            del open_[fields[0]], requests[request]
            for account in accounts:
                spent[account] -= (releases - fields[1]) * rho
            totals[2] += counts * (releases - fields[1]) * rho
        elif kind == 35:
            unit, account, percent, said = fields
            need(unit in caps and said == spent.get(account, 0) and (account, percent) not in told, "NOTICE", at)
            need(kinds.get(account, (unit,))[0] == unit, "NOTICE", at)
            if pending:
                need((unit, account, percent) == pending.pop(0), "NOTICE", at)
            else:
                need(percent == 0 and unit != "session", "NOTICE", at)
            told.add((account, percent))
            kinds.setdefault(account, (unit, None))
            spent.setdefault(account, 0)
            delivered.add(seq)
        elif kind == 36:
            need(fields[0] in delivered, "DELIVERED", at)
            delivered.remove(fields[0])
        elif kind == 37:
            account, content, ends = judge_reference(*fields, moment, generation, texts)
            need(account not in admitted, "REPEATED", at)
            need(account not in withdrawn, "WITHDRAWN", at)
            need(content not in contents, "DUPLICATE_CONTENT", at)
            admitted[account] = fields[0], ends
            contents.add(content)
        elif kind == 38:
            need(fields[0] not in withdrawn, "WITHDRAWN", at)
            need(kinds.get(fields[0], ("contribution",))[0] == "contribution", "ACCOUNT", at)
            withdrawn.add(fields[0])
        else:
            epochs += 1
            true = [epochs, totals[0], len(open_), totals[1], totals[2], len(spent), balances_root(spent)]
            need(fields == true, "TOTALS", at)
    need(not pending, "NOTICE", at)
    return spent


def judge_text(accounts, releases, rho, moment, held):
    """Judge what contributions pay for a text by their consent, and the rule that they gave it under."""
    generation, admitted, withdrawn = held
    need(not withdrawn & set(accounts), "WITHDRAWN", "text")
    if not generation:
        return
    need(all(account in admitted for account in accounts), "REFERENCE", "text")
    need(all(moment < admitted[account][1] for account in accounts), "EXPIRED", "text")
    names = {admitted[account][0] for account in accounts}
    need(len(names) == 1, "RULE", names)
    rule = generation[names.pop()]
    need(len(accounts) == rule[2], "REFERENCES", len(accounts))
    need(releases <= rule[5], "TOKENS", releases)
    need(rho >= token_cost(*rule[2:5]), "RHO", rho)


def token_cost(references, clip, temperature):
    """Return the least rho of a token in 1e-9, rounded up."""
    return math.ceil(Fraction(10**9 * clip**2, 2 * references**2 * temperature**2))


def judge_reference(name, descriptor, message, moment, generation, texts):
    """Return digest, content and end of a contribution that a leaf admits to generation.

    `texts` is what texts of a class may cost in a log that counts runs, None in another one.
    """
    need(name in generation, "RULE", name)
    signed = read_descriptor(descriptor)
    _, issuer, subject, given, _, _ = read_message(message)
    need(signed[4] == name, "CLASS", name)
    need("generate" in signed.get(16, ["train"]), "PURPOSE", "not signed to generate")
    if 14 in signed and (signed[5], signed[6]) != (MOST_MICRO, 1):
        need(texts is not None, "LIMIT", "limited over all runs")
        need_room(texts[name], signed[14], signed[15])
    need(signed[8] <= moment, "NOT_YET_VALID", moment)
    need(moment < signed[9], "EXPIRED", moment)
    digest = sha256(descriptor)
    need((issuer, given) == (signed[2].hex(), TYPE % "attestation"), "ISSUER", issuer)
    need(subject == "sha-256:" + digest.hex(), "ISSUER", subject)
    return digest, signed[7], signed[9]


def balances_root(spent):
    """Return the root over what units have spent."""
    return merkle_root([account + amount.to_bytes(8, "big") for account, amount in sorted(spent.items())])


def budget_unit(secret, names):
    """Return the hash of a unit: HMAC by RFC 2104, written out; a contribution's is its digest."""
    if names[0] == "contribution":
        return bytes.fromhex(names[1])
    key = secret.ljust(64, b"\0")
    inner = sha256(bytes(byte ^ 0x36 for byte in key), *(name.encode() + b"\0" for name in names))
    return sha256(bytes(byte ^ 0x5C for byte in key), inner)


def zcdp_worth(rho, delta):
    """Return the epsilon of rho-zCDP at delta, minimised over the order by scipy."""

    def bound(log_above):
        above = math.exp(log_above)
        return (1 + above) * rho - math.log((1 + above) * delta) / above + math.log(above / (1 + above))

    found = optimize.minimize_scalar(bound, bounds=(-30, 30), method="bounded", options={"xatol": 1e-12, "maxiter": 2000})
    return max(0.0, found.fun)


def budget_cases(table):
    """Yield the cases of budgets."""
    for row in table["leaves"]:
        data = bytes.fromhex(row["cbor"])
        seq, kind, moment, fields = read_budget_leaf(data)
        same = encode(dict(enumerate([seq, kind, moment, *fields]))) == data and leaf_hash(data).hex() == row["hash"]
        yield f"budget leaf {row['name']}", True, same and [seq, kind, moment, *fields] == from_json(row["fields"])
    for row in table["invalid"]:
        yield f"no budget leaf: {row['name']}", "refused", verdict_of(read_budget_leaf, bytes.fromhex(row["cbor"]))
    whole = {row["name"]: row["leaves"] for row in table["logs"]}
    for row in table["logs"]:
        leaves = [bytes.fromhex(leaf) for leaf in whole[row["of"]][: row["kept"]] + row["leaves"]]
        yield f"budget log {row['name']}", row["answer"], verdict_of(budget_spent, leaves)
        if row["answer"] == "accepted":
            spent = budget_spent(leaves)
            yield "its root", row["root"], merkle_root(leaves).hex()
            yield "its sums", row["spent"], {account.hex(): amount for account, amount in spent.items()}
            yield "their root", row["accounts_root"], balances_root(spent).hex()
    for row in table["units"]:
        yield f"unit {row['names']}", row["hash"], budget_unit(bytes.fromhex(row["secret"]), row["names"]).hex()
    for row in table["caps"]:
        epsilon, delta = row["epsilon_micro"] / 1e6, row["delta_pico"] / 1e12
        worth, more = (zcdp_worth(rho / 1e9, delta) for rho in (row["rho_nano"], row["rho_nano"] + 3))
        yield f"cap {epsilon} at {delta}", True, worth <= epsilon * (1 + 1e-9) and more > epsilon * (1 - 1e-9)


def verdict_of(read, given):
    """Return whether something is accepted or refused."""
    try:
        read(given)
    except Refused:
        return "refused"
    return "accepted"


# --- Command line -----------------------------------------------------------------------------------------------------


def from_json(value):
    """Return the value that a vector tells in JSON."""
    if type(value) is list:
        return [from_json(item) for item in value]
    if type(value) is dict:
        kind, inner = next(iter(value.items()))
        if kind == "map":
            return {from_json(key): from_json(item) for key, item in inner}
        return bytes.fromhex(inner) if kind == "hex" else float(inner)
    return value


def alone(data):
    """Read a leaf alone, a header with its policy and its stack."""
    kind, time, fields = read_leaf(data)
    if kind == HEADER:
        Run(Report(), []).header(0, *fields)
    return dict(enumerate([decode(data)[0], kind, time, *fields]))


def leaf_cases(table):
    """Yield (name, expected, given) of leaves."""
    for row in table["valid"]:
        data, fields = bytes.fromhex(row["cbor"]), dict(enumerate(from_json(row["fields"])))
        value = Report().attempt("", alone, data)
        same = value is not None and encode(value) == encode(fields) == data
        yield f"leaf {row['name']}", True, same and leaf_hash(data).hex() == row["hash"]
    for row in table["invalid"]:
        data = bytes.fromhex(row["cbor"]) if "cbor" in row else bytes.fromhex(row["start"]) + bytes(row["then_zeros"])
        yield f"leaf {row['name']}", False, Report().attempt("", alone, data) is not None


def block_cases(table):
    """Yield (name, expected, given) of blocks."""
    for row in table:
        depths = [{int(k): v for k, v in rule["depth"].items()} for rule in row["classes"]]
        classes = [{**rule, "depth": depth} for rule, depth in zip(row["classes"], depths, strict=True)]
        report = Report()
        blocks = report.attempt("", derive_blocks, classes, row["stack"]) or []
        given = [[name, size, [classes[i]["name"] for i in allowed]] for name, size, allowed, *_ in blocks]
        yield f"blocks {row['about']}", row["blocks"], given or report.findings


def write_export(folder, files, changes):
    """Write files into a folder, and change what is there."""
    for name, value in files.items():
        put_file(Path(folder) / name, base64.b64decode(value))
    for name, change in changes.items():
        path = Path(folder) / name
        if change is None:
            path.unlink()
        elif type(change) is str:
            put_file(path, base64.b64decode(change))
        else:
            data, at = path.read_bytes(), change["at"]
            path.write_bytes(data[:at] + base64.b64decode(change["put"]) + data[at + change["cut"] :])


def put_file(path, data):
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def put_export(folder, honest, row):
    """Write the files of a vector: its own, or those of an honest one, changed; `honest` are those rows by name."""
    if "base" in row:
        put_export(folder, honest, honest[row["base"]])
    write_export(folder, row.get("files", {}), row.get("changes", {}))


def judge_export(folder, honest, row):
    """Return what is said of the export of a vector, with all that its reader brings."""
    given, withdrawals = [], None
    put_export(Path(folder) / "export", honest, row)
    for place, other in enumerate(row.get("earlier", [])):
        given.append(Path(folder) / f"earlier-{place}")
        put_export(given[-1], honest, honest[other] if type(other) is str else other)
    if "withdrawals" in row:
        withdrawals = Path(folder) / "withdrawals"
        write_export(withdrawals, row["withdrawals"], {})
    pins = row["pins"]
    return verify(
        Path(folder) / "export", pins["log"], bytes.fromhex(pins["owner"]), given, withdrawals, pins["require_quorum"],
        pins["minimum_size"], pins["now"],
    )  # fmt: skip


def export_cases(table):
    """Yield (name, expected, given) of exports: verdict and figures."""
    honest = {row["name"]: row for row in table["honest"] + table["budgets"]}
    for row in table["honest"] + table["lies"]:
        with tempfile.TemporaryDirectory() as folder:
            result = judge_export(folder, honest, row)
        yield f"export {row['name']}", row["verdict"], result["verdict"]
        if row["verdict"] != result["verdict"]:
            print("    ", row.get("title"), row.get("findings"), result["reasons"][:3])
        elif "figures" in row:
            yield f"figures {row['name']}", "", compare_figures(row["figures"], result["figures"])
            yield f"qualifiers {row['name']}", sorted(row["qualifiers"]), sorted(result["qualifiers"])


def compare_figures(expected, given):
    """Return what differs between figures."""
    differ = [key for key in expected if key != "contributions" and expected[key] != given[key]]
    if len(expected["contributions"]) != len(given["contributions"]):
        return "contributions"
    for place, (a, b) in enumerate(zip(expected["contributions"], given["contributions"], strict=True)):
        for key, value in a.items():
            same = value == b[key]
            if key == "epsilon" and value is not None and b[key] is not None:
                same = abs(value - b[key]) <= 1e-6
            if key == "multipliers" and value is not None and b[key] is not None and len(value) == len(b[key]):
                same = all(abs(x / y - 1) < 1e-12 for x, y in zip(value, b[key], strict=True))
            if not same:
                differ.append(f"{place}.{key}: {value}, given {b[key]}")
    return "; ".join(differ[:4])


COMMIT = "dptrain/commit/%s/1\0"
OPENING = {1: blob(16), 2: hash32, 3: blob(48), 4: identifier, 5: identifier}


def commitment(domain, value, salt):
    """Return a commitment."""
    return sha256((COMMIT % domain).encode(), value if type(value) is bytes else value.encode(), salt)


def judge(world, row):
    """Judge one attestation as a gate does, by itself."""
    now = row.get("now", 1800000000)
    need(type(now) is int and 0 <= now <= LAST_MOMENT, "CLOCK")
    signed_policy = world["generating" if "purpose" in row else "policy"]
    payload, policy_message = (bytes.fromhex(signed_policy[key]) for key in ("payload", "sign1"))
    owner_key = bytes.fromhex(world["owner"])
    owner = read_message(policy_message)[1]
    check_message(policy_message, "policy", payload, owner_key, owner)
    policy = read_policy(payload)
    registry = Registry(bytes.fromhex(world["registry"]), owner, owner_key)
    need(policy[21] in registry.roots, "REGISTRY_ROOT")
    need(registry.time <= now + HOUR, "CLOCK")
    names = {name: (salt, principal) for name, salt, principal in sequence(bytes.fromhex(world["names"]))}
    need(row["descriptor"] is not None and row["sign1"] is not None, "UNATTESTED")
    data, message = bytes.fromhex(row["descriptor"]), bytes.fromhex(row["sign1"])
    fields = read_descriptor(data)
    need(row.get("opening") is not None, "OPENING")
    opening = bytes.fromhex(row["opening"])
    need(len(opening) <= 512, "SIZE")
    opened = decode(opening)
    shape(opened, OPENING, {6: identifier})
    salts = opened[3]
    need(fields[2] == commitment("contributor", opened[4], salts[:16]), "OPENING", "contributor")
    need(fields[3] == commitment("data-class", opened[5], salts[16:32]), "OPENING", "data class")
    need(fields[7] == commitment("content", opened[2], opened[1]), "OPENING", "content")
    need(fields[10] == commitment("principal", opened.get(6, ""), salts[32:]), "OPENING", "principal")
    kid, issuer = read_message(message)[:2]
    need(issuer == fields[2].hex(), "HEADER", "issuer")
    need(opened[4] in names, "KEY_UNKNOWN")
    salt, principal = names[opened[4]]
    who = commitment("registry-contributor", opened[4], salt)
    keys = [raw for raw, state in registry.keys.items() if state["who"] == who]
    need(keys, "KEY_UNKNOWN")
    chosen = [raw for raw in keys if key_id(raw) == kid]
    need(chosen, "SIG_BAD")
    need(not key_state(registry.keys[chosen[0]], now), "KEY_NOT_VALID")
    check_message(message, "attestation", data, chosen[0], issuer)
    need(fields[11] == policy[2], "AUDIENCE")
    if principal is not None and 6 in opened:
        need(principal == opened[6], "PRINCIPAL")
    rules = {rule["name"]: rule for rule in policy["classes"]}
    need(fields[4] in rules, "CLASS_UNKNOWN")
    need(fields[4] in registry.contributors[who]["classes"], "CLASS_NOT_GRANTED")
    rule = rules[fields[4]]
    judge_purpose(fields, rule, row.get("purpose", "train"))
    need(fields[8] <= now < fields[9], "EXPIRED")
    longest = policy[17] if rule["validity"] is None else min(policy[17], rule["validity"])
    need(fields[9] - fields[8] <= longest, "WINDOW")
    judge_bounds(fields, rule, policy)
    content = row["content"] if "content" in row else world["content"]
    need(content is not None, "CONTENT_MISSING")
    need(sha256(bytes.fromhex(content)) == opened[2], "CONTENT_MISMATCH")


def signed(row, kind, check):
    """Verify a payload and its message, and return its fields."""
    payload, message, key = (bytes.fromhex(row[name]) for name in ("payload", "sign1", "key"))
    issuer = row.get("issuer") or read_message(message)[1]
    check_message(message, kind, payload, key, issuer)
    value = check(payload)
    if "fields" in row:
        need(encode(from_json(row["fields"])) == payload, "FIELDS")
    return value


def read_withdrawal(row):
    """Check a withdrawal."""
    rule = {1: word("dptrain.withdrawal/1"), 2: hash32, 3: identifier, 4: moment, 5: identifier}

    def check(payload):
        value = decode(payload)
        shape(value, rule)
        need(value[3] == row["corpus"], "AUDIENCE")
        need(value[5] not in NOBODY_SIGNS, "WITHDRAWAL")

    signed(row, "withdrawal", check)


def read_anchor(payload):
    """Check a content anchor."""
    value = decode(payload)
    shape(value, {1: word("dptrain.anchor/1"), 2: hash32, 3: hash32, 4: moment}, {5: blob(16)})


def rights_case(row):
    """Read a rights envelope as a gate does."""
    data = bytes.fromhex(row["envelope"])
    need(len(data) <= 12288, "SIZE")
    payload, message = read_pair(data)
    check_message(message, "rights", payload, bytes.fromhex(row["key"]), read_message(message)[1])
    value = decode(payload)
    flag, number = of_type(bool), optional(uint(0, MOST_MICRO))
    moments = {5: moment, 6: moment}
    flags = dict.fromkeys(range(8, 12), flag)
    named = {2: identifier, 3: identifier, 4: blob(16), 7: rows(identifier, number), 12: rows(identifier)}
    shape(value, {1: word("dptrain.rights/1")} | named | moments | flags)
    for names in ([name for name, _ in value[7]], value[12]):
        need(names == sorted(set(names)) and len(names) <= 64, "ORDER")
    need(0 < value[6] - value[5] <= 90 * 86400, "LIFETIME")
    need(value[2] == row["audience"] and value[3] == row["holder"], "AUDIENCE")
    need(value[4].hex() not in row["revoked"], "REVOKED")
    need(value[5] <= row["now"] < value[6], "EXPIRED")
    need("fields" not in row or value == from_json(row["fields"]), "FIELDS")


def serving_cases(table):
    """Yield (name, expected, given) of rights."""
    for row in table["rights"]:
        yield f"rights {row['name']}", row["answer"], answer(rights_case, table["gate"] | row)[0]


def registry_case(row):
    """Read a registry alone, and compare roots, time and contributors."""
    data = bytes.fromhex(row["registry"])
    owner = read_message(sequence(data)[0][1])[1]
    registry = Registry(data, owner, bytes.fromhex(row["key"]))
    if row["answer"] == "accepted":
        need([root.hex() for root in registry.roots] == row["roots"] and registry.time == row["time"], "ROOTS")
        given = {person["commitment"]: person for person in row["contributors"]}
        need(set(given) == {name.hex() for name in registry.contributors}, "CONTRIBUTORS")
        for name, person in registry.contributors.items():
            other = given[name.hex()]
            need(sorted(person["classes"]) == other["classes"] and person["cap"] == other["cap"], "CONTRIBUTORS", str(other))


def read_note(row):
    """Read a checkpoint note under known keys."""
    note = Note(row["note"].encode())
    origin, size, root = read_checkpoint(note.text)
    signers = []
    for line in row["keys"]:
        kind = base64.b64decode(line.split("+", 2)[2])[0]
        key = VerifierKey(line, kind)
        if kind == ED25519:
            if note.signed_by(key):
                need(key.name == origin, "ORIGIN")
                signers.append([line, None])
        else:
            time = note.cosigned_at(key)
            signers += [[line, time]] if time is not None else []
    need(signers, "UNSIGNED")
    if row["answer"] == "accepted":
        need((origin, size, root.hex()) == (row["origin"], row["size"], row["root"]), "CHECKPOINT")
        need(sorted(map(str, signers)) == sorted(map(str, row["signers"])), "SIGNERS", str(signers))


def read_membership(row):
    """Hold a membership file against a SPEND leaf."""
    kind, _, fields = read_leaf(bytes.fromhex(row["leaf"]))
    need(kind == SPEND, "KIND")
    number = r"(0|[1-9][0-9]*)"
    form = rf"dptrain-member-v1\nleaf {number}\nrow {number}\ncontribution ([0-9a-f]{{64}})\nplace {number} of {number}\n"
    form += r"((?:\S+\n)*)"
    match = re.fullmatch(form, row["membership"])
    need(match, "FORM")
    at, place, digest, index, size, path = match.groups()
    need(int(at) == decode(bytes.fromhex(row["leaf"]))[0] and int(place) < len(fields[0]), "ROW")
    chosen = fields[0][int(place)]
    proof = [unbase64(line) for line in path.split()]
    need(all(item is not None and len(item) == 32 for item in proof), "FORM")
    leaf = leaf_hash(bytes.fromhex(digest))
    need(fold(int(index), int(size), leaf, proof) == chosen[13] and chosen[12] <= int(size), "PATH")
    if row["answer"] == "accepted":
        need((int(place), chosen[16]) == (row["row"], row["epsilon_micro"]), "ROW")


def read_receipt(row):
    """Verify a receipt of inclusion."""
    data, leaf = bytes.fromhex(row["receipt"]), bytes.fromhex(row["leaf"])
    key = VerifierKey(row["key"], ED25519)
    need(data[:1] == b"\xd2", "HEADER")
    protected, unprotected, payload, signature = decode(data[1:])
    header = decode(protected)
    (inner,) = unprotected[396][-1]
    size, index, path = decode(inner)
    need(1 <= len(path) <= 63, "PATH")
    claims = {1: key.name, 2: "sha-256:" + sha256(leaf).hex()}
    kind = TYPE % "receipt"
    whole = {1: -19, 4: key_id(key.raw), 15: claims, 16: kind, 395: 1, -65537: [size, index]}
    need(encode(whole) == encode(header) == protected and payload is None, "HEADER")
    need(encode(unprotected) == encode({396: {-1: [encode([size, index, path])]}}), "HEADER")
    root = fold(index, size, leaf_hash(leaf), path)
    need(decode(leaf)[0] == index, "INDEX")
    need(signature_ok(key.raw, signature, encode(["Signature1", protected, b"", root])), "SIG_BAD")
    need(row["answer"] == "refused" or (index, size, root.hex()) == (row["index"], row["size"], row["root"]), "FIELDS")


def answer(action, *arguments):
    """Return accepted, or refused and why."""
    try:
        action(*arguments)
    except Refused as refused:
        return "refused", str(refused)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return "refused", repr(error)
    return "accepted", ""


class TrustPolicy:
    """A trust policy (C2SP tlog-policy): logs, witnesses, groups and the quorum."""

    def __init__(self, policy):
        """Parse the lines."""
        self.logs, self.witnesses, self.groups, self.quorum = [], {}, {}, None
        for line in policy.split("\n"):
            parts = line.split()
            if not parts or parts[0].startswith("#"):
                continue
            if parts[0] == "log" and len(parts) in (2, 3):
                self.logs.append(VerifierKey(parts[1], ED25519))
            elif parts[0] == "witness" and len(parts) in (3, 4):
                self.new_name(parts[1])
                self.witnesses[parts[1]] = VerifierKey(parts[2], COSIGNATURE)
            elif parts[0] == "group" and len(parts) > 3:
                self.new_name(parts[1])
                members = parts[3:]
                need(len(set(members)) == len(members), "POLICY", "a member twice")
                need(all(name in self.witnesses or name in self.groups for name in members), "POLICY", "unknown member")
                most = {"any": "1", "all": str(len(members))}.get(parts[2], parts[2])
                need(re.fullmatch(r"[1-9][0-9]*", most) and int(most) <= len(members), "POLICY", "how many of a group")
                self.groups[parts[1]] = int(most), members
            else:
                need(parts[0] == "quorum" and len(parts) == 2 and self.quorum is None, "POLICY", line)
                need(parts[1] in ("none", *self.witnesses, *self.groups), "POLICY", "unknown quorum")
                self.quorum = parts[1]
        need(self.quorum is not None and self.logs, "POLICY", "no quorum, or no log")
        raws = [key.raw for key in self.witnesses.values()]
        need(len(set(raws)) == len(raws) and not set(raws) & {key.raw for key in self.logs}, "POLICY", "a key twice")

    def new_name(self, name):
        """Refuse a name that is taken."""
        need(name != "none" and name not in self.witnesses and name not in self.groups, "POLICY", name)

    def holds(self, name, counted):
        """Tell whether a witness counts, or enough of a group."""
        if name in self.groups:
            most, members = self.groups[name]
            return sum(self.holds(member, counted) for member in members) >= most
        return name == "none" or name in counted

    def judge(self, note, last_leaf, now):
        """Return origin, size, root and the cosigners that count; refuse a note that its log did not sign, or too few did."""
        origin, size, root = read_checkpoint(note.text)
        signed_ = [key for key in self.logs if key.name == origin and note.signed_by(key)]
        need(signed_, "UNSIGNED", "by no log of the policy")
        counted = {}
        for name, key in self.witnesses.items():
            time = note.cosigned_at(key)
            if time is not None and last_leaf <= time <= now + HOUR:
                counted[name] = key.name
        need(self.holds(self.quorum, counted), "QUORUM", str(counted))
        return size, root, list(counted.values())


def cosignature_case(row):
    """Judge the cosignatures of a note."""
    counted = TrustPolicy(row["policy"]).judge(Note(row["note"].encode()), row["last_leaf"], row["now"])[2]
    need(row["answer"] == "refused" or counted == row["counted"], "COUNTED", str(counted))


def hash_lines(lines):
    """Return the hashes that lines of base64 are."""
    path = [unbase64(line) for line in lines]
    need(all(item is not None and len(item) == 32 for item in path), "FORM", "hash")
    return path


def inclusion_case(row):
    """Verify a .tlog-proof."""
    head, _, note = row["proof"].partition("\n\n")
    lines = head.split("\n")
    need(lines[0] == "c2sp.org/tlog-proof@v1", "FORM", "first line")
    at, leaf = 1, bytes.fromhex(row["leaf"]) if "leaf" in row else None
    if lines[at].startswith("extra "):
        inside = unbase64(lines[at][6:])
        need(inside is not None and leaf in (None, inside), "FORM", "extra")
        at, leaf = at + 1, inside
    match = re.fullmatch(r"index (0|[1-9][0-9]{0,18})", lines[at])
    need(match, "FORM", "index")
    need(leaf is not None, "LEAF", "no leaf")
    index, path = int(match[1]), hash_lines(lines[at + 1 :])
    time = read_leaf(leaf, index)[1]
    size, root, _ = TrustPolicy(row["policy"]).judge(Note(note.encode()), time, row["now"])
    need(fold(index, size, leaf_hash(leaf), path) == root, "PATH", "another root")
    need(row["answer"] == "refused" or (index, leaf_hash(leaf).hex()) == (row["index"], row["hash"]), "FIELDS")


def aggregate_case(row):
    """Read an aggregate."""
    value = read_aggregate(bytes.fromhex(row["aggregate"]))
    need(row["answer"] == "refused" or value == from_json(row["fields"]), "FIELDS")


def member_case(row):
    """Hold a member record against its aggregate."""
    record = decode(bytes.fromhex(row["member"]))
    rows(hash32, ABOVE0, hash32)([record])
    check_member(read_aggregate(bytes.fromhex(row["aggregate"])), *record, [bytes.fromhex(item) for item in row["path"]])


def admission_case(row):
    """Hold a file that shows an admission against a SUMMARY leaf."""
    data = bytes.fromhex(row["leaf"])
    kind, _, fields = read_leaf(data)
    need(kind == SUMMARY, "KIND", "no SUMMARY leaf")
    number_ = r"(0|[1-9][0-9]{0,18})"
    form = rf"dptrain-admitted-v1\nleaf {number_}\naggregate (\S+)\nplace {number_} of {number_}\n"
    form += rf"contribution ([0-9a-f]{{64}})\nadmitted {number_}\ncontent ([0-9a-f]{{64}})\npath {number_}\n((?:\S+\n)*)"
    match = re.fullmatch(form, row["admission"])
    need(match, "FORM")
    at, encoded, place, size, digest, seq, content, inner, lines = match.groups()
    whole, path = unbase64(encoded), hash_lines(lines.split())
    need(whole is not None and int(at) == decode(data)[0] and int(inner) <= len(path), "FORM")
    aggregate, seq = read_aggregate(whole), int(seq)
    need(fields[0] <= aggregate[0] and sum(aggregate[:2]) <= fields[1], "RANGE", "outside the range of the summary")
    check_member(aggregate, bytes.fromhex(digest), seq, bytes.fromhex(content), path[: int(inner)])
    need(fold(int(place), int(size), leaf_hash(whole), path[int(inner) :]) == fields[5], "PATH", "another root")
    if row["answer"] == "accepted":
        given = [digest, seq, content, *aggregate[2:5]]
        need(given == [row[key] for key in ("contribution", "seq", "content", "class", "clip_micro", "sigma_micro")], "FIELDS")


def pinned_case(row):
    """Read a pinned file, whose key is told by its id alone."""
    payload, message = read_pair(bytes.fromhex(row["file"]))
    kid, issuer, subject, kind, _, _ = read_message(message)
    need((kid.hex(), issuer, kind) == (row["kid"], "ledger", TYPE % "pinned"), "HEADER")
    need(subject == "sha-256:" + sha256(payload).hex(), "HEADER", "another subject")
    value = decode(payload)
    need(list(value) == list(range(1, len(value) + 1)) and len(value) >= 5, "TYPE", "keys")
    shape({key: value[key] for key in range(1, 6)}, {1: text, 2: words(200), 3: ABOVE0, 4: hash32, 5: hash32})
    need(value == from_json(row["fields"]), "FIELDS")


def variable_row(*shapes):
    """Return a check of arrays whose items have one of some forms, told by their length or by null."""

    def check(value):
        need(type(value) is list, "TYPE", "no array")
        for checks in shapes:
            try:
                rows(*checks)([value])
                return
            except Refused as refused:
                last = refused
        raise last

    return check


def printable(most):
    """Return a check of text of a number of characters."""
    return lambda value: (text(value), need(1 <= len(value) <= most, "RANGE", "length of a text"))


def null(value):
    """Check null."""
    need(value is None, "TYPE", "not null")


FORMS = (
    "text", "template", "code", "names-code", "pickle", "archive", "weights", "index", "pieces", "picture", "long", "unknown",
)  # fmt: skip
TENSORS = rows(text, text, rows(uint()), hash32)
RECORD = (several(rows(printable(1024))), optional(text), boolean, words(20), rows(uint()), hash32, rows(text))


def weights_row(value):
    """Check the weights of a manifest."""
    rows(ABOVE0, ABOVE0, uint(), several(rows(*RECORD)))([value])
    names = [record[0][0] for record in value[3]]
    need(names == sorted(set(names)), "ORDER", "records")


DOCUMENTS = ("DISCLOSURE.md", "MODEL_CARD.md", "README.md", "bom.cdx.json", "disclosure.json")
QUALIFIERS = (
    "CLOCK_SET", "CODE_BESIDE", "DRAWS_TOLD", "EARLIER_APART", "EARLIER_TOLD", "FROZEN_TOLD", "ISOLATION_WEAKENED", "KEY_LOST",
    "KEY_REVOKED", "LIMITS_ALONE", "NO_AUDITORS", "NO_QUORUM", "NO_WITNESS_QUORUM", "ONE_PARTY", "OPEN", "PRUNED",
    "RELEASE_OLDER", "UNADDRESSED", "UNCOMPARED", "UNPINNED", "UNPROBED", "WEIGHTS_NOT_TIED", "WITHDRAWAL_UNENTERED",
    "WITHDRAWALS_TOLD",
)  # fmt: skip


def p256_point(value):
    """Check an uncompressed point of the curve P-256 (FIPS 186-4, D.1.2.3)."""
    need(type(value) is bytes and len(value) == 65 and value[0] == 4, "TYPE", "no point")
    p = 2**256 - 2**224 + 2**192 + 2**96 - 1
    b = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
    x, y = int.from_bytes(value[1:33], "big"), int.from_bytes(value[33:], "big")
    need(x < p and y < p and (y * y - x**3 + 3 * x - b) % p == 0, "KEY", "not on the curve")


def spelled(pattern):
    """Return a check of text that a pattern matches whole."""
    return lambda value: (text(value), need(re.fullmatch(pattern, value) is not None, "RANGE", "spelling of a text"))


def at_most(count, check):
    """Return a check of a list of at most so many."""
    return lambda value: (rows(check)(value), need(len(value) <= count, "RANGE", "too many"))


def description(value):
    """Check what a releaser says: lines of characters that are seen."""
    text(value)
    need(1 <= len(value) <= 4000, "RANGE", "length of a description")
    need(all(char == "\n" or (char.isprintable() and not unseen(char)) for char in value), "RANGE", "unseen characters")


def unseen(char):
    """Tell whether fonts show nothing for a character (Default_Ignorable_Code_Point), or it is blank Braille."""
    ranges = (
        (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F),
        (0x202A, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
        (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
    )  # fmt: skip
    return any(low <= ord(char) <= high for low, high in ranges)


ABOUT = (
    words(96), optional(description), optional(spelled("[a-z0-9][a-z0-9.+-]{0,63}")), at_most(100, spelled("[a-z]{2,3}")),
    at_most(100, spelled("[A-Za-z0-9][A-Za-z0-9._/-]{0,191}")), at_most(100, spelled("[A-Za-z0-9][A-Za-z0-9._:/ +-]{0,99}")),
)  # fmt: skip


def publication_row(value):
    """Check what a manifest says of documents."""
    documents, verdict = several(ascending(word(*DOCUMENTS))), word("FULL", "SUMMARISED", "TOLD")
    rows(word("1"), words(200), documents, verdict, ascending(word(*QUALIFIERS)), one(ABOUT))([value])
    need({"UNCOMPARED", "UNPINNED"} <= set(value[4]), "RANGE", "an audit by the ledger's key alone says more")


def one(checks):
    """Return a check of a row by those of its places."""
    return lambda value: rows(*checks)([value])


MANIFEST = {
    1: word("dptrain.release/1"), 2: words(200), 3: log_key, 4: uint(FIRST_MOMENT, LAST_MOMENT), 5: uint(), 6: ABOVE0,
    7: hash32, 8: hash32, 9: text, 10: boolean,
    11: rows(variable_row((text, uint(), hash32, TENSORS, word("tensors"), rows(text)),
                          (text, uint(), hash32, null, word(*FORMS), rows(text)))),
    12: uint(), 13: hash32,
    14: several(rows(variable_row((identifier, uint(), uint(), uint(), uint()), (identifier, uint(), uint(), null, null)))),
    15: several(rows(words(200), uint(), ascending(uint()))),
    16: several(rows(words(200), ascending(uint()), rows(boolean))),
    17: several(rows(text)), 18: optional(weights_row), 19: optional(p256_point), 20: optional(publication_row),
}  # fmt: skip


DEVICES = {"con", "prn", "aux", "nul", *(f"{device}{n}" for device in ("com", "lpt") for n in range(10))}


def check_path(path):
    """Refuse a path that does not mean one file below a folder, the same one on every system."""
    need(path and path.isprintable() and unicodedata.normalize("NFC", path) == path, "PATH", ascii(path))
    need(len(path.encode()) <= 512, "PATH", "long")
    for part in path.split("/"):
        plain = part not in ("", ".", "..") and part[-1] not in ". " and not set(part) & set('<>:"|?*\\')
        need(plain and part.partition(".")[0].casefold() not in DEVICES, "PATH", ascii(path))
    need(path.split("/")[0].casefold() not in ("release.cose", "export", "release.sigstore.json"), "PATH", path)


def check_case(paths):
    """Refuse paths of which two are one file, or a file and a folder, where case does not count."""
    spelled = {}
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            name = "/".join(parts[:end])
            known = spelled.setdefault(name.casefold(), (name, end == len(parts)))
            need(known == (name, end == len(parts)), "CASE", f"{known[0]} and {name}")


def read_release(data, keys):
    """Return the manifest of a file release.cose, signed by the ledger's key that it names, one of these."""
    payload, message = read_pair(data, 2**26)
    value = decode(payload)
    shape(value, MANIFEST)
    need(list(value) == list(range(1, 21)), "TYPE", "keys")
    match = re.fullmatch(r"([1-9][0-9]{0,39})/([1-9][0-9]{0,39})", value[9])
    need(match and int(match[1]) < int(match[2]) and math.gcd(int(match[1]), int(match[2])) == 1, "RANGE", "delta")
    paths = [row[0] for row in value[11]]
    need(paths == sorted(set(paths)) and len(paths) <= 100_000, "ORDER", "files")
    for path in paths:
        check_path(path)
    check_case(paths)
    for path, _, _, found, form, named in value[11]:
        names = [tensor[0] for tensor in found or []]
        need(names == sorted(set(names)) and len(named) <= 10000, "ORDER", "tensors")
        need((form == "tensors") == path.endswith(".safetensors") and not (found and named), "FORM", path)
    documents = [] if value[20] is None else value[20][2]
    written = documents + ([] if value[19] is None else ["model.pub", "model.sig"])
    need(set(written) <= set(paths), "RANGE", "a document that is no file")
    need(not {"README.md", "MODEL_CARD.md"} <= set(documents), "RANGE", "two cards")
    need(all(row[2] <= row[1] for row in value[14]), "RANGE", "more withdrawn than admitted")
    need(all(place < len(value[14]) for row in value[15] for place in row[2]), "RANGE", "class of a block")
    for row in value[16]:
        need(all(place < len(value[15]) for place in row[1]) and len(row[2]) == len(value[14]), "RANGE", "artifact")
    for field in (14, 15, 16):
        need(len({row[0] for row in value[field]}) == len(value[field]), "RANGE", f"a name twice in field {field}")
    key = VerifierKey(value[3], ED25519)
    need(value[3] in keys and key.name == value[2], "LOG_KEY", "no key of the ledger")
    check_message(message, "release", payload, key.raw, "ledger")
    return value


def release_case(row):
    """Read the manifest of a release."""
    value = read_release(bytes.fromhex(row["release"]), row["keys"])
    need(row["answer"] == "refused" or value == from_json(row["fields"]), "FIELDS")


def worded_cases(table):
    """Yield (name, expected, given) of what is accepted or refused."""
    documents, proofs = table["documents"], table["proofs"]
    readers = [
        (documents, "attestations", lambda row: judge(documents["world"], row)),
        (documents, "messages", lambda row: signed(row, "attestation", lambda payload: None)),
        (documents, "policies", lambda row: signed(row, "policy", read_policy)),
        (documents, "registries", registry_case), (documents, "withdrawals", read_withdrawal),
        (documents, "anchors", lambda row: signed(row, "anchor", read_anchor)),
        (proofs, "notes", read_note), (proofs, "cosignatures", cosignature_case), (proofs, "inclusion", inclusion_case),
        (proofs, "memberships", read_membership), (proofs, "receipts", read_receipt), (proofs, "releases", release_case),
        (proofs, "aggregates", aggregate_case), (proofs, "members", member_case), (proofs, "admissions", admission_case),
        (proofs, "pinned", pinned_case),
    ]  # fmt: skip
    for part, name, action in readers:
        for row in part[name]:
            expected = row.get("answer", "accepted").replace("admitted", "accepted")
            given, why = answer(action, row)
            if given != expected:
                print("    ", row.get("code"), why)
            yield f"{name} {row.get('name')}", expected, given
    for part, names in ((documents, readers[:6]), (proofs, readers[6:])):
        left = set(part) - {name for _, name, _ in names} - {"world"}
        yield "lists that are not read", set(), left


def number_cases(numbers):
    """Yield (name, expected, given) of numbers."""
    read = from_json
    for row in numbers["stds"]:
        std = float(max(Fraction(sigma * clip, 10**12) for sigma, clip in row["sigma_and_clip"]))
        phases = [[scale, float(Fraction(std) * Fraction(scale, 10**6))] for scale, _ in row["phases"]]
        yield "std", [read(row[k]) for k in ("std", "variance", "phases")], [std, std * std, phases]
    for row in numbers["effective"]:
        stds = read(row["stds"])
        given = effective_std(list(zip(stds, row["shares"], strict=True))) if row["shares"] else min(stds)
        yield "effective", read(row["effective"]), given
    for row in numbers["multipliers"]:
        z = Run.multiplier(None, {"sigma": row["sigma"], "clip": row["clip"]}, read(row["effective"]))
        yield "multiplier", [read(row["multiplier"]), read(row["loss"])], [z, 1 / (z * z)]
    for row in numbers["per_sample"]:
        square = sum((sigma * clip) ** 2 for sigma, clip in row["sigma_and_clip"])
        root = math.sqrt(float(square)) / 1e12
        loss = float(Fraction(row["clip"] ** 2 * 10**12, square))
        yield "per sample", [int(row["variance"]), read(row["recorded"]), read(row["loss"])], [square, root * root, loss]
    for row in numbers["turns"]:
        run = Run(None, [])
        run.run_id, run.policy = bytes.fromhex(row["run_id"]), {"order": row["order"]}
        run.people = [{"class": i, "number": number} for number, i in enumerate(row["classes"])]
        due = []
        for step in range(1, len(row["due"]) + 1):
            due.append(sorted(
                person["number"] for i, period in enumerate(row["periods"])
                for person in run.turn_order(i, (step - 1) // period)[(step - 1) % period :: period]
            ))  # fmt: skip
        yield "turns", row["due"], due
    for row in numbers["strategies"]:
        data, steps = bytes.fromhex(row.get("file", "")), row["steps"]
        found = Strategy(read(row["mechanism"]), steps, data)
        mechanism(read(row["mechanism"]))
        given = [found.column, found.largest, found.slack]
        yield "strategy", [read(row.get("column")), *(read(row[k]) for k in ("largest", "slack"))], given
        for expected in row["classes"]:
            period = expected["period"]
            added_ = [found.occurrence(period, t) for t in range(steps)]
            again = [[found.again(period, t, o) for o in range(min(t + 1, period))] for t in sorted({0, steps // 2, steps - 1})]
            given = [added_, again, found.turns(period)]
            told = [period, read(expected["most"]), read(expected["dearest"])]
            yield f"turns {row['mechanism']}", [read(expected["occurrences"]), read(expected["again"]), told], given
    for row in numbers["copies"]:
        run, farthest = Run(None, []), 0
        family, given, _ = read(row["mechanism"])
        run.groups_, run.bands = row["groups"], len(given[2]) if family in CORRELATED else 1
        for what, *steps in row["life"]:
            if what == "resume":
                (run.behind,) = steps
            else:
                run.windows.append({"first": steps[0], "steps": steps[1] - steps[0] + 1})
                run.copy(*steps, farthest)
                farthest = max(farthest, steps[1])
        yield "copies", row["at_least"], run.at_least()
    for row in numbers["permutations"]:
        run = Run(None, [])
        run.run_id, run.policy = bytes.fromhex(row["run_id"]), {"order": "shuffled"}
        run.people = [{"class": row["class"], "number": number} for number in range(row["members"])]
        yield "permutation", row["sorted"], [person["number"] for person in run.turn_order(row["class"], row["period"])]
    for name in ("gaussian", "rdp", "moments", "pld", "capped"):
        for row in numbers[name]:
            delta, expected = read(row["delta"]), read(row["epsilon"])
            terms = [(read(q), read(z), n) for z, q, n in row.get("phases", [])]
            if name == "gaussian":
                given = gaussian_epsilon(read(row["mu"]), delta)
            elif name in ("rdp", "moments"):
                given = renyi_epsilon(terms, delta, name == "moments")
            else:
                given, low, high = pld_epsilon(terms, delta)
                if name == "capped":
                    left, square = row["occurrences"], 0.0
                    for _, z, n in sorted(terms, key=lambda term: term[1]):
                        square, left = square + min(n, left) / z**2, left - min(n, left)
                    given = min(given, gaussian_epsilon(math.sqrt(square), delta))
                elif not low <= row["recorded"] / 1e6 <= high:
                    yield f"pld {row}", "recorded in our bracket", [low, high]
            within = read(row["within"]) if "within" in row else 1e-9 * expected
            yield f"{name} {terms or row}", True, abs(given - expected) <= within or [given, expected]


def vector_cases(folder):
    """Yield (name, expected, given) of all vectors."""
    files = [*Path(folder).glob("*.json"), *Path(folder).parent.glob("blocks.json")]
    table = {path.stem: json.loads(path.read_text()) for path in files}
    yield from block_cases(table["blocks"])
    yield from leaf_cases(table["leaves"])
    yield from budget_cases(table["budgets"])
    yield from serving_cases(table["serving"])
    yield from worded_cases(table)
    yield from number_cases(table["numbers"])
    yield from export_cases(table["exports"])


def count(cases):
    """Print disagreements, and how many cases agree."""
    agree = total = 0
    for name, expected, given in cases:
        agree, total = agree + (expected == given), total + 1
        if expected != given:
            print(f"DIFFERS {name}: expected {expected}, given {given}")
    print(f"{agree} of {total} agree")
    return agree == total


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", nargs="?")
    parser.add_argument("--key", action="append", default=[], help="verifier key of the ledger")
    parser.add_argument("--owner-key", type=bytes.fromhex)
    parser.add_argument("--earlier", action="append", default=[])
    parser.add_argument("--withdrawals")
    parser.add_argument("--require-quorum", action="store_true")
    parser.add_argument("--min-size", type=int)
    parser.add_argument("--now", type=int)
    parser.add_argument("--vectors")
    given = parser.parse_args()
    if given.vectors:
        return 0 if count(vector_cases(given.vectors)) else 1
    result = verify(
        given.export, given.key, given.owner_key, given.earlier, given.withdrawals, given.require_quorum, given.min_size,
        given.now,
    )  # fmt: skip
    print(result["verdict"], *result["qualifiers"])
    for code, sentence in result["reasons"][:20]:
        print(f"  {code}: {sentence}")
    for name, value in result["epsilon"].items():
        print(f"  epsilon of {name}: {'public' if value is None else value / MICRO}")
    return 1 if result["verdict"] == "FAILED" else 0


if __name__ == "__main__":
    sys.exit(main())
