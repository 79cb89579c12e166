"""Says in a header which blocks the forward of each class reads, and holds that to policy and stack."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attest.policy import Policy
from attest.schedule.blocks import StackBlock
from attest.schedule.reads import FORWARDS, READS, narrows, read_blocks
from attest.schedule.stack import Stack
from attest.schema import declared
from attest.schema.quick import Array, OneOf, Row
from ledger.errors import LeafRefused
from ledger.leaves.kinds import ID, UINT, Checked, as_leaf


@dataclass(frozen=True, slots=True)
class ClassReads(Checked):
    """Names the blocks that the forward of a class reads."""

    CDDL: ClassVar = "class-reads"
    name: str = declared(1, ID, "Name of the class.")
    blocks: tuple[int, ...] = declared(2, Array(UINT, 1), "Places of the blocks, ascending.")


@dataclass(frozen=True, slots=True)
class Reads(Checked):
    """Says what the forward of each class reads, and by which rule it reads nothing else."""

    CDDL: ClassVar = "reads"
    rule: str = declared(
        1,
        OneOf((FORWARDS,), READS),
        "Contributions of classes that read alike run in microbatches of their own, in which every adapter that they do not"
        " read is switched off. That the trainer does so is its word.",
    )
    classes: tuple[ClassReads, ...] = declared(
        2, Array(Row(ClassReads), 1), "The classes in the policy's order: exactly what follows from policy and stack."
    )

    @classmethod
    def of(cls, policy: Policy, stack: Stack, blocks: Sequence[StackBlock]) -> "Reads | None":
        """Returns what a header says of these blocks; None where every class reads all of them. Raises ValueRefused: as
        `attest.schedule.reads.read_blocks`."""
        if not narrows(policy.classes):
            return None
        found = zip(policy.classes, read_blocks(policy.classes, stack, blocks), strict=True)
        return cls(FORWARDS, tuple(ClassReads(rule.name, own) for rule, own in found))


def check_reads(reads: Reads | None, policy: Policy, stack: Stack, blocks: Sequence[StackBlock]) -> dict[str, frozenset[int]]:
    """Returns the places of the blocks that the forward of each class reads.

    Guarantee: on return a header says reads exactly where a class of its policy has them, and they are those of
    `attest.schedule.reads.read_blocks`. Without any, every class reads every block.

    Args:
        reads: what the header says. blocks: those of policy and stack.

    Raises:
        LeafRefused: code READS, the header says others, or they do not fit policy and stack.
    """
    with as_leaf():
        expected = Reads.of(policy, stack, blocks)
    if (reads is None) != (expected is None):
        found = "reads, and no class of the policy has any" if reads else "no reads, and a class of the policy has them"
        raise LeafRefused(READS, f"the header says {found}; they stand exactly where the policy has them")
    if reads is None or expected is None:
        return dict.fromkeys((rule.name for rule in policy.classes), frozenset(range(len(blocks))))
    if [row.name for row in reads.classes] != [row.name for row in expected.classes]:
        told = [row.name for row in reads.classes]
        raise LeafRefused(READS, f"the header says reads of {told!r:.200}, expected every class of the policy in its order")
    for row, due in zip(reads.classes, expected.classes, strict=True):
        if row != due:
            raise LeafRefused(
                READS, f"class {row.name} is said to read blocks {row.blocks!r:.120}, policy and stack give {due.blocks!r:.120}"
            )
    return {row.name: frozenset(row.blocks) for row in reads.classes}
