"""What a run would use of the limits that its policy sets for classes over all runs, and how many such runs fit into them."""

from dataclasses import dataclass

from attest.fixed_point import MICRO
from attest.policy import Policy
from dptrain.planning.plan import ClassPlan, Plan, hopeless
from ledger.rules.budgets import Limit, repetitions
from ledger.rules.spending import of_plan


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
    """The private classes with a limit, by the rule that a ledger and its auditor hold runs to."""
    found = (total_of(policy, item) for item in planned.classes)
    return tuple(total for total in found if total is not None)


def total_of(policy: Policy, item: ClassPlan) -> ClassTotal | None:
    """One class; None if it has no limit."""
    place = next(place for place, rule in enumerate(policy.classes) if rule.name == item.name)
    micro = policy.classes[place].max_epsilon_total_micro
    if micro is None:
        return None
    preset, limit = item.preset, Limit(micro, policy.delta, "class")
    if hopeless(preset.effective_multiplier, item.sampling_rate, policy.steps) and preset.epsilon_with_redo > micro / MICRO:
        return ClassTotal(item.name, micro / MICRO, preset.epsilon_with_redo, 0)
    spending = of_plan(policy, place, preset.multipliers)
    return ClassTotal(item.name, micro / MICRO, spending.epsilon(float(policy.delta)), repetitions(limit, spending))
