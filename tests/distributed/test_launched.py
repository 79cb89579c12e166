"""The processes of a test begin with what they need, whatever folder the test stands in."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.distributed.launched import launched
from tests.worlds.programs import PRELOADED


def imported(rank: int) -> bool:
    return PRELOADED in sys.modules


def test_processes_begin_with_what_was_imported_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it every one imports torch and transformers itself, and takes ten times as long."""
    monkeypatch.chdir(tmp_path)
    assert launched(imported, 1) == [True]
