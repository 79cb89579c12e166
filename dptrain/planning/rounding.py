"""Figures about privacy as text, never smaller than they are."""

import math
from decimal import ROUND_CEILING, Context


def rounded_up(value: float, digits: int = 4) -> str:
    """So many significant digits, never below the value; the infinity sign where nothing is promised."""
    if math.isinf(value):
        return "∞"
    return f"{Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(value):g}" if value else "0"
