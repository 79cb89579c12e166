"""Withdrawals: a contributor, or the operator with a stated reason, ends the use of a contribution."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, sign1
from attest.checks import check_bytes
from attest.clock import check_time
from attest.descriptor import ContributionDescriptor
from attest.errors import AttestError, CborError, SignatureRefused, ValueRefused
from attest.ids import check_id
from attest.registry import Registry
from attest.signer import Signer

SCHEMA = "dptrain.withdrawal/1"
EXPIRED: Final = "expired"
KEY_REVOKED: Final = "key-revoked"
CLASS_NOT_GRANTED: Final = "class-not-granted"

REGISTRY_REASONS: Final = frozenset({KEY_REVOKED, CLASS_NOT_GRANTED})
"""Reasons whose evidence in a ledger is a root of the registry."""

PASSING: Final = frozenset({EXPIRED, *REGISTRY_REASONS})
"""Reasons for which a run takes something out by itself: an attestation's end, what the registry said. Nobody signs them."""

_FIELDS = {1: "schema", 2: "descriptor_hash", 3: "corpus", 4: "time", 5: "reason_code"}


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What is signed to withdraw a contribution.

    Args:
        descriptor_hash: SHA-256 of the contribution's descriptor.
        corpus: Corpus from which it is withdrawn.
        time: Seconds since 1970 at which it was signed.
        reason_code: Identifier such as `consent` or `error`; no free text, and none of `PASSING`.

    Raises:
        ValueRefused: Code TYPE, RANGE or REASON.
    """

    descriptor_hash: bytes
    corpus: str
    time: int
    reason_code: str

    def __post_init__(self) -> None:
        check_bytes(self.descriptor_hash, "descriptor hash", 32, error=ValueRefused)
        check_id(self.corpus, "corpus")
        check_id(self.reason_code, "reason code")
        if self.reason_code in PASSING:
            sentence = f"the reason {self.reason_code} is for what a run takes out by itself; give another, such as consent"
            raise ValueRefused("REASON", sentence)
        check_time(self.time, "time of withdrawal", error=ValueRefused)

    def to_cbor(self) -> bytes:
        """The bytes that are signed."""
        return cbor.encode({1: SCHEMA, 2: self.descriptor_hash, 3: self.corpus, 4: self.time, 5: self.reason_code})

    @classmethod
    def from_cbor(cls, data: bytes) -> "Withdrawal":
        """Read a withdrawal strictly.

        Raises:
            CborError: Not strict CBOR.
            ValueRefused: Code SCHEMA, TYPE or RANGE.
        """
        value: Any = cbor.decode(data)
        if type(value) is not dict or set(value) != set(_FIELDS):
            raise ValueRefused("SCHEMA", "withdrawal is not a map with exactly the labels 1 to 5")
        if value[1] != SCHEMA:
            raise ValueRefused("SCHEMA", f"withdrawal schema is {ascii(value[1])[:60]}, expected {SCHEMA!r}")
        withdrawal = cls(value[2], value[3], value[4], value[5])
        if withdrawal.to_cbor() != data:
            raise CborError("CBOR_NONCANONICAL", "withdrawal does not encode to the bytes received")
        return withdrawal


def sign_withdrawal(
    withdrawal: Withdrawal, key: Signer | Ed25519PrivateKey, *, signer: str
) -> tuple[bytes, bytes]:
    """Sign a withdrawal.

    Args:
        withdrawal: What is withdrawn.
        key: Key of the signer, or what signs with it.
        signer: Identifier of the contributor, or of the operator.

    Returns:
        Payload and COSE_Sign1 message.
    """
    payload = withdrawal.to_cbor()
    return payload, sign1.sign(payload, key, contributor=signer, typ=sign1.TYP_WITHDRAWAL)


def verify_withdrawal(payload: bytes, message: bytes, public_key: bytes, *, signer: str, corpus: str) -> Withdrawal:
    """Check that `signer` withdrew something from `corpus`.

    Guarantee: on return, the holder of `public_key` signed this withdrawal as `signer`, as a withdrawal and nothing
    else, for this corpus. Whether the signer may withdraw that contribution is `verify_own_withdrawal`'s matter, or the
    operator's standing.

    Raises:
        CborError, SignatureRefused, KeyRefused, ValueRefused: What was refused.
    """
    headers = sign1.verify(message, payload, public_key, typ=sign1.TYP_WITHDRAWAL)
    if headers.issuer != signer:
        raise SignatureRefused("HEADER", f"withdrawal is issued by {headers.issuer}, expected {signer}")
    withdrawal = Withdrawal.from_cbor(payload)
    if withdrawal.corpus != corpus:
        raise SignatureRefused("AUDIENCE", f"withdrawal is for corpus {withdrawal.corpus}, this one is {corpus}")
    return withdrawal


def verify_own_withdrawal(
    payload: bytes, message: bytes, descriptor: ContributionDescriptor, registry: Registry, *, now: int
) -> Withdrawal:
    """Check that a contributor withdrew this contribution.

    Guarantee: on return, a key enrolled for the descriptor's contributor and valid at `now` signed a withdrawal of
    exactly this descriptor, for its corpus. Nobody else's signature passes.

    Raises:
        AttestError: What was refused; code KEY_UNKNOWN without a valid key, AUDIENCE for another contribution.
    """
    name = descriptor.contributor
    last: AttestError = SignatureRefused("KEY_UNKNOWN", f"contributor {name} has no valid key in the registry")
    for record in registry.keys_valid_at(name, now):
        try:
            withdrawal = verify_withdrawal(payload, message, record.raw, signer=name, corpus=descriptor.corpus)
        except SignatureRefused as error:
            last = error
            continue
        if withdrawal.descriptor_hash != descriptor.digest():
            raise SignatureRefused("AUDIENCE", "withdrawal names another contribution than the descriptor given")
        return withdrawal
    raise last


def verify_entitled_withdrawal(
    payload: bytes,
    message: bytes,
    *,
    owner: str,
    owner_key: bytes,
    corpus: str,
    descriptors: Mapping[bytes, ContributionDescriptor],
    registry: Registry | None,
    now: int,
) -> Withdrawal:
    """Check that the signer of a withdrawal may withdraw what it names: the corpus owner, or the contributor itself.

    Guarantee: on return, the withdrawal is for `corpus` and signed by the holder of `owner_key` as `owner`, or by a key of
    the contributor of the contribution it names that the registry holds valid at `now`. Nobody else's signature passes.

    Args:
        owner: Identifier of the corpus owner.
        owner_key: Raw public key of the corpus owner.
        descriptors: Known contributions by descriptor hash; a contributor's withdrawal must name one of them.
        registry: Keys of the contributors; None accepts the owner only.

    Raises:
        AttestError: What was refused; code UNPROVEN where contribution or registry is missing.
    """
    if sign1.peek_issuer(message) == owner:
        return verify_withdrawal(payload, message, owner_key, signer=owner, corpus=corpus)
    descriptor = descriptors.get(Withdrawal.from_cbor(payload).descriptor_hash)
    if registry is None or descriptor is None:
        raise SignatureRefused(
            "UNPROVEN",
            "a contributor signed this withdrawal; to check it takes the registry and the attestation that it withdraws",
        )
    if descriptor.corpus != corpus:
        raise SignatureRefused("AUDIENCE", f"the contribution is for corpus {descriptor.corpus}, this one is {corpus}")
    return verify_own_withdrawal(payload, message, descriptor, registry, now=now)
