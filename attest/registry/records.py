"""Contributors and their keys, as plain values."""

from dataclasses import dataclass

from attest.checks import check_bytes, check_int
from attest.clock import check_time
from attest.curve25519 import P
from attest.descriptor import MAX_COUNT
from attest.errors import RegistryRefused
from attest.ids import check_id
from attest.keys import key_id

MAX_CLASSES = 256
"""Classes that one contributor may be granted."""

SMALL_ORDER_Y = frozenset(
    {
        0,
        1,
        P - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)
"""The y of the eight points whose order divides 8."""

_Y_MASK = 2**255 - 1


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One enrolled key.

    Args:
        raw: 32 raw bytes of the public key. Small-order keys and keys with y >= p, under which OpenSSL accepts
            forgeries, are refused here at once; whoever enrols a key, and whoever checks a signature, runs the whole
            of `check_public_key`.
        not_before: First second of validity.
        not_after: First second after validity.
        revoked_at: From this second on the key is revoked; None while it is not.
        proved: Whether a statement in the registry is signed by this key: its holder wants it in this registry. Without one,
            that anybody holds it is the word of the owner who enrolled it. Under which name it stands is the owner's word.
    """

    raw: bytes
    not_before: int
    not_after: int
    revoked_at: int | None = None
    proved: bool = False

    def __post_init__(self) -> None:
        check_bytes(self.raw, "enrolled key", 32, error=RegistryRefused)
        y = int.from_bytes(self.raw, "little") & _Y_MASK
        if y >= P or y in SMALL_ORDER_Y:
            raise RegistryRefused("KEY_WEAK", f"public key {self.raw.hex()} is weak; generate a new key")
        check_time(self.not_before, "not_before", error=RegistryRefused)
        check_time(self.not_after, "not_after", error=RegistryRefused)
        if self.not_after <= self.not_before:
            raise RegistryRefused(
                "RANGE", f"key is valid until {self.not_after}, not after its start {self.not_before}"
            )
        if self.revoked_at is not None:
            check_time(self.revoked_at, "revoked_at", error=RegistryRefused)

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
        principal: Person or group behind this and perhaps other contributors; None if it stands for itself.
    """

    name: str
    keys: tuple[KeyRecord, ...]
    classes: tuple[str, ...]
    cap: int | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        check_id(self.name, "contributor", error=RegistryRefused)
        if type(self.keys) is not tuple or any(type(record) is not KeyRecord for record in self.keys):
            raise RegistryRefused("TYPE", f"keys of {self.name} are not a tuple of key records")
        if type(self.classes) is not tuple:
            raise RegistryRefused("TYPE", f"classes of {self.name} are not a tuple")
        for name in self.classes:
            check_id(name, "class name", error=RegistryRefused)
        if list(self.classes) != sorted(set(self.classes)) or len(self.classes) > MAX_CLASSES:
            raise RegistryRefused(
                "RANGE", f"classes of {self.name} are not sorted, distinct and at most {MAX_CLASSES}"
            )
        if self.cap is not None:
            check_int(self.cap, f"cap of {self.name}", 0, MAX_COUNT, error=RegistryRefused)
        if self.principal is not None:
            check_id(self.principal, f"principal of {self.name}", error=RegistryRefused)
