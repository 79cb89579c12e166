"""Identifiers of contributors, classes and corpora: ASCII only, so that two that look alike are alike."""

import re

from attest.errors import AttestError, ValueRefused

_ID = re.compile(r"[a-z0-9._/-]{1,64}")


def check_id(text: object, what: str, *, error: type[AttestError] = ValueRefused) -> str:
    """Return `text` unchanged if it is an identifier.

    Guarantee: identifiers are compared byte for byte and never normalized, and the alphabet holds no two characters
    that look the same; a Cyrillic letter, a trailing space, another case or a control character is refused, not folded.

    Args:
        text: Candidate, must be exactly `str`.
        what: Name of the field, for the message.
        error: Exception class to raise.

    Raises:
        AttestError: Code TYPE if not a string, RANGE if it is no identifier.
    """
    if type(text) is not str:
        raise error("TYPE", f"{what} is {type(text).__name__}, expected a text string")
    if not _ID.fullmatch(text):
        shown = ascii(text if len(text) <= 80 else text[:80] + "...")
        raise error("RANGE", f"{what} is {shown}; use 1 to 64 of the characters a-z 0-9 . _ / -")
    return text
