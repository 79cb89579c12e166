"""Reports what a plan that is fixed beforehand would cost, by other sums than the cap's. None of them is a filter.

A report holds only where the number of releases and their noise were fixed before the first answer. A budget stops when it is
used up, and what is asked next depends on what was answered; then only `ledger.budget.rho` holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledger.accountants.gaussian import epsilon_of_mu
from ledger.errors import AccountantError

ADVANCED: Final = "advanced composition"
PLD: Final = "privacy loss distribution"


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Says what a plan costs.

    Attributes:
        by: `ADVANCED` or `PLD`.
        releases: how many the plan has.
        epsilon: of all of them together, at `delta`.
        delta: for the whole plan.
        is_filter: always False: it may not decide whether one more release is paid for.
    """

    by: str
    releases: int
    epsilon: float
    delta: float
    is_filter: bool = False


def advanced_composition(epsilon: float, delta: float, releases: int, slack: float | None = None) -> PlanReport:
    """Reports the published formula: sqrt(2 k log(1/slack)) epsilon + k epsilon (e^epsilon - 1), at k delta + slack.

    Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, Theorem 3.20. Where epsilon is log 2 or more it
    is never below k epsilon.

    Args:
        epsilon: of one release. delta: of one release; of k of them it counts k times.
        releases: k, 1 or more. slack: delta' of the theorem; as `delta` without.

    Raises:
        AccountantError: code PLAN.
    """
    rest = delta if slack is None else slack
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 <= delta < 1 and 0 < rest < 1 and releases >= 1):
        found = f"epsilon {epsilon}, delta {delta}, slack {rest}, {releases} releases"
        raise AccountantError("PLAN", f"a plan has epsilon above 0, deltas below 1 and 1 release or more; got {found}")
    total = math.sqrt(2 * releases * math.log(1 / rest)) * epsilon + releases * epsilon * math.expm1(epsilon)
    return PlanReport(ADVANCED, releases, total, releases * delta + rest)


def gaussian_plan(parts: Sequence[tuple[float, int]], delta: float) -> PlanReport:
    """Reports the exact epsilon of a fixed plan of Gaussian releases, by the distribution of its privacy loss.

    The loss of each is Gaussian, so that of all is, with mu the root of the sum of squares (Dong, Roth and Su, "Gaussian
    Differential Privacy", 2022, Corollary 3.3).

    Args:
        parts: sensitivity over standard deviation of a release, and how many there are of it.
        delta: for the whole plan.

    Raises:
        AccountantError: code PLAN, or as `ledger.accountants.gaussian.epsilon_of_mu`.
    """
    if not parts or any(not (math.isfinite(mu) and mu > 0 and count >= 1) for mu, count in parts):
        raise AccountantError("PLAN", f"a plan has parts of mu above 0 and 1 release or more; got {list(parts)!r:.80}")
    mu = math.sqrt(math.fsum(count * mu * mu for mu, count in parts))
    return PlanReport(PLD, sum(count for _, count in parts), epsilon_of_mu(mu, delta), delta)
