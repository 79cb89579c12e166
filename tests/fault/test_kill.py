"""B13, B14, B15: kill -9 at random moments never loses a charge, never blocks a resume, never re-uses a noise stream."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from dptrain.record.pin import found
from ledger.log import Ledger
from tests.worlds.training import make_world

ROOT = Path(__file__).resolve().parents[2]


def start(root: Path, *how: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fault.kill_worker", str(root), *how],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def checkpoint_steps(root: Path) -> int:
    return max((step for step, _ in found(root / "ledger.db.checkpoints")), default=0)


def assert_nothing_is_undercharged(root: Path) -> None:
    if not (root / "ledger.db").exists():
        assert checkpoint_steps(root) == 0
        return
    try:
        ledger = Ledger.open(root / "ledger.db", read_only=True)
    except Exception:
        assert checkpoint_steps(root) == 0, "only a ledger that never got its header may be unreadable"
        return
    with ledger:
        covered = {s for w in ledger.state.windows for s in range(w.first_step, w.first_step + w.n_steps)}
        assert set(range(1, checkpoint_steps(root) + 1)) <= covered
        streams = [w.noise_stream for w in ledger.state.windows]
        assert len(set(streams)) == len(streams)


def kill_at_random_moments(root: Path, kills: int, seed: int, longest: float, *how: str) -> tuple[int, int]:
    """Kills ``kills`` processes within ``longest`` seconds of their start, then lets one finish.

    Returns:
        Kills that struck after the start, and steps charged.
    """
    rng = random.Random(seed)
    struck = 0
    for _ in range(kills):
        process = start(root, *how)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, longest))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            struck += 1
        _, errors = process.communicate()
        finished_before = process.returncode == 1 and "FINISHED" in errors  # the last kill struck behind the end of the run
        assert process.returncode in (0, -signal.SIGKILL) or finished_before, errors
        assert_nothing_is_undercharged(root)
        if process.returncode != -signal.SIGKILL:
            break
    process = start(root, *how)
    _, errors = process.communicate(timeout=300)
    with Ledger.open(root / "ledger.db", read_only=True) as ledger:
        assert ledger.finished, errors
        assert checkpoint_steps(root) <= ledger.state.charged
        return struck, ledger.state.charged


@pytest.mark.slow
def test_B13_B14_B15_three_kills_lose_no_charge_and_the_run_finishes(tmp_path) -> None:
    make_world(tmp_path, per_class=5, steps=60, rate="0.5", policy_extra="redo_steps = 1000")
    struck, charged = kill_at_random_moments(tmp_path, 3, seed=1, longest=4.0)
    assert charged >= 60
    print(f"struck {struck}, charged {charged} for 60 steps")


@pytest.mark.slow
def test_B13_B14_B15_thirty_kills_lose_no_charge_and_the_run_finishes(tmp_path) -> None:
    make_world(tmp_path, per_class=5, steps=3000, rate="0.5", policy_extra="redo_steps = 100000")
    struck, charged = kill_at_random_moments(tmp_path, 30, seed=2, longest=2.0)  # long before the end of the run
    print(f"struck {struck}, charged {charged} for 3000 steps")
    assert struck == 30


@pytest.mark.slow
def test_kills_lose_no_charge_where_pairs_move_along_their_tangent_space(tmp_path) -> None:
    world = make_world(
        tmp_path, per_class=5, steps=60, rate="0.5", policy_extra='redo_steps = 1000\ngeometry = "lora_tangent"'
    )
    struck, charged = kill_at_random_moments(tmp_path, 3, 3, 6.0, "tangent")
    assert charged >= 60 and struck
    assert world.ledger.exists()
