"""What an entry of the registry does: plain values, and the arrays they are signed as.

An action is the array of its code and its fields in order. A reader judges nothing here but the number of fields; `replay`
checks each by its declaration where it applies an action, then what it means. What is signed says contributors and principals
by commitments; `RegistryLog` takes actions that name them, and commits to the names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from attest.descriptor import MAX_COUNT
from attest.documents import Declared, declared, derived
from attest.documents.groups import Coded
from attest.documents.kinds import Whole
from attest.documents.quick import Blob, Spelled, Tested
from attest.documents.values import COMMITMENT, ID, MOMENT, RAW_KEY, octets
from attest.registry.records import MAX_CLASSES

MAX_REASON: Final = 200
"""Characters of the reason why the owner's clock was set back."""

_CAP: Final = Whole(0, MAX_COUNT, "cap")
_STATEMENT: Final = Blob("statement-bytes")
_MESSAGE: Final = Blob("message")
_REASON: Final = Spelled(
    f"[ -~]{{1,{MAX_REASON}}}",
    f"1 to {MAX_REASON} printable ASCII characters",
    f'tstr .regexp "[ -~]{{1,{MAX_REASON}}}"',
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
    by_old: bytes = declared(2, _MESSAGE, "COSE_Sign1 message over them by the old key.")
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
    message: bytes = declared(2, _MESSAGE, "COSE_Sign1 message by that very key.")


@dataclass(frozen=True, slots=True)
class SetClock(_Act):
    """The owner's clock was ahead: this entry, whose first action it is, is dated earlier than the entry before it."""

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
