"""Times and foreign text as people see them: printed without an error and without a trick, whatever a document says."""

from datetime import UTC, datetime
from typing import Final

from attest.clock import MAX_TIME

_LARGEST: Final = 1 << 64
"""Seconds from which on a number is not written out: Python refuses to write integers of some thousand digits."""

# Not strftime: month names must not follow the locale of one machine.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def utc(seconds: int) -> str:
    """Returns a time as ISO 8601 in UTC, `2026-11-30T12:00:00Z`; of a number that is no time the number.

    Guarantee: it returns for every integer.

    Args:
        seconds: Seconds since 1970. Those before it, and from the year 10000 on, are no times of any document.
    """
    found = _moment(seconds)
    return _no_time(seconds) if found is None else f"{found:%Y-%m-%dT%H:%M:%S}Z"


def day(seconds: int) -> str:
    """Returns the day alone, `2026-11-30`; of a number that is no time the number."""
    return _no_time(seconds) if _moment(seconds) is None else utc(seconds)[:10]


def in_words(seconds: int) -> str:
    """Returns a time as a person writes it, `Monday 30 November 2026, 12:00 UTC`; of a number that is no time the number."""
    found = _moment(seconds)
    if found is None:
        return _no_time(seconds)
    return f"{_WEEKDAYS[found.weekday()]} {found.day} {_MONTHS[found.month - 1]} {found.year}, {found:%H:%M} UTC"


def visible(text: str, *, longest: int | None = None, lines: bool = False, plain: bool = False) -> str:
    """Returns text that others wrote so that every character of it is seen and none does anything.

    Guarantee:
        The result has no control character (ESC and the C1 codes too), no character that reorders, hides or joins others (all
        of Unicode's category Cf, bidirectional ones too), no lone surrogate and no unusual space: each is shown by its escape
        sequence. So it can be encoded in UTF-8 and stays on its line. It returns for every string.

    Args:
        text: A name, a path, a sentence that holds one.
        longest: Characters that are shown; None for all. A longer text is cut, and its length is told.
        lines: Whether newlines stay, for text of several lines.
        plain: Whether letters beyond ASCII are shown by their escape sequences too, for names that may be made to look alike.
    """
    if text.isprintable() and longest is None and not plain:
        return text
    kept = text if longest is None or len(text) <= longest else text[:longest]
    shown = "".join(
        char
        if (lines and char == "\n") or (char.isprintable() and (char.isascii() or not plain))
        else char.encode("unicode_escape").decode()
        for char in kept
    )
    return shown if kept is text else f"{shown} … ({len(text):,} characters)"


def _moment(seconds: int) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if 0 <= seconds < MAX_TIME else None


def _no_time(seconds: int) -> str:
    if -_LARGEST < seconds < _LARGEST:
        return f"{seconds} s since 1970, which is no time"
    return f"{'more' if seconds > 0 else 'less'} than {'' if seconds > 0 else '-'}2^64 s since 1970, which is no time"
