"""Opens the budget log of a run, with its key and the salt by which ids of references become units of it.

The salt lies beside the log, and the log's header pins it. So who deletes a run's folder, or the salt, has no new money where
the log lies elsewhere: the same ids are the same units, and another salt is refused. Beside a log on a server means in the
state directory, and each machine that pays from it has a copy of key and salt there.

Where references are retrieved the corpus pays (`retrieval.CORPUS`), and no salt is needed: a log has one corpus.
"""

import fcntl
import math
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attest.files import atomic_write, read_limited, sync_directory
from attest.fixed_point import MICRO, PICO
from attest.keys import generate, load_private_key, save_private_key
from dptrain.errors import ConfigError, ResumeRefused
from dptrain.inference.invisibleink.partition import SALT_SIZE, fresh_salt
from dptrain.inference.invisibleink.plan import NAME, Plan, mechanism, pin, pinned, relation
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.retrieval import ADJACENCY, CORPUS
from ledger.budget.export import export_budget
from ledger.budget.generation import OverRuns
from ledger.budget.leaves import Mechanism
from ledger.budget.log import BudgetLog, BudgetSpec, is_log
from ledger.budget.rho import NANO, cap_nano, epsilon_of_rho
from ledger.errors import LedgerBusy, StorageFailed
from ledger.leaves import Previous
from ledger.note import NoteSigner
from ledger.replay.earlier_runs import SpentRegistry
from ledger.storage.place import Place

CONTRIBUTION: Final = "contribution"

ALONE_SECONDS: Final = 20
"""Longest wait for others that make a log in the same directory: longer than a server may take to answer once."""

_PAUSE: Final = 0.01
"""Seconds between two looks whether they are done."""


@dataclass(frozen=True)
class Purse:
    """Names the files of a budget: the log, its key, and the salt beside it.

    Guarantee: a log of the owner's own references is opened with the salt that its header pins, and with no other, so that no
    reference gets a second budget in it, and under the adjacency and the number of records that its header pins; attested
    references stand in the log, with what was signed, before any of them pays.

    Attributes:
        log: where the log lies. key: private; the public one lies beside it (.pub).
    """

    log: Place
    key: Path

    @classmethod
    def of(
        cls, folder: Path, log: Path | str | None = None, key: Path | None = None, state: Path | None = None
    ) -> "Purse":
        """Returns the purse of a run: in its folder, or elsewhere where a log is named.

        Args:
            log: a file, or the URL of one on a server. state: directory of what lies beside a log on a server.

        Raises:
            LedgerError: code URL or STATE.
        """
        place = Place.of(folder / "budget.db" if log is None else log, state)
        return cls(place, place.key if key is None else key)

    @property
    def exists(self) -> bool:
        """Tells whether the log is there. Raises StorageFailed, LedgerBusy or LedgerCorrupt, as `is_log`: nobody can tell."""
        return self.log.file.exists() if self.log.file is not None else is_log(self.log)

    @property
    def salt_file(self) -> Path:
        """Returns the path of the salt."""
        return self.log.key.with_suffix(".salt")

    @property
    def public(self) -> Path:
        """Returns the path of the verifier key of the log."""
        return self.key.with_suffix(".pub")

    def salt(self, *, make: bool = True) -> bytes:
        """Returns the salt of the log; makes one where neither it nor the log is there.

        Guarantee: a salt is made only where the log is known not to be there, and appears whole, or not at all.

        Args:
            make: whether a new one is kept; else it is for planning alone.

        Raises:
            ResumeRefused: code SALT, the log is there and its salt is gone. ConfigError: code SALT, others can read the file,
                or it is none. Else as `exists`.
        """
        path = self.salt_file
        # Another process may have made both meanwhile, the salt first: a log that is there had one.
        if not path.exists() and self.exists and not path.exists():
            sentence = f"{self.log.shown} is there, and the salt {path} is gone"
            raise ResumeRefused("SALT", f"{sentence}: another one would make units that have spent nothing; restore the file")
        if path.exists():
            found = read_limited(path, 1024, "salt")
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise ConfigError("SALT", f"others can read {path}: who knows the salt can tell ids in an export; chmod 600 it")
            if len(found) < SALT_SIZE:
                raise ConfigError("SALT", f"{path} has {len(found)} bytes, a salt at least {SALT_SIZE}; restore the file")
            return found
        salt = fresh_salt()
        if make:
            self.log.make_state_directory()
            if not _made_whole(path, salt):  # another process made one in this moment
                return self.salt()
        return salt

    def cites(self) -> tuple[Previous, ...] | None:
        """Returns the ledgers that the log counts; None where it is not there yet. Waits for who makes it now.

        Raises:
            LedgerBusy: code LOCKED, that took too long. Else as `exists` and `BudgetLog.open`.
        """
        with self._alone():
            there = self.exists
        if not there:
            return None
        with BudgetLog.open(self.log, read_only=True) as log:
            return () if log.header.over_runs is None else log.header.over_runs.previous

    def open(
        self,
        plan: Plan,
        references: References,
        salt: bytes,
        *,
        epsilon: float | None = None,
        previous: Sequence[Previous] = (),
    ) -> BudgetLog:
        """Opens the log, or creates it for this plan; with attested references it is for all classes of their policy.

        Args:
            epsilon: cap of each contribution, at the plan's delta; None where a signed rule has it.
            previous: ledgers that a new log of attested references counts where somebody has a limit over all runs.

        Raises:
            ResumeRefused: code SALT, the log was made for another salt. ConfigError: code BUDGET, it has no cap for who
                pays, or no such mechanism, or was made for another adjacency or number of records, or has not the rule
                that admitted these, or the key is not its own.
                KeyRefused: that cannot be read. LedgerBusy: code LOCKED, others make a log in this directory, and took too
                long. Else as `exists` and `BudgetLog.open`.
        """
        with self._alone():
            made = None if self.exists else self._create(plan, references, salt, epsilon, previous)
        log = BudgetLog.open(self.log) if made is None else made  # one that is there has been made: it may take its time
        try:
            if made is None:
                self._require(log, plan, references, salt)
                self._signer(log)  # nothing is paid where it could not be signed at the end
        except BaseException:
            log.close()
            raise
        return log

    def admit(self, log: BudgetLog, references: References, spent: SpentRegistry | None = None) -> References:
        """Admits attested references to a log, each with what was signed, and returns those that may pay in it; the owner's own
        as they are.

        Guarantee: none that was withdrawn in the log is admitted or returned, and each that is returned stands in the log.
        Whom the log refuses is left out, by reason, and nobody else with it.

        Args:
            spent: in the ledgers that the log counts; needed where it counts any and somebody new is to be admitted.

        Raises:
            ConfigError: code REFERENCES, none is left. Else as `BudgetLog.admit`.
        """
        if references.rule is None:
            return references
        log.refresh()
        references = references.leaving({one.hex(): "WITHDRAWN" for one in log.state.withdrawn})
        refused = log.admit(references.attestations, spent=spent, shares=references.shares).refused
        return references.leaving({account.hex(): str(error.code) for account, error in refused.items()})

    def close(self, log: BudgetLog, directory: Path) -> None:
        """Signs what the log holds, and writes an export of it in place of an earlier one.

        Raises:
            KeyRefused: the key cannot be read. Else as `BudgetLog.close_epoch` and `export_budget`.
        """
        log.close_epoch(self._signer(log))
        made = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}")
        export_budget(log, made)
        if directory.exists():
            old = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.old")
            directory.rename(old)
            made.rename(directory)
            _remove(old)
        else:
            made.rename(directory)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other processes that share this place from opening the log while it is made, or making it at the same time: one
        would take the other's mark away. Waits for them, though not for ever: whoever may read the directory can hold it.

        Raises:
            LedgerBusy: code LOCKED. StorageFailed: code IO, the directory cannot be opened or held.
        """
        self.log.make_state_directory()
        deadline = time.monotonic() + ALONE_SECONDS
        try:
            directory = os.open(self.log.directory, os.O_RDONLY)
        except OSError as error:
            sentence = f"cannot open {self.log.directory}: {error.strerror or error}"
            raise StorageFailed("IO", f"{sentence}; mend the directory or its rights") from error
        try:
            while not _held(directory, self.log.directory):
                if time.monotonic() > deadline:
                    sentence = f"another process has held the directory {self.log.directory} for {ALONE_SECONDS} s"
                    raise LedgerBusy("LOCKED", f"{sentence}, as who makes a budget log there does; end what hangs, ask again")
                time.sleep(_PAUSE)
            yield
        finally:
            os.close(directory)

    def _create(
        self, plan: Plan, references: References, salt: bytes, epsilon: float | None, previous: Sequence[Previous]
    ) -> BudgetLog:
        delta = math.floor(plan.delta * PICO)
        rule = None if references.rule is None else references.rule.generation
        if rule is None:
            if epsilon is None:
                raise ConfigError("EPSILON", "a new budget has a cap: give its epsilon")
            cap = math.floor(epsilon * MICRO)
        else:
            most = max(one.max_rho_nano for one in references.rules)
            cap = math.ceil(epsilon_of_rho(most / NANO, delta / PICO) * MICRO) + 1
        if not self.key.exists():
            save_private_key(self.key, generate(), None)
        signer = NoteSigner(f"generate/{secrets.token_hex(8)}", load_private_key(self.key))
        # A contribution that pays for one text has reached every threshold: nobody is told of each.
        caps, mechanisms = {payer(plan): (cap, delta)}, [_mechanism(plan, salt if rule is None else None)]
        over = None if rule is None else OverRuns(tuple(previous), references.limits)
        spec = BudgetSpec(caps=caps, mechanisms=mechanisms, thresholds=(), generation=references.rules, over_runs=over)
        log = BudgetLog.create(self.log, spec, signer)
        atomic_write(self.public, f"{signer.vkey}\n".encode())
        return log

    def _signer(self, log: BudgetLog) -> NoteSigner:
        if not self.key.is_file():
            raise ConfigError("BUDGET", f"the key of {self.log.shown} is not at {self.key}; name it (--budget-key)")
        found = NoteSigner(log.header.origin, load_private_key(self.key))
        if found.vkey != log.header.log_vkey:
            raise ConfigError("BUDGET", f"{self.key} is not the key of {self.log.shown}; name that one (--budget-key)")
        return found

    def _require(self, log: BudgetLog, plan: Plan, references: References, salt: bytes) -> None:
        known = log.header.mechanism(NAME)
        if known is None or log.header.cap(payer(plan)) is None:
            whom = "the corpus" if payer(plan) == CORPUS.kind else "contributions"
            lacks = f"no cap for {whom}" if known is not None else f"no mechanism {NAME}"
            raise ConfigError("BUDGET", f"{self.log.shown} has {lacks}; name a log that 'dptrain generate' made, or a new file")
        if not pinned(relation(plan.adjacency, plan.records), known):
            sentence = f"{self.log.shown} was not made for --adjacency {plan.adjacency} --records {plan.records}"
            raise ConfigError("BUDGET", f"{sentence} (its header: {known.parameters:.300}); what it spent has no sum with that")
        if references.rule is not None:
            if references.signed_rule not in log.header.generation:
                sentence = f"{self.log.shown} does not have the generation rule of class {references.rule.name} of this policy"
                how = "a rule stands in the header of a log, so another policy needs a log of its own (--budget)"
                told = "which knows nothing of what was spent here: that these contributions spend in one alone is your word"
                raise ConfigError("BUDGET", f"{sentence}; {how}, {told}")
            if set(references.limits) - set(() if log.header.over_runs is None else log.header.over_runs.limits):
                sentence = f"{self.log.shown} does not have the limits over all runs that the policy has for its classes"
                raise ConfigError("BUDGET", f"{sentence}; begin another log (--budget)")
        elif log.header.generation:
            sentence = f"{self.log.shown} is for contributions that were signed for generation"
            raise ConfigError("BUDGET", f"{sentence}, and your own were not; begin another log for them")
        elif plan.adjacency != ADJACENCY and not pinned(pin(salt), known):
            sentence = f"{self.log.shown} was made for another salt than {self.salt_file} holds, or for none"
            raise ResumeRefused("SALT", f"{sentence}: ids would be units that have spent nothing; restore that salt")


def payer(plan: Plan) -> str:
    """Returns the kind of unit that pays for a text: the corpus where references are retrieved, else each contribution."""
    return CORPUS.kind if plan.adjacency == ADJACENCY else CONTRIBUTION


def cap_of(plan: Plan, references: References | None, epsilon: float | None) -> int:
    """Returns the most that a contribution, or the corpus, may spend in a new log of this plan, in 1e-9 of rho."""
    rule = None if references is None or references.rule is None else references.rule.generation
    if rule is not None:
        return rule.max_rho_nano
    return cap_nano(math.floor((epsilon or 0.0) * MICRO), math.floor(plan.delta * PICO))


def _mechanism(plan: Plan, salt: bytes | None) -> Mechanism:
    salt = None if plan.adjacency == ADJACENCY else salt
    return mechanism(salt, adjacency=plan.adjacency, records=plan.records)


def _held(directory: int, path: Path) -> bool:
    """Tells whether this process holds a directory now; raises StorageFailed, code IO, where it cannot be held."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StorageFailed("IO", f"cannot lock {path}: {error.strerror or error}; mend the disk") from error
    return True


def _made_whole(path: Path, data: bytes) -> bool:
    """Makes a file for its owner alone, which appears whole and synced; returns False, and changes none, where one is there."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(aside, path)  # unlike a rename, it replaces nothing
    except FileExistsError:
        return False
    finally:
        with suppress(OSError):
            os.unlink(aside)
    sync_directory(path.parent)
    return True


def _remove(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()
