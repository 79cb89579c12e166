"""Kinds that several signed documents share, by their names in attestation.cddl."""

from typing import Final

from attest.clock import MAX_TIME
from attest.commitments import COMMITMENT_SIZE
from attest.documents.kinds import Identifier, Octets, Whole

ID: Final = Identifier()
MOMENT: Final = Whole(0, MAX_TIME - 1, "moment")
COMMITMENT: Final = Octets(COMMITMENT_SIZE, "commitment")
SHA256: Final = Octets(32, "sha256")
RAW_KEY: Final = Octets(32, "raw-key")


def octets(size: int) -> Octets:
    """Returns the kind of byte strings of one length that have no name in CDDL."""
    return Octets(size, f"bstr .size {size}")
