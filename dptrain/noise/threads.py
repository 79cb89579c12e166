"""Shares work that is cut into pieces among as many threads as torch is told to use.

For work that spends its time in numpy, torch and kernels, which let other threads run meanwhile, on pieces too small for torch
to share.

The threads are those of torch's own OpenMP runtime (threads.cpp beside this). Behind every operation that torch shared they
wait for the next one by spinning, for some milliseconds: threads of another pool would have to share a core with them, and a
kernel that takes 2.2 ms on two of torch's takes 4 ms beside them. Where there is no compiler, or torch runs on something else
than OpenMP, a pool of this process serves.
"""

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from threading import Barrier, Lock, get_ident
from typing import Any, Generic, TypeVar

import torch

from dptrain import native

Made = TypeVar("Made")

_One = ctypes.CFUNCTYPE(None, ctypes.c_long)

Share = Callable[[int, int, int, Any], None]
"""Calls a function once for every number below a count: ``share(threads, most of them at a time, count, function)``."""


class Threads:
    """Works on ``torch.get_num_threads()`` threads, at most ``most``; follows that setting."""

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
        threads = torch.get_num_threads()
        most = min(threads, self._most, len(pieces))
        share = team() if most > 1 else None
        with _one_each():
            if most < 2:
                _drain(work, pieces)
            elif share is None:
                self._by_pool(work, pieces, most - 1)
            else:  # all threads of torch enter, whoever works: a team of another size would be made anew
                _by_team(partial(share, threads, most), work, pieces, threads)

    def _by_pool(self, work: Callable[[int], None], pieces: range, helpers: int) -> None:
        """Shares pieces with threads of a pool of this process."""
        todo = _Shared(pieces)
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
        """Lets the threads of a pool go; the next call of :meth:`each` would start new ones."""
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
    every later small product of the caller would pay for waking one (0.6 s in a step of 5 s).
    """
    torch.set_num_threads(1)
    ready.wait()


@contextmanager
def _one_each() -> Iterator[None]:
    """Lets torch work on one thread inside; afterwards on as many as before, with which threads to come begin too."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
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


class Idle(Generic[Made]):
    """Holds things that serve one piece of work at a time, while none is under way that has them.

    A thread of torch begins every piece as one that this interpreter has not met: what it kept for itself would be gone.
    """

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._idle: deque[Made] = deque()

    @contextmanager
    def one(self) -> Iterator[Made]:
        """Gives one of them, made if all are at work, to this block alone."""
        try:
            found = self._idle.pop()
        except IndexError:
            found = self._make()
        try:
            yield found
        finally:
            self._idle.append(found)

    def clear(self) -> None:
        """Lets go of all that is idle."""
        self._idle.clear()


def _by_team(share: Callable[[int, Any], None], work: Callable[[int], None], pieces: range, threads: int) -> None:
    """Shares pieces with the ``threads`` threads of torch.

    MKL keeps for every thread on how many it computes, and a thread of torch has what torch told it when it was first met; with
    more than one it would round otherwise than the caller. So each computes on one for the time of a piece.

    Raises:
        KeyboardInterrupt: a piece was begun and never ended, as an interrupt came where nobody can catch one.
    """
    failures: list[BaseException] = []
    done: list[int] = []
    caller, before = get_ident(), sys.unraisablehook

    def one(number: int) -> None:
        try:
            if failures:
                return  # where one failed, nobody begins another piece
            if get_ident() == caller:
                work(pieces[number])
            else:
                torch.set_num_threads(1)
                try:
                    work(pieces[number])
                finally:
                    torch.set_num_threads(threads)
            done.append(number)
        except BaseException as failure:  # none gets past a function that C calls
            failures.append(failure)

    def lost(told: Any) -> None:
        """Takes what a signal handler raised before `one` had begun."""
        if told.object is one and told.exc_value is not None:
            failures.append(told.exc_value)
        else:
            before(told)

    sys.unraisablehook = lost
    try:
        share(len(pieces), _One(one))
    finally:
        if sys.unraisablehook is lost:
            sys.unraisablehook = before
    if failures:
        raise failures[0]
    if len(done) != len(pieces):
        raise KeyboardInterrupt(f"{len(pieces) - len(done)} of {len(pieces)} pieces of work were interrupted")


@cache
def team() -> Share | None:
    """Returns what shares work among the threads of torch; None where it cannot be had."""
    parallel = _parallel()
    if parallel is None:
        return None
    found = native.built(Path(__file__).with_suffix(".cpp"), _declared, partial(works, parallel))
    return None if found is None else partial(found.dptrain_share, parallel)


def _parallel() -> int | None:
    """Returns the address of what begins a parallel region in the runtime that torch runs on; None where it is not OpenMP's."""
    if "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:  # asked of torch's library, it is the one of the runtime that torch is bound to, of several that may be loaded
        found = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
    except (OSError, AttributeError):
        return None
    return ctypes.cast(found, ctypes.c_void_p).value


def _declared(found: Any) -> None:
    """Tells the types of what it takes."""
    found.dptrain_share.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_long, _One]
    found.dptrain_share.restype = None


def works(parallel: int, found: Any) -> bool:
    """Tells whether every piece is done once."""
    done: list[int] = []
    found.dptrain_share(parallel, torch.get_num_threads(), 2, 7, _One(done.append))
    return sorted(done) == list(range(7))
