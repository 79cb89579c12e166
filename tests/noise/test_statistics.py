"""Both generators against the normal law, to a billion draws in the slow suite; every statistic shown to see its fault."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from dptrain.noise import DeviceGaussian, KeyStream, LatticeGaussian, normals, rounded  # noqa: E402
from dptrain.noise.keystream import ChaChaStream  # noqa: E402
from dptrain.noise.normals import TAIL_LANE  # noqa: E402
from tests.noise.battery import ALARM, Battery, correlation  # noqa: E402

COUNT = 1 << 22
RUN = b"r" * 16


def stream(attempt: int = 0) -> KeyStream:
    return KeyStream("noise", RUN, attempt, b"statistics".ljust(32))


def device_stream(attempt: int = 0) -> ChaChaStream:
    return ChaChaStream("noise on a device", RUN, attempt, b"statistics".ljust(32))


def noise_of(read: object, step: int = 1, lane: int = 0, count: int = COUNT) -> np.ndarray:
    """What is released for a sum of zero with s = 1 and B0 = 1."""
    make = DeviceGaussian if hasattr(read, "words") else LatticeGaussian
    return make(read).release_(torch.zeros(count, dtype=torch.float64), 1.0, 1.0, step=step, lane=lane).numpy()


@pytest.fixture(scope="module")
def sound() -> np.ndarray:
    return noise_of(stream())


def alarms(values: np.ndarray) -> dict[str, float]:
    battery = Battery()
    battery.feed(values)
    return battery.alarms()


def test_four_million_draws_raise_no_alarm(sound: np.ndarray) -> None:
    assert alarms(sound) == {}


def test_a_million_draws_of_the_device_generator_raise_no_alarm() -> None:
    assert alarms(noise_of(device_stream(), count=1 << 20)) == {}


class Changed:
    """A stream with changed words or addresses: two uint64 a block of the processor's generator."""

    def __init__(
        self,
        words: Callable[[np.ndarray], None] | None = None,
        address: Callable[[int, int, int], tuple[int, int, int]] = lambda step, lane, attempt: (step, lane, attempt),
        attempt: int = 0,
    ) -> None:
        self._words, self._address, self._attempt = words, address, attempt

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        step, lane, attempt = self._address(step, lane, self._attempt)
        found = np.frombuffer(stream(attempt).read(step, lane, first_block, blocks), "<u8").reshape(-1, 2).copy()
        if self._words is not None:
            self._words(found)
        return found.tobytes()


def _half_of_the_blocks_twice(words: np.ndarray) -> None:
    words[1::2] = words[: len(words) // 2 * 2 : 2]


def _one_side_of_the_logarithm(words: np.ndarray) -> None:
    words[:, 1] &= ~np.uint64(1)


def _angles_of_ten_bits(words: np.ndarray) -> None:
    words[:, 1] &= np.uint64(((1 << 10) - 1) << 54 | (1 << 11) - 1)


def _radii_of_ten_bits(words: np.ndarray) -> None:
    words[:, 0] &= np.uint64(((1 << 10) - 1) << 54)


def _of_float32(values: np.ndarray) -> np.ndarray:
    return np.rint(values.astype(np.float32).astype(np.float64) * 2.0**32) * 2.0**-32


def _few_signs_turned(values: np.ndarray) -> np.ndarray:
    turned = values.copy()
    turned[::200] = np.abs(turned[::200])
    return turned


FAULTS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "one draw in 200 without its sign": (_few_signs_turned, "mean"),
    "half a percent too much": (lambda x: np.rint(x * 1.005 * 2.0**32) * 2.0**-32, "variance"),
    "a shift of a hundredth": (lambda x: x + 0.01, "mean"),
    "no draw beyond 4": (lambda x: np.clip(x, -3.999, 3.999), "tail above 4 sigma"),
    "a heavier tail": (lambda x: x + np.where(np.abs(x) > 3.8, np.copysign(0.25, x), 0.0), "tail below 4 sigma"),
    "values of float32": (_of_float32, "remainders modulo 2^1"),
    "a lattice twice as coarse": (lambda x: np.rint(x * 2.0**31) * 2.0**-31, "remainders modulo 2^1"),
    "no rounding": (lambda x: x + 2.0**-34, "integers of the lattice"),
    "each draw twice": (lambda x: x[: len(x) // 2].repeat(2), "correlation at distance 1"),
    "pairs in order of size": (lambda x: np.sort(x.reshape(-1, 2), 1).reshape(-1), "angle"),
    "a ripple on the bell": (lambda x: x + 0.002 * np.sin(40 * x), "equiprobable cells"),
    "a dent in the middle": (lambda x: np.where(np.abs(x) < 0.006, np.sign(x) * 0.006, x), "distribution function (KS)"),
    "blocks that come again after eight": (
        lambda x: np.repeat(x.reshape(-1, 16)[:, :8], 2, axis=0).reshape(-1), "correlation at distance 8"
    ),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_changed_numbers_raise_the_alarm_meant_for_them(fault: str, sound: np.ndarray) -> None:
    change, expected = FAULTS[fault]
    assert expected in alarms(change(sound))


WORDS = {
    "every second block used twice": (_half_of_the_blocks_twice, "correlation at distance 2"),
    "radii from one side of the logarithm only": (_one_side_of_the_logarithm, "radius"),
    "angles of ten bits": (_angles_of_ten_bits, "angle"),
    "radii of ten bits": (_radii_of_ten_bits, "kurtosis"),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("fault", WORDS)
def test_changed_words_raise_the_alarm_meant_for_them(fault: str) -> None:
    change, expected = WORDS[fault]
    assert expected in alarms(noise_of(Changed(change)))


@pytest.mark.one_in(99)
@pytest.mark.parametrize("scale", [0.9995, 1.0005, 0.5])
def test_a_wrong_scale_of_angles_raises_an_alarm(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normals, "math", SimpleNamespace(pi=math.pi * scale))
    monkeypatch.setattr(rounded, "UNSURE", 1.0)  # the reference is asked for all
    assert "angle" in alarms(noise_of(stream()))


@pytest.mark.parametrize("scale", [0.9995, 1.0005, 0.5])
def test_a_wrong_table_of_angles_raises_an_alarm(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    angles = (np.arange(len(rounded._TURNS)) + 0.5) * (2.0 * math.pi / len(rounded._TURNS))
    monkeypatch.setattr(rounded, "_TURNS", np.exp(1j * angles * scale))
    assert "angle" in alarms(noise_of(stream()))


def apart(read: Callable[[int], object], count: int) -> dict[str, float]:
    """p-values of noise at one address against that of the next lane, step and attempt (H4)."""
    base = noise_of(read(0), count=count)
    others = {
        "lane": noise_of(read(0), lane=1, count=count),
        "step": noise_of(read(0), step=2, count=count),
        "attempt": noise_of(read(1), count=count),
    }
    return {f"{name}, {kind}": p for name, other in others.items() for kind, p in correlation(base, other).items()}


def test_lanes_steps_and_attempts_have_independent_noise() -> None:
    assert min(apart(stream, COUNT).values()) > ALARM
    assert min(apart(device_stream, 1 << 18).values()) > ALARM


@pytest.mark.parametrize("part", ["lane", "step", "attempt"])
def test_noise_used_again_raises_an_alarm_at_a_hundred_coordinates(part: str) -> None:
    def address(step: int, lane: int, attempt: int) -> tuple[int, int, int]:
        return (1 if part == "step" else step, 0 if part == "lane" else lane, 0 if part == "attempt" else attempt)

    found = apart(lambda attempt: Changed(address=address, attempt=attempt), 100)
    assert {name for name, p in found.items() if p < ALARM} == {f"{part}, product", f"{part}, squares"}


def test_noise_and_its_negative_raise_an_alarm() -> None:
    base = noise_of(stream(), count=100)
    assert correlation(base, -base)["product"] < ALARM


class Deep:
    """Only pairs whose x is below ``2^-(zeros + 1)``: the stream with that many leading zeros in the word of the radius."""

    def __init__(self, zeros: int, radius_bits: int = 75) -> None:
        self._mask = (1 << 64 - zeros) - 1
        self._coarse = radius_bits < 75

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        words = np.frombuffer(stream().read(step, lane, first_block, blocks), "<u8").reshape(-1, 2).copy()
        if lane < TAIL_LANE:
            words[:, 0] &= np.uint64(self._mask)
            if self._coarse:
                words[:, 0] &= ~np.uint64((1 << 11) - 1)
                words[:, 1] &= ~np.uint64(((1 << 10) - 1) << 1)
        elif self._coarse:
            words[:] = 0
        return words.tobytes()


class DeepWords:
    """The same for the device's generator: pair j of a block has its words at 4 j."""

    def __init__(self, zeros: int) -> None:
        self._mask = (1 << 64 - zeros) - 1

    def words(self, step: int, lane: int, block: torch.Tensor) -> torch.Tensor:
        found = device_stream().words(step, lane, block)
        if lane < TAIL_LANE:
            high, low = (self._mask >> 32, self._mask & ((1 << 32) - 1))
            for pair in range(4):
                found[4 * pair + 1] &= high - (1 << 32 if high >> 31 else 0)
                found[4 * pair] &= low - (1 << 32 if low >> 31 else 0)
        return found


def tail_p_values(read: object, zeros: int, pairs: int = 8192) -> tuple[dict[str, float], int]:
    """KS of radii given that x is below 2^-(zeros + 1), on either side of the logarithm; and how many radii are equal."""
    from scipy import stats

    make = DeviceGaussian if hasattr(read, "words") else LatticeGaussian
    half_square = make(read).normals(1, 0, 0, 2 * pairs).view(-1, 2).square().sum(1).numpy() / 2
    outer, inner = half_square[half_square > 0.1], half_square[half_square <= 0.1]
    excess = outer - (zeros + 1) * math.log(2.0)  # of -log x, exponential
    place = -np.expm1(-inner) * 2.0 ** (zeros + 1)  # of x, uniform
    found = {
        "outer": stats.kstest(excess, "expon").pvalue,
        "inner": stats.kstest(place, "uniform").pvalue,
        "sides": stats.binomtest(len(outer), pairs).pvalue,
    }
    return found, pairs - len(np.unique(half_square))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("zeros", [10, 20, 21, 30, 50, 53])
def test_radii_follow_their_law_as_far_into_the_tail_and_the_centre_as_words_reach(zeros: int) -> None:
    """At 53 zeros a radius is one of 10^16 draws: what no number of draws would reach."""
    for read in (Deep(zeros), DeepWords(zeros)):
        found, equal = tail_p_values(read, zeros)
        assert min(found.values()) > ALARM and equal < 3, (read, found, equal)


class Deepest:
    """Every bit of x is zero but those read from a second block: x is uniform from 2^-75 to 2^-74."""

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        words = np.frombuffer(stream().read(step, lane, first_block, blocks), "<u8").reshape(-1, 2).copy()
        if lane < TAIL_LANE:
            words[:, 0] = 0
            words[:, 1] &= ~np.uint64((1 << 11) - 1)
        return words.tobytes()


class DeepestWords:
    """The same for the device's generator."""

    def words(self, step: int, lane: int, block: torch.Tensor) -> torch.Tensor:
        found = device_stream().words(step, lane, block)
        if lane < TAIL_LANE:
            found[0::4] = found[1::4] = 0
            found[2::4] &= ~((1 << 11) - 1)
        return found


def test_the_further_bits_of_the_tail_are_uniform_and_in_their_place() -> None:
    from scipy import stats

    for read in (Deepest(), DeepestWords()):
        make = DeviceGaussian if isinstance(read, DeepestWords) else LatticeGaussian
        half_square = make(read).normals(1, 0, 0, 8192).view(-1, 2).square().sum(1).numpy() / 2
        place = np.exp(75 * math.log(2.0) - half_square) - 1.0
        assert stats.kstest(place, "uniform").pvalue > ALARM


def test_radii_of_53_bits_are_seen_in_the_tail() -> None:
    """The usual construction: a tail that ends at 8.6, in few and coarse radii before."""
    found, equal = tail_p_values(Deep(50, radius_bits=53), 50)
    assert found["outer"] < ALARM and equal > 8000


def test_tails_reach_beyond_what_53_bits_give() -> None:
    """sqrt(-2 log 2^-54) = 8.65 is where they would end."""
    for read in (Deep(53), DeepWords(53)):
        make = DeviceGaussian if isinstance(read, DeepWords) else LatticeGaussian
        radii = make(read).normals(1, 0, 0, 4096).view(-1, 2).norm(dim=1)
        assert 9.3 < float(radii.max()) < 13.5


@pytest.mark.slow
def test_a_billion_draws_raise_no_alarm() -> None:
    """Two attempts, ten steps, twelve tensors of four million coordinates: 1.0066e9 draws, and each beside the ones before."""
    battery, sums, count = Battery(), dict.fromkeys(("lane", "step", "attempt"), np.zeros(2)), 0
    first_attempt: dict[int, np.ndarray] = {}
    for attempt in range(2):
        noise = LatticeGaussian(stream(attempt))
        step_before = None
        for step in range(1, 11):
            lane_before = None
            for lane in range(12):
                values = noise.release_(torch.zeros(COUNT, dtype=torch.float64), 1.0, 1.0, step=step, lane=lane).numpy()
                battery.feed(values)
                count += len(values)
                beside = {"lane": lane_before, "step": step_before if lane == 0 else None}
                beside["attempt"] = first_attempt.get(step) if lane == 0 and attempt else None
                for name, other in beside.items():
                    if other is not None:
                        sums[name] = sums[name] + _score(values[: len(other)], other)
                lane_before = values
                if lane == 0:
                    step_before = values
                    if not attempt:
                        first_attempt[step] = values[: COUNT // 4].copy()
    assert count > 10**9
    assert battery.alarms() == {}, battery.p_values()
    for name, (score, parts) in sums.items():
        assert abs(score) / math.sqrt(parts) < 5.0, name


def _score(values: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Standard score of the correlation, and one: scores add up as the root of their number."""
    return np.array([float(values @ other) / math.sqrt(len(values)), 1.0])


@pytest.mark.slow
def test_a_hundred_million_draws_of_the_device_generator_raise_no_alarm() -> None:
    battery, noise = Battery(), DeviceGaussian(device_stream())
    for lane in range(25):
        battery.feed(noise.release_(torch.zeros(COUNT, dtype=torch.float64), 1.0, 1.0, step=1, lane=lane).numpy())
    assert battery.count > 10**8 and battery.alarms() == {}, battery.p_values()
