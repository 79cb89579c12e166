"""Who takes turns in which step, where the policy signs an order: the arithmetic that training and audit share.

The steps of a run are cut, class by class, into periods of P_k = 1/q_k steps: step t lies in period ceil(t / P_k), the last of
which the horizon may cut short. In every period each contribution of the class is due in exactly one step:

* `cyclic`: the j-th contribution of its class, counted from 0 in the order of admission, in step 1 + (j mod P_k) of the period;
* `shuffled`: the same with its place in a permutation of the class, a fresh one for every period.

The permutations are a function of the run id, 16 random bytes that the header of the ledger publishes: whoever reads the
ledger knows who was due in every step. Nothing about privacy rests on their being secret (docs/mechanism.md, Theorem 12).
"""

import hashlib
import itertools
import struct
import sys
from array import array
from collections.abc import Sequence

from attest.policy import Policy
from attest.policy.sampling import SHUFFLED, period
from attest.schedule import Phases

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
        self._shuffled = policy.sampling_order == SHUFFLED
        self._run_id = run_id
        self._periods = [period(rule.sampling_rate) for rule in policy.classes]
        self._members: list[list[int]] = [[] for _ in policy.classes]
        for number, place in enumerate(classes):
            self._members[place].append(number)
        self._now: dict[int, tuple[int, list[int]]] = {}

    def due(self, step: int) -> list[int]:
        """Numbers of the contributions that are due in a step, ascending, counted from 0 in the order of admission."""
        found: list[int] = []
        for place, length in enumerate(self._periods):
            number, offset = divmod(step - 1, length)
            found += self._turns(place, number)[offset::length]
        return sorted(found)

    def _turns(self, place: int, number: int) -> list[int]:
        """Members of a class in the order of their turns in a period, counted from 0."""
        if not self._shuffled:
            return self._members[place]
        known, turns = self._now.get(place, (-1, []))
        if known != number:
            members = self._members[place]
            turns = [members[index] for index in permutation(self._run_id, place, number, len(members))]
            self._now[place] = number, turns
        return turns


def permutation(run_id: bytes, place: int, number: int, count: int) -> list[int]:
    """The permutation of `count` contributions of a class in a period.

    It sorts by 64-bit words, those of equal words by number: little-endian words of SHAKE-256 over the context, run id, place
    of the class in the policy (4 bytes) and number of the period, from 0 (8 bytes), both big-endian.
    """
    stream = hashlib.shake_256(_CONTEXT + run_id + struct.pack(">IQ", place, number)).digest(8 * count)
    words = array("Q")
    words.frombytes(stream)
    if sys.byteorder == "big":
        words.byteswap()
    return sorted(range(count), key=words.__getitem__)


def most_periods(steps: int, length: int) -> int:
    """E, the most turns of one contribution in a run without repeated steps: periods that the horizon touches."""
    return -(-steps // length)


def dearest_turns(policy: Policy, length: int, losses: Sequence[float]) -> tuple[int, ...]:
    """Turns per phase of the noise of a contribution that has the dearest ones which the order allows.

    `cyclic` takes the same step of every period: the dearest of these. `shuffled` may take any: in each period the dearest.

    Args:
        policy: Gives order, phases and horizon.
        length: Period P of its class in steps.
        losses: What one occurrence costs in each phase, 1/z^2.
    """
    phases = Phases.of(policy)
    starts = [first - 1 for first in phases.firsts]
    spans = list(zip(starts, [*starts[1:], phases.steps], strict=True))  # steps from 0, ends exclusive
    if policy.sampling_order == SHUFFLED:
        return _dearest_of_each(spans, length, losses)
    # How many of start..end-1 are offset + m P changes only where the offset passes the start or the end modulo P.
    offsets = {0, *(edge % length for span in spans for edge in span)}
    counts = [tuple(_congruent(start, end, offset, length) for start, end in spans) for offset in sorted(offsets)]
    return max(counts, key=lambda own: sum(count * loss for count, loss in zip(own, losses, strict=True)))


def _congruent(start: int, end: int, offset: int, length: int) -> int:
    """How many of start, ..., end - 1 leave the remainder `offset`."""
    return -((offset - end) // length) + ((offset - start) // length)


def _dearest_of_each(spans: Sequence[tuple[int, int]], length: int, losses: Sequence[float]) -> tuple[int, ...]:
    touched = [(start // length, -(-end // length)) for start, end in spans]  # periods from 0, ends exclusive
    edges = sorted({edge for pair in touched for edge in pair})
    counts = [0] * len(spans)
    for low, high in itertools.pairwise(edges):
        within = [index for index, (first, last) in enumerate(touched) if first <= low and high <= last]
        if within:
            counts[max(within, key=losses.__getitem__)] += high - low
    return tuple(counts)
