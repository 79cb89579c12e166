"""The sealed store: what a run must remember about its own draws after a crash, and nobody may read or change.

With a cap on occurrences, a resumed run must know how often each slot was already drawn. Draws are a function of the
sampling key, so the keys of past attempts are kept (mode 0600) until the run ends, when the file is deleted. Other keys would
count other draws: the file is signed with the ledger's key and pinned to it. Noise keys are never written anywhere.
"""

import os
from pathlib import Path
from typing import Any

from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from dptrain.errors import ResumeRefused
from ledger.errors import LedgerError
from ledger.log import Ledger
from ledger.log.pinned import MAX_PINNED

KIND = "dptrain.draws/1"


class SealedStore:
    """Sampling keys per attempt, beside the ledger.

    Guarantee: a key that is read is the one that this ledger's run wrote for that attempt. Where it is missing, or anybody
    changed the file, no draw is counted by another: the run is refused.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path = path
        self._ledger = ledger

    def add(self, attempt: int, master: bytes) -> None:
        """Records the sampling key of an attempt before its first draw.

        Raises:
            ResumeRefused: the keys of earlier attempts were changed.
        """
        keys = self._read() | {attempt: master}
        data = self._ledger.sign_pinned(KIND, [[number, key] for number, key in sorted(keys.items())])
        atomic_write(self._path, data, mode=0o600)

    def master(self, attempt: int) -> bytes:
        """Sampling key of an earlier attempt.

        Raises:
            ResumeRefused: it is missing, or the file was changed, so caps on occurrences could be exceeded.
        """
        found = self._read().get(attempt)
        if found is None:
            raise self._refused(f"the sampling key of attempt {attempt} is not in {self._path}")
        return found

    def destroy(self) -> None:
        """Deletes the store at the end of the run."""
        if self._path.exists():
            os.remove(self._path)

    def _read(self) -> dict[int, bytes]:
        if not self._path.exists():
            return {}
        try:
            _, rows = self._ledger.open_pinned(read_limited(self._path, MAX_PINNED, "store of sampling keys"), KIND)
        except (LedgerError, FileRefused) as error:
            raise self._refused(f"{self._path} is not what this run wrote: {error.sentence}") from error
        return dict(map(_row, rows))

    def _refused(self, found: str) -> ResumeRefused:
        return ResumeRefused(
            "SEALED_STORE",
            f"{found}: contributions with max_occurrences could be drawn more often than signed; restore the file or start a "
            "new run",
        )


def _row(row: Any) -> tuple[int, bytes]:
    attempt, key = row
    return attempt, key
