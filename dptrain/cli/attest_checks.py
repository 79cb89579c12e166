"""What `attest show` can verify about one attestation, alone or against a key, a registry and a policy.

The checks are the gate's own: `attest.sign1.verify` for signatures, `attest.gate.decide` where a signed policy and a
registry are at hand. What was not looked at is said, one line each.
"""

from dataclasses import dataclass

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import ContributionDescriptor
from attest.errors import AttestError
from attest.gate import Admission, Seen, decide
from attest.policy import Policy
from attest.registry import KeyRecord, Registry
from dptrain.cli.attest_words import Check

_NOT_HERE = (
    Check("content", "unchecked", "whether the data is what was signed; dptrain attest verify DATA checks that"),
    Check("uniqueness", "unchecked", "whether it was used, copied or withdrawn before; dptrain gate and training check that"),
)


@dataclass(frozen=True, slots=True)
class Verifier:
    """What there is to verify against.

    Attributes:
        now: Moment at which everything must be valid.
        pub: Name and raw bytes of a public key.
        registry: Verified registry of contributors.
        policy: The rules; from a file that the owner signed if `policy_signed`.
    """

    now: int
    pub: tuple[str, bytes] | None = None
    registry: Registry | None = None
    policy: Policy | None = None
    policy_signed: bool = False

    @property
    def idle(self) -> bool:
        """Whether there is nothing to verify a signature against; a policy alone explains, it verifies nothing."""
        return self.pub is None and self.registry is None

    def checks(self, attestation: Attestation) -> list[Check]:
        """Every check that can be made, and one line for each that cannot."""
        signed = ContributionDescriptor.from_cbor(attestation.descriptor)
        found = [self._key(attestation, signed), *self._possession(attestation, signed), *self._gate(attestation, signed)]
        return [*found, *_NOT_HERE]

    def failure(self, attestation: Attestation) -> Check | None:
        """The first check that fails; None if what was asked for holds."""
        return next((check for check in self.checks(attestation) if check.outcome == "failed"), None)

    def _key(self, attestation: Attestation, signed: ContributionDescriptor) -> Check:
        if self.pub is None:
            if self.registry is not None:
                return self._enrolled(attestation, signed)
            return Check("signature", "unchecked", "whether the key named here made it; give --pub, or --registry")
        name, raw = self.pub
        try:
            headers = sign1.verify(attestation.sign1, attestation.descriptor, raw)
        except AttestError as error:
            return Check("signature", "failed", error.sentence, str(error.code))
        if not headers.issuer == signed.contributor == name:
            return Check("signature", "failed", f"the key is {name}'s, the signature speaks for {headers.issuer}", "HEADER")
        return Check("signature", "passed", f"made with the key of {name} that was given")

    def _possession(self, attestation: Attestation, signed: ContributionDescriptor) -> list[Check]:
        """On whose word the registry has the key for the contributor; nothing where it does not have it."""
        record = self._record(attestation, signed)
        if record is None:
            return []
        key = f"key {record.key_id.hex()}"
        if record.proved:
            return [Check("possession", "passed", f"{key} signed a statement under this name, which the registry holds")]
        sentence = f"whether {signed.contributor} holds {key}: the registry has no statement by it, so that is the owner's word"
        return [Check("possession", "unchecked", sentence)]

    def _record(self, attestation: Attestation, signed: ContributionDescriptor) -> KeyRecord | None:
        """The key that the attestation names, as the registry has it for the contributor."""
        contributor = None if self.registry is None else self.registry.find(signed.contributor)
        kid = sign1.parse(attestation.sign1).key_id
        return next((key for key in (contributor.keys if contributor else ()) if key.key_id == kid), None)

    def _enrolled(self, attestation: Attestation, signed: ContributionDescriptor) -> Check:
        """The signature under the key that the registry has for the contributor."""
        kid, record = sign1.parse(attestation.sign1).key_id, self._record(attestation, signed)
        if record is None:
            return Check("signature", "failed", f"the registry has no key {kid.hex()} of {signed.contributor}", "KEY_UNKNOWN")
        try:
            sign1.verify(attestation.sign1, attestation.descriptor, record.raw)
        except AttestError as error:
            return Check("signature", "failed", error.sentence, str(error.code))
        if not record.valid(self.now):
            code = "KEY_REVOKED" if record.revoked(self.now) else "KEY_NOT_VALID"
            return Check("signature", "failed", f"made with key {kid.hex()}, which is revoked or not valid now", code)
        return Check("signature", "passed", f"made with key {kid.hex()}, which the registry has for {signed.contributor}")

    def _gate(self, attestation: Attestation, signed: ContributionDescriptor) -> list[Check]:
        if self.policy is None:
            return [Check("admission", "unchecked", "whether the corpus may use it; give --policy with the signed policy")]
        if self.registry is None or not self.policy_signed:
            return [Check("admission", "unchecked", "the gate needs a signed policy with its registry (--policy, --registry)")]
        outcome = decide(
            attestation, signed.content_hash, policy=self.policy, registry=self.registry, now=self.now, seen=Seen()
        )
        if isinstance(outcome, Admission):
            return [Check("admission", "passed", "the gate would admit it now, if content and uniqueness hold")]
        return [Check("admission", "failed", outcome.sentence, str(outcome.code))]
