"""Privacy-loss-distribution accounting of the Poisson-sampled Gaussian mechanism, by Google's dp-accounting.

The library rounds losses up onto a grid (pessimistically), so its epsilon is an upper bound at any grid.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from ledger.accountants import renyi
from ledger.accountants.gaussian import epsilon_of_mu
from ledger.accountants.phases import Phase, loss_of

INTERVAL: Final = 1e-4
"""Grid of privacy losses for ordinary noise multipliers."""

COARSE_BELOW: Final = 0.3
"""Below this noise multiplier losses grow as 1/z^2, and the grid with them, which bounds time and memory."""

UNSAMPLED_BELOW: Final = 0.02
"""Below this noise multiplier subsampling is ignored: epsilon is in the thousands, and the bound stays valid."""

MAX_POINTS: Final = 1 << 24
"""A composed distribution with more points is not formed; the smaller of the Renyi and the unsampled bound counts."""

MOST_STEPS: Final = 1 << 24
"""More sampled steps are not composed, for the same reason: the library's bound on the length grows with them."""

FFT_ERROR: Final = 1e-15
"""What the library's composition may have lost of delta per step, fourteen times the most that was measured (7e-17)."""

_TAIL: Final = 1e-15
_COARSE_MU: Final = 10.0
_NEGLIGIBLE: Final = 1e-6


def epsilon(z: float, q: float, steps: int, delta: float, *, replace: bool = False) -> float:
    """Returns epsilon of ``steps`` Gaussian releases with noise multiplier z, Poisson-sampled at rate q.

    Guarantee:
        An upper bound under zero-out (or add-or-remove-one) adjacency, both directions; with ``replace``, under content
        replacement, where the two payloads may differ by twice the clip norm. Never above the unsampled Gaussian.
    """
    unsampled = epsilon_of_mu((2.0 if replace else 1.0) * math.sqrt(steps) / z, delta)
    if q == 1.0 or z < UNSAMPLED_BELOW:
        return unsampled
    interval = INTERVAL * max(1.0, (COARSE_BELOW / z) ** 2)
    phases = (Phase(z, q, steps),)
    return min(unsampled, _composed(phases, phases, 0.0, interval, delta, replace))


def epsilon_of_phases(phases: Sequence[Phase], delta: float, *, replace: bool = False) -> float:
    """Returns epsilon of heterogeneous phases, composed by convolving their loss distributions.

    Guarantee:
        An upper bound as `epsilon` gives, and for one phase the same bits. All distributions are of one direction at a
        time, since a contribution is present, or null, in all phases alike; the larger of the two directions counts.
        Phases that are not sampled are one Gaussian, by the exact formula where nothing else is left.

    Args:
        phases: in normal form (`phases.merged`), none empty, each with noise.
        delta: the delta of the policy.
        replace: content replacement in the place of zero-out.

    Source:
        Zhu, Dong and Wang (2022), Theorem 10 (dominating pairs compose); Balle and Wang (2018), Theorem 8.
    """
    if len(phases) == 1:
        only = phases[0]
        return epsilon(only.noise_multiplier, only.sampling_rate, only.steps, delta, replace=replace)
    unsampled = epsilon_of_mu((2.0 if replace else 1.0) * math.sqrt(loss_of(phases)), delta)
    sampled = [p for p in phases if p.sampling_rate < 1.0 and p.noise_multiplier >= UNSAMPLED_BELOW]
    if not sampled or math.isinf(unsampled):
        return unsampled
    rest = math.sqrt(loss_of(p for p in phases if p not in sampled))
    interval = INTERVAL * max(1.0, rest / _COARSE_MU, *((COARSE_BELOW / p.noise_multiplier) ** 2 for p in sampled))
    return min(unsampled, _composed(phases, sampled, rest, interval, delta, replace))


def _composed(
    phases: Sequence[Phase], sampled: Sequence[Phase], rest: float, interval: float, delta: float, replace: bool
) -> float:
    """Returns the library's epsilon of sampled phases and a Gaussian of mu = ``rest``; a Renyi bound where it is no bound.

    The library composes by a Fourier transform to the power of the number of steps, which multiplies its rounding: measured
    against exact figures, delta is off by up to 7e-17 per step, in either sense, so that at 10^6 steps and a delta of 1e-12 its
    epsilon is 0.3 too small. So it is asked for a delta that is smaller by 1e-15 per step, and not at all where that is
    half of delta, or where the distribution would be too long. A contribution that is drawn at all with a probability of
    delta at most spends nothing at that delta: where it is not drawn, both worlds are one.
    """
    steps = sum(p.steps for p in sampled)
    if rest == 0.0 and -math.expm1(math.fsum(p.steps * math.log1p(-p.sampling_rate) for p in sampled)) * (1.0 + 1e-9) <= delta:
        return 0.0
    lost = FFT_ERROR * steps
    matters = lost > _NEGLIGIBLE * delta
    if lost >= 0.5 * delta or steps > MOST_STEPS or _too_long(phases, interval, replace):
        # Content replacement is two zero-outs, of which no sampled Renyi bound is at hand; unsampled holds.
        return math.inf if replace else renyi.epsilon(phases, delta)
    # The library brings scipy, a second of start-up that commands which account for nothing need not wait for.
    from dp_accounting.pld import privacy_loss_distribution

    whole = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for phase in sampled:
        step = _step(phase.noise_multiplier, phase.sampling_rate, interval, replace)
        whole = whole.compose(step.self_compose(phase.steps))
    if rest > 0.0:
        whole = whole.compose(_step(1.0 / rest, 1.0, interval, replace))
    found = max(0.0, float(whole.get_epsilon_for_delta(delta - lost if matters else delta)))
    return min(found, renyi.epsilon(phases, delta)) if matters and not replace else found


@lru_cache(maxsize=32)
def _step(z: float, q: float, interval: float, replace: bool) -> Any:
    """Returns the loss distribution of one step, most of the work; what a class spends by each epoch starts from the same one.

    These are the calls of the library's `PLDAccountant`, to the same bits. For content replacement it doubles the shift.
    """
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    neighbours = dp_accounting.NeighboringRelation
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=z,
        value_discretization_interval=interval,
        sampling_prob=q,
        neighboring_relation=neighbours.REPLACE_ONE if replace else neighbours.ADD_OR_REMOVE_ONE,
    )


def _too_long(phases: Sequence[Phase], interval: float, replace: bool) -> bool:
    """Whether the composed distribution would have more than `MAX_POINTS` points.

    Its length is that of the losses that occur with probability 1e-15 on either side. Without sampling that is mu^2/2 and
    nine standard deviations mu; sampling shortens it, to about twice the Renyi bound on epsilon at 1e-15.
    """
    mu = (2.0 if replace else 1.0) * math.sqrt(loss_of(phases))
    if 2.0 * (0.5 * mu * mu + 9.0 * mu) <= MAX_POINTS * interval:
        return False
    doubled = [Phase(p.noise_multiplier / 2.0, p.sampling_rate, p.steps) for p in phases] if replace else phases
    return 2.0 * renyi.epsilon(doubled, _TAIL) > MAX_POINTS * interval


def version() -> str:
    """Returns the version of dp-accounting that is installed."""
    from importlib import metadata

    return metadata.version("dp-accounting")
