"""Registries for tests: logs in a temporary file, signed by a given owner."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attest.registry import KeyRecord, Registry, RegistryLog


def new_log(path: Path, owner: Any, *, now: int, name: str = "owner") -> RegistryLog:
    """A registry at `path` in which nobody is enrolled."""
    return RegistryLog.create(path, owner, owner=name, now=now)


def registry_file(owner: Any, now: int, *changes: Callable[[RegistryLog], object]) -> bytes:
    """The bytes of a new registry after some changes, each a call like `lambda log: log.grant(...)`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.cbor"
        log = new_log(path, owner, now=now)
        for change in changes:
            change(log)
        return path.read_bytes()


def continued(data: bytes, owner: Any, *changes: Callable[[RegistryLog], object]) -> bytes:
    """The bytes of a registry after more changes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.cbor"
        path.write_bytes(data)
        log = RegistryLog(path, owner)
        for change in changes:
            change(log)
        return path.read_bytes()


def load(data: bytes, owner: Any) -> Registry:
    """What the bytes of a registry amount to, verified."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.cbor"
        path.write_bytes(data)
        return RegistryLog(path, owner).registry


def with_key(registry: Registry, name: str, **changes: Any) -> Registry:
    """A registry that no log led to: the first key of a contributor changed, checks of the key itself left out."""
    contributor = registry.find(name)
    old = contributor.keys[0]
    record = object.__new__(KeyRecord)
    for field in KeyRecord.__slots__:
        object.__setattr__(record, field, changes.get(field, getattr(old, field)))
    changed = replace(contributor, keys=(record, *contributor.keys[1:]))
    return replace(registry, by_name=dict(registry.by_name) | {name: changed})


def without_contributors(registry: Registry) -> Registry:
    """A registry that no log led to, with nobody in it and a root of its own."""
    return replace(registry, by_name={}, roots=(b"\x99" * 32,))
