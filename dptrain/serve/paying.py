"""Pays for answers from the budget log: reserves before the model is called, settles what was computed, tells the officer.

What costs is a release of a state. A token that is computed from released states and public weights costs nothing more
(post-processing), and an answer of an artifact alone costs nothing of the query's budget: its epsilon was spent in training.
"""

import logging
import math
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from attest.files import atomic_write
from attest.fixed_point import MICRO, PICO
from attest.keys import generate, load_private_key, save_private_key
from dptrain.errors import ConfigError
from dptrain.inference.gaussian import MOST_MU, Worth, sensitivity_of, sigma_analytic
from dptrain.inference.release import Answer, GaussianRelease
from dptrain.serve.config import Budgeted, ServeConfig
from dptrain.serve.generations.sources import make_salts, mechanism_of, over_runs_of, rules_of
from dptrain.serve.wire import Refused
from ledger.accountants.gaussian import epsilon_of_mu
from ledger.budget import Beside, Header, Mechanism, Notice, Unit
from ledger.budget.export import export_budget
from ledger.budget.leaves import CONTRIBUTION
from ledger.budget.log import Balance, BudgetLog, BudgetSpec, Reservation
from ledger.budget.notices import told, webhook
from ledger.errors import LedgerError, LedgerWrongRun
from ledger.note import NoteSigner
from ledger.storage.place import Place

LOG = logging.getLogger("dptrain.serve")

GAUSSIAN: Final = "gaussian"
"""Name of the mechanism in the header of the log."""


@dataclass(frozen=True)
class Meter:
    """Reserves for one unit.

    Guarantee: `reserve` returns only when the reservation is durable, and the budget of the unit, and that of the unit above a
    session, holds it.
    """

    log: BudgetLog
    unit: Unit

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Reservation:
        """Reserves. ``mechanism`` is in words what the header has a name for; its noise is in the charge."""
        return self.log.reserve(self.unit, GAUSSIAN, releases, rho_nano=nano_rho)


class Releases:
    """Makes the releases of answers, under the parameters of the server's file.

    With ``preset`` or ``sigma`` each release has that noise. With ``epsilon`` alone it is that of one answer, whatever its
    number of tokens, unless the request asks for another up to ``max_epsilon``.
    """

    def __init__(self, config: ServeConfig) -> None:
        """Raises ConfigError or AccountantError: as `parameters_of`."""
        self.parameters = config.parameters
        self.fixed = config.fixed
        self.rank_space = config.release.get("space", "state") == "rank"
        self.shrink = float(config.release.get("shrink", 1.0))
        self.most = float(config.release.get("max_epsilon", math.inf))
        self._made = lru_cache(maxsize=4096)(self._make)

    @property
    def statement(self) -> str:
        """Says at start what a release is worth."""
        if self.fixed:
            return self.parameters.statement
        asked = self.parameters
        return f"each answer has epsilon {asked.epsilon:g} unless it asks for another, at delta {asked.delta:g}"

    def of(self, tokens: int, epsilon: float | None) -> GaussianRelease:
        """Returns what makes the releases of an answer.

        Args:
            tokens: of the answer: releases. epsilon: what the request asks for.

        Raises:
            Refused: 400, code EPSILON, the noise is fixed here, or the epsilon is above the most of an answer.
            AccountantError: as `GaussianRelease`.
        """
        if epsilon is not None and self.fixed:
            sentence = "noise is fixed by the server's file, so a request has no epsilon"
            raise Refused(400, "invalid_request_error", "EPSILON", f"{sentence}; leave it out")
        if epsilon is not None and epsilon > self.most:
            sentence = f"epsilon is {epsilon:g}, an answer has at most {self.most:g} here"
            raise Refused(400, "invalid_request_error", "EPSILON", f"{sentence}; ask for less")
        return self._made(tokens, epsilon)

    def largest(self, nano_rho: int) -> float:
        """Returns the epsilon of one answer that costs about so much, as costs are rounded up for each release; 0 for none."""
        mu = math.sqrt(2 * max(0, nano_rho) / 1e9)
        worth = 0.0 if mu == 0.0 else epsilon_of_mu(min(mu, MOST_MU), self.parameters.delta)
        return min(self.most, math.floor(worth * 1e4) / 1e4)

    def one(self, release: GaussianRelease) -> Worth:
        """Returns what one of the releases of an answer is worth by itself."""
        return _single(release.worth.clip, release.worth.sigma, release.worth.delta, release.worth.adjacency)

    def _make(self, tokens: int, epsilon: float | None) -> GaussianRelease:
        asked = self.parameters
        if self.fixed:
            sigma = asked.sigma
        else:
            wanted = asked.epsilon if epsilon is None else epsilon
            assert wanted is not None
            sigma = sigma_analytic(wanted, asked.delta, sensitivity_of(asked.clip, asked.adjacency), tokens)
        made = GaussianRelease(asked.clip, adjacency=asked.adjacency, delta=asked.delta, sigma=sigma, tokens=tokens)
        made.worth.sentence  # noqa: B018 - is said with each answer, and computed once
        return made


@lru_cache(maxsize=4096)
def _single(clip: float, sigma: float, delta: float, adjacency: str) -> Worth:
    return Worth(clip, sigma, delta, 1, adjacency)


def privacy_of(answer: Answer, one: Worth) -> dict[str, Any]:
    """Returns what an answer says of its releases, as JSON. ``one``: what one release is worth."""
    worth, receipt = answer.worth, answer.receipt
    return {
        "statement": worth.sentence,
        "one_release": one.sentence,
        "epsilon": worth.epsilon,
        "delta": worth.delta,
        "adjacency": worth.adjacency,
        "clip": worth.clip,
        "sigma": worth.sigma,
        "releases": worth.releases,
        "nano_rho": worth.releases * worth.nano_rho,
        "leaf": receipt.seq if isinstance(receipt, Reservation) else None,
    }


class Till:
    """Keeps the budget log open for a server: pays, settles, closes epochs and brings notices to the privacy officer."""

    def __init__(self, table: Budgeted) -> None:
        """Opens the log.

        Raises:
            LedgerError, KeyRefused: as `BudgetLog.open`; code WRONG_KEY, the key of the file is not that of the log.
            ConfigError: code CAPS, the file has others.
        """
        self.log = BudgetLog.open(Place.of(table.log, table.state))
        self._table = table
        try:
            self._signer = _signer(table.key, self.log.header)
            self._send = webhook(self.log.header, table.webhook) if table.webhook else self._say
            self._check_caps()
        except BaseException:
            self.log.close()
            raise
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="budget", daemon=True)
        self._thread.start()

    def meter(self, unit: Unit, session: str | None) -> Meter:
        """Returns what reserves for a unit, or for a session under it.

        Raises:
            Refused: 400, code SESSION, sessions have no cap here.
        """
        if session is None:
            return Meter(self.log, unit)
        if self.log.header.cap("session") is None:
            raise Refused(400, "invalid_request_error", "SESSION", "sessions have no cap in this budget; leave session out")
        return Meter(self.log, Unit("session", session, unit))

    def settle(self, answer: Answer) -> None:
        """Ends a reservation: at nothing if no state was released, and else at all that was reserved.

        Guarantee: what is freed tells nothing of a state. Where a text ends follows from states in clear, which choose the
        tokens; so an answer that began is spent whole.
        """
        receipt = answer.receipt
        assert isinstance(receipt, Reservation)
        self.log.settle_later(receipt, answer.worth.releases if answer.made else 0)
        self._wake.set()

    def wake(self) -> None:
        """Has what was settled written soon."""
        self._wake.set()

    def balance(self, unit: Unit) -> Balance:
        """Returns what a unit has spent."""
        return self.log.balance(unit)

    def close(self) -> None:
        """Closes an epoch, and the log."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=30)
        try:
            self.log.close_epoch(self._signer)
        finally:
            self.log.close()

    def _check_caps(self) -> None:
        header = self.log.header
        stated = {cap.unit: (cap.epsilon_micro, cap.delta_pico) for cap in header.caps}
        asked = {kind: _pair(cap.epsilon, cap.delta) for kind, cap in self._table.caps.items()}
        if stated != asked:
            sentence = f"the budget log has the caps {stated}, [budget.caps] says {asked} (epsilon in 1e-6, delta in 1e-12)"
            raise ConfigError("CAPS", f"{sentence}; a log keeps its caps: set those, or begin another log for other units")

    def _keep(self) -> None:
        """Brings notices at once, writes what was settled within a second or so, and closes epochs when it is time."""
        looked = closed = time.monotonic()
        signed, last = 0, None
        while not self._stop.is_set():
            self._wake.wait(timeout=min(1.0, self._table.epoch_seconds))
            self._wake.clear()
            try:
                if self.log.state.undelivered:
                    self.log.deliver(self._send)
                if time.monotonic() >= looked + 1.0:
                    looked = time.monotonic()
                    self.log.refresh()
                if time.monotonic() >= closed + self._table.epoch_seconds and self.log.size > signed:
                    closed = time.monotonic()
                    self.log.close_epoch(self._signer)
                    signed = self.log.size
            except LedgerError as error:  # tried again; nothing is lost, since notices lie in the log
                if error.code != last:
                    LOG.warning("budget: %s", error)
                last = error.code
            else:
                last = None

    def _say(self, notice: Notice) -> None:
        if notice.unit != CONTRIBUTION:  # of single references no line stands in a log
            LOG.warning("budget notice: %s", told(self.log.header, notice)["sentence"])


def _signer(path: Path, header: Header) -> NoteSigner:
    found = NoteSigner(header.origin, load_private_key(path))
    if found.vkey != header.log_vkey:
        sentence = f"{path} is another key than that of the log: {header.log_vkey}"
        raise LedgerWrongRun("WRONG_KEY", f"{sentence}; give that one, for with no other can the log be signed")
    return found


def _pair(epsilon: float, delta: float) -> tuple[int, int]:
    return round(epsilon * MICRO), round(delta * PICO)


def export_log(config: ServeConfig, directory: Path) -> tuple[int, str]:
    """Closes an epoch, signs it, and writes an export of the budget log, which `dptrain ledger verify` reads; a server may run.

    Returns:
        Number of leaves, and the verifier key.

    Raises:
        ConfigError: code SERVE_KEY. ExportRefused: code EXISTS. LedgerError: as `BudgetLog.open`.
    """
    table = _table_of(config)
    with BudgetLog.open(Place.of(table.log, table.state)) as log:
        log.close_epoch(_signer(table.key, log.header))
        export_budget(log, directory)
        return log.size, log.header.log_vkey


def _table_of(config: ServeConfig) -> Budgeted:
    if config.budget is None:
        raise ConfigError("SERVE_KEY", "the server's file has no table [budget]; add one with log, key and caps")
    return config.budget


def create_log(config: ServeConfig, beside: Beside | None = None) -> BudgetLog:
    """Creates the budget log of a server's file, and its key where there is none; the public one lies beside it (.pub).

    Args:
        beside: checkpoint of the training ledger.

    Raises:
        ConfigError: code SERVE_KEY, the file has no [budget]. LedgerError: code EXISTS. AccountantError: a cap is too small.
    """
    table = _table_of(config)
    if not table.key.exists():
        save_private_key(table.key, generate(), None)
    make_salts(config)
    texts, rules = mechanism_of(config), rules_of(config)
    words = "Gaussian noise on clipped states, rounded to a lattice; clip norm and noise of a request are in its charge"
    spec = BudgetSpec(
        caps={kind: _pair(cap.epsilon, cap.delta) for kind, cap in table.caps.items()},
        mechanisms=[Mechanism(GAUSSIAN, 1, True, words), *([] if texts is None else [texts])],
        thresholds=sorted(table.thresholds),
        beside=() if beside is None else (beside,),
        generation=rules,
        over_runs=over_runs_of(config),
    )
    place = Place.of(table.log, table.state)
    if place.file is not None and Path(place.file).exists():
        raise LedgerError("EXISTS", f"{table.log} is there already; a budget is made once, and keeps what was spent")
    signer = NoteSigner(f"{config.server.name}/budget", load_private_key(table.key))
    made = BudgetLog.create(Place.of(table.log, table.state), spec, signer)
    atomic_write(table.key.with_suffix(".pub"), f"{signer.vkey}\n".encode())
    return made


