"""Fixtures of the fault tests."""

from collections.abc import Iterator

import pytest

from tests.fault.scene import Scene, prepared
from tests.fault.tracing import Writers, require_strace
from tests.worlds.postgres import Cluster, require_server


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Writers under strace, and ledgers to begin with."""
    require_strace()
    with Writers() as writers:
        yield prepared(writers, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A PostgreSQL server to strike."""
    require_server()
    cluster = Cluster()
    yield cluster
    cluster.stop()
