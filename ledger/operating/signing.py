"""What an open ledger's signer does besides recording a run: take in others' signatures, change its key, set its clock back."""

from collections.abc import Sequence

from attest.schema.plain import BACK_SECONDS, utc
from ledger.errors import LeafRefused
from ledger.leaves import Clock
from ledger.note import NoteSigner
from ledger.rules.rotation import rotation
from ledger.storage.appender import Appender


class Signing:
    """Signatures, keys and clock of an open ledger."""

    _file: Appender

    def add_signatures(self, note: bytes, verifier_keys: Sequence[str]) -> bytes:
        """Stores the signatures of others, such as auditors' cosignatures, below a checkpoint of this ledger.

        Guarantee:
            When this returns, the stored note is what it was, byte for byte, and behind it those lines of ``note`` that
            verify under one of the keys, each key once; durably. Nothing signed is ever taken away or changed.

        Args:
            note: a copy of one of this ledger's checkpoints, with signatures added.
            verifier_keys: keys whose signatures count.

        Returns:
            The note as it is stored now.

        Raises:
            NoteError: the note is malformed or not signed by the ledger's key, or a signature does not verify.
            LedgerForked: the ledger's key signed another history in it; both notes are kept as evidence.
            LedgerWrongRun: it is a checkpoint of another ledger.
            LedgerError: code NO_CHECKPOINT if this ledger has no checkpoint of that size.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        return self._file.add_signatures(note, verifier_keys)

    def rotate_key(self, successor: NoteSigner, *, now: int) -> bytes:
        """Hands the ledger over to another key, also after the run was closed; from now on this handle signs with it.

        Guarantee:
            When this returns, the KEY leaf and a checkpoint over it that both keys signed are durable. Checkpoints of that
            size or more by the old key alone are refused by every reader of the leaves from then on.

        Args:
            successor: the new key, under the ledger's own name. Keep it safe before calling this: afterwards nothing else
                can append to the ledger.
            now: POSIX seconds.

        Returns:
            The checkpoint that both keys signed, for publication.

        Raises:
            LeafRefused: code LOG_KEY, the new key has another name, signed this ledger before, or is an auditor's.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        with self._file.appending(now, checkpoint=True, successor=successor) as time:
            header, signer = self._file.replay.header, self._file.require_signer()
            self._file.stage(rotation(header, self._file.size, time, signer, successor))
        return self._file.checkpoints[self._file.size]

    def set_clock(self, reason: str, *, now: int) -> Clock:
        """Takes back times that a wrong clock put ahead, so that the ledger can go on; also after the run was closed.

        Guarantee:
            When this returns, the CLOCK leaf and a signed checkpoint over it are durable. Nothing else changes: no leaf before
            it is altered, what was charged counts, and who was withdrawn, as expired too, stays withdrawn.

        Args:
            reason: why, in printable ASCII of at most 200 characters; everybody who audits the ledger reads it.
            now: POSIX seconds by the clock that is right.

        Returns:
            The leaf.

        Raises:
            LeafRefused: code CLOCK_UNNEEDED, the clock is not behind the last leaf by more than a writer bears anyway; TYPE or
                RANGE for a reason or a time that no leaf has.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        last = self._file.replay.last_time
        if now >= last - BACK_SECONDS:
            sentence = f"the clock says {utc(now)} and the last leaf is of {utc(last)}: the ledger can go on as it is"
            raise LeafRefused("CLOCK_UNNEEDED", f"{sentence}, and no time has to be taken back")
        leaf = Clock(self._file.size, now, last, reason)
        with self._file.appending(now, checkpoint=True, back=True):
            self._file.stage(leaf)
        return leaf
