"""The pool of a run: admitted contributions in slots, and their content, re-hashed whenever it is read."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from attest.admission import Admission
from attest.corpus import Corpus
from attest.descriptor import ContributionDescriptor
from attest.gate import Admitted
from attest.shown import utc
from dptrain.errors import ContentChanged, ResumeRefused
from dptrain.microbatch import Decode
from dptrain.resolver import Resolution, Schedule

if TYPE_CHECKING:
    from dptrain.inbox import Inbox
    from dptrain.recording import Recorder
    from dptrain.registry_watch import RegistryWatch


@dataclass(frozen=True)
class Slot:
    """One admitted contribution and what it may do."""

    admitted: Admitted
    resolution: Resolution

    @property
    def descriptor_hash(self) -> bytes:
        return self.admitted.admission.descriptor_hash


class Pool:
    """Slots in the order of their admission; a withdrawn slot stays in place as a null contribution."""

    def __init__(self, corpus: Corpus, decode: Decode, slots: Sequence[Slot], max_examples: int) -> None:
        self._corpus = corpus
        self._decode = decode
        self._max_examples = max_examples
        self.slots = tuple(slots)
        self._by_hash = {slot.descriptor_hash: index for index, slot in enumerate(self.slots)}
        self._sizes: dict[bytes, int] = {}
        self._begun = max((admission.descriptor.not_before for admission in self.admissions), default=0)

    def reordered(self, slots: Sequence[Slot]) -> "Pool":
        """Returns the same pool with its slots in another order; what was counted stays."""
        other = Pool(self._corpus, self._decode, slots, self._max_examples)
        other._sizes = self._sizes
        return other

    def size(self, index: int) -> int:
        """Returns the number of examples of a slot, which is public; the content is read if it never was.

        Raises:
            ContentChanged: as :meth:`examples`.
        """
        known = self._sizes.get(self.slots[index].descriptor_hash)
        return len(self.examples(index)) if known is None else known

    def __len__(self) -> int:
        return len(self.slots)

    def indices(self, descriptor_hashes: Iterable[bytes]) -> list[int]:
        """Returns the slots of these descriptors; those that are not in the pool are left out."""
        return [self._by_hash[digest] for digest in descriptor_hashes if digest in self._by_hash]

    @property
    def descriptors(self) -> dict[bytes, ContributionDescriptor]:
        """Descriptors of the pool by their hash."""
        return {slot.descriptor_hash: slot.admitted.admission.descriptor for slot in self.slots}

    @property
    def admissions(self) -> Iterator[Admission]:
        """Admissions of the pool, in the order of their slots."""
        return (slot.admitted.admission for slot in self.slots)

    def expired(self, now: int) -> list[Admission]:
        """Returns the admissions whose attestation is no longer valid at ``now`` (validity is half-open)."""
        return [admission for admission in self.admissions if admission.descriptor.not_after <= now]

    def not_yet_valid(self, now: int) -> list[Admission]:
        """Returns admissions whose attestation is not valid yet at ``now``: a clock that was ahead let them in."""
        if now >= self._begun:
            return []
        return [admission for admission in self.admissions if admission.descriptor.not_before > now]

    def examples(self, index: int) -> list[Any]:
        """Returns the examples of a slot, at most as many as the policy and the contributor's own attestation allow.

        Raises:
            ContentChanged: the bytes are no longer those that were admitted.
        """
        slot = self.slots[index]
        descriptor = slot.admitted.admission.descriptor
        content = self._corpus.read(slot.admitted.locator)
        if hashlib.sha256(content).digest() != descriptor.content_hash:
            raise ContentChanged(
                "CONTENT_CHANGED",
                f"{slot.admitted.locator.source!r}: the content of an admitted contribution changed after the gate saw it; "
                "restore the attested bytes, or withdraw the contribution and start again",
            )
        found = self._decode(content)
        limit = min(self._max_examples, descriptor.max_examples or self._max_examples)
        if not 1 <= len(found) <= limit:
            raise ContentChanged(
                "EXAMPLES",
                f"{slot.admitted.locator.source!r}: a contribution decodes to {len(found)} examples, expected 1 to {limit} "
                "(the policy's max_examples and the attestation's own cap); split it, or raise the cap before signing",
            )
        if self._sizes.setdefault(slot.descriptor_hash, len(found)) != len(found):
            raise ContentChanged(
                "EXAMPLES",
                f"{slot.admitted.locator.source!r}: the same content decodes to {len(found)} examples now and to another "
                "number before; decode must be a function of the content alone",
            )
        return found


def slots_for(admitted: Iterable[Admitted], schedule: Schedule) -> list[Slot]:
    """Resolves every admission against a schedule; those of one class with the same signed bounds share what comes of it."""
    known: dict[tuple[object, ...], Resolution] = {}
    slots = []
    for entry in admitted:
        bounds = _bounds(entry.admission.descriptor)
        resolution = known.get(bounds)
        if resolution is None:
            resolution = known[bounds] = schedule.resolve(entry.admission)
        slots.append(Slot(entry, resolution))
    return slots


BOUNDS: Final = (
    "admissibility_class",
    "clip_norm_micro",
    "noise_multiplier_micro",
    "max_occurrences",
    "max_examples",
    "max_epsilon_micro",
    "max_delta_pico",
)
"""All fields of a descriptor that `Schedule.resolve` looks at."""

_bounds = attrgetter(*BOUNDS)


def in_ledger_order(slots: Sequence[Slot], recorded: Sequence[bytes]) -> list[Slot]:
    """Returns the slots in the order in which a ledger recorded them.

    Raises:
        ResumeRefused: a recorded contribution is no longer in the corpus.
    """
    found = {slot.descriptor_hash: slot for slot in slots}
    missing = [digest for digest in recorded if digest not in found]
    if missing:
        raise ResumeRefused(
            "CORPUS_CHANGED",
            f"{len(missing)} of the {len(recorded)} contributions that this run admitted are no longer admissible from "
            f"the corpus (first: descriptor {missing[0].hex()[:16]}...); restore the corpus, policy and registry of the run",
        )
    return [found[digest] for digest in recorded]


def settle_pool(pool: Pool, registry: "RegistryWatch", inbox: "Inbox", recorder: "Recorder", now: int) -> None:
    """Records, before a charge, a later registry, and what was withdrawn, has expired, or lost the support of the registry.

    Raises:
        LeafRefused: code CLOCK_JUMP, the clock ran so far ahead since the last leaf that it may be wrong: what a false clock
            lets expire would stay withdrawn, so nothing is recorded by it.
        RegistryRefused: the registry changed to one that does not verify or extend the last one, or lies ahead of the clock.
        ResumeRefused: code NOT_YET_VALID, what somebody's attestation allows has not begun at this time.
    """
    recorder.require_clock(now)
    registry.refresh(now)
    known = registry.current
    recorder.take_registry(known.root(), now)
    inbox.take(pool.descriptors, known, lambda *what: recorder.withdraw(*what, now=now), now)
    # Where the clock stepped back the charge is dated as the last leaf: nothing may have ended by then.
    charged_at = max(now, recorder.ledger.state.last_time)
    recorder.expire(pool.expired(charged_at), now)
    recorder.bar(registry.barred(pool.admissions, charged_at), known.root(), now)
    gone = recorder.withdrawn()
    early = [admission for admission in pool.not_yet_valid(charged_at) if admission.descriptor_hash not in gone]
    if early:
        begins = max(admission.descriptor.not_before for admission in early)
        raise ResumeRefused(
            "NOT_YET_VALID",
            f"{len(early)} contributions were admitted by a clock that was ahead: their attestations are valid from "
            f"{utc(begins)} on at the latest, and it is {utc(charged_at)}. Resume then, or withdraw them "
            f"({early[0].descriptor_hash.hex()[:16]}... first)",
        )
