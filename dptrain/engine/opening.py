"""The opening of a run: the policy is verified, the corpus admitted, and the ledger opened or reserved."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attest.corpus import Corpus, open_corpus
from attest.gate import GateReport, run_gate
from attest.gate.reading import KeptReading
from attest.keys import load_public_key
from attest.policy import Policy, SignedPolicy, open_policy
from dptrain.engine import refusals
from dptrain.engine.options import Clock, Earlier, Microbatches, NoiseSource, RunLedger, Where
from dptrain.errors import ConfigError
from dptrain.progress import attestations_in, progress_bar
from dptrain.record.earlier_runs import EarlierRuns
from dptrain.record.kept_reading import reading_beside
from dptrain.record.recorder import Recorder
from dptrain.record.registry_watch import RegistryWatch, memories_of
from dptrain.record.settling import Inbox


@dataclass(frozen=True, eq=False)
class Opened:
    """Holds what an opening verified and opened, before there is a model.

    Attributes:
        signed: the policy with its signature. gate: who was admitted, and who was refused and why. recorder: owns the ledger.
        reading: signatures that verified, kept for the next opening; None where none are kept.
        now: returns POSIX seconds. checkpoints: directory of the model's states. progress: whether bars are shown.
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
    progress: bool | None

    @property
    def policy(self) -> Policy:
        """Returns the rules that the corpus owner signed."""
        return self.signed.policy

    @property
    def device(self) -> torch.device:
        """Returns the device that rows go to."""
        return self.accelerator.device if self.accelerator is not None else torch.device("cpu")


def open_run(
    policy: Where,
    corpus: Where,
    *,
    ledger: RunLedger,
    accelerator: Any | None,
    owner_key: Where | bytes | None,
    registry: Where | None,
    earlier: Earlier,
    microbatches: Microbatches,
    clock: Clock,
    resume: bool,
    progress: bool | None,
    noise: NoiseSource,
) -> Opened:
    """Verifies the policy, admits the corpus, and opens or reserves the ledger; see `PrivateTraining.open`."""
    beside = Path(policy).parent
    public = owner_key if isinstance(owner_key, bytes) else load_public_key(owner_key or beside / "owner.pub")
    signed = open_policy(policy, public)
    refusals.refuse_policy(signed.policy)
    refusals.refuse_accelerator(accelerator)
    refusals.refuse_generator(noise.generator, signed.policy, accelerator)
    data = open_corpus(corpus)
    place = ledger.where()
    watch = RegistryWatch(registry or beside / "registry.cbor", public, memories_of(place, data))
    origin = ledger.origin or f"{signed.policy.corpus}/{place.name}"
    named = EarlierRuns(earlier.ledgers, earlier.replaces, earlier.keys, public)
    recorder = Recorder(place, ledger.key, origin, resume, public, named)
    try:
        recorder.require_clock(now := clock.now(), accepted=clock.jump_ok)
        admitting = watch.at_admission(recorder.registry_roots())
        keep = ledger.keep_reading
        reading = reading_beside(place, recorder.private_key, signed, admitting, watch.current) if keep else None
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
    return Opened(
        signed,
        data,
        gate,
        recorder,
        inbox,
        watch,
        reading,
        accelerator,
        microbatches,
        noise,
        clock.now,
        ledger.checkpoints_of(place),
        progress,
    )
