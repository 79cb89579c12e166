"""Bounds by how much one contribution moves what a strategy releases, as `ledger.accountants.correlated` does."""

from ledger.accountants.correlated.sensitivity import ONCE, Participation, Sensitivity, redone, sensitivity

__all__ = ["ONCE", "Participation", "Sensitivity", "redone", "sensitivity"]
