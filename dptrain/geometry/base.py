"""Defines what a geometry is: a linear chart of gradients, fixed by public tensors, and a way to move these along it.

Clip, sum, noise and accounting see coordinates of the chart and nothing else, so they are the same for every geometry.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

Coordinates = tuple[torch.Tensor, ...]
"""Coordinates of one direction, as many tensors as the geometry moves, each in the shape of its tensor."""


class Geometry(ABC):
    """An isometric chart of the directions in which a few tensors of a model move together.

    A geometry is made of tensors as they are at the start of a step, which are public, and never changes. It maps gradients
    linearly to coordinates in the shapes of the tensors; the Euclidean norm of the coordinates is the norm that is clipped.

    Guarantee: with coordinates clipped to C and noise N(0, (sigma C)^2) in each of them, a step is a Gaussian mechanism of
    multiplier sigma whatever the chart is (docs/mechanism, Theorem 13); `project` comes after the noise. That the chart is an
    isometry, so that no direction is clipped or noised more than another, is for :func:`check_geometry` to show.

    Proof: geometry.chart
    """

    @property
    @abstractmethod
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors that it moves, as they were when it was made."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Returns the dimension of the space of directions: noise energy at unit variance, after `project`."""

    @abstractmethod
    def coordinates(self, *gradients: torch.Tensor) -> Coordinates:
        """Maps gradients of the tensors to coordinates; linear, and any leading dimensions are carried along."""

    @abstractmethod
    def project(self, *coordinates: torch.Tensor) -> Coordinates:
        """Projects coordinates orthogonally onto those of directions: what noise put elsewhere goes away."""

    @abstractmethod
    def point(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Returns what tensors stand for, as the model sees it: their product, or the tensor itself."""

    @abstractmethod
    def ambient(self, *coordinates: torch.Tensor) -> torch.Tensor:
        """Returns the direction itself, in the space of `point`; dense, for tests and small cases."""

    def at(self, *coordinates: torch.Tensor) -> Any:
        """Returns a direction, as `retract` and `transport` take it, from its coordinates; by default the coordinates."""
        return coordinates

    @abstractmethod
    def retract(self, step: Any, lr: float) -> Coordinates:
        """Returns the tensors after a step of size ``lr`` against a direction; right to the first order at least."""

    @abstractmethod
    def transport(self, step: Any, after: Any) -> Any:
        """Carries a direction over to the geometry ``after`` a step, by projection."""

    def norm_sq(self, *gradients: torch.Tensor) -> torch.Tensor:
        """Returns the squared norm of the coordinates of gradients, without the dimensions of the tensors."""
        found = self.coordinates(*gradients)
        squares = [value.square().flatten(value.dim() - own.dim()) for value, own in zip(found, self.tensors, strict=True)]
        return torch.stack([square.sum(-1) for square in squares]).sum(0)


class Euclidean(Geometry):
    """The flat geometry of plain DP-SGD: a gradient is its own coordinates, and a step is subtracted."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self._tensors

    @property
    def dim(self) -> int:
        return sum(tensor.numel() for tensor in self._tensors)

    def coordinates(self, *gradients: torch.Tensor) -> Coordinates:
        return gradients

    def project(self, *coordinates: torch.Tensor) -> Coordinates:
        return coordinates

    def point(self, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.flatten() for tensor in tensors])

    def ambient(self, *coordinates: torch.Tensor) -> torch.Tensor:
        return torch.cat([value.flatten() for value in coordinates])

    def retract(self, step: Sequence[torch.Tensor], lr: float) -> Coordinates:
        return tuple(tensor - lr * value for tensor, value in zip(self._tensors, step, strict=True))

    def transport(self, step: Sequence[torch.Tensor], after: Geometry) -> Coordinates:
        return tuple(step)
