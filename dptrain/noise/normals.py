"""Makes standard normals from blocks of a key stream: the transform of Box and Muller, in few passes over memory.

Integer work and comparisons are numpy's, on buffers that stay in the cache of one core; logarithm, root, sine and cosine are
torch's, whose last bit every release since the first version follows.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

TAIL_LANE = 1 << 31
"""Lanes from here on hold the further bits of radii in the tail; tensors have lanes below."""

AT_A_TIME = 1 << 16
"""Pairs that are transformed at a time: some arrays of float64 of this size stay in the caches of a core."""

_BLOCK_BYTES = 16
_DROPPED = np.uint64(11)
_LOW = np.uint64((1 << 11) - 1)
_HALF_LOW = np.uint64((1 << 10) - 1)
_ONE = np.uint64(1)
_TEN = np.uint64(10)
TAIL = 2.0**-21
"""Where x is smaller, it has 53 further bits."""

_CENTRE = 2.0**-12


class Blocks(Protocol):
    """Gives random bytes; :class:`dptrain.noise.keystream.KeyStream`."""

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes: ...


class BoxMuller:
    """Turns blocks of a stream into normals; one instance serves one thread, and keeps its buffers from call to call.

    One 16-byte block gives the pair of coordinates (2k, 2k+1), by radius and angle (Box and Muller, 1958). The radius must be
    finer than the lattice everywhere, or a release that no radius can produce would tell two worlds apart. So x is uniform
    on (0, 1/2] in steps of 2^-75, one bit says whether u = x or u = 1 - x, and where x < 2^-21 a second block adds 53 more
    bits: the logarithm keeps its relative precision at both ends, and the largest radius is 13.3.
    """

    def __init__(self) -> None:
        self._room(0)

    def _room(self, pairs: int) -> None:
        self._integers = [np.empty(pairs, np.uint64) for _ in range(3)]
        self._floats = [np.empty(pairs, np.float64) for _ in range(3)]
        self._mask = np.empty(pairs, np.bool_)

    def normals(self, stream: Blocks, step: int, lane: int, offset: int, count: int) -> torch.Tensor:
        """Returns standard normals (float64, shape (count,)) of coordinates [offset, offset + count); ``offset`` must be even.

        Args:
            step, lane: the address; ``lane`` is below ``TAIL_LANE``.
        """
        pairs, block = (count + 1) // 2, offset // 2
        if pairs > AT_A_TIME:
            starts = range(0, count, 2 * AT_A_TIME)
            parts = [self.normals(stream, step, lane, offset + at, min(2 * AT_A_TIME, count - at)) for at in starts]
            return torch.cat(parts)
        data = stream.read(step, lane, block, pairs)
        assert len(data) == pairs * _BLOCK_BYTES
        words = np.frombuffer(data, dtype="<u8").reshape(pairs, 2)
        return self.transformed(words, lambda place: stream.read(step, lane | TAIL_LANE, block + place, 1)).view(-1)[:count]

    def transformed(self, words: np.ndarray, more: Callable[[int], bytes]) -> torch.Tensor:
        """Returns the pairs of normals that blocks give (float64, shape (pairs, 2)).

        Args:
            words: the blocks, two words each, uint64, shape (pairs, 2).
            more: gives the second block of a pair in the tail, by its place among these.
        """
        pairs = len(words)
        if pairs > len(self._mask):
            self._room(pairs)
        first, second, fine = (buffer[:pairs] for buffer in self._integers)
        x, square, angle = (buffer[:pairs] for buffer in self._floats)
        mask = self._mask[:pairs]
        np.copyto(first, words[:, 0])
        np.copyto(second, words[:, 1])

        np.bitwise_and(first, _LOW, out=fine)
        np.left_shift(fine, _TEN, out=fine)
        np.right_shift(first, _DROPPED, out=first)
        _to_float(first, x)
        x *= 2.0**-54
        np.right_shift(second, _ONE, out=first)
        np.bitwise_and(first, _HALF_LOW, out=first)
        np.add(fine, first, out=fine)
        np.add(fine, _ONE, out=fine)
        _to_float(fine, square)
        square *= 2.0**-75
        np.add(x, square, out=x)

        np.bitwise_and(second, _ONE, out=fine)
        _to_float(fine, square)  # one where u = 1 - x
        small = np.flatnonzero(np.less(x, _CENTRE, out=mask))  # a few in a thousand
        for index in small[x[small] < TAIL].tolist():
            x[index] += (int.from_bytes(more(index)[:8], "little") >> 11) * 2.0**-128
        centre = small[square[small] == 1.0]
        near_one = torch.log1p(-torch.from_numpy(x[centre])).numpy()
        np.subtract(square, x, out=square)
        np.abs(square, out=square)  # |1 - x| or |0 - x|, both as exact as float64 allows
        torch.from_numpy(square).log_()
        square[centre] = near_one
        square *= -2.0
        torch.from_numpy(square).sqrt_()  # the radius; numpy's square root may differ in the last bit

        np.right_shift(second, _DROPPED, out=second)
        _to_float(second, angle)
        angle *= 2.0**-53 * 2.0 * math.pi
        turned = torch.from_numpy(angle)
        torch.cos(turned, out=torch.from_numpy(x))
        turned.sin_()
        out = torch.empty(pairs, 2, dtype=torch.float64)
        places = out.numpy()
        np.multiply(square, x, out=places[:, 0])
        np.multiply(square, angle, out=places[:, 1])
        return out


def _to_float(integers: np.ndarray, out: np.ndarray) -> None:
    """Converts exactly: every integer here is below 2^53."""
    np.copyto(out, integers.view(np.int64), casting="unsafe")
