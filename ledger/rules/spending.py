"""What a run's steps amount to for one contribution, at every delta: the one thing that runs are compared and added up by."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from attest.policy import Policy
from attest.policy.sampling import POISSON
from attest.schedule import Phases
from ledger import accountants
from ledger.accountants import Phase, divergence, renyi
from ledger.rules.groups import Contribution

if TYPE_CHECKING:
    from ledger.replay import Replay


@dataclass(frozen=True, eq=False)
class Spending:
    """Releases of one family of noise, as an accountant composes them; one object for all contributions that are alike.

    Attributes:
        accountant: who computes its epsilon by itself; for `prv` it is `pld`, which every auditor has.
        family: the family of noise.
        phases: sampled steps.
        loss: of public occurrences, the sum of 1/z^2; there are no phases then.
        cap: the most of the steps in which it took part, 0 for no cap.
    """

    accountant: str
    family: str
    phases: tuple[Phase, ...] = ()
    loss: float = 0.0
    cap: int = 0

    def __bool__(self) -> bool:
        """Tells whether anything was released; what was counts with its delta even where its own epsilon at that delta is 0."""
        return bool(self.phases or self.loss)

    def epsilon(self, delta: float) -> float:
        """Returns its epsilon by itself, at any delta."""
        if self.loss:
            return accountants.epsilon_occurrences(self.loss, delta, self.accountant, family=self.family)
        if self.cap:
            return accountants.epsilon_of_phases_capped(self.phases, self.cap, delta, self.accountant, family=self.family)
        return accountants.epsilon_of_phases(self.phases, delta, self.accountant, family=self.family)

    @cached_property
    def divergences(self) -> tuple[float, ...]:
        """Its Rényi divergence at every order of `renyi.ORDERS`, which adds up over runs."""
        if self.loss:
            return divergence.of_loss(self.loss, self.family)
        return divergence.of_phases(accountants.merged(self.phases), self.family)


def composed(spendings: Iterable[Spending], delta: float) -> float:
    """Returns epsilon at delta of several runs together, if none was chosen by looking at what another one released.

    Runs of one accountant and family compose in one call, all their phases together, as if they were one run. Where there are
    several such groups each is taken at an equal share of delta and their epsilons add up, or all are taken by their Rényi
    divergences, whichever is less.
    """
    groups: dict[tuple[str, str, bool], list[Spending]] = {}
    for spending in filter(None, spendings):
        of_loss = bool(spending.loss) and spending.family != "gaussian"
        groups.setdefault((spending.accountant, spending.family, of_loss), []).append(spending)
    joined = [_as_one(members) for members in groups.values()]
    if len(joined) <= 1:
        return joined[0].epsilon(delta) if joined else 0.0
    summed = [math.fsum(one.divergences[place] for one in joined) for place in range(len(renyi.ORDERS))]
    least = min(renyi.least_of_order(spent, order, delta) for spent, order in zip(summed, renyi.ORDERS, strict=True))
    share = delta / len(joined)
    return least if share < accountants.MIN_DELTA else min(least, math.fsum(one.epsilon(share) for one in joined))


def _as_one(members: Sequence[Spending]) -> Spending:
    first = members[0]
    if len(members) == 1:
        return first
    if all(member.loss for member in members):
        return Spending(first.accountant, first.family, loss=math.fsum(member.loss for member in members))
    phases = [phase for member in members for phase in (_release(member.loss) if member.loss else member.phases)]
    return Spending(first.accountant, first.family, accountants.merged(phases))


def _release(loss: float) -> tuple[Phase, ...]:
    """Returns the public Gaussian occurrences as one release of the same mu, which is what they compose to."""
    return (Phase(min(loss**-0.5, accountants.MAX_MULTIPLIER), 1.0, 1),)


def of_run(run: "Replay", contribution: Contribution) -> Spending:
    """Returns what a contribution spent in a run so far."""
    policy, place = run.header.policy, contribution.class_index
    if run.header.occurrences_public:
        return _spending(policy, loss=contribution.loss)
    spent = run.expenditure
    steps = spent.phase_steps(contribution, run.charged_phases)
    phases = spent.charged_phases(place, spent.of_contribution(contribution), steps)
    return _spending(policy, phases, cap=spent.occurrences(contribution, steps, run.charged_attempt))


def most_of_run(run: "Replay", contributions: Iterable[Contribution]) -> Spending:
    """Returns what is no less than any of these contributions of one class spent in a run so far.

    Guarantee:
        In each phase of the noise it counts the least multiplier and the most steps of any of them, the largest cap, and none
        where one of them has none; where occurrences are public the largest loss. Each of these only adds to an epsilon.

    Args:
        run: the run.
        contributions: one at least, all of one private class.
    """
    policy, spent = run.header.policy, run.expenditure
    if run.header.occurrences_public:
        return _spending(policy, loss=max(contribution.loss for contribution in contributions))
    # Under equal terms some may have left before others did: each of these has its own steps.
    alike = {(contribution.terms, contribution.until): contribution for contribution in contributions}.values()
    steps = [spent.phase_steps(contribution, run.charged_phases) for contribution in alike]
    multipliers = (spent.of_contribution(contribution) for contribution in alike)
    caps = [spent.occurrences(contribution, own, run.charged_attempt) for contribution, own in zip(alike, steps, strict=True)]
    least, most = tuple(map(min, zip(*multipliers, strict=True))), tuple(map(max, zip(*steps, strict=True)))
    place = next(iter(alike)).class_index
    return _spending(policy, spent.charged_phases(place, least, most), cap=max(caps) if all(caps) else 0)


def of_plan(policy: Policy, place: int, multipliers: Sequence[float], steps: int | None = None) -> Spending:
    """Returns the most that a contribution can spend in a run of a policy, or in its first steps.

    Redone steps are counted where they are dearest. A cap of occurrences is not counted on: it begins anew in every attempt.

    Args:
        policy: the policy.
        place: place of the class in it.
        multipliers: effective noise multiplier of the contribution in each phase of the noise.
        steps: how many steps are to run if not all.
    """
    rate = policy.classes[place].sampling_rate
    counts = list(Phases.of(policy).count(1, policy.steps if steps is None else steps))
    if policy.sampling.name != POISSON:
        counts = [math.ceil(count * rate) + (count > 0) for count in counts]
    dearest = min((index for index, count in enumerate(counts) if count), key=lambda index: multipliers[index], default=0)
    counts[dearest] += policy.redo_steps
    charged = [(min(z, accountants.MAX_MULTIPLIER), count) for z, count in zip(multipliers, counts, strict=True) if count]
    if policy.disclosure == "occurrences_public":
        return _spending(policy, loss=math.fsum(count / z**2 for z, count in charged))
    return _spending(policy, [Phase(z, float(rate), count) for z, count in charged])


def _spending(policy: Policy, phases: Iterable[Phase] = (), loss: float = 0.0, cap: int = 0) -> Spending:
    name = "pld" if policy.accountant == "prv" else policy.accountant
    return Spending(name, policy.mechanism.name, tuple(phases), loss, cap)
