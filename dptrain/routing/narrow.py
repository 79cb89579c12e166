"""Pieces of a tensor cut down to the pieces of its parts, in the same form."""

import torch

from dptrain.errors import UnsupportedModule
from dptrain.gradients.forms import Dense, Gather, Outer, Piece
from dptrain.parts import Part


def narrow(piece: Piece, part: Part, shape: torch.Size) -> Piece:
    """The piece of a part, from the piece of the whole tensor of this shape.

    Guarantee: its gradient is ``part.select`` of the whole one's, computed from the same numbers; nothing outside the part
    enters its norm or its sum. Pieces of several parts may share storage.

    Raises:
        UnsupportedModule: the form of the piece has no factor along the dimension of the part.
    """
    if isinstance(piece, Dense):
        return Dense(part.select(piece.g, part.dim + 1).contiguous())
    if isinstance(piece, Outer) and (part.dim == 0 or len(shape) == 2):
        if (part.dim == 0) != piece.transposed:  # along the outputs, which come first in W and last in a transposed W
            return Outer(piece.a_NTD, part.select(piece.b_NTP, 2), piece.transposed)
        if len(shape) == 2:
            return Outer(part.select(piece.a_NTD, 2), piece.b_NTP, piece.transposed)
    if isinstance(piece, Gather) and part.dim == 1:
        return Gather(piece.ids_NT, part.select(piece.b_NTD, 2))
    raise UnsupportedModule(
        "PART_OF_PIECE",
        f"a tensor of shape {tuple(shape)} is split along dimension {part.dim}, for which there is no gradient in the form "
        f"{type(piece).__name__}; sign a policy without masks of heads or experts there, or freeze the tensor",
    )
