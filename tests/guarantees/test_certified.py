"""Exactness level `certified` (Theorem 4): exact integers, certified one by one, whatever a contributor sends."""

import math
import random
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping import certified as level  # noqa: E402
from dptrain.clipping.certified import CertifiedSums, Limits  # noqa: E402
from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from dptrain.errors import UnsupportedPolicy  # noqa: E402
from dptrain.gradients.forms import Dense, Gather, Outer  # noqa: E402
from dptrain.kernels import reductions  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from ledger.leaves import numerics  # noqa: E402
from tests.reference import naive, naive_certified  # noqa: E402
from tests.reference.compare import random_schedule  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.bounds import bounds_of, signed  # noqa: E402

FOUR = ["bert", "gpt2_tied", "llama", "bert_lora"]


def micro(value: float) -> float:
    return round(value * 10**6) / 10**6


class Scene:
    """A tiny model under a random schedule and random bounds, and a microbatch of six contributions of two examples."""

    n, examples = 6, 2

    def __init__(self, family: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.rng = random.Random(f"{family}{seed}")
        torch.manual_seed(seed)
        self.family = FAMILIES[family]()
        self.model = self.family.model.to(dtype).train()
        self.schedule = random_schedule(self.model, self.rng, 3)
        batch = self.family.batch(self.n * self.examples, 3)
        self.batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
        self.scale = 10 ** self.rng.uniform(0, 2)
        self.weight = torch.full((self.n * self.examples,), 1 / self.examples, dtype=torch.float64)
        profiles = list(self.schedule.profiles.values())
        self.rows = [
            (micro(self.rng.uniform(0.1, 2)), micro(self.rng.uniform(0.5, 4)), self.rng.choice(profiles)) for _ in range(self.n)
        ]
        self.bounds = bounds_of(self.rows, len(self.schedule.blocks))
        for block in self.schedule.blocks:
            for tensor in block.tensors:
                tensor.parameter.requires_grad_(False)
        self.router = self.routed("certified")

    def routed(self, exactness: str) -> Router:
        return Router(self.model, self.schedule, exactness=exactness, least_multiplier=0.5)

    def losses_of(self, i: int) -> torch.Tensor:
        rows = slice(i * self.examples, (i + 1) * self.examples)
        return self.family.losses(self.model, {k: v[rows] for k, v in self.batch.items()}) * self.scale

    def arm(self, router: Router, order: list[int], scale: torch.Tensor | None = None) -> None:
        """Runs the backward pass of these contributions, in this order."""
        at = torch.tensor([i * self.examples + j for i in order for j in range(self.examples)])
        bounds = bounds_of([self.rows[i] for i in order], len(self.schedule.blocks))
        router.arm(len(order), self.examples, bounds.permitted_NG)
        losses = self.family.losses(self.model, {k: v[at] for k, v in self.batch.items()}) * self.scale
        losses = losses if scale is None else losses * scale.repeat_interleave(self.examples).to(losses)
        router.backward(losses, self.weight[: len(at)])

    def sums(self, *orders: list[int], exactness: str = "certified", scale: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Sums of a step whose microbatches are these."""
        router = self.router if exactness == "certified" else self.routed(exactness)
        router.attach()
        for order in orders:
            self.arm(router, order, scale)
            router.fold(bounds_of([self.rows[i] for i in order], len(self.schedule.blocks)))
        router.detach()
        return list(router.sums.take())

    def integers(self, sums: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sums in units of their lattice; asserts that they are integers."""
        found = []
        for (block, _), total in zip(self.router.tensors, sums, strict=True):
            unit = self.schedule.blocks[block].std * 2.0**-self.router.sums.bits
            k = torch.round(total / unit)
            assert bool(((total / unit - k).abs() <= 1e-9 * k.abs().clamp_min(1e-3)).all()), "a sum is off the lattice"
            found.append(k.to(torch.int64))
        return found


@pytest.mark.one_in(7)
@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_integers_equal_the_naive_transcription_in_float64(family: str) -> None:
    """Gradients of one autograd pass per contribution, truncated by the definition: lattice-equal, off by a step at most."""
    scene = Scene(family, torch.float64)
    off = count = 0
    worst = 0
    gradients = naive.contribution_gradients(scene.model, scene.losses_of, scene.schedule, scene.n)
    clipped = 0
    for i, (clip, sigma, profile) in enumerate(scene.rows):
        k = scene.integers(scene.sums([i]))
        inside = [j for j, (block, _) in enumerate(scene.router.tensors) if block in profile]
        stds = [scene.schedule.blocks[scene.router.tensors[j][0]].std for j in inside]
        bits, margin = scene.router.sums.bits, scene.router.sums.float_margin
        true = naive_certified.integers_of([gradients[i][j] for j in inside], stds, clip, sigma, bits, margin)
        expected = dict(zip(inside, true, strict=True))
        c, s = (Fraction(round(v * 10**6), 10**6) for v in (clip, sigma))
        assert naive_certified.holds([k[j] for j in inside], stds, c, s, bits)
        z = naive_certified.multiplier(c, s, stds)
        clipped += sum(int(v.square().sum()) for v in true) * z**2 > Fraction(0.99) * (1 << 2 * bits)
        for j, integers in enumerate(k):
            if j not in expected:
                assert not bool(integers.any()), "a block outside the band was touched"
                continue
            gap = (integers - expected[j]).abs()
            worst = max(worst, int(gap.max()))
            off += int((gap > 0).sum())
            count += gap.numel()
    assert clipped, "the bounds must bind for the test to mean something"
    assert worst <= 1 and off <= 1e-4 * count
    print(f"{family}: {off} of {count} integers differ by one")


@pytest.mark.parametrize("family", FOUR)
def test_the_levels_and_the_definition_agree_in_float32(family: str) -> None:
    """Fast, certified and naive: what differs is the margin, the rounding of float32 and at most a step per contribution."""
    scene = Scene(family, torch.float32)
    certified = scene.sums([0, 1, 2], [3, 4, 5])
    fast = scene.sums([0, 1, 2], [3, 4, 5], exactness="fast")
    scene.model.double()
    gradients = naive.contribution_gradients(scene.model, scene.losses_of, scene.schedule, scene.n)
    true, _ = naive.clipped_sums(gradients, scene.schedule, scene.bounds, torch.zeros(scene.n, dtype=torch.float64))
    scale = max(float(t.norm()) for t in true)
    for (block, tensor), a, b, c in zip(scene.router.tensors, certified, fast, true, strict=True):
        step = scene.schedule.blocks[block].std * 2.0**-scene.router.sums.bits
        lost = scene.n * step * math.sqrt(tensor.coordinates)
        assert float((a - c).norm()) <= lost + 1e-5 * scale
        assert float((a - b).norm()) <= lost + (2.0**-9 + 1e-5) * scale


@pytest.mark.one_in(7)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FOUR)
def test_sums_do_not_depend_on_the_order_of_microbatches_or_contributions(family: str, dtype: torch.dtype) -> None:
    scene = Scene(family, dtype)
    first = scene.sums([0, 1, 2], [3, 4, 5])
    for again in (scene.sums([3, 4, 5], [0, 1, 2]), scene.sums([2, 0, 1], [5, 3, 4]), scene.sums([1, 5, 0], [4, 2, 3])):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("family", FOUR)
def test_sums_do_not_depend_on_the_number_of_threads(family: str) -> None:
    """Threads take one contribution each; torch works on one inside, so that no product rounds by how many there are."""
    before, found = torch.get_num_threads(), []
    scene = Scene(family, torch.float32)
    try:
        for threads in (1, 2, 4):
            scene.router.attach()
            torch.set_num_threads(1)  # forward and backward pass are not what is looked at
            scene.arm(scene.router, list(range(scene.n)))
            torch.set_num_threads(threads)
            scene.router.fold(scene.bounds)
            assert torch.get_num_threads() == threads
            scene.router.detach()
            found.append(list(scene.router.sums.take()))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_contribution_alone_is_formed_on_one_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = torch.get_num_threads(), []
    whole = level.gradient_of
    monkeypatch.setattr(level, "gradient_of", lambda *args: seen.append(torch.get_num_threads()) or whole(*args))
    try:
        torch.set_num_threads(2)
        scene = Scene("bert", torch.float32)
        scene.sums([0], [1, 2], [3, 4, 5])
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_integers_do_not_depend_on_what_else_is_in_the_microbatch() -> None:
    """The others may be anything, giant and not finite too."""
    scene = Scene("bert", torch.float32)
    alone = scene.sums([0, 1, 2], scale=torch.tensor([1.0, 0.0, 0.0]))
    for others in (1.0, 1e8, math.inf, math.nan):
        both = scene.integers(scene.sums([0, 1, 2], scale=torch.tensor([1.0, others, 0.0])))
        spoiled = scene.integers(scene.sums([0, 1, 2], scale=torch.tensor([0.0, others, 0.0])))
        for a, b, c in zip(scene.integers(alone), both, spoiled, strict=True):
            assert torch.equal(a, b - c)


@pytest.mark.parametrize("family", ["bert", "gpt2_tied", "llama"])
def test_integers_do_not_depend_on_the_padding_of_others(family: str) -> None:
    """With eager attention, which a run demands where a mask is collated; llama's sdpa skips a mask that is true everywhere."""

    def integers(kind: str, padded: bool) -> list[torch.Tensor]:
        scene = Scene(family, torch.float32)
        scene.model.set_attn_implementation(kind)
        scene.batch["attention_mask"] = torch.ones_like(scene.batch["attention_mask"])
        if padded:
            scene.batch["attention_mask"][scene.examples : 2 * scene.examples, -1] = 0
        return scene.integers(scene.sums([0, 1, 2], scale=torch.tensor([1.0, 0.0, 1.0])))

    assert all(torch.equal(a, b) for a, b in zip(integers("eager", False), integers("eager", True), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_input_stays_within_its_signed_bounds_exactly(dtype: torch.dtype) -> None:
    """Gradients over the whole range of the type, subnormal to infinite: the certificate holds in exact arithmetic."""
    for scale in (0.0, 1e-45, 1e-38, 1e-30, 1e-3, 1e8, 1e15, 1e25, 1e38, 1e300, math.inf, math.nan):
        sums, schedule = plain(dtype)
        torch.manual_seed(1)
        g = (torch.randn(1, 40, 30, dtype=torch.float64) * scale).to(dtype)
        sums.add({0: [Dense(g)]}, bounds_of([(0.7, 1.3, (0,))], 1))
        k = in_steps(sums, schedule)
        assert naive_certified.holds(k, [schedule.blocks[0].std], Fraction("0.7"), Fraction("1.3"), sums.bits)
        if 1e8 <= scale <= 1e15:
            assert int(k[0].square().sum()) * Fraction("1.3") ** 2 > Fraction(0.99) * (1 << 2 * sums.bits), "hardly clipped"


def plain(dtype: torch.dtype = torch.float32, std: float = 0.8, shape: tuple[int, ...] = (40, 30)) -> tuple:
    """Sums over one tensor in one block."""
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)))
    stack = layer_stack(model, "0")
    model[0][0].weight = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
    tensor = next(t for t in layer_stack(model, "0").tensors if t.name == "0.0.weight")
    block = Block("b", tensor.positions, (tensor,), ("a",), std)
    schedule = Schedule(stack, (block,), {"a": (0,)}, ())
    return CertifiedSums(schedule, [(0, tensor)], dtype), schedule


def in_steps(sums: CertifiedSums, schedule: Schedule) -> list[torch.Tensor]:
    unit = schedule.blocks[0].std * 2.0**-sums.bits
    out = []
    for total in sums.take():
        k = torch.round(total / unit)
        assert bool(((total / unit - k).abs() <= 1e-9 * k.abs().clamp_min(1e-3)).all()), "a sum is off the lattice"
        out.append(k.to(torch.int64))
    return out


def test_a_cancelling_gradient_is_certified_whatever_its_products_rounded_to() -> None:
    """Terms of 1e6 that cancel to nothing: what float32 leaves is noise of its own making, and counts only up to the bound."""
    torch.manual_seed(0)
    a = torch.randn(1, 64, 30)
    b = torch.randn(1, 64, 40) * 1e12
    b[:, 32:], a[:, 32:] = -b[:, :32], a[:, :32] + 1e-6 * torch.randn(1, 32, 30)
    sums, schedule = plain()
    sums.add({0: [Outer(a, b)]}, bounds_of([(1.0, 1.0, (0,))], 1))
    k = in_steps(sums, schedule)
    assert bool(k[0].any())
    assert naive_certified.holds(k, [0.8], Fraction(1), Fraction(1), sums.bits)


def test_thousands_of_conspirators_move_nothing_but_their_own_share() -> None:
    """4096 giants after one contribution: it counts exactly as it does alone, to the last integer."""
    torch.manual_seed(0)
    one = torch.randn(1, 40, 30) * 1e-6
    giants = torch.randn(64, 40, 30) * 1e12
    bound = (1.0, 1.0, (0,))
    with_one, schedule = plain()
    without, _ = plain()
    alone, _ = plain()
    with_one.add({0: [Dense(one)]}, bounds_of([bound], 1))
    alone.add({0: [Dense(one)]}, bounds_of([bound], 1))
    for _ in range(64):
        for sums in (with_one, without):
            sums.add({0: [Dense(giants)]}, bounds_of([bound] * 64, 1))
    a, b, c = (in_steps(sums, schedule)[0] for sums in (with_one, without, alone))
    assert bool(c.any()) and torch.equal(a - b, c)
    each = b // 64  # 64 times the same microbatch, exactly
    assert torch.equal(each * 64, b)


def test_rows_of_a_table_are_certified_as_the_sum_they_are() -> None:
    """A row hit often is one coordinate row: its integers are those of the sum, which is what the certificate bounds."""
    sums, schedule = plain(std=0.5)
    ids = torch.tensor([[3, 3, 3, 3, 5, 7]])
    sums.add({0: [Gather(ids, torch.full((1, 6, 30), 100.0))]}, bounds_of([(1.0, 2.0, (0,))], 1))
    k = in_steps(sums, schedule)
    assert naive_certified.holds(k, [0.5], Fraction(1), Fraction(2), sums.bits)
    assert torch.equal(torch.nonzero(k[0].any(1)).flatten(), torch.tensor([3, 5, 7]))
    assert int(k[0][3, 0]) > 3.9 * int(k[0][5, 0]) > 0


def test_a_failed_certificate_is_mended_or_the_contribution_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coefficient twice too large, as if norms had read low: the bounds hold all the same."""
    right = CertifiedSums.coefficients
    for wrong in (2.0, 1e6, 1e30, math.inf, math.nan):
        monkeypatch.setattr(
            CertifiedSums, "coefficients", lambda self, *given, by=wrong: {b: by * c for b, c in right(self, *given).items()}
        )
        sums, schedule = plain()
        torch.manual_seed(0)
        sums.add({0: [Dense(torch.randn(1, 40, 30))]}, bounds_of([(1.0, 1.0, (0,))], 1))
        k = in_steps(sums, schedule)
        assert naive_certified.holds(k, [0.8], Fraction(1), Fraction(1), sums.bits)
        assert bool(k[0].any()) == (wrong <= 1e30)
    monkeypatch.setattr(CertifiedSums, "coefficients", right)
    monkeypatch.setattr(Limits, "admit", lambda self, squares: False)
    sums, schedule = plain()
    sums.add({0: [Dense(torch.randn(1, 40, 30))]}, bounds_of([(1.0, 1.0, (0,))], 1))
    assert not bool(in_steps(sums, schedule)[0].any()), "what no attempt certifies counts as zero"


def test_the_certificate_is_exact_to_the_unit() -> None:
    """One integer more than the bound allows is refused, for bounds that no double can tell apart."""
    sums, _ = plain(std=0.1)
    limits = sums.limits(signed(0.3, 0.333333), (0,))
    for square in range(limits.whitened - 2, limits.whitened + 3):
        c, sigma = min(Fraction(0.3), Fraction("0.3")), max(Fraction(0.333333), Fraction("0.333333"))
        z = max(sigma, Fraction(0.1) / c * (1 + Fraction(1, 1 << 52)))
        fits = square * z**2 <= 1 << 2 * sums.bits and Fraction(0.1) ** 2 * square <= (1 << 2 * sums.bits) * c**2
        assert limits.admit({0: float(square)}) == fits
    for broken in (math.nan, math.inf, 2.0**53, 2.0**60):
        assert not limits.admit({0: broken})


def test_either_half_of_the_certificate_refuses_alone() -> None:
    """Two blocks, of noise 1 and 10, at C = 1 and sigma = 4: the one is held by its whitened norm, the other by its norm."""
    sums, _ = plain(std=1.0)
    sums.use([1.0, 10.0])
    sums._shares = [0, 0]
    limits = sums.limits(signed(1.0, 4.0), (0, 1))
    steps = 1 << 2 * sums.bits
    white, flat = steps // 16, steps // 100
    assert limits.admit({0: float(white), 1: 0.0}) and not limits.admit({0: float(white + 1), 1: 0.0})
    assert limits.admit({0: 0.0, 1: float(flat)}) and not limits.admit({0: 0.0, 1: float(flat + 1)})


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_certified_is_what_is_added_on_every_device(dtype: torch.dtype) -> None:
    """Squares are formed beside the integers, never in their place: ``double()`` of a float64 tensor is the tensor itself."""
    torch.manual_seed(0)
    sums, _ = plain(dtype)
    gradient = torch.randn(40, 30, dtype=dtype)
    here, there = gradient.clone(), gradient.clone().as_subclass(Elsewhere)
    integers, steps = (gradient * 1000.0).trunc(), {0: 1000.0}
    square = float(integers.double().square().sum())
    assert sums._squares({0: here}, steps) == sums._squares({0: there}, steps) == {0: square}
    assert torch.equal(here, gradient) and torch.equal(there.as_subclass(torch.Tensor), gradient)
    for one in (here, there):
        sums._accumulate([({0: one}, steps), ({0: one}, steps)])
        assert torch.equal(sums._total(0).as_subclass(torch.Tensor), 2 * integers.double())
        sums._sums[0] = None
        level.truncate({0: one}, steps)
        assert torch.equal(one.as_subclass(torch.Tensor), integers)


def test_limits_follow_the_noise_of_the_step_they_are_for() -> None:
    """Looked up once at noise 1, then at noise 8: the multiplier that is accounted is 8, and so is the certificate's."""
    sums, _ = plain(std=1.0)
    for std in (1.0, 8.0, 2.0):
        sums.use([std])
        limits = sums.limits(signed(1.0, 1.0), (0,))
        assert 0.999 < limits.whitened * std**2 / 4.0**sums.bits <= 1.0


def test_sums_are_limited_to_what_the_release_recovers() -> None:
    sums, _ = plain(std=1.0, shape=(1, 3))
    far = float(1 << 18 + sums.bits)
    sums._sums[0] = torch.tensor([[far + 1.0, -3.0 * far, far - 1.0]], dtype=torch.float64)
    (total,) = sums.take()
    assert (total * 2.0**sums.bits).tolist() == [[far, -far, far - 1.0]]


def test_the_certificate_bounds_the_multiplier_that_is_accounted() -> None:
    """The accountant's double may lie above the exact ratio; the certificate is for the double."""
    from attest.schedule import effective_multiplier

    rng = random.Random(0)
    for _ in range(300):
        std, clip, sigma = rng.uniform(0.01, 5), rng.randint(1, 4 * 10**6), rng.randint(10**5, 5 * 10**6)
        sums, _ = plain(std=std)
        limits = sums.limits(signed(clip / 10**6, sigma / 10**6), (0,))
        z = Fraction(effective_multiplier(signed(clip / 10**6, sigma / 10**6), [std]))
        assert limits.whitened * max(z, Fraction(sigma, 10**6)) ** 2 <= 1 << 2 * sums.bits


def test_squares_add_up_exactly_below_the_limit_and_never_read_low_above_it() -> None:
    rng = random.Random(0)
    for _ in range(200):
        size = rng.choice([1, 7, 1000])
        k = torch.tensor([rng.randint(-(2 ** rng.randint(0, 28)), 2**27) for _ in range(size)], dtype=torch.float64)
        true = sum(int(v) ** 2 for v in k.tolist())
        read = float(torch.dot(k, k))
        assert int(read) == true if true < 1 << 53 else read >= 2.0**53


def test_the_release_recovers_the_integers() -> None:
    """s K 2^-b in float64, divided by s 2^-32 and rounded, is K 2^(32-b): no rounding of sums, so no margin for it."""
    rng = random.Random(0)
    for bits in (1, 20, 22, 24, 26, 32):
        for _ in range(2000):
            std = rng.uniform(1, 10) * 10.0 ** rng.randint(-12, 6)
            k = rng.randint(-(1 << 18 + bits), 1 << 18 + bits)
            value = torch.tensor(float(k), dtype=torch.float64).mul_(std * 2.0**-bits)
            assert int((value / (std * 2.0**-32)).round()) == k << 32 - bits


def test_the_lattice_follows_public_numbers() -> None:
    def lattice_bits(coordinates: int, multiplier: float) -> int:
        return numerics.lattice_bits("certified", "gaussian", coordinates, multiplier)

    assert lattice_bits(10**5, 1.0) == 22 and lattice_bits(10**8, 1.0) == 24 and lattice_bits(10**9, 1.0) == 26
    assert lattice_bits(10**5, 0.5) == 21 and lattice_bits(10**5, 4.0) == 24 and lattice_bits(10**5, 1e9) == 32
    for d in (10, 10**8, 10**9):
        for z in (1e-6, 0.3, 1.0, 7.0, 1e9):
            assert lattice_bits(d, z) >= 1
            assert 2.0 ** lattice_bits(d, z) / z <= 2.0**26


def test_a_pool_beyond_what_adds_up_exactly_is_refused() -> None:
    sums, _ = plain()
    sums.require_capacity(level.MOST_CONTRIBUTIONS)
    assert level.MOST_CONTRIBUTIONS * level.WIDEST < 1 << 53
    with pytest.raises(UnsupportedPolicy, match="CAPACITY"):
        sums.require_capacity(level.MOST_CONTRIBUTIONS + 1)


def test_integers_are_formed_in_full_precision_under_autocast() -> None:
    """Autocast around backward() is the user's; it must not reach the products."""
    torch.manual_seed(0)
    piece = Outer(torch.randn(1, 64, 30), torch.randn(1, 64, 40))
    plainly, schedule = plain()
    plainly.add({0: [piece]}, bounds_of([(1.0, 1.0, (0,))], 1))
    under, _ = plain()
    with torch.autocast("cpu", torch.bfloat16):
        under.add({0: [piece]}, bounds_of([(1.0, 1.0, (0,))], 1))
    assert torch.equal(in_steps(plainly, schedule)[0], in_steps(under, schedule)[0])


def test_noise_of_a_step_moves_lattice_and_certificate_with_it() -> None:
    torch.manual_seed(0)
    g = torch.randn(1, 40, 30)
    bounds = bounds_of([(1.0, 1.0, (0,))], 1)
    sums, _ = plain(std=0.8)
    sums.add({0: [Dense(g)]}, bounds)  # limits for 0.8 are known from here on
    list(sums.take())
    sums.use([0.5])
    sums.add({0: [Dense(g)]}, bounds)
    other, schedule = plain(std=0.5)
    other.add({0: [Dense(g)]}, bounds)
    k = in_steps(sums, schedule)
    assert torch.equal(k[0], in_steps(other, schedule)[0])
    assert naive_certified.holds(k, [0.5], Fraction(1), Fraction(1), sums.bits)


@pytest.mark.parametrize(("held", "beside"), [(0, 0), (1 << 28, level.TOGETHER - 1)])
def test_one_contribution_is_in_memory_at_a_time_and_a_few_of_small_models(
    held: int, beside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import weakref

    right, alive, most = level.gradient_of, [], []

    def counted(*args: object) -> object:
        most.append(sum(ref() is not None for ref in alive))
        found = right(*args)
        alive.append(weakref.ref(found))
        return found

    monkeypatch.setattr(level, "gradient_of", counted)
    monkeypatch.setattr(level, "HELD", held)
    sums, _ = plain()
    sums.add({0: [Outer(torch.randn(16, 4, 30), torch.randn(16, 4, 40))]}, bounds_of([(1.0, 1.0, (0,))] * 16, 1))
    assert len(most) == 16 and max(most) == beside


# --- the faults that must show -----------------------------------------------------------------------------------------


def must_fail(check) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()


def test_without_truncation_sums_leave_the_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "ENABLED", False)
    monkeypatch.setattr(level, "_truncated", lambda part, step: part * step)
    must_fail(lambda: test_integers_equal_the_naive_transcription_in_float64("bert"))


def test_without_the_certificate_a_low_norm_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "admit", lambda self, squares: True)
    must_fail(lambda: test_a_failed_certificate_is_mended_or_the_contribution_counts_as_zero(monkeypatch))
    must_fail(test_the_certificate_is_exact_to_the_unit)


def test_a_wrong_std_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CertifiedSums.__init__

    def wrong(self: CertifiedSums, *args: object, **kwargs: object) -> None:
        right(self, *args, **kwargs)
        self._stds = [1.0 for _ in self._stds]

    monkeypatch.setattr(CertifiedSums, "__init__", wrong)
    must_fail(lambda: test_integers_equal_the_naive_transcription_in_float64("bert"))
    must_fail(test_rows_of_a_table_are_certified_as_the_sum_they_are)


def test_a_certificate_over_wrong_stds_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clip aims right, the certificate reads noise that is not there: it would let through what it must not."""
    right = CertifiedSums.limits

    def doubled(self: CertifiedSums, *args) -> Limits:
        kept, self._stds = self._stds, [std / 2 for std in self._stds]
        try:
            return right(self, *args)
        finally:
            self._stds = kept

    monkeypatch.setattr(CertifiedSums, "limits", doubled)
    must_fail(test_the_certificate_is_exact_to_the_unit)


def test_a_certificate_per_tensor_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block within the whole bound is not the whole within it."""
    right = Limits.admit
    monkeypatch.setattr(
        Limits, "admit", lambda self, squares: all(right(self, {block: square}) for block, square in squares.items())
    )
    right_ones = CertifiedSums.coefficients
    monkeypatch.setattr(
        CertifiedSums, "coefficients", lambda self, *given: {b: 1.05 * c for b, c in right_ones(self, *given).items()}
    )
    must_fail(lambda: test_integers_equal_the_naive_transcription_in_float64("bert"))
