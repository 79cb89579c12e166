"""H6 in full: ten million bits are Bernoulli, independent in every direction; nothing is dropped; processes draw alike."""

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
stats = pytest.importorskip("scipy.stats")
pytest.importorskip("torch")

from dptrain.data.sampling import PoissonSampler  # noqa: E402
from dptrain.noise.keystream import KeyStream  # noqa: E402

ALARM = 5.7e-7
"""p-value of five standard errors."""

SLOTS, STEPS = 1000, 10_000
RATE = Fraction(1, 100)


def sampler(slots: int = SLOTS, rate: Fraction = RATE, attempt: int = 0, stream: object = None) -> PoissonSampler:
    return PoissonSampler(stream or KeyStream("sampling", b"r" * 16, attempt, b"h6".ljust(32)), [rate] * slots, [0] * slots)


def bits_of(found: PoissonSampler, steps: int = STEPS) -> np.ndarray:
    """One row a step, one column a slot."""
    bits = np.zeros((steps, len(found.occurrences)), dtype=bool)
    for step in range(1, steps + 1):
        bits[step - 1, found.draw(step)] = True
    return bits


def p_values(bits: np.ndarray, rate: float) -> dict[str, float]:
    """Each about uniform on (0, 1) if bits are independent and Bernoulli(rate)."""
    steps, slots = bits.shape
    n, variance = bits.size, rate * (1 - rate)
    found = {"rate": stats.binomtest(int(bits.sum()), n, rate).pvalue}
    for name, counts, of in (("slots", bits.sum(0), steps), ("steps", bits.sum(1), slots)):
        statistic = float(((counts - of * rate) ** 2).sum() / (of * variance))
        upper = float(stats.chi2.sf(statistic, len(counts)))
        found[f"spread over {name}"] = 2 * min(upper, 1 - upper)
    centred = (bits - rate).astype(np.float32)
    for name, one, other in (
        ("neighbouring slots", centred[:, :-1], centred[:, 1:]),
        ("slots of one cipher block", centred[:, 0::2], centred[:, 1::2]),
        ("slots four apart", centred[:, :-4], centred[:, 4:]),
        ("neighbouring steps", centred[:-1], centred[1:]),
        ("steps two apart", centred[:-2], centred[2:]),
        ("steps sixteen apart", centred[:-16], centred[16:]),
    ):
        score = float((one * other).sum(dtype=np.float64)) / (variance * math.sqrt(one.size))
        found[name] = math.erfc(abs(score) / math.sqrt(2))
    return found


def alarms(bits: np.ndarray, rate: float = float(RATE)) -> set[str]:
    return {name for name, p in p_values(bits, rate).items() if not p > ALARM}


@pytest.fixture(scope="module")
def bits() -> np.ndarray:
    return bits_of(sampler())


def test_ten_million_bits_are_independent_and_of_the_signed_rate(bits: np.ndarray) -> None:
    assert bits.size == 10**7
    assert alarms(bits) == set()


def test_attempts_and_keys_draw_independently(bits: np.ndarray) -> None:
    rate = float(RATE)
    for other in (bits_of(sampler(attempt=1)), bits_of(sampler(stream=KeyStream("sampling", b"q" * 16, 0, b"h6".ljust(32))))):
        assert alarms(other) == set()
        both = int((bits & other).sum())
        assert stats.binomtest(both, bits.size, rate * rate).pvalue > ALARM


class Words:
    """A sampling stream with a fault: ``change`` gets the words of a step, ``address`` its number."""

    def __init__(self, change: Callable[[np.ndarray], None] | None = None, address: Callable[[int], int] = lambda step: step):
        self._change, self._address = change, address
        self._stream = KeyStream("sampling", b"r" * 16, 0, b"h6".ljust(32))

    def read(self, step: int, lane: int, first: int, blocks: int) -> bytes:
        words = np.frombuffer(self._stream.read(self._address(step), lane, first, blocks), "<u8").copy()
        if self._change is not None:
            self._change(words)
        return words.tobytes()


def _one_word_for_two_slots(words: np.ndarray) -> None:
    words[1::2] = words[0::2]


def _a_fiftieth_too_often(words: np.ndarray) -> None:
    words -= words // np.uint64(50)


def _same_draw_for_four_slots_on(words: np.ndarray) -> None:
    words[4::8] = words[0:-4:8]


FAULTS = {
    "one word for two slots": (_one_word_for_two_slots, None, "slots of one cipher block"),
    "a word used again four slots on": (_same_draw_for_four_slots_on, None, "slots four apart"),
    "rates two percent too high": (_a_fiftieth_too_often, None, "rate"),
    "every draw used for two steps": (None, lambda step: step // 2, "neighbouring steps"),
    "draws that come again after sixteen": (None, lambda step: step % 16 + step // 32 * 16, "steps sixteen apart"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_stream_raises_the_alarm_meant_for_it(fault: str) -> None:
    change, address, expected = FAULTS[fault]
    assert expected in alarms(bits_of(sampler(stream=Words(change, address or (lambda step: step)))))


def test_faulty_samplers_raise_alarms(bits: np.ndarray) -> None:
    """Fixed sizes, epochs of a shuffle, and empty draws left out: what peers do in place of Poisson sampling."""
    generator = np.random.default_rng(1)
    fixed = np.zeros_like(bits)
    for row in fixed:
        row[generator.choice(SLOTS, 10, replace=False)] = True
    assert "spread over steps" in alarms(fixed)
    epochs = np.zeros((STEPS, SLOTS), dtype=bool)
    for epoch in range(STEPS // 100):
        for place, slots in enumerate(generator.permutation(SLOTS).reshape(100, 10)):
            epochs[100 * epoch + place, slots] = True
    assert {"spread over slots", "spread over steps"} <= alarms(epochs)
    few = bits[:, :50]
    assert alarms(few) == set()
    assert "rate" in alarms(few[few.any(1)])
    capped = bits.copy()
    for row in capped:
        row[np.flatnonzero(row)[12:]] = False  # a batch that is cut off
    assert "rate" in alarms(capped)


def test_empty_draws_come_as_often_as_they_should_and_sizes_are_binomial(bits: np.ndarray) -> None:
    slots = 100
    sizes = bits[:, :slots].sum(1)
    empty = int((sizes == 0).sum())
    assert stats.binomtest(empty, STEPS, float((1 - RATE) ** slots)).pvalue > ALARM
    counts = Counter(sizes.tolist())
    found = np.array([counts.get(k, 0) for k in range(6)] + [sum(v for k, v in counts.items() if k >= 6)])
    masses = np.append(stats.binom.pmf(range(6), slots, float(RATE)), stats.binom.sf(5, slots, float(RATE)))
    assert stats.chisquare(found, masses * STEPS).pvalue > ALARM


def test_every_step_of_the_horizon_is_returned_empty_or_not() -> None:
    found = sampler(slots=20)
    draws = [found.draw(step).tolist() for step in range(1, 2001)]
    assert len(draws) == 2000 and draws.count([]) > 1500
    assert found.occurrences.tolist() == [sum(slot in draw for draw in draws) for slot in range(20)]


RANK = """
import json, random, sys
import numpy, torch
from fractions import Fraction
from dptrain.noise.keystream import KeyStream
from dptrain.data.sampling import PoissonSampler
seed = int(sys.argv[1])
random.seed(seed); numpy.random.seed(seed); torch.manual_seed(seed)
sampler = PoissonSampler(KeyStream("sampling", b"r" * 16, 0, b"h6".ljust(32)), [Fraction(1, 20)] * 60, [3] * 60)
draws = [[int(slot) for slot in sampler.draw(step)] for step in range(1, 201)]
print(json.dumps(draws))
"""


def test_two_processes_with_seeds_of_their_own_make_the_same_draws_without_a_word() -> None:
    command = [sys.executable, "-c", RANK]
    root = Path(__file__).parents[1]
    ranks = [subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, cwd=root) for seed in (7, 8)]
    found = [json.loads(process.communicate(timeout=120)[0]) for process in ranks]
    assert found[0] == found[1]
    assert max(Counter(slot for drawn in found[0] for slot in drawn).values()) == 3, "caps hold in both alike"


def test_a_run_takes_every_step_and_every_contribution_that_was_drawn(tmp_path: Path) -> None:
    """Nothing between the sampler and the sums drops, repeats or cuts: T steps, and each drawn slot in one microbatch."""
    from tests.worlds.trainer import Trainer
    from tests.worlds.training import make_world

    trainer = Trainer(make_world(tmp_path, steps=12, per_class=6, rate="0.1"), microbatch=2).begin()
    drawing, wanted, taken = trainer.private.prepared.attempt.drawing, [], []
    draw, planned = drawing.draw, drawing.planned

    def listening(number: int) -> list[int]:
        wanted.append(sorted(found := draw(number)))
        return found

    def counting(drawn: list[int]) -> list:
        found = planned(drawn)
        taken.append(sorted(slot for part in found for slot in part.slots))
        return found

    drawing.draw, drawing.planned = listening, counting
    releases = 0
    for step in trainer.steps:
        trainer.one(step)
        releases += 1
    trainer.close()
    assert releases == len(wanted) == 12 and taken == wanted
