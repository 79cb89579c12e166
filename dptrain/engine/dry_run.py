"""A dry run: a few steps of a user's loop on rows that are nobody's, without ledger and without charge.

Every private record is decoded and collated once, as before any run, and none of them reaches the model. What a run would
refuse at its start is refused here.
"""

import copy
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from attest.descriptor import SignedBounds
from dptrain.data.microbatch import Microbatch
from dptrain.data.packing import Planned
from dptrain.engine.draw import NOTHING, noise_of
from dptrain.engine.prepared import PreparedRun
from dptrain.engine.release import Phase
from dptrain.engine.step import Parts, check_parameters
from dptrain.noise import KeyStream
from dptrain.routing import bounds_of

STEPS: Final = 3
"""Steps of a dry run; fewer where the policy has fewer."""


class DryRun(Parts[Planned]):
    """Does the parts of a step on probe rows, one microbatch a step; model and optimizer are afterwards what they were.

    Noise is that of the first steps, under a key that nothing else uses. Losses and shapes are those of made-up rows, or of the
    records that `prepare` was given.
    """

    def __init__(self, run: PreparedRun) -> None:
        self._run = run
        self._ended = False
        policy, bits = run.policy, run.router.sums.bits
        self._noise = noise_of(policy, os.urandom(16), 0, KeyStream.fresh_master(), run.opened.noise.generator, bits=bits)
        self._kept = [(owner, copy.deepcopy(owner.state_dict())) for owner in (run.model, run.optimizer, *run.states)]
        self._started = time.monotonic()
        rules = [rule for rule in policy.classes if not rule.public] or list(policy.classes)
        self._signed: list[list[tuple[SignedBounds, tuple[int, ...]]]] = [[] for _ in run.schedule.read_sets]
        for rule in rules:
            self._signed[run.schedule.read_by(rule.name)].append((rule.bounds, run.schedule.profiles[rule.name]))
        self._reads = [number for number, signed in enumerate(self._signed) if signed]

    def ready(self, number: int) -> Iterator[Microbatch]:
        """Yields the probes of the start, before the first step."""
        run = self._run
        run.gradients.require(Phase.IDLE, f"step {number} was started")
        run.check()
        if number == 1:
            yield from run.probe.run()
            self._started = time.monotonic()

    def draw(self, number: int) -> list[Planned]:
        """Plans one microbatch of as many rows as a full one has; nobody is drawn."""
        run = self._run
        run.step = number
        run.gradients.clear()
        run.gradients.phase = Phase.DRAWING
        run.folding.begin()
        run.together.chart(run.router.charts)
        reads = self._reads[(number - 1) % len(self._reads)]
        return [Planned(tuple(range(run.opened.microbatches.full)), 1, reads=reads)]

    @contextmanager
    def load(self, planned: Planned, number: int) -> Iterator[Microbatch]:
        """Arms a microbatch of probe rows; the private classes that read alike take turns among them."""
        run, count = self._run, len(planned.slots)
        names = [b"dry" + number.to_bytes(4, "big") + slot.to_bytes(4, "big") for slot in planned.slots]
        contents, lengths = [number * count + slot for slot in planned.slots], run.probe_rows.lengths
        rows = run.probe_rows.microbatch(contents, names, lengths[(number - 1) % len(lengths)])
        own = self._signed[planned.reads]
        signed = [own[slot % len(own)] for slot in planned.slots]
        bounds = bounds_of(signed + [NOTHING] * planned.fill, len(run.schedule.blocks))
        run.folding.expect(planned, bounds)
        with run.under_way.enter(rows, number, bounds.permitted_NG, reads=run.schedule.read_sets[planned.reads]):
            yield rows

    def release(self, number: int) -> None:
        """Puts noise and the sums of probe rows into ``p.grad``."""
        self._run.gradients.release(self._noise, number, self._run.folding.public if self._run.schedule.public else None)

    def settle(self, number: int) -> None:
        """Checks that the optimizer took the step."""
        run = self._run
        run.gradients.require(Phase.STEPPED, f"the loop left step {number}")
        run.gradients.phase = Phase.IDLE
        check_parameters([(tensor.name, tensor.parameter) for _, tensor in run.router.tensors], number)

    def finish(self) -> None:
        """Gives model, optimizer and states back as they were, and says on standard error, once, what was tried."""
        if self._ended:
            return
        self._ended, run = True, self._run
        self._noise.destroy()
        run.gradients.clear()
        for owner, state in self._kept:
            owner.load_state_dict(state)
        if not run.ranks.leads:
            return
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(run.opened.gate.counts()["admitted"].items()))
        seconds = (time.monotonic() - self._started) / max(1, run.step)
        print(
            f"dry run: every contribution was decoded and collated ({counts}); {run.step} steps on rows that are nobody's, "
            f"{seconds:.2g} s for a microbatch of {run.opened.microbatches.full} and its step; nothing was charged, no ledger "
            "was made, and the model is what it was",
            file=sys.stderr,
        )
