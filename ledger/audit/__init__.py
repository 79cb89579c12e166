"""The auditor: takes an export and pinned keys, believes nothing else, and says FULL or names what is wrong.

Imports no storage and no torch: what it needs is in the export, and the arithmetic is the trainer's own.
"""

from ledger.audit.findings import AuditReport, ClockRow, EpochRow, Finding, Signer, WithdrawalCount, WithdrawalRow
from ledger.audit.verify import verify_export

__all__ = ["AuditReport", "ClockRow", "EpochRow", "Finding", "Signer", "WithdrawalCount", "WithdrawalRow", "verify_export"]
