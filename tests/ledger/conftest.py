"""Fixtures of the ledger tests."""

from pathlib import Path

import pytest
from ledger_runs import SIGNER, START, Driver, header_spec

from ledger.log import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def run(path: Path):
    """A fresh ledger under a driver."""
    with Ledger.create(path, header_spec(), SIGNER, now=START) as ledger:
        yield Driver(ledger)
