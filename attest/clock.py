"""Times that documents and ledgers state, and how far two clocks may disagree about them.

A time is a whole number of seconds since 1970 in UTC, before the year 10000. Nobody can check from a document alone that its
time is true. Whoever reads it holds it against a clock of its own: a time that lies ahead of that clock is a lie or a mistake.
"""

import time
from typing import Final

from attest.checks import check_int
from attest.errors import AttestError

MAX_TIME: Final = 253402300800
"""First second of the year 10000 in seconds since 1970; a time lies before it."""

EARLIEST: Final = 1_577_836_800
"""First second of 2020: no ledger is older than its format, so an earlier time is none of a leaf or of who signs one."""

AHEAD_SECONDS: Final = 3600
"""Seconds by which a time may lie ahead of the clock of whoever reads it: two clocks are never quite the same."""

BACK_SECONDS: Final = 60
"""Seconds by which the clock of a writer may step back and is read as standing still; by more, nothing is written."""


def check_time(value: object, name: str, *, error: type[AttestError]) -> None:
    """Refuses anything but a time before the year 10000.

    Raises:
        AttestError: Of class `error`, code TYPE or RANGE.
    """
    check_int(value, name, 0, MAX_TIME - 1, error=error)


def is_ahead(moment: int, now: int) -> bool:
    """Tells whether a time lies further ahead of a clock than clocks may disagree.

    Args:
        moment: Seconds since 1970, as a document states it.
        now: What the clock of the reader says, in seconds since 1970.
    """
    return moment > now + AHEAD_SECONDS


def machine_time() -> int:
    """Returns what the clock of this machine says, in whole seconds since 1970."""
    return int(time.time())
