"""Say what follows from a policy, whether it is meant or not.

Privacy sentences speak of one contribution and of zero-out adjacency, and give the bound for content replacement beside
it; docs/guarantee.md is the promise that they repeat.
"""

import math
from collections.abc import Iterator

from attest.policy.sampling import POISSON, SHUFFLED
from attest.schedule.stack import numbers
from dptrain.cli.advice.case import Case
from dptrain.cli.advice.findings import Consequence, fact
from dptrain.cli.output import amount, number
from dptrain.planning.layout import stack
from dptrain.planning.plan import ClassPlan, Plan, Reach
from dptrain.planning.rounding import at_most
from ledger import accountants

FALSE_ALARMS = 0.05
"""Share of false alarms at which the sentence about an attacker is computed."""


def facts(case: Case) -> Iterator[Consequence]:
    """Yields every fact, classes first."""
    for planned in case.plan.classes:
        yield _reach(case, planned)
        yield _epsilon(case, planned)
        yield _attacker(case, planned)
        yield from _signal(case, planned)
    for public in case.plan.public:
        yield _reach(case, public)
        yield _public(case, public)
    yield _unit(case)
    yield from _isolation(case)
    yield from _disclosure(case)
    yield from _size(case)
    yield _delta(case)
    yield from _noise(case)
    yield from _family(case)
    yield from _injection(case)
    yield from _horizon(case)


def detection_limit(epsilon: float, delta: float, false_alarms: float) -> float:
    """Returns the largest share of hits that any test can have against an (epsilon, delta)-indistinguishable pair.

    Source: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy" (2015), Theorem 2.1.
    """
    if math.isinf(epsilon):
        return 1.0
    first = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    second = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, first, second)


def attacker(epsilon: float, delta: float) -> str:
    """Says what an epsilon means against somebody who knows everything but whether one contribution was empty."""
    hits = math.ceil(100 * detection_limit(epsilon, delta, FALSE_ALARMS))
    return (
        f"who sees every checkpoint, knows everything else, and raises {FALSE_ALARMS * 100:g} false alarms in 100 tells such a "
        f"contribution from an empty one in at most {hits} of 100 cases"
    )


def _reach(case: Case, planned: Reach) -> Consequence:
    per_step = case.draws_per_step(planned)
    drawn = "" if per_step is None else f"; a step draws {amount(per_step)} of the class on average"
    often = (
        f"is drawn with probability {planned.sampling_rate:g} in each step, {amount(planned.expected_draws)} times in all on "
        "average"
        if case.policy.sampling.name == POISSON
        else f"takes part once in every {round(1 / planned.sampling_rate):,} steps, {planned.draws.high:,} times in all at most"
    )
    return fact("REACH", f"each contribution {often}, and its gradient reaches {reach(case, planned)}{drawn}", planned.name)


def _public(case: Case, planned: Reach) -> Consequence:
    alone = [block.name for block in case.blocks_of(planned) if block.std == 0.0]
    more = ", ..." if len(alone) > 3 else ""
    bare = f" Without noise, since no other class may touch them: {', '.join(alone[:3])}{more}." if alone else ""
    return fact(
        "PUBLIC",
        "its contributions are public: neither clipped nor noised, so that a single one can move the model as far as its "
        "gradient reaches, and the model may repeat any of it. No epsilon is claimed for them; nobody else's depends on "
        f"them.{bare} Only who signs that a contribution is public is admitted to it",
        planned.name,
    )


def _epsilon(case: Case, planned: ClassPlan) -> Consequence:
    preset, delta = planned.preset, f"{float(case.policy.delta):g}"
    return fact(
        "EPSILON",
        f"for one contribution at the class's presets, all checkpoints together are ({at_most(preset.epsilon)}, {delta})-"
        f"indistinguishable from those with the contribution empty, and ({at_most(preset.epsilon_replace)}, {delta})-"
        "indistinguishable from those with any other content in its place",
        planned.name,
    )


def _attacker(case: Case, planned: ClassPlan) -> Consequence:
    delta = float(case.policy.delta)
    other = math.ceil(100 * detection_limit(planned.preset.epsilon_replace, delta, FALSE_ALARMS))
    return fact(
        "ATTACKER",
        f"in other words: {attacker(planned.preset.epsilon, delta)}, from a given other content in at most {other}",
        planned.name,
    )


def _signal(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    per_step, blocks = case.draws_per_step(planned), case.noise_of(planned)
    if not per_step or blocks is None:
        return
    unit = accountants.TABLE[case.policy.mechanism.name].deviation  # the schedule of Laplace noise names scales
    stds = [block.std * unit for block in blocks]
    noise = number(min(stds)) if min(stds) == max(stds) else f"{number(min(stds))} to {number(max(stds))}"
    strongest = per_step * planned.preset.clip_norm
    best, steps = strongest / min(stds), case.policy.steps
    yield fact(
        "SIGNAL",
        f"if all the gradients drawn in a step pointed the same way, their sum would have length {amount(strongest)}, beside "
        f"noise of standard deviation {noise} in every direction{_on_average(case)}: {amount(best)} to 1 at best, "
        f"{amount(best * math.sqrt(steps))} to 1 over all {steps:,} steps together",
        planned.name,
    )


def _on_average(case: Case) -> str:
    return " (that of the contributions that a step draws on average)" if case.policy.noise_injection == "per_sample" else ""


def _disclosure(case: Case) -> Iterator[Consequence]:
    if case.policy.disclosure != "occurrences_public":
        return
    if case.policy.sampling.name != POISSON:
        how = "in a new order every time" if case.policy.sampling.name == SHUFFLED else "always in the same step of it"
        yield fact(
            "ORDER",
            f"every contribution takes part once in each period of 1/sampling_rate steps, {how}; everybody can tell when, and "
            "each occurrence counts in full: an order hides nothing. Epsilons here are for the dearest turns that it allows",
        )
        return
    yield fact(
        "OCCURRENCES",
        "the ledger says who was drawn in every step, for everybody to read, and each occurrence counts in full: sampling "
        "hides nothing. What one contribution spends is known only afterwards; every epsilon here is for as many draws as one "
        "contribution in a million exceeds",
    )


def _unit(case: Case) -> Consequence:
    counts = " It counts on the draws staying secret." if case.policy.disclosure == "secret_poisson" else ""
    return fact(
        "UNIT",
        "every epsilon here is of one contribution, not of a person: for k contributions of one person the bound is up to k "
        f"times as large, at a larger delta.{counts} Who signed stricter bounds than the preset has the same or a smaller one "
        "(dptrain plan POLICY.cose CORPUS)",
    )


def _isolation(case: Case) -> Iterator[Consequence]:
    if case.policy.isolation_required:
        yield fact(
            "ISOLATION",
            "isolation is required: within one step no contribution moves a layer that its class may not touch. An optimizer "
            "that couples layers is refused before the run, and a clip of all gradients together (clip_grad_norm_) when it is "
            "seen; private.clip_blocks_(max_norm) clips each block by itself",
        )


def _size(case: Case) -> Iterator[Consequence]:
    if case.size is None or case.batch is None:
        missing = [planned.name for planned in case.plan.reaches if case.contributions(planned.name) is None]
        yield fact(
            "SIZE_UNKNOWN",
            f"what depends on the number of contributions of {', '.join(missing)} is not said; give --contributions CLASS=N "
            "for each class, or --corpus",
        )
        return
    yield fact(
        "BATCH",
        f"a step draws {amount(case.batch)} of {case.size.total:,} contributions on average; sums are divided by the "
        f"normalizer {case.policy.normalizer}, a public constant that scales the learning rate and touches no guarantee",
    )


def _delta(case: Case) -> Consequence:
    largest = math.floor(1 / (10 * case.policy.delta))
    return fact("DELTA", f"delta {float(case.policy.delta):g} suits corpora of at most {largest:,} contributions (1 in 10 N)")


def _noise(case: Case) -> Iterator[Consequence]:
    plan = case.plan
    if case.policy.noise_injection != "per_sample":  # there it follows the draws, and no schedule says how much it is
        yield fact(
            "NOISE",
            f"noise energy is {plan.noise_energy_ratio:.0%} of what the same noise in every touched block would be, "
            f"blocks counted as equally large, {plan.layers} layers assumed",
        )
    touched = {block.name for block in plan.blocks}
    frozen = [name for name in ("embeddings", "head") if name not in touched]
    frozen += [f"layer.{index}" for index in range(plan.layers) if f"layer.{index}" not in touched]
    if frozen and not plan.lower_bounds:
        yield fact("FROZEN", f"frozen, since no class may touch them: {', '.join(frozen)}")
    if plan.lower_bounds:
        yield fact("MODEL_NEEDED", _why_a_model(case))
    if len(plan.phases) > 1:
        told = ", ".join(f"from step {phase.first_step} {phase.scale:g} times" for phase in plan.phases)
        yield fact(
            "PHASES",
            f"the noise changes over the run: {told} what the presets ask for. Every epsilon counts each phase at its own "
            "noise; a preset is the least noise of the run",
        )


def _family(case: Case) -> Iterator[Consequence]:
    fact_of_family = accountants.TABLE[case.policy.mechanism.name].consequence
    if fact_of_family:
        yield fact("FAMILY", fact_of_family)


def _why_a_model(case: Case) -> str:
    if case.policy.noise_budgets is not None:
        return (
            "clip norms are divided among blocks by budgets, and the noise that suits them depends on how large the "
            "blocks of a model are: every class has the multiplier that it asks for, and may turn out to have more. Blocks are "
            "counted as equally large here"
        )
    return (
        "a class is bound to names or an adapter; where it overlaps with layers only the model tells, so its multipliers may "
        "turn out larger and its epsilons smaller than shown"
    )


def _injection(case: Case) -> Iterator[Consequence]:
    count = case.policy.noise_microbatches
    if case.policy.noise_injection == "per_sample":
        yield fact(
            "INJECTION",
            "every contribution that is drawn brings its own noise, (sigma C)^2 of variance: a block's noise grows with those "
            "drawn who may touch it, and is none where nobody was. The noise shown per block is what the most demanding class "
            "brings, once",
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
    turns = ", every one of them being the turn of the same contribution" if policy.sampling.name != POISSON else ""
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


def reach(case: Case, planned: Reach) -> str:
    """Says in words what a class may touch; what only a model can tell is told as the policy says it."""
    depth = case.policy.class_rule(planned.name).depth
    if depth.adapter is not None:
        return f"only the parameters of adapter {depth.adapter!r}, in every layer that has them, and nothing else of the model"
    if depth.patterns is not None:
        shown = ", ".join(map(repr, depth.patterns[:3])) + (", ..." if len(depth.patterns) > 3 else "")
        return f"only parameters whose names match {shown}"
    masked = [f"{what} {numbers(own)}" for what, own in (("heads", depth.heads), ("experts", depth.experts)) if own is not None]
    held = f", there only {' and '.join(masked)} where it has such" if masked else ""
    return blocks(planned, case.plan) + held


def blocks(planned: Reach, plan: Plan) -> str:
    """Returns the blocks that a class may touch, in words."""
    whole = [block for block in planned.blocks if block in stack(plan.layers)]
    if len(whole) == plan.layers + 2:
        return f"all of the model ({plan.layers} layers, embeddings and head)"
    if len(whole) <= 3:
        return "only " + ", ".join(whole)
    return f"only {whole[0]} to {whole[-1]} ({len(whole)} of {plan.layers + 2} blocks)"
