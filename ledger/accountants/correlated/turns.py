"""Adds up, occurrence by occurrence, by how much a contribution moves correlated releases when it takes turns in a fixed order.

With X = C^T C the squared norm of C u over the steps of a set is at most the sum of |X[j, k]| over its pairs. So each
occurrence adds its own X[t, t] and twice its products with those before it, and a record that counts occurrences in order has
the bound of the set at every moment. What a run released and lost adds rows of C (docs/mechanism, Theorem 15 d).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ledger.accountants.correlated.sensitivity import magnitudes, rounded_up
from ledger.accountants.correlated.strategies import CODE, Strategy, require
from ledger.errors import AccountantError

if TYPE_CHECKING:
    import numpy as np


class Turns:
    """Says what the occurrences of one class add to a squared sensitivity, with C scaled to a largest column norm of 1.

    Guarantee: the sum of `occurrence` over the turns o, o + period, .. of a contribution, up to any of them, is at least the
    square of what it moves C G by, for vectors of norm 1 at most; with `lost` of every lost tail, of the stacked rows too.

    Args:
        strategy: C. steps: of the run. period: steps from one turn of a contribution to the next.

    Raises:
        AccountantError: code STRATEGY, no such numbers.
    """

    def __init__(self, strategy: Strategy, steps: int, period: int) -> None:
        require(strategy, steps)
        if type(period) is not int or period < 1:
            raise AccountantError(CODE, f"a period has 1 step or more, got {period!r}")
        self._strategy, self._steps, self._period = strategy, steps, period
        self.norm = math.sqrt(float(strategy.norms_squared(steps).max()))
        """Largest column norm: what C is divided by."""
        self._share = strategy.slack(steps)
        self._added = self._of_occurrences()

    def occurrence(self, step: int) -> float:
        """Returns what an occurrence in a step (from 0) adds, behind all turns of its contribution before it."""
        return float(self._added[step])

    def most(self, steps: int | None = None) -> float:
        """Returns the largest sum that a contribution comes to in so many steps, by default all: that of the dearest turn."""
        held = self._added[: self._steps if steps is None else steps]
        firsts = range(min(self._period, len(held)))
        return max((math.fsum(held[first :: self._period].tolist()) for first in firsts), default=0.0)

    def lost(self, turn: int, begin: int, end: int) -> float:
        """Returns what the rows ``begin`` .. ``end`` - 1, which were released and lost, add for a contribution.

        Args:
            turn: its first step, below the period. begin: the step that the run went on from. end: behind the last charged.

        Raises:
            AccountantError: code STRATEGY, no such turn or step.
        """
        import numpy as np

        end = min(end, self._steps)
        if not 0 <= turn < self._period or begin < 0:
            raise AccountantError(CODE, f"a turn is below the period and a step not below 0, got {turn!r} and {begin!r}")
        if begin >= end:
            return 0.0
        rows = np.abs(self._rows(begin, end))
        moved = rows[:, turn :: self._period].sum(axis=1) + self._share * self.norm
        return rounded_up(float(np.square(moved).sum()), self._steps, self._share) / self.norm**2

    def _rows(self, begin: int, end: int) -> np.ndarray:
        """Returns rows of C, shape (end - begin, end)."""
        import numpy as np

        column = self._strategy.common(end)
        if column is None:
            return self._strategy.matrix(self._steps)[begin:end, :end]
        age = np.subtract.outer(np.arange(begin, end), np.arange(end))
        return np.where(age >= 0, column[np.maximum(age, 0)], 0.0)

    def _of_occurrences(self) -> np.ndarray:
        import numpy as np

        found = np.array(self._strategy.gram(self._steps, 0))
        for lag in range(self._period, self._steps, self._period):
            if self._strategy.bands is not None and lag >= self._strategy.bands:
                break
            found[lag:] += 2.0 * magnitudes(self._strategy, self._steps, lag)
        return np.array([rounded_up(value, self._steps, self._share) for value in (found / self.norm**2).tolist()])
