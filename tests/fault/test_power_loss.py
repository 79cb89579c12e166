"""B5, B18: the power fails between any two calls of a writer, and what was not synced is lost, wholly or in part.

Killing a process takes nothing from a file; only this shows that what is reported as durable was synced before. Method: a
one-shot writer (`tests.fault.one_shot`) is traced once, with what it writes; after every call that matters the possible
states of the disk are worked out (`tests.fault.disk_model`), each is laid out, opened, and checked as after any other fault.

Then one sync after another is left out, as by a disk that reports what it has not done. Now a charge may be lost, and the
promise is that this does not go unseen: the ledger has all that was reported, or its signer is refused.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pytest

from ledger.audit import verify_export
from ledger.errors import LedgerBehind, LedgerCorrupt, LedgerError
from ledger.log import Ledger
from tests.fault.disk_model import OPTIONS, Disk
from tests.fault.scene import LIVES, Scene, holds, pin_of
from tests.worlds.ledgers import SIGNER

SYNCS = ("fsync", "fdatasync")


@dataclass(frozen=True, slots=True)
class Trace:
    """What a writer did, and where, and what it began with."""

    start: Path
    directory: Path
    lines: tuple[str, ...]

    def syncs(self) -> list[int]:
        """Lines that sync something of the ledger."""
        disk = Disk(self.start)
        taken = (disk.take(line, self.directory) for line in self.lines)
        return [n for n, did in enumerate(taken) if did is not None and did[0] in SYNCS]

    def crashes(self, lie: int = -1) -> Iterator[tuple[dict[str, bytes], list[dict]]]:
        """Every state that the disk may be in, once, and what had been reported by then; with one sync left out."""
        disk, reports, seen = Disk(self.start), [], set()
        for number, line in enumerate(self.lines):
            did = disk.take(line, self.directory, lying=number == lie)
            if did is None or number < lie:
                continue
            if did[0] == "sendto":
                reports.extend(facts for facts in [json.loads(did[1])] if "pin" in facts)
            for state in disk.states(seed=number):
                digest = hashlib.sha256(repr((sorted(state.items()), len(reports))).encode()).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield state, list(reports)


def trace_of(scene: Scene, life: str) -> Trace:
    directory, start = scene.begin(life), scene.begin(life)
    file = scene.folder / f"writes-{life}"
    assert scene.run(life, directory, *OPTIONS, trace=file).end == "done"
    return Trace(start, directory, tuple(file.read_text().splitlines()))


def lay_out(state: dict[str, bytes], folder: Path) -> Path:
    """A new directory with these files."""
    directory = Path(mkdtemp(dir=folder))
    for name, data in state.items():
        if name.endswith("/"):
            (directory / name).mkdir()
        else:
            (directory / name).write_bytes(data)
    return directory


def exported(directory: Path, reported: bool) -> str:
    """An export is whole under its name, or not there; once it is reported it is there."""
    export = directory / "export"
    if not export.exists():
        assert not reported, "an export was reported and is gone"
        return "without export"
    report = verify_export(export, [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings
    return "exported"


def survive(scene: Scene, life: str, *, goes_on: int) -> None:
    """Checks every state after a crash; every ``goes_on``-th time an operator goes on as well."""
    trace = trace_of(scene, life)
    ends: Counter[str] = Counter()
    for number, (state, reports) in enumerate(trace.crashes()):
        directory = lay_out(state, scene.folder)
        try:
            if reports or LIVES[life]:
                holds(directory, reports)
            if life == "export":
                ends[exported(directory, bool(reports))] += 1
            if number % goes_on == 0:
                after = scene.run("after", directory)
                assert after.end == "done", after.sentence
                holds(directory, [*reports, *after.reports])
        except (AssertionError, LedgerError) as error:
            raise AssertionError(f"{life}, crash {number}, {len(reports)} reports: {error!r}") from error
        ends["whole" if reports or LIVES[life] else "unfinished"] += 1
    states = ends["whole"] + ends["unfinished"]
    print(f"{life}: {states} states after a loss of power, {dict(ends)}, under-counts 0")
    assert states > (50 if life != "export" else 30)
    assert life != "export" or (ends["exported"] and ends["without export"])


def opened(directory: Path, reports: list[dict]) -> str:
    """How the signer finds a ledger: whole, or refused. Anything else is what must not be."""
    try:
        with Ledger.open(directory / "ledger.db", SIGNER, recompute=True) as ledger:
            for report in reports:
                ledger.check_pin(pin_of(report))
                assert ledger.state.charged >= report["charged"]
    except (LedgerBehind, LedgerCorrupt) as error:
        return f"{type(error).__name__} {error.code}"
    return "whole"


def lied_to(scene: Scene, life: str, *, lies: int, crashes: int) -> None:
    """Leaves out every ``lies``-th sync by itself, and lets the power fail in every ``crashes``-th state from then on."""
    trace = trace_of(scene, life)
    ends: Counter[str] = Counter()
    chosen = trace.syncs()[::lies]
    for lie in chosen:
        for number, (state, reports) in enumerate(trace.crashes(lie)):
            if number % crashes == crashes - 1:
                ends[opened(lay_out(state, scene.folder), reports)] += 1
    print(f"{life}: {len(chosen)} syncs left out, {sum(ends.values())} losses of power, {dict(ends)}, undetected 0")
    assert ends["LedgerBehind BEHIND"] > 0


def test_what_was_reported_survives_a_loss_of_power(scene: Scene) -> None:
    survive(scene, "recover", goes_on=40)


def test_an_export_is_whole_after_a_loss_of_power_or_not_there(scene: Scene) -> None:
    survive(scene, "export", goes_on=40)


@pytest.mark.slow
@pytest.mark.parametrize("life", ["create", "go_on", "recover", "export"])
def test_after_every_loss_of_power_an_operator_can_go_on(scene: Scene, life: str) -> None:
    survive(scene, life, goes_on=1)


@pytest.mark.slow
@pytest.mark.parametrize("life", ["go_on", "recover"])
def test_a_disk_that_only_says_that_it_synced_is_found_out(scene: Scene, life: str) -> None:
    lied_to(scene, life, lies=1, crashes=4)


@pytest.mark.slow
def test_a_sample_of_what_such_a_disk_loses_is_found_out(scene: Scene) -> None:
    lied_to(scene, "go_on", lies=4, crashes=12)
