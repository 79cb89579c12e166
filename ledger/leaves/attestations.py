"""Packs what contributors signed, so that each ADMIT leaf can be held against it.

An attestation is a descriptor and a COSE_Sign1 message. Both are made again from three parts: the common terms, kept once for
all that were signed together; the commitment to the content, which is the anchor of the ADMIT leaf; and the signature
(`attest.attestation`). A ledger keeps terms by number, from 0, and for each ADMIT leaf the CBOR array of a number and a
signature. Nothing of a content is in them: no opening, no nonce and no salt is kept.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, Protocol

from attest import cbor
from attest.attestation import SIGNATURE_SIZE, CommonTerms, Framing
from attest.errors import AttestError
from ledger.errors import LedgerCorrupt

MAX_KEPT: Final = 128
"""Bytes of what is kept of one attestation; at most 76 with a number below 2^64."""

MAX_FRAMINGS: Final = 4096
"""Framings that are kept at once; each takes about 2 KB."""


class Quoting(Protocol):
    """Quotes an attestation by its digests: an ADMIT leaf, or what will become one."""

    @property
    def descriptor_hash(self) -> bytes:
        """Returns SHA-256 of the descriptor."""

    @property
    def attestation_hash(self) -> bytes:
        """Returns SHA-256 of descriptor and message."""

    @property
    def anchor(self) -> bytes:
        """Returns the commitment to the content."""


class Framings:
    """Makes the framings of terms, each once; memory is bounded for any number of terms."""

    __slots__ = ("_known", "_last")

    def __init__(self) -> None:
        self._known: dict[CommonTerms, tuple[Framing, bytes]] = {}
        self._last: tuple[CommonTerms, tuple[Framing, bytes]] | None = None

    def of(self, terms: CommonTerms) -> tuple[Framing, bytes]:
        """Returns the framing of some terms, and the bytes under which they are stored."""
        if self._last is not None and self._last[0] is terms:  # spares their hash
            return self._last[1]
        found = self._known.get(terms)
        if found is None:
            if len(self._known) >= MAX_FRAMINGS:
                self._known.clear()
            found = self._known[terms] = (Framing(terms), terms.to_cbor())
        self._last = terms, found
        return found


def misfit(leaf: Quoting, framing: Framing, signature: bytes) -> str | None:
    """Says what of an attestation is not what an ADMIT leaf quotes; None where all of it is.

    Guarantee: on None, the descriptor that the framing makes of the leaf's anchor has the leaf's descriptor hash, and with the
    message that it makes of the signature it has the leaf's attestation hash. Whether the signature verifies is not asked.
    """
    if len(signature) != SIGNATURE_SIZE:
        return f"the signature has {len(signature)} bytes, expected {SIGNATURE_SIZE}"
    descriptor = framing.descriptor(leaf.anchor)
    digest = hashlib.sha256(descriptor).digest()
    if digest != leaf.descriptor_hash:
        return f"terms and anchor make a descriptor of the digest {digest.hex()}, the leaf quotes {leaf.descriptor_hash.hex()}"
    digest = framing.digest(descriptor, framing.message(b"sha-256:" + digest.hex().encode("ascii"), signature))
    if digest != leaf.attestation_hash:
        return f"the signature makes an attestation of the digest {digest.hex()}, the leaf quotes {leaf.attestation_hash.hex()}"
    return None


def pack(number: int, signature: bytes) -> bytes:
    """Returns what is kept of one attestation: the CBOR array of the number of its terms and the signature."""
    if type(signature) is bytes and len(signature) == SIGNATURE_SIZE:
        # What the encoder writes: the heads of an array of two and of a string of 64 bytes are the same for all.
        return b"".join((b"\x82", bytes((number,)) if 0 <= number < 24 else cbor.encode(number), b"\x58\x40", signature))
    return cbor.encode([number, signature])


def unpack(data: bytes) -> tuple[int, bytes]:
    """Reads what `pack` returned, strictly: an accepted byte string is exactly `pack` of the result. Raises LedgerCorrupt: code
    ATTESTATION."""
    try:
        value = cbor.decode(data, max_size=MAX_KEPT)
    except AttestError as error:
        raise LedgerCorrupt("ATTESTATION", f"an attestation that is kept cannot be read: {error.sentence}") from error
    if type(value) is not list or [type(part) for part in value] != [int, bytes] or value[0] < 0:
        raise LedgerCorrupt("ATTESTATION", "an attestation that is kept is not the array of a number of terms and a signature")
    if len(value[1]) != SIGNATURE_SIZE:
        raise LedgerCorrupt("ATTESTATION", f"a signature that is kept has {len(value[1])} bytes, expected {SIGNATURE_SIZE}")
    return value[0], value[1]


def orphans(terms: Iterable[tuple[int, bytes]], attestations: Iterable[tuple[int, bytes]]) -> list[int]:
    """Returns the numbers of terms that are there and belong to no attestation. `terms`: numbers and bytes of all, b"" for
    those that are gone. Raises LedgerCorrupt: as `unpack`."""
    used = {unpack(data)[0] for _, data in attestations}
    return [number for number, data in terms if data and number not in used]
