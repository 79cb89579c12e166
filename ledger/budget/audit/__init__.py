"""Audits an export of a budget log: what was spent, by whose consent, and whose word stands where nothing was shown."""

from ledger.budget.audit.consents import holder_of, may_withdraw
from ledger.budget.audit.given import given_texts
from ledger.budget.audit.report import WORDS, BudgetReport, CapRow, ChargedText, ContributionRow, RuleRow
from ledger.budget.audit.verify import holds_budget, verify_budget

__all__ = [
    "WORDS", "BudgetReport", "CapRow", "ChargedText", "ContributionRow", "RuleRow", "given_texts", "holder_of", "holds_budget",
    "may_withdraw", "verify_budget",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
