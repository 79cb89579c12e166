"""The contribution descriptor: what a contributor signs about one contribution."""

import hashlib
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from attest import cbor
from attest.checks import check_bytes, check_int
from attest.clock import check_time
from attest.errors import DescriptorRefused
from attest.ids import check_id
from attest.micro import PICO, from_micro

SCHEMA = "dptrain.contribution/1"
MAX_SIZE = cbor.MAX_SIZE

MAX_MICRO = 10**15
"""Largest bound, one thousand million in fixed point; its products stay exact in 128-bit arithmetic."""

PUBLIC_CLIP_MICRO = MAX_MICRO
PUBLIC_NOISE_MICRO = 1
"""The bounds by which a contributor says that a contribution is public: the largest clip norm and the smallest noise
multiplier that can be written. A public class admits these and no others, and no private class offers less."""

MAX_COUNT = 2**32 - 1

_REQUIRED = {
    1: "schema",
    2: "contributor",
    3: "data_class",
    4: "admissibility_class",
    5: "clip_norm_micro",
    6: "noise_multiplier_micro",
    7: "content_hash",
    8: "not_before",
    9: "not_after",
    10: "nonce",
    11: "corpus",
    12: "max_occurrences",
}
_OPTIONAL = {13: "principal", 14: "max_examples", 15: "max_epsilon_micro", 16: "max_delta_pico"}
_FIELDS = _REQUIRED | _OPTIONAL
_required_values = attrgetter(*_REQUIRED.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class ContributionDescriptor:
    """One contribution's identity, bounds, validity and audience.

    Args:
        contributor: Identifier of the signer.
        data_class: What kind of data it is, in the contributor's words; an identifier.
        admissibility_class: Class of the policy under which it asks to be admitted.
        clip_norm_micro: Signed clip norm C in units of 1e-6, at least 1.
        noise_multiplier_micro: Signed noise multiplier sigma in units of 1e-6, at least 1.
        content_hash: SHA-256 of the content, 32 bytes.
        not_before: First second of validity, since 1970.
        not_after: First second after validity.
        nonce: 16 random bytes; without them the descriptor's digest could be guessed from known content.
        corpus: Corpus for which it is meant.
        max_occurrences: Cap on participations, 0 for none.
        principal: Person or group that the contribution is about, if several contributions share one.
        max_examples: Largest number of examples that the content holds, if stated.
        max_epsilon_micro: Most epsilon that it may spend in units of 1e-6, over all runs of the corpus together, if stated,
        max_delta_pico: and the delta at which that holds, in units of 1e-12. Exactly with the former: an epsilon without a
            delta bounds nothing, since at a larger delta every mechanism has a smaller one.
        schema: Format of this document.

    Raises:
        DescriptorRefused: Code TYPE, RANGE, WINDOW or SCHEMA.
    """

    contributor: str
    data_class: str
    admissibility_class: str
    clip_norm_micro: int
    noise_multiplier_micro: int
    content_hash: bytes
    not_before: int
    not_after: int
    nonce: bytes
    corpus: str
    max_occurrences: int = 0
    principal: str | None = None
    max_examples: int | None = None
    max_epsilon_micro: int | None = None
    max_delta_pico: int | None = None
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if type(self.schema) is not str:
            raise DescriptorRefused("TYPE", f"schema is {type(self.schema).__name__}, expected text")
        if self.schema != SCHEMA:
            raise DescriptorRefused("SCHEMA", f"schema is {ascii(self.schema)[:80]}, expected {SCHEMA!r}")
        for name in ("contributor", "data_class", "admissibility_class", "corpus"):
            check_id(getattr(self, name), name, error=DescriptorRefused)
        if self.principal is not None:
            check_id(self.principal, "principal", error=DescriptorRefused)
        check_int(self.clip_norm_micro, "clip_norm_micro", 1, MAX_MICRO, error=DescriptorRefused)
        check_int(self.noise_multiplier_micro, "noise_multiplier_micro", 1, MAX_MICRO, error=DescriptorRefused)
        check_time(self.not_before, "not_before", error=DescriptorRefused)
        check_time(self.not_after, "not_after", error=DescriptorRefused)
        check_int(self.max_occurrences, "max_occurrences", 0, MAX_COUNT, error=DescriptorRefused)
        if self.max_examples is not None:
            check_int(self.max_examples, "max_examples", 1, MAX_COUNT, error=DescriptorRefused)
        if self.max_epsilon_micro is not None:
            check_int(self.max_epsilon_micro, "max_epsilon_micro", 1, MAX_MICRO, error=DescriptorRefused)
        if (self.max_epsilon_micro is None) != (self.max_delta_pico is None):
            raise DescriptorRefused(
                "RANGE", "max_epsilon_micro and max_delta_pico go together: an epsilon is a limit at a delta; give both"
            )
        if self.max_delta_pico is not None:
            check_int(self.max_delta_pico, "max_delta_pico", 1, PICO - 1, error=DescriptorRefused)
        check_bytes(self.content_hash, "content_hash", 32, error=DescriptorRefused)
        check_bytes(self.nonce, "nonce", 16, error=DescriptorRefused)
        if self.not_after <= self.not_before:
            raise DescriptorRefused(
                "WINDOW", f"validity ends at {self.not_after}, not after its start {self.not_before}; sign a later end"
            )

    @property
    def public(self) -> bool:
        """Whether the contributor signed that the contribution is public: by the bounds that say so, and no others."""
        return (self.clip_norm_micro, self.noise_multiplier_micro) == (PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO)

    @property
    def clip_norm(self) -> float:
        """Signed clip norm C as a double."""
        return from_micro(self.clip_norm_micro)

    @property
    def noise_multiplier(self) -> float:
        """Signed noise multiplier sigma as a double."""
        return from_micro(self.noise_multiplier_micro)

    def to_cbor(self) -> bytes:
        """The bytes that are signed; optional fields that are None are left out."""
        return cbor.encode(self._fields())

    def _fields(self) -> dict[int, Any]:
        fields: dict[int, Any] = dict(zip(_REQUIRED, _required_values(self), strict=True))
        for key, name in _OPTIONAL.items():
            value = getattr(self, name)
            if value is not None:
                fields[key] = value
        return fields

    @classmethod
    def from_cbor(cls, data: bytes) -> "ContributionDescriptor":
        """Read a descriptor strictly.

        Guarantee: an accepted byte string is exactly `to_cbor()` of the result, so a digest names one descriptor.

        Raises:
            CborError: Code SIZE, CBOR or CBOR_NONCANONICAL.
            DescriptorRefused: Code SCHEMA (missing or unknown fields, another schema), TYPE, RANGE or WINDOW.
        """
        value = cbor.decode(data, max_size=MAX_SIZE)
        descriptor = cls(**_named_fields(value))
        # The decoder accepts only what encodes to `data` again, and types are exact by now: equal maps have equal encodings.
        if descriptor._fields() != value:
            raise DescriptorRefused("CBOR_NONCANONICAL", "descriptor does not encode to the bytes received")
        return descriptor

    def digest(self) -> bytes:
        """SHA-256 of `to_cbor()`: the name under which ledgers and withdrawals know the contribution."""
        return hashlib.sha256(self.to_cbor()).digest()


class Parts(NamedTuple):
    """A descriptor as the bytes around its content hash and its nonce.

    Args:
        rest: Bytes before key 7, between content hash and key 10, and after the nonce.
        content_hash: The 32 bytes between the first two.
        nonce: The 16 bytes between the last two.
    """

    rest: tuple[bytes, bytes, bytes]
    content_hash: bytes
    nonce: bytes

    def join(self) -> bytes:
        """The descriptor again."""
        first, between, last = self.rest
        return b"".join((first, _CONTENT_HASH, self.content_hash, between, _NONCE, self.nonce, last))


_CONTENT_HASH = b"\x07\x58\x20"
"""Key 7 and the head of 32 bytes."""

_NONCE = b"\x0a\x50"
"""Key 10 and the head of 16 bytes."""


_STEPS = bytes([2] * 24 + [3, 4, 6, 10] + [0] * 68 + [2 + length for length in range(24)] + [0] * 136)
"""Bytes of a field with a key of one byte, by the head of its value: integers and texts of up to 23 bytes; else 0."""


def split(data: bytes) -> Parts | None:
    """Cut around the content hash and the nonce by the lengths of the fields before them; decodes nothing.

    Guarantee: `split(data).join() == data`, or None. For a descriptor the cuts are where its fields are; whether `data` is
    one is for the caller to establish.
    """
    at = 1
    try:
        for _ in range(6):
            at += _STEPS[data[at + 1]] or 3 + data[at + 2]  # Longer texts have their length in the byte after the head.
        nonce_at = at + 35
        for _ in range(2):
            nonce_at += _STEPS[data[nonce_at + 1]] or 3 + data[nonce_at + 2]
    except IndexError:
        return None
    if data[at : at + 3] != _CONTENT_HASH or data[nonce_at : nonce_at + 2] != _NONCE or len(data) < nonce_at + 18:
        return None
    rest = (data[:at], data[at + 35 : nonce_at], data[nonce_at + 18 :])
    return Parts(rest, data[at + 3 : at + 35], data[nonce_at + 2 : nonce_at + 18])


def _named_fields(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise DescriptorRefused("TYPE", f"descriptor is {type(value).__name__}, expected a map")
    missing = [name for key, name in _REQUIRED.items() if key not in value]
    unknown = [ascii(key)[:40] for key in value if key not in _FIELDS]
    if missing:
        raise DescriptorRefused("SCHEMA", f"descriptor lacks {', '.join(missing)}")
    if unknown:
        raise DescriptorRefused("SCHEMA", f"descriptor has unknown fields {', '.join(unknown[:5])}; expected 1 to 16")
    return {name: value[key] for key, name in _FIELDS.items() if key in value}
