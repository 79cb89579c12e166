"""Processes that examine contributions beside the one that reads the corpus.

A worker is started by `attest.processes`. The driver never blocks on a worker that waits for it: all its reads and writes are
non-blocking, in one loop.

A request is a batch `[descriptor, message, opening, content hash, ...]`; the answer has one entry per contribution, the fields
of `Passed` as a tuple or those of `Refusal` as a list. What travels is between processes of one program.
"""

import contextlib
import marshal
import os
import pickle
import selectors
import signal
import socket
from collections import deque
from typing import Any

from attest import processes
from attest.descriptor import TRAIN
from attest.errors import GateFailed, ReasonCode
from attest.gate.admission import Passed, Refusal
from attest.gate.checks import Examiner
from attest.policy import Policy
from attest.registry import Registry

Question = tuple[bytes, bytes, bytes, bytes | None]
"""Descriptor, message, opening and content hash of one contribution."""

QUEUE = 3
"""Batches that a worker holds: one at work, the others waiting, so that it never idles while the driver reads."""

_HEAD = processes.HEAD


class Work:
    """Holds one batch of questions; `answer` is None until it is back."""

    __slots__ = ("answer", "questions")

    def __init__(self, questions: list[Question]) -> None:
        self.questions = questions
        self.answer: list[Passed | Refusal] | None = None


class Workers:
    """Runs a pool of examining processes for one purpose; a context manager that ends them. `spare`: whether a worker that ends
    before it has started is done without."""

    def __init__(
        self, count: int, policy: Policy, registry: Registry, now: int, *, purpose: str = TRAIN, spare: bool = False
    ) -> None:
        if not processes.can_start():
            raise GateFailed("WORKER", "cannot start a worker: there is no Python interpreter to run; judge with one process")
        self._spare = spare
        setup = pickle.dumps((policy, registry, now, purpose))
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(_Worker(self._selector, setup))
        except OSError as error:
            self.close()
            raise GateFailed("WORKER", f"cannot start a worker: {error.strerror or error}; judge with one process") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def take(self, work: Work) -> bool:
        """Sends a batch to the worker that has least to do, once it can take one; False while none has started. Raises
        GateFailed: code WORKER if a worker has gone."""
        self.pump(0)
        while True:
            ready = [worker for worker in self._workers if worker.ready]
            if not ready:
                return False
            worker = min(ready, key=lambda worker: len(worker.works))
            if len(worker.works) < QUEUE:
                break
            self.pump(None)
        worker.ask(work)
        self.pump(0)
        return True

    def pump(self, timeout: float | None) -> None:
        """Writes what workers can take and reads what they have; waits up to `timeout` seconds, for ever if None. Raises
        GateFailed: code WORKER if a worker has gone; nothing it was asked is taken for judged."""
        for key, events in self._selector.select(timeout):
            worker: _Worker = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    worker.write()
                if events & selectors.EVENT_READ:
                    worker.read()
            except GateFailed:
                if worker.ready or not self._spare:
                    raise
                worker.close()
                self._workers.remove(worker)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.close()
        self._workers = []
        self._selector.close()


class _Worker:
    """Drives one process."""

    def __init__(self, selector: selectors.BaseSelector, setup: bytes) -> None:
        self.works: deque[Work] = deque()
        self.ready = False
        self._selector = selector
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._process, self._socket = processes.start("attest.gate.workers")
        self._socket.setblocking(False)
        selector.register(self._socket, selectors.EVENT_READ, self)
        self.send(setup)

    def ask(self, work: Work) -> None:
        self.works.append(work)
        self.send(marshal.dumps([part for question in work.questions for part in question]))

    def send(self, message: bytes) -> None:
        # Not joined: all workers are sent one setup, which is as large as the registry.
        self._out.extend((memoryview(len(message).to_bytes(_HEAD, "big")), memoryview(message)))
        self._selector.modify(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def write(self) -> None:
        try:
            while self._out:
                sent = self._socket.send(self._out[0])
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                    return
                self._out.popleft()
            self._selector.modify(self._socket, selectors.EVENT_READ, self)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._gone() from error

    def read(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._gone() from error
        if not data:
            raise self._gone()
        self._in += data
        while len(self._in) >= _HEAD and len(self._in) >= (end := _HEAD + int.from_bytes(self._in[:_HEAD], "big")):
            self._take(marshal.loads(bytes(self._in[_HEAD:end])))
            del self._in[:end]

    def _take(self, answer: list[Any]) -> None:
        if not self.ready:
            self.ready = True
            return
        self.works.popleft().answer = [
            Passed._make(entry) if type(entry) is tuple else Refusal(ReasonCode[entry[0]], *entry[1:]) for entry in answer
        ]

    def _gone(self) -> GateFailed:
        return GateFailed(
            "WORKER",
            f"a worker of the gate ended (exit status {self._process.poll()}); judge again, with one worker if it recurs",
        )

    def close(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._socket)
        self._socket.close()
        processes.end(self._process)


def serve() -> None:
    """Serves as a worker: reads requests from the socket that is standard input until the driver closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as channel:
        setup = processes.receive(channel)
        if setup is None:
            return
        policy, registry, now, purpose = pickle.loads(setup)
        examiner = Examiner(policy, registry, now, purpose=purpose)
        processes.send(channel, marshal.dumps([]))
        while (request := processes.receive(channel)) is not None:
            parts = iter(marshal.loads(request))
            outcomes = (examiner.examine(*question) for question in zip(parts, parts, parts, parts, strict=True))
            processes.send(channel, marshal.dumps([_plain(outcome) for outcome in outcomes]))


def _plain(outcome: Passed | Refusal) -> tuple[Any, ...] | list[Any]:
    if isinstance(outcome, Passed):
        return tuple(outcome)
    return [str(outcome.code), *outcome[1:]]
