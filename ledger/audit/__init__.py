"""The auditor: takes an export and pinned keys, believes nothing else, and says how far it is to be believed, or what is wrong.

Imports no storage and no torch: what it needs is in the export, and the arithmetic is the trainer's own.
"""

from ledger.audit.findings import (
    QUALIFIERS,
    VERDICTS,
    AuditReport,
    ClockRow,
    EpochRow,
    Finding,
    Signer,
    Verdict,
    WithdrawalCount,
    WithdrawalRow,
    Word,
)
from ledger.audit.verify import verify_export

__all__ = [
    "QUALIFIERS", "VERDICTS", "AuditReport", "ClockRow", "EpochRow", "Finding", "Signer", "Verdict", "WithdrawalCount",
    "WithdrawalRow", "Word", "verify_export",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
