"""Keeps the privacy budgets of a service in a log that many processes write: paid before computing, never above a cap.

`ledger.budget.log` keeps a log, which takes the extra ``store``; `ledger.budget.audit` verifies an export of one, and takes
nothing. Neither imports torch.
"""

from ledger.budget.generation import GenerationRule
from ledger.budget.leaves import Beside, Header, Mechanism, Notice
from ledger.budget.units import Unit

__all__ = ["Beside", "GenerationRule", "Header", "Mechanism", "Notice", "Unit"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
