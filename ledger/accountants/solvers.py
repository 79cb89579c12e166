"""Solving for what a target epsilon allows: multiplier, factor, steps, rate. Answers are computed again, rounded to safety."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace as _with
from typing import Final

from ledger.accountants.core import cached, check_accountant, epsilon_of_phases
from ledger.accountants.phases import MAX_STEPS, Phase, check_delta, check_epsilon, merged
from ledger.errors import AccountantError

MICRO: Final = 1_000_000
"""Epsilons and multipliers of record are multiples of 1/MICRO."""

RATE_GRID: Final = 1_000_000_000
"""Sampling rates that `largest_rate` returns are multiples of 1/RATE_GRID."""

_LARGEST_FACTOR: Final = 1_000_000


def calibrate(
    epsilon: float, sampling_rate: float, steps: int, delta: float, accountant: str = "pld", *, family: str = "gaussian"
) -> float:
    """Returns the smallest safe noise multiplier for a target epsilon, on a grid of 1e-6.

    Guarantee:
        The epsilon of the returned multiplier has been computed and is not above the target.

    Raises:
        AccountantError: for arguments that are no such numbers, or a target that no multiplier below 1e6 meets; its
            `nearest` is the smallest epsilon that one meets.
    """
    return calibrate_phases(epsilon, (Phase(1.0, sampling_rate, steps),), delta, accountant, family=family)


def calibrate_phases(
    epsilon: float, phases: Sequence[Phase], delta: float, accountant: str = "pld", *, family: str = "gaussian"
) -> float:
    """Returns the smallest safe factor, on a grid of 1e-6, by which to multiply every noise multiplier of a schedule.

    Guarantee, errors: as `calibrate`.
    """
    target = check_epsilon(epsilon)
    delta = check_delta(delta)
    check_accountant(accountant)
    normal = merged(phases)
    if not normal:
        return 0.0
    if normal[0].noise_multiplier == 0.0:
        raise AccountantError("NOISE_MULTIPLIER", "a phase has no noise, which no factor mends; give it a multiplier")

    def log_ratio(micro: int) -> float:
        scaled = [_with(phase, noise_multiplier=phase.noise_multiplier * (micro / MICRO)) for phase in normal]
        return _log_ratio(cached(merged(scaled), delta, accountant, family, False), target)

    low, high = MICRO // 2, MICRO
    while log_ratio(high) > 0.0:
        low, high = high, 2 * high
        if high > _LARGEST_FACTOR * MICRO:
            top = [_with(phase, noise_multiplier=phase.noise_multiplier * _LARGEST_FACTOR) for phase in normal]
            reached = _up(cached(merged(top), delta, accountant, family, False))
            raise _unreachable(target, f"no noise multiplier below {_LARGEST_FACTOR} meets it", reached, accountant, delta)
    while low > 1 and log_ratio(low) <= 0.0:
        low, high = low // 2, low
    if low == 1 and log_ratio(1) <= 0.0:
        return 1 / MICRO
    return boundary(log_ratio, low, high) / MICRO


def largest_steps(epsilon: float, noise_multiplier: float, sampling_rate: float, delta: float, accountant: str = "pld") -> int:
    """Returns the largest number of steps that stays within an epsilon.

    Guarantee:
        The epsilon of the returned number has been computed and is not above the target.

    Returns:
        At least 1; `phases.MAX_STEPS` where the target lasts for longer than can be accounted for.

    Raises:
        AccountantError: for arguments that are no such numbers, or if one step spends more already, with its epsilon as
            `nearest`.
    """
    target = check_epsilon(epsilon)
    one = Phase(noise_multiplier, sampling_rate, 1)

    def log_ratio(steps: int) -> float:
        return _log_ratio(epsilon_of_phases((_with(one, steps=steps),), delta, accountant), target)

    if log_ratio(1) > 0.0:
        reached = _up(epsilon_of_phases((one,), delta, accountant))
        raise _unreachable(target, "one step spends more", reached, accountant, delta)
    good = 1
    while log_ratio(bad := min(2 * good, MAX_STEPS)) <= 0.0:
        if bad == MAX_STEPS:
            return MAX_STEPS
        good = bad
    return boundary(log_ratio, bad, good)


def largest_rate(epsilon: float, noise_multiplier: float, steps: int, delta: float, accountant: str = "pld") -> float:
    """Returns the largest sampling rate, on a grid of 1e-9, that stays within an epsilon.

    Guarantee:
        The epsilon of the returned rate has been computed and is not above the target.

    Raises:
        AccountantError: for arguments that are no such numbers, or if the rate 1e-9 spends more already, with its epsilon
            as `nearest`.
    """
    target = check_epsilon(epsilon)
    whole = Phase(noise_multiplier, 1.0, steps)

    def log_ratio(grid: int) -> float:
        return _log_ratio(epsilon_of_phases((_with(whole, sampling_rate=grid / RATE_GRID),), delta, accountant), target)

    if log_ratio(RATE_GRID) <= 0.0:
        return 1.0
    bad = RATE_GRID
    while log_ratio(max(1, bad // 4)) > 0.0:
        bad = max(1, bad // 4)
        if bad == 1:
            reached = _up(epsilon_of_phases((_with(whole, sampling_rate=1 / RATE_GRID),), delta, accountant))
            raise _unreachable(target, f"the rate 1e-9 spends more in {steps} steps", reached, accountant, delta)
    return boundary(log_ratio, bad, max(1, bad // 4)) / RATE_GRID


def boundary(log_ratio: Callable[[int], float], bad: int, good: int) -> int:
    """Returns the integer next to the root of a monotone function, on the side where it is not positive.

    Secant steps on (log n, log epsilon), which is nearly a line. A guess that hardly moves is stepped over in growing
    strides, so that the bracket closes from both sides; every fourth guess halves it, whatever the function.

    Args:
        log_ratio: positive at ``bad``, at most 0 at ``good``; what is returned has been computed and found at most 0.
        bad: one end of the bracket, >= 1.
        good: the other end, above or below.
    """
    f_bad, f_good, stride, previous, turn = log_ratio(bad), log_ratio(good), 1, 0, 0
    towards = 1 if good > bad else -1
    while abs(good - bad) > 1:
        turn += 1
        weight = 0.5 if turn % 4 == 0 else f_bad / (f_bad - f_good)
        guess = round(math.exp((1.0 - weight) * math.log(bad) + weight * math.log(good)))
        if turn % 4 and abs(guess - previous) < stride:
            guess = previous + towards * (stride if previous == bad else -stride)
            stride *= 4
        elif turn % 4:
            stride = 1
        guess = min(max(guess, min(bad, good) + 1), max(bad, good) - 1)
        value = log_ratio(guess)
        if value > 0.0:
            bad, f_bad = guess, value
        else:
            good, f_good = guess, value
        previous = guess
    return good


def _log_ratio(spent: float, target: float) -> float:
    if spent == 0.0:
        return -1e3
    return 1e3 if spent == math.inf else math.log(spent / target)


def _up(value: float) -> float:
    return value if math.isinf(value) else math.ceil(value * MICRO) / MICRO


def _unreachable(target: float, reason: str, nearest: float, accountant: str, delta: float) -> AccountantError:
    sentence = (
        f"epsilon {target:g} cannot be reached at delta {delta:g} by accountant {accountant}: {reason}; "
        f"the nearest that can is {nearest:.6g}"
    )
    return AccountantError("EPSILON", sentence, nearest=nearest)

