"""Defines the contribution descriptor, which a contributor signs, and the opening that stays beside the data.

Signed are the bounds in the clear, and commitments to content, contributor, data class and principal. So an export can show
what was signed to anybody, and confirms no guess of who or what it was. The opening (values, nonce and salts) lies beside the
content, and no ledger or export holds it.
"""

import hashlib
import secrets
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from attest import cbor
from attest.errors import DescriptorRefused
from attest.fixed_point import PICO, from_micro
from attest.schema import check_fields, declarations, declared, wire
from attest.schema.groups import Many
from attest.schema.kinds import COMMITMENT, ID, MOMENT, SHA256, Scaled, Schema, Whole, Word, octets
from attest.schema.plain import (
    CONTRIBUTOR,
    DATA_CLASS,
    PRINCIPAL,
    SALT_SIZE,
    commit,
    commit_content,
)

SCHEMA = "dptrain.contribution/2"
MAX_SIZE = cbor.MAX_SIZE

MAX_OPENING = 512
"""Bytes of an opening; a real one takes some 150."""

SALTS_SIZE: Final = 3 * SALT_SIZE
"""Bytes of the salts of contributor, data class and principal, one after the other."""

MAX_MICRO = 10**15
"""Largest bound, one thousand million in fixed point; its products stay exact in 128-bit arithmetic."""

MAX_COUNT = 2**32 - 1


class SignedBounds(NamedTuple):
    """Holds clip norm C and noise multiplier sigma exactly, in units of 1e-6, and the cap on occurrences, 0 for none.

    A contributor signs them and a class presets them; they go whole from the attestation to the clip and the ADMIT leaf.
    """

    clip_micro: int
    sigma_micro: int
    max_occurrences: int = 0

    @property
    def public(self) -> bool:
        """Tells whether these bounds say that a contribution is public; no others do."""
        return self[:2] == PUBLIC_BOUNDS[:2]

    @property
    def clip_norm(self) -> float:
        """Returns C as a double."""
        return from_micro(self.clip_micro)

    @property
    def noise_multiplier(self) -> float:
        """Returns sigma as a double."""
        return from_micro(self.sigma_micro)

    @property
    def variance(self) -> int:
        """Returns (sigma C)^2 in units of 1e-24: the noise that a contribution brings under injection per sample."""
        return (self.sigma_micro * self.clip_micro) ** 2


PUBLIC_BOUNDS: Final = SignedBounds(MAX_MICRO, 1)
"""The bounds by which a contributor says that a contribution is public: the largest clip norm and the smallest noise multiplier
that can be written. A public class admits these and no others, and no private class offers less."""

TRAIN: Final = "train"
GENERATE: Final = "generate"
QUERY: Final = "query"
PURPOSES: Final = (GENERATE, QUERY, TRAIN)
"""Uses that a contributor may allow, in order of the alphabet. Left out means `TRAIN` alone; `QUERY` is specified, and refused
by name until it is built."""

BUILT: Final = (GENERATE, TRAIN)
"""Uses that this version serves."""

_BOUND: Final = Scaled(1, MAX_MICRO)
_COUNT: Final = Whole(1, MAX_COUNT, "count")
_PURPOSE: Final = Word(dict.fromkeys(PURPOSES, ""), no_text="TYPE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Holds what is signed in the clear: bounds, validity and audience.

    The sentences of the fields say what each means; their check, bytes and documentation follow from them.

    Raises:
        DescriptorRefused: Code TYPE, RANGE, WINDOW, SCHEMA or PURPOSE.
    """

    schema: str = declared(1, Schema(SCHEMA), "Format of the descriptor.", default=SCHEMA)
    admissibility_class: str = declared(4, ID, "Class of the policy under which it asks to be admitted.")
    clip_norm_micro: int = declared(5, _BOUND, "Signed clip norm C; whoever issues it rounds down.")
    noise_multiplier_micro: int = declared(
        6,
        _BOUND,
        "Signed noise multiplier sigma; whoever issues it rounds up. With clip norm 10^15 and noise multiplier 1 the"
        " contributor says that the contribution is public.",
    )
    not_before: int = declared(8, MOMENT, "First second of validity, since 1970.")
    not_after: int = declared(9, MOMENT, "First second after validity.", rule="larger than 8")
    corpus: str = declared(11, ID, "Corpus for which it is meant, the audience.")
    max_occurrences: int = declared(12, Whole(0, MAX_COUNT, f"0..{MAX_COUNT}"), "Cap on participations, 0 for none.", default=0)
    max_examples: int | None = declared(
        13,
        _COUNT,
        "Largest number of examples that the content holds; left out it counts as 1. Written out, 1 is another descriptor of"
        " equal meaning.",
        default=None,
        optional=True,
    )
    max_epsilon_micro: int | None = declared(
        14, _BOUND, "Most epsilon that it may spend, over all runs of the corpus together.", default=None, optional=True
    )
    max_delta_pico: int | None = declared(
        15,
        Whole(1, PICO - 1, f"1..{PICO - 1}", "1e-12"),
        "The delta at which that holds: an epsilon without a delta bounds nothing, since at a larger delta every mechanism has"
        " a smaller one.",
        default=None,
        optional=True,
        rule="exactly with 14",
    )
    purposes: tuple[str, ...] | None = declared(
        16,
        Many(_PURPOSE, 1, len(PURPOSES), "purposes", ascending=True, named="purposes", counted="RANGE"),
        "What the contribution may be used for, `generate`, `train` or both; left out it means `train` alone, which may be"
        " written out too. `query` is specified and not built: whatever names it is refused (`PURPOSE`).",
        default=None,
        optional=True,
    )
    public_length: int | None = declared(
        17,
        _COUNT,
        "Tokens to which each of its examples is padded or cut, for everybody to know; one of those that its class offers. Left"
        " out it is the longest.",
        default=None,
        optional=True,
    )

    def _check_rules(self) -> None:
        """Checks what binds several fields, and refuses by name what the format specifies and this version does not serve."""
        if (self.max_epsilon_micro is None) != (self.max_delta_pico is None):
            sentence = "max_epsilon_micro and max_delta_pico go together: an epsilon is a limit at a delta; give both"
            raise DescriptorRefused("RANGE", sentence)
        if self.not_after <= self.not_before:
            sentence = f"validity ends at {self.not_after}, not after its start {self.not_before}; sign a later end"
            raise DescriptorRefused("WINDOW", sentence)
        for word in self.purposes or ():
            if word not in BUILT:
                sentence = f"purposes name {word}, which is specified, not built yet; sign for {' or '.join(BUILT)}"
                raise DescriptorRefused("PURPOSE", sentence)

    def allows(self, purpose: str) -> bool:
        """Tells whether the contributor signed that the contribution may be used so; who signed no purposes allows `TRAIN`."""
        return purpose in (self.purposes or (TRAIN,))

    @property
    def bounds(self) -> SignedBounds:
        """Returns the signed bounds."""
        return SignedBounds(self.clip_norm_micro, self.noise_multiplier_micro, self.max_occurrences)

    @property
    def public(self) -> bool:
        """Tells whether the contributor signed that the contribution is public."""
        return self.bounds.public

    @property
    def limit(self) -> tuple[int, int]:
        """Returns the most epsilon over all runs in 1e-6, and its delta in 1e-12; zeros where none is signed, or it is public.
        """
        return (0, 0) if self.public else (self.max_epsilon_micro or 0, self.max_delta_pico or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedDescriptor(Terms):
    """Holds a descriptor as it is signed and as an export shows it: terms, and commitments to who and what.

    Raises:
        DescriptorRefused: As for `Terms`.
    """

    CDDL: ClassVar = "descriptor"
    contributor: bytes = declared(
        2, COMMITMENT, "Commitment to the identifier of the signer; in hex it is the issuer of the signature."
    )
    data_class: bytes = declared(3, COMMITMENT, "Commitment to the contributor's own word for the kind of data.")
    content: bytes = declared(
        7, COMMITMENT, "Commitment to the SHA-256 of the content; the ADMIT leaf of a ledger holds it as the anchor."
    )
    principal: bytes = declared(
        10,
        COMMITMENT,
        "Commitment to the person or group that the contribution is about; where none is stated, to the empty text.",
    )

    def __post_init__(self) -> None:
        check_fields(self, DescriptorRefused)
        self._check_rules()

    @property
    def issuer(self) -> str:
        """Returns the issuer that the signature over these terms names: the commitment to the contributor, in hex."""
        return self.contributor.hex()

    def to_cbor(self) -> bytes:
        """Returns the bytes that are signed; optional fields that are None are left out."""
        return cbor.encode(wire.encode_map(self))

    @classmethod
    def from_cbor(cls, data: bytes) -> "SignedDescriptor":
        """Reads a descriptor strictly.

        Guarantee: an accepted byte string is exactly `to_cbor()` of the result, so a digest names one descriptor.

        Raises:
            DescriptorRefused: Code SIZE, CBOR or CBOR_NONCANONICAL, of the strict decoder; SCHEMA (missing or unknown fields,
                another schema), or one of `Terms`.
        """
        read: SignedDescriptor = wire.decode_document(
            cls, data, what="descriptor", error=DescriptorRefused, max_size=MAX_SIZE, codes=("TYPE", "SCHEMA")
        )
        return read

    def digest(self) -> bytes:
        """Returns SHA-256 of `to_cbor()`: the name under which ledgers and withdrawals know the contribution."""
        return hashlib.sha256(self.to_cbor()).digest()

    def opened(self, opening: bytes) -> "ContributionDescriptor":
        """Reads the opening of this descriptor strictly; an empty one stands for none.

        Guarantee: each commitment that was signed is opened by the value in the result, and an accepted opening is exactly
        `opening()` of the result: no byte of it can be another.

        Raises:
            DescriptorRefused: Code OPENING if the opening is missing, has other labels or is another's; SIZE, CBOR, TYPE or
                RANGE if it or a value of it is malformed; CBOR_NONCANONICAL if it does not encode to the bytes received.
        """
        if opening == b"":
            raise DescriptorRefused("OPENING", "the attestation has no opening; take the file that lies beside the data")
        opened: ContributionDescriptor = wire.decode_document(
            Opening,
            opening,
            what="opening",
            error=DescriptorRefused,
            max_size=MAX_OPENING,
            codes=("OPENING", "OPENING"),
            make=partial(ContributionDescriptor, **{name: getattr(self, name) for name in _CLEAR}),
        )
        for name, commitment in opened.commitments().items():
            if commitment != getattr(self, name):
                what = name.replace("_", " ")
                raise DescriptorRefused("OPENING", f"the opening does not open the {what} that was signed; restore the file")
        return opened


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Holds what opens the commitments of a descriptor. It is as private as the data."""

    __slots__ = ()  # a descriptor with its opening has the slots, beside those of its terms
    CDDL: ClassVar = "opening"
    contributor: str = declared(4, ID, "The registry's name of the signer.")
    data_class: str = declared(5, ID, "What kind of data it is, in the contributor's words.")
    principal: str | None = declared(
        6,
        ID,
        "Person or group that the contribution is about, if several contributions share one.",
        default=None,
        optional=True,
    )
    content_hash: bytes = declared(2, SHA256, "SHA-256 of the content.")
    nonce: bytes = declared(1, octets(SALT_SIZE), "Random salt of the content, of this contribution alone.", secret=True)
    salts: bytes = declared(
        3,
        octets(SALTS_SIZE),
        f"Random salts of contributor, data class and principal, {SALT_SIZE} bytes each. What is signed together shares them.",
        secret=True,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ContributionDescriptor(Terms, Opening):
    """Holds a descriptor with its opening, as its contributor and the gate have them."""

    salts: bytes = field(default_factory=lambda: secrets.token_bytes(SALTS_SIZE), repr=False)

    def __post_init__(self) -> None:
        check_fields(self, DescriptorRefused, Terms)
        check_fields(self, DescriptorRefused, Opening)
        self._check_rules()

    def commitments(self) -> dict[str, bytes]:
        """Returns what is signed in place of the values that the opening holds, by the names of `SignedDescriptor`."""
        first, second, third = (self.salts[at : at + SALT_SIZE] for at in range(0, SALTS_SIZE, SALT_SIZE))
        return {
            "contributor": commit(CONTRIBUTOR, self.contributor.encode("ascii"), first),
            "data_class": commit(DATA_CLASS, self.data_class.encode("ascii"), second),
            "content": commit_content(self.content_hash, self.nonce),
            "principal": commit(PRINCIPAL, (self.principal or "").encode("ascii"), third),
        }

    @property
    def signed(self) -> SignedDescriptor:
        """Returns what is signed of it."""
        clear: dict[str, Any] = {name: getattr(self, name) for name in _CLEAR}
        return SignedDescriptor(**clear, **dict[str, Any](self.commitments()))

    @property
    def issuer(self) -> str:
        """Returns the issuer that a signature over this descriptor names."""
        return self.commitments()["contributor"].hex()

    def to_cbor(self) -> bytes:
        """Returns the bytes that are signed."""
        return self.signed.to_cbor()

    def digest(self) -> bytes:
        """Returns SHA-256 of `to_cbor()`: the name under which ledgers and withdrawals know the contribution."""
        return self.signed.digest()

    def opening(self) -> bytes:
        """Returns the bytes that lie beside the content: values, nonce and salts."""
        return cbor.encode(wire.encode_map(self, Opening))

    @classmethod
    def open(cls, data: bytes, opening: bytes) -> "ContributionDescriptor":
        """Reads a descriptor and its opening strictly.

        Guarantee: an accepted pair is exactly `to_cbor()` and `opening()` of the result (`SignedDescriptor.opened`).

        Raises:
            DescriptorRefused: As for `SignedDescriptor.from_cbor` and `SignedDescriptor.opened`.
        """
        return SignedDescriptor.from_cbor(data).opened(opening)


_CLEAR: Final = tuple(item.name for item in declarations(Terms))


class Parts(NamedTuple):
    """Holds a descriptor and its opening, cut where contributions that are signed together differ.

    Args:
        rest: Bytes of the descriptor before and after the commitment to the content; first byte of the opening, and what
            follows the content hash in it.
    """

    rest: tuple[bytes, bytes, bytes, bytes]
    content: bytes
    nonce: bytes
    content_hash: bytes

    def around_content(self) -> list[bytes]:
        """Returns the bytes of the descriptor before and after the commitment to the content."""
        return [self.rest[0] + _CONTENT, self.rest[1]]

    def join(self) -> tuple[bytes, bytes]:
        """Returns the descriptor and the opening again."""
        _, _, head, behind = self.rest
        opening = b"".join((head, _NONCE, self.nonce, _CONTENT_HASH, self.content_hash, behind))
        return self.content.join(self.around_content()), opening


_CONTENT = b"\x07\x58\x20"
"""Key 7 of a descriptor and the head of 32 bytes."""

_NONCE = b"\x01\x50"
"""Key 1 of an opening and the head of 16 bytes."""

_CONTENT_HASH = b"\x02\x58\x20"
"""Key 2 of an opening and the head of 32 bytes."""


_STEPS = bytes([2] * 24 + [3, 4, 6, 10] + [0] * 68 + [2 + length for length in range(24)] + [0] * 136)
"""Bytes of a field with a key of one byte, by the head of its value: integers and texts of up to 23 bytes; else 0."""


def claimed_content(opening: bytes) -> bytes | None:
    """Returns the content hash that an opening claims, cut out without decoding; None where there is none."""
    return opening[22:54] if opening[1:3] == _NONCE and opening[19:22] == _CONTENT_HASH and len(opening) >= 54 else None


def split(data: bytes, opening: bytes) -> Parts | None:
    """Cuts around the commitment to the content, the nonce and the content hash, by the lengths of what is before them.

    Guarantee: `split(data, opening).join() == (data, opening)`, or None. Where these are a descriptor and its opening the cuts
    are where the fields are; whether they are is for the caller to establish.
    """
    at = 1
    try:
        for _ in range(6):
            at += _STEPS[data[at + 1]] or 3 + data[at + 2]  # Longer strings have their length in the byte after the head.
    except IndexError:
        return None
    content_hash = claimed_content(opening)
    if content_hash is None or data[at : at + 3] != _CONTENT or len(data) < at + 35:
        return None
    rest = (data[:at], data[at + 35 :], opening[:1], opening[54:])
    return Parts(rest, data[at + 3 : at + 35], opening[3:19], content_hash)


class Opener:
    """Opens many descriptors; remembers `most`. Those that differ in content and nonce alone are decoded once, and share
    values.

    Guarantee: `open` returns what `ContributionDescriptor.open` returns, and raises what it raises, for every pair of bytes.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._known: dict[tuple[bytes, ...], ContributionDescriptor] = {}

    def open(self, data: bytes, opening: bytes) -> ContributionDescriptor:
        """Reads a descriptor and its opening; arguments and errors as for `ContributionDescriptor.open`."""
        parts = split(data, opening)
        if parts is None or commit_content(parts.content_hash, parts.nonce) != parts.content:
            return ContributionDescriptor.open(data, opening)
        known = self._known.get(parts.rest)
        if known is None:
            opened = ContributionDescriptor.open(data, opening)
            if (opened.content_hash, opened.nonce) == (parts.content_hash, parts.nonce):
                if len(self._known) >= self._most:
                    self._known.clear()
                self._known[parts.rest] = opened
            return opened
        opened = object.__new__(ContributionDescriptor)
        for name in _SLOTS:
            object.__setattr__(opened, name, getattr(known, name))
        object.__setattr__(opened, "content_hash", parts.content_hash)
        object.__setattr__(opened, "nonce", parts.nonce)
        return opened


_SLOTS: Final = tuple(item.name for item in fields(ContributionDescriptor) if item.name not in ("content_hash", "nonce"))
