"""Bounds by how much one contribution moves C G, in the norm, when it may take part in several steps.

The contribution adds a vector of norm 1 at most to every step of a set that its participation allows. With X = C^T C the
squared sensitivity is at most the largest sum of |X[i, j]| over the pairs of an allowed set, and it is that where the X of the
set are not negative (all vectors equal). Every value here is an upper bound: what float64 rounds off is added.

Source: Choquette-Choo et al., "Multi-Epoch Matrix Factorization Mechanisms for Private Machine Learning" (2023), theorem 2;
"(Amplified) Banded Matrix Factorization" (2023), theorem 2; Kalinin and Lampert, "Banded Square Root Matrix Factorization for
Differentially Private Model Training" (2024), theorem 2, for columns that do not increase.

Proof:
    Let G' have the rows γ rint(g_t / γ). As rint(x) + a = rint(x + a) for whole a, step t releases a rounding of row t of G' +
    s ν C⁻¹ Z = C⁻¹ (C G' + s ν Z). So all releases are post-processing of the Gaussian mechanism C G' + s ν Z. In the two
    worlds C G' differs by C U, where U has a row u_t for every t in π and zeros elsewhere. ‖C U‖² = Σ X_jk ⟨u_j, u_k⟩ ≤ Σ
    |X_jk| ‖u_j‖ ‖u_k‖, which is (a); rounding the sums is paid for as in Theorem 2. For (b): C is lower triangular, so row t
    of C G' is a function of g_0 .. g_t, and thus of earlier rows of the mechanism. A Gaussian mechanism whose rows are chosen
    adaptively within a bound that is fixed beforehand is dominated by the Gaussian of that bound (Denisov et al. 2022, theorem
    2.1). (c): the leading rows of C G' + s ν Z do not need the rest. For (d) stack the rows of the timeline that survives and
    the rows c .. m - 1 of the lost one, each with noise of its own. The first part moves by (a); a row t of the second moves
    by Σ over j ≤ t in π of |C_tj| / z_i at most, whatever gradients it was computed from. That bound depends on t alone: of a
    tree of attempts take any path to the farthest step as the timeline; every other execution of a step t is one more row t,
    wherever it branched off. (e): terms of a sum of magnitudes are left out. (f): a draw at t adds u_t, a function of earlier
    releases, to the rows t .. t + b - 1 of C G', times column t of C, whose norm is at most ν; behind each fork that lies in
    between, once more to those of these rows that were executed again, in all with a squared norm of at most (1 + k) ν². Since
    b ≤ g, no row holds two draws of i. So the releases are an interactive composition of one sampled Gaussian for each draw,
    each of which chooses its vector when it begins and answers in the rows that follow, while later ones begin: concurrent
    composition costs what composition does (Vadhan and Zhang, "Concurrent Composition Theorems for Differential Privacy",
    2023; for one timeline Choquette-Choo et al. 2023, theorem 4). ∎
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ledger.accountants.correlated.strategies import CODE, Strategy, require
from ledger.errors import AccountantError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Participation:
    """Says in which steps one contribution may take part: steps at least ``gap`` apart, and ``most`` of them at most.

    Attributes:
        gap: 1 where it may take part in any step.
        most: None for as many as fit.
        fixed: whether it takes part in every gap-th step from its first on, and no others; one order that repeats.

    Raises:
        AccountantError: code STRATEGY, no such numbers.
    """

    gap: int
    most: int | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        if type(self.gap) is not int or self.gap < 1 or not (self.most is None or (type(self.most) is int and self.most >= 1)):
            raise AccountantError(CODE, f"a participation has a gap and a number of 1 or more, got {self.gap!r}, {self.most!r}")

    def times(self, steps: int) -> int:
        """Returns the most steps that an allowed set has."""
        fit = -(-steps // self.gap)
        return fit if self.most is None else min(fit, self.most)


ROUNDED: Final = 1e-12
"""Share of a squared norm below which a negative product of two columns counts as a zero that was rounded."""

ONCE: Final = Participation(1, 1)
"""Takes part in one step at most."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Bounds how much C G moves.

    Attributes:
        value: the bound, a norm.
        exact: whether some contribution attains it, up to float64; else it may be less.
    """

    value: float
    exact: bool


def sensitivity(strategy: Strategy, steps: int, participation: Participation) -> Sensitivity:
    """Returns the least bound that is proved for a strategy and a participation.

    Guarantee: no contribution that adds vectors of norm 1 at most, in the steps of a set that the participation allows, moves C
    G by more; where the bound is exact, one does by as much.

    Args:
        strategy: C. steps: of the run. participation: of one contribution, whose vectors have norm 1 at most.

    Raises:
        AccountantError: code STRATEGY, more steps than the strategy is made for.
    """
    require(strategy, steps)
    if not isinstance(participation, Participation):
        told = f"got {participation!r}; write Participation(gap, most, fixed=...)"
        raise AccountantError(CODE, f"a participation says in which steps somebody may take part, {told}")
    most, share = participation.times(steps), strategy.slack(steps)
    norms = strategy.norms_squared(steps)

    def found(squared: float, *, exact: bool) -> Sensitivity:
        return Sensitivity(math.nextafter(math.sqrt(rounded_up(squared, steps, share)), math.inf), exact)

    if most == 1:
        return found(float(norms.max()), exact=True)
    if strategy.bands is not None and strategy.bands <= participation.gap:
        # Columns of an allowed set share no row: X is diagonal there, whatever the signs.
        if participation.fixed:
            return found(float(_strided(norms, participation.gap, most).max()), exact=True)
        return found(float(_heaviest(norms, participation.gap, most)), exact=True)
    column = strategy.common(steps)
    if column is not None and _falls(column):
        return found(_of_falling(column, participation.gap, most), exact=True)
    if participation.fixed:
        squared, exact = _of_fixed(strategy, steps, participation, most)
        return found(squared, exact=exact)
    bounds = [_of_rows(strategy, steps, participation.gap, most)]
    if column is not None:
        bounds.append(_of_falling(_majorant(column), participation.gap, most))
    return found(min(bounds), exact=False)


def redone(strategy: Strategy, steps: int, participation: Participation, tails: Sequence[tuple[int, int]]) -> float:
    """Returns the squared norm that rows add which were charged and then lost, over all tails.

    A run that was checkpointed after ``begin`` steps, charged up to ``end``, and went on from the checkpoint under fresh noise
    released the rows begin..end - 1 of C G twice: with independent noise, and perhaps other gradients. A row t adds at most the
    square of the largest sum of |C[t, j]| over an allowed set up to t, so a tail adds at most the sum of those of its rows.

    Args:
        tails: (begin, end) of every tail; each counts, whatever it branched from.
    """
    require(strategy, steps)
    for begin, end in tails:
        if not 0 <= begin < end <= steps:
            told = "from the step of the state that was saved to behind the last that was released, counted from 0"
            raise AccountantError(CODE, f"lost steps are {begin} to {end} of {steps}, expected two numbers {told}")
    most = participation.times(steps)
    weights = [
        weight
        for begin, end in tails
        for weight in _row_weights(strategy, begin, min(end, steps), participation.gap, most)
    ]  # fmt: skip
    return rounded_up(math.fsum(weight * weight for weight in weights), steps, strategy.slack(steps))


def _row_weights(strategy: Strategy, begin: int, end: int, gap: int, most: int) -> Iterable[float]:
    """Returns for each of some rows the largest sum of |C[row, j]| over an allowed set up to it."""
    import numpy as np

    column = strategy.common(end)
    if column is not None:  # that of row t is c_0 + c_gap + c_2gap + .. where the column does not increase
        found = np.cumsum(_majorant(column)[::gap][:most])
        return [float(found[min(row // gap, len(found) - 1)]) for row in range(begin, end)]
    held = np.abs(strategy.matrix(end))
    return [float(_heaviest(held[row, : row + 1], gap, most)) for row in range(begin, end)]


def _heaviest(weights: np.ndarray, gap: int, most: int) -> Any:
    """Returns the largest sum of at most ``most`` weights, none negative, whose places are at least ``gap`` apart.

    ``weights`` has shape (n,), or (n, k) for k problems at once, of which the result is an array then.
    """
    import numpy as np

    n = len(weights)
    best = np.zeros((n + gap, *weights.shape[1:]))
    if most * gap >= n:  # as many as fit
        for place in range(n - 1, -1, -1):
            best[place] = np.maximum(best[place + 1], weights[place] + best[place + gap])
        return best[0]
    for _ in range(most):
        found = weights + best[gap : n + gap]
        best[:n] = np.maximum.accumulate(found[::-1])[::-1]
    return best[0]


def _of_falling(column: np.ndarray, gap: int, most: int) -> float:
    """Returns the squared norm of the sum of columns 0, gap, 2 gap, .. of a Toeplitz matrix whose column does not increase."""
    import numpy as np

    n = len(column)
    rows = -(-n // gap)
    held = np.zeros(rows * gap)
    held[:n] = column
    summed = np.cumsum(held.reshape(rows, gap), axis=0)
    if most < rows:
        lost = rows * 2.0**-52 * summed[-1].max()  # what the differences may be off by
        summed[most:] -= summed[:-most].copy() - lost
    return math.fsum(np.square(summed.reshape(-1)[:n]).tolist())


def _of_fixed(strategy: Strategy, steps: int, participation: Participation, most: int) -> tuple[float, bool]:
    """Returns the largest sum of |X| over the pairs of a set {r, r + gap, ..}, and whether X is not negative there."""
    import numpy as np

    gap = participation.gap
    total, norms = np.zeros(steps), strategy.norms_squared(steps)
    negative = False
    for apart in range(most):
        lag = apart * gap
        if lag >= steps or (strategy.bands is not None and lag >= strategy.bands):
            break
        terms = strategy.gram(steps, lag)
        negative = negative or bool((terms < -ROUNDED * norms.max()).any())
        held = np.zeros(steps)
        held[: steps - lag] = magnitudes(strategy, steps, lag) * (1.0 if apart == 0 else 2.0)
        # The pairs (i, i + lag) of the set from `first` on are those with i = first, first + gap, .. and most - apart of them.
        total += _strided(held, gap, most - apart)
    return float(total.max()), not negative


def _strided(terms: np.ndarray, gap: int, count: int) -> np.ndarray:
    """Returns for every place the sum of ``count`` terms from it on, ``gap`` apart; fewer where the end comes before."""
    import numpy as np

    n = len(terms)
    rows = -(-n // gap)
    held = np.zeros(rows * gap)
    held[:n] = terms
    table = held.reshape(rows, gap)
    behind = np.cumsum(table[::-1], axis=0)[::-1]
    found = behind.copy()
    if count < rows:
        lost = rows * 2.0**-52 * behind[0].max()  # what the differences may be off by
        found[: rows - count] -= behind[count:] - lost
    return np.asarray(found.reshape(-1)[:n])


def _of_rows(strategy: Strategy, steps: int, gap: int, most: int) -> float:
    """Returns a bound of any strategy: the heaviest of each row of |X|, then the heaviest set of rows."""
    import numpy as np

    reach = steps if strategy.bands is None else min(strategy.bands, steps)
    width = 2 * reach - 1
    held = np.zeros((width, steps))  # held[reach - 1 + d, i] = |X[i, i + d]|
    for lag in range(reach):
        terms = magnitudes(strategy, steps, lag)
        held[reach - 1 + lag, : steps - lag] = terms
        held[reach - 1 - lag, lag:] = terms
    rows = np.asarray(_heaviest(held, gap, most))
    return float(_heaviest(rows, gap, most))


def magnitudes(strategy: Strategy, steps: int, lag: int) -> np.ndarray:
    """Returns |X[j, j + lag]| for all j, and what float64 may have cancelled away in the sums that they are."""
    import numpy as np

    terms = steps if strategy.bands is None else min(strategy.bands, steps)
    lost = terms * 2.0**-52 * float(strategy.norms_squared(steps).max())
    return np.asarray(np.abs(strategy.gram(steps, lag)) + lost)


def _falls(column: np.ndarray) -> bool:
    return bool(column[-1] >= 0.0 and (column[1:] <= column[:-1]).all())


def _majorant(column: np.ndarray) -> np.ndarray:
    """Returns the least column above |column| that does not increase."""
    import numpy as np

    return np.asarray(np.maximum.accumulate(np.abs(column)[::-1])[::-1])


def rounded_up(squared: float, steps: int, share: float) -> float:
    """Returns a squared norm, and what float64 can have rounded off in sums and products of as many terms as there are steps.

    ``share`` is that by which a norm may exceed what the numbers of C give (`strategies.slack`).
    """
    if not share < 1.0:
        return math.inf
    return squared * (1.0 + (4 * steps + 64) * 2.0**-53) * ((1.0 + share) * (1.0 + share))
