"""The tools by which wheels and sdists are built, in an environment of their own."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from publish.lock import ROOT


@pytest.fixture(scope="session")
def release_python() -> Path:
    """The interpreter that has what requirements/release.lock names, made where it is not there."""
    target = "build/release/.installed"
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "release.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker makes it, the others wait
        command = ["make", target, f"PYTHON={sys.executable}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build" / "release" / "bin" / "python"
