"""Three adaptive steps move Z alike in every gauge of GL(r), where all runs see one gradient and one noise of Z.

The published step has this under rotations alone: a faulty copy that scales factors by the factors' own second moments passes
with an orthogonal gauge, and fails with any other.
"""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dptrain.geometry import LoraTangent, Tangent, TangentAdam, TangentSGD  # noqa: E402
from dptrain.geometry.optimizers import _inverse_root, _keep  # noqa: E402
from tests.geometry.points import Adapted, draw, of_dense, point  # noqa: E402
from tests.reference.published_tangent import Adaptive, horizontal, lift, product  # noqa: E402
from tests.reference.tangent import truncated  # noqa: E402

SHAPE, STEPS, TAU = (9, 8, 3), 3, 0.2


def random_gauge(seed: int = 6) -> torch.Tensor:
    return draw(3, 3, seed=seed) + 0.3 * torch.eye(3, dtype=torch.float64)


GAUGES = {
    "orthogonal": torch.linalg.qr(draw(3, 3, seed=1))[0],
    "random": random_gauge(),
    "diagonal": torch.diag(torch.tensor([3.0, 1.0, 0.3], dtype=torch.float64)),
    "tenfold": 10.0 * torch.eye(3, dtype=torch.float64),
    "thousands": torch.diag(torch.logspace(-3, 3, 3, dtype=torch.float64)),
}

OPTIMIZERS: dict[str, Callable[[Adapted], TangentAdam | TangentSGD]] = {
    "adam": lambda model: TangentAdam(model, lr=0.05),
    "adam, no floor": lambda model: TangentAdam(model, lr=0.05, floor=0.0, betas=(0.5, 0.5)),
    "adam, debiased": lambda model: TangentAdam(model, lr=0.05, debias=True),
    "adam, cheap retraction": lambda model: TangentAdam(model, lr=0.05, exact=False, weight_decay=0.1),
    "momentum": lambda model: TangentSGD(model, lr=0.2, momentum=0.9),
    "plain": lambda model: TangentSGD(model, lr=0.2),
}


def run(make: Callable[[Adapted], TangentAdam | TangentSGD], gauge: torch.Tensor, steps: int = STEPS) -> list[torch.Tensor]:
    """Returns Z after each step of a run from (A R, B R^-T), under gradients and noise that are those of all runs.

    The noise of a run is what it draws in its own coordinates. All draw one noise of Z here: coordinates turn with the frames.
    """
    A, B = point(SHAPE)
    model = Adapted(A @ gauge, B @ torch.linalg.inv(gauge).mT)
    optimizer = make(model)
    trail = []
    for step in range(steps):
        at = LoraTangent(*model.factors)
        G = draw(SHAPE[0], SHAPE[1], seed=10 + step) + model.Z  # a gradient that depends on where Z is
        noise = TAU * draw(SHAPE[0], SHAPE[1], seed=20 + step)
        optimizer.take(0, of_dense(at, G) + of_dense(at, noise), TAU)
        optimizer.step()
        optimizer.zero_grad()
        trail.append(model.Z.clone())
    return trail


def apart(make: Callable[[Adapted], TangentAdam | TangentSGD], gauge: str) -> float:
    """Returns the largest distance of a run in a gauge from that in none, relative to how far that one has moved."""
    plain, turned = run(make, torch.eye(3, dtype=torch.float64)), run(make, GAUGES[gauge])
    A, B = point(SHAPE)
    return max(
        float(torch.linalg.matrix_norm(one - other) / torch.linalg.matrix_norm(one - A @ B.mT))
        for one, other in zip(plain, turned, strict=True)
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("gauge", GAUGES)
def test_three_steps_move_the_product_alike_in_every_gauge(optimizer: str, gauge: str) -> None:
    assert apart(OPTIMIZERS[optimizer], gauge) < 1e-9


class OfFactors(TangentAdam):
    """Takes second moments of the factors' own steps, as the published one does: r x r, and in the gauge of the moment."""

    def directions(self, group, kept, at, found, stds):
        own = LoraTangent(at.A, at.B)
        dA, dB = own.factors(own.transport(found, own))
        roots = [_inverse_root(value.mT @ value / value.shape[-2], stds * 0.0, group) for value in (dA, dB)]
        _keep(kept, age=torch.ones(len(kept)))
        D = product(dA @ roots[0], dB @ roots[1], own.A, own.B)
        return own.transport(own.lift(D @ own.B, D.mT @ own.A), at)


class StaysInFrame(TangentAdam):
    """Keeps its matrices as they are where frames turn."""

    def directions(self, group, kept, at, found, stds):
        for one in kept:
            if one:
                one |= {"U": at.U[0], "V": at.V[0]}
        return super().directions(group, kept, at, found, stds)


def test_a_step_that_scales_factors_by_their_own_moments_is_found_by_every_gauge_but_rotations() -> None:
    def make(model: Adapted) -> TangentAdam:
        return OfFactors(model, lr=0.05)

    assert apart(make, "orthogonal") < 1e-9
    assert min(apart(make, gauge) for gauge in ("random", "diagonal", "tenfold")) > 0.1


def test_moments_that_do_not_turn_with_the_frames_are_found() -> None:
    assert apart(lambda model: StaysInFrame(model, lr=0.05), "random") > 1e-3


def published(gauge: torch.Tensor, *, adaptive: bool, relift: bool) -> torch.Tensor:
    """Returns Z after one step of the published design, transcribed, without noise and floor."""
    A, B = point(SHAPE)
    A, B = A @ gauge, B @ torch.linalg.inv(gauge).mT
    G = draw(SHAPE[0], SHAPE[1], seed=10)
    dA, dB = lift(G @ B, G.mT @ A, A, B)
    if relift:
        dA, dB = horizontal(product(dA, dB, A, B), A, B)
    if adaptive:
        dA, dB = Adaptive(floor=None)(dA, dB)
    return truncated(A @ B.mT - 0.05 * product(dA, dB, A, B), SHAPE[2])


@pytest.mark.parametrize("relift", [False, True])
def test_the_published_adaptive_step_is_invariant_under_rotations_alone(relift: bool) -> None:
    """Published as gauge-invariant. It is so under O(r), and under GL(r) only without adaptivity."""
    plain = published(torch.eye(3, dtype=torch.float64), adaptive=True, relift=relift)
    A, B = point(SHAPE)
    moved = torch.linalg.matrix_norm(plain - A @ B.mT)
    off = {
        gauge: float(torch.linalg.matrix_norm(published(R, adaptive=True, relift=relift) - plain) / moved)
        for gauge, R in GAUGES.items()
    }
    assert off["orthogonal"] < 1e-9
    assert off["diagonal"] > 0.1 and off["tenfold"] > 1.0
    still = published(torch.eye(3, dtype=torch.float64), adaptive=False, relift=relift)
    for gauge in ("orthogonal", "diagonal", "tenfold"):
        found = published(GAUGES[gauge], adaptive=False, relift=relift)
        assert float(torch.linalg.matrix_norm(found - still)) < 1e-9


def test_a_tangent_holds_nothing_that_its_matrix_does_not() -> None:
    """Coordinates follow from the direction of Z alone, so no adaptive step on them can see more than was noised."""
    at = LoraTangent(*point(SHAPE))
    step = at.at(*at.project(draw(9, 3), draw(8, 3, seed=1)))
    D = step.dense()
    again = Tangent(D @ at.V, D.mT @ at.U - at.V @ (at.V.mT @ D.mT @ at.U), at.U, at.V)
    torch.testing.assert_close((again.X, again.Y), (step.X, step.Y), rtol=1e-12, atol=1e-12)
