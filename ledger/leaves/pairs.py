"""Says in a header which pairs of LoRA factors have the geometry of the policy, and holds that to policy and stack."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attest.policy import Policy
from attest.schedule.blocks import StackBlock
from attest.schedule.geometry import FRAMES, GEOMETRY, Pair, pairs_of
from attest.schedule.stack import Stack
from attest.schema import declared
from attest.schema.quick import Array, OneOf, Row
from ledger.errors import LeafRefused
from ledger.leaves.kinds import ABOVE_0, UINT, Checked, as_leaf


@dataclass(frozen=True, slots=True)
class PairRow(Checked):
    """Names two LoRA factors that move along the tangent space of their product."""

    CDDL: ClassVar = "pair"
    a: int = declared(1, UINT, "Place of the tensor `lora_B` among the parameters of the stack.")
    b: int = declared(2, UINT, "Place of its partner `lora_A`.")
    rank: int = declared(3, ABOVE_0, "Rank of the pair, which divides the coordinates of both: the trainer's word.")


@dataclass(frozen=True, slots=True)
class Geometry(Checked):
    """Says the pairs of the run that have the geometry of the policy, and by which rule their frames follow from them."""

    CDDL: ClassVar = "geometry"
    rule: str = declared(
        1,
        OneOf((FRAMES,), GEOMETRY),
        "Frames are orthonormal bases of the column spaces of the two factors, as these are at the start of a step, and have as"
        " many columns as the rank that they have there. In a step in which a factor has a rank above 0 and below that of its"
        " pair, the pair keeps the coordinates of its factors. That the trainer does so is its word.",
    )
    pairs: tuple[PairRow, ...] = declared(
        2, Array(Row(PairRow), 1), "The pairs: exactly those that follow from policy and stack, in their order."
    )

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "Geometry | None":
        """Returns what a header says of these pairs; None without any."""
        return cls(FRAMES, tuple(PairRow(pair.a, pair.b, pair.rank) for pair in pairs)) if pairs else None


def check_pairs(geometry: Geometry | None, policy: Policy, stack: Stack, blocks: Sequence[StackBlock]) -> tuple[Pair, ...]:
    """Returns the pairs under the geometry of a policy.

    Guarantee: on return a header says pairs exactly where its policy has a geometry, and they are those of
    `attest.schedule.geometry.pairs_of` in their order, with the ranks that it says.

    Args:
        geometry: what the header says. blocks: those of policy and stack.

    Raises:
        LeafRefused: code GEOMETRY, the header says others, or there are none as the policy has them.
    """
    rows = () if geometry is None else geometry.pairs
    if (geometry is None) != (not policy.geometry):
        found = "says pairs, and the policy has no geometry" if rows else "says no pairs, and the policy has a geometry"
        raise LeafRefused(GEOMETRY, f"the header {found}; they stand exactly where the policy has one")
    tensors = stack.tensors
    for row in rows:
        if max(row.a, row.b) >= len(tensors):
            place = f"a pair lies at {row.a} and {row.b} of the stack"
            raise LeafRefused(GEOMETRY, f"{place}, which has {len(tensors)} parameters; expected places below that")
    with as_leaf():
        pairs = pairs_of(policy, stack, {tensors[row.a].names[0]: row.rank for row in rows}, blocks)
    told, said = [(pair.a, pair.b) for pair in pairs], [(row.a, row.b) for row in rows]
    if told != said:
        raise LeafRefused(GEOMETRY, f"the header says the pairs {said!r:.200}, policy and stack give {told!r:.200}")
    return pairs
