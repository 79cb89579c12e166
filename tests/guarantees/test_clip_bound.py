"""Theorem 1': one contribution changes the sums by at most C_i in norm and 1/sigma_i in whitened norm, in float32 too."""

import random

import pytest

torch = pytest.importorskip("torch")

from dptrain.depth import layer_stack  # noqa: E402
from dptrain.resolver import Block, Schedule  # noqa: E402
from dptrain.routing import Bounds, Router, bounds_of  # noqa: E402
from dptrain.routing.uses import Outer, norm_sq  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402


def schedule_of(model, stds: list[float]) -> Schedule:
    stack = layer_stack(model)
    groups: dict = {}
    for tensor in stack.tensors:
        groups.setdefault(tensor.positions, []).append(tensor)
    blocks = tuple(
        Block(f"b{i}", positions, tuple(tensors), ("a",), stds[i % len(stds)])
        for i, (positions, tensors) in enumerate(sorted(groups.items()))
    )
    return Schedule(stack, blocks, {"a": tuple(range(len(blocks)))}, ())


def influence(
    router: Router, schedule: Schedule, model, family, batch, bounds: Bounds, only: int, scale
) -> tuple[float, float]:
    """Norm and whitened norm of what contribution ``only`` alone adds to the sums, in float64."""
    n = len(bounds.clip_N)
    router.arm(n, 1, bounds.permitted_NG)
    losses = family.losses(model, batch) * scale
    router.backward(losses, torch.ones(n, dtype=torch.float64))
    coefficients = router.coefficients(router.norms_sq(), bounds)
    keep = torch.zeros_like(coefficients)
    keep[only] = coefficients[only]
    router.accumulate(keep)
    flat = white = 0.0
    for (g, _), total in zip(router.tensors, router.take_sums(), strict=True):
        assert bool(bounds.permitted_NG[only, g]) or not bool(total.any()), "a block outside the band was touched"
        square = float(total.double().square().sum())
        flat += square
        white += square / schedule.blocks[g].std ** 2
    return flat**0.5, white**0.5


@pytest.mark.parametrize("family_name", ["bert", "gpt2_tied", "llama", "bert_lora"])
def test_one_contribution_never_exceeds_its_signed_bounds(family_name: str) -> None:
    rng = random.Random(family_name)
    torch.manual_seed(0)
    family = FAMILIES[family_name]()
    model = family.model.float()
    n = 6
    schedule = schedule_of(model, [0.4, 1.0, 2.7])
    for block in schedule.blocks:
        for tensor in block.tensors:
            tensor.parameter.requires_grad_(False)
    router = Router(model, schedule, largest_multiplier=8.0)
    router.attach()
    batch = {k: v.float() if v.is_floating_point() else v for k, v in family.batch(n, 5).items()}
    scale = torch.tensor([10.0 ** rng.uniform(0, 6) for _ in range(n)])
    profiles = [tuple(sorted(rng.sample(range(len(schedule.blocks)), rng.randint(1, len(schedule.blocks))))) for _ in range(n)]
    bounds = bounds_of([(rng.uniform(0.1, 2), rng.uniform(0.3, 8), profiles[i]) for i in range(n)], len(schedule.blocks))
    clipped = 0
    for i in range(n):
        flat, white = influence(router, schedule, model, family, batch, bounds, i, scale)
        assert flat <= float(bounds.clip_N[i])
        assert white <= 1 / float(bounds.sigma_N[i])
        clipped += flat > 0.99 * float(bounds.clip_N[i]) or white > 0.99 / float(bounds.sigma_N[i])
    assert clipped >= 3, "the bounds must bind for the test to mean something"


def test_a_cancelling_gradient_does_not_hide_from_the_gram_norm() -> None:
    """A contribution built so that its positions cancel: the float32 Gram product alone may read (far) too low."""
    torch.manual_seed(0)
    a = torch.randn(1, 64, 256)
    b = torch.randn(1, 64, 8) * 1e3
    b[:, 32:] = -b[:, :32]
    a[:, 32:] = a[:, :32] + 1e-5 * torch.randn(1, 32, 256)
    true = torch.bmm(b.double().mT, a.double()).square().sum()
    found = norm_sq([Outer(a, b)], torch.Size((8, 256)))
    assert float(found) >= float(true)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_non_finite_contribution_counts_as_zero_and_leaves_the_others_alone(poison: float) -> None:
    """H9: NaN and infinity in one contribution change nothing but its own share, which becomes zero."""
    torch.manual_seed(0)
    family = FAMILIES["bert"]()
    model = family.model.float()
    schedule = schedule_of(model, [1.0])
    for block in schedule.blocks:
        for tensor in block.tensors:
            tensor.parameter.requires_grad_(False)
    router = Router(model, schedule, largest_multiplier=1.0)
    router.attach()
    batch = family.batch(4, 1)
    bounds = bounds_of([(1.0, 1.0, schedule.profiles["a"])] * 4, len(schedule.blocks))

    def sums(scale: torch.Tensor, without: int | None) -> list[torch.Tensor]:
        router.arm(4, 1, bounds.permitted_NG)
        router.backward(family.losses(model, batch) * scale, torch.ones(4, dtype=torch.float64))
        coefficients = router.coefficients(router.norms_sq(), bounds)
        if without is not None:
            coefficients[without] = 0
        router.accumulate(coefficients)
        return router.take_sums()

    poisoned = sums(torch.tensor([1.0, poison, 1.0, 1.0]), None)
    clean = sums(torch.ones(4), 1)
    for x, y in zip(poisoned, clean, strict=True):
        assert torch.equal(x, y)
