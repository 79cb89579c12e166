"""Computes epsilon of a schedule of phases by the accountant of record, and holds what headers say of it against the table.

Nothing that a header says of its accountant is free: library, version and parameters are those of a row. Figures are tightened
from time to time, and what was recorded before is an upper bound still. So an auditor asks of a recorded epsilon that it is not
below today's, and not above by more than the version in the header explains. Import all this from `ledger.accountants`.
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from ledger.accountants.phases import Counted, Phase, Sampled, check_delta, dearest, first_steps, is_real, merged
from ledger.accountants.table import (
    ACCOUNTANT_VERSION,
    ACCOUNTANTS,
    OWN_LIBRARIES,
    check,
    check_accountant,
    provided,
    refusal,
)
from ledger.errors import AccountantError


def epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountant: str = "pld",
    *,
    family: str = "gaussian",
    replace: bool = False,
) -> float:
    """Returns epsilon spent by ``steps`` Poisson-sampled releases.

    Guarantee: An upper bound on the epsilon at ``delta`` under zero-out adjacency, for a noise multiplier and a sampling rate
    fixed before the first step.

    Args:
        noise_multiplier: standard deviation of the noise on the sum over the clip norm (z).
        sampling_rate: probability q that the contribution takes part in a step.
        steps: number of charged steps.
        delta: the delta of the policy, at least 1e-12.
        accountant: one of `ACCOUNTANTS`.
        family: the noise, by its name in `table.TABLE`; its row says what ``noise_multiplier`` means.
        replace: content replacement, one payload against another and not against a null. Two clipped payloads differ by up to
            twice the clip norm, so this is larger, and is printed beside it.

    Returns:
        Epsilon >= 0; 0.0 without steps or sampling; inf without noise.

    Raises:
        AccountantError: for an unknown accountant or arguments that are no such numbers.

    Source: dp-accounting `PLDAccountant`; Balle and Wang (2018), Theorem 8, when every step releases (q = 1); `renyi`; `prv`.
    """
    phases = (Phase(noise_multiplier, sampling_rate, steps),)
    return epsilon_of_phases(phases, delta, accountant, family=family, replace=replace)


def epsilon_of_phases(
    phases: Sequence[Phase],
    delta: float,
    accountant: str = "pld",
    *,
    family: str = "gaussian",
    replace: bool = False,
) -> float:
    """Returns epsilon of a run whose noise or sampling differs between phases that were fixed before the first step.

    Guarantee: As `epsilon`; the order of the phases does not matter, equal ones count as one, and one phase gives the bits of
    `epsilon`. Values are cached by schedule, so contributions with equal schedules share one computation.

    Args:
        phases: the phases, in any order.
        delta: the delta of the policy, at least 1e-12.
        accountant: one of `ACCOUNTANTS`.
        family: as in `epsilon`.
        replace: content replacement in the place of zero-out. There the loss distribution is the one tight tool at hand:
            `rdp`, `moments` and `prv` give its value, or their own under zero-out if that is larger.

    Raises:
        AccountantError: for an unknown accountant, something that is no phase, or a delta below 1e-12.
    """
    check_accountant(accountant)
    return cached(merged(phases), check_delta(delta), accountant, family, replace)


def epsilon_at_deltas(
    phases: Sequence[Phase],
    deltas: Sequence[float],
    accountant: str = "pld",
    *,
    family: str = "gaussian",
    replace: bool = False,
) -> tuple[float, ...]:
    """Returns epsilon of one run at several deltas, for a curve: `pld` composes it a few times at most and reads the others.

    Guarantee: Every value is an upper bound, as that of `epsilon_of_phases` at this delta, and within 4e-7 of it, mostly within
    1e-9. What is recorded is that one.

    Args:
        phases, accountant, family, replace: as in `epsilon_of_phases`.
        deltas: in any order, each at least 1e-12.

    Raises:
        AccountantError: as `epsilon_of_phases`.
    """
    check_accountant(accountant)
    normal, checked = merged(phases), tuple(map(check_delta, deltas))
    if normal and normal[0].noise_multiplier > 0.0:
        cost = check(family, accountant)
        if replace and not cost.replaces(accountant):
            own = epsilon_at_deltas(normal, checked, accountant, family=family)
            return tuple(map(max, own, epsilon_at_deltas(normal, checked, family=family, replace=True)))
        found = cost.epsilon_at(Sampled(normal), checked, accountant, replace=replace)
        if found is not None:
            return found
    return tuple(cached(normal, delta, accountant, family, replace) for delta in checked)


def epsilon_at_steps(
    phases: Sequence[Phase],
    counts: Sequence[int],
    delta: float,
    accountant: str = "pld",
    *,
    family: str = "gaussian",
    replace: bool = False,
) -> tuple[float, ...]:
    """Returns epsilon of a run after so many of its steps, for a curve: `pld` shares what it composes between the points.

    Guarantee: Every value is an upper bound, as that of `epsilon_of_phases` for these first steps, and within 4e-7 of it at
    deltas of policies, mostly within 1e-9; that of the largest count has the same bits. Values of `pld` never fall with the
    number of steps: a bound for more steps is one for fewer. What is recorded is that of `epsilon_of_phases`.

    Args:
        phases, delta, accountant, family, replace: as in `epsilon_of_phases`; the order of the phases counts here.
        counts: numbers of steps, ascending.

    Raises:
        AccountantError: as `epsilon_of_phases`; code STEPS: the counts do not ascend.
    """
    check_accountant(accountant)
    if any(later < earlier for earlier, later in pairwise(counts)):
        raise AccountantError("STEPS", f"numbers of steps ascend along a curve, got {', '.join(map(str, counts))}")
    return _over(tuple(merged(first_steps(phases, count)) for count in counts), check_delta(delta), accountant, family, replace)


def _over(
    runs: tuple[tuple[Phase, ...], ...], delta: float, accountant: str, family: str, replace: bool
) -> tuple[float, ...]:
    """Returns epsilon of growing runs in normal form; the last as `cached` has it."""
    if not runs:
        return ()
    last, found = cached(runs[-1], delta, accountant, family, replace), None
    if all(run and run[0].noise_multiplier > 0.0 for run in runs):
        cost = check(family, accountant)
        if replace and not cost.replaces(accountant):
            own = _over(runs, delta, accountant, family, False)
            return tuple(map(max, own, _over(runs, delta, "pld", family, True)))
        found = cost.epsilon_over(tuple(map(Sampled, runs[:-1])), delta, accountant, replace=replace)
    if found is None:
        return (*(cached(run, delta, accountant, family, replace) for run in runs[:-1]), last)
    values = [*found, last]
    if not ACCOUNTANTS[accountant].held_to:
        values = [*accumulate(reversed(values), min)][::-1]
    return tuple(values)


def epsilon_of_phases_capped(
    phases: Sequence[Phase], occurrences: int, delta: float, accountant: str = "pld", *, family: str = "gaussian"
) -> float:
    """Returns epsilon when the contribution takes part in at most ``occurrences`` of the steps of all phases together.

    Guarantee: An upper bound if the sampler silently stops drawing the contribution after that many occurrences: the smaller of
    the sampled bound and the Gaussian with mu^2 = sum of 1/z^2 over the dearest ``occurrences`` steps (joint convexity over
    participation patterns). The cap must not be published as it takes effect.
    """
    if type(occurrences) is not int or occurrences < 1:
        raise AccountantError("OCCURRENCES", f"the cap is a positive integer, got {occurrences!r}", nearest=1.0)
    sampled = epsilon_of_phases(phases, delta, accountant, family=family)
    normal = merged(phases)
    if not normal or sampled == math.inf:
        return sampled
    return min(sampled, check(family, accountant).epsilon(dearest(normal, occurrences), float(delta), accountant))


def epsilon_occurrences(loss: float, delta: float, accountant: str = "pld", *, family: str = "gaussian") -> float:
    """Returns epsilon of a contribution whose occurrences are public: counted one by one, nothing hidden by sampling.

    Guarantee: An upper bound under zero-out adjacency for Gaussian releases whose noise multipliers z_t depend on what is
    public alone: for `pld` and `prv` exact for the composition, mu = sqrt(sum over its occurrences of 1/z_t^2); for `rdp` and
    `moments` their own bound on the same.

    Args:
        loss: mu^2, the sum over its occurrences.
        delta: the delta of the policy.
        accountant: one of `ACCOUNTANTS`.
        family: as in `epsilon`; refused where its epsilon is no function of that sum.

    Source: Balle and Wang (2018), Theorem 8; mu^2 of Gaussian mechanisms adds up (Dong, Roth and Su 2022, Corollary 3.3).
    """
    check_accountant(accountant)
    delta = check_delta(delta)
    if not is_real(loss) or not loss >= 0.0:
        raise AccountantError("LOSS", f"mu^2 is a number >= 0, got {loss!r}")
    cost = check(family, accountant)
    if "occurrences_public" not in cost.disclosures:
        told = refusal(family, accountant, cost.exactness[0], cost.injections[0], "occurrences_public")
        raise AccountantError("FAMILY", told or "")
    return cost.epsilon(Counted(float(loss)), delta, accountant) if loss > 0.0 else 0.0


def likely_occurrences(sampling_rate: float, steps: int, tail: float = 1e-6) -> int:
    """Returns a number of draws that a contribution exceeds with probability at most ``tail``.

    For planning where occurrences are public, and known only once they have happened. A Chernoff bound on the binomial
    tail: P[X >= n] <= exp(-T KL(n/T || q)).
    """
    q = Phase(1.0, sampling_rate, steps).sampling_rate
    if q in (0.0, 1.0):
        return steps if q else 0

    def within(n: int) -> bool:
        a = (n + 1) / steps
        if a <= q:
            return False
        if a >= 1.0:
            return n >= steps or steps * math.log(q) <= math.log(tail)
        divergence = a * math.log(a / q) + (1 - a) * math.log((1 - a) / (1 - q))
        return -steps * divergence <= math.log(tail)

    low, high = 0, steps
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) else (middle + 1, high)
    return low


@lru_cache(maxsize=65536)
def cached(phases: tuple[Phase, ...], delta: float, accountant: str, family: str, replace: bool) -> float:
    """Returns epsilon of phases in normal form, one value per schedule (an accounting group). Arguments are checked before."""
    if not phases:
        return 0.0
    if phases[0].noise_multiplier == 0.0:
        return math.inf
    cost = check(family, accountant)
    if replace and not cost.replaces(accountant):
        own = cached(phases, delta, accountant, family, False)
        return max(own, cached(phases, delta, "pld", family, True))
    return cost.epsilon(Sampled(phases), delta, accountant, replace=replace)


def check_recorder(accountant: str, library: str, version: str, parameters: str, family: str = "gaussian") -> None:
    """Refuses what no version of this code, or of the package that provides the accountant or family, has recorded with. Raises
    AccountantError: code ACCOUNTANT_VERSION; the sentence has what is known."""
    check_accountant(accountant)
    known = check(family, accountant).recorders(accountant)
    for row in known:
        if (row.library, row.parameters) == (library, parameters) and re.fullmatch(row.version, version):
            return
    found = f"accountant {accountant} by {library} {version} {parameters} is none that is known here"
    how = "audit with the newest version of dptrain"
    if provided(accountant, family) and library not in OWN_LIBRARIES:
        how = f"install {library} {version}, or a version of it whose `recorders` names that one"
    raise AccountantError(ACCOUNTANT_VERSION, f"{found}, expected {' or '.join(map(str, known))}; {how}")


def leeway(accountant: str, library: str, version: str, family: str = "gaussian") -> float:
    """Returns by how much an epsilon that a header's accountant recorded may exceed today's.

    Guarantee: 0.0 for what `describe` says today, except `prv.WIDTH` for `prv`, whose figure is checked against `pld`'s; and
    for versions that are not known. What an installed package provides says it of its own versions.
    """
    return check(family, accountant).leeway(accountant, library, version)


def held_to(accountant: str) -> str:
    """Returns the accountant whose figure an auditor recomputes to hold this one's against: `pld` for `prv`, else itself."""
    check_accountant(accountant)
    return ACCOUNTANTS[accountant].held_to or accountant
