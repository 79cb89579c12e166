"""Remembers the registries that a gate saw, so that an older copy of one is found out.

A registry that was cut back is a registry too, in which a key that was revoked since is good again. Nobody needs a key to cut
one back: only somebody who saw more of it can tell.
"""

import json
import os
import warnings
from pathlib import Path
from typing import Any, Final

from attest.errors import AttestError, FileRefused, RegistryRefused
from attest.files import atomic_write, read_limited
from attest.registry.replay import Registry

SUFFIX: Final = ".registry"
"""Ends the name of such a file: `ledger.db.registry` beside a ledger, `.corpus.registry` beside a corpus."""

_MAX_SIZE: Final = 1 << 20


class RegistryMemory:
    """Remembers the largest state of each registry that was used for one ledger or one corpus, and where its file lay.

    Guarantee: after `keep` returned, `check` refuses every registry of the same id that lacks an entry of the one kept, or has
    another in its place, for as long as the file stays. The file is not signed: it holds against whoever can exchange the
    registry, and not against whoever can write beside the ledger or the corpus.

    Args:
        optional: Whether its place may be one that cannot be written, as a corpus on a disk that is read only.
    """

    def __init__(self, path: str | os.PathLike[str], what: str, *, optional: bool = False) -> None:
        self.path = Path(path)
        self._what = what
        self._optional = optional

    def check(self, registry: Registry) -> None:
        """Refuses a registry that does not extend the one that was kept. Raises RegistryRefused: code REGISTRY_OLDER, saying
        both sizes; FORMAT if the file is not one that `keep` wrote."""
        entry = self._known().get(registry.registry_id.hex())
        if entry is None:
            return
        entries, root, _ = entry
        if registry.extends(root) and len(registry.roots) >= entries:
            return
        found = len(registry.roots)
        how = "it was cut back" if found < entries else "it is another continuation of the same log"
        raise RegistryRefused(
            "REGISTRY_OLDER",
            f"the registry has {found} entries and the root {registry.root().hex()}; for {self._what} one with {entries}"
            f" entries and the root {root.hex()} was used before, which it does not extend: {how}. Get the latest from the"
            f" owner. If the owner did begin again from an older copy, remove {str(self.path)!r}",
        )

    def places(self) -> list[Path]:
        """Returns where the registries lay that were kept, as far as it was said; a file may have gone or changed since. Raises
        RegistryRefused: code FORMAT if the file is not one that `keep` wrote."""
        return [Path(place) for _, _, place in self._known().values() if place is not None]

    def keep(self, registry: Registry, place: Path | None = None) -> None:
        """Checks a registry and remembers it, durably; writes nothing if it is the one kept.

        Warns where an optional memory cannot be written.

        Raises:
            RegistryRefused: As `check`; code STORAGE if it cannot be written.
        """
        self.check(registry)
        known, name = self._known(), registry.registry_id.hex()
        before = known.get(name)
        where = (None if before is None else before[2]) if place is None else os.path.abspath(place)
        now = (len(registry.roots), registry.root(), where)
        if before == now:
            return
        rows = {key: _written(row) for key, row in (known | {name: now}).items()}
        try:
            atomic_write(self.path, json.dumps(rows, indent=2).encode() + b"\n")
        except OSError as error:
            sentence = f"cannot remember the registry in {str(self.path)!r}: {error.strerror or error}"
            if not self._optional:
                raise RegistryRefused("STORAGE", f"{sentence}; free space or mend the disk") from error
            warnings.warn(f"{sentence}, so an older copy of it would not be found out here", stacklevel=2)

    def _known(self) -> dict[str, "_Row"]:
        """Returns entries, root and place by registry id."""
        if not os.path.lexists(self.path):
            return {}
        try:
            rows: Any = json.loads(read_limited(self.path, _MAX_SIZE, "memory of registries"))
            return {name: _row(row) for name, row in rows.items()}
        except FileRefused as error:
            raise RegistryRefused(error.code, error.sentence) from error
        except (ValueError, TypeError, KeyError, AttributeError, AttestError) as error:
            sentence = f"{str(self.path)!r} does not say which registry was used: {error}; restore it, or remove it"
            raise RegistryRefused("FORMAT", sentence) from error


_Row = tuple[int, bytes, str | None]
"""Number of entries, root after the last of them, and the path of the file."""


def _row(row: Any) -> _Row:
    entries, root, place = row["entries"], bytes.fromhex(row["root"]), row.get("path")
    if type(entries) is not int or entries < 1 or len(root) != 32:
        raise ValueError("expected a number of entries and a root of 32 bytes")
    if place is not None and type(place) is not str:
        raise ValueError("expected a path")
    return entries, root, place


def _written(row: _Row) -> dict[str, Any]:
    entries, root, place = row
    return {"entries": entries, "root": root.hex()} | ({} if place is None else {"path": place})
