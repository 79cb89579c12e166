"""Gathers what threads of one process ask at once, so that one turn and its syncs serve all of them: a group commit.

The thread that finds nobody at work leads: it takes what is asked, up to `MOST`, and serves it in the order in which it came.
What is asked meanwhile waits for the next turn, which the first that waits leads. A thread that asks alone waits for nobody.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ledger.errors import LedgerClosed, LedgerError

MOST: Final = 256
"""Most that one turn serves."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class _Waiting(Generic[Asked, Answer]):
    """One thread that asks: `served` once its answer is there, `leads` once the next turn is its own."""

    __slots__ = ("answer", "asked", "failure", "leads", "served", "woken")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.answer: Answer | LedgerError | None = None
        self.failure: BaseException | None = None
        self.leads = self.served = False
        self.woken = threading.Lock()
        self.woken.acquire()


class GroupCommit(Generic[Asked, Answer]):
    """Serves threads in groups."""

    def __init__(self, serve: Callable[[list[Asked]], list[Answer | LedgerError]]) -> None:
        """Takes what serves a group: it returns an answer for each, or the error that this one gets, when all of it is durable,
        and raises if nothing of it may be relied on."""
        self._serve = serve
        self._mutex = threading.Lock()
        self._waiting: deque[_Waiting[Asked, Answer]] = deque()
        self._busy = False

    def ask(self, asked: Asked) -> Answer:
        """Returns the answer, or raises the error, that the group's turn gave, after that has ended.

        Guarantee: what is asked is served once, or not at all: where the turn failed, every thread of its group gets an error.
        """
        own: _Waiting[Asked, Answer] = _Waiting(asked)
        with self._mutex:
            self._waiting.append(own)
            own.leads, self._busy = not self._busy, True
        try:
            if not own.leads:
                own.woken.acquire()
            if not own.served:
                self._lead()
        except BaseException:
            self._leave(own)
            raise
        if own.failure is not None:
            if isinstance(own.failure, LedgerError):
                raise copy.copy(own.failure) from own.failure
            sentence = "the thread that wrote for this one was interrupted, so nothing may be computed"
            raise LedgerClosed("INTERRUPTED", f"{sentence}; ask again") from own.failure
        if isinstance(own.answer, LedgerError):
            raise own.answer
        assert own.answer is not None
        return own.answer

    def _lead(self) -> None:
        """Serves those who wait, the leader among them, and gives the lead to the first who came since."""
        group: list[_Waiting[Asked, Answer]] = []
        try:
            with self._mutex:
                group += [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST))]
            for item, answer in zip(group, self._serve([item.asked for item in group]), strict=True):
                item.answer = answer
        except BaseException as error:
            for item in group:
                item.failure = error
            raise
        finally:
            with self._mutex:
                self._pass_on()
            for item in group:
                item.served = True
                item.woken.release()

    def _pass_on(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].woken.release()

    def _leave(self, own: _Waiting[Asked, Answer]) -> None:
        """Takes away a thread that was interrupted while it waited; what its group paid for already stays paid."""
        with self._mutex:
            if own in self._waiting:
                self._waiting.remove(own)
                if own.leads:
                    self._pass_on()
