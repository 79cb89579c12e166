"""Gives answers their turns: a fixed number is computed in turns of one token, others wait, and more are refused.

A reader that is slow holds up its own answer alone: what is computed ahead of it is bounded, and its turn comes again when it
has taken some.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from dptrain.errors import without_text
from dptrain.serve.wire import Refused, refused

LOG = logging.getLogger("dptrain.serve")

AHEAD: Final = 32
"""Pieces of an answer that may wait for its reader."""

_LOOKS: Final = 0.5
"""Seconds between two looks at answers whose time may be over."""


class Computing(Protocol):
    """Is what has turns: `dptrain.serve.decoding.Decoding` is one, `dptrain.serve.generations.Drawing` another.

    Attributes:
        prompt: tokens of the prompt. computed: tokens so far. text_tokens: those of them that the text has.
        finish: why the text ended, None before.
    """

    prompt: int
    computed: int
    text_tokens: int
    finish: str | None

    @property
    def over(self) -> bool:
        """Tells whether nothing more is computed."""

    def step(self) -> str:
        """Computes a token, and returns the text that it completes."""

    def silently(self) -> bool:
        """Lets the text end here, as nobody reads it. Returns whether the rest is computed all the same."""

    def forget(self) -> None:
        """Lets the model and the cache go."""


@dataclass
class Piece:
    """Is a piece of an answer: some text, and at the end why it ended, or an error."""

    text: str
    finish: str | None = None
    error: Refused | None = None


@dataclass(eq=False)
class Stream:
    """Is one answer on its way to its reader.

    Attributes:
        settle: is called once, in a thread of the scheduler, when nothing more will be computed. ended: whether that is so.
        owner: whose answer it is.
    """

    decoding: Computing
    settle: Callable[[Any], None]
    deadline: float
    owner: str
    _scheduler: "Scheduler"
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _box: "asyncio.Queue[Piece]" = field(default_factory=asyncio.Queue)
    _ahead: int = 0
    _parked: bool = False
    _cancelled: bool = False
    _at_once: bool = False
    first: float | None = None
    ended: bool = False

    async def next(self) -> Piece:
        """Waits for the next piece."""
        piece = await self._box.get()
        self._scheduler.taken(self)
        return piece

    def cancel(self, *, at_once: bool = False) -> None:
        """Ends the answer: nobody reads it any more.

        Args:
            at_once: though it has a reader of states, whose number then tells when this was.
        """
        self._scheduler.cancelled(self, at_once=at_once)

    def _post(self, piece: Piece) -> None:
        try:
            self._loop.call_soon_threadsafe(self._box.put_nowait, piece)
        except RuntimeError:  # the loop is closed: nobody waits
            LOG.debug("a piece came after the server had stopped")


class Scheduler:
    """Computes answers in threads of its own."""

    def __init__(self, threads: int, streams: int, waiting: int) -> None:
        """``threads``: that compute. ``streams``: answers in turns. ``waiting``: answers that wait."""
        self._most, self._all = streams, streams + waiting
        self._ready: deque[Stream] = deque()
        self._waiting: deque[Stream] = deque()
        self._running: set[Stream] = set()
        self._held, self._owned = 0, dict[str, int]()
        self._looked = 0.0
        self._change = threading.Condition()
        self._stopped = False
        self._threads = [threading.Thread(target=self._work, name=f"decode-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> int:
        """Answers that are computed in turns."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Answers that wait."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Tells whether any answer is not at its end."""
        return self._held > 0

    def hold(self, owner: str, most: int) -> None:
        """Takes a place for an answer, before anything is paid for it; `start` or `release` ends that.

        Args:
            owner: whose answer it is, who may have ``most`` at a time.

        Raises:
            Refused: 503, code BUSY, as many as may run and wait do; 429, code STREAMS, as many of this owner.
        """
        with self._change:
            if self._owned.get(owner, 0) >= most:
                sentence = f"{most} answers of yours run or wait, the most of one client"
                raise Refused(429, "rate_limit_exceeded", "STREAMS", f"{sentence}; ask again when one has ended", after=1)
            if self._stopped or self._held >= self._all:
                sentence = f"{self._most} answers run and {self._all - self._most} wait, the most this server takes"
                raise Refused(503, "server_busy", "BUSY", f"{sentence}; ask again in a second", after=1)
            self._held += 1
            self._owned[owner] = self._owned.get(owner, 0) + 1

    def release(self, owner: str) -> None:
        """Gives a place back that no answer took."""
        with self._change:
            self._let(owner)
            self._change.notify_all()

    def _let(self, owner: str) -> None:
        self._held -= 1
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]

    def start(self, decoding: Computing, settle: Callable[[Any], None], seconds: float, owner: str) -> Stream:
        """Begins an answer in a place that its owner holds; ``seconds``: its longest time. Call it in the event loop."""
        stream = Stream(decoding, settle, time.monotonic() + seconds, owner, self)
        with self._change:
            if len(self._running) < self._most:
                self._running.add(stream)
                self._ready.append(stream)
                self._change.notify()
            else:
                self._waiting.append(stream)
        return stream

    def taken(self, stream: Stream) -> None:
        """Notes that a reader took a piece."""
        with self._change:
            stream._ahead -= 1
            if stream._parked and stream._ahead < AHEAD // 2:
                stream._parked = False
                self._ready.append(stream)
                self._change.notify()

    def cancelled(self, stream: Stream, *, at_once: bool = False) -> None:
        """Notes that nobody reads an answer any more."""
        with self._change:
            stream._cancelled = True
            stream._at_once |= at_once
            if stream in self._waiting:
                self._waiting.remove(stream)
                self._running.add(stream)
                self._ready.append(stream)
            elif stream._parked:
                stream._parked = False
                self._ready.append(stream)
            self._change.notify()

    def close(self) -> None:
        """Ends the threads, and with them what still runs: each answer is settled at what was computed."""
        with self._change:
            self._stopped = True
            left = [*self._running, *self._waiting]
            self._change.notify_all()
        for thread in self._threads:
            thread.join(timeout=30)
        for stream in left:
            if stream in self._running or stream in self._waiting:
                stopped = Refused(503, "server_busy", "STOPPED", "the server stopped; ask another one")
                self._end(stream, Piece("", error=stopped))

    def _work(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._change:
                self._overdue()
                while not self._ready and not self._stopped:
                    self._change.wait(timeout=_LOOKS)
                    self._overdue()
                if self._stopped:
                    return
                stream = self._ready.popleft()
            self._turn(stream)
            del stream  # a thread that waits keeps no model in memory

    def _overdue(self) -> None:
        """Brings back answers whose time is over while they wait for their readers, or for a place; looks now and then."""
        now = time.monotonic()
        if now < self._looked + _LOOKS:
            return
        self._looked = now
        for stream in [each for each in self._running if each._parked and each.deadline < now]:
            stream._parked = False
            self._ready.append(stream)
        for stream in [each for each in self._waiting if each.deadline < now]:
            self._waiting.remove(stream)
            self._running.add(stream)
            self._ready.append(stream)

    def _turn(self, stream: Stream) -> None:
        """Computes one token of an answer."""
        decoding = stream.decoding
        told = decoding.finish is not None
        if stream._cancelled and (stream._at_once or not decoding.silently()):
            self._end(stream, None if told else Piece("", "cancelled"))
            return
        if time.monotonic() > stream.deadline:
            self._end(stream, None if told else Piece("", "timeout"))
            return
        try:
            text = decoding.step()
        except Exception as error:
            found = refused(error)
            if found.status >= 500:
                LOG.error("an answer failed: %s", without_text(error))
            self._end(stream, None if told else Piece("", error=found))
            return
        if stream.first is None:
            stream.first = time.monotonic()
        last = None if told or decoding.finish is None else Piece(text, decoding.finish)
        if decoding.over:
            self._end(stream, last)
            return
        if last is not None:  # the text has ended, and is computed on without it
            stream._post(last)
        elif text:
            stream._post(Piece(text))
        with self._change:
            stream._ahead += bool(text)
            if stream._ahead >= AHEAD and not stream._cancelled and decoding.finish is None:
                stream._parked = True
            else:
                self._ready.append(stream)

    def _end(self, stream: Stream, piece: Piece | None) -> None:
        stream.ended = True
        try:
            stream.settle(stream.decoding)
        except Exception as error:  # what is reserved stays reserved: nothing is lost but room in the budget
            told = getattr(error, "code", type(error).__name__)
            LOG.error("an answer could not be settled, its reservation stays whole: %s", told)
        stream.decoding.forget()
        if piece is not None:
            stream._post(piece)  # whoever still waits hears of the end, whatever it was
        with self._change:
            self._running.discard(stream)
            if stream in self._waiting:
                self._waiting.remove(stream)
            self._let(stream.owner)
            if self._waiting and len(self._running) < self._most:
                following = self._waiting.popleft()
                self._running.add(following)
                self._ready.append(following)
            self._change.notify_all()
