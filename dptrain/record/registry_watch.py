"""Follows the contributor registry of a run: the state that admitted the corpus, and what has changed since.

The owner appends to the registry while a run trains. Before every charge the run looks whether the file changed, verifies what
is new, and finds the contributions that may no longer be used. Registries that were seen, and signatures that verified, are
remembered beside ledger and corpus.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.corpus import Corpus
from attest.errors import RegistryRefused
from attest.gate.admission import Admission
from attest.gate.reading import SUFFIX as READING
from attest.gate.reading import Context, KeptReading
from attest.policy import SignedPolicy
from attest.registry import Registry, RegistryReader, open_registry
from attest.registry.log import SUFFIX, RegistryMemory
from attest.withdrawal import CLASS_NOT_GRANTED, KEY_REVOKED, REGISTRY_REASONS
from ledger.storage.place import Place

if TYPE_CHECKING:
    from dptrain.data.contributions import Pool
    from ledger.log import Ledger


def memory_of(corpus: Corpus) -> RegistryMemory:
    """Returns the memory of registries beside a corpus."""
    return RegistryMemory(corpus.beside(SUFFIX), "this corpus", optional=True)


def memories_of(place: Place, corpus: Corpus) -> list[RegistryMemory]:
    """Returns the memories of registries beside a corpus and beside a ledger, if it has a place beside it."""
    found = [memory_of(corpus)]
    if place.beside is not None:
        found.append(RegistryMemory(place.side(SUFFIX), f"the ledger {place.shown}"))
    return found


def registry_of_run(place: Place) -> Path | None:
    """Returns the registry file that the run of a ledger last used; None where nobody remembers one, or none lies there now.

    Raises:
        RegistryRefused: code FORMAT, the memory of registries beside the ledger cannot be read.
    """
    if place.beside is None:
        return None
    kept = RegistryMemory(place.side(SUFFIX), f"the ledger {place.shown}").places()
    return next((path for path in kept if path.is_file()), None)


def reading_beside(
    place: Place, key: Ed25519PrivateKey, signed: SignedPolicy, registry: Registry, largest: Registry | None = None
) -> KeptReading | None:
    """Opens the reading that is kept beside a ledger; None for a ledger on a server without a state directory.

    Args:
        place: where the ledger lies, or will lie.
        key: its private key, from which that of the reading is derived.
        signed: the policy.
        registry: the state that contributions are judged against.
        largest: the largest state that is known; None where that is the same one.
    """
    if place.beside is None:
        return None
    return KeptReading(place.side(READING), key, Context.of(signed, registry, largest))


def cited_roots(ledger: "Ledger") -> list[bytes]:
    """Returns the registry roots that a ledger cites: the header's first, then its REGISTRY leaves', then those of evidence."""
    cited = [leaf.evidence_hash for leaf in ledger.withdrawal_leaves() if leaf.reason in REGISTRY_REASONS]
    return list(dict.fromkeys((*ledger.state.registry_roots, *cited)))


class RegistryWatch:
    """Follows a registry file from one verified state to the next.

    Guarantee: ``current`` only ever moves forward along one log, every entry of which the owner signed. A file that is gone,
    does not verify or does not extend what was seen before is refused, and ``current`` stays what it was. Seen before is what
    this run saw, what its ledger cites, and what the memories beside ledger and corpus hold of earlier runs and gates.

    Attributes:
        path: the registry file.
        current: its last verified state.
    """

    def __init__(self, path: str | os.PathLike[str], owner_public: bytes, memories: Sequence[RegistryMemory] = ()) -> None:
        """Opens and verifies the registry.

        Args:
            path: the registry file.
            owner_public: the owner's key.
            memories: what is remembered of registries, and brought up to date from the admission on.

        Raises:
            RegistryRefused: as ``attest.registry.open_registry``; code NAMES without the names beside the registry.
        """
        self.path = Path(path)
        self._memories = memories
        self._reader = RegistryReader(self.path, owner_public)
        self._stamp = _stamp(self.path)
        self._judged: tuple[bytes, int] | None = None
        found = self._reader.read()
        found.require_names()
        self._take(found)

    def at_admission(self, roots: Iterable[bytes]) -> Registry:
        """Returns the state under which the corpus is admitted: the newest one, of a resumed run the one that it began with.

        Args:
            roots: what the ledger of a resumed run holds: the root of its header first, then all others that it cites.

        Raises:
            RegistryRefused: code REGISTRY_ROOT if the registry lacks one of them: it was rolled back, or is another; code
                REGISTRY_OLDER if it lacks what was used before for this ledger or this corpus.
        """
        known = list(roots)
        for root in known:
            if not self.current.extends(root):
                raise RegistryRefused(
                    "REGISTRY_ROOT",
                    f"the ledger of this run cites the registry root {root.hex()}; {str(self.path)!r} has the root "
                    f"{self.current.root().hex()} and does not extend it: it was rolled back, or is another registry. Get the "
                    "latest one from the corpus owner",
                )
        self._remember(self.current)
        return self.at(known[0]) if known else self.current

    def at(self, root: bytes) -> Registry:
        """Returns an earlier state of the registry; raises RegistryRefused where there is none of this root."""
        return open_registry(self.path, self._reader.owner_public_key, at=root)

    def refresh(self, now: int) -> None:
        """Takes in what was appended since; costs one ``stat`` while the file stays as it is.

        Args:
            now: POSIX seconds.

        Raises:
            RegistryRefused: the file is gone or does not verify; code REGISTRY_ROOT if it does not extend ``current``, CLOCK if
                its last entry lies ahead of ``now``, NAMES if the names beside it are not those of everybody in it.
        """
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            self.current.require_not_ahead(now)
            return
        found = self._reader.read()
        if not found.extends(self.current.root()):
            raise RegistryRefused(
                "REGISTRY_ROOT",
                f"{str(self.path)!r} changed to the root {found.root().hex()}, which does not extend "
                f"{self.current.root().hex()}, in use until now: it was rolled back, or is another registry. Nothing more was "
                "charged; put the owner's latest registry there and resume",
            )
        # Who is not known by name would pass for somebody without a key, and be taken out.
        found.require_names()
        found.require_not_ahead(now)
        self._remember(found)
        self._stamp = stamp
        self._take(found)

    def barred(self, pool: "Pool", now: int) -> Iterator[tuple[Admission, str]]:
        """Yields the admissions of a pool that the registry no longer supports at ``now``, each with its reason code.

        That is those whose key is revoked, and those whose contributor may no longer attest their class. A key that merely ran
        out or was followed by another bars nothing: it was valid when its contributions were admitted.
        """
        judged = (self.current.root(), bisect_right(self._revocations, now))
        if judged == self._judged:
            return
        yield from pool.asked(lambda admission: self._reason(admission, now))
        self._judged = judged

    def _remember(self, found: Registry) -> None:
        """Holds a registry against all memories before any of them takes it."""
        for memory in self._memories:
            memory.check(found)
        for memory in self._memories:
            memory.keep(found, self.path)

    def _take(self, found: Registry) -> None:
        self.current = found
        # Revocations may be dated ahead: the list tells when another one comes due.
        records = (record for contributor in found.by_name.values() for record in contributor.keys)
        self._revocations = sorted(record.revoked_at for record in records if record.revoked_at is not None)

    def _reason(self, admission: Admission, now: int) -> str | None:
        contributor = self.current.find(admission.descriptor.contributor)
        keys = contributor.keys if contributor is not None else ()
        named = [record for record in keys if record.key_id == admission.key_id]
        if not named or any(record.revoked(now) for record in named):
            return KEY_REVOKED
        if contributor is None or admission.descriptor.admissibility_class not in contributor.classes:
            return CLASS_NOT_GRANTED
        return None


def _stamp(path: Path) -> tuple[int, ...]:
    """Returns what tells one content of a file from another unread; a file replaced by renaming has another inode."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise RegistryRefused("FILE", f"cannot look at the registry {str(path)!r}: {error.strerror or error}") from error
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
