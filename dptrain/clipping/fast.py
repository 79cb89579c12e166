"""Sums per-contribution gradients of a logical step: clipped, at exactness level ``fast``, and public ones as they are.

Norms and coefficients are float64 tables of N contributions and G blocks; the weighted sum of a microbatch is one product
per tensor, and sums over microbatches are float64. Which contributions are public is read off their signed bounds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch

from attest.descriptor import SignedBounds
from dptrain.blocks.stack import Tensor
from dptrain.clipping.resolver import Schedule
from dptrain.errors import NotPrivateUse
from dptrain.geometry.charts import Charts
from dptrain.gradients.forms import Gather, Piece, add_all_weighted, is_formed, merge, norms_sq, zero_rows
from dptrain.noise.lattice import rounding_margin
from ledger.accountants.table import LATTICE_BITS
from ledger.leaves.numerics import FAST, MARGINS

_SMALLEST = torch.finfo(torch.float32).tiny
"""A smaller coefficient counts as zero: as a float32 weight it would be rounded by more than the margin."""

Pieces = dict[int, list[Piece]]
"""The pieces of a microbatch, by index of the tensor in the schedule."""


@dataclass(frozen=True)
class Bounds:
    """Signed bounds and masks of the N contributions of a microbatch.

    ``permitted_NG`` says which of the G blocks each may touch. ``clip_N`` is C_i, ``sigma_N`` the signed noise multiplier.
    """

    signed: Sequence[SignedBounds]
    permitted_NG: torch.Tensor
    clip_N: torch.Tensor = field(init=False)
    sigma_N: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        rows = {"clip_N": [one.clip_norm for one in self.signed], "sigma_N": [one.noise_multiplier for one in self.signed]}
        for name, numbers in rows.items():
            object.__setattr__(self, name, torch.tensor(numbers, dtype=torch.float64))

    def masked(self, table_NG: torch.Tensor) -> torch.Tensor:
        """Puts zero where a contribution may not touch a block, whatever stands there, NaN included.

        Guarantee: with :meth:`profiles`, the one place where the gradient of a contribution is masked that was captured;
        what nobody in a microbatch may touch is not captured (:meth:`dptrain.routing.Router.arm`).
        """
        return torch.where(self.permitted_NG, table_NG, torch.zeros((), dtype=torch.float64))

    def profiles(self) -> list[tuple[int, ...]]:
        """Lists the blocks that each contribution may touch; of a row that only fills up, none."""
        return [tuple(block for block, allowed in enumerate(row) if allowed) for row in self.permitted_NG.tolist()]


def precision_name(precision: torch.dtype) -> str:
    """Returns the name of a type of parameters in `ledger.leaves.numerics`: ``float32`` or ``float64``."""
    return str(precision).removeprefix("torch.")


def bounds_of(rows: Sequence[tuple[SignedBounds, tuple[int, ...]]], blocks: int) -> Bounds:
    """Bounds of a microbatch from signed bounds and profile per contribution."""
    permitted = torch.zeros(len(rows), blocks, dtype=torch.bool)
    for row, (signed, profile) in enumerate(rows):
        if signed.clip_micro < 1 or signed.sigma_micro < 1:
            raise ValueError("clip norms and noise multipliers must be positive")
        permitted[row, list(profile)] = True
    return Bounds([signed for signed, _ in rows], permitted)


class Sink(Protocol):
    """Takes sums of microbatches where every rank keeps a part of them (FSDP2)."""

    def begin(self, *, wide: bool) -> None:
        """Starts a logical step. ``wide``: send sums as float64, not as float32."""

    def add(self, index: int, total: torch.Tensor | None) -> None:
        """Adds this rank's sum of a tensor to what the ranks keep of it; None for zeros. Every rank calls it alike."""

    def flush(self) -> None:
        """Ends what a microbatch adds."""

    def take(self) -> Iterator[torch.Tensor]:
        """Yields what this rank keeps of every tensor, float64, flat; each is handed over and forgotten."""

    def take_one(self, index: int) -> torch.Tensor:
        """Returns what this rank keeps of one tensor, as :meth:`take` does."""


class Sums(ABC):
    """Clipped sums of one logical step at a level of exactness, float64 per tensor, zeros where nothing was drawn.

    Args:
        tensors: (block, tensor) of every index.

    Attributes:
        float_margin: relative shrink of every clip bound that pays for rounding, as the header records it.
        bits: b of the lattice ``s * 2^-b`` on which what :meth:`take` yields is rounded, or integers already.
        wire: what rounding sums once more, to send them to other ranks, adds to a difference of two in the whitened norm
            (`dptrain.parallel.placement.rounding`); zero where they stay, or are sent as they are.
        sink: where sums go at the end of every microbatch, where ranks keep parts of them.
    """

    float_margin: float
    bits: int
    wire: float = 0.0
    sink: Sink | None = None

    def __init__(self, tensors: Sequence[tuple[int, Tensor]]) -> None:
        self._tensors = tensors
        self._sums: list[torch.Tensor | None] = [None] * len(tensors)

    @abstractmethod
    def use(self, stds: Sequence[float]) -> None:
        """Takes the noise per block of the step that begins, as standard deviations, where it is not the schedule's; public."""

    def require_capacity(self, contributions: int) -> None:
        """Raises UnsupportedPolicy for a pool of which a step could draw more than the sums can hold."""
        del contributions  # in floating point they hold any number

    @abstractmethod
    def add(self, pieces: Pieces, bounds: Bounds) -> None:
        """Masks, clips and adds the gradients of one microbatch."""

    def take(self) -> Iterator[torch.Tensor]:
        """Yields the sums of the logical step, in the order of the schedule; each is handed over and forgotten."""
        if self.sink is not None:
            yield from self.sink.take()
            return
        for index in range(len(self._tensors)):
            yield self.take_one(index)

    def take_one(self, index: int) -> torch.Tensor:
        """Returns the sum of one tensor and forgets it; where ranks keep parts of sums, every rank hands its own on before."""
        if self.sink is not None:
            self.drain([index])
            return self.sink.take_one(index)
        total = self._total(index)
        self._sums[index] = None
        return total

    def drain(self, active: Iterable[int]) -> None:
        """Hands the sums of a microbatch on where ranks keep parts of them; else they stay.

        Args:
            active: tensors of which the microbatch captured something, the same at every rank.
        """
        if self.sink is None:
            return
        for index in sorted(active):
            self.sink.add(index, self._sum_of(index))
            self._sums[index] = None
        self.sink.flush()

    def _sum_of(self, index: int) -> torch.Tensor | None:
        """Returns the sum of a tensor over the microbatch that ends; None for zeros."""
        return self._sums[index]

    def _total(self, index: int) -> torch.Tensor:
        """Returns the sum of a tensor so far."""
        total = self._sums[index]
        if total is None:
            tensor = self._tensors[index][1]
            total = torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.parameter.device)
            self._sums[index] = total
        return total


class _Rows:
    """Sums rows of a table, and keeps what was added while that takes less room than the sum itself.

    Few rows of a large table are read in a step, and its float64 sum would lie beside all that a backward pass keeps.
    """

    def __init__(self, rows: int, width: int) -> None:
        self._left = rows * width // 2  # numbers of float32: a quarter of the room of the float64 sum
        self._added: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, ids: torch.Tensor, rows: torch.Tensor) -> bool:
        """Keeps rows to add to those that are named; False, and nothing kept, where the sum takes less room."""
        if rows.numel() > self._left or rows.dtype != torch.float32:
            return False
        self._left -= rows.numel()
        self._added.append((ids, rows))
        return True

    def add_to(self, total: torch.Tensor) -> None:
        """Adds to a total what was kept, in its order."""
        for ids, rows in self._added:
            total.index_add_(0, ids, rows.to(total.dtype))


class FastSums(Sums):
    """Clipped sums of one logical step, float64 per tensor.

    Guarantee: the change of every sum due to contribution i is ``c_i m_il g_il`` with
    ``c_i = min(1, (1-eta_i) C_i / |g_i|, (1-eta_i) / (sigma_i |g_i|_s))``, both norms over the permitted blocks; up to the
    float rounding that ``eta_i`` pays for (docs/mechanism, Theorems 1 and 2). Where blocks have shares of clip norms, every
    block is clipped to its own before, and z_i stands in the place of sigma_i (Theorem 7).

    Args:
        tensors: (block, tensor) of every index. precision: the lowest type among their parameters.
        charts: what maps gradients to coordinates, whose norms are clipped and which are summed; default: nothing.
    """

    bits = LATTICE_BITS

    def __init__(
        self,
        schedule: Schedule,
        tensors: Sequence[tuple[int, Tensor]],
        precision: torch.dtype,
        charts: Charts | None = None,
    ) -> None:
        super().__init__(tensors)
        self._charts = charts
        self._pending: list[tuple[Pieces, torch.Tensor]] = []
        self._tables: dict[int, _Rows] = {}
        self.float_margin = MARGINS[FAST][precision_name(precision)]
        self._schedule = schedule
        # A block without noise is one that no private contribution touches: there its whitened norm is zero.
        self._stds = torch.tensor([block.std or torch.inf for block in schedule.blocks], dtype=torch.float64)
        shares = torch.tensor([block.share for block in schedule.blocks], dtype=torch.float64)
        self._squares = shares.square() if bool(shares.any()) else None

    def use(self, stds: Sequence[float]) -> None:
        self._stds = torch.tensor([std or torch.inf for std in stds], dtype=torch.float64)

    def add(self, pieces: Pieces, bounds: Bounds) -> None:
        if self._charts and pieces:
            with full_precision(self._tensors[next(iter(pieces))][1].parameter.device):
                pieces = self._charts.of(pieces)
        norms = self.norms_sq(pieces, len(bounds.signed))
        self.accumulate(pieces, self.coefficients(norms, bounds))

    def norms_sq(self, pieces: Pieces, contributions: int) -> torch.Tensor:
        """Squared gradient norm per contribution and block, float64 (N, G); non-finite rows are zeroed where they lie."""
        table = torch.zeros(contributions, len(self._stds), dtype=torch.float64)
        found = self.squares(pieces)
        if found:
            blocks = torch.tensor([self._tensors[index][0] for index in found], device=table.device)
            table.index_add_(1, blocks, torch.stack(list(found.values()), dim=1))
        return table

    def squares(self, pieces: Pieces) -> dict[int, torch.Tensor]:
        """Squared gradient norm per contribution of every tensor, float64 (N,); non-finite rows are zeroed where they lie."""
        with ExitStack() as stack:
            for device in {self._tensors[index][1].parameter.device for index in pieces}:
                stack.enter_context(full_precision(device))
            for index, found in pieces.items():
                pieces[index] = merge(found, self._tensors[index][1].shape)
            squares = norms_sq(list(pieces.values()))
        if not squares:
            return {}
        found = _on_host(squares)
        bad = ~torch.isfinite(found)
        if bad.any():
            for index, rows in zip(pieces, bad, strict=True):
                if rows.any():
                    zero_rows(pieces[index], rows)
        return dict(zip(pieces, found, strict=True))

    def margins(self, bounds: Bounds) -> torch.Tensor:
        """Relative shrink of each contribution's bounds, float64 (N,): float rounding, and its own share of that of sums.

        The share of the lattice, and of the wire between ranks, grows with the multiplier at which a contribution is accounted,
        max(sigma_i, min s_l / C_i); it is taken from that contribution alone.
        """
        rounded = rounding_margin(self._schedule.coordinates, 1.0) + self.wire
        return self.float_margin + rounded * self._multipliers(bounds)

    def _multipliers(self, bounds: Bounds) -> torch.Tensor:
        """Multiplier at which each contribution is accounted, float64 (N,)."""
        if self._squares is None:
            infinite = torch.full((), torch.inf, dtype=torch.float64)
            effective = torch.where(bounds.permitted_NG, self._stds, infinite).amin(1)
        else:
            effective = (self._parts(bounds, self._squares) / self._stds.square()).sum(1).rsqrt()
        return torch.maximum(bounds.sigma_N, effective / bounds.clip_N)

    @staticmethod
    def _parts(bounds: Bounds, squares: torch.Tensor) -> torch.Tensor:
        """Return each block's part of a contribution's squared clip norm, float64 (N, G); rows add up to 1."""
        own = bounds.masked(squares)
        return own / own.sum(1, keepdim=True).clamp_min(1.0)

    def _caps(self, bounds: Bounds, squares: torch.Tensor) -> torch.Tensor:
        """Clip norm of a contribution in each block, float64 (N, G)."""
        return bounds.clip_N[:, None] * self._parts(bounds, squares).sqrt()

    def coefficients(self, norms_sq_NG: torch.Tensor, bounds: Bounds) -> torch.Tensor:
        """Dual-clip coefficient per contribution and block, float64 (N, G), zero where a block is not permitted."""
        zero = torch.zeros((), dtype=torch.float64)
        masked = bounds.masked(norms_sq_NG)
        keep = (1.0 - self.margins(bounds)).clamp_min(0.0)
        tiny = torch.finfo(torch.float64).tiny
        sigma, within = bounds.sigma_N, None
        if self._squares is not None:  # Theorem 7: each block to its share, then all of it to the multiplier that is accounted
            caps = self._caps(bounds, self._squares)
            within = (keep[:, None] * caps / masked.sqrt().clamp_min(tiny)).clamp_max(1.0)
            masked = masked * within.square()
            sigma = self._multipliers(bounds)
        norm = masked.sum(1).sqrt()
        whitened = (masked / self._stds.square()).sum(1).sqrt()
        finite = torch.isfinite(norm) & torch.isfinite(whitened)
        factor = torch.minimum(
            keep * bounds.clip_N / norm.clamp_min(tiny), keep / (sigma * whitened).clamp_min(tiny)
        ).clamp_max(1.0)
        factor = torch.where(finite & (factor >= _SMALLEST), factor, zero)
        if within is not None:
            each = factor[:, None] * within
            return bounds.masked(torch.where(each >= _SMALLEST, each, zero))
        return bounds.masked(factor[:, None])

    def accumulate(self, pieces: Pieces, coefficients_NG: torch.Tensor) -> None:
        """Adds the weighted gradients of a microbatch to the sums; pieces are forgotten as they are added, to make room.

        The pieces must have been through :meth:`norms_sq`.
        """
        if self.sink is not None:
            self._pending.append((dict(pieces), coefficients_NG))  # formed tensor by tensor, as they go: never all at once
            return
        placed = {coefficients_NG.device: coefficients_NG}
        touched = _touched(coefficients_NG)
        formed = [index for index in sorted(pieces) if is_formed(pieces[index])]
        self._weigh([(index, pieces.pop(index)) for index in formed], placed, touched)
        for index in sorted(pieces):
            self._weigh([(index, pieces.pop(index))], placed, touched)

    def _weigh(
        self,
        several: Sequence[tuple[int, list[Piece]]],
        placed: dict[torch.device, torch.Tensor],
        touched: Sequence[bool],
    ) -> None:
        """Adds the weighted gradients of tensors to their sums.

        Args:
            placed: coefficients (N, G) by device, their own first. touched: the blocks of which any is not zero.
        """
        own = next(iter(placed.values()))
        parts = []
        for index, found in several:
            block = self._tensors[index][0]
            if touched[block]:
                device = self._tensors[index][1].parameter.device
                if device not in placed:
                    placed[device] = own.to(device, non_blocking=True)
                parts.append((index, found, placed[device][:, block]))
        with ExitStack() as stack:
            for device in {self._tensors[index][1].parameter.device for index, *_ in parts}:
                stack.enter_context(full_precision(device))
            add_all_weighted(
                [
                    (found, weight, self._total(index))
                    for index, found, weight in parts
                    if not self._keeps_rows(index, found, weight)
                ]
            )

    def _keeps_rows(self, index: int, found: list[Piece], weight_N: torch.Tensor) -> bool:
        """Keeps rows of a table that are to be added to its sum, if they take less room than that."""
        (piece,) = found if len(found) == 1 else (None,)
        if self.sink is not None or self._sums[index] is not None or not isinstance(piece, Gather):
            return False
        rows, width = self._tensors[index][1].shape
        return self._tables.setdefault(index, _Rows(rows, width)).add(*piece.weighted(weight_N))

    def _total(self, index: int) -> torch.Tensor:
        total = super()._total(index)
        rows = self._tables.pop(index, None)
        if rows is not None:
            rows.add_to(total)
        return total

    def drain(self, active: Iterable[int]) -> None:
        super().drain(active)
        self._pending.clear()

    def _sum_of(self, index: int) -> torch.Tensor | None:
        for pieces, coefficients_NG in self._pending:
            if index in pieces:
                placed = {coefficients_NG.device: coefficients_NG}
                self._weigh([(index, pieces.pop(index))], placed, _touched(coefficients_NG))
        return super()._sum_of(index)


def _touched(coefficients_NG: torch.Tensor) -> list[bool]:
    """Tells of every block whether any contribution adds to it."""
    touched: list[bool] = (coefficients_NG != 0).any(0).tolist()
    return touched


def _on_host(squares: list[torch.Tensor]) -> torch.Tensor:
    """Brings the numbers to the CPU, a row each, in one transfer: each would wait for a device to finish what it was told."""
    if len({square.device for square in squares}) == 1:
        return torch.stack(squares).cpu()
    return torch.stack([square.cpu() for square in squares])


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Norms, coefficients and sums are never formed in half precision, even if the user's autocast reaches here."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else _AS_IT_IS


_AS_IT_IS = nullcontext()


def is_public(bounds: Bounds) -> bool:
    """Tells whether a microbatch holds public contributions.

    Raises:
        NotPrivateUse: it has both kinds. Rows of one microbatch meet in one forward pass and in one product.
    """
    kinds = {signed.public for signed in bounds.signed}
    if len(kinds) > 1:
        raise NotPrivateUse("MIXED_MICROBATCH", "a microbatch has public and private contributions; they never share one")
    return True in kinds


class PublicSums(FastSums):
    """Sums over the public contributions of one logical step, float64 per tensor.

    Guarantee: they are a function of the parameters and of the public contributions drawn. What :meth:`add` takes is masked
    by the profiles and added as it is; a contribution whose permitted gradient is not finite counts as zero, silently. A
    microbatch with a contribution that signed any other bounds than those that say public is refused, so nothing private is
    ever in here.
    """

    def add(self, pieces: Pieces, bounds: Bounds) -> None:
        """Masks and adds the gradients of one microbatch.

        Raises:
            NotPrivateUse: not every contribution of it signed that it is public.
        """
        if not all(signed.public for signed in bounds.signed):
            raise NotPrivateUse(
                "PRIVATE_IN_PUBLIC",
                "a contribution that signed a clip norm and a noise multiplier came to the sums of public contributions, which "
                "have neither clip nor noise",
            )
        super().add(pieces, bounds)

    def coefficients(self, norms_sq_NG: torch.Tensor, bounds: Bounds) -> torch.Tensor:
        """One where a block is permitted and the contribution's permitted gradient is finite, else zero; float64 (N, G)."""
        finite = torch.isfinite(bounds.masked(norms_sq_NG)).all(1)
        return bounds.masked(finite[:, None].double())
