"""The consequences of a policy, in words that its owner can read to the contributors."""

import math
from dataclasses import dataclass
from typing import Literal

from attest.policy import Policy
from dptrain.cli.output import number
from dptrain.cli.planning import ClassPlan, Plan

WEAK_EPSILON = 10.0
"""Above this an epsilon says little about a worst-case attacker; `check` warns."""

NOTABLE_WASTE = 1.5
"""Above this effective-to-signed ratio, `check` says that a class gets far more noise than it signed for."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """One sentence about what follows from a policy."""

    level: Literal["fact", "warning"]
    sentence: str


def consequences(policy: Policy, plan: Plan) -> tuple[Consequence, ...]:
    """What follows from a policy, most important first within each part."""
    found = [item for planned in plan.classes for item in _of_class(policy, plan, planned)]
    found += _of_delta(policy)
    found += _of_noise(plan)
    found += _of_horizon(policy, plan)
    return tuple(found)


def _of_class(policy: Policy, plan: Plan, planned: ClassPlan) -> list[Consequence]:
    preset = planned.preset
    found = [
        Consequence(
            "fact",
            f"class {planned.name}: each contribution is drawn with probability {planned.sampling_rate:g} in each step, "
            f"{number(planned.expected_draws)} times in all on average, and its gradient reaches {_blocks(planned, plan)}",
        ),
        Consequence(
            "fact",
            f"class {planned.name}: all checkpoints together are ({number(preset.epsilon)}, {float(policy.delta):g})-"
            f"indistinguishable from those with the contribution empty, and ({number(preset.epsilon_replace)}, "
            f"{float(policy.delta):g})-indistinguishable from those with any other content in its place",
        ),
    ]
    if not preset.epsilon <= WEAK_EPSILON:
        found.append(
            Consequence(
                "warning",
                f"class {planned.name}: epsilon {number(preset.epsilon)} promises little; raise noise_multiplier, lower "
                "sampling_rate or steps (dptrain calibrate finds the multiplier for a target)",
            )
        )
    if preset.waste > NOTABLE_WASTE:
        found.append(
            Consequence(
                "warning",
                f"class {planned.name}: noise that other classes need gives it an effective multiplier of "
                f"{number(preset.effective_multiplier)} where {number(preset.noise_multiplier)} is asked; bring "
                "noise_multiplier x clip_norm of the overlapping classes closer, or move their depths apart",
            )
        )
    return found


def _of_delta(policy: Policy) -> list[Consequence]:
    largest = math.floor(1 / (10 * policy.delta))
    found = [Consequence("fact", f"delta {float(policy.delta):g} suits corpora of at most {largest} contributions (1 in 10 N)")]
    if policy.delta * 10**6 > 1:
        found.append(Consequence("warning", f"delta {float(policy.delta):g} is large; 1e-6 or less is usual"))
    return found


def _of_noise(plan: Plan) -> list[Consequence]:
    touched = {block.name for block in plan.blocks}
    frozen = [name for name in ("embeddings", "head") if name not in touched]
    frozen += [f"layer.{index}" for index in range(plan.layers) if f"layer.{index}" not in touched]
    found = [
        Consequence(
            "fact",
            f"noise energy is {plan.noise_energy_ratio:.0%} of what the same noise in every touched block would be, "
            f"blocks counted as equally large, {plan.layers} layers assumed",
        )
    ]
    if frozen and not plan.lower_bounds:
        found.append(Consequence("fact", f"frozen, since no class may touch them: {', '.join(frozen)}"))
    if plan.lower_bounds:
        found.append(
            Consequence(
                "fact",
                "a class is bound to names or an adapter; where it overlaps with layers only the model tells, so its "
                "multipliers may turn out larger and its epsilons smaller than shown",
            )
        )
    return found


def _of_horizon(policy: Policy, plan: Plan) -> list[Consequence]:
    worst = ", ".join(f"{planned.name} {number(planned.preset.epsilon_with_redo)}" for planned in plan.classes)
    lost = policy.window_steps
    return [
        Consequence(
            "fact",
            f"steps done again after crashes are charged again, {policy.redo_steps} at most; then epsilon ends at: {worst}",
        ),
        Consequence("fact", f"a crash can make the ledger count up to {lost} steps that never ran, never too few"),
        Consequence("fact", f"the ledger signs a checkpoint every {policy.epoch_steps} steps"),
    ]


def _blocks(planned: ClassPlan, plan: Plan) -> str:
    if len(planned.blocks) == plan.layers + 2:
        return f"all of the model ({plan.layers} layers, embeddings and head)"
    if len(planned.blocks) <= 3:
        return "only " + ", ".join(planned.blocks)
    return f"only {planned.blocks[0]} to {planned.blocks[-1]} ({len(planned.blocks)} of {plan.layers + 2} blocks)"
