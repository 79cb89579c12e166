"""Checks one contribution at the gate: first by itself, then against what went before.

By itself: form, signature, audience, validity, class, bounds, content. These checks run cheapest first: sizes, strict decoding,
opening, header, registry, signature, audience, validity, class, bounds, content. Comparisons of bounds are between integers.
`examine` makes them all, one after the other. An `Examiner` does so for many contributions: attestations that differ from one
that passed in who signed them, when, and what, are compared with it instead of being decoded (`attest.gate.forms`), and only
their digests, commitments and signatures are computed.

Against what went before: repetitions, copies, floods, withdrawals, a clock set back.
"""

import hashlib
from typing import NamedTuple, NoReturn

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import PUBLIC_BOUNDS, TRAIN, ContributionDescriptor, Parts, SignedDescriptor, Terms, split
from attest.errors import AdmissionRefused, AttestError, ReasonCode, RegistryRefused
from attest.gate.admission import Passed, Refusal, Seen, descriptor_tag
from attest.gate.forms import Cut, Form, Pattern
from attest.policy import ClassRule, Policy
from attest.registry import Contributor, KeyRecord, Registry
from attest.schema.plain import BACK_SECONDS, MAX_TIME

MAX_KNOWN = 8192
"""Forms of attestation that an `Examiner` remembers; a form is what one contributor signs in one go."""

MAX_PATTERNS = 1024
"""Patterns of attestation that an `Examiner` remembers; a pattern is what contributors sign under one class and its bounds."""


def examine(
    attestation: Attestation,
    content_hash: bytes | None,
    *,
    policy: Policy,
    registry: Registry,
    now: int,
    purpose: str = TRAIN,
    verified: bool = False,
) -> Passed | Refusal:
    """Makes every check that needs this contribution alone.

    Guarantee: `Passed` means that a key enrolled for the named contributor and valid at `now` signed exactly these descriptor
    bytes, for this corpus, for this purpose, within its validity, in a class granted to the contributor that has this purpose;
    that the signed clip norm is at most and the signed noise multiplier at least the class preset, both at least the corpus
    floors; and that the commitments that were signed open to that contributor and to the content read. Every error on the way
    refuses; nothing depends on an assertion.

    Args:
        purpose: What the contribution is to be used for, `attest.descriptor.TRAIN` or `attest.descriptor.GENERATE`.
        verified: This very attestation passed before with this content, under this policy and this registry, whatever the time
            was; spares the signature, unless its contributor has several keys of that key id.
    """
    descriptor_hash, name = None, None
    try:
        if not attestation.within_limits:
            refuse(ReasonCode.SIZE, "a part of the attestation is larger than any valid one; sign the contribution again")
        signed = SignedDescriptor.from_cbor(attestation.descriptor)
        descriptor_hash = hashlib.sha256(attestation.descriptor).digest()
        descriptor = signed.opened(attestation.opening)
        name = descriptor.contributor
        message = sign1.read(attestation.sign1)
        if message.headers.issuer != signed.issuer:
            refuse(
                ReasonCode.HEADER,
                f"signature is issued by {message.headers.issuer}, the descriptor commits to {signed.issuer}: that is {name}",
            )
        contributor = _find_contributor(name, registry)
        record = _check_key(contributor, message.headers.key_id, now)
        if verified and sum(other.key_id == record.key_id for other in contributor.keys) == 1:
            message.fit(attestation.descriptor, record.raw, typ=sign1.TYP_ATTESTATION)
        else:
            message.verify(attestation.descriptor, record.raw, typ=sign1.TYP_ATTESTATION)
        check_audience(descriptor, policy)
        _check_principal(descriptor, contributor)
        rule = _check_class(descriptor, contributor, policy)
        check_purpose(descriptor, rule, purpose)
        check_validity(descriptor, rule, policy, now)
        check_bounds(descriptor, rule, policy)
        _check_content(descriptor, content_hash)
    except AttestError as error:
        return refusal_of(error, descriptor_hash, name)
    return Passed(descriptor_hash, attestation.digest(), record.key_id, name, descriptor.admissibility_class)


class Examiner:
    """Examines many contributions for one purpose, under one policy, one registry and one reading of the clock.

    Guarantee: the outcome is that of `examine`, for every input. What is taken over from an earlier attestation is only what
    cannot differ: see `attest.gate.forms`. Class and signed purposes are among it, and an examiner has one purpose for good.
    """

    def __init__(self, policy: Policy, registry: Registry, now: int, *, purpose: str = TRAIN) -> None:
        self._policy = policy
        self._registry = registry
        self._now = now
        self._purpose = purpose
        self._known: dict[tuple[bytes, ...], Form] = {}
        # None stands for what is no pattern.
        self._patterns: dict[tuple[bytes, ...], Pattern | None] = {}
        self._met_once: set[tuple[bytes, ...]] = set()

    def examine(
        self, descriptor: bytes, message: bytes, opening: bytes, content_hash: bytes | None, *, verified: bool = False
    ) -> Passed | Refusal:
        """Judges one contribution by itself. `verified`: this very attestation passed before with this content, as for
        `examine`; spares the signature alone."""
        parts = split(descriptor, opening)
        if parts is not None and parts.content_hash == content_hash:
            form = self._known.get(parts.rest)
            known = form is not None
            if form is None:
                cut = Cut.of(parts)
                pattern = self._patterns.get(cut.shared)
                form = pattern.form(parts, cut, message, self._registry, self._now) if pattern is not None else None
            passed = form.match(descriptor, message, parts, verified) if form is not None else None
            if form is not None and passed is not None:
                if not known:
                    self._remember(parts, form)
                return passed
        attestation = Attestation(descriptor, message, opening)
        outcome = examine(
            attestation,
            content_hash,
            policy=self._policy,
            registry=self._registry,
            now=self._now,
            purpose=self._purpose,
            verified=verified,
        )
        if parts is not None and isinstance(outcome, Passed):
            self._learn(attestation, parts, outcome)
        return outcome

    def _remember(self, parts: Parts, form: Form) -> None:
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[parts.rest] = form

    def _learn(self, attestation: Attestation, parts: Parts, passed: Passed) -> None:
        shared = Cut.of(parts).shared
        if shared in self._patterns:
            return
        # Learning a pattern pays only if it comes back.
        if shared not in self._met_once:
            if len(self._met_once) >= MAX_PATTERNS:
                self._met_once.clear()
            self._met_once.add(shared)
            return
        if len(self._patterns) >= MAX_PATTERNS:
            self._patterns.clear()
        self._patterns[shared] = Pattern.learn(attestation, parts, passed, self._policy)


def refusal_of(error: AttestError, descriptor_hash: bytes | None = None, contributor: str | None = None) -> Refusal:
    """Returns an error as the refusal that it means; one without a reason code means bytes that could not be read."""
    code = ReasonCode[error.code] if error.code in ReasonCode.__members__ else ReasonCode.CBOR
    return Refusal(code, error.sentence, descriptor_hash, contributor)


def refuse(code: ReasonCode, sentence: str) -> NoReturn:
    """Refuses with a code and a sentence."""
    raise AdmissionRefused(code, sentence)


def _find_contributor(name: str, registry: Registry) -> Contributor:
    contributor = registry.find(name)
    if contributor is None or not contributor.keys:
        refuse(ReasonCode.KEY_UNKNOWN, f"contributor {name} has no key in the registry; 'dptrain registry add' adds one")
    return contributor


def _check_key(contributor: Contributor, key_id: bytes, now: int) -> KeyRecord:
    """Returns the key that the signature is checked under: one of the contributor's, the key id only chooses."""
    name = contributor.name
    named = [record for record in contributor.keys if record.key_id == key_id]
    if not named:
        refuse(ReasonCode.SIG_BAD, f"signature names key {key_id.hex()}, which is not a key of {name}")
    record = next((record for record in named if record.valid(now)), named[0])
    if record.revoked(now):
        refuse(ReasonCode.KEY_REVOKED, f"key {key_id.hex()} of {name} is revoked; sign again with a valid key")
    if not record.valid(now):
        refuse(
            ReasonCode.KEY_NOT_VALID,
            f"key {key_id.hex()} of {name} is valid from {record.not_before} to {record.not_after}, not at {now}",
        )
    return record


def check_audience(descriptor: Terms, policy: Policy) -> None:
    """Refuses what was signed for another corpus. Raises AdmissionRefused: code AUDIENCE."""
    if descriptor.corpus != policy.corpus:
        refuse(
            ReasonCode.AUDIENCE,
            f"attestation is for corpus {descriptor.corpus}, this one is {policy.corpus}; sign it for this one",
        )


def _check_principal(descriptor: ContributionDescriptor, contributor: Contributor) -> None:
    enrolled, stated = contributor.principal, descriptor.principal
    if enrolled is not None and stated is not None and stated != enrolled:
        refuse(
            ReasonCode.PRINCIPAL,
            f"attestation names the principal {stated}, {contributor.name} is enrolled with {enrolled}; sign without one",
        )


def _check_class(descriptor: ContributionDescriptor, contributor: Contributor, policy: Policy) -> ClassRule:
    name = descriptor.admissibility_class
    rule = policy.find_class(name)
    if rule is None:
        known = ", ".join(rule.name for rule in policy.classes)
        refuse(ReasonCode.CLASS_UNKNOWN, f"class {name} is not in the policy, which has {known}")
    if name not in contributor.classes:
        granted = ", ".join(contributor.classes) or "none"
        refuse(ReasonCode.CLASS_NOT_GRANTED, f"{contributor.name} may attest {granted}, not {name}")
    return rule


def check_purpose(descriptor: Terms, rule: ClassRule, purpose: str) -> None:
    """Refuses a use that the contributor did not sign for, or that the class does not have.

    Guarantee: on return the contributor signed for this purpose, by name or, for `TRAIN` alone, by signing none; and the policy
    gives the class this purpose, with a rule of decoding where it is `GENERATE`. Whatever uses a contribution asks here again,
    so that nothing rests on the gate having run.

    Raises:
        AdmissionRefused: Code PURPOSE.
    """
    if not descriptor.allows(purpose):
        signed = " and ".join(descriptor.purposes or (TRAIN,))
        refuse(
            ReasonCode.PURPOSE,
            f"contributor signed for {signed}, asked for is {purpose}; who allows that signs anew ('dptrain attest sign"
            f" --purpose {purpose}')",
        )
    if purpose not in rule.purposes:
        served = " and ".join(rule.purposes)
        refuse(
            ReasonCode.PURPOSE,
            f"class {rule.name} is for {served}, asked for is {purpose}; the owner adds it to purposes in the policy, or the"
            " contributor signs for a class that has it",
        )


def check_validity(descriptor: Terms, rule: ClassRule, policy: Policy, now: int) -> None:
    """Refuses what is not valid at a time, or is signed for longer than the class or the corpus takes."""
    if now < descriptor.not_before:
        refuse(ReasonCode.NOT_YET_VALID, f"attestation is valid from {descriptor.not_before}, now is {now}")
    if now >= descriptor.not_after:
        refuse(ReasonCode.EXPIRED, f"attestation was valid until {descriptor.not_after}, now is {now}; sign it again")
    longest = policy.max_window if rule.max_window is None else min(rule.max_window, policy.max_window)
    length = descriptor.not_after - descriptor.not_before
    if length > longest:
        refuse(ReasonCode.WINDOW, f"attestation is valid for {length} s, at most {longest} s are allowed; sign it for less")


def check_bounds(descriptor: Terms, rule: ClassRule, policy: Policy) -> None:
    """Refuses bounds that the class or the corpus does not take.

    Guarantee: what passes has a clip norm at most, and a noise multiplier at least, the preset of its class, and both at least
    the floors of the corpus; in a public class it has the bounds that say public. Integers are compared, and equality passes.
    Whatever turns bounds into noise asks here again, so that nothing rests on the gate having run.

    Raises:
        AdmissionRefused: Code BOUNDS_NOT_PUBLIC, CLIP_ABOVE_CLASS, NOISE_BELOW_CLASS, CLIP_BELOW_FLOOR, NOISE_BELOW_FLOOR,
            EXAMPLES or PUBLIC_LENGTH.
    """
    clip, noise, _ = descriptor.bounds
    most_clip, least_noise, _ = rule.bounds
    where = f"(units of 1e-6, class {rule.name})"
    if rule.public and not descriptor.public:
        refuse(
            ReasonCode.BOUNDS_NOT_PUBLIC,
            f"class {rule.name} is public, its contributions are neither clipped nor noised; this one signs clip norm {clip}"
            f" and noise multiplier {noise} (units of 1e-6). Who means it to be public signs"
            f" {PUBLIC_BOUNDS.clip_micro} and {PUBLIC_BOUNDS.sigma_micro} ('dptrain attest sign --public')",
        )
    if clip > most_clip:
        refuse(ReasonCode.CLIP_ABOVE_CLASS, f"clip norm is {clip}, expected at most {most_clip} {where}")
    if noise < least_noise:
        refuse(ReasonCode.NOISE_BELOW_CLASS, f"noise multiplier is {noise}, expected at least {least_noise} {where}")
    if not rule.public and clip < policy.min_clip_norm_micro:
        refuse(ReasonCode.CLIP_BELOW_FLOOR, f"clip norm is {clip}, the corpus asks for at least {policy.min_clip_norm_micro}")
    if not rule.public and noise < policy.min_noise_multiplier_micro:
        refuse(
            ReasonCode.NOISE_BELOW_FLOOR,
            f"noise multiplier is {noise}, the corpus asks for at least {policy.min_noise_multiplier_micro}",
        )
    if descriptor.max_examples is not None and descriptor.max_examples > policy.max_examples:
        refuse(
            ReasonCode.EXAMPLES,
            f"contribution may hold {descriptor.max_examples} examples, at most {policy.max_examples} may be; split it",
        )
    if descriptor.public_length is not None and descriptor.public_length not in rule.public_lengths:
        offered = ", ".join(map(str, rule.public_lengths)) or "none"
        refuse(
            ReasonCode.PUBLIC_LENGTH,
            f"public length is {descriptor.public_length}, class {rule.name} offers {offered}; sign one of them, or none",
        )


def _check_content(descriptor: ContributionDescriptor, content_hash: bytes | None) -> None:
    if content_hash is None:
        refuse(ReasonCode.CONTENT_MISSING, "no content for the attestation; put the data back or drop the attestation")
    if content_hash != descriptor.content_hash:
        refuse(
            ReasonCode.CONTENT_MISMATCH,
            f"content hashes to {content_hash.hex()}, signed was {descriptor.content_hash.hex()};"
            " restore the content or sign it anew",
        )


WITHDRAWN = "contribution was withdrawn; withdrawals stand"
"""Why a withdrawn contribution is refused, for a person."""


class Share(NamedTuple):
    """Says how many contributions may be admitted, and under whose name they count.

    A person who stands behind several contributors, as the registry says, has one share for all of them.
    """

    holder: str
    cap: int

    @classmethod
    def of(cls, contributor: str, policy: Policy, registry: Registry) -> "Share":
        known = registry.find(contributor)
        cap = policy.contributor_cap
        if known is None:
            return cls(contributor, cap)
        # No identifier holds a space, so a principal is never taken for a contributor of the same name.
        holder = contributor if known.principal is None else f"principal {known.principal}"
        return cls(holder, cap if known.cap is None else min(known.cap, cap))


def refused_for_history(passed: Passed, earlier: int | None, share: Share, seen: Seen) -> Refusal | None:
    """Says why a contribution is refused for what was admitted or withdrawn before; None if it is not."""
    if passed.descriptor_hash in seen.withdrawn:
        code, sentence = ReasonCode.WITHDRAWN, WITHDRAWN
    elif earlier is not None and earlier == descriptor_tag(passed.descriptor_hash):
        code = ReasonCode.REPLAYED
        sentence = "this attestation was admitted already; each is good for one contribution"
    elif earlier is not None:
        code = ReasonCode.DUPLICATE_CONTENT
        sentence = "this content was admitted already under another attestation"
    elif seen.count(share.holder) >= share.cap:
        code = ReasonCode.CONTRIBUTOR_CAP
        sentence = f"{share.holder} has {share.cap} contributions already, the most allowed"
    else:
        return None
    return Refusal(code, sentence, passed.descriptor_hash, passed.contributor)


def clock_refusal(now: int, seen: Seen, registry: Registry) -> Refusal | None:
    """Says why nothing is judged at this reading of the clock, None if it may be: it reads no time, went back since the last
    admission, or lags behind the registry."""
    if type(now) is not int or not 0 <= now < MAX_TIME:
        return Refusal(ReasonCode.CLOCK, f"clock reads {ascii(now)[:60]}, expected whole seconds since 1970")
    if now < seen.latest - BACK_SECONDS:
        sentence = f"clock reads {now}, {seen.latest - now} s before the last admission; set the clock right"
        return Refusal(ReasonCode.CLOCK, sentence)
    try:
        registry.require_not_ahead(now)
    except RegistryRefused as error:
        return Refusal(ReasonCode.CLOCK, error.sentence)
    return None
