"""Runs a function as several processes of one group, and hands back what each returned."""

import faulthandler
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from tests.worlds.programs import forking

LIMIT = 60.0
"""Seconds within which all processes must have ended."""


class RankFailed(AssertionError):
    """A process raised, or ended without a word. `ranks`: by rank, the exception, or its text where it cannot be pickled."""

    def __init__(self, ranks: dict[int, object], told: str) -> None:
        super().__init__(told)
        self.ranks = ranks


@dataclass(frozen=True)
class Ended:
    """How one process ended. `value`: what it returned; `error`: what it raised; neither: it was killed."""

    value: Any = None
    error: BaseException | str | None = None
    returned: bool = False
    told: str = ""


def launched(work: Callable[..., Any], ranks: int, *arguments: Any, limit: float = LIMIT) -> list[Any]:
    """Runs ``work(rank, *arguments)`` in so many processes under gloo, and returns what each returned, by rank.

    ``work`` is a function of a module. With one rank there is no process group, as in a program that nobody launched.

    Raises:
        RankFailed: a process raised or was killed.
    """
    found = ended(work, ranks, *arguments, limit=limit)
    failed = {rank: one.error or "killed" for rank, one in enumerate(found) if not one.returned}
    if failed:
        raise RankFailed(failed, "\n".join(f"rank {rank}: {found[rank].told or error}" for rank, error in failed.items()))
    return [one.value for one in found]


def ended(
    work: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    limit: float = LIMIT,
    meanwhile: Callable[[Sequence[Any]], None] | None = None,
) -> list[Ended]:
    """Does what :func:`launched` does, and says of each process how it ended.

    Args:
        limit: seconds until those that are still there are killed; they count as hanging.
        meanwhile: called with the processes once they run, to kill one.

    Raises:
        AssertionError: processes were still there at the limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        pairs = [Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            forking().Process(target=_main, args=(pairs[rank][1], work, rank, ranks, meeting, arguments, limit), daemon=True)
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for _, end in pairs:
            end.close()
        if meanwhile is not None:
            meanwhile(processes)
        found = _heard([end for end, _ in pairs], limit)
        for process in processes:
            process.join(5 if len(found) == ranks else 0)
            if process.is_alive():
                process.kill()
                process.join()
        assert len(found) == ranks, f"ranks {sorted(set(range(ranks)) - set(found))} hang after {limit:g} s"
        return [found[rank] for rank in range(ranks)]


def _heard(ends: list[Connection], limit: float) -> dict[int, Ended]:
    found: dict[int, Ended] = {}
    until = time.monotonic() + limit
    while len(found) < len(ends) and (left := until - time.monotonic()) > 0:
        for end in wait([end for rank, end in enumerate(ends) if rank not in found], left):
            try:
                found[ends.index(end)] = pickle.loads(end.recv_bytes())  # type: ignore[arg-type, union-attr]
            except EOFError:
                found[ends.index(end)] = Ended()  # type: ignore[arg-type]
    return found


def _main(
    end: Connection, work: Callable[..., Any], rank: int, ranks: int, meeting: str, arguments: tuple[Any, ...], limit: float
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(limit * 0.9, exit=False)  # of who hangs, to standard error
    try:
        if ranks > 1:
            os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # as torchrun says; the group meets in a file
            dist.init_process_group(
                "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=timedelta(seconds=limit / 2)
            )
        told = Ended(work(rank, *arguments), None, True)
    except BaseException as error:
        told = Ended(None, error, False, traceback.format_exc())
    try:
        data = pickle.dumps(told)
        pickle.loads(data)
    except Exception as error:
        data = pickle.dumps(Ended(None, f"{told.error!r} ({error})", told.returned and not told.error, told.told))
    end.send_bytes(data)
    end.close()
    os._exit(0)
