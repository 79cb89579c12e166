"""Names the units that pay, and makes the hashes by which leaves name them."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from attest.schema.plain import check_id
from ledger.budget.leaves import ABOVE_SESSIONS, CONTRIBUTION, SESSION, UNITS
from ledger.errors import LeafRefused

SECRET_SIZE: Final = 32
"""Bytes of the secret of a log."""

_DIGEST: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Unit:
    """Names who pays: a user, a corpus, a session under one of these, or a contribution.

    Attributes:
        kind: ``user``, ``corpus``, ``session`` or ``contribution``.
        name: identifier of 1 to 64 of the characters a-z 0-9 . _ / -, so that no second spelling is a second unit. Who asks
            must have been authenticated under it: a budget cannot tell one person under two names. Of a contribution the digest
            of its descriptor, 64 hex digits.
        parent: the user or corpus of a session; None for all others.
    """

    kind: str
    name: str
    parent: "Unit | None" = None

    def __post_init__(self) -> None:
        if self.kind not in UNITS:
            raise LeafRefused("UNIT", f"{self.kind!r:.40} is no kind of unit; expected {' or '.join(UNITS)}")
        check_id(self.name, f"name of a {self.kind}", error=LeafRefused)
        if self.kind == CONTRIBUTION and not _DIGEST.fullmatch(self.name):
            sentence = f"{self.name!r:.80} names no contribution; expected the digest of its descriptor, 64 hex digits"
            raise LeafRefused("UNIT", sentence)
        if (self.kind == SESSION) is not (self.parent is not None) or (self.parent and self.parent.kind not in ABOVE_SESSIONS):
            sentence = f"a {self.kind} under {self.parent.kind if self.parent else 'nothing'}"
            raise LeafRefused("PARENT", f"{sentence}: a session stands under a user or a corpus, and nothing else under any")

    def hashed(self, secret: bytes) -> bytes:
        """Returns the 32 bytes of this unit in leaves.

        They are HMAC-SHA-256 under the secret of the log, over the kinds and names from the unit up, each with a zero byte
        behind it. Of a contribution they are its digest itself: so whoever contributed finds it in any export, without help.

        Args:
            secret: 32 bytes.
        """
        if self.kind == CONTRIBUTION:
            return bytes.fromhex(self.name)
        names = [self.kind, self.name, *([self.parent.kind, self.parent.name] if self.parent else [])]
        return hmac.new(secret, b"".join(f"{name}\0".encode() for name in names), hashlib.sha256).digest()
