"""Holds outcomes of the admission gate, its memory of what was admitted, and admissions in columns.

A row takes some 240 bytes, where an object of its own for each admission takes over a thousand. Attestations that are signed
together differ in five byte strings of fixed length alone. These stand in one block of memory, a row for each contribution;
what they share is kept once, as a form. An `Admitted` is made of a row when somebody asks for it.
"""

import secrets
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Final, NamedTuple, overload

from attest.attestation import SIGNATURE_SIZE, Attestation, CommonTerms
from attest.corpus.digests import DigestTable
from attest.corpus.records import Locator
from attest.descriptor import ContributionDescriptor, Opener, Parts, split
from attest.errors import AttestError, ReasonCode
from attest.schema.cards import card, card_of
from attest.schema.plain import COMMITMENT_SIZE, SALT_SIZE, commit_content


class Passed(NamedTuple):
    """Says that a contribution may be admitted, as far as it alone is concerned."""

    descriptor_hash: bytes
    attestation_hash: bytes
    key_id: bytes
    contributor: str
    admissibility_class: str


class Admission:
    """Holds a contribution that may be used within its signed bounds.

    Descriptor and opening are kept as bytes until somebody asks for a field. Of the message the signature alone is kept:
    `attest.attestation.Framing` makes the rest again.

    Args:
        holder: Who it counts for: the contributor, or the person behind it that the registry names.

    Attributes:
        signature: The last 64 bytes of the message, which the gate read as the signature over the descriptor.
    """

    __slots__ = ("_descriptor", "_passed", "holder", "signature")

    def __init__(self, attestation: Attestation, passed: Passed, holder: str) -> None:
        self.holder = holder
        self._descriptor: ContributionDescriptor | tuple[bytes, bytes] = (attestation.descriptor, attestation.opening)
        self._passed = passed
        self.signature = attestation.sign1[-SIGNATURE_SIZE:]

    @property
    def descriptor(self) -> ContributionDescriptor:
        """Reads what was signed, opened."""
        if isinstance(self._descriptor, tuple):
            self._descriptor = _OPENER.open(*self._descriptor)
        return self._descriptor

    @property
    def kept(self) -> tuple[ContributionDescriptor | tuple[bytes, bytes], Passed, bytes]:
        """Returns what it is made of: descriptor and opening, as bytes or as read; what the gate found; the signature."""
        return self._descriptor, self._passed, self.signature

    @property
    def descriptor_hash(self) -> bytes:
        """Returns SHA-256 of the signed bytes."""
        return self._passed.descriptor_hash

    @property
    def attestation_hash(self) -> bytes:
        """Returns SHA-256 of descriptor and signature together."""
        return self._passed.attestation_hash

    @property
    def key_id(self) -> bytes:
        """Returns the short name of the key that signed."""
        return self._passed.key_id

    @property
    def contributor(self) -> str:
        """Says who signed."""
        return self._passed.contributor

    @property
    def admissibility_class(self) -> str:
        """Returns class under which the contribution was admitted."""
        return self._passed.admissibility_class

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Admission) and self._passed == other._passed

    def __hash__(self) -> int:
        return hash(self._passed)

    def __repr__(self) -> str:
        return f"Admission({self._passed!r})"


_OPENER = Opener()
"""Opens the commitments of all admissions of this process: most of what they say they share."""


class SharedTerms:
    """Finds the common terms of admissions, and makes those that admissions share once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], CommonTerms] = {}

    def of(self, admission: Admission) -> CommonTerms:
        """Returns what the attestation of an admission has in common with those signed together with it.

        Guarantee: with the commitment to the content and `signature` of the admission, `attest.attestation.Framing` makes of
        them the descriptor and the message that the gate admitted, byte for byte.
        """
        descriptor = admission.descriptor
        key = (admission.key_id, *_in_common(descriptor))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = CommonTerms.of(descriptor.signed, admission.key_id)
        return found


_in_common = attrgetter(*(item.name for item in fields(ContributionDescriptor) if item.name not in ("content_hash", "nonce")))


class Refusal(NamedTuple):
    """Says why a contribution may not be used. `contributor`: whom the descriptor names, which may be false before the
    signature was checked."""

    code: ReasonCode
    sentence: str
    descriptor_hash: bytes | None = None
    contributor: str | None = None


@dataclass(slots=True)
class Seen:
    """Remembers what was admitted, to refuse repetitions and floods; memory is bounded for any number of contributions."""

    withdrawn: Set[bytes] = frozenset()
    latest: int = 0
    _contents: DigestTable = field(default_factory=DigestTable, repr=False)
    _per_holder: Counter[str] = field(default_factory=Counter, repr=False)

    _repr_html_ = card_of

    def note(self, admission: Admission, now: int | None = None) -> None:
        """Remembers an admission, to whatever use."""
        self.claim(admission.descriptor.content_hash, admission.descriptor_hash)
        self.claim(admission.descriptor_hash, admission.descriptor_hash)
        self.count_one(admission.holder, now)

    def claim(self, content_hash: bytes, descriptor_hash: bytes) -> int | None:
        """Remembers which descriptor brought what is admitted once; returns the tag of the one that did before, None if it is
        new."""
        return self._contents.setdefault(content_hash, descriptor_tag(descriptor_hash))

    def find(self, content_hash: bytes) -> int | None:
        """Returns the tag of the descriptor that brought it, None if it is new."""
        return self._contents.get(content_hash)

    def count_one(self, holder: str, now: int | None = None) -> None:
        """Remembers that one more contribution of a contributor, or of the person behind it, was admitted."""
        self._per_holder[holder] += 1
        if now is not None and now > self.latest:
            self.latest = now

    def count(self, holder: str) -> int:
        """Returns how many contributions were admitted from a contributor, or from the person behind it."""
        return self._per_holder[holder]


def descriptor_tag(descriptor_hash: bytes) -> int:
    """Returns a number that tells a repeated attestation from another one of the same content; it decides nothing else."""
    return int.from_bytes(descriptor_hash[:8], "big")


class Admitted(NamedTuple):
    """An admission and where its content lies."""

    admission: Admission
    locator: Locator


class Refused(NamedTuple):
    """A refusal and where the content lies, if there is any."""

    refusal: Refusal
    locator: Locator | None


@dataclass(frozen=True, slots=True)
class GateReport:
    """The outcome of one batch, all of it judged at one time against one registry."""

    admitted: Sequence[Admitted]
    refused: list[Refused]
    now: int
    registry_root: bytes

    def _repr_html_(self) -> str:
        return card(type(self).__name__, [*self.counts().items(), ("now", self.now), ("registry_root", self.registry_root)])

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns `{"admitted": {class: n}, "refused": {code: n}}`, sorted by name."""
        rows = self.admitted
        if isinstance(rows, AdmittedRows):
            admitted = rows.by_class()
        else:
            admitted = Counter(item.admission.admissibility_class for item in rows)
        refused = Counter(str(item.refusal.code) for item in self.refused)
        return {"admitted": dict(sorted(admitted.items())), "refused": dict(sorted(refused.items()))}


HASH_SIZE: Final = 32

_SIZES: Final = (HASH_SIZE, HASH_SIZE, SIGNATURE_SIZE, COMMITMENT_SIZE, HASH_SIZE, SALT_SIZE)
"""Bytes of the parts of a row: descriptor hash, attestation hash, signature, commitment to the content, content hash, nonce."""

_ROW: Final = struct.Struct("".join(f"{size}s" for size in _SIZES))
_HASH: Final = struct.Struct(f"{HASH_SIZE}s")
_CONTENT_HASH_AT: Final = sum(_SIZES[:4])

_KEY_SIZE: Final = 3
"""Bytes of the key of a commitment in a descriptor, and the head of its 32 bytes."""

ROW_SIZE: Final = _ROW.size
"""Bytes of a row."""


class Form:
    """Holds what admissions share that differ in content, nonce and signature alone.

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
    """Keeps admissions in order; reads like a list of `Admitted`, and grows at its end alone.

    Guarantee: the admission at a place equals the one that was appended there, and its descriptor is read from the same bytes.
    """

    def __init__(self, admitted: Iterable[Admitted] = ()) -> None:
        self.forms: list[Form] = []
        self.numbers = array("I")
        self.packed = bytearray()
        self._known: dict[tuple[object, ...], int] = {}
        self._last: tuple[Parts, tuple[object, ...], str, int] | None = None  # cut, signer, holder and form of the last one
        self._sources: list[str] = []
        self._source_numbers: dict[str, int] = {}
        self._source, self._offset, self._length = array("I"), array("Q"), array("Q")
        for item in admitted:
            self.append(item)

    def append(self, admitted: Admitted, *, alone: bool = False) -> None:
        """Adds an admission behind the last one; `alone` gives it a form of its own, whatever it shares with others."""
        admission, (source, offset, length) = admitted
        signed, passed, signature = admission.kept
        signer = passed[2:]
        parts = self._cut(*signed) if type(signed) is tuple else None
        if parts is None or alone or len(signature) != SIGNATURE_SIZE:
            cut: tuple[bytes, ...] = tuple(map(bytes, _SIZES[2:]))
            number = self._new(admission)
        else:
            cut = (signature, parts.content, parts.content_hash, parts.nonce)
            last = self._last
            if last is not None and last[0].rest is parts.rest and last[1] == signer and last[2] == admission.holder:
                number = last[3]
            else:
                number = self._numbered(admission, parts, (parts.rest, signer, admission.holder))
                rest = self.forms[number].rest
                self._last = None if rest is None else (parts._replace(rest=rest), signer, admission.holder, number)
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

    def by_class(self) -> Counter[str]:
        """Returns how many admissions each class has; the class is one of what a form shares, so no admission is made again."""
        found: Counter[str] = Counter()
        for number, count in Counter(self.numbers).items():
            found[self.forms[number].sample.admissibility_class] += count
        return found

    def admission(self, place: int) -> Admission:
        """Returns the admission at a place."""
        form = self.form(place)
        if form.rest is None:
            return form.sample
        mine, theirs, signature, content, content_hash, nonce = self._row(place)
        descriptor, opening = Parts(form.rest, content, nonce, content_hash).join()
        sample = form.sample
        passed = Passed(mine, theirs, sample.key_id, sample.contributor, sample.admissibility_class)
        return Admission(Attestation(descriptor, signature, opening), passed, sample.holder)

    def form(self, place: int) -> Form:
        """Returns the form of the admission at a place."""
        return self.forms[self.numbers[place]]

    def locator(self, place: int) -> Locator:
        """Returns where its content lies."""
        return Locator(self._sources[self._source[place]], self._offset[place], self._length[place])

    def descriptor_hash(self, place: int) -> bytes:
        """Returns the SHA-256 of its signed bytes."""
        found: bytes = _HASH.unpack_from(self.packed, place * ROW_SIZE)[0]
        return found

    def content_hash(self, place: int) -> bytes:
        """Returns the SHA-256 of its content, as signed."""
        if self.form(place).rest is None:
            return self.form(place).descriptor.content_hash
        found: bytes = _HASH.unpack_from(self.packed, place * ROW_SIZE + _CONTENT_HASH_AT)[0]
        return found

    def quoted(self, place: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Returns what a ledger quotes of it alone: descriptor hash, attestation hash, anchor and signature."""
        form = self.form(place)
        mine, theirs, signature, content, _, _ = self._row(place)
        if form.rest is None:
            opened = form.descriptor
            return mine, theirs, commit_content(opened.content_hash, opened.nonce), form.sample.signature
        return mine, theirs, content, signature

    def _row(self, place: int) -> tuple[bytes, ...]:
        return _ROW.unpack_from(self.packed, place * ROW_SIZE)

    def _cut(self, descriptor: bytes, opening: bytes) -> Parts | None:
        """Returns what `split` returns; first as it cut the last one, which is right if the pieces join to these bytes.

        Where a descriptor is cut follows from what lies before the cut.
        """
        if self._last is not None:
            rest = self._last[0].rest
            at = len(rest[0]) + _KEY_SIZE
            parts = Parts(rest, descriptor[at : at + COMMITMENT_SIZE], opening[3:19], opening[22:54])
            if parts.join() == (descriptor, opening):
                return parts
        return split(descriptor, opening)

    def _numbered(self, admission: Admission, parts: Parts, key: tuple[object, ...]) -> int:
        """Returns the number of the form of an admission, a new one where it shares nothing with those before."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._new(admission)
        elif self.forms[known].rest is None and not self.forms[known].learn(parts):
            return self._new(admission)
        return known

    def _new(self, sample: Admission) -> int:
        self.forms.append(Form(sample))
        return len(self.forms) - 1
