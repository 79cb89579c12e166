"""Does what a ledger's signer does besides recording a run: cosignatures, keys, clock, releases."""

from collections.abc import Iterable, Sequence

from attest.files import atomic_write, sync_directory
from attest.schema.plain import BACK_SECONDS, utc
from ledger.errors import LeafRefused, LedgerError, StorageFailed
from ledger.leaves import Clock, Release
from ledger.leaves.weights import WeightRecord, model_digest, write_records
from ledger.note import NoteSigner
from ledger.replay.signer import rotation
from ledger.storage.appender import Appender
from ledger.storage.beside import read_weights, weights_file


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


class Releasing:
    """Releases of an open ledger."""

    _file: Appender

    @property
    def signer(self) -> NoteSigner:
        """The ledger's key, which also signs the manifests of its releases.

        Raises:
            LedgerClosed: the ledger was opened for reading, or the handle is closed.
        """
        return self._file.require_signer()

    def keep_weights(self, records: Iterable[WeightRecord]) -> bytes:
        """Keeps the records of a model's tensors beside the ledger, for a release to cite, and returns its model digest.

        Guarantee: when this returns, the records are durable, so that no EPOCH leaf with this digest is without them. They are
        no secret beyond the weights themselves, and nothing rests on them: whoever reads them folds them to the digest again.

        Args:
            records: of all tensors of the model, in any order.

        Raises:
            StorageFailed: the disk refused.
        """
        kept = tuple(records)
        digest = model_digest(kept)
        path = weights_file(self._file.store.place, digest)
        try:
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                sync_directory(path.parent.parent)
            if not path.exists():
                atomic_write(path, write_records(kept))
        except OSError as error:
            raise StorageFailed("STORAGE", f"cannot write {path}: {error.strerror or error}; free space and resume") from error
        return digest

    def weights_of(self, digest: bytes) -> tuple[WeightRecord, ...] | None:
        """Returns the records that a model digest commits to, None if they are not here.

        Raises:
            LedgerCorrupt: code WEIGHTS, the file of that digest holds something else.
        """
        try:
            path = weights_file(self._file.store.place, digest)
        except LedgerError:  # a ledger on a server, opened without its state directory
            return None
        return read_weights(path) if path.exists() else None

    def sign_checkpoint(self) -> bytes:
        """Returns a signed checkpoint over all leaves, the stored one if there is one of that size.

        Raises:
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        if self._file.size not in self._file.checkpoints:
            with self._file.appending(self._file.replay.last_time, checkpoint=True):
                pass
        return self._file.checkpoints[self._file.size]

    def record_release(self, manifest_digest: bytes, artifacts_digest: bytes, step: int, *, now: int) -> int:
        """Records that weights are released, also after the run was closed; nothing was appended since the manifest was made.

        Guarantee: when this returns, the RELEASE leaf and a signed checkpoint over it are durable.

        Args:
            manifest_digest: SHA-256 of the file `release.cose`, which cites the checkpoint over all leaves so far.
            artifacts_digest: digest over the files, as the manifest says it.
            step: last released step of the run.
            now: POSIX seconds.

        Returns:
            The position of the leaf: the size of the checkpoint that the manifest cites.

        Raises:
            LeafRefused: code RELEASE, it is another step.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        seq, tree = self._file.size, self._file.frontier.root()
        gone = self._file.replay.releases.withdrawals_root
        with self._file.appending(now, checkpoint=True) as time:
            self._file.stage(Release(seq, time, step, seq, tree, manifest_digest, artifacts_digest, gone))
        return seq
