"""Holds a ledger against the order that its policy signed: who was due in a step, and how often a step was repeated."""

from collections.abc import Iterator, Sequence

from attest.order import Order
from attest.policy.sampling import POISSON
from ledger.errors import HorizonExceeded, LeafRefused
from ledger.leaves import Charge, Draw, Header
from ledger.rules.groups import Contribution


class OrderWatch:
    """The order of a run, and how often its steps are repeated, over the leaves of its ledger.

    Guarantee:
        Where no problem was found, every contribution took part in exactly those steps with a DRAW leaf in which it was due,
        unless it was withdrawn or had reached its enforced cap: a leaf that leaves one out is found like one that adds one.
        There, and where noise varies over the run, at most `redo_steps` of the charged steps were repetitions, however the run
        was interrupted: so a contribution has at most the periods that the run reached and redo_steps occurrences
        (docs/mechanism, Theorem 12), and a phase of the noise at most its own steps and these.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._ordered = header.policy.sampling.name != POISSON
        # With one level of noise a repeated step costs what any other does, and the total of charges bounds both.
        self._counted = self._ordered or len(header.phases.scales) > 1
        self._order: Order | None = None
        self._reached = 0
        self._repeated = 0

    def steps_left(self, step: int, charged: int) -> int:
        """Returns how many steps may still be charged from the one after `step` on, when `charged` were over all attempts."""
        policy = self._header.policy
        left = policy.steps + policy.redo_steps - charged
        if not self._counted:
            return left
        again, redo_left = max(0, self._reached - step), policy.redo_steps - self._repeated
        return min(left, policy.steps - step if again <= redo_left else redo_left)

    def earliest_resume(self, charged: int) -> int:
        """Returns the earliest step after which a new attempt can still reach the horizon."""
        policy = self._header.policy
        if not self._counted:
            return charged - policy.redo_steps
        return self._reached - (policy.redo_steps - self._repeated)

    def admit(self) -> Iterator[LeafRefused]:
        """Yields what is wrong with an admission now: turns are of all of a class, and would shift."""
        if self._order is not None:
            what = f"sampling.order {self._header.policy.sampling.name!r}"
            yield LeafRefused("ADMIT_LATE", f"with {what} all are admitted before the first charge; start another run")

    def charge(self, leaf: Charge, admitted: Sequence[Contribution]) -> Iterator[LeafRefused]:
        """Yields what is wrong with the steps of a window that were charged before, and counts them."""
        if not self._counted:
            return
        if self._ordered and self._order is None:
            places = [contribution.class_index for contribution in admitted]
            self._order = Order(self._header.policy, self._header.run_id, places)
        most = self._header.policy.redo_steps
        earliest = self._reached - (most - self._repeated)
        self._repeated += max(0, min(leaf.last_step, self._reached) - leaf.first_step + 1)
        self._reached = max(self._reached, leaf.last_step)
        if self._repeated > most:
            sentence = f"{self._repeated} steps would be charged again, redo_steps of the policy allows {most}"
            sentence += f"; resume from a checkpoint at step {earliest} or later, or start another run"
            yield HorizonExceeded("HORIZON", sentence)

    def draw(self, leaf: Draw, admitted: Sequence[Contribution]) -> Iterator[LeafRefused]:
        """Yields how those drawn are not those due; before the occurrences of the step are counted.

        Args:
            leaf: of an open window, with numbers that were admitted.
            admitted: everybody, in the order of admission.
        """
        if self._order is None:
            return
        due = {number for number in self._order.due(leaf.step) if self._takes_part(admitted[number])}
        drawn = set(leaf.drawn)
        order = self._header.policy.sampling.name
        for numbers, told in ((drawn - due, "was drawn and is not due"), (due - drawn, "is due and was not drawn")):
            if numbers:
                first = admitted[min(numbers)].descriptor_hash.hex()
                more = f", and so for {len(numbers) - 1} more" if len(numbers) > 1 else ""
                sentence = f"step {leaf.step}: number {min(numbers)} ({first}) {told} in the {order} order of the policy{more}"
                yield LeafRefused("TURN", sentence)

    def _takes_part(self, contribution: Contribution) -> bool:
        used_up = self._header.caps_enforced and 0 < contribution.terms.max_occurrences <= contribution.occurrences
        return contribution.active and not used_up
