"""B13, B18: every system call of a writer fails, with EIO and with no space left, and the writer dies at every one.

Method, as Tessera's `integration/fault/posix`: a one-shot writer is traced once, and each call counted that it makes after a
marker. Then it lives again for every (call, n) from the same beginning, and strace makes its n-th such call fail or kills it
there. Whatever comes of it:

* what the writer was told is durable is in the ledger: every tree that was reported is a prefix of what is there, and no
  charge is missing. None of these faults takes from a file what was written to it, so nothing is excused as a lost tail;
* `fsck` finds the ledger whole, every recorded epsilon computed again;
* a writer that saw an error has a typed one, and its handle refused to append any more;
* an operator can go on: reopen it with its key, or set aside what was never finished, charge, close an epoch, export.

Lives begin with nothing, with a closed ledger, and with one whose writer was killed, whose write-ahead log must be recovered.
"""

import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ledger.audit import verify_export
from ledger.errors import LedgerError
from tests.fault.scene import LIVES, Scene, holds
from tests.fault.tracing import Outcome
from tests.worlds.ledgers import SIGNER

CANNOT_FAIL: Final = frozenset({"getpid", "geteuid", "getrandom"})
"""Calls that have no error to give: killed at, not failed."""

MUTATING: Final = ("pwrite64", "write", "fdatasync", "fsync", "rename", "ftruncate", "unlink", "flock", "openat", "mkdir")

FAULTS: Final = {"EIO": "error=EIO", "ENOSPC": "error=ENOSPC", "KILL": "signal=SIGKILL"}

JOBS: Final = 2


@dataclass(frozen=True, slots=True)
class Injection:
    """The n-th call of a name, after the marker of a life, meets a fault."""

    life: str
    call: str
    n: int
    fault: str

    @property
    def option(self) -> str:
        """As strace takes it."""
        return f"inject={self.call}:{FAULTS[self.fault]}:when={self.n}"


def injections(scene: Scene) -> list[Injection]:
    """All of them, life by life."""
    return [
        Injection(life, call, n, fault)
        for life, calls in scene.calls.items()
        for call, count in sorted(calls.items())
        for fault in FAULTS
        if fault == "KILL" or call not in CANNOT_FAIL
        for n in range(1, count + 1)
    ]


def exported(directory: Path, outcome: Outcome) -> None:
    """An export is whole or not there."""
    export = directory / "export"
    assert export.exists() or outcome.end != "done"
    if export.exists():
        report = verify_export(export, [SIGNER.vkey])
        assert report.verdict == "TOLD", report.findings


def strike(scene: Scene, injection: Injection) -> str:
    """Runs one injection and all its checks; returns how the writer ended."""
    directory = scene.begin(injection.life)
    outcome = scene.run(injection.life, directory, "-e", injection.option)
    assert outcome.end != "untyped", f"{injection}: {outcome.sentence}"
    assert (outcome.end == "killed") == (injection.fault == "KILL"), (injection, outcome)
    try:
        if outcome.reports or LIVES[injection.life]:
            holds(directory, outcome.reports)
        if injection.life == "export":
            exported(directory, outcome)
        after = scene.run("after", directory)
        assert after.end == "done", (after.code, after.sentence)
        holds(directory, [*(outcome.reports), *after.reports])
    except (AssertionError, LedgerError) as error:
        raise AssertionError(f"{injection}, then {outcome.end} {outcome.code}: {error!r}") from error
    shutil.rmtree(directory)
    return f"{outcome.end} {outcome.code}".strip()


def sweep(scene: Scene, chosen: list[Injection]) -> None:
    """Strikes with each, and prints the figures."""
    with ThreadPoolExecutor(JOBS) as pool:
        ends = Counter(pool.map(lambda injection: strike(scene, injection), chosen))
    print(f"{len(chosen)} injections, {dict(ends)}, under-counts 0, undetected corruptions 0")


def spread(items: list[Injection], count: int) -> list[Injection]:
    """As many of them, evenly."""
    return items[:: max(1, len(items) // count)]


@pytest.mark.slow
def test_a_sample_of_all_failing_calls_loses_nothing(scene: Scene) -> None:
    """``FAULTS=n`` takes more or fewer of them."""
    chosen = [injection for injection in injections(scene) if injection.call in MUTATING]
    sweep(scene, spread(chosen, int(os.environ.get("FAULTS", "40"))))


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
def test_every_failing_call_of_a_life_loses_nothing(scene: Scene, life: str) -> None:
    sweep(scene, [injection for injection in injections(scene) if injection.life == life])


def test_the_writers_make_the_calls_that_matter(scene: Scene) -> None:
    """A sweep over nothing would pass: data is synced, the record is renamed, directories are synced."""
    for life, calls in scene.calls.items():
        export = life == "export"
        records = calls["rename"] - export  # each synced before it is renamed, and its directory after
        tree = calls["fsync"] - 2 * records  # files and directories of the export, and the one that it is in
        assert calls["pwrite64"] > 10 and calls["fdatasync"] >= 4 and records > 0, life
        assert tree >= 8 if export else tree == 0, (life, calls)
