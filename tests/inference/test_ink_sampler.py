"""Tokens are drawn by their weights exactly, with entropy that nothing can set."""

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink import Plan, probabilities
from dptrain.inference.invisibleink.formulas import weights
from dptrain.inference.invisibleink.sampler import TokenSampler

ROOT = Path(__file__).resolve().parents[2]


class Told:
    """Gives bits that were written down."""

    def __init__(self, *bits: int) -> None:
        self.bits = list(bits)

    def __call__(self) -> int:
        return self.bits.pop(0)


def told(*bits: int) -> TokenSampler:
    sampler = TokenSampler()
    sampler._bits = Told(*bits)  # type: ignore[assignment]
    return sampler


def test_draws_follow_the_probabilities_at_a_vocabulary_of_2000() -> None:
    """Chi-square by Wilson and Hilferty's normal law; false alarms: 1e-6."""
    rng = np.random.default_rng(0)
    public, private = rng.normal(0, 1.0, 2000), rng.normal(0, 2.0, (7, 2000))
    ids, found = weights(private, public, 2000, 0.7, 1.2)
    expected = probabilities(private, public, 2000, 0.7, 1.2)
    count, sampler = 150_000, TokenSampler()
    seen = np.bincount([ids[sampler.draw(found)] for _ in range(count)], minlength=2000)
    chi, free = float(((seen - count * expected) ** 2 / (count * expected)).sum()), 1999
    score = ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    assert abs(score) < 4.9, f"chi-square {chi:.0f} of {free}"


def test_a_number_that_rounding_could_place_either_way_is_decided_by_whole_numbers() -> None:
    thirds = np.array([1.0, 1.0, 1.0])
    below = (1 << 64) // 3  # its interval holds a third
    assert told(below - 1_000_000).draw(thirds) == 0 and told(below + 1_000_000).draw(thirds) == 1
    assert told(below, 0).draw(thirds) == 0  # 0.333...3 and then zeros lies below
    assert told(below, (1 << 64) - 1).draw(thirds) == 1
    assert told(below, (1 << 64) // 3, 0).draw(thirds) == 0 and told(0).draw(thirds) == 0
    assert told((1 << 64) - 1, 5).draw(thirds) == 2


def test_a_token_of_the_least_weight_can_be_drawn() -> None:
    """In a sum of float64 it would be nothing."""
    least = np.array([math.exp(-700.0), 1.0])
    assert told(*[0] * 20).draw(least) == 0
    assert told(0, 1).draw(least) == 1
    assert told(*[(1 << 64) - 1] * 20, 0).draw(least[::-1].copy()) == 1


def test_every_token_has_its_exact_share_of_the_uniform_numbers() -> None:
    """All 2^16 numbers of 16 bits, each with 48 zeros or ones behind, fall where exact arithmetic says."""
    rng = np.random.default_rng(2)
    found = np.exp(rng.normal(0, 3, 40))
    whole = [int(one * 2**80) for one in found.tolist()]
    assert all(one / 2**80 == value for one, value in zip(whole, found.tolist(), strict=True))
    ends = np.cumsum(np.array(whole, dtype=object))
    for number in range(0, 1 << 16, 7):
        drawn = number << 48
        place = next(at for at, end in enumerate(ends) if end << 64 > drawn * ends[-1])
        assert told(drawn, 0, 0, 0).draw(found) == place


def test_a_seed_is_refused_unless_it_is_called_unsafe_and_then_there_is_no_privacy() -> None:
    for given in ({"seed": 1}, {"unsafe_reproducible": True}):
        with pytest.raises(ConfigError, match="removes all privacy") as refused:
            TokenSampler(**given)
        assert refused.value.code == "SEED"
    assert TokenSampler().private and not TokenSampler(seed=1, unsafe_reproducible=True).private
    found = np.full(1000, 1.0)
    first, second = (TokenSampler(seed=7, unsafe_reproducible=True) for _ in range(2))
    assert [first.draw(found) for _ in range(20)] == [second.draw(found) for _ in range(20)]


def test_fresh_processes_draw_differently_whatever_seeds_are_set() -> None:
    program = (
        "import random, numpy as np; random.seed(0); np.random.seed(0)\n"
        "from dptrain.inference.invisibleink.sampler import TokenSampler\n"
        "print([TokenSampler().draw(np.full(2000, 1.0)) for _ in range(8)])"
    )
    how = {"capture_output": True, "text": True, "cwd": ROOT, "check": True, "timeout": 120}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    said = {subprocess.run([sys.executable, "-c", program], env=environment, **how).stdout for _ in range(3)}
    assert len(said) == 3


def event_gap(draws: int, **seeded: object) -> tuple[float, float]:
    """A black-box attack at epsilon 1: chooses texts that speak for one reference on half of the draws, and tests on the rest.

    Returns:
        A lower bound, at 99.9 %, of the chance of the event less e^epsilon times that without the reference; and delta.
    """
    B, V, T = 3, 6, 4
    plan = Plan.for_epsilon(1.0, delta=1e-6, batch=B, tokens=T)
    rng = np.random.default_rng(0)
    public = rng.normal(0, 1, V)
    private = np.tile(public, (B, 1))
    null = private.copy()
    private[-1, :3] += 50.0
    private[-1, 3:] -= 50.0
    halves = []
    for rows in (private, null):
        ids, found = weights(rows, public, V, plan.clip, 1.0)
        samplers = (TokenSampler(**seeded) for _ in range(draws))
        texts = [tuple(int(ids[sampler.draw(found)]) for _ in range(T)) for sampler in samplers]
        halves.append((Counter(texts[::2]), Counter(texts[1::2])))
    (one, one_tested), (other, other_tested) = halves
    event = {text for text in one if one[text] > math.e * other[text]}
    p = sum(one_tested[text] for text in event) / (draws // 2)
    q = sum(other_tested[text] for text in event) / (draws // 2)
    wide = math.sqrt(math.log(2000) / 2 / (draws // 2))  # Hoeffding
    return p - wide - math.e * (q + wide), 1e-6


def test_an_attack_from_outside_finds_nothing_and_would_find_a_fixed_seed() -> None:
    gap, delta = event_gap(8000)
    assert gap <= delta
    gap, delta = event_gap(8000, seed=42, unsafe_reproducible=True)
    assert gap > 0.5 > delta
