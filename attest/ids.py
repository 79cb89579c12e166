"""Identifiers of contributors, classes and corpora: an alphabet of ASCII, and what two names that look alike have in common."""

import re

from attest.errors import Refused, ValueRefused

_ALIKE = str.maketrans({"0": "o", "1": "l", "d": "cl", "m": "rn", "w": "vv"})
_RUN = re.compile(r"[._-]+|/+")
ID = re.compile(r"[a-z0-9._/-]{1,64}")
"""An identifier, which the whole text has to be."""


def check_id(text: object, what: str, *, error: Refused = ValueRefused) -> str:
    """Return `text` unchanged if it is an identifier.

    Guarantee: identifiers are compared byte for byte and never normalized. A Cyrillic letter, a trailing space, another case
    or a control character is refused, not folded. Within the alphabet some names still look alike: see `skeleton`.

    Args:
        text: Candidate, must be exactly `str`.
        what: Name of the field, for the message.
        error: Makes the error.

    Raises:
        Exception: Made by `error`, code TYPE if not a string, RANGE if it is no identifier.
    """
    if type(text) is not str:
        raise error("TYPE", f"{what} is {type(text).__name__}, expected a text string")
    if not ID.fullmatch(text):
        shown = ascii(text if len(text) <= 80 else text[:80] + "...")
        raise error("RANGE", f"{what} is {shown}; use 1 to 64 of the characters a-z 0-9 . _ / -")
    return text


def skeleton(name: str) -> str:
    """Returns what names that look alike have in common: two names are taken for each other where it is the same.

    The map is ``0`` to ``o``, ``1`` to ``l``, ``m`` to ``rn``, ``w`` to ``vv``, ``d`` to ``cl``; a run of ``.``, ``_`` and
    ``-`` to one ``-``, and a run of ``/`` to one. It is idempotent.

    Args:
        name: An identifier.

    Source: Unicode TS #39, section 4, "skeleton", restricted to the alphabet of identifiers, which has no capitals, so that 0
    goes to o. Its data file maps 0, 1 and m so; w and d are added, for they are read as vv and cl in many fonts. Runs of
    separators are those of PEP 503, where they are one too.
    """
    return _RUN.sub(lambda run: "/" if run[0][0] == "/" else "-", name.translate(_ALIKE))
