"""Contributions of equal standing in groups: they have spent alike, so one row of a SPEND leaf tells it for all of them.

A group has members in an order, and the root of an RFC 6962 tree over them. It is kept while they come and go: a member joins
behind the others, when it is admitted or withdrawn, and leaves an empty place behind. Where draws are public, every step that
somebody is drawn in takes it to another group; there the groups of who is active are made anew when they are asked for, each in
the order of admission.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ledger.leaves import SpendFacts, SpendKey
from ledger.merkle import SlotTree, leaf_hash
from ledger.rules.standing import Moment, Standing, Terms

EMPTY_SLOT: Final = leaf_hash(b"")
"""What stands in the tree of a pool or a group for a contribution that left it; no descriptor hash is empty."""


@dataclass(slots=True, eq=False, kw_only=True)
class Contribution(Standing):
    """An admitted contribution.

    Attributes:
        descriptor_hash: SHA-256 of its descriptor.
        seq: position of its ADMIT leaf.
        slot: its place among all contributions of its class, from 0, in the order of admission.
        group: those with whom it shares a row of SPEND leaves; None in a public class.
        place: its place in the tree of the group.
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
    """Contributions of equal standing.

    Attributes:
        members: tree with a leaf for everybody who joined, in that order: the descriptor hash, or nothing once it left.
        count: how many members there are.
        unnamed: how many of them are unnamed.
        told: what the last row of the group says of them, None before the first.
        epsilon_micro: the epsilon of that row, in 1e-6.
    """

    members: SlotTree = field(default_factory=SlotTree)
    count: int = 0
    unnamed: int = 0
    told: SpendFacts | None = None
    epsilon_micro: int = 0

    def join(self, contribution: Contribution, hashed: bytes | None = None) -> None:
        """Makes a contribution the last member.

        Args:
            contribution: who joins.
            hashed: the leaf hash of its descriptor hash, where it is at hand.
        """
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
        """What sets the group apart from all others of the run (`ledger.leaves.SpendRow.key`)."""
        terms, until = self.terms, None if self.until is None else self.until.window
        bounds = (terms.class_index, terms.clip_micro, terms.sigma_micro, terms.max_occurrences)
        limits = (terms.carried_micro, terms.max_epsilon_micro, terms.max_delta_pico)
        return *bounds, *limits, terms.since.window, terms.since.attempt, until, self.occurrences, self.loss


def order(group: Group) -> tuple[float, ...]:
    """Returns by what groups are sorted: their keys, field by field, who is active before who left."""
    return tuple(-1 if value is None else value for value in group.key)


class Groups:
    """The groups of a run whose draws are secret."""

    def __init__(self) -> None:
        """Begins without a member."""
        self._joining: dict[Terms, Group] = {}
        self._active: dict[Group, None] = {}  # those with a member; who has none costs an epoch nothing
        self._left: dict[tuple[Terms, Moment, int, float], Group] = {}
        self._entered: dict[Group, None] = {}

    def admit(self, contribution: Contribution, hashed: bytes) -> None:
        """Takes a contribution that was admitted, with the leaf hash of its descriptor hash."""
        terms = contribution.terms
        group = self._joining.get(terms)
        if group is None:
            group = self._joining[terms] = Group(terms=terms)
        group.join(contribution, hashed)
        self._active[group] = None

    def withdraw(self, contribution: Contribution) -> None:
        """Takes a contribution that was withdrawn to those who stood like it and left at that moment."""
        before = contribution.group
        if before is not None:
            before.leave(contribution)
            if not before.count:
                del self._active[before]
        self._enter(contribution)

    def draw(self) -> None:
        """Takes note that occurrences were counted."""

    def present(self) -> Iterable[Group]:
        """Returns what may have changed since the last epoch: the groups of who is active, and those that somebody entered."""
        return (*self._active, *self._entered)

    def close_epoch(self) -> None:
        """Takes note that every group has told what changed."""
        self._entered.clear()

    def _enter(self, contribution: Contribution) -> None:
        terms, until = contribution.terms, contribution.until
        assert until is not None
        key = (terms, until, contribution.occurrences, contribution.loss)
        group = self._left.get(key)
        if group is None:
            group = Group(terms=terms, until=until, occurrences=contribution.occurrences, loss=contribution.loss)
            self._left[key] = group
        group.join(contribution)
        self._entered[group] = None


class DrawnGroups(Groups):
    """The groups of a run whose draws are public: those of who is active are made anew when they are asked for."""

    def __init__(self) -> None:
        """Begins without a member."""
        super().__init__()
        self._members: dict[Contribution, None] = {}
        self._groups: dict[SpendKey, Group] = {}
        self._stale = False

    def admit(self, contribution: Contribution, hashed: bytes) -> None:
        """Takes a contribution that was admitted, with the leaf hash of its descriptor hash."""
        self._members[contribution] = None
        self._stale = True

    def withdraw(self, contribution: Contribution) -> None:
        """Takes a contribution that was withdrawn to those who stood like it and left at that moment."""
        del self._members[contribution]
        self._stale = True
        self._enter(contribution)

    def draw(self) -> None:
        """Takes note that occurrences were counted."""
        self._stale = True

    def present(self) -> Iterable[Group]:
        """Returns the groups of who is active, and those that somebody entered since the last epoch."""
        if self._stale:
            self._stale, before, self._groups = False, self._groups, {}
            for member in self._members:
                fresh = Group(terms=member.terms, occurrences=member.occurrences, loss=member.loss)
                key = fresh.key
                group = self._groups.get(key)
                if group is None:
                    group = self._groups[key] = fresh
                    if key in before:
                        fresh.told, fresh.epsilon_micro = before[key].told, before[key].epsilon_micro
                group.join(member)
        return (*self._groups.values(), *self._entered)
