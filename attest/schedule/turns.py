"""Computes turns where the policy signs an order, by arithmetic that training and audit share.

The steps of a run are cut, class by class, into periods of P_k = 1/q_k steps: step t lies in period ceil(t / P_k), the last of
which the horizon may cut short. In every period each contribution of the class is due in exactly one step:

* `cyclic`: the j-th contribution of its class, counted from 0 in the order of admission, in step 1 + (j mod P_k) of the period;
* `shuffled`: the same with its place in a permutation of the class, a fresh one for every period.

The permutations are a function of the run id, 16 random bytes that the header of the ledger publishes: whoever reads the ledger
knows who was due in every step. Nothing about privacy rests on their being secret (docs/mechanism, Theorem 12).

Proof:
    Fix the seed r of the turns. Then i has fixed occurrences, one per period, and Theorem 6 gives (a); (b) takes the dearest.
    For (c) let the reader see (r, output). r has the same law in both worlds, so the divergence E_{e^ε} of the pair is the
    mean over r of that given r. It is at most the largest, which (b) bounds. A secret r is post-processing, leaving it out.
    For (d) count as in Theorem 6: the ledger has one DRAW leaf per execution of a step. When to go back may be decided by
    looking at the model. Then the losses 1/z² of single Gaussian releases are chosen adaptively, but their sum never passes
    the stated bound, and the composition is dominated by the Gaussian of that bound (Smith and Thakurta 2022). For (e), a turn
    that is left out has equal worlds, for which the pair of any z is an upper bound. ∎
"""

import hashlib
import itertools
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from attest.policy import Policy
from attest.policy.sampling import SHUFFLED, period

_CONTEXT = b"dptrain.order/1\x00"


class Order:
    """The turns of a run.

    Guarantee: every contribution is due in exactly one step of each whole period of its class, and in at most one of a last
    period that the horizon cuts short; the steps of a period differ by at most one in how many of a class are due. Turns depend
    on the policy, the run id and the classes of those admitted, and on nothing else: a step done again has the same.
    """

    def __init__(self, policy: Policy, run_id: bytes, classes: Sequence[int]) -> None:
        """Takes the turns of a policy.

        Args:
            policy: With an order.
            run_id: Of the ledger's header.
            classes: Place of its class in the policy, per contribution in the order of admission.

        Raises:
            PolicyRefused: A rate has no period.
        """
        self._shuffled = policy.sampling.name == SHUFFLED
        self._run_id = run_id
        self._periods = [period(rule.sampling_rate) for rule in policy.classes]
        self._members = [array("Q") for _ in policy.classes]
        for number, place in enumerate(classes):
            self._members[place].append(number)
        self._now: dict[int, tuple[int, array[int]]] = {}

    def due(self, step: int) -> list[int]:
        """Returns who is due in a step: numbers of contributions, ascending, from 0 in the order of admission."""
        found: list[int] = []
        for place, length in enumerate(self._periods):
            number, offset = divmod(step - 1, length)
            found += self._turns(place, number)[offset::length]
        return sorted(found)

    def _turns(self, place: int, number: int) -> "array[int]":
        """Returns the members of a class in the order of their turns in a period, counted from 0."""
        if not self._shuffled:
            return self._members[place]
        known, turns = self._now.get(place, (-1, array("Q")))
        if known != number:
            members = self._members[place]
            turns = array("Q", (members[index] for index in permutation(self._run_id, place, number, len(members))))
            self._now[place] = number, turns
        return turns


def permutation(run_id: bytes, place: int, number: int, count: int) -> list[int]:
    """Returns the permutation of `count` contributions of a class in a period.

    It sorts by 64-bit words, those of equal words by number: little-endian words of SHAKE-256 over the context, run id, place
    of the class in the policy (4 bytes) and number of the period, from 0 (8 bytes), both big-endian.
    """
    stream = hashlib.shake_256(_CONTEXT + run_id + struct.pack(">IQ", place, number)).digest(8 * count)
    words = array("Q")
    words.frombytes(stream)
    if sys.byteorder == "big":
        words.byteswap()
    return sorted(range(count), key=words.__getitem__)


@dataclass(frozen=True, slots=True)
class Turns:
    """The dearest turns that an order allows one contribution, in a run without repeated steps."""

    count: int
    loss: float


def dearest_turns(order: str, length: int, steps: Sequence[int], multipliers: Sequence[float], cap: int = 0) -> Turns:
    """Returns the dearest turns of one contribution over phases of the noise.

    Guarantee: no contribution with these multipliers, or larger ones, and at most `cap` occurrences has turns of a larger loss.
    One turn per period that the run touches, the last one included if it is cut short: `cyclic` the same step of every period,
    and the dearest of these; `shuffled` any step of each, and in every period the dearest.

    Args:
        multipliers: z in each phase, above 0.
        cap: Most occurrences that it signed, 0 for any number; the dearest count.
    """
    losses = [1.0 / z**2 for z in multipliers]
    ends = list(itertools.accumulate(steps))
    spans = list(zip([0, *ends[:-1]], ends, strict=True))  # steps from 0, ends exclusive
    counts = [_of_each(spans, length, losses)] if order == SHUFFLED else _of_offsets(spans, length)
    return max((_capped(own, losses, cap) for own in counts), key=lambda turns: turns.loss)


def _of_offsets(spans: Sequence[tuple[int, int]], length: int) -> list[tuple[int, ...]]:
    """Returns how many turns lie in each span for whoever has the same step of every period, once for all who have as many.

    How many of start, ..., end - 1 are offset + m P changes only where the offset passes the start or the end modulo P.
    """
    offsets = {0, *(edge % length for span in spans for edge in span)}
    return [tuple((end - 1 - offset) // length - (start - 1 - offset) // length for start, end in spans) for offset in offsets]


def _of_each(spans: Sequence[tuple[int, int]], length: int, losses: Sequence[float]) -> tuple[int, ...]:
    """Returns how many periods have their dearest step in each span."""
    touched = [(start // length, -(-end // length)) for start, end in spans]  # periods from 0, ends exclusive
    counts = [0] * len(spans)
    for low, high in itertools.pairwise(sorted({edge for pair in touched for edge in pair})):
        within = [index for index, (first, last) in enumerate(touched) if first <= low and high <= last]
        counts[max(within, key=losses.__getitem__)] += high - low
    return tuple(counts)


def _capped(counts: Sequence[int], losses: Sequence[float], cap: int) -> Turns:
    """Returns the dearest `cap` of these turns, all without a cap."""
    most = left = min(cap, sum(counts)) if cap else sum(counts)
    loss = 0.0
    for value, count in sorted(zip(losses, counts, strict=True), reverse=True):
        taken = min(left, count)
        loss, left = loss + taken * value, left - taken
    return Turns(most, loss)
