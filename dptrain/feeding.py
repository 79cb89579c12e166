"""From slots to rows: reads contributions, collates them, and holds every microbatch to the same shapes."""

from collections.abc import Sequence
from typing import Any

import torch

from dptrain.batching import Drawn, Planned, plan
from dptrain.errors import ConfigError, DptrainError
from dptrain.microbatch import Collate, Microbatch, build
from dptrain.pool import Pool
from dptrain.routing.probes import check_shapes

ALONE = 32
"""Contributions collated alone before a run, to see that shapes do not follow content."""

TOGETHER = 256
"""Contributions collated at a time when all are checked before a run."""


class Feeder:
    """Rows of planned microbatches.

    Args:
        pool: the contributions. collate: the user's. device: where the rows go. rows: the most in one microbatch, or None.
    """

    def __init__(self, pool: Pool, collate: Collate, device: torch.device, rows: int | None) -> None:
        self.pool = pool
        self._collate = collate
        self._device = device
        self._rows = rows
        self._shapes: dict[str, tuple[int, ...]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the collated tensors, once something was collated."""
        return tuple(self._shapes or ())

    def planned(self, planned: Planned) -> Microbatch:
        """Reads and collates a microbatch of a step.

        Raises:
            ContentChanged, ConfigError, CoupledModel: as reading, collating and the check of shapes.
        """
        return self._collated(planned, [self.pool.examples(i) for i in planned.slots])

    def whole(self, slots: Sequence[int]) -> Microbatch:
        """Whole contributions in one microbatch, whatever its rows."""
        contents = [self.pool.examples(i) for i in slots]
        return self._collated(Planned(tuple(slots), max(map(len, contents))), contents)

    def probe(self, slots: Sequence[int], among: Sequence[int]) -> Microbatch:
        """Of every contribution as many examples as the limit leaves room for, one at least: for the start-up probes.

        All microbatches of slots ``among`` the same ones have one shape, so that kernels take the same path in each.
        """
        widest = max(self.pool.size(i) for i in among)
        each = widest if self._rows is None else min(widest, max(1, self._rows // len(slots)))
        return self._collated(Planned(tuple(slots), each), [self.pool.examples(i)[:each] for i in slots])

    def check(self) -> None:
        """Decodes and collates every contribution before the ledger opens.

        Found later, one that cannot be read would stop the run at the step that drew it, and so tell who was drawn.
        """
        count = len(self.pool)
        together = [list(range(i, min(i + TOGETHER, count))) for i in range(0, count, TOGETHER)]
        for slots in [[index] for index in spread(count, ALONE)] + together:
            try:
                self._try_out(slots)
            except DptrainError:
                raise
            except Exception as error:
                raise ConfigError("COLLATE", self._culprit(slots, error)) from error

    def _try_out(self, slots: Sequence[int]) -> None:
        contents = {index: self.pool.examples(index) for index in slots}
        for planned in plan([Drawn(i, 0, len(contents[i])) for i in slots], TOGETHER, self._rows):
            self._collated(planned, [contents[i] for i in planned.slots])

    def _collated(self, planned: Planned, contents: list[list[Any]]) -> Microbatch:
        whole = None
        if planned.part is not None:
            whole, contents = len(contents[0]), [contents[0][slice(*planned.part)]]
        rows = build(contents, self._collate, self._device, rows_each=planned.examples, whole=whole, fill=planned.fill)
        if self._shapes is None:
            self._shapes = rows.shapes()
        check_shapes(self._shapes, rows.shapes())
        return rows

    def _culprit(self, slots: Sequence[int], error: Exception) -> str:
        """Names the first contribution of a batch that cannot be decoded or collated by itself."""
        for index in slots:
            try:
                self._try_out([index])
            except Exception as own:
                where = self.pool.slots[index].admitted.locator
                return (
                    f"decode or collate fails on the contribution in {where.source!r} at byte {where.offset} "
                    f"({type(own).__name__}: {own}); mend them or leave the contribution out of the corpus"
                )
        return f"collate fails on a batch whose examples it takes one by one ({type(error).__name__}: {error})"


def spread(count: int, wanted: int) -> list[int]:
    """Up to ``wanted`` of ``count`` slots, evenly over the pool: fixed positions, not a draw."""
    return sorted({round(k * (count - 1) / (wanted - 1)) for k in range(wanted)}) if count else []
