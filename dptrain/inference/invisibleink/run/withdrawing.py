"""Enters signed withdrawals into the budget log of a run, before its references are admitted and before each text.

They are the files that ``dptrain attest withdraw`` writes: those that were given by name, and those in the folder beside the
log (``LOG.withdrawals``), which every run of that log reads, whatever their names are: one that others renamed is entered too,
and once. A subfolder, or a hidden file, is an error.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attest import signed_file
from attest.attestation import Attestation
from attest.descriptor import SignedDescriptor
from attest.errors import AttestError
from attest.registry import Contributor, Registry
from attest.schema.plain import machine_time
from attest.withdrawal import Withdrawal
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.references import References
from ledger.audit.attested import Known
from ledger.audit.withdrawals import GivenWithdrawal
from ledger.budget.audit import holder_of, may_withdraw
from ledger.budget.leaves import Reference, decode_leaf
from ledger.budget.log import BudgetLog

FOLDER: Final = ".withdrawals"
"""Ends the name of the folder beside a log."""


def entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Returns the files of a folder of withdrawals, by name, and apart what is hidden or no file.

    Raises:
        ConfigError: code WITHDRAWALS, it is no folder, or cannot be read.
    """
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        sentence = f"cannot read the withdrawals in {folder}: {error.strerror or error}"
        raise ConfigError("WITHDRAWALS", f"{sentence}; mend it or take it out: nobody's withdrawal is passed over") from error
    strays = [path for path in paths if path.name.startswith(".") or not path.is_file()]
    return [path for path in paths if path not in strays], strays


class Withdrawing:
    """Enters withdrawals into a log, each once.

    Guarantee: when `enter` returns, nothing is reserved any more for a reference of this run, or a contribution that the log
    admitted, which one of these files withdraws. Each counts where a key signed it that the registry has of the contributor, or
    the key of the corpus owner. A file that is no withdrawal is an error, whatever its name, and so is one of such a
    contribution that others signed, and what is hidden or no file: nobody's withdrawal is passed over.

    Args:
        log: open. references: those that were judged. registry: keys of the contributors. owner: public key of the corpus
            owner, 32 raw bytes. files: given by name, each of a contribution of this run or log.
    """

    def __init__(
        self, log: BudgetLog, references: References, registry: Registry, owner: bytes, files: Sequence[Path] = ()
    ) -> None:
        self._log, self._owner, self._files = log, owner, list(files)
        self._known = Known.of(registry)
        now = machine_time()
        assert references.rule is not None
        name = references.rule.name
        self._leaves = {leaf.account: leaf for leaf in (_leaf(one, name, now) for one in references.attestations)}
        self._read = 0

    @property
    def folder(self) -> Path:
        """Returns the folder of withdrawals beside the log."""
        return self._log.place.side(FOLDER)

    def enter(self) -> int:
        """Enters what is new, and returns how many contributions that withdrew.

        Raises:
            ConfigError: code WITHDRAWALS, a file is no withdrawal, is hidden, or is a folder; WITHDRAWAL_UNPROVEN, one is
                signed by nobody of whom it is shown that they may withdraw it; WITHDRAWAL_UNMATCHED, one that was given by
                name is of a contribution that neither the run nor the log has. Else as `BudgetLog.withdraw`.
        """
        self._log.refresh()
        given = [(path, _given(path)) for path in self._files]
        given += [(path, _given(path)) for path in self._lying()]
        found = []
        for path, one in given:
            account = one.withdrawal.descriptor_hash
            if account in self._log.state.withdrawn:
                continue
            leaf = self._leaf_of(account)
            if leaf is None:
                if path in self._files:
                    sentence = f"{str(path)!r} withdraws {account.hex()}, which is neither in the corpus"
                    where = f"nor in {self._log.place.shown}; enter it where the contribution is"
                    raise ConfigError("WITHDRAWAL_UNMATCHED", f"{sentence} {where}")
                continue  # of another run or log: it makes no text here
            self._require_entitled(path, one, leaf)
            found.append(account)
        for account in found:  # all were checked before one is entered
            self._log.withdraw(account)
        return len(set(found))

    def _lying(self) -> list[Path]:
        if not self.folder.exists():
            return []
        paths, strays = entries(self.folder)
        if strays:
            sentence = f"{self.folder} has what is no file, or hidden: {', '.join(ascii(one.name) for one in strays[:5])}"
            raise ConfigError("WITHDRAWALS", f"{sentence}; take it out or rename it: nobody's withdrawal is passed over")
        return paths

    def _leaf_of(self, account: bytes) -> Reference | None:
        """Returns the leaf of a contribution: of one that was judged, or in the log."""
        if account not in self._leaves and account in self._log.state.admitted:
            for row in self._log.rows(self._log.size)[self._read :]:
                if row.kind == Reference.KIND and isinstance(leaf := decode_leaf(row.body), Reference):
                    self._leaves[leaf.account] = leaf
            self._read = self._log.size
        return self._leaves.get(account)

    def _require_entitled(self, path: Path, one: GivenWithdrawal, leaf: Reference) -> None:
        holder = holder_of(leaf, self._known)[0]
        contributor = holder if isinstance(holder, Contributor) else None
        if not may_withdraw(one, contributor, SignedDescriptor.from_cbor(leaf.descriptor).corpus, self._owner):
            sentence = f"{str(path)!r} is signed by nobody of whom it is shown that they may withdraw what it names"
            how = "give the registry that has the contributor's key (--registry), or take the file out"
            raise ConfigError("WITHDRAWAL_UNPROVEN", f"{sentence}; {how}: nobody's withdrawal is passed over")


def _leaf(signed: Attestation, name: str, now: int) -> Reference:
    """Returns what a log says of a contribution that it admits."""
    return Reference(1, now, name, signed.descriptor, signed.sign1)


def _given(path: Path) -> GivenWithdrawal:
    try:
        payload, message = signed_file.read(path, what="withdrawal")
        return GivenWithdrawal(path.name, payload, message, Withdrawal.from_cbor(payload))
    except AttestError as error:
        sentence = f"{str(path)!r} is no signed withdrawal: {error}"
        raise ConfigError("WITHDRAWALS", f"{sentence}; mend it or take it out: nobody's withdrawal is passed over") from error
