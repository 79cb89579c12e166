"""Gaussian noise on an integer lattice (docs/mechanism.md, Theorem 2): exact accounting without floating-point leaks.

The released value is ``gamma * (rint(sum / gamma) + rint(N(0, (s / gamma)^2))) / normaliser`` with ``gamma = s * 2^-32``.
Since ``rint(x) + a = rint(x + a)`` for integer ``a``, adding rounded noise to an integer sum is post-processing of the
ideal Gaussian mechanism on that sum, and the released support does not depend on the data.
"""

import math

import torch

from dptrain.noise.keystream import BLOCK_BYTES, KeyStream

LATTICE_BITS = 32
"""gamma = s * 2^-LATTICE_BITS. Every integer below 2^52 is exact in float64, which bounds |sum| by 2^20 * s."""

CHUNK = 1 << 15
"""Coordinates per chunk: the working set, a few float64 arrays of this size, stays in the cache of one core."""

TAIL_LANE = 1 << 31
"""Lanes from here on hold the further bits of radii in the tail; tensors have lanes below."""

_MANTISSA = (1 << 53) - 1
_LOW_BITS = (1 << 11) - 1
_TAIL = 2.0**-21
_CENTRE = 2.0**-12
_SUM_LIMIT = float(1 << 51)


def rounding_margin(coordinates: int, multiplier: float) -> float:
    """Relative shrink of the clip bound that pays for rounding the clipped sum once to the lattice.

    Rounding moves a difference of two sums by at most one lattice step per coordinate, which in the whitened norm
    (each block divided by its own ``s``) is ``2^-32 * sqrt(d)``. A contribution's whitened bound is ``1 / z_i``, so
    shrinking by ``z_i * 2^-32 * sqrt(d)`` keeps the sum of both within the bound.

    Args:
        coordinates: number of scheduled coordinates, d.
        multiplier: the noise multiplier at which a contribution is accounted.
    """
    return multiplier * math.sqrt(coordinates) * 2.0**-LATTICE_BITS


class LatticeGaussian:
    """Adds N(0, s^2) on the lattice to a clipped sum, reading noise from a :class:`KeyStream`.

    Guarantee: the output of :meth:`release_` is ``gamma/normaliser`` times an integer per coordinate, the noise integer of
    coordinate ``o`` of tensor ``lane`` at ``step`` is a function of (key, step, lane, o) alone and is used once, and the
    noise is normal with standard deviation ``s`` up to a radius of 13 s (mass 1e-37), with radii finer than the lattice.
    """

    def __init__(self, stream: KeyStream) -> None:
        self._stream = stream
        self._drawn: tuple[int, set[int]] = (-1, set())

    def normals(self, step: int, lane: int, offset: int, count: int) -> torch.Tensor:
        """Standard normals (float64, shape (count,)) of coordinates [offset, offset + count); ``offset`` must be even.

        Box and Muller (1958): one 16-byte block gives the pair of coordinates (2k, 2k+1), by radius and angle. The radius must
        be finer than the lattice everywhere, or a release that no radius can produce would tell two worlds apart. So x is
        uniform on (0, 1/2] in steps of 2^-75, one bit says whether u = x or u = 1 - x, and where x < 2^-21 a second block
        adds 53 more bits: the logarithm keeps its relative precision at both ends, to a radius of 13.

        Args:
            step, lane: the address; ``lane`` is the index of a tensor, below 2^31.
        """
        if offset % 2:
            raise ValueError(f"offset must be even, got {offset}: coordinates are drawn in pairs")
        if not 0 <= lane < TAIL_LANE:
            raise ValueError(f"lane {lane} is not the index of a tensor, expected 0 to 2^31 - 1")
        pairs = (count + 1) // 2
        words = torch.frombuffer(bytearray(self._stream.read(step, lane, offset // 2, pairs)), dtype=torch.int64).view(pairs, 2)
        assert words.numel() * 8 == pairs * BLOCK_BYTES
        first, second = words[:, 0], words[:, 1]
        fine = first.bitwise_and(_LOW_BITS).bitwise_left_shift_(10)
        fine.add_(second.bitwise_right_shift(1).bitwise_and_(_LOW_BITS >> 1)).add_(1)
        x = first.bitwise_right_shift(11).bitwise_and_(_MANTISSA).to(torch.float64).mul_(2.0**-54)
        x.add_(fine.to(torch.float64), alpha=2.0**-75)
        mirrored = second.bitwise_and(1).to(torch.float64)
        small = torch.nonzero(x < _CENTRE).flatten()  # a few in a thousand
        for index in small[x[small] < _TAIL].tolist():
            more = self._stream.read(step, lane | TAIL_LANE, offset // 2 + index, 1)
            x[index] += (int.from_bytes(more[:8], "little") >> 11) * 2.0**-128
        centre = small[mirrored[small] == 1.0]
        near_one = torch.log1p(-x[centre])
        square = mirrored.sub_(x).abs_().log_()  # |1 - x| or |0 - x|, both as exact as float64 allows
        square[centre] = near_one
        radius = square.mul_(-2.0).sqrt_()
        angle = second.bitwise_right_shift(11).bitwise_and_(_MANTISSA).to(torch.float64).mul_(2.0**-53 * 2.0 * math.pi)
        out = torch.empty(pairs, 2, dtype=torch.float64)
        torch.mul(radius, torch.cos(angle), out=out[:, 0])
        torch.mul(radius, angle.sin_(), out=out[:, 1])
        return out.view(-1)[:count]

    def gaussian(self, step: int, lane: int, offset: int, count: int, draws: int = 1) -> torch.Tensor:
        """Standard normals made of ``draws`` draws of variance 1/draws each, added up in float64 and not rounded.

        Draw g is read at lane ``lane * draws + g``: (tensor, draw) and lane determine each other, so no draw meets another one.
        """
        total = self.normals(step, lane * draws, offset, count)
        for place in range(lane * draws + 1, (lane + 1) * draws):
            total.add_(self.normals(step, place, offset, count))
        return total if draws == 1 else total.mul_(draws**-0.5)

    def release_(
        self, clipped_sum: torch.Tensor, std: float, normalizer: float, *, step: int, lane: int, draws: int = 1
    ) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place.

        Args:
            clipped_sum: sum over contributions of clipped gradients, any shape, float32 or float64, contiguous.
            std: s > 0, the scheduled noise standard deviation on the sum.
            normalizer: the public constant that divides the noised sum.
            step: logical step, 1-based. lane: index of the tensor in the schedule.
            draws: how many draws make up the noise, std^2 / draws each; the same number in every release of a run.

        Returns:
            ``clipped_sum`` itself, now private.

        Raises:
            ValueError: std not finite and positive, tensor not contiguous, or an address released twice.
        """
        if not (math.isfinite(std) and std > 0.0):
            raise ValueError(f"noise standard deviation must be finite and positive, got {std}")
        if not clipped_sum.is_contiguous():
            raise ValueError("the clipped sum must be contiguous: noise is addressed by flat offset")
        self._claim(step, lane)
        gamma = std * 2.0**-LATTICE_BITS
        flat = clipped_sum.view(-1)
        scale = gamma / normalizer
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK]
            integers = part.to("cpu", torch.float64).div_(gamma).round_().clamp_(-_SUM_LIMIT, _SUM_LIMIT)
            noise = self.gaussian(step, lane, start, part.numel(), draws).mul_(2.0**LATTICE_BITS).round_()
            part.copy_(integers.add_(noise).mul_(scale))
        return clipped_sum

    def destroy(self) -> None:
        """Forgets the key; nothing can be drawn again."""
        del self._stream

    def _claim(self, step: int, lane: int) -> None:
        current, lanes = self._drawn
        if step < current or (step == current and lane in lanes):
            raise ValueError(f"noise of step {step}, tensor {lane} was already drawn in this attempt; it is never used twice")
        if step > current:
            self._drawn = (step, lanes := set())
        lanes.add(lane)
