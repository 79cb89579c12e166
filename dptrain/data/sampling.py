"""Sample the contributions of a step: Poisson from the keyed stream, or turns in a signed order where occurrences are public.

Under Poisson sampling every contribution of a class is drawn independently at every step with the class's rate. A draw is a
function of (key, step, slot): no shuffle, no epoch, no loader; an empty draw is a step like any other.
"""

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np

from attest.policy import Policy
from attest.schedule.turns import Order
from dptrain.noise.keystream import KeyStream
from ledger.leaves.numerics import most_of

_SLOTS_PER_BLOCK = 2

_AT_ONCE = 1 << 16
"""Slots that are looked at together, so that a draw takes the memory of these and no more, whatever the pool."""

One = TypeVar("One")


class Sampler(ABC):
    """Draws the slots of one logical step, and counts how often each was drawn.

    It keeps six or seven bytes a slot, and eight more where any slot has a cap.

    Guarantee: a slot whose cap is used up or that was closed (withdrawn, expired) is silently not drawn, and none takes its
    place.

    Attributes:
        occurrences: how often each slot was drawn, uint32: there are fewer steps than 2^32.
    """

    def __init__(self, caps: Sequence[int], forms: np.ndarray | None = None) -> None:
        """``caps[f]`` is the maximal number of occurrences, 0 for none, of the slots of form f. ``forms`` has the form of every
        slot, None where slot i is of form i."""
        count = len(caps) if forms is None else len(forms)
        self._caps = _of_each(np.array(caps, dtype=np.int64), forms) if any_capped(caps, forms) else None
        self._open = np.ones(count, dtype=bool)
        self.occurrences = np.zeros(count, dtype=np.uint32)

    @abstractmethod
    def _chosen(self, step: int) -> np.ndarray:
        """Lists the slots that a step would draw, closed and capped ones included: ascending int64."""

    @property
    def capped(self) -> bool:
        """Tell if any slot has a cap on its occurrences, which makes the past of a run matter after a restart."""
        return self._caps is not None

    def close(self, slots: Iterable[int]) -> None:
        """Stops drawing these slots for the rest of the run; they stay in place as null contributions."""
        for slot in slots:
            self._open[slot] = False

    def draw(self, step: int) -> np.ndarray:
        """Slots (ascending int64) of logical step ``step``; counts them towards their caps."""
        slots = self._chosen(step)
        slots = slots[self._open[slots]]
        if self._caps is not None:
            caps = self._caps[slots]
            slots = slots[(caps == 0) | (self.occurrences[slots] < caps)]
        self.occurrences[slots] += 1
        return slots


class PoissonSampler(Sampler):
    """Draws each slot independently of the others.

    Guarantee: given the key is uniform, slot i is drawn at step t with probability ``floor(q_i * 2^64) / 2^64 <= q_i``,
    independently over slots and steps (with groups: over those in the turn of its group, and in no other), except that a slot
    whose cap is used up or that was closed (withdrawn, expired) is silently not drawn. Both exceptions only lower the
    conditional probability, so Poisson(q) accounting stays an upper bound (docs/mechanism, Lemma 1).
    """

    def __init__(
        self,
        stream: KeyStream,
        rates: Sequence[Fraction],
        caps: Sequence[int],
        forms: np.ndarray | None = None,
        turns: tuple[int, np.ndarray] | None = None,
    ) -> None:
        """``rates[f]`` is the sampling rate of the slots of form f; ``caps`` and ``forms`` as for `Sampler`. ``turns``: a
        number of groups, and by slot its group; step t then draws from group (t - 1) mod groups alone."""
        if len(rates) != len(caps):
            raise ValueError(f"one cap per rate: {len(rates)} rates, {len(caps)} caps")
        super().__init__(caps, forms)
        self._stream, self._turns = stream, turns
        # By the object, since to hash a fraction takes a division of large numbers.
        known = {id(rate): rate for rate in rates}
        self._thresholds = np.array([self._threshold(rate) for rate in known.values()], dtype=np.uint64)
        self._always = np.array([rate == 1 for rate in known.values()], dtype=bool)
        places = {key: place for place, key in enumerate(known)}
        kind = next(kind for kind in (np.uint8, np.uint16, np.uint32) if len(known) <= np.iinfo(kind).max + 1)
        self._rates = _of_each(np.fromiter((places[id(rate)] for rate in rates), dtype=kind, count=len(rates)), forms)

    @staticmethod
    def _threshold(rate: Fraction) -> int:
        if not 0 < rate <= 1:
            raise ValueError(f"a sampling rate lies in (0, 1], got {rate}")
        return min(int(rate * (1 << 64)), (1 << 64) - 1)

    def _chosen(self, step: int) -> np.ndarray:
        found = [np.zeros(0, dtype=np.int64)]
        for start in range(0, len(self._rates), _AT_ONCE):
            rates = self._rates[start : start + _AT_ONCE]
            blocks = -(-len(rates) // _SLOTS_PER_BLOCK)
            words = np.frombuffer(self._stream.read(step, 0, start // _SLOTS_PER_BLOCK, blocks), dtype="<u8")[: len(rates)]
            found.append(np.flatnonzero((words < self._thresholds[rates]) | self._always[rates]) + start)
        slots = np.concatenate(found)
        if self._turns is None:
            return slots
        groups, group_of = self._turns
        return slots[group_of[slots] == (step - 1) % groups]


class OrderedSampler(Sampler):
    """Draws the slots that are due by the order of the policy.

    Guarantee: slots that are neither capped nor closed are drawn exactly once in every period of their class, in the step that
    `attest.schedule.turns.Order` says: there is no key, so a step that is done again, and every rank, draws alike. Nothing is
    amplified: every draw is an occurrence that counts in full (docs/mechanism, Theorem 12).
    """

    def __init__(self, order: Order, caps: Sequence[int], forms: np.ndarray | None = None) -> None:
        """``order`` numbers its contributions as slots, ``caps`` and ``forms`` as for `Sampler`."""
        super().__init__(caps, forms)
        self._order = order

    def _chosen(self, step: int) -> np.ndarray:
        return np.unique(np.asarray(self._order.due(step), dtype=np.int64))


def any_capped(caps: Sequence[int], forms: np.ndarray | None = None) -> bool:
    """Tells if any slot has a cap; arguments as for `Sampler`."""
    return any(caps) if forms is None else any(caps[form] for form in np.unique(forms))


def _of_each(values: np.ndarray, forms: np.ndarray | None) -> np.ndarray:
    return values if forms is None else values[forms]


def groups(drawn: Sequence[One], count: int) -> list[list[One]]:
    """Splits a draw into exactly ``count`` groups, in order, of sizes that differ by at most one.

    Guarantee: the groups joined are the draw; none is dropped, truncated or repeated, and a small draw leaves groups empty.
    The number of groups is the policy's and not a function of the draw.
    """
    if count < 1:
        raise ValueError(f"a draw is split into at least one group, got {count}")
    edges = [place * len(drawn) // count for place in range(count + 1)]
    return [list(drawn[start:end]) for start, end in itertools.pairwise(edges)]


def expected_draw(policy: Policy, classes: Sequence[str]) -> float:
    """Returns how many contributions a step draws on average, of a pool with these classes."""
    mean = policy.sampling.mean_rate
    return float(sum(mean(policy.class_rule(name).sampling_rate) * count for name, count in Counter(classes).items()))


def most_drawn(policy: Policy, classes: Sequence[str]) -> int:
    """Returns a number of contributions that a step hardly ever exceeds: ten deviations above the average."""
    return most_of(expected_draw(policy, classes))
