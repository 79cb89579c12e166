"""The ledger where it is kept: an SQLite file or a schema of PostgreSQL, the signer's own record beside it, and the checks."""
