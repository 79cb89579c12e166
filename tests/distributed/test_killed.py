"""A process that is killed at any moment: nothing is under-counted, nobody hangs, and the run goes on on other numbers."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from dptrain.engine.draw import Drawing  # noqa: E402
from dptrain.errors import RanksError  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.distributed.jobs import NOW, Job, digest, opened  # noqa: E402
from tests.distributed.launched import Ended, ended, launched  # noqa: E402
from tests.guarantees.peers import per_example, small_world  # noqa: E402
from tests.worlds.trainer import wrapped  # noqa: E402

STEPS = 24
LONGEST = 10.0
"""Seconds within which everybody has ended once somebody was killed: as soon as connections close, on a busy machine."""

LIMIT = 35.0
"""The same where the ranks' own group was not there yet, and torch waits for its time limit, which is 30 seconds."""

WHOLE = {"name": "ledger", "resume": True, "key": None, "microbatch": 2}
"""One ledger, whoever goes on with it, under fresh keys."""


@contextmanager
def draws_told(root: Path, rank: int, attempt: Callable[[], int]) -> Iterator[None]:
    """Writes down every draw of this process before it is made: nothing is released that was not drawn."""
    draw = Drawing.draw
    with open(root / f"drawn-{rank}", "a") as file, pytest.MonkeyPatch.context() as patch:

        def told(self: Drawing, number: int) -> list[int]:
            file.write(f"{attempt()} {number}\n")
            file.flush()
            return draw(self, number)

        patch.setattr(Drawing, "draw", told)
        yield


def going(rank: int, root: Path) -> dict[str, Any]:
    """Goes on with the run to its end, and saves after every second step; exports it once it is closed."""

    def wrap(model: nn.Module) -> nn.Module:
        """Wraps a model, and says that from here on the run waits for others, and not torch."""
        made = wrapped(model)
        (root / f"there-{rank}").touch()
        return made

    run = opened(Job(root, options=WHOLE | {"wrap": wrap}))
    recorder = run.private.opened.recorder
    with run.private, draws_told(root, rank, lambda: recorder.ledger.state.attempt):
        begun = run.private.prepared.start_step
        for step in run.steps:
            for rows in step:
                run.private.backward(per_example(run.net, rows), rows)
            run.optimizer.step()
            if step.number % 2 == 0:
                run.private.save()
        run.private.export(root / "export")
        epsilon = run.private.epsilon()["open"].spent
    weights = digest(dict(run.model.named_parameters()))
    return {"begun": begun, "weights": weights, "epsilon": epsilon, "charged": recorder.ledger.state.charged}


def draws_of(root: Path) -> list[tuple[int, int]]:
    """Attempt and step of everything that any process drew."""
    lines = [line for path in root.glob("drawn-*") for line in path.read_text().splitlines()]
    return [(int(attempt), int(step)) for attempt, step in map(str.split, lines)]


def charged(root: Path, name: str = "ledger.db") -> set[tuple[int, int]]:
    with Ledger.open(root / name, read_only=True) as log:
        return {
            (window.attempt, step)
            for window in log.state.windows
            for step in range(window.first_step, window.first_step + window.n_steps)
        }


def killed(root: Path, ranks: int, victim: int, draws: int, delay: float) -> list[Ended]:
    """Goes on with the run on so many processes, and kills one of them so many draws and seconds after it has begun."""
    before, at = len(draws_of(root)), [0.0]
    for mark in root.glob("there-*"):
        mark.unlink()

    def kill(processes: Sequence[Any]) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until and processes[victim].is_alive():
            if (root / f"there-{victim}").exists() and len(draws_of(root)) >= before + draws:
                break
            time.sleep(0.002)
        time.sleep(delay)
        at[0] = time.monotonic()
        os.kill(processes[victim].pid, signal.SIGKILL)

    found = ended(going, ranks, root, meanwhile=kill)
    assert time.monotonic() - at[0] < (LONGEST if draws else LIMIT), "somebody waited for a process that is gone"
    return found


def assert_lost(found: Sequence[Ended], victim: int) -> None:
    """Whoever was not killed says that a rank is lost, unless all was over by then."""
    for rank, one in enumerate(found):
        if rank != victim and not one.returned:
            assert isinstance(one.error, RanksError) and one.error.code == "RANK_LOST", f"rank {rank}: {one.told}"
            assert "What was charged stays charged; resume the run" in one.error.sentence


def chain(root: Path, moments: Sequence[tuple[int, int, int, float]], last: int) -> list[dict[str, Any]]:
    """Kills a run at several moments, one after the other, and lets it end on the last number of processes."""
    small_world(root, per_class=5, steps=STEPS, window_steps=4, policy_extra=f"redo_steps = {STEPS * 10}")
    for ranks, victim, draws, delay in moments:
        found = killed(root, ranks, victim, draws, delay)
        assert not found[victim].returned or draws >= STEPS
        assert_lost(found, victim)
        if (root / "ledger.db").exists():
            assert set(draws_of(root)) <= charged(root), "a draw of a step that nobody has charged"
    told = launched(going, last, root)
    assert set(draws_of(root)) <= charged(root)
    assert len({one["weights"] for one in told}) == 1 and len({one["epsilon"] for one in told}) == 1
    assert {one["charged"] for one in told} == {len(charged(root))}
    report = verify_export(root / "export", (root / "ledger.pub").read_text().split(), now=NOW)
    assert report.verdict == "FULL", report
    return told


@pytest.mark.parametrize("times", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_several_times_goes_on_and_its_record_counts_everything(tmp_path: Path, times: int) -> None:
    """Rank 1, rank 0, the only process, and rank 1 again, in the middle of a step."""
    moments = [(2, 1, 5, 0.005), (2, 0, 5, 0.02), (1, 0, 3, 0.0), (2, 1, 5, 0.01)][:times]
    told = chain(tmp_path, moments, 2)
    assert told[0]["begun"] >= 4


def dying(rank: int, root: Path, where: str) -> None:
    """A run in whose second step rank 1 dies where its sums, or what it released, would go out."""
    run = opened(Job(root))
    for step in run.steps:
        if rank == 1 and step.number == 2:
            setattr(dist, where, lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL))
        for rows in step:
            run.private.backward(per_example(run.net, rows), rows)
        run.optimizer.step()


@pytest.mark.parametrize("where", ["all_to_all_single", pytest.param("broadcast", marks=pytest.mark.slow)])
def test_who_waits_for_tensors_of_a_process_that_is_gone_hears_that_a_rank_is_lost(tmp_path: Path, where: str) -> None:
    small_world(tmp_path, per_class=3, steps=3)
    found = ended(dying, 2, tmp_path, where)
    assert found[1] == Ended()
    assert_lost(found, 1)
    assert charged(tmp_path, "ledger-2.db") == {(0, 1), (0, 2)}


def at_random(seed: int) -> list[tuple[int, int, int, float]]:
    """Four moments: on how many processes, which of them, after how many draws, and how many seconds later."""
    chance = random.Random(seed)
    return [
        (ranks := chance.choice([1, 2, 2, 2]), chance.randrange(ranks), chance.randrange(8), chance.uniform(0, 0.1))
        for _ in range(4)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_is_killed_at_random_moments_goes_on_and_its_record_counts_everything(tmp_path: Path, seed: int) -> None:
    chain(tmp_path, at_random(seed), 1 + seed % 2)


@pytest.mark.slow
def test_four_processes_end_with_the_one_that_is_killed_and_two_go_on(tmp_path: Path) -> None:
    chain(tmp_path, [(4, 2, 9, 0.01), (4, 0, 5, 0.0)], 2)
