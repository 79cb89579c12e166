"""The memory of registries: the largest state of each, and where its file lay."""

import json
from pathlib import Path

import pytest

from attest.errors import RegistryRefused
from attest.registry.log import RegistryMemory
from tests.worlds.gate import OWNER, registry_bytes
from tests.worlds.registries import continued, load


@pytest.fixture
def memory(tmp_path) -> RegistryMemory:
    return RegistryMemory(tmp_path / "ledger.db.registry", "this ledger")


def test_a_place_is_kept_until_another_is_said(memory, tmp_path, monkeypatch):
    registry = load(registry_bytes(), OWNER)
    assert memory.places() == []
    memory.keep(registry)
    assert memory.places() == []
    monkeypatch.chdir(tmp_path)
    memory.keep(registry, Path("registry.cbor"))
    assert memory.places() == [tmp_path / "registry.cbor"]
    later = load(continued(registry_bytes(), OWNER, lambda log: log.set_clock("late", now=1)), OWNER)
    memory.keep(later)
    assert memory.places() == [tmp_path / "registry.cbor"]
    memory.keep(later, tmp_path / "moved.cbor")
    assert memory.places() == [tmp_path / "moved.cbor"]
    with pytest.raises(RegistryRefused, match="REGISTRY_OLDER"):
        memory.keep(registry, tmp_path / "older.cbor")
    assert memory.places() == [tmp_path / "moved.cbor"]


@pytest.mark.parametrize("place", [7, ["registry.cbor"], {}])
def test_a_place_that_is_no_text_is_refused(memory, place):
    memory.keep(load(registry_bytes(), OWNER))
    rows = json.loads(memory.path.read_text())
    memory.path.write_text(json.dumps({name: row | {"path": place} for name, row in rows.items()}))
    with pytest.raises(RegistryRefused, match="FORMAT"):
        memory.places()
