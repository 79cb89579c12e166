"""The names behind the commitments of a registry: a file of the corpus owner, `registry.names` beside `registry.cbor`.

The registry travels in exports and says contributors and principals by salted commitments. This file opens them. The gate and
the trainer need it beside the registry; no export holds it.
"""

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from attest import cbor
from attest.checks import check_bytes
from attest.commitments import REGISTRY_CONTRIBUTOR, REGISTRY_PRINCIPAL, SALT_SIZE, commit
from attest.errors import AttestError, CborError, RegistryRefused
from attest.files import atomic_write, read_limited
from attest.ids import check_id
from attest.registry.actions import Action, Enrol, Grant, Revoke
from attest.registry.packed_names import PackedNames
from attest.registry.records import Contributor

SUFFIX: Final = ".names"

MAX_SIZE: Final = 512 << 20
"""Bytes of the file; more than two million contributors with names of the greatest length."""

_MAX_ITEM = 256


@dataclass(frozen=True, slots=True)
class Named:
    """Opens the commitments of one contributor.

    Args:
        name: Identifier of the contributor.
        salt: 16 random bytes, of this contributor in this registry alone.
        principal: Identifier of the person or group behind it, None if none is stated.

    Raises:
        RegistryRefused: Code TYPE or RANGE.
    """

    name: str
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(SALT_SIZE), repr=False)
    principal: str | None = None

    def __post_init__(self) -> None:
        check_id(self.name, "contributor", error=RegistryRefused)
        check_bytes(self.salt, "salt of a contributor", SALT_SIZE, error=RegistryRefused)
        if self.principal is not None:
            check_id(self.principal, f"principal of {self.name}", error=RegistryRefused)

    def commitment(self) -> bytes:
        """Returns what the registry says in place of the name."""
        return commit(REGISTRY_CONTRIBUTOR, self.name.encode("ascii"), self.salt)

    def committed_principal(self, principal: object) -> bytes:
        """Returns what the registry says in place of a principal of this contributor."""
        identifier = check_id(principal, f"principal of {self.name}", error=RegistryRefused)
        return commit(REGISTRY_PRINCIPAL, identifier.encode("ascii"), self.salt)


class Names:
    """Opens the commitments of a registry; immutable.

    Guarantee: a name stands here for a commitment only if it opens it. A file that was changed, or that belongs to another
    registry, opens nothing and so names nobody.

    Args:
        entries: What opens the commitments of each contributor.
        packed: More of it, as a large file holds it.
    """

    def __init__(self, entries: Iterable[Named] = (), packed: PackedNames | None = None) -> None:
        # What stands here goes before what stands in the file as it was read.
        self._packed = packed
        self._by_name = {entry.name: entry for entry in entries}
        self._by_commitment = {entry.commitment(): entry.name for entry in self._by_name.values()}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Names":
        """Reads a file of names strictly; an accepted file is exactly `to_cbor()` of the result.

        Raises:
            RegistryRefused: Code NAMES if it is malformed; FILE or SIZE.
        """
        shown, entries, at = os.fspath(path), list[Named](), 0
        try:
            data = read_limited(path, MAX_SIZE, "names of the registry")
            packed = PackedNames.read(data)
            if packed is not None:
                return cls((), packed)
            while at < len(data):
                value, at = cbor.decode_prefix(data, at, max_size=_MAX_ITEM)
                entries.append(_named(value))
        except (CborError, RegistryRefused) as error:
            raise RegistryRefused("NAMES", f"{shown!r}, name {len(entries) + 1}: {error.sentence}; restore the file") from error
        except AttestError as error:
            raise RegistryRefused(error.code, error.sentence) from error
        names = [entry.name for entry in entries]
        if names != sorted(set(names)):
            raise RegistryRefused("NAMES", f"{shown!r} does not hold each name once and in order; restore the file")
        return cls(entries)

    def find(self, name: str) -> Named | None:
        """Returns what opens the commitments of a contributor, by its name."""
        entry = self._by_name.get(name)
        number = None if entry is not None or self._packed is None else self._packed.find(name)
        return entry if number is None or self._packed is None else Named(*self._packed.entry(number))

    @property
    def packed(self) -> PackedNames | None:
        """Returns the names that are kept as their file holds them, which need not be all; None if there are none."""
        return self._packed

    def _named(self, commitment: bytes) -> Named | None:
        """Returns what opens a commitment to a contributor."""
        name = self._by_commitment.get(commitment)
        if name is not None:
            return self._by_name[name]
        number = None if self._packed is None else self._packed.find_commitment(commitment)
        return None if number is None or self._packed is None else Named(*self._packed.entry(number))

    def _all(self) -> dict[str, Named]:
        """Everything, by name; an object for each."""
        packed = () if self._packed is None else map(self._packed.entry, range(len(self._packed)))
        return {entry.name: entry for entry in (Named(*fields) for fields in packed)} | self._by_name

    def to_cbor(self) -> bytes:
        """Returns the bytes of the file: a CBOR sequence of `[name, salt, principal or null]`, by name."""
        if self._packed is not None and not self._by_name:
            return self._packed.data
        known = self._all()
        entries = (known[name] for name in sorted(known))
        return b"".join(cbor.encode([entry.name, entry.salt, entry.principal]) for entry in entries)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, all of it or nothing, readable by its owner alone."""
        atomic_write(path, self.to_cbor(), mode=0o600)

    def opened(self, contributor: Contributor) -> Contributor | None:
        """Returns a contributor whose commitments stand in hex, under its name; None where that is not known."""
        entry = self._named(bytes.fromhex(contributor.name))
        if entry is None:
            return None
        if contributor.principal is None:
            return replace(contributor, name=entry.name)
        if entry.principal is None or entry.committed_principal(entry.principal).hex() != contributor.principal:
            return None
        return replace(contributor, name=entry.name, principal=entry.principal)

    def told(self, text: str) -> str:
        """Returns a sentence with the names of contributors in place of their commitments in hex."""


        def name(found: re.Match[str]) -> str:
            entry = self._named(bytes.fromhex(found[0]))
            return found[0] if entry is None else entry.name

        return re.sub("[0-9a-f]{64}", name, text)

    def committed(
        self, actions: Iterable[Action], enrolled: Mapping[str, Contributor] = MappingProxyType({})
    ) -> tuple[list[Action], "Names"]:
        """Actions with commitments in place of names, and the names that open them: these, and those enrolled first.

        Args:
            actions: What is to be done.
            enrolled: The contributors as the entries say them, by name. A principal that stands here alone, as after an
                enrolment that was cut short, gives way to one that is stated.

        Raises:
            RegistryRefused: Code KEY_UNKNOWN for a contributor who is not enrolled; TYPE or RANGE.
        """
        known, changed = self._by_name.copy(), list[Action]()
        for action in actions:
            if isinstance(action, Enrol) and not isinstance(action.name, bytes):
                entry = known.get(action.name) or self.find(action.name) or Named(action.name)
                said, principal = action.principal, None
                if said is not None:
                    principal = entry.committed_principal(said)
                    held = enrolled.get(entry.name)
                    entry = entry if held is not None and held.principal else replace(entry, principal=str(said))
                if entry != self.find(entry.name):
                    known[entry.name] = entry
                action = replace(action, name=entry.commitment(), principal=principal)
            elif isinstance(action, Grant | Revoke) and not isinstance(action.name, bytes):
                found = (known.get(action.name) or self.find(action.name)) if type(action.name) is str else None
                if found is None:
                    raise RegistryRefused("KEY_UNKNOWN", f"contributor {ascii(action.name)[:80]} is not in the registry")
                action = replace(action, name=found.commitment())
            changed.append(action)
        return changed, self if known == self._by_name else Names(known.values(), self._packed)


def beside(registry: str | os.PathLike[str]) -> Path:
    """Tells where the names of a registry lie: `registry.names` beside `registry.cbor`."""
    return Path(registry).with_suffix(SUFFIX)


def names_of(registry: str | os.PathLike[str]) -> Names | None:
    """Returns the names beside a registry; None where there is no such file.

    Raises:
        RegistryRefused: As for `Names.read`.
    """
    path = beside(registry)
    return Names.read(path) if os.path.lexists(path) else None


def _named(value: Any) -> Named:
    if type(value) is not list or len(value) != 3:
        raise RegistryRefused("SCHEMA", "it is not an array of name, salt and principal")
    return Named(*value)
