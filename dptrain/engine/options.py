"""Options of an opening, in small frozen values that check themselves; nothing here weakens what the policy guarantees."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from attest.schema.cards import card_of
from dptrain.errors import ConfigError
from dptrain.record.earlier_runs import Earlier, Where
from dptrain.record.metrics import Metrics, Send
from ledger.leaves.numerics import FASTEST, TORCH
from ledger.storage.place import Place

__all__ = ["Clock", "Earlier", "Metrics", "Microbatches", "NoiseSource", "RunLedger", "Send", "Where"]


@dataclass(frozen=True)
class RunLedger:
    """Says where the ledger of a run lies, and what is kept beside it.

    Attributes:
        place: SQLite file of the run, or a ``postgresql://`` URL.
        state: local directory for what a ledger on a server keeps beside it: the signer's own record and key, incoming
            withdrawals, checkpoints.
        key: signs the ledger's checkpoints; default ``<ledger>.key``, made on first use.
        origin: name of the ledger in its signed notes; default ``<corpus>/<ledger>``.
        checkpoints: directory for the states of the model; default ``<ledger>.checkpoints``.
        keep_reading: spare signatures that verified before, as kept beside the ledger under its key (`attest.gate.reading`).
    """

    place: Where = "ledger.db"
    state: Where | None = None
    key: Where | None = None
    origin: str | None = None
    checkpoints: Where | None = None
    keep_reading: bool = True

    _repr_html_ = card_of

    @classmethod
    def of(cls, given: "RunLedger | Where") -> "RunLedger":
        """Returns the options of a ledger that is named by its file or URL alone; those that are given stay."""
        return given if isinstance(given, RunLedger) else cls(given)

    def where(self) -> Place:
        """Returns the place of the ledger, which need not be there yet; raises as `ledger.storage.place.Place.of`."""
        return Place.of(self.place, self.state)

    def checkpoints_of(self, place: Place) -> Path:
        """Returns the directory of the checkpoints of a ledger at this place."""
        return Path(self.checkpoints or place.side(".checkpoints"))


@dataclass(frozen=True)
class Microbatches:
    """Says how large a microbatch is, who makes it and whose kernels compute it: a matter of memory and time, not of privacy.

    Attributes:
        contributions: the most in one.
        rows: the most examples in one, or None; a contribution with more is spread over several, and clipped once. The
            start-up probes use three examples at least.
        products: ``fastest`` computes float32 products on a processor by oneDNN and by kernels of our own where these are
            faster than torch's choice, forward and backward pass included, and a few known modules in fewer passes
            (`dptrain.gradients.fused`); ``torch`` leaves all to torch. The ledger's header says which, and a run goes on with
            the one that it began with.
        workers: processes that decode and collate while the step runs, 0 for none: for a decoder that takes long. They are
            new interpreters, in which torch has one thread, and run `decode` and `collate` as they were when `prepare` was
            called; what these write elsewhere stays there. Rows are the same for any number. Functions that cannot be brought
            there run in this process, with a notice.
        prefetch: microbatches that each worker holds, one at work and the others waiting or done.

    Raises:
        ConfigError: code MICROBATCH, a microbatch without room; PRODUCTS, unknown kernels; WORKERS, fewer than 0 workers or 1
            microbatch for each.
    """

    contributions: int = 16
    rows: int | None = None
    products: str = FASTEST
    workers: int = 0
    prefetch: int = 2

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        if self.contributions < 1:
            raise ConfigError("MICROBATCH", f"microbatch is {self.contributions}, expected at least 1 contribution")
        if self.rows is not None and self.rows < 1:
            raise ConfigError("MICROBATCH", f"microbatch_rows is {self.rows}, expected at least 1 example, or None")
        if self.products not in (FASTEST, TORCH):
            raise ConfigError("PRODUCTS", f"products is {self.products!r}, expected {FASTEST!r} or {TORCH!r}")
        if self.workers < 0 or self.prefetch < 1:
            raise ConfigError(
                "WORKERS", f"workers is {self.workers} and prefetch {self.prefetch}, expected 0 or more, and at least 1"
            )

    @property
    def full(self) -> int:
        """Returns the rows of a full microbatch of contributions with one example each."""
        return self.contributions if self.rows is None else min(self.contributions, self.rows)


@dataclass(frozen=True)
class Clock:
    """Tells the time of a run.

    Attributes:
        now: returns POSIX seconds.
        jump_ok: the clock is right though it ran far ahead since the last leaf (`ledger.replay.signer.JUMP_SECONDS`, 14 days),
            so that what has expired by it may be withdrawn, for good.
    """

    now: Callable[[], int] = lambda: int(time.time())
    jump_ok: bool = False

    _repr_html_ = card_of


@dataclass(frozen=True)
class NoiseSource:
    """Says where the random numbers of a run are drawn.

    Attributes:
        generator: ``host`` draws noise on the processor, ``device`` where the gradients are (`dptrain.noise.DeviceGaussian`).
        insecure_test_key: 32 bytes that fix noise and sampling; the ledger is stamped NOT PRIVATE and cannot be exported.

    Raises:
        ConfigError: code NOISE_GENERATOR, an unknown generator.
    """

    generator: str = "host"
    insecure_test_key: bytes | None = None

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        if self.generator not in ("host", "device"):
            raise ConfigError("NOISE_GENERATOR", f"noise_generator is {self.generator!r}, expected 'host' or 'device'")


class OpenOptions(TypedDict, total=False):
    """Options of `PrivateTraining.open` by keyword, for calls that hand them on: a type checker finds a misspelt one."""

    ledger: RunLedger | Where
    accelerator: Any
    owner_key: Where | bytes | None
    registry: Where | None
    earlier: Earlier
    microbatches: Microbatches
    clock: Clock
    resume: bool
    progress: bool
    noise: NoiseSource


NO_EARLIER = Earlier()
MICROBATCHES = Microbatches()
CLOCK = Clock()
NOISE = NoiseSource()
"""Defaults of an opening: no earlier runs, 16 contributions a microbatch, the clock of the machine, noise on the processor."""
