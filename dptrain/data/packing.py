"""From a draw to microbatches: a pure function of public shapes and of who was drawn.

Shape letters: a microbatch has N contributions of M rows each; a row is one example, or fills up.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Drawn:
    """One drawn contribution: its slot, the lowest depth that it may touch, the number of its examples, its public length, and
    the number of what its class reads; all public."""

    slot: int
    depth: int
    examples: int
    length: int | None = None
    reads: int = 0


@dataclass(frozen=True)
class Planned:
    """One microbatch.

    Attributes:
        slots: the contributions in it; several that fit whole, or one.
        examples: M, rows per contribution.
        fill: further contributions of M rows that only fill up the shape; they repeat another one and may touch nothing.
        part: where one contribution is spread over several microbatches, the examples [start, stop) that this one holds.
        last: whether its contributions end here; False for every part but the last.
        length: the public length of its contributions.
        idle: whether nothing of it counts: it keeps a rank in step with others that have more microbatches, over the rows of
            one of theirs.
        reach: blocks that a contribution of this microbatch, or of that of another rank at the same place, may touch; None
            where ranks go different ways.
        reads: number of what the classes of its contributions read, one for all of them.
    """

    slots: tuple[int, ...]
    examples: int
    fill: int = 0
    part: tuple[int, int] | None = None
    last: bool = True
    length: int | None = None
    idle: bool = False
    reach: frozenset[int] | None = None
    reads: int = 0

    @property
    def rows(self) -> int:
        """Rows that the model sees."""
        return (len(self.slots) + self.fill) * self.examples


def plan(drawn: Sequence[Drawn], contributions: int, rows: int | None = None, *, fill: bool = False) -> list[Planned]:
    """Splits a draw into microbatches: those that read alike, the longest contributions first, and those of one length in the
    order of the lowest depth that they may touch.

    Guarantee: every contribution is in exactly one microbatch, whole, or in consecutive ones of its own that hold each of its
    examples once; no microbatch has more rows than ``rows`` nor more contributions than ``contributions``. Contributions of
    different public lengths never share a microbatch, so that the length of a row is its own; nor do those whose classes read
    different parts of the model, and how these are split does not follow from one another. Which shapes there are follows from
    public numbers of who was drawn.

    Args:
        drawn: in any order; the order of equals is that of their slots. contributions: the most in one microbatch.
        rows: the most rows in one microbatch, a matter of memory; None for no limit.
        fill: let the shape in which a contribution is processed follow from itself alone, not from who else was drawn: rows
            per contribution are the next power of two above its examples, contributions of other sizes are kept apart, and
            every microbatch is filled up to as many contributions as its row size allows.
    """
    if contributions < 1 or (rows is not None and rows < 1):
        raise ValueError(f"a microbatch of {contributions} contributions and {rows} rows holds nothing; both must be 1 or more")
    order = sorted(drawn, key=in_order)

    def width(item: Drawn) -> int:
        """Rows that a contribution takes up."""
        if not fill:
            return item.examples
        return min(1 << (item.examples - 1).bit_length(), rows or item.examples << 1)

    planned: list[Planned] = []
    waiting: list[Drawn] = []
    largest = first = 0  # rows that the widest of those waiting takes up, and the first of them

    def room(examples: int) -> int:
        return contributions if rows is None else min(contributions, rows // examples)

    def close() -> None:
        if waiting:
            missing = room(largest) - len(waiting) if fill else 0
            slots = tuple(item.slot for item in waiting)
            planned.append(Planned(slots, largest, missing, length=waiting[0].length, reads=waiting[0].reads))
            waiting.clear()

    for item in order:
        if waiting and (item.reads, item.length) != (waiting[0].reads, waiting[0].length):
            close()
        if rows is not None and item.examples > rows:
            close()
            planned += _spread(item, rows)
            continue
        own = width(item)
        if waiting and (len(waiting) + 1 > room(max(own, largest)) or (fill and own != first)):
            close()
        largest, first = (max(own, largest), first) if waiting else (own, own)
        waiting.append(item)
    close()
    return planned


def in_order(item: Drawn) -> tuple[int, int, int, int, int]:
    """Sorts contributions as :func:`plan` takes them: those that read alike together, the longest first, then by the lowest
    depth that they may touch."""
    return item.reads, -(item.length or 0), item.depth, item.examples, item.slot


def by_reads(drawn: Sequence[Drawn]) -> list[list[Drawn]]:
    """Returns those drawn by what their classes read; which of them stand together follows from no other."""
    found: dict[int, list[Drawn]] = {}
    for item in drawn:
        found.setdefault(item.reads, []).append(item)
    return [found[reads] for reads in sorted(found)]


def dealt(planned: Sequence[Planned], rank: int, ranks: int) -> list[Planned]:
    """Returns the microbatches of one rank, dealt in turns; those that hold parts of one contribution go to one rank."""
    units: list[list[Planned]] = [[]]
    for one in planned:
        units[-1].append(one)
        if one.last:
            units.append([])
    return [one for unit in units[rank::ranks] for one in unit]


def in_step(
    plans: Sequence[Sequence[Planned]], rank: int, blocks_of: Callable[[Planned], Iterable[int]] | None = None
) -> list[Planned]:
    """Returns the microbatches of one rank, as many as the rank with the most has.

    Guarantee: every rank runs the same number of microbatches, also of an empty draw; what a rank has too few of is made up by
    idle ones, over rows of the first rank that has one at that place.

    Args:
        plans: the microbatches of every rank, each a function of the draw.
        blocks_of: the blocks that the contributions of a microbatch may touch, where all ranks must go as deep as the one that
            goes deepest, since they gather parameters together.
    """
    own = list(plans[rank])
    for place in range(len(own), max(map(len, plans))):
        like = next(other[place] for other in plans if place < len(other))
        own.append(replace(like, idle=True))
    if blocks_of is None:
        return own
    reach = [frozenset(g for other in plans if k < len(other) for g in blocks_of(other[k])) for k in range(len(own))]
    return [replace(one, reach=blocks) for one, blocks in zip(own, reach, strict=True)]


def _spread(item: Drawn, rows: int) -> Iterator[Planned]:
    """Parts of nearly equal size, each brought to the same number of rows."""
    count = -(-item.examples // rows)
    size = -(-item.examples // count)
    for start in range(0, item.examples, size):
        stop = min(start + size, item.examples)
        own = {"length": item.length, "reads": item.reads}
        yield Planned((item.slot,), size, part=(start, stop), last=stop == item.examples, **own)
