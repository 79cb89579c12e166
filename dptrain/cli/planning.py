"""What a policy costs and promises, before any model is loaded: schedule, effective multipliers, epsilon.

Without a model the layer stack is a number of layers: blocks `embeddings`, `layer.0` ... `layer.N-1`, `head`. A class
bound to name patterns or to an adapter gets blocks of those names; whether they overlap with layers only a model can
tell. The multiplier shown is then a lower bound, since overlap can only add noise.
"""

import math
from dataclasses import dataclass

from attest import schedule
from attest.micro import from_micro
from attest.policy import ClassRule, DepthRule, Policy
from dptrain.errors import ConfigError
from ledger import accountants


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One block: its noise standard deviation on the sum of clipped gradients, and the classes that may touch it."""

    name: str
    std: float
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """What one pair of signed bounds gets under the schedule.

    Attributes:
        effective_multiplier: z = max(sigma, min over the class's blocks of s_l / C).
        waste: z / sigma; above 1 the class gets more privacy than it signed for, paid in usefulness.
        epsilon: Over the planned horizon, zero-out adjacency.
        epsilon_replace: Over the planned horizon, content replaced by other content.
        epsilon_with_redo: Zero-out, if every step that may be done again is done again.
    """

    clip_norm: float
    noise_multiplier: float
    effective_multiplier: float
    waste: float
    sufficient_variance: float
    epsilon: float
    epsilon_replace: float
    epsilon_with_redo: float


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """One class of the policy under the schedule; `preset` is what a contribution at the class's own bounds gets."""

    name: str
    blocks: tuple[str, ...]
    sampling_rate: float
    expected_draws: float
    preset: BoundPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan.

    Attributes:
        noise_energy_ratio: Sum of s_l^2 over the blocks divided by what uniform noise in the same blocks would need,
            blocks counted as equally large.
        lower_bounds: True if some class is bound to patterns or an adapter, so that multipliers may turn out larger.
    """

    layers: int
    blocks: tuple[BlockPlan, ...]
    classes: tuple[ClassPlan, ...]
    noise_energy_ratio: float
    lower_bounds: bool


HOPELESS = 1000.0
"""Half the squared Gaussian parameter above which an epsilon of some hundreds or more is not worth its computation, which
takes gigabytes then."""


def make_plan(policy: Policy, layers: int, *, hasty: bool = False) -> Plan:
    """Lay a policy over a stack of `layers` layers.

    Args:
        policy: The rules.
        layers: Layers of the model.
        hasty: Take the bound without sampling, which is an upper bound too, for an epsilon that is hopelessly large.

    Raises:
        ConfigError: Code LAYERS if a class names a layer that the stack does not have.
    """
    touched, blocks = lay_out(policy, layers)
    return Plan(
        layers=layers,
        blocks=tuple(blocks),
        classes=tuple(_class_plan(policy, rule, touched[rule.name], blocks, hasty) for rule in policy.classes),
        noise_energy_ratio=noise_energy(blocks) / len(blocks),
        lower_bounds=any(rule.depth.kind in ("set", "adapter") for rule in policy.classes),
    )


def lay_out(policy: Policy, layers: int) -> tuple[dict[str, tuple[str, ...]], list[BlockPlan]]:
    """The blocks that each class may touch, and the noise on every block that any class may touch."""
    touched = {rule.name: touched_blocks(rule, layers) for rule in policy.classes}
    order = dict.fromkeys([*stack(layers), *(block for blocks in touched.values() for block in blocks)])
    blocks = []
    for block in order:
        users = tuple(name for name, names in touched.items() if block in names)
        if users:
            blocks.append(BlockPlan(block, schedule.block_std(schedule.class_presets(policy, users)), users))
    return touched, blocks


def noise_energy(blocks: list[BlockPlan]) -> float:
    """Sum of s_l^2 over the blocks, in units of the largest, blocks counted as equally large."""
    largest = max(block.std for block in blocks)
    return sum((block.std / largest) ** 2 for block in blocks)


def bound_plan(
    policy: Policy, rule: ClassRule, sigma_micro: int, clip_micro: int, stds: list[float], *, hasty: bool = False
) -> BoundPlan:
    """What a contribution of a class gets that signed these bounds, in units of 1e-6."""
    effective = schedule.effective_multiplier(sigma_micro, clip_micro, stds)
    q, delta = float(rule.sampling_rate), float(policy.delta)
    if hasty and _hopeless(effective, q, policy.steps):
        q = 1.0
    signed, clip = from_micro(sigma_micro), from_micro(clip_micro)
    return BoundPlan(
        clip_norm=clip,
        noise_multiplier=signed,
        effective_multiplier=effective,
        waste=schedule.waste(effective, signed),
        sufficient_variance=schedule.sufficient_variance(signed, clip),
        epsilon=accountants.epsilon(effective, q, policy.steps, delta, policy.accountant),
        epsilon_replace=accountants.epsilon_replace(effective, q, policy.steps, delta, policy.accountant),
        epsilon_with_redo=accountants.epsilon(effective, q, policy.steps + policy.redo_steps, delta, policy.accountant),
    )


def _hopeless(z: float, q: float, steps: int) -> bool:
    """Whether the central limit of subsampled Gaussians, and the Gaussian without sampling, both put epsilon far too high."""
    sampled = 0.5 * q * q * steps * math.expm1(min(1 / (z * z), 700.0))
    return min(sampled, 0.5 * steps / (z * z)) > HOPELESS


def class_stds(plan: Plan, name: str) -> list[float]:
    """Noise standard deviations of the blocks that a class may touch."""
    return [block.std for block in plan.blocks if name in block.classes]


def stack(layers: int) -> tuple[str, ...]:
    """The blocks of a stack, input side first."""
    return ("embeddings", *(f"layer.{index}" for index in range(layers)), "head")


def touched_blocks(rule: ClassRule, layers: int) -> tuple[str, ...]:
    """Blocks that a class may touch, in the order of the stack.

    A band from a to b covers layers floor(a N) up to but not including ceil(b N); the embeddings belong to it if a is 0
    and the head if b is 1, unless the rule says otherwise. Listed layers bring neither unless the rule says so.
    """
    depth = rule.depth
    indices, embeddings, head = _covered(depth, layers)
    if indices and max(indices) >= layers:
        raise ConfigError(
            "LAYERS", f"class {rule.name} names layer {max(indices)}, the stack has {layers}; give the model's --layers"
        )
    if depth.patterns is not None:
        return tuple(f"set {pattern}" for pattern in depth.patterns)
    if depth.adapter is not None:
        return (f"adapter {depth.adapter}",)
    below = ("embeddings",) if (embeddings if depth.embeddings is None else depth.embeddings) else ()
    above = ("head",) if (head if depth.head is None else depth.head) else ()
    return (*below, *(f"layer.{index}" for index in indices), *above)


def _covered(depth: DepthRule, layers: int) -> tuple[tuple[int, ...], bool, bool]:
    """Layers of a rule, and whether embeddings and head come with them by themselves."""
    if depth.band is not None:
        low, high = depth.band
        return tuple(range(math.floor(low * layers), math.ceil(high * layers))), low == 0, high == 1
    return depth.layers or (), False, False


def _class_plan(policy: Policy, rule: ClassRule, names: tuple[str, ...], blocks: list[BlockPlan], hasty: bool) -> ClassPlan:
    stds = [block.std for block in blocks if block.name in names]
    return ClassPlan(
        name=rule.name,
        blocks=names,
        sampling_rate=float(rule.sampling_rate),
        expected_draws=float(rule.sampling_rate * policy.steps),
        preset=bound_plan(policy, rule, rule.noise_multiplier_micro, rule.clip_norm_micro, stds, hasty=hasty),
    )
