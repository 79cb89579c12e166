"""Where rows lie in a draw is learnt from two numbers of rows; what two shapes leave open is refused."""

import pytest

torch = pytest.importorskip("torch")
from dptrain.sandbox.draws import Request  # noqa: E402
from dptrain.sandbox.learnt import SHARED, Layout, Layouts  # noqa: E402

PLACE = ("m", 0)


def learn(first: tuple[int, ...] | None, second: tuple[int, ...] | None, kinds=("keep", "keep")) -> Layouts:
    layouts = Layouts()
    for rows, shape, kind in ((3, first, kinds[0]), (2, second, kinds[1])):
        layouts.watch()
        if shape is not None:
            layouts.see(PLACE, rows, Request(kind, (0.9,), torch.Size(shape), torch.float32, torch.device("cpu")))
    layouts.decide()
    return layouts


@pytest.mark.parametrize(
    ("first", "second", "layout"),
    [
        ((3, 4, 7, 7), (2, 4, 7, 7), Layout(0)),  # attention on a processor
        ((12, 7, 7), (8, 7, 7), Layout(0, 4)),  # torch's own attention: rows times heads
        ((7, 3, 8), (7, 2, 8), Layout(1)),  # a recurrent network
        ((7, 8, 3), (7, 8, 2), Layout(2)),
        ((3, 3, 3), (2, 3, 3), Layout(0)),  # a length that happens to be the number of rows
        ((), (), SHARED),  # whether to skip a layer
        ((7, 8), (7, 8), SHARED),
    ],
)
def test_the_dimension_of_the_rows_is_the_one_that_grows_with_them(first, second, layout: Layout) -> None:
    layouts = learn(first, second)
    assert layouts.of(PLACE) == layout and not layouts.refused
    (asked,) = layouts.expected(5).values()
    expected = tuple(5 * layout.each if d == layout.dim else size for d, size in enumerate(first))
    assert asked.shape == expected and layout.fits(expected, 5)
    assert layout == SHARED or not layout.fits(expected, 4)


@pytest.mark.parametrize(
    ("first", "second", "seen"),
    [
        ((3, 3, 8), (2, 2, 8), "3x3x8 for 3 rows and 2x2x8 for 2"),  # rows against rows
        ((11, 8), (8, 8), "11x8 for 3 rows"),  # tokens that were routed here
        ((9, 8), (4, 8), "9x8 for 3 rows"),  # the square of the rows
        ((3, 8), (2, 8, 1), "3x8 for 3 rows"),
        ((3, 8), None, "not for another number"),
        ((1, 8), (2, 8), "1x8 for 3 rows"),
    ],
)
def test_what_two_shapes_leave_open_has_no_layout(first, second, seen: str) -> None:
    layouts = learn(first, second)
    assert layouts.of(PLACE) is None and seen in layouts.refused[PLACE] and not layouts.expected(5)


def test_a_draw_of_another_kind_at_the_same_place_has_no_layout() -> None:
    assert learn((3, 8), (2, 8), ("keep", "normal")).of(PLACE) is None


def test_row_shape_is_what_one_row_has() -> None:
    assert Layout(1, 4).row_shape((5, 12, 2)) == (5, 4, 2)
