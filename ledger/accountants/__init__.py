"""Privacy accountants: training, planning and auditing compute one number with this one piece of code.

This build accounts with ``pld``. Results are upper bounds under zero-out adjacency: the payload of one contribution is
replaced by a null of the same public shape (equal to add-or-remove-one in every number).
"""

import math
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from typing import Final

from ledger.accountants import gaussian, pld
from ledger.errors import AccountantError

MIN_DELTA: Final = 1e-12
"""Smaller deltas drown in the truncated tails of the loss grid."""

MICRO: Final = 1_000_000
"""Epsilons and multipliers of record are multiples of 1/MICRO."""

_MAX_EPSILON_MICRO: Final = (1 << 62) - 1
_GUARD_MICRO: Final = 0.5


def epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float, accountant: str = "pld") -> float:
    """Returns epsilon spent by ``steps`` Poisson-sampled Gaussian releases.

    Guarantee:
        An upper bound on the epsilon at ``delta`` under zero-out adjacency, for a noise multiplier and a sampling rate
        fixed before the first step.

    Args:
        noise_multiplier: standard deviation of the noise on the sum over the clip norm (z).
        sampling_rate: probability q that the contribution takes part in a step.
        steps: number of charged steps.
        delta: the delta of the policy, at least 1e-12.
        accountant: ``"pld"``.

    Returns:
        Epsilon >= 0; 0.0 without steps or sampling; inf without noise.

    Raises:
        AccountantError: for an unknown accountant or arguments that are no such numbers.

    Source:
        dp-accounting `PLDAccountant`; Balle and Wang (2018), Theorem 8, when every step releases (q = 1).
    """
    z, q = _checked(noise_multiplier, sampling_rate, steps, delta, accountant)
    return _epsilon(z, q, steps, float(delta), False)


def epsilon_replace(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, accountant: str = "pld"
) -> float:
    """Returns epsilon under content replacement: one payload against another, not against a null.

    Two clipped payloads differ by up to twice the clip norm, so this is larger than `epsilon`. Printed beside it.
    """
    z, q = _checked(noise_multiplier, sampling_rate, steps, delta, accountant)
    return _epsilon(z, q, steps, float(delta), True)


def epsilon_capped(
    noise_multiplier: float, sampling_rate: float, steps: int, occurrences: int, delta: float, accountant: str = "pld"
) -> float:
    """Returns epsilon when the contribution takes part in at most ``occurrences`` of the steps.

    Guarantee:
        An upper bound if the sampler silently stops drawing the contribution after that many occurrences: the smaller
        of the sampled bound and the Gaussian with mu = sqrt(occurrences)/z (joint convexity over participation
        patterns). The cap must not be published as it takes effect.
    """
    if type(occurrences) is not int or occurrences < 1:
        raise AccountantError("OCCURRENCES", f"the cap is a positive integer, got {occurrences!r}")
    sampled = epsilon(noise_multiplier, sampling_rate, steps, delta, accountant)
    if sampled == 0.0 or noise_multiplier == 0:
        return sampled
    mu = math.sqrt(min(occurrences, steps)) / float(noise_multiplier)
    return min(sampled, gaussian.epsilon_of_mu(mu, float(delta)))


def epsilon_occurrences(loss: float, delta: float, accountant: str = "pld") -> float:
    """Returns epsilon of a contribution whose occurrences are public: counted one by one, nothing hidden by sampling.

    Guarantee:
        An upper bound under zero-out adjacency for Gaussian releases whose noise multipliers z_t depend on what is public
        alone: exact for the composition, mu = sqrt(sum over its occurrences of 1/z_t^2).

    Args:
        loss: mu^2, the sum over its occurrences.
        delta: the delta of the policy.
        accountant: ``"pld"``, whose value for releases that are not sampled is that of the exact Gaussian.

    Source:
        Balle and Wang (2018), Theorem 8; mu^2 of Gaussian mechanisms adds up (Dong, Roth and Su 2022, Corollary 3.3).
    """
    _checked(1.0, 1.0, 0, delta, accountant)
    if not _is_real(loss) or not loss >= 0.0:
        raise AccountantError("LOSS", f"mu^2 is a number >= 0, got {loss!r}")
    return gaussian.epsilon_of_mu(math.sqrt(loss), float(delta))


def likely_occurrences(sampling_rate: float, steps: int, tail: float = 1e-6) -> int:
    """Returns a number of draws that a contribution exceeds with probability at most ``tail``.

    For planning where occurrences are public, and known only once they have happened. A Chernoff bound on the binomial
    tail: P[X >= n] <= exp(-T KL(n/T || q)).
    """
    _, q = _checked(1.0, sampling_rate, steps, 0.5, "pld")
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


def calibrate(epsilon: float, sampling_rate: float, steps: int, delta: float, accountant: str = "pld") -> float:
    """Returns the smallest safe noise multiplier for a target epsilon, on a grid of 1e-6.

    Guarantee:
        The epsilon of the returned multiplier has been computed and is not above the target.

    Raises:
        AccountantError: for arguments that are no such numbers, or a target that no multiplier below 1e6 meets.
    """
    if not _is_real(epsilon) or not 0.0 < epsilon < math.inf:
        raise AccountantError("EPSILON", f"the target epsilon is a positive finite number, got {epsilon!r}")
    target = float(epsilon)
    _, q = _checked(1.0, sampling_rate, steps, delta, accountant)
    if steps == 0 or q == 0.0:
        return 0.0

    def log_ratio(micro: int) -> float:
        spent = _epsilon(micro / MICRO, q, steps, float(delta), False)
        return -1e3 if spent == 0.0 else math.log(spent / target)

    low, high = _bracket(log_ratio)
    # Secant steps on (log z, log epsilon), which is nearly a line. A guess that hardly moves is stepped over in growing
    # strides, so that the bracket closes from both sides.
    f_low, f_high, stride = log_ratio(low), log_ratio(high), 1
    previous = 0
    while high - low > 1:
        weight = f_low / (f_low - f_high)
        guess = round(math.exp((1.0 - weight) * math.log(low) + weight * math.log(high)))
        if abs(guess - previous) < stride:
            guess = previous + stride if previous == low else previous - stride
            stride *= 4
        else:
            stride = 1
        guess = min(max(guess, low + 1), high - 1)
        value = log_ratio(guess)
        if value > 0.0:
            low, f_low = guess, value
        else:
            high, f_high = guess, value
        previous = guess
    return high / MICRO


def to_micro_up(value: float) -> int:
    """Rounds an epsilon of record up to a multiple of 1e-6.

    A guard of 5e-7 is added first: an auditor's machine may differ from the writer's in the last bits, and must find
    the recorded value neither below its own nor more than 2e-6 above.

    Raises:
        AccountantError: for an infinite value, which cannot be recorded: without noise there is no bound.
    """
    if value == 0.0:
        return 0
    if not value < _MAX_EPSILON_MICRO / MICRO:
        raise AccountantError("UNBOUNDED", f"epsilon {value} cannot be recorded; the noise multiplier is too small")
    return math.ceil(value * MICRO + _GUARD_MICRO)


def describe() -> tuple[str, str, str, str]:
    """Returns (name, library, library version, parameters) of the accountant, for the ledger's header."""
    parameters = f"interval={pld.INTERVAL} relation=ADD_OR_REMOVE_ONE rounding=up-1e-6"
    return "pld", "dp-accounting", metadata.version("dp-accounting"), parameters


@lru_cache(maxsize=65536)
def _epsilon(z: float, q: float, steps: int, delta: float, replace: bool) -> float:
    if steps == 0 or q == 0.0:
        return 0.0
    if z == 0.0:
        return math.inf
    return pld.epsilon(z, q, steps, delta, replace=replace)


def _bracket(log_ratio: Callable[[int], float]) -> tuple[int, int]:
    """Returns neighbouring powers of two times 1e-6 around the root: too little noise, enough noise."""
    low, high = MICRO // 2, MICRO
    while log_ratio(high) > 0.0:
        low, high = high, 2 * high
        if high > 1_000_000 * MICRO:
            raise AccountantError("EPSILON", "no noise multiplier below 1e6 meets the target; raise epsilon or delta")
    while low > 1 and log_ratio(low) <= 0.0:
        low, high = low // 2, low
    return low, high


def _checked(z: object, q: object, steps: object, delta: object, accountant: str) -> tuple[float, float]:
    _check_accountant(accountant)
    if not _is_real(z) or not 0.0 <= z < math.inf:  # type: ignore[operator]
        raise AccountantError("NOISE_MULTIPLIER", f"the noise multiplier is a finite number >= 0, got {z!r}")
    if not _is_real(q) or not 0.0 <= q <= 1.0:  # type: ignore[operator]
        raise AccountantError("SAMPLING_RATE", f"the sampling rate is a number in [0, 1], got {q!r}")
    if type(steps) is not int or steps < 0:
        raise AccountantError("STEPS", f"the number of steps is an integer >= 0, got {steps!r}")
    if not _is_real(delta) or not MIN_DELTA <= delta < 1.0:  # type: ignore[operator]
        raise AccountantError("DELTA", f"delta lies in [1e-12, 1), got {delta!r}")
    return float(z), float(q)  # type: ignore[arg-type]


def _is_real(value: object) -> bool:
    # bool is an int to Python; NaN fails every comparison that follows.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_accountant(accountant: str) -> None:
    if accountant != "pld":
        raise AccountantError("ACCOUNTANT", f"this build accounts with 'pld', not with {accountant!r}")
