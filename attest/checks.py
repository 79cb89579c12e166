"""Checks of plain fields that the signed documents share."""

from attest.errors import Refused


def check_int(value: object, name: str, low: int, high: int, *, error: Refused) -> None:
    """Refuse anything but an integer from `low` to `high`.

    Guarantee: the type is exactly `int`. `True == 1` and `1.0 == 1`, and what compares equal must not pass for equal.

    Raises:
        Exception: Made by `error`, code TYPE or RANGE.
    """
    if type(value) is not int:
        raise error("TYPE", f"{name} is {type(value).__name__}, expected an integer")
    if not low <= value <= high:
        raise error("RANGE", f"{name} is {value}, expected {low} to {high}")


def check_bytes(value: object, name: str, length: int, *, error: Refused) -> None:
    """Refuse anything but a byte string of one length.

    Raises:
        Exception: Made by `error`, code TYPE or RANGE.
    """
    if type(value) is not bytes:
        raise error("TYPE", f"{name} is {type(value).__name__}, expected {length} bytes")
    if len(value) != length:
        raise error("RANGE", f"{name} has {len(value)} bytes, expected {length}")
