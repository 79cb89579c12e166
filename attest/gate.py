"""The admission gate: admit a contribution, or refuse it with a reason code.

Checks run cheapest first: sizes, strict decoding, header, registry, signature, audience, validity, class, bounds,
content, then what was admitted before. Every comparison of bounds is between integers.
"""

import hashlib
from collections.abc import Callable, Iterable, Set
from typing import NoReturn

from attest import sign1
from attest.admission import Admission, Admitted, GateReport, Refusal, Refused, Seen
from attest.attestation import Attestation
from attest.corpus import Item
from attest.descriptor import MAX_TIME, ContributionDescriptor
from attest.errors import AdmissionRefused, AttestError, RegistryRefused
from attest.policy import ClassRule, Policy
from attest.reasons import ReasonCode
from attest.registry import Contributor, KeyRecord, Registry

__all__ = [
    "Admission",
    "Admitted",
    "GateReport",
    "ReasonCode",
    "Refusal",
    "Refused",
    "Seen",
    "decide",
    "recheck",
    "run_gate",
]

CLOCK_TOLERANCE = 60
"""Seconds that the clock may step back between batches."""


def decide(
    attestation: Attestation | None,
    content_hash: bytes | None,
    *,
    policy: Policy,
    registry: Registry,
    now: int,
    seen: Seen,
) -> Admission | Refusal:
    """Judge one contribution; changes nothing.

    Guarantee: an `Admission` means that a key enrolled for the named contributor and valid at `now` signed exactly
    these descriptor bytes, for this corpus, within its validity, in a class granted to the contributor; that the
    signed clip norm is at most and the signed noise multiplier at least the class preset, both at least the corpus
    floors; that the content read has the signed hash; and that neither it nor the descriptor was admitted before or
    withdrawn. Every error on the way refuses; nothing depends on an assertion.

    Args:
        attestation: Descriptor and signature as received, None if there is none.
        content_hash: SHA-256 of the content, computed by the caller from the bytes that will be used.
        policy: The rules.
        registry: The contributors.
        now: Seconds since 1970, one reading per batch.
        seen: What was admitted before.
    """
    candidate = _Candidate()
    try:
        return candidate.judge(attestation, content_hash, policy, registry, now, seen)
    except AttestError as error:
        return Refusal(_code(error), error.sentence, candidate.descriptor_hash, candidate.contributor)


def recheck(
    admission: Admission, *, policy: Policy, registry: Registry, now: int, withdrawn: Set[bytes] = frozenset()
) -> Refusal | None:
    """Judge an earlier admission again, for instance at the start of an epoch; None if it still stands.

    Guarantee: a contribution that expired, was withdrawn, or whose key was revoked or ran out since its admission is
    refused. What cannot change (signature, bounds, content hash) is not checked again.
    """
    descriptor = admission.descriptor
    try:
        _check_clock(now, Seen())
        contributor = _find_contributor(descriptor.contributor, registry)
        _check_key(contributor, admission.key_id, now)
        _check_validity(descriptor, _check_class(descriptor, contributor, policy), policy, now)
        _check_withdrawn(admission.descriptor_hash, withdrawn)
    except AttestError as error:
        return Refusal(_code(error), error.sentence, admission.descriptor_hash, descriptor.contributor)
    return None


def run_gate(
    corpus: Iterable[Item],
    policy: Policy,
    registry: Registry,
    *,
    now: int,
    withdrawn: Set[bytes] = frozenset(),
    progress: Callable[[int], None] | None = None,
    seen: Seen | None = None,
) -> GateReport:
    """Judge a whole corpus.

    Where two attestations claim the same content, the first in corpus order is admitted.

    Args:
        corpus: Items as `attest.corpus.open_corpus` yields them.
        policy: The rules, from a signed file.
        registry: The registry that the policy names, or a later state of the same log.
        now: Seconds since 1970, for all of the batch.
        withdrawn: Descriptor hashes of withdrawn contributions.
        progress: Called with the number judged so far.
        seen: What earlier batches admitted; extended by this one.

    Raises:
        RegistryRefused: Code REGISTRY_ROOT if the registry does not extend the one that the policy names.
    """
    root = registry.root()
    if policy.registry_root is None or not registry.extends(policy.registry_root):
        named = "none" if policy.registry_root is None else policy.registry_root.hex()
        raise RegistryRefused(
            "REGISTRY_ROOT",
            f"registry has the root {root.hex()} and does not extend {named}, which the policy names; give the registry"
            " that the policy was signed for, or a later state of it",
        )
    seen = Seen() if seen is None else seen
    seen.withdrawn = seen.withdrawn | withdrawn
    admitted: list[Admitted] = []
    refused: list[Refused] = []
    for number, item in enumerate(corpus, start=1):
        outcome = _judge_item(item, policy, registry, now, seen)
        if isinstance(outcome, Admission) and item.locator is not None:
            seen.note(outcome, now)
            admitted.append(Admitted(outcome, item.locator))
        elif isinstance(outcome, Refusal):
            refused.append(Refused(outcome, item.locator))
        if progress is not None:
            progress(number)
    return GateReport(admitted, refused, now, root)


def _judge_item(item: Item, policy: Policy, registry: Registry, now: int, seen: Seen) -> Admission | Refusal:
    if item.problem is not None:
        return Refusal(_code(item.problem), item.problem.sentence)
    content_hash = item.content_hash if item.locator is not None else None
    return decide(item.attestation, content_hash, policy=policy, registry=registry, now=now, seen=seen)


def _code(error: AttestError) -> ReasonCode:
    """The reason code of an error; what has none of its own means bytes that could not be read."""
    return ReasonCode[error.code] if error.code in ReasonCode.__members__ else ReasonCode.CBOR


def _refuse(code: ReasonCode, sentence: str) -> NoReturn:
    raise AdmissionRefused(code, sentence)


class _Candidate:
    """One contribution on its way through the checks; remembers what a refusal may tell."""

    def __init__(self) -> None:
        self.descriptor_hash: bytes | None = None
        self.contributor: str | None = None

    def judge(
        self,
        attestation: Attestation | None,
        content_hash: bytes | None,
        policy: Policy,
        registry: Registry,
        now: int,
        seen: Seen,
    ) -> Admission:
        _check_clock(now, seen)
        if attestation is None:
            _refuse(
                ReasonCode.UNATTESTED,
                "no attestation beside the content; its contributor makes one with 'dptrain attest sign'",
            )
        if not attestation.within_limits:
            _refuse(
                ReasonCode.SIZE, "descriptor or signature is larger than any valid one; sign the contribution again"
            )
        descriptor = ContributionDescriptor.from_cbor(attestation.descriptor)
        self.descriptor_hash = hashlib.sha256(attestation.descriptor).digest()
        self.contributor = descriptor.contributor
        contributor, record = _find_key(attestation, descriptor, registry, now)
        sign1.verify(attestation.sign1, attestation.descriptor, record.raw)
        _check_audience(descriptor, policy)
        rule = _check_class(descriptor, contributor, policy)
        _check_validity(descriptor, rule, policy, now)
        _check_bounds(descriptor, rule, policy)
        _check_content(descriptor, content_hash)
        _check_seen(descriptor, self.descriptor_hash, contributor, policy, seen)
        return Admission(descriptor, self.descriptor_hash, attestation.digest(), record.key_id)


def _check_clock(now: int, seen: Seen) -> None:
    if type(now) is not int or not 0 <= now <= MAX_TIME:
        _refuse(ReasonCode.CLOCK, f"clock reads {ascii(now)[:60]}, expected whole seconds since 1970")
    if now < seen.latest - CLOCK_TOLERANCE:
        _refuse(
            ReasonCode.CLOCK,
            f"clock reads {now}, {seen.latest - now} s before the last admission; set the clock right",
        )


def _find_key(
    attestation: Attestation, descriptor: ContributionDescriptor, registry: Registry, now: int
) -> tuple[Contributor, KeyRecord]:
    """The key that the signature is checked under, found by the contributor's name; the key id only chooses."""
    headers = sign1.parse(attestation.sign1)
    name = descriptor.contributor
    if headers.issuer != name:
        _refuse(ReasonCode.HEADER, f"signature is issued by {headers.issuer}, the descriptor names {name}")
    contributor = _find_contributor(name, registry)
    return contributor, _check_key(contributor, headers.key_id, now)


def _find_contributor(name: str, registry: Registry) -> Contributor:
    contributor = registry.find(name)
    if contributor is None or not contributor.keys:
        _refuse(
            ReasonCode.KEY_UNKNOWN, f"contributor {name} has no key in the registry; 'dptrain registry add' adds one"
        )
    return contributor


def _check_key(contributor: Contributor, key_id: bytes, now: int) -> KeyRecord:
    name = contributor.name
    named = [record for record in contributor.keys if record.key_id == key_id]
    if not named:
        _refuse(ReasonCode.SIG_BAD, f"signature names key {key_id.hex()}, which is not a key of {name}")
    record = next((record for record in named if record.valid(now)), named[0])
    if record.revoked(now):
        _refuse(ReasonCode.KEY_REVOKED, f"key {key_id.hex()} of {name} is revoked; sign again with a valid key")
    if not record.valid(now):
        _refuse(
            ReasonCode.KEY_NOT_VALID,
            f"key {key_id.hex()} of {name} is valid from {record.not_before} to {record.not_after}, not at {now}",
        )
    return record


def _check_audience(descriptor: ContributionDescriptor, policy: Policy) -> None:
    if descriptor.corpus != policy.corpus:
        _refuse(
            ReasonCode.AUDIENCE,
            f"attestation is for corpus {descriptor.corpus}, this one is {policy.corpus}; sign it for this one",
        )


def _check_class(descriptor: ContributionDescriptor, contributor: Contributor, policy: Policy) -> ClassRule:
    name = descriptor.admissibility_class
    rule = policy.find_class(name)
    if rule is None:
        known = ", ".join(rule.name for rule in policy.classes)
        _refuse(ReasonCode.CLASS_UNKNOWN, f"class {name} is not in the policy, which has {known}")
    if name not in contributor.classes:
        granted = ", ".join(contributor.classes) or "none"
        _refuse(ReasonCode.CLASS_NOT_GRANTED, f"{contributor.name} may attest {granted}, not {name}")
    return rule


def _check_validity(descriptor: ContributionDescriptor, rule: ClassRule, policy: Policy, now: int) -> None:
    if now < descriptor.not_before:
        _refuse(ReasonCode.NOT_YET_VALID, f"attestation is valid from {descriptor.not_before}, now is {now}")
    if now >= descriptor.not_after:
        _refuse(ReasonCode.EXPIRED, f"attestation was valid until {descriptor.not_after}, now is {now}; sign it again")
    longest = policy.max_window if rule.max_window is None else min(rule.max_window, policy.max_window)
    length = descriptor.not_after - descriptor.not_before
    if length > longest:
        _refuse(
            ReasonCode.WINDOW, f"attestation is valid for {length} s, at most {longest} s are allowed; sign it for less"
        )


def _check_bounds(descriptor: ContributionDescriptor, rule: ClassRule, policy: Policy) -> None:
    clip, noise = descriptor.clip_norm_micro, descriptor.noise_multiplier_micro
    where = f"(units of 1e-6, class {rule.name})"
    if clip > rule.clip_norm_micro:
        _refuse(ReasonCode.CLIP_ABOVE_CLASS, f"clip norm is {clip}, expected at most {rule.clip_norm_micro} {where}")
    if noise < rule.noise_multiplier_micro:
        _refuse(
            ReasonCode.NOISE_BELOW_CLASS,
            f"noise multiplier is {noise}, expected at least {rule.noise_multiplier_micro} {where}",
        )
    if clip < policy.min_clip_norm_micro:
        _refuse(
            ReasonCode.CLIP_BELOW_FLOOR,
            f"clip norm is {clip}, the corpus asks for at least {policy.min_clip_norm_micro}",
        )
    if noise < policy.min_noise_multiplier_micro:
        _refuse(
            ReasonCode.NOISE_BELOW_FLOOR,
            f"noise multiplier is {noise}, the corpus asks for at least {policy.min_noise_multiplier_micro}",
        )
    if descriptor.max_examples is not None and descriptor.max_examples > policy.max_examples:
        _refuse(
            ReasonCode.EXAMPLES,
            f"contribution may hold {descriptor.max_examples} examples, at most {policy.max_examples} may be; split it",
        )


def _check_content(descriptor: ContributionDescriptor, content_hash: bytes | None) -> None:
    if content_hash is None:
        _refuse(ReasonCode.CONTENT_MISSING, "no content for the attestation; put the data back or drop the attestation")
    if content_hash != descriptor.content_hash:
        _refuse(
            ReasonCode.CONTENT_MISMATCH,
            f"content hashes to {content_hash.hex()}, signed was {descriptor.content_hash.hex()};"
            " restore the content or sign it anew",
        )


def _check_seen(
    descriptor: ContributionDescriptor, digest: bytes, contributor: Contributor, policy: Policy, seen: Seen
) -> None:
    _check_withdrawn(digest, seen.withdrawn)
    if seen.has_descriptor(digest):
        _refuse(ReasonCode.REPLAYED, "this attestation was admitted already; each is good for one contribution")
    if seen.has_content(descriptor.content_hash):
        _refuse(ReasonCode.DUPLICATE_CONTENT, "this content was admitted already under another attestation")
    cap = policy.contributor_cap if contributor.cap is None else min(contributor.cap, policy.contributor_cap)
    if seen.count(contributor.name) >= cap:
        _refuse(ReasonCode.CONTRIBUTOR_CAP, f"{contributor.name} has {cap} contributions already, the most allowed")


def _check_withdrawn(digest: bytes, withdrawn: Set[bytes]) -> None:
    if digest in withdrawn:
        _refuse(ReasonCode.WITHDRAWN, "contribution was withdrawn; withdrawals stand")
