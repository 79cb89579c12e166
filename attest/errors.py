"""Defines the exception tree of `attest`, and the reason codes of the admission gate.

Each error carries a machine-readable code and a sentence that says what was found, what was expected and what to do.
"""

from collections.abc import Callable
from enum import StrEnum

Refused = Callable[[str, str], Exception]
"""Makes the error of a refusal from its code and its sentence: the class of an error, of `attest` or of who builds on it."""


class AttestError(Exception):
    """Says that something was refused.

    Args:
        code: Short upper-case identifier, stable across releases.
        sentence: What was found, what was expected and what to do, for a person.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code = str(code)
        self.sentence = sentence

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"


class CborError(AttestError, ValueError):
    """Bytes or values outside the deterministic CBOR subset."""


class ValueRefused(AttestError, ValueError):
    """A plain value (an identifier, a decimal, a bound) has the wrong type or lies outside its range."""


class KeyRefused(AttestError, ValueError):
    """A key is weak, malformed, unreadable or stored where others can read it."""


class SignatureRefused(AttestError, ValueError):
    """A COSE_Sign1 message has a foreign header or a signature that does not verify."""


class FileRefused(AttestError, ValueError):
    """A signed file is missing, too large or not of the expected form."""


class DescriptorRefused(AttestError, ValueError):
    """A contribution descriptor has a missing, unknown, mistyped or out-of-range field."""


class PolicyRefused(AttestError, ValueError):
    """A corpus policy is malformed, contradicts itself or is not signed by the owner."""


class RegistryRefused(AttestError, ValueError):
    """A contributor registry is malformed, or is not the one that the policy names."""


class CorpusRefused(AttestError, ValueError):
    """A corpus path cannot be read as data with attestations beside it."""


class AdmissionRefused(AttestError, ValueError):
    """An attestation was refused; `code` is a member of `attest.gate.ReasonCode`."""


class VerdictsRefused(AttestError, ValueError):
    """A verdict file of a shard is damaged, belongs to another judgement, or is missing."""


class GateFailed(AttestError, RuntimeError):
    """The gate could not finish; nothing is admitted."""


class ReasonCode(StrEnum):
    """Why a contribution was refused; `str` of a member is its stable code, `meaning` a sentence for a person."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> "ReasonCode":
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    SIZE = "SIZE", "The attestation is larger than any valid one."
    CBOR = "CBOR", "The attestation is not well-formed CBOR."
    CBOR_NONCANONICAL = "CBOR_NONCANONICAL", "The attestation is CBOR, but not in its one deterministic encoding."
    HEADER = "HEADER", "The signature's header is not the one form allowed, or does not belong to this descriptor."
    SCHEMA = "SCHEMA", "The descriptor lacks fields, has unknown ones or follows another schema."
    TYPE = "TYPE", "A field of the descriptor has the wrong type."
    RANGE = "RANGE", "A field of the descriptor lies outside its range."
    PURPOSE = "PURPOSE", "The contributor did not sign for this use, or the class does not have it."
    PUBLIC_LENGTH = "PUBLIC_LENGTH", "The signed public length is none of those that the class offers."
    OPENING = "OPENING", "What lies beside the attestation does not open its commitments."
    KEY_WEAK = "KEY_WEAK", "The enrolled key is unsound; signatures under it prove nothing."
    KEY_UNKNOWN = "KEY_UNKNOWN", "The contributor is not in the registry or has no key there."
    KEY_REVOKED = "KEY_REVOKED", "The signing key was revoked."
    KEY_NOT_VALID = "KEY_NOT_VALID", "The signing key is not valid yet or any more."
    SIG_BAD = "SIG_BAD", "The signature was not made by the contributor's key over this descriptor."
    AUDIENCE = "AUDIENCE", "The attestation is meant for another corpus."
    NOT_YET_VALID = "NOT_YET_VALID", "The attestation's validity has not begun."
    EXPIRED = "EXPIRED", "The attestation's validity has ended."
    WINDOW = "WINDOW", "The attestation's validity is empty or longer than the policy allows."
    CLASS_UNKNOWN = "CLASS_UNKNOWN", "The policy has no such admissibility class."
    CLASS_NOT_GRANTED = "CLASS_NOT_GRANTED", "The contributor may not attest this admissibility class."
    BOUNDS_NOT_PUBLIC = "BOUNDS_NOT_PUBLIC", "The class is public, and the contribution did not sign that it is."
    CLIP_ABOVE_CLASS = "CLIP_ABOVE_CLASS", "The signed clip norm is more permissive than the class preset."
    NOISE_BELOW_CLASS = "NOISE_BELOW_CLASS", "The signed noise multiplier is more permissive than the class preset."
    CLIP_BELOW_FLOOR = "CLIP_BELOW_FLOOR", "The signed clip norm is too small to be useful in this corpus."
    NOISE_BELOW_FLOOR = "NOISE_BELOW_FLOOR", "The signed noise multiplier is below the corpus minimum."
    CONTENT_MISMATCH = "CONTENT_MISMATCH", "The content is not what was signed."
    CONTENT_MISSING = "CONTENT_MISSING", "There is no content for the attestation."
    UNATTESTED = "UNATTESTED", "There is no attestation for the content."
    REPLAYED = "REPLAYED", "The same attestation was admitted already."
    DUPLICATE_CONTENT = "DUPLICATE_CONTENT", "The same content was admitted already under another attestation."
    CONTRIBUTOR_CAP = "CONTRIBUTOR_CAP", "The contributor, or the person behind it, has as many contributions as allowed."
    PRINCIPAL = "PRINCIPAL", "The attestation names another person behind it than the registry does."
    EXAMPLES = "EXAMPLES", "The contribution may hold more examples than the policy allows."
    WITHDRAWN = "WITHDRAWN", "The contribution was withdrawn."
    CLOCK = "CLOCK", "The clock reads no time, went backwards, or lags behind the registry."
