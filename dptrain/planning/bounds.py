"""What admitted contributions get that signed bounds of their own."""

from collections import Counter
from dataclasses import dataclass

from attest.gate import GateReport
from attest.policy import Policy
from dptrain.own_noise import strictest
from dptrain.planning.plan import BoundPlan, Plan, bound_plan, class_blocks


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Contributions of one class that signed the same bounds, and what each of them gets."""

    contributions: int
    bound: BoundPlan


def signed_groups(policy: Policy, planned: Plan, report: GateReport) -> dict[str, list[GroupPlan]]:
    """Per class, how many admitted contributions signed which bounds and caps, most exposed first.

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
