"""Releasing weights: a signed manifest that says which files they are, from which ledger, and who may have influenced them."""

from ledger.release.check import ReleaseReport, check_release
from ledger.release.create import Publish, Released, release
from ledger.release.manifest import EXPORT, MANIFEST, Manifest, ReleasedFile, open_manifest
from ledger.release.rights import Rights, choose_artifact
from ledger.release.tied import Commitment, Tie, tie

__all__ = [
    "EXPORT", "MANIFEST", "Commitment", "Manifest", "Publish", "ReleaseReport", "Released", "ReleasedFile", "Rights", "Tie",
    "check_release", "choose_artifact", "open_manifest", "release", "tie",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
