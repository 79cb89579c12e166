"""How weights leave the house, as far as the ledger goes: a checkpoint for the manifest to cite, and then the RELEASE leaf."""

from ledger.leaves import Release
from ledger.note import NoteSigner
from ledger.rules.releases import withdrawals_root
from ledger.storage.appender import Appender


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
            step: last released step that the weights contain.
            now: POSIX seconds.

        Returns:
            The position of the leaf: the size of the checkpoint that the manifest cites.

        Raises:
            LeafRefused: code RELEASE, the step was never charged.
            LedgerClosed, LedgerBusy, StorageFailed: as for appending.
        """
        seq, tree = self._file.size, self._file.frontier.root()
        gone = withdrawals_root(self._file.replay.withdrawals, seq)[1]
        with self._file.appending(now, checkpoint=True) as time:
            self._file.stage(Release(seq, time, step, seq, tree, manifest_digest, artifacts_digest, gone))
        return seq
