"""Work that is cut into pieces, done by as many threads as torch is told to use.

For work that spends its time in numpy and torch, which let other threads run meanwhile, on pieces too small for torch to
share among its own threads.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch


class Threads:
    """A pool of ``torch.get_num_threads()`` threads, at most ``most``, the caller's one of them; it follows that setting."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None
        self._helpers = 0

    def each(self, work: Callable[[int], None], pieces: range) -> None:
        """Calls ``work`` once for every piece, in no particular order and in any thread, and returns when all are done.

        Raises:
            What ``work`` raised first; pieces that were not begun are left out then.
        """
        helpers = min(torch.get_num_threads(), self._most, len(pieces)) - 1
        if helpers < 1:
            for piece in pieces:
                work(piece)
            return
        todo = iter(pieces)  # handing out the next number is one operation of the interpreter, so no two threads share a piece
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
            self._pool, self._helpers = ThreadPoolExecutor(helpers, thread_name_prefix="dptrain-noise"), helpers
        return self._pool


def _drain(work: Callable[[int], None], todo: Iterable[int]) -> None:
    for piece in todo:
        work(piece)
