"""A rank holds what a plan predicts: bytes per coordinate at each moment of real steps under gloo."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux sets the peak of a process back")
@pytest.mark.parametrize(("processes", "sharded"), [(1, False), (2, False), (2, True)])
def test_a_rank_holds_and_sends_as_many_bytes_per_coordinate_as_predicted(processes: int, sharded: bool) -> None:
    from benchmarks.ranks import measured, predicted

    said, seen = predicted(processes, sharded), measured(processes, sharded)
    assert said.keys() == seen.keys()
    assert seen["sent"] == pytest.approx(said["sent"], rel=0.02)
    for moment in ("microbatches", "release", "probes"):
        assert 0.85 * said[moment] < seen[moment] < 1.15 * said[moment], (moment, said[moment], seen[moment])
