"""Clipped sums at exactness level ``certified``: integers per contribution, each certified before it is added.

The lattice of block l has the step ``gamma_l = s_l * 2^-b``. Floating point decides which integers a contribution is turned
into, and nothing else: from there on the certificate, the sums and the release are exact (docs/mechanism, Theorem 4).

Proof:
    The two worlds differ by h_il = gamma_l k_il, zero outside D_i. By (1) its whitened norm is 2^-b √(Σ S_l) ≤ 1 / z_i, and by
    (2) its norm is at most C_i. Theorem 1 applies to integer sums. Rounding the noise after them is post-processing (Theorem
    2). It remains to show where floating point could matter.

    * **Integers** are formed twice, to be certified and to be added: a product and a truncation, which have one result each in
      IEEE 754, of numbers that nothing changes in between.
    * **Squares.** S_l is a float64 sum of squares of integers. If the true sum of all terms is below 2^53, every partial
      result is an integer below 2^53, and none is rounded, in any order of summation. If not, look at the first operation
      whose exact result is 2^53 or more. Rounding is monotone and 2^53 is a double, so the result reads 2^53 or more. It stays
      there, since nothing negative is added. What reads 2^53 or more, infinite or NaN fails.
    * **Comparisons** are made in Python integers, with the s_l² brought to a common denominator.
    * **Sums.** By (1) and the choice of b, |k| ≤ 2^26 in every coordinate. With at most 2^26 contributions all partial sums
      stay below 2^53. Float64 adds them exactly, in every order.
    * **Release.** A sum K is limited to |K| ≤ 2^(18+b), which is 2^18 standard deviations. The limit moves no two sums further
      apart. K s_l 2^-b is rounded to float64 and divided by s_l 2^-32 with one more rounding. The result is off from the
      integer K 2^(32-b), at most 2^50, by little more than 2^50 · 2^-52 = 1/4. So rounding recovers the integer. The noise is
      rounded at s_l · 2^-32, and its radii are finer than that. ∎
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from threading import Lock

import numpy as np
import torch

from attest.descriptor import SignedBounds
from attest.fixed_point import MICRO
from attest.schedule.allocation import effective_std
from dptrain.blocks.stack import Tensor
from dptrain.clipping.fast import Bounds, Pieces, Sums, full_precision, precision_name
from dptrain.clipping.one_contribution import Rows, Single, gradient_of
from dptrain.clipping.resolver import Schedule
from dptrain.errors import UnsupportedPolicy
from dptrain.gradients.forms import Dense, norms_sq
from dptrain.kernels import reductions
from dptrain.noise.lattice import MOST_THREADS
from dptrain.noise.threads import Threads
from ledger.accountants.table import TABLE
from ledger.leaves.numerics import CERTIFIED, MARGINS, lattice_bits

EXACT = 1 << 53
"""Below this a float64 that was formed by adding and multiplying non-negative integers is exact."""

WIDEST = 1 << 26
"""No coordinate of a certified contribution is larger: squares stay below 2^52, whatever was signed."""

WIDEST_L1 = 1 << 30
"""The same where magnitudes are added up, and not squares: they stay below 2^53 with room for the sum of many."""

MOST_CONTRIBUTIONS = EXACT // (2 * WIDEST)
"""So many contributions of coordinates up to WIDEST add up exactly in float64; a sixteenth of them up to WIDEST_L1."""

TRIES = 4
"""Times that a contribution which fails its certificate is shrunk before it counts as zero."""

_CHUNK = {"cpu": 1 << 16}
"""Coordinates widened to float64 at a time; on the CPU they stay in the cache of one core."""

_CHUNK_ELSEWHERE = 1 << 24

TOGETHER = 4
"""Contributions of a thread that are added to the sums in one pass over these, which are twice as wide as a gradient."""

HELD = 1 << 28
"""Bytes of gradients that all threads hold for it, beside one each."""


@dataclass(frozen=True)
class Limits:
    """The bounds of a certificate as integers, and the clip bounds in floating point that aim at them.

    With ``S_l`` the sum of squares of the integers in block l: ``sum_l S_l <= whitened`` and
    ``sum_l weights[l] S_l <= euclidean``, where ``weights[l]`` is proportional to s_l^2. ``caps`` are clip norms of single
    blocks, where the policy divides those of classes; the certificate does not ask for them, as no bound rests on them
    (Theorem 7). ``power`` is 1 where magnitudes take the place of squares, and s_l that of s_l^2: the norms are then L1 norms
    (Theorem 9).
    """

    whitened: int
    euclidean: int
    weights: dict[int, int]
    clip: float
    multiplier: float
    caps: dict[int, float] = field(default_factory=dict)
    power: int = 2

    def admit(self, squares: dict[int, float]) -> bool:
        """The certificate: whether integers with these sums of squares per block keep the signed bounds. Exact.

        A sum of squares of integers that float64 reads as less than 2^53 is exact: if every partial result is below 2^53, none
        was rounded; and the first that is not would have been rounded to 2^53 or more, as rounding is monotone, and stayed
        there, as nothing negative is added. So what reads 2^53 or more, infinite or NaN is refused, and the rest is integers.
        """
        if not all(square < EXACT for square in squares.values()):
            return False
        exact = {block: int(square) for block, square in squares.items()}
        return (
            sum(exact.values()) <= self.whitened
            and sum(self.weights[block] * square for block, square in exact.items()) <= self.euclidean
        )

    def excess(self, squares: dict[int, float]) -> float:
        """Factor by which integers with these sums of squares must shrink, a little less than just; NaN if there is none."""
        white = sum(squares.values())
        flat = sum(float(self.weights[block]) * square for block, square in squares.items())
        ratio = min(1.0, self.whitened / white if white > 0 else 1.0, self.euclidean / flat if flat > 0 else 1.0)
        root = math.sqrt(ratio) if self.power == 2 else ratio
        return root * (1.0 - 2.0**-20) if math.isfinite(white) and math.isfinite(flat) else math.nan


class CertifiedSums(Sums):
    """Clipped sums of one logical step, as exact integers on the lattice.

    Guarantee: the change of the sums due to contribution i is ``gamma_l k_il``, with integers ``k_il`` that are zero outside
    its permitted blocks and for which, in exact arithmetic, ``sum_l |gamma_l k_il|^2 <= C_i^2`` and ``sum_l |k_il|^2 <=
    2^2b / z_i^2``, z_i being the multiplier at which i is accounted. This holds for every input, finite or not, and whatever
    the rounding of the products that led to ``k_il`` was. Integers of different contributions add up exactly, in any order.
    Where the noise is Laplace's, both norms are L1 norms: ``sum_l gamma_l |k_il|_1 <= C_i`` and ``sum_l |k_il|_1 <= 2^b /
    z_i``.

    A contribution's gradient is formed, tensor by tensor, on one thread: memory holds one per thread that torch is told to use,
    six at most, and up to ``TOGETHER`` of small models.

    Args:
        tensors: (block, tensor) of every index. precision: the type in which gradients are formed.
        least_multiplier: the least noise multiplier of any class, public; it places the lattice, as the family of noise does.
    """

    def __init__(
        self,
        schedule: Schedule,
        tensors: Sequence[tuple[int, Tensor]],
        precision: torch.dtype,
        least_multiplier: float = 1.0,
        noise_family: str = "gaussian",
    ) -> None:
        super().__init__(tensors)
        self.float_margin = MARGINS[CERTIFIED][precision_name(precision)]
        self._power = TABLE[noise_family].norm
        self._widest = WIDEST if self._power == 2 else WIDEST_L1
        self.bits = lattice_bits(CERTIFIED, noise_family, schedule.coordinates, least_multiplier)
        self._precision = precision
        self._stds = [block.std for block in schedule.blocks]
        self._shares = [block.share for block in schedule.blocks]
        self._limits: dict[tuple[SignedBounds, tuple[int, ...]], Limits] = {}
        self._locks = [Lock() for _ in tensors]
        self._threads = Threads(MOST_THREADS)

    def use(self, stds: Sequence[float]) -> None:
        """Takes the noise per block of the step that begins, where it is not the schedule's; public.

        The lattice follows it: a step's sums and its noise are integers of the same ``s_l * 2^-32``.
        """
        self._stds = list(stds)
        self._limits.clear()

    def require_capacity(self, contributions: int) -> None:
        """Raises UnsupportedPolicy for a pool of which a step could draw more than add up exactly; a public number decides."""
        most = MOST_CONTRIBUTIONS * WIDEST // self._widest
        if contributions > most:
            raise UnsupportedPolicy(
                "CAPACITY",
                f"the pool has {contributions} contributions, expected at most {most} at exactness 'certified', "
                'whose sums must stay exact even if all are drawn; split the corpus, or sign exactness = "fast"',
            )

    def add(self, pieces: Pieces, bounds: Bounds) -> None:
        """Masks, clips, truncates, certifies and adds the contributions of one microbatch, each on one thread.

        Sums of integers do not depend on the order in which threads add to them.
        """
        devices = {tensor.parameter.device.type: tensor.parameter.device for _, tensor in self._tensors}
        profiles = bounds.profiles()
        rows = [row for row, profile in enumerate(profiles) if profile]  # the others only fill up the microbatch
        size = self._together(pieces, len(rows))
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]

        def add_group(group: int) -> None:
            with torch.no_grad(), ExitStack() as stack:  # both belong to a thread
                for device in devices.values():
                    stack.enter_context(full_precision(device))
                self._add_some(pieces, [(row, bounds.signed[row], profiles[row]) for row in groups[group]])

        if set(devices) <= {"cpu"}:
            self._threads.each(add_group, range(len(groups)))
        else:
            for group in range(len(groups)):
                add_group(group)

    def _together(self, pieces: Pieces, rows: int) -> int:
        """Returns how many contributions a thread holds before it adds them to sums that it then reads and writes once."""
        threads = max(1, min(torch.get_num_threads(), MOST_THREADS, rows))
        bytes_of_one = sum(self._tensors[index][1].coordinates for index in pieces) * self._precision.itemsize
        return max(1, min(TOGETHER, 1 + HELD // max(1, bytes_of_one * threads), -(-rows // threads)))

    def _add_some(self, pieces: Pieces, rows: Sequence[tuple[int, SignedBounds, tuple[int, ...]]]) -> None:
        certified: list[tuple[dict[int, Single], dict[int, float]]] = []
        for row, bounds, profile in rows:
            permitted = set(profile)
            found: dict[int, Single] = {}
            sizes: dict[int, float] = {}
            for index, (block, tensor) in enumerate(self._tensors):
                if block in permitted and index in pieces:
                    found[index] = gradient_of(pieces[index], row, tensor.shape, self._precision)
                    sizes[index] = self._size(found[index])  # while it is in the cache
            steps = self.certify(found, self.limits(bounds, profile), sizes)
            if steps is not None:
                certified.append((found, steps))
        self._accumulate(certified)

    def limits(self, bounds: SignedBounds, profile: tuple[int, ...]) -> Limits:
        """The certificate's bounds for signed bounds (C_i, sigma_i) and permitted blocks, from exact rationals.

        The doubles that stand for signed bounds elsewhere may lie on the wrong side of them; the stricter of both counts. The
        multiplier is at least the double that the accountant uses, max(sigma_i, S / C_i) with S the effective noise of the
        class: the least s_l, or S_k where blocks have shares of the clip norm (Theorem 7).
        """
        key = (bounds, profile)
        known = self._limits.get(key)
        if known is not None:
            return known
        clip = bounds.clip_norm
        norm = min(Fraction(bounds.clip_micro, MICRO), Fraction(clip))
        signed = max(Fraction(bounds.sigma_micro, MICRO), Fraction(bounds.noise_multiplier))
        stds = {block: Fraction(self._stds[block]) for block in profile}
        shares = [self._shares[block] for block in profile]
        effective = Fraction(effective_std([self._stds[block] for block in profile], shares))
        multiplier = max(signed, effective / norm * (1 + Fraction(1, 1 << 52)), Fraction(1 << self.bits, self._widest))
        whole = math.sqrt(sum(share * share for share in shares))
        scale = math.lcm(*(std.denominator for std in stds.values()))
        power, steps = self._power, 1 << self._power * self.bits
        found = self._limits[key] = Limits(
            whitened=math.floor(steps / multiplier**power),
            euclidean=math.floor(steps * (norm * scale) ** power),
            weights={block: int(std * scale) ** power for block, std in stds.items()},
            clip=clip,
            multiplier=float(multiplier),
            caps={} if 0 in shares else {block: clip * self._shares[block] / whole for block in profile},
            power=power,
        )
        return found

    def _size(self, gradient: Single) -> float:
        """Returns the squared norm of a gradient, or its L1 norm, as floats round it: factors go by it, no certificate does."""
        return _norm_sq(gradient) if self._power == 2 else _norm_1(gradient)

    def certify(
        self, found: dict[int, Single], limits: Limits, sizes: Mapping[int, float] | None = None
    ) -> dict[int, float] | None:
        """Finds the integers of one contribution: its gradients, each times a factor, truncated towards zero.

        Args:
            sizes: of each gradient, its squared norm, or its L1 norm, where somebody has it.

        Returns:
            A factor per tensor, with which the integers passed their certificate. None for a contribution whose norm is not
            finite, or that does not pass after a few attempts: it counts as zero, silently. Gradients may have been changed.
        """
        factors = self.coefficients(found, limits, sizes)
        if not factors or not all(math.isfinite(factor) for factor in factors.values()):
            return None
        blocks = {index: self._tensors[index][0] for index in found}
        steps = {index: factors[block] / self._stds[block] * 2.0**self.bits for index, block in blocks.items()}
        for _ in range(TRIES):
            squares = self._squares(found, steps)
            if limits.admit(squares):
                return steps
            less = limits.excess(squares)
            if not math.isfinite(less):
                return None
            truncate(found, steps)
            steps = dict.fromkeys(found, less)
        return None

    def coefficients(
        self, found: dict[int, Single], limits: Limits, sizes: Mapping[int, float] | None = None
    ) -> dict[int, float]:
        """Clip coefficient of one contribution per block: to the cap of the block, and the dual clip after it, one for all.

        Empty if its norm is not finite.
        """
        keep, power = 1.0 - self.float_margin, limits.power
        square = sizes if sizes is not None else {index: self._size(gradient) for index, gradient in found.items()}
        blocks = {index: self._tensors[index][0] for index in found}
        within = dict.fromkeys(blocks.values(), 1.0)
        if limits.caps:
            whole = dict.fromkeys(within, 0.0)
            for index, value in square.items():
                whole[blocks[index]] += float(value)
            within = {b: min(1.0, keep * limits.caps[b] / math.sqrt(v)) if v > 0 else 1.0 for b, v in whole.items()}
        flat = white = 0.0
        for index, value in square.items():
            block = blocks[index]
            number = float(value) * within[block] ** power
            flat += number
            white += number / self._stds[block] ** power
        if not (math.isfinite(flat) and math.isfinite(white)):
            return {}
        if power == 2:
            flat, white = math.sqrt(flat), math.sqrt(white)
        clipped = keep * limits.clip / flat if flat > 0 else math.inf
        whole = limits.multiplier * white  # zero where white is subnormal: what is so small truncates to zeros
        whitened = keep / whole if whole > 0 else math.inf
        factor = min(1.0, clipped, whitened)
        return {block: factor * own for block, own in within.items()}

    def _squares(self, found: dict[int, Single], steps: dict[int, float]) -> dict[int, float]:
        """Returns sums of squares of integers per block, or of magnitudes."""
        squares: dict[int, float] = {}
        for index, gradient in found.items():
            block = self._tensors[index][0]
            whole = reductions.squares(_flat(gradient), steps[index]) if self._power == 2 else None
            if whole is not None:
                squares[block] = squares.get(block, 0.0) + whole
                continue
            for part in _chunks(gradient):
                wide = _truncated(part, steps[index]).double()
                square = torch.dot(wide, wide) if self._power == 2 else wide.abs().sum()
                squares[block] = squares.get(block, 0.0) + float(square)
        return squares

    def _accumulate(self, certified: Sequence[tuple[dict[int, Single], dict[int, float]]]) -> None:
        """Adds integers that were certified, tensor by tensor; they are formed once more, by the same two operations."""
        for index in sorted({index for found, _ in certified for index in found}):
            parts = [(found[index], steps[index]) for found, steps in certified if index in found]
            dense = [(gradient, step) for gradient, step in parts if isinstance(gradient, torch.Tensor)]
            with self._locks[index]:
                total = self._total(index)
                for gradient, step in parts:
                    if isinstance(gradient, Rows):
                        total.index_add_(0, gradient.ids_R, _truncated(gradient.values_RD, step).double())
                if dense and reductions.add_truncated(total, dense):
                    continue
                for gradient, step in dense:
                    for into, part in zip(_chunks(total), _chunks(gradient), strict=True):
                        into.add_(_truncated(part, step))

    def take(self) -> Iterator[torch.Tensor]:
        """Yields the sums of the logical step, in the order of the schedule; each is handed over and forgotten.

        Guarantee: ``take() / (s_l * 2^-32)``, rounded, is exactly 2^(32-b) times the integer sum. That sum was limited to
        2^(18+b) steps, 2^18 standard deviations, which moves no two sums further apart.
        """
        limit = float(1 << 18 + self.bits)
        for (block, _), total in zip(self._tensors, super().take(), strict=True):
            yield total.clamp_(-limit, limit).mul_(self._stds[block] * 2.0**-self.bits)


def truncate(found: dict[int, Single], steps: dict[int, float]) -> None:
    """Makes integers of gradients, in place."""
    for index, gradient in found.items():
        for part in _chunks(gradient):
            part.copy_(_truncated(part, steps[index]))


def _truncated(part: torch.Tensor, step: float) -> torch.Tensor:
    """Returns it times a factor, truncated towards zero. On the CPU by numpy, whose loop is ten times as fast as torch's."""
    scaled = part * step
    if part.device.type != "cpu":
        return scaled.trunc_()
    values = scaled.numpy()
    np.trunc(values, out=values)
    return scaled


def _norm_sq(gradient: Single) -> float:
    flat = _flat(gradient)
    found = reductions.squared(flat)
    return float(norms_sq([[Dense(flat.reshape(1, -1))]])[0]) if found is None else found


def _norm_1(gradient: Single) -> float:
    total = 0.0
    for part in _chunks(gradient):
        total += float(part.double().abs().sum())  # infinite where it overflows, and then it counts as zero
    return total


def _chunks(gradient: Single) -> Iterator[torch.Tensor]:
    """Flat views of a gradient, small enough to be widened to float64 one at a time."""
    flat = _flat(gradient)
    size = _CHUNK.get(flat.device.type, _CHUNK_ELSEWHERE)
    return (flat[start : start + size] for start in range(0, flat.numel(), size))


def _flat(gradient: Single) -> torch.Tensor:
    return (gradient.values_RD if isinstance(gradient, Rows) else gradient).view(-1)
