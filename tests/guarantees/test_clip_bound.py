"""Theorem 1': one contribution changes the sums by at most C_i in norm and 1/sigma_i in whitened norm, in float32 too."""

import random
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.fast import FastSums, precision_name  # noqa: E402
from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from dptrain.gradients import matmul  # noqa: E402
from dptrain.gradients.forms import Dense, Gather, Outer, add_weighted, gather, merge, norm_sq  # noqa: E402
from dptrain.routing import Bounds, Router  # noqa: E402
from ledger.leaves.numerics import FAST, MARGINS  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.bounds import bounds_of  # noqa: E402


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
    coefficients = router.sums.coefficients(router.sums.norms_sq(router.pieces, router.contributions), bounds)
    keep = torch.zeros_like(coefficients)
    keep[only] = coefficients[only]
    router.sums.accumulate(router.pieces, keep)
    router.disarm()
    flat = white = 0.0
    for (g, _), total in zip(router.tensors, router.sums.take(), strict=True):
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
    router = Router(model, schedule)
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
    found = norm_sq([Outer(a, b)])
    assert float(found) >= float(true)


@pytest.mark.parametrize("t, d, p", [(64, 512, 512), (32, 2048, 2048), (64, 768, 3072), (16, 4096, 32)])
def test_terms_that_are_lost_one_by_one_do_not_hide_from_the_gram_norm(t: int, d: int, p: int) -> None:
    """One large term and many that just vanish beside it: added in sequence all are lost, and the Gram product reads half."""
    small = (0.999 * 2.0**-24) ** 0.5
    v, x = torch.full((d,), small), torch.full((p,), small)
    v[0] = x[0] = 1.0
    e, f = torch.zeros(d), torch.zeros(p)
    e[0] = f[0] = 1.0
    a = torch.stack([v] * (t // 2) + [e] * (t // 2))[None] * 1024
    b = torch.stack([x] * (t // 2) + [-f] * (t // 2))[None]
    true = torch.bmm(b.double().mT, a.double()).square().sum()
    assert float(norm_sq([Outer(a, b)])) >= float(true)


def test_later_contributions_cannot_amplify_one_by_rounding_the_sum() -> None:
    """Thousands of others after it: in float32 the running sum would round one contribution to several times its bound."""
    grown = torch.zeros(64, dtype=torch.float64)
    without = torch.zeros(64, dtype=torch.float64)
    one = torch.full((1, 64), 2.0**-13)
    other = torch.full((1, 64), 1.0 + 2.0**-23)
    weight = torch.ones(1, dtype=torch.float64)
    add_weighted([Dense(one)], weight, grown)
    for _ in range(4096):
        add_weighted([Dense(other)], weight, grown)
        add_weighted([Dense(other)], weight, without)
    influence = float((grown - without).norm())
    assert influence <= float(one.norm()) * (1 + 1e-6)


def test_rows_that_cancel_within_a_contribution_leave_nothing_in_the_sum() -> None:
    """Norm and sum of an embedding gradient speak of the same numbers: huge terms on one row that add up to nothing."""
    ids = torch.tensor([[3, 3, 5], [3, 4, 6]])
    b = torch.zeros(2, 3, 4)
    b[0, 0], b[0, 1] = 1e10, -1e10
    b[1] = 1e-3
    piece = gather(ids, b, 8)
    assert norm_sq([piece]).tolist()[0] == 0.0
    total = torch.zeros(8, 4, dtype=torch.float64)
    add_weighted([piece], torch.ones(2, dtype=torch.float64), total)
    alone = torch.zeros(8, 4, dtype=torch.float64)
    add_weighted([gather(ids[1:], b[1:], 8)], torch.ones(1, dtype=torch.float64), alone)
    assert torch.equal(total, alone)


def test_norms_of_long_gradients_do_not_read_low() -> None:
    """Squares of millions of coordinates added in float32 lose a percent; the margin is a fifth of one."""
    g = torch.full((1, 1 << 24), 0.37)
    assert float(norm_sq([Dense(g)])) >= float(g.double().square().sum()) * (1 - 1e-5)


@pytest.mark.parametrize(
    ("dtype", "positions", "width", "entry"),
    [
        (torch.float32, 1, 1 << 22, 1.784419298171997),
        (torch.bfloat16, 1, 1 << 22, 1.125),
        (torch.float64, 1, 1 << 20, 2.371662735939026),
        (torch.float64, 40, 1 << 18, 3.531014144420624),
    ],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_equal_entries_of_a_wide_input_do_not_drift_below_the_norm(
    dtype: torch.dtype, positions: int, width: int, entry: float, transposed: bool
) -> None:
    """Added one after the other all lose the same part of themselves: rounding goes one way, and by more than the margin."""
    a, b = torch.full((1, positions, width), entry, dtype=dtype), torch.ones(1, positions, 2, dtype=dtype)
    shape = torch.Size((width, 2) if transposed else (2, width))
    (piece,) = merge([Outer(a, b, transposed).settled(shape, alone=False)], shape)
    true = Fraction(float(a[0, 0, 0])) ** 2 * width * 2 * positions**2
    assert Fraction(float(norm_sq([piece]))) >= true


@pytest.mark.parametrize("others", [0, 2048])
def test_the_sum_over_pairs_of_positions_has_its_rounding_in_the_bound(others: int) -> None:
    """Narrow factors of a tied tensor: the products have few roundings in float64, and the sum of T^2 of them has many."""
    t = 2048
    b = torch.ones(1, t, 1, dtype=torch.float64)
    b[:, ::2] = -1.0
    head, table = Outer(torch.ones_like(b), b), Gather(torch.zeros(1, others, dtype=torch.long), 0 * b[:, :others])
    assert float(norm_sq([head, table] if others else [head])) >= (t + others) ** 2 * t**2 * 2.0**-53


@pytest.mark.parametrize("width", [1 << 16, 1 << 21, 1 << 22])
@pytest.mark.parametrize("entry", [1.0193059444427490, 1.784419298171997])
def test_one_position_of_a_wide_input_stays_within_its_signed_bounds(width: int, entry: float) -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(width, 2, bias=False)))
    tensor = next(t for t in layer_stack(model, "0").tensors if t.name == "0.0.weight")
    schedule = Schedule(layer_stack(model, "0"), (Block("b", tensor.positions, (tensor,), ("a",), 1.0),), {"a": (0,)}, ())
    sums = FastSums(schedule, [(0, tensor)], torch.float32)
    sums.add({0: [Outer(torch.full((1, 1, width), entry), torch.ones(1, 1, 2))]}, bounds_of([(1.0, 1.0, (0,))], 1))
    (total,) = sums.take()
    assert float(total[0].double().dot(total[0]) * 2) <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("enabled", [True, False], ids=["onednn", "torch"])
def test_equal_rows_do_not_drift_from_their_sum_by_a_quarter_of_the_margin(
    dtype: torch.dtype, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "ENABLED", enabled and matmul.AVAILABLE)
    rows, allowed = 1 << 17, MARGINS[FAST][precision_name(dtype)] / 4
    for entry in (1.0193059444427490, 1.3, 1.7):
        a = torch.full((1, rows, 8), entry, dtype=dtype)
        true = Fraction(float(a[0, 0, 0])) * rows
        for piece in (Outer(a, torch.ones_like(a)), Dense(a.view(rows, 8, 1).expand(-1, -1, 8))):
            total = torch.zeros(8, 8, dtype=torch.float64)
            add_weighted([piece], torch.ones(piece.count, dtype=torch.float64), total)
            assert max(abs(Fraction(found) / true - 1) for found in total.flatten().tolist()) <= allowed


def test_a_coefficient_that_float32_cannot_hold_counts_as_zero() -> None:
    """A gradient of 1e37 under a clip norm of 1e-6: the coefficient is subnormal there, and would be rounded up by a fifth."""
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8)))
    tensor = next(t for t in layer_stack(model, "0").tensors if t.name == "0.0.weight")
    schedule = Schedule(layer_stack(model, "0"), (Block("b", tensor.positions, (tensor,), ("a",), 1e-6),), {"a": (0,)}, ())
    for size in range(100, 185):
        a = torch.zeros(1, 1, 8)
        a[0, 0, 0] = size * 1e17
        sums = FastSums(schedule, [(0, tensor)], torch.float32)
        sums.add({0: [Outer(a, a.clone())]}, bounds_of([(1e-6, 1.0, (0,))], 1))
        (total,) = sums.take()
        assert float(total.norm()) <= 1e-6


def test_a_gram_norm_that_overflows_below_zero_is_no_norm_of_zero() -> None:
    """Terms of one giant overflow where those that cancel them do not: such a contribution is zeroed, or has its true norm."""
    a, b = torch.zeros(1, 61, 128), torch.zeros(1, 61, 128)
    a[0, :, 0], b[0, 0, 0], b[0, 1:, 0] = 1.0, 1.8e19, -2e18
    true = torch.bmm(b.double().mT, a.double()).square().sum()
    assert float(norm_sq([Outer(a, b)])) >= float(true), "sums of rows are float64, which holds them"
    a[0, 0, 0], a[0, 1:, 0] = 2.0, -2.0
    assert not bool(torch.isfinite(norm_sq([Outer(a, b * 2)])))
    head = Outer(torch.full((1, 1, 1), 1.5e19), torch.full((1, 1, 1), 8.0))
    table = Gather(torch.zeros(1, 1, dtype=torch.long), torch.full((1, 1, 1), -1.7e19))
    assert not bool(torch.isfinite(norm_sq([head, table])))


def test_inputs_whose_squares_vanish_do_not_hide_behind_large_output_gradients() -> None:
    """Kernels may flush what is subnormal: Gram entries of 5e-20 are zero then, and beside 1e18 the gradient is not."""
    a, b = torch.full((1, 2, 64), 5e-20), torch.full((1, 2, 64), 1e18)
    true = b[0].double().t() @ a[0].double()
    torch.set_flush_denormal(True)
    try:
        found = [float(norm_sq([Outer(x, y)])) for x, y in ((a, b), (b, a))]
    finally:
        torch.set_flush_denormal(False)
    assert min(found) >= float(true.square().sum())


def test_the_margin_pays_for_the_lattice_at_the_accounted_multiplier() -> None:
    """One lattice step of 2^-32 per coordinate, beside a whitened bound of 1/z with z = max(sigma, s/C)."""
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)))
    schedule = schedule_of(model, [0.5])
    tensors = [(0, tensor) for tensor in schedule.blocks[0].tensors]
    sums = FastSums(schedule, tensors, torch.float64)
    bounds = bounds_of([(0.25, 7.0, (0,)), (0.001, 7.0, (0,))], len(schedule.blocks))
    step = 2.0**-32 * schedule.coordinates**0.5
    assert (sums.margins(bounds) - sums.float_margin).tolist() == pytest.approx([7.0 * step, 500.0 * step], rel=1e-6)


def test_a_microbatch_is_forgotten_when_it_ends() -> None:
    """A circle through autograd's hooks would keep every activation of a run alive."""
    import gc
    import weakref

    family = FAMILIES["bert"]()
    model = family.model.float()
    schedule = schedule_of(model, [1.0])
    for block in schedule.blocks:
        for tensor in block.tensors:
            tensor.parameter.requires_grad_(False)
    router = Router(model, schedule)
    router.attach()
    bounds = bounds_of([(1.0, 1.0, schedule.profiles["a"])] * 2, len(schedule.blocks))
    router.arm(2, 1, bounds.permitted_NG)
    losses = family.losses(model, family.batch(2, 0))
    router.backward(losses, torch.ones(2, dtype=torch.float64))
    held = [weakref.ref(tap) for _, tap, _ in router.taps] + [weakref.ref(router._armed)]
    router.fold(bounds)
    del losses
    gc.collect()
    assert held and all(item() is None for item in held)


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
    router = Router(model, schedule)
    router.attach()
    batch = family.batch(4, 1)
    bounds = bounds_of([(1.0, 1.0, schedule.profiles["a"])] * 4, len(schedule.blocks))

    def sums(scale: torch.Tensor, without: int | None) -> list[torch.Tensor]:
        router.arm(4, 1, bounds.permitted_NG)
        router.backward(family.losses(model, batch) * scale, torch.ones(4, dtype=torch.float64))
        coefficients = router.sums.coefficients(router.sums.norms_sq(router.pieces, router.contributions), bounds)
        if without is not None:
            coefficients[without] = 0
        router.sums.accumulate(router.pieces, coefficients)
        router.disarm()
        return list(router.sums.take())

    poisoned = sums(torch.tensor([1.0, poison, 1.0, 1.0]), None)
    clean = sums(torch.ones(4), 1)
    for x, y in zip(poisoned, clean, strict=True):
        assert torch.equal(x, y)
