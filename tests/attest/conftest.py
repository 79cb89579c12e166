"""Fixtures of the tests of `attest`: two contributors with an operator's policy, everything signed, and published vectors."""

import json
from pathlib import Path

import pytest

from tests.worlds.gate import GateWorld, make_gate_world


@pytest.fixture(scope="session")
def world() -> GateWorld:
    return make_gate_world()


@pytest.fixture(scope="session")
def vectors():
    """Read a published vector file by name."""
    folder = Path(__file__).resolve().parents[1] / "vectors"
    return lambda name: json.loads((folder / f"{name}.json").read_text())
