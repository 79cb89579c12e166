"""Admissions of a corpus, kept in columns: some 240 bytes each, where an object of its own for each takes over a thousand.

Attestations that are signed together differ in five byte strings of fixed length alone. These stand in one block of memory, a
row for each contribution; what they share is kept once, as a form. An `Admitted` is made of a row when somebody asks for it.
"""

import secrets
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, overload

from attest.admission import Admission, Admitted, Passed
from attest.attestation import Attestation
from attest.commitments import COMMITMENT_SIZE, SALT_SIZE, commit_content
from attest.descriptor import ContributionDescriptor, Parts, split
from attest.errors import AttestError
from attest.framing import SIGNATURE_SIZE
from attest.records import Locator

HASH_SIZE: Final = 32

_ATTESTATION: Final = HASH_SIZE
_SIGNATURE: Final = _ATTESTATION + HASH_SIZE
_ANCHOR: Final = _SIGNATURE + SIGNATURE_SIZE
_CONTENT: Final = _ANCHOR + COMMITMENT_SIZE
_NONCE: Final = _CONTENT + HASH_SIZE

ROW_SIZE: Final = _NONCE + SALT_SIZE
"""Bytes of a row: descriptor hash, attestation hash, signature, commitment to the content, content hash and nonce."""


class Form:
    """What admissions share that differ in content, nonce and signature alone.

    Attributes:
        sample: an admission of this form; what is read of it, but for content and nonce, holds for all of them.
        rest: the bytes around what differs (`attest.descriptor.Parts`); None as long as the sample is the only one.
    """

    __slots__ = ("rest", "sample")

    def __init__(self, sample: Admission) -> None:
        self.sample = sample
        self.rest: tuple[bytes, bytes, bytes, bytes] | None = None

    def learn(self, parts: Parts) -> bool:
        """Tells whether others with the same rest differ from the sample in content and nonce alone; asked once, of the second.

        The sample is encoded again with another content and nonce: what differs must be what was cut out.

        Args:
            parts: of the second one.
        """
        try:
            opened = self.sample.descriptor
            other = replace(opened, content_hash=secrets.token_bytes(HASH_SIZE), nonce=secrets.token_bytes(SALT_SIZE))
            cut = Parts(parts.rest, commit_content(other.content_hash, other.nonce), other.nonce, other.content_hash)
            if (other.to_cbor(), other.opening()) == cut.join():
                self.rest = parts.rest
        except AttestError:
            return False
        return self.rest is not None

    @property
    def descriptor(self) -> ContributionDescriptor:
        """Reads what was signed, of the sample."""
        return self.sample.descriptor


class AdmittedRows(Sequence[Admitted]):
    """Admissions in order; reads like a list of `Admitted`, and grows at its end alone.

    Guarantee: the admission at a place equals the one that was appended there, and its descriptor is read from the same bytes.

    Attributes:
        forms: every form, by its number.
        numbers: number of the form, a contribution each.
        packed: the rows, one after the other.
    """

    def __init__(self, admitted: Iterable[Admitted] = ()) -> None:
        self.forms: list[Form] = []
        self.numbers = array("I")
        self.packed = bytearray()
        self._known: dict[tuple[object, ...], int] = {}
        self._sources: list[str] = []
        self._source_numbers: dict[str, int] = {}
        self._source, self._offset, self._length = array("I"), array("Q"), array("Q")
        for item in admitted:
            self.append(item)

    def append(self, admitted: Admitted, *, alone: bool = False) -> None:
        """Adds an admission behind the last one.

        Args:
            admitted: the admission.
            alone: whether to give it a form of its own, whatever it shares with others.
        """
        admission, (source, offset, length) = admitted
        signed, passed, signature = admission.kept
        parts = split(*signed) if type(signed) is tuple else None
        if parts is None or alone or len(signature) != SIGNATURE_SIZE:
            cut: tuple[bytes, ...] = (bytes(SIGNATURE_SIZE), bytes(ROW_SIZE - _ANCHOR))
            number = self._new(admission)
        else:
            cut = (signature, parts.content, parts.content_hash, parts.nonce)
            key = (parts.rest, passed[2:], admission.holder)
            known = self._known.get(key)
            if known is None:
                number = self._known[key] = self._new(admission)
            elif self.forms[known].rest is not None or self.forms[known].learn(parts):
                number = known
            else:
                number = self._new(admission)
        row = b"".join((passed[0], passed[1], *cut))
        if len(row) != ROW_SIZE:
            raise ValueError(f"an admission with digests of {len(passed[0])} and {len(passed[1])} bytes, expected {HASH_SIZE}")
        place = self._source_numbers.get(source)
        if place is None:
            place = self._source_numbers[source] = len(self._sources)
            self._sources.append(source)
        self.packed += row
        self.numbers.append(number)
        self._source.append(place)
        self._offset.append(offset)
        self._length.append(length)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Admitted: ...
    @overload
    def __getitem__(self, index: slice) -> list[Admitted]: ...
    def __getitem__(self, index: int | slice) -> Admitted | list[Admitted]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return Admitted(self.admission(place), self.locator(place))

    def __iter__(self) -> Iterator[Admitted]:
        return (Admitted(self.admission(place), self.locator(place)) for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AdmittedRows | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def admission(self, place: int) -> Admission:
        """Returns the admission at a place."""
        form = self.form(place)
        if form.rest is None:
            return form.sample
        row, sample = self._row(place), form.sample
        parts = Parts(form.rest, row[_ANCHOR:_CONTENT], row[_NONCE:], row[_CONTENT:_NONCE])
        descriptor, opening = parts.join()
        digests = row[:_ATTESTATION], row[_ATTESTATION:_SIGNATURE]
        passed = Passed(*digests, sample.key_id, sample.contributor, sample.admissibility_class)
        return Admission(Attestation(descriptor, row[_SIGNATURE:_ANCHOR], opening), passed, sample.holder)

    def form(self, place: int) -> Form:
        """Returns the form of the admission at a place."""
        return self.forms[self.numbers[place]]

    def locator(self, place: int) -> Locator:
        """Returns where its content lies."""
        return Locator(self._sources[self._source[place]], self._offset[place], self._length[place])

    def descriptor_hash(self, place: int) -> bytes:
        """Returns the SHA-256 of its signed bytes."""
        at = place * ROW_SIZE
        return bytes(self.packed[at : at + HASH_SIZE])

    def content_hash(self, place: int) -> bytes:
        """Returns the SHA-256 of its content, as signed."""
        if self.form(place).rest is None:
            return self.form(place).descriptor.content_hash
        at = place * ROW_SIZE
        return bytes(self.packed[at + _CONTENT : at + _NONCE])

    def quoted(self, place: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Returns what a ledger quotes of it alone: descriptor hash, attestation hash, anchor and signature."""
        form = self.form(place)
        row = self._row(place)
        digests = row[:_ATTESTATION], row[_ATTESTATION:_SIGNATURE]
        if form.rest is None:
            return *digests, form.descriptor.signed.content, form.sample.signature
        return *digests, row[_ANCHOR:_CONTENT], row[_SIGNATURE:_ANCHOR]

    def _row(self, place: int) -> bytes:
        return bytes(self.packed[place * ROW_SIZE : (place + 1) * ROW_SIZE])

    def _new(self, sample: Admission) -> int:
        self.forms.append(Form(sample))
        return len(self.forms) - 1
