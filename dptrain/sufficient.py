"""From a promise to the noise that keeps it: target epsilon and expected occurrences over the horizon to a multiplier.

The noise that suffices for a contribution at full clip has the variance v_i = (z* C_i)^2 per step. That is a floor for privacy
(the effective noise of its class must reach it, or the contribution is scaled down) and a ceiling on what it may force: classes
take theirs from presets, and a contributor who asks for more is clipped to less.
"""

import math
from dataclasses import dataclass

from attest.micro import MICRO
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
) -> SufficientNoise:
    """The noise that suffices for a target epsilon.

    Guarantee: with secret draws at rate ``expected / steps`` the whole horizon costs at most ``epsilon``, however often the
    contribution is really drawn. Where occurrences are public, ``expected`` of them do, and every one beyond costs more:
    :func:`occurrences_within` says when to stop.

    Args:
        expected: occurrences over the horizon, n_i; a whole number where they are public.
        steps: horizon T.

    Raises:
        AccountantError: arguments that are no such numbers, more expected occurrences than steps, or a target that no
            multiplier below 1e6 meets.
    """
    if isinstance(expected, bool) or not isinstance(expected, int | float) or not 0.0 < expected <= steps:
        raise AccountantError(
            "OCCURRENCES", f"{expected!r} expected occurrences in {steps} steps; expected more than 0, and one per step at most"
        )
    if disclosure == "secret_poisson":
        multiplier = accountants.calibrate(epsilon, expected / steps, steps, delta, accountant)
    elif disclosure == "occurrences_public":
        if expected != math.floor(expected):
            raise AccountantError("OCCURRENCES", f"public occurrences are counted, and {expected!r} is no count; round it up")
        multiplier = _for_occurrences(epsilon, delta, int(expected), accountant)
    else:
        raise AccountantError("DISCLOSURE", f"no disclosure {disclosure!r}; there are secret_poisson and occurrences_public")
    return SufficientNoise(expected / steps, multiplier, sufficient_variance(multiplier, clip_norm))


def occurrences_within(epsilon: float, multiplier: float, delta: float, accountant: str = "pld") -> int:
    """How many public occurrences a target epsilon pays for: the cap to sign where more than expected may come.

    Guarantee: the epsilon of that many has been computed and is not above the target; that of one more is.

    Raises:
        AccountantError: arguments that are no such numbers.
    """
    accountants.check_epsilon(epsilon)
    if not (math.isfinite(multiplier) and multiplier > 0.0):
        raise AccountantError("NOISE_MULTIPLIER", f"the noise multiplier is a positive finite number, got {multiplier!r}")

    def fits(count: int) -> bool:
        return accountants.epsilon_occurrences(count / multiplier**2, delta, accountant) <= epsilon

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


def _for_occurrences(epsilon: float, delta: float, count: int, accountant: str) -> float:
    """Smallest multiplier on the grid at which so many public occurrences cost no more."""
    accountants.check_epsilon(epsilon)

    def fits(micro: int) -> bool:
        return accountants.epsilon_occurrences(count / (micro / MICRO) ** 2, delta, accountant) <= epsilon

    low, high = 0, MICRO
    while not fits(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            nearest = accountants.epsilon_occurrences(count / (_LARGEST / MICRO) ** 2, delta, accountant)
            raise AccountantError(
                "EPSILON",
                f"no noise multiplier below 1e6 keeps {count} public occurrences within epsilon {epsilon}; the nearest to be "
                f"reached is {nearest:.3g}",
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high / MICRO
