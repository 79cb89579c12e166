"""Says in plain words what an epsilon leaves to an attacker, who knows everything but one contribution.

The attacker decides between two worlds: one with the contribution, one with a null of the same public shape in its place, or
another content. The share of false alarms is held fixed, and the largest share of hits is what an epsilon bounds. Plans, drafts
of policies, attestations and reports take the figure and its sentence from here.
"""

import math
from typing import Final

FALSE_ALARMS: Final = 0.05
"""Share of false alarms at which sentences about an attacker are computed; blind guessing has as large a share of hits."""

CASES: Final = 100
"""Cases of which a sentence counts the hits: a share as people read it."""

WATCHER: Final = f"sees every checkpoint, knows everything else, and raises {FALSE_ALARMS * CASES:g} false alarms in {CASES}"
"""Knowledge and errors of the attacker in every sentence, to be put behind a subject."""


def detection_limit(epsilon: float, delta: float, false_alarms: float) -> float:
    """Returns the largest share of hits that any test can have against an (epsilon, delta)-indistinguishable pair.

    Args:
        epsilon: at least 0; infinite where no bound is known.
        delta: from 0 to 1.
        false_alarms: share of false alarms of the test, from 0 to 1.

    Source: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy" (2015), Theorem 2.1.
    """
    if math.isinf(epsilon):
        return 1.0
    first = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    second = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, first, second)


def hits(epsilon: float, delta: float) -> int:
    """Returns in how many of `CASES` cases at most the attacker tells the two worlds apart, rounded up.

    Args:
        epsilon: of the pair of worlds: for zero-out adjacency of a contribution and a null, for content replacement of two
            contents. Infinite where no bound is known.
        delta: that the epsilon goes with.

    Returns:
        From 5, where nothing was spent and delta is 0, to 100, where nothing is promised.
    """
    return math.ceil(CASES * detection_limit(epsilon, delta, FALSE_ALARMS))


def attacker(epsilon: float, delta: float) -> str:
    """Says what an epsilon means against somebody who knows everything but whether one contribution was empty.

    Args:
        epsilon: of one contribution, under zero-out adjacency.
        delta: that the epsilon goes with.

    Returns:
        A part of a sentence, without a full stop; the subject is ``who``.
    """
    return f"who {WATCHER} tells such a contribution from an empty one in at most {hits(epsilon, delta)} of {CASES} cases"
