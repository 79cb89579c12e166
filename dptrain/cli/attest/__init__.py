"""`dptrain attest`: contributors sign, look at and withdraw attestations."""
