"""PrivateTraining: one owner of every bound, from the signed policy to the released gradient."""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attest.corpus import Corpus, open_corpus
from attest.gate import GateReport, run_gate
from attest.keys import load_public_key
from attest.policy import Policy, SignedPolicy, open_policy
from attest.registry import Registry
from dptrain import checkpoints, recording
from dptrain.depth import layer_stack
from dptrain.errors import ConfigError, NotPrivateUse, ResumeRefused, StepOrder, UnsupportedPolicy
from dptrain.microbatch import Collate, Decode, Microbatch, build, json_examples
from dptrain.noise import KeyStream, LatticeGaussian
from dptrain.pool import Pool, in_ledger_order, slots_for
from dptrain.recording import Recorder
from dptrain.resolver import Schedule, bind
from dptrain.routing import Router, bounds_of
from dptrain.routing.probes import check_shapes
from dptrain.routing.scan import refuse_coupled
from dptrain.sampling import PoissonSampler
from dptrain.sealed import SealedStore
from dptrain.steps import Phase, Probe, Steps, check_parameters, order_of

BUILT = {
    "accountant": ("pld",),
    "adjacency": ("zero-out",),
    "disclosure": ("secret_poisson",),
    "exactness": ("fast",),
    "noise_family": ("gaussian",),
    "noise_injection": ("scheduled",),
}
"""What this build carries of what a policy may ask for."""


class PrivateTraining:
    """Trains a model on admitted contributions under a signed policy, with every step charged before it runs.

    ``open`` verifies the policy and runs the gate; ``prepare`` binds model and optimizer and opens the ledger; the loop over
    ``steps`` does the rest. ``p.grad`` holds a private gradient or nothing at every moment.

    Guarantee: under zero-out adjacency, the sequence of released gradients is (epsilon_i, delta)-differentially private
    with respect to each contribution i, with epsilon_i as the ledger records it: each logical step is a Poisson-subsampled
    Gaussian mechanism with multiplier z_i >= sigma_i (MECHANISM, Theorem 1'), composed over all charged steps.
    """

    def __init__(
        self,
        signed: SignedPolicy,
        corpus: Corpus,
        gate: GateReport,
        recorder: Recorder,
        *,
        accelerator: Any | None,
        decode: Decode,
        microbatch: int,
        clock: Callable[[], int],
        checkpoint_dir: Path,
        show_progress: bool | None,
        insecure_test_key: bytes | None,
    ) -> None:
        self.signed = signed
        self.policy: Policy = signed.policy
        self.gate = gate
        self.recorder = recorder
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device if accelerator is not None else torch.device("cpu")
        self.mixed_precision = accelerator is not None and accelerator.mixed_precision not in (None, "no")
        self.probed = False
        self.current: Microbatch | None = None
        self.start_step = 0
        self._corpus = corpus
        self._decode = decode
        self._microbatch = microbatch
        self._clock = clock
        self._checkpoint_dir = checkpoint_dir
        self._show_progress = show_progress
        self._test_key = insecure_test_key
        self._phase = Phase.IDLE
        self._prepared = False
        self._step = 0
        self._registered: list[Any] = []
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._released: list[tuple[nn.Parameter, torch.Tensor]] = []

    @classmethod
    def open(
        cls,
        policy: str | os.PathLike[str] = "policy.cose",
        corpus: str | os.PathLike[str] = "corpus",
        *,
        ledger: str | os.PathLike[str] = "ledger.db",
        accelerator: Any | None = None,
        owner_key: str | os.PathLike[str] | bytes | None = None,
        registry: str | os.PathLike[str] | None = None,
        ledger_key: str | os.PathLike[str] | None = None,
        origin: str | None = None,
        decode: Decode = json_examples,
        microbatch: int = 16,
        clock: Callable[[], int] = lambda: int(time.time()),
        resume: bool = False,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        insecure_test_key: bytes | None = None,
    ) -> "PrivateTraining":
        """Verifies the policy, admits the corpus, and opens or reserves the ledger.

        Args:
            policy: signed policy file. corpus: data with its attestations. ledger: SQLite file of the run.
            owner_key: public key of the corpus owner, a file or 32 bytes; default ``owner.pub`` beside the policy.
            registry: contributor registry; default ``registry.cbor`` beside the policy.
            ledger_key: private key that signs checkpoints; default ``<ledger>.key``, made on first use.
            origin: name of the log in its checkpoints; default ``<corpus>/<ledger name>``.
            decode: content bytes to examples. microbatch: contributions per microbatch (a matter of memory, not privacy).
            resume: continue a run that already has a ledger. checkpoint_dir: default ``<ledger>.checkpoints``.
            progress: show a bar on standard error; default only on a terminal.
            insecure_test_key: 32 bytes that fix noise and sampling; the ledger is stamped NOT PRIVATE and cannot be exported.

        Raises:
            PolicyRefused, RegistryRefused, CorpusRefused: input that does not verify.
            UnsupportedPolicy: the policy asks for what this build does not carry.
            NotPrivateUse: an accelerator configuration under which the release would not be private.
            ResumeRefused, LedgerError: the ledger exists without ``resume``, or does not fit.
        """
        beside = Path(policy).parent
        public = owner_key if isinstance(owner_key, bytes) else load_public_key(owner_key or beside / "owner.pub")
        signed = open_policy(policy, public)
        _refuse_unsupported(signed.policy)
        _refuse_accelerator(accelerator)
        if microbatch < 1:
            raise ConfigError("MICROBATCH", f"microbatch is {microbatch}, expected at least 1 contribution")
        known = Registry.load(registry or beside / "registry.cbor")
        data = open_corpus(corpus)
        ledger_path = Path(ledger)
        recorder = Recorder(ledger_path, ledger_key, origin or f"{signed.policy.corpus}/{ledger_path.stem}", resume, public)
        gate = run_gate(data, signed.policy, known, now=recorder.admission_time(clock()))
        if not gate.admitted:
            counts = ", ".join(f"{code} {n}" for code, n in gate.counts()["refused"].items()) or "the corpus is empty"
            raise ConfigError("NOTHING_ADMITTED", f"the gate admitted no contribution ({counts}); see `dptrain gate`")
        return cls(
            signed,
            data,
            gate,
            recorder,
            accelerator=accelerator,
            decode=decode,
            microbatch=microbatch,
            clock=clock,
            checkpoint_dir=Path(checkpoint_dir or f"{ledger_path}.checkpoints"),
            show_progress=progress,
            insecure_test_key=insecure_test_key,
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
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise NotPrivateUse("CLOSURE_OPTIMIZER", "LBFGS evaluates gradients inside step(); use an optimizer that takes one")
        refuse_coupled(self.model)
        self.collate = collate
        stack = layer_stack(self.model, layers)
        self.schedule: Schedule = bind(self.policy, stack)
        self._check_optimizer()
        slots = slots_for(self.gate.admitted, self.schedule)
        largest = max(slot.resolution.multiplier for slot in slots)
        self.router = Router(self.model, self.schedule, largest_multiplier=largest)
        header = recording.header_for(self, self._test_key)
        attempt = self.recorder.open(header, slots, self._clock())
        slots = in_ledger_order(slots, self.recorder.admitted())
        self.pool = Pool(self._corpus, self._decode, slots, self.policy.max_examples)
        state = self._restore()
        if attempt is None:
            attempt = self.recorder.resume(self.start_step, state, self._clock())
        self._open_streams(attempt)
        self._take_gradients()
        self.probe = Probe(self)
        self._prepared = True
        return model, optimizer, Steps(self)

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
            self.router.require_losses(losses)
            self.router.backward(losses, rows.weight)
            norms = self.router.norms_sq()
            self.router.accumulate(self.router.coefficients(norms, self._bounds))
        self.current = None

    def begin_step(self, number: int) -> list[list[int]]:
        """Charges the window of a step if it is not charged yet, draws, and splits the draw into microbatches."""
        for parameter, _ in self._released:
            parameter.grad = None
        self._released = []
        if self.recorder.needs_charge(number):
            if self.recorder.at_epoch_start(number):
                now = self._clock()
                self.recorder.expire([self.pool.slots[i].descriptor_hash for i in self.pool.expired(now)], now)
            self.recorder.charge(number, self._clock())
            self._sampler.close(self.pool.indices(self.recorder.withdrawn()))
        self._step = number
        self._phase = Phase.DRAWING
        lowest = {name: self.schedule.lowest_position(name) for name in self.schedule.profiles}
        drawn = sorted(
            (int(i) for i in self._sampler.draw(number)), key=lambda i: (lowest[self.pool.slots[i].resolution.class_name], i)
        )
        return [drawn[i : i + self._microbatch] for i in range(0, len(drawn), self._microbatch)]

    def arm(self, slots: list[int]) -> Microbatch:
        """Collates a microbatch and sets its bounds and masks."""
        resolutions = [self.pool.slots[i].resolution for i in slots]
        self._bounds = bounds_of([(r.clip_norm, r.noise_multiplier, r.profile) for r in resolutions], len(self.schedule.blocks))
        self.current = self.collated(slots)
        self.router.arm(self.current.contributions, self.current.examples, self._bounds.permitted_NG)
        return self.current

    def collated(self, slots: Sequence[int]) -> Microbatch:
        """Reads and collates contributions; every microbatch of a run has the same shapes per example."""
        rows = build([self.pool.examples(i) for i in slots], self.collate, self.device)
        if self._shapes is None:
            self._shapes = rows.shapes()
        check_shapes(self._shapes, rows.shapes())
        return rows

    def require_consumed(self, number: int) -> None:
        """Raises if the loop moved on without a backward pass for its microbatch."""
        if self.current is not None:
            raise StepOrder(
                "BACKWARD_MISSING",
                f"a microbatch of step {number} was not given to private.backward(); every microbatch must be, or its "
                "contributions would be charged and unused",
            )

    def release(self, number: int) -> None:
        """Adds the scheduled noise to the step's sums and puts the private gradients into ``p.grad``."""
        for lane, ((block, tensor), total) in enumerate(zip(self.router.tensors, self.router.take_sums(), strict=True)):
            std = self.schedule.blocks[block].std
            self._noise.release_(total, std, float(self.policy.normalizer), step=number, lane=lane)
            tensor.parameter.grad = total.to(tensor.parameter.dtype)
            self._released.append((tensor.parameter, tensor.parameter.grad))
        self._phase = Phase.RELEASED

    def end_step(self, number: int) -> None:
        """Settles the window at its end, closes epochs, and checks that the optimizer took the step."""
        self.require(Phase.STEPPED, f"the loop left step {number}")
        self._phase = Phase.IDLE
        if self.recorder.at_window_end(number):
            check_parameters([(t.name, t.parameter) for _, t in self.router.tensors], number)
            self.recorder.settle(number, self._clock())
        if self.recorder.at_epoch_end(number):
            self.recorder.close_epoch(number, recording.model_digest(self.router), self._clock())

    def require(self, phase: Phase, event: str) -> None:
        """Raises StepOrder unless the engine is in this phase."""
        if self._phase is not phase:
            raise order_of(self._phase, phase, event)

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
        if self._phase not in (Phase.STEPPED, Phase.IDLE):
            raise order_of(self._phase, Phase.STEPPED, "save() was called")
        pin = self.recorder.pin(self._step)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "registered": [item.state_dict() for item in self._registered],
        }
        return checkpoints.save(self._checkpoint_dir, pin, state)

    def finish(self) -> None:
        """Closes the ledger of a completed run and destroys what was sealed."""
        self.recorder.finish(self._clock())
        self._sealed.destroy()

    def export(self, directory: str | os.PathLike[str]) -> Path:
        """Writes the public record of the run for an auditor."""
        return self.recorder.export(directory)

    def summary(self) -> list[dict[str, Any]]:
        """Per class: admitted, profile, bounds, effective multiplier, epsilon so far and over the horizon."""
        return recording.summary(self)

    def close(self) -> None:
        """Detaches from the model, restores ``requires_grad`` and closes the ledger file."""
        if self._prepared:
            self.router.detach()
            for _, tensor in self.router.tensors:
                tensor.parameter.requires_grad_(True)
            for handle in self._hooks:
                handle.remove()
        self.recorder.close()

    def __enter__(self) -> "PrivateTraining":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar on standard error; it shows public numbers only."""
        shown = sys.stderr.isatty() if self._show_progress is None else self._show_progress
        if not shown:
            yield lambda number: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("private training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("steps", total=total)
            yield lambda number: bar.advance(task)

    def _check_optimizer(self) -> None:
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        missing = [t.name for block in self.schedule.blocks for t in block.tensors if id(t.parameter) not in held]
        if missing:
            raise ConfigError(
                "OPTIMIZER_PARAMETERS",
                f"the optimizer does not hold {len(missing)} trainable tensors that the policy schedules "
                f"(first: {missing[0]!r}); build it from this model's parameters, or freeze the "
                "tensors with requires_grad_(False)",
            )

    def _take_gradients(self) -> None:
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        self.router.attach()
        self._hooks = [
            self.optimizer.register_step_pre_hook(self._before_optimizer),
            self.optimizer.register_step_post_hook(self._after_optimizer),
        ]

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self.require(Phase.RELEASED, "optimizer.step() was called")
        if any(parameter.grad is not released for parameter, released in self._released):
            raise NotPrivateUse(
                "GRADIENT_REPLACED",
                "p.grad is not the tensor that was released for this step (zero_grad() before step(), or an assignment); "
                "change private gradients in place only",
            )
        own = {id(parameter) for parameter, _ in self._released}
        for group in optimizer.param_groups:
            if any(p.grad is not None and id(p) not in own for p in group["params"]):
                raise NotPrivateUse(
                    "FOREIGN_GRADIENT", "a parameter outside the schedule carries a gradient, which is not private; clear it"
                )

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self._phase = Phase.STEPPED

    def _restore(self) -> checkpoints.PinRecord | None:
        """Loads the newest checkpoint of a resumed run, after checking that the ledger is not behind it."""
        available = checkpoints.found(self._checkpoint_dir)
        if not self.recorder.resuming:
            if available:
                raise ResumeRefused(
                    "CHECKPOINTS_OF_ANOTHER_RUN",
                    f"{self._checkpoint_dir} holds checkpoints, but this ledger is new; resume the old run, or use another "
                    "directory",
                )
            return None
        if not available:
            return None
        pin, state = checkpoints.load(available[-1][1])
        self.recorder.check_pin(pin)
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            for item, saved in zip(self._registered, state["registered"], strict=True):
                item.load_state_dict(saved)
        except (KeyError, ValueError, RuntimeError) as error:
            raise ResumeRefused(
                "CHECKPOINT_MISFIT", f"the checkpoint {available[-1][1]} does not fit this model and optimizer ({error})"
            ) from error
        self.start_step = self._step = pin.step
        return pin

    def _open_streams(self, attempt: int) -> None:
        run = self.recorder.run_id
        noise_key = self._test_key or KeyStream.fresh_master()
        sampling_key = self._test_key or KeyStream.fresh_master()
        self._noise = LatticeGaussian(KeyStream("noise", run, attempt, noise_key))
        self.recorder.commit_stream(hashlib.sha256(b"dptrain.stream/1\x00" + noise_key + os.urandom(32)).digest())
        descriptors = [slot.admitted.admission.descriptor for slot in self.pool.slots]
        rates = [self.policy.class_rule(d.admissibility_class).sampling_rate for d in descriptors]
        caps = [d.max_occurrences for d in descriptors]
        self._sampler = PoissonSampler(KeyStream("sampling", run, attempt, sampling_key), rates, caps)
        self._sealed = SealedStore(Path(f"{self.recorder.path}.sealed"))
        if self._sampler.capped:
            for past, master in enumerate(self._sealed.masters(attempt)):
                earlier = PoissonSampler(KeyStream("sampling", run, past, master), rates, caps)
                earlier.occurrences[:] = self._sampler.occurrences
                for step in self.recorder.charged_in(past):
                    earlier.draw(step)
                self._sampler.occurrences[:] = earlier.occurrences
            self._sealed.add(attempt, sampling_key)
        self._sampler.close(self.pool.indices(self.recorder.withdrawn()))


def _refuse_unsupported(policy: Policy) -> None:
    for name, carried in BUILT.items():
        found = getattr(policy, name)
        if found not in carried:
            raise UnsupportedPolicy(
                "NOT_IN_THIS_BUILD", f"the policy asks for {name} = {found!r}; this build carries {', '.join(carried)}"
            )


def _refuse_accelerator(accelerator: Any | None) -> None:
    if accelerator is None:
        return
    if accelerator.num_processes > 1:
        raise NotPrivateUse(
            "PROCESSES",
            f"accelerate runs {accelerator.num_processes} processes; this build trains in one. Launch with --num_processes 1",
        )
    if accelerator.gradient_accumulation_steps > 1:
        raise NotPrivateUse(
            "ACCUMULATION",
            "accelerate's gradient accumulation skips optimizer steps that are charged; a logical step already sums over its "
            "microbatches: set gradient_accumulation_steps to 1 and microbatch= in open()",
        )
    if accelerator.scaler is not None or accelerator.mixed_precision in ("fp16", "fp8"):
        raise NotPrivateUse(
            "LOSS_SCALER",
            f"mixed precision {accelerator.mixed_precision!r} skips steps or shares scales by looking at private gradients; "
            "use bf16",
        )
