"""What an operator may do with an open ledger, an act a file; `ledger.log` joins them."""
