"""Accumulates the pieces of a microbatch: in the private sums, the public ones, or with other parts of a contribution."""

from typing import TYPE_CHECKING

import torch

from dptrain.clipping.fast import Bounds, Pieces, PublicSums, full_precision, is_public
from dptrain.clipping.one_contribution import Spread
from dptrain.data.microbatch import Microbatch
from dptrain.data.packing import Planned
from dptrain.routing.repeated import RepeatedLoss
from dptrain.routing.router import Router

if TYPE_CHECKING:
    from dptrain.routing.compiled import CompiledLoss


class Folding:
    """The sums of one logical step, private and public, from microbatch to microbatch.

    Guarantee: a contribution reaches the sums once per step, whole: where its examples lie in several microbatches, their
    gradients are added up before the one norm and clip. Public contributions never reach the private sums, nor private ones
    the public sums. An idle microbatch, which keeps a rank in step with others, reaches none.
    """

    def __init__(self, router: Router) -> None:
        self.public = PublicSums(router.schedule, router.tensors, router.precision, router.charts)
        self.compiled: list[CompiledLoss] = []
        self.repeated: list[RepeatedLoss] = []
        self._router = router
        self._spread = Spread()
        self._planned: Planned | None = None
        self._bounds: Bounds | None = None

    def begin(self, *, wide: bool = True) -> None:
        """Starts a logical step; ``wide``: as for `Sink.begin`, where sums lie over ranks."""
        self._spread = Spread()
        for sums in (self._router.sums, self.public):
            if sums.sink is not None:
                sums.sink.begin(wide=wide)

    def expect(self, planned: Planned, bounds: Bounds) -> None:
        """Takes the plan and the bounds of the armed microbatch."""
        self._planned, self._bounds = planned, bounds

    def holds_public(self) -> bool:
        """Tells whether the armed microbatch is one of public contributions."""
        return self._bounds is not None and is_public(self._bounds)

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Backward pass of the armed microbatch, or what a compiled loss found in its place; then :meth:`fold`."""
        active = self._router.active
        self._backward(losses, rows)
        with self._router.aside():
            self._router.sums.drain(active)
            if self._router.schedule.public:
                self.public.drain(active)

    def _backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        repeated = next((form for form in self.repeated if form.made(losses)), None)
        if repeated is not None and repeated.raised:
            self._fold_alone(repeated)
            return
        if not any([form.deliver(losses) for form in self.compiled]):  # every form forgets what it holds
            self._router.require_losses(losses)
            try:
                self._router.backward(losses, rows.weight)
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:
                if repeated is None or repeated.together:
                    raise
                repeated.require_content(error)
                self._fold_alone(repeated)
                return
        with self._router.aside():
            self.fold()

    def _fold_alone(self, repeated: RepeatedLoss) -> None:
        """Every contribution of a microbatch that raised, by itself; those that raise alone count as zero."""
        assert self._bounds is not None
        for pieces, bounds in repeated.alone(self._bounds):
            with self._router.aside():
                self._add(pieces, bounds)
        self._router.disarm()

    def fold(self) -> None:
        """Adds what the backward pass found to the sums it belongs to; a part of a contribution waits for the others."""
        assert self._bounds is not None
        self._add(self._router.pieces, self._bounds)
        self._router.disarm()

    def _add(self, pieces: Pieces | None, bounds: Bounds) -> None:
        """Adds pieces to the sums they belong to; None stands for contributions that count as zero."""
        planned = self._planned
        assert planned is not None
        if planned.idle:
            return
        if planned.part is not None:
            if pieces is None:
                self._spread.spoil()
            else:
                tensors = self._router.tensors
                device = tensors[next(iter(pieces))][1].parameter.device if pieces else bounds.permitted_NG.device
                with full_precision(device):
                    self._spread.add(pieces, tensors, self._router.precision)
            pieces = self._spread.take() if planned.last else {}
        sums = self.public if is_public(bounds) else self._router.sums
        if planned.last and pieces is not None:
            sums.add(pieces, bounds)
