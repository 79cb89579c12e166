"""The file of a registry: a CBOR sequence (RFC 8742) of `[payload, sign1]`, one item per entry, and the values in it.

Contributors and their keys are plain values. An action is the array of its code and its fields in order. A reader judges here
nothing but the number of fields; `replay` checks each by its declaration where it applies an action, then what it means. What
is signed says contributors and principals by commitments; `RegistryLog` takes actions that name them, and commits to the names.

A key statement is what a contributor signs about its own keys: that it holds one, that a new one follows an old one, that some
are revoked. It names nobody, since it travels in the registry. The key acted on says whose it is, and for all keys the key that
signs: it stands in hex as the issuer of the signature.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, sign1
from attest.descriptor import MAX_COUNT
from attest.errors import CborError, FileRefused, RegistryRefused, SignatureRefused
from attest.files import atomic_write, read_limited
from attest.keys import key_id
from attest.keys.ed25519 import P
from attest.keys.signers import Signer, as_signer
from attest.schema import Declared, check_by_word, check_fields, declared, derived
from attest.schema.groups import Coded, Many
from attest.schema.kinds import COMMITMENT, ID, MOMENT, RAW_KEY, SHA256, Whole, octets
from attest.schema.plain import check_bytes, check_id, check_int, check_time
from attest.schema.quick import Blob, OneOf, Spelled, Tested
from attest.schema.wire import Payload

MAX_CLASSES = 256
"""Classes that one contributor may be granted."""

SMALL_ORDER_Y = frozenset(
    {
        0,
        1,
        P - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)
"""The y of the eight points whose order divides 8."""

_Y_MASK = 2**255 - 1


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Describes one enrolled key.

    Args:
        raw: 32 raw bytes of the public key. Small-order keys and keys with y >= p, under which OpenSSL accepts forgeries, are
            refused here at once; whoever enrols a key, and whoever checks a signature, runs the whole of `check_public_key`.
        revoked_at: From this second on the key is revoked; None while it is not.
        proved: Whether a statement in the registry is signed by this key: its holder wants it in this registry. Without one,
            that anybody holds it is the word of the owner who enrolled it. Under which name it stands is the owner's word.
    """

    raw: bytes
    not_before: int
    not_after: int
    revoked_at: int | None = None
    proved: bool = False

    def __post_init__(self) -> None:
        check_bytes(self.raw, "enrolled key", 32, error=RegistryRefused)
        y = int.from_bytes(self.raw, "little") & _Y_MASK
        if y >= P or y in SMALL_ORDER_Y:
            raise RegistryRefused("KEY_WEAK", f"public key {self.raw.hex()} is weak; generate a new key")
        check_time(self.not_before, "not_before", error=RegistryRefused)
        check_time(self.not_after, "not_after", error=RegistryRefused)
        if self.not_after <= self.not_before:
            raise RegistryRefused("RANGE", f"key is valid until {self.not_after}, not after its start {self.not_before}")
        if self.revoked_at is not None:
            check_time(self.revoked_at, "revoked_at", error=RegistryRefused)

    @property
    def key_id(self) -> bytes:
        """Returns the short name of the key."""
        return key_id(self.raw)

    def revoked(self, now: int) -> bool:
        """Tells whether the key is revoked at `now`."""
        return self.revoked_at is not None and now >= self.revoked_at

    def valid(self, now: int) -> bool:
        """Tells whether the key may be used at `now`: inside its half-open validity and not revoked."""
        return self.not_before <= now < self.not_after and not self.revoked(now)


@dataclass(frozen=True, slots=True)
class Contributor:
    """Describes one contributor.

    Args:
        classes: Admissibility classes that the contributor may attest, sorted.
        cap: Contributions admitted from this contributor, None for the policy's cap.
        principal: Person or group behind this and perhaps other contributors; None if it stands for itself.
    """

    name: str
    keys: tuple[KeyRecord, ...]
    classes: tuple[str, ...]
    cap: int | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        check_id(self.name, "contributor", error=RegistryRefused)
        if type(self.keys) is not tuple or any(type(record) is not KeyRecord for record in self.keys):
            raise RegistryRefused("TYPE", f"keys of {self.name} are not a tuple of key records")
        if type(self.classes) is not tuple:
            raise RegistryRefused("TYPE", f"classes of {self.name} are not a tuple")
        for name in self.classes:
            check_id(name, "class name", error=RegistryRefused)
        if list(self.classes) != sorted(set(self.classes)) or len(self.classes) > MAX_CLASSES:
            raise RegistryRefused("RANGE", f"classes of {self.name} are not sorted, distinct and at most {MAX_CLASSES}")
        if self.cap is not None:
            check_int(self.cap, f"cap of {self.name}", 0, MAX_COUNT, error=RegistryRefused)
        if self.principal is not None:
            check_id(self.principal, f"principal of {self.name}", error=RegistryRefused)


MAX_REASON: Final = 200
"""Characters of the reason why the owner's clock was set back."""

_CAP: Final = Whole(0, MAX_COUNT, "cap")
_STATEMENT: Final = Blob("statement-bytes")
_MESSAGE: Final = Blob("message")
_REASON: Final = Spelled(
    f"[ -~]{{1,{MAX_REASON}}}", f"1 to {MAX_REASON} printable ASCII characters", f'tstr .regexp "[ -~]{{1,{MAX_REASON}}}"'
)


class _Classes(Tested):
    """Names of classes, as the list that the decoder gives. That they are identifiers and sorted, `Contributor` checks."""

    type = list

    def __init__(self) -> None:
        test = f"len(value) <= {MAX_CLASSES} and all(type(name) is str for name in value)"
        super().__init__(f"[*{MAX_CLASSES} id]", f"an array of at most {MAX_CLASSES} text strings", test)


_CLASSES: Final = _Classes()


class _Act:
    """Says how an action is named: in CDDL and in sentences by the words of its class, in its bytes by its code."""

    __slots__ = ()
    CODE: ClassVar[int]
    CDDL: ClassVar[str]
    OF: ClassVar[str]
    DERIVED: ClassVar[tuple[Declared, ...]]

    def __init_subclass__(cls) -> None:
        """Names it."""
        cls.CDDL = re.sub("(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()
        cls.OF = f" of the action {cls.CDDL}"
        cls.DERIVED = (derived(0, "code", str(cls.CODE), "Which action it is."),)


@dataclass(frozen=True, slots=True)
class Create(_Act):
    """Starts a registry; the first action of the first entry, and nowhere else."""

    CODE: ClassVar = 0
    registry_id: bytes = declared(1, octets(16), "Random bytes that name the registry.")
    owner: str = declared(2, ID, "Identifier of the corpus owner, the issuer of every entry.")


@dataclass(frozen=True, slots=True)
class Enrol(_Act):
    """Enrols a key, for a new contributor or as a further key of a known one.

    An action that is not signed yet may name contributor and principal in place of the commitments.
    """

    CODE: ClassVar = 1
    name: str | bytes = declared(1, COMMITMENT, "Contributor: the commitment to its name.")
    key: bytes = declared(2, RAW_KEY, "Public key.")
    not_before: int = declared(3, MOMENT, "First second of the key's validity.")
    not_after: int = declared(4, MOMENT, "First second after it.", rule="larger than not_before")
    classes: Sequence[str] = declared(
        5, _CLASSES, "Classes granted, on top of those granted before.", default=(), rule="sorted, none twice"
    )
    cap: int | None = declared(6, _CAP, "Cap of the contributor; null leaves what there was.", default=None, nil=True)
    principal: str | bytes | None = declared(
        7,
        COMMITMENT,
        "Commitment to the person or group behind the contributor; null leaves what there was, and once stated it stays.",
        default=None,
        nil=True,
    )


@dataclass(frozen=True, slots=True)
class Grant(_Act):
    """Sets what a contributor may attest: exactly these classes, and this cap."""

    CODE: ClassVar = 2
    name: str | bytes = declared(1, COMMITMENT, "Contributor, who is enrolled.")
    classes: Sequence[str] = declared(2, _CLASSES, "All classes granted from now on.", rule="sorted, none twice")
    cap: int | None = declared(3, _CAP, "Cap of the contributor; null for the policy's.", nil=True)


@dataclass(frozen=True, slots=True)
class Rotate(_Act):
    """Takes in a contributor's statement that a new key follows an old one."""

    CODE: ClassVar = 3
    statement: bytes = declared(1, _STATEMENT, "The signed bytes, a key statement of kind `rotate`.")
    by_old: bytes = declared(2, _MESSAGE, "COSE_Sign1 message over them by the old key, valid at the time of the entry.")
    by_new: bytes = declared(3, _MESSAGE, "The message by the new key: proof that the contributor holds it.")
    not_before: int = declared(4, MOMENT, "First second of the new key's validity.")
    not_after: int = declared(5, MOMENT, "First second after it.", rule="larger than not_before")
    old_not_after: int = declared(6, MOMENT, "New end of the old key's validity.", rule="no later than the end that it had")


@dataclass(frozen=True, slots=True)
class Revoke(_Act):
    """The owner revokes a contributor's keys from a moment on; an earlier revocation stands."""

    CODE: ClassVar = 4
    name: str | bytes = declared(1, COMMITMENT, "Contributor, who is enrolled.")
    key: bytes | None = declared(2, RAW_KEY, "The key; null for all.", nil=True)
    at: int = declared(3, MOMENT, "Second from which on it is revoked; may lie in the past.")


@dataclass(frozen=True, slots=True)
class RevokeOwn(_Act):
    """Takes in a contributor's own statement that keys are revoked."""

    CODE: ClassVar = 5
    statement: bytes = declared(1, _STATEMENT, "The signed bytes, a key statement of kind `revoke`.")
    message: bytes = declared(2, _MESSAGE, "COSE_Sign1 message by a key of the contributor that is valid when it is taken in.")


@dataclass(frozen=True, slots=True)
class Prove(_Act):
    """Takes in a contributor's statement that it holds an enrolled key."""

    CODE: ClassVar = 6
    statement: bytes = declared(1, _STATEMENT, "The signed bytes, a key statement of kind `prove`.")
    message: bytes = declared(2, _MESSAGE, "COSE_Sign1 message by that very key, which is enrolled by then.")


@dataclass(frozen=True, slots=True)
class SetClock(_Act):
    """The owner's clock was ahead: this entry, whose first action it is, is dated earlier than the entry before it.
    Nothing else is taken back: what was enrolled or revoked from a moment ahead on is enrolled or revoked again."""

    CODE: ClassVar = 7
    before: int = declared(1, MOMENT, "Time of the entry before, which is taken back.")
    reason: str = declared(2, _REASON, f"Why, in the owner's words: 1 to {MAX_REASON} printable ASCII characters.")


Action = Create | Enrol | Grant | Rotate | Revoke | RevokeOwn | Prove | SetClock

ACTIONS: Final = (Create, Enrol, Grant, Rotate, Revoke, RevokeOwn, Prove, SetClock)
ACTION: Final = Coded(ACTIONS, "action", "action")


def to_array(action: Action) -> list[Any]:
    """Returns the array that is signed."""
    found: list[Any] = ACTION.encode(action)
    return found


SCHEMA: Final = "dptrain.registry-entry/2"
NO_ROOT: Final = bytes(32)
"""Root that the first entry names as the one before it."""

MAX_ENTRY: Final = 1 << 20
"""Bytes of an entry's payload; about ten thousand enrolments."""

MAX_SIZE: Final = 256 << 20
"""Bytes of a registry file; more than two million contributors enrolled in bulk."""

_ROOT_PREFIX = b"dptrain.registry.root/1\x00"


@dataclass(frozen=True, slots=True)
class Entry(Payload):
    """One signed step of the log. Raises RegistryRefused: code SCHEMA, TYPE or RANGE."""

    SCHEMA: ClassVar = SCHEMA
    CDDL: ClassVar = "registry-entry"
    WHAT: ClassVar = "entry"
    ERROR: ClassVar = RegistryRefused
    MAX_SIZE: ClassVar = MAX_ENTRY
    seq: int = declared(2, Whole(0, MAX_COUNT, f"0..{MAX_COUNT}"), "Position of the entry, from 0.")
    previous: bytes = declared(3, SHA256, "Root before this entry; zeros in the first.")
    time: int = declared(4, MOMENT, "Never less than in the entry before, except where action 7 says so.")
    actions: tuple[Action, ...] = declared(
        5,
        Many(ACTION, 1, MAX_ENTRY, "actions", distinct=False, named="[+ action]", counted="SCHEMA"),
        "What it does, in order.",
    )

    def to_cbor(self) -> bytes:
        """Returns the bytes that are signed. Raises RegistryRefused: code SIZE."""
        data = Payload.to_cbor(self)
        if len(data) > MAX_ENTRY:
            raise RegistryRefused("SIZE", f"entry has {len(data)} bytes, expected at most {MAX_ENTRY}; split it")
        return data


def root_of(payload: bytes) -> bytes:
    """Returns the root after an entry. The payload holds the root before it, so this names the whole log up to here."""
    return hashlib.sha256(_ROOT_PREFIX + payload).digest()


def join(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Returns the bytes of a file, or of its continuation, from payloads and messages."""
    return b"".join(cbor.encode([payload, message]) for payload, message in items)


def split(data: bytes, start: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yields payloads and messages of a file, none of them verified. Raises CborError: something else than `[payload,
    message]`, or an end inside an item."""
    at = start
    while at < len(data):
        head, body = _byte_string(data, at + 1, MAX_ENTRY)
        tail, message = _byte_string(data, head, sign1.MAX_SIZE)
        if data[at] != 0x82:
            raise CborError("CBOR", f"byte {at} does not begin an array of payload and signature")
        yield body, message
        at = tail


def _byte_string(data: bytes, at: int, limit: int) -> tuple[int, bytes]:
    """Ends and content of the byte string at `at`.

    Only its head goes through the strict decoder: to hand it a window per entry would copy a megabyte for each.
    """
    width = {0x58: 1, 0x59: 2, 0x5A: 4}.get(data[at] if at < len(data) else 0, 0)
    head = data[at : at + 1 + width]
    length = int.from_bytes(head[1:], "big") if width else (head[0] - 0x40 if head else 0)
    end = at + 1 + width + length
    if not 0 <= length <= limit:
        raise CborError("SIZE", f"byte string at byte {at} is none, or takes more than {limit} bytes")
    if end > len(data):
        raise CborError("CBOR", f"the file ends inside the entry around byte {at}; it was cut off")
    content = data[end - length : end]
    if cbor.encode(content)[: 1 + width] != head:
        raise CborError("CBOR_NONCANONICAL", f"byte string at byte {at} has a longer head than it needs")
    return end, content


ROTATE: Final = "rotate"
REVOKE: Final = "revoke"
PROVE: Final = "prove"

MAX_AGE: Final = 30 * 86400
"""Seconds after which a statement is no longer taken in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatement(Payload):
    """One statement; good for one registry, for 30 days, and once. Raises RegistryRefused: code SCHEMA, TYPE or RANGE."""

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
    registry_id: bytes = declared(3, octets(16), "The registry that may take it in, once, and no other.")
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
        """Returns the COSE_Sign1 message of one key of the contributor; a rotation takes one by each of the two keys."""
        signer = as_signer(key)
        return sign1.sign(self.to_cbor(), signer, contributor=signer.public_key.hex(), typ=sign1.TYP_KEY)


def signing_key(message: Any) -> bytes:
    """Returns the key that a statement's message says it is signed by, not verified. Raises AttestError: the message is
    malformed, or its issuer is no key in hex."""
    issuer = sign1.peek_issuer(message)
    if not re.fullmatch("[0-9a-f]{64}", issuer):
        raise SignatureRefused("HEADER", f"the statement is issued by {issuer}, not by the signing key in hex")
    return bytes.fromhex(issuer)


def write_statement(path: str | os.PathLike[str], statement: KeyStatement, *messages: bytes) -> None:
    """Writes a statement and its signatures as one file, the CBOR array of the payload and the messages."""
    atomic_write(path, cbor.encode([statement.to_cbor(), *messages]))


def read_statement(path: str | os.PathLike[str]) -> tuple[KeyStatement, tuple[bytes, ...]]:
    """Reads a statement and its signatures; none of them is verified. Raises FileRefused: code FILE, SIZE or FORMAT; CborError,
    RegistryRefused: the statement itself is malformed."""
    try:
        value = cbor.decode(read_limited(path, cbor.MAX_SIZE, "key statement"))
    except CborError as error:
        raise FileRefused("FORMAT", f"{os.fspath(path)!r} is no key statement: {error}") from error
    if type(value) is not list or not 2 <= len(value) <= 3 or any(type(part) is not bytes for part in value):
        sentence = f"{os.fspath(path)!r} is no key statement: expected [payload, signature] or a signature more"
        raise FileRefused("FORMAT", sentence)
    return KeyStatement.from_cbor(value[0]), tuple(value[1:])
