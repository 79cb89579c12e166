"""What the signed policy permits a leaf: bounds that may be admitted, and steps that a window may charge."""

from bisect import bisect_left
from collections.abc import Iterator

from ledger.errors import HorizonExceeded, LeafRefused
from ledger.leaves import Admit, Charge, Header


def admission_problems(leaf: Admit, header: Header, place: int) -> Iterator[LeafRefused]:
    """Yields what is wrong with the bounds of a contribution to the class at ``place``."""
    policy, rule = header.policy, header.policy.classes[place]
    if leaf.profile_id != place:
        yield LeafRefused("PROFILE", f"class {leaf.class_name} has profile {place}, not {leaf.profile_id}")
    if not policy.min_clip_norm_micro <= leaf.clip_micro <= rule.clip_norm_micro:
        allowed = f"{policy.min_clip_norm_micro}..{rule.clip_norm_micro}"
        yield LeafRefused("CLIP", f"clip norm {leaf.clip_micro} is outside {allowed} (1e-6)")
    if leaf.carried_micro and (rule.public or not header.previous):
        why = "its class is public" if rule.public else "the header counts no earlier run"
        yield LeafRefused("CARRIED", f"{leaf.carried_micro} (1e-6) are said to be spent before, and {why}")
    if leaf.max_epsilon_micro and rule.public:
        sentence = f"the contribution signed an epsilon of {leaf.max_epsilon_micro} (1e-6) at most, and its class is public"
        yield LeafRefused("BUDGET", sentence)
    if leaf.sigma_micro < rule.noise_multiplier_micro:
        preset = rule.noise_multiplier_micro
        yield LeafRefused("NOISE", f"noise multiplier {leaf.sigma_micro} is below the class's {preset} (1e-6)")
    if rule.public and (leaf.clip_micro, leaf.sigma_micro) != (rule.clip_norm_micro, rule.noise_multiplier_micro):
        yield LeafRefused("PUBLIC", f"class {leaf.class_name} is public, and the contribution signed bounds of its own")


def window_problems(leaf: Charge, header: Header, position: int, charged: int) -> Iterator[LeafRefused]:
    """Yields what is wrong with the steps of a window, each with the nearest that would be right.

    Args:
        leaf: the window.
        header: with policy and phases. A window has the noise of one phase, so that its rows say what each of its steps has.
        position: last released step of the running attempt.
        charged: steps charged before, over all attempts.
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
    """The farthest step of a kind of leaf, by every size of the ledger.

    Attributes:
        most: the farthest of all.
    """

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
