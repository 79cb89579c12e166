"""Lays a policy over a stack of layers without a model: its blocks, who may touch them, and the noise on each.

The stack is a number of layers then: blocks `embeddings`, `layer.0` ... `layer.N-1`, `head`. A class bound to name patterns
or to an adapter gets blocks of those names; whether they overlap with layers only a model can tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attest import schedule
from attest.policy import ClassRule, DepthRule, Policy
from attest.schedule import allocation
from attest.schedule.blocks import layers_of, permits_embeddings, permits_head
from attest.schedule.stack import numbers
from attest.schema.cards import card_of
from dptrain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One block: its noise standard deviation on the sum of clipped gradients, and the classes that may touch it.

    The noise is 0 where only public classes may. Steps of a phase have its scale times as much. `share` is the weight by which
    clip norms are divided among blocks, in 1e-6; 0 where the policy has no budgets, or only public classes touch the block.
    Blocks count as equally large until a model is seen.
    """

    name: str
    std: float
    classes: tuple[str, ...]
    share: int = 0
    coordinates: int = 1

    _repr_html_ = card_of


def lay_out(policy: Policy, layers: int) -> tuple[dict[str, tuple[str, ...]], list[BlockPlan]]:
    """Returns the blocks that each class may touch, and the noise on every block that any class may touch."""
    touched = _divided(policy, {rule.name: touched_blocks(rule, layers) for rule in policy.classes})
    order = dict.fromkeys([*stack(layers), *(block for blocks in touched.values() for block in blocks)])
    blocks = []
    for block in order:
        users = tuple(name for name, names in touched.items() if block in names)
        if users:
            std = schedule.scheduled_std(map(policy.class_rule, users))
            blocks.append(BlockPlan(block, std, users, _share(policy, block) if std else 0))
    if policy.noise_budgets is not None:
        stds = allocation.budget_stds(policy.classes, blocks).stds
        blocks = [replace(block, std=std) for block, std in zip(blocks, stds, strict=True)]
    return touched, blocks


def _share(policy: Policy, block: str) -> int:
    """Returns the weight of a block in the budgets, 0 without any; until a model is seen, blocks by name count as layers."""
    if policy.noise_budgets is None:
        return 0
    return allocation.share_of([block if block in ("embeddings", "head") else "layers"], policy.noise_budgets)


def stack(layers: int) -> tuple[str, ...]:
    """Returns the blocks of a stack, input side first."""
    return ("embeddings", *(f"layer.{index}" for index in range(layers)), "head")


def touched_blocks(rule: ClassRule, layers: int) -> tuple[str, ...]:
    """Returns the blocks that a class may touch, in the order of the stack.

    A band from a to b covers layers floor(a N) up to but not including ceil(b N); the embeddings belong to it if a is 0
    and the head if b is 1, unless the rule says otherwise. Listed layers bring neither unless the rule says so.

    Raises:
        ConfigError: Code LAYERS if the class names a layer that the stack does not have.
    """
    depth = rule.depth
    indices = sorted(layers_of(depth, layers))
    if indices and max(indices) >= layers:
        raise ConfigError(
            "LAYERS", f"class {rule.name} names layer {max(indices)}, the stack has {layers}; give the model's --layers"
        )
    if depth.patterns is not None:
        return tuple(f"set {pattern}" for pattern in depth.patterns)
    if depth.adapter is not None:
        return (f"adapter {depth.adapter}",)
    below = ("embeddings",) if permits_embeddings(depth) else ()
    above = ("head",) if permits_head(depth) else ()
    return (*below, *(f"layer.{index}" for index in indices), *above)


def needs_model(policy: Policy) -> bool:
    """Tells whether some multiplier depends on what only a model tells.

    Where parameters of patterns, an adapter, heads or experts lie, or with budgets how large blocks are.
    """
    if policy.noise_budgets is not None:
        return True
    return any(rule.depth.kind in ("set", "adapter") or bool(_masks(rule.depth)) for rule in policy.classes)


def _masks(depth: DepthRule) -> dict[str, tuple[int, ...]]:
    """Returns the masks of a rule, by what they mask."""
    return {what: own for what, own in (("heads", depth.heads), ("experts", depth.experts)) if own is not None}


def _divided(policy: Policy, touched: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Adds what masks divide of a layer, as blocks of their own.

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


def sure_stds(policy: Policy, rule: ClassRule, blocks: Sequence[BlockPlan]) -> list[float]:
    """Returns, per phase, the noise that a class is sure of over the blocks that it may touch, before a model is seen.

    The smallest of the blocks. With budgets it is sigma_k C_k: the programme gives every class at least that whatever the sizes
    of blocks are, and what it gives beyond depends on them.
    """
    least = min(block.std for block in blocks)
    if policy.noise_budgets is not None:
        least = schedule.block_std([rule.bounds])
    return [schedule.phase_std(least, scale) for scale in schedule.Phases.of(policy).scales]


def kind(block: str) -> str:
    """Tells of what kind a block is: whole layers are of one kind, anything else stands for itself."""
    return "layer" if block.startswith("layer.") and block[6:].isdigit() else block


def span(names: Sequence[str]) -> str:
    """Names neighbouring layers in few words."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1].removeprefix('layer.')}"


def span_of(blocks: Sequence[str]) -> str:
    """Names the blocks of a class in few words: runs of layers, and everything else by name."""
    parts: list[list[str]] = []
    for block in blocks:
        if parts and kind(block) == "layer" == kind(parts[-1][-1]) and int(block[6:]) == int(parts[-1][-1][6:]) + 1:
            parts[-1].append(block)
        else:
            parts.append([block])
    return ", ".join(span(part) for part in parts)
