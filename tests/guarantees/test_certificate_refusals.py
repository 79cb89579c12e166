"""The certificate alone, where the clip before it has failed: no norm, bound or digit of it may be looser than was signed."""

import math
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from attest.schedule import effective_multiplier  # noqa: E402
from dptrain.blocks.stack import LayerStack, Tensor  # noqa: E402
from dptrain.clipping.certified import CertifiedSums, truncate  # noqa: E402
from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from tests.reference import naive_certified  # noqa: E402
from tests.worlds.bounds import signed  # noqa: E402

STDS = (0.7, 2.3)
SHAPE = (40, 25)


def sums(family: str = "gaussian", stds: tuple[float, ...] = STDS) -> CertifiedSums:
    tensors = [Tensor(f"t{g}", (f"t{g}",), (("", g),), nn.Parameter(torch.zeros(SHAPE))) for g in range(len(stds))]
    blocks = tuple(Block(t.name, (g,), (t,), ("k",), std) for g, (t, std) in enumerate(zip(tensors, stds, strict=True)))
    stack = LayerStack(tuple(f"l{g}" for g in range(len(stds))), tuple(tensors))
    schedule = Schedule(stack, blocks, {"k": tuple(range(len(stds)))}, ())
    return CertifiedSums(schedule, list(enumerate(tensors)), torch.float64, 1.5, family)


@pytest.mark.parametrize(("family", "power"), [("gaussian", 2), ("laplace", 1)])
@pytest.mark.parametrize("spread", ["dense", "one"])
@pytest.mark.parametrize("excess", [1.5, 40.0])
def test_what_was_not_clipped_is_shrunk_or_counts_as_zero(
    family: str, power: int, spread: str, excess: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clip is told to leave a gradient as it is, at 1.5 and at 40 times its bounds, over two blocks."""
    own = sums(family)
    clip, sigma = 1.0, 1.5
    gradients = {}
    for g in (0, 1):
        value = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(g))
        if spread == "one":
            value *= 0.0
            value[3, 4] = 1.0
        size = float(value.norm(power))
        gradients[g] = value * (excess * clip / size)
    monkeypatch.setattr(own, "coefficients", lambda found, limits, sizes: dict.fromkeys(found, 1.0))
    steps = own.certify(gradients, own.limits(signed(clip, sigma), (0, 1)))
    assert steps is not None
    truncate(gradients, steps)
    integers = [gradients[g].long() for g in (0, 1)]
    c, s = Fraction(clip), Fraction(3, 2)
    holds = naive_certified.holds_l1 if power == 1 else naive_certified.holds
    assert holds(integers, list(STDS), c, s, own.bits), "integers beyond the bounds were admitted"
    assert any(bool(k.any()) for k in integers)


@pytest.mark.parametrize("clip", [0.1, 0.2, 0.3, 0.7, 1.1, 1.9])
def test_the_stricter_of_a_decimal_and_its_double_bounds_the_norm(clip: float) -> None:
    """0.1 as a double is more than a tenth, 0.3 less than three tenths: whichever is smaller is what was signed."""
    own = sums(stds=(0.7,))
    limits = own.limits(signed(clip, 1.5), (0,))
    least = min(Fraction(clip), Fraction(round(clip * 10**6), 10**6))
    scale = Fraction(math.isqrt(limits.weights[0])) / Fraction(0.7)
    assert limits.weights[0] == (Fraction(0.7) * scale) ** 2
    assert limits.euclidean == math.floor((least * scale * (1 << own.bits)) ** 2)


@pytest.mark.parametrize("sigma", [0.4, 0.8, 1.6, 3.2])
def test_the_stricter_of_a_decimal_and_its_double_bounds_the_multiplier(sigma: float) -> None:
    """4^b / sigma^2 is a whole number here, and these doubles are more than their decimals: one square less is permitted."""
    own = sums(stds=(0.01,))
    exact = Fraction(round(sigma * 10**6), 10**6)
    assert Fraction(sigma) > exact and (Fraction(1 << 2 * own.bits) / exact**2).denominator == 1
    assert own.limits(signed(1.0, sigma), (0,)).whitened == (1 << 2 * own.bits) / exact**2 - 1


@pytest.mark.parametrize("sigma", [0.070143, 0.141084, 4.950824])
def test_where_the_double_of_a_multiplier_is_the_smaller_its_decimal_bounds_it(sigma: float) -> None:
    """One square more would pass by the double, which is less than what was signed."""
    own = sums(stds=(0.001,))
    exact = Fraction(round(sigma * 10**6), 10**6)
    permitted = math.floor((1 << 2 * own.bits) / exact**2)
    assert Fraction(sigma) < exact and math.floor((1 << 2 * own.bits) / Fraction(sigma) ** 2) == permitted + 1
    assert own.limits(signed(1.0, sigma), (0,)).whitened == permitted


@pytest.mark.parametrize(
    ("std", "clip"), [(0.083575148969397, 0.987288), (0.12070787004001027, 0.966074), (0.0904054882832683, 0.942957)]
)
def test_a_multiplier_that_is_accounted_a_little_above_the_exact_one_bounds_it(std: float, clip: float) -> None:
    """s / C as a double is more than the ratio here, by less than a unit of its last place, and permits less."""
    own, bounds = sums(stds=(std,)), signed(clip, 1e-6)
    accounted = Fraction(effective_multiplier(bounds, [std]))
    exact = Fraction(std) / min(Fraction(clip), Fraction(round(clip * 10**6), 10**6))
    assert math.floor((1 << 2 * own.bits) / exact**2) * accounted**2 > 1 << 2 * own.bits
    assert own.limits(bounds, (0,)).whitened * accounted**2 <= 1 << 2 * own.bits
