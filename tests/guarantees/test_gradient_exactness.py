"""Masked, clipped sums and norms equal a naive per-contribution autograd loop, in float64, to 1e-10."""

import random

import pytest

torch = pytest.importorskip("torch")

from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from dptrain.routing import FallbackNotice, Router  # noqa: E402
from tests.reference import naive  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.bounds import bounds_of  # noqa: E402


def random_schedule(model, rng: random.Random, classes: int) -> Schedule:
    """Blocks by position, each open to a random set of classes, with random noise; every class touches something."""
    stack = layer_stack(model)
    groups: dict = {}
    for tensor in stack.tensors:
        groups.setdefault(tensor.positions, []).append(tensor)
    names = [f"c{k}" for k in range(classes)]
    blocks = []
    for i, (positions, tensors) in enumerate(sorted(groups.items())):
        members = tuple(n for n in names if n == names[i % classes] or rng.random() < 0.6)
        blocks.append(Block(f"b{i}", positions, tuple(tensors), members, rng.uniform(0.3, 3.0)))
    profiles = {n: tuple(i for i, b in enumerate(blocks) if n in b.classes) for n in names}
    return Schedule(stack, tuple(blocks), profiles, ())


@pytest.mark.one_in(7)
@pytest.mark.parametrize("examples", [1, 3])
@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_sums_and_norms_equal_the_naive_loop(family: str, examples: int) -> None:
    rng = random.Random(f"{family}{examples}")
    torch.manual_seed(1)
    made = FAMILIES[family]()
    model = made.model.train()
    n = 5
    schedule = random_schedule(model, rng, 3)
    batch = made.batch(n * examples, 3)
    scale = 10 ** rng.uniform(-1, 1)

    def losses_of(i: int):
        rows = slice(i * examples, (i + 1) * examples)
        return made.losses(model, {k: v[rows] for k, v in batch.items()}) * scale

    reference = naive.contribution_gradients(model, losses_of, schedule, n)
    norms = naive.block_norms_sq(reference, schedule)
    typical = float(norms.sum(1).sqrt().median())
    bounds = bounds_of(
        [
            (typical * rng.uniform(0.3, 2.0), rng.uniform(0.5, 4.0), schedule.profiles[rng.choice(list(schedule.profiles))])
            for _ in range(n)
        ],
        len(schedule.blocks),
    )
    router = Router(model, schedule)
    for block in schedule.blocks:
        for tensor in block.tensors:
            tensor.parameter.requires_grad_(False)
    router.attach()
    router.arm(n, examples, bounds.permitted_NG)
    losses = made.losses(model, batch) * scale
    router.backward(losses, torch.full((n * examples,), 1.0 / examples, dtype=torch.float64))
    found = router.sums.norms_sq(router.pieces, router.contributions)
    coefficients = router.sums.coefficients(found, bounds)
    router.sums.accumulate(router.pieces, coefficients)
    router.disarm()
    sums = router.sums.take()
    router.detach()

    expected, factors = naive.clipped_sums(reference, schedule, bounds, router.sums.margins(bounds))
    active = bounds.permitted_NG.any(0)
    assert float(((found - norms)[:, active].abs() / norms[:, active].clamp_min(1e-30)).max()) <= 1e-10
    # A tensor whose true gradient vanishes (the key bias under softmax) is compared on the scale of the whole sum.
    floor = 1e-6 * max(float(b.norm()) for b in expected)
    worst = max(float((a - b).norm()) / max(float(b.norm()), floor) for a, b in zip(sums, expected, strict=True))
    assert worst <= 1e-10
    assert float((coefficients.amax(1) - factors).abs().max()) <= 1e-10
    assert any(float(f) < 1 for f in factors), "the test must clip something"
    assert all(p.grad is None for p in model.parameters())
    print(f"{family} x{examples}: worst relative error of sums {worst:.1e}")


def test_the_fallback_says_so() -> None:
    made = FAMILIES["vit"]()
    with pytest.warns(FallbackNotice, match="generic path"):
        Router(made.model, random_schedule(made.model, random.Random(0), 2))
