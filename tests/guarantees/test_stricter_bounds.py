"""Contributions that sign stricter bounds than their class: what dual clipping keeps, and at what epsilon."""

import random
import statistics

import pytest

torch = pytest.importorskip("torch")

from attest.schedule import block_std, effective_multiplier  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.fast import FastSums  # noqa: E402
from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from ledger.accountants import epsilon  # noqa: E402
from tests.guarantees.peers import must_fail  # noqa: E402
from tests.worlds.bounds import bounds_of, signed  # noqa: E402

M = 10**6
DESIGNS = 800


def design(rng: random.Random) -> tuple[float, float]:
    """A random policy under the max rule, and one contribution that signed a larger multiplier than its class's.

    Returns:
        The part of its gradient's norm that the dual clip keeps, and the part that clipping to min s_l / sigma_i keeps.
    """
    layers, count = rng.randint(4, 24), rng.randint(2, 5)
    sigmas_and_clips = [(10 ** rng.uniform(-0.3, 0.6), 10 ** rng.uniform(-0.5, 0.5)) for _ in range(count)]
    presets = [signed(clip, sigma) for sigma, clip in sigmas_and_clips]
    bands = []
    for _ in range(count):
        low = rng.randrange(layers)
        bands.append(range(low, rng.randint(low + 1, layers)))
    k = rng.randrange(count)
    touching = [[p for p, band in zip(presets, bands, strict=True) if layer in band] for layer in range(layers)]
    stds = [block_std(own) if own else 1.0 for own in touching]
    model = torch.nn.Sequential(torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(layers))))
    stack = layer_stack(model, "0")
    blocks = tuple(Block(f"b{g}", (g,), (stack.tensors[g],), ("a",), std) for g, std in enumerate(stds))
    sums = FastSums(Schedule(stack, blocks, {"a": tuple(bands[k])}, ()), [], torch.float64)
    sigma, clip = round(presets[k].noise_multiplier * rng.uniform(1.5, 8), 6), presets[k].clip_norm
    norms = torch.tensor([[(10 ** rng.uniform(-1, 1) * 100) ** 2 for _ in range(layers)]], dtype=torch.float64)
    bounds = bounds_of([(clip, sigma, tuple(bands[k]))], layers)
    kept = float(sums.coefficients(norms, bounds).amax())
    norm = float(norms[0, list(bands[k])].sum().sqrt())
    scale = min(clip, min(stds[layer] for layer in bands[k]) / sigma) / norm
    return kept, scale * (1 - float(sums.margins(bounds)[0]))  # rounding costs either way of clipping the same


def test_dual_clipping_never_keeps_less_than_a_smaller_clip_norm() -> None:
    """Boenisch et al. 2023, "Scale", beside Theorem 1."""
    rng = random.Random(0)
    ratios = []
    for _ in range(DESIGNS):
        kept, scale = design(rng)
        assert kept >= scale * (1 - 2.0**-30)
        ratios.append(kept / scale)
    uneven = sorted(ratio for ratio in ratios if ratio > 1 + 1e-9)  # the others have one level of noise over their band
    median, high = statistics.median(uneven), uneven[int(0.9 * len(uneven))]
    print(
        f"{len(uneven)} of {DESIGNS} designs have uneven noise; there dual clipping keeps {median:.2f} times as much "
        f"in the median, {high:.2f} times at the 90th percentile"
    )
    assert len(uneven) > DESIGNS / 5 and median > 1.1 and high > 1.8, "noise above the least must pay"


def test_the_comparison_sees_a_dual_clip_at_the_least_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a whitened norm taken with the least noise for every block is Scale, and a shade less is seen."""
    right = FastSums.__init__

    def least(self, schedule, *args):
        right(self, schedule, *args)
        own = [schedule.blocks[g].std for g in schedule.profiles["a"]]
        self._stds = torch.full_like(self._stds, min(own) * (1 - 1e-6))

    monkeypatch.setattr(FastSums, "__init__", least)
    must_fail(test_dual_clipping_never_keeps_less_than_a_smaller_clip_norm)


@pytest.mark.parametrize(("sigma", "clip", "z", "spent"), [(1, 1.0, 1.0, 1.828), (2, 1.0, 2.0, 0.622), (4, 0.5, 4.0, 0.272)])
def test_golden_figures_of_bounds_under_unit_noise(sigma: float, clip: float, z: float, spent: float) -> None:
    """Class preset sigma 1, C 1: signed (1, 1), (2, 1) and (4, 0.5); q = 0.01, 1000 steps, delta 1e-5."""
    found = effective_multiplier(signed(clip, sigma), [1.0])
    assert found == z
    assert epsilon(found, 0.01, 1000, 1e-5) == pytest.approx(spent, abs=6e-4)
