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

CHUNK = 1 << 18
"""Coordinates per chunk: the working set of a few float64 chunks stays in cache."""

_MANTISSA = (1 << 53) - 1
_SUM_LIMIT = float(1 << 51)


def rounding_margin(coordinates: int, largest_multiplier: float) -> float:
    """Relative shrink of the clip bound that pays for rounding the clipped sum once to the lattice.

    Rounding moves a difference of two sums by at most one lattice step per coordinate, which in the whitened norm
    (each block divided by its own ``s``) is ``2^-32 * sqrt(d)``. A contribution's whitened bound is ``1 / sigma_i``, so
    shrinking by ``sigma_i * 2^-32 * sqrt(d)`` keeps the sum of both within the bound.

    Args:
        coordinates: number of scheduled coordinates, d.
        largest_multiplier: the largest noise multiplier any contribution may be accounted at.
    """
    return largest_multiplier * math.sqrt(coordinates) * 2.0**-LATTICE_BITS


class LatticeGaussian:
    """Adds N(0, s^2) on the lattice to a clipped sum, reading noise from a :class:`KeyStream`.

    Guarantee: the output of :meth:`release_` is ``gamma/normaliser`` times an integer per coordinate, the noise integer of
    coordinate ``o`` of tensor ``lane`` at ``step`` is a function of (key, step, lane, o) alone and is used once, and the
    noise has standard deviation ``s`` up to the tail cut of a 53-bit Box-Muller (8.57 s, mass 1e-17 per coordinate).
    """

    def __init__(self, stream: KeyStream) -> None:
        self._stream = stream
        self._drawn: tuple[int, set[int]] = (-1, set())

    def normals(self, step: int, lane: int, offset: int, count: int) -> torch.Tensor:
        """Standard normals (float64, shape (count,)) of coordinates [offset, offset + count); ``offset`` must be even.

        Box and Muller (1958): one 16-byte block gives the pair of coordinates (2k, 2k+1).
        """
        if offset % 2:
            raise ValueError(f"offset must be even, got {offset}: coordinates are drawn in pairs")
        pairs = (count + 1) // 2
        words = torch.frombuffer(bytearray(self._stream.read(step, lane, offset // 2, pairs)), dtype=torch.int64)
        assert words.numel() * 8 == pairs * BLOCK_BYTES
        uniform = words.bitwise_right_shift_(11).bitwise_and_(_MANTISSA).to(torch.float64).view(pairs, 2)
        # (0, 1]: the logarithm is finite; 2^-53 is the smallest radius argument.
        radius = uniform[:, 0].add(1.0).mul_(2.0**-53).log_().mul_(-2.0).sqrt_()
        angle = uniform[:, 1].mul(2.0**-53 * 2.0 * math.pi)
        out = torch.empty(pairs, 2, dtype=torch.float64)
        torch.mul(radius, torch.cos(angle), out=out[:, 0])
        torch.mul(radius, torch.sin(angle), out=out[:, 1])
        return out.view(-1)[:count]

    def release_(self, clipped_sum: torch.Tensor, std: float, normalizer: float, *, step: int, lane: int) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place.

        Args:
            clipped_sum: sum over contributions of clipped gradients, any shape, float32 or float64, contiguous.
            std: s > 0, the scheduled noise standard deviation on the sum.
            normalizer: the public constant that divides the noised sum.
            step: logical step, 1-based. lane: index of the tensor in the schedule.

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
            noise = self.normals(step, lane, start, part.numel()).mul_(2.0**LATTICE_BITS).round_()
            part.copy_(integers.add_(noise).mul_(scale))
        return clipped_sum

    def _claim(self, step: int, lane: int) -> None:
        current, lanes = self._drawn
        if step < current or (step == current and lane in lanes):
            raise ValueError(f"noise of step {step}, tensor {lane} was already drawn in this attempt; it is never used twice")
        if step > current:
            self._drawn = (step, lanes := set())
        lanes.add(lane)
