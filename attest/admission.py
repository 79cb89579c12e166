"""Outcomes of the admission gate, and its memory of what was admitted."""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import NamedTuple

from attest.attestation import Attestation
from attest.descriptor import ContributionDescriptor, Opener
from attest.digests import DigestTable
from attest.framing import SIGNATURE_SIZE, CommonTerms
from attest.reasons import ReasonCode
from attest.records import Locator


class Passed(NamedTuple):
    """A contribution that may be admitted, as far as it alone is concerned.

    Args:
        descriptor_hash: SHA-256 of the signed bytes.
        attestation_hash: SHA-256 of descriptor and signature together.
        key_id: Short name of the key that signed.
        contributor: Who signed.
        admissibility_class: Class under which it may be admitted.
    """

    descriptor_hash: bytes
    attestation_hash: bytes
    key_id: bytes
    contributor: str
    admissibility_class: str


class Admission:
    """A contribution that may be used within its signed bounds.

    Descriptor and opening are kept as bytes until somebody asks for a field. Of the message the signature alone is kept:
    `attest.framing.Framing` makes the rest again.

    Args:
        attestation: Descriptor, signature and opening.
        passed: What the gate found.
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
        """SHA-256 of the signed bytes."""
        return self._passed.descriptor_hash

    @property
    def attestation_hash(self) -> bytes:
        """SHA-256 of descriptor and signature together."""
        return self._passed.attestation_hash

    @property
    def key_id(self) -> bytes:
        """Short name of the key that signed."""
        return self._passed.key_id

    @property
    def contributor(self) -> str:
        """Who signed."""
        return self._passed.contributor

    @property
    def admissibility_class(self) -> str:
        """Class under which the contribution was admitted."""
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

        Guarantee: with the commitment to the content and `signature` of the admission, `attest.framing.Framing` makes of them
        the descriptor and the message that the gate admitted, byte for byte.
        """
        descriptor = admission.descriptor
        key = (admission.key_id, *_in_common(descriptor))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = CommonTerms.of(descriptor.signed, admission.key_id)
        return found


_in_common = attrgetter(*(item.name for item in fields(ContributionDescriptor) if item.name not in ("content_hash", "nonce")))


class Refusal(NamedTuple):
    """A contribution that may not be used.

    Args:
        code: Why, for programs.
        sentence: Why and what to do, for a person.
        descriptor_hash: SHA-256 of the descriptor if it could be read.
        contributor: Contributor that the descriptor names, which may be false before the signature was checked.
    """

    code: ReasonCode
    sentence: str
    descriptor_hash: bytes | None = None
    contributor: str | None = None


@dataclass(slots=True)
class Seen:
    """What was admitted so far, to refuse repetitions and floods; takes bounded memory for any number of contributions.

    Args:
        withdrawn: Descriptor hashes of withdrawn contributions.
        latest: Latest time at which something was admitted.
    """

    withdrawn: Set[bytes] = frozenset()
    latest: int = 0
    _contents: DigestTable = field(default_factory=DigestTable, repr=False)
    _per_holder: Counter[str] = field(default_factory=Counter, repr=False)

    def note(self, admission: Admission, now: int | None = None) -> None:
        """Remembers an admission."""
        self.claim(admission.descriptor.content_hash, admission.descriptor_hash)
        self.count_one(admission.holder, now)

    def claim(self, content_hash: bytes, descriptor_hash: bytes) -> int | None:
        """Remembers which descriptor brought a content; returns the tag of the one that did before, None if it is new."""
        return self._contents.setdefault(content_hash, descriptor_tag(descriptor_hash))

    def find(self, content_hash: bytes) -> int | None:
        """Returns the tag of the descriptor that brought a content, None if the content is new."""
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

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns `{"admitted": {class: n}, "refused": {code: n}}`, sorted by name."""
        admitted = Counter(item.admission.admissibility_class for item in self.admitted)
        refused = Counter(str(item.refusal.code) for item in self.refused)
        return {"admitted": dict(sorted(admitted.items())), "refused": dict(sorted(refused.items()))}
