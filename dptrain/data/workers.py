"""Processes that decode and collate microbatches ahead of the step that takes them.

A worker is started by `attest.processes`: a fresh interpreter that holds no key, no ledger and no model. What it is to run is
pickled by value (cloudpickle), so that functions of a script or a notebook, and closures, need not be importable there.

A request is a pickled `Task`, an answer a pickled `Done`, whose tensors lie behind it in one piece of memory. Each worker
answers in the order in which it was asked. A thread for each takes answers in while the step runs; it calls nothing of torch.
"""

import contextlib
import io
import os
import pickle
import random
import signal
import socket
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from attest import processes
from attest.corpus import Corpus
from dptrain.data.contributions import Entry
from dptrain.data.microbatch import Collate, Decode, Microbatch, pinned
from dptrain.data.packing import Drawn, Planned, plan
from dptrain.data.reader import Looks, Reader, looks_of
from dptrain.errors import FeedingFailed, without_text
from dptrain.sandbox.addresses import Numbers

_ALIGN = 64
"""Bytes to whose multiples tensors are moved in an answer, so that each can be viewed in place."""


@dataclass(frozen=True)
class Task:
    """Asks for one microbatch, or for what contributions of a check look like.

    Attributes:
        entries: the contributions. planned: the microbatch of them; None for a check. step: its number. seed: of the run's
            numbers. draws: whether `decode`, and whether `collate`, drew before. sizes: of a check: contributions, and rows,
            that are collated at a time.
    """

    entries: tuple[Entry, ...]
    planned: Planned | None
    step: int
    seed: bytes
    draws: tuple[bool, bool]
    sizes: tuple[int, int | None] = (1, None)


@dataclass(frozen=True)
class Done:
    """Answers a task.

    Attributes:
        counts: examples of each contribution. draws: as in `Task`, afterwards. rows: the microbatch, on the processor. looks:
            of a check, by public length, what rows look like. failed: what went wrong instead, without the text of it.
    """

    counts: tuple[int, ...] = ()
    draws: tuple[bool, bool] = (False, False)
    rows: Microbatch | None = None
    looks: tuple[tuple[int | None, Looks], ...] = ()
    failed: str | None = None


class Asked:
    """Holds a task that was sent. `answer` is None until it is back."""

    __slots__ = ("answer", "task", "worker")

    def __init__(self, task: Task, worker: "_Worker") -> None:
        self.task = task
        self.worker = worker
        self.answer: tuple[bytearray, bytearray] | None = None


class CannotSend(Exception):
    """Says why what workers are to run cannot be brought to other processes."""


class Workers:
    """Runs a pool of decoding processes, which end with this one, however it ends.

    Args:
        count: processes. ahead: tasks that each of them holds, one at work and the others waiting.
        corpus, decode, collate: as for `Reader`.

    Raises:
        CannotSend: `decode` or `collate` cannot be pickled, or no process can be started.
    """

    def __init__(self, count: int, ahead: int, corpus: Corpus, decode: Decode, collate: Collate) -> None:
        setup = _pickled((corpus, decode, collate, _standing()))
        if not processes.can_start():
            raise CannotSend("there is no Python interpreter to run")
        self._ahead = ahead
        self._arrived = threading.Condition()
        self._workers: list[_Worker] = []
        self._end = weakref.finalize(self, _end_all, self._workers)
        try:
            for _ in range(count):
                self._workers.append(_Worker(self._arrived, setup))
        except OSError as error:
            self.close()
            raise CannotSend(f"no process can be started: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> bool:
        """Tells whether all have started.

        Raises:
            CannotSend: one cannot run what it was sent.
            FeedingFailed: code WORKER, one has ended.
        """
        for worker in self._workers:
            if worker.refused is not None:
                raise CannotSend(worker.refused)
            if worker.gone:
                raise worker.lost()
        return all(worker.ready for worker in self._workers)

    def wait_ready(self, seconds: float) -> bool:
        """Waits so long until all have started; returns whether they have. Raises as `ready`."""
        with self._arrived:
            self._arrived.wait_for(lambda: all(w.ready or w.gone or w.refused is not None for w in self._workers), seconds)
        return self.ready

    @property
    def room(self) -> bool:
        """Tells whether a worker can take one more task."""
        return min(worker.held for worker in self._workers) < self._ahead

    @property
    def idle(self) -> bool:
        """Tells whether none has anything to do."""
        return not any(worker.held for worker in self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def most(self) -> int:
        """Returns the tasks that all of them hold at most."""
        return self._ahead * len(self._workers)

    def ask(self, task: Task) -> Asked:
        """Sends a task to the worker that has least to do. One that has ended is noticed where its answer is taken."""
        worker = min(self._workers, key=lambda worker: worker.held)
        asked = Asked(task, worker)
        worker.ask(asked)
        return asked

    def ask_each(self, task: Task) -> list[Asked]:
        """Sends a task to every worker."""
        found = [Asked(task, worker) for worker in self._workers]
        for asked in found:
            asked.worker.ask(asked)
        return found

    def take(self, asked: Asked, device: torch.device) -> Done:
        """Waits for an answer and returns it.

        Args:
            device: where its rows are going, for which they are put in pinned memory.

        Raises:
            FeedingFailed: code WORKER, the process has ended.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: asked.answer is not None or asked.worker.gone)
        if asked.answer is None:
            raise asked.worker.lost()
        asked.worker.held -= 1
        return _unpacked(*asked.answer, device)

    def drop(self, asked: Asked) -> None:
        """Forgets a task whose answer nobody will take."""
        asked.worker.held -= 1

    @property
    def ids(self) -> list[int]:
        """Returns the ids of the processes."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """Ends all processes."""
        self._end()


class _Worker:
    """Drives one process."""

    def __init__(self, arrived: threading.Condition, setup: bytes) -> None:
        self.ready = self.gone = False
        self.refused: str | None = None
        self.held = 0
        self._arrived = arrived
        self._asked: deque[Asked] = deque()
        # One thread each, as there are as many processes as processors.
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        self.process, self._socket = processes.start(__name__, quiet=False, environment={**os.environ, **threads})
        self._thread = threading.Thread(target=self._take_in, args=(setup,), name="dptrain-feeding", daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> None:
        self.held += 1
        self._asked.append(asked)
        with contextlib.suppress(OSError):  # it has ended
            processes.send(self._socket, pickle.dumps(asked.task))

    def lost(self) -> FeedingFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return FeedingFailed(
            "WORKER",
            f"a process that decodes contributions ended (exit status {self.process.poll()}), perhaps for want of memory; what "
            "was charged counts, and no step was released by half; open the run again with resume=True, with fewer workers if "
            "it recurs",
        )

    def _take_in(self, setup: bytes) -> None:
        """Takes in answers until there are no more."""
        with contextlib.suppress(OSError):
            processes.send(self._socket, setup)
            told = processes.receive(self._socket)
            if told is not None:
                with self._arrived:
                    self.ready, self.refused = not told, told.decode() or None
                    self._arrived.notify_all()
                while (head := processes.receive(self._socket)) is not None:
                    memory = processes.receive(self._socket)
                    if memory is None:
                        break
                    with self._arrived:
                        self._asked.popleft().answer = head, memory
                        self._arrived.notify_all()
        with self._arrived:
            self.gone = True
            self._arrived.notify_all()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        processes.end(self.process)
        self._thread.join(5)
        self._socket.close()


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.close()
    workers.clear()


# ------------------------------------------------------------------------------------------------------------ in a worker


def serve() -> None:
    """Serves as a worker: takes tasks from the socket that is standard input until the run closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # what the user's functions read from there is nothing, and no task
    os.close(nothing)
    with channel, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        setup = processes.receive(channel)
        if setup is None:
            return
        try:
            corpus, decode, collate, standing = pickle.loads(setup)
        except Exception as error:
            processes.send(channel, f"a new process cannot load them ({type(error).__name__}: {error})".encode())
            return
        torch.set_num_threads(1)
        _stand(standing)
        reader = Reader(corpus, decode, collate)
        processes.send(channel, b"")
        while (request := processes.receive(channel)) is not None:
            for part in _packed(_done(reader, pickle.loads(request))):
                processes.send(channel, part)


def _done(reader: Reader, task: Task) -> Done:
    """Does a task. What fails is done again by the process that asked, which raises it where it belongs."""
    reader.decode_draws, reader.collate_draws = task.draws
    numbers, cpu = Numbers(task.seed), torch.device("cpu")
    try:
        contents = reader.examples(task.entries, task.step, numbers)
        counts = tuple(map(len, contents))
        rows, looks = None, []
        if task.planned is not None:
            rows = reader.rows(task.planned, task.entries, contents, task.step, numbers, cpu)
        else:
            for planned in planned_check(task.entries, counts, *task.sizes):
                own, found = [task.entries[i] for i in planned.slots], [contents[i] for i in planned.slots]
                looks.append((planned.length, looks_of(reader.rows(planned, own, found, 0, numbers, cpu).inputs)))
        return Done(counts, (reader.decode_draws, reader.collate_draws), rows, tuple(looks))
    except Exception as error:
        return Done(failed=without_text(error))


def planned_check(entries: Sequence[Entry], counts: Sequence[int], contributions: int, rows: int | None) -> list[Planned]:
    """Plans the microbatches in which contributions are collated in a check; their slots are places among the entries."""
    drawn = [Drawn(i, 0, count, entry.length) for i, (entry, count) in enumerate(zip(entries, counts, strict=True))]
    return plan(drawn, contributions, rows)


def _standing() -> tuple[Any, ...]:
    """Returns how the common generators stand here, and what a tensor of Python's numbers is made of."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_default_dtype()


def _stand(standing: tuple[Any, ...]) -> None:
    random.setstate(standing[0])
    np.random.set_state(standing[1])
    torch.set_rng_state(standing[2])
    torch.set_default_dtype(standing[3])


# --------------------------------------------------------------------------------------------------------- what travels


def _pickled(what: Any) -> bytes:
    """Pickles functions by value, where there is cloudpickle.

    Raises:
        CannotSend: they hold something that cannot be.
    """
    try:
        import cloudpickle as by_value
    except ImportError:
        by_value = pickle  # functions of modules only
    try:
        return by_value.dumps(what)
    except Exception as error:  # whatever an object of the user's raises
        raise CannotSend(f"they cannot be pickled ({type(error).__name__}: {error})") from error


class _Packer(pickle.Pickler):
    """Pickles an answer, and puts its plain tensors aside, each once."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> tuple[int, torch.dtype, torch.Size] | None:
        if type(obj) is not torch.Tensor or obj.layout != torch.strided or obj.device.type != "cpu" or obj.requires_grad:
            return None
        if not obj.is_contiguous() or obj.is_quantized or obj.is_conj() or obj.is_neg():
            return None  # torch's own way keeps strides and all
        if id(obj) not in self._places:
            self._places[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._places[id(obj)], obj.dtype, obj.shape


class _Unpacker(pickle.Unpickler):
    """Puts tensors back, as views of one piece of memory."""

    def __init__(self, data: io.BytesIO, memory: torch.Tensor, starts: Sequence[int]) -> None:
        super().__init__(data)
        self._memory = memory
        self._starts = starts
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: tuple[int, torch.dtype, torch.Size]) -> torch.Tensor:
        place, dtype, shape = pid
        if place not in self._made:
            start, count = self._starts[place], shape.numel() * dtype.itemsize
            flat = self._memory[start : start + count].view(dtype) if count else torch.empty(0, dtype=dtype)
            self._made[place] = flat.view(shape)
        return self._made[place]


def _packed(done: Done) -> tuple[bytes, bytearray]:
    """Returns an answer as two messages: where its tensors lie with all that is no tensor, and the memory of the tensors."""
    out = io.BytesIO()
    packer = _Packer(out)
    try:
        packer.dump(done)
    except Exception as error:  # plain values that cannot be pickled
        return _packed(Done(failed=without_text(error)))
    starts = [0, *accumulate(-(-tensor.nbytes // _ALIGN) * _ALIGN for tensor in packer.tensors)]
    memory = bytearray(starts[-1])
    for start, tensor in zip(starts, packer.tensors, strict=False):
        if tensor.nbytes:
            torch.frombuffer(memory, dtype=tensor.dtype, offset=start, count=tensor.numel()).copy_(tensor.reshape(-1))
    return pickle.dumps((starts, out.getvalue())), memory


def _unpacked(head: bytearray, memory: bytearray, device: torch.device) -> Done:
    starts, data = pickle.loads(head)
    whole = pinned(torch.frombuffer(memory, dtype=torch.uint8), device) if memory else torch.empty(0, dtype=torch.uint8)
    return _Unpacker(io.BytesIO(data), whole, starts).load()
