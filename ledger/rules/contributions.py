"""Who takes part in a run, as its ledger tells: everybody ever admitted, and the pools of who is active."""

from collections.abc import Iterable, Sequence

from attest.policy import ClassRule
from ledger.errors import LeafRefused
from ledger.leaves import Admit
from ledger.merkle import SlotTree, leaf_hash
from ledger.rules.groups import EMPTY_SLOT, Contribution, DrawnGroups, Groups
from ledger.rules.standing import Moment, Terms


class Register:
    """All contributions of a run, in the order of their admission.

    Attributes:
        by_hash: every contribution ever admitted, by descriptor hash.
        by_number: the same by the number of their admission, from 0.
        active: contributions in the pool, per class.
        withdrawn: contributions that were withdrawn, per class.
        groups: those of private classes in groups.
        unnamed: active contributions per class of which nothing says who they are (`Contribution.unnamed`).
    """

    def __init__(self, classes: Sequence[ClassRule], *, occurrences_public: bool = False) -> None:
        self.by_hash: dict[bytes, Contribution] = {}
        self.by_number: list[Contribution] = []
        self.active = [0] * len(classes)
        self.withdrawn = [0] * len(classes)
        self.unnamed = [0] * len(classes)
        self._public = [rule.public for rule in classes]
        self._terms: dict[tuple[object, ...], Terms] = {}
        self._last: tuple[tuple[object, ...], Terms] | None = None  # of the last admission: spares a hash
        self._pools = [SlotTree() for _ in classes]
        self.groups: Groups = DrawnGroups() if occurrences_public else Groups()

    def admit(self, leaf: Admit, place: int, moment: Moment, *, unnamed: bool = False) -> None:
        """Adds the contribution of an ADMIT leaf to the pool of the class at ``place``.

        Args:
            leaf: the leaf.
            place: of its class.
            moment: how far the run has been charged.
            unnamed: whether its descriptor hash only stands for one.
        """
        bounds = (leaf.clip_micro, leaf.sigma_micro, leaf.max_occurrences)
        limits = (leaf.carried_micro, leaf.max_epsilon_micro, leaf.max_delta_pico)
        key = (place, bounds, limits, moment)
        if self._last is None or self._last[0] != key:
            terms = self._terms.get(key)
            if terms is None:
                terms = self._terms[key] = Terms(place, leaf.class_name, *bounds, *limits, moment)
            self._last = key, terms
        terms = self._last[1]
        hashed = leaf_hash(leaf.descriptor_hash)
        slot = self._pools[place].append(hashed)
        contribution = Contribution(
            descriptor_hash=leaf.descriptor_hash, seq=leaf.seq, terms=terms, slot=slot, unnamed=unnamed
        )
        self.unnamed[place] += unnamed
        self.by_hash[leaf.descriptor_hash] = contribution
        self.by_number.append(contribution)
        self.active[place] += 1
        if not self._public[place]:
            self.groups.admit(contribution, hashed)

    def name(self, contribution: Contribution, descriptor_hash: bytes) -> None:
        """Says who an unnamed contribution is; pool and group are then as if it had been known from the start."""
        place, hashed = contribution.class_index, leaf_hash(descriptor_hash)
        del self.by_hash[contribution.descriptor_hash]
        contribution.descriptor_hash, contribution.unnamed = descriptor_hash, False
        self.by_hash[descriptor_hash] = contribution
        self.unnamed[place] -= 1
        self._pools[place].replace(contribution.slot, hashed)
        if contribution.group is not None:
            contribution.group.members.replace(contribution.place, hashed)
            contribution.group.unnamed -= 1

    def withdraw(self, contribution: Contribution, moment: Moment) -> None:
        """Takes a contribution out of its pool."""
        contribution.until = moment
        place = contribution.class_index
        self.unnamed[place] -= contribution.unnamed
        self.active[place] -= 1
        self.withdrawn[place] += 1
        self._pools[place].replace(contribution.slot, EMPTY_SLOT)
        if not self._public[place]:
            self.groups.withdraw(contribution)

    def pool(self, place: int) -> tuple[int, bytes]:
        """Returns the number of active contributions of a class, and the root that commits to who they are.

        Guarantee:
            The root determines all that were ever admitted to the class, in that order, and which of them are active: it is the
            RFC 6962 root over one leaf per admission, the descriptor hash, or nothing once the contribution was withdrawn.
        """
        return self.active[place], self._pools[place].root()

    def numbered(self, numbers: Iterable[int]) -> list[Contribution]:
        """Returns contributions by the number of their admission, counted from 0.

        Raises:
            LeafRefused: fewer were admitted.
        """
        wanted = list(numbers)
        if any(not 0 <= number < len(self.by_number) for number in wanted):
            raise LeafRefused("DRAW", f"number {max(wanted)} was drawn, {len(self.by_number)} were admitted")
        return [self.by_number[number] for number in wanted]
