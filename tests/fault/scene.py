"""Lives of one-shot writers, what each begins with, and what must hold after whatever befell them."""

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ledger.log import Ledger
from ledger.log.examining import check_attestations
from ledger.log.pinned import Pin
from tests.fault.tracing import HARNESS, Outcome, Writers
from tests.worlds.ledgers import SIGNER

LIVES: Final = {"create": None, "go_on": "closed", "recover": "killed", "export": "closed"}
"""What each life begins with; ``recover`` is ``go_on`` after a writer that was killed."""

NOT_FILES: Final = frozenset({"brk", "mmap", "munmap", "madvise"})
"""Calls for memory: how many there are differs from life to life."""


@dataclass(slots=True)
class Scene:
    """Writers, and what their lives begin with and call."""

    writers: Writers
    folder: Path
    calls: dict[str, Counter[str]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def begin(self, life: str) -> Path:
        """A directory of its own with what a life begins with."""
        directory, start = self.folder / f"run{next(self._numbers)}", LIVES[life]
        if start is None:
            directory.mkdir()
        else:
            shutil.copytree(self.folder / start, directory)
        return directory

    def run(self, life: str, directory: Path, *options: str, trace: Path | None = None) -> Outcome:
        """Lets one writer live."""
        return self.writers.run("go_on" if life == "recover" else life, directory, *options, trace=trace)


def pin_of(report: dict) -> Pin:
    """Where a writer said that the ledger stood."""
    origin, size, root, digest = report["pin"]
    return Pin(origin, size, bytes.fromhex(root), bytes.fromhex(digest))


def holds(directory: Path, reports: list[dict]) -> Ledger:
    """Opens a ledger for reading, every epsilon computed again, and asserts that everything reported is in it.

    No admission is there without its attestation, and no attestation without its admission.
    """
    with Ledger.open(directory / "ledger.db", SIGNER, read_only=True, recompute=True) as ledger:
        with ledger._file.store.snapshot() as snapshot:
            signed = check_attestations(snapshot)
        assert (signed.findings, signed.missing, signed.fitting) == ((), 0, len(ledger.state.contributions)), signed
        for report in reports:
            ledger.check_pin(pin_of(report))
            assert ledger.state.charged >= report["charged"], "a charge was reported and is gone"
        return ledger


def prepared(writers: Writers, folder: Path) -> Scene:
    """Makes what lives begin with, and counts the calls of each life."""
    made = Scene(writers, folder)
    for name in ("closed", "killed"):
        (folder / name).mkdir()
        assert writers.run("create", folder / name).end == "done"
    # Dies when the record of its charge is renamed: the charge is in the log, and never settled.
    writers.run("go_on", folder / "killed", "-e", "inject=rename:signal=SIGKILL:when=5")
    assert (folder / "killed" / "ledger.db-wal").stat().st_size > 0
    for life in LIVES:
        outcome = made.run(life, made.begin(life), trace=folder / f"trace-{life}")
        assert outcome.end == "done", outcome
        made.calls[life] = Counter({call: n for call, n in outcome.calls.items() if call not in NOT_FILES | HARNESS})
    return made
