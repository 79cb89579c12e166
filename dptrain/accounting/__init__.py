"""What accounting needs torch for: the accountant `prv`, opacus's PRVAccountant, plugged into `ledger.accountants`."""

from dptrain.accounting.prv import register

__all__ = ["register"]
