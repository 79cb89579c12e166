"""Privacy-loss-distribution accounting of the Poisson-sampled Gaussian mechanism, by Google's dp-accounting.

The library rounds losses up onto a grid (pessimistically), so its epsilon is an upper bound at any grid.
"""

import math
from typing import Final

from ledger.accountants.gaussian import epsilon_of_mu

INTERVAL: Final = 1e-4
"""Grid of privacy losses for ordinary noise multipliers."""

COARSE_BELOW: Final = 0.3
"""Below this noise multiplier losses grow as 1/z^2, and the grid with them, which bounds time and memory."""

UNSAMPLED_BELOW: Final = 0.02
"""Below this noise multiplier subsampling is ignored: epsilon is in the thousands, and the bound stays valid."""


def epsilon(z: float, q: float, steps: int, delta: float, *, replace: bool = False) -> float:
    """Returns epsilon of ``steps`` Gaussian releases with noise multiplier z, Poisson-sampled at rate q.

    Guarantee:
        An upper bound under zero-out (or add-or-remove-one) adjacency, both directions; with ``replace``, under content
        replacement, where the two payloads may differ by twice the clip norm. Never above the unsampled Gaussian.
    """
    unsampled = epsilon_of_mu((2.0 if replace else 1.0) * math.sqrt(steps) / z, delta)
    if q == 1.0 or z < UNSAMPLED_BELOW:
        return unsampled
    # The library brings scipy, a second of start-up that commands which account for nothing need not wait for.
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    neighbours = dp_accounting.NeighboringRelation
    relation = neighbours.REPLACE_ONE if replace else neighbours.ADD_OR_REMOVE_ONE
    interval = INTERVAL * max(1.0, (COARSE_BELOW / z) ** 2)
    accountant = PLDAccountant(relation, value_discretization_interval=interval)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), steps)
    return max(0.0, min(float(accountant.get_epsilon(delta)), unsampled))
