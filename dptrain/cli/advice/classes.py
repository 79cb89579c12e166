"""Find what follows for one class of a policy: facts with their numbers, and settings that are likely not meant.

A check is a function over a case and a class; `PRIVATE`, `PUBLIC` and `ANY` list them. Each warning names the setting to change
and, where a number can mend it, computes one. Sentences on privacy speak of one contribution and of zero-out adjacency, and
give the bound for content replacement beside it; docs/guarantee.md is the promise that they repeat.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

from attest.schedule.stack import numbers
from attest.schema.rounding import at_most
from dptrain.cli.advice.case import Case
from dptrain.cli.advice.findings import Change, Consequence, fact, in_class, multiplier_for, repeated, rounded, warning
from dptrain.cli.output import amount, number
from dptrain.planning.layout import stack
from dptrain.planning.plan import ClassPlan, Reach, total_of
from ledger import accountants
from ledger.views.attacker import attacker, hits

WEAK_EPSILON = 10.0
"""Above this an epsilon says little about a worst-case attacker."""

BETTER_EPSILON = 8.0
"""Epsilon that the proposed noise multiplier aims at where epsilon is weak."""

NOTABLE_WASTE = 1.5
"""Effective over asked multiplier above which a class gets far more noise than it asks for."""

DOMINATED = 2.0
"""Noise over the noise that a class asks for, above which another class's noise costs it much in the blocks they share."""

OFTEN = 100
"""Draws of one contribution above which the horizon or the rate is likely a slip; ordinary training makes a few passes."""

FAINT = 3.0
"""Best signal over noise of the whole run below which a class can hardly teach anything."""


def _reach(case: Case, planned: Reach) -> Iterator[Consequence]:
    per_step = case.draws_per_step(planned)
    drawn = "" if per_step is None else f"; a step draws {amount(per_step)} of the class on average"
    of_group = "" if case.policy.sampling.groups == 1 else " of its group"
    often = (
        f"is drawn with probability {planned.sampling_rate:g} in each step{of_group}, {amount(planned.expected_draws)} times "
        "in all on average"
        if not case.policy.sampling.turns
        else f"takes part once in every {round(1 / planned.sampling_rate):,} steps, {planned.draws.high:,} times in all at most"
    )
    yield fact("REACH", f"each contribution {often}, and its gradient reaches {touched(case, planned)}{drawn}")


def _public(case: Case, planned: Reach) -> Iterator[Consequence]:
    alone = [block.name for block in case.blocks_of(planned) if block.std == 0.0]
    more = ", ..." if len(alone) > 3 else ""
    bare = f" Without noise, since no other class may touch them: {', '.join(alone[:3])}{more}." if alone else ""
    yield fact(
        "PUBLIC",
        "its contributions are public: neither clipped nor noised, so that a single one can move the model as far as its "
        "gradient reaches, and the model may repeat any of it. No epsilon is claimed for them; nobody else's depends on "
        f"them.{bare} Only who signs that a contribution is public is admitted to it",
    )


def _epsilon(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    preset, delta = planned.preset, float(case.policy.delta)
    yield fact(
        "EPSILON",
        f"for one contribution at the class's presets, all checkpoints together are ({at_most(preset.epsilon)}, {delta:g})-"
        f"indistinguishable from those with the contribution empty, and ({at_most(preset.epsilon_replace)}, {delta:g})-"
        "indistinguishable from those with any other content in its place",
    )
    other = hits(preset.epsilon_replace, delta)
    yield fact("ATTACKER", f"in other words: {attacker(preset.epsilon, delta)}, from a given other content in at most {other}")


def _signal(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    per_step, blocks = case.draws_per_step(planned), case.noise_of(planned)
    if not per_step or blocks is None:
        return
    unit = accountants.TABLE[case.policy.mechanism.name].deviation  # the schedule of Laplace noise names scales
    stds = [block.std * unit for block in blocks]
    noise = number(min(stds)) if min(stds) == max(stds) else f"{number(min(stds))} to {number(max(stds))}"
    average = " (that of the contributions that a step draws on average)" if case.literal else ""
    strongest = per_step * planned.preset.clip_norm
    best, steps = strongest / min(stds), case.policy.steps
    yield fact(
        "SIGNAL",
        f"if all the gradients drawn in a step pointed the same way, their sum would have length {amount(strongest)}, beside "
        f"noise of standard deviation {noise} in every direction{average}: {amount(best)} to 1 at best, "
        f"{amount(best * math.sqrt(steps))} to 1 over all {steps:,} steps together",
    )


def touched(case: Case, planned: Reach) -> str:
    """Says in words what a class may touch; what only a model can tell is told as the policy says it."""
    depth, layers = case.policy.class_rule(planned.name).depth, case.plan.layers
    if depth.adapter is not None:
        return f"only the parameters of adapter {depth.adapter!r}, in every layer that has them, and nothing else of the model"
    if depth.patterns is not None:
        shown = ", ".join(map(repr, depth.patterns[:3])) + (", ..." if len(depth.patterns) > 3 else "")
        return f"only parameters whose names match {shown}"
    masked = [f"{what} {numbers(own)}" for what, own in (("heads", depth.heads), ("experts", depth.experts)) if own is not None]
    held = f", there only {' and '.join(masked)} where it has such" if masked else ""
    whole = [block for block in planned.blocks if block in stack(layers)]
    if len(whole) == layers + 2:
        return f"all of the model ({layers} layers, embeddings and head){held}"
    if len(whole) <= 3:
        return f"only {', '.join(whole)}{held}"
    return f"only {whole[0]} to {whole[-1]} ({len(whole)} of {layers + 2} blocks){held}"


def _weak_epsilon(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    preset, redo = planned.preset, case.policy.redo_steps
    if preset.epsilon > WEAK_EPSILON:
        # Epsilon falls between as 1/z and 1/z^2; a first guess near the end spares the slow computation of large ones.
        steeper = (preset.epsilon / BETTER_EPSILON) ** 0.6 if math.isfinite(preset.epsilon) else 20.0
        start = steeper * preset.effective_multiplier
        multiplier, epsilon = multiplier_for(BETTER_EPSILON, planned.sampling_rate, case.policy, start)
        yield warning(
            "EPSILON_WEAK",
            f"epsilon, at most {at_most(preset.epsilon)}, promises little; more noise, a lower sampling_rate or fewer steps "
            f"mend it, for example noise_multiplier {multiplier} with epsilon {at_most(epsilon)}",
            in_class(planned.name, "noise_multiplier", multiplier),
        )
    elif preset.epsilon_with_redo > WEAK_EPSILON:
        yield warning(
            "REDO_WEAK",
            f"epsilon grows from {at_most(preset.epsilon)} to {at_most(preset.epsilon_with_redo)} if all "
            f"{redo} steps that may be done again are; allow fewer",
            Change("redo_steps", str(min(case.policy.steps // 10, redo // 2))),
        )


def _total_over_runs(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    total = total_of(case.policy, planned)
    if total is None:
        return
    if total.used > total.limit:
        limit = [] if math.isinf(total.used) else [in_class(planned.name, "max_epsilon_total", rounded(total.used, 3, up=True))]
        yield warning(
            "TOTAL_EXCEEDED",
            f"max_epsilon_total is {total.limit:g}, and this run by itself could use {at_most(total.used)} of it, with all "
            f"{case.policy.redo_steps} steps that may be done again: it cannot begin. More noise, fewer steps or fewer "
            "redo_steps mend it, or a larger limit",
            *limit,
        )
        return
    yield fact(
        "TOTAL",
        f"over all runs together a contribution may spend epsilon {total.limit:g} at delta {float(case.policy.delta):g}, "
        f"whatever later policies say: this run could use {at_most(total.used)}, every step that may be done again included, "
        f"and {repeated(total)}. No run begins that could exceed it",
    )


def _no_amplification(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    if planned.sampling_rate >= 1:
        start = max(0.3, planned.preset.effective_multiplier / 4)
        multiplier, epsilon = multiplier_for(_comparable(planned), 0.1, case.policy, start)
        yield warning(
            "NO_AMPLIFICATION",
            f"sampling_rate is 1: every contribution takes part in every step, and sampling does nothing for its privacy. At "
            f"sampling_rate 0.1 the noise multiplier {multiplier} gives epsilon {at_most(epsilon)} instead of "
            f"{at_most(planned.preset.epsilon)}",
            in_class(planned.name, "sampling_rate", "0.1"),
            in_class(planned.name, "noise_multiplier", multiplier),
        )


def _waste(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds noise that other classes need, everywhere or in some of the blocks of this class."""
    preset = planned.preset
    if case.contributions(planned.name) == 0:
        return
    if preset.waste > NOTABLE_WASTE:
        clip = rounded(preset.clip_norm * preset.waste, 3, up=False)
        yield warning(
            "WASTE",
            f"noise that other classes need gives it an effective multiplier of {number(preset.effective_multiplier)} where "
            f"{number(preset.noise_multiplier)} is asked. A clip_norm of {clip} would use that noise: more signal, the epsilon "
            "of the multiplier asked for. Or move the depths apart",
            in_class(planned.name, "clip_norm", clip),
        )
    elif case.literal:
        yield from _dominated_per_sample(case, planned)
    elif case.policy.noise_budgets is None:  # with budgets a block may have more noise so that others have less
        yield from _dominated(case, planned)


def _dominated(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds blocks in which the noise of another class is far above what this class asks for."""
    asked, shared = planned.preset.noise_multiplier * planned.preset.clip_norm, case.blocks_of(planned)
    loudest = max(shared, key=lambda block: block.std)
    if loudest.std >= DOMINATED * asked:
        strict = max(
            (item for item in case.plan.classes if item.name in loudest.classes),
            key=lambda item: item.preset.noise_multiplier * item.preset.clip_norm,
        )
        clip = rounded(asked / strict.preset.noise_multiplier, 3, up=False)
        count = sum(block.std >= DOMINATED * asked for block in shared)
        yield warning(
            "NOISE_DOMINATED",
            f"in {count} of its {len(shared)} blocks the noise is up to {number(loudest.std / asked)} times what it asks for, "
            f"because class {strict.name} may touch them too. It gets no better promise for that. A clip_norm of {clip} for "
            f"class {strict.name} makes both ask for the same, or move the depths apart",
            in_class(strict.name, "clip_norm", clip),
        )


def _dominated_per_sample(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Compares the noise that those drawn of other classes bring with what those drawn of this class bring themselves."""
    variance, blocks = case.brings(planned), case.noise_of(planned)
    if not variance or blocks is None:
        return
    most = {item.name: case.brings(item) or 0.0 for item in case.plan.classes}
    most |= {item.name: 0.0 for item in case.plan.public}
    louder = [block for block in blocks if max(most[name] for name in block.classes) >= DOMINATED**2 * variance]
    if not louder:
        return
    loudest = max(louder, key=lambda block: block.std)
    name = max(loudest.classes, key=lambda item: most[item])
    clip = rounded(case.policy.class_rule(name).bounds.clip_norm * math.sqrt(variance / most[name]), 3, up=False)
    times = number(loudest.std / math.sqrt(variance))
    yield warning(
        "NOISE_DOMINATED",
        f"in {len(louder)} of its {len(blocks)} blocks the noise of a step is on average up to {times} "
        f"times what its own contributions bring, because those of class {name} bring theirs too. No forecast here counts that "
        f"for its privacy. A clip_norm of {clip} for class {name} makes both bring the same, or move the depths apart",
        in_class(name, "clip_norm", clip),
    )


def _seen_often(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    if planned.expected_draws > OFTEN:
        rate = rounded(Fraction(OFTEN, case.policy.steps), 2, up=False)
        yield warning(
            "SEEN_OFTEN",
            f"each contribution is drawn {amount(planned.expected_draws)} times on average, as many passes over the data, and "
            f"pays for each; lower the rate or the horizon. sampling_rate {rate} makes it at most {OFTEN}",
            in_class(planned.name, "sampling_rate", rate),
        )


def _seen_seldom(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    if planned.expected_draws < 1:
        never = math.exp(case.policy.steps * math.log1p(-planned.sampling_rate))
        steps = math.ceil(1 / case.policy.class_rule(planned.name).sampling_rate)
        yield warning(
            "SEEN_SELDOM",
            f"each contribution is drawn {amount(planned.expected_draws)} times on average; {100 * never:.0f} of 100 are never "
            f"drawn at all. {steps} steps would draw each once on average",
            Change("steps", str(steps)),
        )


def _unused(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    if case.contributions(planned.name) == 0:
        idle = "" if case.literal else ", and its noise is added to the blocks it may touch all the same"
        sentence = f"the corpus holds no contribution of it{idle}; take the class out unless contributions are still to come"
        yield warning("CLASS_UNUSED", sentence)


def _rare(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds a class that many steps do not draw from at all."""
    count, per_step = case.contributions(planned.name), case.draws_per_step(planned)
    if not count or per_step is None or per_step >= 1:
        return
    rate = rounded(Fraction(1, count), 2, up=True)
    start = max(planned.preset.effective_multiplier * float(rate) / planned.sampling_rate / 2, 0.3)
    multiplier, epsilon = multiplier_for(_comparable(planned), float(rate), case.policy, start)
    idle = "" if case.literal else ", and carry its noise all the same"
    yield warning(
        "CLASS_RARE",
        f"a step draws {amount(per_step)} of its {count:,} contributions on average: {100 * math.exp(-per_step):.0f} of 100 "
        f"steps draw none{idle}. sampling_rate {rate} draws one per step; noise_multiplier "
        f"{multiplier} gives epsilon {at_most(epsilon)} then",
        in_class(planned.name, "sampling_rate", rate),
        in_class(planned.name, "noise_multiplier", multiplier),
    )


def _faint(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
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
    share = (case.brings(planned) or 0.0) / least**2 if case.literal else 0.0
    short = (FAINT / best) ** 2
    more = 0.5 * (short * share + math.sqrt((short * share) ** 2 + 4 * short * (1 - share)))
    enough = math.ceil(more * (case.contributions(planned.name) or 0))
    yield warning(
        "SIGNAL_FAINT",
        f"even if all its gradients agreed in every step, its signal over the whole run would be {number(best)} times the "
        f"noise: it can teach nothing that noise does not drown. About {enough:,} contributions would be needed at this rate, "
        "or a higher sampling_rate, or more steps",
    )


def _ungranted(case: Case, planned: Reach) -> Iterator[Consequence]:
    if case.granted is not None and planned.name not in case.granted:
        yield warning(
            "CLASS_UNGRANTED",
            f"the registry grants it to nobody, so the gate will refuse whatever asks for it; dptrain registry add --class "
            f"{planned.name} grants it",
        )


def _softer_attestations(case: Case, planned: Reach) -> Iterator[Consequence]:
    count = 0 if case.size is None else case.size.too_soft.get(planned.name, 0)
    if count:
        yield warning(
            "BOUNDS_REFUSED",
            f"{count:,} of its contributions signed bounds that this policy refuses: a larger clip norm or a smaller noise "
            "multiplier than the preset, one below the floors, or any at all in a public class. They must be signed again, or "
            "the policy put back",
        )


def _short_window(case: Case, planned: Reach) -> Iterator[Consequence]:
    own = case.policy.class_rule(planned.name).max_window
    if own is not None and own < case.seconds_of_validity:
        change = in_class(planned.name, "max_window_days", str(case.days_proposed))
        yield warning("WINDOW_SHORT", f"attestations of the class are {case.too_short(own)}", change)


def _comparable(planned: ClassPlan) -> float:
    """Returns the epsilon that a changed setting has to keep: the present one, if it promises something."""
    return min(max(planned.preset.epsilon, 0.1), WEAK_EPSILON)


PRIVATE = (
    *(_reach, _epsilon, _signal, _weak_epsilon, _total_over_runs, _no_amplification, _waste, _seen_often, _seen_seldom),
    *(_unused, _rare, _faint),
)
"""About what is promised to a private class, and what it can teach."""

PUBLIC = (_reach, _public)

ANY = (_ungranted, _softer_attestations, _short_window)
"""About what classes of either kind admit; told behind the others."""
