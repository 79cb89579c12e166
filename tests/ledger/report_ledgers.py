"""A run with something in every part of its report: bounds that differ, withdrawals, a second attempt, an open window."""

import hashlib
import random
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import layout
from ledger.leaves import HeaderSpec
from ledger.log import Ledger
from ledger.note import Cosigner, cosign
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, header_spec, parameter, signed_policy, stack_of

ANNA = Cosigner("auditor.example/anna", OTHER_KEY)
BORIS = Cosigner("auditor.example/boris", Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35))))

HOSTILE = "\u202e<script>alert(1)</script>\x00\ud800'\"&<img src=x onerror=alert(1)>]]>-->" + "A" * 3000

EXTRAS = {
    "gate": {
        "admitted": {"open": 120, "sensitive": 80},
        "refused": {"SIG_BAD": 3, "EXPIRED": 14, "CLASS_NOT_GRANTED": 1, HOSTILE: 2},
        "examples": [
            {"where": "notes.jsonl", "code": "SIG_BAD", "sentence": HOSTILE},
            {"where": "notes.jsonl", "code": "EXPIRED", "sentence": "validity ended 2026-01-01"},
            "a plain line",
        ],
    },
    "results": [{"model": "routed", "accuracy": 0.913, HOSTILE: 1}, {"model": "uniform", "accuracy": 0.874, "note": "same ε"}],
}
"""What an operator might tell, and what one might who means ill."""


def many_layers() -> HeaderSpec:
    """Twelve layers, of which the sensitive class touches the upper six; a head of both, a frozen embedding."""
    layers = [parameter(f"layers.{n}.{part}.weight", 4096) for n in range(12) for part in ("attention", "mlp")]
    stack = stack_of(12, *layers, parameter("head.weight", 1000), parameter("embedding.weight", 50_000, trained=False))
    return header_spec(signed_policy(auditors=(ANNA.vkey, BORIS.vkey), auditor_quorum=2), stack=stack)


def varied_run(driver: Driver) -> None:
    """Two hundred contributions with bounds of their own, four epochs, two releases, a second attempt, withdrawals."""
    dice = random.Random(6)
    for wave in range(4):
        driver.admit(*(_admission(dice, 50 * wave + n) for n in range(50)))
        driver.steps(2)
        driver.epoch()
        for n in range(50 * wave, 50 * wave + 5):
            driver.withdraw(n)
        if wave % 2:
            driver.ledger.sign_checkpoint()
            digests = (hashlib.sha256(b"%d %d" % (wave, part)).digest() for part in range(2))
            driver.ledger.record_release(*digests, driver.ledger.state.position, now=driver.tick())
    driver.charge()
    driver.ledger.resume(0, None, now=driver.tick())
    driver.steps(1)
    driver.withdraw(9999)


def _admission(dice: random.Random, n: int):
    if n % 5 < 2:
        return admission(n, "sensitive", sigma_micro=3_000_000 + 500_000 * dice.randrange(4))
    return admission(n, clip_micro=1_000_000 - 150_000 * dice.randrange(4))


def varied_export(base: Path) -> Path:
    """The export of such a run, cosigned by one of the two auditors whom its policy asks for."""
    with Ledger.create(base / "ledger.db", many_layers(), SIGNER, now=START) as ledger:
        varied_run(Driver(ledger))
        export = ledger.export(base / "export")
    checkpoint = export / layout.CHECKPOINT
    checkpoint.write_bytes(cosign(checkpoint.read_bytes(), ANNA, [SIGNER.vkey], time=START + 500))
    return export


__all__ = ["EXTRAS", "HOSTILE", "many_layers", "signed_policy", "varied_export", "varied_run"]
