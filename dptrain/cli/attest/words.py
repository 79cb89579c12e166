"""Tell one attestation in plain words: who permits what, what that means, until when, and what of it was verified.

Every privacy sentence here is docs/guarantee.md in other words: it speaks of one contribution, gives the bound against
the contribution being empty and the one against other content, and says which numbers come from a policy.
"""

from decimal import Decimal
from fractions import Fraction

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import GENERATE, TRAIN, ContributionDescriptor, SignedDescriptor, Terms
from attest.fixed_point import from_micro, from_pico
from attest.policy import Policy
from attest.policy.sampling import period
from attest.schedule.turns import dearest_turns
from attest.schema.plain import in_words
from attest.schema.rounding import at_most
from dptrain.cli.advice.findings import rounded
from dptrain.cli.advice.generation import generated
from dptrain.cli.output import counted
from dptrain.clipping.own_noise import OwnNoise, own_bounds, own_noise
from dptrain.planning.plan import spent
from ledger import accountants
from ledger.errors import AccountantError
from ledger.leaves import Admit
from ledger.views.attacker import attacker

_DAY = 86400


def paragraphs(attestation: Attestation, now: int, policy: Policy | None, signed_policy: bool) -> list[str]:
    """Returns the attestation in words, one paragraph per thought."""
    signed = attestation.read()
    under_policy = (
        "How large epsilon becomes depends on the rate at which contributions are drawn and on the number of steps, which "
        "stand in the policy of the corpus: give --policy."
    )
    if policy is not None:
        under_policy = under(signed, policy, signed_policy)
    exported = (
        "In an export everybody reads corpus, class, bounds, caps, limits, validity, key id and descriptor hash. Contributor, "
        "data class, principal and content stand there as commitments, which tell nothing without nonce and salts; keep this "
        "file as private as the data."
    )
    if isinstance(signed, SignedDescriptor):
        exported = (
            "Contributor, data class, principal and content stand below as the commitments that were signed. They tell nothing "
            "without the opening, which lies beside the data."
        )
    return [permission(signed), meaning(signed), validity(signed, now), under_policy, exported]


def permission(signed: ContributionDescriptor | SignedDescriptor) -> str:
    """Says who lets whom do what with which data."""
    who, kind, principal = "A contributor who is not named here", "", None
    if isinstance(signed, ContributionDescriptor):
        who, kind, principal = signed.contributor, f" ({signed.data_class} data)", signed.principal
    about = f" It is about {principal}." if principal is not None else ""
    examples = limit = ""
    if signed.max_examples is not None:
        examples = f" It holds {counted(signed.max_examples, 'example')} at most, clipped as one."
    if signed.public_length is not None:
        examples += f" Each is padded or cut to {counted(signed.public_length, 'token')}, which everybody may know."
    if signed.max_epsilon_micro is not None:
        epsilon, delta = from_micro(signed.max_epsilon_micro), float(from_pico(signed.max_delta_pico or 0))
        limit = f" Over all runs together it may spend an epsilon of {epsilon:g} at most, at delta {delta:g}."
    return (
        f"{who} permits the corpus {signed.corpus}, and no other, to {_uses(signed)} one contribution{kind} as class "
        f"{signed.admissibility_class}.{about}{examples}{limit}"
    )


def _uses(signed: Terms) -> str:
    """Says what it may be used for."""
    words = {TRAIN: "train a model on", GENERATE: "generate texts from"}
    if not signed.allows(GENERATE):
        return "train on"
    return " and ".join(said for word, said in words.items() if signed.allows(word))


def meaning(signed: Terms) -> str:
    """Says what the two signed bounds do in a step of training; nothing where it is not trained on."""
    if not signed.allows(TRAIN):
        return (
            "No model is trained on it, so that its clip norm and noise multiplier bound nothing: what a text takes of it is "
            "bounded by the rule that the policy has for its class."
        )
    cap = (
        f"It may be drawn {counted(signed.max_occurrences, 'time')} at most."
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
    rule = policy.class_rule(signed.admissibility_class)
    made = ""
    if signed.allows(GENERATE):
        made = f"The policy given has no generation in class {rule.name}: no text is made from it. "
        if rule.generation is not None:
            made = f"{generated(rule.generation, float(policy.delta))}. "
    if not (signed.allows(TRAIN) and rule.trained):
        told = "" if not signed.allows(TRAIN) else f"Class {rule.name} is not for training in the policy given. "
        return (made + told).strip()
    return made + _trained(signed, policy, signed_policy)


def _trained(signed: Terms, policy: Policy, signed_policy: bool) -> str:
    if policy.class_rule(signed.admissibility_class).public:
        said = "no epsilon is claimed for them" if signed.public else "this one did not sign that, so it is not admitted"
        return f"Class {signed.admissibility_class} is public in the policy given, neither clipped nor noised: {said}."
    return epsilon(signed, policy, signed_policy) + _own(signed, policy)


def own_noise_of(signed: Terms, policy: Policy) -> OwnNoise | None:
    """Returns the noise that its own bounds would need under a policy; None where that says nothing of it, or no noise does."""
    rule = policy.find_class(signed.admissibility_class)
    if signed.corpus != policy.corpus or rule is None or not (rule.trained and signed.allows(TRAIN)):
        return None
    if accountants.refusal_of(policy) is not None:
        return None
    return None if signed.public else noise_for(policy, signed.admissibility_class, signed)


def noise_for(policy: Policy, class_name: str, signed: Terms | Admit) -> OwnNoise | None:
    """Returns the noise that bounds in an attestation or an ADMIT leaf would need by themselves; None where there is none."""
    try:
        own = own_bounds(policy, class_name, signed.bounds, signed.limit)
        return None if own is None else own_noise(own)
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
    refused = accountants.refusal_of(policy)
    if refused is not None:
        return f"Nothing can be trained under the policy given, so no epsilon is claimed: {refused}."
    source = "the signed policy" if signed_policy else "this draft of a policy, which is not signed"
    if policy.disclosure == "occurrences_public":
        return _counted(signed, policy, source)
    family, steps = policy.mechanism.name, policy.sampling.most_steps(policy.steps)
    phases = [accountants.Phase(z, q, steps)]
    own, replaced = spent(policy, phases, cap=signed.max_occurrences), spent(policy, phases, replace=True)
    redone = spent(policy, phases, redo=policy.redo_steps)
    l1 = accountants.TABLE[family].norm == 1  # less than elsewhere, since no vector is longer than its L1 norm
    norm = " Under it the clip norm bounds the sum of the magnitudes of the gradient, and so its length too." if l1 else ""
    each = "each" if policy.sampling.groups == 1 else f"each of {steps:,} of them, those of its group"
    return (
        f"Under {source} ({policy.steps:,} steps, drawn with probability {q:g} in {each}, delta {delta:g}) epsilon is at most "
        f"{at_most(own)} against the contribution being empty: {attacker(own, delta)}. If every step that may be repeated "
        f"after crashes is, it is at most {at_most(redone)}; against other content in its place, without repeated steps, at "
        f"most {at_most(replaced)}. All this is of one contribution: for several of one person epsilon is larger."
        f"{_total(signed, policy)}{norm}"
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


def _counted(signed: Terms, policy: Policy, source: str) -> str:
    """Says what holds where the ledger publishes who was drawn: every occurrence counts in full."""
    z, delta = signed.bounds.noise_multiplier, float(policy.delta)
    rate = policy.class_rule(signed.admissibility_class).sampling_rate
    if not policy.sampling.turns:
        likely = accountants.likely_occurrences(float(rate), policy.steps)
        seldom = "which one contribution in a million exceeds"
    else:
        likely = dearest_turns(policy.sampling.name, period(rate), [policy.steps], [z]).count
        seldom = "its turns in the order of the policy, if no step is done again"
    draws = min(likely, signed.max_occurrences or likely)
    phases, cap = [accountants.Phase(z, float(rate), policy.steps)], signed.max_occurrences
    own, replaced = spent(policy, phases, cap=cap), spent(policy, phases, cap=cap, replace=True)
    redone = spent(policy, phases, cap=cap, redo=policy.redo_steps)
    sure = "as it signed" if draws == signed.max_occurrences else seldom
    return (
        f"Under {source} the ledger tells everybody in which steps it was drawn, and each occurrence counts in full. Drawn "
        f"{counted(draws, 'time')} ({sure}), epsilon is at most {at_most(own)} against the contribution being empty. If every "
        f"step that may be repeated after crashes is, it is at most {at_most(redone)}; against other content in its place, "
        f"without repeated steps, at most {at_most(replaced)} (delta {delta:g}). All this is of one contribution: for several "
        f"of one person epsilon is larger.{_total(signed, policy)}"
    )


def identity(attestation: Attestation) -> list[tuple[str, str]]:
    """Names it as keys, ledgers and withdrawals know it."""
    signed = attestation.read()
    draws = ("draws at most", f"{signed.max_occurrences:,}" if signed.max_occurrences else "no cap")
    names = [("key id", sign1.parse(attestation.sign1).key_id.hex()), ("descriptor hash", signed.digest().hex())]
    if isinstance(signed, SignedDescriptor):
        return [*names, draws, *((what, value.hex()) for what, value in commitments(signed).items())]
    content = [("content hash", signed.content_hash.hex()), ("nonce", signed.nonce.hex())]
    return [*names, *content, draws, ("principal", signed.principal or "none named")]


def commitments(signed: ContributionDescriptor | SignedDescriptor) -> dict[str, bytes]:
    """Tells what stands in an export in place of the values that the opening holds."""
    found = signed if isinstance(signed, SignedDescriptor) else signed.signed
    return {name.replace("_", " "): getattr(found, name) for name in ("contributor", "data_class", "principal", "content")}


def _exact(micro: int) -> str:
    """Returns a bound as it was signed, no digit rounded."""
    return f"{Decimal(micro).scaleb(-6).normalize():f}"


def _days(seconds: int) -> str:
    return counted(seconds // _DAY, "day") if seconds >= 2 * _DAY else counted(max(1, seconds // 3600), "hour")
