"""The attestations of a folder, found by the content that they claim, in bounded memory."""

from collections.abc import Iterator
from typing import BinaryIO

from attest.attestation import Attestation, read_at, read_places
from attest.descriptor import claimed_content
from attest.digests import DigestTable
from attest.errors import CborError


class Claims:
    """An attestation file as a stock from which each attestation is taken once.

    What an attestation claims is read without decoding or verifying it: it serves to pair attestations with files, never
    to admit one.

    Args:
        stream: The file, open for reading and seekable.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        # Keys: n + hash, how many claim it; t + hash, how many of these are taken; p + hash + k, where the k-th begins;
        # u + place, that the one beginning there is taken.
        # It stands beside the gate's own tables, so it takes to the disk earlier than these.
        self._table = DigestTable(1 << 17, 1 << 15)
        try:
            for place, attestation in read_places(stream):
                claimed = claimed_content(attestation.opening)
                if claimed is not None:
                    count = self._table.get(b"n" + claimed) or 0
                    self._table.set(b"n" + claimed, count + 1)
                    self._table.set(b"p" + claimed + count.to_bytes(8, "big"), place)
        except CborError:
            return  # `rest` meets it again, and tells.

    def take(self, content_hash: bytes) -> Attestation | CborError | None:
        """The first attestation that claims a content and was not taken yet; an error if it is no longer in the file."""
        taken = self._table.get(b"t" + content_hash) or 0
        place = self._table.get(b"p" + content_hash + taken.to_bytes(8, "big"))
        if place is None:
            return None
        self._table.set(b"t" + content_hash, taken + 1)
        self._table.set(b"u" + place.to_bytes(8, "big"), 1)
        try:
            return read_at(self._stream, place)
        except CborError as error:
            return error

    def rest(self) -> Iterator[Attestation | CborError]:
        """Attestations that were not taken, in order; a malformed one comes last, since nothing behind it can be found."""
        self._stream.seek(0)
        try:
            for place, attestation in read_places(self._stream):
                if self._table.get(b"u" + place.to_bytes(8, "big")) is None:
                    yield attestation
        except CborError as error:
            yield error
