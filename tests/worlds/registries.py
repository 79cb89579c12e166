"""Registries for tests: logs in a temporary file, signed by a given owner, with their names."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attest import sign1
from attest.registry import Entry, KeyRecord, Registry, RegistryLog
from attest.registry.entries import join, root_of, split
from attest.registry.names import Names, beside


class RegistryBytes(bytes):
    """The bytes of a registry file, and of the names beside it; a slice or a sum has no names."""

    names: bytes = b""


def put(path: Path, data: bytes) -> None:
    """Write a registry, and its names beside it."""
    path.write_bytes(data)
    beside(path).write_bytes(getattr(data, "names", b""))


def taken(path: Path) -> RegistryBytes:
    """A registry as it lies in a directory, with the names beside it."""
    data = RegistryBytes(path.read_bytes())
    data.names = beside(path).read_bytes()
    return data


def new_log(path: Path, owner: Any, *, now: int, name: str = "owner") -> RegistryLog:
    """A registry at `path` in which nobody is enrolled."""
    return RegistryLog.create(path, owner, owner=name, now=now)


def registry_file(owner: Any, now: int, *changes: Callable[[RegistryLog], object]) -> RegistryBytes:
    """The bytes of a new registry after some changes, each a call like `lambda log: log.grant(...)`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.cbor"
        log = new_log(path, owner, now=now)
        for change in changes:
            change(log)
        return taken(path)


def continued(data: bytes, owner: Any, *changes: Callable[[RegistryLog], object]) -> RegistryBytes:
    """The bytes of a registry after more changes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.cbor"
        put(path, data)
        log = RegistryLog(path, owner)
        for change in changes:
            change(log)
        return taken(path)


def load(data: bytes, owner: Any) -> Registry:
    """What the bytes of a registry amount to, verified."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.cbor"
        put(path, data)
        return RegistryLog(path, owner).registry


def signed_behind_the_back(data: RegistryBytes, owner: Any, now: int, *actions: Any) -> RegistryBytes:
    """A registry with one more entry that the owner signed without any check."""
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder) / "registry.cbor", data)
        committed, names = Names.read(Path(folder) / "registry.names").committed(actions)
    last, _ = list(split(data))[-1]
    payload = Entry(Entry.from_cbor(last).seq + 1, root_of(last), now, tuple(committed)).to_cbor()
    message = sign1.sign(payload, owner, contributor="owner", typ=sign1.TYP_REGISTRY)
    longer = RegistryBytes(data + join([(payload, message)]))
    longer.names = names.to_cbor()
    return longer


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
