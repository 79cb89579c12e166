"""Plugs what accounting needs torch for, opacus's PRVAccountant as the source of `prv`, into `ledger.accountants`."""

from dptrain.accounting.prv import register

__all__ = ["register"]
