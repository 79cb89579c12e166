"""Checks plain values that the signed documents share, and shows them to people.

Integers and byte strings have exact types and ranges. Identifiers have an alphabet of ASCII and are never normalized. Only one
spelling of a decimal or of base64 is read. Contents and words are signed as salted commitments, so that an export does not tell
them. Foreign text is printed without an error and without a trick.

A time is a whole number of seconds since 1970 in UTC, before the year 10000. Nobody can check from a document alone that its
time is true. Whoever reads it holds it against a clock of its own: a time that lies ahead of that clock is a lie or a mistake.
"""

import base64
import binascii
import hashlib
import re
import time
from datetime import UTC, datetime
from typing import Final

from attest.errors import AttestError, Refused, ValueRefused


def check_int(value: object, name: str, low: int, high: int, *, error: Refused) -> None:
    """Refuses anything but an integer from `low` to `high`.

    Guarantee: the type is exactly `int`. `True == 1` and `1.0 == 1`, and what compares equal must not pass for equal.

    Raises:
        Exception: Made by `error`, code TYPE or RANGE.
    """
    if type(value) is not int:
        raise error("TYPE", f"{name} is {type(value).__name__}, expected an integer")
    if not low <= value <= high:
        raise error("RANGE", f"{name} is {value}, expected {low} to {high}")


def check_bytes(value: object, name: str, length: int, *, error: Refused) -> None:
    """Refuses anything but a byte string of one length. Raises Exception: Made by `error`, code TYPE or RANGE."""
    if type(value) is not bytes:
        raise error("TYPE", f"{name} is {type(value).__name__}, expected {length} bytes")
    if len(value) != length:
        raise error("RANGE", f"{name} has {len(value)} bytes, expected {length}")


_ALIKE = str.maketrans({"0": "o", "1": "l", "d": "cl", "m": "rn", "w": "vv"})
_RUN = re.compile(r"[._-]+|/+")
IDENTIFIER = re.compile(r"[a-z0-9._/-]{1,64}")
"""An identifier, which the whole text has to be."""


def check_id(text: object, what: str, *, error: Refused = ValueRefused) -> str:
    """Returns `text` unchanged if it is an identifier.

    Guarantee: identifiers are compared byte for byte and never normalized. A Cyrillic letter, a trailing space, another case or
    a control character is refused, not folded. Within the alphabet some names still look alike: see `skeleton`.

    Raises:
        Exception: Made by `error`, code TYPE if not a string, RANGE if it is no identifier.
    """
    if type(text) is not str:
        raise error("TYPE", f"{what} is {type(text).__name__}, expected a text string")
    if not IDENTIFIER.fullmatch(text):
        shown = ascii(text if len(text) <= 80 else text[:80] + "...")
        raise error("RANGE", f"{what} is {shown}; use 1 to 64 of the characters a-z 0-9 . _ / -")
    return text


def skeleton(name: str) -> str:
    """Returns what names that look alike have in common: two names are taken for each other where it is the same.

    The map is ``0`` to ``o``, ``1`` to ``l``, ``m`` to ``rn``, ``w`` to ``vv``, ``d`` to ``cl``; a run of ``.``, ``_`` and
    ``-`` to one ``-``, and a run of ``/`` to one. It is idempotent.

    Source: Unicode TS #39, section 4, "skeleton", restricted to the alphabet of identifiers, which has no capitals, so that 0
    goes to o. Its data file maps 0, 1 and m so; w and d are added, for they are read as vv and cl in many fonts. Runs of
    separators are those of PEP 503, where they are one too.
    """
    return _RUN.sub(lambda run: "/" if run[0][0] == "/" else "-", name.translate(_ALIKE))


MAX_TIME: Final = 253402300800
"""First second of the year 10000 in seconds since 1970; a time lies before it."""

EARLIEST: Final = 1_577_836_800
"""First second of 2020: no ledger is older than its format, so an earlier time is none of a leaf or of who signs one."""

AHEAD_SECONDS: Final = 3600
"""Seconds by which a time may lie ahead of the clock of whoever reads it: two clocks are never quite the same."""

BACK_SECONDS: Final = 60
"""Seconds by which the clock of a writer may step back and is read as standing still; by more, nothing is written."""


def check_time(value: object, name: str, *, error: type[AttestError]) -> None:
    """Refuses anything but a time before the year 10000. Raises AttestError: Of class `error`, code TYPE or RANGE."""
    check_int(value, name, 0, MAX_TIME - 1, error=error)


def is_ahead(moment: int, now: int) -> bool:
    """Tells whether a time lies further ahead of a clock than clocks may disagree."""
    return moment > now + AHEAD_SECONDS


def machine_time() -> int:
    """Returns what the clock of this machine says, in whole seconds since 1970."""
    return int(time.time())


_DECIMAL: Final = re.compile("0|[1-9][0-9]{0,18}")


def read_decimal(text: str) -> int | None:
    """Reads ASCII digits without sign or leading zeros, at most 19 of them; None for anything else."""
    return None if _DECIMAL.fullmatch(text) is None else int(text)


def to_base64(data: bytes) -> str:
    """Writes bytes as `read_base64` reads them."""
    return base64.b64encode(data).decode()


def read_base64(text: str) -> bytes | None:
    """Reads standard base64 (RFC 4648, 4) with its padding and no spare bits; None for anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if to_base64(data) == text else None


_LARGEST: Final = 1 << 64
"""Seconds from which on a number is not written out: Python refuses to write integers of some thousand digits."""

# Not strftime: month names must not follow the locale of one machine.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def utc(seconds: int) -> str:
    """Returns a time as people read it; times before 1970, and from the year 10000 on, are no times of any document.

    Guarantee: it returns for every integer.
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


_UNSEEN: Final = re.compile(
    "[\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u2800\\u3164"
    "\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufff8\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff]"
)
"""Default_Ignorable_Code_Point of Unicode 14.0.0 (DerivedCoreProperties.txt), shown as nothing by fonts, and blank Braille."""


def visible(text: str, *, longest: int | None = None, lines: bool = False, plain: bool = False) -> str:
    """Returns text that others wrote so that every character of it is seen and none does anything.

    Guarantee: The result has no control character (ESC and the C1 codes too), no character that reorders, hides or joins others
    (all of Unicode's category Cf, bidirectional ones too, and all that fonts show as nothing, `_UNSEEN`), no lone surrogate and
    no unusual space: each is shown by its escape sequence. So it can be encoded in UTF-8 and stays on its line. It returns for
    every string. Marks over letters are kept.

    Args:
        longest: Characters that are shown; None for all. A longer text is cut, and its length is told.
        plain: Whether letters beyond ASCII are shown by their escape sequences too, for names that may be made to look alike.
    """
    if text.isprintable() and longest is None and not plain and not _UNSEEN.search(text):
        return text
    kept = text if longest is None or len(text) <= longest else text[:longest]
    shown = "".join(
        char
        if (lines and char == "\n") or (char.isprintable() and (char.isascii() or not (plain or _UNSEEN.match(char))))
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


SALT_SIZE: Final = 16
"""Bytes of a salt or nonce: whoever guesses a value has to guess these 128 random bits as well."""

COMMITMENT_SIZE: Final = 32

CONTENT: Final = b"dptrain/commit/content/1\0"
CONTRIBUTOR: Final = b"dptrain/commit/contributor/1\0"
DATA_CLASS: Final = b"dptrain/commit/data-class/1\0"
PRINCIPAL: Final = b"dptrain/commit/principal/1\0"
REGISTRY_CONTRIBUTOR: Final = b"dptrain/commit/registry-contributor/1\0"
REGISTRY_PRINCIPAL: Final = b"dptrain/commit/registry-principal/1\0"
"""Domains: they keep a commitment to one thing from being opened as another."""


def commit(domain: bytes, value: bytes, salt: bytes) -> bytes:
    """Returns SHA-256 of the domain, the value and the salt.

    Guarantee: binding if SHA-256 is collision resistant: the salt has one length, so domain, value and salt can be cut from
    what is hashed in one way. Without the salt it tells nothing of the value, not even to who guesses it (with SHA-256 as a
    random oracle, each guess of the value costs 2^128 guesses of the salt).

    Args:
        value: What is committed to: the SHA-256 of a content, or an identifier in ASCII; empty where there is none.
    """
    return hashlib.sha256(b"".join((domain, value, salt))).digest()


def commit_content(content_hash: bytes, nonce: bytes) -> bytes:
    """Returns the commitment to a content: it stands in descriptors and ledgers, and whoever has content and nonce finds it."""
    return commit(CONTENT, content_hash, nonce)
