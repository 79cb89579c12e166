"""What an entry of the registry does: plain values, and the arrays they are signed as.

An action is the array of its code and its fields in order. Nothing is judged here but the number of fields; `replay` checks
types, ranges and meaning where it applies an action. What is signed says contributors and principals by commitments;
`RegistryLog` takes actions that name them, and commits to the names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from attest.errors import RegistryRefused


@dataclass(frozen=True, slots=True)
class Create:
    """Starts a registry; the first action of the first entry, and nowhere else.

    Args:
        registry_id: 16 random bytes.
        owner: Identifier of the corpus owner, the issuer of every entry.
    """

    CODE: ClassVar = 0
    registry_id: bytes
    owner: str


@dataclass(frozen=True, slots=True)
class Enrol:
    """Enrols a key, for a new contributor or as a further key of a known one.

    Args:
        name: Contributor: the commitment to its name as it is signed, or the name.
        key: 32 raw bytes of the public key.
        not_before: First second of the key's validity.
        not_after: First second after it.
        classes: Classes granted, sorted; added to those granted before.
        cap: Cap of the contributor, None to leave it.
        principal: Person or group behind the contributor, as `name`; None to leave it; once stated it stays.
    """

    CODE: ClassVar = 1
    name: str | bytes
    key: bytes
    not_before: int
    not_after: int
    classes: Sequence[str] = ()
    cap: int | None = None
    principal: str | bytes | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Sets what a contributor may attest: exactly these classes, and this cap.

    Args:
        name: Contributor, who must be enrolled, as in `Enrol`.
        classes: All classes granted from now on, sorted.
        cap: Cap of the contributor, None for the policy's.
    """

    CODE: ClassVar = 2
    name: str | bytes
    classes: Sequence[str]
    cap: int | None


@dataclass(frozen=True, slots=True)
class Rotate:
    """Takes in a contributor's statement that a new key follows an old one.

    Args:
        statement: The signed bytes, a `KeyStatement` of kind `rotate`.
        by_old: COSE_Sign1 message by the old key.
        by_new: COSE_Sign1 message by the new key: proof that the contributor holds it.
        not_before: First second of the new key's validity.
        not_after: First second after it.
        old_not_after: New end of the old key's validity, no later than the end it had.
    """

    CODE: ClassVar = 3
    statement: bytes
    by_old: bytes
    by_new: bytes
    not_before: int
    not_after: int
    old_not_after: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """The owner revokes a contributor's keys from a moment on; an earlier revocation stands.

    Args:
        name: Contributor, as in `Enrol`.
        key: 32 raw bytes of one key, None for all.
        at: Second from which on the key is revoked; may lie in the past.
    """

    CODE: ClassVar = 4
    name: str | bytes
    key: bytes | None
    at: int


@dataclass(frozen=True, slots=True)
class RevokeOwn:
    """Takes in a contributor's own statement that keys are revoked.

    Args:
        statement: The signed bytes, a `KeyStatement` of kind `revoke`.
        message: COSE_Sign1 message by any key of the contributor that is valid when it is taken in.
    """

    CODE: ClassVar = 5
    statement: bytes
    message: bytes


@dataclass(frozen=True, slots=True)
class Prove:
    """Takes in a contributor's statement that it holds an enrolled key.

    Args:
        statement: The signed bytes, a `KeyStatement` of kind `prove`.
        message: COSE_Sign1 message by that very key.
    """

    CODE: ClassVar = 6
    statement: bytes
    message: bytes


@dataclass(frozen=True, slots=True)
class SetClock:
    """The owner's clock was ahead: this entry, whose first action it is, is dated earlier than the entry before it.

    Args:
        before: Time of the entry before, which is taken back.
        reason: Why, in the owner's words: 1 to 200 printable ASCII characters.
    """

    CODE: ClassVar = 7
    before: int
    reason: str


Action = Create | Enrol | Grant | Rotate | Revoke | RevokeOwn | Prove | SetClock

_KINDS: dict[int, tuple[type[Any], int]] = {
    kind.CODE: (kind, len(fields(kind))) for kind in (Create, Enrol, Grant, Rotate, Revoke, RevokeOwn, Prove, SetClock)
}


def to_array(action: Action) -> list[Any]:
    """The array that is signed."""
    return [action.CODE, *(getattr(action, name) for name in action.__slots__)]


def from_array(value: Any) -> Action:
    """Read an action.

    Raises:
        RegistryRefused: Code SCHEMA for an unknown action or a wrong number of fields.
    """
    if type(value) is not list or not value or type(value[0]) is not int or value[0] not in _KINDS:
        raise RegistryRefused("SCHEMA", f"action is {ascii(value)[:60]}, expected an array that begins with 0 to 7")
    kind, count = _KINDS[value[0]]
    if len(value) != count + 1:
        raise RegistryRefused("SCHEMA", f"action {value[0]} has {len(value) - 1} fields, expected {count}")
    action: Action = kind(*value[1:])
    return action
