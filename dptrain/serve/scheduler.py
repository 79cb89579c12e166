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
from typing import Final

import torch

from dptrain.errors import without_text
from dptrain.serve.decoding import Decoding
from dptrain.serve.wire import Refused, refused

LOG = logging.getLogger("dptrain.serve")

AHEAD: Final = 32
"""Pieces of an answer that may wait for its reader."""

_LOOKS: Final = 0.5
"""Seconds between two looks at answers whose time may be over."""


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
    """

    decoding: Decoding
    settle: Callable[[Decoding], None]
    deadline: float
    _scheduler: "Scheduler"
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _box: "asyncio.Queue[Piece]" = field(default_factory=asyncio.Queue)
    _ahead: int = 0
    _parked: bool = False
    _cancelled: bool = False
    first: float | None = None
    ended: bool = False

    async def next(self) -> Piece:
        """Waits for the next piece."""
        piece = await self._box.get()
        self._scheduler.taken(self)
        return piece

    def cancel(self) -> None:
        """Ends the answer: nobody reads it any more."""
        self._scheduler.cancelled(self)

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
        self._held = 0
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
        """Whether any answer is not at its end."""
        return self._held > 0

    def hold(self) -> None:
        """Takes a place for an answer, before anything is paid for it; `start` or `release` ends that.

        Raises:
            Refused: 503, code BUSY, as many as may run and wait do.
        """
        with self._change:
            if self._stopped or self._held >= self._all:
                sentence = f"{self._most} answers run and {self._all - self._most} wait, the most this server takes"
                raise Refused(503, "server_busy", "BUSY", f"{sentence}; ask again in a second", after=1)
            self._held += 1

    def release(self) -> None:
        """Gives a place back that no answer took."""
        with self._change:
            self._held -= 1
            self._change.notify_all()

    def start(self, decoding: Decoding, settle: Callable[[Decoding], None], seconds: float) -> Stream:
        """Begins an answer in a place that is held; ``seconds``: its longest time. Call it in the event loop."""
        stream = Stream(decoding, settle, time.monotonic() + seconds, self)
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

    def cancelled(self, stream: Stream) -> None:
        """Notes that nobody reads an answer any more."""
        with self._change:
            stream._cancelled = True
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
        if stream._cancelled:
            self._end(stream, Piece("", "cancelled"))
            return
        if time.monotonic() > stream.deadline:
            self._end(stream, Piece("", "timeout"))
            return
        try:
            text = stream.decoding.step()
        except Exception as error:
            told = refused(error)
            if told.status >= 500:
                LOG.error("an answer failed: %s", without_text(error))
            self._end(stream, Piece("", error=told))
            return
        if stream.first is None:
            stream.first = time.monotonic()
        if stream.decoding.finish is not None:
            self._end(stream, Piece(text, stream.decoding.finish))
            return
        if text:
            stream._post(Piece(text))
        with self._change:
            stream._ahead += bool(text)
            if stream._ahead >= AHEAD and not stream._cancelled:
                stream._parked = True
            else:
                self._ready.append(stream)

    def _end(self, stream: Stream, piece: Piece) -> None:
        stream.decoding.forget()
        stream.ended = True
        try:
            stream.settle(stream.decoding)
        except Exception as error:  # what is reserved stays reserved: nothing is lost but room in the budget
            told = getattr(error, "code", type(error).__name__)
            LOG.error("an answer could not be settled, its reservation stays whole: %s", told)
        stream._post(piece)  # whoever still waits hears of the end, whatever it was
        with self._change:
            self._running.discard(stream)
            if stream in self._waiting:
                self._waiting.remove(stream)
            self._held -= 1
            if self._waiting and len(self._running) < self._most:
                following = self._waiting.popleft()
                self._running.add(following)
                self._ready.append(following)
            self._change.notify_all()
