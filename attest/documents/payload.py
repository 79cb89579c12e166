"""Gives every document that is signed by itself its check, its bytes, and a strict reader of them."""

from typing import Any, ClassVar, Self

from attest import cbor
from attest.documents import wire
from attest.documents.declare import check_fields
from attest.errors import AttestError


class Payload:
    """A declared document that is signed by itself: a map with its schema at label 1, and its fields from label 2 on.

    A class of them is a frozen dataclass. Rules over several fields go into its `__post_init__`, behind `check_fields`.

    Attributes:
        SCHEMA: Name and version of the format.
        CDDL: Its name in attestation.cddl.
        WHAT: Its name in sentences.
        ERROR: Class of the errors.
        MAX_SIZE: Most bytes.

    Raises:
        AttestError: Of class `ERROR`, code TYPE or RANGE, or that of a rule of its own.
    """

    __slots__ = ()
    SCHEMA: ClassVar[str]
    CDDL: ClassVar[str]
    WHAT: ClassVar[str]
    ERROR: ClassVar[type[AttestError]]
    MAX_SIZE: ClassVar[int] = cbor.MAX_SIZE
    OF: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Says in sentences whose field one is."""
        super().__init_subclass__(**options)
        cls.OF = cls.__dict__.get("OF", f" of the {cls.WHAT}")

    def __post_init__(self) -> None:
        check_fields(self, self.ERROR)

    def to_cbor(self) -> bytes:
        """Returns the bytes that are signed."""
        return wire.encode_document(self, self.SCHEMA)

    @classmethod
    def from_cbor(cls, data: bytes) -> Self:
        """Reads a document strictly.

        Guarantee: an accepted byte string is exactly `to_cbor()` of the result.

        Raises:
            AttestError: Of class `ERROR`, with the code of the strict decoder, SCHEMA, or one of the class.
        """
        found: Self = wire.decode_document(cls, data, schema=cls.SCHEMA, what=cls.WHAT, error=cls.ERROR, max_size=cls.MAX_SIZE)
        return found
