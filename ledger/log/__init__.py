"""The life of a ledger, and what its operator may do with one that is open: charge, settle, sign, release, retain, examine."""

from ledger.log.ledger import Ledger

__all__ = ["Ledger"]
