"""Sums of tables of which few rows are read: what is kept in their place gives them to the bit, and takes less room."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain.clipping.fast import FastSums  # noqa: E402
from dptrain.gradients.forms import Dense, Gather, Outer, add_all_weighted  # noqa: E402

ROWS, WIDTH, N, T = 60, 8, 3, 4


def sums_of(*shapes: tuple[int, int]) -> FastSums:
    blocks = [SimpleNamespace(std=1.0, share=0)]
    tensors: Any = [(0, SimpleNamespace(shape=torch.Size(shape), parameter=torch.zeros(shape))) for shape in shapes]
    schedule: Any = SimpleNamespace(blocks=blocks, coordinates=1)
    return FastSums(schedule, tensors, torch.float32)


def gathered(generator: torch.Generator) -> Gather:
    ids, sizes = torch.randint(ROWS, (N, T), generator=generator), 10.0 ** torch.randint(-6, 7, (N, 1, 1), generator=generator)
    return Gather(ids, sizes * torch.randn(N, T, WIDTH, generator=generator))


def pieces(generator: torch.Generator, kinds: str) -> list[Any]:
    made = {
        "g": lambda: gathered(generator),
        "d": lambda: Dense(torch.randn(N, ROWS, WIDTH, generator=generator)),
        "o": lambda: Outer(torch.randn(N, T, WIDTH, generator=generator), torch.randn(N, T, ROWS, generator=generator)),
    }
    return [made[kind]() for kind in kinds]


@pytest.mark.parametrize("kinds", ["g", "ggg", "gdg", "ggog", "dg", "g" * 40, "g" * 30 + "dg"])
def test_a_table_is_the_sum_of_its_rows_to_the_bit(kinds: str) -> None:
    generator = torch.Generator().manual_seed(len(kinds))
    sums = sums_of((ROWS, WIDTH), (ROWS, WIDTH))
    for _ in range(2):  # of the step before nothing is left
        true = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
        for piece in pieces(generator, kinds):
            weight = torch.rand(N, generator=generator, dtype=torch.float64)
            add_all_weighted([([piece], weight, true)])
            sums.accumulate({0: [piece]}, weight[:, None])
        found, other = sums.take()
        assert torch.equal(found, true) and not bool(other.any())


def test_rows_are_kept_while_they_take_a_quarter_of_the_room_of_the_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    sums, weight = sums_of((ROWS, WIDTH)), torch.ones(N, 1, dtype=torch.float64)
    for _ in range(ROWS * WIDTH // 2 // (N * T * WIDTH)):
        sums.accumulate({0: [gathered(generator)]}, weight)
        kept = sum(rows.numel() * rows.element_size() for _, rows in sums._tables[0]._added)
        assert sums._sums == [None] and kept <= ROWS * WIDTH * 8 // 4
    for _ in range(2):
        sums.accumulate({0: [gathered(generator)]}, weight)
        assert sums._sums != [None] and not sums._tables


def test_rows_of_double_precision_are_added_at_once() -> None:
    generator = torch.Generator().manual_seed(1)
    sums, piece = sums_of((ROWS, WIDTH)), gathered(generator)
    sums.accumulate({0: [Gather(piece.ids_NT, piece.b_NTD.double())]}, torch.ones(N, 1, dtype=torch.float64))
    assert sums._sums != [None]


def test_where_ranks_keep_parts_of_sums_every_microbatch_hands_its_own_on() -> None:
    generator = torch.Generator().manual_seed(2)
    sums, handed = sums_of((ROWS, WIDTH)), []
    sums.sink = SimpleNamespace(add=lambda index, total: handed.append(total), flush=lambda: None)  # type: ignore[assignment]
    for piece in pieces(generator, "gg"):
        weight = torch.rand(N, generator=generator, dtype=torch.float64)
        true = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
        piece.add_weighted(weight, true)
        sums.accumulate({0: [piece]}, weight[:, None])
        sums.drain([0])
        assert torch.equal(handed.pop(), true)
