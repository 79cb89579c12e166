"""Field checks shared by all leaves: exact types, ranges, and messages that say what was expected."""

import math
from functools import lru_cache
from typing import Final

from attest.clock import EARLIEST, MAX_TIME
from attest.errors import AttestError
from attest.ids import check_id
from attest.micro import PICO
from ledger.errors import LeafRefused

MAX_UINT: Final = (1 << 63) - 1
REASON: Final = 200
"""Most characters of a reason in words: why statement A is weaker, or why the clock was set back."""


def uint(value: object, what: str, *, low: int = 0, high: int = MAX_UINT) -> None:
    """Accepts an int (not a bool) in low..high."""
    if type(value) is not int or not low <= value <= high:
        raise LeafRefused("RANGE", f"{what}: expected an integer in {low}..{high}, got {value!r}")


def octets(value: object, what: str, size: int | None = None) -> None:
    """Accepts bytes, of an exact size if one is given."""
    if type(value) is not bytes or (size is not None and len(value) != size):
        expected = "bytes" if size is None else f"{size} bytes"
        raise LeafRefused("TYPE", f"{what}: expected {expected}, got {type(value).__name__} {value!r:.80}")


def real(value: object, what: str, *, low: float = 0.0) -> None:
    """Accepts a finite float >= low."""
    # `not (value >= low)` rather than `value < low`, so that NaN is refused too.
    if type(value) is not float or not math.isfinite(value) or not (value >= low):
        raise LeafRefused("RANGE", f"{what}: expected a finite float >= {low}, got {value!r}")


def flag(value: object, what: str) -> None:
    """Accepts a bool."""
    if type(value) is not bool:
        raise LeafRefused("TYPE", f"{what}: expected true or false, got {value!r:.80}")


def identifier(value: object, what: str) -> None:
    """Accepts an ASCII identifier ``[a-z0-9._/-]{1,64}``."""
    try:
        check_id(value, what)
    except AttestError as error:
        raise LeafRefused("TYPE", f"{what}: {error.sentence}") from error


@lru_cache(maxsize=256, typed=True)
def _is_identifier(value: str) -> bool:
    try:
        check_id(value, "")
    except AttestError:
        return False
    return True


def is_identifier(value: object) -> bool:
    """Tells whether `identifier` accepts a value; remembers what it was asked."""
    return type(value) is str and _is_identifier(value)


def text(value: object, what: str, *, longest: int) -> None:
    """Accepts printable ASCII of 1..longest characters."""
    if type(value) is not str or not 1 <= len(value) <= longest or not (value.isascii() and value.isprintable()):
        raise LeafRefused("TYPE", f"{what}: expected 1..{longest} printable ASCII characters, got {value!r:.80}")


def rows(value: object, what: str, kind: type, *, least: int = 0) -> None:
    """Accepts a tuple of at least ``least`` members of exactly one type."""
    if type(value) is not tuple or len(value) < least or any(type(row) is not kind for row in value):
        raise LeafRefused("TYPE", f"{what}: expected a tuple of at least {least} {kind.__name__}, got {value!r:.80}")


def place(seq: object, time: object) -> None:
    """Accepts the position and time of a leaf after the header."""
    uint(seq, "seq", low=1)
    moment(time, "time")


def moment(value: object, what: str) -> None:
    """Accepts the time of a leaf: in seconds since 1970, not before `attest.clock.EARLIEST`, and before the year 10000."""
    uint(value, what, low=EARLIEST, high=MAX_TIME - 1)


def limit(epsilon_micro: object, delta_pico: object) -> None:
    """Accepts a signed limit of epsilon in 1e-6 and its delta in 1e-12, or 0 and 0 where none was signed."""
    uint(epsilon_micro, "limit of epsilon")
    uint(delta_pico, "delta of a limit", high=PICO - 1)
    if bool(epsilon_micro) is not bool(delta_pico):
        found = f"got {epsilon_micro} and {delta_pico}"
        raise LeafRefused("RANGE", f"a limit of epsilon holds at a delta: expected both or none, {found}")
