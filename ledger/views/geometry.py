"""Tells the geometry of a run in numbers: its pairs of LoRA factors and their ranks, and the energy of the noise per block."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attest.schedule.geometry import energies_of
from attest.schema.cards import card_of
from ledger.leaves import Header


@dataclass(frozen=True, slots=True)
class RankRow:
    """Counts the pairs of one rank."""

    rank: int
    pairs: int

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class TangentBlock:
    """Tells of a block that is noised, and in which pairs lie.

    An energy is the expected squared norm of the noise of one step, on the sum of clipped gradients, in the phase of scale 1.

    Attributes:
        std: standard deviation of the noise of every coordinate, as in the schedule.
        pairs: how many pairs lie in it.
        coordinates: all coordinates of the block, as many as those of its tensors: these are clipped, summed and noised.
        dimensions: what is left of them once the tangents of its pairs are projected, at pairs of full rank.
        factor_energy: std^2 for each of the coordinates: the energy of the same noise on the factors.
        energy: std^2 for each of the dimensions.
    """

    name: str
    std: float
    pairs: int
    coordinates: int
    dimensions: int
    factor_energy: float
    energy: float

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class GeometryFacts:
    """Tells the geometry of a run.

    Attributes:
        rule: the rule by which frames follow from pairs: that the trainer keeps it is its word.
        pairs: how many there are; which follows from the signed policy and the names of the stack.
        ranks: pairs by rank, ascending: the trainer's word.
        blocks: the blocks with pairs that are noised, in the header's order.
        sentence: all of that in one line.
    """

    rule: str
    pairs: int
    ranks: tuple[RankRow, ...]
    blocks: tuple[TangentBlock, ...]
    sentence: str

    _repr_html_ = card_of


def geometry_of(header: Header) -> GeometryFacts | None:
    """Returns the geometry of a run in numbers; None where its policy has none."""
    if header.geometry is None:
        return None
    blocks = []
    for found in energies_of(header.pairs, header.blocks):
        block = header.blocks[found.block]
        if block.std:
            sizes = (block.std, found.pairs, found.coordinates, found.energy)
            energies = (block.std**2 * found.coordinates, block.std**2 * found.energy)
            blocks.append(TangentBlock(block.name, *sizes, *energies))
    counts = sorted(Counter(pair.rank for pair in header.pairs).items())
    ranks, rule = tuple(RankRow(*row) for row in counts), header.geometry.rule
    return GeometryFacts(rule, len(header.pairs), ranks, tuple(blocks), _sentence(rule, ranks, blocks))


def _sentence(rule: str, ranks: Iterable[RankRow], blocks: Sequence[TangentBlock]) -> str:
    told = ", ".join(f"{row.pairs:,} of rank {row.rank:,}" for row in ranks)
    told = f"pairs of LoRA factors: {told}; frames by {rule}"
    before = sum(block.factor_energy for block in blocks)
    if not before:
        return f"{told}; none of them is noised"
    share = sum(block.energy for block in blocks) / before
    return f"{told}; noise energy of their blocks: {share:.1%} of that of the same noise on the factors"
