"""Carries the gradients of contributions to coordinates of a chart, and released coordinates to directions of pairs.

Coordinates have the shapes of the two factors of a pair. So what clips, sums, rounds to the lattice, sends between ranks and
adds noise takes them in the places of the gradients of these tensors, and knows nothing of geometry.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dptrain.blocks.stack import Tensor
from dptrain.errors import NonFinite
from dptrain.geometry.lora_tangent import LoraTangent, Tangent
from dptrain.geometry.pairs import refuse_sharded, require_matrices
from dptrain.gradients.forms import Dense, Outer, Piece
from dptrain.sandbox.untouched import checksums

_SENT = ("U", "V", "PA", "PB", "rank_A", "rank_B")
"""Names what one rank tells the others of a batch of pairs."""


@dataclass(frozen=True, eq=False)
class ChartedPair:
    """A pair of the schedule: the places of its two tensors in it, and the tensors.

    Attributes:
        up, down: places of ``lora_B`` (m x r) and ``lora_A`` (r x n). noised: whether its block ever has noise.
    """

    up: int
    down: int
    A: torch.Tensor
    Bt: torch.Tensor
    noised: bool = True

    @property
    def kind(self) -> tuple[object, ...]:
        return (*self.A.shape, self.Bt.shape[1], self.A.dtype, self.A.device)


@dataclass(frozen=True)
class _Frames:
    """Maps gradients of one pair to coordinates in the step under way."""

    PA: torch.Tensor
    PB: torch.Tensor
    V: torch.Tensor


class Charts:
    """Charts of the pairs of a run. Before the first :meth:`refresh`, and without pairs, every chart is the identity.

    A chart is the identity too, so that the pair takes a plain step, where a factor has lost rank without being zero, and where
    nothing is noised. Public numbers decide: the factors at the start of the step, and the schedule.

    Guarantee: from one :meth:`refresh` to the next the chart of a tensor is one linear map of single contributions, made of
    public factors before the draw. Norm and sum of a contribution are taken of the coordinates that it returns (docs/mechanism,
    Theorem 16).

    Args:
        pairs: of the schedule.
    """

    def __init__(self, pairs: Sequence[ChartedPair]) -> None:
        self.pairs = tuple(pairs)
        self._frames: dict[int, _Frames] = {}
        self._at: list[tuple[list[int], LoraTangent]] = []
        self._sides: dict[int, tuple[int, int]] = {}
        for number, pair in enumerate(self.pairs):
            self._sides |= {pair.up: (number, 0), pair.down: (number, 1)}

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def batches(self) -> list[list[int]]:
        """Returns the numbers of pairs of one shape, type and device, batch by batch."""
        found: dict[tuple[object, ...], list[int]] = {}
        for number, pair in enumerate(self.pairs):
            if pair.noised:
                found.setdefault(pair.kind, []).append(number)
        return list(found.values())

    @torch.no_grad()
    def computed(self) -> list[LoraTangent]:
        """Returns the tangent spaces at the factors as they are now, batch by batch.

        Raises:
            NonFinite: code PARAMETER_NOT_FINITE, a factor has NaN or infinite entries.
        """
        for pair in self.pairs:
            if not bool(torch.isfinite(pair.A).all() & torch.isfinite(pair.Bt).all()):
                raise NonFinite(
                    "PARAMETER_NOT_FINITE",
                    f"factors of the LoRA pair of shapes {tuple(pair.A.shape)} and {tuple(pair.Bt.shape)} are not finite "
                    "before a step: an update diverged; lower the learning rate, and resume from the last checkpoint",
                )
        return [
            LoraTangent(
                torch.stack([self.pairs[number].A for number in numbers]),
                torch.stack([self.pairs[number].Bt.mT for number in numbers]),
            )
            for numbers in self.batches()
        ]

    def digest(self) -> bytes:
        """Returns a digest of all factors, by which ranks find out whether they hold the same."""
        factors = [factor for pair in self.pairs for factor in (pair.A, pair.Bt)]
        return checksums(factors).cpu().numpy().tobytes()

    def written(self) -> bytes:
        """Returns the spaces of :meth:`computed` as bytes, for other ranks."""
        values = [getattr(space, name) for space in self.computed() for name in _SENT]
        return b"".join(value.cpu().contiguous().numpy().tobytes() for value in values)

    def read(self, data: bytes) -> list[LoraTangent]:
        """Returns the spaces that the first rank has written, at the factors of this one."""
        found, place = [], 0
        for numbers in self.batches():
            pairs = [self.pairs[number] for number in numbers]
            A, B = torch.stack([pair.A for pair in pairs]).detach(), torch.stack([pair.Bt.mT for pair in pairs]).detach()
            count, r = len(numbers), A.shape[-1]
            shapes = (A.shape, B.shape, (count, r, r), (count, r, r), (count,), (count,))
            values = []
            for name, shape in zip(_SENT, shapes, strict=True):
                kind = torch.int64 if name.startswith("rank") else A.dtype
                size = math.prod(shape) * kind.itemsize
                values.append(torch.frombuffer(bytearray(data[place : place + size]), dtype=kind).view(shape).to(A.device))
                place += size
            space = LoraTangent(A, B, (values[0], values[1]))
            for name, value in zip(_SENT[2:], values[2:], strict=True):
                setattr(space, name, value)
            found.append(space)
        return found

    def refresh(self, spaces: Iterable[LoraTangent]) -> None:
        """Takes the charts of the step that begins: what :meth:`computed` returned, the same at every rank."""
        self._frames, self._at = {}, []
        for numbers, space in zip(self.batches(), spaces, strict=True):
            plain = space.degenerate.tolist()
            moving = [place for place, lost in enumerate(plain) if not lost]
            if not moving:
                continue
            taken = space if len(moving) == len(numbers) else space.take(moving)
            self._at.append(([numbers[place] for place in moving], taken))
            for place in moving:
                self._frames[numbers[place]] = _Frames(space.PA[place], space.PB[place], space.V[place])

    def moves(self, place: int) -> bool:
        """Tells whether the tensor at a place of the schedule has coordinates of a pair in this step."""
        return place in self._sides and self._sides[place][0] in self._frames

    def of(self, pieces: Mapping[int, list[Piece]]) -> dict[int, list[Piece]]:
        """Maps the gradients of the contributions of a microbatch to coordinates; other tensors keep their gradients."""
        found = dict(pieces)
        for place in pieces:
            number, side = self._sides.get(place, (-1, 0))
            frames = self._frames.get(number)
            if frames is not None:
                found[place] = [_down(piece, frames) if side else _up(piece, frames) for piece in pieces[place]]
        return found

    @torch.no_grad()
    def directions(self, released: Mapping[int, torch.Tensor]) -> dict[int, Tangent]:
        """Returns the directions of the pairs that move in this step, by number, from what was released in their places.

        Guarantee: what a direction holds is projected onto the tangent space; the rest of the noise goes no further.
        """
        found = {}
        for numbers, space in self._at:
            X = torch.stack([released[self.pairs[number].up] for number in numbers])
            Y = torch.stack([released[self.pairs[number].down].mT for number in numbers])
            X, Y = space.project(X, Y)
            for place, number in enumerate(numbers):
                found[number] = Tangent(X[place], Y[place], space.U[place], space.V[place])
        return found


def charted(pairs: Iterable[tuple[int, int]], tensors: Sequence[tuple[int, Tensor]], noised: Sequence[bool]) -> Charts:
    """Returns the charts of a schedule.

    Args:
        pairs: places of ``lora_B`` and ``lora_A`` of every pair. noised: by block, whether it ever has noise.

    Raises:
        UnsupportedModule: code GEOMETRY_PAIR, factors that are no two matrices of one rank in float32 or float64; or
            GEOMETRY_SHARDED, factors that lie over ranks.
    """
    found = []
    for up, down in pairs:
        (block, first), (_, second) = tensors[up], tensors[down]
        A, Bt = first.parameter, second.parameter
        refuse_sharded(first.name, A, Bt)
        require_matrices(first.name, second.name, A, Bt)
        found.append(ChartedPair(up, down, A, Bt, noised[block]))
    return Charts(found)


def _up(piece: Piece, frames: _Frames) -> Piece:
    """Maps gradients G B of A, m x r, to X = G V."""
    if isinstance(piece, Outer):
        return Outer(piece.a_NTD @ frames.PB.to(piece.a_NTD), piece.b_NTP)
    g = _matrix(piece)
    return Dense(g @ frames.PB.to(g))


def _down(piece: Piece, frames: _Frames) -> Piece:
    """Maps gradients A^T G of B^T, r x n, to Y^T = U^T G (I - V V^T).

    The part along V is taken off the factor, or the gradient, itself, and not off its norm: a difference of two squares could
    cancel below the norm of what is added to the sum.
    """
    if isinstance(piece, Outer):
        a, V = piece.a_NTD, frames.V.to(piece.a_NTD)
        return Outer(a - (a @ V) @ V.mT, piece.b_NTP @ frames.PA.to(piece.b_NTP))
    g = _matrix(piece)
    g, V = frames.PA.mT.to(g) @ g, frames.V.to(g)
    return Dense(g - (g @ V) @ V.mT)


def _matrix(piece: Piece) -> torch.Tensor:
    """Returns the gradients of a linear map's weight, N x rows x columns; no rule of linear maps returns another form."""
    assert isinstance(piece, Dense)
    return piece.g
