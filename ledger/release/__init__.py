"""Releasing weights: a signed manifest that says which files they are, from which ledger, and who may have influenced them."""

from ledger.release.check import ReleaseReport, check_release
from ledger.release.create import Released, release
from ledger.release.manifest import EXPORT, MANIFEST, Manifest, ReleasedFile, open_manifest

__all__ = [
    "EXPORT",
    "MANIFEST",
    "Manifest",
    "ReleaseReport",
    "Released",
    "ReleasedFile",
    "check_release",
    "open_manifest",
    "release",
]
