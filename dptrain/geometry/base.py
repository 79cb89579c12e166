"""Defines what a geometry is: a linear chart of gradients, fixed by public tensors, and a way to move these along it.

Clip, sum, noise and accounting see coordinates of the chart and nothing else, so they are the same for every geometry.

Proof:
(a) Theorem 1 and those that follow it use three properties of g_i: it is a function of contribution i and of public
numbers, it is zero outside D_i, and its norms are clipped. L g_i has them. L is fixed by the policy and by earlier releases
before anybody is drawn, so given the past it is a constant. It maps a block to that block. Both norms, rounding and lattice
are those of the coordinates that are added, as many as before. So the shift by i has a whitened length of at most 1/z_i,
whatever L is, and steps compose adaptively. That L is linear serves the sum: means over examples, parts of a contribution
and microbatches add up as gradients do. (b) What follows the noise is post-processing; it reads public factors, public
deviations and noisy coordinates.

(c) Let U U^T and V V^T be the projectors onto the column spaces of A and B, of k_A and k_B dimensions; frames U and V are
partial isometries, and orthonormal at full rank. Let G = dl/dZ for Z = A B^T, X = G V and Yp = (I - V V^T) G^T U. Then X
V^T + U Yp^T = G V V^T + U U^T G (I - V V^T) = P(G), the orthogonal projection onto {dA B^T + A dB^T} (Koch and Lubich
2007). Its terms are orthogonal, as V^T Yp = 0, and rows of X and Yp are carried by V and U: |X|^2 + |Yp|^2 = |P(G)|^2. So
the map (X, Yp) to X V^T + U Yp^T is an isometry onto the tangent space from the coordinates with X V^T V = X, Yp U^T U = Yp
and V^T Yp = 0. Noise s N(0, I) in all coordinates, projected onto these, has the covariance s^2 P, and the energy s^2 (k_B
m + k_A (n - k_B)), which is s^2 r (m + n - r) at full rank. Autograd gives G B and G^T A. With U = A P_A and V = B P_B, X =
(G B) P_B and Yp = (I - V V^T)(G^T A) P_A. No m x n matrix is formed. The map is linear, and keeps each factor's gradient in
that factor's place. ∎

The published design clips |P(G)| too. It then releases a pair of factors, (dA, dB), with noise drawn in a metric of the
factors, and that has to be the right one at every point. A^T dA goes without noise to an adaptive step that reads the pair,
and where a factor loses rank, or a root is damped, less noise is added than is accounted. Here clip and noise are of one
set of numbers, so neither can be written down. Noise is drawn in r^2 more coordinates, and the projection takes it away
again.
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
    multiplier sigma whatever the chart is (docs/mechanism, Theorem 16); `project` comes after the noise. That the chart is an
    isometry, so that no direction is clipped or noised more than another, is for :func:`check_geometry` to show.
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
