"""Values that mend a setting: each is computed, checked with the accountant where epsilon depends on it, and rounded."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

from attest.policy import Policy
from dptrain.cli.advice.consequence import Change
from dptrain.planning.plan import spent_by

_CLOSE_ENOUGH = 0.9
"""A suggested multiplier may undershoot its target epsilon by a tenth; `dptrain calibrate` finds the last digit."""


def in_class(name: str, key: str, value: str) -> Change:
    """A setting of one class."""
    return Change(f"{key} of class {name}", value)


def rounded(value: float | Fraction, digits: int, *, up: bool) -> str:
    """A positive number with so many significant digits, rounded in one direction, as TOML takes it."""
    exact = Decimal(value.numerator) / Decimal(value.denominator) if isinstance(value, Fraction) else Decimal(repr(value))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{exact.quantize(step, ROUND_CEILING if up else ROUND_FLOOR).normalize():f}"


def multiplier_for(target: float, sampling_rate: float, policy: Policy, start: float) -> tuple[str, float]:
    """A noise multiplier that meets a target epsilon over the horizon, and the epsilon that it gives.

    Guarantee: the epsilon of the multiplier returned has been computed and is not above the target.

    Args:
        target: Epsilon that may not be exceeded.
        sampling_rate: Sampling rate it is for.
        policy: Gives steps, delta and accountant.
        start: First guess, above 0.
    """

    def spent(text: str) -> float:
        return spent_by(policy, float(text), sampling_rate, policy.steps)

    # Log epsilon is nearly a line in log z, with a slope between -1 and -2: secant steps, kept inside the bracket.
    low, high, guess, slope = 0.0, math.inf, rounded(start, 3, up=True), -1.3
    previous: tuple[float, float] | None = None
    while True:
        epsilon = spent(guess)
        z = float(guess)
        if epsilon <= target and (epsilon >= _CLOSE_ENOUGH * target or z - low <= 0.02 * z):
            return guess, epsilon
        low, high = (max(low, z), high) if epsilon > target else (low, min(high, z))
        if previous is not None and previous[0] != z and 0 < epsilon < math.inf and 0 < previous[1] < math.inf:
            slope = min(-0.3, math.log(epsilon / previous[1]) / math.log(z / previous[0]))
        previous = z, epsilon
        wanted = z * ((0.96 * target / epsilon) ** (1 / slope) if 0 < epsilon < math.inf else 2.0 if epsilon else 0.5)
        if not low < wanted < high:
            wanted = 2 * low if math.isinf(high) else 0.5 * (low + high)
        guess = rounded(wanted, 3, up=True)


def power_of_ten_below(limit: Fraction) -> str:
    """The largest power of ten that is at most `limit`, written as 1e-7."""
    exponent = 0
    while Fraction(10) ** exponent > limit:
        exponent -= 1
    return f"1e{exponent}"
