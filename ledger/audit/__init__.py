"""The auditor: takes an export and pinned keys, believes nothing else, and says how far it is to be believed, or what is wrong.

Imports no storage and no torch: what it needs is in the export, and the arithmetic is the trainer's own.
"""

from ledger.audit.findings import AuditReport, ClockRow, EpochRow, Finding, Signer, WithdrawalCount, WithdrawalRow
from ledger.audit.verify import verify_export
from ledger.audit.words import QUALIFIERS, VERDICTS, Verdict, Word

__all__ = [
    "QUALIFIERS",
    "VERDICTS",
    "AuditReport",
    "ClockRow",
    "EpochRow",
    "Finding",
    "Signer",
    "Verdict",
    "WithdrawalCount",
    "WithdrawalRow",
    "Word",
    "verify_export",
]
