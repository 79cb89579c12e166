"""Tell one attestation in plain words: who permits what, what that means, until when, and what of it was verified.

Every privacy sentence here is docs/guarantee.md in other words: it speaks of one contribution, gives the bound against
the contribution being empty and the one against other content, and says which numbers come from a policy.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import ContributionDescriptor, SignedDescriptor, Terms
from attest.fixed_point import from_micro, from_pico
from attest.policy import Policy
from attest.policy.sampling import POISSON, period
from attest.schedule.turns import dearest_turns
from attest.schema.plain import in_words
from dptrain.accounting import refusal
from dptrain.cli.advice.facts import attacker
from dptrain.cli.advice.findings import rounded
from dptrain.clipping.own_noise import OwnNoise, own_bounds, own_noise
from dptrain.planning.rounding import at_most
from ledger import accountants
from ledger.errors import AccountantError

_DAY = 86400


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that may be verified about an attestation, and how that went.

    Attributes:
        what: What was looked at.
        outcome: `passed`, `failed`, or `unchecked`.
        sentence: What was found, or what it would take.
        code: Reason code of a failure.
    """

    what: str
    outcome: Literal["passed", "failed", "unchecked"]
    sentence: str
    code: str | None = None


def paragraphs(attestation: Attestation, now: int, policy: Policy | None, signed_policy: bool) -> list[str]:
    """Returns the attestation in words, one paragraph per thought."""
    signed = attestation.read()
    found = [permission(signed), meaning(signed), validity(signed, now)]
    if policy is not None:
        found.append(under(signed, policy, signed_policy))
    else:
        found.append(
            "How large epsilon becomes depends on the rate at which contributions are drawn and on the number of steps, which "
            "stand in the policy of the corpus: give --policy."
        )
    return [*found, exported(signed)]


def exported(signed: ContributionDescriptor | SignedDescriptor) -> str:
    """Tells what of it everybody reads who has an export."""
    if isinstance(signed, SignedDescriptor):
        return (
            "Contributor, data class, principal and content stand below as the commitments that were signed. They tell nothing "
            "without the opening, which lies beside the data."
        )
    return (
        "In an export everybody reads corpus, class, bounds, caps, limits, validity, key id and descriptor hash. Contributor, "
        "data class, principal and content stand there as commitments, which tell nothing without nonce and salts; keep this "
        "file as private as the data."
    )


def permission(signed: ContributionDescriptor | SignedDescriptor) -> str:
    """Says who lets whom do what with which data."""
    who, kind, principal = "A contributor who is not named here", "", None
    if isinstance(signed, ContributionDescriptor):
        who, kind, principal = signed.contributor, f" ({signed.data_class} data)", signed.principal
    about = f" It is about {principal}." if principal is not None else ""
    examples = (
        "" if signed.max_examples is None else f" It holds {_count(signed.max_examples, 'example')} at most, clipped as one."
    )
    limit = (
        ""
        if signed.max_epsilon_micro is None
        else f" Over all runs together it may spend an epsilon of {from_micro(signed.max_epsilon_micro):g} at most, at delta "
        f"{float(from_pico(signed.max_delta_pico or 0)):g}."
    )
    return (
        f"{who} permits the corpus {signed.corpus}, and no other, to train on one contribution{kind} as class "
        f"{signed.admissibility_class}.{about}{examples}{limit}"
    )


def meaning(signed: Terms) -> str:
    """Says what the two signed bounds do in a step."""
    cap = (
        f"It may be drawn {_count(signed.max_occurrences, 'time')} at most."
        if signed.max_occurrences
        else "How often it may be drawn is not capped."
    )
    if signed.public:
        return (
            "It is signed as PUBLIC: its gradient is neither scaled down nor hidden in noise, and nothing is promised about "
            f"what the model shows of it. {cap}"
        )
    pull = rounded(Fraction(10**6, signed.noise_multiplier_micro), 3, up=True)
    return (
        f"Whenever a step draws it, its gradient is scaled down to a length of at most {_exact(signed.clip_norm_micro)} (clip "
        f"norm), and to at most {pull} standard deviations of the noise that the step adds to the sum it joins (noise "
        f"multiplier at least {_exact(signed.noise_multiplier_micro)}). {cap}"
    )


def validity(signed: Terms, now: int) -> str:
    """Says from when to when it is valid, and how long that is from now."""
    begin, end = in_words(signed.not_before), in_words(signed.not_after)
    if now < signed.not_before:
        return f"Not valid yet: from {begin} ({_days(signed.not_before - now)} from now) until {end}."
    if now >= signed.not_after:
        return f"Expired: it was valid from {begin} until {end}, {_days(now - signed.not_after)} ago."
    return f"Valid from {begin} until {end}: {_days(signed.not_after - now)} left."


def under(signed: Terms, policy: Policy, signed_policy: bool) -> str:
    """Says what a policy makes of it: its epsilon, or why the policy says nothing about it."""
    if signed.corpus != policy.corpus:
        return f"The policy given is for the corpus {policy.corpus}: it says nothing about this contribution."
    if policy.find_class(signed.admissibility_class) is None:
        known = ", ".join(rule.name for rule in policy.classes)
        return f"The policy given has no class {signed.admissibility_class}, only {known}: under it, this is not admitted."
    if policy.class_rule(signed.admissibility_class).public:
        said = "no epsilon is claimed for them" if signed.public else "this one did not sign that, so it is not admitted"
        return f"Class {signed.admissibility_class} is public in the policy given, neither clipped nor noised: {said}."
    return epsilon(signed, policy, signed_policy) + _own(signed, policy)


def own_noise_of(signed: Terms, policy: Policy) -> OwnNoise | None:
    """Returns the noise that its own bounds would need under a policy; None where that says nothing of it, or no noise does."""
    if signed.corpus != policy.corpus or policy.find_class(signed.admissibility_class) is None or refusal(policy) is not None:
        return None
    own = own_bounds(policy, signed.admissibility_class, signed.bounds, signed.limit)
    try:
        return None if own is None or signed.public else own_noise(own)
    except AccountantError:
        return None


def _own(signed: Terms, policy: Policy) -> str:
    """Tells what its own bounds would need, whatever its class is given; nothing where there is no such figure."""
    found = own_noise_of(signed, policy)
    if found is None:
        return ""
    what = "Its limit of epsilon by itself" if found.limited else "Its noise multiplier and clip norm by themselves"
    capped = ", its cap" if found.expected == signed.max_occurrences else ""
    return (
        f" {what} would need noise of variance {found.variance:.4g} per coordinate in every step ({found.expected:g} draws "
        f"expected over the run{capped}). What the policy adds to a block follows from the classes alone, from no such count."
    )


def epsilon(signed: Terms, policy: Policy, signed_policy: bool) -> str:
    """Says what the signed bounds amount to under a policy: upper bounds that hold whatever the other classes ask for."""
    rule = policy.class_rule(signed.admissibility_class)
    z, q, delta = signed.bounds.noise_multiplier, float(rule.sampling_rate), float(policy.delta)
    refused = refusal(policy)
    if refused is not None:
        return f"Nothing can be trained under the policy given, so no epsilon is claimed: {refused}."
    if policy.disclosure == "occurrences_public":
        return _counted(signed, policy, signed_policy)
    name, family = policy.accountant, policy.mechanism.name
    if signed.max_occurrences:
        phases = [accountants.Phase(z, q, policy.steps)]
        own = accountants.epsilon_of_phases_capped(phases, signed.max_occurrences, delta, name, family=family)
    else:
        own = accountants.epsilon(z, q, policy.steps, delta, name, family=family)
    redone = accountants.epsilon(z, q, policy.steps + policy.redo_steps, delta, name, family=family)
    replaced = accountants.epsilon(z, q, policy.steps, delta, name, family=family, replace=True)
    source = "the signed policy" if signed_policy else "this draft of a policy, which is not signed"
    return (
        f"Under {source} ({policy.steps:,} steps, drawn with probability {q:g} in each, delta {delta:g}) epsilon is at most "
        f"{at_most(own)} against the contribution being empty: {attacker(own, delta)}. If every step that may be repeated "
        f"after crashes is, it is at most {at_most(redone)}; against other content in its place, without repeated steps, at "
        f"most {at_most(replaced)}. All this is of one contribution: for several of one person epsilon is larger."
        f"{_total(signed, policy)}{_l1(policy)}"
    )


def _total(signed: Terms, policy: Policy) -> str:
    """Says what the policy allows contributions of the class over all runs together."""
    limit = policy.class_rule(signed.admissibility_class).max_epsilon_total_micro
    if limit is None:
        return ""
    return (
        f" Over all runs together the policy lets a contribution of the class spend epsilon {from_micro(limit):g} at most, at "
        "its delta; no later policy takes that back."
    )


def _l1(policy: Policy) -> str:
    """Says what the clip norm means under Laplace noise: less than elsewhere, since no vector is longer than its L1 norm."""
    if accountants.TABLE[policy.mechanism.name].norm != 1:
        return ""
    return " Under it the clip norm bounds the sum of the magnitudes of the gradient, and so its length too."


def _counted(signed: Terms, policy: Policy, signed_policy: bool) -> str:
    """Says what holds where the ledger publishes who was drawn: every occurrence counts in full."""
    z, delta = signed.bounds.noise_multiplier, float(policy.delta)
    rate = policy.class_rule(signed.admissibility_class).sampling_rate
    if policy.sampling.name == POISSON:
        likely = accountants.likely_occurrences(float(rate), policy.steps)
        seldom = "which one contribution in a million exceeds"
    else:
        likely = dearest_turns(policy.sampling.name, period(rate), [policy.steps], [z]).count
        seldom = "its turns in the order of the policy, if no step is done again"
    draws = min(likely, signed.max_occurrences or likely)
    name, family = policy.accountant, policy.mechanism.name
    own, replaced = (accountants.epsilon_occurrences(k * draws / z**2, delta, name, family=family) for k in (1, 4))
    source = "the signed policy" if signed_policy else "this draft of a policy, which is not signed"
    sure = "as it signed" if draws == signed.max_occurrences else seldom
    return (
        f"Under {source} the ledger tells everybody in which steps it was drawn, and each occurrence counts in full. Drawn "
        f"{_count(draws, 'time')} ({sure}), epsilon is at most {at_most(own)} against the contribution being empty, and at "
        f"most {at_most(replaced)} against other content in its place (delta {delta:g}). All this is of one contribution: for "
        f"several of one person epsilon is larger.{_total(signed, policy)}"
    )


def identity(attestation: Attestation) -> list[tuple[str, str]]:
    """Names it as keys, ledgers and withdrawals know it."""
    headers = sign1.parse(attestation.sign1)
    signed = attestation.read()
    names = [("key id", headers.key_id.hex()), ("descriptor hash", signed.digest().hex())]
    draws = ("draws at most", f"{signed.max_occurrences:,}" if signed.max_occurrences else "no cap")
    if isinstance(signed, SignedDescriptor):
        return [*names, draws, *((what, value.hex()) for what, value in commitments(signed).items())]
    return [
        *names,
        ("content hash", signed.content_hash.hex()),
        ("nonce", signed.nonce.hex()),
        draws,
        ("principal", signed.principal or "none named"),
    ]


def commitments(signed: ContributionDescriptor | SignedDescriptor) -> dict[str, bytes]:
    """Tells what stands in an export in place of the values that the opening holds."""
    found = signed if isinstance(signed, SignedDescriptor) else signed.signed
    return {
        "contributor": found.contributor,
        "data class": found.data_class,
        "principal": found.principal,
        "content": found.content,
    }


def _exact(micro: int) -> str:
    """Returns a bound as it was signed, no digit rounded."""
    return f"{Decimal(micro).scaleb(-6).normalize():f}"


def _days(seconds: int) -> str:
    return _count(seconds // _DAY, "day") if seconds >= 2 * _DAY else _count(max(1, seconds // 3600), "hour")


def _count(number_of: int, what: str) -> str:
    return f"{number_of:,} {what}{'' if number_of == 1 else 's'}"
