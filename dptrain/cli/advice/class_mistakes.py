"""Settings of one class that are likely not meant.

A rule is one function over a case and a class; `CLASS_RULES` lists them. Each finding names the setting to change and,
where a number can mend it, computes one.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from dptrain.cli.advice.case import Case
from dptrain.cli.advice.findings import Change, Consequence, in_class, multiplier_for, rounded, total_over_runs, warning
from dptrain.cli.output import amount, number
from dptrain.planning.plan import ClassPlan, Reach
from dptrain.planning.rounding import at_most

WEAK_EPSILON = 10.0
"""Above this an epsilon says little about a worst-case attacker."""

BETTER_EPSILON = 8.0
"""What the proposed noise multiplier aims at where epsilon is weak."""

NOTABLE_WASTE = 1.5
"""Effective over asked multiplier above which a class gets far more noise than it asks for."""

DOMINATED = 2.0
"""Noise over the noise that a class asks for, above which another class's noise costs it much in the blocks they share."""

OFTEN = 100
"""Draws of one contribution above which the horizon or the rate is likely a slip; ordinary training makes a few passes."""

FAINT = 3.0
"""Best signal over noise of the whole run below which a class can hardly teach anything."""


def weak_epsilon(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds epsilon above 10, in the planned horizon or with every step that may be done again."""
    preset, rate = planned.preset, planned.sampling_rate
    if preset.epsilon > WEAK_EPSILON:
        # Epsilon falls between as 1/z and 1/z^2; a first guess near the end spares the slow computation of large ones.
        steeper = (preset.epsilon / BETTER_EPSILON) ** 0.6 if math.isfinite(preset.epsilon) else 20.0
        multiplier, epsilon = multiplier_for(BETTER_EPSILON, rate, case.policy, steeper * preset.effective_multiplier)
        yield warning(
            "EPSILON_WEAK",
            f"epsilon, at most {at_most(preset.epsilon)}, promises little; more noise, a lower sampling_rate or fewer steps "
            f"mend it, for example noise_multiplier {multiplier} with epsilon {at_most(epsilon)}",
            in_class(planned.name, "noise_multiplier", multiplier),
            class_name=planned.name,
        )
    elif preset.epsilon_with_redo > WEAK_EPSILON:
        yield warning(
            "REDO_WEAK",
            f"epsilon grows from {at_most(preset.epsilon)} to {at_most(preset.epsilon_with_redo)} if all "
            f"{case.policy.redo_steps} steps that may be done again are; allow fewer",
            Change("redo_steps", str(min(case.policy.steps // 10, case.policy.redo_steps // 2))),
            class_name=planned.name,
        )


def waste(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Noise that other classes need, everywhere or in some of the blocks of this class."""
    preset, shared = planned.preset, case.blocks_of(planned)
    if case.contributions(planned.name) == 0:
        return
    asked = preset.noise_multiplier * preset.clip_norm
    if preset.waste > NOTABLE_WASTE:
        clip = rounded(preset.clip_norm * preset.waste, 3, up=False)
        yield warning(
            "WASTE",
            f"noise that other classes need gives it an effective multiplier of {number(preset.effective_multiplier)} where "
            f"{number(preset.noise_multiplier)} is asked. A clip_norm of {clip} would use that noise: more signal, the epsilon "
            "of the multiplier asked for. Or move the depths apart",
            in_class(planned.name, "clip_norm", clip),
            class_name=planned.name,
        )
        return
    if case.policy.noise_injection == "per_sample":
        yield from _dominated_per_sample(case, planned)
        return
    if case.policy.noise_budgets is not None:
        return  # a block may have more noise so that others have less; what counts is all of them together, which is the waste
    loudest = max(shared, key=lambda block: block.std)
    if loudest.std < DOMINATED * asked:
        return
    strict = max(
        (item for item in case.plan.classes if item.name in loudest.classes),
        key=lambda item: item.preset.noise_multiplier * item.preset.clip_norm,
    )
    clip = rounded(asked / strict.preset.noise_multiplier, 3, up=False)
    count = sum(block.std >= DOMINATED * asked for block in shared)
    yield warning(
        "NOISE_DOMINATED",
        f"in {count} of its {len(shared)} blocks the noise is up to {number(loudest.std / asked)} times what it asks for, "
        f"because class {strict.name} may touch them too. It gets no better promise for that. A clip_norm of {clip} for class "
        f"{strict.name} makes both ask for the same, or move the depths apart",
        in_class(strict.name, "clip_norm", clip),
        class_name=planned.name,
    )


def _dominated_per_sample(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Noise that those drawn of other classes bring, against what those drawn of this class bring themselves."""
    variance, blocks = case.brings(planned), case.noise_of(planned)
    if not variance or blocks is None:
        return
    own = math.sqrt(variance)
    most = {item.name: case.brings(item) or 0.0 for item in case.plan.classes}
    most |= {item.name: 0.0 for item in case.plan.public}
    louder = [block for block in blocks if max(most[name] for name in block.classes) >= DOMINATED**2 * variance]
    if not louder:
        return
    loudest = max(louder, key=lambda block: block.std)
    name = max(loudest.classes, key=lambda item: most[item])
    clip = rounded(case.policy.class_rule(name).bounds.clip_norm * math.sqrt(variance / most[name]), 3, up=False)
    yield warning(
        "NOISE_DOMINATED",
        f"in {len(louder)} of its {len(blocks)} blocks the noise of a step is on average up to {number(loudest.std / own)} "
        f"times what its own contributions bring, because those of class {name} bring theirs too. No forecast here counts that "
        f"for its privacy. A clip_norm of {clip} for class {name} makes both bring the same, or move the depths apart",
        in_class(name, "clip_norm", clip),
        class_name=planned.name,
    )


def no_amplification(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds that everybody is drawn in every step."""
    if planned.sampling_rate < 1:
        return
    start = max(0.3, planned.preset.effective_multiplier / 4)
    multiplier, epsilon = multiplier_for(_comparable(planned), 0.1, case.policy, start)
    yield warning(
        "NO_AMPLIFICATION",
        f"sampling_rate is 1: every contribution takes part in every step, and sampling does nothing for its privacy. At "
        f"sampling_rate 0.1 the noise multiplier {multiplier} gives epsilon {at_most(epsilon)} instead of "
        f"{at_most(planned.preset.epsilon)}",
        in_class(planned.name, "sampling_rate", "0.1"),
        in_class(planned.name, "noise_multiplier", multiplier),
        class_name=planned.name,
    )


def seen_often(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """More passes over the data than anybody plans."""
    if planned.expected_draws <= OFTEN:
        return
    rate = rounded(Fraction(OFTEN, case.policy.steps), 2, up=False)
    yield warning(
        "SEEN_OFTEN",
        f"each contribution is drawn {amount(planned.expected_draws)} times on average, as many passes over the data, and pays "
        f"for each; lower the rate or the horizon. sampling_rate {rate} makes it at most {OFTEN}",
        in_class(planned.name, "sampling_rate", rate),
        class_name=planned.name,
    )


def seen_seldom(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds a run that never looks at much of the data."""
    if planned.expected_draws >= 1:
        return
    never = math.exp(case.policy.steps * math.log1p(-planned.sampling_rate))
    steps = math.ceil(1 / case.policy.class_rule(planned.name).sampling_rate)
    yield warning(
        "SEEN_SELDOM",
        f"each contribution is drawn {amount(planned.expected_draws)} times on average; {100 * never:.0f} of 100 are never "
        f"drawn at all. {steps} steps would draw each once on average",
        Change("steps", str(steps)),
        class_name=planned.name,
    )


def rare_class(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds a class that many steps do not draw from at all."""
    count, per_step = case.contributions(planned.name), case.draws_per_step(planned)
    if not count or per_step is None or per_step >= 1 or case.size is None:
        return
    rate = rounded(Fraction(1, count), 2, up=True)
    start = max(planned.preset.effective_multiplier * float(rate) / planned.sampling_rate / 2, 0.3)
    multiplier, epsilon = multiplier_for(_comparable(planned), float(rate), case.policy, start)
    idle = "" if case.policy.noise_injection == "per_sample" else ", and carry its noise all the same"
    yield warning(
        "CLASS_RARE",
        f"a step draws {amount(per_step)} of its {count:,} contributions on average: {100 * math.exp(-per_step):.0f} of 100 "
        f"steps draw none{idle}. sampling_rate {rate} draws one per step; noise_multiplier "
        f"{multiplier} gives epsilon {at_most(epsilon)} then",
        in_class(planned.name, "sampling_rate", rate),
        in_class(planned.name, "noise_multiplier", multiplier),
        class_name=planned.name,
    )


def faint_class(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds a class whose signal drowns even if everything goes its way."""
    per_step, blocks = case.draws_per_step(planned), case.noise_of(planned)
    if not per_step or blocks is None:
        return
    least = min(block.std for block in blocks)
    best = per_step * planned.preset.clip_norm / least * math.sqrt(case.policy.steps)
    if best >= FAINT:
        return
    # f times as many contributions give f times the signal; with noise per sample, their own part of the variance grows by f
    # too: f best / FAINT = sqrt(f share + 1 - share).
    share = (case.brings(planned) or 0.0) / least**2 if case.policy.noise_injection == "per_sample" else 0.0
    short = (FAINT / best) ** 2
    more = 0.5 * (short * share + math.sqrt((short * share) ** 2 + 4 * short * (1 - share)))
    enough = math.ceil(more * (case.contributions(planned.name) or 0))
    yield warning(
        "SIGNAL_FAINT",
        f"even if all its gradients agreed in every step, its signal over the whole run would be {number(best)} times the "
        f"noise: it can teach nothing that noise does not drown. About {enough:,} contributions would be needed at this rate, "
        "or a higher sampling_rate, or more steps",
        class_name=planned.name,
    )


def unused_class(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds a class without contributions that still sets noise."""
    if case.contributions(planned.name) != 0:
        return
    idle = (
        ""
        if case.policy.noise_injection == "per_sample"
        else ", and its noise is added to the blocks it may touch all the same"
    )
    yield warning(
        "CLASS_UNUSED",
        f"the corpus holds no contribution of it{idle}; take the class out unless contributions are still to come",
        class_name=planned.name,
    )


def ungranted_class(case: Case, planned: Reach) -> Iterator[Consequence]:
    """Nobody may attest it."""
    if case.granted is None or planned.name in case.granted:
        return
    yield warning(
        "CLASS_UNGRANTED",
        f"the registry grants it to nobody, so the gate will refuse whatever asks for it; dptrain registry add --class "
        f"{planned.name} grants it",
        class_name=planned.name,
    )


def softer_attestations(case: Case, planned: Reach) -> Iterator[Consequence]:
    """Finds contributions that signed for a softer policy than this one."""
    count = 0 if case.size is None else case.size.too_soft.get(planned.name, 0)
    if count:
        yield warning(
            "BOUNDS_REFUSED",
            f"{count:,} of its contributions signed bounds that this policy refuses: a larger clip norm or a smaller noise "
            "multiplier than the preset, one below the floors, or any at all in a public class. They must be signed again, or "
            "the policy put back",
            class_name=planned.name,
        )


def short_window(case: Case, planned: Reach) -> Iterator[Consequence]:
    """Finds a validity of the class's own that is shorter than training could take."""
    own = case.policy.class_rule(planned.name).max_window
    if own is None or own >= case.seconds_of_validity:
        return
    yield warning(
        "WINDOW_SHORT",
        f"attestations of the class are valid for {own / 86400:g} days at most; at {case.seconds_per_step:g} s per step "
        f"training takes {number(case.days_of_training)} days, and what expires on the way is drawn no more",
        in_class(planned.name, "max_window_days", str(case.days_proposed)),
        class_name=planned.name,
    )


def _comparable(planned: ClassPlan) -> float:
    """Returns the epsilon that a changed setting has to keep: the present one, if it promises something."""
    return min(max(planned.preset.epsilon, 0.1), WEAK_EPSILON)


CLASS_RULES: tuple[Callable[[Case, ClassPlan], Iterator[Consequence]], ...] = (
    weak_epsilon,
    total_over_runs,
    no_amplification,
    waste,
    seen_often,
    seen_seldom,
    unused_class,
    rare_class,
    faint_class,
)
"""About what is promised; for private classes."""

ANY_CLASS_RULES: tuple[Callable[[Case, Reach], Iterator[Consequence]], ...] = (
    ungranted_class,
    softer_attestations,
    short_window,
)
"""For public classes as well."""
