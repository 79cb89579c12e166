"""Keeps who takes part in a run: the pools of its classes, and the groups of equal standing as they change.

Where draws are public, every step that somebody is drawn in takes it to another group; there the groups of who is active are
made anew when they are asked for after a draw or a withdrawal, each in the order of admission.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from attest.policy import ClassRule
from ledger.errors import LeafRefused
from ledger.leaves import Admit, SpendKey
from ledger.merkle import SlotTree, leaf_hash
from ledger.replay.contributions import EMPTY_SLOT, ByHash, Contribution, Contributions, Group, Moment, Terms


def order(group: Group) -> tuple[float, ...]:
    """Returns by what groups are sorted: their keys, field by field, who is active before who left."""
    return tuple(-1 if value is None else value for value in group.key)


class Groups:
    """Keeps the groups of a run whose draws are secret."""

    def __init__(self) -> None:
        self._joining: dict[Terms, Group] = {}
        self._active: dict[Group, None] = {}  # those with a member; who has none costs an epoch nothing
        self._left: dict[tuple[Terms, Moment, int, float], Group] = {}
        self._touched: dict[Group, None] = {}  # that somebody joined or left since the last epoch
        self._told: tuple[int, ...] | None = None  # charged steps by the last epoch, None where a row was missing

    def admit(self, contribution: Contribution, hashed: bytes) -> None:
        """Takes a contribution that was admitted, with the leaf hash of its descriptor hash."""
        terms = contribution.terms
        group = self._joining.get(terms)
        if group is None:
            group = self._joining[terms] = Group(terms)
        group.join(contribution, hashed)
        self._active[group] = self._touched[group] = None

    def withdraw(self, contribution: Contribution) -> None:
        """Takes a contribution that was withdrawn to those who stood like it and left at that moment."""
        before = contribution.group
        if before is not None:
            before.leave(contribution)
            if before.count:
                self._touched[before] = None
            else:
                del self._active[before]
                self._touched.pop(before, None)
        self._enter(contribution)

    def draw(self) -> None:
        """Takes note that occurrences were counted."""

    def dearer(self) -> None:
        """Takes note that everybody may have spent more than rows say, with as many steps, so that each group has one again."""
        for group in (*self._active, *self._left.values()):
            if group.count:
                group.told = None
                self._touched[group] = None

    def spent(self, contribution: Contribution) -> None:
        """Takes who had left before to those who left at that moment and have spent as much as it has now."""
        before = contribution.group
        assert before is not None
        before.leave(contribution)
        if before.count:
            self._touched[before] = None
        else:
            self._touched.pop(before, None)
        self._enter(contribution)

    def active(self) -> Iterable[Group]:
        """Returns the groups of who is active."""
        return self._active

    def changed(self, charged: tuple[int, ...]) -> Iterable[Group]:
        """Returns what may have changed since the last epoch, now that these steps are charged: the groups that somebody joined
        or left and, after a charge, all of who is active. So an epoch costs what it has rows for."""
        active = () if charged == self._told else self.active()
        return {**dict.fromkeys(active), **self._touched}

    def close_epoch(self, charged: tuple[int, ...], *, whole: bool) -> None:
        """Takes note of an epoch, and whether every group told what had changed by then."""
        self._touched.clear()
        self._told = charged if whole else None

    def _enter(self, contribution: Contribution) -> None:
        terms, until = contribution.terms, contribution.until
        assert until is not None
        key = (terms, until, contribution.occurrences, contribution.loss)
        group = self._left.get(key)
        if group is None:
            group = Group(terms, until=until, occurrences=contribution.occurrences, loss=contribution.loss)
            self._left[key] = group
        group.join(contribution)
        self._touched[group] = None


class DrawnGroups(Groups):
    """Keeps the groups of a run whose draws are public: those of who is active are made anew after draws."""

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[int, Contribution] = {}  # who is active, by number
        self._groups: dict[SpendKey, Group] = {}
        self._stale = False

    def admit(self, contribution: Contribution, hashed: bytes) -> None:
        """Takes a contribution that was admitted, with the leaf hash of its descriptor hash."""
        self._members[contribution.number] = contribution
        if not self._stale:
            self._join(contribution, {}, hashed)

    def withdraw(self, contribution: Contribution) -> None:
        """Takes a contribution that was withdrawn to those who stood like it and left at that moment."""
        del self._members[contribution.number]
        self.draw()
        self._enter(contribution)

    def draw(self) -> None:
        """Takes note that occurrences were counted."""
        self._stale, self._told = True, None

    def active(self) -> Iterable[Group]:
        """Returns the groups of who is active."""
        if self._stale:
            self._stale, before, self._groups = False, self._groups, {}
            self._touched = {group: None for group in self._touched if not group.active}
            for member in self._members.values():
                self._join(member, before)
        return self._groups.values()

    def _join(self, member: Contribution, before: Mapping[SpendKey, Group], hashed: bytes | None = None) -> None:
        """Makes an active contribution the last member of its group, which has told what the group of its key told before."""
        fresh = Group(member.terms, occurrences=member.occurrences, loss=member.loss)
        key = fresh.key
        group = self._groups.setdefault(key, fresh)
        if group is fresh and key in before:
            fresh.told, fresh.epsilon_micro = before[key].told, before[key].epsilon_micro
        group.join(member, hashed)
        self._touched[group] = None


class Register:
    """Keeps all contributions of a run, the pools of their classes and their groups.

    Attributes:
        by_number: contributions in the order of their admission. by_hash: them, by descriptor hash.
        active, withdrawn: how many there are of each class.
        unnamed: how many of the active ones of each class nothing names (`Contribution.unnamed`).
    """

    def __init__(self, classes: Sequence[ClassRule], *, occurrences_public: bool = False) -> None:
        self.by_number = Contributions()
        self.by_hash = ByHash(self.by_number)
        self.active = [0] * len(classes)
        self.withdrawn = [0] * len(classes)
        self.unnamed = [0] * len(classes)
        self._public = [rule.public for rule in classes]
        self._terms: dict[tuple[object, ...], Terms] = {}
        self._last: tuple[tuple[object, ...], Terms] | None = None  # of the last admission: spares a hash
        self._pools = [SlotTree() for _ in classes]
        self.groups: Groups = DrawnGroups() if occurrences_public else Groups()

    def admit(self, leaf: Admit, place: int, moment: Moment, *, unnamed: bool = False) -> None:
        """Adds the contribution of an ADMIT leaf to the pool of the class at ``place``; the descriptor hash of an unnamed one
        only stands for one."""
        key = (place, leaf.shared(), moment)
        if self._last is None or self._last[0] != key:
            terms = self._terms.get(key)
            if terms is None:
                terms = self._terms[key] = Terms(place, leaf.class_name, leaf.bounds, leaf.carried_micro, leaf.limit, moment)
            self._last = key, terms
        terms = self._last[1]
        hashed = leaf_hash(leaf.descriptor_hash)
        slot = self._pools[place].append(hashed)
        contribution = self.by_number.append(leaf, terms, slot, unnamed=unnamed)
        self.unnamed[place] += unnamed
        self.active[place] += 1
        if not self._public[place]:
            self.groups.admit(contribution, hashed)

    def name(self, contribution: Contribution, descriptor_hash: bytes) -> None:
        """Says who an unnamed contribution is; pool and group are then as if it had been known from the start."""
        place, hashed = contribution.class_index, leaf_hash(descriptor_hash)
        self.by_number.rename(contribution.number, descriptor_hash)
        self.unnamed[place] -= 1
        self._pools[place].replace(contribution.slot, hashed)
        if contribution.group is not None:
            contribution.group.members.replace(contribution.place, hashed)
            contribution.group.unnamed -= 1

    def withdraw(self, contribution: Contribution, moment: Moment) -> None:
        """Takes a contribution out of its pool."""
        contribution.leave(moment)
        place = contribution.class_index
        self.unnamed[place] -= contribution.unnamed
        self.active[place] -= 1
        self.withdrawn[place] += 1
        self._pools[place].replace(contribution.slot, EMPTY_SLOT)
        if not self._public[place]:
            self.groups.withdraw(contribution)

    def spend(self, place: int, period: int, added: Sequence[float], over: Callable[[Terms], float]) -> None:
        """Adds to what contributions of the private class at ``place`` spent, beside their occurrences: to whom was counted at
        all, what stands at its slot modulo the period, over a number that follows from its terms."""
        for contribution in self.by_number.spend(place, period, added, over):
            self.groups.spent(contribution)

    def pool(self, place: int) -> tuple[int, bytes]:
        """Returns the number of active contributions of a class, and the root that commits to who they are.

        Guarantee: The root determines all that were ever admitted to the class, in that order, and which of them are active: it
        is the RFC 6962 root over one leaf per admission, the descriptor hash, or nothing once the contribution was withdrawn.
        """
        return self.active[place], self._pools[place].root()

    def numbered(self, numbers: Iterable[int]) -> list[Contribution]:
        """Returns contributions by the number of their admission, counted from 0. Raises LeafRefused: fewer were admitted."""
        wanted = list(numbers)
        if any(not 0 <= number < len(self.by_number) for number in wanted):
            raise LeafRefused("DRAW", f"number {max(wanted)} was drawn, {len(self.by_number)} were admitted")
        return [self.by_number[number] for number in wanted]
