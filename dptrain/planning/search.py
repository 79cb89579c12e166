"""The last integer that stays within a target, of an epsilon that grows or falls with it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ledger.accountants.solvers import search

_FAR: Final = 1e3
"""Logarithm of how far an epsilon of 0 or without bound is from its target."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a search ended.

    Attributes:
        value: The integer whose epsilon has been computed.
        epsilon: Its epsilon; at most the target if `met`.
        met: False if no integer of the range meets the target: `value` is then the end of the range that comes nearest.
    """

    value: int
    epsilon: float
    met: bool


def largest_within(epsilon: Callable[[int], float], target: float, start: int, low: int, high: int) -> Found:
    """The largest integer in [low, high] whose epsilon is at most the target; epsilon grows with the integer.

    Guarantee: the epsilon of the integer returned has been computed and is not above the target, if `met`.

    Args:
        epsilon: Of an integer.
        target: What may not be exceeded, above 0.
        start: First guess, within the range.
        low: Smallest integer, at least 1.
        high: Largest integer.
    """
    return _search(epsilon, target, start, safe_end=low, unsafe_end=high)


def smallest_within(epsilon: Callable[[int], float], target: float, start: int, low: int, high: int) -> Found:
    """The smallest integer in [low, high] whose epsilon is at most the target; epsilon falls as the integer grows.

    Guarantee and arguments: as for `largest_within`.
    """
    return _search(epsilon, target, start, safe_end=high, unsafe_end=low)


def _search(epsilon: Callable[[int], float], target: float, start: int, *, safe_end: int, unsafe_end: int) -> Found:
    """What `solvers.search` finds; the safe end where that is nothing."""
    values: dict[int, float] = {}

    def log_ratio(at: int) -> float:
        if at not in values:
            values[at] = epsilon(at)
        if not 0.0 < values[at] < math.inf:
            return -_FAR if values[at] == 0.0 else _FAR
        return math.log(values[at] / target)

    found = search(log_ratio, start, safe_end=safe_end, unsafe_end=unsafe_end)
    at = safe_end if found is None else found
    return Found(at, values[at], found is not None)
