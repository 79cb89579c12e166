"""Converts fixed point: signed bounds are integers of 1e-6, signed deltas of 1e-12, so no NaN or rounding enters a comparison.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from attest.errors import ValueRefused

MICRO = 1_000_000
"""Units of a fixed-point number in one."""

PICO = 10**12
"""Units of a signed delta in one; no accountant goes below one of them."""

_DECIMAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,60})?([eE][+-]?[0-9]{1,2})?")
_LIMIT = 2**63
_MAX_DIGITS = 100
_MAX_EXPONENT = 100


def to_fraction(value: object) -> Fraction:
    """Returns the exact rational value of a decimal.

    Floats are refused: their decimal text is not what was written. The number of digits is bounded, so a short text like
    `1e999999999` cannot ask for gigabytes.

    Args:
        value: `int`, `decimal.Decimal`, or a decimal in ASCII digits as `str`; exactly these types.

    Raises:
        ValueRefused: Code TYPE for another type, RANGE for a malformed, non-finite or oversized number.
    """
    if type(value) is int:
        if abs(value) >= 10**_MAX_DIGITS:
            raise ValueRefused("RANGE", "number is too large, expected at most 100 digits")
        return Fraction(value)
    if type(value) is str:
        if not _DECIMAL.fullmatch(value):
            raise ValueRefused("RANGE", f"{value[:60]!a} is not a decimal number, expected digits such as 1.25")
        value = Decimal(value)
    if type(value) is not Decimal:
        raise ValueRefused("TYPE", f"found {type(value).__name__}, expected an int, a Decimal or a decimal in quotes")
    if not value.is_finite():
        raise ValueRefused("RANGE", f"found {value}, expected a finite number")
    _, digits, exponent = value.as_tuple()
    if len(digits) > _MAX_DIGITS or abs(int(exponent)) > _MAX_EXPONENT:
        raise ValueRefused("RANGE", "number has too many digits or too large an exponent, expected at most 100 of each")
    return Fraction(value)


def to_micro(value: object, *, rounding: Literal["down", "up", "exact"]) -> int:
    """Converts a decimal to an integer count of 1e-6.

    Args:
        value: `int`, `Decimal` or decimal `str`; never a float.
        rounding: `down` toward minus infinity, `up` toward plus infinity, `exact` refuses what needs rounding. An issuer rounds
            a clip norm down and a noise multiplier up, which is the strict side of both.

    Raises:
        ValueRefused: Code TYPE or RANGE.
    """
    scaled = to_fraction(value) * MICRO
    if rounding == "down":
        result = scaled.numerator // scaled.denominator
    elif rounding == "up":
        result = -(-scaled.numerator // scaled.denominator)
    elif rounding == "exact":
        if scaled.denominator != 1:
            raise ValueRefused("RANGE", f"{value} has more than six decimals, expected a multiple of 0.000001")
        result = scaled.numerator
    else:
        raise ValueRefused("RANGE", f"rounding is {rounding!r}, expected 'down', 'up' or 'exact'")
    if not -_LIMIT <= result < _LIMIT:
        raise ValueRefused("RANGE", f"{value} does not fit into 64 bits at six decimals")
    return result


def from_micro(count: int) -> float:
    """Returns the double nearest to `count` * 1e-6. Raises ValueRefused: code TYPE if `count` is not exactly an `int`."""
    if type(count) is not int:
        raise ValueRefused("TYPE", f"found {type(count).__name__}, expected an int count of 1e-6")
    return count / MICRO


def to_pico(value: object) -> int:
    """Converts a delta to an integer count of 1e-12, rounded down: the strict side. Raises ValueRefused: code TYPE, or RANGE
    unless it is at least 1e-12 and below 1."""
    scaled = to_fraction(value) * PICO
    if not 1 <= scaled < PICO:
        raise ValueRefused("RANGE", f"delta is {value}, expected at least 1e-12 and below 1, such as 1e-6")
    return scaled.numerator // scaled.denominator


def from_pico(count: int) -> Fraction:
    """Returns the exact delta of a count of 1e-12. Raises ValueRefused: code TYPE if `count` is not exactly an `int`."""
    if type(count) is not int:
        raise ValueRefused("TYPE", f"found {type(count).__name__}, expected an int count of 1e-12")
    return Fraction(count, PICO)
