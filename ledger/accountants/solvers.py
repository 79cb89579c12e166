"""Solves for what a target epsilon allows: multiplier, factor, steps, rate. Answers are computed again, rounded to safety."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace as _with
from typing import Final

from ledger.accountants import renyi
from ledger.accountants.core import cached, epsilon_of_phases
from ledger.accountants.phases import MAX_STEPS, Phase, check_delta, check_epsilon, merged
from ledger.accountants.table import check_accountant
from ledger.errors import AccountantError

MICRO: Final = 1_000_000
"""Epsilons and multipliers of record are multiples of 1/MICRO."""

RATE_GRID: Final = 1_000_000_000
"""Sampling rates that `largest_rate` returns are multiples of 1/RATE_GRID."""

_LARGEST_FACTOR: Final = 1_000_000
_FAR: Final = 1e3
_LEAST_STRIDE, _MOST_STRIDE, _LEAST_SLOPE = 0.01, 2.5, 0.2
_ROUGH: Final = 0.02


def calibrate(
    epsilon: float, sampling_rate: float, steps: int, delta: float, accountant: str = "pld", *, family: str = "gaussian"
) -> float:
    """Returns the smallest safe noise multiplier for a target epsilon, on a grid of 1e-6.

    Guarantee: The epsilon of the returned multiplier has been computed and is not above the target.

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

    def scaled(micro: int) -> tuple[Phase, ...]:
        return merged(_with(phase, noise_multiplier=phase.noise_multiplier * (micro / MICRO)) for phase in normal)

    def log_ratio(micro: int) -> float:
        return _log_ratio(cached(scaled(micro), delta, accountant, family, False), target)

    top = _LARGEST_FACTOR * MICRO
    start = MICRO
    if family == "gaussian" and accountant != "rdp":
        start = _near(lambda micro: renyi.epsilon(scaled(micro), delta), target, MICRO, top, falls=True)
    found = search(log_ratio, start, safe_end=top, unsafe_end=1, slope=1.5)
    if found is None:
        reached = cached(scaled(top), delta, accountant, family, False)
        raise _unreachable(target, f"no noise multiplier up to {_LARGEST_FACTOR} meets it", reached, accountant, delta)
    return found / MICRO


def largest_steps(epsilon: float, noise_multiplier: float, sampling_rate: float, delta: float, accountant: str = "pld") -> int:
    """Returns the largest number of steps that stays within an epsilon.

    Guarantee: The epsilon of the returned number has been computed and is not above the target.

    Returns:
        At least 1; `phases.MAX_STEPS` where the target lasts for longer than can be accounted for.

    Raises:
        AccountantError: for arguments that are no such numbers, or if one step spends more already, with its epsilon as
            `nearest`.
    """
    target, delta = check_epsilon(epsilon), check_delta(delta)
    check_accountant(accountant)
    one = Phase(noise_multiplier, sampling_rate, 1)

    def log_ratio(steps: int) -> float:
        return _log_ratio(epsilon_of_phases((_with(one, steps=steps),), delta, accountant), target)

    start = 1
    if one.sampling_rate and one.noise_multiplier:
        start = _near(lambda n: renyi.epsilon((_with(one, steps=n),), delta), target, 1000, MAX_STEPS, falls=False)
    found = search(log_ratio, start, safe_end=1, unsafe_end=MAX_STEPS, slope=0.6)
    if found is None:
        reached = epsilon_of_phases((one,), delta, accountant)
        raise _unreachable(target, "one step spends more", reached, accountant, delta)
    return found


def largest_rate(epsilon: float, noise_multiplier: float, steps: int, delta: float, accountant: str = "pld") -> float:
    """Returns the largest sampling rate, on a grid of 1e-9, that stays within an epsilon.

    Guarantee: The epsilon of the returned rate has been computed and is not above the target.

    Raises:
        AccountantError: for arguments that are no such numbers, or if the rate 1e-9 spends more already, with its epsilon
            as `nearest`.
    """
    target, delta = check_epsilon(epsilon), check_delta(delta)
    check_accountant(accountant)
    whole = Phase(noise_multiplier, 1.0, steps)

    def at_rate(grid: int) -> Phase:
        return _with(whole, sampling_rate=grid / RATE_GRID)

    def log_ratio(grid: int) -> float:
        return _log_ratio(epsilon_of_phases((at_rate(grid),), delta, accountant), target)

    if log_ratio(RATE_GRID) <= 0.0:
        return 1.0
    start = RATE_GRID // 100
    if whole.noise_multiplier:
        start = _near(lambda n: renyi.epsilon((at_rate(n),), delta), target, start, RATE_GRID, falls=False)
    found = search(log_ratio, start, safe_end=1, unsafe_end=RATE_GRID, slope=0.9)
    if found is None:
        reached = epsilon_of_phases((at_rate(1),), delta, accountant)
        raise _unreachable(target, f"the rate 1e-9 spends more in {steps} steps", reached, accountant, delta)
    return found / RATE_GRID


def search(log_ratio: Callable[[int], float], start: int, *, safe_end: int, unsafe_end: int, slope: float = 1.0) -> int | None:
    """Returns the integer nearest to ``unsafe_end`` at which a monotone function is not positive.

    From ``start`` it goes where the root should be on a line in (log n, log epsilon), a little further each time, until
    the root is enclosed; so few values are computed far from the root, which are the costly ones.

    Args:
        log_ratio: log(epsilon / target) at an integer.
        start: where to look first, between the ends.
        safe_end: end of the range on the side of less epsilon, at least 1.
        unsafe_end: end of the range on the side of more.
        slope: about how steep log epsilon is in log n, in size.

    Returns:
        An integer whose value has been computed, and the next one towards ``unsafe_end`` too, unless it is that end; None if
        not even ``safe_end`` will do.
    """
    values: dict[int, float] = {}

    def value(at: int) -> float:
        if at not in values:
            values[at] = log_ratio(at)
        return values[at]

    at = start
    safe = unsafe = None
    while True:
        if value(at) <= 0.0:
            safe, end = at, unsafe_end
        else:
            unsafe, end = at, safe_end
        if safe is not None and unsafe is not None:
            return boundary(value, unsafe, safe)
        if at == end:
            return safe
        stride = min(max((abs(values[at]) + 0.01) / slope, _LEAST_STRIDE), _MOST_STRIDE)
        onward = round(at * math.exp(stride if end > at else -stride))
        onward = max(onward, at + 1) if end > at else min(onward, at - 1)
        onward = min(onward, end) if end > at else max(onward, end)
        if _finite(values[at]) and _finite(value(onward)):
            slope = max(abs(values[onward] - values[at]) / abs(math.log(onward / at)), _LEAST_SLOPE)
        at = onward


def boundary(log_ratio: Callable[[int], float], bad: int, good: int) -> int:
    """Returns the integer next to the root of a monotone function, on the side where it is not positive.

    Inverse quadratic interpolation through the last three points in (log n, log epsilon), which is nearly a line, or the
    secant. After two points on one side the next guess is taken beyond the root, by some of the last correction, so that
    the bracket closes from both sides. Where it has not halved in three turns, the fourth halves it, whatever the function.

    Args:
        log_ratio: positive at ``bad``, at most 0 at ``good``; what is returned has been computed and found at most 0.
        bad: one end of the bracket, >= 1.
        good: the other end, above or below.
    """
    points = [(math.log(bad), log_ratio(bad)), (math.log(good), log_ratio(good))]
    turn, width, last_side, same = 0, abs(good - bad), 0, 0
    while abs(good - bad) > 1:
        turn += 1
        low, high = min(bad, good), max(bad, good)
        guess = _root(points[-3:])
        if turn % 4 == 0 and high - low > width // 2:
            guess = 0.5 * (math.log(bad) + math.log(good))
        elif guess is None or not math.log(low) <= guess <= math.log(high):
            guess = _root([(math.log(bad), log_ratio(bad)), (math.log(good), log_ratio(good))])
        if guess is None:
            guess = 0.5 * (math.log(bad) + math.log(good))
        elif same >= 2:
            near, far = (good, bad) if last_side < 0 else (bad, good)
            beyond = 0.2 * abs(guess - math.log(near)) + 1.0 / near
            guess += beyond if far > near else -beyond
        if turn % 4 == 0:
            width = high - low
        at = min(max(round(math.exp(guess)), low + 1), high - 1)
        value = log_ratio(at)
        side = 1 if value > 0.0 else -1
        same = same + 1 if side == last_side else 1
        last_side = side
        bad, good = (at, good) if value > 0.0 else (bad, at)
        points.append((math.log(at), value))
    return good


def _root(points: Sequence[tuple[float, float]]) -> float | None:
    """Returns where a function is 0 by its values at two points or three, as a polynomial in the value; None if that fails."""
    if not all(_finite(value) for _, value in points):
        points = [point for point in points if _finite(point[1])]
    values = [value for _, value in points]
    if len(points) < 2 or len(set(values)) < len(values):
        return None
    root = 0.0
    for place, (x, value) in enumerate(points):
        others = [other for index, other in enumerate(values) if index != place]
        root += x * math.prod(other / (other - value) for other in others)
    return root


def _finite(value: float) -> bool:
    """Tells whether a logarithm of epsilon over target is one of a positive finite epsilon."""
    return abs(value) < _FAR


def _near(rough: Callable[[int], float], target: float, start: int, end: int, *, falls: bool) -> int:
    """Returns an integer in [1, end] at which a monotone epsilon is about the target, where that is quick.

    Renyi bounds are quick, and near: the costly accountant starts where they end.
    """
    points: list[tuple[float, float]] = []
    at = start
    for _ in range(16):
        points.append((math.log(at), _log_ratio(rough(at), target)))
        x, value = points[-1]
        if abs(value) < _ROUGH:
            break
        guess = _root(points[-2:]) if len(points) > 1 else None
        if guess is None:
            guess = x + (_MOST_STRIDE if (value > 0.0) is falls else -_MOST_STRIDE)
        at = min(max(round(math.exp(min(max(guess, x - 2.0 * _MOST_STRIDE), x + 2.0 * _MOST_STRIDE))), 1), end)
        if any(math.log(at) == known for known, _ in points):
            break
    return at


def _log_ratio(spent: float, target: float) -> float:
    if spent == 0.0:
        return -_FAR
    return _FAR if spent == math.inf else min(max(math.log(spent / target), 1.0 - _FAR), _FAR - 1.0)


def _unreachable(target: float, reason: str, reached: float, accountant: str, delta: float) -> AccountantError:
    nearest = reached if math.isinf(reached) else math.ceil(reached * MICRO) / MICRO
    sentence = (
        f"epsilon {target:g} cannot be reached at delta {delta:g} by accountant {accountant}: {reason}; "
        f"the nearest that can is {nearest:.6g}"
    )
    return AccountantError("EPSILON", sentence, nearest=nearest)
