"""The resolver: from an admission to its noise schedule and depth profile, as a pure function of its class.

Binds the signed policy to the tensors of one model. A *block* is a set of tensors that every class either may touch or
may not; its noise standard deviation is the smallest that honours every class that may touch it (docs/mechanism.md).
"""

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from attest.gate import Admission
from attest.policy import DepthRule, Policy
from attest.schedule import block_std, effective_multiplier, sufficient_variance
from dptrain.depth import EMBEDDINGS, HEAD, LayerStack, Tensor, position_name
from dptrain.errors import UnsupportedPolicy


@dataclass(frozen=True)
class Block:
    """Tensors masked as one. ``std`` is s_l, the noise standard deviation on the SUM of clipped gradients."""

    name: str
    positions: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    classes: tuple[str, ...]
    std: float

    @property
    def coordinates(self) -> int:
        return sum(tensor.coordinates for tensor in self.tensors)


@dataclass(frozen=True)
class Resolution:
    """What one admission may do: its profile (indices of blocks) and the noise it is protected by.

    ``multiplier`` is the effective z of the contribution, ``variance`` the sufficient variance v_i = (sigma_i C_i)^2: the
    floor that privacy needs on every permitted block, and the ceiling on the noise this contribution may force.
    """

    class_name: str
    profile: tuple[int, ...]
    stds: tuple[float, ...]
    clip_norm: float
    noise_multiplier: float
    multiplier: float
    variance: float


@dataclass(frozen=True)
class Schedule:
    """The policy bound to a model: blocks in order of depth, and each class's profile.

    Guarantee: for every class k and every block l of its profile, ``std_l >= sigma_k * C_k``; so a contribution clipped
    to its signed bounds is protected at its signed noise multiplier or better (docs/mechanism.md, Theorem 1).
    """

    stack: LayerStack
    blocks: tuple[Block, ...]
    profiles: dict[str, tuple[int, ...]]
    frozen: tuple[Tensor, ...]

    @property
    def coordinates(self) -> int:
        return sum(block.coordinates for block in self.blocks)

    def lowest_position(self, class_name: str) -> int:
        """Depth of the lowest position that a class may touch: what its backward pass costs."""
        return min(min(self.blocks[index].positions) for index in self.profiles[class_name])

    def resolve(self, admission: Admission) -> Resolution:
        """Noise schedule and depth profile of an admission; depends on its class and signed bounds alone."""
        descriptor = admission.descriptor
        profile = self.profiles[descriptor.admissibility_class]
        stds = tuple(self.blocks[index].std for index in profile)
        multiplier = effective_multiplier(descriptor.noise_multiplier_micro, descriptor.clip_norm_micro, stds)
        return Resolution(
            class_name=descriptor.admissibility_class,
            profile=profile,
            stds=stds,
            clip_norm=descriptor.clip_norm,
            noise_multiplier=descriptor.noise_multiplier,
            multiplier=multiplier,
            variance=sufficient_variance(descriptor.noise_multiplier, descriptor.clip_norm),
        )


def bind(policy: Policy, stack: LayerStack) -> Schedule:
    """Binds a policy to a layer stack.

    A tied tensor is in a profile only if every position (and, for a name set, every name) that uses it is. Tensors that no
    class may touch are returned as ``frozen``: they get no gradient, no noise and no optimizer state.

    Raises:
        UnsupportedPolicy: a profile that this build cannot honour, is out of range, or touches nothing.
    """
    permitted: dict[str, tuple[str, ...]] = {
        tensor.name: tuple(rule.name for rule in policy.classes if _permits(rule.depth, tensor, len(stack.layers)))
        for tensor in stack.tensors
    }
    groups: dict[tuple[tuple[int, ...], tuple[str, ...]], list[Tensor]] = {}
    frozen = []
    for tensor in stack.tensors:
        classes = permitted[tensor.name]
        if classes:
            groups.setdefault((tensor.positions, classes), []).append(tensor)
        else:
            frozen.append(tensor)
    presets = {rule.name: (rule.noise_multiplier_micro, rule.clip_norm_micro) for rule in policy.classes}
    blocks = []
    taken: dict[str, int] = {}
    for positions, classes in sorted(groups):
        name = "+".join(position_name(position) for position in positions)
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            name = f"{name}#{taken[name]}"
        std = block_std([presets[class_name] for class_name in classes])
        blocks.append(Block(name, positions, tuple(groups[positions, classes]), classes, std))
    profiles = {
        rule.name: tuple(index for index, block in enumerate(blocks) if rule.name in block.classes) for rule in policy.classes
    }
    for class_name, profile in profiles.items():
        if not profile:
            raise UnsupportedPolicy(
                "EMPTY_PROFILE",
                f"class {class_name!r} may touch no trainable tensor of this model ({len(stack.layers)} layers); check its "
                "depth rule and which parameters are trainable",
            )
    return Schedule(stack, tuple(blocks), profiles, tuple(frozen))


def band_layers(start: Fraction, stop: Fraction, layers: int) -> range:
    """Layers of a depth band: those whose interval [l/L, (l+1)/L) meets [start, stop)."""
    return range(math.floor(start * layers), math.ceil(stop * layers))


def _permits(rule: DepthRule, tensor: Tensor, layers: int) -> bool:
    if rule.adapter is not None:
        raise UnsupportedPolicy(
            "ADAPTER_PROFILE",
            f"the policy binds a class to adapter {rule.adapter!r}; this build routes by layers and names: freeze the base "
            "weights and give the class a band instead",
        )
    if rule.patterns is not None:
        return all(_matches(alias, rule.patterns) for alias in tensor.aliases)
    return all(_position_permitted(rule, position, layers) for position in tensor.positions)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _position_permitted(rule: DepthRule, position: int, layers: int) -> bool:
    band = rule.band
    if position == EMBEDDINGS:
        return rule.embeddings if rule.embeddings is not None else band is not None and band[0] == 0
    if position == HEAD:
        return rule.head if rule.head is not None else band is not None and band[1] == 1
    if band is not None:
        return position in band_layers(band[0], band[1], layers)
    chosen = rule.layers or ()
    if any(index >= layers for index in chosen):
        raise UnsupportedPolicy("LAYER_RANGE", f"the policy names layers {list(chosen)}; the model has {layers} layers")
    return position in chosen
