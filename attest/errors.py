"""The exception tree of `attest`: each error carries a machine-readable code and a sentence that helps."""

from collections.abc import Callable

Refused = Callable[[str, str], Exception]
"""Makes the error of a refusal from its code and its sentence: the class of an error, of `attest` or of who builds on it."""


class AttestError(Exception):
    """Something was refused.

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


class GateFailed(AttestError, RuntimeError):
    """The gate could not finish; nothing is admitted."""
