"""Who takes part in a run, as its ledger tells: a slim record per contribution, and once what many of them share."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from attest.policy import ClassRule
from ledger.errors import LeafRefused
from ledger.leaves import Admit
from ledger.merkle import SlotTree, leaf_hash

EMPTY_SLOT: Final = leaf_hash(b"")
"""What stands in a pool's tree for a contribution that was withdrawn; no descriptor hash is empty."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What contributions that were admitted alike share; one object for all of them, compared by identity.

    Attributes:
        class_index: place of the class in the policy.
        class_name: its name.
        clip_micro: signed clip norm in 1e-6.
        sigma_micro: signed noise multiplier in 1e-6.
        max_occurrences: most steps in which one may take part, 0 for no cap.
        charged_before: steps charged in the ledger before the admission, per phase of the noise.
        attempt_before: attempt that was running at the admission.
        max_epsilon_micro: most epsilon over all runs that it signed, in 1e-6, 0 for no limit.
        max_delta_pico: the delta of that limit, in 1e-12.
    """

    class_index: int
    class_name: str
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    charged_before: tuple[int, ...]
    attempt_before: int
    max_epsilon_micro: int
    max_delta_pico: int


@dataclass(slots=True, eq=False)
class Contribution:
    """An admitted contribution.

    Attributes:
        descriptor_hash: SHA-256 of its descriptor.
        seq: position of its ADMIT leaf.
        terms: what it signed and when it came.
        charged_until: steps charged when it was withdrawn, per phase, None while active.
        attempt_until: last attempt that had charged a step when it was withdrawn, None while active.
        occurrences: steps in which it took part, where the ledger says so.
        loss: sum over them of 1/z^2.
        carried_micro: what its ADMIT leaf says that it had spent in earlier runs, in 1e-6.
        slot: its place among all contributions of its class, from 0, in the order of admission.
    """

    descriptor_hash: bytes
    seq: int
    terms: Terms
    charged_until: tuple[int, ...] | None = None
    attempt_until: int | None = None
    occurrences: int = 0
    loss: float = 0.0
    carried_micro: int = 0
    slot: int = 0

    @property
    def class_index(self) -> int:
        """Place of its class in the policy."""
        return self.terms.class_index

    @property
    def active(self) -> bool:
        """Whether it is still in its pool."""
        return self.charged_until is None


class Register:
    """All contributions of a run, in the order of their admission.

    Attributes:
        by_hash: every contribution ever admitted, by descriptor hash.
        active: contributions in the pool, per class.
        withdrawn: contributions that were withdrawn, per class.
    """

    def __init__(self, classes: Sequence[ClassRule]) -> None:
        self.by_hash: dict[bytes, Contribution] = {}
        self.active = [0] * len(classes)
        self.withdrawn = [0] * len(classes)
        self._public = [rule.public for rule in classes]
        self._terms: dict[tuple[object, ...], Terms] = {}
        self._pools = [SlotTree() for _ in classes]
        self._due: list[Contribution] = []
        self.by_number: list[Contribution] = []

    def admit(self, leaf: Admit, place: int, charged: tuple[int, ...], attempt: int) -> None:
        """Adds the contribution of an ADMIT leaf to the pool of the class at ``place``."""
        bounds = (leaf.clip_micro, leaf.sigma_micro, leaf.max_occurrences)
        limit = (leaf.max_epsilon_micro, leaf.max_delta_pico)
        key = (place, bounds, charged, attempt, limit)
        terms = self._terms.get(key)
        if terms is None:
            terms = self._terms[key] = Terms(place, leaf.class_name, *bounds, charged, attempt, *limit)
        slot = self._pools[place].append(leaf_hash(leaf.descriptor_hash))
        contribution = Contribution(leaf.descriptor_hash, leaf.seq, terms, carried_micro=leaf.carried_micro, slot=slot)
        self.by_hash[leaf.descriptor_hash] = contribution
        self.by_number.append(contribution)
        self.active[place] += 1
        if not self._public[place]:
            self._due.append(contribution)

    def withdraw(self, contribution: Contribution, charged: tuple[int, ...], attempt: int) -> None:
        """Takes a contribution out of its pool."""
        contribution.charged_until, contribution.attempt_until = charged, attempt
        place = contribution.class_index
        self.active[place] -= 1
        self.withdrawn[place] += 1
        self._pools[place].replace(contribution.slot, EMPTY_SLOT)

    def pool(self, place: int) -> tuple[int, bytes]:
        """Returns the number of active contributions of a class, and the root that commits to who they are.

        Guarantee:
            The root determines all that were ever admitted to the class, in that order, and which of them are active: it is the
            RFC 6962 root over one leaf per admission, the descriptor hash, or nothing once the contribution was withdrawn.
        """
        return self.active[place], self._pools[place].root()

    @property
    def due(self) -> int:
        """How many need a SPEND leaf at the next epoch."""
        return len(self._due)

    def spends_due(self) -> Iterator[Contribution]:
        """Yields the contributions that need a SPEND leaf at the next epoch, in the order of their admission.

        Those of public classes are never due: no epsilon is claimed for them.
        """
        return iter(self._due)

    def close_epoch(self) -> None:
        """Lets the contributions withdrawn before an EPOCH leaf need no SPEND leaf after it."""
        self._due = [contribution for contribution in self._due if contribution.active]

    def numbered(self, numbers: Iterable[int]) -> list[Contribution]:
        """Returns contributions by the number of their admission, counted from 0.

        Raises:
            LeafRefused: fewer were admitted.
        """
        wanted = list(numbers)
        if any(not 0 <= number < len(self.by_number) for number in wanted):
            raise LeafRefused("DRAW", f"number {max(wanted)} was drawn, {len(self.by_number)} were admitted")
        return [self.by_number[number] for number in wanted]
