"""Keeps the log of a run: created, charged, settled, signed, released from, pruned and examined by its operator."""

from ledger.log.ledger import Ledger

__all__ = ["Ledger"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
