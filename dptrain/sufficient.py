"""From a promise to the noise that keeps it: target epsilon and expected occurrences over the horizon to a multiplier.

The noise that suffices for a contribution at full clip has the variance v_i = (z* C_i)^2 per step. That is a floor for privacy
(the effective noise of its class must reach it, or the contribution is scaled down) and a ceiling on what it may force: classes
take theirs from presets, and a contributor who asks for more is clipped to less.
"""

import math
from dataclasses import dataclass

from attest.fixed_point import MICRO
from attest.schedule import sufficient_variance
from ledger import accountants
from ledger.errors import AccountantError

_LARGEST = 1_000_000 * MICRO
"""Multipliers of record stay below 1e6."""


@dataclass(frozen=True, slots=True)
class SufficientNoise:
    """What suffices for one contribution.

    Attributes:
        sampling_rate: q_i, expected occurrences per step.
        multiplier: z*, on a grid of 1e-6; its epsilon was computed, and is not above the target.
        variance: v_i = (z* C_i)^2, per step and coordinate, on the sum of clipped gradients.
    """

    sampling_rate: float
    multiplier: float
    variance: float


def sufficient_noise(
    epsilon: float,
    delta: float,
    expected: float,
    steps: int,
    clip_norm: float,
    *,
    disclosure: str = "secret_poisson",
    accountant: str = "pld",
    family: str = "gaussian",
) -> SufficientNoise:
    """The noise that suffices for a target epsilon.

    Guarantee: with secret draws at rate ``expected / steps`` the whole horizon costs at most ``epsilon``, however often the
    contribution is really drawn. Where occurrences are public, ``expected`` of them do, and every one beyond costs more:
    :func:`occurrences_within` says when to stop.

    Args:
        expected: occurrences over the horizon, n_i; a whole number where they are public.
        steps: horizon T.
        family: of the noise; its multiplier is a standard deviation, so ``laplace`` is refused.

    Raises:
        AccountantError: arguments that are no such numbers, more expected occurrences than steps, a family that is not
            accounted for so, or a target that no multiplier below 1e6 meets.
    """
    if isinstance(expected, bool) or not isinstance(expected, int | float) or not 0.0 < expected <= steps:
        raise AccountantError(
            "OCCURRENCES", f"{expected!r} expected occurrences in {steps} steps; expected more than 0, and one per step at most"
        )
    if disclosure == "secret_poisson":
        multiplier = accountants.calibrate(epsilon, expected / steps, steps, delta, accountant, family=family)
    elif disclosure == "occurrences_public":
        multiplier = multiplier_for(epsilon, counted(expected), delta, accountant, family)
    else:
        raise AccountantError("DISCLOSURE", f"no disclosure {disclosure!r}; there are secret_poisson and occurrences_public")
    return SufficientNoise(expected / steps, multiplier, variance(multiplier, clip_norm, family))


def variance(multiplier: float, clip_norm: float, family: str = "gaussian") -> float:
    """v = (z C)^2, the variance that suffices for a contribution at full clip.

    Raises:
        AccountantError: under laplace, whose multiplier is no standard deviation.
    """
    if family == "laplace":
        sentence = "a multiplier of laplace is the scale of its noise over an L1 norm, and says nothing of this variance"
        raise AccountantError("FAMILY", f"{sentence}; take gaussian, discrete_gaussian or skellam")
    return sufficient_variance(multiplier, clip_norm)


def occurrences_within(
    epsilon: float, multiplier: float, delta: float, accountant: str = "pld", family: str = "gaussian"
) -> int:
    """How many public occurrences a target epsilon pays for: the cap to sign where more than expected may come.

    Guarantee: the epsilon of that many has been computed and is not above the target; that of one more is.

    Raises:
        AccountantError: arguments that are no such numbers, or a family whose epsilon is no function of 1/z^2 (laplace).
    """
    accountants.check_epsilon(epsilon)
    if not (math.isfinite(multiplier) and multiplier > 0.0):
        raise AccountantError("NOISE_MULTIPLIER", f"the noise multiplier is a positive finite number, got {multiplier!r}")

    def fits(count: int) -> bool:
        return spent_on(count, multiplier, delta, accountant, family) <= epsilon

    high = 1
    while fits(high):
        if high >= 1 << 40:
            return high  # more than any run has steps
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def multiplier_for(epsilon: float, count: int, delta: float, accountant: str = "pld", family: str = "gaussian") -> float:
    """Smallest multiplier on a grid of 1e-6 at which so many public occurrences cost no more than epsilon.

    Guarantee, errors: as `occurrences_within`, or a target that no multiplier below 1e6 meets, with the nearest that one does.
    """
    accountants.check_epsilon(epsilon)
    if type(count) is not int or count < 1:
        raise AccountantError("OCCURRENCES", f"public occurrences are a positive integer, got {count!r}", nearest=1.0)

    def fits(micro: int) -> bool:
        return spent_on(count, micro / MICRO, delta, accountant, family) <= epsilon

    low, high = 0, MICRO
    while not fits(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            nearest = micro_up(spent_on(count, _LARGEST / MICRO, delta, accountant, family))
            raise AccountantError(
                "EPSILON",
                f"no noise multiplier below 1e6 keeps {count} public occurrences within epsilon {epsilon}; the nearest to be "
                f"reached is {nearest:g}",
                nearest=nearest,
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high / MICRO


def counted(expected: float) -> int:
    """A number of public occurrences; AccountantError, with the next whole one, unless it is whole and positive."""
    if not 0.0 < expected < math.inf or expected != math.floor(expected):
        nearest = float(max(1, math.ceil(expected))) if math.isfinite(expected) else None
        sentence = f"public occurrences are counted one by one, and {expected!r} is no count"
        raise AccountantError("OCCURRENCES", f"{sentence}; take {nearest:g}" if nearest else sentence, nearest=nearest)
    return int(expected)


def micro_up(epsilon: float) -> float:
    """An epsilon rounded up to 1e-6, for a sentence."""
    return epsilon if math.isinf(epsilon) else math.ceil(epsilon * MICRO) / MICRO


def spent_on(count: int, multiplier: float, delta: float, accountant: str = "pld", family: str = "gaussian") -> float:
    """Epsilon of so many public occurrences at one multiplier; errors as `ledger.accountants.epsilon_occurrences`."""
    return accountants.epsilon_occurrences(count / multiplier**2, delta, accountant, family=family)
