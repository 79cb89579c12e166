"""Servers for the tests of this folder: one for all that leave it as it was."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'dptrain[serve]'")

RICH = {"caps": {"user": {"epsilon": 5000.0, "delta": 1e-5}}}
"""A budget that no test uses up."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: Any) -> Iterator[Any]:
    """A server with a budget for many answers."""
    from tests.worlds.servers import running

    with running(tmp_path_factory.mktemp("served"), budget=RICH) as found:
        yield found
