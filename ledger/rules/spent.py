"""What contributions have spent over several runs of one corpus, and whether one more run keeps within what they signed.

A contribution is known by the hash of its descriptor, which is the same in every run that admits the same attestation. Runs of
one delta, accountant and family of noise compose in one call of the accountant, all their phases together, as if they were one
run; others add up, epsilons and deltas both. Either holds if no run's policy was chosen after looking at what an earlier run
released; where it was, hold the sum of epsilons against the sum of deltas instead (`Total.summed`), which holds in any case
(Rogers, Roth, Ullman and Vadhan 2016, basic composition).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from attest.micro import from_micro
from attest.policy.sampling import POISSON
from ledger import accountants
from ledger.accountants import MICRO, Phase
from ledger.errors import BudgetExceeded
from ledger.handles import AdmitSpec
from ledger.leaves import Header, Previous
from ledger.replay import Replay
from ledger.rules.contributions import Contribution
from ledger.rules.expenditure import Expenditure


@dataclass(frozen=True, slots=True)
class Account:
    """What one contribution spent in one run, as an accountant composes it.

    Attributes:
        delta: delta of the run's policy.
        accountant: its accountant of record.
        family: its family of noise.
        phases: what is composed; None where this run's figure is no composition of sampled steps, so that it only adds up.
        epsilon: what the run by itself says.
    """

    delta: Fraction
    accountant: str
    family: str
    phases: tuple[Phase, ...] | None
    epsilon: float


@dataclass(frozen=True, slots=True)
class Total:
    """What a contribution spent over several runs.

    Attributes:
        epsilon: over all of them.
        delta: at this delta: that of the runs, or its sum where figures had to be added up.
        summed: the sum of the epsilons of all runs.
        summed_delta: the sum of their deltas.
    """

    epsilon: float
    delta: Fraction
    summed: float
    summed_delta: Fraction

    @property
    def micro(self) -> int:
        """Epsilon in 1e-6, rounded up."""
        return accountants.to_micro_up(self.epsilon)


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier run, as it was at the size that is cited.

    Attributes:
        cited: its place in a header.
        run: its replayed leaves, exactly as many as cited.
    """

    cited: Previous
    run: Replay


def left_out(runs: Sequence[Earlier]) -> Iterator[tuple[str, Previous]]:
    """Yields every ledger that one of these runs counts and that is none of them, behind the origin of that run."""
    cited = {earlier.cited.header_digest for earlier in runs}
    for earlier in runs:
        for before in earlier.run.header.previous:
            if before.header_digest not in cited:
                yield earlier.cited.origin, before


def total(accounts: Iterable[Account]) -> Total:
    """Adds up runs: exactly where they compose, conservatively where not.

    Guarantee:
        ``epsilon`` at ``delta`` bounds what the runs together reveal of the contribution, under the same adjacency as each of
        them, if their policies were fixed beforehand; ``summed`` at ``summed_delta`` does in any case.
    """
    # No phases: no steps. A run with steps counts with its delta even where its own epsilon at that delta is 0.
    spent = [account for account in accounts if account.phases != ()]
    groups: dict[tuple[Fraction, str, str], list[Account]] = {}
    alone: list[Account] = []
    for account in spent:
        if account.phases is None:
            alone.append(account)
        else:
            groups.setdefault((account.delta, account.accountant, account.family), []).append(account)
    parts = [(account.epsilon, account.delta) for account in alone]
    for (delta, accountant, family), members in groups.items():
        parts.append((_composed(members, delta, accountant, family), delta))
    return Total(
        epsilon=math.fsum(epsilon for epsilon, _ in parts),
        delta=sum((delta for _, delta in parts), Fraction(0)),
        summed=math.fsum(account.epsilon for account in spent),
        summed_delta=sum((account.delta for account in spent), Fraction(0)),
    )


def _composed(members: Sequence[Account], delta: Fraction, accountant: str, family: str) -> float:
    if len(members) == 1:
        return members[0].epsilon
    phases = accountants.merged([phase for member in members for phase in member.phases or ()])
    return accountants.epsilon_of_phases(phases, float(delta), accountant, family=family)


def account_of(run: Replay, contribution: Contribution) -> Account | None:
    """Returns the account of a contribution in a run so far; None for a public one, of which nothing is promised."""
    header, place = run.header, contribution.class_index
    if header.policy.classes[place].public:
        return None
    if header.occurrences_public:
        phases = _of_loss(contribution.loss, header)
    else:
        spent = run.expenditure
        steps = spent.phase_steps(contribution, run.charged_phases)
        phases = tuple(spent.charged_phases(place, spent.of_contribution(contribution), steps))
    return _account(header, phases, run.epsilon(contribution))


def horizon_account(header: Header, admission: AdmitSpec, steps: int | None = None) -> Account:
    """Returns the most that a contribution can spend in a run of this header, or in its first ``steps`` steps.

    Redone steps are counted where they are dearest. A cap of occurrences is not counted on: it begins anew in every attempt.
    """
    policy, spent = header.policy, Expenditure(header)
    counts = list(header.phases.count(1, policy.steps if steps is None else steps))
    z = spent.multipliers(admission.profile_id, admission.sigma_micro, admission.clip_micro)
    if policy.sampling_order != POISSON:
        rate = policy.classes[admission.profile_id].sampling_rate
        counts = [math.ceil(count * rate) + (count > 0) for count in counts]
    dearest = min((index for index, count in enumerate(counts) if count), key=lambda index: z[index], default=0)
    counts[dearest] += policy.redo_steps
    if header.occurrences_public:
        loss = math.fsum(count / multiplier**2 for multiplier, count in zip(z, counts, strict=True))
        return _account(header, _of_loss(loss, header), spent.of_loss(loss))
    phases = tuple(spent.charged_phases(admission.profile_id, z, tuple(counts)))
    return _account(header, phases, spent.of_group(admission.profile_id, z, tuple(counts)))


def _account(header: Header, phases: tuple[Phase, ...] | None, epsilon: float) -> Account:
    policy = header.policy
    return Account(policy.delta, header.accountant.name, policy.noise_family, phases, epsilon)


def _of_loss(loss: float, header: Header) -> tuple[Phase, ...] | None:
    """Public occurrences as one Gaussian release of the same mu, which is what they compose to; None for other noise."""
    if not loss:
        return ()
    if header.policy.noise_family != "gaussian":
        return None
    return (Phase(min(loss**-0.5, accountants.MAX_MULTIPLIER), 1.0, 1),)


class SpentRegistry:
    """The earlier runs that a new run counts."""

    def __init__(self, runs: Sequence[Earlier] = ()) -> None:
        """Takes the runs; none means that nothing was spent before."""
        self._runs = tuple(runs)
        self._totals: dict[tuple[Account, ...], Total] = {}

    @property
    def previous(self) -> tuple[Previous, ...]:
        """What the header of the new run must cite."""
        return tuple(earlier.cited for earlier in self._runs)

    def accounts(self, descriptor_hash: bytes) -> tuple[Account, ...]:
        """Returns the accounts of a contribution in the runs that admitted it."""
        return tuple(self._accounts(descriptor_hash))

    def _accounts(self, descriptor_hash: bytes) -> Iterator[Account]:
        for earlier in self._runs:
            contribution = earlier.run.contributions.get(descriptor_hash)
            account = None if contribution is None else account_of(earlier.run, contribution)
            if account is not None:
                yield account

    def carried(self, descriptor_hash: bytes) -> Total:
        """Returns what a contribution has spent in the earlier runs."""
        return self._total(self.accounts(descriptor_hash))

    def with_run(self, descriptor_hash: bytes, account: Account) -> Total:
        """Returns what it has spent when the account of one more run is counted."""
        return self._total((*self.accounts(descriptor_hash), account))

    def require_within(self, header: Header, admissions: Iterable[AdmitSpec]) -> None:
        """Refuses a run that could bring a contribution above the epsilon that it signed for all runs together.

        Guarantee:
            When this returns, no charge of the run, up to its horizon with every redone step, can exceed a signed limit.

        Args:
            header: of the new run.
            admissions: who is to take part; those without a limit are passed over.

        Raises:
            BudgetExceeded: code BUDGET; ``nearest`` is the largest number of steps that would stay within the limit.
        """
        horizons: dict[tuple[int, int, int], Account] = {}
        for admission in admissions:
            limit = admission.max_epsilon_micro
            if not limit or header.policy.classes[admission.profile_id].public:
                continue
            bounds = (admission.profile_id, admission.clip_micro, admission.sigma_micro)
            if bounds not in horizons:
                horizons[bounds] = horizon_account(header, admission)
            reached = self.with_run(admission.descriptor_hash, horizons[bounds])
            if reached.epsilon * MICRO > limit:
                raise self._exceeded(header, admission, reached)

    def _exceeded(self, header: Header, admission: AdmitSpec, reached: Total) -> BudgetExceeded:
        policy, limit = header.policy, admission.max_epsilon_micro
        low, high = 0, policy.steps  # low stays within the limit, or is 0; high exceeds it
        while high - low > 1:
            middle = (low + high) // 2
            if self._reaches(header, admission, middle).epsilon * MICRO > limit:
                high = middle
            else:
                low = middle
        before = self.carried(admission.descriptor_hash)
        advice = f"{low} steps would stay within it" if low else "not one step stays within it: leave the contribution out"
        return BudgetExceeded(
            "BUDGET",
            f"{admission.descriptor_hash.hex()} signed an epsilon of {from_micro(limit):g} over all runs; it has spent "
            f"{before.epsilon:.6g} before, and {policy.steps} steps with {policy.redo_steps} redone could bring it to "
            f"{reached.epsilon:.6g} (delta {float(reached.delta):g}); {advice}",
            nearest=low,
        )

    def _reaches(self, header: Header, admission: AdmitSpec, steps: int) -> Total:
        return self.with_run(admission.descriptor_hash, horizon_account(header, admission, steps))

    def _total(self, accounts: tuple[Account, ...]) -> Total:
        found = self._totals.get(accounts)
        if found is None:
            found = self._totals[accounts] = total(accounts)
        return found
