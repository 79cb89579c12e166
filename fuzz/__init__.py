"""Fuzzing of everything in `attest` that reads bytes from outside: `python -m fuzz.run`."""
