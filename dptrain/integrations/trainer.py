"""Makes a Trainer private: its batches are steps of a run, its training step is the private one, no private loss is logged."""

import copy
import hashlib
import inspect
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from dptrain.data.items import encode_item, items_of
from dptrain.data.microbatch import Decode, Microbatch
from dptrain.engine import refusals
from dptrain.engine.options import MICROBATCHES, Metrics, Microbatches, Send, Where
from dptrain.engine.private_training import PrivateTraining
from dptrain.engine.release import Phase
from dptrain.engine.step import LogicalStep, Steps
from dptrain.errors import ConfigError, CoupledModel, NotPrivateUse, ResumeRefused
from dptrain.geometry.optimizers import TangentAdam
from dptrain.integrations.coupled import hide_pace, refuse, refuse_arguments, require_steps, translated
from dptrain.integrations.losses import base_of, losses_of
from dptrain.integrations.rows import FixedLength, contributions_of
from dptrain.parallel.wrapped import refuse_alone
from dptrain.record.pin import found

UNSAID = ("loss", "train_loss", "total_flos", "num_input_tokens_seen")
"""Figures of a Trainer that follow from private rows and carry no noise; they are not logged."""

SPEEDS = ("train_runtime", "train_samples_per_second", "train_steps_per_second")
"""Figures that tell the pace of steps; they are not logged where draws are secret."""

LOGGED = ("run", "step", "steps", "attempt", "time")
"""Public numbers of a run that a Trainer does not log beside the others: it has its own, or they are no figures to draw."""


class Step(dict):
    """Holds one logical step, which shows nothing of its rows; the data loader of a private run yields it.

    Attributes:
        step: the logical step; iterating it gives its microbatches.
    """

    def __init__(self, step: LogicalStep[Any]) -> None:
        super().__init__()
        self.step = step


class Examples(dict):
    """The tensors of a private microbatch, as `compute_loss` gets them."""


class StepLoader:
    """Stands in for the data loader: as many batches as an epoch of the ledger has steps, each a logical step of the run."""

    def __init__(self, epoch_steps: int, steps: Callable[[], Iterator[Step]]) -> None:
        self._epoch_steps = epoch_steps
        self._steps = steps

    def __len__(self) -> int:
        return self._epoch_steps

    def __iter__(self) -> Iterator[Step]:
        return self._steps()


class PrivateRun:
    """Trains a model of transformers by a private run; a class mixes it in before its Trainer.

    The training data are the contributions of the run, drawn as the policy says. Every step is charged before it runs. A batch
    of the Trainer is one logical step, which the optimizer takes once. Checkpoints of the Trainer are checkpoints of the run
    too, and ``resume_from_checkpoint`` goes on with the run. Losses on private rows are not logged, printed or returned.
    ``grad_norm`` is that of the release, which is public. ``max_grad_norm`` clips every block of the release by itself.
    ``eval_dataset`` is taken to be public data.

    Guarantee: that of `PrivateTraining`. The losses of a microbatch go to its backward pass and nowhere else.

    Args:
        train_dataset: data that are all yours, for a run by `target_epsilon` or `noise_multiplier`; it lies in ``private``
            under ``output_dir``. Epochs and batch size are those of the arguments (``per_device_train_batch_size`` times
            ``gradient_accumulation_steps``).
        private: an opened run, in the place of `train_dataset`.
        target_epsilon, noise_multiplier, delta, clip_norm, geometry: as `PrivateTraining.own`.
        max_length: tokens of every row; shorter examples are padded, longer ones cut.
        compiled: runs each microbatch as one compiled graph. layers, probe, metrics: as `PrivateTraining.prepare`.
        others: as the Trainer. ``compute_loss_func`` and an overridden ``compute_loss`` return one loss per example.

    Raises:
        ConfigError: code TRAINER, arguments that say nothing of a private run, or contradict it.
        NotPrivateUse: code PROCESSES, LOSS_SCALER, RETRIES or EVALUATION.
    """

    arguments: ClassVar[type[TrainingArguments]] = TrainingArguments

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuses to be mixed into a trainer of TRL whose loss couples contributions."""
        super().__init_subclass__(**options)
        for base in cls.__mro__:
            if base.__module__.partition(".")[0] == "trl":
                refuse(base.__name__)

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        private: PrivateTraining | None = None,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        clip_norm: float = 1.0,
        geometry: str | None = None,
        max_length: int | None = None,
        compiled: bool = False,
        layers: str | Sequence[str] | None = None,
        probe: Sequence[bytes] | None = None,
        metrics: Metrics | Where | Send | None = None,
        **options: Any,
    ) -> None:
        if isinstance(train_dataset, PrivateTraining):
            private, train_dataset = train_dataset, None
        amounts = {"target_epsilon": target_epsilon, "noise_multiplier": noise_multiplier}
        noise = {name: value for name, value in amounts.items() if value is not None}
        if (private is None) == (train_dataset is None) or (private is None) != bool(noise):
            both = "two of them" if train_dataset is not None else f"one with {' and '.join(noise)}="
            raise ConfigError(
                "TRAINER",
                f"{type(self).__name__} takes its data from a private run, and got {'none' if private is None else both}; give "
                "private=PrivateTraining.open(...), whose policy says the noise, or train_dataset= with target_epsilon= or "
                "noise_multiplier= for data that are all yours",
            )
        args = copy.copy(args) if args is not None else self.arguments("trainer_output")
        refuse_arguments(args)
        refuse_alone(args.world_size, type(args).__name__, "set use_cpu=True in them, or ACCELERATE_USE_CPU=true")
        batch = translated(args, own=train_dataset is not None)
        self._own_data = train_dataset
        self._evaluated: list[Any] = []
        self._contents: set[bytes] | None = None
        if private is None:
            private = _own(train_dataset, args, batch, delta=delta, clip_norm=clip_norm, geometry=geometry, **noise)
        require_steps(args, private, signed=train_dataset is None)
        self.private = private
        if self._secret:
            hide_pace(args)
        self._settings: dict[str, Any] = {"layers": layers, "probe": probe, "metrics": metrics}
        self._compiled = compiled
        self._length = max_length
        self._steps: Steps[Any] | None = None
        self._running: Iterator[LogicalStep[Any]] | None = None
        self._loss: Callable[[nn.Module, Microbatch], torch.Tensor] | None = None
        self._given = 0
        self._held: list[tuple[int, float | None, dict[str, Any]]] = []
        self._inside = self._asked = False
        self._refuse_private_data(eval_dataset)
        super().__init__(
            model=model, args=args, data_collator=data_collator, train_dataset=self._trainer_data(),
            eval_dataset=eval_dataset, processing_class=processing_class, **options,
        )  # fmt: skip
        refusals.refuse_accelerator(self.accelerator)
        refusals.refuse_generator(private.opened.noise.generator, private.policy, self.accelerator)
        opened = private.opened
        rows = Microbatches(args.per_device_train_batch_size) if opened.microbatches is MICROBATCHES else opened.microbatches
        shown = opened.progress and args.disable_tqdm  # the Trainer has a bar of its own
        device = opened.accelerator or self.accelerator
        private.opened = replace(opened, accelerator=device, microbatches=rows, progress=shown)
        self._clip_whole = self.accelerator.clip_grad_norm_
        self.accelerator.clip_grad_norm_ = self._clip
        self.callback_handler.callbacks.insert(0, _Watch(self))
        self._tell, self.callback_handler.on_log = self.callback_handler.on_log, self._told

    # ------------------------------------------------------------------------------------------------- seams of the Trainer

    def train(self, resume_from_checkpoint: str | bool | None = None, *others: Any, **options: Any) -> Any:
        """Trains to the end of the run, or until a callback stops it.

        An exception settles and saves the run: the rest of the window is all that is charged in vain. The next call in a new
        process goes on behind the last whole step. So it does after a callback has stopped the training; early stopping ends
        the run.

        Returns:
            As the Trainer; the training loss is not a number, as there is none to tell.

        Raises:
            ResumeRefused: code TRAINER_RESUME, the run was not opened to be resumed, or has not reached that checkpoint;
                TRAINER_FINISHED, it has ended.
        """
        recorder = self.private.opened.recorder
        if recorder.resuming and recorder.ledger.finished:
            raise ResumeRefused(
                "TRAINER_FINISHED",
                f"the run of {recorder.place.shown} has ended, and nothing is charged to it any more; its model is in "
                f"{self.args.output_dir}, if it was saved. Another run over these data takes another output_dir or ledger, and "
                "their epsilons add up (earlier=)",
            )
        checkpoint = self._checkpoint(resume_from_checkpoint)
        try:
            done = super().train(checkpoint, *others, **options)
        except BaseException:
            self.private._interrupt()
            with suppress(Exception):  # the one that ended the training is the one to be seen
                self._tell_held()
            raise
        kept = {name: value for name, value in done.metrics.items() if name not in UNSAID}
        return done._replace(training_loss=math.nan, metrics=kept)

    def finish(self) -> None:
        """Ends the run where it stands, for a training that a callback stopped; nothing more is charged.

        Early stopping ends it so by itself. Call it before other weights are loaded into the model.

        Raises:
            ConfigError: code TRAINER, before `train`.
        """
        if self._steps is None:
            raise ConfigError("TRAINER", "finish() was called before train(); there is no run to end yet")
        self._steps.finish()
        self._tell_held()

    def get_train_dataloader(self) -> Any:
        """Returns the logical steps of the run in the place of batches."""
        return StepLoader(self._epoch_steps, self._epoch)

    def create_optimizer(self, *others: Any, **options: Any) -> torch.optim.Optimizer:
        """Makes the optimizer that the arguments name; where the policy gives LoRA pairs a geometry, `TangentAdam` around it.

        Its learning rate is that of the arguments. For another one pass ``optimizers=(TangentAdam(model, ...), None)``.
        """
        given = self.optimizer is not None
        made = super().create_optimizer(*others, **options)
        if self.private.policy.geometry and not given:
            self.optimizer = made = TangentAdam(self.model, others=made, lr=self.args.learning_rate)
        return made

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Loads the weights of a checkpoint; of several active adapters nothing, for a Trainer would leave one of them active.

        `_begin` has all of them restored from the checkpoint of the run.
        """
        active = getattr(self.model if model is None else model, "active_adapters", None)
        if not isinstance(active, list) or len(active) < 2:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def num_examples(self, dataloader: Any) -> int:
        """Returns how many contributions were admitted, which is public, or the examples of another loader."""
        if isinstance(dataloader, StepLoader):
            return len(self.private.opened.gate.admitted)
        return super().num_examples(dataloader)

    def floating_point_ops(self, inputs: Any) -> int:
        """Returns nothing of a logical step: how many rows it had tells who was drawn."""
        return 0

    def training_step(self, model: nn.Module, inputs: Any, *others: Any, **options: Any) -> torch.Tensor:
        """Runs the microbatches of a logical step; the gradients that it leaves are the release.

        Returns:
            Zero: the loss of private rows is not for the Trainer.
        """
        assert self._loss is not None
        if not isinstance(inputs, Step):
            raise NotPrivateUse(
                "TRAINER_DATA",
                f"the training step got a {type(inputs).__name__}, expected a logical step of the run; leave "
                "get_train_dataloader() as it is",
            )
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        with self._quiet():
            for rows in inputs.step:
                self.private.backward(self._loss(model, rows), rows)
        return torch.zeros((), device=self.args.device)

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, *others: Any, **options: Any) -> Any:
        """Returns one loss per example of private rows, shape (B,); of other rows what the Trainer returns."""
        if not isinstance(inputs, Examples):
            return super().compute_loss(model, inputs, return_outputs, *others, **options)
        labels = inputs.pop("labels", None)
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            losses = self.compute_loss_func(outputs, labels, num_items_in_batch=None)
        else:
            losses = losses_of(self.accelerator.unwrap_model(model), outputs, labels, self.args.label_smoothing_factor)
        return (losses, outputs) if return_outputs else losses

    def log(self, logs: dict[str, float], *others: Any, **options: Any) -> None:
        """Logs what is public, and with the figures of a step those of `PrivateTraining.prepare(metrics=...)`.

        Where draws are secret, callbacks hear nothing inside a window of steps, whose pace tells of them. They hear it when the
        ledger settles the window, or when a checkpoint is saved, under the number of the step that it is of.

        Raises:
            NotPrivateUse: code LOGGED, it is called while private rows are there.
        """
        if self._inside:
            raise NotPrivateUse(
                "LOGGED",
                f"log() was called with {sorted(logs)} from the loss of private rows, which no noise hides; log in evaluation, "
                "on public data",
            )
        run, training = self.private._prepared, "loss" in logs
        for name in (*UNSAID, *(SPEEDS if self._secret else ())):
            logs.pop(name, None)
        if run is not None and training:
            logs |= {name: value for name, value in run.numbers().items() if name not in {*LOGGED, *logs}}
        super().log(logs, *others, **options)

    def evaluate(self, eval_dataset: Any = None, *others: Any, **options: Any) -> dict[str, float]:
        """Evaluates on public data.

        Raises:
            NotPrivateUse: code EVALUATION, the data hold a contribution of the run.
        """
        self._refuse_private_data(self.eval_dataset if eval_dataset is None else eval_dataset)
        return super().evaluate(eval_dataset, *others, **options)

    def predict(self, test_dataset: Any, *others: Any, **options: Any) -> Any:
        """Predicts on public data; raises as `evaluate`."""
        self._refuse_private_data(test_dataset)
        return super().predict(test_dataset, *others, **options)

    def evaluate_without_privacy(self, eval_dataset: Any) -> dict[str, float]:
        """Evaluates on data of any kind, and tells the caller alone: nothing is logged, reported or kept.

        What it returns follows from these data and carries no noise. No epsilon holds for whoever learns of it.
        """
        watching, told = self.callback_handler.callbacks, self.state
        self.callback_handler.callbacks, self.state = [], copy.copy(told)
        self.state.log_history = []
        self._asked = True
        try:
            return dict(super().evaluate(eval_dataset))
        finally:
            self._asked = False
            self.callback_handler.callbacks, self.state = watching, told

    def hyperparameter_search(self, *others: Any, **options: Any) -> Any:
        """Refuses: every trial would be a run of its own over private data.

        Raises:
            NotPrivateUse: code SEARCH.
        """
        raise NotPrivateUse(
            "SEARCH",
            "every trial of a search trains on the same contributions, and what it finds follows from all of them; search on "
            "public data with transformers.Trainer, or open one run per trial with earlier= and count all of them",
        )

    # ----------------------------------------------------------------------------------------------------- the private run

    @property
    def _secret(self) -> bool:
        return self.private.policy.secret

    @property
    def _epoch_steps(self) -> int:
        policy = self.private.policy
        return min(policy.epoch_steps or policy.steps, policy.steps)

    def _trainer_data(self) -> Any:
        """Returns what the Trainer is given as its training data: nothing, where it need not prepare them."""
        return None

    def _decode(self) -> Decode | None:
        """Returns how contents become examples; None for the run's own way."""
        return None

    def _begin(self, state: Any) -> None:
        """Binds model, optimizer and schedule to the run, once all are there, and goes on where the run stands."""
        try:
            _, _, self._steps = self.private.prepare(
                self.model_wrapped, self.optimizer, self._collate(),  # in the wrapper that accelerate made, if it made one
                decode=self._decode(), states=[self.lr_scheduler], **self._settings,
            )  # fmt: skip
        except CoupledModel as error:
            if error.code != "PADDING" or self._length is not None:
                raise
            raise CoupledModel(
                error.code, f"{error.sentence}. {type(self).__name__}(max_length=...) pads and cuts every example to it"
            ) from None
        self._loss = self.private.loss(self._losses, compiled=self._compiled)
        self._running = iter(self._steps)
        self._given = state.global_step = self.private.prepared.start_step
        self._place(state)

    def _collate(self) -> FixedLength:
        """Returns the collator of the Trainer for rows of one length, without the columns that the model does not take."""
        columns = None
        if self.args.remove_unused_columns:
            taken = inspect.signature(base_of(self.accelerator.unwrap_model(self.model)).forward).parameters
            columns = {*taken, *self.label_names, "label", "label_ids"}
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        length = self._length
        if length is None and getattr(self.data_collator, "padding", None) == "max_length":
            length = self.data_collator.max_length
        pad = getattr(tokenizer, "pad_token_id", None)
        left = getattr(tokenizer, "padding_side", "right") == "left"
        return FixedLength(self.data_collator, columns, length, 0 if pad is None else pad, left)

    def _losses(self, model: nn.Module, rows: Microbatch) -> torch.Tensor:
        with self.compute_loss_context_manager():
            return self.compute_loss(model, Examples(rows.inputs))

    def _epoch(self) -> Iterator[Step]:
        """Yields the steps that are left of an epoch of the ledger."""
        assert self._running is not None
        last = min((self._given // self._epoch_steps + 1) * self._epoch_steps, self.private.policy.steps)
        while self._given < last:
            step = next(self._running)  # settles the one before
            if self._held and not self.private.prepared.in_window:
                self._tell_held()
            self._given = step.number
            yield Step(step)

    def _told(self, args: Any, state: Any, control: Any, logs: dict[str, Any]) -> Any:
        """Tells callbacks what was logged, or keeps it back as long as a window of secret draws is open; an evaluation without
        privacy is told to nobody, then or later."""
        run = self.private._prepared
        if self._asked:
            return control
        if run is None or not (self._secret and run.in_window):
            return self._tell(args, state, control, logs)
        self._held.append((state.global_step, state.epoch, dict(logs)))
        if control.should_training_stop:
            self._stopped()
        return control

    def _tell_held(self) -> None:
        """Tells callbacks what was kept back, as of the steps that it is of."""
        now = self.state.global_step, self.state.epoch
        held, self._held = self._held, []
        try:
            for self.state.global_step, self.state.epoch, logs in held:
                self.control = self._tell(self.args, self.state, self.control, logs)
        finally:
            self.state.global_step, self.state.epoch = now

    def _clip(self, parameters: Any, max_norm: float, *others: Any, **options: Any) -> Any:
        """Clips every block of the release by itself; returns the norm of the release before, which is public."""
        run = self.private._prepared
        if run is None or run.gradients.phase is not Phase.RELEASED:
            return self._clip_whole(parameters, max_norm, *others, **options)
        if math.isfinite(max_norm):
            return torch.tensor(math.hypot(*self.private.clip_blocks_(float(max_norm)).values()))
        return torch.tensor(run.gradients.norm())

    def _ended(self) -> bool:
        return self.private.opened.recorder.ledger.finished

    def _stepped(self, state: Any) -> None:
        """Closes the ledger behind the last step, before anything else may write the weights."""
        self._place(state)
        if state.global_step >= self.private.policy.steps:
            assert self._running is not None
            next(self._running, None)
            self._tell_held()

    def _place(self, state: Any) -> None:
        """Says where the run stands in its epochs; the Trainer counts from where it was started."""
        state.epoch = state.global_step / self._epoch_steps

    def _stopped(self) -> None:
        """Settles and saves a run that a callback stopped before its end, and ends one that has stopped early for good."""
        if self._ended():
            return
        if any(isinstance(callback, EarlyStoppingCallback) for callback in self.callback_handler.callbacks):
            self.finish()
        else:
            if self.private.prepared.together.sharded:
                self._save_run()  # while ranks, which have parts of the model each, still hear each other
            self.private.prepared.interrupt()
        self._tell_held()

    def _saved(self) -> None:
        """Writes a checkpoint of the run beside that of the Trainer; an ended run has nothing to resume."""
        if not self._ended():
            self._save_run()
            self._tell_held()

    def _save_run(self) -> None:
        """Saves the run, unless it is saved as it stands."""
        run = self.private.prepared
        if run.saved < run.step:
            self.private.save()

    def _checkpoint(self, wanted: str | bool | None) -> str | None:
        """Returns the checkpoint of the Trainer to go on from: the newest that the run has reached."""
        if not wanted:
            return None
        opened = self.private.opened
        if not opened.recorder.resuming:
            raise ResumeRefused(
                "TRAINER_RESUME",
                "resume_from_checkpoint goes on with a run, and this one is new; open it with PrivateTraining.open(..., "
                "resume=True). To begin from other weights load them into the model",
            )
        return os.fsdecode(opened.ranks.first(lambda: os.fsencode(self._newest(wanted)))) or None

    def _newest(self, wanted: str | bool) -> str:
        """Returns the checkpoint of the Trainer to go on from, "" where none fits; the first of several ranks looks for it."""
        saved = found(self.private.opened.checkpoints)
        reached = saved[-1][0] if saved else 0
        if wanted is True:
            folders = {_step_of(path): path for path in Path(self.args.output_dir).glob("checkpoint-*") if _step_of(path)}
            fit = [step for step in folders if step <= reached]
            return str(folders[max(fit)]) if fit else ""
        if _step_of(Path(wanted)) > reached:
            raise ResumeRefused(
                "TRAINER_RESUME",
                f"{wanted} lies behind step {reached}, the last one that the run has saved; pass "
                "resume_from_checkpoint=True, which finds the one that fits",
            )
        return str(wanted)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    # ------------------------------------------------------------------------------------------------------ public or private

    def _refuse_private_data(self, dataset: Any) -> None:
        """Raises NotPrivateUse for data to evaluate on that are those of the run, or hold one of its contributions."""
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if self._asked or dataset is None or any(dataset is known for known in self._evaluated):
            return
        if isinstance(dataset, Mapping):
            for part in dataset.values():
                self._refuse_private_data(part)
            return
        if dataset is self._own_data or isinstance(dataset, PrivateTraining) or not self._hashes(dataset).isdisjoint(
            self._private_hashes()
        ):  # fmt: skip
            raise NotPrivateUse(
                "EVALUATION",
                "the data to evaluate on hold contributions of the run, and a metric on them carries no noise; give public "
                "data that nobody contributed, or call evaluate_without_privacy(data), whose result nobody else may learn",
            )
        self._evaluated.append(dataset)

    def _private_hashes(self) -> set[bytes]:
        if self._contents is None:
            self._contents = set()
            for _, examples in contributions_of(self.private):
                self._contents |= self._hashes(examples)
        return self._contents

    @staticmethod
    def _hashes(dataset: Any) -> set[bytes]:
        """Returns the hashes of examples; of those that have no form in JSON, none."""
        try:
            return {hashlib.sha256(encode_item(item)).digest() for item in items_of(dataset)}
        except ConfigError:
            return set()


class _Watch(TrainerCallback):
    """Tells a private run where its Trainer stands; it comes before all other callbacks."""

    def __init__(self, trainer: PrivateRun) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._trainer._begin(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._trainer._stepped(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._trainer._place(state)
        if control.should_training_stop:
            self._trainer._stopped()

    def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if control.should_training_stop:  # the last chance before the best weights are loaded
            self._trainer._stopped()

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._trainer._saved()


def _own(dataset: Any, args: TrainingArguments, batch: int, **options: Any) -> PrivateTraining:
    """Opens a run over data that are all the user's, in the directory of the Trainer."""
    epochs = args.num_train_epochs
    if args.max_steps > 0:
        epochs = args.max_steps * batch / len(dataset) * (1 - 1e-12)  # rounded up to these steps
    return PrivateTraining.own(dataset, epochs=epochs, batch_size=batch, directory=Path(args.output_dir) / "private", **options)


def _step_of(path: Path) -> int:
    match = re.fullmatch(r"checkpoint-(\d+)", path.name)
    return int(match.group(1)) if match else 0
