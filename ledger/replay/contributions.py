"""Keeps who takes part in a run: every contribution, its standing, its group of equal standing, and the pools.

A group has members in an order, and the root of an RFC 6962 tree over them. It is kept while they come and go: a member joins
behind the others, when it is admitted or withdrawn, and leaves an empty place behind. Where draws are public, every step that
somebody is drawn in takes it to another group; there the groups of who is active are made anew when they are asked for after a
draw or a withdrawal, each in the order of admission.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from attest.attestation import CommonTerms
from attest.descriptor import SignedBounds
from attest.policy import ClassRule
from ledger.errors import LeafRefused
from ledger.leaves import Admit, SpendFacts, SpendKey
from ledger.leaves.records import Quoted
from ledger.merkle import SlotTree, leaf_hash


@dataclass(frozen=True, slots=True)
class AdmitSpec(Quoted):
    """Describes a contribution to admit.

    Attributes: as in `ledger.leaves.Admit`, and
        attestation: what is kept of what its contributor signed: the common terms, and the signature of 64 bytes. The anchor is
            the rest (`attest.attestation`). None where the caller has none; an export can show none then.
    """

    descriptor_hash: bytes
    class_name: str
    profile_id: int
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    attestation_hash: bytes
    key_id: bytes
    anchor: bytes
    carried_micro: int = 0
    max_epsilon_micro: int = 0
    max_delta_pico: int = 0
    attestation: tuple[CommonTerms, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """Says how far a run had been charged at some moment.

    Attributes:
        window: number of the last charged window, 0 before the first.
        attempt: at an admission the running attempt; at a withdrawal the last one that had charged a step.
        charged: steps charged over all attempts, per phase of the noise.
    """

    window: int
    attempt: int
    charged: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Holds what contributions admitted alike share; one object for all of them, compared by identity.

    Attributes:
        carried_micro: what the ADMIT leaf says that one had spent in earlier runs, in 1e-6.
        limit: most epsilon over all runs in 1e-6, and its delta in 1e-12; zeros for no limit.
    """

    class_index: int
    class_name: str
    bounds: SignedBounds
    carried_micro: int
    limit: tuple[int, int]
    since: Moment


Signed = AdmitSpec | Admit | Terms
"""Holds what a contributor signed, as an admission says it: its class, bounds and limit."""


@dataclass(slots=True, eq=False, kw_only=True)
class Standing:
    """Says how one contribution, or all contributions of a group, stand in a run.

    Attributes:
        until: how far the run had been charged when one was withdrawn, None while active.
        occurrences: steps in which one took part, where the ledger says so; else 0.
        loss: sum over them of 1/z^2.
    """

    terms: Terms
    until: Moment | None = None
    occurrences: int = 0
    loss: float = 0.0

    @property
    def class_index(self) -> int:
        """Returns the place of the class in the policy."""
        return self.terms.class_index

    @property
    def active(self) -> bool:
        """Tells whether one is still in the pool."""
        return self.until is None


EMPTY_SLOT: Final = leaf_hash(b"")
"""Stands in the tree of a pool or a group for a contribution that left it; no descriptor hash is empty."""


@dataclass(slots=True, eq=False, kw_only=True)
class Contribution(Standing):
    """Holds an admitted contribution.

    Attributes:
        slot: its place among all contributions of its class, from 0, in the order of admission.
        group: those with whom it shares a row of SPEND leaves; None in a public class.
        unnamed: whether nothing says who it is: its ADMIT leaf is gone, and it has not left. Its descriptor hash is then
            `stand_in_name`, and roots over it are not the recorded ones.
    """

    descriptor_hash: bytes
    seq: int
    slot: int
    group: "Group | None" = None
    place: int = 0
    unnamed: bool = False


def stand_in_name(seq: int) -> bytes:
    """Returns what stands for the descriptor hash of whom a pruned ADMIT leaf admitted, where nothing says it."""
    return seq.to_bytes(32, "big")


@dataclass(slots=True, eq=False, kw_only=True)
class Group(Standing):
    """Holds contributions of equal standing.

    Attributes:
        members: tree with a leaf for everybody who joined, in that order: the descriptor hash, or nothing once it left.
        told: what the last row of the group says of them, None before the first.
    """

    members: SlotTree = field(default_factory=SlotTree)
    count: int = 0
    unnamed: int = 0
    told: SpendFacts | None = None
    epsilon_micro: int = 0

    def join(self, contribution: Contribution, hashed: bytes | None = None) -> None:
        """Makes a contribution the last member, by the leaf hash of its descriptor hash where that is at hand."""
        hashed = leaf_hash(contribution.descriptor_hash) if hashed is None else hashed
        contribution.group, contribution.place = self, self.members.append(hashed)
        self.count += 1
        self.unnamed += contribution.unnamed

    def leave(self, contribution: Contribution) -> None:
        """Empties the place of a member."""
        self.members.replace(contribution.place, EMPTY_SLOT)
        self.count -= 1
        self.unnamed -= contribution.unnamed

    @property
    def key(self) -> SpendKey:
        """Returns what sets the group apart from all others of the run (`ledger.leaves.SpendRow.key`)."""
        terms, until = self.terms, None if self.until is None else self.until.window
        (clip, sigma, cap), (epsilon, delta), since = terms.bounds, terms.limit, terms.since
        signed = (terms.class_index, clip, sigma, cap, terms.carried_micro, epsilon, delta)
        return *signed, since.window, since.attempt, until, self.occurrences, self.loss


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
            group = self._joining[terms] = Group(terms=terms)
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
            group = Group(terms=terms, until=until, occurrences=contribution.occurrences, loss=contribution.loss)
            self._left[key] = group
        group.join(contribution)
        self._touched[group] = None


class DrawnGroups(Groups):
    """Keeps the groups of a run whose draws are public: those of who is active are made anew after draws."""

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[Contribution, None] = {}
        self._groups: dict[SpendKey, Group] = {}
        self._stale = False

    def admit(self, contribution: Contribution, hashed: bytes) -> None:
        """Takes a contribution that was admitted, with the leaf hash of its descriptor hash."""
        self._members[contribution] = None
        if not self._stale:
            self._join(contribution, {}, hashed)

    def withdraw(self, contribution: Contribution) -> None:
        """Takes a contribution that was withdrawn to those who stood like it and left at that moment."""
        del self._members[contribution]
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
            for member in self._members:
                self._join(member, before)
        return self._groups.values()

    def _join(self, member: Contribution, before: Mapping[SpendKey, Group], hashed: bytes | None = None) -> None:
        """Makes an active contribution the last member of its group, which has told what the group of its key told before."""
        fresh = Group(terms=member.terms, occurrences=member.occurrences, loss=member.loss)
        key = fresh.key
        group = self._groups.setdefault(key, fresh)
        if group is fresh and key in before:
            fresh.told, fresh.epsilon_micro = before[key].told, before[key].epsilon_micro
        group.join(member, hashed)
        self._touched[group] = None


class Register:
    """Keeps all contributions of a run, in the order of their admission. `unnamed`: active contributions per class of which
    nothing says who they are (`Contribution.unnamed`)."""

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
        contribution = Contribution(descriptor_hash=leaf.descriptor_hash, seq=leaf.seq, terms=terms, slot=slot, unnamed=unnamed)
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
