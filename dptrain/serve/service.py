"""Answers requests: rights, limits, budget, and only then the model. What HTTP and WebSockets have in common.

Over 600 lines: the guarantee lies in the order of the steps of a request, for answers and texts alike.

Order of a request: (1) its client was authenticated; (2) its rate is within the limit; (3) the gate names an artifact that its
rights admit; (4) its prompt fits; (5) a place is free; (6) the budget holds all releases of the answer, durably; (7) the model
is called. Whatever is refused is refused before (7), and whatever fails in (1) to (5) before anything is charged. A text from
references goes the same way: its labels are held against public lists in place of (4), and its references pay.
"""

import asyncio
import base64
import binascii
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from dptrain.inference.release import Answer
from dptrain.serve.access import Access, Client, RateLimit
from dptrain.serve.adapters import Encrypted, LastAdapter, Splits, numbers_of, require_encryptable, terms
from dptrain.serve.artifacts import ADAPTER, BASE, Artifacts, open_gate
from dptrain.serve.config import ENCRYPTED, PLAIN, RELEASED, SPLIT, Generation, ServeConfig
from dptrain.serve.decoding import Decoding
from dptrain.serve.generations.drawing import Drawing
from dptrain.serve.generations.offered import Generations
from dptrain.serve.metrics import Metrics, accounts_told, admission_told, unit_told
from dptrain.serve.paying import Releases, Till, privacy_of
from dptrain.serve.scheduler import Piece, Scheduler, Stream
from dptrain.serve.wire import Asking, Generate, Refused, SplitStart
from ledger.budget import Unit
from ledger.budget.log import Reservation
from ledger.errors import LedgerError, ReleaseRefused
from ledger.serving import Admission

if TYPE_CHECKING:
    from dptrain.inference.he.client import HEKeys

LOG = logging.getLogger("dptrain.serve")

DEFAULT_TOKENS: Final = 64
"""Tokens of an answer whose request names no number, where the server's file allows as many."""


UNREAD_SECONDS: Final = 600.0
"""An answer that nobody has read to its end is judged by newer exports for so long after it was computed."""


@dataclass(eq=False)
class Running:
    """Is one answer that is under way.

    Attributes:
        identity: of the answer. privacy: what it says of rights, release and charge. asked: by whom, of which class, by which
            rights. times: of encryption, product and decryption, where states are encrypted. withdrawn: why it was ended, as
            its rights do not admit the artifact any more, or its references are not there; None while it was not. ended: when
            all of it was computed, None before.
    """

    identity: str
    privacy: dict[str, Any]
    began: float
    asked: tuple[Client, str, str | None]
    times: "Times | None" = None
    withdrawn: Refused | None = None
    ended: float | None = None
    stream: Stream = field(init=False)

    @property
    def forgotten(self) -> bool:
        """Tells whether it ended long ago and nobody read it to its end."""
        return self.ended is not None and time.monotonic() - self.ended > UNREAD_SECONDS

    @property
    def usage(self) -> dict[str, int]:
        """Counts tokens as OpenAI's answers do."""
        decoding = self.stream.decoding
        return {
            "prompt_tokens": decoding.prompt,
            "completion_tokens": decoding.text_tokens,
            "total_tokens": decoding.prompt + decoding.text_tokens,
        }

    def told(self) -> dict[str, Any]:
        """Returns what the answer says of privacy at its end."""
        return self.privacy if self.times is None else {**self.privacy, "times_ms": self.times.median}


class Times:
    """Collects the times of the three steps of encryption."""

    def __init__(self) -> None:
        self.encrypt: list[float] = []
        self.product: list[float] = []
        self.decrypt: list[float] = []

    @property
    def median(self) -> dict[str, float]:
        """Returns the median of each step in milliseconds."""
        steps = {"encrypt": self.encrypt, "product": self.product, "decrypt": self.decrypt}
        return {name: round(1e3 * float(np.median(found)), 3) for name, found in steps.items() if found}


@dataclass
class _Prepared:
    """Holds an answer that is paid for and not begun."""

    decoding: Decoding | Drawing
    privacy: dict[str, Any]
    reader: "_Reading | None" = None
    times: Times | None = None


class Service:
    """Is a server without its wire.

    Attributes:
        draining: whether it takes no more requests. unread: why files were not read again when that was asked for last.
    """

    def __init__(self, config: ServeConfig, *, encrypted_only: bool = False) -> None:
        """Opens gate, models and budget; closed by `close`.

        Args:
            encrypted_only: serve adapters to encrypted states alone; no base model is loaded, and no state in clear taken.

        Raises:
            ConfigError, ReleaseRefused, LedgerError: something is not as it must be; then nothing is served.
        """
        self.config, self.encrypted_only, self.draining = config, encrypted_only, False
        self.metrics, self.access = Metrics(), Access.load(config.tokens)
        self.rate, self.looks = (RateLimit(config.limits.requests_per_minute, 60.0) for _ in range(2))
        self.states = RateLimit(config.limits.adapter_states_per_hour, 3600.0)
        kept = {name: each for name, each in config.classes.items() if each.mode == ENCRYPTED or not encrypted_only}
        self.classes: Mapping[str, Generation] = kept
        offered = {} if encrypted_only else config.generations
        self.gate = open_gate(config, {**kept, **offered})
        self.artifacts = Artifacts(self.gate, config.gate.base)
        releasing = {RELEASED, SPLIT} & {each.mode for each in kept.values()}
        self.releases = Releases(config) if releasing else None
        self._load()
        self.till = Till(config.budget) if config.budget is not None and not encrypted_only else None
        self.splits = Splits(self.till.log) if self.till is not None else None
        self.generations: Generations | None = None
        if offered:
            assert self.till is not None, "a file with generations has a budget"
            try:
                self.generations = Generations(config, self.artifacts, self.till.log, self.metrics)
            except BaseException:
                self.till.close()
                raise
        encrypting = [each for each in kept.values() if each.mode == ENCRYPTED or each.encrypt]
        threads = config.server.threads
        self.encrypted = Encrypted(config.limits.key_sessions, threads) if encrypting else None
        self._own_keys: dict[int, HEKeys] = {}
        self._running: set[Running] = set()
        self._rounds = 0
        self.unread: str | None = None
        self._lock = threading.Lock()
        self.scheduler = Scheduler(0 if encrypted_only else threads, config.server.streams, config.server.waiting)
        if self.releases is not None:
            LOG.warning("%s", self.releases.statement)
        if self.generations is not None:
            self.generations.start()

    def _load(self) -> None:
        """Loads what the classes name and the gate would serve to anybody, so that the first request waits for nothing."""
        for each in self.classes.values():
            for name in each.artifacts:
                if name not in self.gate.artifacts:
                    continue
                if each.mode == PLAIN:
                    self.artifacts.model(name)
                elif name.startswith(ADAPTER):
                    self.artifacts.last(name)
            if each.mode == RELEASED:
                self.artifacts.model(BASE)
        for texts in () if self.encrypted_only else self.config.generations.values():
            self.artifacts.model(texts.artifact)

    # --------------------------------------------------------------------------------------------------------- requests

    def begin(
        self, client: Client, model: str, rights: str | None, *modes: str, counted: bool = True
    ) -> tuple[Generation, Admission]:
        """Judges who asks for what: steps 2 and 3. Returns the class and what the gate admits.

        Args:
            counted: whether it counts as a request of the client.

        Raises:
            Refused: 503, 429, 404, 403, 401 or 400. ReleaseRefused: by the gate.
        """
        self._require_turn(client, counted=counted)
        kind = self.classes.get(model)
        if kind is None:
            raise Refused(404, "invalid_request_error", "MODEL", "there is no such generation class; GET /v1/models lists them")
        if kind.mode not in modes:
            ways = {PLAIN: "/v1/completions", RELEASED: "/v1/completions", SPLIT: "/v1/split", ENCRYPTED: "/v1/he/lora"}
            sentence = f"class {model} is of mode {kind.mode}, which is asked by {ways[kind.mode]}"
            raise Refused(400, "invalid_request_error", "MODE", sentence)
        return kind, self._admitted(client, model, rights)

    def _require_turn(self, client: Client, *, counted: bool) -> None:
        if self.draining:
            raise Refused(503, "server_busy", "DRAINING", "this server ends; ask another one", after=1)
        if client.role != "client":
            raise Refused(403, "permission_error", "ROLE", "an operator's token asks for no text; use a client's")
        if counted:
            self.rate.take(client.name, "requests")

    def _admitted(self, client: Client, model: str, rights: str | None) -> Admission:
        client = self.access.present(client)
        if rights is None and client.rights is None:
            sentence = "this client has no rights of its own, and the request brings none"
            raise Refused(403, "rights_refused", "NO_RIGHTS", f"{sentence}; send the envelope in the header Dptrain-Rights")
        if rights is None:
            assert client.rights is not None
            return self.gate.admit(model, client.rights)
        try:
            envelope = base64.urlsafe_b64decode(rights.encode("ascii") + b"=" * (-len(rights) % 4))
        except (UnicodeEncodeError, binascii.Error, ValueError) as error:
            sentence = "the rights are not base64url; send the bytes of the file so"
            raise Refused(400, "invalid_request_error", "RIGHTS", sentence) from error
        return self.gate.admit(model, envelope, holder=client.name)

    async def answer(self, client: Client, request: Asking | Generate, rights: str | None) -> Running:
        """Begins an answer: all seven steps.

        Raises:
            Refused, ReleaseRefused, BudgetExhausted, and what the budget log raises.
        """
        began, rounds = time.monotonic(), self._rounds
        draws = isinstance(request, Generate)
        prepare: Any = self._drawn if draws else self._prepared
        prepared = await asyncio.to_thread(prepare, client, request, request.rights or rights)
        if not draws:
            self.metrics.before.observe(time.monotonic() - began)
        reader = prepared.reader
        asked = (client, request.model, request.rights or rights)
        identity = f"{'gen' if draws else 'cmpl'}-{secrets.token_hex(12)}"
        running = Running(identity, prepared.privacy, began, asked, prepared.times)
        self._running.difference_update([each for each in self._running if each.forgotten])
        self._running.add(running)

        def settle(decoding: Decoding | Drawing) -> None:
            running.ended = time.monotonic()
            if reader is not None:
                reader.settle()
            elif isinstance(decoding, Drawing):
                assert self.till is not None
                decoding.settle()
                self.till.wake()
                self.metrics.drawn.labels(request.model).inc(decoding.text_tokens)
            else:
                self.metrics.tokens.labels(request.model).inc(decoding.computed)
                self.metrics.whole.observe(running.ended - began)

        seconds = self.config.server.request_seconds
        running.stream = self.scheduler.start(prepared.decoding, settle, seconds, client.name)
        if rounds != self._rounds:  # the gate was refreshed after it had admitted this, perhaps before this was seen to run
            self._let_go()
            self._judge_again(running)
        return running

    def _prepared(self, client: Client, request: Asking, rights: str | None) -> "_Prepared":
        """Does steps 2 to 6 in a thread, and holds the place of the answer. Raises as `answer`."""
        kind, admission = self.begin(client, request.model, rights, PLAIN, RELEASED)
        most = self.config.server.max_tokens
        if request.max_tokens is not None and request.max_tokens > most:
            sentence = f"max_tokens is {request.max_tokens}, an answer has at most {most} here"
            raise Refused(400, "invalid_request_error", "MAX_TOKENS", f"{sentence}; ask for less")
        tokens = min(DEFAULT_TOKENS, most) if request.max_tokens is None else request.max_tokens
        released = kind.mode == RELEASED and admission.artifact != BASE
        if not released and (request.epsilon is not None or request.session is not None):
            sentence = "nothing is released in this answer, so it has no epsilon and no session"
            raise Refused(400, "invalid_request_error", "EPSILON", f"{sentence}; leave both out")
        served = self.artifacts.model(BASE if released else admission.artifact)
        ids = served.ids(request, self.config.server.max_prompt, tokens)
        self.scheduler.hold(client.name, self.config.limits.streams_per_client)
        try:
            privacy, reader, times = admission_told(admission, kind.mode), None, None
            if released:
                assert self.releases is not None and self.till is not None
                adapter = self.artifacts.last(admission.artifact)  # whatever may fail does so before anything is paid
                times = Times() if kind.encrypt else None
                keys = self.own_keys(adapter.encryptable().width) if kind.encrypt else None
                release = self.releases.of(tokens, request.epsilon)
                if keys is not None:
                    require_encryptable(release, adapter.A.shape[1])
                paid = release.answer(self.till.meter(client.unit, request.session))
                privacy |= {"release": privacy_of(paid, self.releases.one(release))}
                reader = _Reading(self, request.model, paid, adapter, keys, times)
            return _Prepared(Decoding(served, ids, request, tokens, reader), privacy, reader, times)
        except BaseException:
            self.scheduler.release(client.name)
            raise

    def _drawn(self, client: Client, request: Generate, rights: str | None) -> "_Prepared":
        """Does steps 2 to 6 for a text from references, likewise. Raises as `answer`."""
        found = self.generations
        try:
            self._require_turn(client, counted=True)
            if found is None:
                raise Refused(404, "invalid_request_error", "GENERATION", "this server has no generations")
            offered = found.of(request.generation)
            offered.require_usable()
            admission = self._admitted(client, request.generation, rights)
            labels = offered.require_words(request.labels, request.query)
            told = admission_told(admission, "generation") | {"generation": offered.privacy()}
            self.scheduler.hold(client.name, self.config.limits.streams_per_client)
            try:
                drawing = found.draw(offered, admission.artifact, labels)
            except BaseException:
                self.scheduler.release(client.name)
                raise
        except Exception:
            if found is not None and request.generation in found.all:
                self.metrics.no_texts.labels(request.generation).inc()
            raise
        self.metrics.texts.labels(request.generation).inc()
        return _Prepared(drawing, told)

    async def pieces(self, running: Running) -> Any:
        """Yields the pieces of an answer to its end. Raises Refused: it failed, or what it rests on was withdrawn."""
        # When its first token came is told, but of no answer that releases states or is drawn from references.
        waits = {"release", "generation"}.isdisjoint(running.privacy)
        try:
            while True:
                piece: Piece = await running.stream.next()
                if waits and piece.text and running.stream.first is not None:
                    self.metrics.first.observe(running.stream.first - running.began)
                    waits = False
                self.require_kept(running)
                if piece.error is not None:
                    raise piece.error
                yield piece
                if piece.finish is not None:
                    return
        finally:
            self.left(running)

    def require_kept(self, running: Running) -> None:
        """Holds an answer against what was withdrawn, before each piece of it that is given out.

        Guarantee: no piece of a text is given out once a reference of it is gone or withdrawn, as far as this process has read
        the log, or may have another text, or its generation was closed; a piece that was drawn before is not either.

        Raises:
            Refused: what the answer rests on was withdrawn.
        """
        if running.withdrawn is not None:
            raise running.withdrawn
        if isinstance(running.stream.decoding, Drawing):
            running.stream.decoding.require()

    def left(self, running: Running) -> None:
        """Notes that nobody reads an answer any more."""
        self._running.discard(running)
        running.stream.cancel()

    # ------------------------------------------------------------------------------------------------ adapters elsewhere

    def split(self, client: Client, asked: SplitStart, rights: str | None) -> dict[str, Any]:
        """Pays for the states of an answer whose client runs the base model. Raises as `answer`."""
        rounds, rights = self._rounds, asked.rights or rights
        kind, admission = self.begin(client, asked.model, rights, SPLIT)
        adapter = self._adapter(admission)
        if self.splits is None or self.releases is None or self.till is None:
            raise Refused(404, "invalid_request_error", "MODE", "this server takes no states; it has no budget")
        self.splits.require_room()
        release = self.releases.of(asked.releases, asked.epsilon)
        paid = release.answer(self.till.meter(client.unit, asked.session))
        assert isinstance(paid.receipt, Reservation)
        identity = self.splits.start((client, asked.model, rights), adapter, paid.receipt)
        if rounds != self._rounds:
            self._let_go()
        told = admission_told(admission, kind.mode) | {"release": privacy_of(paid, self.releases.one(release))}
        rank, shrink = self.releases.rank_space, self.releases.shrink
        return {"id": identity, **terms(release, adapter, rank_space=rank, shrink=shrink), "privacy": told}

    def state(self, client: Client, identity: str, body: bytes) -> bytes:
        """Applies the adapter of a split answer to a released state. Raises Refused."""
        if self.splits is None or self.releases is None:
            raise Refused(404, "invalid_request_error", "ANSWER", "there is no such answer; this server takes no states")
        self.access.present(client)
        held = self.splits.take(identity, client)  # it came: whatever is refused from here on was released all the same
        rank, A = self.releases.rank_space, held.adapter.A
        state = numbers_of(body, A.shape[0] if rank else A.shape[1])
        self.states.take(client.name, "states")
        if self._admitted(*held.asked).artifact != held.adapter.name:
            raise ReleaseRefused("WITHDRAWN", "your rights do not admit the adapter of this answer any more; begin another one")
        found = held.adapter.expand(state) if rank else held.adapter.delta(state)
        self.metrics.releases.labels(held.asked[1]).inc()
        return (self.releases.shrink * found).astype("<f4").tobytes()

    def inner(self, client: Client, identity: str) -> bytes:
        """Returns A of the adapter of a split answer, where its coordinates are what is released. Raises Refused."""
        if self.splits is None or self.releases is None or not self.releases.rank_space:
            sentence = "states are released here and not coordinates, so A stays with the server"
            raise Refused(400, "invalid_request_error", "SPACE", sentence)
        return self.splits.of(identity, client).adapter.A.astype("<f4").tobytes()

    def register(self, client: Client, model: str, rights: str | None, bundle: bytes) -> None:
        """Takes the public keys of a client that may ask for an adapter. Raises Refused, EncryptionRefused."""
        _, admission = self.begin(client, model, rights, ENCRYPTED)
        self._adapter(admission)
        assert self.encrypted is not None
        self.encrypted.register(client, bundle)

    def encrypted_state(self, client: Client, model: str, rights: str | None, body: bytes) -> tuple[bytes, str]:
        """Applies an adapter to an encrypted state, and names it. Raises Refused, EncryptionRefused."""
        rounds = self._rounds
        _, admission = self.begin(client, model, rights, ENCRYPTED, counted=False)
        adapter = self._adapter(admission)
        assert self.encrypted is not None
        self.states.take(client.name, "states")
        began = time.monotonic()
        found = self.encrypted.apply(client.name, adapter, body)
        self.metrics.encrypted.observe(time.monotonic() - began)
        if rounds != self._rounds:  # the gate was refreshed meanwhile
            self._let_go()
            if self._admitted(client, model, rights).artifact != adapter.name:
                raise ReleaseRefused("WITHDRAWN", "your rights do not admit this adapter any more; ask again for what is left")
        return found, adapter.name

    def _adapter(self, admission: Admission) -> LastAdapter:
        if not admission.artifact.startswith(ADAPTER):
            sentence = f"your rights admit {admission.artifact} alone, which has no adapter: run the base model as it is"
            raise ReleaseRefused("NO_ADAPTER", sentence)
        return self.artifacts.last(admission.artifact)

    # ------------------------------------------------------------------------------------------------------- what is told

    def budget(self, client: Client, unit: str) -> dict[str, Any]:
        """Returns what a unit has spent: ``self``, or ``KIND:NAME``, another's for an operator alone. Raises Refused."""
        if self.till is None:
            raise Refused(404, "invalid_request_error", "BUDGET", "this server keeps no budget")
        self.looks.take(client.name, "looks at budgets")  # each takes a turn of the log, for which answers wait
        kind, _, name = unit.partition(":")
        try:
            asked = client.unit if unit == "self" else Unit(kind, name)
        except LedgerError as error:
            raise Refused(400, "invalid_request_error", error.code, error.sentence) from error
        if asked != client.unit and client.role != "operator":
            raise Refused(403, "permission_error", "UNIT", "this is another's budget; yours is /v1/budgets/self")
        return unit_told(self.till, self.releases, asked)

    def offered(self) -> list[dict[str, Any]]:
        """Returns the generations as they are listed beside the classes, with the words that their labels may have, and
        the most characters of a query where they take one."""
        named = {"object": "model", "created": 0, "owned_by": self.config.server.name, "mode": "generation"}
        found = {} if self.generations is None else self.generations.all
        return [{"id": name, **named, "labels": each.table.labels, "query": each.asks} for name, each in sorted(found.items())]

    def overview(self) -> dict[str, Any]:
        """Returns what the operator's page shows."""
        kinds, units = ([], []) if self.till is None else accounts_told(self.till, self.access.clients)
        return {
            "name": self.config.server.name,
            "problems": self.ready(),
            "unread": self.unread,
            "running": self.scheduler.running,
            "waiting": self.scheduler.waiting,
            "places": self.config.server.streams,
            "kinds": kinds,
            "units": units,
            "refusals": self.metrics.reasons,
            "generations": [] if self.generations is None else self.generations.told(),
            "classes": self.classes,
            "posture": self.gate.posture(),
            "log": None if self.till is None else {"size": self.till.log.size, "origin": self.till.log.header.origin},
            "statement": None if self.releases is None else self.releases.statement,
        }

    def measure(self) -> bytes:
        """Returns the metrics, with what the log adds up to by kinds of units."""
        self.metrics.running.set(self.scheduler.running)
        self.metrics.waiting.set(self.scheduler.waiting)
        if self.till is not None:
            self.metrics.add_up(self.till)
        return self.metrics.text()

    def ready(self) -> list[str]:
        """Returns why the server should be sent nothing now; empty if it should."""
        problems = ["it is draining"] if self.draining else []
        if self.till is not None:
            try:
                self.till.log.refresh()
            except LedgerError as error:
                problems.append(f"the budget log: {error.code}")
        if self.gate.closed is not None:
            problems.append(f"the gate: {self.gate.closed}")
        return problems + ([] if self.generations is None else self.generations.problems())

    def reload(self, config: ServeConfig) -> None:
        """Takes the tokens and the revoked rights of a file that was changed, and reads references again; all else needs a new
        server.

        Guarantee: once it returns, no request is answered by a token that is gone or by rights that were revoked, whatever was
        open before: conversations are refused at their next message, running answers end, and states of split answers too.
        References are as after `reread`, also where it raises.

        Raises:
            ConfigError: code TOKENS; then tokens and rights are what they were.
        """
        try:
            access = Access.load(config.tokens)
            self.gate.revoke(bytes.fromhex(serial) for serial in config.gate.revoked)
            self.access = access
            self._rounds += 1
            for running in list(self._running):
                self._judge_again(running)
        finally:
            self.reread()

    def reread(self) -> None:
        """Reads the references of all generations again, and what was withdrawn of them.

        Guarantee: once it returns, every text was ended that has a reference which is not there any more, was withdrawn, or may
        have another text now, as every one may that nobody signed; what was drawn of it and waits for its reader is sent no
        more.
        """
        if self.generations is not None:
            self.generations.reread()
            self._rounds += 1
            for running in list(self._running):
                self._judge_again(running)

    def refresh(self) -> None:
        """Judges by the newest export from now on, and lets go of what was withdrawn by it.

        Guarantee: once it returns or raises, no answer runs of an artifact that the rights of its request do not admit any
        more, and such an artifact is no longer in memory. A refresh that is refused closes the gate, and ends every answer.

        Raises:
            ReleaseRefused: as `InferenceGate.refresh`.
        """
        assert self.config.gate.export is not None
        try:
            self.gate.refresh(self.config.gate.export)
        finally:
            self._rounds += 1
            self._let_go()
            for running in list(self._running):
                self._judge_again(running)

    def _let_go(self) -> None:
        """Drops what the gate does not stand behind any more."""
        gone = {name for name in self.gate.artifacts if self.gate.closed is not None or self.gate.withdrawn(name)}
        self.artifacts.drop(gone)
        if self.generations is not None:
            self.generations.drop(gone)
        if self.encrypted is not None:
            for name in gone:
                self.encrypted.drop(name)
        if self.splits is not None:
            self.splits.drop(gone)

    def _judge_again(self, running: Running) -> None:
        """Ends an answer whose rights do not admit its artifact any more, or whose references may not go on."""
        if not hasattr(running, "stream"):
            return
        client, model, rights = running.asked
        sentence = "what this answer rests on was withdrawn while it was computed"
        why = Refused(403, "rights_refused", "WITHDRAWN", f"{sentence}; ask again for what is left")
        try:
            kept = self._admitted(client, model, rights).artifact == running.privacy["artifact"]
        except Exception:  # whatever it is, nobody has said that the answer may go on
            kept = False
        if kept and isinstance(running.stream.decoding, Drawing):
            try:
                running.stream.decoding.require()
            except Refused as error:
                kept, why = False, error
        if not kept:
            running.withdrawn = why
            running.stream.cancel(at_once=True)

    def own_keys(self, width: int) -> "HEKeys":
        """Returns keys of this server's own for states that it encrypts before an adapter reads them."""
        from dptrain.inference.he.client import HEKeys

        with self._lock:
            if width not in self._own_keys:
                made = HEKeys.generate(width)
                assert self.encrypted is not None
                self.encrypted.own.register_keys(_own(width), made.public)
                self._own_keys[width] = made
            return self._own_keys[width]

    def close(self) -> None:
        """Ends what runs, settles it, and closes the budget."""
        self.draining = True
        if self.generations is not None:
            self.generations.close()
        self.scheduler.close()
        if self.splits is not None:
            self.splits.sweep(0)
        if self.till is not None:
            self.till.close()


def _own(width: int) -> str:
    """Returns the session of this server's own keys; no client can be called so."""
    return f"={width}"


class _Reading:
    """Reads the last state of an answer through what was paid for, and gives what the adapter adds to the scores."""

    def __init__(
        self, service: Service, model: str, answer: Answer, adapter: LastAdapter, keys: "HEKeys | None", times: Times | None
    ) -> None:
        assert service.releases is not None
        self._service, self._model, self.answer, self._adapter, self._times = service, model, answer, adapter, times
        self._rank, self._shrink = service.releases.rank_space, service.releases.shrink
        self._keys = keys
        self._settled = False

    def __call__(self, state: torch.Tensor) -> torch.Tensor:
        clear = state.detach().float().cpu().numpy()
        if self._rank:
            found = self._adapter.expand(self.answer.release(self._adapter.A @ clear).state)
        else:
            noised = self.answer.release(clear).state
            found = self._adapter.delta(noised) if self._keys is None else self._under_encryption(noised)
        self.settle()
        return torch.from_numpy(np.asarray(self._shrink * found, dtype=np.float32))

    def settle(self) -> None:
        """Ends the reservation once: whole, as soon as a state was released, so that its time tells nothing of the answer's
        length; and at nothing, if none was when the answer ends."""
        if self._settled:
            return
        self._settled = True
        if self.answer.made:
            self._service.metrics.tokens.labels(self._model).inc(self.answer.worth.releases)
            self._service.metrics.releases.labels(self._model).inc(self.answer.worth.releases)
        if self._service.till is not None:
            self._service.till.settle(self.answer)

    def _under_encryption(self, noised: np.ndarray) -> np.ndarray:
        assert self._keys is not None and self._times is not None and self._service.encrypted is not None
        marks = [time.perf_counter()]
        sent = self._keys.encrypt(noised)
        marks.append(time.perf_counter())
        came = self._service.encrypted.apply(_own(self._keys.width), self._adapter, sent, own=True)
        marks.append(time.perf_counter())
        found = self._keys.decrypt(came)
        marks.append(time.perf_counter())
        for kept, (before, after) in zip(
            (self._times.encrypt, self._times.product, self._times.decrypt), itertools.pairwise(marks), strict=True
        ):
            kept.append(after - before)
        return found
