"""Lets the processes of one run speak: what rank 0 did and everybody hears, and what all must say alike.

Messages go through a group of their own on processors (gloo), beside the group that carries tensors. The network between ranks
is trusted: keys travel on it in memory, and nobody signs what one process tells another (docs/ranks.md).
"""

import hashlib
import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import torch
import torch.distributed as dist

from dptrain.errors import RanksError

T = TypeVar("T")

FIRST_BYTES: Final = 4096
"""Bytes of the first message; what is longer follows in a second one."""

BLOCK: Final = 160
"""Bytes of the first message where all say something: what it is about, how long it is, and what fits."""

SHORT: Final = 100
"""Bytes of a text that needs no second message."""

_DONE, _FAILED = 0, 1
_HEAD = 9
"""Bytes before what is told: how it ended, and how long it is."""

_TREES: Final = ("dptrain.errors", "ledger.errors", "attest.errors")
"""Modules whose errors every rank raises as rank 0 did."""

NAMED: Final = 16
"""Bytes of the digests that ranks compare."""


class Ranks:
    """One process alone: it has everything done, hears itself, and agrees with itself. `Group` is one process of several.

    Attributes:
        rank: number of this process, from 0. size: how many there are.
    """

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        """Tells whether this process writes: the ledger, its files, and what people see."""
        return self.rank == 0

    def first(self, action: Callable[[], bytes]) -> bytes:
        """Runs an action on rank 0, and returns at every rank what it returned there, or raises what it raised.

        Guarantee: No rank returns before rank 0 has done the action, and none returns what another one does not.

        Args:
            action: returns bytes; the other ranks do not call it.

        Raises:
            RanksError: code RANK_LOST, a process ended or does not answer within the time limit of the group.
        """
        return action()

    def all(self, own: bytes, at: str = "a message") -> list[bytes]:
        """Returns what every rank gives, by rank; of one length.

        Args:
            at: what this rank is about to do, in a few words.

        Raises:
            RanksError: code RANKS_DIFFER, another rank is about to do something else. As :meth:`first` besides.
        """
        return [own]

    def agree(self, what: Mapping[str, bytes]) -> None:
        """Refuses to go on where ranks differ.

        Args:
            what: by the words that name it, what must be the same everywhere.

        Raises:
            RanksError: code RANKS_DIFFER, it names what differs, and at which ranks. As :meth:`first` besides.
        """
        names = list(what)
        found = self.all(b"".join(_digest(what[name]) for name in names))
        for place, name in enumerate(names):
            said = [one[place * NAMED : (place + 1) * NAMED] for one in found]
            other = [rank for rank, digest in enumerate(said) if digest != said[0]]
            if other:
                raise differs(name, other)

    def texts(self, own: str) -> list[str]:
        """Returns what every rank has to say, by rank, of any length. Raises as :meth:`first`."""
        data = own.encode()
        found = self.all(len(data).to_bytes(8, "big") + data[:SHORT].ljust(SHORT, b"\x00"), "a word of each")
        longest = max(int.from_bytes(one[:8], "big") for one in found)
        if longest > SHORT:
            found = self.all(len(data).to_bytes(8, "big") + data.ljust(longest, b"\x00"), "a longer word of each")
        return [one[8 : 8 + int.from_bytes(one[:8], "big")].decode() for one in found]

    def carry(self, collective: Callable[[], T]) -> T:
        """Runs a collective of torch that carries tensors between the ranks, or begins or ends one. Raises as :meth:`first`."""
        return collective()

    def leave(self) -> None:
        """Takes no more part: whoever waits for this process learns that it is gone. What rank 0 writes, it writes alone."""


class Group(Ranks):
    """One process of several.

    Args:
        limit: longest time that a process waits for the others; default: that of the process group.
    """

    def __init__(self, limit: timedelta | None = None) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._limit = limit or _limit_of_group()
        self._left = False
        try:
            self._group: Any = dist.new_group(backend="gloo", timeout=self._limit)
        except RuntimeError as error:
            self._lost(str(error).partition("\n")[0], error)

    def first(self, action: Callable[[], bytes]) -> bytes:
        if self._left:
            return action() if self.leads else self._lost("this process has left the run")
        if not self.leads:
            return self._hear()
        try:
            told, how = action(), _DONE
        except Exception as error:
            self._tell(_FAILED, named(error))
            raise
        self._tell(how, told)
        return told

    def all(self, own: bytes, at: str = "a message") -> list[bytes]:
        if self._left:
            self._lost("this process has left the run")
        head = _digest(at.encode()) + len(own).to_bytes(8, "big")
        found = self._gathered((head + own)[:BLOCK].ljust(BLOCK, b"\x00"))
        other = [rank for rank, one in enumerate(found) if one[: len(head)] != head]
        if other:
            raise differs(f"what is to be done next ({at})", other, "every process must call the same things in the same order")
        if len(head) + len(own) > BLOCK:
            rest = self._gathered(own[BLOCK - len(head) :])
            found = [one + more for one, more in zip(found, rest, strict=True)]
        return [one[len(head) : len(head) + len(own)] for one in found]

    def _gathered(self, own: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self.carry(lambda: dist.all_gather(found, mine, group=self._group))
        return [bytes(one.numpy().tobytes()) for one in found]

    def leave(self) -> None:
        if not self._left:
            self._left = True
            group, self._group = self._group, None
            try:
                dist.destroy_process_group(group)
            except Exception:  # the program has ended the whole before
                return

    def _tell(self, how: int, told: bytes) -> None:
        message = bytearray(max(FIRST_BYTES, _HEAD + len(told)))
        message[0] = how
        message[1:_HEAD] = len(told).to_bytes(8, "big")
        message[_HEAD : _HEAD + len(told)] = told
        whole = torch.frombuffer(message, dtype=torch.uint8)
        self._broadcast(whole[:FIRST_BYTES])
        if len(whole) > FIRST_BYTES:
            self._broadcast(whole[FIRST_BYTES:])

    def _hear(self) -> bytes:
        first = torch.empty(FIRST_BYTES, dtype=torch.uint8)
        self._broadcast(first)
        data = first.numpy().tobytes()
        length = int.from_bytes(data[1:_HEAD], "big")
        if _HEAD + length > FIRST_BYTES:
            rest = torch.empty(_HEAD + length - FIRST_BYTES, dtype=torch.uint8)
            self._broadcast(rest)
            data += rest.numpy().tobytes()
        told = data[_HEAD : _HEAD + length]
        if data[0] == _FAILED:
            raise error_of(told)
        return told

    def _broadcast(self, message: torch.Tensor) -> None:
        self.carry(lambda: dist.broadcast(message, 0, group=self._group))

    def carry(self, collective: Callable[[], T]) -> T:
        try:
            return collective()
        except RuntimeError as error:
            self._lost(str(error).partition("\n")[0], error)

    def _lost(self, why: str, cause: Exception | None = None) -> NoReturn:
        raise RanksError(
            "RANK_LOST",
            f"rank {self.rank} of {self.size} cannot reach the others ({why:.200}): a process has ended, or does not answer "
            f"within {self._limit.total_seconds():g} s. What was charged stays charged; resume the run on as many processes as "
            "you have",
        ) from cause


ALONE: Final = Ranks()
"""The one process of a run that has no others."""


def found() -> Ranks:
    """Returns the ranks of the process group of this program; `ALONE` where it has none, or is alone in it.

    Raises:
        RanksError: code NO_GROUP, the program was launched as one of several processes, which nothing has brought together yet.
    """
    if dist.is_available() and not dist.is_initialized() and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise RanksError(
            "NO_GROUP",
            f"this is one of {os.environ['WORLD_SIZE']} processes, and there is no process group yet; make Accelerator(), "
            "TrainingArguments, or torch.distributed.init_process_group() before the run is opened",
        )
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    return Group()


def _limit_of_group() -> timedelta:
    """Returns the time limit that the program gave its process group (accelerate: ``InitProcessGroupKwargs(timeout=...)``)."""
    backend = dist.distributed_c10d._get_default_group()
    for device in (torch.device("cpu"), torch.device("cuda")):
        try:
            limit = backend._get_backend(device).options._timeout
        except (RuntimeError, AttributeError):
            continue
        if isinstance(limit, timedelta):
            return limit
    return dist.distributed_c10d.default_pg_timeout


@lru_cache(maxsize=1)
def code_digest() -> bytes:
    """Returns SHA-256 over the program text of dptrain, ledger and attest, and the version of torch: what ranks must share."""
    found = hashlib.sha256(torch.__version__.encode())
    for package in ("dptrain", "ledger", "attest"):
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            found.update(str(path.relative_to(root)).encode() + b"\x00" + hashlib.sha256(path.read_bytes()).digest())
    return found.digest()


_ALIKE: Final = "every process must run the same program over the same files"


def differs(what: str, ranks: Sequence[int], do: str = _ALIKE) -> RanksError:
    """Returns the error that says what ranks have otherwise than rank 0, and what to `do`."""
    shown = ", ".join(map(str, ranks[:8]))
    return RanksError("RANKS_DIFFER", f"{what} at rank {shown} and at rank 0: expected the same, found others; {do}")


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:NAMED]


def named(error: Exception) -> bytes:
    """Returns an error as bytes: module, class, code, the numbers that it has besides, and sentence."""
    kind = type(error)
    code, sentence = getattr(error, "code", kind.__name__), getattr(error, "sentence", str(error))
    told = {name: value for name, value in vars(error).items() if isinstance(value, int | float | None)}
    return "\x00".join((kind.__module__, kind.__name__, str(code), json.dumps(told), str(sentence))).encode()


def error_of(told: bytes) -> Exception:
    """Returns the error that rank 0 raised: of the same class where it is one of ours."""
    module, name, code, numbers, sentence = told.decode().split("\x00", 4)
    if module in _TREES:
        kind = getattr(importlib.import_module(module), name, None)
        try:
            if kind is not None:
                made: Exception = kind(code, sentence, **json.loads(numbers))
                return made
        except TypeError:
            pass
    return RanksError("RANK_0", f"rank 0 stopped with {name}: {sentence}")


def joined(parts: Sequence[bytes]) -> bytes:
    """Returns byte strings as one, for :func:`parted`."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def parted(data: bytes) -> list[bytes]:
    """Returns the byte strings that :func:`joined` put together."""
    parts, place = [], 0
    while place < len(data):
        length = int.from_bytes(data[place : place + 8], "big")
        parts.append(data[place + 8 : place + 8 + length])
        place += 8 + length
    return parts
