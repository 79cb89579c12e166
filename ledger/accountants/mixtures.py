"""Costs several draws of one person in one step: mixtures of Gaussians, by dp-accounting's loss distributions.

Two uses, one mathematics. Several contributions of one principal are drawn independently, so a step holds the sum of those
that were; and where contribution-level clipping is declined, the examples of one are clipped and drawn by themselves.
The figures are those of the loss distribution whatever the accountant of record.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from ledger.accountants import grids
from ledger.accountants.gaussian import epsilon_of_mu
from ledger.accountants.laplace import FFT_ERROR, MOST_LOSS
from ledger.accountants.phases import Phase, check_delta
from ledger.accountants.pld.composed import COARSE_BELOW, COARSER, INTERVAL, UNSAMPLED_BELOW
from ledger.errors import AccountantError

MAX_MEMBERS: Final = 10_000
"""Larger groups are refused; a bound on so many would say nothing."""

_SUPPORT: Final = 256
_RARE: Final = 1e-12
_BLOCK: Final = 1 << 21
_NEWTON: Final = 100
_WORK: Final = 1 << 28
"""Most points of a step times shifts; a grid with more takes minutes, and a coarser one counts."""


def epsilon_group(noise_multiplier: float, sampling_rate: float, steps: int, group_size: int, delta: float) -> float:
    """Returns epsilon for all of ``group_size`` alike contributions of one person together.

    It is that of a contribution, too, whose examples are drawn and clipped one by one, each to the whole clip norm: for
    comparison, as dptrain clips a contribution once (docs/mechanism), which costs what one example does here.

    Guarantee: As `epsilon_of_principal`.
    """
    if type(group_size) is not int or not 1 <= group_size <= MAX_MEMBERS:
        nearest = float(min(max(group_size, 1), MAX_MEMBERS)) if type(group_size) is int else None
        sentence = f"the number of contributions is an integer in 1..{MAX_MEMBERS}, got {group_size!r}"
        raise AccountantError("GROUP", sentence, nearest=nearest)
    return epsilon_of_principal([Phase(noise_multiplier, sampling_rate, steps)] * group_size, delta)


def epsilon_of_principal(contributions: Sequence[Phase], delta: float) -> float:
    """Returns epsilon for all contributions of one person together, null against present.

    Guarantee: An upper bound under zero-out adjacency of the whole set, for contributions that are drawn independently and a
    noise that is fixed before the first step; both directions. Whitened, contribution j shifts a step by at most 1/z_j where it
    is drawn, so the step is dominated by N(S, 1) against N(0, 1) with S the sum of 1/z_j over those drawn. Contributions of
    fewer steps count as if they were there in all (a smaller rate is a larger one, post-processed). Never above the unsampled
    Gaussian with mu = sum of sqrt(steps_j) / z_j.

    Args:
        contributions: one phase per contribution: its noise multiplier, sampling rate and steps.
        delta: the delta of the policy.

    Raises:
        AccountantError: code GROUP, too many contributions; NOT_INSTALLED without dp-accounting, where draws are secret.

    Source: Choquette-Choo, Ganesh, Steinke and Thakurta (2023), Corollary 4.7 (vectors are dominated by their norms); for
    occurrences that are public, mu adds up (Dong, Roth and Su 2022): `epsilon_occurrences((sum of mu_j)^2)`.
    """
    delta = check_delta(delta)
    present = (p for p in contributions if p.steps and p.sampling_rate)
    members = sorted(present, key=lambda p: (p.noise_multiplier, p.sampling_rate))
    if len(members) > MAX_MEMBERS:
        raise AccountantError("GROUP", f"{len(members)} contributions exceed {MAX_MEMBERS}", nearest=float(MAX_MEMBERS))
    if not members:
        return 0.0
    if members[0].noise_multiplier == 0.0:
        return math.inf
    unsampled = epsilon_of_mu(math.fsum(math.sqrt(p.steps) / p.noise_multiplier for p in members), delta)
    if all(p.sampling_rate == 1.0 for p in members) or members[0].noise_multiplier < UNSAMPLED_BELOW:
        return unsampled
    grids.require("figures of several secret draws together")
    shifts = _sums([(1.0 / p.noise_multiplier, p.sampling_rate) for p in members])
    return min(unsampled, _mixture(shifts, max(p.steps for p in members), delta))


def _sums(draws: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Returns the distribution of the sum of independent shifts as (value, probability), values ascending and rounded up.

    Rounding shifts up is post-processed back (a smaller shift is dominated by a larger one), so the bound stays one.
    """
    grid = math.fsum(shift for shift, _ in draws) / _SUPPORT
    alike = len({shift for shift, _ in draws}) == 1 and len(draws) <= _SUPPORT
    unit = draws[0][0] if alike else grid
    units = [1 if alike else math.ceil(shift / grid) for shift, _ in draws]
    chances = [1.0]
    for (_, q), step in zip(draws, units, strict=True):
        grown = [(1.0 - q) * chance for chance in chances] + [0.0] * step
        for place, chance in enumerate(chances):
            grown[place + step] += q * chance
        chances = grown
    return tuple((place * unit, chance) for place, chance in enumerate(chances) if chance > 0.0)


@lru_cache(maxsize=4096)
def _mixture(shifts: tuple[tuple[float, float], ...], steps: int, delta: float) -> float:
    total = math.fsum(chance for _, chance in shifts)
    above, typical = 1.0, shifts[-1][0]
    for value, chance in shifts:
        above -= chance / total
        if above < _RARE:
            typical = value
            break
    interval = INTERVAL * max(1.0, (COARSE_BELOW * typical) ** 2)
    lost = FFT_ERROR * steps  # of delta, by the library's composition; no other bound is at hand than the unsampled one
    if lost >= 0.5 * delta:
        return math.inf
    for grid in (interval * factor for factor in COARSER if interval * factor <= MOST_LOSS):
        parts = _step(tuple((value, chance / total) for value, chance in shifts), grid)
        held = [whole for part in parts if part and (whole := grids.repeated(part, steps))]
        if len(held) == len(parts):
            return max(0.0, *(float(whole.get_epsilon_for_delta(delta - lost)) for whole in held))
    return math.inf


@lru_cache(maxsize=4)
def _step(shifts: tuple[tuple[float, float], ...], interval: float) -> tuple[Any, ...]:
    """Returns the library's loss distributions of one step, both directions; None for one with too many points.

    These are the calls of its `from_mixture_gaussian_mechanism`, but for where a loss is taken: the library bisects for each
    in turn, down to 1e-6, which took nine tenths of the time.
    """
    import numpy as np
    from dp_accounting.pld import pld_pmf, privacy_loss_mechanism

    class Mechanism(privacy_loss_mechanism.MixtureGaussianPrivacyLoss):
        def inverse_privacy_losses(self, privacy_losses: Any, precision: float = 1e-6) -> Any:
            removed = self.adjacency_type == privacy_loss_mechanism.AdjacencyType.REMOVE
            return _taken_at(np.asarray(privacy_losses), shifts, removed=removed)

    def direction(adjacency: Any) -> Any:
        values, chances = zip(*shifts, strict=True)
        mechanism = Mechanism(1.0, list(values), list(chances), adjacency_type=adjacency)
        bounds = mechanism.connect_dots_bounds()
        low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        if high - low >= grids.MOST_POINTS or (work := (high - low) * len(shifts)) > _WORK:
            return None
        pieces = np.array_split(np.arange(low, high + 1) * interval, work // (8 * _BLOCK) + 1)  # one column a shift
        deltas = np.concatenate([mechanism.get_delta_for_epsilon(piece) for piece in pieces])
        falling = np.maximum.accumulate(deltas[::-1])[::-1]  # as the library makes those of a piece
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, falling)

    kinds = privacy_loss_mechanism.AdjacencyType
    return direction(kinds.REMOVE), direction(kinds.ADD)


def _taken_at(losses: Any, shifts: Sequence[tuple[float, float]], *, removed: bool) -> Any:
    """Returns where the mixture and N(0, 1) have these losses, by Newton's method for all of them at once.

    The library's losses fall in x: removed, log of sum p_k exp(-v_k x - v_k^2 / 2); added, minus that at -x. The former is
    convex, so from a point to the left of the root every step stays there and comes closer. A loss at or below what is
    left at infinity, where only the null is likely, is taken there.
    """
    import numpy as np

    values = np.array([value for value, _ in shifts])
    constants = np.log(np.array([chance for _, chance in shifts])) - 0.5 * values * values
    targets = losses if removed else -losses
    least = float(constants[values == 0.0][0]) if np.any(values == 0.0) else -np.inf
    found = np.full(targets.shape, np.inf)
    reached = np.flatnonzero(targets > least + 1e-8 * max(1.0, abs(least)) if math.isfinite(least) else targets > -np.inf)
    rows = max(1, _BLOCK // len(values))
    for start in range(0, len(reached), rows):
        here = reached[start : start + rows]
        wanted = targets[here]
        # log-sum-exp is at least its largest term: to the left of where the steepest term alone reaches the loss.
        with np.errstate(divide="ignore"):
            x = np.max((constants[values > 0.0] - wanted[:, None]) / values[values > 0.0], axis=1)
        for _ in range(_NEWTON):
            terms = constants - values * x[:, None]
            top = terms.max(axis=1)
            weights = np.exp(terms - top[:, None])
            mass = weights.sum(axis=1)
            missing = top + np.log(mass) - wanted
            move = missing * mass / (weights @ values)
            x += move
            # Where losses hardly change with x, x cannot be told closer than they are.
            if np.all((np.abs(move) <= 1e-13 * (1.0 + np.abs(x))) | (np.abs(missing) <= 1e-14 * (1.0 + np.abs(wanted)))):
                break
        else:
            raise AccountantError("GROUP", "no figure for these contributions: their losses could not be located")
        found[here] = x
    return found if removed else -found
