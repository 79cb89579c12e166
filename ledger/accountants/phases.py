"""Describes who takes part in a run: phases of steps that are alike, and the pattern in which one contribution takes part.

A pattern is what a cost takes. `Sampled`: each step draws the contribution by a coin, in secret. `Counted`: everybody knows the
steps in which it took part, or may count on no secret.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

from ledger.errors import AccountantError

MAX_STEPS: Final = 1 << 40
"""Longer horizons are refused: no policy has them, and a float no longer tells neighbouring ones apart."""

MAX_MULTIPLIER: Final = 1e12
"""Larger noise multipliers are refused: at 1e12 not even the longest horizon spends anything that could be told from 0."""

MIN_DELTA: Final = 1e-12
"""Smaller deltas drown in the truncated tails of the loss grid."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps of a contribution that are alike to the accountant.

    Attributes:
        noise_multiplier: standard deviation of the noise on the sum over the clip norm (z), in [0, 1e12].
        sampling_rate: probability q of taking part in a step, in [0, 1].
        steps: number of charged steps, >= 0.

    Raises:
        AccountantError: for anything that is no such number.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int

    def __post_init__(self) -> None:
        z, q, steps = self.noise_multiplier, self.sampling_rate, self.steps
        if not is_real(z) or not 0.0 <= z < math.inf:
            raise AccountantError("NOISE_MULTIPLIER", f"the noise multiplier is a finite number >= 0, got {z!r}")
        if z > MAX_MULTIPLIER:
            sentence = f"the noise multiplier exceeds {MAX_MULTIPLIER:g}, the largest that is accounted for"
            raise AccountantError("NOISE_MULTIPLIER", sentence, nearest=MAX_MULTIPLIER)
        if not is_real(q) or not 0.0 <= q <= 1.0:
            nearest = None if not is_real(q) or q != q else (1.0 if q > 1.0 else 0.0)
            raise AccountantError("SAMPLING_RATE", f"the sampling rate is a number in [0, 1], got {q!r}", nearest=nearest)
        if type(steps) is not int or steps < 0:
            raise AccountantError("STEPS", f"the number of steps is an integer >= 0, got {steps!r}")
        if steps > MAX_STEPS:
            sentence = f"{steps} steps exceed the longest horizon, {MAX_STEPS}; account for at most that many"
            raise AccountantError("STEPS", sentence, nearest=float(MAX_STEPS))
        object.__setattr__(self, "noise_multiplier", float(z))
        object.__setattr__(self, "sampling_rate", float(q))


def merged(phases: Iterable[Phase]) -> tuple[Phase, ...]:
    """Returns the normal form of a schedule: equal phases as one, empty ones gone, ascending in (z, q).

    Guarantee: Two schedules that differ in the order of their phases only have the same normal form. Epsilon of non-adaptive
    phases does not depend on their order, so it is a function of the normal form, and cached by it.

    Raises:
        AccountantError: for something that is no phase, or more steps together than `MAX_STEPS`.
    """
    steps: dict[tuple[float, float], int] = {}
    for phase in phases:
        if not isinstance(phase, Phase):
            raise AccountantError("PHASE", f"expected a Phase(noise_multiplier, sampling_rate, steps), got {phase!r}")
        if phase.steps and phase.sampling_rate:
            key = (phase.noise_multiplier, phase.sampling_rate)
            steps[key] = steps.get(key, 0) + phase.steps
    if sum(steps.values()) > MAX_STEPS:
        sentence = f"{sum(steps.values())} steps exceed the longest horizon, {MAX_STEPS}; account for at most that many"
        raise AccountantError("STEPS", sentence, nearest=float(MAX_STEPS))
    return tuple(Phase(z, q, steps[z, q]) for z, q in sorted(steps))


def first_steps(phases: Iterable[Phase], count: int) -> list[Phase]:
    """Returns the phases of a run up to a step, in their order."""
    found, left = [], count
    for phase in phases:
        if left > 0:
            found.append(replace(phase, steps=min(left, phase.steps)))
            left -= phase.steps
    return found


def released_once(loss: float) -> tuple[Phase, ...]:
    """Returns public Gaussian occurrences, of whom ``loss`` is the sum of 1/z^2, as one release of the same mu, which is what
    they compose to; none for 0. A multiplier beyond the range counts as the largest in it, and that costs more."""
    return (Phase(min(loss**-0.5, MAX_MULTIPLIER), 1.0, 1),) if loss else ()


def loss_of(phases: Iterable[Phase]) -> float:
    """Returns mu^2 of the phases without sampling: the sum of 1/z^2 over all steps, correctly rounded; inf without noise."""
    terms = []
    for phase in phases:
        if phase.noise_multiplier == 0.0:
            return math.inf
        inverse = 1.0 / phase.noise_multiplier
        terms.append(phase.steps * (inverse * inverse))
    return math.inf if math.inf in terms else math.fsum(terms)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Takes part in each step with the sampling rate of its phase, in secret.

    Attributes:
        phases: in normal form: equal ones merged, none empty, ascending in z, then in q.
    """

    phases: tuple[Phase, ...]

    @property
    def loss(self) -> float:
        """Returns the sum of 1/z^2 as if it took part in all steps."""
        return loss_of(self.phases)


@dataclass(frozen=True, slots=True)
class Counted:
    """Takes part in these steps, each counted in full.

    Attributes:
        loss: the sum of 1/z^2 over them.
        phases: the steps themselves where they are known: ascending in z, each with q = 1, perhaps without steps. Empty where
            they are not known; then ``loss`` alone counts.
    """

    loss: float
    phases: tuple[Phase, ...] = ()


Participation = Sampled | Counted
"""The pattern in which a contribution takes part in a run."""


def dearest(phases: Iterable[Phase], occurrences: int) -> Counted:
    """Returns the ``occurrences`` steps with the least noise, of phases in normal form: what a cap leaves at most."""
    left, held = occurrences, []
    for phase in phases:  # ascending in z
        held.append(replace(phase, sampling_rate=1.0, steps=min(left, phase.steps)))
        left -= held[-1].steps
    return Counted(loss_of(held), tuple(held))


def check_delta(delta: object) -> float:
    """Returns delta as a float. Raises AccountantError: unless it lies in [1e-12, 1)."""
    if not is_real(delta) or not MIN_DELTA <= delta < 1.0:
        nearest = MIN_DELTA if is_real(delta) and delta < MIN_DELTA else None
        hint = "; the smallest that can be accounted for is 1e-12" if nearest else ""
        raise AccountantError("DELTA", f"delta lies in [1e-12, 1), got {delta!r}{hint}", nearest=nearest)
    return float(delta)


def check_epsilon(epsilon: object, what: str = "the target epsilon") -> float:
    """Returns a target or budget as a float. Raises AccountantError: unless it is a positive finite number."""
    if not is_real(epsilon) or not 0.0 < epsilon < math.inf:
        raise AccountantError("EPSILON", f"{what} is a positive finite number, got {epsilon!r}")
    return float(epsilon)


def is_real(value: object) -> TypeGuard[int | float]:
    """Tells whether a value is an int or a float, bool excluded. NaN is; it fails every comparison that follows."""
    return isinstance(value, int | float) and not isinstance(value, bool)
