"""Keeps the contributions of a run in columns, and those of equal standing in groups.

A contribution takes some 90 bytes of columns, 16 more where its occurrences are counted, and 64 in each tree that it is a leaf
of. An object of its own for each would take three times that. A `Contribution` names a row, and is made when somebody asks.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any, Final, overload

from attest.attestation import CommonTerms
from attest.descriptor import SignedBounds
from ledger.leaves import Admit, SpendFacts, SpendKey
from ledger.leaves.records import Quoted
from ledger.merkle import HASH_SIZE, SlotTree, leaf_hash


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
        charged: steps charged over all attempts, per phase of the noise and group (`RunState.charged_phases`).
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


class Standing(ABC):
    """Says how one contribution, or all contributions of a group, stand in a run."""

    __slots__ = ()

    @property
    @abstractmethod
    def terms(self) -> Terms:
        """Returns what those admitted alike share."""

    @property
    @abstractmethod
    def until(self) -> Moment | None:
        """Returns how far the run had been charged when one was withdrawn, None while active."""

    @property
    @abstractmethod
    def occurrences(self) -> int:
        """Returns the steps in which one took part, where the ledger says so; else 0."""

    @property
    @abstractmethod
    def loss(self) -> float:
        """Returns the sum over these steps of 1/z^2; with correlated noise, of what each adds (`Expenditure.count`)."""

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


def stand_in_name(seq: int) -> bytes:
    """Returns what stands for the descriptor hash of whom a pruned ADMIT leaf admitted, where nothing says it."""
    return seq.to_bytes(HASH_SIZE, "big")


class Contribution(Standing):
    """Names an admitted contribution; two are equal that name the same one.

    Attributes:
        number: how many were admitted before it.
    """

    __slots__ = ("_all", "number")

    def __init__(self, columns: "Contributions", number: int) -> None:
        self._all = columns
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contribution) and self.number == other.number and self._all is other._all

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"Contribution({self.number}, {self.descriptor_hash.hex()})"

    @property
    def descriptor_hash(self) -> bytes:
        """Returns SHA-256 of what was signed; what stands for it while `unnamed`."""
        return self._all.name(self.number)

    @property
    def seq(self) -> int:
        """Returns the position of its ADMIT leaf."""
        return self._all.seqs[self.number]

    @property
    def slot(self) -> int:
        """Returns its place among all contributions of its class, from 0, in the order of admission."""
        return self._all.slots[self.number]

    @property
    def unnamed(self) -> bool:
        """Tells whether nothing says who it is: its ADMIT leaf is gone, and it has not left. Its descriptor hash is then
        `stand_in_name`, and roots over it are not the recorded ones."""
        return self.number in self._all.unnamed

    @property
    def group(self) -> "Group | None":
        """Returns those with whom it shares a row of SPEND leaves; None in a public class."""
        return self._all.groups[self.number]

    @property
    def place(self) -> int:
        """Returns its place among all who joined the group, from 0."""
        return self._all.places[self.number]

    @property
    def terms(self) -> Terms:
        """Returns what those admitted alike share."""
        return self._all.terms[self.number]

    @property
    def until(self) -> Moment | None:
        """Returns how far the run had been charged when it was withdrawn, None while active."""
        return self._all.until.get(self.number)

    @property
    def occurrences(self) -> int:
        """Returns the steps in which it took part, where the ledger says so; else 0."""
        counts = self._all.occurrences
        return counts[self.number] if self.number < len(counts) else 0

    @property
    def loss(self) -> float:
        """Returns the sum over these steps of 1/z^2."""
        losses = self._all.losses
        return losses[self.number] if self.number < len(losses) else 0.0

    def count(self, loss: float) -> None:
        """Counts one more step, and its 1/z^2."""
        self._all.counted(self.number, loss)

    def join(self, group: "Group", place: int) -> None:
        """Puts it into a group."""
        self._all.groups[self.number], self._all.places[self.number] = group, place

    def leave(self, moment: Moment) -> None:
        """Withdraws it."""
        self._all.until[self.number] = moment


class Group(Standing):
    """Holds contributions of equal standing.

    A group has members in an order, and the root of an RFC 6962 tree over them. It is kept while they come and go: a member
    joins behind the others, when it is admitted or withdrawn, and leaves an empty place behind.

    Attributes:
        members: tree with a leaf for everybody who joined, in that order: the descriptor hash, or nothing once it left.
        count: how many are there. unnamed: how many of them nothing names.
        told: what the last row of the group says of them, None before the first.
        epsilon_micro: what that row says that they have spent.
    """

    __slots__ = ("count", "epsilon_micro", "loss", "members", "occurrences", "terms", "told", "unnamed", "until")
    terms: Terms
    until: Moment | None
    occurrences: int
    loss: float

    def __init__(self, terms: Terms, *, until: Moment | None = None, occurrences: int = 0, loss: float = 0.0) -> None:
        self.terms, self.until, self.occurrences, self.loss = terms, until, occurrences, loss
        self.members, self.count, self.unnamed = SlotTree(), 0, 0
        self.told: SpendFacts | None = None
        self.epsilon_micro = 0

    def join(self, contribution: Contribution, hashed: bytes | None = None) -> None:
        """Makes a contribution the last member, by the leaf hash of its descriptor hash where that is at hand."""
        hashed = leaf_hash(contribution.descriptor_hash) if hashed is None else hashed
        contribution.join(self, self.members.append(hashed))
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


class Contributions(Sequence[Contribution]):
    """Keeps what is known of contributions in columns, in the order of admission; `Contribution` and `Register` write them.

    Attributes:
        terms, seqs, slots, groups, places: as of `Contribution`, by its number.
        until: moments of those who were withdrawn.
        unnamed: who is unnamed.
        occurrences, losses: as long as somebody was counted.
    """

    __slots__ = (
        "_index", "_names", "_of_class", "groups", "losses", "occurrences", "places", "seqs", "slots", "terms", "unnamed",
        "until",
    )  # fmt: skip

    def __init__(self) -> None:
        self._names, self._index = bytearray(), Index()
        self.terms: list[Terms] = []
        self.groups: list[Group | None] = []
        self.seqs, self.slots, self.places = array("Q"), array("I"), array("I")
        self.until: dict[int, Moment] = {}
        self.unnamed: set[int] = set()
        self.occurrences, self.losses = array("Q"), array("d")
        self._of_class: dict[int, tuple[tuple[int, int], Any, Any, Any]] = {}  # what `spend` needs of a class, at some size

    def append(self, leaf: Admit, terms: Terms, slot: int, *, unnamed: bool) -> Contribution:
        """Adds a contribution behind the last one."""
        number = len(self.terms)
        assert len(leaf.descriptor_hash) == HASH_SIZE
        self._names += leaf.descriptor_hash
        self._index.add(leaf.descriptor_hash, number, self._names)
        self.terms.append(terms)
        self.groups.append(None)
        self.seqs.append(leaf.seq)
        self.slots.append(slot)
        self.places.append(0)
        if unnamed:
            self.unnamed.add(number)
        return Contribution(self, number)

    def name(self, number: int) -> bytes:
        """Returns the descriptor hash of a contribution."""
        return bytes(self._names[HASH_SIZE * number : HASH_SIZE * (number + 1)])

    def rename(self, number: int, descriptor_hash: bytes) -> None:
        """Says who an unnamed contribution is."""
        self._names[HASH_SIZE * number : HASH_SIZE * (number + 1)] = descriptor_hash
        self._index.add(descriptor_hash, number, self._names)
        self.unnamed.discard(number)

    def find(self, descriptor_hash: bytes) -> int | None:
        """Returns the number of the contribution with this descriptor hash; None if there is none."""
        return self._index.find(descriptor_hash, self._names)

    def counted(self, number: int, loss: float) -> None:
        """Counts a step of a contribution, and its 1/z^2."""
        missing = len(self.terms) - len(self.occurrences)
        if missing:
            self.occurrences.frombytes(bytes(8 * missing))
            self.losses.frombytes(bytes(8 * missing))
        self.occurrences[number] += 1
        self.losses[number] += loss

    def spend(
        self, place: int, period: int, added: Sequence[float], over: Callable[[Terms], float]
    ) -> list[Contribution]:
        """Adds to the sums over steps of a class, for all of it at once; returns who has more then and left before, in order.

        Args: as of `Register.spend`.
        """
        import numpy as np

        count = len(self.losses)
        known = self._of_class.get(place)
        if known is None or known[0] != (count, period):
            numbers = np.fromiter((n for n in range(count) if self.terms[n].class_index == place), dtype=np.int64)
            of_terms = {id(terms): over(terms) for terms in self.terms if terms.class_index == place}
            squares = np.fromiter((of_terms[id(self.terms[n])] for n in numbers.tolist()), dtype=np.float64)
            known = self._of_class[place] = (count, period), numbers, np.array(self.slots)[numbers] % period, squares
        _, numbers, firsts, squares = known
        reached = firsts < len(added)
        numbers, firsts, squares = numbers[reached], firsts[reached], squares[reached]
        values = np.array(added)[firsts]
        more = (values > 0.0) & (np.frombuffer(self.occurrences, dtype=np.uint64)[numbers] > 0)
        numbers = numbers[more]
        np.frombuffer(self.losses, dtype=np.float64)[numbers] += values[more] / squares[more]
        left = np.fromiter(self.until, dtype=np.int64, count=len(self.until))
        return [Contribution(self, number) for number in np.intersect1d(left, numbers).tolist()]

    def __len__(self) -> int:
        return len(self.terms)

    @overload
    def __getitem__(self, index: int) -> Contribution: ...
    @overload
    def __getitem__(self, index: slice) -> list[Contribution]: ...
    def __getitem__(self, index: int | slice) -> Contribution | list[Contribution]:
        if isinstance(index, slice):
            return [Contribution(self, number) for number in range(len(self))[index]]
        return Contribution(self, range(len(self))[index])

    def __iter__(self) -> Iterator[Contribution]:
        return (Contribution(self, number) for number in range(len(self)))


class ByHash(Mapping[bytes, Contribution]):
    """Finds contributions by their descriptor hashes; in the order of admission."""

    __slots__ = ("_all",)

    def __init__(self, columns: Contributions) -> None:
        self._all = columns

    def __getitem__(self, descriptor_hash: bytes) -> Contribution:
        number = self._all.find(descriptor_hash)
        if number is None:
            raise KeyError(descriptor_hash)
        return Contribution(self._all, number)

    def __contains__(self, descriptor_hash: object) -> bool:
        return isinstance(descriptor_hash, bytes) and self._all.find(descriptor_hash) is not None

    def __iter__(self) -> Iterator[bytes]:
        return map(self._all.name, range(len(self._all)))

    def __len__(self) -> int:
        return len(self._all)

    def values(self) -> ValuesView[Contribution]:
        """Returns the contributions, none of which is looked up by its name."""
        return _Values(self)

    def items(self) -> ItemsView[bytes, Contribution]:
        """Returns descriptor hashes with contributions, none of which is looked up by its name."""
        return _Items(self)


class _Values(ValuesView[Contribution]):
    def __init__(self, found: ByHash) -> None:
        super().__init__(found)
        self._all = found._all

    def __iter__(self) -> Iterator[Contribution]:
        return iter(self._all)


class _Items(ItemsView[bytes, Contribution]):
    def __init__(self, found: ByHash) -> None:
        super().__init__(found)
        self._all = found._all

    def __iter__(self) -> Iterator[tuple[bytes, Contribution]]:
        return ((contribution.descriptor_hash, contribution) for contribution in self._all)


class Index:
    """Finds the numbers of names of 32 bytes, which lie behind one another in a block of memory: 8 to 16 bytes a name.

    A table of numbers, at most half full, with linear probing. A search begins at Python's hash of the name, which is keyed
    anew in every process, so that nobody can choose names that collide. A number whose name has changed is found by the new one
    alone: what stands in the table is held against the names.
    """

    __slots__ = ("_mask", "_table", "_used")

    def __init__(self) -> None:
        self._resize(8)

    def find(self, name: bytes, names: bytearray) -> int | None:
        """Returns the number of a name; None if it is not there."""
        table, mask = self._table, self._mask
        place = hash(name) & mask
        while entry := table[place]:
            if names[HASH_SIZE * (entry - 1) : HASH_SIZE * entry] == name:
                return entry - 1
            place = (place + 1) & mask
        return None

    def add(self, name: bytes, number: int, names: bytearray) -> None:
        """Adds the number of a name, which stands among the names already."""
        if 2 * (self._used + 1) > len(self._table):
            count = len(names) // HASH_SIZE
            # More than twice as many, so that a fixed number of names can be renamed for long without a new table.
            self._resize(1 << (3 * count - 1).bit_length())
            for other in range(count):
                self._put(bytes(names[HASH_SIZE * other : HASH_SIZE * (other + 1)]), other)
        else:
            self._put(name, number)

    def _resize(self, size: int) -> None:
        self._table, self._mask, self._used = array("I", [0]) * size, size - 1, 0

    def _put(self, name: bytes, number: int) -> None:
        table, mask = self._table, self._mask
        place = hash(name) & mask
        while table[place]:
            place = (place + 1) & mask
        table[place] = number + 1
        self._used += 1
