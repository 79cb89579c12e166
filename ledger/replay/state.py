"""Holds what the leaves of a run say so far, and computes what each contribution has spent by then, from nothing else.

Rules read it, and `Replay` alone writes it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from attest import schedule
from attest.descriptor import SignedBounds
from ledger import accountants
from ledger.accountants.correlated.turns import Turns
from ledger.errors import LeafRefused
from ledger.leaves import Charge, Epoch, Header
from ledger.replay.contributions import Contribution, Standing, Terms
from ledger.replay.register import Register

Levels = tuple[tuple[int, int], ...]
"""Says how many draws of one contribution have so many copies more of their rows, at least; fewest copies first."""


class Copies:
    """Counts how often rows of correlated noise were released again that have to do with draws before them, in secret.

    A draw in step t is felt in the steps up to t + memory. Where a run went on from a step in between, those behind it were
    released once more, so that the draw shows in one copy more of them (docs/mechanism, Theorem 15 f). What cannot be known of
    secret draws is counted: every draw of a step has as many copies as any has.
    """

    def __init__(self, header: Header) -> None:
        """Takes the noise and the groups of the header's policy."""
        policy = header.policy
        self._groups = policy.sampling.groups
        self.memory = accountants.TABLE[policy.mechanism.name].memory(policy) if self._groups > 1 else 0
        """Steps behind its own in which a draw is felt; 0 where draws are public, or noise is not correlated."""
        self._again: Counter[int] = Counter()  # by step, how often it was charged but for the first time
        self._left = policy.redo_steps  # what more is charged again is refused, and counts nothing here
        self._more: dict[int, int] = {}
        self._farthest = 0
        self._from: int | None = None
        self._levels: Levels | None = ()

    def resume(self, step: int) -> None:
        """Takes note that the run goes on behind a step."""
        self._from = step

    def charge(self, first: int, last: int) -> bool:
        """Takes the steps of a window; tells whether more draws have copies now, or some have more of them."""
        begin, self._from = self._from, None
        again = range(0)
        if self.memory:
            again = range(first, min(last, self._farthest, first + self._left - 1) + 1)
            self._left -= len(again)
        repeated = any(step in self._more for step in again)
        more = bool(self.memory) and begin is not None and self._farthest > begin > 0
        if more:
            assert begin is not None
            for step in range(max(1, begin - self.memory + 1), begin + 1):
                self._more[step] = self._more.get(step, 0) + 1
        for step in again:
            self._again[step] += 1
            self._levels = None
        self._farthest = max(self._farthest, last)
        return more or repeated

    def most(self, again: int) -> Levels:
        """Returns the most that `levels` can come to in a run in which so many steps are done again."""
        return ((2 * again, again),) if self.memory and again else ()

    def levels(self) -> Levels:
        """Returns how many draws of one contribution have 1, 2, .. copies more at least, of the group that has most."""
        if self._levels is None:
            of_groups: dict[int, Counter[int]] = {}
            for step, more in self._more.items():
                of_groups.setdefault(step % self._groups, Counter())[more] += 1 + self._again[step]
            most: Counter[int] = Counter()
            for counts in of_groups.values():
                total = 0
                for level in range(max(counts), 0, -1):
                    total += counts[level]
                    most[level] = max(most[level], total)
            self._levels = tuple((most[level], level) for level in sorted(most))
        return self._levels


class Expenditure:
    """Computes epsilon per contribution, once per group of contributions with equal bounds and equal charges."""

    def __init__(self, header: Header, accountant: str | None = None, copies: Copies | None = None) -> None:
        """Takes schedule, sampling rates and delta from the header, and its accountant unless another is named. ``copies``:
        those of another one for the same run."""
        self._header = header
        self.copies = Copies(header) if copies is None else copies
        self.groups = header.policy.sampling.groups
        self._accountant = accountant or header.accountant.name
        self._family = header.policy.mechanism.name
        self.phases = header.phases
        self._stds = [
            tuple(header.min_std(index, scale) for scale in header.phases.scales) for index in range(len(header.profiles))
        ]
        order = {rule.name: index for index, rule in enumerate(header.policy.classes)}
        self._touching = {tuple(order[name] for name in block.classes) for block in header.blocks if block.classes}
        self._rates = [float(rule.sampling_rate) for rule in header.policy.classes]
        self._multipliers: dict[tuple[int, SignedBounds], tuple[float, ...]] = {}
        self._epsilons: dict[tuple[int, tuple[float, ...], tuple[int, ...], Levels, int], float] = {}
        self._of_losses: dict[float, float] = {}

    @cached_property
    def _turns(self) -> list[Turns | None]:
        """Returns what occurrences add by class; not before the header is complete."""
        policy = self._header.policy
        return [accountants.turns_under(policy, rule.sampling_rate) for rule in policy.classes]

    def min_std(self, class_index: int, step: int) -> float:
        """Returns the smallest scheduled noise standard deviation of a step over the blocks of a class."""
        return self._stds[class_index][self.phases.index(step)]

    def multipliers(self, class_index: int, bounds: SignedBounds) -> tuple[float, ...]:
        """Returns the effective noise multiplier in each phase: z = max(sigma_i, min over the blocks of s_{t,l} / C_i).

        With injection per sample s_l is that of each step, and all that is known beforehand is z >= sigma_i.
        """
        if self._header.per_sample:
            return (bounds.noise_multiplier,) * len(self.phases.scales)
        key = (class_index, bounds)
        found = self._multipliers.get(key)
        if found is None:
            found = self._multipliers[key] = schedule.phase_multipliers(bounds, self._stds[class_index])
        return found

    def of_contribution(self, contribution: Standing) -> tuple[float, ...]:
        """Returns the effective noise multiplier of a contribution in each phase."""
        return self.multipliers(contribution.terms.class_index, contribution.terms.bounds)

    def variances(self, drawn: Iterable[Contribution]) -> tuple[int, ...] | None:
        """Returns per class the smallest variance over its blocks with injection per sample, in 1e-24; None if scheduled.

        Contributions of public classes bring none.
        """
        if not self._header.per_sample:
            return None
        classes = self._header.policy.classes
        own = [0] * len(classes)
        for contribution in drawn:
            if not classes[contribution.class_index].public:
                own[contribution.class_index] += contribution.terms.bounds.variance
        totals = {places: sum(own[place] for place in places) for places in self._touching}
        return tuple(min(total for places, total in totals.items() if place in places) for place in range(len(classes)))

    def stds_squared(self, variances: tuple[int, ...] | None, step: int) -> tuple[float, ...]:
        """Returns what a DRAW leaf of a step records of `variances`: the schedule's where they are None."""
        if variances is None:
            return tuple(_square(self.min_std(place, step)) for place in range(len(self._stds)))
        return tuple(_square(schedule.realised_std(variance)) for variance in variances)

    def count(self, contribution: Contribution, variances: tuple[int, ...] | None, step: int, *, again: bool = False) -> None:
        """Counts one occurrence of a contribution in a step, with these variances or, where they are None, its phase's.

        With noise that is correlated between steps it counts with those before it. ``again``: the step was drawn before; then
        it adds what `again` does.
        """
        place, loss = contribution.class_index, 0.0
        turns = self._turns[place]
        if self._header.policy.classes[place].public:
            pass
        elif variances is not None:
            loss = schedule.occurrence_loss(contribution.terms.bounds, variances[place])
        elif turns is None:
            loss = 1.0 / _square(self.of_contribution(contribution)[self.phases.index(step)])
        elif not again:
            loss = turns.occurrence(step - 1) / _square(self.of_contribution(contribution)[0])
        contribution.count(loss)

    def again(self, register: Register, step: int) -> None:
        """Counts that a step was done once more, after its occurrences: with correlated noise its row has to do with everybody
        who took part in it or in a step before, whether they are still there or not."""
        if not any(self._turns):
            return
        for place, (turns, rule) in enumerate(zip(self._turns, self._header.policy.classes, strict=True)):
            if turns is not None and not rule.public:
                register.spend(place, turns.period, turns.again(step - 1), self._squared)

    def _squared(self, terms: Terms) -> float:
        """Returns z^2 of who was admitted under these terms; the noise has one level."""
        return _square(self.multipliers(terms.class_index, terms.bounds)[0])

    def dearest(self, contributions: Iterable[Contribution], place: int) -> float:
        """Returns the largest loss that one of a class would have come to so far at a multiplier of 1, with its occurrences."""
        own = (contribution for contribution in contributions if contribution.class_index == place)
        if self._turns[place] is None:
            return max((contribution.occurrences for contribution in own), default=0)
        return max((contribution.loss * _square(self.of_contribution(contribution)[0]) for contribution in own), default=0.0)

    def phase_steps(self, contribution: Standing, charged: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the charged steps per phase in whose pool the contribution was, re-executed and unsettled ones included."""
        until = charged if contribution.until is None else contribution.until.charged
        return self.dearest_steps(after - before for after, before in zip(until, contribution.terms.since.charged, strict=True))

    def dearest_steps(self, counts: Iterable[int]) -> tuple[int, ...]:
        """Returns steps per phase of counts by phase and group, as `count_steps` gives them: of the group that has most."""
        held = tuple(counts)
        return tuple(max(held[begin : begin + self.groups]) for begin in range(0, len(held), self.groups))

    def count_steps(self, first_step: int, n_steps: int) -> tuple[int, ...]:
        """Says how many steps lie in each phase and, in it, in the turn of each group that steps draw from."""
        counts = self.phases.count(first_step, n_steps)
        if self.groups == 1:
            return counts
        found: list[int] = []
        begin = first_step - 1
        for count in counts:
            end = begin + count
            found += ((end - 1 - group) // self.groups - (begin - 1 - group) // self.groups for group in range(self.groups))
            begin = end
        return tuple(found)

    def steps(self, contribution: Standing, charged: tuple[int, ...]) -> int:
        """Returns the charged steps of all phases together."""
        return sum(self.phase_steps(contribution, charged))

    def variance(self, contribution: Standing, charged: tuple[int, ...]) -> float:
        """Returns the smallest scheduled variance over its blocks and the steps charged to it; of any phase if it has none."""
        steps, stds = self.phase_steps(contribution, charged), self._stds[contribution.class_index]
        return _square(min((std for std, count in zip(stds, steps, strict=True) if count), default=min(stds)))

    def epsilon(self, contribution: Standing, charged: tuple[int, ...], attempt: int) -> float:
        """Returns what a contribution has spent.

        Guarantee: An upper bound on its epsilon at the policy's delta under zero-out adjacency, for a sampler that draws it
        with its class's rate from the steps charged between its admission and its withdrawal, and a mechanism that clips to its
        signed norm and, whitened, to 1/sigma. Steps that were charged and not run, or run twice, count each time, at the
        multiplier of their own phase. Where occurrences are public, the occurrences recorded count and nothing else, each in
        full. If the header says that caps are enforced, its cap counts anew in every attempt, since what was drawn in an
        abandoned attempt is not known afterwards.

        Args:
            contribution: the contribution, or a group of those that stand alike.

        Raises:
            LeafRefused: its class is public: nothing is promised, and no number says so.
        """
        terms = contribution.terms
        if self._header.policy.classes[contribution.class_index].public:
            raise LeafRefused("PUBLIC", f"class {terms.class_name} is public: no epsilon is claimed for its contributions")
        if self._header.occurrences_public:
            return self.of_loss(contribution.loss)
        steps = self.phase_steps(contribution, charged)
        z = self.of_contribution(contribution)
        return self.of_group(contribution.class_index, z, steps, self.occurrences(contribution, steps, attempt))

    def occurrences(self, contribution: Standing, steps: tuple[int, ...], attempt: int) -> int:
        """Returns in how many of these steps its cap lets it take part at most, over all attempts; 0 if no cap is enforced."""
        most, first = contribution.terms.bounds.max_occurrences, contribution.terms.since.attempt
        if not (self._header.caps_enforced and most):
            return 0
        last = attempt if contribution.until is None else contribution.until.attempt
        return min(most * (max(last, first) - first + 1), sum(steps))

    def of_loss(self, loss: float) -> float:
        """Returns the epsilon of all contributions with this sum of 1/z^2 over public occurrences."""
        found = self._of_losses.get(loss)
        if found is None:
            found = accountants.epsilon_occurrences(loss, self._header.delta, self._accountant, family=self._family)
            self._of_losses[loss] = found
        return found

    def of_group(
        self,
        class_index: int,
        z: tuple[float, ...],
        steps: tuple[int, ...],
        occurrences: int = 0,
        levels: Levels | None = None,
    ) -> float:
        """Returns the epsilon of all of a class with these multipliers and steps per phase, and this cap (0: none). ``levels``:
        as `Copies.levels`, by default those of the run so far."""
        levels = self.copies.levels() if levels is None else levels
        key = (class_index, z, steps, levels, occurrences)
        found = self._epsilons.get(key)
        if found is None:
            phases, delta = self.charged_phases(class_index, z, steps, levels), self._header.delta
            if occurrences:
                found = accountants.epsilon_of_phases_capped(phases, occurrences, delta, self._accountant, family=self._family)
            else:
                found = accountants.epsilon_of_phases(phases, delta, self._accountant, family=self._family)
            self._epsilons[key] = found
        return found

    def replace_of_group(
        self, class_index: int, z: tuple[float, ...], steps: tuple[int, ...], levels: Levels | None = None
    ) -> float:
        """Returns that epsilon under content replacement: one payload against another. Caps do not enter."""
        phases, delta = self.charged_phases(class_index, z, steps, levels), self._header.delta
        return accountants.epsilon_of_phases(phases, delta, self._accountant, family=self._family, replace=True)

    def charged_phases(
        self, class_index: int, z: tuple[float, ...], steps: tuple[int, ...], levels: Levels | None = None
    ) -> list[accountants.Phase]:
        """Returns what the accountant composes: each phase with charged steps; a multiplier beyond its range counts as less.

        Draws whose rows were released again count behind as much less noise as they have copies.
        """
        most, rate = accountants.MAX_MULTIPLIER, self._rates[class_index]
        levels = self.copies.levels() if levels is None else levels
        if levels:
            left, (multiplier,) = sum(steps), z  # there is one level of noise
            counted = []
            for (at_least, more), (others, _) in zip(levels, (*levels[1:], (0, 0)), strict=True):
                counted.append((multiplier / math.sqrt(1 + more), min(at_least, left) - min(others, left)))
            counted = [(one, count) for one, count in [(multiplier, left - min(levels[0][0], left)), *counted] if count]
        else:
            counted = [(multiplier, count) for multiplier, count in zip(z, steps, strict=True) if count]
        return [accountants.Phase(min(multiplier, most), rate, count) for multiplier, count in counted]


def of_record(header: Header, own: Expenditure) -> Expenditure:
    """Returns what figures of record are held against: those of the header's accountant, or of the one that it is held to."""
    name = accountants.held_to(header.accountant.name)
    return own if name == header.accountant.name else Expenditure(header, name, own.copies)


def _square(value: float) -> float:
    """Returns the exact square rounded once. `value ** 2` is the C library's `pow`, whose last bit differs between machines."""
    return value * value


class RunState:
    """The state of a run after its first ``size`` leaves. Rules, summaries and views read it; `Replay` alone writes it.

    Attributes:
        attempt: running attempt, 0 before the first resume.
        position: last released step of the running attempt.
        charged_phases: steps charged over all attempts, per phase of the noise and, in it, per group that steps draw from.
        charged_attempt: last attempt that has charged a step.
        windows: all CHARGE leaves.
        open_window: the window that has been charged and not settled in this attempt.
        unsettled: windows that were never settled because their attempt was abandoned.
        spends: number of rows of SPEND leaves.
        register: all admitted contributions, and the pools of those that are active.
        withdrawals: position of the first WITHDRAW leaf by descriptor hash, unknown hashes included.
        shown_members: positions of ADMIT leaves of whom a WITHDRAW leaf shows whom they admitted.
        passing: of these hashes those whose only WITHDRAW leaf has a reason of `attest.withdrawal.PASSING`: a later run may
            admit such a contribution again, until somebody signs its withdrawal.
        closed_at: position of CLOSE; None before it.
        registry_roots: the states of the contributor registry by which the run went: that of the header, then those of REGISTRY
            leaves; the last one is in force.
    """

    def __init__(self, header: Header) -> None:
        self.header, self.size = header, 1
        self.attempt = self.position = self.charged_attempt = 0
        self.charged_phases = (0,) * (len(header.phases.scales) * header.policy.sampling.groups)
        self.windows: list[Charge] = []
        self.open_window: Charge | None = None
        self.unsettled: list[Charge] = []
        self.epochs: list[Epoch] = []
        self.spends = self.draws = 0
        self.register = Register(header.policy.classes, occurrences_public=header.occurrences_public)
        self.expenditure = Expenditure(header)
        self.withdrawals: dict[bytes, int] = {}
        self.shown_members: set[int] = set()
        self.passing: set[bytes] = set()
        self.closed_at: int | None = None
        self.registry_roots: list[bytes] = [header.registry_root]

    @property
    def closed(self) -> bool:
        """Tells whether CLOSE has been seen."""
        return self.closed_at is not None

    @property
    def contributions(self) -> Mapping[bytes, Contribution]:
        """Returns all admitted contributions by descriptor hash, in order of admission."""
        return self.register.by_hash

    @property
    def charged(self) -> int:
        """Returns steps charged over all attempts."""
        return sum(self.charged_phases)

    @property
    def charged_in_phases(self) -> tuple[int, ...]:
        """Returns the same per phase of the noise."""
        groups = self.header.policy.sampling.groups
        return tuple(sum(self.charged_phases[begin : begin + groups]) for begin in range(0, len(self.charged_phases), groups))

    def is_public(self, contribution: Standing) -> bool:
        """Tells whether the class of a contribution is public, so that no epsilon is claimed."""
        return self.header.policy.classes[contribution.class_index].public

    def steps(self, contribution: Standing) -> int:
        """Returns the charged steps in whose pool a contribution was."""
        return self.expenditure.steps(contribution, self.charged_phases)
