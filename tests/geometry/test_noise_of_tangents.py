"""Noise of a tangent space has the projector as its covariance at every point, and energies are those of the closed forms."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from dptrain.geometry import LoraTangent  # noqa: E402
from dptrain.geometry import energy as closed  # noqa: E402
from tests.geometry.points import KINDS, SHAPES, draw, point, ranks_of  # noqa: E402
from tests.reference import tangent as naive  # noqa: E402

DRAWS = 4000


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_covariance_of_noise_is_the_projector(shape: str, kind: str) -> None:
    """In operator form: the map from ambient normals to the direction, times its transpose."""
    A, B = point(SHAPES[shape], kind)
    geometry = LoraTangent(A, B)
    operator = naive.matrix_of(lambda *drawn: geometry.ambient(*geometry.project(*drawn)), A.shape, B.shape)
    expected = naive.projector(A, B, ranks_of(SHAPES[shape], kind))
    assert float((operator @ operator.mT - expected).abs().max()) < 1e-9


@pytest.mark.parametrize("kind", ["full", "zero A", "A lost", "both lost", "thin 1e-5", "gauge"])
def test_the_energy_of_drawn_noise_is_the_dimension(kind: str) -> None:
    A, B = point((6, 5, 2), kind)
    batch = LoraTangent(A.expand(DRAWS, -1, -1), B.expand(DRAWS, -1, -1))
    energies = batch.noise(2.0, torch.Generator().manual_seed(0)).dense().square().sum((-2, -1)) / 4.0
    dim = LoraTangent(A, B).dim
    error = (2.0 * dim / DRAWS) ** 0.5
    assert abs(float(energies.mean()) - dim) < 4.5 * error
    assert dim < 18 or kind != "A lost"


def test_noise_is_drawn_by_generators_of_torch_and_numpy_and_repeats() -> None:
    numpy = pytest.importorskip("numpy")
    geometry = LoraTangent(*point((6, 5, 2)))
    for make in (lambda: torch.Generator().manual_seed(4), lambda: numpy.random.default_rng(4)):
        first, again = geometry.noise(1.0, make()), geometry.noise(1.0, make())
        assert torch.equal(first.dense(), again.dense()) and float(first.norm_sq()) > 0


# Closed forms of three designs.


def measured(design: str, A: torch.Tensor, B: torch.Tensor, *, seed: int, draws: int = DRAWS) -> torch.Tensor:
    """Returns squared norms of first-order noise on A B^T, by draws of noise in each number that a design trains."""
    (m, r), n = A.shape, len(B)
    xA, xB = draw(draws, m, r, seed=seed), draw(draws, n, r, seed=seed + 1)
    if design == "factors":
        moved = xA @ B.mT + A @ xB.mT
    elif design == "frozen":
        moved = A @ xB.mT
    else:
        at = LoraTangent(A, B)
        X, Y = at.project(xA, xB)
        moved = X @ at.V.mT + at.U @ Y.mT
    return moved.square().sum((-2, -1))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("gauge", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("r", [2, 8, 32])
def test_energies_of_three_designs_are_those_of_the_closed_forms(r: int, gauge: float) -> None:
    m, n = 40, 36
    singular = torch.linspace(3.0, 0.5, r, dtype=torch.float64)
    P, Q = (torch.linalg.qr(draw(rows, r, seed=rows))[0] for rows in (m, n))
    A, B = P * singular.sqrt() * gauge, Q * singular.sqrt() / gauge
    pair = closed.pair_of(m, n, singular.tolist(), gauge)
    assert pair.A_sq == pytest.approx(float(A.square().sum())) and pair.B_sq == pytest.approx(float(B.square().sum()))
    assert closed.DESIGNS["tangent"].noised(pair) == LoraTangent(A, B).dim
    for design, row in closed.DESIGNS.items():
        squares = measured(design, A, B, seed=r, draws=400)
        error = float(squares.std()) / len(squares) ** 0.5
        assert abs(float(squares.mean()) - row.first(pair)) < 4.5 * error, design
        assert closed.noise_on_product(design, pair, 0.5) == pytest.approx(0.5 * row.first(pair) ** 0.5)
    trained = {design: row.trained(pair) for design, row in closed.DESIGNS.items()}
    assert trained == {"factors": r * (m + n), "frozen": r * n, "tangent": r * (m + n)}


def test_the_gauge_moves_the_noise_of_factors_and_never_that_of_the_tangent() -> None:
    at = {gauge: closed.pair_of(64, 64, [2.0, 1.0, 0.5, 0.25], gauge) for gauge in (1.0, 10.0, 100.0)}
    of = {design: [closed.noise_on_product(design, pair) for pair in at.values()] for design in closed.DESIGNS}
    assert of["tangent"] == [pytest.approx((4 * 124) ** 0.5)] * 3
    assert of["factors"][1] > 7 * of["factors"][0] and of["factors"][2] > 70 * of["factors"][0]
    assert of["frozen"][1] == pytest.approx(10 * of["frozen"][0])


def test_noise_on_both_factors_has_the_bilinear_energy_besides() -> None:
    A, B = point((6, 5, 2))
    xA, xB = draw(DRAWS * 5, 6, 2, seed=1), draw(DRAWS * 5, 5, 2, seed=2)
    tau = 0.7
    squares = ((A + tau * xA) @ (B + tau * xB).mT - A @ B.mT).square().sum((-2, -1))
    pair = closed.Pair(6, 5, 2, float(A.square().sum()), float(B.square().sum()))
    expected = tau**2 * closed.DESIGNS["factors"].first(pair) + closed.bilinear_energy(pair, tau)
    assert abs(float(squares.mean()) - expected) < 4.5 * float(squares.std()) / len(squares) ** 0.5


def test_no_gauge_puts_less_noise_on_the_product_than_the_best_one() -> None:
    m, n, singular = 12, 5, [3.0, 1.0, 0.2]
    best = closed.DESIGNS["factors"].first(closed.pair_of(m, n, singular, closed.best_gauge(m, n)))
    assert best == pytest.approx(2.0 * (m * n) ** 0.5 * sum(singular))
    A, B = (torch.linalg.qr(draw(rows, 3, seed=rows))[0] * torch.tensor(singular).double().sqrt() for rows in (m, n))
    for seed in range(200):
        R = torch.linalg.matrix_exp(draw(3, 3, seed=seed) * 0.3) * (closed.best_gauge(m, n) if seed % 2 else 1.0)
        pair = closed.Pair(m, n, 3, float((A @ R).square().sum()), float((B @ torch.linalg.inv(R).mT).square().sum()))
        assert closed.DESIGNS["factors"].first(pair) >= best * (1 - 1e-12)


def test_what_no_pair_has_is_refused() -> None:
    for sizes in ((4, 3, 4, 1.0, 1.0), (4, 3, 0, 1.0, 1.0), (4, 3, 2, -1.0, 1.0), (4, 3, 2, 1.0, float("nan"))):
        with pytest.raises(ValueError, match="expected"):
            closed.Pair(*sizes)
    for singular, gauge in (([1.0, 0.0], 1.0), ([1.0], 0.0)):
        with pytest.raises(ValueError, match="expected positive"):
            closed.pair_of(4, 3, singular, gauge)


def test_closed_forms_need_no_torch() -> None:
    program = "import sys, dptrain.geometry.energy as e; e.pair_of(4, 3, [1.0]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
