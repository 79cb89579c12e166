"""The contributor registry of an audit: from the export, or from a file that the auditor brings, under the owner's key."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attest.errors import FileRefused, RegistryRefused
from attest.files import read_limited
from attest.registry import MAX_SIZE, Contributor, KeyRecord, Registry, RegistryWalk, open_registry, read_states
from attest.registry.names import beside, names_of
from ledger import layout
from ledger.audit.files import Export
from ledger.leaves import Header

Report = Callable[[str, str, str], None]

_LATEST: Final = "get the latest registry from the corpus owner"


@dataclass(frozen=True, slots=True)
class Registered:
    """A verified registry, and the state of it by which a run admitted.

    Guarantee:
        The header's owner key signed every entry. The log has the root that the signed policy names, and `admitted` is its
        state with the root that the header names, which is that of the policy or a later one.

    Attributes:
        admitted: the state that the header names.
        latest: the last state.
        walk: stands at the state that the header names, and goes on to later ones.
    """

    admitted: Registry
    latest: Registry
    walk: RegistryWalk


@dataclass(frozen=True, slots=True)
class Known:
    """A state of a registry by which a run goes, and its keys.

    Attributes:
        state: the state.
        by_key: its keys by key id, each with the contributor for whom it is enrolled.
    """

    state: Registry
    by_key: dict[bytes, list[tuple[Contributor, KeyRecord]]]

    @classmethod
    def of(cls, state: Registry) -> "Known":
        """Returns a state with its keys in order."""
        by_key: dict[bytes, list[tuple[Contributor, KeyRecord]]] = {}
        for contributor in state.by_name.values():
            for record in contributor.keys:
                by_key.setdefault(record.key_id, []).append((contributor, record))
        return cls(state, by_key)


def registry_of(header: Header, path: Path) -> Registry:
    """Opens a registry under the key of the policy's owner, if it is the one that the run began with or a later state of it.

    Raises:
        RegistryRefused: as `attest.registry.open_registry`; code REGISTRY_ROOT, it is another one or an earlier state.
    """
    known = open_registry(path, header.owner_key)
    if not known.extends(header.registry_root):
        raise RegistryRefused("REGISTRY_ROOT", _not_there(known, header.registry_root, "the run began"))
    return known


def registered(header: Header, export: Export, brought: Path | None, fault: Report) -> Registered | None:
    """Returns the registry by which a run admitted; None without any, or after reporting what is wrong with it.

    Args:
        header: leaf 0.
        export: the directory.
        brought: file of a registry that the auditor has; it counts in place of the export's, which it must extend.
        fault: takes (code, where, sentence) of everything wrong.
    """
    found, where = None, layout.REGISTRY
    try:
        data = export.read(layout.REGISTRY)
        if data is not None:
            walk = RegistryWalk(data, header.owner_key)
            found = (*read_states(data, header.owner_key, header.registry_root), walk)
        if brought is not None:
            exported, where = found, str(brought)
            found = _brought(header, brought)
            if exported is not None and not found[1].extends(exported[1].root()):
                sentence = _not_there(found[1], exported[1].root(), "the registry in the export ends")
                raise RegistryRefused("REGISTRY_ROOT", sentence)
        return None if found is None else _checked(header, *found)
    except RegistryRefused as error:
        fault(error.code, where, error.sentence)
    return None


def _brought(header: Header, path: Path) -> tuple[Registry | None, Registry, RegistryWalk]:
    """Returns both states of a registry in a file, with the names that lie beside it, and a walk through all of them."""
    try:
        data = read_limited(path, MAX_SIZE, "contributor registry")
    except FileRefused as error:
        raise RegistryRefused(error.code, error.sentence) from error
    named: dict[str, Any] = {"names": names_of(path), "place": str(beside(path))}
    walk = RegistryWalk(data, header.owner_key, **named)
    return *read_states(data, header.owner_key, header.registry_root, **named), walk


def _checked(header: Header, admitted: Registry | None, latest: Registry, walk: RegistryWalk) -> Registered:
    if admitted is None:
        raise RegistryRefused("REGISTRY_ROOT", _not_there(latest, header.registry_root, "the run began"))
    root = header.policy.registry_root
    if root is None or not admitted.extends(root):
        named = "none" if root is None else root.hex()
        told = f"the run began with the root {header.registry_root.hex()}, which does not extend {named}"
        raise RegistryRefused("REGISTRY_ROOT", f"{told}, the one that the policy names: another registry, or an earlier state")
    walk.to(header.registry_root)
    return Registered(admitted, latest, walk)


def _not_there(registry: Registry, root: bytes, what: str) -> str:
    told = f"the registry has the root {registry.root().hex()} and does not extend {root.hex()}, with which {what}"
    return f"{told}; {_LATEST}"
