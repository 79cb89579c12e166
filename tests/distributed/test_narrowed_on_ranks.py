"""Narrowed forwards on two processes: classes stay apart to the last bit, and both processes hold the same."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from tests.distributed.launched import launched  # noqa: E402
from tests.worlds.adapters import AdapterRun, adapted, adapter_world, equal, narrowed  # noqa: E402
from tests.worlds.training import World  # noqa: E402

NAMES = ("north", "south")


def trained(rank: int, root: Path, ledger: str, swapped: int | None) -> dict[str, Any]:
    """What a whole run leaves of each adapter on a process."""
    world = World.at(root)
    world.now = 1_800_000_000
    with AdapterRun(world, adapted(*NAMES), ledger, swapped=swapped, ranks=True, microbatch=2) as run:
        return run.go().kept()


def test_on_two_processes_a_swapped_payload_leaves_the_other_adapter_equal_to_the_last_bit(tmp_path: Path) -> None:
    """Numbers of contributions are odd, so that processes run adapters of different classes at a time, or none."""
    classes = narrowed(north=["north"], south=["south"])
    world = adapter_world(tmp_path / "world", classes, steps=3, per_class={"north": 7, "south": 3}, rate="0.75")
    honest = launched(trained, 2, world.root, "honest", None)
    swapped = launched(trained, 2, world.root, "swapped", 1)
    for name in NAMES:
        assert equal(honest[0][name], honest[1][name]) and equal(swapped[0][name], swapped[1][name])
    assert equal(honest[0]["north"], swapped[0]["north"]) and not equal(honest[0]["south"], swapped[0]["south"])
