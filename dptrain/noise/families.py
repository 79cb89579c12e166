"""Noise of every family that a policy may sign, behind one release.

The lattice Gaussian is the default and stands in :mod:`dptrain.noise.lattice`. The others add integers of their own law to the
exact integer sums of level ``certified``, on the lattice ``s_l * 2^-b`` of those sums (docs/mechanism, Theorems 9 to 11).
"""

from typing import Protocol

import numpy as np
import torch

from dptrain.noise.exact import CHUNK, ExactSampler, Law
from dptrain.noise.integer_families import DiscreteGaussian, RoundedLaplace, Skellam
from dptrain.noise.lattice import MOST_THREADS, Claims, require_std
from dptrain.noise.normals import Blocks
from dptrain.noise.threads import Threads

LAWS: dict[str, type[DiscreteGaussian] | type[RoundedLaplace] | type[Skellam]] = {
    "discrete_gaussian": DiscreteGaussian,
    "laplace": RoundedLaplace,
    "skellam": Skellam,
}
"""Families beside the Gaussian, by the name that a policy signs."""

POWER = {"laplace": 1}
"""The norm in which contributions are clipped and whitened, by family; 2 where there is no entry."""


class Noise(Protocol):
    """What turns a clipped sum into a release; the lattice Gaussian too."""

    def release_(
        self, clipped_sum: torch.Tensor, std: float, normalizer: float, *, step: int, lane: int, draws: int = 1
    ) -> torch.Tensor: ...

    def destroy(self) -> None: ...


class IntegerNoise:
    """Adds integers of a law to a sum of integers, reading them from a key stream.

    Guarantee: the output of :meth:`release_` is ``s 2^-b / normalizer`` times the sum's integer plus the law's, to the last
    bit of a float64. The law is exact (:class:`ExactSampler`), and the noise integer of coordinate ``o`` of tensor ``lane`` at
    ``step`` is a function of (key, step, lane, o) alone and is used once, whatever the number of threads.

    The time that a draw takes depends on the noise, by rejections; see docs/guarantee.md.

    Args:
        law: of one draw. bits: b of the lattice on which the sums are integers. draws: how many draws make up the noise of a
            release, as :func:`integer_noise` fits them to the law.
    """

    def __init__(self, stream: Blocks, law: Law, bits: int, draws: int = 1) -> None:
        self._stream = stream
        self.law = law
        self._bits, self._draws = bits, draws
        self._sampler = ExactSampler(law)
        self._claims = Claims()
        self._threads = Threads(MOST_THREADS)
        self._limit = float(1 << 18 + bits)

    def integers(self, step: int, lane: int, start: int, count: int) -> np.ndarray:
        """Noise integers of part of a chunk, all draws added up; see :meth:`ExactSampler.integers`.

        Draw g is read at lane ``lane * draws + g``: (tensor, draw) and lane determine each other, so no draw meets another one.
        """
        first = lane * self._draws
        total = self._sampler.integers(self._stream, step, first, start, count)
        for place in range(first + 1, first + self._draws):
            total += self._sampler.integers(self._stream, step, place, start, count)
        return total

    def release_(
        self, clipped_sum: torch.Tensor, std: float, normalizer: float, *, step: int, lane: int, draws: int = 1
    ) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place.

        Args:
            clipped_sum: sum of contributions that are integers on ``std * 2^-b``, contiguous, float64 (see
                ``CertifiedSums.take``).
            std: s > 0: the scale of Laplace noise, the parameter sigma of the discrete Gaussian, the standard deviation of
                Skellam noise.
            normalizer: the public constant that divides the noised sum.
            step: logical step, 1-based. lane: index of the tensor in the schedule. draws: what this noise was made for.

        Raises:
            ValueError: std not finite and positive, tensor not contiguous or not float64, another number of draws, or an
                address released twice.
        """
        require_std(std)
        if not clipped_sum.is_contiguous() or clipped_sum.dtype is not torch.float64:
            raise ValueError(
                f"the clipped sum must be contiguous and float64, got {clipped_sum.dtype}: its integers are exact there"
            )
        if draws != self._draws:
            raise ValueError(
                f"noise of family {self.law.name} was made for {self._draws} draws per step, got {draws}: another number "
                "of them has another variance"
            )
        self._claims.claim(step, lane)
        gamma = std * 2.0**-self._bits
        host = clipped_sum.to("cpu")
        flat, scale = host.view(-1).numpy(), gamma / normalizer

        def draw(start: int) -> None:
            part = flat[start : start + CHUNK]
            np.divide(part, gamma, out=part)
            np.clip(np.rint(part, out=part), -self._limit, self._limit, out=part)
            part += self.integers(step, lane, start, len(part))  # both below 2^51: exact
            part *= scale

        self._threads.each(draw, range(0, len(flat), CHUNK))
        if host is not clipped_sum:
            clipped_sum.copy_(host)
        return clipped_sum

    def destroy(self) -> None:
        """Forgets the key; nothing can be drawn again."""
        self._threads.close()
        del self._stream


def integer_noise(family: str, stream: Blocks, bits: int, draws: int = 1) -> IntegerNoise:
    """Noise of a family beside the Gaussian, on the lattice ``s * 2^-bits``.

    Args:
        draws: how many draws make up the noise of a release, each with its share of the variance.

    Raises:
        ValueError: no such family, or several draws of one whose law is not that of their sum.
    """
    if family not in LAWS:
        raise ValueError(f"no noise family {family!r} on integers; there are {', '.join(LAWS)}")
    if family == Skellam.name:
        return IntegerNoise(stream, Skellam(bits, draws), bits, draws)
    if draws != 1:
        raise ValueError(f"noise of family {family} is drawn once per step, got {draws} draws, whose sum has another law")
    return IntegerNoise(stream, LAWS[family](bits), bits)
