"""The ledger: a transparency log of privacy expenditure that anyone can audit offline."""
