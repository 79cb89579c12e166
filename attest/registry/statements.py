"""What a contributor signs about its own keys: that it holds one, that a new one follows an old one, that some are revoked.

A statement names nobody, since it travels in the registry. The key acted on says whose it is, and for all keys the key that
signs: it stands in hex as the issuer of the signature.
"""

import os
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, sign1
from attest.documents import check_by_word, check_fields, declared
from attest.documents.payload import Payload
from attest.documents.quick import OneOf
from attest.documents.values import MOMENT, RAW_KEY, octets
from attest.errors import CborError, FileRefused, RegistryRefused, SignatureRefused
from attest.files import atomic_write, read_limited
from attest.signer import Signer, as_signer

ROTATE: Final = "rotate"
REVOKE: Final = "revoke"
PROVE: Final = "prove"

MAX_AGE: Final = 30 * 86400
"""Seconds after which a statement is no longer taken in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatement(Payload):
    """One statement; good for one registry, for 30 days, and once.

    Raises:
        RegistryRefused: Code SCHEMA, TYPE or RANGE.
    """

    SCHEMA: ClassVar = "dptrain.key-statement/2"
    CDDL: ClassVar = "key-statement"
    WHAT: ClassVar = "key statement"
    ERROR: ClassVar = RegistryRefused
    MAX_SIZE: ClassVar = 1024
    BY_WORD: ClassVar = (
        "kind",
        {
            ROTATE: ("rotation", {"key": "always", "new_key": "always", "revoked_at": "never"}),
            REVOKE: ("revocation", {"new_key": "never", "revoked_at": "always"}),
            PROVE: ("possession", {"key": "always", "new_key": "never", "revoked_at": "never"}),
        },
    )
    kind: str = declared(2, OneOf((ROTATE, REVOKE, PROVE), "SCHEMA"), "What it says of a key.")
    registry_id: bytes = declared(3, octets(16), "The registry that may take it in, and no other.")
    key: bytes | None = declared(
        4,
        RAW_KEY,
        "The key acted on, in `prove` the key held; null, in `revoke` only, for all keys of the contributor whose key signs.",
        nil=True,
    )
    time: int = declared(
        5, MOMENT, "When it was signed; good for 30 days, at most an hour ahead of the entry that takes it in."
    )
    new_key: bytes | None = declared(6, RAW_KEY, "In `rotate` the key that follows; otherwise null.", default=None, nil=True)
    revoked_at: int | None = declared(7, MOMENT, "In `revoke` the time from which on; otherwise null.", default=None, nil=True)

    def __post_init__(self) -> None:
        check_fields(self, RegistryRefused)
        check_by_word(self, RegistryRefused)

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
