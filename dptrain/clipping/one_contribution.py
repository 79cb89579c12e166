"""The gradient of one contribution, tensor by tensor: what is certified, and what several microbatches add up to.

Shape letters as in :mod:`dptrain.gradients.forms`; R rows of a table that a contribution hits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dptrain.blocks.stack import Tensor
from dptrain.gradients.forms import Dense, Gather, Piece


@dataclass
class Rows:
    """Gradient of a table that is zero outside the rows ``ids_R``, which are distinct."""

    ids_R: torch.Tensor
    values_RD: torch.Tensor


Single = torch.Tensor | Rows
"""The gradient of one tensor by one contribution: of the tensor's shape, or the rows hit where nothing else is."""


def gradient_of(pieces: list[Piece], row: int, shape: torch.Size, dtype: torch.dtype) -> Single:
    """The sum of all uses of a tensor by contribution ``row``, in fresh memory of ``dtype``; the pieces stay as they are.

    Guarantee: a function of this contribution's rows of the pieces and of shapes alone, to the bit: not of other rows, nor of
    the place among them.
    """
    tables = [piece for piece in pieces if isinstance(piece, Gather)]
    if len(tables) == len(pieces):
        ids = torch.cat([piece.ids_NT[row] for piece in tables])
        values = torch.cat([piece.b_NTD[row] for piece in tables]).to(dtype)
        distinct, place = torch.unique(ids, return_inverse=True)
        return Rows(distinct, values.new_zeros(len(distinct), values.shape[1]).index_add_(0, place, values))
    total: torch.Tensor | None = None
    for piece in pieces:
        if isinstance(piece, Gather):
            continue
        found = piece.of_one(row).reshape(shape)
        found = found.to(dtype, copy=total is None and isinstance(piece, Dense))  # the others are fresh
        total = found if total is None else total.add_(found)
    assert total is not None
    total = total.contiguous()
    for table in tables:
        total.view(-1, shape[-1]).index_add_(0, table.ids_NT[row], table.b_NTD[row].to(dtype))
    return total


class Spread:
    """Adds up the parts of one contribution whose examples lie in several microbatches, before its one norm and clip.

    Parts are added in float64 in the order of the microbatches, dense except for tables; one contribution at a time, so that
    memory holds one gradient of the model and not one per contribution.
    """

    def __init__(self) -> None:
        self._totals: dict[int, torch.Tensor] = {}
        self._spoilt = False

    def spoil(self) -> None:
        """Makes the contribution count as zero, whatever its other parts add."""
        self._spoilt = True

    def add(self, pieces: dict[int, list[Piece]], tensors: Sequence[tuple[int, Tensor]], dtype: torch.dtype) -> None:
        """Adds the pieces of a microbatch that holds this contribution alone.

        Args:
            pieces: by index of the tensor, with one row each. tensors: (block, tensor) of every index. dtype: in which a part
                is formed.
        """
        for index, found in pieces.items():
            shape = tensors[index][1].shape
            part = gradient_of(found, 0, shape, dtype)
            total = self._totals.get(index)
            if total is None:
                device = part.device if isinstance(part, torch.Tensor) else part.values_RD.device
                total = self._totals[index] = torch.zeros(shape, dtype=torch.float64, device=device)
            if isinstance(part, torch.Tensor):
                total.add_(part)
            else:
                total.index_add_(0, part.ids_R, part.values_RD.double())

    def take(self) -> dict[int, list[Piece]] | None:
        """The whole contribution as pieces of one row, float64, None for one that counts as zero; the next one starts anew."""
        totals, self._totals = self._totals, {}
        spoilt, self._spoilt = self._spoilt, False
        if spoilt:
            return None
        return {index: [Dense(total[None])] for index, total in totals.items()}
