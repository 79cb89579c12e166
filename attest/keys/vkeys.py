"""Reads and writes verifier keys as text, `<name>+<key id>+<base64 of type and key>`, by which people name who signs notes.

Format: C2SP signed-note, "Verifier keys". Ed25519 only: type 0x01 signs as a log, type 0x04 cosigns with a time (C2SP
tlog-cosignature). Of the numbers left to others (0xff and a name of one's own) one is ours: by it an auditor vouches for the
summaries under a checkpoint (docs/formats, "Retention").
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Final

from attest.errors import KeyRefused
from attest.keys.ed25519 import check_public_key
from attest.schema.plain import read_base64

SIGNATURE_ED25519: Final = 0x01
SIGNATURE_COSIGNATURE_V1: Final = 0x04
SIGNATURE_SUMMARY_V1: Final = 0xFF
"""An auditor's statement on summaries; the type in verifier keys and key ids is this byte and `SUMMARY_TYPE_NAME`."""

SUMMARY_TYPE_NAME: Final = b"dptrain/summary/v1"

_KINDS: Final = (SIGNATURE_ED25519, SIGNATURE_COSIGNATURE_V1, SIGNATURE_SUMMARY_V1)
_VERIFIER_KEY = re.compile(r"([^+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/]+={0,2})")


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key by which notes are verified, with the name and the type under which it signs."""

    name: str
    kind: int
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        """SHA-256(name || 0x0A || type || public key)[:4] (C2SP signed-note, "Signatures")."""
        return hashlib.sha256(self.name.encode() + b"\n" + self._material).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(self._material).decode()}"

    @property
    def _material(self) -> bytes:
        return _type_bytes(self.kind) + self.public_key


def parse_verifier_key(vkey: str) -> VerifierKey:
    """Reads a verifier key.

    Guarantee: an accepted text is exactly `str` of the result, and its key is sound (`attest.keys.check_public_key`).

    Raises:
        KeyRefused: Code VKEY, NAME or BASE64 for a malformed text, also where the key id does not fit the key; KEY_WEAK.
    """
    match = _VERIFIER_KEY.fullmatch(vkey) if type(vkey) is str else None
    if match is None:
        raise KeyRefused("VKEY", f"expected a verifier key <name>+<8 hex digits>+<base64>, got {vkey!r:.200}")
    name, key_id, encoded = match.groups()
    check_key_name(name)
    material = read_base64(encoded)
    if material is None:
        raise KeyRefused("BASE64", f"the verifier key of {name} is not the canonical base64 of any bytes")
    kind = material[0] if material else 0
    if kind not in _KINDS or material[:-32] != _type_bytes(kind):
        raise KeyRefused("VKEY", f"the verifier key of {name} is not an Ed25519 log key (01) or cosignature key (04)")
    key = VerifierKey(name, kind, material[-32:])
    if key.key_id.hex() != key_id:
        raise KeyRefused("VKEY", f"the verifier key of {name} says key id {key_id}, its key gives {key.key_id.hex()}")
    try:
        check_public_key(key.public_key)
    except KeyRefused as error:
        raise KeyRefused("KEY_WEAK", f"the verifier key of {name} is refused: {error.sentence}") from error
    return key


def check_key_name(name: str) -> None:
    """Refuses what no signature line can name. Raises KeyRefused: code NAME."""
    if type(name) is not str or not name or any(c.isspace() or c < "!" or c == "+" or "\ud800" <= c <= "\udfff" for c in name):
        raise KeyRefused("NAME", f"a key name is not empty, UTF-8, without spaces, control characters and '+', got {name!r}")


def _type_bytes(kind: int) -> bytes:
    return bytes([kind]) + (SUMMARY_TYPE_NAME if kind == SIGNATURE_SUMMARY_V1 else b"")
