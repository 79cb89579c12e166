"""Find what follows for a whole policy: facts, and settings that are likely not meant, alone or against corpus and registry.

A check is a function over a case; `CHECKS` lists them in the order in which they are told.
"""

import difflib
import math
from collections.abc import Iterator
from fractions import Fraction

from attest.keys.vkeys import parse_verifier_key
from attest.policy import Policy
from attest.policy.sampling import SHUFFLED
from attest.schema.plain import utc
from attest.schema.rounding import at_most
from dptrain.cli.advice.case import Case
from dptrain.cli.advice.findings import Change, Consequence, fact, in_class, power_of_ten_below, rounded, warning
from dptrain.cli.output import amount, counted, number
from ledger import accountants

FAR_FROM_BATCH = 3.0
"""Ratio of normalizer and expected batch that is still taken as meant."""

CROWD = 10
"""Contributors from which on a cap that lets one of them flood the corpus is likely an oversight."""

USUAL_DELTA = Fraction(1, 10**6)

_DAY = 86400


def _unit(case: Case) -> Iterator[Consequence]:
    counts = " It counts on the draws staying secret." if case.policy.secret else ""
    yield fact(
        "UNIT",
        "every epsilon here is of one contribution, not of a person: for k contributions of one person the bound is up to k "
        f"times as large, at a larger delta.{counts} Who signed stricter bounds than the preset has the same or a smaller one "
        "(dptrain plan POLICY.cose CORPUS)",
    )


def _geometry(case: Case) -> Iterator[Consequence]:
    for rule in case.policy.geometry:
        whose = "all adapters" if rule.adapters is None else f"the adapters {', '.join(rule.adapters)}"
        yield fact(
            "GEOMETRY",
            f"pairs of LoRA factors of {whose} are clipped and noised in the tangent space of their product: r (m + n) "
            "coordinates a pair as without a geometry, and every epsilon is the same; after the noise what left that space is "
            "dropped, and the energy of r (m + n - r) is left. Masks of heads or experts that would split a pair are refused "
            "with the model; ranks and frames are the trainer's word to an auditor",
        )


def _provided(case: Case) -> Iterator[Consequence]:
    accountant, family = case.policy.accountant, case.policy.mechanism.name
    for told in accountants.provided(accountant, family):
        by = " ".join(accountants.describe(accountant, family)[1:3])
        yield fact("PROVIDED", f"{told}: figures are those of {by}; who trains and who audits needs what provides it")


def _isolation(case: Case) -> Iterator[Consequence]:
    if case.policy.isolation_required:
        yield fact(
            "ISOLATION",
            "isolation is required: within one step no contribution moves a layer that its class may not touch. An optimizer "
            "that couples layers is refused before the run, and a clip of all gradients together (clip_grad_norm_) when it is "
            "seen; private.clip_blocks_(max_norm) clips each block by itself",
        )


def _disclosure(case: Case) -> Iterator[Consequence]:
    if case.policy.disclosure != "occurrences_public":
        return
    if case.policy.sampling.turns:
        how = "in a new order every time" if case.policy.sampling.name == SHUFFLED else "always in the same step of it"
        yield fact(
            "ORDER",
            f"turns are public ({case.policy.sampling.name} order): every contribution takes part once in each period of "
            f"1/sampling_rate steps, {how}; everybody can tell when, and each occurrence counts in full: an order hides "
            "nothing. Epsilons here are for the dearest turns that it allows; every step that may be done again is one more",
        )
        return
    yield fact(
        "OCCURRENCES",
        "occurrences are public: the ledger says who was drawn in every step, for everybody to read, and each occurrence "
        "counts in full: sampling hides nothing. What one contribution spends is known only afterwards; every epsilon here is "
        "for as many draws as one contribution in a million exceeds",
    )


def _size(case: Case) -> Iterator[Consequence]:
    if case.size is None or case.batch is None:
        missing = [planned.name for planned in case.plan.reaches if case.contributions(planned.name) is None]
        yield fact(
            "SIZE_UNKNOWN",
            f"what depends on the number of contributions of {', '.join(missing)} is not said; give --contributions CLASS=N "
            "for each class, or --corpus",
        )
    else:
        yield fact(
            "BATCH",
            f"a step draws {amount(case.batch)} of {case.size.total:,} contributions on average; sums are divided by the "
            f"normalizer {case.policy.normalizer}, a public constant that scales the learning rate and touches no guarantee",
        )
    delta, largest = float(case.policy.delta), math.floor(1 / (10 * case.policy.delta))
    yield fact("DELTA", f"delta {delta:g} suits corpora of at most {largest:,} contributions (1 in 10 N)")


def _noise(case: Case) -> Iterator[Consequence]:
    plan = case.plan
    if not case.literal:  # there it follows the draws, and no schedule says how much it is
        yield fact(
            "NOISE",
            f"noise energy is {plan.noise_energy_ratio:.0%} of that of uniform noise, the same in every touched block, "
            f"blocks counted as equally large, {plan.layers} layers assumed",
        )
    touched = {block.name for block in plan.blocks}
    frozen = [
        name for name in ("embeddings", "head", *(f"layer.{index}" for index in range(plan.layers))) if name not in touched
    ]
    if frozen and not plan.lower_bounds:
        yield fact("FROZEN", f"frozen, since no class may touch them: {', '.join(frozen)}")
    if plan.lower_bounds and case.policy.noise_budgets is not None:
        yield fact(
            "MODEL_NEEDED",
            "clip norms are divided among blocks by budgets, and the noise that suits them depends on how large the "
            "blocks of a model are: until a model is seen, multipliers are lower bounds, and epsilons upper ones. Blocks are "
            "counted as equally large here",
        )
    elif plan.lower_bounds:
        yield fact(
            "MODEL_NEEDED",
            "a class is bound to names, an adapter, heads or experts; where it overlaps with layers only the model tells: "
            "until a model is seen, multipliers are lower bounds, and epsilons upper ones",
        )
    if len(plan.phases) > 1:
        told = ", ".join(f"from step {phase.first_step} {phase.scale:g} times" for phase in plan.phases)
        yield fact(
            "PHASES",
            f"the noise changes over the run: {told} what the presets ask for. Every epsilon counts each phase at its own "
            "noise; a preset is the least noise of the run",
        )
    if family := accountants.TABLE[case.policy.mechanism.name].consequence:
        yield fact("FAMILY", family)


def _injection(case: Case) -> Iterator[Consequence]:
    count = case.policy.noise_microbatches
    if case.literal:
        yield fact(
            "INJECTION",
            "every contribution that is drawn brings its own noise, (sigma C)^2 of variance: the noise of a step follows its "
            "draw, grows in a block with those drawn who may touch it, and is none where nobody was. The noise shown per block "
            "is what the most demanding class brings, once",
        )
    if count is not None:
        yield fact(
            "INJECTION",
            f"noise is drawn {count} times per step, whoever is drawn, with 1/{count} of the variance each: the total, and so "
            f"every epsilon, is that of scheduled noise; drawing it takes {count} times as long",
        )


def _horizon(case: Case) -> Iterator[Consequence]:
    policy = case.policy
    worst = ", ".join(f"{planned.name} {at_most(planned.preset.epsilon_with_redo)}" for planned in case.plan.classes)
    turns = ", every one of them being the turn of the same contribution" if policy.sampling.turns else ""
    yield fact(
        "REDO",
        f"steps done again after crashes are charged again, {policy.redo_steps} at most; then epsilon ends at: {worst}{turns}",
    )
    if policy.disclosure == "occurrences_public":
        yield fact(
            "CRASH",
            "a crash can make the ledger count the occurrences of at most one step that never ran, never too few; of "
            f"redo_steps it can take up to {policy.window_steps}, what one charge pays for",
        )
    else:
        most = policy.window_steps
        yield fact("CRASH", f"a crash can make the ledger count up to {most} steps that never ran, never too few")


def _auditors(case: Case) -> Iterator[Consequence]:
    """Says who holds the operator to one history, and what may be deleted once they vouch for a summary."""
    policy = case.policy
    yield fact("CHECKPOINT", f"the ledger signs a checkpoint every {policy.epoch_steps} steps; {_quorums(policy)}")
    if policy.retention_epochs and policy.auditor_quorum is not None:
        yield fact(
            "RETENTION",
            f"what was spent in epochs older than the last {policy.retention_epochs}, and who had left by then, may be deleted "
            f"once {policy.auditor_quorum} of the auditors vouch for a summary of it",
        )


def _quorums(policy: Policy) -> str:
    of_witnesses = f"{policy.witness_quorum} of {len(policy.witnesses)} named as witnesses"
    if policy.auditor_quorum is None:
        told = "the policy names no auditor, so nobody is bound to notice that different people are shown different histories"
        if policy.witness_quorum is not None:
            told = f"{of_witnesses} must cosign what readers rely on; the policy names no auditor, so nobody reads what it says"
        return told if policy.retention_epochs else f"{told}, and nothing of the ledger can ever be deleted"
    others = "" if policy.witness_quorum is None else f", and {of_witnesses}"
    return f"{policy.auditor_quorum} of {counted(len(policy.auditors), 'auditor')}{others} must cosign what readers rely on"


def _whole_quorum(case: Case) -> Iterator[Consequence]:
    """Finds an auditor without whom nothing goes on, for as long as the run lasts: its policy is signed once."""
    quorum, count = case.policy.auditor_quorum, len(case.policy.auditors)
    stops = ", and nothing is deleted any more" if case.policy.retention_epochs else ""
    if quorum == count == 1:
        yield fact(
            "QUORUM_ONE",
            "readers rely on one auditor: what it overlooks, or agrees to, nobody else is bound to see; if it loses its key or "
            f"stops answering, no later checkpoint satisfies who asks for the quorum{stops}",
        )
    elif quorum == count:
        yield fact(
            "QUORUM_ALL",
            f"all {count} auditors must cosign: if a single one loses its key or stops answering, no later checkpoint "
            f"satisfies who asks for the quorum{stops}",
        )


def _split_quorum(case: Case) -> Iterator[Consequence]:
    """Finds two quorums without a common member: they can cosign two histories, and nobody lied."""
    for field, named in (("auditor_quorum", case.policy.auditors), ("witness_quorum", case.policy.witnesses)):
        quorum, count = getattr(case.policy, field), len(named)
        if quorum is not None and 2 * quorum <= count:
            yield warning(
                "QUORUM_SPLIT",
                f"{field} {quorum} of {count} is not more than half: two quorums may have nobody in common, and cosign two "
                "different histories of one ledger without any of them noticing",
                Change(f"{field} in [ledger]", str(count // 2 + 1)),
            )


def _partial_auditors(case: Case) -> Iterator[Consequence]:
    """Finds somebody who audits what is its own business, with a key that signs other things too."""
    for kind, named in (("auditor", case.policy.auditors), ("witness", case.policy.witnesses)):
        for key in map(parse_verifier_key, named):
            if party := case.parties.get(key.public_key):
                yield warning(
                    "AUDITOR_PARTY",
                    f"the {kind} {key.name} has the key of {party}: whoever is to be convinced gains nothing from its "
                    "cosignature. Name somebody independent, with a key that is used for nothing else",
                )


def _idle_retention(case: Case) -> Iterator[Consequence]:
    """Finds a retention without auditors who vouch for it, or with a horizon that no epoch of the run ever passes."""
    policy = case.policy
    kept, epochs = policy.retention_epochs, math.ceil(policy.steps / policy.epoch_steps)
    if kept and policy.auditor_quorum is None:
        yield warning(
            "RETENTION_UNVOUCHED",
            f"retention_epochs is {kept}, and no auditors are named who could vouch for what goes: the "
            "ledger will keep everything. Name them in [ledger]",
        )
    if kept and kept >= epochs:
        yield warning(
            "RETENTION_IDLE",
            f"retention_epochs {kept} keeps as many epochs as the run has ({epochs}, of {policy.epoch_steps} steps each): "
            "nothing is ever old enough to be summarised, and the ledger will keep everything",
            *([Change("retention_epochs", str(max(1, epochs // 2)))] if epochs > 1 else []),
        )


def _delta_against_size(case: Case) -> Iterator[Consequence]:
    total = 0 if case.size is None else case.size.total
    delta, limit = case.policy.delta, min(USUAL_DELTA, Fraction(1, 10 * total)) if total else USUAL_DELTA
    if delta <= limit:
        return
    reason = "1e-6 or less is usual"
    if case.size is not None and delta * 10 * max(total, 1) > 1:
        reason = f"with {total:,} contributions it should be at most {float(limit):.3g}"
        if delta * total >= 1:
            reason += "; as it is, a run that publishes one contribution whole would pass"
    sentence = f"delta {float(delta):g} is large: {reason}. Every epsilon grows with it"
    yield warning("DELTA_LARGE", sentence, Change("delta", power_of_ten_below(limit)))


def _normalizer_off(case: Case) -> Iterator[Consequence]:
    """Finds a divisor far from the batch, most likely left over from another corpus."""
    batch, normalizer = case.batch, case.policy.normalizer
    if not batch or 1 / FAR_FROM_BATCH <= batch / normalizer <= FAR_FROM_BATCH:
        return
    value, factor = max(1, round(batch)), normalizer / batch
    effect = f"{amount(factor)} times too small" if factor > 1 else f"{amount(1 / factor)} times too large"
    if value != normalizer:
        yield warning(
            "NORMALIZER_OFF",
            f"sums are divided by the normalizer {normalizer}, while a step draws {amount(batch)} contributions on average: "
            f"gradients come out {effect} for a learning rate that was tuned on averages. No guarantee depends on it",
            Change("normalizer", str(value)),
        )


def _same_depth(case: Case) -> Iterator[Consequence]:
    """Finds classes that may all touch the same blocks: routing by class then does nothing."""
    plan = case.plan
    if len(plan.classes) < 2 or plan.lower_bounds or len({planned.blocks for planned in plan.classes}) > 1:
        return
    noises = {planned.name: planned.preset.noise_multiplier * planned.preset.clip_norm for planned in plan.classes}
    strict = max(noises, key=lambda name: noises[name])
    second = max(noise for name, noise in noises.items() if name != strict)
    top, count, saved = plan.layers - math.floor(0.75 * plan.layers) + 1, len(plan.classes[0].blocks), ""
    if count > top and second < noises[strict] and not case.literal:
        energy = (top + (count - top) * (second / noises[strict]) ** 2) / count
        saved = f", and noise energy falls to {energy:.0%}"
    brought = "everybody drawn brings" if case.literal else f"class {strict} asks for"
    yield warning(
        "DEPTH_SAME",
        "all classes may touch the same blocks: routing buys nothing, no block is out of anyone's reach, and every block "
        f"carries the noise that {brought}. If class {strict} may touch the upper quarter alone, the rest of the "
        f"model is out of its reach within each step{saved}",
        in_class(strict, "depth", "{ from = 0.75, to = 1.0 }"),
    )


def _unknown_grants(case: Case) -> Iterator[Consequence]:
    """Finds classes that the registry or the attestations name and the policy lacks."""
    names = [rule.name for rule in case.policy.classes]
    for name in sorted((case.granted or frozenset()).difference(names)):
        yield warning("GRANT_UNKNOWN", f"the registry grants class {name}, which the policy does not have{_near(name, names)}")
    for name, count in sorted(({} if case.size is None else case.size.unknown).items()):
        yield warning(
            "CLASS_UNKNOWN",
            f"{count:,} contributions ask for class {name}, which the policy does not have{_near(name, names)}; the gate "
            "will refuse them",
        )


def _near(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f" (is {near[0]} meant?)" if near else f" (it has {', '.join(names)})"


def _refused(case: Case) -> Iterator[Consequence]:
    """Says what the gate refused, or will for certain."""
    if case.size is not None and case.size.refused:
        total, codes = (
            sum(case.size.refused.values()),
            ", ".join(f"{code} {count:,}" for code, count in sorted(case.size.refused.items())),
        )
        yield warning("REFUSED", f"{total:,} contributions are refused ({codes}); dptrain gate says why")
    if case.size is not None and case.size.other_corpus:
        yield warning(
            "OTHER_CORPUS",
            f"{case.size.other_corpus:,} attestations are for another corpus than {case.policy.corpus}; they will be refused",
        )


def _caps(case: Case) -> Iterator[Consequence]:
    """Compares the cap of a contributor with what is there."""
    size, cap, where = case.size, case.policy.contributor_cap, "contributor_cap in [gate]"
    if size is None or not size.total:
        return
    over = {name: count for name, count in size.contributors.items() if count > cap}
    if over:
        name = max(over, key=lambda item: over[item])
        yield warning(
            "CAP_EXCEEDED",
            f"contributor_cap {cap:,} is exceeded by {counted(len(over), 'contributor')}, most by {name} with {over[name]:,}; "
            "what is above is refused",
            Change(where, str(over[name])),
        )
    elif len(size.contributors) >= CROWD and cap >= size.total:
        largest = max(size.contributors.values())
        yield warning(
            "CAP_LOOSE",
            f"contributor_cap {cap:,} lets one of {len(size.contributors)} contributors hold more than the whole corpus does "
            f"now ({size.total:,}); the largest holds {largest:,}",
            Change(where, str(max(largest, math.ceil(size.total / 10)))),
        )
    if not over and case.enrolled and case.enrolled * cap < size.total:
        yield warning(
            "CAP_LOW",
            f"{case.enrolled} contributors of at most {cap:,} contributions each cannot hold {size.total:,}; some must fail",
            Change(where, str(math.ceil(size.total / case.enrolled))),
        )


def _examples(case: Case) -> Iterator[Consequence]:
    if case.size is not None and case.size.most_examples > case.policy.max_examples:
        yield warning(
            "EXAMPLES",
            f"attestations say up to {case.size.most_examples} examples per contribution, max_examples is "
            f"{case.policy.max_examples}; the gate will refuse those. All examples of a contribution share one clip",
            Change("max_examples in [gate]", str(case.size.most_examples)),
        )


def _expiry(case: Case) -> Iterator[Consequence]:
    """Finds attestations at hand that run out before the run is over, and a policy that lets none live so long."""
    policy, longest = case.policy, case.policy.max_window
    if case.size is not None and case.size.first_expiry is not None:
        when, left = utc(case.size.first_expiry), (case.size.first_expiry - case.now) / _DAY
        if left <= 0:
            yield warning("EXPIRES_EARLY", f"the first attestation expired on {when}; it is admitted no more")
        elif left <= case.days_of_training:
            yield warning(
                "EXPIRES_EARLY",
                f"the first attestation expires on {when}, in {number(left)} days; training takes about "
                f"{number(case.days_of_training)} days at {case.seconds_per_step:g} s per step, and what expires is drawn no "
                "more",
            )
    if longest < case.seconds_of_validity and any(rule.max_window is None for rule in policy.classes):
        change = Change("max_window_days in [gate]", str(case.days_proposed))
        yield warning("WINDOW_SHORT", f"attestations are {case.too_short(longest)}", change)


def _tight_floor(case: Case) -> Iterator[Consequence]:
    """Finds a floor that forbids what contributors may otherwise do: sign a stricter clip norm."""
    floor = case.policy.min_clip_norm_micro
    smallest = min(case.policy.classes, key=lambda rule: rule.clip_norm_micro)
    if 2 * floor > smallest.clip_norm_micro:
        value = rounded(Fraction(smallest.clip_norm_micro, 10 * 10**6), 1, up=False)
        yield warning(
            "FLOOR_TIGHT",
            f"floors.clip_norm {floor / 1e6:g} leaves contributors of class {smallest.name} next to no room to sign a stricter "
            f"clip norm than its preset {smallest.bounds.clip_norm:g}; the floor protects nobody, {value} would do",
            Change("clip_norm in [floors]", value),
        )


def _long_charges(case: Case) -> Iterator[Consequence]:
    """Finds that one charge pays for all of the run, so that nobody can leave it."""
    policy = case.policy
    if policy.window_steps >= policy.steps > 1:
        against = ", against redo_steps" if policy.disclosure == "occurrences_public" else ""
        yield warning(
            "WINDOW_STEPS",
            f"one charge pays for {policy.window_steps} steps, the whole horizon: a withdrawal takes effect at the next "
            f"charge, that is never, and a crash leaves all of it charged{against}",
            Change("window_steps", str(min(16, max(1, policy.steps // 10)))),
        )


OF_PLANS = (_provided, _disclosure, _noise, _injection)
"""Checks whose facts `dptrain plan` tells too."""

CHECKS = (
    *(_unit, _provided, _isolation, _disclosure, _size, _noise, _geometry, _injection, _horizon),
    *(_auditors, _whole_quorum, _split_quorum, _partial_auditors, _idle_retention),
    *(_delta_against_size, _normalizer_off, _same_depth, _unknown_grants, _refused, _caps, _examples, _expiry, _tight_floor),
    _long_charges,
)
