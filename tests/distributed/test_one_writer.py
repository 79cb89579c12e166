"""Rank 0 writes: what it may not write stops every rank alike, a second writer is fenced out, and the others write no file."""

import hashlib
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attest.errors import RegistryRefused  # noqa: E402
from attest.keys import load_private_key  # noqa: E402
from attest.registry.entries import join, split  # noqa: E402
from dptrain.engine.draw import Drawing  # noqa: E402
from dptrain.errors import RanksError  # noqa: E402
from ledger.errors import LeafRefused, LedgerBusy, StorageFailed  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from ledger.note import NoteSigner  # noqa: E402
from tests.distributed.jobs import NOW, Job, opened  # noqa: E402
from tests.distributed.launched import Ended, ended, launched  # noqa: E402
from tests.guarantees.peers import Run, per_example, small_world  # noqa: E402

STEPS = 4
FAULTY = 3
"""The step whose charge rank 0 is refused, the first of the second window."""

Fault = Callable[[Run], Any]


@contextmanager
def disk_full(run: Run) -> Iterator[None]:
    """No file of this process can be written any more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def registry_rolled_back(run: Run) -> Iterator[None]:
    """The registry of contributors lacks its last entry."""
    path = run.private.opened.registry.path
    before = path.read_bytes()
    path.write_bytes(join(list(split(before))[:-1]))
    try:
        yield
    finally:
        path.write_bytes(before)


@contextmanager
def clock_ahead(run: Run) -> Iterator[None]:
    run.world.now += 40 * 86_400
    yield


@contextmanager
def clock_behind(run: Run) -> Iterator[None]:
    run.world.now -= 40 * 86_400
    yield


FAULTS: dict[str, tuple[Any, type[Exception]]] = {
    "the registry is rolled back": (registry_rolled_back, RegistryRefused),
    "the clock is far ahead": (clock_ahead, LeafRefused),
    "the clock is behind": (clock_behind, LeafRefused),
    "the disk is full": (disk_full, StorageFailed),
}
"""What befalls rank 0, and what it raises; the disk comes last, since its ledger takes no more leaves then."""


def met(rank: int, root: Path) -> dict[str, tuple[str, str, str, int, bool, list[int]]]:
    """Meets every fault in a run of its own; tells what was raised here: class, code, sentence; steps charged; whether
    ``p.grad`` is empty; and which steps were drawn."""
    return {name: _met(rank, Job(root, f"fault{n}"), fault) for n, (name, (fault, _)) in enumerate(FAULTS.items())}


def _met(rank: int, job: Job, fault: Fault) -> tuple[str, str, str, int, bool, list[int]]:
    run, drawn = opened(job), list[int]()
    draw = Drawing.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drawing, "draw", lambda self, number: drawn.append(number) or draw(self, number))
        try:
            for step in run.steps:
                if step.number == FAULTY and rank == 0:
                    with fault(run):
                        _step(run, step)
                else:
                    _step(run, step)
        except Exception as error:
            charged = run.private.opened.recorder.ledger.state.charged
            empty = all(parameter.grad is None for parameter in run.model.parameters())
            said = type(error).__name__, getattr(error, "code", ""), getattr(error, "sentence", str(error))
            return *said, charged, empty, drawn
        finally:
            run.private._detach()
    return "", "", "nothing was refused", 0, False, drawn


def _step(run: Run, step: Any) -> None:
    for rows in step:
        run.private.backward(per_example(run.net, rows), rows)
    run.optimizer.step()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("refused")
    small_world(root, per_class=3, steps=STEPS, now=NOW)
    return launched(met, 2, root)


@pytest.mark.parametrize("name", FAULTS)
def test_a_charge_that_rank_0_is_refused_is_refused_at_every_rank_and_nobody_draws(found, name: str) -> None:
    first, other = (told[name] for told in found)
    assert first[0] == FAULTS[name][1].__name__ and first[1]
    assert first[:3] == other[:3], "the same error, of the same class, with its code and its sentence"
    assert first[3] >= FAULTY - 1 == other[3], "what rank 0 could not write it may count in memory; nobody else does"
    for *_, empty, drawn in (first, other):
        assert empty and drawn == list(range(1, FAULTY))


# -------------------------------------------------------------------------------------------- what ends one rank alone


class OfTheLoop(Exception):
    """What a user's loop raises at one rank."""


def raising(rank: int, root: Path, who: int, resume: bool) -> tuple[int, int]:
    """Runs a job in whose third step one rank raises, or goes on with it. Tells where it began, and what is charged."""
    run = opened(Job(root, options={"name": "raising", "resume": resume, "key": None}))
    begun, recorder = run.private.prepared.start_step, run.private.opened.recorder
    with run.private:
        for step in run.steps:
            for rows in step:
                if step.number == FAULTY and rank == who and not resume:
                    raise OfTheLoop
                run.private.backward(per_example(run.net, rows), rows)
            run.optimizer.step()
    return begun, recorder.ledger.state.charged


@pytest.mark.one_in(9)
@pytest.mark.parametrize("who", [0, 1])
def test_an_exception_in_the_loop_of_one_rank_ends_the_others_and_costs_a_window(tmp_path: Path, who: int) -> None:
    """Rank 0 saves the last whole step, whoever raised, and the run goes on behind it."""
    small_world(tmp_path, per_class=3, steps=STEPS, policy_extra="redo_steps = 8")
    began = time.monotonic()
    found = ended(raising, 2, tmp_path, who, False)
    assert time.monotonic() - began < 25, "somebody waited for the time limit of the group"
    assert isinstance(found[who].error, OfTheLoop)
    lost = found[1 - who].error
    assert isinstance(lost, RanksError) and lost.code == "RANK_LOST", found[1 - who].told
    assert launched(raising, 2, tmp_path, who, True) == [(FAULTY - 1, STEPS + 2)] * 2


# ------------------------------------------------------------------------------------------------ a second writer


WAIT = "go-on"


def waiting(rank: int, root: Path, name: str) -> int:
    """A run that waits in its second step until it is let go on."""
    run = opened(Job(root, options={"name": name, "key": None, "resume": True}))
    for step in run.steps:
        for rows in step:
            run.private.backward(per_example(run.net, rows), rows)
        run.optimizer.step()
        if step.number == 2 and rank == 0:
            (root / "there").touch()
            until = time.monotonic() + 25
            while not (root / WAIT).exists() and time.monotonic() < until:
                time.sleep(0.01)
    charged = run.private.opened.recorder.ledger.state.charged
    run.private.close()
    return charged


def test_a_second_writer_is_fenced_out_while_several_processes_train(tmp_path: Path) -> None:
    small_world(tmp_path, per_class=3, steps=STEPS)
    others: list[Ended] = []

    def meanwhile(processes: Sequence[Any]) -> None:
        until = time.monotonic() + 30
        while not (tmp_path / "there").exists() and time.monotonic() < until:
            time.sleep(0.01)
        try:
            signer = NoteSigner("test-corpus/ledger.db", load_private_key(tmp_path / "ledger.key"))
            with pytest.raises(LedgerBusy):
                Ledger.open(tmp_path / "ledger.db", signer)
            others.extend(ended(waiting, 2, tmp_path, "ledger"))
        finally:
            (tmp_path / WAIT).touch()

    first = ended(waiting, 2, tmp_path, "ledger", meanwhile=meanwhile)
    assert [one.value for one in first] == [STEPS, STEPS]
    assert [type(one.error) for one in others] == [LedgerBusy, LedgerBusy]
    assert others[0].error.args == others[1].error.args, "rank 1 opens no ledger, and says what rank 0 met"


# ---------------------------------------------------------------------------------------------- files of a follower


def listed(root: Path) -> dict[str, tuple[int, int, str]]:
    """Every file and folder below a place: size, time of its last change, and SHA-256."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.stat()
        text = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = status.st_size, status.st_mtime_ns, text
    return found


def apart(rank: int, roots: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A whole run with checkpoints and an export, each rank in a folder of its own; tells its files before and after."""
    root = roots[rank]
    before = listed(root)
    run = opened(Job(root, options={"name": "ledger", "key": None}))
    for step in run.steps:
        _step(run, step)
        run.private.save()
    run.private.export(root / "export")
    run.private.close()
    return before, listed(root)


def test_a_rank_that_does_not_lead_writes_no_file(tmp_path: Path) -> None:
    roots = [tmp_path / "first", tmp_path / "other"]
    small_world(roots[0], per_class=3, steps=STEPS)
    shutil.copytree(roots[0], roots[1])
    (before, after), (other_before, other_after) = launched(apart, 2, roots)
    assert other_after == other_before
    made = after.keys() - before.keys()
    assert {"ledger.db", "ledger.key", "ledger.pub", "export"} <= made and any("step-" in name for name in made)
