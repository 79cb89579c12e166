"""Says how the microbatch under way computes, and holds what kernels share: threads, and the error for a wrong one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dptrain.errors import UnsupportedModule
from dptrain.noise.threads import Threads

LEAST = 1 << 18
"""Multiplications of a microbatch below which handing it to threads costs more than it saves."""

_MOST_THREADS = 64

_threads = Threads(_MOST_THREADS)


@dataclass
class Way:
    """Says how the microbatch that is under way computes; of one process, for there is one at a time.

    Attributes:
        torch_alone: everything is left to torch. holding: what holds products to torch's, in probes. owner: who set both; a
            microbatch that was left in the middle may end when another one is under way, and must not end the way of that.
    """

    torch_alone: bool = False
    holding: Any = None
    owner: object = None


way = Way()


def each(count: int, multiplications: int, work: Callable[[int, int], None]) -> None:
    """Shares contributions among as many threads as torch is told to use: ``work(first, how many)``."""
    pieces = min(count, torch.get_num_threads()) if multiplications >= LEAST else min(count, 1)
    cuts = [piece * count // max(1, pieces) for piece in range(pieces + 1)]
    if pieces > 1:
        _threads.each(lambda piece: work(cuts[piece], cuts[piece + 1] - cuts[piece]), range(pieces))
    elif pieces:
        work(0, count)


def wrong(what: str, found: float, true: float) -> UnsupportedModule:
    """Returns the error for a kernel that a probe found to compute something else than torch."""
    return UnsupportedModule(
        "KERNEL_WRONG",
        f"{what} is {found!r} by the fastest kernel at hand and {true!r} by torch's own, on rows that are nobody's. Train with "
        "Microbatches(products='torch'), and report it with the versions of torch and of the processor",
    )
