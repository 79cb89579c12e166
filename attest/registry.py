"""The contributor registry: which keys speak for which contributor, when, and which classes they may attest."""

import hashlib
import os
from dataclasses import dataclass, field, replace
from typing import Any

from attest import cbor
from attest.checks import check_bytes, check_int
from attest.descriptor import MAX_COUNT, MAX_TIME
from attest.errors import CborError, FileRefused, KeyRefused, RegistryRefused
from attest.files import atomic_write, read_limited
from attest.ids import check_id
from attest.keys import check_public_key, key_id

SCHEMA = "dptrain.registry/1"
MAX_SIZE = 64 << 20
"""Bytes of a registry file; about a quarter of a million contributors."""

_ROOT_PREFIX = b"dptrain.registry.root/1\x00"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One enrolled key.

    Args:
        raw: 32 raw bytes of the public key.
        not_before: First second of validity.
        not_after: First second after validity.
        revoked_at: From this second on the key is revoked; None while it is not.
    """

    raw: bytes
    not_before: int
    not_after: int
    revoked_at: int | None = None

    def __post_init__(self) -> None:
        check_bytes(self.raw, "enrolled key", 32, error=RegistryRefused)
        check_int(self.not_before, "not_before", 0, MAX_TIME, error=RegistryRefused)
        check_int(self.not_after, "not_after", 0, MAX_TIME, error=RegistryRefused)
        if self.not_after <= self.not_before:
            raise RegistryRefused(
                "RANGE", f"key is valid until {self.not_after}, not after its start {self.not_before}"
            )
        if self.revoked_at is not None:
            check_int(self.revoked_at, "revoked_at", 0, MAX_TIME, error=RegistryRefused)

    @property
    def key_id(self) -> bytes:
        """Short name of the key."""
        return key_id(self.raw)

    def revoked(self, now: int) -> bool:
        """Whether the key is revoked at `now`."""
        return self.revoked_at is not None and now >= self.revoked_at

    def valid(self, now: int) -> bool:
        """Whether the key may be used at `now`: inside its half-open validity and not revoked."""
        return self.not_before <= now < self.not_after and not self.revoked(now)


@dataclass(frozen=True, slots=True)
class Contributor:
    """One contributor.

    Args:
        name: Identifier.
        keys: Enrolled keys in the order of enrolment.
        classes: Admissibility classes that the contributor may attest, sorted.
        cap: Contributions admitted from this contributor, None for the policy's cap.
    """

    name: str
    keys: tuple[KeyRecord, ...]
    classes: tuple[str, ...]
    cap: int | None = None

    def __post_init__(self) -> None:
        check_id(self.name, "contributor", error=RegistryRefused)
        if type(self.keys) is not tuple or any(type(record) is not KeyRecord for record in self.keys):
            raise RegistryRefused("TYPE", f"keys of {self.name} are not a tuple of key records")
        if type(self.classes) is not tuple:
            raise RegistryRefused("TYPE", f"classes of {self.name} are not a tuple")
        for name in self.classes:
            check_id(name, "class name", error=RegistryRefused)
        if list(self.classes) != sorted(set(self.classes)):
            raise RegistryRefused("RANGE", f"classes of {self.name} are not sorted and distinct")
        if self.cap is not None:
            check_int(self.cap, f"cap of {self.name}", 0, MAX_COUNT, error=RegistryRefused)


@dataclass(frozen=True, slots=True)
class Registry:
    """All contributors of a corpus, as a value: `add` and `revoke` return a new registry.

    Guarantee: no key stands twice, under one name or two, so a signature names one contributor. Keys enter
    through `add`, which runs `check_public_key`; a file changed by other hands has another root, and the gate checks
    keys again.
    """

    contributors: tuple[Contributor, ...] = ()
    _by_name: dict[str, Contributor] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)

    def __post_init__(self) -> None:
        names = [contributor.name for contributor in self.contributors]
        if names != sorted(set(names)):
            raise RegistryRefused("RANGE", "contributors are not sorted by name and distinct")
        owners: dict[bytes, str] = {}
        for contributor in self.contributors:
            for record in contributor.keys:
                if record.raw in owners:
                    raise RegistryRefused(
                        "KEY_IN_USE",
                        f"key {record.key_id.hex()} is enrolled for {owners[record.raw]} already;"
                        " every contributor needs keys of its own",
                    )
                owners[record.raw] = contributor.name
        self._by_name.update({contributor.name: contributor for contributor in self.contributors})

    def find(self, name: str) -> Contributor | None:
        """The contributor of that name, or None."""
        return self._by_name.get(name)

    def keys_valid_at(self, name: str, now: int) -> tuple[KeyRecord, ...]:
        """Keys of a contributor that may be used at `now`; empty for an unknown contributor."""
        contributor = self.find(name)
        return tuple(record for record in contributor.keys if record.valid(now)) if contributor else ()

    def add(
        self,
        name: str,
        raw: bytes,
        *,
        classes: tuple[str, ...] | list[str],
        not_before: int,
        not_after: int,
        cap: int | None = None,
    ) -> "Registry":
        """Enrol a key, for a new contributor or as a further key of a known one.

        Args:
            name: Contributor.
            raw: 32 raw bytes of the public key; must pass `check_public_key`.
            classes: Classes granted, added to those granted before.
            not_before: First second of the key's validity.
            not_after: First second after it.
            cap: New cap of the contributor, None to leave it.

        Raises:
            RegistryRefused: Code KEY_WEAK for an unsound key, KEY_IN_USE, TYPE or RANGE.
        """
        try:
            check_public_key(raw)
        except KeyRefused as error:
            raise RegistryRefused(error.code, error.sentence) from error
        check_id(name, "contributor", error=RegistryRefused)
        for granted in classes:
            check_id(granted, "class name", error=RegistryRefused)
        known = self.find(name) or Contributor(name, (), ())
        changed = Contributor(
            name,
            (*known.keys, KeyRecord(raw, not_before, not_after)),
            tuple(sorted({*known.classes, *classes})),
            known.cap if cap is None else cap,
        )
        return self._with(changed)

    def revoke(self, name: str, key: bytes | None = None, *, at: int) -> "Registry":
        """Revoke a contributor's keys from a moment on; an earlier revocation stands.

        Args:
            name: Contributor.
            key: Key id (8 bytes) or raw key (32 bytes) of one key, None for all.
            at: Second from which on the key is revoked.

        Raises:
            RegistryRefused: Code KEY_UNKNOWN if there is no such contributor or key.
        """
        check_int(at, "revocation time", 0, MAX_TIME, error=RegistryRefused)
        known = self.find(name)
        if known is None:
            raise RegistryRefused("KEY_UNKNOWN", f"contributor {ascii(name)[:80]} is not in the registry")
        chosen = {record.raw for record in known.keys if key is None or key in (record.key_id, record.raw)}
        if not chosen:
            raise RegistryRefused("KEY_UNKNOWN", f"contributor {name} has no such key; 'registry show' lists them")
        keys = tuple(
            replace(record, revoked_at=at if record.revoked_at is None else min(at, record.revoked_at))
            if record.raw in chosen
            else record
            for record in known.keys
        )
        return self._with(replace(known, keys=keys))

    def to_cbor(self) -> bytes:
        """Canonical encoding."""
        return cbor.encode({1: SCHEMA, 2: [_encode_contributor(item) for item in self.contributors]})

    @classmethod
    def from_cbor(cls, data: bytes) -> "Registry":
        """Read a registry strictly; an accepted byte string is exactly `to_cbor()` of the result.

        Raises:
            RegistryRefused: With the code of the strict decoder, or SCHEMA, TYPE, RANGE, KEY_IN_USE.
        """
        try:
            value = cbor.decode(data, max_size=MAX_SIZE)
        except CborError as error:
            raise RegistryRefused(error.code, f"registry is not strict CBOR: {error.sentence}") from error
        schema, items = _fields(value, 2, "registry")
        if schema != SCHEMA:
            raise RegistryRefused("SCHEMA", f"registry schema is {ascii(schema)[:60]}, expected {SCHEMA!r}")
        if type(items) is not list:
            raise RegistryRefused("TYPE", "contributors are not an array")
        registry = cls(tuple(_decode_contributor(item) for item in items))
        if registry.to_cbor() != data:
            raise RegistryRefused("CBOR_NONCANONICAL", "registry does not encode to the bytes received")
        return registry

    def root(self) -> bytes:
        """Digest that a policy names: SHA-256 of a fixed prefix and the canonical encoding."""
        return hashlib.sha256(_ROOT_PREFIX + self.to_cbor()).digest()

    def extends(self, root: bytes) -> bool:
        """Whether `root` is this registry's root."""
        return self.root() == root

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the registry, all or not at all."""
        atomic_write(path, self.to_cbor())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Registry":
        """Read a registry file.

        Raises:
            RegistryRefused: Unreadable or malformed.
        """
        try:
            data = read_limited(path, MAX_SIZE, "contributor registry")
        except FileRefused as error:
            raise RegistryRefused(error.code, error.sentence) from error
        return cls.from_cbor(data)

    def _with(self, changed: Contributor) -> "Registry":
        others = (item for item in self.contributors if item.name != changed.name)
        return Registry(tuple(sorted((*others, changed), key=lambda item: item.name)))


def _encode_contributor(item: Contributor) -> dict[int, Any]:
    keys = [{1: k.raw, 2: k.not_before, 3: k.not_after, 4: k.revoked_at} for k in item.keys]
    return {1: item.name, 2: keys, 3: list(item.classes), 4: item.cap}


def _decode_contributor(value: Any) -> Contributor:
    name, keys, classes, cap = _fields(value, 4, "contributor")
    if type(keys) is not list or type(classes) is not list:
        raise RegistryRefused("TYPE", "keys or classes of a contributor are not an array")
    return Contributor(name, tuple(KeyRecord(*_fields(key, 4, "key")) for key in keys), tuple(classes), cap)


def _fields(value: Any, count: int, what: str) -> list[Any]:
    if type(value) is not dict or set(value) != set(range(1, count + 1)):
        raise RegistryRefused("SCHEMA", f"{what} is not a map with exactly the labels 1 to {count}")
    return [value[label] for label in range(1, count + 1)]
