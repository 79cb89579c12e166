"""PrivateTraining: one owner of every bound, from the signed policy to the released gradient."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from attest.corpus import Corpus, open_corpus
from attest.gate import GateReport, run_gate
from attest.gate.reading import KeptReading
from attest.keys import load_public_key
from attest.policy import Policy, SignedPolicy, open_policy
from dptrain.blocks.stack import Ran, layer_stack, order_of
from dptrain.clipping.exactness import level_of, refuse_skipped_masks, refuse_uncertifiable
from dptrain.clipping.resolver import Schedule, bind
from dptrain.data.contributions import Pool, in_ledger_order, slots_for
from dptrain.data.loader import Feeder
from dptrain.data.microbatch import Collate, Decode, Microbatch, json_examples
from dptrain.data.packing import Planned
from dptrain.data.slots import Slots
from dptrain.engine import header as describe
from dptrain.engine import refusals
from dptrain.engine.draw import Drawing
from dptrain.engine.release import Phase, PrivateGradients, refuse_addresses
from dptrain.engine.start import Start
from dptrain.engine.step import LogicalStep, Steps, check_parameters
from dptrain.engine.streams import open_streams
from dptrain.errors import ConfigError, StepOrder
from dptrain.progress import attestations_in, progress_bar
from dptrain.record import checkpoints, weights
from dptrain.record.earlier_runs import EarlierRuns
from dptrain.record.kept_reading import reading_beside
from dptrain.record.pin import PinRecord
from dptrain.record.recorder import Recorder, by_terms
from dptrain.record.registry_watch import RegistryWatch, memories_of
from dptrain.record.settling import Inbox, settle_pool
from dptrain.routing import Router
from dptrain.routing.accumulate import Folding
from dptrain.routing.couplings import Program, refuse_coupled
from dptrain.routing.repeated import RepeatedLoss
from dptrain.routing.synthetic_rows import ProbeRows
from dptrain.sandbox import Loop, Sandbox, forward_seed
from dptrain.sandbox.isolation import Isolation
from ledger.leaves import HELD, Header
from ledger.storage.place import Place

if TYPE_CHECKING:
    from dptrain.routing.compiled import CompiledLoss
    from dptrain.routing.repeated import Loss


MOST_PROBED = 16
"""Contributions of public classes that the probes use, at most."""


class PrivateTraining:
    """Trains a model on admitted contributions under a signed policy, with every step charged before it runs.

    ``open`` verifies the policy and runs the gate; ``prepare`` binds model and optimizer and opens the ledger; the loop over
    ``steps`` does the rest. ``p.grad`` holds a private gradient or nothing at every moment.

    Guarantee: under zero-out adjacency, the sequence of released gradients is (epsilon_i, delta)-differentially private
    with respect to each contribution i, with epsilon_i as the ledger records it: each logical step is a Poisson-subsampled
    Gaussian mechanism with multiplier z_i >= sigma_i (docs/mechanism, Theorem 1), composed over all charged steps; or one of
    the family of noise that the policy names (Theorems 9 to 11), or unsampled where occurrences are public (Theorems 6 and 12).
    """

    def __init__(
        self,
        signed: SignedPolicy,
        corpus: Corpus,
        gate: GateReport,
        recorder: Recorder,
        inbox: Inbox,
        registry: RegistryWatch,
        *,
        accelerator: Any | None,
        decode: Decode,
        microbatch: int,
        microbatch_rows: int | None,
        clock: Callable[[], int],
        checkpoint_dir: Path,
        show_progress: bool | None,
        insecure_test_key: bytes | None,
        noise_generator: str,
        reading: KeptReading | None,
    ) -> None:
        self.signed = signed
        self.reading = reading
        self.policy: Policy = signed.policy
        self.gate = gate
        self.recorder = recorder
        self.inbox = inbox
        self.registry = registry
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device if accelerator is not None else torch.device("cpu")
        self.mixed_precision = accelerator is not None and accelerator.mixed_precision not in (None, "no")
        self.begun = self._ended = False
        self.current: Microbatch | None = None
        self.start_step = 0
        self._corpus = corpus
        self._decode = decode
        self._microbatch = microbatch
        self._microbatch_rows = microbatch_rows
        self._clock = clock
        self._checkpoint_dir = checkpoint_dir
        self.show_progress = show_progress
        self._test_key = insecure_test_key
        self.noise_generator = noise_generator
        self._prepared = False
        self._planned_header: Header | None = None
        self._pin: PinRecord | None = None
        self._program: Program | None = None
        self._pass = ExitStack()
        self._step = 0
        self._registered: list[Any] = []

    @classmethod
    def open(
        cls,
        policy: str | os.PathLike[str] = "policy.cose",
        corpus: str | os.PathLike[str] = "corpus",
        *,
        ledger: str | os.PathLike[str] = "ledger.db",
        ledger_state: str | os.PathLike[str] | None = None,
        accelerator: Any | None = None,
        owner_key: str | os.PathLike[str] | bytes | None = None,
        registry: str | os.PathLike[str] | None = None,
        ledger_key: str | os.PathLike[str] | None = None,
        origin: str | None = None,
        earlier: Sequence[str | os.PathLike[str]] = (),
        replaces: str | os.PathLike[str] | None = None,
        earlier_keys: Sequence[str | os.PathLike[str]] = (),
        decode: Decode = json_examples,
        microbatch: int = 16,
        microbatch_rows: int | None = None,
        clock: Callable[[], int] = lambda: int(time.time()),
        resume: bool = False,
        clock_jump_ok: bool = False,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        insecure_test_key: bytes | None = None,
        noise_generator: str = "host",
        kept_reading: bool = True,
    ) -> "PrivateTraining":
        """Verifies the policy, admits the corpus, and opens or reserves the ledger.

        Args:
            policy: signed policy file. corpus: data with its attestations. ledger: SQLite file of the run, or a
            ``postgresql://``
                URL. ledger_state: local directory for what a ledger on a server keeps beside it: the signer's own record and
                key, incoming withdrawals, checkpoints.
            owner_key: public key of the corpus owner, a file or 32 bytes; default ``owner.pub`` beside the policy.
            registry: contributor registry; default ``registry.cbor`` beside the policy.
            ledger_key: signs checkpoints; default ``<ledger>.key``, made on first use. origin: default ``<corpus>/<ledger>``.
            earlier: ledgers of closed runs over the corpus, or directories of their exports, audited under earlier_keys
                (verifier keys or .pub files); they count in every limit over runs. replaces: likewise one that this continues.
            decode: content bytes to examples. microbatch: contributions per microbatch (a matter of memory, not privacy).
            microbatch_rows: examples per microbatch, at most; a contribution with more is spread over several, and clipped
                once. The start-up probes use three examples at least.
            resume: continue a run that has a ledger. clock_jump_ok: the clock is right though it ran far ahead since the last
                leaf (`ledger.replay.signer.JUMP_SECONDS`, 14 days), so that what has expired by it may be withdrawn, for good.
            checkpoint_dir: default ``<ledger>.checkpoints``. progress: show a bar.
            insecure_test_key: 32 bytes that fix noise and sampling; the ledger is stamped NOT PRIVATE and cannot be exported.
            noise_generator: "host" draws noise on the processor, "device" where the gradients are; see :class:`DeviceGaussian`.
            kept_reading: spare signatures that verified before, as kept beside the ledger under its key
            (`attest.gate.reading`).

        Raises:
            PolicyRefused, RegistryRefused, CorpusRefused: input that does not verify; also a registry that lacks a state which
                the ledger of a resumed run cites, or which was used before for this ledger or this corpus.
            UnsupportedPolicy: the policy asks for what this build does not carry.
            NotPrivateUse: an accelerator configuration under which the release would not be private.
            ResumeRefused, LedgerError: the ledger exists without ``resume``, or does not fit.
            BudgetExceeded: the run could spend more of a contribution than is allowed over all runs (raised by `prepare`).
        """
        beside = Path(policy).parent
        public = owner_key if isinstance(owner_key, bytes) else load_public_key(owner_key or beside / "owner.pub")
        signed = open_policy(policy, public)
        refusals.refuse_policy(signed.policy)
        refusals.refuse_accelerator(accelerator)
        refusals.refuse_generator(noise_generator, signed.policy, accelerator)
        refusals.refuse_microbatch(microbatch, microbatch_rows)
        data = open_corpus(corpus)
        place = Place.of(ledger, ledger_state)
        watch = RegistryWatch(registry or beside / "registry.cbor", public, memories_of(place, data))
        name = origin or f"{signed.policy.corpus}/{place.name}"
        recorder = Recorder(place, ledger_key, name, resume, public, EarlierRuns(earlier, replaces, earlier_keys, public))
        try:
            recorder.require_clock(now := clock(), accepted=clock_jump_ok)
            admitting = watch.at_admission(recorder.registry_roots())
            reading = reading_beside(place, recorder.private_key, signed, admitting, watch.current) if kept_reading else None
            at = recorder.admission_time(now)
            with progress_bar("judging", lambda: attestations_in(Path(corpus)), shown=progress is not False) as judged:
                gate = run_gate(data, signed.policy, admitting, now=at, progress=judged, remember=reading)
            if reading is not None:
                reading.keep()
            if not gate.admitted:
                counts = ", ".join(f"{code} {n}" for code, n in gate.counts()["refused"].items()) or "the corpus is empty"
                raise ConfigError("NOTHING_ADMITTED", f"the gate admitted no contribution ({counts}); see `dptrain gate`")
            inbox = Inbox(place.side(".withdrawals"), signed, public)
            inbox.make()
        except BaseException:
            recorder.close()
            raise
        return cls(
            signed,
            data,
            gate,
            recorder,
            inbox,
            watch,
            accelerator=accelerator,
            decode=decode,
            microbatch=microbatch,
            microbatch_rows=microbatch_rows,
            clock=clock,
            checkpoint_dir=Path(checkpoint_dir or place.side(".checkpoints")),
            show_progress=progress,
            insecure_test_key=insecure_test_key,
            noise_generator=noise_generator,
            reading=reading,
        )

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        collate: Collate,
        layers: str | Sequence[str] | None = None,
        probe: Sequence[bytes] | None = None,
    ) -> tuple[nn.Module, torch.optim.Optimizer, Steps]:
        """Binds a model and its optimizer to the policy, and resumes the ledger of a run that has one.

        The model and optimizer come back as they were given; ``accelerator.prepare`` may run before or after. From here on
        every scheduled parameter has ``requires_grad=False``, so that no backward pass but ours can fill ``p.grad``. A new
        ledger is made when the first step begins, after the start-up probes: a run that they refuse leaves none.

        Args:
            model: any module whose layer stack is found or named. optimizer: any ``torch.optim`` optimizer.
            collate: examples to a mapping of tensors, of shapes that do not depend on content. layers: see
                :func:`dptrain.blocks.stack.resolve_layer_names`.
            probe: a few raw records that are nobody's contribution, as ``decode`` takes them, for the start-up probes. By
                default these run on contributions of public classes or, where there are none, on rows made up from shapes and
                types; where such rows do not serve (PROBE_NEEDED), give real ones.

        Raises:
            UnsupportedModule, CoupledModel, UnsupportedPolicy, NotPrivateUse, ResumeRefused, LedgerError.
            PinRefused: the newest checkpoint of a resumed run is not what this run saved; nothing was loaded or charged.
        """
        if self._prepared:
            raise StepOrder("PREPARED_TWICE", "prepare() was called twice on one PrivateTraining; open a new one per run")
        self.model = self.accelerator.unwrap_model(model) if self.accelerator is not None else model
        self.optimizer: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        refuse_coupled(self.model)
        trained = frozenset(id(parameter) for parameter in self.model.parameters() if parameter.requires_grad)
        refusals.refuse_shared_memory(self.model, trained)
        self.sandbox = Sandbox(self.model, trained, forward_seed(), secret=self.policy.disclosure == "secret_poisson")
        pool = Pool(self._corpus, self._decode, Slots.unresolved(self.gate.admitted), self.policy.max_examples)
        self.feeder = Feeder(pool, collate, self.device, self._microbatch_rows, self.sandbox)
        with progress_bar("reading contributions", lambda: len(pool), shown=self.show_progress is not False) as read:
            self.feeder.check(read)
        self.probe_rows = self._probe_rows(pool, probe)
        self.schedule: Schedule = bind(self.policy, layer_stack(self.model, layers, self._order()))
        refusals.refuse_optimizer(self.optimizer, self.schedule, self.model)
        self.isolation = Isolation(required=self.policy.isolation_required)
        refusals.judge_optimizer(optimizer, self.optimizer, self.isolation)
        refusals.refuse_gradient_hooks(self.schedule)
        refuse_uncertifiable(self.policy.exactness, self.schedule.stack)
        slots = by_terms(slots_for(self.gate.admitted, self.schedule), self.policy)
        self.router = Router(self.model, self.schedule, **level_of(self.policy), sandbox=self.sandbox)
        self.router.sums.require_capacity(len(slots))
        self.weights = weights.Weights(self.model, self.router)
        refuse_addresses(self.router, self.policy.noise_microbatches or 1)
        self.pool = self.feeder.pool = pool.reordered(slots)
        refuse_skipped_masks(self.policy.exactness, self.model, self.feeder.names)
        refusals.warn_delta(self.policy, len(slots))
        refusals.refuse_long_draws(self.policy, slots.class_names())
        self._header = describe.header_for(self, self._test_key)
        if self.recorder.resuming:
            self.recorder.open(self._header, slots, self.gate.now)
            self.pool = self.feeder.pool = self.pool.reordered(in_ledger_order(slots, self.recorder.admitted()))
        else:
            self._planned_header = self.recorder.plan(self._header, slots, self.gate.now)
        self._pin = checkpoints.restore(self._checkpoint_dir, self.recorder, self.model, self.optimizer, self._stateful())
        if self._pin is not None:
            self.start_step = self._step = self._pin.step
        carried = [self.recorder.isolation] if self.recorder.resuming else []
        self.isolation.carry(*carried, self._pin.isolation if self._pin is not None else HELD)
        self.folding = Folding(self.router)
        self.gradients = PrivateGradients(
            self.model, self.optimizer, self.router, self.policy.normalizer, self.policy.noise_microbatches or 1, self.isolation
        )
        self.probe = Start(self)
        self._prepared = True
        return model, optimizer, Steps(self)

    def begin(self) -> None:
        """Makes the ledger of a new run, or starts another attempt of one that goes on; the first step does it.

        Raises:
            UnsupportedModule: code SHARED_MEMORY, for tensors that were tied by memory since `prepare`.
            ResumeRefused, LedgerError, BudgetExceeded: the ledger cannot be made, or does not fit.
        """
        refusals.refuse_shared_memory(self.model, {id(tensor.parameter) for _, tensor in self.router.tensors})
        slots = self.pool.slots
        self.weights.fix()
        header = replace(self._header, unprobed=self.probe.unprobed, frozen_digest=self.weights.frozen_digest)
        attempt = self.recorder.open(header, slots, self.gate.now)
        if attempt is None:
            attempt = self.recorder.resume(self.start_step, self._pin, self._clock())
        self.pool = self.feeder.pool = self.pool.reordered(in_ledger_order(slots, self.recorder.admitted()))
        self.streams = open_streams(
            self.recorder, self.pool, self.policy, attempt, self._test_key, self.noise_generator, bits=self.router.sums.bits
        )
        self.drawing = Drawing(
            self.policy, self.schedule, self.pool, self.streams, contributions=self._microbatch, rows=self._microbatch_rows
        )
        self._program = Program(self.model)
        self.begun = True

    def _probe_rows(self, pool: Pool, probe: Sequence[bytes] | None) -> ProbeRows:
        """Returns rows for the probes: the user's records, else contributions of public classes, else made-up ones."""
        assert self.feeder.like is not None
        if probe is not None:
            records = [self._decode(content)[:1] for content in probe]
            if len(records) < 2 or not all(records):
                raise ConfigError(
                    "PROBE",
                    f"probe= holds {len(records)} records, some perhaps without an example; expected two or more, better "
                    f"eight, each with one",
                )
        else:
            public = {rule.name for rule in self.policy.classes if rule.public}
            forms = [
                number for number, form in enumerate(pool.slots.forms)
                if form.descriptor.admissibility_class in public
            ]  # fmt: skip
            open_to_all = np.flatnonzero(np.isin(pool.slots.numbers, forms))
            records = [pool.examples(int(index))[:1] for index in open_to_all[:MOST_PROBED]]
        if len(records) < 2:
            return ProbeRows(self.feeder.like, self.device)
        names = [b"record" + place.to_bytes(4, "big") for place in range(len(records))]
        return ProbeRows(self.feeder.like, self.device, self.feeder.records(records, names))

    def _order(self) -> Ran:
        """Finds in which order modules run, by a forward without gradients over rows of the probes."""
        count = min(2, self._microbatch)
        rows = self.probe_rows.microbatch(range(count), [b"order" + bytes([place]) for place in range(count)])
        with self.sandbox.enter(0, rows.names, learning=True):
            return order_of(self.model, rows.inputs)

    def _stateful(self) -> list[Any]:
        """Returns what a checkpoint holds beside model and optimizer."""
        return [self.sandbox, *self._registered]

    @property
    def microbatch_limits(self) -> tuple[int, int | None]:
        """The most contributions in a microbatch, and the most rows or None."""
        return self._microbatch, self._microbatch_rows

    @contextmanager
    def entered(self, rows: Microbatch, step: int, **options: Any) -> Iterator[None]:
        """Runs a microbatch in the sandbox, until its backward pass is over."""
        loop = Loop.around(LogicalStep.__iter__.__code__)
        with ExitStack() as self._pass:
            self._pass.enter_context(self.sandbox.enter(step, rows.names, loop=loop, **options))
            yield

    @contextmanager
    def microbatch(self, planned: Planned, step: int) -> Iterator[Microbatch]:
        """Collates one private microbatch, arms it, and runs it in the sandbox."""
        bounds = self.drawing.bounds(planned)
        self.folding.expect(planned, bounds)
        rows = self.feeder.planned(planned, step)
        with self.entered(rows, step):
            self.current = rows
            self.router.arm(rows.contributions, rows.examples, bounds.permitted_NG)
            yield rows

    def require_consumed(self, step: int) -> None:
        """Raises StepOrder if the loop moved on without a backward pass for its microbatch."""
        if self.current is not None:
            raise StepOrder(
                "BACKWARD_MISSING",
                f"a microbatch of step {step} was not given to private.backward(); every microbatch must be, or its "
                "contributions would be charged and unused",
            )

    def compile(self, loss: "Loss") -> "CompiledLoss":
        """Returns the same per-example loss, with forward and backward pass of a microbatch as one compiled graph.

        Use it in the place of ``loss``: ``private.backward(compiled(model, rows), rows)``. Sums and noise are those of the
        plain form, up to rounding; what cannot be compiled runs in the plain form, with a notice.

        Args:
            loss: ``(model, rows) -> losses`` of shape (B,), as for :meth:`backward`.

        Raises:
            StepOrder: called before ``prepare``. CompileRefused: code NO_COMPILER, there is no C++ compiler.
        """
        if not self._prepared:
            raise StepOrder("COMPILE_EARLY", "compile() was called before prepare(), which binds the model; call it after")
        from dptrain.routing.compiled import CompiledLoss

        made = CompiledLoss(
            self.router, self.model, self.loss(loss), self._microbatch, self._microbatch_rows,
            whole=self.policy.exactness == "certified", plain=self.folding.holds_public, probe=self.probe_rows,
        )  # fmt: skip
        self.folding.compiled.append(made)
        return made

    def loss(self, loss: "Loss") -> RepeatedLoss:
        """Returns the same per-example loss, whose exceptions no contribution can stop the run with.

        Use it in the place of ``loss``: ``private.backward(safe(model, rows), rows)``. A microbatch that raises is repeated
        contribution by contribution, under the same random numbers, and who raises alone counts as zero.

        Args:
            loss: ``(model, rows) -> losses`` of shape (B,), as for :meth:`backward`.

        Raises:
            StepOrder: called before ``prepare``.
        """
        if not self._prepared:
            raise StepOrder("LOSS_EARLY", "loss() was called before prepare(), which binds the model; call it after")
        made = RepeatedLoss(self.router, loss, self.probe_rows, whole=self.policy.exactness == "certified")
        self.folding.repeated.append(made)
        return made

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Runs the backward pass of one microbatch: per-contribution gradients, masked, clipped, and added to the step's sums.

        Args:
            losses: shape (B,), one per row of ``rows``, each a function of that row alone.

        Raises:
            LossShape, StepOrder, UnsupportedModule, CoupledModel.
        """
        if self.current is None or rows is not self.current:
            raise StepOrder(
                "WRONG_ROWS", "backward() got rows that are not the current microbatch; call it once, inside `for rows in step`"
            )
        if not self.sandbox.active:
            raise StepOrder(
                "MICROBATCH_LEFT",
                "the microbatch was left before backward() got its losses: something drew random numbers, wrote the model or "
                "decided by a tensor while neither the loop that took the microbatch nor the model was running, or the "
                "iterator over the step is gone. Do this in the loop itself, or in a function that it calls",
            )
        try:
            if self.probe.active:
                self.probe.backward(losses, rows)
            else:
                self.gradients.require_detached()
                refuse_coupled(self.model)
                self.folding.backward(losses, rows)
        finally:
            self._pass.close()
        self.current = None

    def clip_blocks_(self, max_norm: float) -> dict[str, float]:
        """Clips the released gradient of every block of the schedule by itself, in place, between release and step.

        Takes the place of ``clip_grad_norm_``, which couples blocks: by its one norm over all gradients a contribution moves
        blocks that its class may not touch. Here each block is scaled by its own norm (over all its tensors and parts of
        tensors), so that statement A holds as before.

        Args:
            max_norm: most Euclidean norm of a block's gradient afterwards; a number that does not follow from gradients.

        Returns:
            The norm of every block before the clip, by its name: computed from what is released, so public.

        Raises:
            StepOrder: not between the last microbatch of a step and ``optimizer.step()``. ConfigError: code MAX_NORM.
            NotPrivateUse: gradients were changed or replaced before, as at ``optimizer.step()``.
        """
        if not self._prepared:
            raise StepOrder("CLIP_EARLY", "clip_blocks_() was called before prepare(); call it right before the step")
        return self.gradients.clip_blocks_(max_norm)

    def check(self) -> None:
        """Checks what must hold at every step, as a user can change it at any time: no known coupling, full float32 products,
        and the parameters that were bound."""
        refuse_coupled(self.model)
        if self._program is not None:
            self._program.require()
        refuse_skipped_masks(self.policy.exactness, self.model, self.feeder.names)
        refusals.refuse_low_precision()
        if self.sandbox.kept.written is None:  # else it may follow from content what was replaced, and the window ends the run
            self.gradients.require_bound()
        self.sandbox.kept.look()
        self._watch()

    def _watch(self) -> None:
        """Takes note, while the run goes on, of parameters that something else than the optimizer wrote."""
        if self.begun and not self.recorder.ledger.finished:
            self.gradients.require_own_parameters()

    def begin_step(self, number: int) -> list[Planned]:
        """Charges the window of a step if it is not charged yet, draws, and splits the draw into microbatches.

        Where occurrences are public, they are recorded, durably, before the step runs. Noise is that of the step from here on.

        Raises:
            RegistryRefused: before anything is charged: the registry changed to one that does not verify or extend it.
        """
        self.gradients.clear()
        if self.recorder.needs_charge(number):
            settle_pool(self.pool, self.registry, self.inbox, self.recorder, now := self._clock())
            self.recorder.charge(number, now)
            self.drawing.close(self.pool.indices(self.recorder.withdrawn()))
        self._step = number
        self.gradients.phase = Phase.DRAWING
        self.folding.begin()
        drawn = self.drawing.draw(number)
        if self.recorder.draws_public:
            self.recorder.draw(number, drawn, self._clock())
        stds, of_classes = self.drawing.noise(number, drawn)
        self.recorder.require_noise(number, of_classes)
        self.gradients.use(stds)
        return self.drawing.planned(drawn)

    def release(self, number: int) -> None:
        """Turns the step's sums into private gradients in ``p.grad``, and adds those of public contributions.

        Once something has changed that is not trained, gradients no longer are what was signed: noise alone goes out. So it
        does once a microbatch drew numbers that belong to no contribution.
        """
        blank = self.sandbox.kept.changed() or self.sandbox.late_host_draws
        self.gradients.release(self.streams.noise, number, self.folding.public if self.schedule.public else None, blank=blank)

    def end_step(self, number: int) -> None:
        """Settles the window at its end, closes epochs, and checks that the optimizer took the step."""
        self.gradients.require(Phase.STEPPED, f"the loop left step {number}")
        self._watch()
        self.gradients.phase = Phase.IDLE
        if self.recorder.at_window_end(number):
            check_parameters([(t.name, t.parameter) for _, t in self.router.tensors], number)
            self.recorder.settle(number, self._clock())
            refusals.refuse_written(self.sandbox)
        if self.recorder.at_epoch_end(number):
            self.recorder.close_epoch(number, self.weights.records(), self.isolation.told, self._clock())

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Takes objects with ``state_dict``/``load_state_dict`` to save and restore, as schedulers; call before ``prepare``."""
        if self._prepared:
            raise StepOrder("REGISTER_LATE", "register_for_checkpointing() comes before prepare(), which restores the states")
        self._registered += objects

    def save(self) -> Path:
        """Writes a durable checkpoint of model, optimizer and registered objects, pinned to the ledger under its key.

        Raises:
            LedgerReplaced: the ledger is no longer the one under its name.
            StepOrder: called inside a step, before its ``optimizer.step()``.
            StorageFailed: the disk is full; the previous checkpoint stays.
        """
        if self.gradients.phase is not Phase.IDLE:
            self.gradients.require(Phase.STEPPED, "save() was called")
        self._watch()
        step, told = self._step, self.isolation.told

        def sign(size: int, sha256: bytes) -> bytes:
            return self.recorder.sign_pin(step, told, size, sha256)

        return checkpoints.save(self._checkpoint_dir, step, sign, self.model, self.optimizer, self._stateful())

    def finish(self) -> None:
        """Closes the ledger and destroys every key and what was sealed; the loop over ``steps`` calls it after the last step.

        Called earlier, it ends the run there: a window that is still open is settled with the steps that were released. Before
        the first step of a new run there is nothing to end, and once it has ended, nothing more.
        """
        if self._ended:
            return
        if not self.begun:
            if not self.recorder.resuming:
                return
            self.begin()
        if self.gradients.phase is not Phase.IDLE:
            self.gradients.require(Phase.STEPPED, "finish() was called")
            self.gradients.phase = Phase.IDLE
        self._watch()
        self.recorder.finish(self._step, self.weights.records, self.isolation.told, self._clock())
        self.streams.sealed.destroy()
        self.streams.noise.destroy()
        self._ended = True
        refusals.refuse_written(self.sandbox)

    def export(self, directory: str | os.PathLike[str]) -> Path:
        """Writes the public record of the run for an auditor: the ledger, what contributors signed, and the registry.

        Raises:
            ExportRefused: as ``ledger.log.ledger.Ledger.export``.
        """
        return self.recorder.export(directory, self.registry.path)

    def summary(self) -> list[dict[str, Any]]:
        """Returns per class: admitted, profile, bounds, effective multiplier, epsilon so far and over the horizon."""
        return describe.summary(self)

    def close(self) -> None:
        """Detaches from the model, restores ``requires_grad`` and closes the ledger file.

        Raises:
            LedgerReplaced: the ledger that was written is no longer the one under its name. All is closed all the same.
        """
        try:
            self.recorder.require_in_place()
        finally:
            self._detach()

    def _detach(self) -> None:
        """Detaches and closes, and asks for nothing."""
        if self._prepared:
            self._pass.close()
            self.gradients.close()
        self.recorder.close()

    def __enter__(self) -> "PrivateTraining":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._detach()
