"""Applies an adapter for clients that run the base model themselves: to noised states that are paid for, or to encrypted ones.

Split mode: the client pays for the states of one answer here, adds the noise itself, and sends what it released. What protects
it is its own noise; the server counts, and cannot see whether noise was added. Encrypted mode: the client sends ciphertexts,
and nothing is released, so nothing is paid.
"""

import logging
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dptrain.inference.release import GaussianRelease
from dptrain.serve.access import Client
from dptrain.serve.wire import Refused
from ledger.budget.log import BudgetLog, Reservation
from ledger.errors import LedgerError

if TYPE_CHECKING:
    from dptrain.inference.he.adapter import Adapter

LOG = logging.getLogger("dptrain.serve")

IDLE_SECONDS: Final = 600.0
"""An answer in split mode that gets no state for so long is ended."""

KEYS_SECONDS: Final = 3600.0
"""Keys of a client that sends no state for so long make room for those of another."""

MOST_KEYS: Final = 20_000_000
"""Bytes of a body that brings keys."""


@dataclass(frozen=True, eq=False)
class LastAdapter:
    """Is an adapter of the head: a LoRA pair that reads the last state and adds to the scores.

    Attributes:
        name: of the artifact. A: shape (R, D). B: shape (V, R). scaling: on the product.
    """

    name: str
    A: np.ndarray
    B: np.ndarray
    scaling: float

    def delta(self, state: np.ndarray) -> np.ndarray:
        """Returns what it adds to the scores, shape (D,) to (V,)."""
        return self.expand(self.A @ state)

    def expand(self, z: np.ndarray) -> np.ndarray:
        """Returns what the coordinates of a state add to the scores, shape (R,) to (V,)."""
        return self.scaling * (self.B @ z)

    def encryptable(self) -> "Adapter":
        """Returns it for products under encryption. Raises ConfigError: as `dptrain.inference.he.adapter.Adapter`."""
        from dptrain.inference.he.adapter import Adapter

        return Adapter(self.A, self.B, self.scaling)


@dataclass
class SplitAnswer:
    """Is one answer of a client that adds the noise itself.

    Attributes:
        asked: by whom, of which class, by which rights. left: states that are paid for and not sent.
    """

    asked: tuple[Client, str, str | None]
    adapter: LastAdapter
    reservation: Reservation
    left: int
    seen: float


class Splits:
    """Keeps the answers of split mode: each state that arrives is counted against what was reserved.

    Guarantee: no more states of an answer are taken than were reserved, by no client but the one that paid.
    """

    def __init__(self, log: BudgetLog, most: int = 4096) -> None:
        """``most``: answers at a time."""
        self._log, self._most = log, most
        self._held: dict[str, SplitAnswer] = {}
        self._lock = threading.Lock()

    def start(self, asked: tuple[Client, str, str | None], adapter: LastAdapter, reservation: Reservation) -> str:
        """Begins an answer that is paid for, and returns its id."""
        identity = secrets.token_hex(16)
        with self._lock:
            self._held[identity] = SplitAnswer(asked, adapter, reservation, reservation.releases, time.monotonic())
        return identity

    def require_room(self) -> None:
        """Raises Refused: 503, code BUSY, before anything is paid."""
        self.sweep()
        if len(self._held) >= self._most:
            raise Refused(503, "server_busy", "BUSY", f"{self._most} split answers are open, the most there may be", after=5)

    def of(self, identity: str, client: Client) -> SplitAnswer:
        """Returns an answer of a client. Raises Refused: 404, code ANSWER."""
        found = self._held.get(identity)
        if found is None or found.asked[0].name != client.name:
            sentence = "there is no such answer of yours; pay for one by POST /v1/split"
            raise Refused(404, "invalid_request_error", "ANSWER", sentence)
        return found

    def take(self, identity: str, client: Client) -> SplitAnswer:
        """Counts a state. Raises Refused: 404, code ANSWER; 403, code NOT_RESERVED, all that were paid for came."""
        with self._lock:
            found = self.of(identity, client)
            if found.left < 1:
                sentence = f"all {found.reservation.releases} states of this answer came, and no more are paid for"
                raise Refused(403, "not_paid", "NOT_RESERVED", f"{sentence}; pay for another answer")
            if found.left == found.reservation.releases:  # it began, and is spent whole; its end tells nothing more
                self._log.settle_later(found.reservation, found.reservation.releases)
            found.left -= 1
            found.seen = time.monotonic()
            return found

    def end(self, identity: str, client: Client | None = None) -> int:
        """Ends an answer; returns how many states came. Raises Refused: 404, code ANSWER.

        If none came, all are freed; else none is: how many a client sends may follow from states in clear.
        """
        with self._lock:
            found = self._held.get(identity)
            if found is None or (client is not None and found.asked[0].name != client.name):
                raise Refused(404, "invalid_request_error", "ANSWER", "there is no such answer of yours")
            del self._held[identity]
        came = found.reservation.releases - found.left
        if not came:
            self._log.settle_later(found.reservation, 0)
        return came

    def drop(self, artifacts: set[str]) -> None:
        """Ends answers whose adapters were withdrawn, whatever the budget does."""
        for identity in [identity for identity, each in list(self._held.items()) if each.adapter.name in artifacts]:
            try:
                self.end(identity)
            except Refused:
                continue
            except LedgerError as error:
                LOG.error("a split answer could not be settled, its reservation stays whole: %s", error.code)

    def sweep(self, idle: float = IDLE_SECONDS) -> None:
        """Ends answers whose clients were silent for so many seconds; 0 ends all."""
        now = time.monotonic()
        for identity in [identity for identity, each in list(self._held.items()) if now - each.seen >= idle]:
            with suppress(Refused):
                self.end(identity)


def require_encryptable(release: GaussianRelease, numbers: int) -> None:
    """Refuses noise under which a state could be too long to be encrypted, before it is paid.

    The norm of the noise is above ``sigma (sqrt(numbers) + 9)`` with a probability below 1e-17.

    Raises:
        Refused: 400, code TOO_LARGE.
    """
    from dptrain.inference.he.scheme import NORM

    longest = release.worth.clip + release.worth.sigma * (numbers**0.5 + 9.0)
    if longest > NORM:
        sentence = f"a state with noise may be {longest:.4g} long, at most {NORM:g} is encrypted"
        raise Refused(400, "invalid_request_error", "TOO_LARGE", f"{sentence}; ask for a larger epsilon, or fewer tokens")


def terms(release: GaussianRelease, adapter: LastAdapter, *, rank_space: bool, shrink: float) -> dict[str, Any]:
    """Returns what a client needs to release states of one answer itself."""
    worth = release.worth
    return {
        "clip": worth.clip,
        "sigma": worth.sigma,
        "adjacency": worth.adjacency,
        "delta": worth.delta,
        "epsilon": worth.epsilon,
        "statement": worth.sentence,
        "releases": worth.releases,
        "space": "rank" if rank_space else "state",
        "numbers": adapter.A.shape[0] if rank_space else adapter.A.shape[1],
        "scores": adapter.B.shape[0],
        "shrink": shrink,
    }


def numbers_of(body: bytes, count: int) -> np.ndarray:
    """Reads a state: ``count`` numbers of 4 bytes, little-endian.

    Raises:
        Refused: 400, code STATE, another length, or a number that is not finite.
    """
    if len(body) != 4 * count:
        sentence = f"a state has {count} numbers of 4 bytes, little-endian, got {len(body)} bytes"
        raise Refused(400, "invalid_request_error", "STATE", f"{sentence}; send what was released")
    found = np.frombuffer(body, "<f4").astype(np.float64)
    if not np.isfinite(found).all():
        raise Refused(400, "invalid_request_error", "STATE", "a state has numbers that are not finite; send what was released")
    return found


class Encrypted:
    """Applies adapters under encryption: keys by client, products one at a time on each of a few threads."""

    def __init__(self, sessions: int, threads: int) -> None:
        """Raises ConfigError: code NO_TENSEAL, the extra ``he`` is missing."""
        from dptrain.inference.he.server import AdapterServer

        self.server: AdapterServer = AdapterServer(sessions)
        self.own: AdapterServer = AdapterServer()  # for keys of this process, which no client takes the place of
        self._most, self._seen = sessions, dict[str, float]()
        self._made: dict[str, Adapter] = {}
        self._turns = threading.BoundedSemaphore(threads)

    def register(self, client: Client, bundle: bytes) -> None:
        """Takes the public keys of a client, in place of those it had, and of clients that were silent for an hour.

        Raises:
            EncryptionRefused: as `register_keys`.
        """
        now = time.monotonic()
        for name, seen in list(self._seen.items()):
            if now - seen >= KEYS_SECONDS and len(self._seen) >= self._most:
                self._forget(name)
        self.server.register_keys(client.name, bundle, replace=True)
        self._seen[client.name] = now

    def forget(self, client: Client) -> None:
        """Lets the keys of a client go."""
        self._forget(client.name)

    def _forget(self, name: str) -> None:
        self.server.forget(name)
        self._seen.pop(name, None)

    def apply(self, session: str, adapter: LastAdapter, state: bytes, *, own: bool = False) -> bytes:
        """Returns the encrypted answer under the keys of a session. Raises EncryptionRefused: as `AdapterServer.apply`.

        Args:
            own: the session is one of this process.
        """
        made = self._made.get(adapter.name)
        if made is None:
            made = self._made.setdefault(adapter.name, adapter.encryptable())
        with self._turns:
            found = (self.own if own else self.server).apply(session, made, state)
        if not own:
            self._seen[session] = time.monotonic()
        return found

    def drop(self, artifact: str) -> None:
        """Lets an adapter go that is served no more."""
        self._made.pop(artifact, None)
