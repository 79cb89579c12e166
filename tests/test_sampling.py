"""Poisson sampling from the keyed stream (H6)."""

import math
import tracemalloc
from fractions import Fraction

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

from dptrain.data import sampling  # noqa: E402
from dptrain.data.sampling import PoissonSampler  # noqa: E402
from dptrain.noise.keystream import KeyStream  # noqa: E402


def sampler(rates: list[Fraction], caps: list[int] | None = None, key: bytes = b"s" * 32, attempt: int = 0) -> PoissonSampler:
    return PoissonSampler(KeyStream("sampling", b"r" * 16, attempt, key), rates, caps or [0] * len(rates))


def test_bits_are_bernoulli_of_the_class_rate() -> None:
    """Two million bits per class; alarm at 5 standard errors."""
    q = [Fraction(1, 100), Fraction(3, 10)]
    n, steps = 1000, 2000
    s = sampler([q[0]] * n + [q[1]] * n)
    counts = np.zeros(2)
    for t in range(1, steps + 1):
        drawn = s.draw(t)
        counts += [(drawn < n).sum(), (drawn >= n).sum()]
    for count, rate in zip(counts, q, strict=True):
        p = float(rate)
        assert abs(count / (n * steps) - p) < 5 * math.sqrt(p * (1 - p) / (n * steps))


def test_slots_and_steps_are_independent() -> None:
    s = sampler([Fraction(1, 2)] * 400)
    bits = np.zeros((500, 400))
    for t in range(500):
        bits[t, s.draw(t + 1)] = 1
    centred = bits - 0.5
    across = centred[:, :-1] * centred[:, 1:]
    along = centred[:-1] * centred[1:]
    for product in (across, along):
        assert abs(product.mean()) / 0.25 < 5 / math.sqrt(product.size)


def test_empty_draws_happen_and_are_returned() -> None:
    s = sampler([Fraction(1, 100)] * 10)
    sizes = [len(s.draw(t)) for t in range(1, 2001)]
    empty = sizes.count(0)
    p = 0.99**10
    assert abs(empty - 2000 * p) < 5 * math.sqrt(2000 * p * (1 - p))


def test_a_draw_depends_on_key_attempt_and_step_alone() -> None:
    rates = [Fraction(1, 5)] * 100
    a, b = sampler(rates), sampler(rates)
    assert np.array_equal(a.draw(7), b.draw(7))
    assert not np.array_equal(sampler(rates).draw(7), sampler(rates, attempt=1).draw(7))
    assert not np.array_equal(sampler(rates).draw(7), sampler(rates).draw(8))


def test_closed_slots_and_used_up_caps_are_silently_not_drawn() -> None:
    s = sampler([Fraction(1)] * 4, caps=[0, 2, 0, 0])
    s.close([3])
    assert [s.draw(t).tolist() for t in (1, 2, 3)] == [[0, 1, 2], [0, 1, 2], [0, 2]]
    assert s.occurrences.tolist() == [3, 2, 3, 0]


def test_closing_a_slot_leaves_the_others_as_they_were() -> None:
    rates = [Fraction(1, 3)] * 50
    a, b = sampler(rates), sampler(rates)
    b.close([10])
    for t in range(1, 50):
        assert [i for i in a.draw(t) if i != 10] == list(b.draw(t))


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(-1, 2), Fraction(3, 2)])
def test_rates_outside_zero_one_are_refused(rate: Fraction) -> None:
    with pytest.raises(ValueError, match="sampling rate"):
        sampler([rate])


def test_a_draw_in_blocks_is_that_of_all_slots_at_once() -> None:
    """Bit for bit, at sizes around a block: the word of slot i is the i-th of the step's stream, whatever is read together."""
    block = sampling._AT_ONCE
    for n in (1, 2, block - 1, block, block + 1, 3 * block + 5):
        rates = [Fraction(1, 3 + i % 7) if i % 9999 else Fraction(1) for i in range(n)]
        known: dict[Fraction, Fraction] = {}
        rates = [known.setdefault(rate, rate) for rate in rates]
        words = np.frombuffer(KeyStream("sampling", b"r" * 16, 0, b"s" * 32).read(5, 0, 0, -(-n // 2)), dtype="<u8")[:n]
        thresholds = np.array([min(int(rate * (1 << 64)), (1 << 64) - 1) for rate in rates], dtype=np.uint64)
        assert np.array_equal(sampler(rates).draw(5), np.flatnonzero((words < thresholds) | (np.array(rates) == 1)))


def test_caps_and_closed_slots_are_kept_to_in_every_block() -> None:
    n = 2 * sampling._AT_ONCE + 10
    s = sampler([Fraction(1)] * n, [0, 1, 2] * (n // 3) + [0] * (n % 3))
    s.close([3, n - 1])
    drawn = [set(s.draw(step).tolist()) for step in (1, 2, 3)]
    caps = [0, 1, 2] * (n // 3) + [0] * (n % 3)
    for step, found in enumerate(drawn, start=1):
        assert found == {i for i in range(n) if i not in (3, n - 1) and (not caps[i] or step <= caps[i])}


@pytest.mark.parametrize("caps", [[0, 0, 0], [0, 2, 1]])
def test_slots_of_a_form_are_drawn_as_if_each_had_its_rate_and_cap(caps: list[int]) -> None:
    known = [Fraction(1, 2), Fraction(1), Fraction(1, 7)]
    forms = np.array([i * i % 3 for i in range(1000)] + [2] * 5, dtype=np.uint32)
    key = KeyStream("sampling", b"r" * 16, 0, b"s" * 32)
    by_form = PoissonSampler(key, known, caps, forms)
    each = sampler([known[form] for form in forms], [caps[form] for form in forms])
    for step in range(1, 8):
        assert np.array_equal(by_form.draw(step), each.draw(step))
    assert np.array_equal(by_form.occurrences, each.occurrences) and by_form.capped == each.capped == any(caps)
    assert not PoissonSampler(key, known, [0, 0, 3], np.zeros(4, dtype=np.uint32)).capped, "a cap of no slot is none"


def test_memory_of_a_draw_does_not_grow_with_the_pool_and_a_slot_takes_six_bytes() -> None:
    rate, peaks, kept = Fraction(1, 10**6), [], []
    for n in (1 << 17, 1 << 20):
        rates, caps = [rate] * n, [0] * n
        tracemalloc.start()
        try:
            s = sampler(rates, caps)
            kept.append(tracemalloc.get_traced_memory()[0])
            s.draw(1)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            s.draw(2)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        finally:
            tracemalloc.stop()
    assert (kept[1] - kept[0]) / ((1 << 20) - (1 << 17)) < 6.1
    assert peaks[1] < 1.2 * peaks[0] < 4 << 20
