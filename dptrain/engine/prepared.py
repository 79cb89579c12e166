"""A prepared run: a model, bound to what was opened, and the parts of its logical step in the order in which they run.

Over 600 lines: the guarantee lies in the order of the parts, and a reader must see it in one place. What a part does stands in
its own room.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from attest.corpus import Corpus
from attest.gate import GateReport
from attest.gate.reading import KeptReading
from attest.policy import Policy, SignedPolicy
from attest.schedule.reads import narrows
from attest.schema.rounding import at_most
from dptrain.blocks.forwards import Forwards
from dptrain.blocks.stack import Ran, layer_stack, order_of
from dptrain.clipping.exactness import level_of, refuse_skipped_masks, refuse_uncertifiable
from dptrain.clipping.fast import precision_name
from dptrain.clipping.resolver import Schedule, bind
from dptrain.data.contributions import Pool, in_ledger_order, slots_for
from dptrain.data.loader import Feeder
from dptrain.data.microbatch import Collate, Decode, Microbatch, json_examples
from dptrain.data.packing import Planned
from dptrain.data.slots import Slots
from dptrain.engine import header, refusals
from dptrain.engine.draw import Drawing, Streams, open_streams
from dptrain.engine.options import Microbatches, NoiseSource
from dptrain.engine.release import Phase, PrivateGradients
from dptrain.engine.start import Start
from dptrain.engine.step import Parts, UnderWay, check_parameters
from dptrain.errors import ConfigError, NonFinite, StepOrder, UnsupportedModule
from dptrain.gradients import matmul
from dptrain.native import KeptMemory
from dptrain.parallel.ranks import ALONE, Ranks
from dptrain.parallel.together import Together
from dptrain.parallel.wrapped import step_once, unwrapped
from dptrain.progress import progress_bar, say
from dptrain.record import checkpoints, weights
from dptrain.record.metrics import Line, Metrics, MetricsLog
from dptrain.record.noise_states import NoiseStates
from dptrain.record.pin import found, sign_record
from dptrain.record.recorder import Recorder, by_terms
from dptrain.record.registry_watch import RegistryWatch
from dptrain.record.settling import Inbox, settle_pool
from dptrain.routing import Router
from dptrain.routing.accumulate import Folding
from dptrain.routing.couplings import Program, refuse_compiled, refuse_coupled
from dptrain.routing.repeated import Loss, RepeatedLoss
from dptrain.routing.synthetic_rows import ProbeRows
from dptrain.sandbox import Sandbox, forward_seed
from dptrain.sandbox.isolation import Isolation
from ledger.leaves import HELD, HeaderSpec
from ledger.leaves.header import ADDRESSED
from ledger.leaves.numerics import TORCH, Numerics
from ledger.replay.budgets import shows_later
from ledger.storage.beside import NOISE

if TYPE_CHECKING:
    from dptrain.routing.compiled import CompiledLoss


MOST_PROBED = 16
"""Contributions of public classes that the probes use, at most."""


@dataclass(frozen=True, eq=False)
class Opened:
    """Holds what an opening verified and opened, before there is a model.

    Attributes:
        signed: the policy with its signature. gate: who was admitted, and who was refused and why. recorder: owns the ledger.
        reading: signatures that verified, kept for the next opening; None where none are kept.
        now: returns POSIX seconds. checkpoints: directory of the model's states. progress: whether a terminal shows bars.
        decode: contents to examples, where `prepare` is told of no other. ranks: the processes of the run.
    """

    signed: SignedPolicy
    corpus: Corpus
    gate: GateReport
    recorder: Recorder
    inbox: Inbox
    registry: RegistryWatch
    reading: KeptReading | None
    accelerator: Any | None
    microbatches: Microbatches
    noise: NoiseSource
    now: Callable[[], int]
    checkpoints: Path
    progress: bool
    decode: Decode = json_examples
    ranks: Ranks = ALONE

    @property
    def policy(self) -> Policy:
        """Returns the rules that the corpus owner signed, of the classes that are for training."""
        return self.signed.policy.for_training()


@dataclass(frozen=True)
class Attempt:
    """Holds what an attempt at the run draws from: its random streams, and the draws that follow from them."""

    streams: Streams
    drawing: Drawing
    program: Program


class PreparedRun(Parts[Planned]):
    """Holds a model and its optimizer, bound to the policy, and does the parts of a logical step.

    Guarantee: every draw happens after the window of its step is durably charged; the noise of a step is held against what was
    charged before anything of it is released.

    Args:
        optimizer: as the user gave it. layers, probe: see `PrivateTraining.prepare`. states: what a checkpoint holds beside
            model and optimizer. metrics: where public numbers go. begun_by: a state of accelerate to go on from.

    Attributes:
        step: the last step that began. released: the last one whose release began. saved: the last one in a checkpoint.
        start_step: the last one that is done when the run begins; 0 for a new run.
        attempt: streams and draws; None before the first step of this attempt. dry: whether nothing private is trained on.
        states: objects whose states a checkpoint holds beside model and optimizer.
        ended: code and sentence that say why no more steps are taken; None while they are.
    """

    def __init__(
        self,
        opened: Opened,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        collate: Collate,
        decode: Decode,
        *,
        layers: str | Sequence[str] | None,
        probe: Sequence[bytes] | None,
        states: Sequence[Any],
        metrics: Metrics | None = None,
        begun_by: Path | None = None,
    ) -> None:
        policy = opened.policy
        self.opened = opened
        self.policy = policy
        self.recorder = opened.recorder
        self.ranks = opened.ranks
        refuse_compiled(model)  # a wrapper too, whose graph would run the module inside
        self.model = unwrapped(model, opened.accelerator, opened.ranks)
        where = (parameter.device for parameter in self.model.parameters())
        self.device = opened.accelerator.device if opened.accelerator is not None else next(where, torch.device("cpu"))
        self.optimizer: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        refuse_coupled(self.model)
        trained = frozenset(id(parameter) for parameter in self.model.parameters() if parameter.requires_grad)
        refusals.refuse_shared_memory(self.model, trained)
        self.together = Together(self.ranks, self.model, model)
        self._memory: KeptMemory | None = None
        try:
            self._bind(opened, optimizer, collate, decode, layers, probe, states, metrics, begun_by, trained)
        except BaseException:
            if hasattr(self, "feeder"):
                self.feeder.close()
            self.together.close()
            raise

    def _bind(
        self,
        opened: Opened,
        optimizer: torch.optim.Optimizer,
        collate: Collate,
        decode: Decode,
        layers: str | Sequence[str] | None,
        probe: Sequence[bytes] | None,
        states: Sequence[Any],
        metrics: Metrics | None,
        begun_by: Path | None,
        trained: frozenset[int],
    ) -> None:
        """Binds what `__init__` was given, once the model is out of its wrapper."""
        policy = self.policy
        seed = self.ranks.first(forward_seed)
        products = opened.microbatches.products if self.device.type == "cpu" else TORCH
        self.sandbox = Sandbox(self.model, trained, seed, secret=policy.secret, products=matmul.products_of(products))
        self.together.inside(self.sandbox)
        pool = Pool(opened.corpus, decode, Slots.unresolved(opened.gate.admitted), policy)
        size = opened.microbatches
        self.feeder = Feeder(pool, collate, self.device, size.rows, self.sandbox, size.workers, size.prefetch)
        with progress_bar("reading contributions", lambda: len(pool), shown=opened.progress) as read:
            self.feeder.check(read)
        self.probe_rows = self._probe_rows(pool, decode, probe)
        free = all(rule.depth.everything for rule in policy.classes)
        self.schedule: Schedule = bind(policy, layer_stack(self.model, layers, self._order(), any_order=free))
        self.forwards = Forwards(self.model, self.schedule.read_sets)
        refusals.refuse_narrowed(self.forwards, sharded=self.together.sharded)
        refusals.refuse_optimizer(self.optimizer, self.schedule, self.model)
        self.isolation = Isolation(required=policy.isolation_required)
        refusals.judge_optimizer(optimizer, self.optimizer, self.isolation)
        refusals.refuse_gradient_hooks(self.schedule)
        refuse_uncertifiable(policy.exactness, self.schedule.stack)
        slots = by_terms(slots_for(opened.gate.admitted, self.schedule), policy)
        self.router = Router(self.model, self.schedule, **level_of(policy), sandbox=self.sandbox)
        self.router.sums.require_capacity(len(slots))
        self.folding = Folding(self.router)
        placement = self.together.bind(self.router, self.folding)
        self.weights = weights.Weights(self.model, self.router)
        self.feeder.pool = pool.reordered(slots)
        refuse_skipped_masks(policy.exactness, self.model, self.feeder.names)
        begun = self.recorder.ledger.header.numerics if self.recorder.resuming else None
        rows, names = opened.microbatches.full, slots.class_names()
        wire = self.together.wire(policy, self.router.sums, self.router.precision, names, rows, begun)
        if self.ranks.leads:
            refusals.warn_delta(policy, len(slots))
        refusals.refuse_long_draws(policy, slots.class_names())
        test_key = opened.noise.insecure_test_key
        # Blocks are those that the run has; that they follow from policy and stack, the header itself checks. With a fixed test
        # key the run id is fixed too, so that two runs draw equal numbers, and the header says NOT PRIVATE.
        self._header = HeaderSpec(
            policy=opened.signed,
            owner_key=self.recorder.owner_public,
            registry_root=opened.gate.registry_root,
            model_fingerprint=header.fingerprint(self.model, self.schedule),
            stack=self.schedule.stack.named(),
            blocks=header.block_rows(policy, self.schedule),
            numerics=Numerics(precision_name(self.router.precision), opened.noise.generator, wire, products),
            private=test_key is None,
            caps_enforced=True,
            isolation=self.isolation.told,
            randomness=ADDRESSED,
            unprobed=(),
            ranks=header.ranks_of(self.schedule),
            run_id=os.urandom(16) if test_key is None else hashlib.sha256(test_key).digest()[:16],
        )
        if self.recorder.resuming:
            self.recorder.open(self._header, slots, opened.gate.now)
            self.recorder.require_open()
            self._take_ledger_order(slots)
        else:
            self.recorder.plan(self._header, slots, opened.gate.now)
        self.metrics = MetricsLog(metrics if self.ranks.leads else None, policy.steps)
        self.metrics.require(self._run if self.recorder.resuming else None)
        self.states = [self.sandbox, *states]
        self._first_rates = refusals.rates_of(self.optimizer)  # before those of a checkpoint, which a loop may have set
        if begun_by is None:
            self._pin = checkpoints.restore(opened.checkpoints, self.recorder, self.model, self.optimizer, self.states)
        else:
            accelerator = refusals.required_accelerator(opened.accelerator, self.model, self.optimizer)
            self._pin = checkpoints.open_folder(begun_by, self.recorder, accelerator.load_state, self.states)
        self._other_threads = refusals.other_threads(self.sandbox.threads, policy, self.ranks.leads)
        self.start_step = self.step = self.released = self.saved = 0 if self._pin is None else self._pin.step
        carried = [self.recorder.ledger.state.isolation.told] if self.recorder.resuming else []
        self.isolation.carry(*carried, self._pin.isolation if self._pin is not None else HELD)
        self.noise_states = NoiseStates(self.recorder.place.side(NOISE), self.ranks, correlated=shows_later(policy))
        draws = policy.noise_microbatches or 1
        self.gradients = PrivateGradients(
            self.model, self.optimizer, self.router, policy.normalizer, draws, self.isolation, placement
        )
        self.router.fused.expect(self.forwards.attach())
        self.under_way = UnderWay(self.sandbox, self.router, self.forwards, self.together.rest, products)
        self.probe = Start(
            self.model,
            self.router,
            self.sandbox,
            self.probe_rows,
            self.under_way,
            self.folding.repeated,
            full=opened.microbatches.full,
            exact=policy.exactness == "certified" and self.device.type == "cpu",
            truth=self.together.truth(self.router),
            sets=self.forwards.sets,
        )
        self._rates: list[float] = []
        self._drawn: list[int] = []
        self._coming: deque[tuple[int, list[int], list[Planned]]] = deque()
        self.attempt: Attempt | None = None
        self.ended: tuple[str, str] | None = None
        self.dry = False
        self._ended = False

    @property
    def pool(self) -> Pool:
        """Returns the contributions of the run, in the order of their slots."""
        return self.feeder.pool

    # ---------------------------------------------------------------------------------------------- the parts of a step

    def ready(self, number: int) -> Iterator[Microbatch]:
        """Checks that a step may begin, yields the probes that are due, and begins the run before the first step."""
        self._require_going()
        self.gradients.require(Phase.IDLE, f"step {number} was started")
        self.together.begin(number)
        self.check()
        if self.attempt is None:
            yield from self.probe.run()
            self.probe.began(number)
            self.begin()
        elif self.probe.due(number, self.policy.epoch_steps):
            self.gradients.clear()  # what the last step released would lie beside what the probes hold
            yield from self.probe.again()
            self.probe.began(number)

    def begin(self) -> None:
        """Makes the ledger of a new run, or starts another attempt of one that goes on; the first step does it.

        Raises:
            UnsupportedModule: code SHARED_MEMORY, for tensors that were tied by memory since `prepare`.
            ResumeRefused, LedgerError, BudgetExceeded: the ledger cannot be made, or does not fit.
        """
        opened, policy, recorder = self.opened, self.policy, self.recorder
        refusals.refuse_shared_memory(self.model, {id(tensor.parameter) for _, tensor in self.router.tensors})
        slots = self.pool.slots
        self.weights.fix()
        found = replace(self._header, unprobed=self.probe.unprobed, frozen_digest=self.weights.frozen_digest)
        self._agree(found)
        attempt = recorder.open(found, slots, opened.gate.now)
        saved = self.noise_states.restored(self._pin)
        if attempt is None:
            attempt = recorder.resume(self.start_step, self._pin, self._other_threads, opened.now())
        self._take_ledger_order(slots)
        self.metrics.begin(self._run, self.start_step)
        streams = open_streams(recorder, self.pool, policy, attempt, opened.noise, bits=self.router.sums.bits)
        self.gradients.begin_noise(streams.noise, saved)
        size, sharded = opened.microbatches, self.together.sharded
        drawing = Drawing(policy, self.schedule, self.pool, streams, size, self.ranks, sharded)
        self.attempt = Attempt(streams, drawing, Program(self.model))
        if self.device.type == "cpu":
            self._memory = KeptMemory()

    def check(self) -> None:
        """Checks what must hold at every step, as a user can change it at any time: no known coupling, full float32 products,
        and the parameters that were bound."""
        self.together.rest()
        refuse_coupled(self.model)
        if self.attempt is not None:
            self.attempt.program.require()
        refuse_skipped_masks(self.policy.exactness, self.model, self.feeder.names)
        refusals.refuse_low_precision()
        if self.ranks.size > 1:
            step_once(self.optimizer, self.opened.accelerator, self.states)
        if self.sandbox.kept.written is None:  # else it may follow from content what was replaced, and the window ends the run
            self.gradients.require_bound()
        self.sandbox.kept.look()
        self._watch()

    def charge(self, number: int) -> None:
        """Charges the window of a step if it is not charged yet, after who leaves the pool has left it.

        Raises:
            RegistryRefused: before anything is charged: the registry changed to one that does not verify or extend it.
        """
        self.gradients.clear()
        if self.recorder.needs_charge(number):
            opened, now = self.opened, self.opened.now()
            leaving = partial(settle_pool, self.pool, opened.registry, opened.inbox, self.recorder, now)
            self.recorder.charge(number, now, leaving)
            self._going.drawing.close(self.pool.indices(self.recorder.ledger.state.withdrawals))

    def draw(self, number: int) -> list[Planned]:
        """Draws the contributions of a charged step, and splits the draw into microbatches.

        Where occurrences are public, they are recorded, durably, before the step runs. Noise is that of the step from here on.
        """
        drawing = self._going.drawing
        self.step = number
        self.gradients.phase = Phase.DRAWING
        drawn, planned = self._coming.popleft()[1:] if self._coming else self._draw(number)
        self.together.draw(self.router.sums, len(drawn), len(planned))
        self.folding.begin(wide=self.together.wide)
        if self.recorder.ledger.header.occurrences_public:
            self.recorder.draw(number, drawn, self.opened.now())
        self.together.chart(self.router.charts)
        stds, of_classes = drawing.noise(number, drawn)
        self.recorder.require_noise(number, of_classes)
        self.gradients.use(stds)
        self._drawn = drawn
        self._draw_ahead(number)
        return planned

    def _draw(self, number: int) -> tuple[list[int], list[Planned]]:
        """Draws a charged step and plans it, and has workers begin with it."""
        drawn = self._going.drawing.draw(number)
        planned = self._going.drawing.planned(drawn)
        self.feeder.expect(planned, number)
        return drawn, planned

    def _draw_ahead(self, number: int) -> None:
        """Draws steps behind one that runs, as far as workers have nothing to do.

        Guarantee: no step is drawn before its window is charged. Within a window nothing changes who may be drawn, or how often
        each was, and draws of a charged window count whether or not they were made.
        """
        while self.feeder.hungry:
            coming = self._coming[-1][0] + 1 if self._coming else number + 1
            if coming > self.policy.steps or self.recorder.needs_charge(coming):
                return
            self._coming.append((coming, *self._draw(coming)))

    @contextmanager
    def load(self, planned: Planned, number: int) -> Iterator[Microbatch]:
        """Collates one private microbatch, arms it, and runs it in the sandbox."""
        bounds = self._going.drawing.bounds(planned)
        self.folding.expect(planned, bounds)
        rows = self.feeder.planned(planned, number)
        self._draw_ahead(number)
        reads = self.schedule.read_sets[planned.reads]
        with self.under_way.enter(rows, number, bounds.permitted_NG, planned.reach, reads):
            yield rows

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Runs the backward pass of a microbatch: routes, clips and accumulates; see `PrivateTraining.backward`."""
        self._require_going()
        with self.under_way.backward(rows):
            if self.probe.active:
                self.probe.backward(losses, rows)
            else:
                with self.sandbox.aside():
                    self.gradients.require_detached()
                    refuse_coupled(self.model)
                self.folding.backward(losses, rows)

    def release(self, number: int) -> None:
        """Turns the step's sums into private gradients in ``p.grad``, and adds those of public contributions.

        Once something has changed that is not trained, gradients no longer are what was signed: noise alone goes out. So it
        does once a microbatch drew numbers that belong to no contribution.
        """
        rates = refusals.rates_of(self.optimizer)
        blank = self.together.stand(number, self._drawn, self.gradients.stds, rates, self.isolation)
        interrupts = self.gradients.interrupts
        if self.gradients.keeps_noise:
            interrupts.put_off()  # `_end_attempt` could save nothing
        try:
            self.released = number
            self._rates = refusals.public_rates(self.optimizer, self._first_rates, self.states)
            if self.forwards.narrows and self._rates != rates:
                refusals.refuse_private_rates(number)
            public = self.folding.public if self.schedule.public else None
            self.gradients.release(self._going.streams.noise, number, public, blank=blank, wide=self.together.wide)
        except BaseException:
            interrupts.let()
            raise
        interrupts.released()

    def settle(self, number: int) -> None:
        """Settles the window at its end, closes epochs, and checks that the optimizer took the step."""
        self._require_going()
        self.gradients.require(Phase.STEPPED, f"the loop left step {number}")
        self._watch()
        self._note(number)
        self.gradients.phase = Phase.IDLE
        ended = self.recorder.at_window_end(number)
        if ended:
            check_parameters([(t.name, t.parameter) for _, t in self.router.tensors], number, self.ranks)
            self.recorder.settle(number, self.opened.now())
        if ended or self.recorder.ledger.header.occurrences_public:
            self.metrics.write()
            self.metrics.tell()
        if ended:
            refusals.refuse_written(self.sandbox)
            self.together.refuse_mixed()
        if self.recorder.at_epoch_end(number):
            self.together.share(self.isolation)
            self.recorder.close_epoch(number, self.weights.records(), self.isolation.told, self.opened.now())

    def finish(self) -> None:
        """Closes the ledger and destroys every key and what was sealed; see `dptrain.engine.step.Steps.finish`."""
        if self._ended:
            return
        if self.attempt is None:
            if not self.recorder.resuming:
                return
            self.begin()
        if self.gradients.phase is not Phase.IDLE:
            self.gradients.require(Phase.STEPPED, "finish() was called")
            self._note(self.step)
            self.gradients.phase = Phase.IDLE
        self._watch()
        self.together.share(self.isolation)
        self.metrics.write()
        self.recorder.finish(self.step, self.weights.records, self.isolation.told, self.opened.now())
        self._going.streams.noise.destroy()
        self.recorder.delete_secrets()
        self._ended = True
        self.metrics.tell()
        refusals.refuse_written(self.sandbox)

    def interrupt(self) -> None:
        """Ends this attempt where an exception ended the loop: saves the last whole step and settles the window that is open.

        A step counts as released once its release began, whether or not the optimizer took it. What was charged stays charged.
        A resumed run goes on behind the step that is saved. Nothing is saved where an optimizer was halfway through a step,
        where parameters are not finite, or where something was written that is not trained; where noise is correlated between
        steps, neither from the begin of a release until the optimizer has taken it, for which interrupts wait.

        Raises:
            LedgerError: the ledger or the disk refuses; what was charged is in the ledger all the same.
        """
        if self.attempt is None or self._ended or self.recorder.ledger.finished:
            return
        self.ranks.leave()
        if not self.ranks.leads:
            return
        self._end_attempt()
        with suppress(Exception):  # of the user's function, that ended the loop perhaps
            self.metrics.tell()

    def _end_attempt(self) -> None:
        """Settles what is open, writes what is noted, and saves the last whole step if there is one to save."""
        phase = self.gradients.phase
        whole = self.step if phase in (Phase.IDLE, Phase.STEPPED) else self.step - 1
        window = self.recorder.ledger.state.open_window
        if window is not None:
            self.recorder.settle(max(self.released, window.first_step - 1), self.opened.now())
        if phase is Phase.STEPPED:
            self._note(self.step)
        self.metrics.write()
        kept = self.sandbox.kept
        if self.together.sharded:
            return  # the rows of others are out of reach now
        if phase is Phase.STEPPING or whole <= self.saved or kept.changed() or kept.written or self.sandbox.late_host_draws:
            return
        if self.gradients.keeps_noise and (self.released > whole or self.ranks.size > 1):
            return  # its noise is that of a later step, or that of others is out of reach
        with suppress(NonFinite):
            check_parameters([(t.name, t.parameter) for _, t in self.router.tensors], whole)
            self._watch()
            self._save(whole)

    def told(self) -> str:
        """Says what each class has spent, of what it will have spent at the end."""
        rows = [row for row in self.summary() if not row["public"]]
        spent = (f"{row['class']} ε {at_most(row['epsilon'], 3)} of {at_most(row['epsilon_planned'], 3)}" for row in rows)
        return ", ".join(spent)

    # -------------------------------------------------------------------------------------------------- beside the steps

    def save(self) -> Path:
        """Writes a durable checkpoint of the states, pinned to the ledger; see `PrivateTraining.save`."""
        self._require_going()
        if self.gradients.phase is not Phase.IDLE:
            self.gradients.require(Phase.STEPPED, "save() was called")
        self._watch()
        return self.opened.checkpoints if self.dry else self._save(self.step)

    def save_state(self, folder: Path) -> Path:
        """Has accelerate write its state, and pins it; see `PrivateTraining.save_state`."""
        self._require_going()
        accelerator = refusals.required_accelerator(self.opened.accelerator, self.model, self.optimizer)
        if self.gradients.phase is not Phase.IDLE:
            self.gradients.require(Phase.STEPPED, "save_state() was called")
        self._watch()
        self.together.rest()
        accelerator.save_state(str(folder))
        return checkpoints.pin_folder(folder, self.step, self._signer(self.step), self.states, self.ranks)

    def _signer(self, step: int) -> Callable[[int, bytes], bytes]:
        """Writes the state of the noise after a step, and returns what signs the pin of the other states, given their size and
        digest."""
        told, noise = self.isolation.told, None
        if self.attempt is None:
            noise = None if self._pin is None else self._pin.noise_sha256
        elif self.gradients.keeps_noise:
            pinned = {number for number, _ in found(self.opened.checkpoints)}
            noise = self.noise_states.save(step, self.gradients.noise_kept(), pinned)
        return lambda size, sha256: sign_record(self.recorder.writer, step, told, size, sha256, noise)

    def _save(self, step: int) -> Path:
        """Writes the states as those after a step."""
        refusals.warn_schedule(self.optimizer, self.states)
        if self.gradients.phase is Phase.STEPPED:
            self._note(step)
        self.together.rest()
        self.metrics.write()
        directory, sign = self.opened.checkpoints, self._signer(step)
        path = checkpoints.save(directory, step, sign, self.model, self.optimizer, self.states, self.ranks)
        self.saved = step
        return path

    def repeated(self, loss: Loss) -> RepeatedLoss:
        """Returns a loss whose exceptions no contribution can stop the run with."""
        whole, together = self.policy.exactness == "certified", self.together.sharded
        made = RepeatedLoss(self.router, loss, self.probe_rows, whole=whole, together=together)
        self.folding.repeated.append(made)
        return made

    def compiled(self, loss: Loss) -> "CompiledLoss":
        """Returns a loss whose forward and backward pass of a microbatch is one compiled graph.

        Raises:
            UnsupportedModule: code COMPILED_SHARDED, parameters lie over ranks; READS_COMPILED, classes read other adapters.
        """
        refusals.refuse_narrowed(self.forwards, compiled=True)
        if self.together.sharded:
            raise UnsupportedModule(
                "COMPILED_SHARDED",
                "compiled=True makes one graph of the whole model, and under fully_shard parameters come and go while it runs; "
                "leave it out, or train under DistributedDataParallel",
            )
        from dptrain.routing.compiled import CompiledLoss

        size = self.opened.microbatches
        made = CompiledLoss(
            self.router, self.model, self.repeated(loss), size.contributions, size.rows,
            whole=self.policy.exactness == "certified", plain=self.folding.holds_public, probe=self.probe_rows,
        )  # fmt: skip
        self.folding.compiled.append(made)
        # Here and once, whatever comes: when a kind of microbatch comes first follows from secret draws.
        say(
            "compiling: the first microbatch of each kind takes up to a minute, a few seconds where an earlier run compiled it",
            shown=self.opened.progress,
        )
        return made

    def numbers(self) -> Line:
        """Returns the public numbers of the last step that was released: see `dptrain.engine.header.numbers`."""
        stds = dict(zip((block.name for block in self.schedule.blocks), self.gradients.stds, strict=True))
        run, now = self.recorder.ledger.state, self.opened.now()
        return header.numbers(self.policy, run, self.summary(), step=self.released, stds=stds, rates=self._rates, now=now)

    @property
    def in_window(self) -> bool:
        """Tells whether steps are charged that are not settled."""
        return self.recorder.begun and self.recorder.ledger.state.open_window is not None

    def summary(self) -> list[dict[str, Any]]:
        """Returns the public figures per class: see `dptrain.engine.header.summary`."""
        run = self.recorder.state(self._header, self.opened.now())
        return header.summary(self.policy, run, run.charged, self.schedule, self.pool.slots, self.isolation.told)

    def if_all_redone(self) -> dict[str, float]:
        """Returns per private class the most that a run of the policy can spend: see `dptrain.engine.header.if_all_redone`."""
        run = self.recorder.state(self._header, self.opened.now())
        return header.if_all_redone(self.policy, run, self.pool.slots)

    def detach(self, ended: tuple[str, str]) -> None:
        """Leaves the sandbox, gives the parameters back to autograd and removes every hook; no more steps are taken."""
        self.ended = ended
        self.feeder.close()
        if self._memory is not None:
            self._memory.close()
        self.under_way.leave()
        self.forwards.detach()
        self.gradients.close()
        self.together.close()

    def _require_going(self) -> None:
        """Raises StepOrder: code CLOSED or TAKEN_OVER."""
        if self.ended is not None:
            raise StepOrder(*self.ended)

    def _note(self, number: int) -> None:
        """Notes the public numbers of a step that the optimizer has taken, once."""
        if self.metrics.due(number):
            self.metrics.note(self.numbers())

    @property
    def _run(self) -> str:
        """Names the run as the lines of its public numbers do."""
        return self.recorder.ledger.header.run_id.hex()

    @property
    def _going(self) -> Attempt:
        """Returns the attempt, which the first step began."""
        assert self.attempt is not None
        return self.attempt

    def _agree(self, header: HeaderSpec) -> None:
        """Refuses to begin where ranks hold other models, schedules or settings."""
        if self.ranks.size == 1:
            return
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        records = b"".join(record.sha256 for record in self.weights.records())
        size = self.opened.microbatches
        self.ranks.agree(
            {
                "the model": header.model_fingerprint,
                "the schedule of noise": repr((header.stack, header.blocks, header.numerics)).encode(),
                "the weights": records,
                "the optimizer": repr((type(self.optimizer).__qualname__, groups)).encode(),
                "the size of microbatches": repr((size.contributions, size.rows, self.start_step)).encode(),
                "what the probes found": repr(header.unprobed).encode(),
                "the forward's random numbers": self.sandbox.numbers.seed,
            }
        )

    def _take_ledger_order(self, slots: Slots) -> None:
        """Puts the contributions into the order in which the ledger admitted them."""
        self.feeder.pool = self.pool.reordered(in_ledger_order(slots, self.recorder.admitted()))

    def _watch(self) -> None:
        """Takes note, while the run goes on, of parameters that something else than the optimizer wrote."""
        if self.attempt is not None and not self.recorder.ledger.finished:
            self.gradients.require_own_parameters()

    def _probe_rows(self, pool: Pool, decode: Decode, probe: Sequence[bytes] | None) -> ProbeRows:
        """Returns rows for the probes: the user's records, else contributions of public classes, else made-up ones."""
        likes, device = [self.feeder.likes[length] for length in pool.lengths], self.device
        if probe is not None:
            records = [decode(content)[:1] for content in probe]
            if len(records) < 2 or not all(records):
                raise ConfigError(
                    "PROBE",
                    f"probe= holds {len(records)} records, some perhaps without an example; expected two or more, better "
                    f"eight, each with one",
                )
        else:
            # What probes saw decides how everybody's forward goes: no class may show in that where forwards are kept apart.
            public = {rule.name for rule in self.policy.classes if rule.public and not narrows(self.policy.classes)}
            forms = [
                number for number, form in enumerate(pool.slots.forms)
                if form.descriptor.admissibility_class in public
            ]  # fmt: skip
            open_to_all = np.flatnonzero(np.isin(pool.slots.numbers, forms))
            records = [pool.examples(int(index))[:1] for index in open_to_all[:MOST_PROBED]]
        if len(records) < 2:
            return ProbeRows(likes, device)
        names = [b"record" + place.to_bytes(4, "big") for place in range(len(records))]
        return ProbeRows(likes, device, [self.feeder.records(records, names, length) for length in pool.lengths])

    def _order(self) -> Ran:
        """Finds in which order modules run, by a forward without gradients over rows of the probes."""
        count = min(2, self.opened.microbatches.contributions)
        rows = self.probe_rows.microbatch(range(count), [b"order" + bytes([place]) for place in range(count)])
        with self.sandbox.enter(0, rows.names, learning=True, length=rows.length):
            found = order_of(self.model, rows.inputs)
        self.together.rest()
        return found
