"""Reads what a new run counts, earlier runs and budgets of texts, from their ledgers or from exports of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attest.schema.cards import card_of
from dptrain.errors import ConfigError, ResumeRefused
from ledger.audit.verify import earlier_run
from ledger.budget.audit import holds_budget
from ledger.budget.audit.given import earlier_texts, require_counted
from ledger.budget.counted import counted_as
from ledger.budget.leaves import Withdrawn, decode_leaf
from ledger.budget.log import BudgetLog, is_log
from ledger.errors import LeafRefused, LedgerClosed, LedgerError
from ledger.leaves import Previous
from ledger.leaves.header import COMPROMISED, SPENT
from ledger.log import Ledger
from ledger.log.pinned import Pin
from ledger.merkle import Frontier
from ledger.replay.earlier_runs import Earlier as EarlierRun
from ledger.replay.earlier_runs import SpentRegistry, left_out
from ledger.replay.earlier_texts import EarlierTexts
from ledger.storage.place import Place

Where = str | os.PathLike[str]
"""A file, or a directory."""


@dataclass(frozen=True)
class Earlier:
    """Names closed runs over the corpus, and budget logs by which its contributions make texts: all count in every limit over
    runs, a budget with all that its rules allow, for it may go on.

    Attributes:
        ledgers: their ledgers, or directories of their exports, which are audited under ``keys``.
        replaces: one whose key was lost to others, which this run continues, likewise.
        keys: verifier keys, or .pub files that hold them, from a place that the exporter does not control.

    Raises:
        ConfigError: code EARLIER, one name instead of a list.
    """

    ledgers: Sequence[Where] = ()
    replaces: Where | None = None
    keys: Sequence[Where] = ()

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        for name in ("ledgers", "keys"):
            found = getattr(self, name)
            if isinstance(found, (str, os.PathLike)):
                raise ConfigError("EARLIER", f"{name} is {str(found)!r}, expected a list of them: [{str(found)!r}]")

    def registry(self, cited: tuple[Previous, ...] | None, owner_key: bytes) -> SpentRegistry:
        """Reads every earlier run and budget, checks each of them in full, and returns what was spent in them.

        Args:
            cited: what the header of a resumed run cites; None for a new run.
            owner_key: raw public key of the corpus owner, whose policies they must have.

        Raises:
            LedgerClosed, LeafRefused: code EARLIER_OPEN, an earlier run is not closed, so that more could be charged to it
                unseen, and none of the others says that its key was lost.
            LeafRefused: code EARLIER, the audit of an export FAILED; EARLIER_NOT_PRIVATE, a run with a fixed test key;
                EARLIER_UNCITED, one of them counted a ledger that is not named; RULE, a budget without rules of generation,
                of which nothing can be counted.
            LedgerBehind, LedgerForked: a ledger or export is not what a resumed run once counted.
            ResumeRefused: a resumed run cites other ledgers than these.
            ConfigError: code EARLIER_KEY, an export and no key to audit it with; EARLIER, a budget as what this run replaces.
        """
        named = [(ledger, SPENT) for ledger in self.ledgers] + ([(self.replaces, COMPROMISED)] if self.replaces else [])
        runs, texts, still_open = list[EarlierRun](), list[EarlierTexts](), list[tuple[Where, LedgerError]]()
        for ledger, reason in named:
            try:
                found = self._read(ledger, reason, cited, owner_key)
            except (LedgerClosed, LeafRefused) as error:
                if error.code != "EARLIER_OPEN":
                    raise
                still_open.append((ledger, error))
                continue
            if isinstance(found, EarlierRun):
                runs.append(found)
            else:
                texts.append(found)
        lost = [before for one in (*runs, *texts) for before in one.previous or () if before.reason == COMPROMISED]
        runs += [self._lost(ledger, lost, owner_key, error) for ledger, error in still_open]
        counted = [*runs, *texts]
        digests = {one.cited.header_digest for one in counted}
        if cited is not None and counted and digests != {item.header_digest for item in cited}:
            raise ResumeRefused(
                "ANOTHER_RUN", "the run was started with other earlier ledgers; name those that it counts, or none"
            )
        for origin, missing in left_out(counted):
            raise LeafRefused("EARLIER_UNCITED", f"{origin} counted what was spent in {missing.origin}; name that ledger too")
        return SpentRegistry(runs, texts)

    def _lost(self, ledger: Where, lost: Sequence[Previous], owner_key: bytes, error: LedgerError) -> EarlierRun:
        """Returns a run that is open as another ledger that was named counts it, whose key it says was lost: with its whole
        plan. Raises ``error`` where none says that."""
        found = self._read(ledger, COMPROMISED, tuple(lost), owner_key)
        known = next((one for one in lost if one.header_digest == found.cited.header_digest), None)
        if known is None or not isinstance(found, EarlierRun):
            raise error
        return replace(found, cited=known)

    def _read(
        self, ledger: Where, reason: str, cited: tuple[Previous, ...] | None, owner_key: bytes
    ) -> EarlierRun | EarlierTexts:
        on_server = os.fspath(ledger).startswith(("postgresql:", "postgres:"))
        export = Path(ledger) if not on_server and Path(ledger).is_dir() else None
        if is_log(Place.of(os.fspath(ledger))) if export is None else holds_budget(export):
            if reason == COMPROMISED:
                sentence = f"{ledger} is a budget log, and a run replaces a run; name it among the earlier ledgers"
                raise ConfigError("EARLIER", sentence)
            return _log_of_texts(ledger, cited or ()) if export is None else self._audited_texts(export, cited, owner_key)
        if export is not None:
            return self._audited(export, reason, cited, owner_key)
        with Ledger.open(ledger, read_only=True, recompute=True) as log:
            if reason == SPENT and not log.finished:
                raise LedgerClosed(
                    "EARLIER_OPEN",
                    f"the run of {log.place.shown} is not closed, and what it charges later would not be counted",
                )
            if not log.header.private:
                raise LeafRefused(
                    "EARLIER_NOT_PRIVATE",
                    f"the run of {log.place.shown} used a fixed test key: it spent without bound, and no total with it means "
                    "anything",
                )
            for item in cited or ():
                if item.header_digest == log.header_digest:
                    log.check_pin(Pin(item.origin, item.size, item.root, item.header_digest))
            found = Previous(log.header.origin, log.size, log.root, log.header_digest, log.state.keys.current, reason)
            return EarlierRun(found, log.state, tuple(log.withdrawal_leaves()))

    def _audited(self, export: Path, reason: str, cited: tuple[Previous, ...] | None, owner_key: bytes) -> EarlierRun:
        """Returns the run of an export, audited as `dptrain ledger verify` does before anything of it is counted."""
        return earlier_run(export, self._keys_for(export), owner_key=owner_key, reason=reason, counted=cited or ())

    def _audited_texts(self, export: Path, cited: tuple[Previous, ...] | None, owner_key: bytes) -> EarlierTexts:
        """Returns the budget of an export, likewise."""
        return earlier_texts(export, self._keys_for(export), owner_key=owner_key, counted=cited or ())

    def _keys_for(self, export: Path) -> list[str]:
        if not self.keys:
            raise ConfigError(
                "EARLIER_KEY",
                f"{export} is an export, and nothing says under which key to audit it; give earlier_keys, the verifier keys of "
                "earlier ledgers (their .pub files)",
            )
        return [vkey for key in self.keys for vkey in _verifier_keys(os.fspath(key))]


def _log_of_texts(ledger: Where, cited: tuple[Previous, ...]) -> EarlierTexts:
    """Returns what a budget log lets contributions spend, from its database, which is added up again."""
    place = Place.of(os.fspath(ledger))
    with BudgetLog.open(place, read_only=True) as log:
        rows = log.rows(log.size)
        leaves = (decode_leaf(row.body) for row in rows if row.kind == Withdrawn.KIND)
        found = counted_as(log.state, log.root, [leaf for leaf in leaves if isinstance(leaf, Withdrawn)])

    def root_at(size: int) -> bytes:
        frontier = Frontier()
        frontier.extend(row.leaf_hash for row in rows[:size])
        return frontier.root()

    require_counted(found, cited, root_at, place.shown)
    return found


def _verifier_keys(text: str) -> list[str]:
    """Returns the verifier keys of a file, one a line, or the one that is given itself."""
    path = Path(text)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else [text]
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found or any(line.count("+") < 2 for line in found):
        raise ConfigError(
            "EARLIER_KEY",
            f"{text!r:.200} is no verifier key NAME+ID+BASE64 and no file of them; give the .pub file of the ledger",
        )
    return found
