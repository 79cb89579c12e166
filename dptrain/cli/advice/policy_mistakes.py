"""Settings of a whole policy that are likely not meant, alone or against the corpus and the registry at hand.

A rule is one function over a case; `POLICY_RULES` lists them.
"""

import difflib
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from attest.schema.plain import utc
from dptrain.cli.advice.case import Case
from dptrain.cli.advice.findings import Change, Consequence, in_class, power_of_ten_below, rounded, warning
from dptrain.cli.output import amount, counted, number

FAR_FROM_BATCH = 3.0
"""Ratio of normalizer and expected batch that is still taken as meant."""

CROWD = 10
"""Contributors from which on a cap that lets one of them flood the corpus is likely an oversight."""

USUAL_DELTA = Fraction(1, 10**6)

_DAY = 86400


def delta_against_size(case: Case) -> Iterator[Consequence]:
    """Delta has to be small against one contribution in N."""
    delta, limit = case.policy.delta, USUAL_DELTA
    if case.size is not None and case.size.total:
        limit = min(limit, Fraction(1, 10 * case.size.total))
    if delta <= limit:
        return
    value = power_of_ten_below(limit)
    reason = "1e-6 or less is usual"
    if case.size is not None and delta * 10 * max(case.size.total, 1) > 1:
        reason = f"with {case.size.total:,} contributions it should be at most {float(limit):.3g}"
        if delta * case.size.total >= 1:
            reason += "; as it is, a run that publishes one contribution whole would pass"
    yield warning(
        "DELTA_LARGE", f"delta {float(delta):g} is large: {reason}. Every epsilon grows with it", Change("delta", value)
    )


def normalizer_off(case: Case) -> Iterator[Consequence]:
    """Finds a divisor far from the batch, most likely left over from another corpus."""
    batch, normalizer = case.batch, case.policy.normalizer
    if not batch or 1 / FAR_FROM_BATCH <= batch / normalizer <= FAR_FROM_BATCH:
        return
    value = max(1, round(batch))
    if value == normalizer:
        return
    factor = normalizer / batch
    effect = f"{amount(factor)} times too small" if factor > 1 else f"{amount(1 / factor)} times too large"
    yield warning(
        "NORMALIZER_OFF",
        f"sums are divided by the normalizer {normalizer}, while a step draws {amount(batch)} contributions on average: "
        f"gradients come out {effect} for a learning rate that was tuned on averages. No guarantee depends on it",
        Change("normalizer", str(value)),
    )


def same_depth(case: Case) -> Iterator[Consequence]:
    """Classes that may all touch the same: routing by class then does nothing."""
    plan = case.plan
    if len(plan.classes) < 2 or plan.lower_bounds or len({planned.blocks for planned in plan.classes}) > 1:
        return
    noises = {planned.name: planned.preset.noise_multiplier * planned.preset.clip_norm for planned in plan.classes}
    strict = max(noises, key=lambda name: noises[name])
    second = max(noise for name, noise in noises.items() if name != strict)
    top = plan.layers - math.floor(0.75 * plan.layers) + 1
    count = len(plan.classes[0].blocks)
    saved = ""
    literal = case.policy.noise_injection == "per_sample"
    brought = "everybody drawn brings" if literal else f"class {strict} asks for"
    if count > top and second < noises[strict] and not literal:
        energy = (top + (count - top) * (second / noises[strict]) ** 2) / count
        saved = f", and noise energy falls to {energy:.0%}"
    yield warning(
        "DEPTH_SAME",
        "all classes may touch the same blocks: routing buys nothing, no block is out of anyone's reach, and every block "
        f"carries the noise that {brought}. If class {strict} may touch the upper quarter alone, the rest of the "
        f"model is out of its reach within each step{saved}",
        in_class(strict, "depth", "{ from = 0.75, to = 1.0 }"),
    )


def unknown_grants(case: Case) -> Iterator[Consequence]:
    """Classes that the registry or the attestations name and the policy lacks."""
    names = [rule.name for rule in case.policy.classes]
    for name in sorted((case.granted or frozenset()).difference(names)):
        yield warning("GRANT_UNKNOWN", f"the registry grants class {name}, which the policy does not have{_near(name, names)}")
    attested = {} if case.size is None else case.size.unknown
    for name, count in sorted(attested.items()):
        yield warning(
            "CLASS_UNKNOWN",
            f"{count:,} contributions ask for class {name}, which the policy does not have{_near(name, names)}; the gate "
            "will refuse them",
        )


def refused_contributions(case: Case) -> Iterator[Consequence]:
    """Says what the gate refused, or will for certain."""
    if case.size is None:
        return
    if case.size.refused:
        codes = ", ".join(f"{code} {count:,}" for code, count in case.size.refused.items())
        yield warning(
            "REFUSED", f"{sum(case.size.refused.values()):,} contributions are refused ({codes}); dptrain gate says why"
        )
    if case.size.other_corpus:
        yield warning(
            "OTHER_CORPUS",
            f"{case.size.other_corpus:,} attestations are for another corpus than {case.policy.corpus}; they will be refused",
        )


def caps(case: Case) -> Iterator[Consequence]:
    """Compares the cap of a contributor with what is there."""
    size, cap = case.size, case.policy.contributor_cap
    if size is None or not size.total:
        return
    over = {name: count for name, count in size.contributors.items() if count > cap}
    if over:
        name = max(over, key=lambda item: over[item])
        yield warning(
            "CAP_EXCEEDED",
            f"contributor_cap {cap:,} is exceeded by {counted(len(over), 'contributor')}, most by {name} with {over[name]:,}; "
            "what is above is refused",
            Change("contributor_cap in [gate]", str(over[name])),
        )
    elif len(size.contributors) >= CROWD and cap >= size.total:
        value = max(max(size.contributors.values()), math.ceil(size.total / 10))
        yield warning(
            "CAP_LOOSE",
            f"contributor_cap {cap:,} lets one of {len(size.contributors)} contributors hold more than the whole corpus does "
            f"now ({size.total:,}); the largest holds {max(size.contributors.values()):,}",
            Change("contributor_cap in [gate]", str(value)),
        )
    if not over and case.enrolled and case.enrolled * cap < size.total:
        yield warning(
            "CAP_LOW",
            f"{case.enrolled} contributors of at most {cap:,} contributions each cannot hold {size.total:,}; some must fail",
            Change("contributor_cap in [gate]", str(math.ceil(size.total / case.enrolled))),
        )


def examples(case: Case) -> Iterator[Consequence]:
    """Finds contributions that hold more examples than one may."""
    if case.size is not None and case.size.most_examples > case.policy.max_examples:
        yield warning(
            "EXAMPLES",
            f"attestations say up to {case.size.most_examples} examples per contribution, max_examples is "
            f"{case.policy.max_examples}; the gate will refuse those. All examples of a contribution share one clip",
            Change("max_examples in [gate]", str(case.size.most_examples)),
        )


def expiry(case: Case) -> Iterator[Consequence]:
    """Attestations at hand that run out before the run is over."""
    if case.size is None or case.size.first_expiry is None:
        return
    left = (case.size.first_expiry - case.now) / _DAY
    if left > case.days_of_training:
        return
    when = utc(case.size.first_expiry)
    yield warning(
        "EXPIRES_EARLY",
        f"the first attestation expired on {when}; it is admitted no more"
        if left <= 0
        else f"the first attestation expires on {when}, in {number(left)} days; training takes about "
        f"{number(case.days_of_training)} days at {case.seconds_per_step:g} s per step, and what expires is drawn no more",
    )


def short_window(case: Case) -> Iterator[Consequence]:
    """Attestations that run out while training does not."""
    longest = case.policy.max_window
    if longest >= case.seconds_of_validity or all(rule.max_window is not None for rule in case.policy.classes):
        return
    yield warning(
        "WINDOW_SHORT",
        f"attestations are valid for {longest / _DAY:g} days at most; at {case.seconds_per_step:g} s per step training takes "
        f"{number(case.days_of_training)} days, and what expires on the way is drawn no more",
        Change("max_window_days in [gate]", str(case.days_proposed)),
    )


def tight_floor(case: Case) -> Iterator[Consequence]:
    """Finds a floor that forbids what contributors may otherwise do: sign a stricter clip norm."""
    floor = case.policy.min_clip_norm_micro
    smallest = min(case.policy.classes, key=lambda rule: rule.clip_norm_micro)
    if 2 * floor <= smallest.clip_norm_micro:
        return
    value = rounded(Fraction(smallest.clip_norm_micro, 10 * 10**6), 1, up=False)
    yield warning(
        "FLOOR_TIGHT",
        f"floors.clip_norm {floor / 1e6:g} leaves contributors of class {smallest.name} next to no room to sign a stricter "
        f"clip norm than its preset {smallest.bounds.clip_norm:g}; the floor protects nobody, {value} would do",
        Change("clip_norm in [floors]", value),
    )


def long_charges(case: Case) -> Iterator[Consequence]:
    """Finds that one charge pays for all of the run, so that nobody can leave it."""
    policy = case.policy
    if policy.window_steps >= policy.steps > 1:
        yield warning(
            "WINDOW_STEPS",
            f"one charge pays for {policy.window_steps} steps, the whole horizon: a withdrawal takes effect at the next "
            "charge, that is never, and a crash leaves all of it charged"
            + (", against redo_steps" if policy.disclosure == "occurrences_public" else ""),
            Change("window_steps", str(min(16, max(1, policy.steps // 10)))),
        )


def _near(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f" (is {near[0]} meant?)" if near else f" (it has {', '.join(names)})"


POLICY_RULES: tuple[Callable[[Case], Iterator[Consequence]], ...] = (
    delta_against_size,
    normalizer_off,
    same_depth,
    unknown_grants,
    refused_contributions,
    caps,
    examples,
    expiry,
    short_window,
    tight_floor,
    long_charges,
)
