"""Adds up, occurrence by occurrence, by how much a contribution moves correlated releases when it takes turns in a fixed order.

With X = C^T C the squared norm of C u over the steps of a set is at most the sum of |X[j, k]| over its pairs. So each
occurrence adds its own X[t, t] and twice its products with those before it, and a record that counts occurrences in order has
the bound of the set at every moment. A step that is done again releases one more row of C, which moves by all turns up to it
(docs/mechanism, Theorem 15 d).

Whoever reads a ledger computes these numbers again, and finds the same bits: there are sums in the order of steps, products,
quotients and square roots of float64, each rounded once, and nothing whose order a library would choose.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from attest.policy.mechanism import MechanismRule
from ledger.accountants.correlated.sensitivity import magnitudes, rounded_up
from ledger.accountants.correlated.signed import require_at_hand, strategy_of
from ledger.accountants.correlated.strategies import CODE, Banded, BandedInverse, Dense, Strategy, Toeplitz, require
from ledger.errors import AccountantError

if TYPE_CHECKING:
    import numpy as np

MOST_WORK: Final = 1 << 29
"""Most steps times turns whose products overlap, or times coefficients of an inverse or of columns that are normalised: some
seconds of work for every reader of a ledger."""

MOST_STEPS: Final = 1 << 22
"""Most steps, of each of which a reader keeps what an occurrence adds: 32 MiB for a class."""


class Turns:
    """Says what the occurrences of one class add to a squared sensitivity, with C scaled to a largest column norm of 1.

    Guarantee: the sum of `occurrence` over the turns o, o + period, .. of a contribution, up to any of them, is at least the
    square of what it moves C G by, for vectors of norm 1 at most; with `again` of every step that was done once more, at least
    that of the stacked rows.

    Args:
        strategy: C. steps: of the run. period: steps from one turn of a contribution to the next.

    Raises:
        AccountantError: code STRATEGY, no such numbers, or too many to add up.
    """

    def __init__(self, strategy: Strategy, steps: int, period: int) -> None:
        require(strategy, steps)
        if type(period) is not int or period < 1:
            raise AccountantError(CODE, f"a period has 1 step or more, got {period!r}")
        reach = steps if strategy.bands is None else min(strategy.bands, steps)
        overlaps = 1 + (reach - 1) // period
        # A product of two columns of their own is a sum anew; of a common column one sum has those of all steps.
        each = strategy.bands if isinstance(strategy, Banded) else steps if isinstance(strategy, Dense) else 1
        self.work = steps * overlaps * each
        """Products that were added up."""
        if self.work > MOST_WORK:
            anew = "" if each == 1 else f" and {each} coefficients a column"
            told = f"{steps} steps with {overlaps} turns whose noise is correlated{anew} are too many to add up"
            raise AccountantError(CODE, f"{told}, expected {MOST_WORK} together at most; lower the rate, or take bands")
        beside = _beside(strategy, steps)
        if steps > MOST_STEPS or steps * beside > MOST_WORK:
            told = f"{steps} steps of noise by {beside} coefficients are too many to add up, expected {MOST_STEPS} steps"
            raise AccountantError(CODE, f"{told} at most, and {MOST_WORK} of both together; take fewer")
        self._strategy, self._steps, self._reach = strategy, steps, reach
        self.period = period
        self._share = strategy.slack(steps)
        if not self._share < 1.0:
            told = f"over {steps} steps the strategy grows so fast that float64 loses what the noise is made of"
            raise AccountantError(CODE, f"{told}; take fewer steps, or other coefficients")
        self._largest = float(strategy.norms_squared(steps).max())
        self.norm = math.sqrt(self._largest)
        """Largest column norm: what C is divided by."""
        self._added = self._of_occurrences()
        self._most: dict[tuple[int, int], float] = {}
        self._again: float | None = None

    def occurrence(self, step: int) -> float:
        """Returns what an occurrence in a step (from 0) adds, behind all turns of its contribution before it."""
        return float(self._added[step])

    def most(self, steps: int | None = None, cap: int = 0) -> float:
        """Returns the largest sum that a contribution comes to in so many steps, by default all: that of the dearest turn.

        ``cap``: turns that it takes at most, the first ones; 0 for any number.
        """
        count = self._steps if steps is None else steps
        if (count, cap) not in self._most:
            held = self._added[:count]
            firsts = range(min(self.period, len(held)))
            sums = (math.fsum(held[first :: self.period][: cap or None].tolist()) for first in firsts)
            self._most[count, cap] = max(sums, default=0.0)
        return self._most[count, cap]

    def again(self, step: int) -> tuple[float, ...]:
        """Returns what one more execution of a step (from 0) adds, by the first turn of a contribution, up to that step.

        The row moves by at most the sum of |C[step, j]| over the turns j up to it, whatever was drawn when it ran before. Whose
        first turn is behind all that are returned was never in a row so far.
        """
        return tuple(map(self._of_row, self._moved(step).tolist()))

    def dearest_again(self) -> float:
        """Returns the largest of what one more execution of any step adds to anybody."""
        if self._again is None:
            last = self._steps - 1
            # Without a scale of its own for every column, every other row has fewer terms than the last one; the columns of a
            # Toeplitz strategy have one only where they end below the matrix.
            first = last if self._strategy.common(1) is not None else 0
            if isinstance(self._strategy, Toeplitz):
                first = max(first, last - self._reach)
            self._again = self._of_row(max(float(self._moved(step).max()) for step in range(first, self._steps)))
        return self._again

    def _moved(self, step: int) -> np.ndarray:
        """Returns by how much the row of a step moves, by the first turn of a contribution, shape (period,) or (step + 1,)."""
        import numpy as np

        held = np.abs(self._strategy.row(step, self._steps))
        moved = held[: self.period].copy()
        first = max(0, step + 1 - self._reach) // self.period  # period, counted from 0, behind whose end something stands
        if first:
            moved[:] = 0.0
        for begin in range(max(first, 1) * self.period, step + 1, self.period):
            part = held[begin : begin + self.period]
            moved[: len(part)] += part
        moved += self._share * self.norm * (moved > 0.0)
        return moved

    def _of_row(self, moved: float) -> float:
        """Returns what a row adds that moves so much."""
        return rounded_up(moved * moved, self._steps, self._share) / self._largest if moved else 0.0

    def _of_occurrences(self) -> np.ndarray:
        import numpy as np

        found = np.array(self._strategy.gram(self._steps, 0))
        for lag in range(self.period, self._reach, self.period):
            found[lag:] += 2.0 * magnitudes(self._strategy, self._steps, lag)
        return np.array([rounded_up(value, self._steps, self._share) / self._largest for value in found.tolist()])


def _beside(strategy: Strategy, steps: int) -> int:
    """Returns how often all steps are gone through for the columns, beside their products."""
    if isinstance(strategy, BandedInverse):
        return len(strategy.coefficients)
    return 1 if not isinstance(strategy, Toeplitz) or strategy.steps is None else min(strategy.bands, steps)


def turns_of(rule: MechanismRule, steps: int, period: int) -> Turns:
    """Returns what occurrences add under the correlated noise of a policy.

    Args:
        rule: the noise of the policy. steps: of the policy. period: steps from one turn of a contribution to the next.

    Raises:
        AccountantError: code STRATEGY, no such noise, or nothing adds it up. COEFFICIENTS, they lie in a file that is not here.
    """
    require_at_hand(rule)  # what is kept is kept by their digest
    return _turns(rule, steps, period)


@lru_cache(maxsize=256)
def _turns(rule: MechanismRule, steps: int, period: int) -> Turns:
    return Turns(strategy_of(rule, steps), steps, period)
