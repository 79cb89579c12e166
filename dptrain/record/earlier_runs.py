"""Reads the earlier runs that a new run counts, from their ledgers or from exports of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attest.schema.cards import card_of
from dptrain.errors import ConfigError, ResumeRefused
from ledger.audit.verify import earlier_run
from ledger.errors import LeafRefused, LedgerClosed
from ledger.leaves import Previous
from ledger.leaves.header import COMPROMISED, SPENT
from ledger.log import Ledger
from ledger.log.pinned import Pin
from ledger.replay.earlier_runs import Earlier as EarlierRun
from ledger.replay.earlier_runs import SpentRegistry, left_out

Where = str | os.PathLike[str]
"""A file, or a directory."""


@dataclass(frozen=True)
class Earlier:
    """Names closed runs over the corpus, which count in every limit over runs.

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
        """Reads every earlier run, checks each of them in full, and returns what was spent in them.

        Args:
            cited: what the header of a resumed run cites; None for a new run.
            owner_key: raw public key of the corpus owner, whose policies they must have.

        Raises:
            LedgerClosed: code EARLIER_OPEN, an earlier run is not closed, so that more could be charged to it unseen.
            LeafRefused: code EARLIER, the audit of an export FAILED; EARLIER_NOT_PRIVATE, a run with a fixed test key;
                EARLIER_UNCITED, one of them counted a ledger that is not named.
            LedgerBehind, LedgerForked: a ledger or export is not what a resumed run once counted.
            ResumeRefused: a resumed run cites other ledgers than these.
            ConfigError: code EARLIER_KEY, an export and no key to audit it with.
        """
        named = [(ledger, SPENT) for ledger in self.ledgers] + ([(self.replaces, COMPROMISED)] if self.replaces else [])
        runs = [self._read(ledger, reason, cited, owner_key) for ledger, reason in named]
        if cited is not None and runs and {run.cited.header_digest for run in runs} != {item.header_digest for item in cited}:
            raise ResumeRefused(
                "ANOTHER_RUN", "the run was started with other earlier ledgers; name those that it counts, or none"
            )
        for origin, missing in left_out(runs):
            raise LeafRefused("EARLIER_UNCITED", f"{origin} counted what was spent in {missing.origin}; name that ledger too")
        return SpentRegistry(runs)

    def _read(self, ledger: Where, reason: str, cited: tuple[Previous, ...] | None, owner_key: bytes) -> EarlierRun:
        if not os.fspath(ledger).startswith(("postgresql:", "postgres:")) and Path(ledger).is_dir():
            return self._audited(Path(ledger), reason, cited, owner_key)
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
        if not self.keys:
            raise ConfigError(
                "EARLIER_KEY",
                f"{export} is an export, and nothing says under which key to audit it; give earlier_keys, the verifier keys of "
                "earlier ledgers (their .pub files)",
            )
        keys = [vkey for key in self.keys for vkey in _verifier_keys(os.fspath(key))]
        return earlier_run(export, keys, owner_key=owner_key, reason=reason, counted=cited or ())


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
