"""Which attestations the contributions in the pool have, and which of them have ended: counted by terms, not one by one."""

from array import array
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from attest.schema.plain import MAX_TIME
from ledger.rules.groups import Contribution


class AttestedPool:
    """Counts the contributions in the pool by the terms of their attestations.

    What a charge asks takes time in the terms that ended, not in the contributions: their ends lie in a heap.
    """

    def __init__(self, classes: int) -> None:
        """Begins without a contribution.

        Args:
            classes: number of classes of the policy.
        """
        self._active, self._not_before, self._not_after, self._revoked_at = (array("q") for _ in range(4))
        self._ends: list[tuple[int, int]] = []
        self._revocations: list[tuple[int, int]] = []
        self._late: set[int] = set()
        self._barred: dict[int, int] = {}
        self._terms_of = [array("i") for _ in range(classes)]  # by the slot of a contribution in its class

    @property
    def size(self) -> int:
        """Number of terms."""
        return len(self._active)

    def add_terms(self, not_before: int, not_after: int, revoked_at: int = MAX_TIME) -> None:
        """Takes the next terms.

        Args:
            not_before: first second of their validity.
            not_after: first second after their validity.
            revoked_at: first second from which on the owner's log says that their key is revoked; `MAX_TIME` for never.
        """
        self._active.append(0)
        self._not_before.append(not_before)
        self._not_after.append(not_after)
        self._revoked_at.append(revoked_at)

    def bar(self, number: int, since: int | None) -> None:
        """Takes from when on the state of the registry by which the run goes supports some terms no more; None for never."""
        if since is None:
            self._barred.pop(number, None)
        else:
            self._barred[number] = since

    def barred(self, time: int) -> int:
        """Returns how many contributions are in the pool that the state in force supports no more; takes time in such terms."""
        return sum(self._active[number] for number, since in self._barred.items() if since <= time)

    def is_barred(self, contribution: Contribution, time: int) -> bool | None:
        """Returns whether the state in force supports a contribution no more; None where its terms are not known."""
        number = self._number(contribution)
        return None if number < 0 else self._barred.get(number, time + 1) <= time

    def enter(self, contribution: Contribution, number: int | None) -> None:
        """Takes an admitted contribution; number of its terms, None where these are not known."""
        terms_of = self._terms_of[contribution.class_index]
        terms_of.extend([-1] * (contribution.slot - len(terms_of)))
        terms_of.append(-1 if number is None else number)
        if number is None:
            return
        if not self._active[number]:
            heappush(self._ends, (self._not_after[number], number))
            if self._revoked_at[number] < MAX_TIME:
                heappush(self._revocations, (self._revoked_at[number], number))
        self._active[number] += 1

    def leave(self, contribution: Contribution) -> int | None:
        """Takes a contribution out; returns the first second after its attestation, None where that is not known."""
        number = self._number(contribution)
        if number < 0:
            return None
        self._active[number] -= 1
        return self._not_after[number]

    def _number(self, contribution: Contribution) -> int:
        terms_of = self._terms_of[contribution.class_index]
        return terms_of[contribution.slot] if contribution.slot < len(terms_of) else -1

    def ended(self, time: int) -> Iterator[tuple[int, int]]:
        """Yields first second after validity, and number of contributions, of terms that ended by a time; each once."""
        for number in _due(self._ends, time):
            if self._active[number]:
                yield self._not_after[number], self._active[number]

    def early(self, time: int) -> int:
        """Returns how many contributions are in the pool whose attestations are not valid yet; takes time in all terms."""
        return sum(count for count, first in zip(self._active, self._not_before, strict=True) if first > time)

    def revoked(self, time: int) -> int:
        """Returns how many contributions are in the pool whose key was revoked by a time, as the owner's log then said."""
        self._late.update(_due(self._revocations, time))
        return sum(self._active[number] for number in self._late)


def _due(heap: list[tuple[int, int]], time: int) -> Iterable[int]:
    """Takes from a heap of (moment, number) what is due by a time; each number once."""
    found: dict[int, None] = {}
    while heap and heap[0][0] <= time:
        found[heappop(heap)[1]] = None
    return found
