"""Holds leaves against what the signed policy permits: bounds, steps, the order of turns, and statement A.

The header says whether the optimizer keeps A, and every EPOCH leaf whether A held in every step until then. Neither can be
recomputed from a ledger: gradients are in none. What is held here is that the record never contradicts itself, or its policy.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from attest.schedule.turns import Order
from ledger.errors import HorizonExceeded, LeafRefused
from ledger.leaves import HELD, Admit, Charge, Draw, Epoch, Header
from ledger.replay.contributions import Contribution


def admission_problems(leaf: Admit, header: Header, place: int) -> Iterator[LeafRefused]:
    """Yields what is wrong with the bounds of a contribution to the class at ``place``."""
    policy, rule = header.policy, header.policy.classes[place]
    if leaf.profile_id != place:
        yield LeafRefused("PROFILE", f"class {leaf.class_name} has profile {place}, not {leaf.profile_id}")
    preset = rule.bounds
    if not policy.min_clip_norm_micro <= leaf.clip_micro <= preset.clip_micro:
        allowed = f"{policy.min_clip_norm_micro}..{preset.clip_micro}"
        yield LeafRefused("CLIP", f"clip norm {leaf.clip_micro} is outside {allowed} (1e-6)")
    if leaf.carried_micro and (rule.public or not header.previous):
        why = "its class is public" if rule.public else "the header counts no earlier run"
        yield LeafRefused("CARRIED", f"{leaf.carried_micro} (1e-6) are said to be spent before, and {why}")
    if leaf.max_epsilon_micro and rule.public:
        sentence = f"the contribution signed an epsilon of {leaf.max_epsilon_micro} (1e-6) at most, and its class is public"
        yield LeafRefused("BUDGET", sentence)
    if leaf.sigma_micro < preset.sigma_micro:
        sentence = f"noise multiplier {leaf.sigma_micro} is below the class's {preset.sigma_micro} (1e-6)"
        yield LeafRefused("NOISE", sentence)
    if rule.public and not leaf.bounds.public:
        yield LeafRefused("PUBLIC", f"class {leaf.class_name} is public, and the contribution signed bounds of its own")


def window_problems(leaf: Charge, header: Header, position: int, charged: int) -> Iterator[LeafRefused]:
    """Yields what is wrong with the steps of a window, each with the nearest that would be right.

    Args:
        header: with policy and phases. A window has the noise of one phase, so that its rows say what each of its steps has.
        position: last released step of the running attempt.
    """
    policy, phases = header.policy, header.phases
    if leaf.n_steps > policy.window_steps:
        yield LeafRefused("WINDOW_LONG", f"{leaf.n_steps} steps, the policy allows {policy.window_steps} in a window")
    if phases.index(leaf.first_step) != phases.index(leaf.last_step):
        last = phases.last_step(leaf.first_step)
        sentence = f"steps {leaf.first_step} to {leaf.last_step} lie in several phases of the noise; the first ends with {last}"
        yield LeafRefused("PHASE", f"{sentence}: charge {last - leaf.first_step + 1} at most")
    if leaf.last_step > policy.steps:
        left = max(0, policy.steps - leaf.first_step + 1)
        sentence = f"step {leaf.last_step} is past the policy's {policy.steps} steps; {left} are left from {leaf.first_step}"
        yield HorizonExceeded("HORIZON", f"{sentence}. More are another run, under another policy")
    horizon = policy.steps + policy.redo_steps
    if charged + leaf.n_steps > horizon:
        total, left = charged + leaf.n_steps, max(0, horizon - charged)
        sentence = f"{total} steps would be charged, re-executed ones included; the policy allows {horizon}"
        if position + left < policy.steps:
            sentence = f"{sentence}. {left} are left, which reach step {position + left}; only from a checkpoint at step "
            sentence += f"{policy.steps - left} or later is the last step in reach"
        yield HorizonExceeded("HORIZON", sentence)


class Reached:
    """Keeps the farthest step of a kind of leaf, by every size of the ledger."""

    def __init__(self) -> None:
        self.most = 0
        self._seqs: list[int] = []
        self._steps: list[int] = []

    def take(self, seq: int, step: int) -> None:
        """Takes a step of the leaf at ``seq``; leaves come in order."""
        if step > self.most:
            self.most = step
            self._seqs.append(seq)
            self._steps.append(step)

    def by(self, size: int) -> int:
        """Returns the farthest step in the first ``size`` leaves, 0 without any."""
        count = bisect_left(self._seqs, size)
        return self._steps[count - 1] if count else 0


class OrderWatch:
    """Follows the order of a run, and how often its steps are repeated, over the leaves of its ledger.

    Guarantee: Where no problem was found, every contribution took part in exactly those steps with a DRAW leaf in which it was
    due, unless it was withdrawn or had reached its enforced cap: a leaf that leaves one out is found like one that adds one.
    There, where draws are from groups in turn, and where noise varies over the run, at most `redo_steps` of the charged steps
    were repetitions, however the run was interrupted: so a contribution has at most the periods that the run reached and
    redo_steps occurrences (docs/mechanism, Theorem 12), and a group or a phase of the noise at most its own steps and these.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._ordered = header.policy.sampling.turns
        # With one level of noise a repeated step costs what any other does, and the total of charges bounds both; but for steps
        # of one group, which a run that never ends could repeat instead of those of others.
        self._counted = self._ordered or len(header.phases.scales) > 1 or header.policy.sampling.groups > 1
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
        """Yields how those drawn of an open window are not those due, before the occurrences of the step are counted."""
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
        used_up = self._header.caps_enforced and 0 < contribution.terms.bounds.max_occurrences <= contribution.occurrences
        return contribution.active and not used_up


class Isolation:
    """Says what the leaves so far say of statement A.

    Guarantee: Once weakened, A stays weakened, by the first reason that was recorded: a leaf that says otherwise is a problem.
    So is one that says it is weakened where the policy requires A.

    Attributes:
        until: last step of the model for which an EPOCH leaf says so; 0 before the first.
    """

    def __init__(self, header: Header) -> None:
        """Starts with what the header says of the optimizer."""
        self.told, self.until = header.isolation, 0
        self._required = header.policy.isolation_required

    @property
    def held(self) -> bool:
        """Tells whether nothing weakened it so far."""
        return self.told == HELD

    @property
    def sentence(self) -> str:
        """Returns the same for people."""
        if not self.held:
            return f"weakened, as the trainer recorded: {self.told}"
        if not self.until:
            return "its optimizer keeps it, as the trainer recorded; no epoch says more yet"
        return f"held up to step {self.until}, as the trainer recorded"

    def epoch(self, leaf: Epoch) -> Iterator[LeafRefused]:
        """Takes an EPOCH leaf; yields what is wrong with what it says."""
        if not self.held and leaf.isolation != self.told:
            yield LeafRefused("ISOLATION", f"A was recorded as weakened ({self.told}), the leaf says: {leaf.isolation}")
        elif self.held:
            self.told = leaf.isolation
        if self._required and leaf.isolation != HELD:
            yield LeafRefused("ISOLATION_REQUIRED", f"the policy requires A, and the trainer recorded: {leaf.isolation}")
        self.until = leaf.step

    def resume(self, from_step: int) -> None:
        """Goes back to a step: of later ones of another attempt the EPOCH leaves before it say nothing."""
        self.until = min(self.until, from_step)
