"""Shares work that is cut into pieces among as many threads as torch is told to use.

For work that spends its time in numpy and torch, which let other threads run meanwhile, on pieces too small for torch to
share among its own threads.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Lock

import torch


class Threads:
    """Holds ``torch.get_num_threads()`` threads, at most ``most``, the caller's one of them; follows that setting."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None
        self._helpers = 0

    def each(self, work: Callable[[int], None], pieces: range) -> None:
        """Calls ``work`` once for every piece, in no particular order and in any thread, and returns when all are done.

        Inside, torch works on one thread, however few pieces or threads there are: a product may round differently on several.

        Raises:
            What ``work`` raised first; pieces that were not begun are left out then.
        """
        helpers = min(torch.get_num_threads(), self._most, len(pieces)) - 1
        if helpers < 1:
            with _one_each():
                _drain(work, pieces)
            return
        todo = _Shared(pieces)
        with _one_each():
            futures = [self._executor(helpers).submit(_drain, work, todo) for _ in range(helpers)]
            try:
                _drain(work, todo)
            finally:
                deque(todo, maxlen=0)  # where one failed, nobody begins another piece
                begun = [future for future in futures if not future.cancel()]
                failures = [failure for future in begun if (failure := future.exception()) is not None]
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Lets the threads go; the next call of :meth:`each` would start new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool, self._helpers = None, 0

    def _executor(self, helpers: int) -> ThreadPoolExecutor:
        if self._pool is None or self._helpers < helpers:
            self.close()
            ready = Barrier(helpers + 1)
            self._pool, self._helpers = ThreadPoolExecutor(helpers, "dptrain", initializer=_alone, initargs=(ready,)), helpers
            for _ in range(helpers):
                self._pool.submit(int)  # none is idle before all are there, so every one of these starts a thread
            ready.wait()
        return self._pool


def _alone(ready: Barrier) -> None:
    """Makes this a thread that shares no work with threads of its own.

    Those would stay for good, and OpenMP lets threads wait by sleeping, not spinning, once there are more of them than cores:
    every later small product of the caller would pay for waking one (0.6 s in a step of 5 s, docs/performance.md).
    """
    torch.set_num_threads(1)
    ready.wait()


@contextmanager
def _one_each() -> Iterator[None]:
    """Lets torch work on one thread inside; afterwards on as many as before, with which threads to come begin too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Shared:
    """Hands numbers out, each to one thread alone."""

    def __init__(self, pieces: range) -> None:
        self._pieces, self._lock = iter(pieces), Lock()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:  # not every interpreter does this in one operation
            return next(self._pieces)


def _drain(work: Callable[[int], None], todo: Iterable[int]) -> None:
    for piece in todo:
        work(piece)
