"""Outcomes of the admission gate, and its memory of what was admitted."""

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from attest.descriptor import ContributionDescriptor
from attest.reasons import ReasonCode
from attest.records import Locator


@dataclass(frozen=True, slots=True)
class Admission:
    """A contribution that may be used within its signed bounds.

    Args:
        descriptor: What was signed.
        descriptor_hash: SHA-256 of the signed bytes.
        attestation_hash: SHA-256 of descriptor and signature together.
        key_id: Short name of the key that signed.
    """

    descriptor: ContributionDescriptor
    descriptor_hash: bytes
    attestation_hash: bytes
    key_id: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
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
    """What was admitted so far, to refuse repetitions and floods.

    Args:
        withdrawn: Descriptor hashes of withdrawn contributions.
        latest: Latest time at which something was admitted.
    """

    withdrawn: Set[bytes] = frozenset()
    latest: int = 0
    _descriptors: set[bytes] = field(default_factory=set, repr=False)
    _contents: set[bytes] = field(default_factory=set, repr=False)
    _per_contributor: Counter[str] = field(default_factory=Counter, repr=False)

    def note(self, admission: Admission, now: int | None = None) -> None:
        """Remember an admission."""
        self._descriptors.add(admission.descriptor_hash)
        self._contents.add(admission.descriptor.content_hash)
        self._per_contributor[admission.descriptor.contributor] += 1
        if now is not None:
            self.latest = max(self.latest, now)

    def has_descriptor(self, descriptor_hash: bytes) -> bool:
        """Whether this very descriptor was admitted."""
        return descriptor_hash in self._descriptors

    def has_content(self, content_hash: bytes) -> bool:
        """Whether these very bytes were admitted."""
        return content_hash in self._contents

    def count(self, contributor: str) -> int:
        """Contributions admitted from a contributor."""
        return self._per_contributor[contributor]


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admission and where its content lies."""

    admission: Admission
    locator: Locator


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal and where the content lies, if there is any."""

    refusal: Refusal
    locator: Locator | None


@dataclass(frozen=True, slots=True)
class GateReport:
    """The outcome of one batch, all of it judged at one time against one registry."""

    admitted: list[Admitted]
    refused: list[Refused]
    now: int
    registry_root: bytes

    def counts(self) -> dict[str, dict[str, int]]:
        """`{"admitted": {class: n}, "refused": {code: n}}`, sorted by name."""
        admitted = Counter(item.admission.descriptor.admissibility_class for item in self.admitted)
        refused = Counter(str(item.refusal.code) for item in self.refused)
        return {"admitted": dict(sorted(admitted.items())), "refused": dict(sorted(refused.items()))}
