"""Signs and opens files beside a ledger, each pinned to the tree as it stood when the file was written.

What a run reads again when it is resumed lies beside the ledger: model checkpoints, and the keys of earlier draws. Such a file
is `[payload, sign1]`, as every signed document of this project. The payload is a map with the keys 1, 2, 3, ...: kind, origin,
size, root and header digest of the ledger, and then what the kind holds (docs/formats, Beside the database).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from attest import cbor, sign1, signed_file
from attest.errors import AttestError, FileRefused
from attest.schema import declared, wire
from ledger.errors import LeafRefused, PinRefused
from ledger.leaves.kinds import ABOVE_0, ORIGIN, SHA256, Checked
from ledger.note import NoteSigner, parse_verifier_key
from ledger.replay.signer import KeyChain

MAX_PINNED: Final = 1 << 20
"""Bytes of such a file; a pin of a model checkpoint has about 600."""

ISSUER: Final = "ledger"

_PIN_FIELDS: Final = 5


@dataclass(frozen=True, slots=True)
class Pin(Checked):
    """Remembers, in a model checkpoint, a tree that must still be there, unchanged, when training goes on."""

    origin: str = declared(2, ORIGIN, "The ledger's origin.")
    size: int = declared(3, ABOVE_0, "Number of leaves.")
    root: bytes = declared(4, SHA256, "Root over them.")
    header_digest: bytes = declared(5, SHA256, "SHA-256 of leaf 0.")


def sign_pinned(kind: str, pin: Pin, values: Sequence[Any], signer: NoteSigner) -> bytes:
    """Returns the bytes of a file.

    Args:
        kind: what it is and its version, ``dptrain.checkpoint/1``; a file of one kind is refused for every other.
        pin: where the ledger stands.
        values: what the kind holds, as CBOR has it.
        signer: the ledger's key.
    """
    fields = [kind, *wire.encode_row(pin), *values]
    payload = cbor.encode(dict(enumerate(fields, start=1)))
    return cbor.encode([payload, sign1.sign(payload, signer.private_key, contributor=ISSUER, typ=sign1.TYP_PINNED)])


def open_pinned(data: bytes, kind: str, keys: KeyChain) -> tuple[Pin, list[Any]]:
    """Verifies a file; whether its pin is of the ledger's past is for the caller to check.

    Guarantee: The key that signs a ledger of the size pinned signed exactly these values as this kind: no file of another kind,
    no changed one, and none by a key that had not signed yet or was retired by then.

    Args:
        data: the file.
        kind: what it must be.
        keys: the keys of the ledger.

    Returns:
        The pin, and what the kind holds.

    Raises:
        PinRefused: code FORMAT, KIND, or UNSIGNED.
    """
    try:
        payload, message = signed_file.split(data, "the file", max_size=MAX_PINNED)
    except FileRefused as error:
        raise PinRefused("FORMAT", error.sentence) from error
    pin, values = _fields(payload, kind)
    key = parse_verifier_key(keys.at(pin.size))
    try:
        headers = sign1.verify(message, payload, key.public_key, typ=sign1.TYP_PINNED)
    except AttestError as error:
        sentence = f"it is not signed by {key}, the key of this ledger at {pin.size} leaves: {error.sentence}"
        raise PinRefused("UNSIGNED", f"{sentence}. It was changed, or is another ledger's") from error
    if headers.issuer != ISSUER:
        raise PinRefused("UNSIGNED", f"its signature is by {headers.issuer!a}, expected {ISSUER!a}")
    return pin, values


def _fields(payload: bytes, kind: str) -> tuple[Pin, list[Any]]:
    try:
        value = cbor.decode(payload, max_size=MAX_PINNED)
        if type(value) is not dict or len(value) < _PIN_FIELDS or list(value) != list(range(1, len(value) + 1)):
            raise PinRefused("FORMAT", f"a payload has the keys 1 to {_PIN_FIELDS}, and perhaps more, got {value!a:.80}")
        found, *pin = list(value.values())[:_PIN_FIELDS]
        if found != kind or type(found) is not str:
            raise PinRefused("KIND", f"it says that it is {found!a:.60}, this version reads {kind!a}")
        return Pin(*pin), list(value.values())[_PIN_FIELDS:]
    except (AttestError, LeafRefused) as error:
        raise PinRefused("FORMAT", f"it is malformed: {error.sentence}") from error
