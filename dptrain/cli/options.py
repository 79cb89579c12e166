"""Declare arguments and options in one line each: a value, a time, a file or a folder that must be there."""

import re
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import typer

_FROM_NOW = re.compile(r"([+-][0-9]{1,5})([dh])")
_AGE = re.compile(r"([0-9]{1,5})([dh])")
_COUNT = re.compile(r"([0-9][0-9_]{0,20}(?:\.[0-9]{1,9})?)([KMB]?)")
_SECONDS = re.compile(r"[0-9]{1,12}")


def option(text: str, *flags: str, **settings: Any) -> Any:
    """Declares an option by its help, its names, by default that of the parameter, and what else `typer.Option` takes."""
    return typer.Option(*flags, help=text, **settings)


def argument(text: str, **settings: Any) -> Any:
    """Declares an argument."""
    return typer.Argument(help=text, **settings)


def file_option(metavar: str, text: str, *flags: str, **settings: Any) -> Any:
    """Declares an option that takes a file which must exist; hints know the file by its metavar."""
    return typer.Option(*flags, metavar=metavar, exists=True, dir_okay=False, help=text, **settings)


def folder_option(metavar: str, text: str, *flags: str, **settings: Any) -> Any:
    """Declares an option that takes a folder which must exist."""
    return typer.Option(*flags, metavar=metavar, exists=True, file_okay=False, help=text, **settings)


def file_argument(metavar: str, text: str, **settings: Any) -> Any:
    """Declares an argument that takes a file which must exist."""
    return typer.Argument(metavar=metavar, exists=True, dir_okay=False, help=text, **settings)


def folder_argument(metavar: str, text: str, **settings: Any) -> Any:
    """Declares an argument that takes a folder which must exist."""
    return typer.Argument(metavar=metavar, exists=True, file_okay=False, help=text, **settings)


def wrong_if(found: Any, sentence: str) -> None:
    """Refuses wrong use of a command, with exit code 2, where something holds that must not."""
    if found:
        raise typer.BadParameter(sentence)


def moment(text: str, **settings: Any) -> Any:
    """Returns an option that takes a time in any form that `parse_time` reads."""
    return typer.Option(parser=parse_time, metavar="TIME", help=text, **settings)


def parse_age(text: str) -> int:
    """Returns seconds from `7d` or `36h`. Raises typer.BadParameter: if the text is neither."""
    match = _AGE.fullmatch(text)
    wrong_if(match is None, f"{text!r} is not an age; write 7d or 36h")
    return int(match[1]) * (86400 if match[2] == "d" else 3600)


def parse_count(text: str) -> int:
    """Returns a whole number from `124439808`, `124_439_808`, `124M` or `1.24B`; K, M and B are thousands, millions, billions.

    Raises:
        typer.BadParameter: if the text is none of these.
    """
    match = _COUNT.fullmatch(text)
    found = Decimal(match[1]) * {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}[match[2]] if match else Decimal("0.5")
    wrong_if(found != int(found), f"{text!r} is not a number of things; write 124439808, 124M or 1.24B")
    return int(found)


def parse_time(text: str) -> int:
    """Returns seconds since the epoch from `2026-11-30`, `2026-11-30T12:00:00Z`, `1796040000`, or from now `+30d` or `-12h`.

    A time without a zone is UTC, so that a script means the same on every machine.

    Raises:
        typer.BadParameter: if the text is none of these.
    """
    if _SECONDS.fullmatch(text):
        return int(text)
    if match := _FROM_NOW.fullmatch(text):
        return int(time.time()) + int(match[1]) * (86400 if match[2] == "d" else 3600)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time; write 2026-11-30, 2026-11-30T12:00:00Z or +30d") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
