"""From whose signature the bounds of contributions were derived: what decides between FULL and TOLD.

* `follow`: every leaf of a run, held against the attestations of the export.
* `agreed`: what terms of attestations say, and each attestation of them.
* `shown`: the files that hold them.
* `pool`: which of them have ended, or are supported by the registry no more.
"""

from ledger.audit.bounds.follow import Bounds, bounds_are_signed

__all__ = ["Bounds", "bounds_are_signed"]
