"""A run in a few numbers per class: for the auditor's report, and for the trainer's own."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.replay import Replay
from ledger.rules.standing import Moment, Standing, Terms

SPREAD_BINS: Final = 20
"""Bins of a distribution: enough to show two groups in a class, few enough to read each as a figure."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How the epsilons of the contributions of a class are distributed, withdrawn ones included.

    Attributes:
        contributions: how many there are, at least one.
        least: the smallest epsilon.
        quarter: a quarter of them, at least, has spent no more than this.
        median: likewise a half.
        three_quarters: likewise three quarters.
        most: the largest epsilon.
        counts: contributions per bin; `SPREAD_BINS` bins of equal width from 0 to ``most``, each with its lower end and without
            its upper, the last with both.
    """

    contributions: int
    least: float
    quarter: float
    median: float
    three_quarters: float
    most: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """One admissibility class at the end of what has been recorded.

    Attributes:
        name: name of the class.
        public: whether it is public, so that nothing is promised: its noise multiplier and epsilons are None then.
        active: contributions in the pool.
        withdrawn: contributions that were withdrawn.
        sampling_rate: probability of being drawn per step.
        noise_multiplier: smallest effective noise multiplier over its contributions and the phases charged to them, None
            without any.
        steps: most charged steps of one contribution.
        occurrences: most steps in which one contribution took part; None where draws are secret.
        epsilon: largest epsilon of one contribution, under zero-out adjacency, recomputed from the charges.
        epsilon_replace: the same contribution's epsilon under content replacement.
        blocks: number of blocks that the class touches.
        coordinates: number of parameters in them.
        spread: the distribution of epsilon over its contributions; None for a public class, and without any.
        epsilon_preset: epsilon at the class preset without caps (`preset_epsilon`), which hangs on no ADMIT leaf; None for a
            public class, and where the bounds of contributions are known to be signed.
    """

    name: str
    active: int
    withdrawn: int
    sampling_rate: float
    noise_multiplier: float | None
    steps: int
    epsilon: float | None
    epsilon_replace: float | None
    blocks: int
    coordinates: int
    public: bool = False
    occurrences: int | None = None
    spread: Spread | None = None
    epsilon_preset: float | None = None


def class_summaries(run: Replay) -> tuple[ClassSummary, ...]:
    """Returns one summary per class of the policy, charges after the last epoch included."""
    header, spent = run.header, run.expenditure
    groups: list[dict[tuple[tuple[float, ...], tuple[int, ...]], float]] = [{} for _ in header.profiles]
    epsilons: list[Counter[float]] = [Counter() for _ in header.profiles]
    public_steps: dict[int, int] = {}
    occurrences, losses = [0] * len(header.profiles), [0.0] * len(header.profiles)
    for contribution in run.contributions.values():
        place = contribution.class_index
        occurrences[place] = max(occurrences[place], contribution.occurrences)
        losses[place] = max(losses[place], contribution.loss)
        if header.policy.classes[place].public:
            public_steps[place] = max(public_steps.get(place, 0), spent.steps(contribution, run.charged_phases))
            continue
        key = (spent.of_contribution(contribution), spent.phase_steps(contribution, run.charged_phases))
        epsilon = run.epsilon(contribution)
        groups[place][key] = max(groups[place].get(key, 0.0), epsilon)
        epsilons[place][epsilon] += 1
    summaries = []
    for place, (rule, totals) in enumerate(zip(header.policy.classes, run.totals(), strict=True)):
        worst = max(groups[place], key=groups[place].__getitem__, default=None)
        q, replaced = float(rule.sampling_rate), 0.0
        if worst is not None and header.occurrences_public:
            replaced = spent.of_loss(4 * losses[place])
        elif worst is not None:
            replaced = spent.replace_of_group(place, *worst)
        blocks = header.profiles[place].blocks
        summaries.append(
            ClassSummary(
                name=rule.name,
                active=totals.active,
                withdrawn=totals.withdrawn,
                sampling_rate=q,
                noise_multiplier=min((_least(z, steps) for z, steps in groups[place]), default=None),
                steps=public_steps.get(place, max((sum(steps) for _, steps in groups[place]), default=0)),
                epsilon=None if rule.public else max(groups[place].values(), default=0.0),
                epsilon_replace=None if rule.public else replaced,
                blocks=len(blocks),
                coordinates=sum(header.blocks[index].coordinates for index in blocks),
                public=rule.public,
                occurrences=occurrences[place] if header.occurrences_public else None,
                spread=spread_of(epsilons[place]) if epsilons[place] else None,
            )
        )
    return tuple(summaries)


def preset_epsilon(run: Replay, place: int) -> float | None:
    """Returns the epsilon of a contribution at the preset of its class, without a cap, admitted before the first charge.

    Guarantee:
        No contribution of the class whose signed bounds the policy takes has spent more, whatever its ADMIT leaf says: a
        smaller clip norm, a larger noise multiplier, a cap and a later admission only lower epsilon. Where occurrences are
        public it is that of one which took part as often as any, in each step behind the least noise of all charged phases.

    Args:
        run: the run as recorded.
        place: place of the class in the policy.

    Returns:
        Epsilon under zero-out adjacency; None for a public class, which promises none.
    """
    rule, spent = run.header.policy.classes[place], run.expenditure
    if rule.public:
        return None
    bounds = (rule.clip_norm_micro, rule.noise_multiplier_micro, 0)
    one = Standing(terms=Terms(place, rule.name, *bounds, 0, 0, 0, Moment(0, 0, (0,) * len(run.charged_phases))))
    if run.header.occurrences_public:
        most = max((item.occurrences for item in run.register.by_number if item.class_index == place), default=0)
        one.loss = most / _least(spent.of_contribution(one), run.charged_phases) ** 2
    return run.epsilon(one)


def spread_of(epsilons: Mapping[float, int]) -> Spread:
    """Returns the distribution of these values, of which there is at least one, each with the times it occurs."""
    most, total, below = max(epsilons), sum(epsilons.values()), 0
    counts = [0] * SPREAD_BINS
    ranks: list[float] = []
    for value in sorted(epsilons):
        counts[min(int(value / most * SPREAD_BINS), SPREAD_BINS - 1) if 0 < most < math.inf else 0] += epsilons[value]
        below += epsilons[value]
        ranks += [value] * (4 * below // total - len(ranks))
    quarter, median, three_quarters, _ = ranks
    return Spread(total, min(epsilons), quarter, median, three_quarters, most, tuple(counts))


def _least(z: tuple[float, ...], steps: tuple[int, ...]) -> float:
    """The smallest multiplier over the phases in which steps were charged; over all, if there are none."""
    return min((multiplier for multiplier, count in zip(z, steps, strict=True) if count), default=min(z))
