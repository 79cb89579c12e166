"""`dptrain ledger`: owners keep a ledger, auditors verify it, contributors look themselves up."""
