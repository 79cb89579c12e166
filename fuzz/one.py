"""Fuzz one target: `python -m fuzz.one TARGET [libFuzzer options] [corpus folders]`."""

import random
import sys
from dataclasses import replace

import atheris

with atheris.instrument_imports(include=["attest", "ledger"]):
    from fuzz.targets import TARGETS, pack, timed, unpack

from attest import sign1
from attest.attestation import Attestation


def mutate_attestation(data: bytes, longest: int, seed: int) -> bytes:
    """Mutate the descriptor under a header that names it again, the message or the opening: else the digest refuses all."""
    rng, attestation = random.Random(seed), unpack(data)
    choice = rng.randrange(4)
    if choice == 0 or not attestation.descriptor:
        message = atheris.Mutate(attestation.sign1, 1200)
        return pack(Attestation(attestation.descriptor[:16000], message, attestation.opening))[:longest]
    if choice == 1:
        return pack(replace(attestation, opening=bytes(atheris.Mutate(attestation.opening, 600))))[:longest]
    changed = bytes(atheris.Mutate(attestation.descriptor, 16500))
    old, new = (sign1.subject_of(payload).encode() for payload in (attestation.descriptor, changed))
    return pack(Attestation(changed, attestation.sign1.replace(old, new), attestation.opening))[:longest]


def main() -> None:
    """Runs until libFuzzer's limits; exit code other than 0 for a broken invariant."""
    name = sys.argv.pop(1)
    target = TARGETS[name]
    options = {"custom_mutator": mutate_attestation} if name == "attestation" else {}
    atheris.Setup([*sys.argv, f"-max_len={target.longest}"], timed(target.run, target.seconds), **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
