"""Values of which only one spelling is read: Python's own ``int`` and ``b64decode`` accept several of one value."""

import base64
import binascii
import re
from typing import Final

_DECIMAL: Final = re.compile("0|[1-9][0-9]{0,18}")


def read_decimal(text: str) -> int | None:
    """Reads ASCII digits without sign or leading zeros, at most 19 of them; None for anything else."""
    return None if _DECIMAL.fullmatch(text) is None else int(text)


def read_base64(text: str) -> bytes | None:
    """Reads standard base64 (RFC 4648, 4) with its padding and no spare bits; None for anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == text else None
