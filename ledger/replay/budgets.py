"""Adds up what runs amount to for one contribution, and holds it against the limits that were signed.

A limit is a pair (epsilon, delta), and holds for all runs together, also where a later one was chosen by looking at the models
of those before, as it mostly is. So several runs are added up by a Rényi filter, at an order that is fixed before the first of
them, and not composed as if they had been planned together (docs/mechanism, Theorem 13). One run by itself is held against its
accountant.

Proof:
    B is the largest divergence with eps(B; a, delta) <= eps. Whether P_1(a) <= B is settled before the first step, by what is
    public. If not, no second run begins, and the first is (eps, delta)-DP by its accountant. That it may stop early is
    post-processing. If so, regard the windows charged in all runs as one sequence of mechanisms, each chosen from the outputs
    of those before. At order a the divergence of each, in both directions, is known when it is chosen (Theorems 1 to 12).
    Tokens of a budget stand in the sequence where they were drawn. Together they are rho-zCDP under the same neighbours, so
    at most a rho at order a (Bun and Steinke 2016, Definition 1.1); that counts whole from the first, whenever they are drawn.
    Their sum never passes B: within run j it is at most R_1(a) + ... + R_(j-1)(a) + P_j(a), for a ledger charges no more than
    is planned (`HORIZON`). So the whole has divergence at most B at order a (Feldman and Zrnic 2021, Theorem 3.1), and is
    (eps, delta)-DP (`least_of_order()`). ∎
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal

from attest.fixed_point import MICRO, from_micro, from_pico
from attest.policy import Policy
from attest.policy.sampling import period
from attest.schedule import Phases
from attest.schedule.turns import dearest_turns
from ledger import accountants
from ledger.accountants import Phase, renyi
from ledger.errors import LeafRefused
from ledger.leaves import Admit, Header
from ledger.replay.contributions import Contribution, Signed
from ledger.replay.state import Expenditure, RunState


@dataclass(frozen=True, eq=False)
class Spending:
    """Adds up releases of one family of noise, as an accountant composes them; one object for all contributions that are alike.

    Attributes:
        accountant: who computes its epsilon by itself; of one that is held to another one it is that, which every auditor has.
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
        """Returns the Rényi divergence at every order of `renyi.ORDERS`, which adds up over runs."""
        if self.loss:
            return renyi.divergences_of_loss(self.loss, self.family)
        return renyi.divergences_of_phases(accountants.merged(self.phases), self.family)

    def joined(self, members: "Sequence[Spending]") -> "Spending":
        """Returns what several of its accountant and family, itself among them, add up to, as if they were one run."""
        if len(members) == 1:
            return self
        if all(member.loss for member in members):
            return Spending(self.accountant, self.family, loss=math.fsum(member.loss for member in members))
        phases = [phase for member in members for phase in (accountants.released_once(member.loss) or member.phases)]
        return Spending(self.accountant, self.family, accountants.merged(phases))


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
    joined = [members[0].joined(members) for members in groups.values()]
    if len(joined) <= 1:
        return joined[0].epsilon(delta) if joined else 0.0
    summed = [math.fsum(one.divergences[place] for one in joined) for place in range(len(renyi.ORDERS))]
    least = min(renyi.least_of_order(spent, order, delta) for spent, order in zip(summed, renyi.ORDERS, strict=True))
    share = delta / len(joined)
    return least if share < accountants.MIN_DELTA else min(least, math.fsum(one.epsilon(share) for one in joined))


def of_run(run: RunState, contribution: Contribution) -> Spending:
    """Returns what a contribution spent in a run so far."""
    policy, place = run.header.policy, contribution.class_index
    if run.header.occurrences_public:
        return _spending(policy, loss=contribution.loss)
    spent = run.expenditure
    steps = spent.phase_steps(contribution, run.charged_phases)
    phases = spent.charged_phases(place, spent.of_contribution(contribution), steps)
    return _spending(policy, phases, cap=spent.occurrences(contribution, steps, run.charged_attempt))


def most_of_run(run: RunState, contributions: Iterable[Contribution]) -> Spending:
    """Returns what is no less than any of these contributions of one class spent in a run so far.

    The contributions, one at least, are of one private class.

    Guarantee: In each phase of the noise it counts the least multiplier and the most steps of any of them, the largest cap, and
    none where one of them has none; where occurrences are public the largest loss. Each of these only adds to an epsilon.
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
    `multipliers`: effective noise multiplier of the contribution in each phase of the noise.
    """
    rate = policy.classes[place].sampling_rate
    turns = accountants.turns_under(policy, rate)
    if turns is not None:
        loss = turns.most(steps) + policy.redo_steps * turns.dearest_again()
        return _spending(policy, loss=loss / min(*multipliers, accountants.MAX_MULTIPLIER) ** 2)
    horizon = Phases.of(policy).count(1, policy.steps if steps is None else steps)
    counts = [policy.sampling.most_steps(count) for count in horizon]
    if policy.sampling.turns:
        counts = [math.ceil(count * rate) + (count > 0) for count in counts]
    dearest = min((index for index, count in enumerate(counts) if count), key=lambda index: multipliers[index], default=0)
    counts[dearest] += policy.redo_steps
    charged = [(min(z, accountants.MAX_MULTIPLIER), count) for z, count in zip(multipliers, counts, strict=True) if count]
    if policy.disclosure == "occurrences_public":
        return _spending(policy, loss=math.fsum(count / z**2 for z, count in charged))
    return _spending(policy, with_redo(policy, [Phase(z, float(rate), count) for z, count in charged]))


def foreseen_loss(
    policy: Policy, rate: Fraction, steps: Sequence[int], multipliers: Sequence[float], *, cap: int = 0, redo: int = 0
) -> float:
    """Returns what public occurrences of a contribution are expected to add up to at most, before they are drawn.

    Guarantee: under a signed order nobody with these multipliers or larger ones comes to more, if no more than ``redo`` steps
    are done again, whichever they are. Under random draws one contribution in a million does.

    Args:
        policy: makes occurrences public.
        rate: of the class.
        steps: of each phase of the noise, without those that are done again.
        multipliers: noise multiplier of the contribution in each phase.
        cap: occurrences that it signed at most, 0 for any number; they count over all attempts together.
        redo: steps that are done again. They count where noise is least.
    """
    least = min(multipliers)
    if not policy.sampling.turns:
        draws = accountants.likely_occurrences(float(rate), sum(steps) + redo)
        return (min(draws, cap) if cap else draws) / least**2
    turns = accountants.turns_under(policy, rate)
    if turns is not None:  # a row that is done again has to do with those of before, so that a cap does not end what it costs
        return (turns.most(sum(steps), cap) + redo * turns.dearest_again()) / least**2
    loss = dearest_turns(policy.sampling.name, period(rate), steps, multipliers, cap).loss + redo / least**2
    return min(loss, cap / least**2) if cap else loss


def with_redo(policy: Policy, phases: Sequence[Phase]) -> list[Phase]:
    """Returns phases, steps done again among them, as noise that is correlated between steps has them under secret draws.

    Args:
        phases: of one multiplier and rate, where it is correlated.
    """
    return with_copies(phases, policy.redo_steps) if shows_later(policy) else list(phases)


def shows_later(policy: Policy) -> bool:
    """Tells whether a draw shows in the rows behind its own, as with noise that is correlated between steps."""
    return accountants.TABLE[policy.mechanism.name].memory(policy) > 0


def with_copies(phases: Sequence[Phase], again: int) -> list[Phase]:
    """Returns phases with the copies that draws have where ``again`` of these steps were done again, and draws show later.

    Guarantee: with R = ``again``, no fewer draws than 2 R count behind the noise of R copies more. A copy more takes a step
    done again, and it is of the draws of one step: so at most R steps have one, and with those done again 2 R draws.

    Args:
        phases: of one multiplier and rate.
    """
    if not again:
        return list(phases)
    total, one = sum(phase.steps for phase in phases), phases[0]
    dearer = min(2 * again, total)
    least = replace(one, noise_multiplier=one.noise_multiplier / math.sqrt(1 + again), steps=dearer)
    return [replace(one, steps=total - dearer), least]


def _spending(policy: Policy, phases: Iterable[Phase] = (), loss: float = 0.0, cap: int = 0) -> Spending:
    family = policy.mechanism.name
    law = accountants.TABLE[family].law or family  # of correlated noise that of Gaussian noise, once occurrences are added up
    return Spending(accountants.held_to(policy.accountant), law, tuple(phases), loss, cap)


TOLERANCE_MICRO = 2
"""An auditor finds a limit exceeded from so much on, in 1e-6: machines differ in last bits."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Says what a contribution may spend over all runs.

    Attributes:
        by: whose limit it is: its contributor's, or that of a policy for its class.
        whose: the ledger whose policy it is in, or empty.
    """

    epsilon_micro: int
    delta: Fraction
    by: Literal["contributor", "class"]
    whose: str = ""

    def __str__(self) -> str:
        said = f"epsilon {from_micro(self.epsilon_micro):g} at delta {float(self.delta):g}"
        whose = "its contributor signed" if self.by == "contributor" else f"the policy of {self.whose} allows its class"
        return f"{whose} {said}"

    @property
    def pair(self) -> tuple[float, float]:
        """Returns epsilon and delta as doubles."""
        return from_micro(self.epsilon_micro), float(self.delta)


@dataclass(frozen=True, slots=True)
class Use:
    """Says how much of a limit is used."""

    limit: Limit
    epsilon: float

    def share(self) -> float:
        """Returns what is used over what is allowed."""
        return self.epsilon * MICRO / self.limit.epsilon_micro

    def too_much(self, tolerance: int = 0) -> bool:
        """Tells whether more is used than allowed and, in 1e-6, tolerated."""
        return self.epsilon * MICRO > self.limit.epsilon_micro + tolerance


def signed_limit(limit: tuple[int, int]) -> list[Limit]:
    """Returns the limit that a contributor signed; none for zeros."""
    return [Limit(limit[0], from_pico(limit[1]), "contributor")] if limit[0] else []


def limits_of(header: Header, place: int, limit: tuple[int, int]) -> tuple[Limit, ...]:
    """Returns the limits under which a run admits a contribution to the class at ``place`` that signed this one: none in a
    public class."""
    rule = header.policy.classes[place]
    if rule.public:
        return ()
    found = signed_limit(limit)
    if rule.max_epsilon_total_micro is not None:
        found.append(Limit(rule.max_epsilon_total_micro, header.policy.delta, "class", header.origin))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Holds one run in the account of a contribution; one object for all contributions that are alike.

    Attributes:
        order: how many runs it counts itself, and its time: runs of one contribution stand in this order.
        spent: what the contribution spent in it; for the run in question the same as what follows.
        planned: the most that it could have spent, by its policy.
    """

    order: tuple[int, int]
    spent: Spending
    planned: Spending
    limits: tuple[Limit, ...]


def limits_over(accounts: Iterable[Account]) -> tuple[Limit, ...]:
    """Returns all limits under which any run admitted a contribution; an earlier policy's bind later runs too."""
    return tuple(dict.fromkeys(limit for account in accounts for limit in account.limits))


def reached(limit: Limit, accounts: Sequence[Account]) -> float:
    """Returns what of a limit these runs use, as epsilon at its delta.

    Guarantee: If this never exceeded the limit's epsilon before a run began, counting that run as planned, all runs together
    are within the limit, however each was chosen: by its accountant if only one has spent anything, else by the filter.
    """
    used = [account for account in accounts if account.spent]
    if not used:
        return 0.0
    epsilon, delta = limit.pair
    if len(used) == 1:
        return used[0].spent.epsilon(delta)
    first = min(used, key=lambda account: account.order).planned
    place = _place(first, epsilon, delta)
    order = renyi.ORDERS[place]
    both = max(sum(account.spent.divergences[place] for account in used), first.divergences[place])
    return renyi.least_of_order(both, order, delta)


class Plans:
    """Computes what contributions could spend in a run of one header: one account per group with equal bounds and limits."""

    def __init__(self, header: Header, steps: int | None = None) -> None:
        """Takes the header, and how many of its steps are to run if not all."""
        self.header, self._steps = header, steps
        self._expenditure = Expenditure(header)
        self._accounts: dict[tuple[int, tuple[int, int], tuple[int, int]], Account] = {}
        self._plans: dict[tuple[int, tuple[float, ...]], Spending] = {}

    def of(self, place: int, signed: Signed) -> Account:
        """Returns the account of every contribution to the class at ``place`` that signed these bounds and this limit."""
        bounds, limit = signed.bounds, signed.limit
        key = (place, bounds[:2], limit)  # no cap is counted on
        found = self._accounts.get(key)
        if found is None:
            multipliers = self._expenditure.multipliers(place, bounds)
            plan = self._plans.get((place, multipliers))
            if plan is None:
                plan = self._plans[place, multipliers] = of_plan(self.header.policy, place, multipliers, self._steps)
            order = (len(self.header.previous), self.header.time)
            found = self._accounts[key] = Account(order, plan, plan, limits_of(self.header, place, limit))
        return found

    def limits(self, contribution: Contribution) -> tuple[Limit, ...]:
        """Returns the limits under which the run admitted a contribution; none in a public class."""
        place = contribution.class_index
        return () if self.header.policy.classes[place].public else self.of(place, contribution.terms).limits


def budget_problems(leaf: Admit, plans: Plans, place: int) -> Iterator[LeafRefused]:
    """Yields the limits that the plan of this run exceeds by itself, or that are used up by what was spent before.

    What is said to be spent before is an epsilon at the policy's delta: it says nothing of a limit at a larger one.
    """
    if plans.header.policy.classes[place].public:
        return  # nothing is promised, and a block that it touches alone has no noise to count with
    account = plans.of(place, leaf)
    for limit in account.limits:
        alone = Use(limit, reached(limit, (account,)))
        if alone.too_much(TOLERANCE_MICRO):
            yield LeafRefused("BUDGET", f"{limit} over all runs; this run by itself could bring it to {alone.epsilon:.6g}")
        if leaf.carried_micro > limit.epsilon_micro and limit.delta <= plans.header.policy.delta:
            before = from_micro(leaf.carried_micro)
            yield LeafRefused("BUDGET", f"{limit} over all runs; it has spent {before:g} before")


@lru_cache(maxsize=4096)
def _place(first: Spending, epsilon: float, delta: float) -> int:
    """Finds the place in `renyi.ORDERS` of the filter: where the first run could be repeated most often, by its plan."""
    return renyi.roomiest(first.divergences, epsilon, delta)


def repetitions(limit: Limit, planned: Spending) -> int | None:
    """Returns how many runs of this plan fit into a limit one after the other; None if any number does."""
    epsilon, delta = limit.pair
    if not planned:
        return None
    place = _place(planned, epsilon, delta)
    if not planned.divergences[place]:
        return None
    fit = int(renyi.room(epsilon, delta)[place] / planned.divergences[place])
    return max(fit, int(not Use(limit, planned.epsilon(delta)).too_much()))
