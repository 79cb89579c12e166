"""Withdraws contributions: a contributor, or the operator with a stated reason, ends their use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import sign1
from attest.descriptor import ContributionDescriptor
from attest.errors import AttestError, SignatureRefused, ValueRefused
from attest.keys.signers import Signer
from attest.registry import Registry
from attest.schema import check_fields, declared
from attest.schema.kinds import ID, MOMENT, SHA256
from attest.schema.wire import Payload

EXPIRED: Final = "expired"
KEY_REVOKED: Final = "key-revoked"
CLASS_NOT_GRANTED: Final = "class-not-granted"

REGISTRY_REASONS: Final = frozenset({KEY_REVOKED, CLASS_NOT_GRANTED})
"""Reasons whose evidence in a ledger is a root of the registry."""

PASSING: Final = frozenset({EXPIRED, *REGISTRY_REASONS})
"""Reasons for which a run takes something out by itself: an attestation's end, what the registry said. Nobody signs them."""


@dataclass(frozen=True, slots=True)
class Withdrawal(Payload):
    """Withdraws a contribution: what is signed for it."""

    SCHEMA: ClassVar = "dptrain.withdrawal/1"
    CDDL: ClassVar = "withdrawal"
    WHAT: ClassVar = "withdrawal"
    ERROR: ClassVar = ValueRefused
    descriptor_hash: bytes = declared(2, SHA256, "SHA-256 of the descriptor of the contribution.")
    corpus: str = declared(3, ID, "Corpus from which it is withdrawn.")
    time: int = declared(4, MOMENT, "When it was signed, in seconds since 1970.")
    reason_code: str = declared(
        5,
        ID,
        "Why, such as `consent` or `error`. Nobody signs the reasons for which a run takes something out by itself: "
        + ", ".join(f"`{reason}`" for reason in sorted(PASSING))
        + ".",
    )

    def __post_init__(self) -> None:
        check_fields(self, ValueRefused)
        if self.reason_code in PASSING:
            sentence = f"the reason {self.reason_code} is for what a run takes out by itself; give another, such as consent"
            raise ValueRefused("REASON", sentence)


def sign_withdrawal(withdrawal: Withdrawal, key: Signer | Ed25519PrivateKey, *, signer: str) -> tuple[bytes, bytes]:
    """Signs a withdrawal. Returns payload and COSE_Sign1 message."""
    payload = withdrawal.to_cbor()
    return payload, sign1.sign(payload, key, contributor=signer, typ=sign1.TYP_WITHDRAWAL)


def verify_withdrawal(payload: bytes, message: bytes, public_key: bytes, *, signer: str, corpus: str) -> Withdrawal:
    """Checks that `signer` withdrew something from `corpus`.

    Guarantee: on return, the holder of `public_key` signed this withdrawal as `signer`, as a withdrawal and nothing else, for
    this corpus. Whether the signer may withdraw that contribution is `verify_own_withdrawal`'s matter, or the operator's
    standing.
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
    """Checks that a contributor withdrew this contribution.

    Guarantee: on return, a key enrolled for the descriptor's contributor and valid at `now` signed a withdrawal of exactly this
    descriptor, for its corpus. Nobody else's signature passes.

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
    """Checks that the signer of a withdrawal may withdraw what it names: the corpus owner, or the contributor itself.

    Guarantee: on return, the withdrawal is for `corpus` and signed by the holder of `owner_key` as `owner`, or by a key of the
    contributor of the contribution it names that the registry holds valid at `now`. Nobody else's signature passes.

    Args:
        registry: Keys of the contributors; None accepts the owner only.

    Raises:
        AttestError: What was refused; code UNPROVEN where contribution or registry is missing.
    """
    if sign1.peek_issuer(message) == owner:
        return verify_withdrawal(payload, message, owner_key, signer=owner, corpus=corpus)
    descriptor = descriptors.get(Withdrawal.from_cbor(payload).descriptor_hash)
    if registry is None or descriptor is None:
        sentence = "a contributor signed this withdrawal; to check it takes the registry and the attestation that it withdraws"
        raise SignatureRefused("UNPROVEN", sentence)
    if descriptor.corpus != corpus:
        raise SignatureRefused("AUDIENCE", f"the contribution is for corpus {descriptor.corpus}, this one is {corpus}")
    return verify_own_withdrawal(payload, message, descriptor, registry, now=now)
