"""Plans a run before anything is charged: occurrences, epsilon and noise of every class and contribution."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from attest import schedule
from attest.descriptor import SignedBounds
from attest.fixed_point import MICRO, from_micro
from attest.gate import GateReport
from attest.policy import ClassRule, Policy
from attest.policy.sampling import period
from attest.schedule import allocation
from attest.schema.cards import card_of
from dptrain.clipping.own_noise import OwnNoise, own_bounds, own_noise, strictest
from dptrain.planning.layout import BlockPlan, lay_out, needs_model, sure_stds
from ledger import accountants
from ledger.accountants import Phase
from ledger.errors import AccountantError
from ledger.replay.budgets import Limit, foreseen_loss, of_plan, repetitions, with_redo

TAIL = 0.025
"""Probability beyond either end of the range that is shown: 95 of 100 contributions lie within."""

_EXACT_BELOW = 1e7
"""Variance from which on the normal law is taken, which is then within one draw of the binomial one."""


@dataclass(frozen=True, slots=True)
class DrawRange:
    """Draws of one contribution over the horizon: at most TAIL of all contributions are drawn less often than `low`, and as
    many more often than `high`."""

    low: int
    high: int

    _repr_html_ = card_of


def draw_range(steps: int, rate: Fraction) -> DrawRange:
    """Returns the quantiles of Bin(steps, rate).

    Args:
        steps: Horizon T, at least 1.
        rate: Probability of a draw per step, above 0 and at most 1.
    """
    q = float(rate)
    if q >= 1.0:
        return DrawRange(steps, steps)
    mean, variance = steps * q, steps * q * (1.0 - q)
    if variance > _EXACT_BELOW:
        width = 1.959964 * math.sqrt(variance)
        return DrawRange(max(0, math.floor(mean - width)), min(steps, math.ceil(mean + width)))
    # From far enough below, where nothing is left to count, up: P[X <= k].
    reach = 10.0 * math.sqrt(variance) + 20.0
    start = max(0, math.floor(mean - reach))
    at = math.lgamma(steps + 1) - math.lgamma(start + 1) - math.lgamma(steps - start + 1)
    mass = math.exp(at + start * math.log(q) + (steps - start) * math.log1p(-q))
    odds, below, low = q / (1.0 - q), 0.0, None
    for k in range(start, steps + 1):
        below += mass
        if low is None and below > TAIL:
            low = k
        if below >= 1.0 - TAIL or k > mean + reach:
            return DrawRange(low or 0, k)
        mass *= (steps - k) / (k + 1) * odds
    return DrawRange(low or 0, steps)


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """Steps of a run with one scale on every standard deviation of the schedule."""

    first_step: int
    steps: int
    scale: float

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """Holds what one pair of signed bounds gets under the schedule.

    Attributes:
        effective_multiplier: The smallest z over the phases, z = max(sigma, s_k / C): s_k is the smallest noise of a block of
            the class, or with budgets what `attest.schedule.allocation.effective_std` makes of all of them.
        waste: z / sigma; above 1 the class gets more privacy than it signed for, paid in usefulness.
        epsilon: Over the planned horizon, zero-out adjacency.
        epsilon_replace: Over the planned horizon, content replaced by other content.
        epsilon_with_redo: Zero-out, if every step that may be done again is done again; a cap counts anew then and is left out.
        max_occurrences: Signed cap on occurrences, 0 for none.
        multipliers: z in every phase of the policy.
        expected_draws: Occurrences over the planned horizon, or the cap if it is smaller.
        sufficient_multiplier: z*, which its own bounds need (`dptrain.clipping.own_noise`): the signed multiplier, or more if
            a limit of epsilon was signed that needs more. None where no multiplier does, or under laplace.
        sufficient_variance: (z* C)^2, likewise.
    """

    clip_norm: float
    noise_multiplier: float
    effective_multiplier: float
    waste: float
    epsilon: float
    epsilon_replace: float
    epsilon_with_redo: float
    max_occurrences: int
    multipliers: tuple[float, ...]
    expected_draws: float
    sufficient_multiplier: float | None
    sufficient_variance: float | None

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class Reach:
    """Says what one class may touch, and how often its contributions are drawn; of a public one no more can be said."""

    name: str
    blocks: tuple[str, ...]
    sampling_rate: float
    expected_draws: float
    draws: DrawRange

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class ClassPlan(Reach):
    """One private class under the schedule; `preset` is what a contribution at the class's own bounds gets."""

    preset: BoundPlan

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan.

    Attributes:
        classes: The private ones.
        noise_energy_ratio: Sum of s_l^2 over the blocks with noise divided by what uniform noise in the same blocks would need
            for the same multipliers, blocks counted as equally large.
        noise_energy_of_max_rule: The same against one clip for all blocks of a class (1 without budgets).
        noise_energy_gap: How far the noise is from the least that was shown to be possible, relative.
        lower_bounds: True if some multiplier may turn out larger once a model is seen.
        phases: The run in order, at least one.
    """

    layers: int
    blocks: tuple[BlockPlan, ...]
    classes: tuple[ClassPlan, ...]
    noise_energy_ratio: float
    noise_energy_of_max_rule: float
    noise_energy_gap: float
    lower_bounds: bool
    phases: tuple[PhasePlan, ...]
    public: tuple[Reach, ...] = ()

    _repr_html_ = card_of

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """Returns all classes, public ones last."""
        return (*self.classes, *self.public)


HOPELESS = 1000.0
"""Half the squared Gaussian parameter above which an epsilon of some hundreds or more is not worth its computation, which
takes gigabytes then."""


def make_plan(policy: Policy, layers: int, *, hasty: bool = False) -> Plan:
    """Lays a policy over a stack of `layers` layers: the classes that are for training.

    Args:
        policy: The rules.
        layers: Layers of the model.
        hasty: Take the bound without sampling, which is an upper bound too, for an epsilon that is hopelessly large.

    Raises:
        ConfigError: Code LAYERS if a class names a layer that the stack does not have.
        AccountantError: The accountant has no number for what the policy asks for.
        PolicyRefused: Code PURPOSE, no class is for training.
    """
    policy = policy.for_training()
    touched, blocks = lay_out(policy, layers)
    energies = allocation.energies(policy.classes, blocks)
    return Plan(
        layers=layers,
        blocks=tuple(blocks),
        classes=tuple(
            _class_plan(policy, rule, touched[rule.name], blocks, hasty) for rule in policy.classes if not rule.public
        ),
        noise_energy_ratio=energies.of_uniform,
        noise_energy_of_max_rule=energies.scheduled / energies.routed,
        noise_energy_gap=energies.gap,
        lower_bounds=needs_model(policy),
        phases=phases_of(policy),
        public=tuple(Reach(*_reach(policy, rule, touched[rule.name])) for rule in policy.classes if rule.public),
    )


def phases_of(policy: Policy) -> tuple[PhasePlan, ...]:
    """Returns the run as phases: steps before the first that the policy names have scale 1."""
    phases = schedule.Phases.of(policy)
    ends = itertools.accumulate(phases.horizon)
    return tuple(
        PhasePlan(end - steps + 1, steps, from_micro(scale))
        for scale, steps, end in zip(phases.scales, phases.horizon, ends, strict=True)
    )


def phases_at(policy: Policy, multipliers: Sequence[float], rate: float, *, hasty: bool) -> list[Phase]:
    """Returns the run of a contribution with one multiplier per phase, by the bound without sampling as `make_plan` says."""
    if hasty and policy.secret and hopeless(min(multipliers), rate, policy.sampling.most_steps(policy.steps)):
        rate = 1.0
    horizon, most = map(policy.sampling.most_steps, schedule.Phases.of(policy).horizon), accountants.MAX_MULTIPLIER
    return [Phase(min(z, most), rate, steps) for z, steps in zip(multipliers, horizon, strict=True)]


def spent_by(policy: Policy, z: float, sampling_rate: float, steps: int, *, replace: bool = False) -> float:
    """Returns the epsilon of a contribution with multiplier z in every one of so many steps; see `spent`."""
    return spent(policy, [Phase(z, sampling_rate, steps)], replace=replace)


def spent(policy: Policy, phases: Sequence[Phase], *, replace: bool = False, cap: int = 0, redo: int = 0) -> float:
    """Returns the epsilon of a contribution over phases of a run, by the accounting that the policy's disclosure allows.

    Where occurrences are public it is known only afterwards: this one is for as many draws as one in a million exceeds, all
    of them where its noise is least. Under an order it is an upper bound for everybody: the dearest turns that it allows and,
    of the steps that are done again, every one.

    Args:
        policy: Gives delta, accountant, disclosure and the family of the noise.
        phases: Effective multiplier, sampling rate and steps of every phase; one sampling rate.
        replace: For content replaced by other content, instead of the null contribution.
        cap: The most occurrences that the contribution signed, 0 for any number; counts under zero-out alone where draws are
            secret.
        redo: Steps beyond these that are done again, with the least noise of all.
    """
    delta, name, family = float(policy.delta), policy.accountant, policy.mechanism.name
    rate = phases[0].sampling_rate
    if policy.disclosure == "occurrences_public":
        exact = Fraction(1, round(1 / rate)) if policy.sampling.turns else Fraction(rate)
        steps, multipliers = zip(*((phase.steps, phase.noise_multiplier) for phase in phases), strict=True)
        loss = foreseen_loss(policy, exact, steps, multipliers, cap=cap, redo=redo)
        return accountants.epsilon_occurrences(4.0 * loss if replace else loss, delta, name, family=family)
    if redo:
        phases = with_redo(policy, [*phases, Phase(min(phase.noise_multiplier for phase in phases), rate, redo)])
    if cap and not replace:
        return accountants.epsilon_of_phases_capped(phases, cap, delta, name, family=family)
    return accountants.epsilon_of_phases(phases, delta, name, family=family, replace=replace)


def bound_plan(
    policy: Policy,
    rule: ClassRule,
    bounds: SignedBounds,
    blocks: Sequence[BlockPlan],
    *,
    limits: Sequence[tuple[int, int]] = (),
    hasty: bool = False,
) -> BoundPlan:
    """Tells what a contribution of a class gets that signed these bounds, over the blocks that it may touch.

    Args:
        policy: The rules.
        rule: Its class.
        bounds: What it signed.
        blocks: The blocks.
        limits: Signed limits of epsilon in 1e-6 with their deltas in 1e-12; the noise that suffices is for all of them.
        hasty: As `make_plan`.
    """
    if policy.noise_injection == "per_sample":  # then all that is sure beforehand is what was signed
        multipliers = [bounds.noise_multiplier]
    else:
        multipliers = list(schedule.phase_multipliers(bounds, sure_stds(policy, rule, blocks)))
    phases = phases_at(policy, multipliers, float(rule.sampling_rate), hasty=hasty)
    effective, cap = min(multipliers), bounds.max_occurrences
    expected, own = _own(policy, rule, bounds, limits)
    return BoundPlan(
        clip_norm=bounds.clip_norm,
        noise_multiplier=bounds.noise_multiplier,
        effective_multiplier=effective,
        waste=schedule.waste(effective, bounds.noise_multiplier),
        epsilon=spent(policy, phases, cap=cap),
        epsilon_replace=spent(policy, phases, replace=True, cap=cap),
        epsilon_with_redo=spent(policy, phases, redo=policy.redo_steps),
        max_occurrences=cap,
        multipliers=tuple(multipliers),
        expected_draws=expected,
        sufficient_multiplier=None if own is None else own.multiplier,
        sufficient_variance=None if own is None else own.variance,
    )


def _own(
    policy: Policy, rule: ClassRule, bounds: SignedBounds, limits: Sequence[tuple[int, int]]
) -> tuple[float, OwnNoise | None]:
    """Returns the expected draws, and the most noise that one of the limits needs; None where there is no such figure."""
    found, expected = [], 0.0
    for limit in strictest(limits) or [(0, 0)]:
        own = own_bounds(policy, rule.name, bounds, limit)
        if own is not None:
            expected = own.expected
            try:
                found.append(own_noise(own))
            except AccountantError:
                return expected, None
    return expected, max(found, key=lambda noise: noise.variance, default=None)


def class_blocks(plan: Plan, name: str) -> list[BlockPlan]:
    """Returns the blocks that a class may touch."""
    return [block for block in plan.blocks if name in block.classes]


def hopeless(z: float, q: float, steps: int) -> bool:
    """Tells whether the central limit of subsampled Gaussians and the unsampled Gaussian both put epsilon far too high."""
    sampled = 0.5 * q * q * steps * math.expm1(min(1 / (z * z), 700.0))
    return min(sampled, 0.5 * steps / (z * z)) > HOPELESS


def _reach(policy: Policy, rule: ClassRule, names: tuple[str, ...]) -> tuple[str, tuple[str, ...], float, float, DrawRange]:
    steps = policy.sampling.most_steps(policy.steps)
    draws = draw_range(steps, rule.sampling_rate)
    if policy.sampling.turns:
        length = period(rule.sampling_rate)
        draws = DrawRange(policy.steps // length, -(-policy.steps // length))
    return rule.name, names, float(rule.sampling_rate), float(rule.sampling_rate * steps), draws


def _class_plan(policy: Policy, rule: ClassRule, names: tuple[str, ...], blocks: list[BlockPlan], hasty: bool) -> ClassPlan:
    own = [block for block in blocks if block.name in names]
    preset = bound_plan(policy, rule, rule.bounds, own, hasty=hasty)
    return ClassPlan(*_reach(policy, rule, names), preset)


@dataclass(frozen=True, slots=True)
class ClassTotal:
    """A class with a limit of epsilon over all runs.

    Attributes:
        name: Name of the class.
        limit: Most epsilon of a contribution over all runs together, at the policy's delta.
        used: What this run could use of it for a contribution at the presets, with every step that may be done again.
        runs: How many such runs fit into it one after the other, whatever is looked at between them; 0 if none may begin.
    """

    name: str
    limit: float
    used: float
    runs: int | None

    _repr_html_ = card_of


def totals(policy: Policy, planned: Plan) -> tuple[ClassTotal, ...]:
    """Returns the private classes with a limit, by the rule that a ledger and its auditor hold runs to."""
    found = (total_of(policy, item) for item in planned.classes)
    return tuple(total for total in found if total is not None)


def total_of(policy: Policy, item: ClassPlan) -> ClassTotal | None:
    """Returns the total of one class; None if it has no limit."""
    place = next(place for place, rule in enumerate(policy.classes) if rule.name == item.name)
    micro = policy.classes[place].max_epsilon_total_micro
    if micro is None:
        return None
    preset, limit = item.preset, Limit(micro, policy.delta, "class")
    if hopeless(preset.effective_multiplier, item.sampling_rate, policy.steps) and preset.epsilon_with_redo > micro / MICRO:
        return ClassTotal(item.name, micro / MICRO, preset.epsilon_with_redo, 0)
    spending = of_plan(policy, place, preset.multipliers)
    return ClassTotal(item.name, micro / MICRO, spending.epsilon(float(policy.delta)), repetitions(limit, spending))


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Contributions of one class that signed the same bounds, and what each of them gets."""

    contributions: int
    bound: BoundPlan

    _repr_html_ = card_of


def signed_groups(policy: Policy, planned: Plan, report: GateReport) -> dict[str, list[GroupPlan]]:
    """Counts, per class, the admitted contributions that signed the same bounds and caps, most exposed first.

    The noise that suffices is for whoever of them signed the strictest limit of epsilon.
    """
    groups: dict[str, Counter[SignedBounds]] = {}
    limits: dict[tuple[str, SignedBounds], set[tuple[int, int]]] = {}
    for item in report.admitted:
        signed = item.admission.descriptor
        if signed.public:
            continue
        groups.setdefault(signed.admissibility_class, Counter())[signed.bounds] += 1
        limits.setdefault((signed.admissibility_class, signed.bounds), set()).add(signed.limit)
    found = {}
    for name, counts in groups.items():
        rule, blocks = policy.class_rule(name), class_blocks(planned, name)
        plans = []
        for bounds, count in counts.items():
            least = strictest(limits[name, bounds])
            plans.append(GroupPlan(count, bound_plan(policy, rule, bounds, blocks, limits=least)))
        found[name] = sorted(plans, key=lambda item: -item.bound.epsilon)
    return found
