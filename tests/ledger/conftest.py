"""Fixtures of the ledger tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.log import Ledger
from ledger.storage.place import Place
from tests.worlds.attested_ledgers import attested_run
from tests.worlds.ledgers import SIGNER, START, Driver, header_spec
from tests.worlds.postgres import Cluster, require_server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def run(path: Path):
    """A fresh ledger under a driver."""
    with Ledger.create(path, header_spec(), SIGNER, now=START) as ledger:
        yield Driver(ledger)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server for the whole session."""
    require_server()
    server = Cluster()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path):
    """Each database in turn, with nothing in it."""
    from storage_backends import PostgresBackend, SqliteBackend

    if request.param == "sqlite":
        made = SqliteBackend(tmp_path)
    else:
        made = PostgresBackend(request.getfixturevalue("cluster"), tmp_path)
    yield made
    made.remove()


@pytest.fixture
def place(backend) -> Place:
    """Where the ledger of a test of both databases lies."""
    return backend.place


@pytest.fixture
def begun(place: Place):
    """A fresh ledger in each database, under a driver."""
    with Ledger.create(place, header_spec(), SIGNER, now=START) as ledger:
        yield Driver(ledger)


@pytest.fixture
def closed(backend):
    """A whole run over signed admissions, closed, in each database."""
    run = attested_run(backend.place)
    run.whole_run()
    run.ledger.close()
    return backend
