"""Rounds epsilons up and noise down, for people. A short room: planning, audits and the whole command line stand on it."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def rounded_up(value: float, digits: int = 4) -> str:
    """Returns so many significant digits, never below the value; the infinity sign where nothing is promised."""
    if math.isinf(value):
        return "∞"
    return f"{_up(value, digits):g}" if value else "0"


def at_most(value: float, digits: int = 4) -> str:
    """Rounds up for a sentence, without zeros at the end: `2`, `1.5`."""
    if math.isinf(value) or abs(value) >= 1e9 or 0 < abs(value) < 1e-6:
        return rounded_up(value, digits)
    return f"{_up(value, digits).normalize():f}"


def at_least(value: float, digits: int = 4) -> str:
    """Rounds a noise multiplier down."""
    if math.isinf(value):
        return "∞"
    found = Context(prec=digits, rounding=ROUND_FLOOR).create_decimal_from_float(value)
    return f"{found:g}" if abs(value) >= 1e9 or 0 < abs(value) < 1e-6 else f"{found.normalize():f}"


def _up(value: float, digits: int) -> Decimal:
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(value)
