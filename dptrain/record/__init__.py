"""Record a run: the ledger's leaves, checkpoints pinned to them, and the withdrawals that it takes in."""
