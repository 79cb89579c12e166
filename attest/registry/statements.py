"""What a contributor signs about its own keys: that it holds one, that a new one follows an old one, that some are revoked.

A statement names nobody, since it travels in the registry. The key acted on says whose it is, and for all keys the key that
signs: it stands in hex as the issuer of the signature.
"""

import os
import re
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, sign1
from attest.checks import check_bytes
from attest.clock import check_time
from attest.errors import CborError, FileRefused, RegistryRefused, SignatureRefused
from attest.files import atomic_write, read_limited
from attest.signer import Signer, as_signer

SCHEMA: Final = "dptrain.key-statement/2"
ROTATE: Final = "rotate"
REVOKE: Final = "revoke"
PROVE: Final = "prove"

MAX_AGE: Final = 30 * 86400
"""Seconds after which a statement is no longer taken in."""

_FIELDS = ("kind", "registry_id", "key", "time", "new_key", "revoked_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatement:
    """One statement; good for one registry, for 30 days, and once.

    Args:
        kind: `rotate`, `revoke` or `prove`.
        registry_id: The registry that may take it in.
        key: 32 raw bytes of the key acted on, for `prove` of the key held; None, for `revoke` only, for all keys.
        time: Seconds since 1970 at which it was signed.
        new_key: For `rotate`, 32 raw bytes of the key that follows; otherwise None.
        revoked_at: For `revoke`, the second from which on; otherwise None.

    Raises:
        RegistryRefused: Code SCHEMA, TYPE or RANGE.
    """

    kind: str
    registry_id: bytes
    key: bytes | None
    time: int
    new_key: bytes | None = None
    revoked_at: int | None = None

    def __post_init__(self) -> None:
        check_bytes(self.registry_id, "registry id", 16, error=RegistryRefused)
        check_time(self.time, "time of the statement", error=RegistryRefused)
        if self.kind == ROTATE and self.revoked_at is None:
            check_bytes(self.key, "old key", 32, error=RegistryRefused)
            check_bytes(self.new_key, "new key", 32, error=RegistryRefused)
        elif self.kind == REVOKE and self.new_key is None:
            if self.key is not None:
                check_bytes(self.key, "revoked key", 32, error=RegistryRefused)
            check_time(self.revoked_at, "time of revocation", error=RegistryRefused)
        elif self.kind == PROVE and self.new_key is None and self.revoked_at is None:
            check_bytes(self.key, "key held", 32, error=RegistryRefused)
        else:
            sentence = f"key statement is {ascii(self.kind)[:40]} with fields of another kind; expected rotate, revoke or prove"
            raise RegistryRefused("SCHEMA", sentence)

    def to_cbor(self) -> bytes:
        """The bytes that are signed."""
        return cbor.encode({1: SCHEMA} | {place: getattr(self, name) for place, name in enumerate(_FIELDS, start=2)})

    @classmethod
    def from_cbor(cls, data: bytes) -> "KeyStatement":
        """Read a statement strictly; an accepted byte string is exactly `to_cbor()` of the result.

        Raises:
            CborError: Not strict CBOR.
            RegistryRefused: Code SCHEMA, TYPE or RANGE.
        """
        value: Any = cbor.decode(data, max_size=1024)
        if type(value) is not dict or set(value) != set(range(1, len(_FIELDS) + 2)):
            raise RegistryRefused("SCHEMA", "key statement is not a map with exactly the labels 1 to 7")
        if value[1] != SCHEMA:
            raise RegistryRefused("SCHEMA", f"key statement has schema {ascii(value[1])[:60]}, expected {SCHEMA!r}")
        return cls(**{name: value[place] for place, name in enumerate(_FIELDS, start=2)})

    def sign(self, key: Signer | Ed25519PrivateKey) -> bytes:
        """The COSE_Sign1 message of one key of the contributor; a rotation takes one by each of the two keys."""
        signer = as_signer(key)
        return sign1.sign(self.to_cbor(), signer, contributor=signer.public_key.hex(), typ=sign1.TYP_KEY)


def signing_key(message: Any) -> bytes:
    """Returns the key that a statement's message says it is signed by, not verified.

    Raises:
        AttestError: The message is malformed, or its issuer is no key in hex.
    """
    issuer = sign1.peek_issuer(message)
    if not re.fullmatch("[0-9a-f]{64}", issuer):
        raise SignatureRefused("HEADER", f"the statement is issued by {issuer}, not by the signing key in hex")
    return bytes.fromhex(issuer)


def write_statement(path: str | os.PathLike[str], statement: KeyStatement, *messages: bytes) -> None:
    """Write a statement and its signatures as one file, the CBOR array of the payload and the messages."""
    atomic_write(path, cbor.encode([statement.to_cbor(), *messages]))


def read_statement(path: str | os.PathLike[str]) -> tuple[KeyStatement, tuple[bytes, ...]]:
    """Read a statement and its signatures; none of them is verified.

    Raises:
        FileRefused: Code FILE, SIZE or FORMAT.
        CborError, RegistryRefused: The statement itself is malformed.
    """
    try:
        value = cbor.decode(read_limited(path, cbor.MAX_SIZE, "key statement"))
    except CborError as error:
        raise FileRefused("FORMAT", f"{os.fspath(path)!r} is no key statement: {error}") from error
    if type(value) is not list or not 2 <= len(value) <= 3 or any(type(part) is not bytes for part in value):
        raise FileRefused(
            "FORMAT", f"{os.fspath(path)!r} is no key statement: expected [payload, signature] or a signature more"
        )
    return KeyStatement.from_cbor(value[0]), tuple(value[1:])
