"""Adds Gaussian noise on an integer lattice (docs/mechanism, Theorem 2): exact accounting without floating-point leaks.

The released value is ``gamma * (rint(sum / gamma) + rint(N(0, (s / gamma)^2))) / normaliser`` with ``gamma = s * 2^-32``.
Since ``rint(x) + a = rint(x + a)`` for integer ``a``, adding rounded noise to an integer sum is post-processing of the
ideal Gaussian mechanism on that sum, and the released support does not depend on the data.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from dptrain.noise.adding import add_
from dptrain.noise.keystream import KeyStream
from dptrain.noise.mechanism import Independent
from dptrain.noise.normals import AT_A_TIME, TAIL_LANE, Blocks, BoxMuller
from dptrain.noise.rounded import RoundedNormals
from dptrain.noise.threads import Idle, Threads
from ledger.accountants.table import LATTICE_BITS

CHUNK = 1 << 20
"""Coordinates per turn of a thread, at most: 8 MiB of noise. What is asked of the reference is asked once per turn, in short
operations between which threads of the interpreter wait for each other."""

LEAST = 1 << 18
"""Coordinates that are worth a thread: with fewer, threads wait for each other longer than it takes one of them."""

MOST_THREADS = 6
"""Threads that draw at a time: in a tenth of the work, what is asked of the reference above all, no other thread of the
interpreter runs."""

SUM_LIMIT = float(1 << 51)
"""Lattice steps beyond which a sum is cut: 2^19 standard deviations, where nothing that is clipped gets."""


def rounding_margin(coordinates: int, multiplier: float) -> float:
    """Returns the relative shrink of the clip bound that pays for rounding the clipped sum once to the lattice.

    Rounding moves a difference of two sums by at most one lattice step per coordinate, which in the whitened norm
    (each block divided by its own ``s``) is ``2^-32 * sqrt(d)``. A contribution's whitened bound is ``1 / z_i``, so
    shrinking by ``z_i * 2^-32 * sqrt(d)`` keeps the sum of both within the bound.

    Args:
        coordinates: number of scheduled coordinates, d.
        multiplier: the noise multiplier at which a contribution is accounted.
    """
    return multiplier * math.sqrt(coordinates) * 2.0**-LATTICE_BITS


def require_releasable(clipped_sum: torch.Tensor, std: float) -> None:
    """Raises ValueError for what is no standard deviation, and for a sum whose noise has no flat offset."""
    if not (math.isfinite(std) and std > 0.0):
        raise ValueError(f"noise standard deviation must be finite and positive, got {std}")
    if not 2.0**-900 <= std <= 2.0**900:
        raise ValueError(f"noise standard deviation must leave room for its lattice, between 2^-900 and 2^900, got {std}")
    if not clipped_sum.is_contiguous():
        raise ValueError("the clipped sum must be contiguous: noise is addressed by flat offset")


class Claims:
    """Keeps the addresses at which noise was drawn in this attempt; each is claimed once, and steps only ascend."""

    def __init__(self) -> None:
        self._step = -1
        self._lanes: dict[int, list[tuple[int, int]]] = {}

    def claim(self, step: int, lane: int, offset: int, count: int) -> None:
        """Takes the addresses of some coordinates of a tensor, from ``offset`` on.

        Raises:
            ValueError: one of them was taken before, or one of a later step was.
        """
        if step > self._step:
            self._step, self._lanes = step, {}
        taken = self._lanes.setdefault(lane, [])
        if step < self._step or any(offset < end and begin < offset + count for begin, end in taken):
            raise ValueError(f"noise of step {step}, tensor {lane} was already drawn in this attempt; it is never used twice")
        taken.append((offset, offset + count))


class OnHost(Independent):
    """Adds whole numbers of lattice steps to clipped sums, on the processor and on several threads.

    A kind of noise gives them by `noise`. The lattice has the step ``gamma = s * 2^-bits``; sums are cut at ``limit`` steps.

    Args:
        stream: of the noise. bits: of the lattice. limit: largest sum in lattice steps. chunk: coordinates of one `noise`.
    """

    def __init__(self, stream: Blocks, bits: int, limit: float, chunk: int) -> None:
        self._stream = stream
        self._bits, self._limit, self._chunk = bits, limit, chunk
        self._claims = Claims()
        self._threads = Threads(MOST_THREADS)

    addressed = True

    def noise(self, step: int, lane: int, start: int, count: int, draws: int) -> np.ndarray:
        """Returns the noise of a chunk in lattice steps, whole numbers; any number of threads may ask at a time."""
        raise NotImplementedError

    def chunks(self, offset: int, end: int) -> range:
        """Returns where the chunks begin that hold the coordinates [offset, end): multiples of the size of one."""
        return range(offset - offset % self._chunk, end, self._chunk)

    def placed(self, noise: np.ndarray, step: int, first: int) -> np.ndarray:
        """Returns what is added to the part of a chunk that is released, from coordinate ``first`` of that part on.

        Noise that depends on other steps is made here, of what `noise` gives then.
        """
        return noise

    def release_(
        self,
        clipped_sum: torch.Tensor,
        std: float,
        normalizer: float,
        *,
        step: int,
        lane: int,
        draws: int = 1,
        offset: int = 0,
        size: int | None = None,
        **where: Any,
    ) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place; see `dptrain.noise.mechanism.Mechanism`.

        Args:
            clipped_sum: sum over contributions of clipped gradients, any shape, float32 or float64, contiguous.
            std: s > 0. normalizer: the public constant that divides the noised sum.
            step: logical step, 1-based. lane: index of the tensor in the schedule.
            draws: how many draws make up the noise.
            offset, size: where this is part of a tensor, number of its first coordinate and coordinates of the whole.

        Raises:
            ValueError: std not finite and positive, tensor not contiguous, or an address released twice.
        """
        require_releasable(clipped_sum, std)
        end = offset + clipped_sum.numel()
        whole = end if size is None else size
        self._claims.claim(step, lane, offset, clipped_sum.numel())
        gamma = std * 2.0**-self._bits
        host = clipped_sum.to("cpu", torch.float64)  # the sum itself where it lies there
        flat, scale = host.view(-1).numpy(), gamma / normalizer

        chunks = self.chunks(offset, end)

        def draw(start: int) -> None:
            """Adds the noise of a chunk, drawn whole wherever the part begins and ends: addresses may follow from the chunk."""
            first, last = max(start, offset), min(start + chunks.step, end)
            part = flat[first - offset : last - offset]
            noise = self.noise(step, lane, start, min(chunks.step, whole - start), draws)
            add_(part, self.placed(noise[first - start : last - start], step, first - offset), gamma, self._limit, scale)

        self._threads.each(draw, chunks)
        if host is not clipped_sum:
            clipped_sum.copy_(host)
        torch.autograd.graph.increment_version(clipped_sum)  # of what numpy wrote torch knows nothing
        return clipped_sum

    def destroy(self) -> None:
        """Forgets the key; nothing can be drawn again."""
        self._threads.close()
        del self._stream


class LatticeGaussian(OnHost):
    """Adds N(0, s^2) on the lattice to a clipped sum, reading noise from a :class:`KeyStream`.

    Guarantee: the output of :meth:`release_` is ``gamma/normaliser`` times an integer per coordinate, the noise integer of
    coordinate ``o`` of tensor ``lane`` at ``step`` is a function of (key, step, lane, o) alone and is used once, and the
    noise is normal with standard deviation ``s``. Radii are finer than the lattice up to 11.7 s (mass beyond: 2e-30), and end
    at 13.3 s.

    Args:
        chunk: coordinates per turn of a thread, at most; default: `CHUNK`.
    """

    def __init__(self, stream: KeyStream, chunk: int | None = None) -> None:
        super().__init__(stream, LATTICE_BITS, SUM_LIMIT, CHUNK if chunk is None else chunk)
        self._transforms: Idle[BoxMuller] = Idle(BoxMuller)
        self._roundings: Idle[RoundedNormals] = Idle(partial(RoundedNormals, LATTICE_BITS))

    def destroy(self) -> None:
        """Forgets the key, and the buffers that hold noise."""
        super().destroy()
        self._transforms.clear()
        self._roundings.clear()

    def normals(self, step: int, lane: int, offset: int, count: int, stream: Blocks | None = None) -> torch.Tensor:
        """Returns standard normals (float64, shape (count,)) of coordinates [offset, offset + count); ``offset`` must be even.

        The transform and its resolution are :class:`BoxMuller`'s; any number of threads may draw at a time.

        Args:
            step, lane: the address; ``lane`` is the index of a tensor, below 2^31.
            stream: another one than that of this attempt.
        """
        _require_address(lane, offset)
        with self._transforms.one() as transform:
            return transform.normals(self._stream if stream is None else stream, step, lane, offset, count)

    def gaussian(self, step: int, lane: int, offset: int, count: int, draws: int = 1) -> torch.Tensor:
        """Returns standard normals made of ``draws`` draws of variance 1/draws each, added up in float64 and not rounded.

        Draw g is read at lane ``lane * draws + g``: (tensor, draw) and lane determine each other, so no draw meets another one.
        """
        total = self.normals(step, lane * draws, offset, count)
        values = total.numpy()  # for sums in this thread alone
        for place in range(lane * draws + 1, (lane + 1) * draws):
            values += self.normals(step, place, offset, count).numpy()
        if draws > 1:
            values *= draws**-0.5
        return total

    def chunks(self, offset: int, end: int) -> range:
        """Shares coordinates evenly among threads: any even place may begin a chunk here, and no bit follows from which do."""
        first = offset - offset % 2
        threads = max(1, min(torch.get_num_threads(), MOST_THREADS, (end - first) // LEAST))
        turns = -(-(end - first) // (self._chunk * threads))
        size = -(-(end - first) // (threads * max(1, turns)))
        return range(first, end, max(2, size + size % 2))

    def noise(self, step: int, lane: int, start: int, count: int, draws: int) -> np.ndarray:
        """Returns the normals of `gaussian` in lattice steps, rounded."""
        if draws == 1:
            _require_address(lane, start)
            with self._roundings.one() as rounding:
                return rounding.steps(self._stream, step, lane, start, count)
        noise, part = np.empty(count), 2 * AT_A_TIME
        for at in range(0, count, part):
            noise[at : at + part] = self.gaussian(step, lane, start + at, min(part, count - at), draws).numpy()
        noise *= 2.0**LATTICE_BITS
        return np.rint(noise, out=noise)


def _require_address(lane: int, offset: int) -> None:
    """Raises ValueError for what is not the address of a pair of coordinates of a tensor."""
    if offset % 2:
        raise ValueError(f"offset must be even, got {offset}: coordinates are drawn in pairs")
    if not 0 <= lane < TAIL_LANE:
        raise ValueError(f"lane {lane} is not the index of a tensor, expected 0 to 2^31 - 1")
