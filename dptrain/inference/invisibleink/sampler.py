"""Draws tokens by their weights, exactly, with entropy of the operating system.

A uniform number of 64 bits names the token wherever rounding cannot matter; else more bits are drawn and whole numbers decide.
So the probability of every token is its weight over the sum of all weights, without any float64 between.
"""

import os
import random
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

import numpy as np

from dptrain.errors import ConfigError

NO_PRIVACY: Final = "no privacy: the draws follow from a seed, and whoever knows it can tell the references"

_BITS: Final = 64

_FEW: Final = 128
"""Weights from which on numpy is the faster."""


class TokenSampler:
    """Draws from weights; with entropy of the operating system unless something unsafe is asked for by its name.

    Guarantee: without ``unsafe_reproducible`` no two draws share entropy, and nothing can set it. Each token is drawn with a
    probability that is its weight over the sum, exactly.

    Attributes:
        private: whether draws are private; with a seed they are not.

    Raises:
        ConfigError: code SEED, a seed without ``unsafe_reproducible=True``, or that without a seed.
    """

    def __init__(self, *, seed: int | None = None, unsafe_reproducible: bool = False) -> None:
        if (seed is not None) is not unsafe_reproducible:
            given = "a seed" if seed is not None else "unsafe_reproducible and no seed"
            sentence = f"got {given}: a known seed removes all privacy"
            raise ConfigError("SEED", f"{sentence}; give neither, or both with seed=..., unsafe_reproducible=True")
        self.private = not unsafe_reproducible
        self._bits: Callable[[], int] = _entropy if seed is None else _seeded(seed)

    def draw(self, weights: np.ndarray) -> int:
        """Returns a place in the weights.

        Args:
            weights: float64, shape (n,), all positive and finite.
        """
        ends = list(accumulate(weights.tolist())) if len(weights) < _FEW else np.cumsum(weights)
        total = float(ends[-1])
        slack = (len(ends) + 8) * 2.0**-52 * total
        drawn = self._bits()
        low, high = drawn * 2.0**-_BITS * total, (drawn + 1) * 2.0**-_BITS * total
        first, last = bisect_right(ends, low - slack), bisect_right(ends, high + slack)
        if first == last < len(ends):
            return int(first)
        return self._decided(weights, drawn)

    def _decided(self, weights: np.ndarray, drawn: int) -> int:
        """Draws further bits until whole numbers say between which ends the uniform number lies."""
        parts = [one.as_integer_ratio() for one in weights.tolist()]
        scale = max(below for _, below in parts)  # all are powers of two
        ends, bits = list(accumulate(above * (scale // below) for above, below in parts)), _BITS
        while True:
            first = next(place for place, end in enumerate(ends) if end << bits > drawn * ends[-1])
            if ends[first] << bits >= (drawn + 1) * ends[-1]:
                return first
            drawn, bits = drawn << _BITS | self._bits(), bits + _BITS


def _entropy() -> int:
    return int.from_bytes(os.urandom(_BITS // 8))


def _seeded(seed: int) -> Callable[[], int]:
    numbers = random.Random(seed)
    return lambda: numbers.getrandbits(_BITS)
