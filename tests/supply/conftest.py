"""The tools by which wheels and sdists are built, in an environment of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from publish.lock import ROOT


@pytest.fixture(scope="session")
def release_python() -> Path:
    """The interpreter that has what requirements/release.lock names, made where it is not there."""
    target = "build/release/.installed"
    done = subprocess.run(["make", target, f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build" / "release" / "bin" / "python"
