"""The state of a registry after its last entry."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from attest.clock import is_ahead
from attest.errors import RegistryRefused
from attest.registry.enrolled import Enrolled, Opened
from attest.registry.records import Contributor, KeyRecord
from attest.shown import utc


@dataclass(frozen=True, slots=True, eq=False)
class Registry:
    """Who may attest what, as a verified log says; immutable.

    `open_registry` and `RegistryLog` make these. Guarantee of both: the corpus owner signed every entry, each follows
    the one before it, no key stands twice (under one name or two), so that a signature names one contributor, and
    every statement of a contributor among the entries verified under a key that was valid when it was taken in.

    Args:
        registry_id: 16 random bytes that tell this log from every other.
        owner: Identifier of the corpus owner.
        owner_key: 32 raw bytes of the key under which the entries verified.
        time: Time of the last entry.
        roots: Root after each entry, the last one being that of this state.
        by_name: The contributors, by name; by commitment in hex where the name is not known.
        names_missing: Why not all names are known, for `require_names`; "" if they are.
        revocations: Keys that were revoked, by their 32 raw bytes, each with the first second from which on it was, and the log
            said so.
    """

    registry_id: bytes
    owner: str
    owner_key: bytes
    time: int
    roots: tuple[bytes, ...] = field(repr=False)
    by_name: Mapping[str, Contributor] = field(repr=False)
    names_missing: str = ""
    revocations: Mapping[bytes, int] = field(default_factory=dict, repr=False)

    def require_names(self) -> None:
        """Checks that every contributor is known by name, as whoever asks by name must.

        Raises:
            RegistryRefused: Code NAMES, with the file that is missing.
        """
        if self.names_missing:
            raise RegistryRefused("NAMES", self.names_missing)

    @property
    def contributors(self) -> tuple[Contributor, ...]:
        """All contributors, sorted by name."""
        return tuple(self.by_name[name] for name in sorted(self.by_name))

    def find(self, name: str) -> Contributor | None:
        """The contributor of that name, or None."""
        return self.by_name.get(name)

    def holder(self, key: bytes) -> Contributor | None:
        """Returns the contributor whose key it is, by its 32 raw bytes; None if it is enrolled for nobody."""
        if isinstance(self.by_name, Enrolled):
            name = self.by_name.holder(key)
            return None if name is None else self.by_name[name]
        if isinstance(self.by_name, Opened):
            return self.by_name.holder(key)
        return next((item for item in self.by_name.values() if any(record.raw == key for record in item.keys)), None)

    def keys_valid_at(self, name: str, now: int) -> tuple[KeyRecord, ...]:
        """Keys of a contributor that may be used at `now`; empty for an unknown contributor."""
        contributor = self.find(name)
        return tuple(record for record in contributor.keys if record.valid(now)) if contributor else ()

    def root(self) -> bytes:
        """Digest that names this state and all that led to it: SHA-256 over the last entry, which holds the one before."""
        return self.roots[-1]

    def extends(self, root: bytes) -> bool:
        """Whether `root` is this registry's root or that of an earlier state of the same log."""
        return root in self.roots

    def require_not_ahead(self, now: int) -> None:
        """Holds the time of the last entry against a clock.

        Guarantee:
            Where it returns, no entry since the owner's clock was last set back is dated more than
            `attest.clock.AHEAD_SECONDS` after ``now``: what is revoked at the true time can be appended to it.

        Args:
            now: Seconds since 1970.

        Raises:
            RegistryRefused: Code CLOCK.
        """
        if is_ahead(self.time, now):
            raise RegistryRefused(
                "CLOCK",
                f"the last entry of the registry is dated {utc(self.time)}, {self.time - now} s ahead of the clock here"
                f" ({utc(now)}); set the clock right, or if it is, let the owner run 'dptrain registry set-clock'",
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Registry):
            return NotImplemented
        return (self.owner_key, self.roots, dict(self.by_name)) == (other.owner_key, other.roots, dict(other.by_name))

    def __hash__(self) -> int:
        return hash(self.roots[-1])
