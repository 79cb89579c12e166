"""Every geometry keeps its contract at every kind of point, and one with a fault fails the clause that the fault breaks."""

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import ConfigError  # noqa: E402
from dptrain.geometry import Euclidean, Geometry, LoraTangent, check_geometry  # noqa: E402
from dptrain.geometry.contract import LIMITS  # noqa: E402
from tests.geometry.points import KINDS, SHAPES, draw, point, ranks_of  # noqa: E402
from tests.reference import tangent as naive  # noqa: E402

CLAUSES = ("linear", "isolated", "projector", "isometry", "projection", "retraction")


def off_with(geometry: Geometry, kind: str) -> dict[str, float]:
    """Returns how far a geometry is off; the step of the last clause stays below the least singular value."""
    return check_geometry(geometry, limit=float("inf"), step=1e-3 * float(kind.split()[1]) if "thin" in kind else 1e-4)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_tangent_space_of_a_pair_keeps_the_contract_in_double(shape: str, kind: str) -> None:
    geometry = LoraTangent(*point(SHAPES[shape], kind))
    check_geometry(geometry, step=1e-3 * float(kind.split()[1]) if "thin" in kind else 1e-4)
    a, b = ranks_of(SHAPES[shape], kind)
    m, n, _ = SHAPES[shape]
    assert geometry.dim == b * m + a * (n - b) == round(float(naive.projector(*geometry.tensors, (a, b)).trace()))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "thin" not in kind])
def test_the_tangent_space_of_a_pair_keeps_the_contract_in_single(shape: str, kind: str) -> None:
    found = check_geometry(LoraTangent(*point(SHAPES[shape], kind, dtype=torch.float32)))
    assert max(value for clause, value in found.items() if clause != "retraction") < LIMITS[torch.float32]


@pytest.mark.parametrize("least", ["1e-3", "1e-4", "1e-5"])
def test_in_single_a_thin_factor_costs_accuracy_of_the_direction_and_none_of_the_norm(least: str) -> None:
    """Gradients of the factors have float32 rounding, which frames of a thin factor magnify; norm and noise are not touched."""
    found = off_with(LoraTangent(*point((7, 6, 3), f"thin {least}", dtype=torch.float32)), f"thin {least}")
    assert max(found[clause] for clause in ("linear", "isolated", "projector", "isometry")) < LIMITS[torch.float32]
    assert found["projection"] < 2.0**-23 / float(least)


def test_the_flat_geometry_keeps_the_contract() -> None:
    for dtype in LIMITS:
        check_geometry(Euclidean(draw(4, 3).to(dtype), draw(5, seed=1).to(dtype)))


def test_a_batch_of_pairs_keeps_the_contract_and_equals_its_pairs() -> None:
    kinds = ("full", "A lost", "zero A")
    pairs = [point((6, 5, 2), kind, seed=seed) for seed, kind in enumerate(kinds)]
    batch = LoraTangent(*(torch.stack(factors) for factors in zip(*pairs, strict=True)))
    check_geometry(batch)
    singles = [LoraTangent(*pair) for pair in pairs]
    assert batch.dim == sum(single.dim for single in singles)
    gA, gB = draw(4, 3, 6, 2, seed=5), draw(4, 3, 5, 2, seed=6)
    X, Y = batch.coordinates(gA, gB)
    for place, single in enumerate(singles):
        alone = single.coordinates(gA[:, place], gB[:, place])
        torch.testing.assert_close((X[:, place], Y[:, place]), alone, rtol=1e-12, atol=1e-12)
    assert batch.norm_sq(gA, gB).shape == (4, 3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_direction_is_the_dense_projection_of_the_gradient(shape: str, kind: str) -> None:
    A, B = point(SHAPES[shape], kind)
    G = draw(len(A), len(B), seed=9)
    geometry = LoraTangent(A, B)
    expected = naive.projected(G, A, B, ranks_of(SHAPES[shape], kind))
    found = geometry.lift(G @ B, G.mT @ A)
    off = torch.linalg.matrix_norm(found.dense() - expected) / torch.linalg.matrix_norm(G)
    assert off < 1e-9
    assert abs(float(found.norm_sq()) - float(expected.square().sum())) <= 1e-9 * float(G.square().sum())
    torch.testing.assert_close(found.X, G @ geometry.V, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.K, geometry.U.mT @ G @ geometry.V, rtol=1e-9, atol=1e-9)


def test_the_lift_of_a_sum_is_the_sum_of_lifts() -> None:
    geometry = LoraTangent(*point((7, 6, 3)))
    gA, gB, weights = draw(5, 7, 3), draw(5, 6, 3, seed=1), draw(5, seed=2)
    whole = geometry.lift(*(torch.einsum("i,i...->...", weights, value) for value in (gA, gB)))
    each = geometry.lift(gA, gB)
    for name in ("X", "Y"):
        summed = torch.einsum("i,i...->...", weights, getattr(each, name))
        torch.testing.assert_close(getattr(whole, name), summed, rtol=1e-12, atol=1e-12)


# Geometries with one fault each.


class NotLinear(LoraTangent):
    """Clips within the chart."""

    def coordinates(self, *gradients):
        return tuple(value.clamp(-0.5, 0.5) for value in super().coordinates(*gradients))


class Mixing(LoraTangent):
    """Takes the mean of a batch off its rows."""

    def coordinates(self, *gradients):
        found = super().coordinates(*gradients)
        return tuple(value - value.mean(0) if value.dim() > 2 else value for value in found)


class Invented(LoraTangent):
    """Keeps noise along V in Y, which stands for no direction that X has not."""

    def project(self, *coordinates):
        return coordinates


class Miscounted(LoraTangent):
    """Says the dimension of the ambient coordinates."""

    @property
    def dim(self):
        return self.A.numel() + self.B.numel()


class Damped(LoraTangent):
    """Noises the directions of X less than it clips them, as a damped inverse root does."""

    def project(self, *coordinates):
        X, Y = super().project(*coordinates)
        return X * 0.9, Y


class Doubled(LoraTangent):
    """Counts the part in both spaces twice, as gradients of factors in an orthonormal gauge do."""

    def norm_sq(self, *gradients):
        found = self.lift(*gradients)
        return found.norm_sq() + found.K.square().sum((-2, -1))


class InItsGauge(LoraTangent):
    """Leaves the frames out: plain gradients of the factors."""

    def coordinates(self, *gradients):
        return self.project(*gradients)


class Shrunk(LoraTangent):
    """Releases half of the direction."""

    def coordinates(self, *gradients):
        return tuple(0.5 * value for value in super().coordinates(*gradients))


class OneSided(LoraTangent):
    """Moves A and leaves B where it is."""

    def retract(self, step, lr, **options):
        return self.A - lr * self.factors(step)[0], self.B


FAULTY = {
    NotLinear: "linear", Mixing: "isolated", Invented: "projector", Miscounted: "projector", Damped: "projector",
    Doubled: "isometry", InItsGauge: "projection", Shrunk: "projection", OneSided: "retraction",
}  # fmt: skip


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda kind: kind.__name__)
def test_a_geometry_with_a_fault_fails_the_clause_that_it_breaks(faulty: type[LoraTangent]) -> None:
    with pytest.raises(ConfigError, match=f"{faulty.__name__} is off by .* in clause '{FAULTY[faulty]}'") as refused:
        check_geometry(faulty(*point((7, 6, 3))))
    assert refused.value.code == "GEOMETRY"


def test_every_clause_has_a_geometry_that_fails_it() -> None:
    assert set(FAULTY.values()) == set(CLAUSES) == set(off_with(LoraTangent(*point((7, 6, 3))), "full"))


def test_factors_that_are_no_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        LoraTangent(draw(4, 3), draw(5, 2))
