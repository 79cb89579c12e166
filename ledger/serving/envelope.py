"""Defines the rights envelope: what a client may be answered from, signed by who grants rights, for one gate and for a time.

An envelope is the CBOR array `[payload, sign1]` of two byte strings, as every signed document of this project. The message is
signed for a purpose of its own, so that no other document passes as one, and it as no other. It is not a secret: whoever has it
without being the holder gains nothing, if the gate knows who asks.

Whether rights suffice for an artifact is the matter of `ledger.release.rights`.
"""

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, sign1, signed_file
from attest.errors import AttestError
from attest.fixed_point import MICRO
from attest.keys import key_id
from attest.keys.signers import Signer
from attest.schema import check_fields, declared
from attest.schema.cards import card_of
from attest.schema.plain import MAX_TIME, utc
from attest.schema.quick import Array, Blob, Count, Row
from attest.schema.wire import decode_document, encode_document
from ledger.errors import LedgerError, RightsRefused
from ledger.leaves.kinds import ID, TRUTH
from ledger.release.rights import MOST_EPSILON, Rights

MAX_LIFETIME: Final = 90 * 86400
"""Seconds that rights last at most: what was granted and forgotten ends by itself."""

MAX_CLASSES: Final = 64
"""Classes of contributions, and likewise of generation, that one envelope names."""

MAX_ENVELOPE: Final = 12_288
"""Bytes of an envelope; one of the longest names takes about 9,900."""

SERIAL_SIZE: Final = 16

_MOST_MICRO: Final = int(MOST_EPSILON) * MICRO
_EPSILON: Final = Count(0, _MOST_MICRO, "rights-epsilon", "1e-6")
_TIME: Final = Count(0, MAX_TIME - 1, "moment")


@dataclass(frozen=True, slots=True)
class AllowedClass:
    """Allows a class of contributions to have had influence, up to an epsilon."""

    CDDL: ClassVar = "allowed-class"
    TELLS: ClassVar = ("name", " of class {}")
    name: str = declared(1, ID, "Name of the class.")
    epsilon_micro: int | None = declared(2, _EPSILON, "Largest epsilon that it may have; null for any.", nil=True)

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        check_fields(self, RightsRefused)


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsEnvelope:
    """Says what one client of one gate may be answered from: what is signed.

    Raises:
        RightsRefused: code TYPE, RANGE or ORDER, a field is of another kind; LIFETIME, it ends before it begins, or lasts
            longer than `MAX_LIFETIME`.
    """

    SCHEMA: ClassVar = "dptrain.rights/1"
    CDDL: ClassVar = "rights"
    WHAT: ClassVar = "rights envelope"
    OF: ClassVar = " of the rights envelope"
    audience: str = declared(2, ID, "Name of the gate that it is for.")
    holder: str = declared(3, ID, "Name of the client that it is for, as the gate's service knows it.")
    serial: bytes = declared(4, Blob("bstr .size 16", SERIAL_SIZE), "Number of the envelope, by which it is revoked; random.")
    not_before: int = declared(5, _TIME, "First second in which it holds, since 1970.")
    expires: int = declared(
        6, _TIME, "First second in which it holds no more.", rule=f"larger than 5, by {MAX_LIFETIME} at most"
    )
    classes: tuple[AllowedClass, ...] = declared(
        7,
        Array(Row(AllowedClass, "TYPE"), 0, MAX_CLASSES),
        "Classes that may have had influence; all others may not.",
        rule="ascending by name, each once",
    )
    withdrawn: bool = declared(
        8, TRUTH, "Whether a class may have had influence of which a contribution was withdrawn since the release."
    )
    untied: bool = declared(9, TRUTH, "Whether weights may answer that are not those that the run committed to.")
    told: bool = declared(10, TRUTH, "Whether a release may answer whose verdict is TOLD.")
    code: bool = declared(11, TRUTH, "Whether files may lie beside the weights that can carry code.")
    generation: tuple[str, ...] = declared(
        12,
        Array(ID, 0, MAX_CLASSES, ascending=True),
        "Generation classes of the gate that the holder may ask; none where empty.",
        rule="ascending, each once",
    )

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        check_fields(self, RightsRefused)
        names = [item.name for item in self.classes]
        if names != sorted(set(names)):
            raise RightsRefused("ORDER", f"classes{self.OF}: expected each name once, in ascending order")
        lasts = self.expires - self.not_before
        if not 0 < lasts <= MAX_LIFETIME:
            days = MAX_LIFETIME // 86400
            sentence = f"rights from {utc(self.not_before)} to {utc(self.expires)} last {lasts} s, expected 1 s to {days} days"
            raise RightsRefused("LIFETIME", f"{sentence}; sign them again when they end")

    @classmethod
    def of(
        cls,
        rights: Mapping[str, int | None],
        *,
        audience: str,
        holder: str,
        not_before: int,
        expires: int,
        generation: Collection[str] = (),
        withdrawn: bool = False,
        untied: bool = False,
        told: bool = False,
        code: bool = False,
        serial: bytes | None = None,
    ) -> "RightsEnvelope":
        """Returns an envelope with a new random serial, and what it names in order.

        Args:
            rights: by class the largest epsilon in 1e-6, None for any. serial: 16 bytes; fresh ones from the system without.
        """
        return cls(
            audience=audience,
            holder=holder,
            serial=os.urandom(SERIAL_SIZE) if serial is None else serial,
            not_before=not_before,
            expires=expires,
            classes=tuple(AllowedClass(name, rights[name]) for name in sorted(rights)),
            withdrawn=withdrawn,
            untied=untied,
            told=told,
            code=code,
            generation=tuple(sorted(set(generation))),
        )

    @property
    def rights(self) -> Rights:
        """Returns what it allows, as `choose_artifact` takes it; epsilons are the doubles nearest to their counts of 1e-6."""
        return Rights(
            {one.name: None if one.epsilon_micro is None else one.epsilon_micro / MICRO for one in self.classes},
            withdrawn=self.withdrawn,
            untied=self.untied,
            told=self.told,
            code=self.code,
        )

    def to_cbor(self) -> bytes:
        """Returns the payload."""
        return encode_document(self, self.SCHEMA)

    @classmethod
    def from_cbor(cls, payload: bytes) -> "RightsEnvelope":
        """Reads a payload.

        Guarantee: accepts exactly what `to_cbor` writes.

        Raises:
            RightsRefused: code SCHEMA, that of the strict decoder, or that of a field.
        """
        found: RightsEnvelope = decode_document(
            cls, payload, schema=cls.SCHEMA, what=cls.WHAT, error=RightsRefused, max_size=MAX_ENVELOPE
        )
        return found


@dataclass(frozen=True, slots=True)
class Granted:
    """Holds an envelope whose signature was verified.

    Attributes:
        granter: name under which its signer signed; the key counts, the name is told. key_id: of the key.
        digest: SHA-256 of the envelope's bytes.
        rights: what it allows.
    """

    envelope: RightsEnvelope
    rights: Rights
    granter: str
    key_id: bytes
    digest: bytes

    _repr_html_ = card_of

    def require(self, now: int, revoked: Collection[bytes] = (), *, latest: int | None = None) -> None:
        """Checks that the rights hold now. What was signed stays signed, but every query asks this again.

        Args:
            now: the gate's clock, POSIX seconds. No leeway is given. revoked: serials that hold no more.
            latest: the latest that this clock ever said: what expired by then does not come back when the clock steps back.

        Raises:
            RightsRefused: code REVOKED, NOT_YET or EXPIRED.
        """
        envelope = self.envelope
        if envelope.serial in revoked:
            raise RightsRefused("REVOKED", f"the rights {envelope.serial.hex()} were revoked; ask {self.granter} for new ones")
        if now < envelope.not_before:
            sentence = f"the rights hold from {utc(envelope.not_before)} on, the clock here says {utc(now)}"
            raise RightsRefused("NOT_YET", f"{sentence}; ask again then")
        if max(now, now if latest is None else latest) >= envelope.expires:
            sentence = f"the rights ended at {utc(envelope.expires)}, the clock here says {utc(now)}"
            raise RightsRefused("EXPIRED", f"{sentence}; ask {self.granter} for new ones")


def sign_rights(envelope: RightsEnvelope, key: Signer | Ed25519PrivateKey, *, granter: str) -> bytes:
    """Signs rights; returns the bytes of the envelope. `granter`: name of who signs, which refusals tell the holder.

    Raises:
        KeyRefused, SignatureRefused: as `attest.sign1.sign`.
    """
    payload = envelope.to_cbor()
    return cbor.encode([payload, sign1.sign(payload, key, contributor=granter, typ=sign1.TYP_RIGHTS)])


def read_rights(data: bytes, keys: Sequence[bytes], audience: str) -> Granted:
    """Reads and verifies an envelope; whether it holds now is for `Granted.require`.

    Guarantee: on return, the holder of one of these keys signed exactly this envelope, as rights and as nothing else, for the
    gate of this name. No other bytes read as the same rights under the same signature.

    Args:
        keys: raw public keys of who grants rights. audience: name of the gate.

    Raises:
        RightsRefused: code MALFORMED, KEY, SIGNATURE, LIFETIME or AUDIENCE.
    """
    payload, read = _split(data)
    raw = next((key for key in keys if key_id(key) == read.headers.key_id), None)
    if raw is None:
        sentence = f"the rights are signed by key {read.headers.key_id.hex()}, which may not grant any here"
        raise RightsRefused("KEY", f"{sentence}; ask who runs the gate whose rights it takes")
    try:
        headers = read.verify(payload, raw, typ=sign1.TYP_RIGHTS)
    except AttestError as error:
        raise RightsRefused("SIGNATURE", f"the rights are not signed as rights by the key named: {error.sentence}") from error
    envelope = _envelope(payload)
    if envelope.audience != audience:
        raise RightsRefused("AUDIENCE", f"the rights are for the gate {envelope.audience}, this one is {audience}")
    return Granted(envelope, envelope.rights, headers.issuer, headers.key_id, hashlib.sha256(data).digest())


def peek_rights(data: bytes) -> tuple[RightsEnvelope, sign1.Headers]:
    """Reads what an envelope claims, and who it says signed it, without verifying anything: good for showing it, for nothing
    else. Raises RightsRefused: code MALFORMED or LIFETIME."""
    payload, message = _split(data)
    return _envelope(payload), message.headers


def open_rights(
    data: bytes,
    keys: Sequence[bytes],
    audience: str,
    now: int,
    *,
    holder: str | None = None,
    revoked: Collection[bytes] = (),
) -> Granted:
    """Reads and verifies an envelope, and checks that it holds.

    Guarantee: as `read_rights`; and at `now` it has begun and not ended, its serial is none of `revoked`, and it was granted to
    `holder`, where one is given.

    Args:
        keys: raw public keys of who grants rights, pinned by the gate. audience: name of the gate.
        now: POSIX seconds. holder: the client that asks, as authenticated by the service; None to read without one.

    Raises:
        RightsRefused: code MALFORMED, KEY, SIGNATURE, LIFETIME, AUDIENCE, HOLDER, REVOKED, NOT_YET or EXPIRED.
    """
    granted = read_rights(data, keys, audience)
    if holder is not None:
        require_holder(granted, holder)
    granted.require(now, revoked)
    return granted


def _split(data: bytes) -> tuple[bytes, sign1.Message]:
    """Cuts an envelope into its payload and the message over it; nothing is verified."""
    if type(data) is not bytes or len(data) > MAX_ENVELOPE:
        found = f"{len(data)} bytes" if type(data) is bytes else type(data).__name__
        raise RightsRefused("MALFORMED", f"a rights envelope has at most {MAX_ENVELOPE} bytes, got {found}")
    try:
        payload, message = signed_file.split(data, "the envelope", max_size=MAX_ENVELOPE)
        return payload, sign1.read(message)
    except AttestError as error:
        raise RightsRefused("MALFORMED", f"these are no signed rights: {error.sentence}") from error


def _envelope(payload: bytes) -> RightsEnvelope:
    try:
        return RightsEnvelope.from_cbor(payload)
    except LedgerError as error:
        code = "LIFETIME" if error.code == "LIFETIME" else "MALFORMED"
        raise RightsRefused(code, f"what was signed is no rights: {error.sentence}") from error


def require_holder(granted: Granted, holder: str | None) -> None:
    """Checks that rights were granted to who asks. Raises RightsRefused: code HOLDER."""
    if holder is None or granted.envelope.holder != holder:
        asks = "nobody who is known" if holder is None else ascii(holder)[:80]
        sentence = f"the rights were granted to {granted.envelope.holder}, {asks} asks"
        raise RightsRefused("HOLDER", f"{sentence}; each client takes rights of its own")
