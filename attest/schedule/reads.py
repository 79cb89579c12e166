"""Says what the forward of each class reads of a model, block by block: one rule for trainer and auditor."""

from collections.abc import Sequence
from typing import Final

from attest.errors import ValueRefused
from attest.policy import ClassRule
from attest.schedule.blocks import StackBlock
from attest.schedule.stack import Stack

FORWARDS: Final = "dptrain.forwards/1"
"""The rule by which forwards read: contributions of classes that read alike run together and with nobody else, while every
adapter that they do not read is switched off."""

READS: Final = "READS"
"""Code of every refusal here."""


def narrows(classes: Sequence[ClassRule]) -> bool:
    """Tells whether some class reads less than the whole model."""
    return any(rule.reads is not None for rule in classes)


def read_blocks(classes: Sequence[ClassRule], stack: Stack, blocks: Sequence[StackBlock]) -> tuple[tuple[int, ...], ...]:
    """Returns the places of the blocks that the forward of each class reads, ascending, in the policy's order of classes.

    Guarantee: a block is left out of what a class reads only if every parameter in it belongs to an adapter that the reads of
    the class do not name, and says so in its names. A class without reads reads all blocks. A class touches no block that it
    does not read.

    Args:
        blocks: those of policy and stack (`attest.schedule.blocks.derive`).

    Raises:
        ValueRefused: code READS, the model has no adapter of a name, a class may touch what it does not read, or a parameter
            is said to be of an adapter that its name does not have.
    """
    if narrows(classes):
        _check_names(stack)
    present = {tensor.adapter for tensor in stack.tensors if tensor.adapter is not None}
    held = [frozenset(stack.tensors[piece.tensor].adapter for piece in block.pieces) for block in blocks]
    found = []
    for rule in classes:
        if rule.reads is None:
            found.append(tuple(range(len(blocks))))
            continue
        missing = [name for name in rule.reads.adapters if name not in present]
        if missing:
            there = f"it has {', '.join(sorted(present))}" if present else "it has no adapter"
            raise ValueRefused(READS, f"class {rule.name} reads adapter {missing[0]!r}, which the model does not have; {there}")
        open_to = {None, *rule.reads.adapters}
        own = tuple(place for place, adapters in enumerate(held) if not open_to.isdisjoint(adapters))
        blind = next((block for place, block in enumerate(blocks) if rule.name in block.classes and place not in own), None)
        if blind is not None:
            raise ValueRefused(
                READS,
                f"class {rule.name} may touch block {blind.name}, which its forward does not read; name the adapter in its"
                " reads, or narrow its depth",
            )
        found.append(own)
    return tuple(found)


def _check_names(stack: Stack) -> None:
    """Refuses a parameter that is of an adapter by the stack and not by each of its names: it would pass for one that others
    do not read."""
    for tensor in stack.tensors:
        if tensor.adapter is None:
            continue
        name = next((name for name in tensor.names if tensor.adapter not in name.split(".")), None)
        if name is not None:
            told = f"parameter {name} is of adapter {tensor.adapter!r} in the stack, and not by its name"
            raise ValueRefused(READS, f"{told}; where a class has reads, adapters are named as peft names them")
