"""Filters: budgets for runs whose next step is chosen by looking at the released model.

Loss distributions of phases that were fixed beforehand compose; those of phases chosen on the way need a filter (Feldman and
Zrnic 2021): before every step it is asked whether a step with these public bounds still fits, and what does not is not taken.
A filter takes bounds, noise multiplier and sampling rate. Norms that occurred are private, and have no place here.
"""

import math
from collections.abc import Sequence

from ledger.accountants import renyi
from ledger.accountants.gaussian import epsilon_of_mu
from ledger.accountants.phases import Phase, check_delta, check_epsilon, loss_of, merged
from ledger.errors import AccountantError


class RenyiFilter:
    """A filter over RDP at one order, which is fixed before the first step.

    Guarantee:
        Whatever steps are chosen, by whatever was released before, as long as each `charge` succeeded, the whole is
        (epsilon, delta)-DP under zero-out adjacency. It holds for one order alone: going on while any of several orders
        still has budget is not covered by the theorem.

    Source:
        Feldman and Zrnic (2021), Theorem 3.1; conversion by Balle et al. (2020), Theorem 21.
    """

    def __init__(self, epsilon: float, delta: float, *, order: float) -> None:
        """Opens a budget.

        Raises:
            AccountantError: for an order that is none of `renyi.ORDERS`, arguments that are no epsilon and delta, or a budget
                that this order exceeds before the first step; `nearest` is the smallest budget that it can keep.
        """
        self.epsilon, self.delta = check_epsilon(epsilon, "a budget"), check_delta(delta)
        if order not in renyi.ORDERS:
            raise AccountantError("ORDER", f"the order is one of {renyi.PARAMETERS['rdp'].split()[0]}, got {order!r}")
        self.order = float(order)
        self._place = renyi.ORDERS.index(self.order)
        self._charges: list[float] = []
        if not self._within([]):
            least = math.ceil(renyi.of_order(0.0, self.order, self.delta) * 1e6) / 1e6
            sentence = f"at order {self.order:g} nothing spent is already epsilon {least:g} at delta {self.delta:g}"
            raise AccountantError("EPSILON", f"{sentence}; the budget is {self.epsilon:g}", nearest=least)

    @classmethod
    def planned(cls, epsilon: float, delta: float, plan: Sequence[Phase]) -> "RenyiFilter":
        """Opens a budget at the order under which a plan could be repeated most often. The plan binds to nothing."""
        budget, delta = check_epsilon(epsilon, "a budget"), check_delta(delta)
        normal = merged(plan)
        if not normal or normal[0].noise_multiplier == 0.0:
            raise AccountantError("PHASE", "a plan has steps that are sampled, and noise; got none to choose an order by")
        curve = zip(renyi.ORDERS, renyi.curve(normal), strict=True)
        order = max(((budget - renyi.of_order(0.0, order, delta)) / spent, order) for order, spent in curve)[1]
        return cls(budget, delta, order=order)

    @property
    def spent(self) -> float:
        """Epsilon of what was charged, at the filter's order; 0.0 before the first charge. Never above the budget."""
        return max(0.0, self._epsilon_of(self._charges)) if self._charges else 0.0

    def fits(self, step: Phase) -> bool:
        """Whether a step (or a phase of several) with these public bounds still fits. Charges nothing."""
        return self._within([self._cost(step)])

    def charge(self, step: Phase) -> None:
        """Charges a step or phase before it runs.

        Raises:
            AccountantError: if it does not fit; nothing is charged then, and `nearest` is how many of its steps fit.
        """
        cost = self._cost(step)
        if not self._within([cost]):
            left = self.steps_left(step)
            asked = f"{step.steps} steps at z = {step.noise_multiplier:g}, q = {step.sampling_rate:g}"
            sentence = f"{asked} exceed the budget of epsilon {self.epsilon:g}; {left} of them fit"
            raise AccountantError("BUDGET", sentence, nearest=float(left))
        self._charges.append(cost)

    def steps_left(self, step: Phase) -> int:
        """How many of the steps of a phase still fit, all of them at most."""
        low, high = 0, step.steps
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(Phase(step.noise_multiplier, step.sampling_rate, middle)):
                low = middle
            else:
                high = middle - 1
        return low

    def _cost(self, step: Phase) -> float:
        normal = merged([step])
        if not normal:
            return 0.0
        return math.inf if step.noise_multiplier == 0.0 else renyi.curve(normal)[self._place]

    def _within(self, more: list[float]) -> bool:
        return self._epsilon_of([*self._charges, *more]) <= self.epsilon

    def _epsilon_of(self, charges: list[float]) -> float:
        total = math.inf if math.inf in charges else math.fsum(charges)
        return renyi.of_order(total, self.order, self.delta)


class GaussianFilter:
    """A filter over mu^2, for releases that are not sampled or whose occurrences are public.

    Guarantee:
        Whatever noise multipliers are chosen, by whatever was released before, as long as each `charge` succeeded the whole is
        dominated by one Gaussian of the charged mu^2, and (epsilon, delta)-DP; nothing is lost against phases fixed beforehand.

    Source:
        Smith and Thakurta (2022), Fully adaptive composition for Gaussian differential privacy, Theorem 1.3.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        """Opens a budget. Raises AccountantError for arguments that are no epsilon and delta."""
        self.epsilon, self.delta = check_epsilon(epsilon, "a budget"), check_delta(delta)
        self._losses: list[float] = []

    @property
    def spent(self) -> float:
        """Epsilon of what was charged. Never above the budget."""
        return epsilon_of_mu(math.sqrt(math.fsum(self._losses)), self.delta)

    def fits(self, step: Phase) -> bool:
        """Whether the steps of a phase still fit, each counted in full whatever its sampling rate."""
        total = math.fsum([*self._losses, min(loss_of([step]), 1e300)])
        return epsilon_of_mu(math.sqrt(total), self.delta) <= self.epsilon

    def charge(self, step: Phase) -> None:
        """Charges a phase before it runs. Raises AccountantError if it does not fit; nothing is charged then."""
        if not self.fits(step):
            asked = f"{step.steps} occurrences at z = {step.noise_multiplier:g}"
            sentence = f"{asked} exceed the budget of epsilon {self.epsilon:g}; {self.spent:.6g} is spent"
            raise AccountantError("BUDGET", sentence, nearest=self.spent)
        self._losses.append(loss_of([step]))
