"""Enters signed withdrawals into a budget log: for runs, servers and `dptrain ledger withdraw` alike.

They are the files that ``dptrain attest withdraw`` writes: those that were given by name, and those in folders, as that beside
the log (``LOG.withdrawals``), which everybody who makes texts by that log reads, whatever their names are: one that others
renamed is entered too, and once. A subfolder, or a hidden file, is an error.
"""

from collections.abc import Collection, Sequence
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
from ledger.errors import LedgerError

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


def beside(log: BudgetLog) -> list[Path]:
    """Returns the folder of withdrawals beside a log, in a list; none for a log on a server that keeps nothing here."""
    try:
        return [log.place.side(FOLDER)]
    except LedgerError:
        return []


class Withdrawing:
    """Enters withdrawals into a log, each once.

    Guarantee: when `enter` returns, nothing is reserved any more for a reference that was given, or a contribution that the log
    admitted under one of the classes, which one of these files withdraws. Each counts where a key signed it that the registry
    has of the contributor, or the key of the corpus owner. A file that is no withdrawal is an error, whatever its name, and so
    is one of such a contribution that others signed, and what is hidden or no file: nobody's withdrawal is passed over. What
    the log has as withdrawn needs no proof again.

    Args:
        log: open. owner: public key of the corpus owner, 32 raw bytes. registry: keys of the contributors; None for none.
        references: those that were judged, whatever the log has.
        classes: whose contributions in the log are meant; None for all of it.
        files: given by name, each of a contribution that is meant. folders: of further ones; those that are not there are none.
    """

    def __init__(
        self,
        log: BudgetLog,
        owner: bytes,
        registry: Registry | None,
        *,
        references: References | None = None,
        classes: Collection[str] | None = None,
        files: Sequence[Path] = (),
        folders: Sequence[Path] = (),
    ) -> None:
        self._log, self._owner, self._files, self._folders = log, owner, list(files), list(folders)
        self._known = None if registry is None else Known.of(registry)
        self._classes, self._judged = classes, references is not None
        self._leaves: dict[bytes, Reference] = {}
        if references is not None and references.rule is not None:
            now, name = machine_time(), references.rule.name
            self._leaves = {leaf.account: leaf for leaf in (_leaf(one, name, now) for one in references.attestations)}
        self._read = 0

    def enter(self, *, now: int | None = None) -> list[bytes]:
        """Enters what is new, and returns the contributions that the files withdraw, in their order, each once.

        Raises:
            ConfigError: code WITHDRAWALS, a file is no withdrawal, is hidden, or is a folder; WITHDRAWAL_UNPROVEN, one is
                signed by nobody of whom it is shown that they may withdraw it; WITHDRAWAL_UNMATCHED, one that was given by
                name is of a contribution that is not meant here. Else as `BudgetLog.withdraw`.
        """
        self._log.refresh()
        given = [(path, _given(path)) for path in (*self._files, *self._lying())]
        found = []
        for path, one in given:
            account = one.withdrawal.descriptor_hash
            if account not in self._log.state.withdrawn:
                leaf = self._leaf_of(account)
                if leaf is None:
                    if path in self._files:
                        sentence = f"{str(path)!r} withdraws {account.hex()}"
                        raise ConfigError("WITHDRAWAL_UNMATCHED", f"{sentence}, {self._elsewhere()}")
                    continue  # of another class or log: it makes no text here
                self._require_entitled(path, one, leaf)
            found.append(account)
        found = list(dict.fromkeys(found))
        for account in found:  # all were checked before one is entered
            self._log.withdraw(account, now=now)
        return found

    def _elsewhere(self) -> str:
        if self._judged:
            return f"which is neither in the corpus nor in {self._log.place.shown}; enter it where the contribution is"
        return "which this log admitted to nothing; enter it where the contribution was admitted"

    def _lying(self) -> list[Path]:
        found = []
        for folder in {path.resolve(): path for path in self._folders if path.exists()}.values():
            paths, strays = entries(folder)
            if strays:
                sentence = f"{folder} has what is no file, or hidden: {', '.join(ascii(one.name) for one in strays[:5])}"
                raise ConfigError("WITHDRAWALS", f"{sentence}; take it out or rename it: nobody's withdrawal is passed over")
            found += paths
        return found

    def _leaf_of(self, account: bytes) -> Reference | None:
        """Returns the leaf of a contribution that is meant: of one that was judged, or in the log."""
        admitted = self._log.state.admitted.get(account)
        if account not in self._leaves and admitted and (self._classes is None or admitted.rule in self._classes):
            for row in self._log.rows(self._log.size)[self._read :]:
                if row.kind == Reference.KIND and isinstance(leaf := decode_leaf(row.body), Reference):
                    self._leaves.setdefault(leaf.account, leaf)
            self._read = self._log.size
        leaf = self._leaves.get(account)
        return leaf if leaf is None or self._classes is None or leaf.rule in self._classes else None

    def _require_entitled(self, path: Path, one: GivenWithdrawal, leaf: Reference) -> None:
        holder = None if self._known is None else holder_of(leaf, self._known)[0]
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
