"""The rules of a ledger: what leaves may follow what, and what they cost. Writer and auditor hold the same ones."""
