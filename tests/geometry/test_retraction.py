"""A step back to rank r is the dense truncation, balanced; the cheap one is off in the third order; transport projects."""

import math

import pytest

torch = pytest.importorskip("torch")

from dptrain.geometry import LoraTangent, Tangent  # noqa: E402
from dptrain.geometry import energy as closed  # noqa: E402
from tests.geometry.points import KINDS, SHAPES, draw, point  # noqa: E402
from tests.reference import tangent as naive  # noqa: E402


def a_direction(at: LoraTangent, seed: int = 4) -> Tangent:
    return at.at(*at.project(draw(*at.A.shape, seed=seed), draw(*at.B.shape, seed=seed + 1)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lr", [0.7, 1e-3])
def test_a_step_is_the_dense_truncation_and_balanced(shape: str, kind: str, lr: float) -> None:
    at = LoraTangent(*point(SHAPES[shape], kind))
    step = a_direction(at)
    for decay in (0.0, 0.1):
        A, B = at.retract(step, lr, decay=decay)
        assert A.shape == at.A.shape and B.shape == at.B.shape
        wanted = (1.0 - decay) * at.point(*at.tensors) - lr * step.dense()
        expected = naive.truncated(wanted, at.A.shape[1])
        size = float(torch.linalg.matrix_norm(wanted).clamp_min(1.0))
        assert float(torch.linalg.matrix_norm(A @ B.mT - expected)) < 1e-9 * size
        assert float((A.mT @ A - B.mT @ B).abs().max()) < 1e-9 * size


@pytest.mark.parametrize("exact", [True, False])
def test_a_small_step_moves_balanced_factors_a_little_and_does_not_turn_them(exact: bool) -> None:
    at = LoraTangent(*point((7, 6, 3)))
    balanced = LoraTangent(*at.retract(a_direction(at), 0.0))
    step = a_direction(balanced)
    for found, own in zip(balanced.retract(step, 1e-6, exact=exact), balanced.tensors, strict=True):
        assert float(torch.linalg.matrix_norm(found - own)) < 1e-4
    U = LoraTangent(*balanced.retract(step, 1e-6, exact=exact)).U
    assert float(torch.linalg.matrix_norm(U - balanced.U)) < 1e-4, "and frames follow"


def test_a_batch_steps_as_its_pairs_do() -> None:
    pairs = [point((7, 6, 3), seed=seed) for seed in range(3)]
    batch = LoraTangent(*(torch.stack(factors) for factors in zip(*pairs, strict=True)))
    step = batch.at(*batch.project(draw(3, 7, 3), draw(3, 6, 3, seed=1)))
    for exact in (True, False):
        A, B = batch.retract(step, 0.1, exact=exact)
        for place, pair in enumerate(pairs):
            at = LoraTangent(*pair)
            mine = Tangent(*(getattr(step, name)[place] for name in ("X", "Y", "U", "V")))
            a, b = at.retract(mine, 0.1, exact=exact)
            torch.testing.assert_close(a @ b.mT, A[place] @ B[place].mT, rtol=1e-10, atol=1e-10)


def slope(off, sizes=(4e-2, 2e-2, 1e-2)) -> float:
    """Returns the order in which a distance vanishes with the step, between the two smallest sizes."""
    found = [off(size) for size in sizes]
    return math.log(found[-2] / found[-1]) / math.log(sizes[-2] / sizes[-1])


@pytest.mark.parametrize("shape", ["tall", "small", "wide", "rank one"])
def test_the_cheap_step_is_off_in_the_third_order(shape: str) -> None:
    at = LoraTangent(*point(SHAPES[shape]))
    step = a_direction(at)

    def off(size: float) -> float:
        exact, cheap = (at.point(*at.retract(step, size, exact=exact)) for exact in (True, False))
        return float(torch.linalg.matrix_norm(exact - cheap))

    assert slope(off) > 2.8 or off(4e-2) < 1e-12
    A, B = at.retract(step, 0.1, exact=False)
    assert float((A.mT @ A - B.mT @ B).abs().max()) < 1e-9


def test_a_cheap_step_with_the_second_order_left_out_is_found() -> None:
    """Moving the factors one by one is right to the first order alone: the slope test has to see that."""
    at = LoraTangent(*point((7, 6, 3)))
    step = a_direction(at)
    dA, dB = at.factors(step)

    def off(size: float) -> float:
        exact = at.point(*at.retract(step, size))
        return float(torch.linalg.matrix_norm(exact - (at.A - size * dA) @ (at.B - size * dB).mT))

    assert 1.8 < slope(off) < 2.2


@pytest.mark.parametrize("kind", ["full", "gauge"])
def test_a_retraction_bends_by_the_curvature_and_by_nothing_else_up_to_the_third_order(kind: str) -> None:
    """Published as "no bilinear noise". It returns with the retraction: Retr(Z + x) - Z - x = Xp S^-1 Yp^T + O(3)."""
    A, B = point((7, 6, 3), kind)
    at = LoraTangent(A, B)
    drawn = a_direction(at)
    inverse = at.V.mT @ torch.linalg.pinv(A @ B.mT) @ at.U  # S^-1 of Z = U S V^T

    def bend(size: float) -> torch.Tensor:
        return at.point(*at.retract(drawn, -size)) - A @ B.mT - size * drawn.dense()

    def curvature(size: float) -> torch.Tensor:
        return size**2 * drawn.Xp @ inverse @ drawn.Yp.mT

    assert 1.9 < slope(lambda size: float(torch.linalg.matrix_norm(bend(size)))) < 2.1, "it is there, and of second order"
    assert slope(lambda size: float(torch.linalg.matrix_norm(bend(size) - curvature(size)))) > 2.8, "and that is all of it"


def test_the_energy_of_the_bend_is_that_of_the_closed_form() -> None:
    m, n, singular, tau, draws = 9, 8, (2.0, 1.0), 2e-3, 3000
    P, Q = (torch.linalg.qr(draw(rows, 2, seed=rows))[0] for rows in (m, n))
    roots = torch.tensor(singular, dtype=torch.float64).sqrt()
    A, B = (factor.expand(draws, -1, -1) for factor in (P * roots, Q * roots))
    at = LoraTangent(A, B)
    drawn = at.noise(tau, torch.Generator().manual_seed(1))
    squares = (at.point(*at.retract(drawn, -1.0)) - A @ B.mT - drawn.dense()).square().sum((-2, -1))
    expected = closed.curvature_energy(m, n, singular, tau)
    assert abs(float(squares.mean()) - expected) < 4.5 * float(squares.std()) / draws**0.5


@pytest.mark.parametrize("shape", ["tall", "small", "r > m"])
@pytest.mark.parametrize("kind", ["full", "A lost", "zero A", "gauge"])
def test_transport_is_the_projection_onto_the_other_tangent_space(shape: str, kind: str) -> None:
    at = LoraTangent(*point(SHAPES[shape], kind))
    after = LoraTangent(*at.retract(a_direction(at), 0.3))
    carried = at.transport(a_direction(at, seed=8), after)
    ranks = tuple(int(rank) for rank in (after.rank_A, after.rank_B))
    expected = naive.projected(a_direction(at, seed=8).dense(), after.A, after.B, ranks)
    torch.testing.assert_close(carried.dense(), expected, rtol=1e-9, atol=1e-9)
    assert float((after.V.mT @ carried.Y).abs().max()) < 1e-12, "Y has no part along V"


def test_the_canonical_lift_stands_for_the_direction_and_splits_the_shared_part_evenly() -> None:
    at = LoraTangent(*point((7, 6, 3)))
    step = a_direction(at)
    dA, dB = at.factors(step)
    torch.testing.assert_close(dA @ at.B.mT + at.A @ dB.mT, step.dense(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(at.U.mT @ dA @ at.B.mT @ at.V, (step.K / 2), rtol=1e-9, atol=1e-9)
