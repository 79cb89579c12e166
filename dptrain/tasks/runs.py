"""Opens a run from a run file, private or WITHOUT privacy for comparison, and concludes it.

The comparison shows what privacy costs in accuracy. Nothing that comes out of it may be released: there is no clipping, no
noise, no depth limit and no ledger. Every output carries the stamp.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import save_model
from torch import nn

from attest.corpus import open_corpus
from attest.gate import run_gate
from attest.keys import load_public_key
from attest.policy import open_policy
from attest.registry import open_registry
from attest.schema.plain import visible
from dptrain import parallel
from dptrain.blocks.forwards import Forwards
from dptrain.data.microbatch import Collate, Decode, Microbatch, build, json_examples
from dptrain.engine.private_training import PrivateTraining
from dptrain.engine.step import Parts, Steps
from dptrain.errors import ConfigError
from dptrain.record.registry_watch import memory_of
from dptrain.tasks.classification import evaluate
from dptrain.tasks.runconfig import DataConfig, RunConfig
from ledger.audit import Verdict, verify_export

STAMP = "NOT PRIVATE: trained without clipping, noise or ledger, for comparison only; do not release"


class WithoutPrivacy:
    """Takes the place of ``PrivateTraining`` in a training loop; not private at all.

    Of several processes each trains on the whole of every draw, which is the same everywhere.
    """

    def __init__(self, data: DataConfig, *, microbatch: int = 16, accelerator: Any | None = None, seed: int = 0) -> None:
        """Admits the corpus as a private run would, so that both train on the same contributions."""
        owner = load_public_key(data.owner_key or data.policy.parent / "owner.pub")
        signed = open_policy(data.policy, owner).policy
        self.policy = signed.for_training()
        self._corpus = open_corpus(data.corpus)
        registry = open_registry(data.registry or data.policy.parent / "registry.cbor", owner)
        memory_of(self._corpus).keep(registry)
        self.gate = run_gate(self._corpus, signed, registry, now=int(time.time()))
        if not self.gate.admitted:
            raise ConfigError("NOTHING_ADMITTED", "the gate admitted no contribution; see `dptrain gate`")
        self._device = accelerator.device if accelerator is not None else torch.device("cpu")
        self._microbatch = microbatch
        self._generator = torch.Generator().manual_seed(seed)
        self._accelerator = accelerator
        self._share = 1.0
        self.ranks = parallel.found()
        if self.ranks.leads:
            print(STAMP, file=sys.stderr)

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        collate: Collate,
        *,
        decode: Decode = json_examples,
        **private: object,
    ) -> tuple[nn.Module, torch.optim.Optimizer, Steps[list[int]]]:
        """Returns model, optimizer and steps as ``PrivateTraining.prepare`` does, whose other arguments say nothing here.

        The model comes out of the wrapper of several processes, which have nothing to exchange.
        """
        if self._accelerator is not None:
            model = self._accelerator.unwrap_model(model)
        rules = {rule.name: rule for rule in self.policy.classes}
        owners = [rules[item.admission.descriptor.admissibility_class] for item in self.gate.admitted]
        rates = torch.tensor([float(rule.sampling_rate) for rule in owners])
        reads = [None if rule.reads is None else frozenset(rule.reads.adapters) for rule in owners]
        forwards = Forwards(model, reads)

        run = self

        class Plain(Parts[list[int]]):
            """Charges and records nothing, draws as many as a private step does, and leaves gradients as they are."""

            def draw(self, number: int) -> list[list[int]]:
                optimizer.zero_grad()
                drawn = torch.nonzero(torch.rand(len(rates), generator=run._generator) < rates).flatten().tolist()
                run._share = 1.0 / max(1, len(drawn))
                alike = [[slot for slot in drawn if reads[slot] == own] for own in forwards.sets]
                size = run._microbatch
                return [own[start : start + size] for own in alike for start in range(0, len(own), size)]

            @contextmanager
            def load(self, planned: list[int], number: int) -> Iterator[Microbatch]:
                contents = [decode(run._corpus.read(run.gate.admitted[slot].locator)) for slot in planned]
                with forwards.reading(reads[planned[0]]):
                    yield build(contents, collate, run._device)

            def release(self, number: int) -> None:
                """Leaves the gradients as they are: a null mechanism."""

        return model, optimizer, Steps(Plain(), 1, self.policy.steps, "training WITHOUT privacy")

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Adds ordinary gradients of the mean loss over the draw."""
        (losses * rows.weight.to(losses)).sum().mul(self._share).backward()

    def loss(self, function: Callable[..., torch.Tensor], *, compiled: bool = False) -> Callable[..., torch.Tensor]:
        """Returns the loss as it is: an example that raises ends a comparison run, and none is compiled."""
        return function

    def save(self) -> None:
        """Keeps no checkpoint."""

    def close(self) -> None:
        """Leaves the other processes."""
        self.ranks.leave()

    def __enter__(self) -> "WithoutPrivacy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def accelerator_of(config: RunConfig) -> Accelerator:
    """Makes the accelerator that a run file asks for, and sets the threads of this process.

    Several processes of a machine without a GPU train on the processor, which accelerate has to be told.
    """
    on_cpu = config.run.device == "cpu" or not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=config.run.mixed_precision)
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)  # behind accelerate, which sets them for several processes
    return accelerator


def open_run(
    config: RunConfig,
    accelerator: Any,
    *,
    resume: bool = False,
    clock_jump_ok: bool = False,
    kept_reading: bool = True,
    privacy: bool = True,
) -> PrivateTraining | WithoutPrivacy:
    """Calls ``PrivateTraining.open`` with what the run file says.

    Args:
        config: the run. accelerator: see ``PrivateTraining.open``. resume: continue an interrupted run.
        clock_jump_ok: the clock is right though it ran far ahead since the last leaf (`dptrain.Clock`).
        kept_reading: spare signatures that verified before (`dptrain.RunLedger`).
        privacy: False for the comparison run, which must not be released.

    Raises:
        DptrainError, AttestError, LedgerError: as ``PrivateTraining.open``.
    """
    if privacy:
        how = config.opening(resume=resume, clock_jump_ok=clock_jump_ok, kept_reading=kept_reading)
        run = PrivateTraining.open(**how, accelerator=accelerator)
        reading = run.opened.reading
        if reading is not None and reading.told:
            print(visible(reading.told), file=sys.stderr)
        return run
    return WithoutPrivacy(config.data, microbatch=config.run.microbatch, accelerator=accelerator, seed=config.run.seed)


@dataclass(frozen=True)
class Outcome:
    """Public results of a run.

    Attributes:
        private: False for a comparison run.
        accuracy: on public validation examples; None without them.
        classes: what `dptrain.engine.header.summary` says per class; empty for a comparison run.
        refused: contributions that the gate refused, per reason.
        model: directory of the model. export: directory of the public record, None for a comparison run.
        verdict: the audit of that record. qualifiers: what weakens it, as words of ``ledger.audit.findings``.
        findings: what the audit found, one sentence each.
        dry_run: nothing private was trained on, and nothing came of it.
    """

    private: bool
    accuracy: float | None
    classes: tuple[dict[str, Any], ...]
    refused: dict[str, int]
    model: str
    export: str | None = None
    verdict: Verdict | None = None
    qualifiers: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def good(self) -> bool:
        """False if the record of a private run does not verify."""
        return not self.private or self.dry_run or self.verdict not in (None, "FAILED")

    def to_json(self) -> dict[str, Any]:
        """The outcome as one JSON object."""
        return asdict(self)

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> "Outcome":
        """Returns the outcome of such an object."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in told.items()})


Evaluate = Callable[[nn.Module, Any, Sequence[Any]], float]
"""A model, a collate function and PUBLIC examples to an accuracy from 0 to 1."""


def conclude(
    run: PrivateTraining | WithoutPrivacy,
    model: nn.Module,
    collate: Any,
    validation: Sequence[Any],
    config: RunConfig,
    *,
    evaluate: Evaluate = evaluate,
) -> Outcome:
    """Evaluates on public data, saves the model, and exports and verifies the record of a finished run.

    A model without ``save_pretrained`` is saved as ``model.safetensors``. Of several processes the first one does it, and all
    return what came of it.

    Args:
        run: the finished run. model: its model. collate: prepares input; one that has ``for_evaluation`` evaluates by that,
            and one that has ``save`` is saved beside the model.
        validation: PUBLIC examples; none for no accuracy. config: the run file. evaluate: default: that of classifiers.

    Raises:
        LedgerError: the run is not finished, or its record cannot be written.
    """
    ranks = run.opened.ranks if isinstance(run, PrivateTraining) else run.ranks
    made = ranks.first(lambda: json.dumps(_concluded(run, model, collate, validation, config, evaluate).to_json()).encode())
    return Outcome.of_json(json.loads(made))


def _concluded(
    run: PrivateTraining | WithoutPrivacy,
    model: nn.Module,
    collate: Any,
    validation: Sequence[Any],
    config: RunConfig,
    evaluate: Evaluate,
) -> Outcome:
    accuracy = evaluate(model, getattr(collate, "for_evaluation", collate), validation) if validation else None
    private = isinstance(run, PrivateTraining)
    folder = config.run.output / ("model" if private else "model-not-private")
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
    else:
        save_model(model, str(folder / "model.safetensors"))
    if hasattr(collate, "save"):
        collate.save(folder)
    gate = run.opened.gate if isinstance(run, PrivateTraining) else run.gate
    refused = gate.counts()["refused"]
    if not isinstance(run, PrivateTraining):
        (folder / "NOT_PRIVATE").write_text(STAMP + "\n")
        return Outcome(False, accuracy, (), refused, _named(folder))
    export = run.export(config.run.output / "export")
    recorder = run.opened.recorder
    audited = verify_export(export, [recorder.ledger.header.log_vkey], owner_key=recorder.owner_public)
    findings = tuple(f"{item.code} {item.where}: {item.sentence}" for item in audited.findings)
    words = (audited.verdict, audited.qualifiers)
    return Outcome(True, accuracy, tuple(run.prepared.summary()), refused, _named(folder), _named(export), *words, findings)


def _named(path: Path) -> str:
    """Returns a path as a person writes it: below the working directory without the way up and down that a run file takes."""
    here = path.resolve()
    return str(here.relative_to(Path.cwd())) if ".." in path.parts and here.is_relative_to(Path.cwd()) else str(path)
