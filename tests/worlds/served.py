"""A small world to serve: a public language model, an adapter of its head for each of three classes, released with its ledger.

Import the fixture into the conftest of the folder that uses it, so that one session makes one world.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dptrain.demo.language import World


@pytest.fixture(scope="session")
def served_world(tmp_path_factory: pytest.TempPathFactory) -> "World":
    """A world of a few steps; treat it as read-only, and copy what a test changes."""
    from dptrain.demo.language import make_world

    return make_world(Path(tmp_path_factory.mktemp("world")) / "world", quick=True)
