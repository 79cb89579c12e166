"""The sealed store: what a run must remember about its own draws after a crash, and nobody may read.

With a cap on occurrences, a resumed run must know how often each slot was already drawn. Draws are a function of the
sampling key, so the keys of past attempts are kept (mode 0600) until the run ends, when the file is deleted. Noise keys are
never written anywhere.
"""

import json
import os
from pathlib import Path

from attest.files import atomic_write
from dptrain.errors import ResumeRefused


class SealedStore:
    """Sampling keys per attempt, beside the ledger."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, attempt: int, master: bytes) -> None:
        """Records the sampling key of an attempt before its first draw."""
        keys = self._read()
        keys[str(attempt)] = master.hex()
        atomic_write(self._path, json.dumps(keys).encode(), mode=0o600)

    def master(self, attempt: int) -> bytes:
        """Sampling key of an earlier attempt.

        Raises:
            ResumeRefused: it is missing, so caps on occurrences could be exceeded.
        """
        found = self._read().get(str(attempt))
        if found is None:
            raise ResumeRefused(
                "SEALED_STORE",
                f"the sampling key of attempt {attempt} is not in {self._path}: contributions with max_occurrences could be "
                "drawn more often than signed; restore the file or start a new run",
            )
        return bytes.fromhex(found)

    def destroy(self) -> None:
        """Deletes the store at the end of the run."""
        if self._path.exists():
            os.remove(self._path)

    def _read(self) -> dict[str, str]:
        if not self._path.exists():
            return {}
        return dict(json.loads(self._path.read_text()))
