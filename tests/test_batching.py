"""The split of a draw into microbatches: whole, ordered, within its limits, and a function of public shapes."""

import itertools
import random

import pytest

from dptrain.data.packing import Drawn, Planned, by_reads, in_order, plan


def test_whole_contributions_are_taken_in_order_of_depth() -> None:
    drawn = [Drawn(5, 2, 1), Drawn(1, 0, 1), Drawn(9, 0, 1), Drawn(2, 2, 1), Drawn(3, -1, 1)]
    assert [p.slots for p in plan(drawn, 2)] == [(3, 1), (9, 2), (5,)]
    assert plan([], 4, 8) == []


def test_a_contribution_with_more_rows_than_fit_has_consecutive_microbatches_of_its_own() -> None:
    planned = plan([Drawn(0, 0, 2), Drawn(1, 0, 7), Drawn(2, 1, 1)], 4, 3)
    assert planned == [
        Planned((0,), 2),
        Planned((1,), 3, part=(0, 3), last=False),
        Planned((1,), 3, part=(3, 6), last=False),
        Planned((1,), 3, part=(6, 7), last=True),
        Planned((2,), 1),
    ]


def test_parts_are_of_nearly_equal_size() -> None:
    planned = plan([Drawn(0, 0, 10)], 4, 8)
    assert [(p.examples, p.part) for p in planned] == [(5, (0, 5)), (5, (5, 10))]


def test_when_filling_the_shape_of_a_contribution_follows_from_itself_alone() -> None:
    """Or the integers of others would show, at the level certified, whether one that is larger or smaller was drawn."""

    def shape_of(slot: int, drawn: list[Drawn]) -> tuple[int, int]:
        return next((p.rows, p.examples) for p in plan(drawn, 4, 16, fill=True) if slot in p.slots)

    sizes = (1, 2, 3, 5, 8, 9, 16, 16, 1, 4)
    everybody = [Drawn(i, i % 2, size) for i, size in enumerate(sizes)]
    for one in everybody:
        alone = shape_of(one.slot, [one])
        others = [other for other in everybody if other is not one]
        assert all(shape_of(one.slot, [d for d in everybody if d is not other]) == alone for other in others)
        assert shape_of(one.slot, everybody) == alone


def test_filling_gives_one_shape_for_one_size() -> None:
    planned = plan([Drawn(i, 0, 1) for i in range(5)], 4, fill=True)
    assert [(p.slots, p.fill, p.rows) for p in planned] == [((0, 1, 2, 3), 0, 4), ((4,), 3, 4)]
    assert [p.rows for p in plan([Drawn(i, 0, 3) for i in range(3)], 8, 7, fill=True)] == [4, 4, 4]


@pytest.mark.parametrize("seed", range(200))
def test_every_example_is_planned_once_within_the_limits(seed: int) -> None:
    rng = random.Random(seed)
    drawn = [Drawn(slot, rng.randint(-1, 3), rng.choice([1, 1, 2, 3, 9, 40])) for slot in range(rng.randint(0, 30))]
    rng.shuffle(drawn)
    contributions, rows, fill = rng.randint(1, 9), rng.choice([None, 1, 2, 5, 16]), rng.random() < 0.5
    planned = plan(drawn, contributions, rows, fill=fill)
    assert planned == plan(drawn[::-1], contributions, rows, fill=fill), "the order of a draw must not matter"
    size = {item.slot: item.examples for item in drawn}
    depth = {item.slot: item.depth for item in drawn}
    seen: dict[int, list[tuple[int, int]]] = {}
    for p in planned:
        assert 1 <= len(p.slots) + p.fill <= contributions
        assert rows is None or p.rows <= rows
        if p.part is None:
            widest = max(size[slot] for slot in p.slots)
            assert p.last and (widest <= p.examples < 2 * widest if fill else p.examples == widest)
        else:
            assert len(p.slots) == 1 and p.fill == 0 and 0 < p.part[1] - p.part[0] <= p.examples
            assert p.last == (p.part[1] == size[p.slots[0]])
        for slot in p.slots:
            seen.setdefault(slot, []).append(p.part or (0, size[slot]))
    assert seen.keys() == size.keys()
    for slot, parts in seen.items():
        assert parts[0][0] == 0 and parts[-1][1] == size[slot]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts)), "parts lie one after the other"
    order = [slot for p in planned for slot in p.slots]
    assert [depth[slot] for slot in order] == sorted(depth[slot] for slot in order)
    for slot, parts in seen.items():
        first = order.index(slot)
        assert order[first : first + len(parts)] == [slot] * len(parts), "nothing comes between the parts of a contribution"


def planned_slowly(drawn: list[Drawn], contributions: int, rows: int | None, *, fill: bool) -> list[tuple[int, ...]]:
    """The slots of each microbatch of whole contributions, with the widths of all who wait looked at for everybody."""

    def width(item: Drawn) -> int:
        return item.examples if not fill else min(1 << (item.examples - 1).bit_length(), rows or item.examples << 1)

    found: list[list[Drawn]] = [[]]
    for item in sorted(drawn, key=lambda item: (item.depth, item.examples, item.slot)):
        if rows is not None and item.examples > rows:
            found += [[]]
            continue
        widest = max(map(width, [*found[-1], item]))
        room = contributions if rows is None else min(contributions, rows // widest)
        if found[-1] and (len(found[-1]) == room or room < 1 + len(found[-1]) or (fill and width(item) != width(found[-1][0]))):
            found += [[]]
        found[-1].append(item)
    return [tuple(item.slot for item in each) for each in found if each]


@pytest.mark.parametrize("seed", range(200))
def test_microbatches_are_those_of_a_plan_that_looks_at_everybody(seed: int) -> None:
    rng = random.Random(seed)
    drawn = [Drawn(slot, rng.randint(-1, 3), rng.choice([1, 1, 2, 3, 9, 40])) for slot in range(rng.randint(0, 60))]
    contributions, rows, fill = rng.randint(1, 9), rng.choice([None, 1, 2, 5, 16]), rng.random() < 0.5
    planned = plan(drawn, contributions, rows, fill=fill)
    assert [p.slots for p in planned if p.part is None] == planned_slowly(drawn, contributions, rows, fill=fill)


def test_no_room_is_an_error() -> None:
    for contributions, rows in ((0, None), (1, 0)):
        with pytest.raises(ValueError, match="holds nothing"):
            plan([], contributions, rows)


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_how_those_who_read_alike_are_split_does_not_follow_from_who_else_was_drawn(seed: int, fill: bool) -> None:
    chance = random.Random(seed)

    def drawn(reads: int, count: int) -> list[Drawn]:
        return [
            Drawn(1000 * reads + slot, chance.randrange(4), chance.randrange(1, 9), chance.choice([None, 8]), reads)
            for slot in range(count)
        ]

    own, others = drawn(1, 1 + chance.randrange(12)), drawn(0, chance.randrange(12)) + drawn(2, chance.randrange(12))
    everybody, rows = chance.sample(own + others, len(own + others)), chance.choice([None, 6])
    together = plan(everybody, 4, rows, fill=fill)
    assert all({slot // 1000 for slot in one.slots} == {one.reads} for one in together), "nobody shares with another"
    assert [one for one in together if one.reads == 1] == plan(own, 4, rows, fill=fill)
    for rank in range(2):
        mine, alone = (
            [made for alike in by_reads(some) for made in plan(sorted(alike, key=in_order)[rank::2], 4, rows)]
            for some in (everybody, own)
        )
        assert [one for one in mine if one.reads == 1] == alone
