"""Ed25519 keys: refuses dangerous public keys, reads and writes key files, and checks signatures.

Private keys are `cryptography` objects; public keys are their 32 raw bytes (RFC 8032 section 5.1.5). The arithmetic of
edwards25519 handles no secrets, so plain integers are fine. `has_prime_order` has the library do most of it and answers with
yes or no; `decompress` and `multiply`, fifteen times slower, find out what is wrong with a key.
"""

import base64
import contextlib
import hashlib
import importlib.util
import os
import re
import stat
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from attest.errors import KeyRefused, SignatureRefused
from attest.files import atomic_write, read_limited, sync_directory
from attest.schema.plain import check_id, read_base64

P = 2**255 - 19
"""The field prime."""

L = 2**252 + 27742317777372353535851937790883648493
"""Order of the prime subgroup; the curve has 8 * L points."""

_D = -121665 * pow(121666, -1, P) % P
_SQRT_MINUS_ONE = pow(2, (P - 1) // 4, P)

Point = tuple[int, int, int, int]
"""Extended homogeneous coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z."""

IDENTITY: Point = (0, 1, 1, 0)


def decompress(raw: bytes) -> Point | None:
    """Returns the point that 32 bytes encode, or None if they are no canonical encoding of a point (RFC 8032 section 5.1.3)."""
    encoded = int.from_bytes(raw, "little")
    sign, y = encoded >> 255, encoded & (2**255 - 1)
    if len(raw) != 32 or y >= P:
        return None
    u, v = (y * y - 1) % P, (_D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if (v * x * x + u) % P == 0:
        x = x * _SQRT_MINUS_ONE % P
    if (v * x * x - u) % P != 0 or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


def add(p: Point, q: Point) -> Point:
    """Returns the sum of two points by the complete formulas of RFC 8032 section 5.1.4; also right for p = q."""
    a = (p[1] - p[0]) * (q[1] - q[0]) % P
    b = (p[1] + p[0]) * (q[1] + q[0]) % P
    c = 2 * p[3] * q[3] * _D % P
    d = 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(scalar: int, point: Point) -> Point:
    """Returns `scalar` times `point` by double and add; variable time, for public values only."""
    result = IDENTITY
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point = add(point, point)
        scalar >>= 1
    return result


def is_identity(point: Point) -> bool:
    """Tells whether the point is the neutral element."""
    return point[0] % P == 0 and (point[1] - point[2]) % P == 0


def has_prime_order(raw: bytes) -> bool | None:
    """Tells whether 32 bytes are the canonical encoding of a point of prime order L; None where the library has no X25519.

    Guarantee: the answer is yes exactly where `decompress` finds a point other than the neutral element, and L times it is that
    element.

    X25519 multiplies a point u of the Montgomery form by a scalar that is a multiple of 8 from 2^254 to 2^255, be it on the
    curve or on its twist, and returns the u of the product (RFC 7748 section 5). Such a scalar is s = 5 L - 1, for L = 5 modulo
    8. Write a point of the curve as A + T with A in the subgroup of order L and T of an order that divides 8. Then s (A + T) =
    -A, whose u is that of A + T only where T = 0: from A + T = A follows T = 0, and from A + T = -A that 2 A = -T lies in both
    subgroups, so that A = T = 0. The library refuses the product 0. A point of the twist has an order that divides 4 L', L'
    prime, and comes back as itself or its negative only if 5 L - 2 or 5 L is a multiple of that order. Both numbers have no
    divisor in common with 4 L', so no such point does. And a Montgomery point of the curve is one of edwards25519 with u = (1 +
    y) / (1 - y) (RFC 7748 section 4.1). Its x is 0 only for y = 1 and y = -1, which are refused.
    """
    multiplier = _multiplier()
    if multiplier is None:
        return None
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    if len(raw) != 32 or not 1 < y < P - 1:
        return False
    u = ((1 + y) * pow(1 - y, -1, P) % P).to_bytes(32, "little")
    try:
        return multiplier.exchange(X25519PublicKey.from_public_bytes(u)) == u
    except ValueError:  # The product is 0: the point has small order.
        return False


@cache
def _multiplier() -> X25519PrivateKey | None:
    """Returns the scalar 5 L - 1, which X25519 takes as it is."""
    try:
        return X25519PrivateKey.from_private_bytes((5 * L - 1).to_bytes(32, "little"))
    except UnsupportedAlgorithm:
        return None


KeyForm = Literal["pem", "openssh"]
"""Form of a private key in its file."""

_MAX_KEY_FILE = 16384
_OPENSSH_HEAD = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_PUBLIC_LINE = re.compile(rb"dptrain-key-v1 ([a-z0-9._/-]{1,64}) ([A-Za-z0-9+/]{43}=)\n?")
_VERIFIER_LINE = re.compile(rb"[^\s+]+\+[0-9a-f]{8}\+[A-Za-z0-9+/]+=*\n")


def check_public_key(raw: bytes) -> None:
    """Accepts a public key for enrolment, or refuse it.

    Guarantee: an accepted key is the canonical encoding of a point of prime order. So no signature verifies under it for every
    message (small-order keys), no two encodings name one key, and verifiers that multiply by the cofactor agree with those that
    do not (mixed-order keys). OpenSSL checks none of this. Source: RFC 8032 section 5.1.3; Chalkias, Garillot, Nikolaenko,
    "Taming the many EdDSAs" (2020).

    Raises:
        KeyRefused: Code TYPE or RANGE for something that is not 32 bytes, KEY_WEAK for an unsound key.
    """
    if type(raw) is not bytes:
        raise KeyRefused("TYPE", f"public key is {type(raw).__name__}, expected 32 bytes")
    if len(raw) != 32:
        raise KeyRefused("RANGE", f"public key has {len(raw)} bytes, expected 32")
    weakness = _weakness(raw)
    if weakness:
        raise KeyRefused("KEY_WEAK", f"public key {raw.hex()} {weakness}; generate a new key")


@lru_cache(maxsize=65536)
def _weakness(raw: bytes) -> str | None:
    if has_prime_order(raw):
        return None
    point = decompress(raw)
    if point is None:
        return "is not the canonical encoding of a curve point"
    if is_identity(multiply(8, point)):
        return "has small order"
    if not is_identity(multiply(L, point)):
        return "has a small-order component"
    return None


def key_id(raw: bytes) -> bytes:
    """Returns the short name of a public key, a lookup hint and no proof: the first 8 bytes of its SHA-256."""
    return hashlib.sha256(raw).digest()[:8]


def generate() -> Ed25519PrivateKey:
    """Returns a fresh private key from the operating system's generator."""
    return Ed25519PrivateKey.generate()


def public_bytes(key: Ed25519PrivateKey | Ed25519PublicKey) -> bytes:
    """Returns the 32 raw bytes of a key's public half."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def verify_signature(raw: bytes, signature: bytes, message: bytes) -> None:
    """Checks one Ed25519 signature under a sound key.

    Guarantee: the key passes `check_public_key`, and the signature is the 64-byte form with S < L, so no second signature can
    be derived from a first one.

    Raises:
        KeyRefused: The key is unsound.
        SignatureRefused: Code SIG_BAD.
    """
    check_public_key(raw)
    if len(signature) != 64:
        raise SignatureRefused("SIG_BAD", f"signature has {len(signature)} bytes, expected 64")
    try:
        _verifier(raw).verify(signature, message)
    except InvalidSignature as error:
        raise SignatureRefused("SIG_BAD", "signature does not verify under the expected key") from error


def verifier(raw: bytes) -> Callable[[bytes, bytes], None]:
    """Returns what checks many signatures under one sound key: it takes signature and message, and raises `InvalidSignature`.

    Guarantee: the key passes `check_public_key`. A signature of another length than 64 bytes, or with S >= L, is invalid.

    Raises:
        KeyRefused: The key is unsound.
    """
    check_public_key(raw)
    return _verifier(raw).verify


@lru_cache(maxsize=4096)
def _verifier(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)


def save_private_key(
    path: str | os.PathLike[str], key: Ed25519PrivateKey, passphrase: str | bytes | None = None, *, form: KeyForm = "pem"
) -> None:
    """Writes a private key, readable by its owner alone, never over an existing file nor through a symbolic link. `form`: `pem`
    for PKCS#8 (RFC 5958), `openssh` for what `ssh-add` of every OpenSSH reads. Raises KeyRefused: code EXISTS, FILE, PASSPHRASE
    (an empty one) or BCRYPT (missing for an encrypted OpenSSH file)."""
    write_private(path, _private_bytes(key, passphrase_bytes(passphrase), form))


def write_private(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes the bytes of a private key, as `save_private_key` does."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError as error:
        raise KeyRefused("EXISTS", f"{os.fspath(path)!r} exists; keys are never overwritten, take another name") from error
    except OSError as error:
        raise KeyRefused("FILE", f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        sync_directory(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise KeyRefused("FILE", f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error


def load_private_key(path: str | os.PathLike[str], passphrase: str | bytes | None = None) -> Ed25519PrivateKey:
    """Reads a private key in either form that `save_private_key` writes.

    A symbolic link is followed, as secret stores use them; type and permissions are those of the file that is read.

    Raises:
        KeyRefused: Code FILE, MODE (others may read the file), PASSPHRASE (missing, needless or wrong), BCRYPT or FORMAT.
    """
    shown = repr(os.fspath(path))
    data = read_private(path, shown)
    openssh = data.startswith(_OPENSSH_HEAD)
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    try:
        key = load(data, passphrase_bytes(passphrase))
    except TypeError as error:
        wanted = "is encrypted; give its passphrase" if passphrase is None else "is not encrypted; give no passphrase"
        raise KeyRefused("PASSPHRASE", f"{shown} {wanted}") from error
    except UnsupportedAlgorithm as error:
        if openssh and not _has_bcrypt():
            raise _no_bcrypt(f"{shown} is encrypted in OpenSSH's way") from error
        raise KeyRefused("FORMAT", f"{shown} holds a kind of key that cannot be read, expected Ed25519") from error
    except ValueError as error:
        if passphrase is not None and _seems_encrypted(data):
            raise KeyRefused("PASSPHRASE", f"the passphrase of {shown} is another, or the file is damaged") from error
        raise KeyRefused("FORMAT", f"{shown} is not a readable private key, neither PEM nor OpenSSH's form") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyRefused("FORMAT", f"{shown} holds a {type(key).__name__}, expected an Ed25519 key")
    return key


def is_openssh(path: str | os.PathLike[str]) -> bool:
    """Tells whether a file begins as a private key in OpenSSH's form does; no permission is checked and nothing is decoded."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(_OPENSSH_HEAD)) == _OPENSSH_HEAD
    except OSError:
        return False


def _private_bytes(key: Ed25519PrivateKey, secret: bytes | None, form: str) -> bytes:
    forms = {"pem": serialization.PrivateFormat.PKCS8, "openssh": serialization.PrivateFormat.OpenSSH}
    if form not in forms:
        raise KeyRefused("FORMAT", f"form of a key file is {form!r}, expected pem or openssh")
    if secret and form == "openssh" and not _has_bcrypt():
        raise _no_bcrypt("OpenSSH encrypts keys with bcrypt")
    protection = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, forms[form], protection)


def read_private(path: str | os.PathLike[str], shown: str) -> bytes:
    """Reads the bytes of a private key from a file that its owner alone may read. Raises KeyRefused: code FILE, MODE or FORMAT.
    """
    # O_NONBLOCK: opening a named pipe must not hang before its kind is known.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(path, flags), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyRefused("FILE", f"{shown} is not a regular file")
            if os.name == "posix" and status.st_mode & 0o077:
                sentence = f"{shown} has mode {stat.S_IMODE(status.st_mode):04o}, expected 0600; run chmod 600 on it"
                raise KeyRefused("MODE", sentence)
            data = stream.read(_MAX_KEY_FILE + 1)
    except OSError as error:
        raise KeyRefused("FILE", f"cannot read the private key {shown}: {error.strerror or error}") from error
    if len(data) > _MAX_KEY_FILE:
        raise KeyRefused("FORMAT", f"{shown} is longer than {_MAX_KEY_FILE} bytes, expected a private key")
    return data


def _seems_encrypted(data: bytes) -> bool:
    return data.startswith(_OPENSSH_HEAD) or b"ENCRYPTED" in data


def _has_bcrypt() -> bool:
    return importlib.util.find_spec("bcrypt") is not None


def _no_bcrypt(what: str) -> KeyRefused:
    return KeyRefused("BCRYPT", f"{what}, which is not installed; run pip install 'dptrain[openssh]'")


def save_public_key(path: str | os.PathLike[str], raw: bytes, name: str) -> None:
    """Writes a public key as one line of text: `dptrain-key-v1 <name> <base64>`. Raises KeyRefused: the key is unsound or the
    name is no identifier."""
    check_public_key(raw)
    check_id(name, "key name", error=KeyRefused)
    atomic_write(path, f"dptrain-key-v1 {name} {base64.b64encode(raw).decode('ascii')}\n".encode("ascii"))


def load_public_key(path: str | os.PathLike[str]) -> bytes:
    """Reads and checks the public key of a file written by `save_public_key`; returns 32 raw bytes."""
    return load_named_public_key(path)[1]


def load_named_public_key(path: str | os.PathLike[str]) -> tuple[str, bytes]:
    """Reads a public key file; returns the name it states and the 32 raw bytes. Raises FileRefused: the file cannot be read;
    KeyRefused: code FORMAT, or the key is unsound."""
    line = read_limited(path, _MAX_KEY_FILE, "public key")
    match = _PUBLIC_LINE.fullmatch(line)
    shown = repr(os.fspath(path))
    if line.startswith(b"ssh-"):
        sentence = f"{shown} is a public key in OpenSSH's form; run dptrain attest keygen NAME --from {shown} first"
        raise KeyRefused("FORMAT", sentence)
    if not match and _VERIFIER_LINE.search(line):
        raise KeyRefused("FORMAT", f"{shown} holds the key of a ledger or of an auditor; wanted is the public key of a person")
    if not match:
        raise KeyRefused("FORMAT", f"{shown} is not one line 'dptrain-key-v1 NAME BASE64'; is it a public key file?")
    raw = read_base64(match[2].decode("ascii"))
    if raw is None:
        raise KeyRefused("FORMAT", f"{shown} holds base64 with stray bits at its end")
    check_public_key(raw)
    return match[1].decode("ascii"), raw


def load_openssh_public_key(path: str | os.PathLike[str]) -> bytes:
    """Reads and checks the Ed25519 key of an OpenSSH `.pub` file; returns 32 raw bytes. Raises FileRefused: the file cannot be
    read; KeyRefused: code FORMAT, or the key is unsound."""
    shown = repr(os.fspath(path))
    words = read_limited(path, _MAX_KEY_FILE, "public key").split(None, 2)
    try:
        key = serialization.load_ssh_public_key(b" ".join(words[:2]))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyRefused("FORMAT", f"{shown} is not one line 'ssh-ed25519 BASE64 COMMENT'; is it a .pub file?") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyRefused("FORMAT", f"{shown} holds a key of type {words[0]!a}, expected ssh-ed25519; make an Ed25519 key")
    raw = public_bytes(key)
    check_public_key(raw)
    return raw


def passphrase_bytes(passphrase: str | bytes | None) -> bytes | None:
    """Returns a passphrase as bytes, None without one. Raises KeyRefused: code PASSPHRASE, it is empty."""
    if passphrase is None:
        return None
    secret = passphrase.encode("utf-8") if isinstance(passphrase, str) else passphrase
    if not secret:
        raise KeyRefused("PASSPHRASE", "the passphrase is empty; give one, or none at all")
    return secret
