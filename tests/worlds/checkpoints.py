"""Model checkpoints without a model, for tests of what holds them to their ledger."""

import hashlib
from pathlib import Path

from dptrain.record.pin import PIN, STATE, folder_name, sign_record
from ledger.log import Ledger


def checkpoint_of(ledger: Ledger, step: int, folder: Path | None = None, states: bytes = b"states") -> Path:
    """Writes a checkpoint of a ledger that is open to sign; by default where its run would."""
    made = (folder or ledger.place.side(".checkpoints")) / folder_name(step)
    made.mkdir(parents=True, exist_ok=True)
    (made / STATE).write_bytes(states)
    (made / PIN).write_bytes(sign_record(ledger, step, "held", len(states), hashlib.sha256(states).digest()))
    return made
