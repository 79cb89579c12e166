"""Shows values on the page: words escaped, times, digests, and figures rounded to the safe side."""

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from html import escape
from typing import Any, Final

from markupsafe import Markup

from attest.schema.plain import utc as shown_utc
from attest.schema.plain import visible

LONGEST: Final = 600
"""Characters of one foreign text that are shown; an export made to fill the page must not."""

LONGEST_NAME: Final = 80
"""Characters of a class, reason or column that are shown; identifiers of ours have 64 at most."""

NONE: Final = "\N{EN DASH}"

PUBLIC: Final = "public"
"""In place of every figure about the privacy of a public class: no number would be true, zero least of all."""

_FOUR_UP: Final = Context(prec=4, rounding=ROUND_CEILING)
_FOUR_DOWN: Final = Context(prec=4, rounding=ROUND_FLOOR)


def text(value: object, longest: int = LONGEST) -> Markup:
    """Escapes a value for people.

    Guarantee: The result has no markup and no character that hides, reorders or overwrites others: control and format
    characters (bidirectional ones too), lone surrogates and unusual spaces are shown by their escape sequences.
    """
    return Markup(escape(visible(str(value), longest=longest)))


def shown(value: Any) -> Markup:
    """Shows any value that the template prints: markup made here as it is, numbers as numbers, all else as `text`."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return Markup(NONE)
    return text(f"{value:.4g}" if isinstance(value, float) else f"{value:,}") if is_number(value) else text(value)


def name(value: object) -> Markup:
    """Shows a name that an operator chose, at the length of a name."""
    return text(value, LONGEST_NAME)


def code(value: object) -> Markup:
    """Shows a hash, a key or a name as it must be compared: in fixed width."""
    return Markup(f"<code>{text(value)}</code>")


def noted(value: object, note: object) -> Markup:
    """Shows a value with a note below it."""
    return Markup(f"{shown(value)}<small>{shown(note)}</small>")


def utc(seconds: int) -> Markup:
    """Shows a time of the ledger; a number that is none is shown as it is."""
    told = moment(seconds)
    return Markup(f"<time datetime='{shown_utc(seconds)}'>{told}</time>") if told.endswith("UTC") else text(told)


def moment(seconds: int) -> str:
    """Returns a time in words alone."""
    told = shown_utc(seconds)
    return told.replace("T", " ").replace("Z", " UTC") if told.endswith("Z") else told


def day(seconds: int) -> str:
    """Returns the day of a time in words alone; a number that is none as it is shown."""
    told = moment(seconds)
    return told.split(" ")[0] if told.endswith(" UTC") else told


def rounded_up(value: float) -> Decimal:
    """Returns four significant digits, never below the value: a bound that is shown smaller is no bound."""
    return Decimal(format(_FOUR_UP.create_decimal_from_float(value), "f"))


def rounded_down(value: float) -> Decimal:
    """Returns four significant digits, never above the value: noise that is shown larger was never there."""
    return Decimal(format(_FOUR_DOWN.create_decimal_from_float(value), "f"))


def bound(epsilon: float | None) -> Decimal | str:
    """Returns an epsilon rounded up, or the word for a class to which none is promised."""
    return PUBLIC if epsilon is None else rounded_up(epsilon)


def counted(count: int, thing: str, things: str = "") -> str:
    """Returns a number of things; their plural, where it is not made by an s."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def is_number(value: Any) -> bool:
    """Tells whether a value is shown as a number."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def is_numeric(values: Sequence[Any]) -> bool:
    """Tells whether a column has numbers, and dashes at most beside them."""
    return any(map(is_number, values)) and all(is_number(value) or value is None for value in values)
