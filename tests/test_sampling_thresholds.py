"""Poisson sampling at the edges of a word: what the words next to a threshold decide, which no number of random draws shows."""

import struct
from fractions import Fraction

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

from dptrain.data.sampling import PoissonSampler

LARGEST = (1 << 64) - 1


class Words:
    """A stream whose words are given, one per slot."""

    def __init__(self, *words: int) -> None:
        self._data = struct.pack(f"<{len(words)}Q", *words)

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        assert (lane, first_block) == (0, 0)
        return self._data[: 16 * blocks]


def drawn(rates: list[Fraction], *words: int) -> list[int]:
    sampler = PoissonSampler(Words(*words), rates, [0] * len(rates))
    return sampler.draw(1).tolist()


@pytest.mark.parametrize("rate", [Fraction(1, 2), Fraction(1, 3), Fraction(1, 1000), Fraction(999_999, 1_000_000)])
def test_exactly_the_words_below_the_threshold_draw(rate: Fraction) -> None:
    """floor(q 2^64) words out of 2^64, so the chance is never above the signed rate."""
    threshold = rate.numerator * (1 << 64) // rate.denominator
    words = (0, threshold - 1, threshold, threshold + 1, LARGEST, 0)
    assert drawn([rate] * 6, *words) == [0, 1, 5]


def test_a_rate_of_one_draws_whatever_the_word_and_no_other_rate_does() -> None:
    assert drawn([Fraction(1), Fraction(LARGEST, 1 << 64)], LARGEST, LARGEST) == [0]
    assert drawn([Fraction(LARGEST, 1 << 64), Fraction(1)], LARGEST - 1, LARGEST - 1) == [0, 1]


def test_a_rate_below_the_grid_of_words_never_draws() -> None:
    assert drawn([Fraction(1, 1 << 65), Fraction(1, 1 << 64)], 0, 0) == [1]
