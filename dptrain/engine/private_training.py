"""PrivateTraining: what a training program holds, from the signed policy to the released gradient.

Over 600 lines, for every call of a training program stands here with its promise; what a call does stands in `prepared`.
"""

import atexit
import difflib
import hashlib
import inspect
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, overload

import torch
from torch import nn

from attest.corpus import open_corpus
from attest.gate import GateReport, run_gate
from attest.keys import load_public_key
from attest.policy import Policy, SignedPolicy, open_policy
from attest.schema.cards import card
from dptrain import parallel
from dptrain.data.items import Encode, collate_items, contents_of, count_tokens, decode_item, decode_items
from dptrain.data.microbatch import Collate, Decode, Microbatch
from dptrain.data.packing import Planned
from dptrain.engine import refusals
from dptrain.engine.dry_run import STEPS, DryRun
from dptrain.engine.header import Epsilon, Epsilons
from dptrain.engine.one_owner import corpus_name, owners_policy, stage_alone
from dptrain.engine.options import (
    CLOCK,
    MICROBATCHES,
    NO_EARLIER,
    NOISE,
    Clock,
    Earlier,
    Metrics,
    Microbatches,
    NoiseSource,
    OpenOptions,
    RunLedger,
    Send,
    Where,
)
from dptrain.engine.prepared import Opened, PreparedRun
from dptrain.engine.step import Steps
from dptrain.errors import ConfigError, RanksError, StepOrder
from dptrain.parallel.ranks import Ranks, code_digest
from dptrain.progress import attestations_in, progress_bar
from dptrain.record.recorder import Recorder
from dptrain.record.registry_watch import RegistryWatch, memories_of, reading_beside
from dptrain.record.settling import Inbox
from ledger.storage.place import Place

if TYPE_CHECKING:
    from dptrain.routing.compiled import CompiledLoss
    from dptrain.routing.repeated import Loss, RepeatedLoss


CLOSED: Final = (
    "CLOSED",
    "the run was closed, and no step of it can be taken any more; open it again (in a notebook: run the cell with open(..., "
    "resume=True) or own(), and those behind it)",
)
TAKEN_OVER: Final = (
    "TAKEN_OVER",
    "this run ended when its ledger was opened again in this process, which settled and saved it; use the run, model, "
    "optimizer and steps that were opened and prepared last (in a notebook: run the cells from open() or own() on)",
)
"""Says why a run takes no more steps."""

CLOCKS_APART: Final = 60
"""Seconds that the clocks of ranks may be apart."""

_OF_OPACUS: Final = {"max_grad_norm": "clip_norm", "target_delta": "delta", "max_physical_batch_size": "microbatches"}
"""Arguments of `PrivateTraining.own` by the names that Opacus has for them."""

_OPEN: "weakref.WeakSet[PrivateTraining]" = weakref.WeakSet()
"""Runs of this process that are open."""


@atexit.register
def _interrupt_all(process: int = os.getpid()) -> None:
    """Settles, at the end of the program, runs that an exception ended outside of a ``with`` block."""
    if os.getpid() == process:
        for run in list(_OPEN):
            run._interrupt()


class PrivateTraining:
    """Trains a model on admitted contributions under a signed policy, with every step charged before it runs.

    ``open`` verifies the policy and runs the gate; ``prepare`` binds model and optimizer and resumes the ledger of a run that
    has one; the loop over the steps does the rest. ``p.grad`` holds a private gradient or nothing at every moment.

    Guarantee: under zero-out adjacency, the sequence of released gradients is (epsilon_i, delta)-differentially private
    with respect to each contribution i, with epsilon_i as the ledger records it: each logical step is a Poisson-subsampled
    Gaussian mechanism with multiplier z_i >= sigma_i (docs/mechanism, Theorem 1), composed over all charged steps; or one of
    the family of noise that the policy names (Theorems 9 to 11), or unsampled where occurrences are public (Theorems 6 and 12).

    Attributes:
        opened: what the opening verified: policy, gate, recorder, registry.
    """

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._prepared: PreparedRun | None = None
        self._ended: tuple[str, str] | None = None
        _OPEN.add(self)

    @classmethod
    def open(
        cls,
        policy: Where = "policy.cose",
        corpus: Where = "corpus",
        *,
        ledger: RunLedger | Where = "ledger.db",
        accelerator: Any | None = None,
        owner_key: Where | bytes | None = None,
        registry: Where | None = None,
        earlier: Earlier = NO_EARLIER,
        microbatches: Microbatches = MICROBATCHES,
        clock: Clock = CLOCK,
        resume: bool = False,
        progress: bool = True,
        noise: NoiseSource = NOISE,
    ) -> "PrivateTraining":
        """Verifies the policy, admits the corpus, and opens or reserves the ledger.

        Args:
            policy: signed policy file. corpus: data with its attestations.
            ledger: SQLite file of the run or a ``postgresql://`` URL; a `RunLedger` says more of what lies beside it.
            accelerator: of accelerate; the processor without one.
            owner_key: public key of the corpus owner, a file or 32 bytes; default ``owner.pub`` beside the policy.
            registry: contributor registry; default ``registry.cbor`` beside the policy.
            earlier: closed runs over the corpus, and budgets of texts, which count in every limit over runs. microbatches:
                their size at most.
            clock: tells the time. resume: continue a run that has a ledger. progress: show a bar on a terminal.
            noise: where noise is drawn.

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
        refusals.refuse_generator(noise.generator, signed.policy, accelerator)
        ranks = parallel.found()
        with ExitStack() as failing:
            failing.callback(ranks.leave)
            made = cls._opened(
                signed, public, beside, corpus, RunLedger.of(ledger), accelerator, registry, earlier, microbatches, clock,
                resume, progress, noise, ranks,
            )  # fmt: skip
            failing.pop_all()
        return cls(made)

    @staticmethod
    def _opened(
        signed: SignedPolicy,
        public: bytes,
        beside: Path,
        corpus: Where,
        kept: RunLedger,
        accelerator: Any | None,
        registry: Where | None,
        earlier: Earlier,
        microbatches: Microbatches,
        clock: Clock,
        resume: bool,
        progress: bool,
        noise: NoiseSource,
        ranks: Ranks,
    ) -> Opened:
        """Admits the corpus, and opens or reserves the ledger, under a policy that was verified; see `open`."""
        data = open_corpus(corpus)
        place = kept.where()
        for other in [run for run in _OPEN if _one_ledger(run.opened.recorder.place, place)]:
            other._interrupt(TAKEN_OVER)  # a cell of a notebook that is run again
        watch = RegistryWatch(registry or beside / "registry.cbor", public, memories_of(place, data) if ranks.leads else ())
        origin = kept.origin or f"{signed.policy.corpus}/{place.name}"
        recorder = Recorder(place, kept.key, origin, resume, public, earlier, ranks)
        try:
            now = recorder.begin_at(clock.now, accepted=clock.jump_ok)
            admitting = recorder.admitting(watch)
            reading = None
            if kept.keep_reading and ranks.leads:
                reading = reading_beside(place, recorder.signer.private_key, signed, admitting, watch.current)
            # A resumed run is judged by the time of its admission, so that verdicts repeat.
            at = recorder.ledger.header.time if recorder.resuming else now
            progress = progress and ranks.leads
            with progress_bar("judging", lambda: attestations_in(Path(corpus)), shown=progress) as judged:
                gate = run_gate(data, signed.policy, admitting, now=at, progress=judged, remember=reading)
            if reading is not None:
                reading.keep()
            _agree(ranks, signed, gate, clock.now)
            if not gate.admitted:
                counts = ", ".join(f"{code} {n}" for code, n in gate.counts()["refused"].items()) or "the corpus is empty"
                raise ConfigError("NOTHING_ADMITTED", f"the gate admitted no contribution ({counts}); see `dptrain gate`")
            inbox = Inbox(place.side(".withdrawals"), signed, public)
            if ranks.leads:
                inbox.make()
        except BaseException:
            recorder.close()
            raise
        return Opened(
            signed=signed,
            corpus=data,
            gate=gate,
            recorder=recorder,
            inbox=inbox,
            registry=watch,
            reading=reading,
            accelerator=accelerator,
            microbatches=microbatches,
            noise=noise,
            now=clock.now,
            checkpoints=kept.checkpoints_of(place),
            progress=progress,
            ranks=ranks,
        )

    @classmethod
    def one_owner(
        cls,
        folder: Where,
        policy: str,
        records: Mapping[str, Sequence[Any]],
        **options: Unpack[OpenOptions],
    ) -> "PrivateTraining":
        """Opens a run of one person who holds the data and the keys: makes policy, registry and attestations in a folder.

        The guarantee stays as it is. What others sign in a run of many, this person signs alone, and the ledger too, with the
        one key that lies in ``folder/keys``; so nobody else has agreed to anything. Attestations hold for a year. A folder that
        was made before with this policy and these records is opened as it is: pass ``resume=True`` to go on with its run.

        Args:
            folder: made if it is not there; the ledger is ``ledger.db`` in it.
            policy: text of a ``policy.toml``.
            records: by class, contributions that JSON can hold; each is one contribution.
            options: of `open`.

        Raises:
            ConfigError: code ONE_OWNER, the folder holds another policy or other records, or the policy has not these classes.
            PolicyRefused: the policy cannot be used.
        """
        return cls._of_one(_staged(Path(folder), policy, records), **options)

    @classmethod
    def _of_one(cls, made: Path, **options: Any) -> "PrivateTraining":
        """Opens the run of a folder that `stage_alone` made."""
        options.setdefault("ledger", made / "ledger.db")
        return cls.open(made / "policy.cose", made / "corpus", **{"owner_key": made / "keys" / "owner.pub"} | options)

    @classmethod
    def own(
        cls,
        dataset: Any,
        *,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        epochs: float = 4,
        batch_size: int = 256,
        directory: Where = "run",
        delta: float | None = None,
        clip_norm: float = 1.0,
        geometry: str | None = None,
        encode: Encode | None = None,
        by: str | Callable[[Any], Any] | None = None,
        public_lengths: Sequence[int] = (),
        length_of: Callable[[Any], int] | None = None,
        max_examples: int | None = None,
        **options: Unpack[OpenOptions],
    ) -> "PrivateTraining":
        """Opens a run over data that is all yours, with noise for an epsilon; makes all that an auditor needs in a directory.

        Every item is a contribution of one class that may touch everything; items that repeat another one are left out. Its
        noise multiplier is the least whose epsilon stays within the target after all steps, with those that the policy lets be
        charged again. A second call with the same data goes on with the run of the directory. Who reads its record is told that
        one party holds all keys (ONE_PARTY).

        Args:
            dataset: a list, a data set with items by number, or the path of a .jsonl, .csv or .parquet file.
            target_epsilon: at `delta`, under zero-out adjacency: the figure to put beside that of Opacus; default: 8.
            noise_multiplier: in the place of a target; what it gives is in `epsilon` before the first step.
            epochs: how often an item is drawn on average. batch_size: how many items a step draws on average.
            directory: made if it is not there; for another policy than the one that is made in it there is `one_owner`.
            delta: default: at most 1e-6, and at most a tenth of one over the number of items.
            clip_norm: bounds the gradient of every item.
            geometry: ``"lora_tangent"`` to clip and noise LoRA pairs along the tangent space of their product; the optimizer is
                then `dptrain.geometry.TangentAdam` or `TangentSGD`.
            encode: an item to the bytes that are signed, where items are not numbers, strings, arrays, or lists, tuples and
                dicts of them; where they are grouped, the list of them. Give `prepare` the `decode` that belongs to it.
            by: makes all items of one person one contribution, which epsilon then is for: the name of a column, or a function
                from an item to its key. Counts are of persons; the gradients of the items of one are averaged.
            public_lengths: lengths in tokens, for everybody to know. Each contribution is padded or cut to the shortest that
                holds it, instead of all to one length; `prepare` takes a `collate(examples, length)`.
            length_of: an item to the number of its tokens; default: of its ``input_ids``.
            max_examples: examples that a contribution decodes to at most, where `decode` makes others than its items.
            options: of `open`.

        Raises:
            ConfigError: code DATASET, ENCODE or OWN; ONE_OWNER, the directory holds a run over other data or numbers.
            AccountantError: no noise reaches the epsilon. As `open` besides.
        """
        if unknown := sorted(options.keys() - inspect.signature(cls.open).parameters.keys()):
            alike = difflib.get_close_matches(unknown[0], inspect.signature(cls.own).parameters, 1, 0.4)
            near = _OF_OPACUS.get(unknown[0]) or (alike[0] if alike else None)
            raise ConfigError("OWN", f"own() has no argument {unknown[0]!r}{f'; do you mean {near}?' if near else ''}")
        if not isinstance(directory, str | os.PathLike):
            raise ConfigError("OWN", f"directory is {directory!r}, expected a path")
        if length_of is not None and not public_lengths:
            raise ConfigError("OWN", "length_of is given without public_lengths; say to which lengths items are padded or cut")
        if public_lengths and length_of is None:
            length_of = count_tokens
        every = list(contents_of(dataset, encode=encode, by=by, length_of=length_of))
        tokens = {content.line: content.tokens for content in every}
        if repeated := len(every) - len(tokens):
            again = "an item counts once: give equal ones that are not the same a number of its own each"
            warnings.warn(f"{repeated:,} of {len(every):,} items repeat another one and are left out; {again}", stacklevel=2)
        folder = Path(directory)
        policy = owners_policy(
            len(tokens), target_epsilon=target_epsilon, epochs=epochs, batch_size=batch_size, delta=delta, clip_norm=clip_norm,
            corpus=corpus_name(folder), max_examples=max_examples or max((content.examples for content in every), default=1),
            public_lengths=public_lengths, noise_multiplier=noise_multiplier, geometry=geometry,
        )  # fmt: skip
        rule = Policy.from_toml(policy).classes[0]
        signed = (lambda line: rule.public_length_for(tokens[line] or 0)) if public_lengths else None
        made = _staged(folder, policy, {"own": tokens}, signed)
        run = cls._of_one(made, **{"resume": True} | options)
        run.opened = replace(run.opened, decode=decode_item if by is None else decode_items)
        if refused := run.opened.gate.counts()["refused"]:
            told = ", ".join(f"{code} {count:,}" for code, count in refused.items())
            warnings.warn(f"{sum(refused.values()):,} of {len(tokens):,} items are left out ({told})", stacklevel=2)
        return run

    @property
    def policy(self) -> Policy:
        """Returns the rules that the corpus owner signed."""
        return self.opened.policy

    @property
    def prepared(self) -> PreparedRun:
        """Returns the run with its model.

        Raises:
            StepOrder: code NOT_PREPARED, before `prepare`; TAKEN_OVER, its ledger was opened again.
        """
        return self._require_prepared("NOT_PREPARED", "the run has no model yet; call prepare() first")

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        collate: Collate = collate_items,
        *,
        decode: Decode | None = None,
        layers: str | Sequence[str] | None = None,
        probe: Sequence[bytes] | None = None,
        states: Sequence[Any] = (),
        metrics: Metrics | Where | Send | None = None,
        dry_run: bool = False,
        state: Where | None = None,
    ) -> tuple[nn.Module, torch.optim.Optimizer, Steps[Planned]]:
        """Binds a model and its optimizer to the policy, and resumes the ledger of a run that has one.

        The model and optimizer come back as they were given; ``accelerator.prepare`` may run before or after, of several
        processes before. From here on
        every scheduled parameter has ``requires_grad=False``, so that no backward pass but ours can fill ``p.grad``. A new
        ledger is made when the first step begins, after the start-up probes: a run that they refuse leaves none.

        Args:
            model: any module whose layer stack is found or named. optimizer: any ``torch.optim`` optimizer.
            collate: examples to a mapping of tensors, of shapes that do not depend on content; default: torch's own.
            decode: content bytes of a contribution to its examples; default: those of its JSON.
            layers: see :func:`dptrain.blocks.stack.resolve_layer_names`; not needed where every class may touch everything.
            probe: a few raw records that are nobody's contribution, as ``decode`` takes them, for the start-up probes. By
                default these run on contributions of public classes or, where there are none, on rows made up from shapes and
                types; where such rows do not serve (PROBE_NEEDED), give real ones.
            states: objects with ``state_dict`` and ``load_state_dict``, as schedulers; checkpoints hold them too.
            metrics: a file for the public numbers of every step, a function that takes them, or `dptrain.Metrics`.
            dry_run: return three steps on rows that are nobody's, instead of the run's: every record is decoded and collated,
                the start-up probes run, nothing is charged, and `save` writes nothing.
            state: folder of `save_state` to go on from, in the place of the newest checkpoint; accelerate loads it once every
                file was found to be the one that was pinned.

        Raises:
            UnsupportedModule, CoupledModel, UnsupportedPolicy, NotPrivateUse, ResumeRefused, LedgerError.
            ConfigError: code METRICS, the file holds something else than lines of this run.
            PinRefused: the newest checkpoint of a resumed run is not what this run saved; nothing was loaded or charged.
        """
        self._require_mine()
        if self._prepared is not None:
            raise StepOrder(
                "PREPARED_TWICE",
                "prepare() was called twice on one PrivateTraining; open a new one per run (in a notebook: run the cell with "
                "open(..., resume=True) or own() again, which goes on behind the last whole step, and then this one)",
            )
        if self._ended is not None:
            raise StepOrder(*self._ended)
        decode = decode or self.opened.decode
        wanted = None if dry_run else Metrics.of(metrics)
        begun_by = None if state is None else Path(state)
        how = {"layers": layers, "probe": probe, "states": states, "metrics": wanted, "begun_by": begun_by}
        run = PreparedRun(self.opened, model, optimizer, collate, decode, **how)
        self._prepared = run
        if dry_run:
            run.dry = True
            return model, optimizer, Steps(DryRun(run), 1, min(STEPS, self.policy.steps), "dry run", self.opened.progress)
        first, last, shown = run.start_step + 1, self.policy.steps, self.opened.progress
        return model, optimizer, Steps(run, first, last, "private training", shown)

    @overload
    def loss(self, function: "Loss", *, compiled: Literal[False] = False) -> "RepeatedLoss": ...
    @overload
    def loss(self, function: "Loss", *, compiled: bool) -> "RepeatedLoss | CompiledLoss": ...
    def loss(self, function: "Loss", *, compiled: bool = False) -> "RepeatedLoss | CompiledLoss":
        """Returns the same per-example loss, whose exceptions no contribution can stop the run with.

        Use it in the place of ``function``: ``private.backward(safe(model, rows), rows)``. A microbatch that raises is repeated
        contribution by contribution, under the random numbers that it had, and who raises alone counts as zero.

        Args:
            function: ``(model, rows) -> losses`` of shape (B,), as for :meth:`backward`.
            compiled: run forward and backward pass of a microbatch as one compiled graph. Sums and noise are those of the
                plain form, up to rounding; what cannot be compiled runs in the plain form, with a notice.

        Raises:
            StepOrder: called before ``prepare``. CompileRefused: code NO_COMPILER, there is no C++ compiler.
        """
        code = "COMPILE_EARLY" if compiled else "LOSS_EARLY"
        run = self._require_prepared(code, "loss() was called before prepare(), which binds the model; call it after")
        return run.compiled(function) if compiled else run.repeated(function)

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Runs the backward pass of one microbatch: per-contribution gradients, masked, clipped, and added to the step's sums.

        Args:
            losses: shape (B,), one per row of ``rows``, each a function of that row alone.

        Raises:
            LossShape, StepOrder, UnsupportedModule, CoupledModel.
        """
        self.prepared.backward(losses, rows)

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
        run = self._require_prepared("CLIP_EARLY", "clip_blocks_() was called before prepare(); call it right before the step")
        return run.gradients.clip_blocks_(max_norm)

    def save(self) -> Path:
        """Writes a durable checkpoint of model, optimizer and states, pinned to the ledger under its key.

        Of several ranks all call it where parameters lie over them, or where noise is correlated between steps, whose state is
        kept beside the ledger; else the first is enough.

        Raises:
            LedgerReplaced: the ledger is no longer the one under its name.
            StepOrder: called inside a step, before its ``optimizer.step()``.
            StorageFailed: the disk is full; the previous checkpoint stays.
        """
        return self.prepared.save()

    def save_state(self, folder: Where) -> Path:
        """Has accelerate write its state into a folder (``accelerator.save_state``), and pins all files of it to the ledger.

        Of several ranks all call it. Give the folder to `prepare(state=...)` to go on from it; what was spent is in the ledger.

        Raises:
            ConfigError: code NO_ACCELERATOR. StepOrder, LedgerReplaced, StorageFailed: as `save`.
        """
        return self.prepared.save_state(Path(folder))

    def epsilon(self) -> Epsilons:
        """Returns per class what the run has spent so far of a contribution, and what it will have spent at the end.

        Each epsilon bounds what all released gradients, and so every released model, tell of one contribution of the class,
        at the policy's delta, for whoever signed the preset bounds or stricter ones. ``spent`` and ``planned`` hold under
        zero-out adjacency: the contribution adds what it adds, or zero. ``spent_replaced`` holds where its content is another
        one. That the contribution exists is public (docs/guarantee.md). Steps count that were charged, done or not. ``planned``
        grows with every step that is charged in vain, and ``if_all_redone`` is what it can come to under the policy's
        ``redo_steps``. Where the policy makes occurrences public, ``spent`` is that of the contribution that was drawn most.
        Unless an order is signed, one in a million exceeds the other two then. Runs before this one are not in it. A public
        class has None: nothing is promised to it.

        Raises:
            StepOrder: before `prepare`.
        """
        figures = ("epsilon", "epsilon_replace", "epsilon_planned", "delta")
        redone, found = self.prepared.if_all_redone(), Epsilons()
        for row in self.prepared.summary():
            name = row["class"]
            found[name] = None if row["public"] else Epsilon(*map(row.__getitem__, figures), redone[name])
        return found

    def export(self, directory: str | os.PathLike[str]) -> Path:
        """Writes the public record of the run for an auditor: the ledger, what contributors signed, and the registry.

        Of several ranks the first writes it, and the others return at once.

        Raises:
            ExportRefused: as ``ledger.log.ledger.Ledger.export``. StepOrder: code TAKEN_OVER, a later run has the ledger.
        """
        self._require_mine()
        return self.opened.recorder.export(directory, self.opened.registry.path)

    def close(self) -> None:
        """Detaches from the model, restores ``requires_grad`` and closes the ledger file.

        Every parameter has the ``requires_grad`` that it had before `prepare`. Calling it twice does no more.

        Raises:
            LedgerReplaced: the ledger that was written is no longer the one under its name. All is closed all the same.
        """
        if self._ended is not None:
            return
        try:
            self.opened.recorder.require_in_place()
        finally:
            self._detach()

    def _interrupt(self, ended: tuple[str, str] = CLOSED) -> None:
        """Ends an attempt whose loop an exception ended, and closes the ledger file; a ``with`` block does it, and so does the
        end of the program.

        The open window is settled with the steps whose release began, and the last whole step is saved. So ``resume=True`` goes
        on behind it, and the rest of the window is all that is charged in vain. Warns where the disk or the ledger refuses.
        """
        if self._ended is not None:
            return
        try:
            if self._prepared is not None:
                self._prepared.interrupt()
        except Exception as error:  # whatever it is, the exception that ended the loop is the one to be seen
            warnings.warn(f"the run was interrupted, and could not be settled ({error}); what was charged counts", stacklevel=2)
        finally:
            self._detach(ended)

    def _detach(self, ended: tuple[str, str] = CLOSED) -> None:
        """Detaches and closes, and asks for nothing; says from here on why the run has ended."""
        _OPEN.discard(self)
        self._ended = self._ended or ended
        try:
            if self._prepared is not None:
                self._prepared.detach(self._ended)
                self._prepared.probe.tell_end()
            self.opened.recorder.close()
            self.opened.ranks.leave()
        finally:
            if self._prepared is not None:
                self._prepared.gradients.interrupts.let()  # of a loop that was left between a release and the optimizer

    def _require_mine(self) -> None:
        """Refuses a run whose ledger was opened by a later one: what this one knows of it is old."""
        if self._ended is TAKEN_OVER:
            raise StepOrder(*TAKEN_OVER)

    def _require_prepared(self, code: str, sentence: str) -> PreparedRun:
        self._require_mine()
        if self._prepared is None:
            raise StepOrder(code, sentence)
        return self._prepared

    def __repr__(self) -> str:
        """Says where the ledger lies, how far the run is, and what it has spent."""
        place, run = self.opened.recorder.place.shown, self._prepared
        if self._ended is TAKEN_OVER:
            return f"<PrivateTraining {place}: ended, a later run has its ledger>"
        if run is None:
            return f"<PrivateTraining {place}: no model yet, call prepare()>"
        if not self.opened.recorder.begun:
            return f"<PrivateTraining {place}: {'a dry run' if run.dry else 'nothing charged yet'}>"
        delta = float(self.policy.delta)
        return f"<PrivateTraining {place}: step {run.step} of {self.policy.steps}, {run.told()}, delta {delta:g}>"

    def _repr_html_(self) -> str:
        """Says the same for a notebook."""
        shown = repr(self)[1:-1].removeprefix("PrivateTraining ")
        place, _, stands = shown.partition(": ")
        return card("PrivateTraining", [("ledger", place), ("stands", stands)])

    def __dir__(self) -> list[str]:
        """Lists what is public."""
        return [name for name in super().__dir__() if name.startswith("__") or not name.startswith("_")]

    def __enter__(self) -> "PrivateTraining":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._interrupt()


def _staged(folder: Path, *what: Any) -> Path:
    """Makes what a run of one owner needs, by the first of several ranks; the others find it made."""
    ranks = parallel.found()
    try:
        return Path(ranks.first(lambda: os.fsencode(stage_alone(folder, *what))).decode())
    finally:
        ranks.leave()


def _agree(ranks: Ranks, signed: SignedPolicy, gate: GateReport, clock: Callable[[], int]) -> None:
    """Refuses to open a run whose ranks have other files, programs or clocks.

    Raises:
        RanksError: code RANKS_DIFFER, or CLOCKS_DIFFER.
    """
    if ranks.size == 1:
        return
    admitted = hashlib.sha256(repr(gate.counts()).encode())
    for one in gate.admitted:
        admitted.update(one.admission.descriptor_hash)
    ranks.agree(
        {
            "the policy": signed.payload,
            "the program": code_digest(),
            "the state of the registry": gate.registry_root,
            "what the gate admitted": admitted.digest(),
        }
    )
    times = [int.from_bytes(one, "big") for one in ranks.all(clock().to_bytes(8, "big"))]
    if max(times) - min(times) > CLOCKS_APART:
        raise RanksError(
            "CLOCKS_DIFFER",
            f"clocks of ranks are {max(times) - min(times)} s apart, expected {CLOCKS_APART} s at most; set them right",
        )


def _one_ledger(first: Place, second: Place) -> bool:
    """Tells whether two places are one, however their names are written."""
    if first.file is None or second.file is None:
        return first.shown == second.shown
    return os.path.realpath(first.file) == os.path.realpath(second.file)
