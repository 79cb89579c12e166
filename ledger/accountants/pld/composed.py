"""Does privacy-loss-distribution accounting of the Poisson-sampled Gaussian mechanism.

Losses are put on a grid so that both worlds keep their mass, which dominates them (`losses`); so epsilon is an upper bound
at any grid. What the composition rounds is bounded on the way (`tilted`): the bound is one of the exact epsilon. Where losses
are wide and smooth against the grid, what it adds is known, and the figure is found without it, some fifty times faster
(`contour`).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar, Final

from ledger.accountants import renyi
from ledger.accountants.gaussian import epsilon_of_mu
from ledger.accountants.phases import Counted, Phase, loss_of
from ledger.accountants.pld import contour, losses, tilted
from ledger.accountants.table import Accountant

INTERVAL: Final = 1e-4
"""Grid of privacy losses for ordinary noise multipliers."""

COARSE_BELOW: Final = 0.3
"""Below this noise multiplier losses grow as 1/z^2, and the grid with them, which bounds time and memory."""

UNSAMPLED_BELOW: Final = 0.02
"""Below this noise multiplier subsampling is ignored: epsilon is in the thousands, and the bound stays valid."""

MAX_POINTS: Final = 1 << 22
"""Longer grids and transforms are not computed on; the smaller of the Renyi and the unsampled bound counts."""

COARSER: Final = (1.0, 16.0, 256.0)
"""Factors for the grid, tried in turn where sums are so spread (epsilon is in the hundreds) that it has too many points."""

KEPT_POINTS: Final = 1 << 20
"""Longer distributions of one step are not kept for the next call."""

MOST_STEPS: Final = 1 << 24
"""More sampled steps are not composed: what the grid adds at every step has outgrown what the Renyi bound gives away."""

MOST_MU: Final = 128.0
"""More that is spent without sampling (epsilon is in the thousands) is not composed with the rest: it would take minutes."""

KERNEL: Final = "pld-2"
"""Changes with every change of these numbers; the first composed with dp-accounting."""

PARAMETERS: Final = f"interval={INTERVAL} relation=ADD_OR_REMOVE_ONE rounding=up-1e-6"
"""Account of it in the ledger's header."""

QUIET: Final = 4.0
"""Intervals of the grid: where q/z, the width of a step's losses, is at least so many, what it adds is below 1 % of mu^2."""

_COARSE_MU: Final = 10.0


class _Once:
    """Keeps what was composed for one run, to be read at other deltas too; or the laws of its steps, to sum others of them."""

    def __init__(self, laws: tilted.Laws | None = None) -> None:
        self.laws = laws
        self.sums: tilted.Composed | None = {} if laws is None else None
        self.steps = lru_cache(maxsize=None)(losses.one_step)


def epsilon_of_phases(
    phases: Sequence[Phase], delta: float, *, replace: bool = False, once: _Once | None = None
) -> float:
    """Returns epsilon of heterogeneous phases, composed by convolving their loss distributions.

    Guarantee: An upper bound under zero-out (or add-or-remove-one) adjacency, both directions; with ``replace``, under content
    replacement, where the two payloads may differ by twice the clip norm. Never above the unsampled Gaussian. All distributions
    are of one direction at a time, since a contribution is present, or null, in all phases alike; the larger of the two
    directions counts. Phases that are not sampled are one Gaussian, by the exact formula where nothing else is left.

    Args:
        phases: in normal form (`phases.merged`), none empty, each with noise.
        delta: the delta of the policy.
        replace: content replacement in the place of zero-out.
        once: what was composed for other deltas; by default nothing is kept.

    Source: Zhu, Dong and Wang (2022), Theorem 10 (dominating pairs compose); Balle and Wang (2018), Theorem 8.
    """
    unsampled = epsilon_of_mu((2.0 if replace else 1.0) * _mu(Counted(loss_of(phases), tuple(phases))), delta)
    sampled = [p for p in phases if p.sampling_rate < 1.0 and p.noise_multiplier >= UNSAMPLED_BELOW]
    if not sampled or math.isinf(unsampled):
        return unsampled
    rest = math.sqrt(loss_of(p for p in phases if p not in sampled))
    interval = INTERVAL * max(1.0, (rest / _COARSE_MU) ** 2, *((COARSE_BELOW / p.noise_multiplier) ** 2 for p in sampled))
    return min(unsampled, _composed(phases, sampled, rest, interval, delta, replace, once))


@lru_cache(maxsize=32)
def epsilon_at_deltas(phases: tuple[Phase, ...], deltas: tuple[float, ...], replace: bool) -> tuple[float, ...]:
    """Returns epsilon at every delta, by few compositions: one is read wherever it is as good as one made for that delta.

    Guarantee: Every value is an upper bound as that of `epsilon_of_phases`; they differ by less than 4e-7, as
    other tilts do, mostly by 1e-9.
    """
    once, found = _Once(), {}
    for delta in sorted(set(deltas)):
        found[delta] = epsilon_of_phases(phases, delta, replace=replace, once=once)
    return tuple(found[delta] for delta in deltas)


@lru_cache(maxsize=32)
def epsilon_of_runs(runs: tuple[tuple[Phase, ...], ...], delta: float, replace: bool) -> tuple[float, ...]:
    """Returns epsilon of runs that have steps in common: a step is tilted and transformed once for several of them.

    Guarantee: Every value is an upper bound as that of `epsilon_of_phases`; they differ by less than 4e-7, as
    other tilts do, mostly by 1e-9.
    """
    once = _Once(tilted.Laws())
    return tuple(epsilon_of_phases(run, delta, replace=replace, once=once) for run in reversed(runs))[::-1]


def epsilon_of_counted(participation: Counted, delta: float) -> float:
    """Returns epsilon of releases that are all counted; exact for the composition.

    Source: Balle and Wang (2018), Theorem 8; mu^2 of Gaussian mechanisms adds up (Dong, Roth and Su 2022, Corollary 3.3).
    """
    return epsilon_of_mu(_mu(participation), delta)


def _mu(participation: Counted) -> float:
    """Returns mu of unsampled releases: of one phase alone without a rounded square between."""
    if len(participation.phases) == 1:
        only = participation.phases[0]
        return math.sqrt(only.steps) / only.noise_multiplier
    return math.sqrt(participation.loss)


class Pld(Accountant):
    """Composes privacy loss distributions."""

    name: ClassVar[str] = "pld"
    replaces: ClassVar[bool] = True

    def sampled(self, phases: tuple[Phase, ...], delta: float, family: str, *, replace: bool = False) -> float:
        return epsilon_of_phases(phases, delta, replace=replace)

    def sampled_at(
        self, phases: tuple[Phase, ...], deltas: tuple[float, ...], family: str, *, replace: bool = False
    ) -> tuple[float, ...]:
        return epsilon_at_deltas(phases, deltas, replace)

    def sampled_over(
        self, runs: tuple[tuple[Phase, ...], ...], delta: float, family: str, *, replace: bool = False
    ) -> tuple[float, ...]:
        return epsilon_of_runs(runs, delta, replace)

    def counted(self, participation: Counted, delta: float, family: str) -> float:
        return epsilon_of_counted(participation, delta)

    def describe(self) -> tuple[str, str, str]:
        return "dptrain", KERNEL, PARAMETERS


def _composed(
    phases: Sequence[Phase],
    sampled: Sequence[Phase],
    rest: float,
    interval: float,
    delta: float,
    replace: bool,
    once: _Once | None,
) -> float:
    """Returns epsilon of sampled phases and a Gaussian of mu = ``rest``; at most the Renyi bound, where one is at hand.

    A contribution that is drawn at all with a probability of delta at most spends nothing at that delta: where it is not drawn,
    both worlds are one. Of the two directions the one in which the contribution is removed costs more nearly always: the
    other is composed only where a bound without composition does not show it.
    """
    steps = sum(p.steps for p in sampled)
    if rest == 0.0 and -math.expm1(math.fsum(p.steps * math.log1p(-p.sampling_rate) for p in sampled)) * (1.0 + 1e-9) <= delta:
        return 0.0
    parts = [(p.noise_multiplier, p.sampling_rate, p.steps) for p in sampled]
    if not replace and steps <= MOST_STEPS and rest <= MOST_MU:
        found = contour.epsilon(parts, rest, interval, delta)
        if found < math.inf:
            # Only where the grid adds what can be seen beside the steps may a Renyi bound be smaller.
            quiet = any(q < QUIET * interval * z for z, q, _ in parts)
            return min(found, renyi.epsilon(phases, delta)) if quiet else found
    # Content replacement is two zero-outs, of which no sampled Renyi bound is at hand; unsampled holds.
    bound = math.inf if replace else renyi.epsilon(phases, delta)
    held = parts + ([(1.0 / rest, 1.0, 1)] if rest > 0.0 else [])
    longest = max(high - low for low, high in (losses.extent(z, q, replace) for z, q, _ in held))
    if steps > MOST_STEPS or rest > MOST_MU or not longest <= MAX_POINTS * interval:
        return bound
    for grid in (interval * factor for factor in COARSER):
        steps_of = _steps if longest <= KEPT_POINTS * grid else losses.one_step if once is None else once.steps
        found = _on_grid(held, grid, delta, replace, steps_of, once)
        if found < math.inf:
            return min(found, bound)
    return bound


def _on_grid(
    held: Sequence[tuple[float, float, int]],
    interval: float,
    delta: float,
    replace: bool,
    steps: Callable[[float, float, float, bool], tuple[losses.OneStep, ...]],
    once: _Once | None,
) -> float:
    """Returns epsilon of (z, q, number of steps) on one grid, the larger of both directions; inf where it is too fine."""
    found = 0.0
    kept, laws = (None, None) if once is None else (once.sums, once.laws)
    for parts in zip(*(steps(z, q, interval, replace) for z, q, _ in held), strict=True):
        composed = [(part, count) for part, (_, _, count) in zip(parts, held, strict=True)]
        if found == 0.0 or not (math.isinf(found) or tilted.covers(composed, interval, delta, found)):
            found = max(found, tilted.epsilon(composed, interval, delta, MAX_POINTS, kept, laws))
    return found


@lru_cache(maxsize=32)
def _steps(z: float, q: float, interval: float, replace: bool) -> tuple[losses.OneStep, ...]:
    """Returns the loss distributions of one step; what a class spends by each epoch starts from the same ones."""
    return losses.one_step(z, q, interval, replace)
