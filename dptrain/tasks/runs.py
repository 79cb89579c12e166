"""Open a run from a run file, private or without privacy for comparison, and conclude it."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from attest.schema.plain import visible
from dptrain.engine.private_training import PrivateTraining
from dptrain.tasks.classification import evaluate
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.without_privacy import STAMP, WithoutPrivacy
from ledger.audit import Verdict, verify_export


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

    @property
    def good(self) -> bool:
        """False if the record of a private run does not verify."""
        return not self.private or self.verdict not in (None, "FAILED")

    def to_json(self) -> dict[str, Any]:
        """The outcome as one JSON object."""
        return asdict(self)


def conclude(
    run: PrivateTraining | WithoutPrivacy, model: nn.Module, collate: Any, validation: Sequence[Any], config: RunConfig
) -> Outcome:
    """Evaluates on public data, saves the model, and exports and verifies the record of a finished run.

    Args:
        run: the finished run. model: its model. collate: as the task's ``build`` returned it.
        validation: PUBLIC examples; none for no accuracy. config: the run file.

    Raises:
        LedgerError: the run is not finished, or its record cannot be written.
    """
    accuracy = evaluate(model, collate.for_evaluation, validation) if validation else None
    private = isinstance(run, PrivateTraining)
    folder = config.run.output / ("model" if private else "model-not-private")
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    collate.save(folder)
    gate = run.opened.gate if isinstance(run, PrivateTraining) else run.gate
    refused = gate.counts()["refused"]
    if not isinstance(run, PrivateTraining):
        (folder / "NOT_PRIVATE").write_text(STAMP + "\n")
        return Outcome(False, accuracy, (), refused, str(folder))
    export = run.export(config.run.output / "export")
    recorder = run.opened.recorder
    audited = verify_export(export, [recorder.ledger.header.log_vkey], owner_key=recorder.owner_public)
    findings = tuple(f"{item.code} {item.where}: {item.sentence}" for item in audited.findings)
    words = (audited.verdict, audited.qualifiers)
    return Outcome(True, accuracy, tuple(run.prepared.summary()), refused, str(folder), str(export), *words, findings)
