"""What terms of attestations say, held once against policy and registry, and each attestation of them against its leaf."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from attest.attestation import CommonTerms, Framing
from attest.descriptor import SignedDescriptor
from attest.errors import AdmissionRefused, KeyRefused
from attest.gate.checks import check_audience, check_bounds, check_validity
from attest.keys import check_public_key
from attest.policy import Policy
from attest.registry import Contributor, KeyRecord
from attest.schema.plain import MAX_TIME, utc
from ledger.attestations import misfit
from ledger.audit.registered import Known
from ledger.leaves import Admit

_QUOTED: Final = ("class", "profile", "clip norm", "noise multiplier", "max occurrences", "key", "epsilon limit", "its delta")

Fault = tuple[str, str]
"""Code and sentence of what is wrong."""


@dataclass(frozen=True, slots=True)
class Signing:
    """The key under which attestations of some terms verify.

    Attributes:
        contributor: for whom the registry that the run admitted by enrols it.
        record: the key.
        verify: takes signature and message; raises `InvalidSignature`.
    """

    contributor: Contributor
    record: KeyRecord
    verify: Callable[[bytes, bytes], None]


class Agreed:
    """Holds ADMIT leaves against the attestations of some terms.

    Guarantee:
        Where `judge` returns nothing, the descriptor made of the terms and the leaf's anchor has the leaf's descriptor hash,
        and with the message made of the signature the leaf's attestation hash; the leaf quotes of it class, bounds, limits and
        key; its time lies in the validity of the attestation and, if the registry is known, of the key, which is not revoked by
        then and under which the signature verifies. Where `problems` yields nothing, the descriptor is for this corpus, no
        longer valid than the policy allows, within the bounds of its class, and that class is granted to the key's contributor.

    Attributes:
        signed: the descriptor, without a content.
        signing: the key; None where no registry is known, or it has none of that id.
        share: how many admissions the contributor of the key has by now, and may have; shared by all terms of one contributor.
    """

    def __init__(self, terms: CommonTerms, policy: Policy, registry: Known | None) -> None:
        """Takes terms.

        Args:
            terms: as the export has them.
            policy: the signed policy.
            registry: the state by which the run goes then; None where only the leaves can be held against the terms.
        """
        self.signed: SignedDescriptor = terms.signed
        self.signing: Signing | None = None
        self.share = [0, 0]
        self._key_id, self._policy, self._registry = terms.key_id, policy, registry
        self._framing = Framing(terms)
        self._quoted = _quoted(terms, policy)
        self._first, self._end = self.signed.not_before, self.signed.not_after

    def find_key(self, anchor: bytes, signature: bytes) -> None:
        """Finds the key of these terms in the registry: of several with one id, that under which an attestation verifies."""
        known = [] if self._registry is None else self._registry.by_key.get(self._key_id, [])
        found = [Signing(*item, Ed25519PublicKey.from_public_bytes(item[1].raw).verify) for item in known]
        if len(found) > 1:
            data = self._to_be_signed(anchor)
            found = [item for item in found if _verifies(item, signature, data)] or found
        if found:
            self.signing = found[0]
            record = self.signing.record
            revoked = MAX_TIME if record.revoked_at is None else record.revoked_at
            self._first = max(self._first, record.not_before)
            self._end = min(self._end, record.not_after, revoked)

    def problems(self, time: int) -> Iterator[Fault]:
        """Yields what is wrong with these terms, whatever their attestations say.

        Args:
            time: of the first leaf that is admitted under them, POSIX seconds.
        """
        rule = self._policy.find_class(self.signed.admissibility_class)
        try:
            check_audience(self.signed, self._policy)
            if rule is not None:
                check_validity(self.signed, rule, self._policy, time)
                check_bounds(self.signed, rule, self._policy)
        except AdmissionRefused as error:
            yield error.code, f"its attestation: {error.sentence}"
        if rule is None:
            yield "CLASS_UNKNOWN", f"its attestation is for class {self.signed.admissibility_class}, which the policy has not"
        if self._registry is None:
            return
        if self.signing is None:
            told = f"key {self._key_id.hex()} is not in the state of the registry that the run admitted by"
            yield "KEY_UNKNOWN", f"its attestation is signed by nobody who is enrolled: {told}"
            return
        try:
            check_public_key(self.signing.record.raw)
        except KeyRefused as error:
            yield error.code, error.sentence
        granted = self.signing.contributor.classes
        if self.signed.admissibility_class not in granted:
            told = f"the contributor of key {self._key_id.hex()} may attest {', '.join(granted) or 'none'}"
            yield "CLASS_NOT_GRANTED", f"{told}, not {self.signed.admissibility_class}"

    def judge(self, leaf: Admit, signature: bytes) -> Fault | None:
        """Holds a leaf against its attestation; returns the first thing that is wrong."""
        framing = self._framing
        descriptor = framing.descriptor(leaf.anchor)
        digest = hashlib.sha256(descriptor).digest()
        subject = b"sha-256:" + digest.hex().encode("ascii")
        if (
            digest != leaf.descriptor_hash
            or framing.digest(descriptor, framing.message(subject, signature)) != leaf.attestation_hash
        ):
            return "ATTESTATION", f"its attestation is not the one that it quotes: {misfit(leaf, framing, signature)}"
        if _quotes(leaf) != self._quoted:
            return "QUOTED", self._misquoted(leaf)
        if self.signing is not None:
            try:
                self.signing.verify(signature, framing.to_be_signed(descriptor, subject))
            except InvalidSignature:
                told = f"the signature of its attestation does not verify under key {self._key_id.hex()}"
                return "SIG_BAD", f"{told}: its contributor did not sign this"
        return None if self._first <= leaf.time < self._end else self._untimely(leaf.time)

    def _to_be_signed(self, anchor: bytes) -> bytes:
        descriptor = self._framing.descriptor(anchor)
        return self._framing.to_be_signed(descriptor, b"sha-256:" + hashlib.sha256(descriptor).hexdigest().encode("ascii"))

    def _misquoted(self, leaf: Admit) -> str:
        pairs = zip(_QUOTED, _quotes(leaf), self._quoted, strict=True)
        wrong = [f"{what} {_said(here)} where {_said(there)} was signed" for what, here, there in pairs if here != there]
        return f"it says {', '.join(wrong)}"

    def _untimely(self, time: int) -> Fault:
        """Says which validity a time lies outside of."""
        signed = self.signed
        if not signed.not_before <= time < signed.not_after:
            code = "NOT_YET_VALID" if time < signed.not_before else "EXPIRED"
            told = f"its attestation is valid from {utc(signed.not_before)} to {utc(signed.not_after)}"
            return code, f"{told}, not at {utc(time)}"
        assert self.signing is not None
        record = self.signing.record
        if record.revoked(time):
            told = f"key {self._key_id.hex()} is revoked from {utc(record.revoked_at or 0)} on"
            return "KEY_REVOKED", f"{told}, the leaf is of {utc(time)}"
        told = f"key {self._key_id.hex()} is valid from {utc(record.not_before)} to {utc(record.not_after)}"
        return "KEY_NOT_VALID", f"{told}, not at {utc(time)}"


def _quotes(leaf: Admit) -> tuple[object, ...]:
    """Returns what a leaf quotes of an attestation, beside digests."""
    return (
        leaf.class_name,
        leaf.profile_id,
        leaf.clip_micro,
        leaf.sigma_micro,
        leaf.max_occurrences,
        leaf.key_id,
        leaf.max_epsilon_micro,
        leaf.max_delta_pico,
    )


def _quoted(terms: CommonTerms, policy: Policy) -> tuple[object, ...]:
    """Returns what a leaf must quote of attestations of these terms; no limit where the contribution is public."""
    signed = terms.signed
    names = [rule.name for rule in policy.classes]
    name = signed.admissibility_class
    limit = (0, 0) if signed.public else (signed.max_epsilon_micro or 0, signed.max_delta_pico or 0)
    return (
        name,
        names.index(name) if name in names else -1,
        signed.clip_norm_micro,
        signed.noise_multiplier_micro,
        signed.max_occurrences,
        terms.key_id,
        *limit,
    )


def _said(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _verifies(signing: Signing, signature: bytes, data: bytes) -> bool:
    try:
        signing.verify(signature, data)
    except InvalidSignature:
        return False
    return True
