"""The pool of a run: admitted contributions in slots, and their content, re-hashed whenever it is read."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from attest.corpus import Contents, Corpus, Locator
from attest.descriptor import ContributionDescriptor
from attest.gate.admission import Admission, Admitted, AdmittedRows
from attest.policy import Policy
from dptrain.clipping.resolver import Resolution, Schedule
from dptrain.data.microbatch import Decode
from dptrain.data.slots import Slot, Slots
from dptrain.errors import ContentChanged, ResumeRefused

_Answer = TypeVar("_Answer")


class Descriptors(Mapping[bytes, ContributionDescriptor]):
    """Descriptors of a pool by their hash, each read when somebody asks for it."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def __getitem__(self, descriptor_hash: bytes) -> ContributionDescriptor:
        index = self._slots.find(descriptor_hash)
        if index is None:
            raise KeyError(descriptor_hash)
        return self._slots.admission(index).descriptor

    def __iter__(self) -> Iterator[bytes]:
        return map(self._slots.descriptor_hash, range(len(self._slots)))

    def __len__(self) -> int:
        return len(self._slots)


class Entry(NamedTuple):
    """Holds what it takes to read one contribution, in whatever process.

    Attributes:
        locator: where its content lies. content_hash: SHA-256 of it, as signed. owner: hash of its descriptor.
        most: examples that it may have. examples: those that it had before; 0 where it was not read yet. length: its public
            length in tokens.
    """

    locator: Locator
    content_hash: bytes
    owner: bytes
    most: int
    examples: int
    length: int | None

    def content(self, contents: Contents) -> bytes:
        """Reads the content, and compares its hash with the signed one.

        Raises:
            ContentChanged: code CONTENT_CHANGED, the bytes are no longer those that were admitted.
        """
        content = contents.read(self.locator)
        if hashlib.sha256(content).digest() != self.content_hash:
            raise ContentChanged(
                "CONTENT_CHANGED",
                f"{self.locator.source!r}: the content of an admitted contribution changed after the gate saw it; "
                "restore the attested bytes, or withdraw the contribution and start again",
            )
        return content

    def require(self, found: int) -> None:
        """Holds the number of examples that the content decoded to against the admissible one, and against the one before.

        Raises:
            ContentChanged: code EXAMPLES, the number is not admissible, or another one than before.
        """
        if not 1 <= found <= self.most:
            raise ContentChanged(
                "EXAMPLES",
                f"{self.locator.source!r}: a contribution decodes to {found} examples, expected 1 to {self.most} "
                "(the policy's max_examples and the attestation's own cap); split it, or raise the cap before signing",
            )
        if self.examples and self.examples != found:
            raise ContentChanged(
                "EXAMPLES",
                f"{self.locator.source!r}: the same content decodes to {found} examples now and to another "
                "number before; decode must be a function of the content alone",
            )


class Pool:
    """Slots in the order of their admission; a withdrawn slot stays in place as a null contribution."""

    def __init__(self, corpus: Corpus, decode: Decode, slots: Sequence[Slot], policy: Policy) -> None:
        self.corpus = corpus
        self.decode = decode
        self._policy = policy
        self.slots = Slots.of(slots)
        self._lengths = [policy.length_of(form.descriptor) for form in self.slots.forms]
        self._sizes = np.zeros(len(slots), dtype=np.uint32)
        self._begun = max((form.descriptor.not_before for form in self.slots.forms), default=0)

    def reordered(self, slots: Sequence[Slot]) -> "Pool":
        """Returns the same pool with its slots in another order; what was counted stays."""
        other = Pool(self.corpus, self.decode, slots, self._policy)
        other._sizes = self._sizes[other.slots.places_in(self.slots)]
        return other

    def size(self, index: int) -> int:
        """Returns the number of examples of a slot, which is public; the content is read if it never was.

        Raises:
            ContentChanged: as :meth:`examples`.
        """
        return int(self._sizes[index]) or len(self.examples(index))

    def length(self, index: int) -> int | None:
        """Returns the tokens to which the examples of a slot are padded or cut (`Policy.length_of`)."""
        return self._lengths[self.slots.form_number(index)]

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """Returns the lengths of all contributions, the longest first; None alone where the policy offers none."""
        return tuple(sorted(set(self._lengths), key=lambda length: -(length or 0)))

    def __len__(self) -> int:
        return len(self.slots)

    def indices(self, descriptor_hashes: Iterable[bytes]) -> list[int]:
        """Returns the slots of these descriptors; those that are not in the pool are left out."""
        return [index for index in map(self.slots.find, descriptor_hashes) if index is not None]

    def asked(self, ask: Callable[[Admission], _Answer | None]) -> list[tuple[Admission, _Answer]]:
        """Returns the admissions with the answer to a question about each, in order, without those where it is None.

        Args:
            ask: called with one admission of each form; its answer may follow from neither content nor nonce.
        """
        answers = {place: answer for place, form in enumerate(self.slots.forms) if (answer := ask(form.sample)) is not None}
        if not answers:
            return []
        numbers = self.slots.numbers
        found = np.flatnonzero(np.isin(numbers, list(answers)))
        return [(self.slots.admission(int(index)), answers[int(numbers[index])]) for index in found]

    def expired(self, now: int) -> list[Admission]:
        """Returns the admissions whose attestation is no longer valid at ``now`` (validity is half-open)."""
        return [admission for admission, _ in self.asked(lambda one: one.descriptor.not_after <= now or None)]

    def not_yet_valid(self, now: int) -> list[Admission]:
        """Returns admissions whose attestation is not valid yet at ``now``: a clock that was ahead let them in."""
        if now >= self._begun:
            return []
        return [admission for admission, _ in self.asked(lambda one: one.descriptor.not_before > now or None)]

    def examples(self, index: int) -> list[Any]:
        """Returns the examples of a slot, at most as many as the policy and the contributor's own attestation allow.

        Raises:
            ContentChanged: the bytes are no longer those that were admitted.
        """
        with self.reading() as contents:
            found = self.decoded(index, contents)
        self.count(index, self.entry(index), len(found))
        return found

    def decoded(self, index: int, contents: Contents) -> list[Any]:
        """Reads and decodes a slot, and notes nothing; raises as `Entry.content`."""
        return self.decode(self.entry(index).content(contents))

    def reading(self) -> Contents:
        """Returns a reader for the contents of many slots, for a ``with`` block."""
        return self.corpus.contents()

    def entry(self, index: int) -> Entry:
        """Returns what it takes to read a slot."""
        slots, cap = self.slots, self._policy.max_examples
        most = min(cap, slots.form(index).descriptor.max_examples or cap)
        hashes = slots.content_hash(index), slots.descriptor_hash(index)
        return Entry(slots.locator(index), *hashes, most, int(self._sizes[index]), self.length(index))

    def count(self, index: int, entry: Entry, found: int) -> None:
        """Notes to how many examples a slot decoded.

        Raises:
            ContentChanged: as `Entry.require`.
        """
        entry.require(found)
        self._sizes[index] = found


def slots_for(admitted: Iterable[Admitted], schedule: Schedule) -> Slots:
    """Resolves every admission against a schedule; those of one class with the same signed bounds share what comes of it."""
    rows = admitted if isinstance(admitted, AdmittedRows) else AdmittedRows(admitted)
    known: dict[tuple[object, ...], Resolution] = {}
    found = []
    for form in rows.forms:
        bounds = _bounds(form.descriptor)
        resolution = known.get(bounds)
        if resolution is None:
            resolution = known[bounds] = schedule.resolve(form.sample)
        found.append(resolution)
    return Slots(rows, found)


BOUNDS: Final = (
    "admissibility_class",
    "clip_norm_micro",
    "noise_multiplier_micro",
    "max_occurrences",
    "max_examples",
    "max_epsilon_micro",
    "max_delta_pico",
    "public_length",
)
"""All fields of a descriptor that `Schedule.resolve` looks at."""

_bounds = attrgetter(*BOUNDS)


def in_ledger_order(slots: Sequence[Slot], recorded: Collection[bytes]) -> Slots:
    """Returns the slots in the order in which a ledger recorded them.

    Raises:
        ResumeRefused: a recorded contribution is no longer in the corpus.
    """
    known = Slots.of(slots)
    if len(known) == len(recorded) and all(known.descriptor_hash(i) == digest for i, digest in enumerate(recorded)):
        return known
    places = (known.find(digest) for digest in recorded)
    found = np.fromiter((-1 if place is None else place for place in places), dtype=np.int64, count=len(recorded))
    missing = [digest for digest, place in zip(recorded, found, strict=True) if place < 0]
    if missing:
        raise ResumeRefused(
            "CORPUS_CHANGED",
            f"{len(missing)} of the {len(recorded)} contributions that this run admitted are no longer admissible from "
            f"the corpus (first: descriptor {missing[0].hex()[:16]}...); restore the corpus, policy and registry of the run",
        )
    return known.take(found)
