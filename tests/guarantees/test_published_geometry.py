"""Where the published design of private LoRA in the tangent space leaks, and that coordinates of a chart cannot.

The published design is transcribed in tests/reference/published_tangent.py. Each test holds one sentence to that faulty copy,
which fails it, and to ours.
"""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import NotPrivateUse  # noqa: E402
from dptrain.geometry import LoraTangent, Tangent, TangentAdam  # noqa: E402
from dptrain.geometry.charts import ChartedPair, Charts  # noqa: E402
from dptrain.gradients.forms import Dense  # noqa: E402
from tests.geometry.points import Adapted, draw, point  # noqa: E402
from tests.reference import published_tangent as published  # noqa: E402
from tests.reference.tangent import matrix_of, worst  # noqa: E402

Maps = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Matrices of a release: of the signal, of the noise, and of what is clipped, each of a gradient or of normals."""

SHAPE = (6, 5, 2)


def assert_costs_what_is_accounted(maps: Maps) -> None:
    """Demands that a signal of clipped norm one shows over unit noise as one Gaussian of mu 1, and no more."""
    found = worst(*maps)
    assert found <= 1.0 + 1e-6, f"a signal of norm one shows {found:.4g} times as much as is accounted"


def in_coordinates(A: torch.Tensor, B: torch.Tensor) -> Maps:
    """Returns what a run releases of a pair to its optimizer: the contents of its `Tangent`, or both gradients if plain."""
    charts = Charts([ChartedPair(0, 1, torch.nn.Parameter(A), torch.nn.Parameter(B.mT.contiguous()))])
    charts.refresh(charts.computed())

    def signal(G: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = charts.of({0: [Dense((G @ B)[None])], 1: [Dense((A.mT @ G)[None])]})
        return found[0][0].g[0], found[1][0].g[0]

    def noise(OA: torch.Tensor, OB: torch.Tensor) -> tuple[torch.Tensor, ...]:
        direction = charts.directions({0: OA, 1: OB.mT}).get(0)
        return (OA, OB.mT) if direction is None else (direction.X, direction.Y.mT)

    heard = matrix_of(signal, (len(A), len(B)))
    return heard, matrix_of(noise, A.shape, B.shape), heard


def as_pair(A: torch.Tensor, B: torch.Tensor, *, damping: float = 0.0) -> Maps:
    """Returns what the published adaptive step is given: the noisy pair of factors."""
    signal = matrix_of(lambda G: published.lift(G @ B, G.mT @ A, A, B), (len(A), len(B)))
    noise = matrix_of(lambda OA, OB: published.noise(OA, OB, A, B, damping), A.shape, B.shape)
    clipped = matrix_of(lambda G: published.product(*published.lift(G @ B, G.mT @ A, A, B), A, B), (len(A), len(B)))
    return signal, noise, clipped


def on_product(A: torch.Tensor, B: torch.Tensor, *, damping: float = published.DAMPING) -> Maps:
    """Returns what the published step releases of Z, where nothing but the product of its pair is used."""
    clipped = matrix_of(lambda G: published.product(*published.lift(G @ B, G.mT @ A, A, B), A, B), (len(A), len(B)))
    noise = matrix_of(lambda OA, OB: published.product(*published.noise(OA, OB, A, B, damping), A, B), A.shape, B.shape)
    return clipped, noise, clipped


# The pair leak: A^T dA is free of noise.


@pytest.mark.parametrize("kind", ["full", "gauge"])
def test_what_an_adaptive_step_is_given_costs_what_is_accounted(kind: str) -> None:
    A, B = point(SHAPE, kind)
    assert_costs_what_is_accounted(in_coordinates(A, B))
    with pytest.raises(AssertionError, match="shows inf times"):
        assert_costs_what_is_accounted(as_pair(A, B))
    signal, noise, _ = as_pair(*point(SHAPE))
    shared = matrix_of(lambda dA, dB: point(SHAPE)[0].mT @ dA, (6, 2), (5, 2))
    assert float((shared @ noise).abs().max()) < 1e-12, "nothing of the noise reaches A^T dA"
    assert float((shared @ signal).abs().max()) > 0.1, "and all of the signal does"


def test_the_product_alone_of_the_published_pair_costs_what_is_accounted_at_full_rank() -> None:
    """The mechanism is right before its pair is handed on: the control of the test above."""
    assert_costs_what_is_accounted(on_product(*point(SHAPE), damping=0.0))


def test_a_pair_that_is_lifted_anew_from_its_product_costs_what_is_accounted() -> None:
    """What the published trainer does before its adaptive step, and the class by itself does not."""
    A, B = point(SHAPE)
    signal, noise, clipped = on_product(A, B, damping=0.0)
    again = matrix_of(lambda D: published.horizontal(D, A, B), (6, 5))
    assert_costs_what_is_accounted((again @ signal, again @ noise, clipped))


RUNS, WIDE, TAU = 400, 256, 0.5


def shown(step: Callable[..., torch.Tensor], gauge: float) -> float:
    """Returns by how much a signal along K stands out of the step of Z, over how much it stands out of what was noised.

    Args:
        step: maps a signal, noise of RUNS runs, (RUNS, m, 1) and (RUNS, n, 1), and A = c u and B = v / c to steps along u v^T.
        gauge: 1 / c^2, the ratio of |B| and |A|.
    """
    u, v = (torch.nn.functional.normalize(draw(WIDE, 1, seed=seed), dim=0) for seed in (1, 2))
    A, B = u * gauge**-0.5, v * gauge**0.5
    k = 0.3 * TAU
    OA, OB = TAU * draw(RUNS, WIDE, 1, seed=3), TAU * draw(RUNS, WIDE, 1, seed=4)
    silent, heard = (step(size * u @ v.mT, OA, OB, A, B) for size in (0.0, k))
    return float((heard - silent).mean() / silent.std()) / (k / TAU)


def published_step(G, OA, OB, A, B) -> torch.Tensor:
    dA, dB = published.lift(G @ B, G.mT @ A, A, B)
    XA, XB = published.noise(OA, OB, A, B, 0.0)
    uA, uB = published.Adaptive(tau=TAU, floor=None)(dA + XA, dB + XB)
    along = (A.mT @ uA) @ (B.mT @ B) + (A.mT @ A) @ (uB.mT @ B)  # A^T (uA B^T + A uB^T) B
    return along.flatten() / (A.norm() * B.norm())


def our_step(G, OA, OB, A, B) -> torch.Tensor:
    optimizer = TangentAdam(Adapted(A, B), betas=(0.9, 0.999))
    at = LoraTangent(A, B)
    X, Y = at.project(OA, OB)
    signal = at.lift(G @ B, G.mT @ A)
    U, V = (frame.expand(RUNS, -1, -1) for frame in (at.U, at.V))
    found = Tangent(X + signal.X, Y + signal.Y, U, V)
    batch = LoraTangent(A.expand(RUNS, -1, -1), B.expand(RUNS, -1, -1), (U, V))
    stds = torch.full((RUNS,), TAU, dtype=torch.float64)
    step = optimizer.directions(optimizer.param_groups[0], [{} for _ in range(RUNS)], batch, found, stds)
    along = (A.mT @ step.X) @ (step.V.mT @ B) + (A.mT @ step.U) @ (step.Y.mT @ B)
    return along.flatten() / (A.norm() * B.norm())


def assert_shows_no_more_in_any_gauge(step: Callable[..., torch.Tensor]) -> list[float]:
    found = [shown(step, gauge) for gauge in (1.0, 3.0, 10.0, 30.0)]
    assert max(found) < 1.25, f"a signal stands out by {[round(one, 2) for one in found]} times in gauges 1, 3, 10, 30"
    return found


def test_no_gauge_makes_a_signal_stand_out_of_an_adaptive_step() -> None:
    assert min(assert_shows_no_more_in_any_gauge(our_step)) > 0.8
    with pytest.raises(AssertionError, match="stands out"):
        assert_shows_no_more_in_any_gauge(published_step)
    for gauge in (1.0, 3.0, 10.0, 30.0):
        assert shown(published_step, gauge) == pytest.approx((1.0 + gauge) / 2.0, rel=0.25), "without bound in the gauge"


def test_an_optimizer_is_handed_no_pair() -> None:
    """A direction has one form. What is given as a pair of factors is refused before any step."""
    optimizer = TangentAdam(Adapted(*point(SHAPE)))
    with pytest.raises(NotPrivateUse, match="GEOMETRY_DIRECTION"):
        optimizer.take(0, (draw(6, 2), draw(5, 2)), 0.1)  # type: ignore[arg-type]


# Too little noise: damped roots, and directions that a plain QR invents.

UNDER_NOISED = {
    # kind: rank of signal and noise, and how much a signal of norm one shows, as the faulty copy has it
    "full": (18, 18, 1.0),
    "zero A": (12, 8, float("inf")),
    "A lost": (15, 13, float("inf")),
    "both lost": (10, 9, float("inf")),
    "zero B": (10, 10, 1.0),
    "thin 1e-3": (14, 18, 1.005),
    "thin 1e-4": (10, 18, 2.0**0.5),
    "thin 1e-5": (10, 18, 101.0**0.5),
}


@pytest.mark.parametrize("kind", UNDER_NOISED)
def test_no_point_has_less_noise_than_is_accounted(kind: str) -> None:
    A, B = point(SHAPE, kind)
    assert_costs_what_is_accounted(in_coordinates(A, B))
    signal, noise, clipped = on_product(A, B)
    heard, drawn, more = UNDER_NOISED[kind]
    assert int(torch.linalg.matrix_rank(noise, rtol=1e-9)) == drawn
    assert worst(signal, noise, clipped) == pytest.approx(more, rel=2e-3)
    if "thin" not in kind:
        assert int(torch.linalg.matrix_rank(signal, rtol=1e-9)) == heard
    if more > 1.001:
        with pytest.raises(AssertionError, match="as much as is accounted"):
            assert_costs_what_is_accounted((signal, noise, clipped))


@pytest.mark.parametrize("kind", list(UNDER_NOISED))
def test_the_space_of_one_pair_has_noise_wherever_it_has_signal(kind: str) -> None:
    """Of the library by itself, without the plain step that a run takes where a rank is lost."""
    A, B = point(SHAPE, kind)
    at = LoraTangent(A, B)
    heard = matrix_of(lambda G: at.coordinates(G @ B, G.mT @ A), (6, 5))
    assert_costs_what_is_accounted((heard, matrix_of(at.project, A.shape, B.shape), heard))


def test_frames_that_are_wrong_cost_nothing_in_privacy() -> None:
    """The guarantee rests on no property of a frame: clip and noise are of one set of coordinates, whatever they are."""
    A, B = point(SHAPE)
    space = LoraTangent(A, B)
    space.PA, space.PB, space.V = draw(2, 2, seed=1), 1e3 * draw(2, 2, seed=2), draw(5, 2, seed=3)

    def signal(G: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return space.coordinates(G @ B, G.mT @ A)

    heard = matrix_of(signal, (6, 5))
    assert_costs_what_is_accounted((heard, torch.eye(22, dtype=torch.float64), heard))
    after = matrix_of(space.project, A.shape, B.shape)  # no projector, with such a frame; processing of what was released
    assert_costs_what_is_accounted((after @ heard, after, heard))


# Losses that couple the examples of a microbatch.

CLIP = 1.0


def batch_of(lengths: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns examples as states (T, n) and targets (T, m); the first is the same in every batch."""
    return [(draw(t, 5, seed=place), 0.2 * draw(t, 6, seed=90 + place)) for place, t in enumerate(lengths)]


def clipped_sum(loss: Callable[[list[torch.Tensor]], list[torch.Tensor]], examples: list) -> torch.Tensor:
    """Returns the sum of clipped coordinates of a microbatch, under shares of its loss that belong to each example."""
    A, B = (0.3 * value for value in point(SHAPE))
    at = LoraTangent(A, B)
    A, B = A.clone().requires_grad_(True), B.clone().requires_grad_(True)
    shares = loss([(x @ B @ A.mT - y).square().sum(1) for x, y in examples])
    total = torch.zeros(22, dtype=torch.float64)
    for share in shares:
        found = torch.cat([value.flatten() for value in at.coordinates(*torch.autograd.grad(share, (A, B), retain_graph=True))])
        total = total + found * min(1.0, CLIP / float(found.norm()))
    return total


def token_mean(each: list[torch.Tensor]) -> list[torch.Tensor]:
    """Shares of the mean over all tokens of a microbatch times its size, as the published trainer back-propagates it."""
    tokens = sum(len(one) for one in each)
    return [len(each) * one.sum() / tokens for one in each]


def own_mean(each: list[torch.Tensor]) -> list[torch.Tensor]:
    """The mean over an example's own tokens."""
    return [one.mean() for one in each]


def assert_one_example_moves_the_sum_by_its_clip_norm(loss: Callable) -> None:
    """Demands of a microbatch of one long and many short examples that taking the long one out moves no other."""
    lengths = [2] * 40 + [40]
    whole, without = batch_of(lengths), batch_of(lengths[:-1])
    moved = float((clipped_sum(loss, whole) - clipped_sum(loss, without)).norm())
    assert moved <= CLIP * (1 + 1e-9), f"one example moves the sum by {moved:.3f}, expected at most {CLIP}"


def test_one_example_moves_a_sum_by_its_clip_norm_and_never_through_others() -> None:
    assert_one_example_moves_the_sum_by_its_clip_norm(own_mean)
    with pytest.raises(AssertionError, match="one example moves the sum"):
        assert_one_example_moves_the_sum_by_its_clip_norm(token_mean)


def test_losses_per_example_are_what_transformers_models_are_given() -> None:
    """`losses_of` for language models: the mean over own tokens, to the bit the same beside other examples."""
    pytest.importorskip("transformers")
    from dptrain.integrations.losses import IGNORED, of_tokens

    logits, labels = draw(3, 6, 4).float(), torch.arange(18).view(3, 6) % 4
    labels[0, 2:] = IGNORED
    alone = of_tokens(logits, labels)
    other = of_tokens(logits, torch.cat([labels[:1], torch.full((2, 6), 1)]))
    assert torch.equal(alone[0], other[0])
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    assert float((mean - alone.mean()).abs()) > 1e-3, "the mean over all tokens is another loss"
