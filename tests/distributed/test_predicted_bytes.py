"""A rank holds what a plan predicts: bytes per coordinate at each moment of real steps under gloo."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the peak of a process back")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_rank_holds_as_many_bytes_per_coordinate_as_predicted(processes: int) -> None:
    from benchmarks.ranks import measured, predicted

    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process cannot be set back here")
    said, seen = predicted(processes), measured(processes)
    assert said.keys() == seen.keys()
    for moment, expected in said.items():
        assert 0.85 * expected < seen[moment] < 1.25 * expected, (moment, expected, seen[moment])
