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
from dptrain.ranges import numbers
from ledger import accountants


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One block: its noise standard deviation on the sum of clipped gradients, and the classes that may touch it.

    The noise is 0 where only public classes may.
    """

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
class Reach:
    """What one class may touch, and how often its contributions are drawn; all that there is to say of a public one."""

    name: str
    blocks: tuple[str, ...]
    sampling_rate: float
    expected_draws: float


@dataclass(frozen=True, slots=True)
class ClassPlan(Reach):
    """One private class under the schedule; `preset` is what a contribution at the class's own bounds gets."""

    preset: BoundPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan.

    Attributes:
        classes: The private ones.
        noise_energy_ratio: Sum of s_l^2 over the blocks with noise divided by what uniform noise in the same blocks would need,
            blocks counted as equally large.
        lower_bounds: True if some class is bound to patterns, an adapter, heads or experts, so that multipliers may turn out
            larger.
    """

    layers: int
    blocks: tuple[BlockPlan, ...]
    classes: tuple[ClassPlan, ...]
    noise_energy_ratio: float
    lower_bounds: bool
    public: tuple[Reach, ...] = ()

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """All classes, public ones last."""
        return (*self.classes, *self.public)


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
        classes=tuple(
            _class_plan(policy, rule, touched[rule.name], blocks, hasty) for rule in policy.classes if not rule.public
        ),
        noise_energy_ratio=noise_energy(blocks) / sum(block.std > 0 for block in blocks),
        lower_bounds=any(rule.depth.kind in ("set", "adapter") or bool(_masks(rule.depth)) for rule in policy.classes),
        public=tuple(Reach(*_reach(policy, rule, touched[rule.name])) for rule in policy.classes if rule.public),
    )


def lay_out(policy: Policy, layers: int) -> tuple[dict[str, tuple[str, ...]], list[BlockPlan]]:
    """The blocks that each class may touch, and the noise on every block that any class may touch."""
    touched = _divided(policy, {rule.name: touched_blocks(rule, layers) for rule in policy.classes})
    order = dict.fromkeys([*stack(layers), *(block for blocks in touched.values() for block in blocks)])
    blocks = []
    for block in order:
        users = tuple(name for name, names in touched.items() if block in names)
        if users:
            blocks.append(BlockPlan(block, schedule.scheduled_std(map(policy.class_rule, users)), users))
    return touched, blocks


def _masks(depth: DepthRule) -> dict[str, tuple[int, ...]]:
    """The masks of a rule, by what they mask."""
    return {what: own for what, own in (("heads", depth.heads), ("experts", depth.experts)) if own is not None}


def _divided(policy: Policy, touched: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The same with what masks divide of a layer as blocks of their own.

    What all heads of a layer share, the heads that no mask names, and the router of experts are open to classes without a
    mask; a mask that happens to name all heads of a model has them too, which only a model tells.
    """
    found = dict(touched)
    layers = dict.fromkeys(block for blocks in touched.values() for block in blocks if block.startswith("layer."))
    for layer in layers:
        users = [rule for rule in policy.classes if layer in touched[rule.name]]
        for what, rest in (("heads", "attention"), ("experts", "router")):
            named = sorted({index for rule in users for index in _masks(rule.depth).get(what, ())})
            parts: dict[tuple[str, ...], list[int]] = {}
            for index in named:
                open_to = [rule.name for rule in users if index in _masks(rule.depth).get(what, (index,))]
                parts.setdefault(tuple(open_to), []).append(index)
            free = tuple(rule.name for rule in users if what not in _masks(rule.depth))
            blocks = [(f"{layer} {what} {numbers(own)}", names) for names, own in parts.items()]
            for block, names in [*blocks, (f"{layer} {rest}", free)] if named else []:
                for name in names:
                    found[name] = (*found[name], block)
    return found


def noise_energy(blocks: list[BlockPlan]) -> float:
    """Sum of s_l^2 over the blocks, in units of the largest, blocks counted as equally large."""
    largest = max(block.std for block in blocks)
    return sum((block.std / largest) ** 2 for block in blocks)


def spent_by(policy: Policy, z: float, sampling_rate: float, steps: int, *, replace: bool = False) -> float:
    """Epsilon of a contribution with multiplier z over so many steps, by the accounting that the policy's disclosure allows.

    Where occurrences are public it is known only afterwards: this one is for as many draws as one in a million exceeds.
    """
    delta = float(policy.delta)
    if policy.disclosure == "occurrences_public":
        loss = accountants.likely_occurrences(sampling_rate, steps) / z**2
        return accountants.epsilon_occurrences(4 * loss if replace else loss, delta, policy.accountant)
    count = accountants.epsilon_replace if replace else accountants.epsilon
    return count(z, sampling_rate, steps, delta, policy.accountant)


def bound_plan(
    policy: Policy, rule: ClassRule, sigma_micro: int, clip_micro: int, stds: list[float], *, hasty: bool = False
) -> BoundPlan:
    """What a contribution of a class gets that signed these bounds, in units of 1e-6."""
    per_sample = policy.noise_injection == "per_sample"  # then all that is sure beforehand is what was signed
    effective = from_micro(sigma_micro) if per_sample else schedule.effective_multiplier(sigma_micro, clip_micro, stds)
    q = float(rule.sampling_rate)
    if policy.disclosure == "secret_poisson" and hasty and _hopeless(effective, q, policy.steps):
        q = 1.0
    signed, clip = from_micro(sigma_micro), from_micro(clip_micro)
    return BoundPlan(
        clip_norm=clip,
        noise_multiplier=signed,
        effective_multiplier=effective,
        waste=schedule.waste(effective, signed),
        sufficient_variance=schedule.sufficient_variance(signed, clip),
        epsilon=spent_by(policy, effective, q, policy.steps),
        epsilon_replace=spent_by(policy, effective, q, policy.steps, replace=True),
        epsilon_with_redo=spent_by(policy, effective, q, policy.steps + policy.redo_steps),
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


def _reach(policy: Policy, rule: ClassRule, names: tuple[str, ...]) -> tuple[str, tuple[str, ...], float, float]:
    return rule.name, names, float(rule.sampling_rate), float(rule.sampling_rate * policy.steps)


def _class_plan(policy: Policy, rule: ClassRule, names: tuple[str, ...], blocks: list[BlockPlan], hasty: bool) -> ClassPlan:
    stds = [block.std for block in blocks if block.name in names]
    preset = bound_plan(policy, rule, rule.noise_multiplier_micro, rule.clip_norm_micro, stds, hasty=hasty)
    return ClassPlan(*_reach(policy, rule, names), preset)
