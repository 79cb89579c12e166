"""Frames span what factors span, in every gauge; and a contribution is clipped by at least the norm of what it adds.

A state almost inside the frame, x = V c + 1e-6 e, is where a norm taken as a difference of two squares falls below the truth.
"""

from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.geometry import LoraTangent  # noqa: E402
from dptrain.geometry.charts import ChartedPair, Charts, charted  # noqa: E402
from dptrain.geometry.lora_tangent import TOLERANCE, frame  # noqa: E402
from dptrain.gradients.forms import Dense, Outer, norm_sq  # noqa: E402
from dptrain.parallel.ranks import Ranks  # noqa: E402
from dptrain.parallel.together import Together  # noqa: E402
from tests.geometry.points import KINDS, SHAPES, draw, point, ranks_of  # noqa: E402
from tests.reference import tangent as naive  # noqa: E402


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_is_orthonormal_spans_the_factor_and_is_made_of_it(shape: str, kind: str) -> None:
    for value, rank in zip(point(SHAPES[shape], kind), ranks_of(SHAPES[shape], kind), strict=True):
        U, P, found = frame(value)
        assert int(found) == rank and U.shape == value.shape
        inner = U.mT @ U  # the identity at full rank; else the projector onto what the columns span
        torch.testing.assert_close(inner @ inner, inner, rtol=0, atol=1e-10)
        assert abs(float(inner.trace()) - rank) < 1e-10
        torch.testing.assert_close(U @ U.mT, naive.span(value, rank), rtol=0, atol=1e-10)
        torch.testing.assert_close(value @ P, U, rtol=0, atol=1e-9)


def test_scaling_the_columns_of_a_factor_changes_no_rank() -> None:
    value = point((7, 6, 3))[0]
    for power in (-12, 0, 12):
        assert int(frame(value * 10.0 ** torch.tensor([power, 0.0, -power], dtype=torch.float64))[2]) == 3


def test_a_direction_counts_as_absent_from_single_rounding_on() -> None:
    value = point((7, 6, 3))[0].clone()
    value[:, 2] = value[:, 1]
    for size, rank in ((0.1 * TOLERANCE, 2), (10.0 * TOLERANCE, 3)):
        moved = value.clone()
        moved[:, 2] += size * draw(7, seed=1)
        assert int(frame(moved)[2]) == rank


def test_the_part_along_a_frame_is_taken_off_to_rounding_of_what_is_left() -> None:
    """Once would leave rounding of what was large: the part along V here is ten thousand times as large as the rest."""
    at = LoraTangent(*point((24, 20, 3), dtype=torch.float32))
    small = draw(20, 3, seed=1).float()
    X, Y = at.project(draw(24, 3).float(), small + 1e4 * at.V @ draw(3, 3, seed=2).float())
    assert float((at.V.mT @ Y).norm() / Y.norm()) < 2e-6 and X.shape == (24, 3)


@pytest.mark.parametrize(("kind", "lost"), [("full", False), ("zero A", False), ("zero B", False), ("A lost", True)])
def test_a_pair_whose_factor_lost_rank_without_being_zero_is_told(kind: str, lost: bool) -> None:
    assert bool(LoraTangent(*point((7, 6, 3), kind)).degenerate) is lost


# Norms of what a contribution adds.

N = 6


def of_states(dtype: torch.dtype = torch.float32, T: int = 5):
    """Returns a pair, states almost inside its frame V, and gradients of outputs."""
    A, B = point((24, 20, 3), dtype=dtype)
    V = LoraTangent(A.double(), B.double()).V
    x = draw(N, T, 3, seed=1) @ V.mT * 30.0 + 1e-6 * draw(N, T, 20, seed=2)
    return A, B, x.to(dtype), draw(N, T, 24, seed=3).to(dtype)


def coordinates_of(A, B, x, delta) -> dict[str, list]:
    """Returns pieces of X and of Y^T as a run makes them of pieces of both factors."""
    charts = Charts([ChartedPair(0, 1, torch.nn.Parameter(A), torch.nn.Parameter(B.mT.contiguous()))])
    charts.refresh(charts.computed())
    assert charts.moves(0) and charts.moves(1)
    given = {0: [Outer(x @ B, delta)], 1: [Outer(x, delta @ A)]}
    made = charts.of(given)
    shapes = {0: torch.Size(A.shape), 1: torch.Size(B.mT.shape)}
    return {name: [piece.settled(shapes[name], alone=True) for piece in made[name]] for name in made}


def added(pieces: list, shape: torch.Size) -> torch.Tensor:
    """Returns the squared norm of the gradient that pieces add, in float64, from the very numbers that are summed."""
    total = 0.0
    for piece in pieces:
        dense = isinstance(piece, Dense)
        total += piece.g.double() if dense else torch.einsum("ntp,ntd->npd", piece.b_NTP.double(), piece.a_NTD.double())
    return total.reshape(N, -1).square().sum(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("T", "form"), [(2, Outer), (5, Dense)])
def test_a_state_almost_inside_the_frame_is_clipped_by_at_least_the_norm_of_what_it_adds(
    dtype: torch.dtype, T: int, form: type
) -> None:
    A, B, x, delta = of_states(torch.float32 if dtype is torch.bfloat16 else dtype, T)
    if dtype is torch.bfloat16:
        x, delta = x.to(dtype), delta.to(dtype)
        pieces = coordinates_of(A, B, x.float(), delta.float())
    else:
        pieces = coordinates_of(A, B, x, delta)
    for place, shape in ((0, A.shape), (1, B.mT.shape)):
        assert isinstance(pieces[place][0], form)
        found, true = norm_sq(pieces[place]), added(pieces[place], shape)
        assert bool((found >= true * (1 - 2.0**-18)).all())


def test_a_norm_by_a_difference_of_squares_falls_below_what_is_added() -> None:
    """What the form does not do: <x, x'> - <V^T x, V^T x'> in float32, which the ghost norm of the design would have."""
    A, B, x, delta = of_states()
    at = LoraTangent(A, B)
    u, w = delta @ A @ at.PA, x @ at.V
    gram = (x @ x.mT - w @ w.mT) * (u @ u.mT)
    faulty = gram.sum((1, 2)).double()
    true = added(coordinates_of(A, B, x, delta)[1], B.mT.shape)
    assert bool((faulty < 0.5 * true).any())


def test_a_chart_maps_factors_and_gradients_to_one_thing() -> None:
    """Of outer products, which are never multiplied out, and of dense gradients: X and Y of the library of one pair."""
    A, B, x, delta = of_states(torch.float64)
    charts = Charts([ChartedPair(0, 1, torch.nn.Parameter(A), torch.nn.Parameter(B.mT.contiguous()))])
    charts.refresh(charts.computed())
    outer = {0: [Outer(x @ B, delta)], 1: [Outer(x, delta @ A)]}
    shapes = {0: A.shape, 1: B.mT.shape}
    dense = {place: [Dense(pieces[0].dense(shapes[place]))] for place, pieces in outer.items()}
    G = torch.einsum("ntp,ntd->npd", delta, x)
    X, Y = LoraTangent(A, B).coordinates(G @ B, G.mT @ A)
    for made in (charts.of(outer), charts.of(dense)):
        torch.testing.assert_close(made[0][0].dense(A.shape), X, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(made[1][0].dense(B.mT.shape), Y.mT, rtol=1e-9, atol=1e-9)
    noisy = draw(24, 3, seed=8), draw(20, 3, seed=9)
    direction, expected = charts.directions({0: noisy[0], 1: noisy[1].mT})[0], LoraTangent(A, B).project(*noisy)
    torch.testing.assert_close((direction.X, direction.Y), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["A lost", "B lost", "both lost"])
def test_the_chart_of_a_pair_that_lost_rank_is_the_identity(kind: str) -> None:
    A, B = point((7, 6, 3), kind)
    charts = Charts([ChartedPair(0, 1, torch.nn.Parameter(A), torch.nn.Parameter(B.mT.contiguous()))])
    charts.refresh(charts.computed())
    given = {0: [Dense(draw(N, 7, 3))], 1: [Dense(draw(N, 3, 6, seed=1))], 2: [Dense(draw(N, 4, seed=2))]}
    found = charts.of(given)
    assert not charts.moves(0) and all(found[place][0] is given[place][0] for place in given)
    assert charts.directions({0: draw(7, 3), 1: draw(3, 6)}) == {}


@pytest.mark.parametrize(
    "shapes", [((7, 3, 1, 1), (3, 6, 3, 3)), ((7, 3), (2, 6))], ids=["of a convolution", "of two ranks"]
)
def test_factors_that_are_no_two_matrices_of_one_rank_are_refused(shapes: tuple) -> None:
    tensors = [(0, SimpleNamespace(name=f"m.{place}", parameter=draw(*shape))) for place, shape in enumerate(shapes)]
    with pytest.raises(UnsupportedModule, match="adapt linear layers alone") as refused:
        charted([(0, 1)], tensors, [True])
    assert refused.value.code == "GEOMETRY_PAIR"


# Charts of several ranks.


class Two(Ranks):
    """Two ranks that speak through lists: what the first says first, and what each has to compare."""

    size = 2

    def __init__(self, said: list[bytes], compared: list[dict[str, bytes]], leads: bool) -> None:
        self._said, self._compared, self._leads = said, compared, leads

    def first(self, action):
        if self._leads:
            self._said.append(action())
        return self._said[-1]

    def agree(self, what):
        self._compared.append(dict(what))


def turned(A: torch.Tensor, Bt: torch.Tensor) -> list[LoraTangent]:
    """Returns other frames of a pair, as another processor might find them."""
    space = LoraTangent(A[None], Bt.mT[None])
    space.V, space.PB = -space.V, -space.PB
    return [space]


def of_two_ranks(A: torch.Tensor, Bt: torch.Tensor, second: torch.Tensor) -> tuple[list[Charts], list[dict[str, bytes]]]:
    """Returns the charts of two ranks, the second of which holds another factor A, and what they compared."""
    said: list[bytes] = []
    compared: list[dict[str, bytes]] = []
    charts = []
    for factor, leads in ((A, True), (second, False)):
        together = Together(Two(said, compared, leads), torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
        charts.append(Charts([ChartedPair(0, 1, torch.nn.Parameter(factor.clone()), torch.nn.Parameter(Bt.clone()))]))
        if not leads:  # its processor would find other frames
            charts[-1].computed = partial(turned, factor, Bt)
        together.chart(charts[-1])
    return charts, compared


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_rank_has_the_charts_of_the_first_to_the_bit(dtype: torch.dtype) -> None:
    A, B = point((7, 6, 3), dtype=dtype)
    charts, _ = of_two_ranks(A, B.mT.contiguous(), A)
    given = {0: [Dense(draw(N, 7, 3).to(dtype))], 1: [Dense(draw(N, 3, 6, seed=1).to(dtype))]}
    first, second = (one.of(given) for one in charts)
    assert all(torch.equal(first[place][0].g, second[place][0].g) for place in given)
    other = charts[1].computed()[0].coordinates(given[0][0].g[:, None], given[1][0].g.mT[:, None])[0]
    assert not torch.allclose(other[:, 0], second[0][0].g), "its own frames would give others"
    noise = {0: draw(7, 3, seed=2).to(dtype), 1: draw(3, 6, seed=3).to(dtype)}
    one, two = (chart.directions(noise)[0] for chart in charts)
    assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in ("X", "Y", "U", "V"))


def test_ranks_with_other_factors_are_refused() -> None:
    """They compare a digest of all factors, which one bit changes; ranks refuse where that differs."""
    A, B = point((7, 6, 3))
    other = A.clone()
    other[3, 1] = torch.nextafter(other[3, 1], other[3, 1] + 1)
    _, (one, two) = of_two_ranks(A, B.mT.contiguous(), other)
    assert one.keys() == two.keys() == {"the factors of the adapters"} and one != two
    _, (one, two) = of_two_ranks(A, B.mT.contiguous(), A)
    assert one == two
