"""Computes what correlated noise costs: strategies, and by how much a contribution moves what they release; without torch."""

from ledger.accountants.correlated.sensitivity import ONCE, Participation, Sensitivity, redone, sensitivity
from ledger.accountants.correlated.signed import numbers_in_file, rule_of, strategy_of
from ledger.accountants.correlated.strategies import (
    Banded,
    BandedInverse,
    Buffered,
    Dense,
    Strategy,
    Toeplitz,
    digest,
    identity,
)
from ledger.accountants.correlated.turns import Turns

__all__ = [
    "ONCE",
    "Banded",
    "BandedInverse",
    "Buffered",
    "Dense",
    "Participation",
    "Sensitivity",
    "Strategy",
    "Toeplitz",
    "Turns",
    "digest",
    "identity",
    "numbers_in_file",
    "redone",
    "rule_of",
    "sensitivity",
    "strategy_of",
]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
