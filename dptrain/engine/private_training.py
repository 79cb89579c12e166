"""PrivateTraining: one owner of every bound, from the signed policy to the released gradient."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attest.corpus import Corpus, open_corpus
from attest.gate import GateReport, run_gate
from attest.keys import load_public_key
from attest.policy import Policy, SignedPolicy, open_policy
from dptrain import checkpoints, describe, weights
from dptrain.batching import Planned
from dptrain.depth import layer_stack
from dptrain.drawing import Drawing
from dptrain.earlier import EarlierRuns
from dptrain.engine import refusals
from dptrain.engine.release import Phase, PrivateGradients, refuse_addresses
from dptrain.engine.step import Probe, Steps, check_parameters
from dptrain.errors import ConfigError, StepOrder
from dptrain.feeding import Feeder
from dptrain.inbox import Inbox
from dptrain.microbatch import Collate, Decode, Microbatch, json_examples
from dptrain.pool import Pool, in_ledger_order, settle_pool, slots_for
from dptrain.recording import Recorder
from dptrain.registry_watch import RegistryWatch
from dptrain.resolver import Schedule, bind
from dptrain.routing import Router
from dptrain.routing.couplings import refuse_coupled
from dptrain.routing.folding import Folding
from dptrain.routing.levels import level_of, refuse_skipped_masks, refuse_uncertifiable
from dptrain.streams import open_streams
from ledger.storage.place import Place

if TYPE_CHECKING:
    from dptrain.routing.compiled import CompiledLoss
    from dptrain.routing.graphs import Loss


class PrivateTraining:
    """Trains a model on admitted contributions under a signed policy, with every step charged before it runs.

    ``open`` verifies the policy and runs the gate; ``prepare`` binds model and optimizer and opens the ledger; the loop over
    ``steps`` does the rest. ``p.grad`` holds a private gradient or nothing at every moment.

    Guarantee: under zero-out adjacency, the sequence of released gradients is (epsilon_i, delta)-differentially private
    with respect to each contribution i, with epsilon_i as the ledger records it: each logical step is a Poisson-subsampled
    Gaussian mechanism with multiplier z_i >= sigma_i (docs/mechanism.md, Theorem 1), composed over all charged steps; or one of
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
    ) -> None:
        self.signed = signed
        self.policy: Policy = signed.policy
        self.gate = gate
        self.recorder = recorder
        self.inbox = inbox
        self.registry = registry
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device if accelerator is not None else torch.device("cpu")
        self.mixed_precision = accelerator is not None and accelerator.mixed_precision not in (None, "no")
        self.probed = False
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
        checkpoint_dir: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        insecure_test_key: bytes | None = None,
        noise_generator: str = "host",
    ) -> "PrivateTraining":
        """Verifies the policy, admits the corpus, and opens or reserves the ledger.

        Args:
            policy: signed policy file. corpus: data with its attestations. ledger: SQLite file of the run, or a ``postgresql://``
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
            resume: continue a run that has a ledger. checkpoint_dir: default ``<ledger>.checkpoints``. progress: show a bar.
            insecure_test_key: 32 bytes that fix noise and sampling; the ledger is stamped NOT PRIVATE and cannot be exported.
            noise_generator: "host" draws noise on the processor, "device" where the gradients are; see :class:`DeviceGaussian`.

        Raises:
            PolicyRefused, RegistryRefused, CorpusRefused: input that does not verify; for a resumed run also a registry that
                lacks a state which its ledger cites.
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
        watch = RegistryWatch(registry or beside / "registry.cbor", public)
        data = open_corpus(corpus)
        place = Place.of(ledger, ledger_state)
        name = origin or f"{signed.policy.corpus}/{place.name}"
        recorder = Recorder(place, ledger_key, name, resume, public, EarlierRuns(earlier, replaces, earlier_keys, public))
        try:
            admitting = watch.at_admission(recorder.registry_roots())
            gate = run_gate(data, signed.policy, admitting, now=recorder.admission_time(clock()))
            if not gate.admitted:
                counts = ", ".join(f"{code} {n}" for code, n in gate.counts()["refused"].items()) or "the corpus is empty"
                raise ConfigError("NOTHING_ADMITTED", f"the gate admitted no contribution ({counts}); see `dptrain gate`")
        except BaseException:
            recorder.close()
            raise
        return cls(
            signed,
            data,
            gate,
            recorder,
            Inbox(place.side(".withdrawals"), signed, public),
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
        )

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        collate: Collate,
        layers: str | Sequence[str] | None = None,
    ) -> tuple[nn.Module, torch.optim.Optimizer, Steps]:
        """Binds a model and its optimizer to the policy, and opens the ledger (or resumes it).

        The model and optimizer come back as they were given; ``accelerator.prepare`` may run before or after. From here on
        every scheduled parameter has ``requires_grad=False``, so that no backward pass but ours can fill ``p.grad``.

        Args:
            model: any module whose layer stack is found or named. optimizer: any ``torch.optim`` optimizer.
            collate: examples to a mapping of tensors, of shapes that do not depend on content. layers: see
                :func:`dptrain.depth.resolve_layer_names`.

        Raises:
            UnsupportedModule, CoupledModel, UnsupportedPolicy, NotPrivateUse, ResumeRefused, LedgerError.
        """
        if self._prepared:
            raise StepOrder("PREPARED_TWICE", "prepare() was called twice on one PrivateTraining; open a new one per run")
        self.model = self.accelerator.unwrap_model(model) if self.accelerator is not None else model
        self.optimizer: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        refuse_coupled(self.model)
        self.schedule: Schedule = bind(self.policy, layer_stack(self.model, layers))
        refusals.refuse_optimizer(self.optimizer, self.schedule, self.model)
        refusals.refuse_gradient_hooks(self.schedule)
        refuse_uncertifiable(self.policy.exactness, self.schedule.stack)
        slots = slots_for(self.gate.admitted, self.schedule)
        self.router = Router(self.model, self.schedule, **level_of(self.policy))
        self.router.sums.require_capacity(len(slots))
        self.weights = weights.Weights(self.model, self.router)
        refuse_addresses(self.router, self.policy.noise_microbatches or 1)
        self.pool = Pool(self._corpus, self._decode, slots, self.policy.max_examples)
        self.feeder = Feeder(self.pool, collate, self.device, self._microbatch_rows)
        self.feeder.check()
        refuse_skipped_masks(self.policy.exactness, self.model, self.feeder.names)
        refusals.warn_delta(self.policy, len(slots))
        refusals.refuse_long_draws(self.policy, [slot.resolution.class_name for slot in slots])
        attempt = self.recorder.open(describe.header_for(self, self._test_key), slots, self.gate.now)
        self.pool = self.feeder.pool = self.pool.reordered(in_ledger_order(slots, self.recorder.admitted()))
        pin = checkpoints.restore(self._checkpoint_dir, self.recorder, self.model, self.optimizer, self._registered)
        if pin is not None:
            self.start_step = self._step = pin.step
        if attempt is None:
            attempt = self.recorder.resume(self.start_step, pin, self._clock())
        self.streams = open_streams(
            self.recorder, self.pool, self.policy, attempt, self._test_key, self.noise_generator, bits=self.router.sums.bits
        )
        self.drawing = Drawing(
            self.policy, self.schedule, self.pool, self.streams, self.device,
            contributions=self._microbatch, rows=self._microbatch_rows,
        )  # fmt: skip
        self.folding = Folding(self.router)
        self.gradients = PrivateGradients(
            self.model, self.optimizer, self.router, self.policy.normalizer, self.policy.noise_microbatches or 1
        )
        self.probe = Probe(self)
        self._prepared = True
        return model, optimizer, Steps(self)

    def compile(self, loss: "Loss") -> "CompiledLoss":
        """The same per-example loss, with forward and backward pass of a microbatch as one compiled graph.

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

        whole = self.policy.exactness == "certified"
        made = CompiledLoss(
            self.router, self.model, loss, self._microbatch, self._microbatch_rows, whole=whole, plain=self.folding.holds_public
        )
        self.folding.compiled.append(made)
        return made

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Backward pass of one microbatch: per-contribution gradients, masked, clipped, and added to the step's sums.

        Args:
            losses: shape (B,), one per row of ``rows``, each a function of that row alone.

        Raises:
            LossShape, StepOrder, UnsupportedModule, CoupledModel.
        """
        if self.current is None or rows is not self.current:
            raise StepOrder(
                "WRONG_ROWS", "backward() got rows that are not the current microbatch; call it once, inside `for rows in step`"
            )
        if self.probe.active:
            self.probe.backward(losses, rows)
        else:
            self.gradients.require_detached()
            refuse_coupled(self.model)
            self.folding.backward(losses, rows)
        self.current = None

    def check(self) -> None:
        """What must hold at every step, since a user can change it at any time: no known coupling, full float32 products, and
        the parameters that were bound."""
        refuse_coupled(self.model)
        refuse_skipped_masks(self.policy.exactness, self.model, self.feeder.names)
        refusals.refuse_low_precision()
        self.gradients.require_bound()

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

    def arm(self, planned: Planned) -> Microbatch:
        """Collates a microbatch and sets its bounds and masks."""
        bounds = self.drawing.bounds(planned)
        self.folding.expect(planned, bounds)
        self.current = self.feeder.planned(planned)
        self.router.arm(self.current.contributions, self.current.examples, bounds.permitted_NG)
        return self.current

    def release(self, number: int) -> None:
        """Turns the step's sums into private gradients in ``p.grad``, and adds those of public contributions."""
        self.gradients.release(self.streams.noise, number, self.folding.public if self.schedule.public else None)

    def end_step(self, number: int) -> None:
        """Settles the window at its end, closes epochs, and checks that the optimizer took the step."""
        self.gradients.require(Phase.STEPPED, f"the loop left step {number}")
        self.gradients.phase = Phase.IDLE
        if self.recorder.at_window_end(number):
            check_parameters([(t.name, t.parameter) for _, t in self.router.tensors], number)
            self.recorder.settle(number, self._clock())
        if self.recorder.at_epoch_end(number):
            self.recorder.close_epoch(number, self.weights.records(), self._clock())

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Objects with ``state_dict``/``load_state_dict`` (schedulers, say) to save and restore; call before ``prepare``."""
        if self._prepared:
            raise StepOrder("REGISTER_LATE", "register_for_checkpointing() comes before prepare(), which restores the states")
        self._registered += objects

    def save(self) -> Path:
        """Writes a durable checkpoint of model, optimizer and registered objects, pinned to the ledger.

        Raises:
            StepOrder: called inside a step, before its ``optimizer.step()``.
            StorageFailed: the disk is full; the previous checkpoint stays.
        """
        if self.gradients.phase is not Phase.IDLE:
            self.gradients.require(Phase.STEPPED, "save() was called")
        return checkpoints.save(
            self._checkpoint_dir, self.recorder.pin(self._step), self.model, self.optimizer, self._registered
        )

    def finish(self) -> None:
        """Closes the ledger and destroys every key and what was sealed; the loop over ``steps`` calls it after the last step.

        Called earlier, it ends the run there: a window that is still open is settled with the steps that were released.
        """
        if self.gradients.phase is not Phase.IDLE:
            self.gradients.require(Phase.STEPPED, "finish() was called")
            self.gradients.phase = Phase.IDLE
        self.recorder.finish(self._step, self.weights.records, self._clock())
        self.streams.sealed.destroy()
        self.streams.noise.destroy()

    def export(self, directory: str | os.PathLike[str]) -> Path:
        """Writes the public record of the run for an auditor."""
        return self.recorder.export(directory)

    def summary(self) -> list[dict[str, Any]]:
        """Per class: admitted, profile, bounds, effective multiplier, epsilon so far and over the horizon."""
        return describe.summary(self)

    def close(self) -> None:
        """Detaches from the model, restores ``requires_grad`` and closes the ledger file."""
        if self._prepared:
            self.gradients.close()
        self.recorder.close()

    def __enter__(self) -> "PrivateTraining":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
