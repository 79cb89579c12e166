"""How weights leave the house, as far as the ledger goes: what an epoch ended with, a checkpoint for the manifest to cite, and
then the RELEASE leaf."""

from collections.abc import Iterable

from attest.files import atomic_write, sync_directory
from ledger.errors import LedgerError, StorageFailed
from ledger.leaves import Release
from ledger.note import NoteSigner
from ledger.rules.weights import WeightRecord, model_digest, write_records
from ledger.storage.appender import Appender
from ledger.storage.beside import read_weights, weights_file


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
