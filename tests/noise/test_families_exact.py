"""Laplace, discrete Gaussian and Skellam integers: the step function, its table, and decisions, against 60 digits and
chi-square."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")
stats = pytest.importorskip("scipy.stats")

from dptrain.noise import KeyStream, exact  # noqa: E402
from dptrain.noise.exact import CHUNK, COLUMNS, ExactSampler, Table, exp_of_minus, table_of  # noqa: E402
from dptrain.noise.families import (  # noqa: E402
    DiscreteGaussian,
    RoundedLaplace,
    Skellam,
    _tabulated,
)

RUN = b"r" * 16
ALARM = 5.7e-7
"""Two-sided five standard errors: the false alarm rate of every test of a law here."""


def stream(name: str = "law", attempt: int = 0) -> KeyStream:
    return KeyStream("noise", RUN, attempt, name.encode().ljust(32))


def draws(sampler: ExactSampler, count: int, *, name: str = "law", step: int = 1, lane: int = 0) -> np.ndarray:
    source = stream(name)
    parts = [sampler.integers(source, step, lane, start, min(CHUNK, count - start)) for start in range(0, count, CHUNK)]
    return np.concatenate(parts)


def variance(law: Any) -> Any:
    """Of Skellam noise, in squared lattice steps."""
    return mpmath.mpf(4) ** law.lattice / law.parts


def true_weight(law: Any, k: int) -> Any:
    """From the definition: of P(k) up to a constant, which is 1 / w(0) but for Laplace noise."""
    with mpmath.workdps(60):
        t = mpmath.mpf(2) ** law.bits
        if law.name == "discrete_gaussian":
            return mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * t * t))
        if law.name == "skellam":
            return mpmath.besseli(k, variance(law)) / mpmath.besseli(0, variance(law))
        below = mpmath.exp(-(k - mpmath.mpf(1) / 2) / t) / 2 if k else 1 - mpmath.exp(-1 / (2 * t)) / 2  # P(L > k - 1/2)
        return (below - mpmath.exp(-(k + mpmath.mpf(1) / 2) / t) / 2) / mpmath.sinh(1 / (2 * t))


def probabilities(law: Any, widest: int) -> np.ndarray:
    """P(-widest), ..., P(widest); what lies beyond is left out."""
    weights = [float(true_weight(law, k)) for k in range(widest + 1)]
    whole = np.array([*weights[:0:-1], *weights])
    if law.name == "laplace":
        return whole * math.sinh(2.0 ** -(law.bits + 1))
    if law.name == "skellam":
        mean = 4**law.lattice / law.parts / 2
        return stats.skellam.pmf(np.arange(-widest, widest + 1), mean, mean)
    return whole / whole.sum()


def p_value(values: np.ndarray, law: Any) -> float:
    """Chi-square of integers against the law, cells of at least ten expected draws, one for all that lies beyond."""
    widest = int(12 * 2**law.bits) if law.name != "laplace" else int(40 * 2**law.bits)
    expected = probabilities(law, widest) * len(values)
    kept = expected >= 10
    counts = np.bincount(np.clip(values, -widest - 1, widest + 1) + widest + 1, minlength=2 * widest + 3)
    inner = counts[1:-1][kept]
    rest, rest_expected = len(values) - inner.sum(), len(values) - expected[kept].sum()
    statistic = ((inner - expected[kept]) ** 2 / expected[kept]).sum() + (rest - rest_expected) ** 2 / max(rest_expected, 10.0)
    return float(stats.chi2.sf(statistic, kept.sum()))


SMALL = [
    *(DiscreteGaussian(b) for b in (0, 1, 2, 4)),
    *(RoundedLaplace(b) for b in (0, 1, 2, 4)),
    *(Skellam(b) for b in (3, 4)),
    *(Skellam(4, 2), Skellam(4, 3), Skellam(5, 4), Skellam(6, 13), Skellam(7, 255)),
]
REAL = [DiscreteGaussian(22), RoundedLaplace(30), Skellam(16), Skellam(16, 3), Skellam(16, 1000)]


@pytest.mark.parametrize("law", [*SMALL, DiscreteGaussian(22), RoundedLaplace(30)], ids=repr)
def test_enclosures_hold_the_weight_and_close(law: Any) -> None:
    for k in (0, 1, 2, 3, 5 << law.bits, 12 << law.bits, 20 << law.bits):
        for precision in (64, 128, 400):
            low, high = law.enclose(k, precision)
            with mpmath.workdps(200):
                t = mpmath.mpf(2) ** law.bits
                true = true_weight_200(law, k, t) * mpmath.mpf(2) ** precision
                assert low <= true <= high
            assert high - low <= 8


def true_weight_200(law: Any, k: int, t: Any) -> Any:
    if law.name == "discrete_gaussian":
        return mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * t * t))
    if law.name == "skellam":
        return mpmath.besseli(k, variance(law)) / mpmath.besseli(0, variance(law))
    return mpmath.exp(-k / t) if k else 2 / (1 + mpmath.exp(1 / (2 * t)))


def test_the_exponential_is_enclosed_for_arguments_of_every_size() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        down = int(rng.integers(0, 70))
        numerator = int(rng.integers(1, 2**40)) % max(1, 100 << down) + 1
        precision = int(rng.integers(8, 300))
        low, high = exp_of_minus(numerator, down, precision)
        with mpmath.workdps(150):
            true = mpmath.exp(-mpmath.mpf(numerator) / 2**down) * mpmath.mpf(2) ** precision
            assert low <= true <= high and high - low <= 2


@pytest.mark.one_in(7)
@pytest.mark.parametrize("law", [*SMALL, *REAL], ids=repr)
def test_a_word_chooses_a_cell_with_its_integer_weight_exactly(law: Any) -> None:
    """Column by column: what the cuts give to every cell is its weight, and all weights add up to 2^64."""
    table = table_of(law)
    given = [0] * (1 << COLUMNS)
    for column, (cut, other) in enumerate(zip(table.cuts.tolist(), table.other.tolist(), strict=True)):
        given[column] += cut
        given[other] += (1 << 52) - cut
    assert given[: len(table.weights)] == table.weights
    assert given[len(table.weights)] == 2**64 - sum(table.weights) >= 0 and not any(given[len(table.weights) + 1 :])
    width = 1 << (law.bits - law.cell_bits)
    for j in (0, 1, 7, table.tail // 3, table.tail - 1):
        low, _ = law.enclose(j * width, 192) if law.bits < 10 or law.name != "skellam" else _tabulated(law)[0][j * width]
        assert table.weights[j] << 192 >= table.scale * low, "the step function must not lie below the law"
    assert sum(table.weights) > 0.9 * 2**64, "or draws would be wasted"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("law", REAL, ids=repr)
def test_thresholds_in_float64_are_far_closer_than_the_band(law: Any) -> None:
    table, rng = table_of(law), np.random.default_rng(1)
    shift = law.bits - law.cell_bits
    cell = np.concatenate([rng.integers(0, table.tail, 400), [0, 0, 0, table.tail - 1]])
    inside = np.concatenate([rng.integers(0, 1 << shift, 400), [0, 1, (1 << shift) - 1, (1 << shift) - 1]])
    magnitude = (cell << shift) + inside
    found = table.fit[cell] * law.ratios(cell, inside, magnitude)
    ratios = ratio_of_bessels(law, magnitude.tolist()) if law.name == "skellam" else None
    worst = 0.0
    for i, k in enumerate(magnitude.tolist()):
        with mpmath.workdps(60):
            true = ratios[i] if ratios else true_weight_200(law, k, mpmath.mpf(2) ** law.bits)
            true = true * table.scale / table.weights[int(cell[i])]
            worst = max(worst, abs(float(mpmath.mpf(float(found[i])) / true - 1)))
    assert worst < 2.0**-49 < exact.BAND / 256


def ratio_of_bessels(law: Any, places: list[int]) -> list[Any]:
    from tests.reference.naive_families import bessel

    return [bessel(law.lattice, k, law.parts) for k in places]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("law", SMALL, ids=repr)
def test_integers_follow_the_law(law: Any) -> None:
    assert p_value(draws(ExactSampler(law), 400_000), law) > ALARM


def deviation(law: Any) -> float:
    """The scale of the law in lattice steps: of Skellam noise the standard deviation."""
    return math.sqrt(4**law.lattice / law.parts) if law.name == "skellam" else 2.0**law.bits


@pytest.mark.one_in(3)
@pytest.mark.parametrize("law", REAL, ids=repr)
def test_integers_of_a_real_lattice_follow_the_continuous_law(law: Any) -> None:
    """A lattice step is at most 2^-16 of the scale, far below what this many draws resolve."""
    n = 1 << 19
    values = draws(ExactSampler(law), n).astype(np.float64) / deviation(law)
    assert stats.kstest(values, "laplace" if law.name == "laplace" else "norm").pvalue > ALARM
    kurtosis, variance = (6.0, 2.0) if law.name == "laplace" else (3.0, 1.0)
    z = (float(values @ values) / n - variance) / (variance * math.sqrt((kurtosis - 1) / n))
    assert abs(z) < 5
    assert abs(values.mean()) * math.sqrt(n / variance) < 5


@pytest.mark.parametrize("law", REAL, ids=repr)
@pytest.mark.one_in(4)
def test_low_bits_are_uniform_and_neighbours_are_independent(law: Any) -> None:
    n = 1 << 19
    sampler = ExactSampler(law)
    values = draws(sampler, n)
    mask = min(0xFFF, (1 << law.bits - 4) - 1)  # bits that are uniform up to far less than is resolved
    low = np.bincount(values & mask, minlength=mask + 1)
    assert stats.chisquare(low).pvalue > ALARM
    unit = values / (deviation(law) * (math.sqrt(2.0) if law.name == "laplace" else 1.0))
    others = [draws(sampler, n, step=2), draws(sampler, n, lane=1), draws(sampler, n, name="another")]
    for other in others:
        assert abs(float(unit @ (other / np.std(other)))) / math.sqrt(n) < 5
    for lag in (1, 2, 3, 4, 8, 16):
        assert abs(float(unit[:-lag] @ unit[lag:])) / math.sqrt(n - lag) < 5
        square = unit**2 - 1
        assert abs(float(square[:-lag] @ square[lag:])) / (float(square @ square) / n) / math.sqrt(n - lag) < 5


BANDED = [DiscreteGaussian(2), DiscreteGaussian(22), RoundedLaplace(3), RoundedLaplace(30), Skellam(5), Skellam(7, 13)]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("law", BANDED, ids=repr)
def test_a_wider_band_decides_more_exactly_and_changes_no_draw(law: Any) -> None:
    fast, slow = ExactSampler(law), ExactSampler(law, band=0.5)
    assert np.array_equal(draws(fast, 3000), draws(slow, 3000))
    assert fast.decided_exactly == 0 and slow.decided_exactly > 1000


def test_what_lies_between_two_floats_is_decided_by_further_bits() -> None:
    """The prefix just below the threshold: further zeros keep the magnitude, further ones do not."""
    law = DiscreteGaussian(22)
    sampler = ExactSampler(law)
    shift, resolution = law.bits - law.cell_bits, 63 - (law.bits - law.cell_bits)

    class Constant:
        def __init__(self, bit: int) -> None:
            self.bit, self.read = bit, 0

        def take(self, count: int) -> int:
            self.read += count
            return (1 << count) - 1 if self.bit else 0

    for cell, inside in ((0, 5000), (300, 77), (900, 1 << (shift - 1))):
        k = (cell << shift) + inside
        with mpmath.workdps(60):
            threshold = sampler.table.scale * true_weight(law, k) / sampler.table.weights[cell] * mpmath.mpf(2) ** resolution
            prefix = int(mpmath.floor(threshold))
        zeros, ones = Constant(0), Constant(1)
        assert sampler._decide(cell, k, prefix, zeros) == k
        assert sampler._decide(cell, k, prefix, ones) is None
        assert zeros.read and ones.read, "the prefix alone must not decide here"
        assert sampler._decide(cell, k, prefix - 1, Constant(1)) == k
        assert sampler._decide(cell, k, prefix + 1, Constant(0)) is None


@dataclass(frozen=True)
class Short(DiscreteGaussian):
    """Cells up to two sigma, so that what lies beyond comes up often."""

    scales: ClassVar[int] = 2


@dataclass(frozen=True)
class ShortLaplace(RoundedLaplace):
    scales: ClassVar[int] = 1


@pytest.mark.one_in(9)
@pytest.mark.parametrize("law", [Short(2), Short(4), ShortLaplace(2), ShortLaplace(3)], ids=repr)
def test_what_lies_beyond_the_cells_follows_the_law(law: Any) -> None:
    sampler = ExactSampler(law)
    values = draws(sampler, 60_000)
    assert sampler.decided_exactly > 1000 and (abs(values) >= law.scales << law.bits).sum() > 500
    assert p_value(values, law) > ALARM


def test_a_coordinate_does_not_depend_on_how_many_are_drawn_with_it_up_to_its_chunk() -> None:
    sampler = ExactSampler(DiscreteGaussian(22))
    whole = draws(sampler, 2 * CHUNK)
    assert np.array_equal(sampler.integers(stream(), 1, 0, CHUNK, CHUNK), whole[CHUNK:])
    assert len(set(whole.tolist())) > 1.9 * CHUNK
    for start, count in ((1, 5), (0, CHUNK + 1), (1 << 40, 1), (-CHUNK, 3)):
        with pytest.raises(ValueError, match="not part of one chunk"):
            sampler.integers(stream(), 1, 0, start, count)
    with pytest.raises(ValueError, match="not part of one chunk"):
        sampler.integers(stream(), 1, 1 << 31, 0, 1)


def test_no_block_of_the_stream_is_read_twice() -> None:
    """Rounds of rejection and further bits included; a band so wide that most draws ask for some."""
    seen: set[tuple[int, int, int]] = set()
    source = stream()

    class Watched:
        def read(self, step: int, lane: int, first: int, blocks: int) -> bytes:
            for index in range(first, first + blocks):
                assert (step, lane, index) not in seen
                seen.add((step, lane, index))
            return source.read(step, lane, first, blocks)

    sampler = ExactSampler(Short(3), band=0.9)
    for step, lane, start in ((1, 0, 0), (1, 0, CHUNK), (1, 1, 0), (2, 0, 0)):
        sampler.integers(Watched(), step, lane, start, 3000)
    assert len(seen) > 12000 and any(lane >= 1 << 31 for _, lane, _ in seen) and any(index >> 40 for _, lane, index in seen)


def test_a_law_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Table(DiscreteGaussian(33))
    with pytest.raises(ValueError, match="3 to 20 bits"):
        Skellam(2)
    with pytest.raises(ValueError, match="in 4097 parts"):
        Skellam(8, 4097)
    with pytest.raises(ValueError, match="1 part or more"):
        Skellam(16, 0)


def shifted(sampler: ExactSampler) -> None:
    table = Table(sampler.law)
    table.other = np.roll(table.other, 1)
    sampler.table = table


def always(sampler: ExactSampler) -> None:
    """Every magnitude of a cell is as likely as its first: the step function itself."""

    class Flat(type(sampler.law)):
        def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
            return np.ones(len(cells))

    sampler.law = Flat(sampler.law.bits)


def kept_whatever(sampler: ExactSampler) -> None:
    """What is rejected stays: nobody draws again."""
    whole = sampler._round
    sampler._round = lambda *args: (whole(*args)[0], np.ones(args[-1], bool))


def rare_zero(sampler: ExactSampler) -> None:
    """Zero comes five times less often than it should in a hundred."""
    whole = sampler._round

    def drawn(*args: Any) -> tuple[np.ndarray, np.ndarray]:
        values, taken = whole(*args)
        return values, taken & ((values != 0) | (np.random.default_rng(0).random(len(values)) < 0.95))

    sampler._round = drawn


class DiscreteLaplace(RoundedLaplace):
    """The weights of the discrete Laplace law: zero as heavy as its neighbours say."""

    def enclose(self, k: int, precision: int) -> tuple[int, int]:
        return self.top(k, precision)

    def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        return np.exp(inside * -(2.0**-self.bits))


def heavy_zero(sampler: ExactSampler) -> None:
    sampler.law = DiscreteLaplace(sampler.law.bits)


def positive(sampler: ExactSampler) -> None:
    whole = sampler._round

    def drawn(*args: Any) -> tuple[np.ndarray, np.ndarray]:
        values, taken = whole(*args)
        return np.abs(values), taken

    sampler._round = drawn


@pytest.mark.one_in(7)
@pytest.mark.parametrize("law", [DiscreteGaussian(2), RoundedLaplace(2), Skellam(3)], ids=repr)
@pytest.mark.parametrize("fault", [shifted, kept_whatever, rare_zero, positive])
def test_faults_of_the_sampler_are_seen(law: Any, fault: Callable[[ExactSampler], None]) -> None:
    sampler = ExactSampler(law)
    fault(sampler)
    assert p_value(draws(sampler, 400_000), law) < ALARM


@dataclass(frozen=True)
class Coarse(DiscreteGaussian):
    """Four cells per sigma: one proposal in eight is rejected."""

    @property
    def cell_bits(self) -> int:
        return 2


DECISIONS = [(Coarse(4), always), (RoundedLaplace(0), heavy_zero), (RoundedLaplace(1), heavy_zero)]


@pytest.mark.parametrize(("law", "fault"), DECISIONS)
def test_faults_of_a_decision_are_seen(law: Any, fault: Callable[[ExactSampler], None]) -> None:
    sampler = ExactSampler(law)
    assert p_value(draws(sampler, 400_000), law) > ALARM
    fault(sampler)
    assert p_value(draws(sampler, 400_000), law) < ALARM


@pytest.mark.slow
@pytest.mark.parametrize("law", [DiscreteGaussian(4), RoundedLaplace(4), Skellam(5), Skellam(6, 7)], ids=repr)
def test_a_hundred_million_integers_follow_the_law(law: Any) -> None:
    sampler, n, piece = ExactSampler(law), 1 << 27, 1 << 22
    widest = (40 if law.name == "laplace" else 12) << law.bits
    counts = np.zeros(2 * widest + 3, np.int64)
    for lane in range(n // piece):
        values = draws(sampler, piece, lane=lane, name="hundred million")
        counts += np.bincount(np.clip(values, -widest - 1, widest + 1) + widest + 1, minlength=len(counts))
    expected = probabilities(law, widest) * n
    kept = expected >= 10
    statistic = ((counts[1:-1][kept] - expected[kept]) ** 2 / expected[kept]).sum()
    assert stats.chi2.sf(statistic, kept.sum()) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("law", REAL[:3], ids=repr)
def test_a_hundred_million_integers_of_a_real_lattice_follow_the_law(law: Any) -> None:
    """Chi-square over 4096 cells of equal probability of the continuous law, and of the low bits."""
    sampler, n, piece = ExactSampler(law), 1 << 27, 1 << 22
    distribution = stats.laplace if law.name == "laplace" else stats.norm
    high, low = np.zeros(4096, np.int64), np.zeros(4096, np.int64)
    for lane in range(n // piece):
        values = draws(sampler, piece, lane=lane, name="hundred million")
        place = distribution.cdf((values + np.random.default_rng(lane).random(piece) - 0.5) / deviation(law))
        high += np.bincount((place * 4096).astype(np.int64), minlength=4096)
        low += np.bincount(values & 0xFFF, minlength=4096)
    assert stats.chisquare(high).pvalue > ALARM and stats.chisquare(low).pvalue > ALARM
