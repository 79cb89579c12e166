"""The ledger on disk: one SQLite file, the signer's high-water file beside it, and the checks between them."""
