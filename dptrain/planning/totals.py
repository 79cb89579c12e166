"""Tell how much a run would use of the limits over all runs, and how many such runs fit into them."""

from collections import Counter
from dataclasses import dataclass

from attest.fixed_point import MICRO
from attest.gate import GateReport
from attest.policy import Policy
from dptrain.clipping.own_noise import strictest
from dptrain.planning.plan import BoundPlan, ClassPlan, Plan, bound_plan, class_blocks, hopeless
from ledger.replay.budgets import Limit, of_plan, repetitions


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


def signed_groups(policy: Policy, planned: Plan, report: GateReport) -> dict[str, list[GroupPlan]]:
    """Counts, per class, the admitted contributions that signed the same bounds and caps, most exposed first.

    The noise that suffices is for whoever of them signed the strictest limit of epsilon.
    """
    groups: dict[str, Counter[tuple[int, int, int]]] = {}
    limits: dict[tuple[str, tuple[int, int, int]], set[tuple[int, int]]] = {}
    for item in report.admitted:
        signed = item.admission.descriptor
        if signed.public:
            continue
        bounds = (signed.noise_multiplier_micro, signed.clip_norm_micro, signed.max_occurrences or 0)
        groups.setdefault(signed.admissibility_class, Counter())[bounds] += 1
        limit = (signed.max_epsilon_micro or 0, signed.max_delta_pico or 0)
        limits.setdefault((signed.admissibility_class, bounds), set()).add(limit)
    found = {}
    for name, counts in groups.items():
        rule, blocks = policy.class_rule(name), class_blocks(planned, name)
        plans = []
        for (sigma, clip, cap), count in counts.items():
            least = strictest(limits[name, (sigma, clip, cap)])
            plans.append(GroupPlan(count, bound_plan(policy, rule, sigma, clip, blocks, cap=cap, limits=least)))
        found[name] = sorted(plans, key=lambda item: -item.bound.epsilon)
    return found
